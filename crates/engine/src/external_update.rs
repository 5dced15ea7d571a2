//! What an optimizer of another program is given for an update. This file does not know who makes it.

use dtrain_types::Step;

/// An update that the program makes itself.
#[derive(Debug)]
pub struct ExternalUpdate<'a> {
    /// Its number, from 1.
    pub step: Step,
    /// What the schedule of the learning rate says: a factor.
    pub lr: f64,
    /// What the gradient is multiplied by to become that of the mean, clipped.
    pub scale: f32,
    /// The reduced gradient of all parameters, every element finite.
    pub gradient: &'a [f32],
    /// All parameters, to be changed in place.
    pub parameters: &'a mut [f32],
    /// All that its optimizer keeps, to be changed in place: zeros before the first update.
    pub kept: &'a mut [f32],
}
