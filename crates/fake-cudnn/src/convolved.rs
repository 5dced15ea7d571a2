//! A convolution that is an operation of a graph: over tensors in which channels lie last.

use crate::algorithm::{Algorithm, Order};
use crate::convolution::Convolution;
use crate::objects::{How, Shape};
use crate::part::{Part, kind, name};
use crate::problem::{Pass, Problem};
use crate::status::{BAD_PARAM, NOT_SUPPORTED, Status, demand};
use dtrain_fake_common::numbers::Numbers;

/// What is convolved, and along each axis how.
pub(crate) struct Convolved {
    pub pass: Pass,
    how: How,
}

/// Which pass an operation is, and the names of its convolution, and of x, w and y.
pub(crate) fn names_of(part: &Part) -> Option<(Pass, u32, [u32; 3])> {
    match part.kind {
        kind::OPERATION_FORWARD => {
            Some((Pass::Forward, name::OF_FORWARD, [name::FORWARD_X, name::FORWARD_W, name::FORWARD_Y]))
        }
        kind::OPERATION_INPUTS => {
            Some((Pass::Inputs, name::OF_INPUTS, [name::INPUTS_DX, name::INPUTS_W, name::INPUTS_DY]))
        }
        kind::OPERATION_WEIGHTS => {
            Some((Pass::Weights, name::OF_WEIGHTS, [name::WEIGHTS_X, name::WEIGHTS_DW, name::WEIGHTS_DY]))
        }
        _ => None,
    }
}

impl Convolved {
    /// *Errors*: it tells of what is not known here.
    pub fn of(pass: Pass, told: &Part) -> Result<Self, Status> {
        let list = |name| told.values(name).iter().map(|n| *n as usize).collect::<Vec<_>>();
        let padding = list(name::CONVOLUTION_PADDING);
        demand(padding == list(name::CONVOLUTION_PADDING_BEHIND), NOT_SUPPORTED)?;
        let (stride, dilation) = (list(name::CONVOLUTION_STRIDE), list(name::CONVOLUTION_DILATION));
        let axes = told.number(name::CONVOLUTION_AXES)? as usize;
        demand([&padding, &stride, &dilation].iter().all(|list| list.len() == axes), BAD_PARAM)?;
        let is_turned = told.number(name::CONVOLUTION_MODE)? == 0;
        let f32s = told.number(name::CONVOLUTION_SUMS)? == 0;
        let how = How { padding, stride, dilation, is_turned, sums: f32s.then_some(Numbers::F32) };
        Ok(Self { pass, how })
    }

    fn problem(&self, sizes: [&[usize]; 3]) -> Result<Problem, Status> {
        let [x, w, y] =
            sizes.map(|sizes| Shape { numbers: Some(Numbers::F32), sizes: sizes.to_vec(), is_plain: true });
        Problem::of(self.pass, &x, &w, &self.how, &y)
    }

    /// *Errors*: sizes that do not fit together.
    pub fn fits(&self, sizes: [&[usize]; 3]) -> Result<(), Status> {
        self.problem(sizes).map(drop)
    }

    /// The result, of what is read in the order of x, w and y; what is computed is empty there.
    pub fn compute(
        &self,
        sizes: [&[usize]; 3],
        read: [&[f32]; 3],
        order: Order,
        turn: u64,
    ) -> Result<Vec<f32>, Status> {
        let problem = self.problem(sizes)?;
        let algorithm = Algorithm::of_engine(order);
        let mut room = vec![0.0f32; algorithm.workspace(&problem) / size_of::<f32>()];
        let mut result = vec![0.0f32; problem.len()];
        let [x, w, y] = read.map(|numbers| numbers.as_ptr() as usize);
        let to = result.as_mut_ptr() as usize;
        let addresses = match self.pass {
            Pass::Forward => [x, w, to],
            Pass::Inputs => [to, w, y],
            Pass::Weights => [x, to, y],
        };
        let convolution = Convolution {
            problem,
            addresses,
            alpha: 1.0,
            beta: 0.0,
            added: to,
            epilogue: None,
            workspace: room.as_mut_ptr() as usize,
            algorithm,
            turn,
        };
        // SAFETY: the lists are as long as the problem says, whose sizes are theirs, and nobody else has them.
        unsafe { convolution.sums() };
        Ok(result)
    }
}
