//! The passes of a model that another program makes on a device, such as PyTorch on a GPU: nothing of it visits the host.
//!
//! As [`external.rs`](crate::external) for what lies on a device of its own: the program reads the state and writes gradients where they lie.

use crate::batch::BatchView;
use crate::device::LossSums;
use crate::error::EngineError;
use crate::lends_memory::LentFloats;
use crate::own_metric::{OwnCounts, OwnMetric};
use dtrain_types::{MicroBatch, Step};

/// On what a program computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputesOn {
    /// The device's own queue: behind what was given, in front of what is given later.
    Queue,
    /// A processor that reaches the device's memory, and no queue knows of: it begins when the device is done, and is done when it returns.
    Host,
}

/// What a program reads of a state on a device. It may change none of it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView {
    /// Updates done: while they are the same the numbers are.
    pub applied: Step,
    /// All parameters.
    pub parameters: LentFloats,
    /// All running statistics, without a loss scale.
    pub stats: LentFloats,
}

/// Where a program writes what a micro-batch comes to.
#[derive(Clone, Copy, Debug)]
pub struct DevicePlaces {
    /// The gradient of the *sum* of weighted losses, times the scale; behind it, for each running statistic, its value after the micro-batch times
    /// the rows. All of it is overwritten.
    pub gradient: LentFloats,
    /// The address of three f64: the loss, its weight, and zero.
    pub sums: u64,
    /// The address of the f32 by which the loss is multiplied before its gradient is taken, if it is.
    pub scale: Option<u64>,
}

/// An update that the program's own optimizer makes on a device: [`WholeUpdate`](crate::WholeUpdate), by addresses.
#[derive(Clone, Copy, Debug)]
pub struct DeviceUpdate {
    /// Its number, from 1.
    pub step: Step,
    /// What the schedule of the learning rate says: a factor.
    pub lr: f64,
    /// What the gradient is multiplied by to become that of the mean, clipped.
    pub scale: f32,
    /// The reduced gradient of all parameters, every element finite.
    pub gradient: LentFloats,
    /// All parameters, to be changed in place.
    pub parameters: LentFloats,
    /// All that its optimizer keeps, to be changed in place: zeros before the first update.
    pub kept: LentFloats,
}

/// The passes of a model that another program makes on a device.
pub trait ProgramOnDevice: Send {
    /// On what.
    fn computes_on(&self) -> ComputesOn;

    /// Computes the loss of a micro-batch and its gradient, or puts on the device's queue what does. `settle` is told, from the end on,
    /// from which element everything is final, on any thread, while this goes on.
    ///
    /// *Order*: the bits depend on the arguments alone. *Errors*: [`EngineError::External`]; the places then hold anything.
    fn compute(
        &mut self,
        state: DeviceView,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
        to: DevicePlaces,
        settle: &mut (dyn FnMut(usize) + Send),
    ) -> Result<(), EngineError>;

    /// Makes an update, where the rule is [`Rule::External`](crate::Rule::External).
    ///
    /// *Order*: the bits depend on the arguments alone. *Errors*: [`EngineError::External`]; the state then holds anything.
    fn update(&mut self, update: DeviceUpdate) -> Result<(), EngineError>;

    /// The metrics of its own, beside loss and accuracy.
    fn metrics(&self) -> Vec<OwnMetric>;

    /// The loss of samples that are held out, by the parameters that a finished model has. Its own metrics are added to `own`.
    ///
    /// *Blocks* for the device. *Errors*: [`EngineError::External`].
    fn evaluate(
        &mut self,
        state: DeviceView,
        batch: &BatchView<'_>,
        own: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError>;
}
