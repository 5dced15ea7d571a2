//! A supervisor that takes over, and what it is told by hand: hosts that call, members that answer, time that passes.

use crate::support::{profile, timeouts};
use dtrain_protocol::{
    BootId, Digest, Ending, Event, Every, ExitCause, LifeOrder, LifeReport, Losses, NodeOrder, NodeReport,
    Number, Phase, Reduce, Report, Schedule, Stage, StartFrom, StepRecord, Supervisor, SupervisorConfig,
    SupervisorEffect, TakenOver,
};
use dtrain_types::{
    BatchPlan, Generation, Holding, Incarnation, Instance, Instant, MemberId, NodeId, Seed, Step,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The supervisor that died, and the one that takes over.
pub const BEFORE: Instance = Instance(1);
pub const OURS: Instance = Instance(2);
/// The generation in which the members were, and the one by which we lead.
pub const LAST: Generation = Generation(5);
pub const LEADS: Generation = Generation(10);
/// What is written down.
pub const RECORDED: Step = Step(8);

/// A supervisor for 4 ranks on 2 hosts.
pub fn config(taken_over: Option<TakenOver>) -> SupervisorConfig {
    let schedule = Schedule {
        last: Step(1_000),
        steps_per_epoch: 100,
        checkpoint: Every::Never,
        validation: Every::Epochs(1),
        validation_micro_batches: 0,
        verify: 0,
    };
    SupervisorConfig {
        instance: OURS,
        wanted_nodes: 2,
        most_nodes: 2,
        most_ranks: 4,
        min_ranks: 1,
        join_timeout: Duration::from_secs(60),
        timeouts: timeouts(),
        losses: Losses::AreReplaced { max_restarts: 10 },
        reduce: Reduce::Exact,
        sharded: None,
        balance: false,
        batches: BatchPlan::new(Seed(1), 800, 8, 1).expect("steps of eight"),
        schedule,
        start: StartFrom::Fresh,
        taken_over,
        first_generation: LEADS,
        reserved: Generation(20),
    }
}

/// A supervisor that takes over, and the newest order that each node has from it.
pub struct World {
    pub now: Instant,
    pub supervisor: Supervisor,
    pub numbers: u64,
    pub orders: BTreeMap<NodeId, NodeOrder>,
    pub asked: Vec<MemberId>,
    pub directed: Vec<MemberId>,
    /// Those who were told that the run is over.
    pub dismissed: Vec<MemberId>,
    pub faults: Vec<MemberId>,
    /// Steps that nobody can tell of.
    pub passed_over: Vec<(u64, u64)>,
    /// Who has answered, and how: they say it again and again.
    pub answered: BTreeMap<u32, Answer>,
}

/// What is written down of a run that goes on.
pub fn known() -> TakenOver {
    TakenOver { recorded: RECORDED, ..TakenOver::default() }
}

/// What a run ended with.
pub fn ending(step: Step) -> Ending {
    let (digest, state_digest) = (Digest([3; 32]), Digest([4; 32]));
    Ending { step, digest, state_digest, checkpoint: None, device_peak: None }
}

/// Where a member stands, and whom it obeys.
#[derive(Clone, Copy)]
pub struct Answer {
    pub generation: Generation,
    pub applied: Step,
    pub obeys: Instance,
}

/// The answer of a member that was in the last generation.
pub fn at(applied: u64) -> Answer {
    Answer { generation: LAST, applied: Step(applied), obeys: BEFORE }
}

impl World {
    pub fn new() -> Self {
        Self::elsewhere(None)
    }

    /// The host of this node led before.
    pub fn elsewhere(vacant: Option<NodeId>) -> Self {
        Self::of(config(Some(TakenOver { vacant, ..known() })))
    }

    /// The life before had told, or was to tell, that the run is over.
    pub fn over(step: Step) -> Self {
        let schedule = Schedule { last: RECORDED, ..config(None).schedule };
        Self::of(SupervisorConfig {
            schedule,
            ..config(Some(TakenOver { ending: Some(ending(step)), ..known() }))
        })
    }

    pub fn of(config: SupervisorConfig) -> Self {
        let mut supervisor = Supervisor::new(config);
        supervisor.start(Instant::ZERO);
        let (orders, answered) = (BTreeMap::new(), BTreeMap::new());
        let (asked, directed, dismissed, faults) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let now = Instant::ZERO;
        let passed_over = Vec::new();
        Self {
            now,
            supervisor,
            numbers: 0,
            orders,
            asked,
            directed,
            dismissed,
            faults,
            passed_over,
            answered,
        }
    }

    pub fn does(&mut self, effects: Vec<SupervisorEffect>) {
        for effect in effects {
            match effect {
                SupervisorEffect::Order(order) => {
                    self.orders.insert(order.node, *order);
                }
                SupervisorEffect::Beat(beat) => self.asked.push(beat.member),
                SupervisorEffect::Send(directive) => {
                    self.directed.push(directive.member);
                    if directive.phase == Phase::Finish {
                        self.dismissed.push(directive.member);
                    }
                }
                SupervisorEffect::Event(Event::Fault(cause)) => self.faults.push(cause.member),
                SupervisorEffect::Event(Event::PassedOver { from, to }) => {
                    self.passed_over.push((from.0, to.0))
                }
                SupervisorEffect::Commit(record) => {
                    // The disk takes its time for none.
                    let (now, mut effects) = (self.now, Vec::new());
                    self.supervisor.handle_recorded(now, record.step, &mut effects);
                    self.does(effects);
                }
                _ => {}
            }
        }
    }

    pub fn number(&mut self) -> Number {
        self.numbers += 1;
        Number(self.numbers)
    }

    /// What a host says that offers two ranks and obeyed our predecessor, if it has lives.
    pub fn host(&mut self, node: u32, lives: &[LifeReport]) -> NodeReport {
        NodeReport {
            instance: Some(BEFORE).filter(|_| !lives.is_empty()),
            generation: LAST,
            node: NodeId(node),
            boot: BootId(1),
            number: self.number(),
            seen: Number(3),
            host: "a".into(),
            ranks: 2,
            lives: lives.to_vec(),
            leaving: false,
        }
    }

    pub fn calls(&mut self, node: u32, lives: &[LifeReport]) {
        let report = self.host(node, lives);
        self.node_says(&report);
    }

    /// A host starts anew.
    pub fn boots(&mut self, node: u32, boot: u64) {
        let report = NodeReport { boot: BootId(boot), ..self.host(node, &[]) };
        self.node_says(&report);
    }

    pub fn node_says(&mut self, report: &NodeReport) {
        let (now, mut effects) = (self.now, Vec::new());
        self.supervisor.handle_node_report(now, report, &mut effects);
        self.does(effects);
    }

    pub fn answers(&mut self, member: u32, answer: Answer) {
        self.answered.insert(member, answer);
        self.says(member, answer, Stage::Running, &[]);
    }

    fn says(&mut self, member: u32, answer: Answer, stage: Stage, steps: &[StepRecord]) {
        let Answer { generation, applied, obeys } = answer;
        let report = Report {
            instance: Some(obeys),
            generation,
            member: MemberId(member),
            incarnation: Incarnation(1),
            number: self.number(),
            seen: Number(3),
            profile: profile(),
            stage,
            activity: dtrain_protocol::Activity::Idle,
            applied: Some(applied),
            holding: Holding::whole(),
            bootstrap: None,
            verified: None,
            steps: steps.to_vec(),
            validations: Vec::new(),
            shards: Vec::new(),
        };
        let (now, mut effects) = (self.now, Vec::new());
        self.supervisor.handle_report(now, &report, &mut effects);
        self.does(effects);
    }

    /// A member has left all that was before the generation of ours, and stands there.
    pub fn enters(&mut self, member: u32, applied: u64) {
        self.enters_and_tells(member, applied, &[]);
    }

    /// The same, and has these records.
    pub fn enters_and_tells(&mut self, member: u32, applied: u64, steps: &[StepRecord]) {
        let generation = self.supervisor.generation();
        self.says(member, Answer { generation, applied: Step(applied), obeys: OURS }, Stage::Formed, steps);
    }

    /// Time passes, in steps that are no standstill.
    pub fn wait(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 50 {
            self.now = self.now + Duration::from_millis(50);
            let (now, mut effects) = (self.now, Vec::new());
            self.supervisor.handle_timeout(now, &mut effects);
            self.does(effects);
            self.answered.clone().into_iter().for_each(|(member, answer)| self.answers(member, answer));
        }
    }

    /// What a node is to have in a slot.
    pub fn ordered(&self, node: u32, member: u32) -> Option<LifeOrder> {
        let order = self.orders.get(&NodeId(node))?;
        order.members.iter().find(|life| life.member == MemberId(member)).copied()
    }

    /// Whether a node is to keep the first life of a slot.
    pub fn is_kept(&self, node: u32, member: u32) -> bool {
        self.ordered(node, member).is_some_and(|life| life.alive && life.incarnation == Incarnation(1))
    }

    pub fn members(&self) -> Vec<u32> {
        self.supervisor.membership().participants.iter().map(|participant| participant.member.0).collect()
    }
}

pub fn lives(member: u32) -> LifeReport {
    LifeReport { member: MemberId(member), incarnation: Incarnation(1), ended: None }
}

pub fn ended(member: u32) -> LifeReport {
    LifeReport { ended: Some(ExitCause::Signal(9)), ..lives(member) }
}

pub fn left(member: u32) -> LifeReport {
    LifeReport { ended: Some(ExitCause::Code(0)), ..lives(member) }
}

/// Members 0 and 1 are on host 0, 2 and 3 on host 1, and both hosts have called.
pub fn found() -> World {
    let mut world = World::new();
    world.calls(0, &[lives(0), lives(1)]);
    world.calls(1, &[lives(2), lives(3)]);
    world
}
