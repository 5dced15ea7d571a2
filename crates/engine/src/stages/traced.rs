//! A block that is written forward only: what is done to its input is recorded once, and differentiated.
//!
//! The record is a list of values, each made of earlier ones: by a stage, as a sum, or as a product. Forward they are made in order,
//! backward in the other one: when a value is reached, everybody who used it has said what its gradient is. All values are kept, and
//! all gradients have memory of their own; a chain needs less, so write a chain where there is one.
//!
//! This file does not know what any stage does.

use super::pointwise::Sigmoid;
use crate::device::{Device, Gelu, Rows};
use crate::param_layout::{ParamLayout, Place, prefix};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Input, Needs, Pass, Shape, Stage};
use crate::stages::Relu;
use std::cell::RefCell;
use std::ops::{Add, Mul, Range};
use std::rc::Rc;

/// How a value is made.
enum Operation<D: Device> {
    /// It is the block's input.
    Input,
    /// By a stage, of another value.
    Stage { name: String, stage: Box<dyn Stage<D>>, of: usize },
    /// As the sum of two.
    Sum([usize; 2]),
    /// As the product of two; of the second an element may stand for all places of a channel of the first.
    Product([usize; 2]),
}

/// A value inside of a block, to do something to.
pub struct Expr<D: Device> {
    record: Rc<RefCell<Vec<Operation<D>>>>,
    value: usize,
}

impl<D: Device> Clone for Expr<D> {
    fn clone(&self) -> Self {
        Self { record: Rc::clone(&self.record), value: self.value }
    }
}

impl<D: Device> Expr<D> {
    fn make(&self, operation: Operation<D>) -> Self {
        let mut record = self.record.borrow_mut();
        record.push(operation);
        Self { record: Rc::clone(&self.record), value: record.len() - 1 }
    }

    fn with(&self, other: &Self) -> [usize; 2] {
        assert!(Rc::ptr_eq(&self.record, &other.record), "both values are of one block");
        [self.value, other.value]
    }

    /// What a stage makes of it; the stage's parameters have `name` in front of theirs.
    #[must_use]
    pub fn through(&self, name: &str, stage: impl Stage<D> + 'static) -> Self {
        self.make(Operation::Stage { name: name.into(), stage: Box::new(stage), of: self.value })
    }

    /// `max(x, 0)`.
    #[must_use]
    pub fn relu(&self) -> Self {
        self.through("", Relu)
    }

    /// The exact GELU.
    #[must_use]
    pub fn gelu(&self) -> Self {
        self.through("", Gelu::Exact)
    }

    /// `1 / (1 + e^-x)`.
    #[must_use]
    pub fn sigmoid(&self) -> Self {
        self.through("", Sigmoid)
    }
}

/// The sum of two values of one shape.
impl<D: Device> Add for Expr<D> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.make(Operation::Sum(self.with(&other)))
    }
}

/// The product, element by element, of two values of one shape; or of `[channels, places...]` and `[channels]`, where each channel is
/// multiplied by its number.
impl<D: Device> Mul for Expr<D> {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        self.make(Operation::Product(self.with(&other)))
    }
}

/// A recorded value in its place.
struct Value<D: Device> {
    operation: Operation<D>,
    /// Elements of a sample.
    per_row: usize,
    /// Its memory in what is kept, and behind it what its stage keeps.
    kept: Range<usize>,
    saved: Range<usize>,
    /// The memory of its gradient, among all gradients.
    gradient: Range<usize>,
    /// The tensors of its stage.
    place: Place,
    /// Whether its parameters are all among those that stay as they are, and it has no stage inside.
    is_frozen: bool,
    /// For each value that it is made of, whether it is the first in the backward pass to say what that one's gradient is.
    is_first: [bool; 2],
}

impl<D: Device> Value<D> {
    fn operands(&self) -> &[usize] {
        match &self.operation {
            Operation::Input => &[],
            Operation::Stage { of, .. } => std::slice::from_ref(of),
            Operation::Sum(of) | Operation::Product(of) => of,
        }
    }

    /// All parameters that are its stage's own, wherever they lie.
    fn params<'b, 'a: 'b>(&self, params: D::Ref<'a>, frozen: D::Ref<'a>) -> D::Ref<'b> {
        match self.is_frozen {
            true => D::part(frozen, self.place.frozen.clone()),
            false => D::part(params, self.place.params.clone()),
        }
    }

    /// Those of stages inside of it that stay as they are.
    fn frozen<'b, 'a: 'b>(&self, frozen: D::Ref<'a>) -> D::Ref<'b> {
        D::part(frozen, if self.is_frozen { 0..0 } else { self.place.frozen.clone() })
    }
}

/// A block that was written forward only. See the file's comment.
pub struct Traced<D: Device> {
    values: Vec<Value<D>>,
    layout: ParamLayout,
    output: usize,
    /// Elements of scratch for a gradient that is to be added, and for the stages.
    beside: usize,
    scratch: usize,
}

impl<D: Device> Traced<D> {
    /// Records what `forward` does to its input, once. *Panics* if it gives a value of another block, or adds or multiplies one.
    #[must_use]
    pub fn new(forward: impl FnOnce(Expr<D>) -> Expr<D>) -> Self {
        let record = Rc::new(RefCell::new(vec![Operation::Input]));
        let output = forward(Expr { record: Rc::clone(&record), value: 0 });
        assert!(Rc::ptr_eq(&record, &output.record), "what comes out is a value of this block");
        let output = output.value;
        let value = |operation| Value {
            operation,
            per_row: 0,
            kept: 0..0,
            saved: 0..0,
            gradient: 0..0,
            place: Place::default(),
            is_frozen: false,
            is_first: [false; 2],
        };
        let values = record.take().into_iter().map(value).collect();
        Self { values, layout: ParamLayout::NOTHING, output, beside: 0, scratch: 0 }
    }

    /// Says of each value who is the first to write its gradient.
    ///
    /// *Errors*: one that nobody uses.
    fn order_gradients(&mut self) -> Result<(), String> {
        let mut written = vec![false; self.values.len()];
        written[self.output] = true;
        for at in (1..self.values.len()).rev() {
            if !written[at] {
                return Err("a value of it is used by nobody".into());
            }
            let value = &mut self.values[at];
            let of = value.operands();
            let first = [0, 1].map(|place| match of.get(place) {
                Some(of) => !std::mem::replace(&mut written[*of], true),
                None => false,
            });
            value.is_first = first;
        }
        match written[0] {
            true => Ok(()),
            false => Err("its output does not depend on its input".into()),
        }
    }
}

impl<D: Device> Stage<D> for Traced<D> {
    fn kind(&self) -> &'static str {
        "traced"
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn vocabulary(&self) -> Option<usize> {
        self.values.iter().find_map(|value| match &value.operation {
            Operation::Stage { stage, of: 0, .. } => stage.vocabulary(),
            _ => None,
        })
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        if self.output == 0 || self.output + 1 != self.values.len() {
            return Err("its output is not the last value that it makes".into());
        }
        self.order_gradients()?;
        let mut shapes = vec![input.clone()];
        let (mut kept, mut gradients) = (space.saved, 0);
        let mut layout = ParamLayout::NOTHING;
        self.values[0].per_row = input.per_row();
        for at in 1..self.values.len() {
            let mut own = space.inner();
            let value = &mut self.values[at];
            let shape = match &mut value.operation {
                Operation::Input => unreachable!("the input is the first value"),
                Operation::Stage { name, stage, of } => {
                    let shape = stage.plan(device, &shapes[*of], &mut own).map_err(|reason| {
                        match name.is_empty() {
                            true => format!("{}: {reason}", stage.kind()),
                            false => format!("{name} ({}): {reason}", stage.kind()),
                        }
                    })?;
                    value.place = layout.append(name, stage.layout().clone());
                    shape
                }
                Operation::Sum([a, b]) if shapes[*a] != shapes[*b] => {
                    return Err(format!("a sum of {:?} and {:?}", shapes[*a].dims()?, shapes[*b].dims()?));
                }
                Operation::Sum([a, _]) => {
                    shapes[*a].dims()?;
                    shapes[*a].clone()
                }
                Operation::Product([a, b]) => {
                    let (a, b) = (&shapes[*a], &shapes[*b]);
                    let (long, short) = (a.dims()?, b.dims()?);
                    if long != short && short != &long[..1] {
                        return Err(format!("a product of {long:?} and {short:?}"));
                    }
                    a.clone()
                }
            };
            space.absorb(&own);
            value.per_row = shape.per_row();
            let len = device.activation_len(shape.rows() * shape.per_row());
            value.kept = kept..kept + len;
            value.saved = kept + len..kept + len + own.saved;
            kept = value.saved.end;
            value.gradient = gradients..gradients + len;
            gradients += len;
            self.scratch = self.scratch.max(own.scratch);
            shapes.push(shape);
        }
        let longest = shapes.iter().map(|shape| device.activation_len(shape.rows() * shape.per_row())).max();
        self.beside = longest.unwrap_or(0);
        self.layout = layout;
        space.saved = kept;
        space.scratch += self.beside + self.scratch + gradients;
        shapes.pop().ok_or_else(|| "it makes nothing".into())
    }

    fn freeze(&mut self, before: &str, named: &dyn Fn(&str) -> bool) {
        self.layout = ParamLayout::NOTHING;
        for value in &mut self.values {
            let Operation::Stage { name, stage, .. } = &mut value.operation else { continue };
            let before = format!("{before}{}", prefix(name));
            value.is_frozen = stage.freeze_inside(&before, named);
            let layout = stage.layout().clone();
            let layout = if value.is_frozen { layout.all_frozen() } else { layout };
            value.place = self.layout.append(name, layout);
        }
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, frozen, stats, mut stat_sums, x, y, mut saved, mut scratch } = io;
        let (device, all) = (pass.device, D::len_mut(&saved));
        for value in &self.values[1..] {
            let len = value.per_row * pass.rows;
            let (before, rest) = D::split_mut(D::part_mut(&mut saved, 0..all), value.kept.start);
            let (mut own, mut rest) = D::split_mut(rest, value.kept.len());
            let mut to = device.activations_mut(&mut own, len);
            match &value.operation {
                Operation::Input => unreachable!("the input is the first value"),
                Operation::Stage { stage, of: from, .. } => stage.forward(
                    pass,
                    Forward {
                        params: value.params(params, frozen),
                        frozen: value.frozen(frozen),
                        stats: D::part(stats, value.place.stats.clone()),
                        stat_sums: stat_sums
                            .as_mut()
                            .map(|sums| D::part_mut(sums, value.place.stats.clone())),
                        x: self.operand(device, x, D::read(&before), *from, pass.rows),
                        y: D::part_mut(&mut to, 0..len),
                        saved: D::part_mut(&mut rest, 0..value.saved.len()),
                        scratch: D::part_mut(&mut scratch, self.beside..self.beside + self.scratch),
                    },
                ),
                Operation::Sum([a, b]) => device.add(
                    self.operand(device, x, D::read(&before), *a, pass.rows).values(),
                    self.operand(device, x, D::read(&before), *b, pass.rows).values(),
                    to,
                ),
                Operation::Product([a, b]) => {
                    device.scale_rows(
                        self.rows(*a, *b, pass),
                        self.operand(device, x, D::read(&before), *a, pass.rows).values(),
                        self.operand(device, x, D::read(&before), *b, pass.rows).values(),
                        to,
                    );
                }
            }
        }
        let (last, len) = (&self.values[self.output], self.values[self.output].per_row * pass.rows);
        let made = device.activations(D::part(D::read(&saved), last.kept.clone()), len);
        device.copy(made, y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, frozen, x, y: _, mut saved, dy, mut dx, mut grads, scratch } = io;
        let (device, all) = (pass.device, D::len_mut(&saved));
        let (mut beside, rest) = D::split_mut(scratch, self.beside);
        let (mut scratch, mut gradients) = D::split_mut(rest, self.scratch);
        let gradients_len = D::len_mut(&gradients);
        let output = &self.values[self.output];
        let len = output.per_row * pass.rows;
        let mut last = D::part_mut(&mut gradients, output.gradient.clone());
        device.copy(D::part(D::read(&dy), 0..len), device.activations_mut(&mut last, len));
        drop(last);
        for (at, value) in self.values.iter().enumerate().skip(1).rev() {
            let len = value.per_row * pass.rows;
            let (mut earlier, mut own) =
                D::split_mut(D::part_mut(&mut gradients, 0..gradients_len), value.gradient.start);
            let mut own = device.activations_mut(&mut own, len);
            let (before, mut rest) = D::split_mut(D::part_mut(&mut saved, 0..all), value.saved.start);
            for (place, &from) in value.operands().iter().enumerate() {
                let from_len = self.values[from].per_row * pass.rows;
                // Where the gradient of what it is made of goes: there if it is the first, beside it to be added if not.
                let mut memory = match from {
                    0 => dx.as_mut().map(|dx| D::part_mut(dx, 0..from_len)),
                    from => Some(D::part_mut(&mut earlier, self.values[from].gradient.clone())),
                };
                let mut goal = memory.as_mut().map(|memory| match from {
                    0 => D::part_mut(memory, 0..from_len),
                    _ => device.activations_mut(memory, from_len),
                });
                let mut waiting = match value.is_first[place] {
                    true => None,
                    false => Some(device.activations_mut(&mut beside, from_len)),
                };
                let mut to = match (&mut waiting, &mut goal) {
                    (_, None) => None,
                    (Some(waiting), Some(_)) => Some(D::part_mut(waiting, 0..from_len)),
                    (None, Some(goal)) => Some(D::part_mut(goal, 0..from_len)),
                };
                match &value.operation {
                    Operation::Input => unreachable!("the input is the first value"),
                    Operation::Stage { stage, .. } => {
                        let in_place = stage.needs().gradient == GradientUse::InPlace;
                        let y = self.look(device, D::read(&before), at, pass.rows);
                        stage.backward(
                            pass,
                            Backward {
                                params: value.params(params, frozen),
                                frozen: value.frozen(frozen),
                                x: self.operand(device, x, D::read(&before), from, pass.rows),
                                y,
                                saved: D::part_mut(&mut rest, 0..value.saved.len()),
                                dy: D::part_mut(&mut own, 0..len),
                                dx: match &mut to {
                                    Some(to) if !in_place => Some(D::part_mut(to, 0..from_len)),
                                    _ => None,
                                },
                                grads: D::part_mut(&mut grads, value.place.params.clone()),
                                scratch: D::part_mut(&mut scratch, 0..self.scratch),
                            },
                        );
                        if let (true, Some(to)) = (in_place, &mut to) {
                            device.copy(D::read(&own), D::part_mut(to, 0..from_len));
                        }
                    }
                    Operation::Sum(_) => {
                        if let Some(to) = &mut to {
                            device.copy(D::read(&own), D::part_mut(to, 0..from_len));
                        }
                    }
                    Operation::Product([a, b]) => {
                        let shape = self.rows(*a, *b, pass);
                        if let Some(to) = &mut to {
                            let to = D::part_mut(to, 0..from_len);
                            match place {
                                0 => device.scale_rows(
                                    shape,
                                    D::read(&own),
                                    self.operand(device, x, D::read(&before), *b, pass.rows).values(),
                                    to,
                                ),
                                _ => device.dot_rows(
                                    shape,
                                    D::read(&own),
                                    self.operand(device, x, D::read(&before), *a, pass.rows).values(),
                                    to,
                                ),
                            }
                        }
                    }
                }
                drop(to);
                if let (Some(waiting), Some(goal)) = (&waiting, goal) {
                    device.add_to(D::read(waiting), goal);
                }
            }
        }
    }
}

impl<D: Device> Traced<D> {
    /// A value that others are made of.
    fn operand<'b, 'a: 'b, 'x: 'b>(
        &self,
        device: &D,
        x: Input<'x, D>,
        kept: D::Ref<'a>,
        at: usize,
        rows: usize,
    ) -> Input<'b, D> {
        if at == 0 { x.shorter() } else { Input::Values(self.look(device, kept, at, rows)) }
    }

    /// A value that was kept.
    fn look<'b, 'a: 'b>(&self, device: &D, kept: D::Ref<'a>, at: usize, rows: usize) -> D::Ref<'b> {
        let value = &self.values[at];
        device.activations(D::part(kept, value.kept.clone()), value.per_row * rows)
    }

    /// The rows of a product: each of the first is multiplied by an element of the second.
    fn rows(&self, long: usize, short: usize, pass: &Pass<'_, D>) -> Rows {
        let [long, short] = [long, short].map(|at| self.values[at].per_row);
        Rows { rows: pass.rows * short, width: long / short }
    }
}
