//! Sums of a few leaves that never leave the registers: one pass over the memory, whatever the number of buffers.
//!
//! One leaf a rank is what nearly every step has, so the orders of two to six such leaves, along the tree and in turn, have
//! a loop of their own: it reads a group of lanes of every leaf, adds them in the stated order and stores the sum into
//! every destination. Of more leaves the compiler spills some, and blocks are as fast: those and all other orders go
//! through them, see `kernel.rs`. It does not know who owns which leaf.

use super::pass::Pass;
use dtrain_collective::BLOCK;
use dtrain_collective::SumStep::{self, AddLeaf, Merge, Pair};

/// Floats of each leaf that are read before any sum is stored: two AVX-512 registers.
const WIDE: usize = 32;
/// With more leaves half as many, so that all of them find room in the registers.
const NARROW: usize = 16;

/// Sums the whole pass and says so, if there is a loop for this order.
///
/// # Safety
/// As `kernel::sum_into`; inlined into a function that may use what the processor has.
#[inline(always)]
pub(super) unsafe fn sum_in_registers(steps: &[SumStep], pass: &Pass<'_>) -> bool {
    // SAFETY: passed on.
    unsafe {
        match *steps {
            [Pair(a, b)] => sum([a, b], pass, tree::<2, WIDE>),
            [Pair(a, b), Pair(c, d), Merge] => sum([a, b, c, d], pass, tree::<4, WIDE>),
            [Pair(a, b), Pair(c, d), Merge, AddLeaf(e)] => sum([a, b, c, d, e], pass, tree::<5, NARROW>),
            [Pair(a, b), Pair(c, d), Merge, Pair(e, f), Merge] => {
                sum([a, b, c, d, e, f], pass, tree::<6, NARROW>)
            }
            // Three leaves have one order, along the tree and in turn alike.
            [Pair(a, b), AddLeaf(c)] => sum([a, b, c], pass, turn::<3, WIDE>),
            [Pair(a, b), AddLeaf(c), AddLeaf(d)] => sum([a, b, c, d], pass, turn::<4, WIDE>),
            [Pair(a, b), AddLeaf(c), AddLeaf(d), AddLeaf(e)] => sum([a, b, c, d, e], pass, turn::<5, NARROW>),
            [Pair(a, b), AddLeaf(c), AddLeaf(d), AddLeaf(e), AddLeaf(f)] => {
                sum([a, b, c, d, e, f], pass, turn::<6, NARROW>);
            }
            _ => return false,
        }
    }
    true
}

/// # Safety
/// As `kernel::sum_into`.
#[inline(always)]
unsafe fn sum<const N: usize, const LANES: usize>(
    leaves: [usize; N],
    pass: &Pass<'_>,
    add: impl Fn(&[[f32; LANES]; N]) -> [f32; LANES],
) {
    // SAFETY: passed on: every address is a leaf or destination of the pass.
    unsafe {
        let at = |offset: usize| pass.base.add(offset + pass.at);
        let leaves = leaves.map(|leaf| at(pass.leaves[leaf]).cast_const());
        // One destination (a reduce-scatter) and one for each leaf (an all-reduce) are loops that the compiler unrolls.
        match *pass.outs {
            [out] => sum_lanes(leaves, &[at(out)], pass.len, add),
            ref outs if outs.len() == N => {
                let mut own = [std::ptr::null_mut(); N];
                own.iter_mut().zip(outs).for_each(|(own, out)| *own = at(*out));
                sum_lanes(leaves, &own, pass.len, add);
            }
            ref outs => {
                let (first, rest) = outs.split_first().expect("a sum has a destination");
                for done in (0..pass.len).step_by(BLOCK) {
                    let n = BLOCK.min(pass.len - done);
                    let sum = at(*first).add(done);
                    sum_lanes(leaves.map(|leaf| leaf.add(done)), &[sum], n, &add);
                    rest.iter().for_each(|out| std::ptr::copy_nonoverlapping(sum, at(*out).add(done), n));
                }
            }
        }
    }
}

/// Adds up the leaves, a group of lanes at a time, and stores each sum into all of `outs`, any of which may be a leaf.
///
/// # Safety
/// `n` floats are readable at every leaf and writable at every destination; leaves and destinations are the same address
/// or do not overlap.
#[inline(always)]
unsafe fn sum_lanes<const N: usize, const OUTS: usize, const LANES: usize>(
    leaves: [*const f32; N],
    outs: &[*mut f32; OUTS],
    n: usize,
    add: impl Fn(&[[f32; LANES]; N]) -> [f32; LANES],
) {
    let mut i = 0;
    while i + LANES <= n {
        // SAFETY: `i + LANES <= n`; the values are copies, so all leaves are read before anything is stored.
        unsafe {
            let mut values = [[0.0; LANES]; N];
            for k in 0..N {
                values[k] = leaves[k].add(i).cast::<[f32; LANES]>().read_unaligned();
            }
            let sum = add(&values);
            for out in outs {
                out.add(i).cast::<[f32; LANES]>().write_unaligned(sum);
            }
        }
        i += LANES;
    }
    while i < n {
        // SAFETY: `i < n`.
        unsafe {
            let mut values = [[0.0; LANES]; N];
            for k in 0..N {
                values[k][0] = *leaves[k].add(i);
            }
            let sum = add(&values)[0];
            outs.iter().for_each(|out| *out.add(i) = sum);
        }
        i += 1;
    }
}

#[inline(always)]
fn plus<const LANES: usize>(left: [f32; LANES], right: [f32; LANES]) -> [f32; LANES] {
    let mut sum = [0.0; LANES];
    for lane in 0..LANES {
        sum[lane] = left[lane] + right[lane];
    }
    sum
}

/// Along the tree over one leaf after the other.
#[inline(always)]
fn tree<const N: usize, const LANES: usize>(v: &[[f32; LANES]; N]) -> [f32; LANES] {
    let pair = |i: usize| plus(v[i], v[i + 1]);
    let four = |i: usize| plus(pair(i), pair(i + 2));
    match N {
        2 => pair(0),
        4 => four(0),
        5 => plus(four(0), v[4]),
        6 => plus(four(0), pair(4)),
        _ => unreachable!("there is no loop for a tree of {N} leaves"),
    }
}

/// `((a + b) + c) + ...`.
#[inline(always)]
fn turn<const N: usize, const LANES: usize>(v: &[[f32; LANES]; N]) -> [f32; LANES] {
    let mut sum = v[0];
    for leaf in &v[1..] {
        sum = plus(sum, *leaf);
    }
    sum
}
