//! Which shards of the state each rank of a generation holds, in elements. It does not know what lies there, nor who asks.

use dtrain_rounds::{GatherPiece, Owned};
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
    /// What lay in the slot where ranks tell one another what they measured. It keeps its room from step to step.
    pub displaced: Vec<f32>,
    /// How all of them are gathered from their owners: as much at a time as a slot has room for.
    pub gathers: Vec<GatherPiece>,
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
            displaced: Vec::new(),
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
