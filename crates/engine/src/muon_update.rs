//! An update by Muon: the momentum of each matrix of a hidden layer is made orthogonal, all else is Adam's.
//!
//! A matrix is updated as a whole. This file does not know how a matrix is made orthogonal, nor which schedule a learning rate follows.

use crate::adam::{Adam, Pace};
use crate::device::{Along, Device};
use crate::error::EngineError;
use crate::groups::ParameterGroup;
use crate::layout::{Layout, Section, Tensor};
use crate::muon::{Muon, hidden_matrices};
use crate::newton_schulz::{MatrixRoom, Orthogonaliser};
use crate::optimizer::Optimizer;
use std::ops::Range;

/// Which parameters are updated how. The memory for it is the caller's.
#[derive(Debug)]
pub(crate) struct MuonUpdate {
    muon: Muon,
    matrices: Vec<Matrix>,
    others: Vec<Others>,
}

/// A matrix of a hidden layer.
#[derive(Debug)]
struct Matrix {
    place: Range<usize>,
    shape: [usize; 2],
    group: ParameterGroup,
}

/// Parameters side by side of one group, which Adam updates.
#[derive(Debug)]
struct Others {
    place: Range<usize>,
    /// Where their second moments begin.
    second: usize,
    group: ParameterGroup,
}

impl MuonUpdate {
    /// That of this layout, which has what Muon keeps.
    ///
    /// *Errors*: [`EngineError::Option`]: there is no matrix for it.
    pub fn new(muon: Muon, optimizer: &Optimizer, layout: &Layout) -> Result<Self, EngineError> {
        let hidden = hidden_matrices(layout);
        if hidden.is_empty() {
            let reason = "no weight matrix of a hidden layer is there for muon: embeddings, the output layer and what has not two \
                          dimensions are AdamW's";
            return Err(EngineError::Option { key: "optimizer.matrices", reason: reason.into() });
        }
        let group = |tensor: &Tensor| ParameterGroup {
            lr_factor: tensor.lr_factor,
            decays: optimizer.is_decayed(tensor),
        };
        let matrix = |tensor: &&Tensor| Matrix {
            place: tensor.range(),
            shape: [tensor.shape[0], tensor.shape[1]],
            group: group(tensor),
        };
        let matrices: Vec<Matrix> = hidden.iter().map(matrix).collect();
        let is_other = |tensor: &&Tensor| {
            tensor.section == Section::Parameters && !hidden.iter().any(|it| it.offset == tensor.offset)
        };
        let mut others: Vec<Others> = Vec::new();
        let mut second = 0;
        for tensor in layout.tensors.iter().filter(is_other) {
            let (place, group) = (tensor.range(), group(tensor));
            match others.last_mut() {
                Some(last) if last.group == group && last.place.end == place.start => {
                    last.place.end = place.end
                }
                _ => others.push(Others { place, second, group }),
            }
            second += tensor.elements();
        }
        Ok(Self { muon, matrices, others })
    }

    /// The memory that an update works in.
    pub fn memory(&self) -> Orthogonaliser {
        Orthogonaliser::new(self.matrices.iter().map(|matrix| matrix.shape))
    }

    /// The memory that an update of this layout works in.
    pub fn memory_of(layout: &Layout) -> Orthogonaliser {
        Orthogonaliser::new(
            hidden_matrices(layout).into_iter().map(|tensor| [tensor.shape[0], tensor.shape[1]]),
        )
    }

    /// Makes a matrix of each shape orthogonal, whatever lies in the memory: so that every operation has been asked for.
    pub fn rehearse<D: Device>(&self, device: &D, room: &mut MatrixRoom<'_, D>) {
        for (place, matrix) in self.matrices.iter().enumerate() {
            if self.matrices[..place].iter().all(|before| before.shape != matrix.shape) {
                let _way = Orthogonaliser::orthogonal(device, &self.muon.newton_schulz, matrix.shape, room);
            }
        }
    }

    /// Makes an update, the one of this number since the state began.
    ///
    /// *Order*: of each matrix that of the device's products, all else element by element.
    pub fn make<D: Device>(&self, device: &D, update: MuonStep<'_, D>, room: &mut MatrixRoom<'_, D>) {
        let MuonStep { number, lr, scale, gradient, mut parameters, kept } = update;
        let (mut first, mut second) = D::split_mut(kept, D::len(gradient));
        let Self { muon, matrices, others } = self;
        // What the momentum takes of the gradient.
        let share = 1.0 - muon.momentum;
        for Matrix { place, shape, group } in matrices {
            let g = D::part(gradient, place.clone());
            device.blend(share, scale, g, D::part_mut(&mut first, place.clone()));
            let momentum = D::part(D::read(&first), place.clone());
            device.copy(momentum, D::part_mut(&mut room[1], 0..place.len()));
            if muon.nesterov {
                device.blend(share, scale, g, D::part_mut(&mut room[1], 0..place.len()));
            }
            let way = Orthogonaliser::orthogonal(device, &muon.newton_schulz, *shape, room);
            let lr = lr * group.lr_factor;
            let decay = if group.decays { 1.0 - lr * f64::from(muon.weight_decay) } else { 1.0 };
            let (decay, step) = (decay as f32, (lr * muon.adjust_lr.factor(*shape)) as f32);
            device.along(&Along { scale, decay, step }, way, D::part_mut(&mut parameters, place.clone()));
        }
        for Others { place, second: begin, group } in others {
            let weight_decay = if group.decays { muon.adam.weight_decay } else { 0.0 };
            let lr = lr * group.lr_factor * muon.adam_lr_factor;
            let adam = Adam { weight_decay, ..muon.adam }.constants(Pace { number, lr, scale });
            let p = D::part_mut(&mut parameters, place.clone());
            let m = D::part_mut(&mut first, place.clone());
            let v = D::part_mut(&mut second, *begin..*begin + place.len());
            device.adamw(&adam, D::part(gradient, place.clone()), p, m, v);
        }
    }
}

/// An update to be made.
pub(crate) struct MuonStep<'a, D: Device> {
    /// Its number since the state began, from 1.
    pub number: u64,
    /// The learning rate.
    pub lr: f64,
    /// What the gradient is multiplied by to become that of the mean, clipped.
    pub scale: D::Scalar,
    /// The reduced gradient of all parameters.
    pub gradient: D::Ref<'a>,
    /// All parameters.
    pub parameters: D::Mut<'a>,
    /// All that is kept of them: see [`crate::muon::kept`].
    pub kept: D::Mut<'a>,
}
