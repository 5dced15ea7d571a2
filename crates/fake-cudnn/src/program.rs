//! A graph, done operation by operation as it is told: what a fused kernel must come to.

use crate::algorithm::Order;
use crate::convolved::{self, Convolved};
use crate::knobs::knobs;
use crate::numbers::{numbers, rounded};
use crate::part::{Part, kind, name};
use crate::problem::Pass;
use crate::status::{BAD_PARAM, NOT_SUPPORTED, Status, demand};
use dtrain_fake_common::numbers::Numbers;
use std::collections::BTreeMap;

/// `CUDNN_POINTWISE_IDENTITY`.
const IDENTITY: u64 = 21;
/// Results of so many numbers are great.
const GREAT: usize = 1024;
/// Of a graph that is attention.
type Four = [usize; 4];

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Memory,
    Virtual,
    /// A number of the host.
    Value,
}

#[derive(Clone)]
struct Tensor {
    id: u64,
    /// None for counts and truth.
    numbers: Option<Numbers>,
    sizes: Vec<usize>,
    strides: Vec<usize>,
    place: Place,
}

/// What rows come to.
#[derive(Clone, Copy)]
enum Rows {
    Sum,
    Maximum,
}

/// Modes are `cudnnPointwiseMode_t`.
enum Operation {
    Pointwise { mode: u64, axis: u64, operands: Vec<u64>, y: u64 },
    Product { a: u64, b: u64, c: u64 },
    Reduction { rows: Rows, x: u64, y: u64 },
    Reshape { x: u64, y: u64 },
    Convolution { of: Convolved, xwy: [u64; 3] },
}

/// The operations of a graph in their order.
pub(crate) struct Program {
    tensors: BTreeMap<u64, Tensor>,
    operations: Vec<Operation>,
}

impl Tensor {
    fn of(part: &Part) -> Result<Self, Status> {
        let list = |name| part.values(name).iter().map(|n| *n as usize).collect::<Vec<_>>();
        let kind = part.number(name::TENSOR_NUMBERS)? as u32;
        // Counts and truth.
        let numbers = if [4, 11].contains(&kind) { None } else { Some(numbers(kind).ok_or(NOT_SUPPORTED)?) };
        let is = |name| part.values(name).first().is_some_and(|value| *value != 0);
        let place = match (is(name::TENSOR_IS_VIRTUAL), is(name::TENSOR_IS_VALUE)) {
            (true, _) => Place::Virtual,
            (_, true) => Place::Value,
            _ => Place::Memory,
        };
        let (sizes, strides) = (list(name::TENSOR_SIZES), list(name::TENSOR_STRIDES));
        demand((4..=5).contains(&sizes.len()) && strides.len() == sizes.len(), NOT_SUPPORTED)?;
        Ok(Self { id: part.number(name::TENSOR_ID)?, numbers, sizes, strides, place })
    }

    fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Where each number lies, row by row.
    fn places(&self) -> impl Iterator<Item = usize> {
        let Self { sizes, strides, .. } = self;
        (0..self.len()).map(move |mut i| {
            let mut at = 0;
            for axis in (0..sizes.len()).rev() {
                at += i % sizes[axis] * strides[axis];
                i /= sizes[axis];
            }
            at
        })
    }

    /// *Errors*: it has not four axes.
    fn four(&self) -> Result<Four, Status> {
        self.sizes.as_slice().try_into().map_err(|_| NOT_SUPPORTED)
    }

    /// Whether channels lie last, behind one another without gaps.
    fn has_channels_last(&self) -> bool {
        let behind = |axis: usize| self.sizes[axis + 1..].iter().product::<usize>();
        let wanted = |axis: usize| match axis {
            0 => behind(0),
            1 => 1,
            axis => self.sizes[1] * behind(axis),
        };
        self.strides.iter().enumerate().all(|(axis, stride)| *stride == wanted(axis))
    }

    /// As it would be kept.
    fn rounded(&self, value: f32) -> f32 {
        self.numbers.map_or(value, |numbers| rounded(numbers, value))
    }

    /// Which number of an operand goes with each number of a result: what has one along an axis goes with all.
    fn spread(&self, over: &[usize]) -> Result<Vec<usize>, Status> {
        let axes = over.len();
        let fits =
            self.sizes.len() == axes && (0..axes).all(|axis| [1, over[axis]].contains(&self.sizes[axis]));
        demand(fits, BAD_PARAM)?;
        let len = over.iter().product();
        let of = |mut i: usize| {
            let (mut at, mut step) = (0, 1);
            for axis in (0..axes).rev() {
                at += if self.sizes[axis] == 1 { 0 } else { i % over[axis] * step };
                step *= self.sizes[axis];
                i /= over[axis];
            }
            at
        };
        Ok((0..len).map(of).collect())
    }
}

impl Program {
    /// *Errors*: it tells of tensors or operations that are not known here, or do not fit.
    pub fn of(graph: &Part) -> Result<Self, Status> {
        let mut program = Self { tensors: BTreeMap::new(), operations: Vec::new() };
        for part in graph.parts(name::GRAPH_OPERATIONS) {
            let operation = program.operation(part)?;
            program.operations.push(operation);
        }
        Ok(program)
    }

    /// The name of a tensor that an operation tells of.
    fn tensor(&mut self, part: &Part, name: u32) -> Result<u64, Status> {
        let tensor = Tensor::of(part.part(name, kind::TENSOR)?)?;
        let id = tensor.id;
        self.tensors.insert(id, tensor);
        Ok(id)
    }

    fn operation(&mut self, part: &Part) -> Result<Operation, Status> {
        if let Some((pass, of, names)) = convolved::names_of(part) {
            let of = Convolved::of(pass, part.part(of, kind::CONVOLUTION)?)?;
            let [x, w, y] = names;
            let xwy = [self.tensor(part, x)?, self.tensor(part, w)?, self.tensor(part, y)?];
            return Ok(Operation::Convolution { of, xwy });
        }
        match part.kind {
            kind::OPERATION_POINTWISE => {
                let told = part.part(name::OF_POINTWISE, kind::POINTWISE)?.clone();
                let names = [name::POINTWISE_X, name::POINTWISE_B, name::POINTWISE_T];
                let there = names.into_iter().filter(|name| !part.parts(*name).is_empty());
                let operands = there.map(|name| self.tensor(part, name)).collect::<Result<_, _>>()?;
                let axis = told.values(name::POINTWISE_AXIS).first().copied().unwrap_or_default();
                let mode = told.number(name::POINTWISE_MODE)?;
                Ok(Operation::Pointwise { mode, axis, operands, y: self.tensor(part, name::POINTWISE_Y)? })
            }
            kind::OPERATION_PRODUCT => {
                part.part(name::OF_PRODUCT, kind::PRODUCT)?;
                let [a, b, c] = [name::PRODUCT_A, name::PRODUCT_B, name::PRODUCT_C];
                let [a, b, c] = [self.tensor(part, a)?, self.tensor(part, b)?, self.tensor(part, c)?];
                Ok(Operation::Product { a, b, c })
            }
            kind::OPERATION_REDUCTION => {
                let by = part.part(name::OF_REDUCTION, kind::REDUCTION)?.number(name::REDUCTION_BY)?;
                let rows = match by {
                    0 => Rows::Sum,
                    3 => Rows::Maximum,
                    _ => return Err(NOT_SUPPORTED),
                };
                let (x, y) = (self.tensor(part, name::REDUCTION_X)?, self.tensor(part, name::REDUCTION_Y)?);
                Ok(Operation::Reduction { rows, x, y })
            }
            kind::OPERATION_RESHAPE => {
                let (x, y) = (self.tensor(part, name::RESHAPE_X)?, self.tensor(part, name::RESHAPE_Y)?);
                Ok(Operation::Reshape { x, y })
            }
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Whether it is attention, or a convolution.
    ///
    /// *Errors*: of a convolution that does not fit together.
    pub fn is_known(&self) -> Result<bool, Status> {
        let Some(Operation::Convolution { of, xwy }) = self.operations.first() else {
            return Ok([2, 5].contains(&self.products()));
        };
        let [x, w, y] = xwy.each_ref().map(|id| &self.tensors[id]);
        of.fits([&x.sizes, &w.sizes, &y.sizes])?;
        let plain = self.tensors.values().all(Tensor::has_channels_last);
        let halves = |of: &Tensor| {
            of.place == Place::Memory && [Some(Numbers::Bf16), Some(Numbers::F16)].contains(&of.numbers)
        };
        let [x_is, w_is, y_is] = [x, w, y].map(halves);
        Ok(plain
            && match (of.pass, self.operations.get(1..)) {
                (Pass::Forward | Pass::Inputs, Some([])) => x_is && w_is && y_is,
                (Pass::Weights, Some([Operation::Pointwise { mode: IDENTITY, operands, y: dw, .. }])) => {
                    let kept = &self.tensors[dw];
                    let f32s = [w.numbers, kept.numbers] == [Some(Numbers::F32); 2];
                    let behind =
                        *operands == [w.id] && w.place == Place::Virtual && kept.place == Place::Memory;
                    x_is && y_is && f32s && behind && kept.sizes == w.sizes
                }
                _ => false,
            })
    }

    /// How many products of matrices it has.
    fn products(&self) -> usize {
        self.operations.iter().filter(|operation| matches!(operation, Operation::Product { .. })).count()
    }

    /// Bytes of workspace: the largest matrix in halves, where it is a gradient.
    pub fn workspace(&self) -> usize {
        let largest = self.tensors.values().map(Tensor::len).max().unwrap_or_default();
        if self.products() > 2 { 2 * largest } else { 0 }
    }
}

/// A program with all that it needs.
pub(crate) struct Run {
    program: Program,
    order: Order,
    addresses: BTreeMap<u64, usize>,
    /// Numbers of the host, read when the call was made.
    values: BTreeMap<u64, f32>,
    workspace: usize,
    turn: u64,
}

impl Run {
    /// *Errors*: a tensor that has no place, or no workspace where there has to be one.
    ///
    /// # Safety
    /// Numbers of the host lie where the pack says.
    pub unsafe fn of(plan: &Part, pack: &Part, order: Order, turn: u64) -> Result<Self, Status> {
        let configuration = plan.part(name::PLAN_CONFIGURATION, kind::CONFIGURATION)?;
        let engine = configuration.part(name::CONFIGURATION_ENGINE, kind::ENGINE)?;
        let program = Program::of(engine.part(name::ENGINE_GRAPH, kind::GRAPH)?)?;
        let told = pack.values(name::PACK_IDS).iter().zip(pack.values(name::PACK_POINTERS));
        let all: BTreeMap<u64, usize> = told.map(|(id, at)| (*id, *at as usize)).collect();
        let (mut addresses, mut values) = (BTreeMap::new(), BTreeMap::new());
        for tensor in program.tensors.values() {
            let at = || all.get(&tensor.id).copied().filter(|at| *at != 0).ok_or(BAD_PARAM);
            match tensor.place {
                Place::Virtual => {}
                Place::Memory => {
                    let at = at()?;
                    demand(at.is_multiple_of(16), BAD_PARAM)?;
                    addresses.insert(tensor.id, at);
                }
                // SAFETY: a number of the host lies there; the caller's promise.
                Place::Value => drop(values.insert(tensor.id, unsafe { *(at()? as *const f32) })),
            }
        }
        let workspace = pack.number(name::PACK_WORKSPACE)? as usize;
        demand(workspace != 0 || program.workspace() == 0, BAD_PARAM)?;
        Ok(Self { program, order, addresses, values, workspace, turn })
    }

    /// # Safety
    /// The tensors of the graph lie at the addresses, the workspace too, and nobody else uses what is written and the workspace.
    pub unsafe fn compute(&self) -> Result<(), Status> {
        let mut known: BTreeMap<u64, Vec<f32>> =
            self.values.iter().map(|(id, value)| (*id, vec![*value])).collect();
        let tensors = &self.program.tensors;
        // SAFETY: the workspace is ours.
        unsafe { std::ptr::write_bytes(self.workspace as *mut u8, 0x5a, self.program.workspace()) };
        for operation in &self.program.operations {
            let (operands, y) = match operation {
                Operation::Pointwise { operands, y, .. } => (operands.clone(), y),
                Operation::Product { a, b, c } => (vec![*a, *b], c),
                Operation::Reduction { x, y, .. } | Operation::Reshape { x, y } => (vec![*x], y),
                Operation::Convolution { of, xwy: [x, w, y] } => match of.pass {
                    Pass::Forward => (vec![*x, *w], y),
                    Pass::Inputs => (vec![*w, *y], x),
                    Pass::Weights => (vec![*x, *y], w),
                },
            };
            for id in &operands {
                let tensor = &tensors[id];
                if !known.contains_key(id) {
                    let at = *self.addresses.get(id).ok_or(BAD_PARAM)?;
                    let numbers = tensor.numbers.ok_or(NOT_SUPPORTED)?;
                    // SAFETY: it lies there; the caller's promise.
                    let all = tensor.places().map(|place| unsafe { numbers.read(at, place) }).collect();
                    known.insert(*id, all);
                }
            }
            let operands: Vec<_> = operands.iter().map(|id| (&tensors[id], known[id].as_slice())).collect();
            let tensor = &tensors[y];
            let mut result = match operation {
                Operation::Pointwise { mode, axis, .. } => pointwise(*mode, *axis, &operands, tensor)?,
                Operation::Product { .. } => self.product(operands[0], operands[1], tensor)?,
                Operation::Reduction { rows, .. } => reduced(*rows, operands[0], tensor)?,
                Operation::Reshape { .. } => reshaped(operands[0], tensor)?,
                Operation::Convolution { of, xwy } => {
                    let sizes = xwy.each_ref().map(|id| tensors[id].sizes.as_slice());
                    let [first, second] = [operands[0].1, operands[1].1];
                    let read = match of.pass {
                        Pass::Forward => [first, second, &[]],
                        Pass::Inputs => [&[], first, second],
                        Pass::Weights => [first, &[], second],
                    };
                    of.compute(sizes, read, self.order, self.turn)?
                }
            };
            result.iter_mut().for_each(|value| *value = tensor.rounded(*value));
            if let Some(at) = self.addresses.get(y) {
                let numbers = tensor.numbers.ok_or(NOT_SUPPORTED)?;
                // SAFETY: as above, and nobody else uses it.
                tensor
                    .places()
                    .zip(&result)
                    .for_each(|(place, value)| unsafe { numbers.write(*at, place, *value) });
                if let Some(wrong) = knobs().wrong.filter(|_| result.len() >= GREAT) {
                    // SAFETY: there is a first number.
                    unsafe { wrong.spoil(numbers, *at) };
                }
            }
            known.insert(*y, result);
        }
        Ok(())
    }

    fn product(
        &self,
        (a, of_a): (&Tensor, &[f32]),
        (b, of_b): (&Tensor, &[f32]),
        c: &Tensor,
    ) -> Result<Vec<f32>, Status> {
        let ([x, y, rows, terms], [.., columns]) = (a.four()?, b.four()?);
        demand(b.sizes == [x, y, terms, columns] && c.sizes == [x, y, rows, columns], BAD_PARAM)?;
        let cut = self.order.cut(terms, self.turn);
        let one = |i: usize| {
            let (column, row, matrix) = (i % columns, i / columns % rows, i / columns / rows);
            let term = |k: usize| {
                of_a[(matrix * rows + row) * terms + k] * of_b[(matrix * terms + k) * columns + column]
            };
            let [first, second] = cut.clone().map(|part| part.map(term).sum::<f32>());
            self.order.kept(first) + self.order.kept(second)
        };
        Ok((0..c.len()).map(one).collect())
    }
}

/// Number by number.
fn pointwise(mode: u64, axis: u64, operands: &[(&Tensor, &[f32])], y: &Tensor) -> Result<Vec<f32>, Status> {
    let spread = |i: usize| {
        let (tensor, numbers) = operands.get(i).ok_or(BAD_PARAM)?;
        let places = tensor.spread(&y.sizes)?;
        Ok::<Vec<f32>, Status>(places.into_iter().map(|at| numbers[at]).collect())
    };
    let two = |by: fn(f32, f32) -> f32| {
        let (x, b) = (spread(0)?, spread(1)?);
        Ok(x.into_iter().zip(b).map(|(x, b)| by(x, b)).collect())
    };
    let one = |by: fn(f32) -> f32| Ok(spread(0)?.into_iter().map(by).collect());
    match mode {
        0 => two(|x, b| x + b),
        1 => two(|x, b| x * b),
        6 => two(|x, b| x / b),
        9 => two(|x, b| x - b),
        13 => one(f32::exp),
        15 => one(f32::ln),
        IDENTITY => one(|x| x),
        // Greater or equal.
        303 => two(|x, b| f32::from(u8::from(x >= b))),
        // Indices along an axis.
        501 => {
            let axis = usize::try_from(axis).ok().filter(|axis| *axis < y.sizes.len()).ok_or(BAD_PARAM)?;
            let step = y.sizes[axis + 1..].iter().product::<usize>();
            Ok((0..y.len()).map(|i| (i / step % y.sizes[axis]) as f32).collect())
        }
        // The first where the third is true, else the second.
        601 => {
            let (x, b, t) = (spread(0)?, spread(1)?, spread(2)?);
            Ok(x.into_iter().zip(b).zip(t).map(|((x, b), t)| if t != 0.0 { x } else { b }).collect())
        }
        _ => Err(NOT_SUPPORTED),
    }
}

/// What rows come to.
fn reduced(by: Rows, (x, numbers): (&Tensor, &[f32]), y: &Tensor) -> Result<Vec<f32>, Status> {
    let [a, b, c, row] = x.four()?;
    demand(y.sizes == [a, b, c, 1], NOT_SUPPORTED)?;
    let rows = numbers.chunks_exact(row);
    Ok(match by {
        Rows::Sum => rows.map(|row| row.iter().sum()).collect(),
        Rows::Maximum => rows.map(|row| row.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect(),
    })
}

/// The same numbers in other axes: each lies where it lay.
fn reshaped((x, numbers): (&Tensor, &[f32]), y: &Tensor) -> Result<Vec<f32>, Status> {
    let lies: BTreeMap<usize, f32> = x.places().zip(numbers.iter().copied()).collect();
    y.places().map(|at| lies.get(&at).copied().ok_or(BAD_PARAM)).collect()
}
