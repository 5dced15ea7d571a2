//! The one order in which everything of a step is summed.
//!
//! `T(lo, hi)` is micro-batch `lo` itself when `hi - lo = 1`, else `T(lo, mid) + T(mid, hi)` with `mid = lo +`
//! the largest power of two smaller than `hi - lo`. The tree of `count` micro-batches is the tree of any greater
//! count with the absent ones skipped, so a short last step needs no rule of its own.
//!
//! A rank sums the largest subtrees inside its own range ([`roots`], [`Merger`]); the owner of a chunk adds the
//! roots of all ranks ([`Fold`]). Together they give the bits of the plain tree, however the range was cut.

use crate::MicroRange;

fn middle(lo: u32, hi: u32) -> u32 {
    let half = (hi - lo).next_power_of_two() / 2;
    lo + half
}

/// The largest subtrees of the tree over `0..count` that lie inside `range`, from left to right.
///
/// *Order*: a function of `range` and `count` alone; empty when `range` holds no micro-batch below `count`.
#[must_use]
pub fn roots(range: MicroRange, count: u32) -> Vec<MicroRange> {
    fn visit(lo: u32, hi: u32, range: MicroRange, out: &mut Vec<MicroRange>) {
        if hi <= range.lo || range.hi <= lo {
            return;
        }
        if range.lo <= lo && hi <= range.hi {
            return out.push(MicroRange { lo, hi });
        }
        let mid = middle(lo, hi);
        visit(lo, mid, range, out);
        visit(mid, hi, range, out);
    }
    let mut out = Vec::new();
    if count > 0 && range.lo < range.hi {
        visit(0, count, range, &mut out);
    }
    out
}

/// One instruction of a [`Fold`]: a stack machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldStep {
    /// Pushes the root with this index in the list of all ranks' roots.
    Push(usize),
    /// Replaces the two topmost values `left, right` by `left + right`.
    Add,
}

/// How the roots of all ranks are added up, in tree order: a postfix program, made once per generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    steps: Vec<FoldStep>,
    depth: usize,
}

impl Fold {
    /// Plans the sum of `all_roots` (the roots of all ranks, left to right, covering `0..count`).
    ///
    /// *Panics* if the roots are not a partition of `0..count` into subtrees.
    #[must_use]
    pub fn new(all_roots: &[MicroRange], count: u32) -> Self {
        fn visit(lo: u32, hi: u32, roots: &[MicroRange], next: &mut usize, out: &mut Vec<FoldStep>) {
            let root = roots.get(*next).expect("roots cover every micro-batch");
            if *root == (MicroRange { lo, hi }) {
                out.push(FoldStep::Push(*next));
                *next += 1;
                return;
            }
            assert!(hi - lo > 1, "root {root:?} is no subtree of the reduction tree");
            let mid = middle(lo, hi);
            visit(lo, mid, roots, next, out);
            visit(mid, hi, roots, next, out);
            out.push(FoldStep::Add);
        }
        let (mut steps, mut next) = (Vec::new(), 0);
        if count > 0 {
            visit(0, count, all_roots, &mut next, &mut steps);
        }
        assert_eq!(next, all_roots.len(), "more roots than the tree has");
        let (mut now, mut depth) = (0usize, 0usize);
        for step in &steps {
            match step {
                FoldStep::Push(_) => now += 1,
                FoldStep::Add => now -= 1,
            }
            depth = depth.max(now);
        }
        Self { steps, depth }
    }

    /// The program, in order.
    #[must_use]
    pub fn steps(&self) -> &[FoldStep] {
        &self.steps
    }

    /// Runs the program over `leaves`, the values of the roots. For small values (trailers, tests): it allocates.
    ///
    /// *Panics* if `leaves` is empty or shorter than the roots.
    pub fn run<T: Clone>(&self, leaves: &[T], mut add: impl FnMut(&T, &T) -> T) -> T {
        let mut stack: Vec<T> = Vec::with_capacity(self.depth);
        for step in &self.steps {
            match step {
                FoldStep::Push(root) => stack.push(leaves[*root].clone()),
                FoldStep::Add => {
                    let right = stack.pop().expect("a fold has two values at each add");
                    let left = stack.last_mut().expect("a fold has two values at each add");
                    *left = add(left, &right);
                }
            }
        }
        stack.pop().expect("a fold of no micro-batch has no value")
    }
}

/// Merges finished micro-batches of one root as they come, like a binary counter.
///
/// Buffer `k` of the root holds the `k`-th pending subtree; the first one ends as the whole root. At most
/// [`Merger::buffers`] of them are ever in use.
#[derive(Clone, Debug, Default)]
pub struct Merger {
    /// Sizes of the pending subtrees, left to right: strictly falling powers of two.
    pending: [u32; 32],
    used: usize,
}

impl Merger {
    /// How many buffers a root of `leaves` micro-batches needs at most.
    #[must_use]
    pub fn buffers(leaves: u32) -> usize {
        match leaves {
            0 => 0,
            1 => 1,
            n => (n - 1).ilog2() as usize + 2,
        }
    }

    /// The buffer that the next micro-batch fills.
    #[must_use]
    pub fn next_buffer(&self) -> usize {
        self.used
    }

    /// Notes that the next buffer is filled, and merges equal neighbours with `add(left, right)`: buffer `left`
    /// becomes `left + right`.
    pub fn push(&mut self, add: impl FnMut(usize, usize)) {
        self.push_subtree(1, add);
    }

    /// The same for a buffer that holds the sum of the next `leaves` micro-batches, added up in tree order already.
    ///
    /// All of a root but its last have one number of leaves, a power of two; the last may have fewer: whoever cuts so
    /// cuts off subtrees of the root. *Panics* on anything else.
    pub fn push_subtree(&mut self, leaves: u32, mut add: impl FnMut(usize, usize)) {
        let before = self.used.checked_sub(1).map_or(leaves.next_power_of_two(), |last| self.pending[last]);
        assert!(before.is_power_of_two() && leaves <= before, "{leaves} micro-batches behind {before}");
        self.pending[self.used] = leaves;
        self.used += 1;
        while self.used >= 2 && self.pending[self.used - 2] == self.pending[self.used - 1] {
            self.merge_last(&mut add);
        }
    }

    /// Merges what is left, right to left, into buffer 0, and starts anew.
    pub fn finish(&mut self, mut add: impl FnMut(usize, usize)) {
        while self.used >= 2 {
            self.merge_last(&mut add);
        }
        self.used = 0;
    }

    fn merge_last(&mut self, add: &mut impl FnMut(usize, usize)) {
        add(self.used - 2, self.used - 1);
        self.pending[self.used - 2] += self.pending[self.used - 1];
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut_evenly;
    use proptest::prelude::*;

    fn plain(lo: u32, hi: u32, leaf: &dyn Fn(u32) -> f32) -> f32 {
        if hi - lo == 1 {
            return leaf(lo);
        }
        let mid = middle(lo, hi);
        plain(lo, mid, leaf) + plain(mid, hi, leaf)
    }

    fn leaf(seed: u64) -> impl Fn(u32) -> f32 {
        move |m| {
            let key =
                crate::Key::new(crate::Seed(seed), crate::Step(0), crate::MicroBatch(m), crate::Site(0));
            (key.unit_f32(0) - 0.5) * 10f32.powi((key.bits(1) % 9) as i32 - 4)
        }
    }

    fn merged(root: MicroRange, leaf: &dyn Fn(u32) -> f32) -> f32 {
        let mut buffers = vec![f32::NAN; Merger::buffers(root.len())];
        let mut merger = Merger::default();
        for m in root.lo..root.hi {
            buffers[merger.next_buffer()] = leaf(m);
            merger.push(|left, right| buffers[left] += buffers[right]);
        }
        merger.finish(|left, right| buffers[left] += buffers[right]);
        buffers[0]
    }

    fn in_parts(cuts: &[MicroRange], count: u32, leaf: &dyn Fn(u32) -> f32) -> f32 {
        let all: Vec<MicroRange> = cuts.iter().flat_map(|range| roots(*range, count)).collect();
        let values: Vec<f32> = all.iter().map(|root| merged(*root, leaf)).collect();
        Fold::new(&all, count).run(&values, |a, b| a + b)
    }

    #[test]
    fn every_even_cut_of_every_count_gives_the_bits_of_the_plain_tree() {
        for count in 1..=64 {
            let leaf = leaf(u64::from(count));
            let want = plain(0, count, &leaf).to_bits();
            for world in 1..=count + 2 {
                assert_eq!(
                    in_parts(&cut_evenly(count, world), count, &leaf).to_bits(),
                    want,
                    "{count} over {world}"
                );
            }
        }
    }

    #[test]
    fn every_cut_in_two_and_three_gives_the_bits_of_the_plain_tree() {
        for count in 1..=64 {
            let leaf = leaf(u64::from(count) + 100);
            let want = plain(0, count, &leaf).to_bits();
            for a in 0..=count {
                for b in a..=count {
                    let cuts = [(0, a), (a, b), (b, count)].map(|(lo, hi)| MicroRange { lo, hi });
                    assert_eq!(in_parts(&cuts, count, &leaf).to_bits(), want, "{count} cut at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn a_range_that_reaches_past_a_short_step_gives_the_bits_of_the_short_tree() {
        for full in 1..=40u32 {
            for count in 1..=full {
                let leaf = leaf(7);
                let want = plain(0, count, &leaf).to_bits();
                for world in [1, 2, 3, 5, 8] {
                    assert_eq!(in_parts(&cut_evenly(full, world), count, &leaf).to_bits(), want);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_partition_gives_the_bits_of_the_plain_tree(
            count in 1u32..=64, seed: u64, mut cuts in prop::collection::vec(0u32..=64, 0..12),
        ) {
            let leaf = leaf(seed);
            for cut in &mut cuts { *cut = (*cut).min(count); }
            cuts.sort_unstable();
            let mut ranges = Vec::new();
            let mut lo = 0;
            for hi in cuts.into_iter().chain([count]) {
                ranges.push(MicroRange { lo, hi });
                lo = hi;
            }
            prop_assert_eq!(in_parts(&ranges, count, &leaf).to_bits(), plain(0, count, &leaf).to_bits());
        }

        #[test]
        fn a_merger_never_uses_more_buffers_than_it_says(leaves in 1u32..200) {
            let mut merger = Merger::default();
            for _ in 0..leaves {
                prop_assert!(merger.next_buffer() < Merger::buffers(leaves));
                merger.push(|_, _| ());
            }
        }
    }

    #[test]
    fn a_root_summed_in_groups_gives_the_bits_of_the_plain_tree() {
        for count in 1..=40 {
            let leaf = leaf(u64::from(count) + 200);
            for group in [1, 2, 4, 8, 16, 64] {
                let mut buffers = vec![f32::NAN; Merger::buffers(count)];
                let mut merger = Merger::default();
                for lo in (0..count).step_by(group as usize) {
                    let hi = (lo + group).min(count);
                    buffers[merger.next_buffer()] = plain(lo, hi, &leaf);
                    merger.push_subtree(hi - lo, |left, right| buffers[left] += buffers[right]);
                }
                merger.finish(|left, right| buffers[left] += buffers[right]);
                assert_eq!(buffers[0].to_bits(), plain(0, count, &leaf).to_bits(), "{count} in {group}s");
            }
        }
    }

    #[test]
    #[should_panic(expected = "4 micro-batches behind 3")]
    fn groups_that_are_no_subtrees_are_a_bug() {
        let mut merger = Merger::default();
        merger.push_subtree(3, |_, _| ());
        merger.push_subtree(4, |_, _| ());
    }

    #[test]
    fn the_tree_is_not_a_plain_left_to_right_sum() {
        // The property tests above would pass for any associative toy; this shows that order matters here.
        let leaf = leaf(3);
        let left_to_right = (1..64).fold(leaf(0), |sum, m| sum + leaf(m));
        assert_ne!(left_to_right.to_bits(), plain(0, 64, &leaf).to_bits());
    }
}
