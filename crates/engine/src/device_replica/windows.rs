//! A gradient on a device window by window, each given away as it becomes final: in memory that is lent for it there, or brought to the host, and then
//! the device has memory for the longest alone.
//!
//! It does not know what becomes of a window.

use super::lent::slot;
use crate::OwnMemory;
use crate::error::EngineError;
use crate::gradient::Gradient;
use crate::stages::Gradients;
use crate::windows::Windows;
use dtrain_types::Wire;
use std::ops::Range;

/// Where a pass writes its windows, and where they go.
pub(super) struct BroughtWindows<'a, D: OwnMemory> {
    device: &'a D,
    memory: &'a mut D::Floats,
    windows: &'a Windows,
    /// What was lent last.
    lent: Option<D::Floats>,
    /// The window that is written.
    window: usize,
    to: &'a mut dyn Gradient,
    /// What each element is rounded to.
    wire: Wire,
    /// How bringing them went: a pass cannot be told.
    went: Result<(), EngineError>,
}

impl<'a, D: OwnMemory> BroughtWindows<'a, D> {
    /// Of these windows, in memory of the device for them; nothing is written.
    pub fn new(
        device: &'a D,
        memory: &'a mut D::Floats,
        windows: &'a Windows,
        (to, wire): (&'a mut dyn Gradient, Wire),
    ) -> Self {
        Self { device, memory, windows, lent: None, window: 0, to, wire, went: Ok(()) }
    }

    /// The pass is over. *Errors*: of the device.
    pub fn finish(self) -> Result<(), EngineError> {
        self.went
    }
}

impl<D: OwnMemory> Gradients<D> for BroughtWindows<'_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Mut<'_> {
        if let Some((memory, place)) = self.to.part_there(part.clone()) {
            let lent = self.lent.insert(slot::<D>(&memory));
            let (_, rest) = D::split_mut(D::take(lent), place.start);
            return D::split_mut(rest, place.len()).0;
        }
        let place = self.windows.place_of(self.window, &part);
        let (_, rest) = D::split_mut(D::take(self.memory), place.start);
        D::split_mut(rest, place.len()).0
    }

    fn settle(&mut self, from: usize) {
        while let Some(window) = self.windows.all().get(self.window).filter(|it| from <= it.elements.start) {
            if self.to.part_there(window.elements.clone()).is_none() {
                let to = self.to.part(window.elements.clone());
                if self.went.is_ok() {
                    self.went = self.device.fetch_from(self.memory, window.place.start, to);
                }
                self.wire.round(to);
            }
            self.to.settle(window.elements.start);
            self.window += 1;
        }
    }
}

/// Memory of the host for a gradient that nobody wants, a window at a time.
pub(super) struct Unwanted {
    elements: usize,
    memory: Vec<f32>,
}

impl Unwanted {
    /// One of so many elements, in these windows.
    pub fn of(elements: usize, windows: &Windows) -> Self {
        let longest = windows.all().iter().map(|window| window.elements.len()).max();
        Self { elements, memory: vec![0.0; longest.unwrap_or(0)] }
    }
}

impl Gradient for Unwanted {
    fn elements(&self) -> usize {
        self.elements
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        &mut self.memory[..part.len()]
    }
}
