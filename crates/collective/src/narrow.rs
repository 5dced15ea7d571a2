//! What the ranks of a generation need of what the others have, so that the rest does not travel.
//!
//! It does not know why they need it, nor who sends what.

use dtrain_types::joined;
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
        let of = |[needs, has]: [Vec<Range<usize>>; 2]| (joined(needs), joined(has));
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
            needs.push(joined(self.needs[group.clone()].iter().flatten().cloned()));
            has.push(joined(self.has[group.clone()].iter().flatten().cloned()));
        }
        Self { needs: needs.into(), has: has.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
