//! Products of one thread with operands that were packed before: what attention is made of, in either precision.
//!
//! This file does not know attention.

use super::pack;
use super::target::Target;
use crate::cpu::isa::Have;
use crate::cpu::pool::Buffer;
use crate::device::Strides;
use std::ops::Range;

/// How a kernel multiplies. The memory of what is packed is kept as floats, whatever they are.
pub(in crate::cpu) trait Multiplies {
    /// Elements of memory for `columns` columns of `B` by `k` terms.
    fn panels_len(isa: Have, k: usize, columns: usize) -> usize;

    /// Packs rows `k` and columns `n` of `B`.
    fn panels(isa: Have, x: &[f32], strides: Strides, k: Range<usize>, n: Range<usize>, out: &mut [f32]);

    /// `A[m, k] B[k, n]` for a `B` that was packed with `depth` terms, of which the first `k` are meant, on this thread; `room` is for
    /// packed rows of `A`.
    ///
    /// SAFETY: the target's `m` x `n` elements are the caller's.
    #[allow(clippy::too_many_arguments)]
    unsafe fn multiply(
        isa: Have,
        a: &[f32],
        strides: Strides,
        sizes: [usize; 3],
        panels: &[f32],
        depth: usize,
        target: Target,
        room: &mut Buffer,
    );
}

/// Operands as they are.
pub(in crate::cpu) struct InF32;

impl Multiplies for InF32 {
    fn panels_len(isa: Have, k: usize, columns: usize) -> usize {
        pack::panels_len(isa, k, columns)
    }

    fn panels(isa: Have, x: &[f32], strides: Strides, k: Range<usize>, n: Range<usize>, out: &mut [f32]) {
        pack::panels(isa, x, strides, k, n, out);
    }

    unsafe fn multiply(
        isa: Have,
        a: &[f32],
        strides: Strides,
        sizes: [usize; 3],
        panels: &[f32],
        depth: usize,
        target: Target,
        room: &mut Buffer,
    ) {
        // SAFETY: the caller's promise.
        unsafe { super::multiply(isa, a, strides, sizes, panels, depth, target, room) };
    }
}
