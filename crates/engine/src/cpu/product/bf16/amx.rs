//! The matrix unit of x86-64 (AMX): sixteen rows by sixteen columns of sums, thirty-two terms of each in one instruction.
//!
//! A thread has to say how its tiles are cut before it uses them, and lets go of them behind it: then they cost nothing when it is put
//! aside.
//!
//! *Source*: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
//!
//! This file does not know what is multiplied.

use super::units::{SIDE, UNIT};
use crate::device::Write;
use std::arch::asm;
use std::marker::PhantomData;

/// How the eight tiles are cut: each has sixteen rows of sixteen words.
#[repr(C, align(64))]
struct Cut {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CUT: Cut = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        row_bytes[tile] = 4 * SIDE as u16;
        rows[tile] = SIDE as u8;
        tile += 1;
    }
    Cut { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// The tiles of this thread, as long as it lives.
pub(super) struct TileState(PhantomData<*const ()>);

impl TileState {
    /// SAFETY: the unit is there for this process; the thread has no others.
    pub(super) unsafe fn new() -> Self {
        // SAFETY: the caller's promise; the cut is a valid one.
        unsafe { asm!("ldtilecfg [{cut}]", cut = in(reg) &raw const CUT, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for TileState {
    fn drop(&mut self) {
        // SAFETY: the unit is there, as it was when these tiles were made.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Bytes of a unit of sixteen rows of sixteen words.
const UNIT_BYTES: usize = 4 * UNIT;

/// Asks the first-level cache for the units of `B` that the next step reads.
macro_rules! ahead {
    ($($line:literal)*) => { concat!($("prefetcht0 [{b0} + 1024 + ", $line, "]\nprefetcht0 [{b1} + 1024 + ", $line, "]\n"),*) };
}

/// The sums of one or two units down and across. A step reads a unit of each operand for each of them.
macro_rules! sums {
    ($name:ident, [$($load:tt)*], [$($clear:tt)*], [$($step:tt)*], [$($store:tt)*]) => {
        /// SAFETY: see [`times`].
        #[inline]
        unsafe fn $name(steps: usize, a: [*const u32; 2], b: [*const u32; 2], c: *mut f32, c_row: usize, write: Write) {
            // SAFETY: the caller's promise. Each of the tiles is written before it is read.
            unsafe {
                asm!(
                    // One unit down has no second row of units.
                    "test {adds}, {adds} # {c1}",
                    "jz 2f",
                    $($load)*
                    "jmp 3f",
                    "2:",
                    $($clear)*
                    "3:",
                    $($step)*
                    ahead!(0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960),
                    "add {a0}, {unit}",
                    "add {a1}, {unit}",
                    "add {b0}, {unit}",
                    "add {b1}, {unit}",
                    "dec {steps}",
                    "jnz 3b",
                    $($store)*
                    adds = in(reg) usize::from(write == Write::Add),
                    steps = inout(reg) steps => _,
                    a0 = inout(reg) a[0] => _,
                    a1 = inout(reg) a[1] => _,
                    b0 = inout(reg) b[0] => _,
                    b1 = inout(reg) b[1] => _,
                    c0 = in(reg) c,
                    c1 = in(reg) c.wrapping_add(SIDE * c_row),
                    row = in(reg) 4 * c_row,
                    line = in(reg) 4 * SIDE,
                    unit = const UNIT_BYTES,
                    options(nostack),
                );
            }
        }
    };
}

sums!(
    two_by_two,
    [
        "tileloadd tmm0, [{c0} + {row}]",
        "tileloadd tmm1, [{c0} + {row} + 64]",
        "tileloadd tmm2, [{c1} + {row}]",
        "tileloadd tmm3, [{c1} + {row} + 64]",
    ],
    ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",],
    [
        "tileloadd tmm6, [{b0} + {line}]",
        "tileloadd tmm4, [{a0} + {line}]",
        "tileloadd tmm7, [{b1} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{a1} + {line}]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tdpbf16ps tmm3, tmm5, tmm7",
    ],
    [
        "tilestored [{c0} + {row}], tmm0",
        "tilestored [{c0} + {row} + 64], tmm1",
        "tilestored [{c1} + {row}], tmm2",
        "tilestored [{c1} + {row} + 64], tmm3",
    ]
);
sums!(
    two_by_one,
    ["tileloadd tmm0, [{c0} + {row}]", "tileloadd tmm2, [{c1} + {row}]",],
    ["tilezero tmm0", "tilezero tmm2",],
    [
        "tileloadd tmm6, [{b0} + {line}]",
        "tileloadd tmm4, [{a0} + {line}]",
        "tileloadd tmm5, [{a1} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tdpbf16ps tmm2, tmm5, tmm6",
    ],
    ["tilestored [{c0} + {row}], tmm0", "tilestored [{c1} + {row}], tmm2",]
);
sums!(
    one_by_two,
    ["tileloadd tmm0, [{c0} + {row}]", "tileloadd tmm1, [{c0} + {row} + 64]",],
    ["tilezero tmm0", "tilezero tmm1",],
    [
        "tileloadd tmm6, [{b0} + {line}]",
        "tileloadd tmm4, [{a0} + {line}]",
        "tileloadd tmm7, [{b1} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tdpbf16ps tmm1, tmm4, tmm7",
    ],
    ["tilestored [{c0} + {row}], tmm0", "tilestored [{c0} + {row} + 64], tmm1",]
);
sums!(
    one_by_one,
    ["tileloadd tmm0, [{c0} + {row}]",],
    ["tilezero tmm0",],
    ["tileloadd tmm6, [{b0} + {line}]", "tileloadd tmm4, [{a0} + {line}]", "tdpbf16ps tmm0, tmm4, tmm6",],
    ["tilestored [{c0} + {row}], tmm0",]
);

/// So many units down and across: see [`super::tile::times`].
///
/// SAFETY: as there; `a` and `b` have `steps` units of each, at least one.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn times(
    _tiles: &TileState,
    steps: usize,
    [down, across]: [usize; 2],
    a: [*const u32; 2],
    b: [*const u32; 2],
    c: *mut f32,
    c_row: usize,
    write: Write,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match [down, across] {
            [2, 2] => two_by_two(steps, a, b, c, c_row, write),
            [2, _] => two_by_one(steps, a, b, c, c_row, write),
            [_, 2] => one_by_two(steps, a, b, c, c_row, write),
            _ => one_by_one(steps, a, b, c, c_row, write),
        }
    }
}
