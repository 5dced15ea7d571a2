//! What is given for an update that is made as a whole, by an optimizer that takes parameters together: that of another program, or Muon.
//! This file does not know who makes it.

use dtrain_types::Step;

/// An update that is made as a whole.
#[derive(Debug)]
pub struct WholeUpdate<'a> {
    /// Its number, from 1.
    pub step: Step,
    /// What the schedule of the learning rate says: for another program a factor.
    pub lr: f64,
    /// What the gradient is multiplied by to become that of the mean, clipped.
    pub scale: f32,
    /// The reduced gradient of all parameters, every element finite.
    pub gradient: &'a [f32],
    /// All parameters, to be changed in place.
    pub parameters: &'a mut [f32],
    /// All that its optimizer keeps ([`Layout::kept`](crate::Layout::kept)), to be changed in place: zeros before the first update.
    pub kept: &'a mut [f32],
}
