//! What the ranks of a generation hold of the parameters, and how those are gathered from their owners. It does not know what lies there.

use dtrain_collective::Narrow;
use dtrain_types::{Holders, Rank, without};
use std::ops::Range;

/// Parameters that are gathered at once.
#[derive(Clone, Debug)]
pub struct GatherPiece {
    /// The first of them, which lies at the start of a slot.
    pub from: usize,
    /// What this rank holds of them.
    pub held: Vec<Range<usize>>,
    /// What it does not.
    pub lacks: Vec<Range<usize>>,
    /// Where those of each owner begin in a slot, and where the last one's end.
    pub cuts: Vec<usize>,
    /// What each rank has of them.
    pub narrow: Narrow,
    /// Whether some rank lacks any of them: else nothing has to travel.
    pub is_lacked: bool,
}

/// What each rank holds of the parameters, and where what it owns begins.
pub struct Owned<'a> {
    rank: Rank,
    holds: Vec<Vec<Range<usize>>>,
    cuts: &'a [usize],
}

impl<'a> Owned<'a> {
    /// As these hold a state of parameters that are cut so, of which this rank wants to know.
    pub fn of(holders: &Holders, rank: Rank, cuts: &'a [usize]) -> Self {
        let of = |index: usize| holders.holding(Rank(index as u32)).elements(cuts[cuts.len() - 1]);
        Self { rank, holds: (0..cuts.len() - 1).map(of).collect(), cuts }
    }

    /// How many parameters there are.
    pub fn parameters(&self) -> usize {
        self.cuts[self.cuts.len() - 1]
    }

    /// How these are gathered at once.
    pub fn gather(&self, elements: Range<usize>) -> GatherPiece {
        let from = elements.start;
        let of = |runs: &[Range<usize>]| -> Vec<Range<usize>> {
            let inside = |run: &Range<usize>| run.start.max(elements.start)..run.end.min(elements.end);
            runs.iter().map(inside).filter(|run| run.start < run.end).collect()
        };
        let in_slot = |run: Range<usize>| run.start - from..run.end - from;
        let has = |runs: &Vec<Range<usize>>| [Vec::new(), of(runs).into_iter().map(in_slot).collect()];
        let held = of(&self.holds[self.rank.index()]);
        GatherPiece {
            lacks: without(std::slice::from_ref(&elements), &held),
            held,
            cuts: self.cuts.iter().map(|cut| (*cut).clamp(elements.start, elements.end) - from).collect(),
            narrow: Narrow::new(self.holds.iter().map(has)),
            is_lacked: self
                .holds
                .iter()
                .any(|runs| !without(std::slice::from_ref(&elements), runs).is_empty()),
            from,
        }
    }
}
