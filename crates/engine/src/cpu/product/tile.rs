//! The innermost loop: a few rows of `A` times one panel of `B`, all sums in registers.
//!
//! Each sum starts at zero and takes its terms in order of `k` by fused multiply-add; then it is stored, or added
//! to what is there. Tiles of different sizes and instruction sets therefore give the same bits.
//!
//! This file does not know where its operands come from.

use crate::cpu::isa::{Have, Isa};
use crate::device::Write;

/// The longest sum that is kept in registers: the block of `k`.
pub(in crate::cpu) const K_BLOCK: usize = 512;
/// Elements from one row to the next in a strip. A constant, so that one register addresses all rows; not a multiple of
/// 1 024, so that the rows do not fall into the same set of the cache.
pub(in crate::cpu) const STRIP_ROW: usize = K_BLOCK + 16;
/// The most rows of any tile.
pub(in crate::cpu) const MOST_ROWS: usize = 14;
/// The most columns of any tile.
pub(in crate::cpu) const MOST_COLUMNS: usize = 32;

/// How the rows of `A` that belong to one tile lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) enum Form {
    /// Row `i` from `i * STRIP_ROW`, contiguous along `k`.
    Strip,
    /// Element `(i, k)` at `k * rows + i`.
    Interleaved,
}

/// How the rows of `B` that belong to one tile lie.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Panel {
    /// One after another, as wide as the tile.
    Packed(*const f32),
    /// Row `k` at its own offset from a common place.
    Scattered(*const f32, *const usize),
}

/// So many steps take longer than the memory needs to bring the lines that the sums go to.
const MANY: usize = 64;
/// Elements of a line of the cache.
const LINE: usize = 16;

/// Asks the caches for `len` elements. Any address will do: nothing is read.
#[inline(always)]
pub(super) fn fetch(from: *const f32, len: usize) {
    for line in (0..len).step_by(LINE) {
        fetch_line::<SOON>(from.wrapping_add(line));
    }
}

/// Into the first-level cache.
const SOON: i32 = 3;
/// Into the second-level cache.
const LATER: i32 = 2;

/// Asks the caches for a line.
#[inline(always)]
fn fetch_line<const WHEN: i32>(from: *const f32) {
    // SAFETY: every x86-64 CPU has the instruction, which does nothing that a program could see.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<WHEN>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// What is packed next, if that is one run of memory. While a tile computes, it asks the caches for some of it in each step
/// of `k`: it arrives while there is something else to do.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Ahead {
    from: *const u8,
    /// Bytes of a step.
    each: usize,
}

impl Ahead {
    /// Nothing that is not there: what a tile reads anyhow. An address in no page would be looked for in each step.
    pub(super) fn nothing_but(a: &[f32]) -> Self {
        Self { from: a.as_ptr().cast(), each: 0 }
    }

    /// All of `x`, in so many steps.
    pub(super) fn over(x: &[f32], steps: usize) -> Self {
        Self { from: x.as_ptr().cast(), each: size_of_val(x).div_ceil(steps) }
    }

    /// What is left after so many steps.
    pub(super) fn after(self, steps: usize) -> Self {
        Self { from: self.from.wrapping_add(steps * self.each), ..self }
    }

    /// Asks for what belongs to a step.
    #[inline(always)]
    fn fetch(&self, step: usize) {
        fetch_line::<LATER>(self.from.wrapping_add(step * self.each).cast());
    }
}

/// `tile(k, a, b, c, c_row, write, ahead)`.
///
/// SAFETY of a call: the CPU has the instruction set; `a` has the rows in the form that the tile is for, `b` has
/// `k` rows of the panel's full width, and `c` as many rows and columns as the tile.
pub(super) type Tile = unsafe fn(usize, *const f32, Panel, *mut f32, usize, Write, Ahead);

/// The size of a full tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Size {
    /// Rows of `A`.
    pub(in crate::cpu) rows: usize,
    /// Columns of a panel of `B`.
    pub(in crate::cpu) columns: usize,
}

impl Size {
    /// The size for this instruction set: what its registers hold.
    pub(in crate::cpu) fn of(isa: Have) -> Self {
        match isa.isa() {
            Isa::Avx512 | Isa::Amx => Self { rows: 14, columns: 32 },
            Isa::Avx2 => Self { rows: 6, columns: 16 },
            Isa::Scalar => Self { rows: 4, columns: 16 },
        }
    }
}

/// The tile for so many rows, over the first half of a panel's columns or all of them.
pub(super) fn tile(isa: Have, form: Form, rows: usize, halves: usize) -> Tile {
    let table = match (isa.isa(), form) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Amx, Form::Strip) => &avx512::STRIP[..],
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Amx, Form::Interleaved) => &avx512::INTERLEAVED[..],
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Form::Strip) => &avx2::STRIP[..],
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Form::Interleaved) => &avx2::INTERLEAVED[..],
        (_, Form::Strip) => &plain::STRIP[..],
        (_, Form::Interleaved) => &plain::INTERLEAVED[..],
    };
    table[rows - 1][halves - 1]
}

/// The tiles of one instruction set: `load` and the others are its intrinsics.
macro_rules! tiles {
    (
        $module:ident, [$($use:tt)*], [$(#[$feature:meta])?], $lanes:literal, $vector:ty, $zero:expr, $load:ident,
        $store:ident, $splat:ident, $fma:ident, $add:ident, [$($rows:literal)*]
    ) => {
        mod $module {
            use super::{Ahead, MANY, Panel, STRIP_ROW, Tile};
            use crate::device::Write;
            $($use)*

            const LANES: usize = $lanes;
            /// By rows less one, then by halves of a panel less one.
            pub(super) static STRIP: [[Tile; 2]; [$($rows),*].len()] =
                [$([tile::<$rows, 1, STRIP_ROW, 1>, tile::<$rows, 2, STRIP_ROW, 1>]),*];
            pub(super) static INTERLEAVED: [[Tile; 2]; [$($rows),*].len()] =
                [$([tile::<$rows, 1, 1, $rows>, tile::<$rows, 2, 1, $rows>]),*];

            /// Adds one step of `k` to all sums.
            ///
            /// SAFETY: as for the tile.
            $(#[$feature])?
            #[inline]
            unsafe fn term<const ROWS: usize, const HALVES: usize, const A_ROW: usize>(
                sums: &mut [[$vector; HALVES]; ROWS],
                a: *const f32,
                b: *const f32,
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut panel = [$zero; HALVES];
                    for half in 0..HALVES {
                        panel[half] = $load(b.add(half * LANES));
                    }
                    for row in 0..ROWS {
                        let x = $splat(*a.add(row * A_ROW));
                        for half in 0..HALVES {
                            sums[row][half] = $fma(x, panel[half], sums[row][half]);
                        }
                    }
                }
            }

            /// SAFETY: see [`Tile`].
            $(#[$feature])?
            unsafe fn tile<const ROWS: usize, const HALVES: usize, const A_ROW: usize, const A_STEP: usize>(
                k: usize,
                a: *const f32,
                b: Panel,
                c: *mut f32,
                c_row: usize,
                write: Write,
                ahead: Ahead,
            ) {
                let mut sums: [[$vector; HALVES]; ROWS] = [[$zero; HALVES]; ROWS];
                if k >= MANY {
                    for row in 0..ROWS {
                        super::fetch(c.wrapping_add(row * c_row), HALVES * LANES);
                    }
                }
                // SAFETY: the steps below `k` of the operands that the caller vouches for.
                unsafe {
                    match b {
                        Panel::Packed(b) => {
                            for step in 0..k {
                                term::<ROWS, HALVES, A_ROW>(&mut sums, a.add(step * A_STEP), b.add(step * 2 * LANES));
                                if A_STEP == 1 {
                                    ahead.fetch(step);
                                }
                            }
                        }
                        Panel::Scattered(b, offsets) => {
                            for step in 0..k {
                                let b = b.add(*offsets.add(step));
                                term::<ROWS, HALVES, A_ROW>(&mut sums, a.add(step * A_STEP), b);
                            }
                        }
                    }
                }
                for row in 0..ROWS {
                    for half in 0..HALVES {
                        // SAFETY: inside the rows and columns of `c` that the caller vouches for.
                        unsafe {
                            let at = c.add(row * c_row + half * LANES);
                            let sum = sums[row][half];
                            $store(at, if write == Write::Add { $add($load(at), sum) } else { sum });
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
tiles!(
    avx512, [use std::arch::x86_64::*;], [#[target_feature(enable = "avx512f")]], 16, __m512, _mm512_setzero_ps(),
    _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps,
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
);
#[cfg(target_arch = "x86_64")]
tiles!(
    avx2, [use std::arch::x86_64::*;], [#[target_feature(enable = "avx2,fma")]], 8, __m256, _mm256_setzero_ps(),
    _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps,
    [1 2 3 4 5 6]
);
tiles!(
    plain, [use super::lanes::*;], [], 8, [f32; 8], [0.0; 8], load, store, splat, fma, add, [1 2 3 4]
);

/// Eight lanes in plain Rust, with the names that the macro asks for.
mod lanes {
    type Lanes = [f32; 8];

    /// SAFETY: eight elements can be read.
    #[inline(always)]
    pub(super) unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }

    /// SAFETY: eight elements can be written.
    #[inline(always)]
    pub(super) unsafe fn store(to: *mut f32, x: Lanes) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Lanes>().write_unaligned(x) }
    }

    #[inline(always)]
    pub(super) fn splat(x: f32) -> Lanes {
        [x; 8]
    }

    #[inline(always)]
    pub(super) fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    pub(super) fn add(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i] + b[i])
    }
}
