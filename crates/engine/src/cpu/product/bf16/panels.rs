//! Products of one thread whose operands are rounded to bf16, with a `B` that was packed before.
//!
//! This file does not know attention.

use super::pack::Operand;
use super::tile::Unit;
use super::units::{Order, STEP, as_words, as_words_mut, units_len};
use super::{TILE, cut, steps, strip_times};
use crate::cpu::isa::Have;
use crate::cpu::pool::Buffer;
use crate::cpu::product::multiplies::Multiplies;
use crate::cpu::product::target::Target;
use crate::device::Strides;
use std::ops::Range;

/// Operands rounded to bf16.
pub(in crate::cpu) struct InBf16;

impl Multiplies for InBf16 {
    fn panels_len(_: Have, k: usize, columns: usize) -> usize {
        units_len(columns, k)
    }

    fn panels(isa: Have, x: &[f32], strides: Strides, k: Range<usize>, n: Range<usize>, out: &mut [f32]) {
        Operand::columns(x, strides).pack(isa, n, steps(k), Order::OfPair, as_words_mut(out));
    }

    unsafe fn multiply(
        isa: Have,
        a: &[f32],
        strides: Strides,
        [m, n, k]: [usize; 3],
        panels: &[f32],
        depth: usize,
        target: Target,
        room: &mut Buffer,
    ) {
        let (unit, operand) = (Unit::new(isa), Operand::rows(a, strides));
        for rows in cut(0..m, TILE) {
            let a = as_words_mut(room.take(units_len(rows.len(), k)));
            operand.pack(isa, rows.clone(), steps(0..k), Order::OfLane, a);
            let to = target.shifted(rows.start * target.row);
            let sizes = [rows.len(), n, k.div_ceil(STEP)];
            // SAFETY: some rows of the caller's elements.
            unsafe { strip_times(&unit, [a, as_words(panels)], depth.div_ceil(STEP), sizes, to) };
        }
    }
}
