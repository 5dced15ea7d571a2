//! The seam for replicas that have but the shards of the parameters that they hold: whoever drives one brings its passes the rest.
//!
//! This file does not know how that travels, nor how much of it comes at once.

use crate::batch::{BatchFigures, BatchView, EvaluationCounts};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::gradient::{Gradient, MicroBatchGroup};
use crate::layout::Section;
use dtrain_types::DeviceMemory;
use std::ops::Range;

/// Brings parameters that a replica lacks, for its passes.
pub trait BringsParameters {
    /// These elements of a section, which are those of one stage, until others are asked for; `own` writes what the replica holds of it itself. What
    /// goes wrong is told when the pass is over: until then they are anything.
    ///
    /// *Blocks* until they are there.
    fn bring(&mut self, section: Section, elements: Range<usize>, own: &mut OwnParameters<'_>) -> &[f32];

    /// The same where they come to memory of the replica's device: it, and where they lie in it. What reads them there comes behind what brought them.
    /// None where they come to the host.
    fn bring_there(
        &mut self,
        section: Section,
        elements: Range<usize>,
        own: &mut OwnThere<'_>,
    ) -> Option<(DeviceMemory, Range<usize>)> {
        let _ = (section, elements, own);
        None
    }
}

/// Writes elements that a replica holds into memory of their number.
pub type OwnParameters<'a> = dyn FnMut(Range<usize>, &mut [f32]) + 'a;

/// The same into memory of its device, from an element of it on.
pub type OwnThere<'a> = dyn FnMut(Range<usize>, &DeviceMemory, usize) + 'a;

/// A replica that has but the shards of the parameters that it holds: its passes are brought the rest. [`Replica::compute`](crate::Replica::compute),
/// [`Replica::evaluate`](crate::Replica::evaluate) and [`Replica::predict`](crate::Replica::predict) are not called once it holds some.
pub trait Gathering {
    /// As [`Replica::compute`](crate::Replica::compute).
    ///
    /// *Errors* and *panics*: as there.
    fn compute_with(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError>;

    /// As [`Replica::evaluate`](crate::Replica::evaluate).
    ///
    /// *Errors*: as there.
    fn evaluate_with(
        &mut self,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError>;
}
