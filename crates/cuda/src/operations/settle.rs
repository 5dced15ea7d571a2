//! What an update comes to, found by the device: the weight of its losses, and what clipping and the scale of the loss make of it.
//!
//! This file does not know which step it is.

use super::{FloatsMut, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::memory::{Slice, SliceMut};
use dtrain_engine::LossScale;

/// A number that kernels are given: as it is, or where a kernel finds it. One that is not a number stands for an update that is not
/// made: kernels that change a state change nothing.
#[derive(Clone, Copy, Debug)]
pub enum Scalar<'a> {
    /// As it is.
    Known(f32),
    /// The first element there.
    At(Slice<'a, f32>),
}

impl From<f32> for Scalar<'_> {
    fn from(value: f32) -> Self {
        Self::Known(value)
    }
}

impl Scalar<'_> {
    /// The number and where it is found, as kernels take them.
    pub(super) fn arguments(self) -> [Argument; 2] {
        match self {
            Self::Known(value) => [value.into(), None::<Slice<'_, f32>>.into()],
            Self::At(place) => [1.0.into(), place.into()],
        }
    }
}

/// Doubles of what the host hears of a step; `kernels/settle.cu` says which is which.
pub const FOUND: usize = 7;
/// Floats of what kernels read of it.
pub const NUMBERS: usize = 6;
/// Doubles that a loss leaves: see [`LossTotals`](super::LossTotals), which lies there.
pub const LOSS: usize = 3;

/// Losses of a step: places of [`LOSS`] doubles, and which of them.
#[derive(Clone, Copy, Debug)]
pub struct StepLosses<'a> {
    /// All places.
    pub places: Slice<'a, f64>,
    /// That of the first micro-batch; behind the last place comes the first one.
    pub first: usize,
    /// How many micro-batches.
    pub count: usize,
}

/// What the losses of a step come to, or `known`, its weight; and what the squares of its gradient are of.
pub fn weigh(
    queue: &impl Queue,
    losses: Result<StepLosses<'_>, f64>,
    mut found: SliceMut<'_, f64>,
    mut numbers: FloatsMut<'_>,
) {
    same("found", found.len(), FOUND);
    same("numbers", numbers.len(), NUMBERS);
    let (places, at, known): (Argument, _, f64) = match &losses {
        Ok(StepLosses { places, first, count }) => {
            let all = places.len() / LOSS;
            assert!(*first < all && (1..=all).contains(count), "{count} losses from {first} of {all}");
            ((*places).into(), [all, *first, *count], 0.0)
        }
        Err(known) => (None::<Slice<'_, f64>>.into(), [0; 3], *known),
    };
    let [all, first, count] = at.map(|number| Argument::from(size(number)));
    let arguments =
        [places, (&mut found).into(), (&mut numbers).into(), all, first, count, known.to_bits().into()];
    queue.launch(&KernelLaunch::new(&kernels::WEIGH, 1, arguments));
}

/// How an update is settled.
#[derive(Debug)]
pub struct Rule<'a> {
    /// The greatest norm of the mean gradient, if it is clipped.
    pub clip_norm: Option<f64>,
    /// What sums of statistics are multiplied by.
    pub stats: f32,
    /// Where the loss is scaled: the scale and its count in the state, and after how many finite steps it doubles.
    pub scale: Option<(FloatsMut<'a>, u32)>,
}

/// What an update multiplies by, from what was found of its gradient.
pub fn settle(queue: &impl Queue, rule: Rule<'_>, mut found: SliceMut<'_, f64>, mut numbers: FloatsMut<'_>) {
    same("found", found.len(), FOUND);
    same("numbers", numbers.len(), NUMBERS);
    let (mut scale, interval) = rule.scale.map_or((None, 0), |(scale, interval)| (Some(scale), interval));
    let arguments = [
        (&mut found).into(),
        (&mut numbers).into(),
        (&mut scale).into(),
        interval.into(),
        rule.clip_norm.unwrap_or(f64::INFINITY).to_bits().into(),
        rule.stats.into(),
        LossScale::MOST.into(),
    ];
    queue.launch(&KernelLaunch::new(&kernels::SETTLE, 1, arguments));
}
