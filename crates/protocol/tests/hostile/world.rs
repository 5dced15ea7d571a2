//! A small world of machines that hear each other at once: what is said goes from one to the next, time passes when it is told to, and
//! processes can be killed. It asserts nothing of what its tests look for.

use crate::support::{profile, timeouts};
use dtrain_protocol::{
    BOOTSTRAP_BYTES, BootId, Bootstrap, Digest, Directive, Ending, Every, ExitCause, Judgement, Left, Limits,
    Loaded, Losses, Member, MemberConfig, MemberEffect, Message, Node, NodeConfig, NodeEffect, Phase, Reduce,
    Report, Schedule, StartFrom, StepRecord, Supervisor, SupervisorConfig, SupervisorEffect,
};
use dtrain_types::{
    BatchPlan, CheckpointId, Epoch, Generation, Holding, Instance, Instant, MemberId, NodeId, Rank, Seed,
    Step, Trailer,
};
use std::collections::BTreeMap;
use std::time::Duration;

pub const RANKS: u32 = 3;

/// Machines that hear each other at once and lose nothing.
pub struct World {
    pub now: Instant,
    pub supervisor: Supervisor,
    pub node: Node,
    pub members: BTreeMap<MemberId, Member>,
    /// Everything that was said, to be changed and said again.
    pub said: Vec<Message>,
    /// Every data plane that a member was told to build: its generation, who is rank 0 there, and by what they meet.
    pub built: Vec<(Generation, MemberId, Option<Bootstrap>)>,
    /// Every checkpoint whose manifest was asked for.
    pub manifests: Vec<CheckpointId>,
    /// Numbers of generations cannot be reserved.
    pub deaf_disk: bool,
    /// What is to be recorded waits.
    pub slow_journal: bool,
    /// Who computes what is to be written down, and waits.
    pub slow_ranges: bool,
    /// How the run ended, as it is to be written down; it is not yet.
    pub endings: Vec<Ending>,
}

/// What a member makes as rank 0 of a generation: nobody else makes the same, nor it in another generation.
pub fn made(generation: Generation, member: MemberId) -> Bootstrap {
    let mut bytes = [0; BOOTSTRAP_BYTES];
    bytes[..8].copy_from_slice(&generation.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&member.0.to_le_bytes());
    Bootstrap(bytes)
}

/// The supervisor of a small world on one host.
pub fn config(reserved: Generation) -> SupervisorConfig {
    let schedule = Schedule {
        last: Step(1_000),
        steps_per_epoch: 2,
        checkpoint: Every::Steps(3),
        validation: Every::Epochs(1),
        validation_micro_batches: 4,
        verify: 1,
    };
    SupervisorConfig {
        instance: Instance(1),
        wanted_nodes: 1,
        most_nodes: 1,
        most_ranks: RANKS,
        min_ranks: 1,
        join_timeout: Duration::from_secs(60),
        timeouts: timeouts(),
        losses: Losses::AreReplaced { max_restarts: 10 },
        reduce: Reduce::Exact,
        sharded: None,
        balance: true,
        batches: BatchPlan::new(Seed(1), 14, 8, 1).expect("a second step of six"),
        schedule,
        start: StartFrom::Fresh,
        taken_over: None,
        first_generation: Generation(1),
        reserved,
    }
}

impl World {
    pub fn in_run() -> Self {
        Self::with_reserved(Generation(100))
    }

    pub fn with_reserved(reserved: Generation) -> Self {
        Self::of(config(reserved))
    }

    pub fn of(config: SupervisorConfig) -> Self {
        let reserved = config.reserved;
        let node = NodeConfig {
            node: NodeId(0),
            boot: BootId(1),
            host: "a".into(),
            ranks: RANKS,
            timeouts: timeouts(),
        };
        let mut world = Self {
            now: Instant::ZERO,
            supervisor: Supervisor::new(config),
            node: Node::new(node),
            members: BTreeMap::new(),
            said: Vec::new(),
            built: Vec::new(),
            manifests: Vec::new(),
            deaf_disk: reserved == Generation(1),
            slow_journal: false,
            slow_ranges: false,
            endings: Vec::new(),
        };
        world.supervisor.start(world.now);
        let mut effects = Vec::new();
        world.node.start(world.now, &mut effects);
        world.run_node(effects);
        assert_eq!(world.supervisor.phase(), Phase::Run);
        for step in 1..=3 {
            world.step(step);
        }
        world
    }

    /// All members make a step.
    pub fn step(&mut self, step: u64) {
        self.now = self.now + Duration::from_millis(100);
        for member in self.members.keys().copied().collect::<Vec<_>>() {
            let record = StepRecord {
                generation: self.supervisor.generation(),
                step: Step(step),
                epoch: Epoch((step as u32 - 1) / 2),
                trailer: Trailer { weight: 1.0, samples: 1, ..Trailer::EMPTY },
                seconds: 0.1,
                busy: 0.05,
                lr: 1e-3,
                gradient_norm: 1.0,
            };
            let (now, mut effects) = (self.now, Vec::new());
            if let Some(machine) = self.members.get_mut(&member) {
                machine.handle_step(now, record, &mut effects);
            }
            self.run_member(member, effects);
        }
    }

    pub fn run_supervisor(&mut self, effects: Vec<SupervisorEffect>) {
        for effect in effects {
            match effect {
                SupervisorEffect::Send(directive) => {
                    self.said.push(Message::Directive(directive.clone()));
                    self.direct(&directive);
                }
                SupervisorEffect::Beat(beat) => {
                    self.said.push(Message::Heartbeat(beat));
                    let now = self.now;
                    let meant = self.members.get_mut(&beat.member);
                    meant.into_iter().for_each(|member| member.handle_heartbeat(now, &beat));
                }
                SupervisorEffect::Order(order) => {
                    self.said.push(Message::NodeOrder(order.clone()));
                    let mut effects = Vec::new();
                    self.node.handle_order(self.now, &order, &mut effects);
                    self.run_node(effects);
                }
                SupervisorEffect::Reserve(upto) if !self.deaf_disk => {
                    let mut effects = Vec::new();
                    self.supervisor.handle_reserved(self.now, upto, &mut effects);
                    self.run_supervisor(effects);
                }
                SupervisorEffect::WriteRanges(generation, _) if !self.slow_ranges => {
                    let mut effects = Vec::new();
                    self.supervisor.handle_ranges(self.now, generation, &mut effects);
                    self.run_supervisor(effects);
                }
                SupervisorEffect::WriteManifest(order) => self.manifests.push(order.id),
                SupervisorEffect::Commit(record) if !self.slow_journal => {
                    let mut effects = Vec::new();
                    self.supervisor.handle_recorded(self.now, record.step, &mut effects);
                    self.run_supervisor(effects);
                }
                SupervisorEffect::WriteEnding(ending) => self.endings.push(ending),
                SupervisorEffect::Validated(validation) => {
                    let mut effects = Vec::new();
                    self.supervisor.handle_judged(self.now, validation.step, Judgement::GoOn, &mut effects);
                    self.run_supervisor(effects);
                }
                _ => {}
            }
        }
    }

    pub fn direct(&mut self, directive: &Directive) {
        let (now, mut effects) = (self.now, Vec::new());
        if let Some(member) = self.members.get_mut(&directive.member) {
            member.handle_directive(now, directive, &mut effects);
        }
        self.run_member(directive.member, effects);
    }

    pub fn run_node(&mut self, effects: Vec<NodeEffect>) {
        for effect in effects {
            match effect {
                NodeEffect::Send(report) => {
                    self.said.push(Message::NodeReport(report.clone()));
                    let mut effects = Vec::new();
                    self.supervisor.handle_node_report(self.now, &report, &mut effects);
                    self.run_supervisor(effects);
                }
                NodeEffect::Start(member, incarnation) => {
                    let config = MemberConfig {
                        member,
                        incarnation,
                        profile: profile(),
                        timeouts: timeouts(),
                        limits: Limits::default(),
                    };
                    let (mut machine, mut effects) = (Member::new(config), Vec::new());
                    machine.start(self.now, &mut effects);
                    self.members.insert(member, machine);
                    self.run_member(member, effects);
                }
                _ => {}
            }
        }
    }

    pub fn run_member(&mut self, member: MemberId, effects: Vec<MemberEffect>) {
        for effect in effects {
            let (now, mut more) = (self.now, Vec::new());
            if let MemberEffect::Beat(beat) = &effect {
                self.supervisor.handle_heartbeat(now, beat);
                continue;
            }
            if let MemberEffect::Send(report) = &effect {
                self.said.push(Message::Report(report.clone()));
                self.report(report);
                continue;
            }
            let Some(machine) = self.members.get_mut(&member) else { return };
            match effect {
                MemberEffect::Quit { generation, rank } => {
                    let applied = machine.applied();
                    let bootstrap = (rank == Rank(0)).then(|| made(generation, member));
                    machine.handle_left(now, Left { generation, applied, bootstrap }, &mut more);
                }
                MemberEffect::Build { generation, membership, bootstrap, .. } => {
                    self.built.push((generation, membership.participants[0].member, bootstrap));
                    machine.handle_built(generation, &mut more);
                }
                MemberEffect::Load { generation, resume_point } => {
                    let (applied, holding) = (resume_point.step, Holding::whole());
                    let state_digest = Digest([7; 32]);
                    machine.handle_loaded(
                        now,
                        Loaded { generation, applied, holding, state_digest },
                        &mut more,
                    );
                }
                _ => {}
            }
            self.run_member(member, more);
        }
    }

    pub fn report(&mut self, report: &Report) {
        let mut effects = Vec::new();
        self.supervisor.handle_report(self.now, report, &mut effects);
        self.run_supervisor(effects);
    }

    /// A process ends by a signal. The others go on, and it comes back.
    pub fn kill(&mut self, member: MemberId) {
        self.ends(member, ExitCause::Signal(9));
    }

    /// A process ends in good order.
    pub fn leave(&mut self, member: MemberId) {
        self.ends(member, ExitCause::Code(0));
    }

    fn ends(&mut self, member: MemberId, cause: ExitCause) {
        let slots = self.said.iter().rev();
        let order = |word: &Message| match word {
            Message::NodeOrder(order) => order.members.iter().find(|life| life.member == member).copied(),
            _ => None,
        };
        let Some(life) = slots.filter_map(order).next() else { return };
        let (now, mut effects) = (self.now, Vec::new());
        self.node.handle_ended(now, member, life.incarnation, cause, &mut effects);
        self.run_node(effects);
    }

    /// Tells every machine what came, as if it were theirs.
    pub fn hear(&mut self, message: Message) {
        let (now, mut effects) = (self.now, Vec::new());
        match message {
            Message::Report(report) => self.report(&report),
            Message::Directive(directive) => self.direct(&directive),
            Message::Heartbeat(beat) => {
                self.supervisor.handle_heartbeat(now, &beat);
                self.members.values_mut().for_each(|member| member.handle_heartbeat(now, &beat));
            }
            Message::NodeReport(report) => {
                self.supervisor.handle_node_report(now, &report, &mut effects);
                self.run_supervisor(effects);
            }
            Message::NodeOrder(order) => {
                let mut effects = Vec::new();
                self.node.handle_order(now, &order, &mut effects);
                self.run_node(effects);
            }
            _ => {}
        }
    }

    /// The supervisor's next deadline comes. It is never in the past: a driver would spin.
    pub fn wait_for_the_deadline(&mut self) {
        let due = self.supervisor.next_deadline().expect("the run goes on");
        assert!(due > self.now, "a deadline in the past");
        self.wait(due.since(self.now).as_millis() as u64 + 1);
        self.wake_members();
    }

    /// Timers of all members.
    pub fn wake_members(&mut self) {
        for member in self.members.keys().copied().collect::<Vec<_>>() {
            let (now, mut effects) = (self.now, Vec::new());
            if let Some(machine) = self.members.get_mut(&member) {
                machine.handle_timeout(now, &mut effects);
            }
            self.run_member(member, effects);
        }
    }

    /// Time passes: timers of all machines.
    pub fn wait(&mut self, milliseconds: u64) {
        self.now = self.now + Duration::from_millis(milliseconds);
        let (now, mut effects) = (self.now, Vec::new());
        self.supervisor.handle_timeout(now, &mut effects);
        self.run_supervisor(effects);
        let mut effects = Vec::new();
        self.node.handle_timeout(now, &mut effects);
        self.run_node(effects);
    }
}
