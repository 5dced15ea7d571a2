//! The add kernel for shared memory: sums leaves and stores the sum into every rank's buffer in one pass.
//!
//! Works on addresses, because a leaf may also be a destination and the buffers belong to several processes. Every
//! group of lanes is read whole before it is stored, so a destination that is also a leaf is read first. There is one
//! body; the compiler makes it into AVX-512, AVX2 and baseline code. Only `f32` additions in a stated order are done,
//! never reassociated or fused, so all of them give the same bits. It does not know ranks, slots or barriers.

use dtrain_collective::{BLOCK, SumOrder, SumStep};

/// Floats that are read before any of them is stored: two AVX-512 registers.
const LANES: usize = 32;

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

/// One chunk's work. Offsets count floats from `base`.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    /// The start of the arena.
    pub base: *mut f32,
    /// Where each leaf starts.
    pub leaves: &'a [usize],
    /// Where each destination starts.
    pub outs: &'a [usize],
    /// Elements of the chunk: the first, and how many.
    pub at: usize,
    /// How many elements.
    pub len: usize,
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
            _ => sum_body(order, pass, stack),
        }
    }
}

/// # Safety
/// As [`sum_into`], and the processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn sum_avx512(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { sum_body(order, pass, stack) }
}

/// # Safety
/// As [`sum_into`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { sum_body(order, pass, stack) }
}

/// # Safety
/// As [`sum_into`].
#[inline(always)]
unsafe fn sum_body(order: &SumOrder, pass: &Pass<'_>, stack: &mut [f32]) {
    // SAFETY: every address is a leaf or destination of the pass plus less than `len`.
    unsafe {
        let leaf = |i: usize| pass.base.add(pass.leaves[i] + pass.at).cast_const();
        let out = |offset: usize| pass.base.add(offset + pass.at);
        match (order.steps(), pass.outs) {
            (&[SumStep::Pair(a, b)], &[x]) => pair(leaf(a), leaf(b), [out(x)], pass.len),
            (&[SumStep::Pair(a, b)], &[x, y]) => pair(leaf(a), leaf(b), [out(x), out(y)], pass.len),
            _ => {
                let mut done = 0;
                while done < pass.len {
                    let n = BLOCK.min(pass.len - done);
                    sum_one_block(order, |i| leaf(i).add(done), stack.as_mut_ptr(), n);
                    for offset in pass.outs {
                        std::ptr::copy_nonoverlapping(stack.as_ptr(), out(*offset).add(done), n);
                    }
                    done += n;
                }
            }
        }
    }
}

/// Evaluates one block into `stack[..n]`.
///
/// # Safety
/// Leaves are readable for `n <= BLOCK` floats; `stack` has room for the order's depth in blocks, apart from them.
#[inline(always)]
unsafe fn sum_one_block(order: &SumOrder, leaf: impl Fn(usize) -> *const f32, stack: *mut f32, n: usize) {
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
                    pair(leaf(left), leaf(right), [stack.add(top * BLOCK)], n);
                    top += 1;
                }
                SumStep::AddLeaf(i) => {
                    let level = stack.add((top - 1) * BLOCK);
                    pair(level.cast_const(), leaf(i), [level], n);
                }
                SumStep::Merge => {
                    top -= 1;
                    let level = stack.add((top - 1) * BLOCK);
                    pair(level.cast_const(), stack.add(top * BLOCK).cast_const(), [level], n);
                }
            }
        }
    }
}

/// Stores `left + right` into each of `outs`, any of which may be `left` or `right` itself.
///
/// # Safety
/// `n` floats are readable at both sources and writable at each destination; sources and destinations are the same
/// address or do not overlap.
#[inline(always)]
unsafe fn pair<const OUTS: usize>(left: *const f32, right: *const f32, outs: [*mut f32; OUTS], n: usize) {
    let mut i = 0;
    while i + LANES <= n {
        // SAFETY: `i + LANES <= n`; the arrays are values, so both sources are read before anything is stored.
        unsafe {
            let a = left.add(i).cast::<[f32; LANES]>().read_unaligned();
            let b = right.add(i).cast::<[f32; LANES]>().read_unaligned();
            let mut sum = [0.0f32; LANES];
            for lane in 0..LANES {
                sum[lane] = a[lane] + b[lane];
            }
            for out in outs {
                out.add(i).cast::<[f32; LANES]>().write_unaligned(sum);
            }
        }
        i += LANES;
    }
    while i < n {
        // SAFETY: `i < n`.
        unsafe {
            let sum = *left.add(i) + *right.add(i);
            outs.iter().for_each(|out| *out.add(i) = sum);
        }
        i += 1;
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

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_portable_kernel_in_place() {
        let best = Isa::detect();
        let all = [Isa::Baseline, Isa::Avx2, Isa::Avx512];
        let here = all.iter().take_while(|isa| **isa != best).chain([&best]);
        for isa in here {
            for count in 1..=9u32 {
                for len in [0usize, 1, 31, 32, 33, 1_000, BLOCK + 5, 3 * BLOCK] {
                    let parts: Vec<MicroRange> =
                        cut_evenly(count, 3).into_iter().flat_map(|range| roots(range, count)).collect();
                    let order = SumOrder::tree(&parts, count);
                    let mut memory = buffers(parts.len(), len);
                    let mut want = vec![0.0; len];
                    let mut stack = vec![0.0; order.depth() * BLOCK];
                    for start in (0..len).step_by(BLOCK) {
                        let n = BLOCK.min(len - start);
                        dtrain_collective::sum_block(&order, n, &mut stack, |i| {
                            &memory[i * len + start..][..n]
                        });
                        want[start..start + n].copy_from_slice(&stack[..n]);
                    }
                    let leaves: Vec<usize> = (0..parts.len()).map(|i| i * len).collect();
                    let outs = &leaves[..leaves.len().min(2)];
                    let pass = Pass { base: memory.as_mut_ptr(), leaves: &leaves, outs, at: 0, len };
                    // SAFETY: all offsets lie in `memory`, which nobody else holds; `isa` was detected.
                    unsafe { sum_into(*isa, &order, &pass, &mut stack) };
                    for out in outs {
                        let got = &memory[*out..][..len];
                        assert!(
                            got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{isa:?} {count} {len}"
                        );
                    }
                }
            }
        }
    }
}
