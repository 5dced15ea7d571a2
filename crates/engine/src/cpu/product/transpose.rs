//! Transposing: sixteen rows of sixteen at a time, or eight of eight, in registers where the CPU can.
//!
//! Rows of a source often lie a power of two apart, so that few of them fit into a set of the cache at once: a block as wide as a
//! line reads each line once.
//!
//! This file does not know what is transposed.

use super::tile::fetch;
use crate::cpu::isa::{Have, Isa};
use crate::device::Write;

/// Elements of a page of memory.
const PAGE: usize = 1024;

/// A matrix to transpose: element `(r, c)` at `r * row + c`.
#[derive(Clone, Copy)]
pub(super) struct Source {
    /// The first element.
    pub(super) x: *const f32,
    /// Elements from one row to the next.
    pub(super) row: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Columns.
    pub(super) columns: usize,
}

/// `out[c * out_row + r] = x[r * x_row + c]` for `r` below `rows` and `c` below `columns`.
pub(in crate::cpu) fn transpose(
    isa: Have,
    x: &[f32],
    x_row: usize,
    rows: usize,
    columns: usize,
    out: &mut [f32],
    out_row: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * x_row + columns <= x.len(), "{rows} rows {x_row} apart in {}", x.len());
    assert!((columns - 1) * out_row + rows <= out.len(), "{columns} rows {out_row} apart in {}", out.len());
    let source = Source { x: x.as_ptr(), row: x_row, rows, columns };
    // SAFETY: both matrices lie inside their slices.
    unsafe { turn(isa, source, out.as_mut_ptr(), out_row, Write::Set) };
}

/// Sets what is at `out[c * out_row + r]` to element `(r, c)` of the source, or adds that to it.
///
/// SAFETY: the source can be read, and its elements' places behind `out` are the caller's.
pub(super) unsafe fn turn(isa: Have, source: Source, out: *mut f32, out_row: usize, write: Write) {
    let (side, block): (usize, Block) = match isa.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => (16, wide::block),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => (8, narrow::block),
        _ => (8, plain),
    };
    for c in (0..source.columns).step_by(side) {
        for r in (0..source.rows).step_by(side) {
            let part = Source {
                x: source.x.wrapping_add(r * source.row + c),
                rows: side.min(source.rows - r),
                columns: side.min(source.columns - c),
                ..source
            };
            // What is next in rows that each lie in a page of their own: nobody else foresees them.
            if source.row >= PAGE && c + side < source.columns {
                (0..part.rows).for_each(|r| fetch(part.x.wrapping_add(r * source.row + side), side));
            }
            // SAFETY: a part of the caller's matrices, and the CPU has been seen to have the instructions.
            unsafe { block(part, out.wrapping_add(c * out_row + r), out_row, write) };
        }
    }
}

/// Transposes no more rows and columns than the block has.
///
/// SAFETY of a call: as for [`turn`], and the CPU has the instruction set.
type Block = unsafe fn(Source, *mut f32, usize, Write);

/// Element by element.
///
/// SAFETY: see [`Block`].
unsafe fn plain(Source { x, row, rows, columns }: Source, out: *mut f32, out_row: usize, write: Write) {
    for c in 0..columns {
        for r in 0..rows {
            // SAFETY: the caller's promise.
            unsafe {
                let (x, to) = (*x.add(r * row + c), out.add(c * out_row + r));
                *to = if write == Write::Add { *to + x } else { x };
            }
        }
    }
}

/// The block of an instruction set whose module has `load`, `first` (a mask of so many lanes) and `turned`.
#[cfg(target_arch = "x86_64")]
macro_rules! block {
    ($feature:literal, $side:literal, $zero:ident, $add:ident, $store:ident) => {
        /// SAFETY: see [`super::Block`].
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn block(source: Source, out: *mut f32, out_row: usize, write: Write) {
            let Source { x, row, rows, columns } = source;
            let mut lines = [$zero(); $side];
            for (r, line) in lines.iter_mut().enumerate().take(rows) {
                // SAFETY: the row's elements below `columns` alone are read.
                *line = unsafe { load(x.add(r * row), first(columns)) };
            }
            for (c, line) in turned(lines).into_iter().enumerate().take(columns) {
                let (to, mask) = (out.wrapping_add(c * out_row), first(rows));
                // SAFETY: the column's elements below `rows` alone are touched.
                unsafe {
                    $store(to, mask, if write == Write::Add { $add(load(to, mask), line) } else { line })
                };
            }
        }
    };
}

/// Sixteen rows become columns.
#[cfg(target_arch = "x86_64")]
pub(super) use wide::turned;

/// Sixteen of sixteen.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Source, Write};
    use std::arch::x86_64::*;

    block!("avx512f", 16, _mm512_setzero_ps, _mm512_add_ps, _mm512_mask_storeu_ps);

    /// SAFETY: the elements under the mask can be read.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }

    /// The mask of the first `n` of sixteen; `n` is at least 1.
    fn first(n: usize) -> __mmask16 {
        u16::MAX >> (16 - n)
    }

    /// Rows become columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in crate::cpu) fn turned(x: [__m512; 16]) -> [__m512; 16] {
        let zero = _mm512_setzero_ps();
        // Pairs of rows, then rows four by four: quarter q of `fours[4 * i + j]` is column `4 * q + j` of rows `4 * i ..`.
        let mut fours = [zero; 16];
        for i in (0..16).step_by(4) {
            let low = |a, b| _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
            let high = |a, b| _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
            let (a, b) = (low(x[i], x[i + 1]), low(x[i + 2], x[i + 3]));
            let (c, d) = (high(x[i], x[i + 1]), high(x[i + 2], x[i + 3]));
            fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
            fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
        }
        // Even and odd quarters of two, twice.
        let mut out = [zero; 16];
        for j in 0..4 {
            let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
            let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            let (later_even, later_odd) =
                (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
            out[j] = _mm512_shuffle_f32x4::<0x88>(even, later_even);
            out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, later_odd);
            out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, later_even);
            out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, later_odd);
        }
        out
    }
}

/// Eight of eight.
#[cfg(target_arch = "x86_64")]
mod narrow {
    use super::{Source, Write};
    use std::arch::x86_64::*;

    block!("avx2", 8, _mm256_setzero_ps, _mm256_add_ps, _mm256_maskstore_ps);

    /// SAFETY: the elements under the mask can be read.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(from: *const f32, mask: __m256i) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_maskload_ps(from, mask) }
    }

    /// The mask of the first `n` of eight.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn first(n: usize) -> __m256i {
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    }

    /// Rows become columns.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn turned(x: [__m256; 8]) -> [__m256; 8] {
        let zero = _mm256_setzero_ps();
        // Half h of `fours[4 * i + j]` is column `4 * h + j` of rows `4 * i ..`.
        let mut fours = [zero; 8];
        for i in [0, 4] {
            let (a, b) = (_mm256_unpacklo_ps(x[i], x[i + 1]), _mm256_unpackhi_ps(x[i], x[i + 1]));
            let (c, d) = (_mm256_unpacklo_ps(x[i + 2], x[i + 3]), _mm256_unpackhi_ps(x[i + 2], x[i + 3]));
            fours[i] = _mm256_shuffle_ps::<0x44>(a, c);
            fours[i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
            fours[i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
            fours[i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
        }
        let mut out = [zero; 8];
        for j in 0..4 {
            out[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]);
            out[4 + j] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_turns_or_adds_each_element_and_touches_nothing_else() {
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512].into_iter().filter_map(|isa| isa.check().ok()) {
            for (rows, columns) in [(1, 1), (14, 32), (8, 7), (16, 16), (33, 17), (3, 50)] {
                let (row, out_row) = (columns + 3, rows + 5);
                let x: Vec<f32> = (0..(rows - 1) * row + columns).map(|i| i as f32).collect();
                for write in [Write::Set, Write::Add] {
                    let mut out = vec![0.5; columns * out_row];
                    let source = Source { x: x.as_ptr(), row, rows, columns };
                    // SAFETY: both matrices lie in their vectors.
                    unsafe { turn(isa, source, out.as_mut_ptr(), out_row, write) };
                    for (at, got) in out.iter().enumerate() {
                        let (c, r) = (at / out_row, at % out_row);
                        let new = if r < rows { x[r * row + c] } else { 0.5 };
                        let kept = if r < rows && write == Write::Add { 0.5 } else { 0.0 };
                        assert_eq!(
                            *got,
                            new + kept,
                            "{:?} {write:?} {rows} x {columns}: ({r}, {c})",
                            isa.isa()
                        );
                    }
                }
            }
        }
    }
}
