//! Rounding a unit of an operand, by AVX-512's instruction for it or in plain Rust: to nearest, ties to even. What is below the least
//! normal number is zero first, and what is no number stays none.
//!
//! *Source*: Intel's Software Developer's Manual, volume 2, VCVTNE2PS2BF16.
//!
//! This file does not know whose operand it is.

use super::units::{Order, SIDE, STEP};
use crate::cpu::isa::{Have, Isa, on_every_isa};
use crate::cpu::product::transpose::transpose;
use dtrain_types::to_bf16;

/// Some of an operand: lane `l` and term `t` at `l * lane + t * term`, of as many as a unit has or fewer, one at least.
#[derive(Clone, Copy)]
pub(super) struct Excerpt<'a> {
    pub(super) x: &'a [f32],
    pub(super) lane: usize,
    pub(super) term: usize,
    pub(super) lanes: usize,
    pub(super) terms: usize,
}

/// Makes a unit of it. What is missing is zero.
pub(super) fn unit(isa: Have, excerpt: Excerpt<'_>, order: Order, out: &mut [u32]) {
    let Excerpt { x, lane, term, lanes, terms } = excerpt;
    let out: &mut [[u32; SIDE]; SIDE] = out.as_chunks_mut().0.try_into().expect("a unit");
    assert!((1..=SIDE).contains(&lanes) && (1..=STEP).contains(&terms), "{lanes} lanes of {terms} terms");
    assert!(
        (lanes - 1) * lane + (terms - 1) * term < x.len(),
        "{lanes} lanes of {terms} terms in {}",
        x.len()
    );
    #[cfg(target_arch = "x86_64")]
    if isa.isa() == Isa::Amx && (term == 1 || lane == 1) {
        // SAFETY: a `Have` of this set exists only where the CPU was seen to have the instructions; the excerpt was checked.
        return unsafe { wide::unit(excerpt, order, out) };
    }
    let natural = if term == 1 { Order::OfLane } else { Order::OfPair };
    if natural == order {
        return plain(isa, x, lane, term, lanes, terms, out);
    }
    let mut turned = [[0; SIDE]; SIDE];
    plain(isa, x, lane, term, lanes, terms, &mut turned);
    transpose(
        isa,
        as_floats(turned.as_flattened()),
        SIDE,
        SIDE,
        SIDE,
        as_floats_mut(out.as_flattened_mut()),
        SIDE,
    );
}

on_every_isa! {
    /// A unit as the operand lies: by lanes where terms are neighbours, else by pairs.
    fn plain(x: &[f32], lane: usize, term: usize, lanes: usize, terms: usize, out: &mut [[u32; SIDE]; SIDE]) {
        *out = [[0; SIDE]; SIDE];
        if term == 1 {
            for (l, out) in out.iter_mut().enumerate().take(lanes) {
                for (out, pair) in out.iter_mut().zip(x[l * lane..][..terms].chunks(2)) {
                    *out = word(pair[0], pair.get(1).copied().unwrap_or(0.0));
                }
            }
            return;
        }
        for (pair, out) in out.iter_mut().enumerate().take(terms.div_ceil(2)) {
            let below = &x[2 * pair * term..];
            let above = if 2 * pair + 1 < terms { &x[(2 * pair + 1) * term..] } else { &[][..] };
            for (l, out) in out.iter_mut().enumerate().take(lanes) {
                *out = word(below[l * lane], above.get(l * lane).copied().unwrap_or(0.0));
            }
        }
    }
}

/// Two terms.
#[inline(always)]
fn word(below: f32, above: f32) -> u32 {
    let [below, above] = [below, above].map(|x| to_bf16(flushed(x)).to_bits());
    below >> 16 | above
}

/// Zero, with its sign, in place of what is not normal.
#[inline(always)]
pub(super) fn flushed(x: f32) -> f32 {
    f32::from_bits(if x.abs() < f32::MIN_POSITIVE { x.to_bits() & 1 << 31 } else { x.to_bits() })
}

/// Words where floats are moved and nothing is done to them.
fn as_floats(words: &[u32]) -> &[f32] {
    // SAFETY: both have four bytes, and any of them are a float.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

fn as_floats_mut(words: &mut [u32]) -> &mut [f32] {
    // SAFETY: as above, and any float is a word.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Excerpt, Order, SIDE};
    use crate::cpu::product::transpose::turned;
    use std::arch::x86_64::*;

    /// SAFETY: the excerpt lies inside its slice, and lanes or terms are neighbours.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn unit(excerpt: Excerpt<'_>, order: Order, out: &mut [[u32; SIDE]; SIDE]) {
        let Excerpt { x, lane, term, lanes, terms } = excerpt;
        let x = x.as_ptr();
        let mut lines = [_mm512_setzero_ps(); SIDE];
        let natural = if term == 1 {
            let (below, above) = (first(terms), first(terms.saturating_sub(SIDE)));
            for (l, line) in lines.iter_mut().enumerate().take(lanes) {
                let x = x.wrapping_add(l * lane);
                // SAFETY: the terms of this lane alone are read.
                *line = unsafe { both(x, below, x.wrapping_add(SIDE), above) };
            }
            Order::OfLane
        } else {
            // SAFETY: thirty-two halves of a word.
            let index = unsafe { _mm512_loadu_si512(BETWEEN.as_ptr().cast()) };
            for (pair, line) in lines.iter_mut().enumerate().take(terms.div_ceil(2)) {
                let x = x.wrapping_add(2 * pair * term);
                let above = if 2 * pair + 1 < terms { first(lanes) } else { 0 };
                // SAFETY: the lanes of these terms alone are read.
                let both = unsafe { both(x, first(lanes), x.wrapping_add(term), above) };
                *line = _mm512_castsi512_ps(_mm512_permutexvar_epi16(index, _mm512_castps_si512(both)));
            }
            Order::OfPair
        };
        let lines = if natural == order { lines } else { turned(lines) };
        for (out, line) in out.iter_mut().zip(lines) {
            // SAFETY: a line of the unit.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), line) };
        }
    }

    /// Sixteen numbers rounded, and sixteen others behind them.
    ///
    /// SAFETY: the elements under the masks can be read.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn both(below: *const f32, few: __mmask16, above: *const f32, more: __mmask16) -> __m512 {
        // SAFETY: the caller's promise; both are 64 bytes of any bits.
        unsafe {
            let (below, above) = (_mm512_maskz_loadu_ps(few, below), _mm512_maskz_loadu_ps(more, above));
            std::mem::transmute(_mm512_cvtne2ps_pbh(above, below))
        }
    }

    /// The mask of the first `n` of sixteen, or of all.
    fn first(n: usize) -> __mmask16 {
        u16::MAX.checked_shr(16 - n.min(16) as u32).unwrap_or(0)
    }

    /// Those of the first half and those of the second by turns.
    static BETWEEN: [u16; 2 * SIDE] = {
        let mut index = [0; 2 * SIDE];
        let mut i = 0;
        while i < 2 * SIDE {
            index[i] = (i / 2 + i % 2 * SIDE) as u16;
            i += 1;
        }
        index
    };
}
