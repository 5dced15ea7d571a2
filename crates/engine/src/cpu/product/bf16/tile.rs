//! The innermost loop: a few units of `A` times a few units of `B`, by the matrix unit or in plain Rust.
//!
//! *Order*: a sum takes a step of terms after the other. In a step the first terms of all pairs are summed from zero in order by fused
//! multiply-add, so are the second ones; what both come to is added, and that to the sum. Each of these results is rounded to nearest and
//! is zero where it is below the least normal number; so is an operand. That is what AMX does, whatever the state of the processor; the
//! plain loop has the same bits.
//!
//! *Source*: Intel's Software Developer's Manual, volume 2, TDPBF16PS.
//!
//! This file does not know where its operands come from.

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::round::flushed;
use super::units::{SIDE, UNIT};
use crate::cpu::isa::{Have, Isa, on_every_isa};
use crate::device::Write;

/// The most units down and across.
pub(super) const MOST: usize = 2;
/// Elements of a buffer for the sums of as many units, whose rows are [`KEPT_ROW`] apart.
pub(super) const KEPT: usize = (MOST * SIDE) * KEPT_ROW;
/// Elements from one row of such a buffer to the next.
pub(super) const KEPT_ROW: usize = MOST * SIDE;

/// Where this thread multiplies, as long as it lives.
pub(super) enum Unit {
    #[cfg(target_arch = "x86_64")]
    Matrix(amx::TileState),
    Plain(Have),
}

impl Unit {
    /// The best of this instruction set. A thread has one at a time.
    pub(super) fn new(isa: Have) -> Self {
        match isa.isa() {
            // SAFETY: a `Have` of this set exists only where the unit was seen to be there; no caller keeps two.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Self::Matrix(unsafe { amx::TileState::new() }),
            _ => Self::Plain(isa),
        }
    }

    /// `c = a b`, or `c += a b` beginning with what is there, for `a.len()` units down and `b.len()` across. Each operand has the units
    /// of all steps, of which there are as many everywhere.
    ///
    /// SAFETY: `c` has as many rows, `c_row` apart, and columns as these units have, and they are the caller's.
    pub(super) unsafe fn times(&self, a: Units<'_>, b: Units<'_>, c: *mut f32, c_row: usize, write: Write) {
        assert!(a.steps == b.steps && a.steps > 0, "{} steps and {}", a.steps, b.steps);
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Matrix(tiles) => {
                let (sizes, pointers) = ([a.count, b.count], |units: &Units<'_>| units.pointers());
                // SAFETY: the caller's promise; units were checked when they were made.
                unsafe { amx::times(tiles, a.steps, sizes, pointers(&a), pointers(&b), c, c_row, write) }
            }
            // SAFETY: the caller's promise.
            Self::Plain(isa) => unsafe { plain(*isa, a, b, c, c_row, write) },
        }
    }
}

/// The same in plain Rust.
///
/// SAFETY: as above.
#[inline(never)]
unsafe fn plain(isa: Have, a: Units<'_>, b: Units<'_>, c: *mut f32, c_row: usize, write: Write) {
    for (down, across) in (0..a.count).flat_map(|down| (0..b.count).map(move |across| (down, across))) {
        let at = c.wrapping_add(down * SIDE * c_row + across * SIDE);
        // SAFETY: one unit of the caller's elements.
        unsafe { one(isa, a.one(down), b.one(across), at, c_row, write) };
    }
}

/// One or two units, and those behind them, a step after the other.
#[derive(Clone, Copy)]
pub(super) struct Units<'a> {
    words: &'a [u32],
    /// Words from the first unit to that beside it.
    apart: usize,
    count: usize,
    steps: usize,
}

impl<'a> Units<'a> {
    /// Of operands in which units of the same lanes lie `depth` steps deep: those of `steps` from `from`, and of `count` lanes from
    /// unit `first`.
    pub(super) fn new(
        words: &'a [u32],
        depth: usize,
        first: usize,
        count: usize,
        from: usize,
        steps: usize,
    ) -> Self {
        let start = (first * depth + from) * UNIT;
        let len = ((count - 1) * depth + steps) * UNIT;
        assert!(
            (1..=MOST).contains(&count) && from + steps <= depth,
            "{count} units, {from}+{steps} of {depth}"
        );
        Self { words: &words[start..][..len], apart: depth * UNIT, count, steps }
    }

    /// The units of one of them.
    fn one(&self, which: usize) -> &'a [u32] {
        &self.words[which * self.apart..][..self.steps * UNIT]
    }

    #[cfg(target_arch = "x86_64")]
    fn pointers(&self) -> [*const u32; MOST] {
        [0, self.count - 1].map(|which| self.one(which).as_ptr())
    }
}

/// Rows whose sums are worked on at once.
const ROWS: usize = 4;
type Lane = [f32; SIDE];

/// One unit of sums.
///
/// SAFETY: its elements are the caller's.
unsafe fn one(isa: Have, a: &[u32], b: &[u32], c: *mut f32, c_row: usize, write: Write) {
    for row in (0..SIDE).step_by(ROWS) {
        let mut sums = [[0.0; SIDE]; ROWS];
        let at = |i: usize| c.wrapping_add((row + i) * c_row).cast::<Lane>();
        if write == Write::Add {
            // SAFETY: rows of the caller's elements.
            sums = std::array::from_fn(|i| unsafe { at(i).read_unaligned() });
        }
        rows(isa, row, a, b, &mut sums);
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: as above.
            unsafe { at(i).write_unaligned(*sums) };
        }
    }
}

on_every_isa! {
    /// Adds all steps to the sums of some rows.
    fn rows(row: usize, a: &[u32], b: &[u32], sums: &mut [Lane; ROWS]) {
        for (a, b) in a.chunks_exact(UNIT).zip(b.chunks_exact(UNIT)) {
            let mut halves = [[[0.0; SIDE]; ROWS]; 2];
            let mut doubtful = false;
            for (pair, b) in b.chunks_exact(SIDE).enumerate() {
                let b: [Lane; 2] = [0, 1].map(|which| std::array::from_fn(|l| half(b[l], which)));
                for i in 0..ROWS {
                    let word = a[(row + i) * SIDE + pair];
                    for which in 0..2 {
                        let (a, sum) = (half(word, which), &mut halves[which][i]);
                        for l in 0..SIDE {
                            let next = a.mul_add(b[which][l], sum[l]);
                            doubtful |= next.abs() == f32::MIN_POSITIVE;
                            sum[l] = flushed(next);
                        }
                    }
                }
            }
            if doubtful {
                halves = again(row, a, b);
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                for (l, sum) in sums.iter_mut().enumerate() {
                    *sum = flushed(flushed(*sum) + flushed(halves[0][i][l] + halves[1][i][l]));
                }
            }
        }
    }
}

/// The same sums of a step, where one came to the least normal number: it may have been rounded up to that among numbers that are not
/// normal, with a bit less than the processor has before it takes them for zero.
#[cold]
fn again(row: usize, a: &[u32], b: &[u32]) -> [[Lane; ROWS]; 2] {
    let sum = |which: usize, i: usize, l: usize| {
        (0..SIDE).fold(0.0f32, |sum, pair| {
            let (a, b) = (half(a[(row + i) * SIDE + pair], which), half(b[pair * SIDE + l], which));
            let next = a.mul_add(b, sum);
            // Half a step below, as far as f64 can tell, which is exactly where it matters: the sum before is zero or normal.
            let least = f64::from(f32::MIN_POSITIVE) * (1.0 - 0.5f64.powi(25));
            let exact = f64::from(a).mul_add(f64::from(b), f64::from(sum)).abs();
            if next.abs() == f32::MIN_POSITIVE && exact < least {
                0.0f32.copysign(next)
            } else {
                flushed(next)
            }
        })
    };
    [0, 1].map(|which| std::array::from_fn(|i| std::array::from_fn(|l| sum(which, i, l))))
}

/// The first or the second of two terms.
#[inline(always)]
fn half(word: u32, which: usize) -> f32 {
    f32::from_bits(if which == 0 { word << 16 } else { word & 0xffff_0000 })
}
