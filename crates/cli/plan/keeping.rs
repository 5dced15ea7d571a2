//! How ranks keep the state: what shards of one take, and which way it is where that was left to dtrain: whole, unless their GPUs have room for shards
//! alone.
//!
//! It does not know how much memory a GPU has.

use super::Plan;
use crate::config::{Backend, Config, Problem, Reduce, Redundancy};
use crate::error::CliError;
use crate::gpus::Chosen;
use dtrain_cuda::driver::ALIGNED;
use dtrain_engine::device::NORM_BLOCK;
use dtrain_engine::{About, Held, MemoryTable, ModelReplica, UpdateShare, Windows, needed};
use dtrain_nccl::record_bytes;
use dtrain_types::{Bytes, Holders, Holding, NodeId, Rank, ShardLevel};
use std::ops::Range;

impl Plan {
    /// Says how ranks keep the state, where that was left to dtrain; gives what to say of it, if they share it out. Where the GPUs have no room for
    /// windows that travel between them, and that was left to dtrain, the host carries them then ([`Plan::backend`]).
    ///
    /// *Errors*: as [`Plan::prototype`].
    pub fn choose_state(&mut self, chosen: &Chosen) -> Result<Option<String>, CliError> {
        let on_gpus = chosen.cuda().is_some() && self.external().is_none() && self.check_device().is_ok();
        if !(self.config.state_as_fits() && on_gpus && self.may_shard()) {
            self.spare_gpus(chosen)?;
            return Ok(None);
        }
        let Err(problem) = self.room(chosen)? else { return Ok(None) };
        let lacks = problem.message;
        let whole = self.config.clone();
        // The least that has room.
        for level in [ShardLevel::Optimizer, ShardLevel::Gradients, ShardLevel::Parameters] {
            // No slower rank is spared there.
            if level > ShardLevel::Optimizer && whole.world.balance {
                break;
            }
            self.config = whole.with_state_in_shards(level);
            if self.room(chosen)?.is_ok() || self.spare_gpus(chosen)? {
                let words = match level {
                    ShardLevel::Optimizer => "they keep shards of it (state=sharded)",
                    ShardLevel::Gradients => {
                        "they keep shards of it and of gradients (state=sharded shard=gradients)"
                    }
                    ShardLevel::Parameters => {
                        "they keep shards of all of it (state=sharded shard=parameters)"
                    }
                };
                return Ok(Some(format!("state: auto: {lacks}, with a whole state each: {words}")));
            }
        }
        self.config = whole;
        Ok(None)
    }

    /// Has the host carry windows, where that was left to dtrain and the GPUs have room for them in no other way; tells whether it does.
    fn spare_gpus(&mut self, chosen: &Chosen) -> Result<bool, CliError> {
        let is_open = self.config.backend == Backend::Auto && self.backend() == Backend::Nccl;
        if !(is_open && self.in_rounds()) || self.room(chosen)?.is_ok() {
            return Ok(false);
        }
        let carried = self.carried.replace(Backend::Host);
        let has_room = self.room(chosen)?.is_ok();
        if !has_room {
            self.carried = carried;
        }
        Ok(has_room)
    }

    /// Whether ranks that keep whole states could share one out.
    pub(super) fn may_shard(&self) -> bool {
        let Config { reduce, optimizer, world, .. } = &self.config;
        let can = *reduce == Reduce::Exact && optimizer.rule.in_shares();
        can && world.redundancy.is_none() && world.ranks > 1
    }

    /// Whether the GPUs have room for their ranks, as far as that is known.
    fn room(&self, chosen: &Chosen) -> Result<Result<(), Problem>, CliError> {
        let replica = self.replica_in_groups(1, self.blocks()[0], ModelReplica::blank)?;
        Ok(chosen.has_room(&self.config, self.memory(&replica, chosen).total()))
    }

    /// Who holds which shards, where ranks hold shards, as long as all ranks of this host are there and no others.
    fn holders(&self) -> Option<Holders> {
        let world = &self.config.world;
        let nodes = vec![NodeId(0); world.ranks as usize];
        world.redundancy.map(Redundancy::count).map(|redundancy| Holders::new(&nodes, redundancy))
    }

    /// Whether nobody has all of a gradient, so that ranks compute a step in rounds.
    pub(super) fn in_rounds(&self) -> bool {
        self.config.world.keeps().in_windows()
    }

    /// The micro-batches of a full step that a rank computes, one a round, where a step is made in rounds.
    #[must_use]
    pub fn rounds_of(&self, rank: u32) -> Option<Vec<u32>> {
        let ranks = self.config.world.ranks as usize;
        self.in_rounds().then(|| (rank..self.batches.micro_batches()).step_by(ranks).collect())
    }

    /// How many elements of the parameters a rank holds, where ranks hold shards: as many as the one with most.
    fn held(&self, parameters: usize) -> Option<usize> {
        let holders = self.holders()?;
        let of = |rank| holders.holding(Rank(rank)).elements(parameters).iter().map(Range::len).sum();
        (0..self.config.world.ranks).map(of).max()
    }

    /// How many elements of the parameters a rank holds or looks at: as many as the one with most.
    fn looked_at(&self, about: &About) -> usize {
        let (ranks, parameters) = (self.config.world.ranks, about.layout.parameters);
        let Some(holders) = self.holders() else { return 0 };
        let of = |rank: u32| {
            let share = UpdateShare { index: rank as usize, of: ranks as usize };
            needed(&holders.holding(Rank(rank)), share, parameters, parameters).iter().map(Range::len).sum()
        };
        (0..ranks).map(of).max().unwrap_or(0)
    }

    /// Whether the ranks that hold the other shards are all on other hosts: how many they are is not known.
    pub(super) fn shares_out_elsewhere(&self) -> bool {
        self.config.world.redundancy.is_some() && self.config.world.ranks == 1
    }

    /// How many floats a rank takes at least for what it is told to hold: the moments, and the sum for them.
    pub(super) fn floats_of_shards(&self, about: &About) -> usize {
        match self.held(about.state.parameters) {
            Some(held) if !self.shares_out_elsewhere() => {
                let kept = if self.in_rounds() { self.looked_at(about) } else { held };
                about.state.moments * held + kept + about.state.stats
            }
            _ => 0,
        }
    }

    /// The same on a GPU, beside which the host has the windows that travel, and the sums that wait. What is held of a sum is copied there.
    pub(super) fn in_shards_on_gpu(&self, about: &About) -> MemoryTable {
        let mut memory = self.in_shards(about);
        let part = |floats: usize| Bytes(4 * floats as u64);
        if let (None, Some(held)) = (&about.windows, self.held(about.state.parameters)) {
            memory.rows.push(("gradient of shards", part(held + about.state.stats)));
        }
        if let Some(windows) = &about.windows {
            for (what, size) in &mut memory.rows {
                match *what {
                    "windows of a gradient" => *size = part(windows.memory()),
                    "gradient of shards" => *size = part(self.looked_at(about) + about.state.stats),
                    "windows of parameters" => *size = part(windows.itinerary().longest()),
                    _ => {}
                }
            }
        }
        memory
    }

    /// How many floats a rank has on its GPU beside its replica where NCCL carries windows: their slot, those that travel, and sums that wait.
    pub(super) fn windows_beside(&self, about: &About, windows: &Windows) -> usize {
        let micro_batches = self.batches.micro_batches();
        let of_gradients = windows.pieces().chain([windows.longest()]);
        let of_parameters = match self.config.world.shard {
            ShardLevel::Parameters => windows.longest_of_parameters(),
            ShardLevel::Optimizer | ShardLevel::Gradients => 0,
        };
        let ranks = self.config.world.ranks;
        let waiting = dtrain_runtime::folding_buffers(micro_batches, ranks) - 1;
        let sums = std::iter::repeat_n(self.looked_at(about) + about.state.stats, waiting);
        // And what ranks tell each other in every collective; of what their sums are staged in there is nothing.
        let records = record_bytes(ranks, micro_batches, self.config.reduce) / size_of::<f32>();
        let others = [of_parameters, of_parameters, about.slot_len(micro_batches), records, 0];
        // Each of them is memory of its own, of which a GPU hands out no less than a whole piece.
        let piece = |floats: usize| floats.max(1).next_multiple_of(ALIGNED as usize / size_of::<f32>());
        of_gradients.chain(sums).chain(others).map(piece).sum()
    }

    /// What this rank of this host needs of a sum, which holds these shards.
    pub(super) fn needs_of(&self, about: &About, rank: Rank, holding: &Holding) -> Held {
        let share = UpdateShare { index: rank.index(), of: self.config.world.ranks as usize };
        let (parameters, gradient) = (about.layout.parameters, about.gradient_len());
        Held::of(needed(holding, share, parameters, gradient))
    }

    /// Where the memory of a rank goes, whose ranks are those of this host and hold shards, if it says so.
    pub(super) fn in_shards(&self, about: &About) -> MemoryTable {
        let mut memory = about.memory.clone();
        let Some(held) = self.held(about.state.parameters) else { return memory };
        let part = |floats: usize| Bytes(4 * floats as u64);
        if let Some((what, size)) = memory.rows.iter_mut().find(|(what, _)| *what == "optimizer state") {
            (*what, *size) = ("optimizer state of shards", part(about.state.moments * held));
        }
        let Some(windows) = &about.windows else { return memory };
        let micro_batches = self.batches.micro_batches();
        if let Some((what, size)) = memory.rows.iter_mut().find(|(what, _)| *what == "one gradient buffer") {
            // One that is computed and one that travels, beside those that are begun early; and what they travel through.
            let all = windows.memory() + windows.longest() + about.slot_len(micro_batches);
            (*what, *size) = ("windows of a gradient", part(all));
        }
        // Sums of micro-batches wait for one another, and a rank looks at a little more than it holds.
        let sums = dtrain_runtime::folding_buffers(micro_batches, self.config.world.ranks)
            * (self.looked_at(about) + about.state.stats);
        memory.rows.push(("gradient of shards", part(sums)));
        if self.config.world.shard == ShardLevel::Parameters {
            for (what, size) in &mut memory.rows {
                match *what {
                    "parameters" => (*what, *size) = ("parameters of shards", part(held)),
                    "moving average" => (*what, *size) = ("moving average of shards", part(held)),
                    _ => {}
                }
            }
            // One that is computed with, and the next.
            memory.rows.push(("windows of parameters", part(2 * windows.longest_of_parameters())));
        }
        memory
    }

    /// What the rank is told to hold that needs the most memory for it, where ranks hold shards; the first of them.
    pub(super) fn fullest(&self, about: &About) -> Option<(Rank, Holding)> {
        let holders = self.holders()?;
        let takes = |rank: &Rank| {
            let holding = holders.holding(*rank);
            let held: usize = holding.elements(about.layout.parameters).iter().map(Range::len).sum();
            let kept = if self.in_rounds() { self.needs_of(about, *rank, &holding).elements() } else { held };
            // Of two that hold as much, one may look at more of a sum, and have more to add up.
            let share = UpdateShare { index: rank.index(), of: self.config.world.ranks as usize };
            (about.state.moments * held + kept, share.part(about.layout.parameters, NORM_BLOCK).len())
        };
        let fullest = (0..self.config.world.ranks).map(Rank).rev().max_by_key(takes)?;
        Some((fullest, holders.holding(fullest)))
    }
}
