//! Gradients that stay in the memory of the device that computes them.
//!
//! A replica that keeps gradients adds them up and applies them there: none of them visits the host. Whoever drives it names them by
//! number. This file does not know which gradient is whose.

use crate::batch::{BatchFigures, BatchView};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::update_info::UpdateInfo;
use dtrain_types::{Bytes, DeviceMemory, MicroBatch, Step};
use std::ops::Range;

/// One of the gradients that a replica keeps, and what becomes of it.
pub struct Kept<'a> {
    /// Its number.
    pub number: usize,
    /// Additions of kept gradients, the second to the first, that follow when it is whole: they are made part by part, before what
    /// they make final is told.
    pub merges: &'a [[usize; 2]],
    /// Is told from which element on everything is final, as [`Gradient::settle`](crate::Gradient::settle), when the device was given
    /// the work that makes it so. A program that makes the passes may tell it on a thread of its own, while [`Keeping::begin`] waits.
    pub settled: Option<&'a mut (dyn FnMut(usize) + Send)>,
}

impl Kept<'_> {
    /// One that nobody waits for.
    #[must_use]
    pub fn alone(number: usize) -> Self {
        Self { number, merges: &[], settled: None }
    }
}

/// What a step came to whose update was given ahead of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// Which.
    pub step: Step,
    /// The sum of the losses of its micro-batches, along the reduction tree.
    pub sums: LossSums,
    /// The first of its micro-batches whose loss is not finite, counted from the first one of the step.
    pub non_finite: Option<u32>,
    /// What its update came to; none where a loss or the gradient is not finite. Then the state is that before the step.
    pub update: Option<UpdateInfo>,
}

/// A replica that keeps gradients where it computes them. *Panics* in all methods that name a gradient: if it is not kept.
pub trait Keeping {
    /// Takes memory for so many gradients, and tells whether it has it.
    fn keep(&mut self, gradients: usize) -> bool;

    /// Keeps its gradients in these slots of an arena from now on, each under its place here, and tells whether it can: they are
    /// memory of its device, as long as a gradient. Whoever reduces them does so behind the work of the device, and what is
    /// left in the first is what [`Keeping::update_kept`] takes.
    fn keep_in(&mut self, slots: &[DeviceMemory]) -> bool;

    /// As [`Replica::compute`](crate::Replica::compute) of one micro-batch alone, into a gradient that is kept. The device may work for
    /// itself from here on: [`Keeping::figures`] says what the micro-batch came to, and is asked for before anything else but
    /// [`Replica::prefetch`](crate::Replica::prefetch).
    ///
    /// *Errors*: a batch that does not fit the model, or of the device.
    fn begin(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &BatchView<'_>,
        to: Kept<'_>,
    ) -> Result<(), EngineError>;

    /// What the micro-batch came to that was begun. *Blocks* for the device. *Panics* if none is under way.
    fn figures(&mut self) -> BatchFigures;

    /// As [`Keeping::figures`] of what is known without waiting: its samples. What it came to is told with the step: see
    /// [`Keeping::update_ahead`]. *Panics* if none is under way, or if it does not work ahead.
    fn figures_later(&mut self) -> BatchFigures;

    /// `into += from`: the same addition as [`Replica::add`](crate::Replica::add), whose sum is not rounded.
    fn add_kept(&mut self, from: usize, into: usize);

    /// Lays these parameters into gradient 0, in the places of their own gradients.
    fn lay(&mut self, parameters: Range<usize>);

    /// Takes these parameters from there.
    fn pick(&mut self, parameters: Range<usize>);

    /// Copies a gradient. *Blocks* until it is there. *Errors*: of the device.
    fn bring(&mut self, kept: usize, to: &mut [f32]) -> Result<(), EngineError>;

    /// [`Replica::update`](crate::Replica::update) with gradient 0.
    ///
    /// *Errors*: as there.
    fn update_kept(&mut self, step: Step, weight: f64, samples: u64) -> Result<UpdateInfo, EngineError>;

    /// The most memory of its device that was held at once, by all that this rank has there.
    fn peak_memory(&self) -> Bytes;

    /// Takes memory for the losses of steps of up to so many micro-batches, and tells whether it has it: from then on it can work ahead
    /// of what the host knows.
    fn work_ahead(&mut self, micro_batches: usize) -> bool;

    /// As [`Keeping::update_kept`], without waiting for anything: the normaliser is that of the micro-batches since the last update,
    /// whose figures came later ([`Keeping::figures_later`]) and which are all of the step. The next step may be given
    /// at once; [`Keeping::outcome`] is asked for before anybody looks at the state, and before a third one is given.
    ///
    /// *Errors*: of the device.
    fn update_ahead(&mut self, step: Step, samples: u64) -> Result<(), EngineError>;

    /// What the oldest step came to whose update was given ahead; none if all of them were told. After one without an update those that
    /// were given behind it are as if they had not been given.
    ///
    /// *Blocks* for the device. *Errors*: of the device.
    fn outcome(&mut self) -> Result<Option<StepOutcome>, EngineError>;
}
