//! Which shards of the state each rank of a generation holds, in elements. It does not know what lies there, nor who asks.

use dtrain_collective::Narrow;
use dtrain_types::{Holders, NodeId, Rank, without};
use std::ops::Range;

/// Who holds what in a generation, and the elements of the parameters that it comes to.
pub struct Shards {
    /// Who holds what.
    pub holders: Holders,
    /// What this rank owns begins at the cut of its number, and ends at the next.
    pub cuts: Vec<usize>,
    /// The same of what ranks measure.
    pub words: Vec<usize>,
    /// What this rank holds of the parameters, in runs that rise.
    pub held: Vec<Range<usize>>,
    /// What it does not hold of them.
    pub lacks: Vec<Range<usize>>,
    /// How all of them are gathered from their owners: as much at a time as a slot has room for.
    pub gathers: Vec<GatherPiece>,
}

/// Parameters that are gathered at once.
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

impl Shards {
    /// The shards of so many parameters, over ranks on these nodes, as this rank has them, whose slots have so many elements.
    pub fn new(rank: Rank, nodes: &[NodeId], redundancy: u32, parameters: usize, slot: usize) -> Self {
        let holders = Holders::new(nodes, redundancy);
        let held = holders.holding(rank).elements(parameters);
        let cuts = holders.cuts(parameters);
        let owned = Owned::of(&holders, rank, &cuts);
        let gather = |from: usize| owned.gather(from..parameters.min(from + slot));
        let gathers = (0..parameters).step_by(slot.max(1)).map(gather).collect();
        Self {
            gathers,
            lacks: without(std::slice::from_ref(&(0..parameters)), &held),
            held,
            cuts,
            words: dtrain_engine::word_cuts(parameters, nodes.len()),
            holders,
        }
    }

    /// What this rank owns.
    pub fn owned(&self, rank: Rank) -> Range<usize> {
        self.cuts[rank.index()]..self.cuts[rank.index() + 1]
    }
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
