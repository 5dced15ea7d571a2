//! A gradient that stays on the device, among others that are kept there. This file does not know which is whose.

use crate::OwnMemory;
use crate::keeping::Kept;
use crate::stages::Gradients;
use std::ops::Range;

/// Gradients where they are kept: one is computed, and what waits for it is added as soon as it is final.
pub(super) struct Laid<'a, 'b, D: OwnMemory> {
    device: &'a D,
    kept: &'a mut [D::Floats],
    /// Everything from here on is final.
    open: usize,
    to: Kept<'b>,
}

impl<'a, 'b, D: OwnMemory> Laid<'a, 'b, D> {
    /// One of so many elements, of which none is final.
    pub fn new(device: &'a D, kept: &'a mut [D::Floats], elements: usize, to: Kept<'b>) -> Self {
        Self { device, kept, open: elements, to }
    }
}

impl<D: OwnMemory> Gradients<D> for Laid<'_, '_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Mut<'_> {
        let (_, rest) = D::split_mut(D::take(&mut self.kept[self.to.number]), part.start);
        D::split_mut(rest, part.len()).0
    }

    fn settle(&mut self, from: usize) {
        let fresh = from..self.open;
        if fresh.is_empty() {
            return;
        }
        self.open = from;
        for pair in self.to.merges {
            let [into, other] = self.kept.get_disjoint_mut(*pair).expect("two that are kept");
            let mut into = D::take(into);
            self.device.add_to(D::part(D::look(other), fresh.clone()), D::part_mut(&mut into, fresh.clone()));
        }
        if let Some(settled) = &mut self.to.settled {
            settled(from);
        }
    }
}
