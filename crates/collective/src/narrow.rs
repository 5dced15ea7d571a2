//! What the ranks of a generation need of what the others have, so that the rest does not travel.
//!
//! It does not know why they need it, nor who sends what.

use std::ops::Range;
use std::sync::Arc;

/// What each rank needs and has of slot 0. To copy it costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narrow {
    /// By rank, in runs that rise.
    needs: Arc<[Vec<Range<usize>>]>,
    has: Arc<[Vec<Range<usize>>]>,
}

impl Narrow {
    /// By rank: the elements that it needs of a sum, and those that it has already in an all-gather of the rest
    /// ([`Take::Rest`](crate::Take::Rest)), its own part among them.
    #[must_use]
    pub fn new(ranks: impl IntoIterator<Item = [Vec<Range<usize>>; 2]>) -> Self {
        let of = |[needs, has]: [Vec<Range<usize>>; 2]| (merged(needs.iter()), merged(has.iter()));
        let (needs, has): (Vec<_>, Vec<_>) = ranks.into_iter().map(of).unzip();
        Self { needs: needs.into(), has: has.into() }
    }

    /// What a rank has already, in runs that rise.
    #[must_use]
    pub fn has(&self, rank: usize) -> &[Range<usize>] {
        &self.has[rank]
    }

    /// Whether a rank needs any of these elements of a sum.
    #[must_use]
    pub fn is_needed(&self, rank: usize, elements: &Range<usize>) -> bool {
        let runs = &self.needs[rank];
        let behind = runs.partition_point(|run| run.end <= elements.start);
        runs.get(behind).is_some_and(|run| run.start < elements.end)
    }

    /// Whether a rank has all of these elements already.
    #[must_use]
    pub fn is_there(&self, rank: usize, elements: &Range<usize>) -> bool {
        let runs = &self.has[rank];
        let behind = runs.partition_point(|run| run.end < elements.end);
        runs.get(behind).is_some_and(|run| run.start <= elements.start)
    }

    /// The same of ranks that stand for several: each needs what one of them needs, and has what one of them has.
    #[must_use]
    pub fn together<'a>(&self, groups: impl IntoIterator<Item = &'a Range<usize>>) -> Self {
        let (mut needs, mut has) = (Vec::new(), Vec::new());
        for group in groups {
            needs.push(merged(self.needs[group.clone()].iter().flatten()));
            has.push(merged(self.has[group.clone()].iter().flatten()));
        }
        Self { needs: needs.into(), has: has.into() }
    }
}

/// The same elements in runs that rise, none of which touches the next.
fn merged<'a>(runs: impl Iterator<Item = &'a Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = runs.filter(|run| !run.is_empty()).cloned().collect();
    runs.sort_by_key(|run| run.start);
    let mut all: Vec<Range<usize>> = Vec::with_capacity(runs.len());
    for run in runs {
        match all.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => all.push(run),
        }
    }
    all
}

/// What is left of these runs without those.
#[must_use]
pub fn without(runs: &[Range<usize>], taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = merged(runs.iter());
    for cut in taken {
        let parts = |run: &Range<usize>| [run.start..run.end.min(cut.start), run.start.max(cut.end)..run.end];
        left = left.iter().flat_map(parts).filter(|run| run.start < run.end).collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_cut() {
        let all = merged([5..9, 0..2, 9..12, 2..2, 20..30].iter());
        assert_eq!(all, [0..2, 5..12, 20..30]);
        assert_eq!(without(&all, &[1..6, 8..9, 25..40]), [0..1, 6..8, 9..12, 20..25]);
        assert_eq!(without(&[3..5, 8..9], &[3..5, 8..9]), []);
        assert_eq!(without(&all, &[]), all);
    }

    #[test]
    fn a_rank_is_asked_for_what_it_lacks_whole_or_in_part() {
        let narrow = Narrow::new([[vec![30..40, 10..20], vec![0..5, 7..20]], [vec![], vec![5..6, 6..7]]]);
        for (elements, needed) in
            [(0..10, false), (9..11, true), (20..30, false), (39..50, true), (40..50, false)]
        {
            assert_eq!(narrow.is_needed(0, &elements), needed, "{elements:?}");
            assert!(!narrow.is_needed(1, &elements));
        }
        for (elements, there) in
            [(0..5, true), (4..8, false), (7..20, true), (19..21, false), (20..21, false)]
        {
            assert_eq!(narrow.is_there(0, &elements), there, "{elements:?}");
        }
        let both = narrow.together([&(0..2)]);
        assert!(both.is_there(0, &(0..20)) && !both.is_there(0, &(0..21)));
        assert_eq!(*both.needs, [[10..20, 30..40]]);
    }
}
