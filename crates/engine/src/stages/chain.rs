//! Stages one after another: a whole model, or the inside of a block.
//!
//! A chain owns the values between its stages: they lie in its part of the saved memory, each behind the one
//! before, so that a stage reads its input from the left of its output. Gradients between stages go back and forth
//! between two buffers in scratch.
//!
//! Where a stage ends in a ReLU and the next takes the greatest of its inputs, the chain does what the ReLU does to gradients to those of
//! the greatest, before they are spread: the greatest is above zero where the one that it was is, and the others have none. The bits are
//! the same, the pass over memory is a quarter and less. Where the next is a convolution, that does it while it writes what it does it to.
//!
//! In a pass over several micro-batches a stage gets all rows at once where it [stacks](Stage::stacks); another one gets
//! one micro-batch after the other (`apart.rs`).
//!
//! A chain does not know the loss, nor whether it is the whole model.

use super::between::{Between, Spot};
use super::child::{Child, Tie, Values, append, round_up};
use super::lies::{Gradients, Inside, Parameters, Whole};
use super::recomputed::Recomputed;
use crate::describe::{Description, Part};
use crate::device::Device;
use crate::param_layout::{ParamLayout, prefix};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Input, Needs, Pass, Shape, Stage};
use crate::windows::{Call, Itinerary};
use std::ops::Range;

/// Stages one after another. See the file's comment.
pub struct Chain<D: Device> {
    children: Vec<Child<D>>,
    layout: ParamLayout,
    ping: usize,
    pong: usize,
    /// The first stage that does not work in place: it writes the chain's `dx`.
    first_apart: usize,
    /// The first stage that has to do with the backward pass where nobody wants the chain's `dx`.
    first_trained: usize,
}

impl<D: Device> Default for Chain<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Device> Chain<D> {
    /// A chain of no stage yet.
    #[must_use]
    pub fn new() -> Self {
        let layout = ParamLayout::NOTHING;
        Self { children: Vec::new(), layout, ping: 0, pong: 0, first_apart: 0, first_trained: 0 }
    }

    /// Adds a stage under the number of stages before it, as PyTorch's `Sequential` names its modules.
    #[must_use]
    pub fn then(self, stage: impl Stage<D> + 'static) -> Self {
        let name = self.children.len().to_string();
        self.named(&name, stage)
    }

    /// Adds a stage under this name; under an empty one its parameters appear as the chain's own.
    #[must_use]
    pub fn named(mut self, name: &str, stage: impl Stage<D> + 'static) -> Self {
        self.children.push(Child::new(name, Box::new(stage)));
        self
    }

    /// Adds a stage whose one parameter is that of an earlier stage which [shares](Stage::shares) it, by its name in the
    /// chain: `head` of a language model, which reads the table of tokens. The gradient of the parameter is the sum of what both
    /// say of it: the stage behind writes, the one in front adds. A chain that has one takes one micro-batch at a time.
    #[must_use]
    pub fn tied(mut self, name: &str, stage: impl Stage<D> + 'static, to: &str) -> Self {
        self = self.named(name, stage);
        let child = self.children.last_mut().expect("it was just added");
        child.tied = Some(Tie { name: to.into(), place: 0..0, is_frozen: false });
        self
    }

    /// The same, with blocks (stages that are chains themselves) that keep nothing for the backward pass but make their forward
    /// pass again. Blocks with running statistics stay as they are. The bits are the same.
    #[must_use]
    pub fn recomputed(mut self) -> Self {
        for child in self.children.iter_mut().filter(|child| child.stage.is_block()) {
            let inner = std::mem::replace(&mut child.stage, Box::new(Self::new()));
            child.stage = Box::new(Recomputed::new(inner));
        }
        self
    }

    /// Whether a parameter of it belongs to two stages.
    pub(crate) fn has_ties(&self) -> bool {
        self.children.iter().any(|child| child.tied.is_some())
    }

    /// The parameters that belong to two stages, and are trained.
    pub(crate) fn ties(&self) -> Vec<Range<usize>> {
        let ties = self.children.iter().filter_map(|child| child.tied.as_ref());
        ties.filter(|tie| !tie.is_frozen).map(|tie| tie.place.clone()).collect()
    }

    /// What its passes ask for, stage by stage, where nobody wants the gradient of its input.
    pub(crate) fn itinerary(&self) -> Itinerary {
        let read = |child: &Child<D>| Some(child.used()).filter(|used| !used.is_empty());
        let forward = self.children.iter().filter(|child| !child.skipped).filter_map(read);
        let mut backward = Vec::new();
        for child in self.children.iter().skip(self.last_back(None::<()>)).rev() {
            backward.extend(read(child).map(Call::Reads));
            backward.push(Call::Settles(child.place.params.start));
        }
        Itinerary { forward: forward.collect(), backward }
    }

    /// How many stages it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Whether it has no stage.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    pub(crate) fn children(&self) -> &[Child<D>] {
        &self.children
    }

    /// Plans each stage behind the one before.
    ///
    /// *Errors*: the name and kind of the stage at fault, and why.
    pub(crate) fn plan_stages(
        &mut self,
        device: &D,
        input: &Shape,
        space: &mut ArenaPlan,
    ) -> Result<Shape, (String, &'static str, String)> {
        let (mut shape, mut place) = (input.clone(), Values::Input);
        let (mut saved, mut scratch) = (space.saved, 0);
        let group = space.group;
        let last = self.children.len().saturating_sub(1);
        self.layout = ParamLayout::NOTHING;
        for (i, child) in self.children.iter_mut().enumerate() {
            let mut own = space.inner();
            let next = child
                .plan(device, &shape, &mut own)
                .map_err(|reason| (child.name.clone(), child.stage.kind(), reason))?;
            space.absorb(&own);
            let needs = child.stage.needs();
            if needs.view || needs.gradient == GradientUse::InPlace {
                assert_eq!(child.per_row[0], child.per_row[1], "{} works in place", child.stage.kind());
                assert!(child.stage.layout().parameters.is_empty(), "{} works in place", child.stage.kind());
            }
            child.x = place;
            child.skipped = needs.view && i < last;
            if child.skipped {
                child.y = place;
            } else if i == last {
                child.y = Values::Output;
            } else {
                child.y = Values::Inside(saved);
                saved += round_up(device.activation_len(next.rows() * next.per_row()));
            }
            let kept = if child.apart.is_some() { round_up(own.saved) * group } else { own.saved };
            child.saved = saved..saved + kept;
            saved += round_up(kept);
            scratch = scratch.max(own.scratch);
            place = child.y;
            append(&mut self.layout, child)
                .map_err(|reason| (child.name.clone(), child.stage.kind(), reason))?;
            shape = next;
        }
        self.leave_relus();
        self.check_ties()?;
        self.plan_gradients(device, input.rows());
        space.saved = saved;
        space.scratch += self.ping + self.pong + scratch;
        Ok(shape)
    }

    /// Lets stages do what the ReLU in front of them does to gradients, or does it for those that take the greatest.
    fn leave_relus(&mut self) {
        for i in 1..self.children.len() {
            let [before, child] = &mut self.children[i - 1..=i] else { unreachable!("two are two") };
            child.rectified = child.stage.takes_greatest() && before.stage.leave_relu();
            let is_left = child.rectified || child.stage.take_on_relu(before.stage.as_mut());
            before.passed = is_left && before.stage.needs().gradient == GradientUse::InPlace;
        }
    }

    /// Whether each parameter that a stage adds to is written by one behind it, and each that is written twice is added to.
    fn check_ties(&self) -> Result<(), (String, &'static str, String)> {
        let full = |child: &Child<D>, name: &str| match child.name.is_empty() {
            true => name.to_owned(),
            false => format!("{}.{name}", child.name),
        };
        for (i, child) in self.children.iter().enumerate() {
            let users = |name: &str| {
                let tied = self.children[i + 1..].iter().filter_map(|child| child.tied.as_ref());
                tied.filter(|tie| tie.name == name).count()
            };
            if let Some(shared) = child.stage.shares().map(|name| full(child, name))
                && users(&shared) != 1
            {
                let reason = format!("one stage behind it must be tied to {shared}, {} are", users(&shared));
                return Err((child.name.clone(), child.stage.kind(), reason));
            }
            if let Some(tie) = &child.tied {
                let shares =
                    |other: &Child<D>| other.stage.shares().is_some_and(|name| full(other, name) == tie.name);
                if !self.children[..i].iter().any(shares) {
                    let reason = format!("no stage before it shares {}", tie.name);
                    return Err((child.name.clone(), child.stage.kind(), reason));
                }
            }
        }
        Ok(())
    }

    /// Lets the backward pass end behind the stages whose parameters all lie in front of this element, where nobody wants what comes before
    /// them.
    pub(crate) fn stop_in_front_of(&mut self, parameter: usize) {
        let is_trained = |tie: &Tie| !tie.is_frozen;
        let idle = |child: &&Child<D>| {
            child.place.params.end <= parameter && !child.tied.as_ref().is_some_and(is_trained)
        };
        let idle = self.children.iter().take_while(idle).count();
        self.first_trained = idle.min(self.children.len().saturating_sub(1));
    }

    /// The last stage of the backward pass, which is the first that it comes to anything for.
    fn last_back<T>(&self, wanted: Option<T>) -> usize {
        match wanted {
            Some(_) => self.first_apart,
            None => self.first_apart.max(self.first_trained),
        }
    }

    /// Walks back as [`Chain::backward`] does, and notes how long the two buffers must be.
    fn plan_gradients(&mut self, device: &D, rows: usize) {
        let in_place = |child: &Child<D>| child.stage.needs().gradient == GradientUse::InPlace;
        self.first_apart = self.children.iter().take_while(|child| in_place(child)).count();
        let mut spot = Spot::Outer;
        for child in self.children.iter().skip(self.first_apart + 1).rev().filter(|child| !in_place(child)) {
            spot = spot.other();
            let buffer = if spot == Spot::Ping { &mut self.ping } else { &mut self.pong };
            *buffer = (*buffer).max(round_up(device.activation_len(rows * child.per_row[0])));
        }
    }
}

impl<D: Device> Stage<D> for Chain<D> {
    fn kind(&self) -> &'static str {
        "chain"
    }

    fn describe(&self) -> Description {
        let part = |child: &Child<D>| Part {
            name: child.name.clone(),
            tied: child.tied.as_ref().map(|tie| tie.name.clone()),
            stage: child.stage.describe(),
        };
        Description::Chain(self.children.iter().map(part).collect())
    }

    fn is_block(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        self.children.iter().all(|child| child.stage.decodes())
    }

    fn stacks(&self) -> bool {
        // What two stages share is added up one micro-batch at a time.
        !self.has_ties()
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        // What happens to the outer `dy` is decided by the last stage that is not in place.
        let Some(last) = self.children.last() else { return Needs::PLAIN };
        let gradient = match last.needs().gradient {
            GradientUse::Reads => GradientUse::Reads,
            GradientUse::Spoils | GradientUse::InPlace => GradientUse::Spoils,
        };
        Needs { output: last.needs().output, gradient, view: false }
    }

    fn vocabulary(&self) -> Option<usize> {
        self.children.first().and_then(|child| child.stage.vocabulary())
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        if self.children.is_empty() {
            return Err("it has no stage".into());
        }
        self.plan_stages(device, input, space).map_err(|(name, kind, reason)| match name.is_empty() {
            true => format!("{kind}: {reason}"),
            false => format!("{name} ({kind}): {reason}"),
        })
    }

    fn freeze(&mut self, before: &str, named: &dyn Fn(&str) -> bool) {
        self.layout = ParamLayout::NOTHING;
        for at in 0..self.children.len() {
            let (own, rest) = self.children[at..].split_first_mut().expect("there is one");
            // Whoever is tied to its parameter must do without its gradient as well.
            let mut tied = rest.iter().filter(|child| child.tied.is_some());
            let is_alone =
                own.stage.shares().is_none() || tied.all(|child| child.stage.leaves_out_gradients());
            let before = format!("{before}{}", prefix(&own.name));
            let lies_apart = own.stage.freeze_inside(&before, named);
            own.is_frozen = lies_apart && is_alone && own.tied.is_none();
            append(&mut self.layout, own).expect("it was planned with these tensors");
        }
        let first = self.children.iter().map(|child| child.used()).find(|used| !used.is_empty());
        self.stop_in_front_of(first.map_or(0, |used| used.start));
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, frozen, stats, stat_sums, x, y, saved, scratch } = io;
        let params = &mut Whole::<D>(params);
        self.walk(pass, Forward { params, frozen, stats, stat_sums, x, y, saved, scratch }, None);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, frozen, x, y, saved, dy, dx, grads, scratch } = io;
        let (grads, params) = (&mut Inside::<D>(grads), &mut Whole::<D>(params));
        self.walk_back(pass, Backward { params, frozen, x, y, saved, dy, dx, grads, scratch }, Outer::Apart);
    }
}

/// Whether the gradient of a chain's outputs is added to that of its inputs, as around a residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outer {
    /// It is.
    Added,
    /// It is not.
    Apart,
}

impl<D: Device> Chain<D> {
    /// Whether the rows of its outputs may lie further apart than they are long.
    pub(crate) fn pads(&self) -> bool {
        self.children.last().is_some_and(|child| child.apart.is_none() && child.stage.pads())
    }

    /// Whether the last stage adds something to its output in passing.
    pub(crate) fn adds(&self) -> bool {
        self.children.last().is_some_and(|child| child.apart.is_none() && child.stage.adds())
    }

    /// Whether the first stage adds something to the gradient of its input in passing, and none of the others touches that of the
    /// chain's outputs meanwhile.
    pub(crate) fn adds_back(&self) -> bool {
        let first = self.children.first();
        let adds = first.is_some_and(|child| child.apart.is_none() && child.stage.adds_back());
        adds && self.children.len() > 1 && Stage::<D>::needs(self).gradient == GradientUse::Reads
    }

    /// The forward pass; something that is added to the output only where the chain [adds](Chain::adds).
    pub(crate) fn walk(
        &self,
        pass: &Pass<'_, D>,
        mut io: Forward<'_, D, &mut dyn Parameters<D>>,
        plus: Option<D::Ref<'_>>,
    ) {
        let scratch_from = self.ping + self.pong;
        let scratch_to = D::len_mut(&io.scratch);
        let device = pass.device;
        for (i, child) in self.children.iter().enumerate().filter(|(_, child)| !child.skipped) {
            let [x_len, y_len] = child.per_row.map(|n| n * pass.rows);
            let saved_to = D::len_mut(&io.saved);
            let begin = if let Values::Inside(offset) = child.y { offset } else { child.saved.start };
            let (before, rest) = D::split_mut(D::part_mut(&mut io.saved, 0..saved_to), begin);
            let (mut inside, mut tail) = D::split_mut(rest, child.saved.start - begin);
            child.forward(
                pass,
                Forward {
                    params: child.params(&mut *io.params, io.frozen),
                    frozen: child.frozen(io.frozen),
                    stats: D::part(io.stats, child.place.stats.clone()),
                    stat_sums: io.stat_sums.as_mut().map(|sums| D::part_mut(sums, child.place.stats.clone())),
                    x: match child.x {
                        Values::Inside(at) => Input::Values(look(device, D::read(&before), at, x_len)),
                        _ => io.x.shorter(),
                    },
                    y: match child.y {
                        Values::Inside(_) => device.activations_mut(&mut inside, y_len),
                        // All of it: the rows of a model's outputs may lie apart.
                        _ => {
                            let all = D::len_mut(&io.y);
                            D::part_mut(&mut io.y, 0..all)
                        }
                    },
                    saved: D::part_mut(&mut tail, 0..child.saved.len()),
                    scratch: D::part_mut(&mut io.scratch, scratch_from..scratch_to),
                },
                plus.filter(|_| i + 1 == self.children.len()),
            );
        }
    }
}

/// Activations in a chain's saved memory.
fn look<'b, 'a: 'b, D: Device>(device: &D, saved: D::Ref<'a>, at: usize, len: usize) -> D::Ref<'b> {
    device.activations(D::part(saved, at..at + device.activation_len(len)), len)
}

impl<D: Device> Chain<D> {
    /// The backward pass, which tells after each stage what is final. The gradient of the outputs is added to that of the inputs only
    /// where the chain [adds it](Chain::adds_back).
    pub(crate) fn walk_back(
        &self,
        pass: &Pass<'_, D>,
        io: Backward<'_, D, &mut dyn Gradients<D>, &mut dyn Parameters<D>>,
        outer: Outer,
    ) {
        let Backward { params, frozen, x, y, mut saved, dy, dx, grads, scratch } = io;
        let (ping, scratch) = D::split_mut(scratch, self.ping);
        let (pong, mut scratch) = D::split_mut(scratch, self.pong);
        let last = self.last_back(dx.as_ref());
        let wanted = dx.is_some();
        let device = pass.device;
        let mut gradients = Between::<D> { device, outer: dy, ping, pong, goal: dx, at: Spot::Outer };
        let (saved_to, scratch_to) = (D::len_mut(&saved), D::len_mut(&scratch));
        for (i, child) in self.children.iter().enumerate().rev() {
            let [x_len, y_len] = child.per_row.map(|n| n * pass.rows);
            if i < last && !wanted {
                break;
            }
            if child.passed {
                grads.settle(child.place.params.start);
                continue;
            }
            let to = match child.stage.needs().gradient {
                GradientUse::InPlace => None,
                _ if i == last => Some(Spot::Goal),
                _ => Some(gradients.at.other()),
            };
            let (before, mut own) = D::split_mut(D::part_mut(&mut saved, 0..saved_to), child.saved.start);
            let inside = |at: usize, len: usize| look(device, D::read(&before), at, len);
            let plus = outer == Outer::Added && i == 0;
            let (mut dy, dx, outer) = gradients.lend(to, [x_len, y_len]);
            let y = match child.y {
                Values::Inside(at) => inside(at, y_len),
                Values::Output => D::part(y, 0..D::len(y)),
                // A view of the chain's own input: it needs no output.
                Values::Input => D::part(y, 0..0),
            };
            if child.rectified {
                device.relu_gradient(y, D::part_mut(&mut dy, 0..y_len));
            }
            child.backward(
                pass,
                Backward {
                    params: child.params(&mut *params, frozen),
                    frozen: child.frozen(frozen),
                    x: match child.x {
                        Values::Inside(at) => Input::Values(inside(at, x_len)),
                        _ => x.shorter(),
                    },
                    y,
                    saved: D::part_mut(&mut own, 0..child.saved.len()),
                    dy,
                    dx,
                    grads: grads.part(child.used()),
                    scratch: D::part_mut(&mut scratch, 0..scratch_to),
                },
                outer.filter(|_| plus),
            );
            gradients.at = to.unwrap_or(gradients.at);
            grads.settle(child.place.params.start);
        }
        if let (Spot::Outer, Some(dx)) = (gradients.at, gradients.goal) {
            // Every stage worked in place.
            pass.device.copy(D::read(&gradients.outer), dx);
        }
    }
}
