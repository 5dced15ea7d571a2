//! A whole world in virtual time: one supervisor, its members, a model of the data plane, and a network that loses,
//! repeats, delays and so reorders messages. One seed gives everything.
//!
//! It keeps a history of what happened outside of the machines; `check.rs` judges that. It does not know the machines'
//! insides.

// Each test binary uses a part of the harness.
#![allow(dead_code)]

pub mod check;
mod plan;

use check::Fact;
use dtrain_protocol::{
    Activity, CheckpointId, Decoder, Digest, ExitCause, Failure, Fingerprint, Finished, Member, MemberConfig,
    MemberEffect, Membership, Message, Outcome, Profile, Request, ShardFile, ShardOutcome, ShardReport,
    Stage, StartFrom, StartId, StepRecord, Supervisor, SupervisorConfig, SupervisorEffect, ValidationPart,
    encode,
};
use dtrain_types::{
    Bytes, Epoch, Generation, Instance, Instant, MemberId, MicroRange, Step, Trailer, cut_evenly, roots,
};
pub use plan::{Fault, Plan, Rng, timeouts};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Debug)]
enum Ev {
    Start(MemberId),
    ToSupervisor(Vec<u8>),
    ToMember(MemberId, Vec<u8>),
    Built(MemberId, Generation),
    Loaded(MemberId, Generation, StartFrom),
    Contribute(MemberId, Step),
    Apply(MemberId, Step),
    Validated(MemberId, Epoch, Step, u32),
    Shard(MemberId, CheckpointId),
    Manifest(CheckpointId),
    Recorded(Step),
    Strike(MemberId, Fault),
    Aborted(MemberId),
    NotFinite(MemberId, Failure),
    Gone(MemberId, ExitCause),
    Request(Request),
}

/// A process with its compute thread.
struct Process {
    machine: Member,
    started: bool,
    alive: bool,
    hung: bool,
    /// Stage of its machine when a fault struck it.
    struck_in: Option<Stage>,
    generation: Generation,
    membership: Membership,
    next: Option<Step>,
    stop_wanted: bool,
    paused: bool,
    waiting: bool,
    /// The checkpoint begun last, and up to which all are settled.
    begun: Step,
    settled: Step,
    /// Steps that the compute thread has made and not told the machine yet: it tells several at a time.
    gathered: Vec<StepRecord>,
    /// A step whose checkpoint waits for the one before it, with its stop flag.
    held: Option<(Step, u32)>,
}

pub struct World {
    pub plan: Plan,
    pub supervisor: Supervisor,
    pub history: Vec<Fact>,
    pub effects: Vec<SupervisorEffect>,
    now: Instant,
    rng: Rng,
    /// Decides when a compute thread tells what it has gathered; apart, so that seeds keep their stories.
    desk: Rng,
    queue: BTreeMap<(Instant, u64), Ev>,
    sent: u64,
    /// When everything committed so far is written down.
    written_at: Instant,
    processes: BTreeMap<MemberId, Process>,
    /// Per step: who put in its part, and the stop flag so far.
    parts: BTreeMap<Step, (BTreeSet<MemberId>, u32)>,
    /// Members from whom nothing arrives.
    cut: BTreeSet<MemberId>,
    pub builds: u32,
    pub pauses: u32,
    /// How often a member waited for the checkpoint before its own.
    pub holds: u32,
    pub largest_message: usize,
    /// The most committed steps that waited to be written down.
    pub most_unwritten: usize,
}

/// More events than any of these worlds needs: a machine that asks for the same deadline again and again is found here.
const MOST_EVENTS: u64 = 3_000_000;

impl World {
    pub fn new(plan: Plan) -> Self {
        let members: Vec<MemberId> = (0..plan.members).map(MemberId).collect();
        let config = SupervisorConfig {
            instance: Instance(77),
            members: members.clone(),
            min_ranks: plan.min_ranks,
            join_timeout: Duration::from_secs(3),
            timeouts: timeouts(),
            reduce: plan.reduce,
            micro_batches: 8,
            schedule: plan.schedule,
            start: plan.start,
            first_generation: Generation(3),
        };
        let mut world = Self {
            rng: Rng(plan.seed),
            desk: Rng(!plan.seed),
            supervisor: Supervisor::new(config),
            history: Vec::new(),
            effects: Vec::new(),
            now: Instant::ZERO,
            queue: BTreeMap::new(),
            sent: 0,
            written_at: Instant::ZERO,
            processes: members.iter().map(|m| (*m, Process::new(&plan, *m))).collect(),
            parts: BTreeMap::new(),
            cut: BTreeSet::new(),
            builds: 0,
            pauses: 0,
            holds: 0,
            largest_message: 0,
            most_unwritten: 0,
            plan,
        };
        world.supervisor.start(Instant::ZERO);
        for member in members {
            if !world.plan.absent.contains(&member.0) {
                let at = world.rng.up_to(Duration::from_millis(200));
                world.after(at, Ev::Start(member));
            }
        }
        for (at, member, fault) in world.plan.faults.clone() {
            world.after(at, Ev::Strike(MemberId(member), fault));
        }
        for (at, request) in world.plan.requests.clone() {
            world.after(at, Ev::Request(request));
        }
        world
    }

    /// Runs to the end.
    pub fn run(&mut self) -> Outcome {
        for _ in 0..MOST_EVENTS {
            if let Some(outcome) = self.supervisor.outcome() {
                return outcome.clone();
            }
            self.turn();
        }
        panic!("no end after {MOST_EVENTS} events, at {:?}, seed {}", self.now, self.plan.seed);
    }

    /// Runs until a moment.
    pub fn run_until(&mut self, at: Duration) {
        while self.now < Instant::ZERO + at {
            self.turn();
        }
    }

    /// The link of a member breaks, and comes back at once or never.
    pub fn lose_link(&mut self, member: MemberId, for_good: bool) {
        if for_good {
            self.cut.insert(member);
        }
        self.supervise(|s, now, _| s.handle_link_lost(now, member));
    }

    /// Lets only the timers of one member go on; gives all it then asks for, and when it ends.
    pub fn orphan(&mut self, member: MemberId) -> (Vec<MemberEffect>, Instant) {
        let machine = &mut self.processes.get_mut(&member).expect("every member has a process").machine;
        let (mut effects, mut at) = (Vec::new(), self.now);
        while let Some(next) = machine.next_deadline() {
            at = next;
            machine.handle_timeout(at, &mut effects);
        }
        (effects, at)
    }

    /// Where a fault struck `member`, if one did.
    pub fn struck_in(&self, member: MemberId) -> Option<&Stage> {
        self.processes[&member].struck_in.as_ref()
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    fn turn(&mut self) {
        if let Some((_, long)) = self.plan.asleep.take_if(|(at, _)| self.now >= Instant::ZERO + *at) {
            self.now = self.now + long;
        }
        let timers = self.processes.iter().filter(|(_, p)| p.listens());
        let timers = timers.filter_map(|(m, p)| Some((p.machine.next_deadline()?, Some(*m))));
        let own = self.supervisor.next_deadline().map(|at| (at, None));
        let timer = timers.chain(own).min();
        // Input is handled before timers.
        let event = self.queue.first_key_value().map(|(key, _)| key.0);
        match (event, timer) {
            (Some(at), timer) if timer.is_none_or(|(t, _)| at <= t) => {
                let (_, event) = self.queue.pop_first().expect("there is an event");
                self.now = self.now.max(at);
                self.happen(event);
            }
            (_, Some((at, who))) => {
                self.now = self.now.max(at);
                match who {
                    Some(member) => self.member(member, |m, now, out| m.handle_timeout(now, out)),
                    None => self.supervise(|s, now, out| s.handle_timeout(now, out)),
                }
            }
            (_, None) => panic!("nothing is left to happen, and the run has no end"),
        }
    }

    fn after(&mut self, delay: Duration, event: Ev) {
        self.sent += 1;
        self.queue.insert((self.now + delay, self.sent), event);
    }

    fn soon(&mut self, most_millis: u64, event: Ev) {
        let delay = self.rng.up_to(Duration::from_millis(most_millis));
        self.after(delay, event);
    }

    fn happen(&mut self, event: Ev) {
        match event {
            Ev::Start(m) => {
                if let Some(process) = self.processes.get_mut(&m).filter(|p| p.alive) {
                    process.started = true;
                    self.member(m, |m, now, out| m.start(now, out));
                }
            }
            Ev::ToSupervisor(bytes) => match decoded(&bytes) {
                Message::Report(report) if self.cut.contains(&report.member) => {}
                Message::Heartbeat(beat) if self.cut.contains(&beat.member) => {}
                Message::Report(report) => self.supervise(|s, now, out| s.handle_report(now, &report, out)),
                Message::Heartbeat(beat) => self.supervise(|s, now, _| s.handle_heartbeat(now, &beat)),
                other => panic!("a member never sends {other:?}"),
            },
            Ev::ToMember(m, bytes) => match decoded(&bytes) {
                Message::Directive(directive) => {
                    self.member(m, |m, now, out| m.handle_directive(now, &directive, out))
                }
                Message::Heartbeat(beat) => self.member(m, |m, now, _| m.handle_heartbeat(now, &beat)),
                other => panic!("a supervisor never sends {other:?}"),
            },
            Ev::Built(m, generation) => self.member(m, |m, _, out| m.handle_built(generation, out)),
            Ev::Loaded(m, generation, start) => {
                let (step, digest) = (start.step(), self.digest(m, start.step()));
                self.member(m, |m, now, out| m.handle_loaded(now, generation, step, digest, out));
            }
            Ev::Contribute(m, step) => self.contribute(m, step),
            Ev::Apply(m, step) => self.apply(m, step),
            Ev::Validated(m, epoch, step, stop) => self.validated(m, epoch, step, stop),
            Ev::Shard(m, id) => self.shard(m, id),
            Ev::Manifest(id) => {
                self.history.push(Fact::Manifest(id));
                self.supervise(|s, now, out| s.handle_manifest(now, id, Ok(()), out));
            }
            Ev::Recorded(step) => self.supervise(|s, now, _| s.handle_recorded(now, step)),
            Ev::Strike(m, fault) => self.strike(m, fault),
            Ev::Aborted(m) => {
                let generation = self.processes[&m].generation;
                let failure = Failure::CollectiveAborted("a peer is gone".to_owned());
                self.tell_steps(m);
                self.member(m, |m, now, out| m.handle_failure(now, generation, failure, out));
            }
            Ev::NotFinite(m, failure) => {
                let generation = self.processes[&m].generation;
                self.tell_steps(m);
                self.member(m, |m, now, out| m.handle_failure(now, generation, failure, out));
            }
            Ev::Gone(m, cause) => self.supervise(|s, now, out| s.handle_exit(now, m, cause, out)),
            Ev::Request(request) => self.supervise(|s, now, out| s.handle_request(now, request, out)),
        }
    }

    fn supervise(&mut self, call: impl FnOnce(&mut Supervisor, Instant, &mut Vec<SupervisorEffect>)) {
        let mut effects = Vec::new();
        call(&mut self.supervisor, self.now, &mut effects);
        for effect in effects {
            self.effects.push(effect.clone());
            match effect {
                SupervisorEffect::Send(d) => {
                    let to = d.member;
                    self.post(Message::Directive(d), |bytes| Ev::ToMember(to, bytes));
                }
                SupervisorEffect::Beat(b) => {
                    self.post(Message::Heartbeat(b), |bytes| Ev::ToMember(b.member, bytes))
                }
                SupervisorEffect::Commit(record) => {
                    self.history.push(Fact::Committed(record.step));
                    let slow = self.plan.reader_pauses.is_some_and(|(step, _)| step == record.step.0);
                    let pause = self.plan.reader_pauses.filter(|_| slow).map(|(_, pause)| pause);
                    self.written_at = self.now.max(self.written_at) + pause.unwrap_or_default();
                    self.sent += 1;
                    self.queue.insert((self.written_at, self.sent), Ev::Recorded(record.step));
                    let unwritten = self.queue.values().filter(|event| matches!(event, Ev::Recorded(_)));
                    self.most_unwritten = self.most_unwritten.max(unwritten.count());
                }
                SupervisorEffect::Validated(v) => self.history.push(Fact::Validated(v.epoch)),
                SupervisorEffect::WriteManifest(order) => {
                    let world = order.membership.world().0;
                    self.history.push(Fact::Ordered {
                        id: order.id,
                        shards: order.shards.len() as u32,
                        world,
                    });
                    self.soon(30, Ev::Manifest(order.id));
                }
                SupervisorEffect::Kill(m) => self.kill(m),
                SupervisorEffect::Event(_) | SupervisorEffect::Finish(_) => {}
            }
        }
    }

    fn member(&mut self, id: MemberId, call: impl FnOnce(&mut Member, Instant, &mut Vec<MemberEffect>)) {
        let Some(process) = self.processes.get_mut(&id).filter(|p| p.listens()) else { return };
        let mut effects = Vec::new();
        call(&mut process.machine, self.now, &mut effects);
        for effect in effects {
            self.carry_out(id, effect);
        }
    }

    fn carry_out(&mut self, id: MemberId, effect: MemberEffect) {
        let process = self.processes.get_mut(&id).expect("every member has a process");
        match effect {
            MemberEffect::Send(report) => self.post(Message::Report(report), Ev::ToSupervisor),
            MemberEffect::Beat(beat) => self.post(Message::Heartbeat(beat), Ev::ToSupervisor),
            MemberEffect::Build { generation, membership, .. } => {
                self.builds += 1;
                process.generation = generation;
                process.membership = membership;
                self.soon(50, Ev::Built(id, generation));
            }
            MemberEffect::Load { generation, start } => self.soon(50, Ev::Loaded(id, generation, start)),
            MemberEffect::Run { from_step, .. } => {
                process.next = Some(from_step);
                self.begin(id);
            }
            MemberEffect::AskStop => process.stop_wanted = true,
            MemberEffect::Pause => {
                process.paused = true;
                self.pauses += 1;
            }
            MemberEffect::Resume => {
                process.paused = false;
                if std::mem::take(&mut process.waiting) {
                    self.begin(id);
                }
            }
            MemberEffect::Settled(step) => {
                process.settled = step;
                if let Some((step, stop)) = process.held.take() {
                    self.validated_or_not(id, step, stop);
                }
            }
            MemberEffect::Abort => process.next = None,
            MemberEffect::Exit(exit) => {
                process.alive = false;
                self.soon(5, Ev::Gone(id, ExitCause::Code(exit.code())));
            }
        }
    }

    fn post(&mut self, message: Message, event: impl Fn(Vec<u8>) -> Ev) {
        let mut bytes = Vec::new();
        encode(&message, &mut bytes).expect("every message fits");
        self.largest_message = self.largest_message.max(bytes.len());
        let copies = 1 + u64::from(self.rng.percent(self.plan.repeat));
        for _ in 0..copies {
            if self.rng.percent(self.plan.loss) {
                continue;
            }
            // One in thirty is overtaken by many.
            let slow = if self.rng.below(30) == 0 { 6 } else { 1 };
            let delay = self.rng.up_to(self.plan.delay * slow);
            self.after(delay, event(bytes.clone()));
        }
    }

    /// The compute thread begins its next step, unless it is to wait.
    fn begin(&mut self, id: MemberId) {
        let process = self.processes.get_mut(&id).expect("every member has a process");
        let Some(step) = process.next else { return };
        if process.paused {
            process.waiting = true;
            return;
        }
        process.machine.handle_activity(Activity::Computing);
        let jitter = self.rng.up_to(self.plan.step / 4);
        self.after(self.plan.step + jitter, Ev::Contribute(id, step));
    }

    /// One rank puts its part into the all-reduce; the last one completes it for all.
    fn contribute(&mut self, id: MemberId, step: Step) {
        let process = self.processes.get_mut(&id).filter(|p| p.listens() && p.next == Some(step));
        let Some(process) = process else { return };
        process.machine.handle_activity(Activity::Reducing);
        let (world, stop) = (process.membership.seats.len(), u32::from(process.stop_wanted));
        let entry = self.parts.entry(step).or_default();
        entry.0.insert(id);
        entry.1 |= stop;
        if entry.0.len() == world {
            let all: Vec<MemberId> = entry.0.iter().copied().collect();
            for member in all {
                let delay = self.rng.up_to(self.plan.step / 4);
                self.after(delay, Ev::Apply(member, step));
            }
        }
    }

    fn apply(&mut self, id: MemberId, step: Step) {
        let process = self.processes.get_mut(&id).filter(|p| p.listens() && p.next == Some(step));
        let Some(process) = process else { return };
        let generation = process.generation;
        if let Some((_, micro_batch)) = self.plan.non_finite.filter(|(at, _)| *at == step.0) {
            // A loss that is not finite stands in the trailer. For a gradient, each rank computes its own again.
            let seat = &process.membership.seats[process.machine.rank().expect("it has a rank").index()];
            let own = (seat.range.lo..seat.range.hi).contains(&micro_batch);
            let in_trailer = self.plan.seed.is_multiple_of(2);
            let micro_batch = (own || in_trailer).then_some(dtrain_types::MicroBatch(micro_batch));
            let took = self.desk.up_to(self.plan.step * if in_trailer { 1 } else { 20 });
            return self.after(took, Ev::NotFinite(id, Failure::NonFinite { step, micro_batch }));
        }
        let stop = self.parts[&step].1;
        let epoch = Epoch(((step.0 - 1) / self.plan.schedule.steps_per_epoch) as u32);
        let trailer = Trailer { loss: 1.0 / step.0 as f64, samples: 8, stop, ..Trailer::EMPTY };
        let seconds = self.plan.step.as_secs_f64();
        let due = self.plan.schedule.after(step, stop);
        self.history.push(Fact::Applied { member: id, step });
        let digest = self.digest(id, step);
        let record = StepRecord { generation, step, epoch, trailer, seconds, lr: 1e-3, gradient_norm: 1.0 };
        let process = self.processes.get_mut(&id).expect("every member has a process");
        process.next = (!due.ends).then(|| step.next());
        process.gathered.push(record);
        let urgent = due.ends || due.checkpoint || due.validate.is_some() || due.verify;
        if urgent || self.desk.percent(60) {
            self.tell_steps(id);
        }
        if due.verify {
            self.member(id, |m, now, out| m.handle_verified(now, generation, step, digest, out));
        }
        match due.validate {
            Some(epoch) => {
                let took = self.rng.up_to(self.plan.step * 4);
                self.after(took, Ev::Validated(id, epoch, step, stop));
            }
            None => self.validated_or_not(id, step, stop),
        }
    }

    /// The machine hears of the steps gathered so far: before anything else that the compute thread tells.
    fn tell_steps(&mut self, id: MemberId) {
        let process = self.processes.get_mut(&id).expect("every member has a process");
        for record in std::mem::take(&mut process.gathered) {
            self.member(id, |m, now, out| m.handle_step(now, record, out));
        }
    }

    fn validated(&mut self, id: MemberId, epoch: Epoch, step: Step, stop: u32) {
        let process = &self.processes[&id];
        let generation = process.generation;
        let count = self.plan.schedule.validation_micro_batches;
        let rank = process.machine.rank().expect("it has a rank");
        let range = cut_evenly(count, process.membership.world().0)[rank.index()];
        let sum = |root: MicroRange| Trailer { samples: u64::from(root.len()), ..Trailer::EMPTY };
        let parts = roots(range, count).into_iter().map(|root| (root, sum(root))).collect();
        let part = ValidationPart { epoch, step, parts, counts: vec![u64::from(range.len())] };
        self.member(id, |m, now, out| m.handle_validation(now, generation, part, out));
        self.validated_or_not(id, step, stop);
    }

    /// What follows a step once its validation is done: a checkpoint in the background, the end, or the next step.
    fn validated_or_not(&mut self, id: MemberId, step: Step, stop: u32) {
        let due = self.plan.schedule.after(step, stop);
        let process = self.processes.get_mut(&id).expect("every member has a process");
        let generation = process.generation;
        if due.checkpoint {
            if process.begun > process.settled {
                process.held = Some((step, stop));
                self.holds += 1;
                return;
            }
            process.begun = step;
            self.soon(200, Ev::Shard(id, CheckpointId { generation, step }));
        }
        if due.ends {
            let (digest, state_digest) = (Digest([9; 32]), self.digest(id, step));
            let finished = Finished { step, digest, state_digest };
            return self.member(id, |m, now, out| m.handle_finished(now, generation, finished, out));
        }
        self.begin(id);
    }

    fn shard(&mut self, id: MemberId, checkpoint: CheckpointId) {
        if !self.processes[&id].listens() {
            return;
        }
        let rank = self.processes[&id].machine.rank().expect("it has a rank");
        let state_digest = self.digest(id, checkpoint.step);
        let outcome = if self.plan.disk_full == Some((id.0, checkpoint.step.0)) {
            ShardOutcome::Failed { reason: "no space left on device".to_owned() }
        } else {
            self.history.push(Fact::Durable { id: checkpoint, member: id });
            let file =
                ShardFile { name: format!("rank-{:05}", rank.0), bytes: Bytes(8), digest: state_digest };
            ShardOutcome::Durable { file, digest: Digest([9; 32]), state_digest }
        };
        let shard = ShardReport { id: checkpoint, rank, outcome };
        self.member(id, |m, now, out| m.handle_shard(now, shard, out));
    }

    fn strike(&mut self, id: MemberId, fault: Fault) {
        let process = self.processes.get_mut(&id).expect("every member has a process");
        if !process.listens() {
            return;
        }
        process.struck_in = Some(process.machine.stage().clone());
        let generation = process.generation;
        match fault {
            Fault::Kill => {
                process.alive = false;
                self.soon(5, Ev::Gone(id, ExitCause::Signal(9)));
            }
            Fault::Hang => process.hung = true,
            Fault::Fail => {
                process.next = None;
                let failure = Failure::Engine("out of memory".to_owned());
                self.tell_steps(id);
                self.member(id, |m, now, out| m.handle_failure(now, generation, failure, out));
            }
        }
        // Half of the peers notice before the supervisor says anything.
        let peers: Vec<MemberId> = self.processes.keys().copied().filter(|m| *m != id).collect();
        for peer in peers {
            if self.processes[&peer].next.is_some() && self.rng.percent(50) {
                self.soon(40, Ev::Aborted(peer));
            }
        }
    }

    fn kill(&mut self, id: MemberId) {
        let process = self.processes.get_mut(&id).expect("every member has a process");
        self.history.push(Fact::Killed(id));
        if std::mem::take(&mut process.alive) {
            self.soon(5, Ev::Gone(id, ExitCause::Signal(9)));
        }
    }

    fn digest(&self, id: MemberId, step: Step) -> Digest {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&step.0.to_le_bytes());
        bytes[31] = u8::from(self.plan.rotten.is_some_and(|(m, from)| m == id.0 && step.0 >= from));
        Digest(bytes)
    }
}

impl Process {
    fn new(plan: &Plan, member: MemberId) -> Self {
        let kernel_revision = if plan.other_bits == Some(member.0) { 2 } else { 1 };
        // Other instruction sets with the same self-test compute the same bits.
        let isa = if member.0.is_multiple_of(2) { "avx2" } else { "avx512" };
        let fingerprint = Fingerprint { isa: isa.to_owned(), self_test: Digest([5; 32]), kernel_revision };
        let host = format!("host-{member}");
        let profile = Profile { fingerprint, pid: 100 + member.0, host, device: "cpu".to_owned() };
        let start_id = StartId(plan.seed ^ u64::from(member.0 + 1));
        let config = MemberConfig { member, start_id, profile, timeouts: timeouts() };
        Self {
            machine: Member::new(config),
            started: false,
            alive: true,
            hung: false,
            struck_in: None,
            generation: Generation(0),
            membership: Membership::default(),
            next: None,
            stop_wanted: false,
            paused: false,
            waiting: false,
            begun: Step(0),
            settled: Step(0),
            gathered: Vec::new(),
            held: None,
        }
    }

    fn listens(&self) -> bool {
        self.started && self.alive && !self.hung
    }
}

fn decoded(bytes: &[u8]) -> Message {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    decoder.pull().expect("what was sent arrives whole").expect("one frame is one message")
}
