//! Bringing operands of bf16 into units, one step behind the other for each sixteen rows of `A` or columns of `B`.
//!
//! This file does not know what multiplies.

use super::round::{self, Excerpt};
use super::units::{Order, SIDE, UNIT};
use crate::cpu::isa::Have;
use crate::device::Strides;
use std::ops::Range;

/// How an operand lies: lane `l` (a row of `A`, a column of `B`) and term `t` at `l * lane + t * term`.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) x: &'a [f32],
    pub(super) lane: usize,
    pub(super) term: usize,
}

impl<'a> Operand<'a> {
    /// The rows of `A`.
    pub(super) fn rows(x: &'a [f32], strides: Strides) -> Self {
        Self { x, lane: strides.row, term: strides.col }
    }

    /// The columns of `B`.
    pub(super) fn columns(x: &'a [f32], strides: Strides) -> Self {
        Self { x, lane: strides.col, term: strides.row }
    }

    /// Packs some lanes, of the terms of these steps.
    pub(super) fn pack(
        &self,
        isa: Have,
        lanes: Range<usize>,
        steps: impl ExactSizeIterator<Item = Range<usize>> + Clone,
        order: Order,
        out: &mut [u32],
    ) {
        let depth = steps.len() * UNIT;
        // Terms outside: the lines of a row that lies along the lanes are read one behind the other.
        for (step, terms) in steps.enumerate() {
            for (first, out) in lanes.clone().step_by(SIDE).zip(out.chunks_exact_mut(depth)) {
                let unit = &mut out[step * UNIT..][..UNIT];
                self.unit(isa, first..(first + SIDE).min(lanes.end), terms.clone(), order, unit);
            }
        }
    }

    fn unit(&self, isa: Have, lanes: Range<usize>, terms: Range<usize>, order: Order, out: &mut [u32]) {
        let Self { lane, term, .. } = *self;
        let x = &self.x[lanes.start * lane + terms.start * term..];
        let excerpt = Excerpt { x, lane, term, lanes: lanes.len(), terms: terms.len() };
        round::unit(isa, excerpt, order, out);
    }
}
