//! A state of which each rank holds some shards: how a rank comes by them, its part of an update, and what all of it comes to.
//!
//! What is done to the memory is the engine's own code, what travels is said by [`Holders`]; what comes when is the agenda's. Where a step is made
//! in rounds, those are in `rounds.rs`.

use super::Compute;
use super::doing::{Doing, StateFrom};
use super::holding::{Gathering, Shards, Sharing};
use super::tools::Tools;
use super::words::{Ask, News, Work};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Narrow, Op, Take};
use dtrain_engine::{
    Lies, Piece, ReducedSum, Replica, Section, State, UpdateShare, Words, needed, word_cuts,
};
use dtrain_protocol::{Digest, Failure, Loaded, StepRecord, Task};
use dtrain_rounds::Owned;
use dtrain_types::{Holders, Holding, NodeId, Rank, Step, Trailer};

impl Compute {
    /// What it holds, where ranks hold shards.
    #[must_use]
    pub fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }

    pub(super) fn holders(&self) -> Option<Holders> {
        let members = &self.plane.as_ref()?.members;
        let nodes = members.participants.iter().map(|participant| participant.node);
        let unmirrored = match self.sabotage {
            Some(Sabotage::Unmirrored) => 1,
            _ => members.unmirrored,
        };
        let redundancy = self.shards.as_ref()?.redundancy.saturating_sub(unmirrored).max(1);
        Some(Holders::new(&nodes.collect::<Vec<NodeId>>(), redundancy))
    }

    /// Says what each rank needs of a sum, and what it has of the parameters after an update, where ranks hold shards.
    pub(super) fn narrow(&mut self, tools: &Tools<'_>) {
        let Some(holders) = self.holders() else { return };
        let Some(plane) = &mut self.plane else { return };
        let (gradient, of) = (tools.engine.gradient_len(), plane.members.participants.len());
        let parameters = tools.engine.state_shape().parameters;
        let one = |index: usize| {
            let rank = Rank(index as u32);
            let (holding, share) = (holders.holding(rank), UpdateShare { index, of });
            let summed = match self.sabotage {
                Some(Sabotage::OwnedAlone) => &Holding::of([holders.owned(rank)]),
                _ => &holding,
            };
            [needed(summed, share, parameters, gradient), holding.elements(parameters)]
        };
        plane.machine.narrow(Narrow::new((0..of).map(one)));
    }

    /// Holds its part of a state that was read; of first values without one.
    pub(super) fn begin_shards(&mut self, tools: &mut Tools<'_>, read: Option<State>) {
        let (Some(holders), Some(plane)) = (self.holders(), &self.plane) else { return };
        let (rank, world) = (plane.rank, plane.members.world().0);
        let Some(shards) = &mut self.shards else { return };
        let mut held = shards.sharding().prepare(&holders.holding(rank)).expect("memory of the host");
        let Some(state) = read else {
            shards.adopt(held, Step(0));
            return self.told_shards(tools, StateFrom::Checkpoint);
        };
        for section in Section::ALL {
            let all = state.section(section);
            if !shards.sharding().holds(section) {
                shards.sharding().write(section, 0, all).expect("memory of the host");
                continue;
            }
            for run in holders.holding(rank).elements(all.len()) {
                held.part_mut(section, run.clone()).copy_from_slice(&all[run]);
            }
        }
        shards.adopt(held, state.applied);
        // All see the run folder: each has read what it is to hold.
        let read: Vec<Holding> = (0..world).map(|rank| holders.holding(Rank(rank))).collect();
        self.begin_sharing(tools, &read, state.applied);
    }

    /// Gives this rank what it is to hold, from those who hold it.
    pub(super) fn share_out(&mut self, tools: &mut Tools<'_>, held: &[Holding], step: Step) {
        let Some(plane) = &self.plane else { return };
        let generation = plane.generation;
        if !self.catch_up(tools, step) {
            return tools.tell(News::Failed(generation, Failure::Behind { step }));
        }
        self.begin_sharing(tools, held, step);
    }

    fn begin_sharing(&mut self, tools: &mut Tools<'_>, held: &[Holding], step: Step) {
        let (Some(holders), Some(plane)) = (self.holders(), &self.plane) else { return };
        let (generation, rank) = (plane.generation, plane.rank);
        let Some(shards) = &mut self.shards else { return };
        let is_held = Section::ALL.map(|section| shards.sharding().holds(section));
        let is_held = |section: Section| is_held[section as usize];
        let Some(mut pieces) = Piece::all(tools.engine.state_shape(), held, &holders, is_held) else {
            let text = format!("the ranks that are there do not hold the state of step {step}");
            return tools.tell(News::Failed(generation, Failure::Setup(text)));
        };
        if self.sabotage == Some(Sabotage::KeptParameters) {
            let news = |rank: &Rank| held[rank.index()].is_none();
            for piece in pieces.iter_mut().filter(|piece| piece.section == Section::Parameters) {
                piece.targets.retain(news);
            }
            pieces.retain(|piece| !piece.targets.is_empty());
        }
        let held = shards.sharding().prepare(&holders.holding(rank)).expect("memory of the host");
        self.doing = Doing::Share(Box::new(Sharing { pieces, at: 0, step, held }));
        self.work(tools, Work::Window);
    }

    /// Makes the update that was measured and left, if the state to go on with has it; tells whether it could.
    fn catch_up(&mut self, tools: &mut Tools<'_>, step: Step) -> bool {
        let Some(shards) = &mut self.shards else { return true };
        if shards.holding().is_none() || shards.replica.applied().next() != step {
            return true;
        }
        if shards.sharding().measured() != Some(step) {
            return false;
        }
        if self.sabotage == Some(Sabotage::LeftBehind) {
            let holding = shards.holding().clone();
            let held = shards.sharding().prepare(&holding).expect("memory of the host");
            shards.adopt(held, step);
        } else {
            shards.sharding().settle().expect("it is finite");
            shards.sharding().update_held(None).expect("memory of the host");
        }
        let generation = self.plane.as_ref().expect("it is built").generation;
        tools.tell(News::CaughtUp(generation, step));
        true
    }

    /// Begins the next piece, or has all of them.
    pub(super) fn begin_piece(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Share(sharing), Some(plane)) = (&self.doing, &mut self.plane) else { return };
        let Some(Piece { section, elements, source, targets }) = sharing.pieces.get(sharing.at) else {
            return self.shared_out(tools);
        };
        let Some(shards) = &mut self.shards else { return };
        if *source == plane.rank {
            let slot = &mut Self::arena(plane, tools).lease(0)[..elements.len()];
            shards.read(*section, elements.start, slot);
        }
        plane.sequence += 1;
        plane.gathering = false;
        let (sources, targets, len) = ([*source], targets.clone(), elements.len());
        self.start(tools, &Op::Copy { sources: &sources, targets: &targets, len });
    }

    /// A piece is there.
    pub(super) fn end_piece(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Share(sharing), Some(plane)) = (&mut self.doing, &mut self.plane) else { return };
        let Some(shards) = &mut self.shards else { return };
        let Piece { section, elements, targets, .. } = &sharing.pieces[sharing.at];
        if targets.contains(&plane.rank) {
            let slot = &Self::arena(plane, tools).lease(0)[..elements.len()];
            match sharing.held.has(*section) {
                true => sharing.held.part_mut(*section, elements.clone()).copy_from_slice(slot),
                false => shards.sharding().write(*section, elements.start, slot).expect("memory of the host"),
            }
        }
        sharing.at += 1;
        self.work(tools, Work::Window);
    }

    fn shared_out(&mut self, tools: &mut Tools<'_>) {
        let Doing::Share(sharing) = std::mem::replace(&mut self.doing, Doing::Rest) else { return };
        let Sharing { held, step, .. } = *sharing;
        let Some(shards) = &mut self.shards else { return };
        shards.adopt(held, step);
        self.told_shards(tools, StateFrom::Peer);
    }

    fn told_shards(&mut self, tools: &mut Tools<'_>, from: StateFrom) {
        let copied = from == StateFrom::Peer;
        let (Some(shards), Some(plane)) = (&mut self.shards, &self.plane) else { return };
        shards.has_come_by_a_state();
        let (generation, step) = (plane.generation, shards.replica.applied());
        let (holding, state_digest) =
            (shards.holding().clone(), Digest(shards.replica.state().common_digest()));
        tools.asks.push(Ask::Swapped { generation, step, state_digest, copied });
        self.tell_held(tools);
        tools.tell(News::Loaded(Loaded { generation, applied: step, holding, state_digest }));
        self.doing = Doing::Rest;
    }

    /// Says what it holds, for the checkers.
    fn tell_held(&mut self, tools: &mut Tools<'_>) {
        let (Some(shards), Some(plane)) = (&mut self.shards, &self.plane) else { return };
        let (holding, lengths) = (shards.holding().clone(), tools.engine.state_shape().lengths());
        let mut held = Vec::new();
        for (section, len) in Section::ALL.into_iter().zip(lengths) {
            let runs = match section {
                Section::Stats => std::iter::once(0..len).collect(),
                _ => holding.elements(len),
            };
            for run in runs {
                let mut values = vec![0.0; run.len()];
                shards.read(section, run.start, &mut values);
                held.push((section, run.start, values));
            }
        }
        let (generation, step) = (plane.generation, shards.replica.applied());
        tools.asks.push(Ask::Held { generation, step, holding, held });
    }

    /// Keeps what it needs of the sum.
    pub(super) fn measure_shards(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let Some(plane) = &mut self.plane else { return };
        let Some(shards) = &mut self.shards else { return };
        let Trailer { weight, samples, .. } = record.trailer;
        let share = UpdateShare { index: plane.rank.index(), of: plane.members.participants.len() };
        let mut sum = vec![f32::NAN; tools.engine.gradient_len()];
        let lies = match &mut plane.rounds {
            Some(rounds) => {
                let (kept, folded) = (rounds.kept().clone(), rounds.take().into_home());
                for run in kept.runs() {
                    sum[run.clone()].copy_from_slice(&folded[kept.place(run)]);
                }
                Lies::Folded { kept, sum: folded }
            }
            None => {
                sum.copy_from_slice(Self::arena(plane, tools).lease(0));
                Lies::Home(&sum)
            }
        };
        let measured = shards.sharding().measure(step, ReducedSum { lies, weight, samples }, share);
        measured.expect("memory of the host");
        self.computed.as_mut().expect("a step is in hand").sum = sum;
        self.agenda.handle_measured(record);
    }

    /// Tells the others what it measured, and hears what they did.
    pub(super) fn agree(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(shards)) = (&mut self.plane, &mut self.shards) else { return };
        let cuts = word_cuts(tools.engine.state_shape().parameters, plane.members.participants.len());
        let own = cuts[plane.rank.index()]..cuts[plane.rank.index() + 1];
        // What ranks tell one another goes through the memory of the sum, which the update reads.
        plane.displaced = Self::arena(plane, tools).lease(0)[..cuts[cuts.len() - 1]].to_vec();
        let words = Words::Home(&mut Self::arena(plane, tools).lease(0)[own]);
        shards.sharding().tell(words).expect("memory of the host");
        plane.sequence += 1;
        plane.gathering = false;
        self.doing = Doing::Agree;
        self.start(tools, &Op::AllGather { cuts: Some(&cuts), take: Take::All });
    }

    pub(super) fn agreed(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(shards)) = (&mut self.plane, &mut self.shards) else { return };
        let cuts = word_cuts(tools.engine.state_shape().parameters, plane.members.participants.len());
        let words = Words::Home(&mut Self::arena(plane, tools).lease(0)[..cuts[cuts.len() - 1]]);
        shards.sharding().hear(words).expect("memory of the host");
        if self.sabotage != Some(Sabotage::OverwrittenSum) {
            let displaced = std::mem::take(&mut plane.displaced);
            Self::arena(plane, tools).lease(0)[..displaced.len()].copy_from_slice(&displaced);
        }
        self.doing = Doing::Rest;
    }

    /// Updates what it holds.
    pub(super) fn update_shards(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(shards)) = (&mut self.plane, &mut self.shards) else { return };
        shards.sharding().settle().expect("it is finite");
        let is_home = shards.sharding().sum_is_home();
        let home = is_home.then(|| &*Self::arena(plane, tools).lease(0));
        shards.sharding().update_held(home).expect("memory of the host");
        self.tell_held(tools);
    }

    /// The generation is left: keeps what it needs of the sum of an update that others may have made.
    pub(super) fn keep_sum(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(shards)) = (&self.plane, &mut self.shards) else { return };
        if self.sabotage == Some(Sabotage::LostSum) {
            return;
        }
        let slot = match (&plane.host, tools.memory.as_deref()) {
            (Some(participant), Some(memory)) => memory.slots[participant.local].slot(0),
            _ => plane.machine.own_slot(),
        };
        let sharding = shards.sharding();
        if sharding.sum_is_home() && sharding.measured().is_some() {
            sharding.keep_sum(slot);
        }
    }

    /// Has a section from its owners, in slot 0.
    fn gather_section(&mut self, tools: &mut Tools<'_>, section: Section, take: Take) {
        let (Some(holders), Some(shards)) = (self.holders(), &mut self.shards) else { return };
        let Some(plane) = &mut self.plane else { return };
        let parameters = tools.engine.state_shape().parameters;
        let cuts = holders.cuts(parameters);
        // Of the parameters nobody is sent what it holds.
        let lays = match take {
            Take::Rest => shards.holding().elements(parameters),
            _ => std::iter::once(cuts[plane.rank.index()]..cuts[plane.rank.index() + 1]).collect(),
        };
        for run in lays {
            shards.read(section, run.start, &mut Self::arena(plane, tools).lease(0)[run.clone()]);
        }
        if plane.rounds.is_some() {
            // The last window that travelled was another one.
            let piece = Owned::of(&holders, plane.rank, &cuts).gather(0..parameters);
            plane.machine.narrow(piece.narrow);
        }
        plane.sequence += 1;
        plane.gathering = false;
        self.start(tools, &Op::AllGather { cuts: Some(&cuts), take });
    }

    /// Whether passes are brought parameters, of which each has but its own.
    pub(super) fn brings(&mut self) -> bool {
        self.shards.as_mut().is_some_and(|shards| shards.replica.gathering().is_some())
    }

    /// Has the parameters from their owners, unless each has but its own.
    pub(super) fn gather(&mut self, tools: &mut Tools<'_>) {
        if self.brings() || self.holders().is_some_and(|holders| holders.hold_all()) {
            return;
        }
        self.doing = Doing::Gather;
        self.gather_section(tools, Section::Parameters, Take::Rest);
    }

    pub(super) fn gathered(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(shards)) = (&mut self.plane, &mut self.shards) else { return };
        let parameters = tools.engine.state_shape().parameters;
        let slot = Self::arena(plane, tools).lease(0)[..parameters].to_vec();
        let all = std::iter::once(0..parameters).collect::<Vec<_>>();
        // What it holds is its own, although it is the same.
        for run in dtrain_types::without(&all, &shards.holding().elements(parameters)) {
            let written = shards.sharding().write(Section::Parameters, run.start, &slot[run.clone()]);
            written.expect("memory of the host");
        }
        self.doing = Doing::Rest;
    }

    /// All have all parameters.
    pub(super) fn commit_shards(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let (Some(plane), Some(shards)) = (&self.plane, &mut self.shards) else { return };
        shards.sharding().commit(step);
        let info = shards.sharding().settle().expect("it is finite");
        let gradient = std::mem::take(&mut self.computed.as_mut().expect("a step is in hand").sum);
        let (generation, state_digest) = (plane.generation, Digest(shards.replica.state().common_digest()));
        let parameters = tools.engine.state_shape().parameters;
        let share = UpdateShare { index: plane.rank.index(), of: plane.members.participants.len() };
        let needed = Some(needed(shards.holding(), share, parameters, gradient.len()));
        tools.asks.push(Ask::Updated { generation, step, gradient, needed, state_digest });
        let (lr, gradient_norm) = (info.lr, info.gradient_norm);
        self.committed(tools, StepRecord { lr, gradient_norm, ..record });
    }

    /// Tells of a step that it made, and left before all had it.
    pub(super) fn tell_made(&mut self, tools: &mut Tools<'_>, record: StepRecord) {
        let Some(shards) = &mut self.shards else { return };
        let info = shards.sharding().settle().expect("it is finite");
        let (lr, gradient_norm) = (info.lr, info.gradient_norm);
        tools.tell(News::Step(StepRecord { lr, gradient_norm, ..record }));
    }

    /// Has all of the state, for a task that looks at it.
    pub(super) fn gather_for(&mut self, tools: &mut Tools<'_>, then: Task) {
        let Some(shards) = &mut self.shards else { return };
        let mut whole = tools.engine.blank();
        whole.applied = shards.replica.applied();
        let (mut left, all): (Vec<Section>, Vec<Section>) =
            Section::ALL.into_iter().rev().partition(|section| shards.sharding().holds(*section));
        left.retain(|section| !whole.section(*section).is_empty());
        for section in all {
            whole.section_mut(section).copy_from_slice(shards.replica.state().section(section));
        }
        let first = *left.last().expect("moments are held");
        self.doing = Doing::GatherAll(Box::new(Gathering { then, left, whole }));
        self.gather_section(tools, first, Take::All);
    }

    pub(super) fn gathered_for(&mut self, tools: &mut Tools<'_>) {
        let Doing::GatherAll(mut gathering) = std::mem::replace(&mut self.doing, Doing::Rest) else { return };
        let Some(plane) = &mut self.plane else { return };
        let generation = plane.generation;
        let section = gathering.left.pop().expect("one was gathered");
        let to = gathering.whole.section_mut(section);
        to.copy_from_slice(&Self::arena(plane, tools).lease(0)[..to.len()]);
        let Some(shards) = &mut self.shards else { return };
        for run in shards.holding().elements(to.len()) {
            let mut own = vec![0.0; run.len()];
            shards.read(section, run.start, &mut own);
            if own != to[run] {
                let text =
                    format!("what this rank holds of {} differs from what its owner has", section.name());
                return tools.tell(News::Failed(generation, Failure::Engine(text)));
            }
        }
        match gathering.left.last() {
            Some(next) => {
                let next = *next;
                self.doing = Doing::GatherAll(gathering);
                self.gather_section(tools, next, Take::All);
            }
            None => self.look_at(tools, gathering.then, &gathering.whole),
        }
    }
}
