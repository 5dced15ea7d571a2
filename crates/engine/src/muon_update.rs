//! An update by Muon: the momentum of each matrix of a hidden layer is made orthogonal, all else is Adam's.
//!
//! A matrix is updated as a whole. This file does not know how a matrix is made orthogonal, nor which schedule a learning rate follows.

use crate::adam::{Adam, Pace};
use crate::error::EngineError;
use crate::groups::ParameterGroup;
use crate::host_device::HostDevice;
use crate::layout::{Layout, Section, Tensor};
use crate::muon::{Muon, hidden_matrices};
use crate::newton_schulz::Orthogonaliser;
use crate::optimizer::Optimizer;
use crate::whole_update::WholeUpdate;
use std::ops::Range;

/// Which parameters are updated how, and the memory for it: a step allocates nothing.
#[derive(Debug)]
pub(crate) struct MuonUpdate {
    muon: Muon,
    matrices: Vec<Matrix>,
    others: Vec<Others>,
    orthogonaliser: Orthogonaliser,
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
        let orthogonaliser = Orthogonaliser::new(matrices.iter().map(|matrix| matrix.shape));
        Ok(Self { muon, matrices, others, orthogonaliser })
    }

    /// Elements of the memory that an update of this layout works in.
    pub fn scratch(layout: &Layout) -> usize {
        Orthogonaliser::elements(
            hidden_matrices(layout).into_iter().map(|tensor| [tensor.shape[0], tensor.shape[1]]),
        )
    }

    /// Makes an update, the one of this number since the state began.
    ///
    /// *Order*: of each matrix that of the device's products, all else element by element.
    pub fn make<D: HostDevice>(&mut self, device: &D, number: u64, update: WholeUpdate<'_>) {
        let WholeUpdate { lr, scale, gradient, parameters, kept, .. } = update;
        let (first, second) = kept.split_at_mut(parameters.len());
        let Self { muon, matrices, others, orthogonaliser } = self;
        // What the momentum takes of the gradient.
        let share = 1.0 - muon.momentum;
        for Matrix { place, shape, group } in matrices {
            let (g, p, m) =
                (&gradient[place.clone()], &mut parameters[place.clone()], &mut first[place.clone()]);
            device.blend(share, scale, g, m);
            let way = orthogonaliser.matrix(place.len());
            way.copy_from_slice(m);
            if muon.nesterov {
                device.blend(share, scale, g, way);
            }
            let way = orthogonaliser.orthogonal(device, &muon.newton_schulz, *shape);
            let lr = lr * group.lr_factor;
            let decay = if group.decays { 1.0 - lr * f64::from(muon.weight_decay) } else { 1.0 };
            let (decay, step) = (decay as f32, (lr * muon.adjust_lr.factor(*shape)) as f32);
            p.iter_mut().zip(way).for_each(|(p, way)| *p = *p * decay - step * way);
        }
        for Others { place, second: begin, group } in others {
            let weight_decay = if group.decays { muon.adam.weight_decay } else { 0.0 };
            let lr = lr * group.lr_factor * muon.adam_lr_factor;
            let adam = Adam { weight_decay, ..muon.adam }.constants(Pace { number, lr, scale });
            let (p, m) = (&mut parameters[place.clone()], &mut first[place.clone()]);
            let v = &mut second[*begin..*begin + place.len()];
            device.adamw(&adam, &gradient[place.clone()], p, m, v);
        }
    }
}
