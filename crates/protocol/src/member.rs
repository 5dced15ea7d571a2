//! The member: the rank process's half of the control plane.
//!
//! It acts on Directives once per (generation, phase), keeps everything that the supervisor has not acknowledged yet, and
//! says it all again until it is. It does not know sockets, gradients or files: the driver computes and reports.

use crate::bootstrap::Bootstrap;
use crate::cause::Failure;
use crate::effect::{Exit, MemberEffect};
use crate::left::{Left, Loaded};
use crate::message::{
    Directive, Finished, Heartbeat, Limits, Profile, Report, ResumePoint, ShardOutcome, ShardReport, Stage,
    StepRecord, StopFlag, ValidationPart,
};
use crate::number::Number;
use crate::phase::{Activity, Phase};
use crate::text::cut_text;
use crate::timeouts::Timeouts;
use dtrain_types::{
    CheckpointId, Digest, Generation, Holding, Incarnation, Instance, Instant, MemberId, Rank, Step,
};
use std::collections::VecDeque;
use std::time::Duration;

/// What a member is made from.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The slot.
    pub member: MemberId,
    /// Its life, as the order to start its process says.
    pub incarnation: Incarnation,
    /// Who it is.
    pub profile: Profile,
    /// The run's timeouts.
    pub timeouts: Timeouts,
    /// How much it holds and says at once.
    pub limits: Limits,
}

/// One life of one member.
///
/// The driver calls [`Member::start`] once, feeds it every input, runs the effects in order, and calls
/// [`Member::handle_timeout`] when [`Member::next_deadline`] has come. Inputs from the compute thread name their generation;
/// those of another are dropped (S3). After [`MemberEffect::Exit`] it does nothing more.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    /// The supervisor that we obey: bound by the first Directive.
    bound: Option<Instance>,
    /// The generation that our state, records and words belong to.
    generation: Generation,
    /// The generation and phase that was acted on last; ahead of `generation` while we leave that.
    acted: (Generation, Phase),
    /// The rank in the generation that is being formed.
    next_rank: Option<Rank>,
    rank: Option<Rank>,
    resume_point: ResumePoint,
    /// The newest Directive that was taken in.
    seen: Number,
    stage: Stage,
    activity: Activity,
    reported_activity: Activity,
    applied: Option<Step>,
    holding: Holding,
    /// What the driver made for all ranks of `generation` to meet.
    bootstrap: Option<Bootstrap>,
    verified: Option<(Step, Digest)>,
    /// A committed step had the stop flag set: there is no step after it in this generation.
    stopped: bool,
    /// The bits of the stop flag that were asked of the driver.
    asked: StopFlag,
    steps: VecDeque<StepRecord>,
    validations: VecDeque<ValidationPart>,
    shards: VecDeque<ShardReport>,
    /// All checkpoints up to this one are written or given up.
    settled: CheckpointId,
    /// All validations up to this step are recorded.
    validated: Step,
    paused: bool,
    /// The number of the last Report.
    number: Number,
    /// Something changed since the last Report, or did not fit into it.
    dirty: bool,
    last_report: Instant,
    last_word: Instant,
    heard: Instant,
    over: bool,
}

impl Member {
    /// A member that has said nothing yet.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Self {
            config,
            bound: None,
            generation: Generation(0),
            acted: (Generation(0), Phase::Join),
            next_rank: None,
            rank: None,
            resume_point: ResumePoint::default(),
            seen: Number(0),
            stage: Stage::Joining,
            activity: Activity::Idle,
            reported_activity: Activity::Idle,
            applied: None,
            holding: Holding::default(),
            bootstrap: None,
            verified: None,
            stopped: false,
            asked: StopFlag::default(),
            steps: VecDeque::new(),
            validations: VecDeque::new(),
            shards: VecDeque::new(),
            settled: CheckpointId::default(),
            validated: Step(0),
            paused: false,
            number: Number(0),
            dirty: false,
            last_report: Instant::ZERO,
            last_word: Instant::ZERO,
            heard: Instant::ZERO,
            over: false,
        }
    }

    /// Says the first word.
    pub fn start(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        self.heard = now;
        self.report(now, effects);
    }

    /// Takes in a Directive. Older ones, and those for another life, change nothing.
    pub fn handle_directive(&mut self, now: Instant, directive: &Directive, effects: &mut Vec<MemberEffect>) {
        if self.over || !self.is_mine(directive) {
            return;
        }
        self.heard = now;
        if self.bound != Some(directive.instance) {
            // Another life of the supervisor: its words are counted anew.
            self.seen = Number(0);
        }
        if directive.number <= self.seen {
            return;
        }
        self.bound = Some(directive.instance);
        self.seen = directive.number;
        self.acknowledge(directive, effects);
        // Once per (generation, phase): a repeated or overtaken Directive must not build or run anything twice.
        if (directive.generation, directive.phase) > self.acted {
            self.acted = (directive.generation, directive.phase);
            self.act(now, directive, effects);
        }
        let asks = directive.stop.with(self.asked) != self.asked;
        if asks && self.is_running(directive.generation) {
            self.asked = self.asked.with(directive.stop);
            effects.push(MemberEffect::AskStop(self.asked));
        }
        if self.dirty && !self.over {
            self.progress(now, effects);
        }
    }

    /// Takes in a sign of life of the supervisor. Of one that led a newer generation than any we know it is a question: it is answered
    /// by a whole Report.
    pub fn handle_heartbeat(&mut self, now: Instant, beat: &Heartbeat) {
        if self.over || (beat.incarnation, beat.member) != (self.config.incarnation, self.config.member) {
            return;
        }
        if Some(beat.instance) == self.bound {
            self.heard = now;
        } else if self.is_newer(beat.generation) {
            (self.heard, self.dirty) = (now, true);
        }
    }

    /// Everything of the generations below this one is left: the compute thread is idle, every step that it applied was
    /// handed over, and the state holds `applied` updates (none without a state).
    ///
    /// *Panics* if that is another number than the steps handed over make, or the generation was entered before: each is
    /// asked for once.
    pub fn handle_left(&mut self, now: Instant, left: Left, effects: &mut Vec<MemberEffect>) {
        if self.over {
            return;
        }
        let Left { generation, applied, bootstrap } = left;
        assert!(generation > self.generation, "generation {generation} is entered in {}", self.generation);
        assert!(applied == self.applied, "the state holds {applied:?} updates, {:?} were told", self.applied);
        self.generation = generation;
        self.rank = self.next_rank;
        // With the generation, in one step: what was made for one is never said in another (S3).
        self.bootstrap = bootstrap;
        self.validations.clear();
        self.verified = None;
        (self.stopped, self.asked) = (false, StopFlag::default());
        if !matches!(self.stage, Stage::Failed(_)) {
            self.stage = Stage::Formed;
        }
        self.report(now, effects);
    }

    /// The data plane of `generation` stands: all peers were reached.
    pub fn handle_built(&mut self, generation: Generation, effects: &mut Vec<MemberEffect>) {
        if self.in_sync(generation) {
            effects.push(MemberEffect::Load { generation, resume_point: self.resume_point.clone() });
        }
    }

    /// The data plane of `generation` could not be built, or broke off; the member waits for the next one.
    pub fn handle_broken(
        &mut self,
        now: Instant,
        generation: Generation,
        why: &str,
        unreachable: Vec<MemberId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        let works = matches!(self.stage, Stage::Formed | Stage::Ready { .. } | Stage::Running);
        if !self.over && works && self.is_here(generation) {
            self.stage = Stage::Broken { why: cut_text(why), unreachable };
            self.report(now, effects);
        }
    }

    /// A rank that holds shards has made the update that it had measured and left, because another one made it. What else it has of
    /// the state is on its way.
    ///
    /// *Panics* if it is not the next one.
    pub fn handle_caught_up(&mut self, generation: Generation, applied: Step) {
        if self.over || generation != self.generation {
            return;
        }
        assert_eq!(Some(applied), self.applied.map(Step::next), "one update was left, and no more");
        self.applied = Some(applied);
    }

    /// The state is loaded or copied.
    pub fn handle_loaded(&mut self, now: Instant, loaded: Loaded, effects: &mut Vec<MemberEffect>) {
        let Loaded { generation, applied, holding, state_digest } = loaded;
        if self.over || generation != self.generation {
            return;
        }
        // Like a step, a state counts until the generation is left, whatever was heard of the next one.
        (self.applied, self.holding) = (Some(applied), holding);
        if self.in_sync(generation) {
            self.stage = Stage::Ready { state_digest };
            self.report(now, effects);
        }
    }

    /// A step was made: its update is applied.
    ///
    /// It counts until the generation is left, whatever was heard of the next one: the state has it.
    ///
    /// *Panics* if another generation made it, if it is not the step after the last one, or comes after a set stop flag: the
    /// state would be lost.
    pub fn handle_step(&mut self, now: Instant, record: StepRecord, effects: &mut Vec<MemberEffect>) {
        if self.over {
            return;
        }
        assert_eq!(record.generation, self.generation, "a generation is left after its last step");
        assert!(!self.stopped, "step {} was made after a step with the stop flag set", record.step);
        assert_eq!(Some(record.step), self.applied.map(Step::next), "steps are made in order");
        self.applied = Some(record.step);
        self.stopped = record.trailer.stop != 0;
        self.steps.push_back(record);
        self.progress(now, effects);
        if self.stopped && self.dirty {
            // All others stand here too, and the supervisor waits for the last of us.
            self.report(now, effects);
        }
    }

    /// The rank's share of a validation is done.
    pub fn handle_validation(
        &mut self,
        now: Instant,
        generation: Generation,
        part: ValidationPart,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.is_running(generation) {
            self.validations.push_back(part);
            // The world waits for this.
            self.report(now, effects);
        }
    }

    /// A shard is durable, or could not be written. It may come after the last step.
    pub fn handle_shard(&mut self, now: Instant, mut shard: ShardReport, effects: &mut Vec<MemberEffect>) {
        // Writers go on in the background when a generation ends: the supervisor says which shards still count.
        if !self.over && shard.id > self.settled {
            if let ShardOutcome::Failed { reason } = &mut shard.outcome {
                *reason = cut_text(reason);
            }
            // Writers may end in any order, and checkpoints are settled in theirs: the least goes up first.
            let at = self.shards.partition_point(|other| other.id < shard.id);
            self.shards.insert(at, shard);
            self.progress(now, effects);
        }
    }

    /// The state was digested for `verify`.
    pub fn handle_verified(
        &mut self,
        now: Instant,
        generation: Generation,
        step: Step,
        digest: Digest,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.is_running(generation) {
            self.verified = Some((step, digest));
            self.progress(now, effects);
        }
    }

    /// What the compute thread is doing, as sampled by the driver. Goes up with the next Report or heartbeat.
    pub fn handle_activity(&mut self, activity: Activity) {
        self.activity = activity;
    }

    /// The last step is made and the state digested.
    ///
    /// *Panics* if it names another step than the last one.
    pub fn handle_finished(
        &mut self,
        now: Instant,
        generation: Generation,
        finished: Finished,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.is_running(generation) {
            assert_eq!(Some(finished.step), self.applied, "the end is at the last step");
            self.stage = Stage::Finished(finished);
            self.report(now, effects);
        }
    }

    /// The rank cannot go on. Before the first generation, `generation` is 0; what broke the process itself counts in any.
    /// A collective that broke off is no failure: see [`Member::handle_broken`].
    ///
    /// The member stays, says so until it is told to leave, and so is named before those that only noticed.
    pub fn handle_failure(
        &mut self,
        now: Instant,
        generation: Generation,
        failure: Failure,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.over || !(generation == self.generation || failure.is_of_process()) {
            return;
        }
        // A panic unwinds through an aborted collective: the first word of the process itself stays.
        if !matches!(self.stage, Stage::Failed(_)) {
            self.stage = Stage::Failed(failure.cut());
            self.report(now, effects);
        }
    }

    /// Does what has come due.
    pub fn handle_timeout(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        let Some(due) = self.next_deadline() else { return };
        if now.since(due) > self.config.timeouts.late {
            // Our own process was stopped: what the supervisor sent meanwhile may still be unread.
            self.heard = now;
        }
        let silent = now.since(self.heard);
        if silent >= self.config.timeouts.master {
            self.stage = Stage::Failed(Failure::SupervisorLost { silent });
            effects.push(MemberEffect::Abort);
            // It may read this when it wakes, and then knows whose fault the end was.
            self.report(now, effects);
            return self.exit(Exit::Failed, effects);
        }
        if self.dirty && now >= self.last_report + self.pace() {
            self.report(now, effects);
        } else if now >= self.last_word + self.config.timeouts.heartbeat {
            self.beat(now, effects);
        }
    }

    /// When [`Member::handle_timeout`] is to be called; none after the end.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let times = &self.config.timeouts;
        let beat = self.last_word + times.heartbeat;
        let word = if self.dirty { beat.min(self.last_report + self.pace()) } else { beat };
        (!self.over).then(|| word.min(self.heard + times.master))
    }

    /// The generation it is in; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Its rank in that generation.
    #[must_use]
    pub fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// Where it stands.
    #[must_use]
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Updates that its state holds.
    #[must_use]
    pub fn applied(&self) -> Option<Step> {
        self.applied
    }

    /// The number of the newest Directive that was taken in; it never falls.
    #[must_use]
    pub fn seen(&self) -> Number {
        self.seen
    }

    /// Which life of the supervisor it obeys; none before the first Directive. Numbers of Directives are counted by it.
    #[must_use]
    pub fn obeys(&self) -> Option<Instance> {
        self.bound
    }

    /// How many steps wait for an acknowledgement; see [`Limits::unacknowledged`].
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.steps.len()
    }

    fn is_mine(&self, directive: &Directive) -> bool {
        (directive.member, directive.incarnation) == (self.config.member, self.config.incarnation)
            && (self.bound.is_none_or(|bound| bound == directive.instance)
                || self.is_newer(directive.generation))
    }

    /// Whether a generation is newer than every one that we heard of: every life of a supervisor begins above those of the lives
    /// before it, so who names it leads now.
    fn is_newer(&self, generation: Generation) -> bool {
        generation > self.acted.0.max(self.generation)
    }

    /// Whether `generation` is ours and no newer one is being formed.
    fn is_here(&self, generation: Generation) -> bool {
        generation == self.generation && generation == self.acted.0
    }

    fn is_running(&self, generation: Generation) -> bool {
        !self.over && self.is_here(generation) && self.stage == Stage::Running
    }

    fn in_sync(&self, generation: Generation) -> bool {
        let synced = self.acted.1 == Phase::Sync && self.stage == Stage::Formed;
        !self.over && self.is_here(generation) && synced
    }

    /// Acts on a phase that is new. A member that failed only waits for the order to leave.
    fn act(&mut self, now: Instant, directive: &Directive, effects: &mut Vec<MemberEffect>) {
        let (generation, rank) = (directive.generation, directive.membership.rank_of(self.config.member));
        match (directive.phase, &self.stage, rank) {
            (Phase::Form, stage, Some(rank)) if !matches!(stage, Stage::Failed(_)) => {
                self.next_rank = Some(rank);
                effects.push(MemberEffect::Quit { generation, rank });
            }
            (Phase::Sync, Stage::Formed, Some(rank)) if generation == self.generation => {
                self.resume_point = directive.resume_point.clone();
                let membership = directive.membership.clone();
                let bootstrap = directive.bootstrap;
                effects.push(MemberEffect::Build { generation, rank, membership, bootstrap });
            }
            (Phase::Run, Stage::Ready { .. }, Some(_)) if generation == self.generation => {
                self.stage = Stage::Running;
                let from_step = self.applied.expect("a member that is ready has a state").next();
                effects.push(MemberEffect::Run { generation, from_step, pending: directive.pending });
                self.report(now, effects);
            }
            (Phase::Finish, _, _) => self.leave(now, effects),
            (Phase::Stop, _, _) => {
                effects.push(MemberEffect::Abort);
                self.leave(now, effects);
            }
            // A phase that does not follow from ours: the supervisor sees our stage in the next Report.
            _ => {}
        }
    }

    fn leave(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        let exit = match &self.stage {
            // The code says so too, in case the last Report does not get through.
            Stage::Failed(_) => Exit::Failed,
            _ => {
                self.stage = Stage::Leaving;
                Exit::Ordered
            }
        };
        self.report(now, effects);
        self.exit(exit, effects);
    }

    fn exit(&mut self, exit: Exit, effects: &mut Vec<MemberEffect>) {
        self.over = true;
        effects.push(MemberEffect::Exit(exit));
    }

    /// Drops what the supervisor has recorded.
    fn acknowledge(&mut self, directive: &Directive, effects: &mut Vec<MemberEffect>) {
        let limits = self.config.limits;
        let full = !self.holds_at_most(limits.steps, limits.others);
        while self.steps.front().is_some_and(|record| record.step <= directive.acknowledged) {
            self.steps.pop_front();
        }
        while self.validations.front().is_some_and(|part| part.step <= directive.validated) {
            self.validations.pop_front();
        }
        self.shards.retain(|shard| shard.id > directive.settled);
        if directive.validated > self.validated {
            self.validated = directive.validated;
            effects.push(MemberEffect::Validated(directive.validated, directive.enough));
        }
        if directive.settled > self.settled {
            self.settled = directive.settled;
            effects.push(MemberEffect::Settled(directive.settled));
        }
        // What did not fit into the last Report can go now.
        self.dirty |= full;
        if self.paused && self.holds_at_most(limits.unacknowledged / 2, limits.others) {
            self.paused = false;
            effects.push(MemberEffect::Resume);
        }
    }

    fn holds_at_most(&self, steps: usize, others: usize) -> bool {
        self.steps.len() <= steps && self.validations.len() <= others && self.shards.len() <= others
    }

    fn pace(&self) -> Duration {
        self.config.timeouts.pace_of(self.rank)
    }

    /// Something to report that need not go this instant: a model of a thousand steps a second must not send a
    /// thousand Reports, each with all the steps that are not acknowledged yet.
    fn progress(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        self.dirty = true;
        if now >= self.last_report + self.pace() {
            self.report(now, effects);
        }
        let limits = self.config.limits;
        if !self.paused && !self.holds_at_most(limits.unacknowledged - 1, 2 * limits.others - 1) {
            self.paused = true;
            effects.push(MemberEffect::Pause);
        }
    }

    /// A sign of life: the number only, where the supervisor needs nothing else from us.
    fn beat(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        let same = self.activity == self.reported_activity && !self.dirty;
        // Who has stopped says so in full: its last Report may be lost, and its step was acknowledged by what another told.
        let moves = self.stage == Stage::Running && !self.stopped;
        let quiet = moves && self.holds_at_most(0, 0) && same;
        let Some(instance) = self.bound.filter(|_| quiet) else {
            return self.report(now, effects);
        };
        self.last_word = now;
        effects.push(MemberEffect::Beat(Heartbeat {
            instance,
            generation: self.generation,
            member: self.config.member,
            incarnation: self.config.incarnation,
            number: self.seen,
        }));
    }

    fn report(&mut self, now: Instant, effects: &mut Vec<MemberEffect>) {
        (self.last_report, self.last_word, self.dirty) = (now, now, false);
        self.number = self.number.next();
        self.reported_activity = self.activity;
        let limits = self.config.limits;
        effects.push(MemberEffect::Send(Box::new(Report {
            instance: self.bound,
            generation: self.generation,
            member: self.config.member,
            incarnation: self.config.incarnation,
            number: self.number,
            seen: self.seen,
            profile: self.config.profile.clone(),
            stage: self.stage.clone(),
            activity: self.activity,
            applied: self.applied,
            holding: self.holding.clone(),
            bootstrap: self.bootstrap.filter(|_| self.stage == Stage::Formed),
            verified: self.verified,
            steps: self.steps.iter().take(limits.steps).copied().collect(),
            validations: self.validations.iter().take(limits.others).cloned().collect(),
            shards: self.shards.iter().take(limits.others).cloned().collect(),
        })));
    }
}
