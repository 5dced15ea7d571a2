//! The supervisor: forms the world, watches it, records what it did, and says how it ended.
//!
//! This file holds the state, takes in what arrives and moves from phase to phase; the decisions of each part are in the
//! files beside it. It does not know processes, files or sockets, and asks its driver for everything by effects.

mod checkpoint;
mod fault;
mod liveness;
mod progress;
mod rendezvous;
mod validation;
mod verdict;

use crate::cause::{Cause, Ending, ExitCause, Failure, Outcome, What};
use crate::effect::{Event, ManifestOrder, SupervisorEffect};
use crate::message::{
    Activity, CheckpointId, Digest, Directive, Heartbeat, Membership, Number, Phase, Profile, Report, Stage,
    StartFrom, StartId,
};
use crate::schedule::Schedule;
use crate::timeouts::Timeouts;
use checkpoint::{Checkpoints, Verdict};
use dtrain_types::{Generation, Incarnation, Instance, Instant, MemberId, Rank, Step};
use fault::{Answer, lost_in};
use progress::Progress;
use std::collections::BTreeMap;
use std::time::Duration;
use validation::Validations;
use verdict::Seen;

/// How gradients are reduced, as far as the control plane cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The same bits at any world size: equal fingerprints are required, and a step counts once any member reports it.
    Exact,
    /// Bits depend on the world size: a step counts once all members report it.
    Ring,
}

/// What a person or a scheduler asks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop at the next step boundary, with a checkpoint.
    Drain,
    /// Stop now, without one.
    Abort,
}

/// What a supervisor is made from.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// This life of the supervisor.
    pub instance: Instance,
    /// The members that are wanted.
    pub members: Vec<MemberId>,
    /// The least number of them to begin with when `join_timeout` is over.
    pub min_ranks: u32,
    /// How long to wait for all.
    pub join_timeout: Duration,
    /// The run's timeouts.
    pub timeouts: Timeouts,
    /// How gradients are reduced.
    pub reduce: Reduce,
    /// `M`: micro-batches in a full step.
    pub micro_batches: u32,
    /// What is due when.
    pub schedule: Schedule,
    /// Where the state comes from.
    pub start: StartFrom,
    /// The number of the first generation; above that of every checkpoint of the lineage.
    pub first_generation: Generation,
}

/// One life of the supervisor.
///
/// The driver calls [`Supervisor::start`] once, feeds it every input (what a link still holds before the exit of its
/// process), runs the effects in order, and calls [`Supervisor::handle_timeout`] when [`Supervisor::next_deadline`] has
/// come. After [`SupervisorEffect::Finish`] it does nothing more.
#[derive(Debug)]
pub struct Supervisor {
    config: SupervisorConfig,
    slots: BTreeMap<MemberId, Slot>,
    generation: Generation,
    phase: Phase,
    /// When the phase began.
    since: Instant,
    membership: Membership,
    progress: Progress,
    /// All steps up to this one are written down.
    recorded: Step,
    validations: Validations,
    checkpoints: Checkpoints,
    /// Digests taken for `verify` at the newest steps (S5).
    verified: BTreeMap<Step, (MemberId, Digest)>,
    seen: Vec<Seen>,
    /// Members whose fingerprint does not fit.
    refusals: Vec<Cause>,
    /// When the run stops if a victim's word stays the only one.
    stop_at: Option<Instant>,
    drain: bool,
    /// How the run ends if nothing failed.
    ending: Option<Outcome>,
    /// When acknowledgements that wait are sent.
    acknowledge_at: Option<Instant>,
    beat_at: Instant,
    outcome: Option<Outcome>,
}

/// One member's place.
#[derive(Debug, Default)]
struct Slot {
    life: Option<Life>,
    /// The last life that was issued.
    issued: Incarnation,
    /// Its process ended.
    gone: bool,
    /// Its process was ended by us.
    killed: bool,
    /// Its fingerprint does not fit, or it came too late.
    refused: bool,
}

/// One life of a member, as its newest Report shows it.
#[derive(Debug)]
struct Life {
    incarnation: Incarnation,
    start_id: StartId,
    profile: Profile,
    heard: Instant,
    /// Since when its link is away.
    cut: Option<Instant>,
    /// Its newest Report.
    report: Number,
    /// The newest Directive for it, and the newest that it echoed.
    number: Number,
    echoed: Number,
    stage: Stage,
    activity: Activity,
    applied: Option<Step>,
}

/// How many steps' digests are kept for comparison.
const MAX_VERIFIED: usize = 16;

impl Supervisor {
    /// A supervisor to whom nobody has reported yet.
    ///
    /// *Panics* if no member is wanted, the first generation is 0, or no step is left to be made.
    #[must_use]
    pub fn new(config: SupervisorConfig) -> Self {
        assert!(!config.members.is_empty(), "a run has at least one member");
        assert!(config.first_generation > Generation(0), "generation 0 is none yet");
        let start = config.start.step();
        assert!(start < config.schedule.last, "no step is left after {start} of {}", config.schedule.last);
        Self {
            slots: config.members.iter().map(|member| (*member, Slot::default())).collect(),
            generation: Generation(0),
            phase: Phase::Join,
            since: Instant::ZERO,
            membership: Membership::default(),
            progress: Progress::new(start),
            recorded: start,
            validations: Validations::default(),
            checkpoints: Checkpoints::new(start),
            verified: BTreeMap::new(),
            seen: Vec::new(),
            refusals: Vec::new(),
            stop_at: None,
            drain: false,
            ending: None,
            acknowledge_at: None,
            beat_at: Instant::ZERO,
            outcome: None,
            config,
        }
    }

    /// Begins to wait for members.
    pub fn start(&mut self, now: Instant) {
        self.since = now;
        self.beat_at = now + self.config.timeouts.heartbeat;
    }

    /// Takes in a Report. Older ones, and those of another life, change nothing.
    pub fn handle_report(&mut self, now: Instant, report: &Report, effects: &mut Vec<SupervisorEffect>) {
        if self.outcome.is_some() || !self.admit(now, report, effects) || !self.refresh(now, report) {
            return;
        }
        if !self.slots[&report.member].refused {
            self.read(now, report, effects);
        }
        self.advance(now, effects);
    }

    /// Takes in a member's sign of life.
    pub fn handle_heartbeat(&mut self, now: Instant, beat: &Heartbeat) {
        let Some(life) = self.slots.get_mut(&beat.member).and_then(|slot| slot.life.as_mut()) else { return };
        if (beat.instance, beat.incarnation) == (self.config.instance, life.incarnation) {
            life.heard = life.heard.max(now);
            life.cut = None;
            life.echoed = life.echoed.max(beat.number.min(life.number));
        }
    }

    /// A member's process ended, or could not be started.
    pub fn handle_exit(
        &mut self,
        now: Instant,
        member: MemberId,
        cause: ExitCause,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        let Some(slot) = self.slots.get_mut(&member) else { return };
        if slot.gone || self.outcome.is_some() {
            return;
        }
        slot.gone = true;
        let stopping = matches!(lost_in(self.phase), Answer::Note);
        // Whom we ended or refused, and who leaves in good order when all are told to, is no fault.
        let expected = slot.killed || slot.refused || (stopping && cause == ExitCause::Code(0));
        if !expected {
            self.lost(now, member, What::Exited(cause), effects);
        }
        self.advance(now, effects);
    }

    /// A member's control link broke. It is lost if it is not heard again within `detect`.
    pub fn handle_link_lost(&mut self, now: Instant, member: MemberId) {
        if let Some(life) = self.slots.get_mut(&member).and_then(|slot| slot.life.as_mut()) {
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
        if !self.checkpoints.written(id, result.is_ok()) {
            return;
        }
        let event = match result {
            Ok(()) => Event::CheckpointWritten { id },
            Err(reason) => Event::CheckpointGivenUp { id, member: None, reason },
        };
        effects.push(SupervisorEffect::Event(event));
        self.acknowledge_soon(now);
        self.advance(now, effects);
    }

    /// All steps up to this one, of those asked for by [`SupervisorEffect::Commit`], are written down. Only then are they
    /// acknowledged: behind a slow disk or a reader that pauses, members pause too, and no queue grows (S10).
    pub fn handle_recorded(&mut self, now: Instant, step: Step) {
        if step > self.recorded && self.outcome.is_none() {
            self.recorded = step;
            self.progress.touch(now);
            self.acknowledge_soon(now);
        }
    }

    /// Takes in what a person or a scheduler asks.
    pub fn handle_request(&mut self, now: Instant, request: Request, effects: &mut Vec<SupervisorEffect>) {
        if matches!(lost_in(self.phase), Answer::Note) || self.outcome.is_some() {
            return;
        }
        if request == Request::Abort || self.phase == Phase::Join {
            self.ending = Some(Outcome::Interrupted(None));
            self.enter(now, Phase::Stop, effects);
            self.advance(now, effects);
        } else if !self.drain {
            self.drain = true;
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

    /// How the run ended, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Takes over what a Report says of its sender; says whether it is newer than what is known.
    fn refresh(&mut self, now: Instant, report: &Report) -> bool {
        let ours = report.instance.is_none_or(|instance| instance == self.config.instance);
        let Some(life) = self.slots.get_mut(&report.member).and_then(|slot| slot.life.as_mut()) else {
            return false;
        };
        let this = report.start_id == life.start_id
            && (report.incarnation == life.incarnation || report.incarnation == Incarnation(0));
        if !ours || !this || report.number <= life.report {
            return false;
        }
        life.heard = now;
        life.cut = None;
        life.report = report.number;
        life.echoed = life.echoed.max(report.seen.min(life.number));
        life.stage = report.stage.clone();
        life.activity = report.activity;
        life.applied = report.applied;
        true
    }

    /// Takes in what a Report says of the world. What belongs to another generation says nothing of this one (S3).
    fn read(&mut self, now: Instant, report: &Report, effects: &mut Vec<SupervisorEffect>) {
        let member = report.member;
        if let Stage::Failed(failure) = &report.stage {
            self.lost(now, self.to_blame(member, failure), What::Reported(failure.clone()), effects);
        }
        let Some(rank) = self.membership.rank_of(member).filter(|_| report.generation == self.generation)
        else {
            return;
        };
        if report.steps.iter().any(|record| record.generation != self.generation) {
            let text = format!("a step of another generation than {}", self.generation);
            return self.lost(now, member, What::Impossible(text), effects);
        }
        if let Err(text) = self.progress.take(&report.steps, report.applied) {
            return self.lost(now, member, What::Impossible(text), effects);
        }
        let stray = |id: CheckpointId, of: Rank| id.generation != self.generation || of != rank;
        if report.shards.iter().any(|shard| stray(shard.id, shard.rank)) {
            let text = "a shard of another rank or generation".to_owned();
            return self.lost(now, member, What::Impossible(text), effects);
        }
        let news = self.validations.take(rank, &report.validations) | self.checkpoints.take(&report.shards);
        if news {
            self.progress.touch(now);
        }
        if let Some((step, digest)) = report.verified {
            self.compare(now, member, step, digest, effects);
        }
        self.check_spread(now, member, effects);
    }

    /// Moves on as far as what is known allows.
    fn advance(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        loop {
            let before = self.phase;
            match self.phase {
                Phase::Join => self.try_form(now, effects),
                Phase::Form => self.try_sync(now, effects),
                Phase::Sync => self.try_run(now, effects),
                Phase::Run => self.run(now, effects),
                Phase::Finish | Phase::Stop => self.try_end(now, effects),
            }
            if self.phase == before {
                return;
            }
        }
    }

    /// Commits what is reported; says whether there was anything.
    fn commit(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) -> bool {
        let limit = match self.config.reduce {
            Reduce::Exact => Step(u64::MAX),
            Reduce::Ring => {
                self.lives().map(|life| life.applied.unwrap_or_default()).min().unwrap_or_default()
            }
        };
        let done = self.progress.commit(now, limit, &self.config.schedule, effects);
        for (step, due) in &done {
            if let Some(epoch) = due.validate {
                self.validations.owe(epoch, *step);
            }
            if due.checkpoint {
                self.checkpoints.expect(CheckpointId { generation: self.generation, step: *step });
            }
        }
        !done.is_empty()
    }

    fn run(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let moved = [
            self.commit(now, effects),
            self.record_validations(now, effects),
            self.record_checkpoints(now, effects),
        ];
        if moved[1..].contains(&true) {
            self.acknowledge_soon(now);
        }
        self.try_finish(now, effects);
    }

    /// Records what all ranks have validated; says whether there was anything.
    fn record_validations(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) -> bool {
        let world = self.membership.world().0;
        let mut moved = false;
        loop {
            match self.validations.next(world, self.config.schedule.validation_micro_batches) {
                Ok(None) => return moved,
                Ok(Some(validation)) => effects.push(SupervisorEffect::Validated(validation)),
                Err((rank, text)) => {
                    self.lost(now, self.member_of(rank), What::Impossible(text), effects);
                    return true;
                }
            }
            moved = true;
        }
    }

    /// Settles checkpoints whose shards are all there; says whether there was any.
    fn record_checkpoints(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) -> bool {
        let world = self.membership.world().0;
        let mut moved = false;
        while self.phase == Phase::Run {
            let ready = |step: Step| self.validations.is_settled(step);
            let Some(verdict) = self.checkpoints.next(world, ready) else { return moved };
            moved = true;
            match verdict {
                Verdict::Complete { id, shards, digest, state_digest } => {
                    let fingerprint = self.life_of(Rank(0)).profile.fingerprint.clone();
                    let membership = self.membership.clone();
                    let order = ManifestOrder { id, shards, digest, state_digest, fingerprint, membership };
                    effects.push(SupervisorEffect::WriteManifest(Box::new(order)));
                }
                Verdict::GivenUp { id, rank, reason } => {
                    let member = Some(self.member_of(rank));
                    effects.push(SupervisorEffect::Event(Event::CheckpointGivenUp { id, member, reason }));
                }
                Verdict::Disagree { id, rank, own, other } => {
                    let against = self.member_of(Rank(0));
                    let what = What::DigestDiffers { step: id.step, own, other, against };
                    self.lost(now, self.member_of(rank), what, effects);
                }
            }
        }
        moved
    }

    /// Ends the run once all have made the last step and all that is due is recorded.
    fn try_finish(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let Some(last) = self.progress.ended().filter(|_| self.phase == Phase::Run) else { return };
        let mut ends = Vec::with_capacity(self.membership.seats.len());
        for seat in &self.membership.seats {
            match self.slots[&seat.member].life.as_ref().map(|life| &life.stage) {
                Some(Stage::Finished(finished)) => ends.push((seat.member, *finished)),
                _ => return,
            }
        }
        let (against, first) = ends[0];
        for (member, end) in ends {
            let (own, other) = (end.state_digest, first.state_digest);
            let what = if end.step != last {
                What::StepDiffers { own: end.step, other: last, against }
            } else if own != other || end.digest != first.digest {
                What::DigestDiffers { step: last, own, other, against }
            } else {
                continue;
            };
            return self.lost(now, member, what, effects);
        }
        if !self.validations.is_settled(last) || !self.checkpoints.is_settled() {
            return;
        }
        let ending = Ending {
            step: last,
            digest: first.digest,
            state_digest: first.state_digest,
            checkpoint: self.checkpoints.newest(),
        };
        let drained = last < self.config.schedule.last;
        self.ending =
            Some(if drained { Outcome::Interrupted(Some(ending)) } else { Outcome::Finished(ending) });
        self.enter(now, Phase::Finish, effects);
    }

    /// Ends it all once every process is gone, or was given enough time to go.
    fn try_end(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        // What the last Reports say was done is done, whatever came after it.
        self.commit(now, effects);
        let all_gone = self.slots.values().all(|slot| slot.gone);
        if self.outcome.is_some() || self.checkpoints.is_writing() || !(all_gone || now >= self.given_up()) {
            return;
        }
        let ended = self.ending.take().or_else(|| verdict::failed(&self.seen));
        let outcome = ended.expect("a run ends in good order, by request or by a fault");
        self.outcome = Some(outcome.clone());
        effects.push(SupervisorEffect::Finish(Box::new(outcome)));
    }

    fn enter(&mut self, now: Instant, phase: Phase, effects: &mut Vec<SupervisorEffect>) {
        self.phase = phase;
        self.since = now;
        self.stop_at = None;
        self.direct_all(effects);
    }

    /// The lives of the generation, by rank.
    fn lives(&self) -> impl Iterator<Item = &Life> {
        self.membership.seats.iter().filter_map(|seat| self.slots[&seat.member].life.as_ref())
    }

    /// Whose failure it is that `member` reports. All ranks read in the trailer which micro-batch was not finite; the one
    /// that computed it may have been told to stop before it said so.
    fn to_blame(&self, member: MemberId, failure: &Failure) -> MemberId {
        let Failure::NonFinite { micro_batch: Some(m), .. } = failure else { return member };
        let seat = self.membership.seats.iter().find(|seat| (seat.range.lo..seat.range.hi).contains(&m.0));
        seat.map_or(member, |seat| seat.member)
    }

    fn life_of(&self, rank: Rank) -> &Life {
        self.slots[&self.member_of(rank)].life.as_ref().expect("a rank was issued a life")
    }

    fn member_of(&self, rank: Rank) -> MemberId {
        self.membership.seats[rank.index()].member
    }

    /// Acknowledgements are collected for a moment: at a thousand steps a second each would be a message of its own.
    fn acknowledge_soon(&mut self, now: Instant) {
        self.acknowledge_at.get_or_insert(now + self.config.timeouts.pace);
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
        let Some(life) = self.slots.get_mut(&member).and_then(|slot| slot.life.as_mut()) else { return };
        life.number = life.number.next();
        effects.extend(self.directive(member));
    }

    /// The whole view for one member; none for one that is gone or never came.
    fn directive(&self, member: MemberId) -> Option<SupervisorEffect> {
        let slot = self.slots.get(&member).filter(|slot| !slot.gone)?;
        let life = slot.life.as_ref()?;
        Some(SupervisorEffect::Send(Box::new(Directive {
            instance: self.config.instance,
            generation: self.generation,
            member,
            incarnation: life.incarnation,
            start_id: life.start_id,
            number: life.number,
            phase: if slot.refused { Phase::Stop } else { self.phase },
            membership: self.membership.clone(),
            start: self.config.start,
            acknowledged: self.recorded.min(self.progress.committed()),
            validated: self.validations.done(),
            settled: self.checkpoints.settled(),
            drain: self.drain,
        })))
    }
}
