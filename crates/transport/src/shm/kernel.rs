//! The add kernel for shared memory: sums leaves and stores the sum into every rank's buffer in one pass.
//!
//! Works on addresses, because a leaf may also be a destination and the buffers belong to several processes. Every
//! group of lanes is read whole before it is stored, so a destination that is also a leaf is read first. Sums of up to
//! six leaves stay in registers (`fused.rs`), others, and all whose sums are rounded, go through blocks that stay in the L1
//! cache. There is one body; the compiler makes it into AVX-512, AVX2 and baseline code. Only `f32` additions in a stated
//! order are done, never reassociated or fused, so all of them give the same bits. It does not know ranks, slots or barriers.

use super::fused;
use crate::shm::pass::Pass;
use dtrain_collective::{BLOCK, SumOrder, SumStep};
use dtrain_types::{Wire, to_bf16};

/// The bit of a float that holds its sign.
const SIGN: u32 = 1 << 31;
/// Floats of a destination that are touched before the next one is: memory is fastest when it is asked for several
/// streams at once, as a sum does.
const TOUCHED: usize = 256;
/// Floats of a cache line.
const LINE: usize = 16;

/// The instruction set that the kernel uses. The bits do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every processor of this architecture has.
    Baseline,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512F.
    Avx512,
}

impl Isa {
    /// The best that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }
}

/// Adds the leaves in `order` and stores the sum into every destination.
///
/// # Safety
/// `base + offset + at .. + len` is valid memory for every leaf (to read) and destination (to write), nobody else
/// touches these elements meanwhile, and the processor has `isa`. A leaf may be a destination; they may not overlap
/// otherwise.
pub(super) unsafe fn sum_into(isa: Isa, order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    assert!(
        order.depth() > 0 && stack.len() >= order.depth() * BLOCK,
        "the stack holds {} floats",
        stack.len()
    );
    // SAFETY: passed on from the caller, who also vouches for `isa`.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => sum_avx512(order, pass, stack),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => sum_avx2(order, pass, stack),
            _ => sum_baseline(order, pass, stack),
        }
    }
}

/// # Safety
/// As [`sum_into`], and the processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn sum_avx512(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe {
        if !(pass.is_plain() && fused::sum_in_registers(order.steps(), pass)) {
            blocks_avx512(order, pass, stack);
        }
    }
}

/// # Safety
/// As [`sum_avx512`]. Apart from it, so that the compiler has one thing at a time to make fast.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn blocks_avx512(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { blocks(order, pass, stack) }
}

/// # Safety
/// As [`sum_into`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe {
        if !(pass.is_plain() && fused::sum_in_registers(order.steps(), pass)) {
            blocks_avx2(order, pass, stack);
        }
    }
}

/// # Safety
/// As [`sum_avx2`], and apart from it as [`blocks_avx512`] is.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn blocks_avx2(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { blocks(order, pass, stack) }
}

/// # Safety
/// As [`sum_into`].
unsafe fn sum_baseline(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe {
        if !(pass.is_plain() && fused::sum_in_registers(order.steps(), pass)) {
            blocks(order, pass, stack);
        }
    }
}

/// A sum in any order, block by block.
///
/// # Safety
/// As [`sum_into`].
#[inline(always)]
unsafe fn blocks(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: every address is a leaf or destination of the pass plus less than `len`.
    unsafe {
        let leaf = |i: usize| pass.base.add(pass.leaves[i] + pass.at).cast_const();
        let out = |offset: usize| pass.base.add(offset + pass.at);
        let mut done = 0;
        while done < pass.len {
            let n = BLOCK.min(pass.len - done);
            sum_one_block(order, pass.wire, |i| leaf(i).add(done), stack.as_mut_ptr(), n);
            for offset in pass.outs {
                std::ptr::copy_nonoverlapping(stack.as_ptr(), out(*offset).add(done), n);
            }
            done += n;
        }
    }
}

/// Evaluates one block into `stack[..n]`.
///
/// # Safety
/// Leaves are readable for `n <= BLOCK` floats; `stack` has room for the order's depth in blocks, apart from them.
#[inline(always)]
unsafe fn sum_one_block(
    order: &SumOrder,
    wire: Wire,
    leaf: impl Fn(usize) -> *const f32,
    stack: *mut f32,
    n: usize,
) {
    let mut top = 0;
    for step in order.steps() {
        // SAFETY: `top` stays below the order's depth, so every level lies in the stack.
        unsafe {
            match *step {
                SumStep::Load(i) => {
                    std::ptr::copy_nonoverlapping(leaf(i), stack.add(top * BLOCK), n);
                    top += 1;
                }
                SumStep::Pair(left, right) => {
                    pair(wire, leaf(left), leaf(right), stack.add(top * BLOCK), n);
                    top += 1;
                }
                SumStep::AddLeaf(i) => {
                    let level = stack.add((top - 1) * BLOCK);
                    add_to(wire, level, leaf(i), n);
                }
                SumStep::Merge => {
                    top -= 1;
                    let level = stack.add((top - 1) * BLOCK);
                    add_to(wire, level, stack.add(top * BLOCK), n);
                }
            }
        }
    }
}

/// Stores `left + right`, rounded, into `out`. Plain loops over slices here and below: of arrays of lanes the compiler makes shuffles.
///
/// # Safety
/// `n` floats are readable at both sources and writable at the destination, which overlaps neither, and nobody else
/// touches them.
#[inline(always)]
unsafe fn pair(wire: Wire, left: *const f32, right: *const f32, out: *mut f32, n: usize) {
    // SAFETY: passed on.
    let (left, right, out) = unsafe {
        let slice = |start: *const f32| std::slice::from_raw_parts(start, n);
        (slice(left), slice(right), std::slice::from_raw_parts_mut(out, n))
    };
    let pairs = out.iter_mut().zip(left).zip(right);
    match wire {
        Wire::F32 => pairs.for_each(|((out, left), right)| *out = left + right),
        Wire::Bf16 => pairs.for_each(|((out, left), right)| *out = to_bf16(left + right)),
    }
}

/// Adds `right` to what is at `level`, and rounds the sum.
///
/// # Safety
/// As [`pair`], for two places that do not overlap.
#[inline(always)]
unsafe fn add_to(wire: Wire, level: *mut f32, right: *const f32, n: usize) {
    // SAFETY: passed on.
    let (level, right) =
        unsafe { (std::slice::from_raw_parts_mut(level, n), std::slice::from_raw_parts(right, n)) };
    let pairs = level.iter_mut().zip(right);
    match wire {
        Wire::F32 => pairs.for_each(|(level, right)| *level += right),
        Wire::Bf16 => pairs.for_each(|(level, right)| *level = to_bf16(*level + right)),
    }
}

/// Flips the sign of every element of every destination, a little of each in turn: all that a sum in place moves through
/// memory, and nothing of what it computes.
///
/// # Safety
/// As [`sum_into`], for the destinations alone.
pub(super) unsafe fn touch(isa: Isa, pass: &Pass<'_>) {
    // SAFETY: passed on from the caller, who also vouches for `isa`.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => touch_avx512(pass),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => touch_avx2(pass),
            _ => touch_body(pass),
        }
    }
}

/// # Safety
/// As [`touch`], and the processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn touch_avx512(pass: &Pass<'_>) {
    // SAFETY: passed on.
    unsafe { touch_body(pass) }
}

/// # Safety
/// As [`touch`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn touch_avx2(pass: &Pass<'_>) {
    // SAFETY: passed on.
    unsafe { touch_body(pass) }
}

/// # Safety
/// As [`touch`].
#[inline(always)]
unsafe fn touch_body(pass: &Pass<'_>) {
    for done in (0..pass.len).step_by(TOUCHED) {
        let n = TOUCHED.min(pass.len - done);
        for offset in pass.outs {
            // SAFETY: the part lies in valid memory that nobody else touches; bits of floats are bits of whole numbers.
            let part = unsafe {
                let start = pass.base.add(offset + pass.at + done).cast::<u32>();
                std::slice::from_raw_parts_mut(start, n)
            };
            part.iter_mut().for_each(|bits| *bits ^= SIGN);
        }
    }
}

/// Asks for the cache lines of `len` floats from `start` on. A hint: nothing is read, whatever the address.
pub(super) fn fetch(start: *const f32, len: usize) {
    for line in (0..len).step_by(LINE) {
        let line = start.wrapping_add(line);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch does not access memory as far as the program can tell.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{Key, MicroBatch, MicroRange, Seed, Site, Step, cut_evenly, roots};

    /// `leaves` buffers of `len` floats one after the other.
    fn buffers(leaves: usize, len: usize) -> Vec<f32> {
        let key = Key::new(Seed(11), Step(0), MicroBatch(0), Site(0));
        (0..(leaves * len) as u32)
            .map(|i| (key.unit_f32(i) - 0.5) * 10f32.powi((key.bits(i) % 9) as i32 - 4))
            .collect()
    }

    fn parts_of_one(count: u32) -> Vec<MicroRange> {
        (0..count).map(|lo| MicroRange { lo, hi: lo + 1 }).collect()
    }

    #[test]
    fn touching_flips_every_sign_of_the_part_and_nothing_else() {
        let len = 3 * TOUCHED + 5;
        let before = buffers(3, len);
        let mut memory = before.clone();
        let outs = [0, 2 * len];
        let pass = Pass {
            base: memory.as_mut_ptr(),
            leaves: &[],
            outs: &outs,
            at: 2,
            len: len - 3,
            wire: Wire::F32,
        };
        // SAFETY: both parts lie in `memory`, which nobody else holds; `isa` was detected.
        unsafe { touch(Isa::detect(), &pass) };
        for (place, (got, was)) in memory.iter().zip(&before).enumerate() {
            let inside = place / len != 1 && (2..len - 1).contains(&(place % len));
            assert_eq!(got.to_bits(), if inside { (-was).to_bits() } else { was.to_bits() }, "{place}");
        }
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_portable_kernel_in_place() {
        let best = Isa::detect();
        let all = [Isa::Baseline, Isa::Avx2, Isa::Avx512];
        let here = all.iter().take_while(|isa| **isa != best).chain([&best]);
        for isa in here {
            let wires = |kind| [Wire::F32, Wire::Bf16].map(|wire| (kind, wire));
            let kinds = || (0..3).flat_map(wires);
            for (count, (kind, wire)) in (1..=9u32).flat_map(|count| kinds().map(move |kind| (count, kind))) {
                for len in [0usize, 1, 15, 16, 31, 32, 33, 1_000, BLOCK + 5, 3 * BLOCK] {
                    let parts: Vec<MicroRange> =
                        cut_evenly(count, 3).into_iter().flat_map(|range| roots(range, count)).collect();
                    // One leaf for each of several ranks, along the tree and around a ring, too.
                    let order = match kind {
                        0 => SumOrder::tree(&parts, count),
                        1 => SumOrder::tree(&parts_of_one(count), count),
                        _ => SumOrder::in_turn((0..count as usize).map(|i| (i + 1) % count as usize)),
                    };
                    let parts = if kind == 0 { parts } else { parts_of_one(count) };
                    let mut memory = buffers(parts.len(), len);
                    wire.round(&mut memory);
                    let mut want = vec![0.0; len];
                    let mut stack = vec![0.0; order.depth() * BLOCK];
                    for start in (0..len).step_by(BLOCK) {
                        let n = BLOCK.min(len - start);
                        dtrain_collective::sum_block(&order, wire, n, &mut stack, |i| {
                            &memory[i * len + start..][..n]
                        });
                        want[start..start + n].copy_from_slice(&stack[..n]);
                    }
                    let leaves: Vec<usize> = (0..parts.len()).map(|i| i * len).collect();
                    // A reduce-scatter stores into one, an all-reduce into all of them.
                    let outs = &leaves[..[1, 2, leaves.len()][len % 3].min(leaves.len())];
                    let pass = Pass { base: memory.as_mut_ptr(), leaves: &leaves, outs, at: 0, len, wire };
                    // SAFETY: all offsets lie in `memory`, which nobody else holds; `isa` was detected.
                    unsafe { sum_into(*isa, &order, &pass, &mut stack) };
                    for out in outs {
                        let got = &memory[*out..][..len];
                        assert!(
                            got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{isa:?} {count} {len} {wire:?}"
                        );
                    }
                }
            }
        }
    }
}
