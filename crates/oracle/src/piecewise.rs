//! Steps that are computed piece by piece, so that a part can be offered before the rest is there.

use crate::plain::compute;
use dtrain_collective::{Arena, Reduce};
use dtrain_types::{MicroRange, Trailer};

/// A step of one rank that is computed from the end of the buffer to its start. What is not computed yet must never be sent.
pub struct Piecewise {
    roots: Vec<Vec<f32>>,
    /// One for each root.
    pub trailers: Vec<Trailer>,
    /// From where on it is computed.
    pub from: usize,
}

impl Piecewise {
    /// Nothing is computed yet: the slots hold what is no number.
    pub fn new(arena: &mut dyn Arena, range: MicroRange, count: u32) -> Self {
        let trailers = compute(arena, range, count, Reduce::Exact);
        let roots = (0..trailers.len()).map(|root| arena.lease(root).to_vec()).collect();
        let geometry = arena.geometry();
        (0..geometry.slots()).for_each(|slot| arena.lease(slot).fill(f32::NAN));
        Self { roots, trailers, from: geometry.len }
    }

    /// A rank without a root has nothing to offer.
    pub fn is_spare(&self) -> bool {
        self.roots.is_empty()
    }

    /// Goes on to element `from`.
    pub fn compute_to(&mut self, arena: &mut dyn Arena, from: usize) {
        let fresh = from.min(self.from)..self.from;
        for (root, floats) in self.roots.iter().enumerate() {
            arena.lease_part(root, fresh.clone()).copy_from_slice(&floats[fresh.clone()]);
        }
        self.from = fresh.start;
    }
}
