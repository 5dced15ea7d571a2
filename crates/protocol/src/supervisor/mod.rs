//! The supervisor: forms the world, watches it, puts it together again when a member is lost, and records what it did.
//!
//! This file holds the state, takes in what arrives and moves from phase to phase; the decisions of each part are in the
//! files beside it. It does not know processes, files or sockets, and asks its driver for everything by effects.

mod checkpoint;
mod departure;
mod ending;
mod fault;
mod forming;
mod holders;
mod liveness;
mod pace;
mod paces;
mod progress;
mod recovery;
mod running;
mod slot;
mod slots;
mod taken_over;
mod takeover;
mod trouble;
mod validation;
mod verdict;

use crate::bootstrap::Bootstrap;
use crate::cause::{Cause, Ending, Failure, Outcome};
use crate::effect::{Event, SupervisorEffect};
use crate::message::{
    Directive, Heartbeat, Membership, Pending, Report, ResumePoint, Stage, StartFrom, StopFlag,
};
use crate::number::{BootId, Number};
use crate::phase::Phase;
use crate::schedule::Schedule;
use crate::timeouts::Timeouts;
use checkpoint::Checkpoints;
use dtrain_types::{
    BatchPlan, CheckpointId, Digest, Generation, Holding, Incarnation, Instance, Instant, MemberId, NodeId,
    Rank, Reduce, Remirror, Step,
};
use paces::Paces;
use progress::Progress;
use serde::{Deserialize, Serialize};
use slot::{Life, NodeView, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
pub use taken_over::TakenOver;
use trouble::Trouble;
use validation::Validations;
use verdict::Seen;

/// What the loss of a member means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Losses {
    /// The run ends: members share a process, which cannot be replaced in part.
    EndTheRun,
    /// The others go on, and its process is started again.
    AreReplaced {
        /// How often in 60 seconds. Above that the member stays away.
        max_restarts: u32,
    },
}

/// What a driver says of a validation, once it is written down. Until then nobody makes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Judgement {
    /// The run goes on.
    GoOn,
    /// The run ends at the step of this validation, in good order.
    Enough,
}

/// What a person or a scheduler asks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Stop at the next step boundary, with a checkpoint.
    Drain,
    /// Stop now, without one.
    Abort,
}

/// What a supervisor is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorConfig {
    /// This life of the supervisor.
    pub instance: Instance,
    /// How many nodes the run begins with.
    pub wanted_nodes: u32,
    /// How many it may ever have: others are not heard.
    pub most_nodes: u32,
    /// How many members there may ever be.
    pub most_ranks: u32,
    /// The least number of members to make steps with.
    pub min_ranks: u32,
    /// How long to wait for all at the beginning, and for enough later.
    pub join_timeout: Duration,
    /// The run's timeouts.
    pub timeouts: Timeouts,
    /// What the loss of a member means.
    pub losses: Losses,
    /// How gradients are reduced.
    pub reduce: Reduce,
    /// When mirrors are copied, if the members hold shards of the state, each shard more than one of them, and none all of it.
    pub sharded: Option<Remirror>,
    /// Whether ranges follow the speed that is measured.
    pub balance: bool,
    /// The micro-batches of each step.
    pub batches: BatchPlan,
    /// What is due when.
    pub schedule: Schedule,
    /// Where the state comes from, if no member holds one.
    pub start: StartFrom,
    /// What was written down after that, where members of the life before may still be there, with their state. Then they are
    /// waited for and heard before a generation is named.
    pub taken_over: Option<TakenOver>,
    /// The number of the first generation; above that of every checkpoint of the lineage, and of every life before. A life that takes
    /// over leads by this number, and names the one after it first.
    pub first_generation: Generation,
    /// The generations up to this one are reserved.
    pub reserved: Generation,
}

/// One life of the supervisor.
///
/// The driver calls [`Supervisor::start`] once, feeds it every input (what a link still holds before the end of its
/// process), runs the effects in order, and calls [`Supervisor::handle_timeout`] when [`Supervisor::next_deadline`] has
/// come. After [`SupervisorEffect::Finish`] it does nothing more.
#[derive(Debug)]
pub struct Supervisor {
    config: SupervisorConfig,
    nodes: BTreeMap<NodeId, NodeView>,
    /// Lives of nodes that are over: one number for each time that a host was started anew.
    past_boots: BTreeSet<BootId>,
    slots: BTreeMap<MemberId, Slot>,
    generation: Generation,
    /// Generations up to this one may be named, and up to that one were asked for.
    reserved: (Generation, Generation),
    phase: Phase,
    /// When the phase began.
    since: Instant,
    membership: Arc<Membership>,
    resume_point: ResumePoint,
    /// What rank 0 made for the ranks of this generation to meet.
    bootstrap: Option<Bootstrap>,
    /// The newest generation of which it is written down who computes what.
    ranges_of: Generation,
    pending: Pending,
    progress: Progress,
    /// All steps up to this one are written down.
    recorded: Step,
    validations: Validations,
    /// The step after which the run ends, where a validation was enough. `schedule.last` is the same then.
    enough: Option<Step>,
    checkpoints: Checkpoints,
    /// Digests taken for `verify` at the newest steps (S5).
    verified: BTreeMap<Step, (MemberId, Digest)>,
    trouble: Trouble,
    /// While several losses are taken in: whether the world is to be put together again after them.
    regroup_later: Option<bool>,
    paces: Paces,
    /// The faults that the world has not recovered from.
    seen: Vec<Seen>,
    /// The last fault of every member that had one.
    faults: BTreeMap<MemberId, Cause>,
    /// Members whose fingerprint does not fit.
    refusals: Vec<Cause>,
    /// The bits of the stop flag that are asked for.
    stop: StopFlag,
    /// What the run has ended with, while that is being written down.
    unwritten_ending: Option<Ending>,
    /// How the run ends if nothing failed.
    ending: Option<Outcome>,
    /// When acknowledgements that wait are sent.
    acknowledge_at: Option<Instant>,
    beat_at: Instant,
    /// Nobody's silence counts before this: until then we stood still ourselves, or everyone may still be coming back from it.
    forgiven: Instant,
    outcome: Option<Outcome>,
}

/// How many steps' digests are kept for comparison.
const MAX_VERIFIED: usize = 16;
/// So many numbers of generations are reserved ahead of the newest.
const RESERVE_AHEAD: u64 = 4;

impl Supervisor {
    /// A supervisor to whom nobody has reported yet.
    ///
    /// *Panics* if no node is wanted, the first generation is 0 or not reserved, or no step is left to be made.
    #[must_use]
    pub fn new(mut config: SupervisorConfig) -> Self {
        assert!(config.wanted_nodes > 0 && config.most_nodes >= config.wanted_nodes, "a run has a node");
        let (first, reserved) = (config.first_generation, config.reserved);
        assert!(first > Generation(0), "generation 0 is none yet");
        let leads = config.taken_over.as_ref().map_or(Generation(0), |_| first);
        assert!(reserved >= first.max(leads.next()), "generation {first} is not reserved");
        let start = config.start.step();
        let resumed = if let StartFrom::Checkpoint(id) = config.start { Some(id) } else { None };
        let TakenOver { recorded, validated, enough, ending, .. } = config
            .taken_over
            .clone()
            .unwrap_or_else(|| TakenOver { recorded: start, ..TakenOver::default() });
        assert!(recorded >= start, "step {start} of a checkpoint is not written down");
        let last = enough.unwrap_or(config.schedule.last);
        assert!(start < last || ending.is_some(), "no step is left after {start} of {last}");
        config.schedule.last = last;
        Self {
            nodes: BTreeMap::new(),
            past_boots: BTreeSet::new(),
            slots: BTreeMap::new(),
            generation: leads,
            reserved: (reserved, reserved),
            phase: if ending.is_some() { Phase::Finish } else { Phase::Join },
            since: Instant::ZERO,
            membership: Arc::default(),
            resume_point: ResumePoint::default(),
            bootstrap: None,
            ranges_of: Generation(0),
            pending: Pending::default(),
            progress: match &config.taken_over {
                Some(_) => Progress::new(start, recorded).taking_over(),
                None => Progress::new(start, recorded),
            },
            recorded,
            validations: Validations::new(validated),
            enough,
            checkpoints: Checkpoints::new(resumed),
            verified: BTreeMap::new(),
            trouble: Trouble::default(),
            regroup_later: None,
            paces: Paces::default(),
            seen: Vec::new(),
            faults: BTreeMap::new(),
            refusals: Vec::new(),
            stop: StopFlag::default(),
            unwritten_ending: None,
            ending: ending.map(|ending| Outcome::of(ending, last)),
            acknowledge_at: None,
            beat_at: Instant::ZERO,
            forgiven: Instant::ZERO,
            outcome: None,
            config,
        }
    }

    /// Begins to wait for nodes.
    pub fn start(&mut self, now: Instant) {
        self.since = now;
        self.beat_at = now + self.config.timeouts.heartbeat;
    }

    /// Takes in a Report. Older ones, and those of another life, change nothing.
    pub fn handle_report(&mut self, now: Instant, report: &Report, effects: &mut Vec<SupervisorEffect>) {
        self.notice_standstill(now, effects);
        if self.outcome.is_some() || !self.admit(now, report, effects) || !self.refresh(now, report) {
            return;
        }
        if self.slots[&report.member].life().is_some_and(|life| !life.refused) {
            self.read(now, report, effects);
        }
        self.advance(now, effects);
    }

    /// Takes in a member's sign of life.
    pub fn handle_heartbeat(&mut self, now: Instant, beat: &Heartbeat) {
        let Some(slot) = self.slots.get_mut(&beat.member) else { return };
        if (beat.instance, beat.incarnation) != (self.config.instance, slot.incarnation) {
            return;
        }
        if let Some(life) = slot.life_mut() {
            life.heard = life.heard.max(now);
            life.cut = None;
            life.echoed = life.echoed.max(beat.number.min(life.number));
        }
    }

    /// A member's control link broke. It is lost if it is not heard again within `detect`.
    pub fn handle_link_lost(&mut self, now: Instant, member: MemberId) {
        if let Some(life) = self.slots.get_mut(&member).and_then(Slot::life_mut) {
            life.cut.get_or_insert(now);
        }
    }

    /// The manifest of a checkpoint was written (and renamed into place), or could not be, with the reason.
    pub fn handle_manifest(
        &mut self,
        now: Instant,
        id: CheckpointId,
        result: Result<(), String>,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        self.notice_standstill(now, effects);
        if !self.checkpoints.written(id, &result, self.generation) {
            return;
        }
        let event = match result {
            Ok(()) => Event::CheckpointWritten { id },
            Err(reason) => Event::CheckpointGivenUp { id, member: None, reason },
        };
        effects.push(SupervisorEffect::Event(event));
        self.acknowledge_now(now);
        self.advance(now, effects);
    }

    /// The numbers of generations up to this one are reserved.
    pub fn handle_reserved(&mut self, now: Instant, upto: Generation, effects: &mut Vec<SupervisorEffect>) {
        self.notice_standstill(now, effects);
        self.reserved.0 = self.reserved.0.max(upto);
        self.advance(now, effects);
    }

    /// Who computes what in this generation is written down: whoever takes over can write down its steps, which need it.
    ///
    /// 1. A generation begins, and its members make a step.
    /// 2. The supervisor dies before the file has a line of that generation.
    /// 3. *Unsafe*: members tell of a step, and nobody knows who computed what in it. The books end there.
    pub fn handle_ranges(
        &mut self,
        now: Instant,
        generation: Generation,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        self.notice_standstill(now, effects);
        self.ranges_of = self.ranges_of.max(generation);
        self.advance(now, effects);
    }

    /// All steps up to this one, of those asked for by [`SupervisorEffect::Commit`], are written down. Only then are they
    /// acknowledged: behind a slow disk or a reader that pauses, members pause too, and no queue grows (S10).
    pub fn handle_recorded(&mut self, now: Instant, step: Step, effects: &mut Vec<SupervisorEffect>) {
        self.notice_standstill(now, effects);
        if step > self.recorded && self.outcome.is_none() {
            self.recorded = step;
            self.progress.touch(now);
            self.acknowledge_soon();
            self.advance(now, effects);
        }
    }

    /// The validation after `step` is judged. All ranks stand at its step, or will come there again: if it is enough, that is the last one.
    pub fn handle_judged(
        &mut self,
        now: Instant,
        step: Step,
        judgement: Judgement,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        self.notice_standstill(now, effects);
        if !self.validations.judged(step) || self.outcome.is_some() {
            return;
        }
        self.progress.touch(now);
        if judgement == Judgement::Enough && step < self.config.schedule.last {
            self.end_after(step);
        }
        self.direct_all(effects);
        self.advance(now, effects);
    }

    /// Takes in what a person or a scheduler asks.
    pub fn handle_request(&mut self, now: Instant, request: Request, effects: &mut Vec<SupervisorEffect>) {
        self.notice_standstill(now, effects);
        if self.is_done() || self.outcome.is_some() {
            return;
        }
        // Where nobody makes steps there is no boundary to wait for; unless somebody has steps that are in no checkpoint.
        if request == Request::Abort || self.phase == Phase::Join && !self.holds_unsaved() {
            self.ending = Some(Outcome::Interrupted(None));
            self.enter(now, Phase::Stop, effects);
            self.advance(now, effects);
        } else if !self.stop.has(StopFlag::DRAIN) {
            self.stop = self.stop.with(StopFlag::DRAIN);
            effects.push(SupervisorEffect::Event(Event::Draining));
            self.direct_all(effects);
        }
    }

    /// The phase of the newest generation.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The newest generation; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Its members; empty before the first.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// All steps up to this one are committed.
    #[must_use]
    pub fn committed(&self) -> Step {
        self.progress.committed()
    }

    /// Which life of a member is there, and the number of its newest Report, which never falls.
    #[must_use]
    pub fn heard_of(&self, member: MemberId) -> Option<(Incarnation, Number)> {
        let slot = self.slots.get(&member)?;
        Some((slot.incarnation, slot.life()?.report))
    }

    /// Which life of a node is there, and the number of its newest report, which never falls.
    #[must_use]
    pub fn heard_of_node(&self, node: NodeId) -> Option<(BootId, Number)> {
        self.nodes.get(&node).map(|view| (view.boot, view.report))
    }

    /// The state that the run would go on with if every member were lost now.
    #[must_use]
    pub fn start_from(&self) -> StartFrom {
        self.checkpoints.newest().map_or(StartFrom::Fresh, StartFrom::Checkpoint)
    }

    /// How the run ended, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Moves on as far as what is known allows.
    fn advance(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        loop {
            let before = (self.generation, self.phase);
            match self.phase {
                Phase::Join => self.try_form(now, effects),
                Phase::Form => self.try_sync(now, effects),
                Phase::Sync => self.try_run(now, effects),
                Phase::Run => self.run(now, effects),
                Phase::Finish | Phase::Stop => self.try_end(now, effects),
            }
            if (self.generation, self.phase) == before {
                return;
            }
        }
    }

    fn enter(&mut self, now: Instant, phase: Phase, effects: &mut Vec<SupervisorEffect>) {
        self.phase = phase;
        self.since = now;
        self.trouble.forget_timers();
        self.direct_all(effects);
        if self.is_ending() {
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            for node in nodes {
                self.nodes.entry(node).and_modify(|view| view.dismissed = true);
                self.order(node, effects);
            }
        }
    }

    /// The lives of the generation, by rank. While it forms or works all of them are there: a loss makes another one.
    fn lives(&self) -> impl Iterator<Item = (MemberId, &Life)> {
        self.membership.participants.iter().filter_map(|participant| {
            let slot = self
                .slots
                .get(&participant.member)
                .filter(|slot| slot.incarnation == participant.incarnation)?;
            Some((participant.member, slot.life()?))
        })
    }

    /// Whether `test` holds for every rank of the generation, each of which has entered it. Asked at every Report: it
    /// ends at the first rank for which it does not.
    fn all_in(&self, test: impl Fn(&Life) -> bool) -> bool {
        self.membership.participants.iter().all(|participant| {
            let slot = self
                .slots
                .get(&participant.member)
                .filter(|slot| slot.incarnation == participant.incarnation);
            let life = slot.and_then(Slot::life);
            life.is_some_and(|life| life.generation == self.generation && test(life))
        })
    }

    /// The rank of a life in the newest generation.
    fn rank_of(&self, member: MemberId) -> Option<Rank> {
        let rank = self.membership.rank_of(member)?;
        let same = self.membership.participants[rank.index()].incarnation == self.slots[&member].incarnation;
        same.then_some(rank)
    }

    /// Whose failure it is that `member` reports. All ranks read in the trailer which micro-batch was not finite; the one
    /// that computed it may have been told to stop before it said so.
    fn to_blame(&self, member: MemberId, failure: &Failure) -> MemberId {
        let Failure::NonFinite { micro_batch: Some(m), .. } = failure else { return member };
        let participant = self
            .membership
            .participants
            .iter()
            .find(|participant| (participant.range.lo..participant.range.hi).contains(&m.0));
        participant.map_or(member, |participant| participant.member)
    }

    /// Acknowledgements take the place of the next sign of life: members hold a thousand steps without one.
    fn acknowledge_soon(&mut self) {
        self.acknowledge_at.get_or_insert(self.beat_at);
    }

    /// Somebody has more to tell than fits into a Report, or waits for room.
    fn acknowledge_now(&mut self, now: Instant) {
        let at = now + self.config.timeouts.pace;
        self.acknowledge_at = Some(self.acknowledge_at.map_or(at, |before| before.min(at)));
    }

    /// Something changed for everyone: a new Directive to all.
    fn direct_all(&mut self, effects: &mut Vec<SupervisorEffect>) {
        self.acknowledge_at = None;
        let members: Vec<MemberId> = self.slots.keys().copied().collect();
        for member in members {
            self.direct(member, effects);
        }
    }

    /// Something changed for `member`.
    fn direct(&mut self, member: MemberId, effects: &mut Vec<SupervisorEffect>) {
        let Some(life) = self.slots.get_mut(&member).and_then(Slot::life_mut) else { return };
        life.number = life.number.next();
        effects.extend(self.directive(member));
    }

    /// The whole view for one member; none for one that is gone or never came.
    fn directive(&self, member: MemberId) -> Option<SupervisorEffect> {
        let slot = self.slots.get(&member)?;
        let life = slot.life()?;
        let phase = match self.phase {
            _ if life.refused => Phase::Stop,
            Phase::Form | Phase::Sync | Phase::Run if self.rank_of(member).is_none() => Phase::Join,
            phase => phase,
        };
        Some(SupervisorEffect::Send(Box::new(Directive {
            instance: self.config.instance,
            generation: self.generation,
            member,
            incarnation: slot.incarnation,
            number: life.number,
            phase,
            membership: (*self.membership).clone(),
            resume_point: self.resume_point.clone(),
            bootstrap: self.bootstrap.filter(|_| phase == Phase::Sync),
            pending: self.pending,
            acknowledged: self.recorded.min(self.progress.committed()).min(self.progress.told()),
            validated: self.validations.told(),
            enough: self.enough,
            settled: self.checkpoints.settled(),
            stop: self.stop,
        })))
    }

    /// Takes over what a Report says of its sender; says whether it is newer than what is known.
    fn refresh(&mut self, now: Instant, report: &Report) -> bool {
        let Some(life) = self.slots.get_mut(&report.member).and_then(Slot::life_mut) else { return false };
        if report.number <= life.report {
            return false;
        }
        life.heard = now;
        life.cut = None;
        life.report = report.number;
        // Whoever obeys another life of the supervisor counts the Directives of that one.
        if report.instance == Some(self.config.instance) {
            life.echoed = life.echoed.max(report.seen.min(life.number));
        }
        life.generation = report.generation;
        life.stage = report.stage.clone();
        life.activity = report.activity;
        life.applied = report.applied;
        life.tells = report.steps.first().map(|record| record.step);
        life.holding = if report.holding.is_sound() { report.holding.clone() } else { Holding::default() };
        life.bootstrap = report.bootstrap;
        true
    }
}

/// The members of a list whose stage is a failure: they wait for the order to leave.
fn has_failed(life: &Life) -> bool {
    matches!(life.stage, Stage::Failed(_))
}
