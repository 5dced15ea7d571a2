//! A thousand ranks form a generation: how many messages that takes, and how long, when each costs the supervisor what it
//! really costs.
//!
//! Only the machines and the codec are here; the network takes a tenth of a millisecond, and the supervisor is one
//! server: every message waits until those before it were read, handled and answered. What a message costs is measured
//! while it happens, and what the mailbox and the system calls of the real actor cost is added.

use dtrain_protocol::{
    BootId, Decoder, Digest, Every, Fingerprint, Left, Limits, Loaded, Losses, Member, MemberConfig,
    MemberEffect, Message, Node, NodeConfig, NodeEffect, Phase, Profile, Reduce, Schedule, StartFrom,
    Supervisor, SupervisorConfig, SupervisorEffect, Timeouts, encode,
};
use dtrain_types::{BatchPlan, Generation, Holding, Instance, Instant, MemberId, NodeId, Seed, Step};
use std::collections::BTreeMap;
use std::time::Duration;

const NODES: u32 = 125;
const RANKS: u32 = 1_000;
/// One way through the network.
const WAY: Duration = Duration::from_micros(100);
/// What a message costs the real actor besides codec and machine: a mailbox (1 us) and a system call for it (5 us).
const HANDLING: Duration = Duration::from_micros(6);
/// The stages of a member that nobody measures here: starting its process, building its plane, loading its state.
const WORK: Duration = Duration::from_millis(50);
/// The bound on messages: this many a rank, both ways together.
const MOST_PER_RANK: u64 = 12;

/// What happens, and when.
enum Event {
    ToSupervisor(Message),
    ToNode(NodeId, Message),
    ToMember(MemberId, Message),
    Does(MemberId, MemberEffect),
}

struct World {
    queue: BTreeMap<(Instant, u64), Event>,
    next: u64,
    supervisor: Supervisor,
    /// Until when the supervisor is busy.
    busy: Instant,
    nodes: BTreeMap<NodeId, Node>,
    members: BTreeMap<MemberId, Member>,
    homes: BTreeMap<MemberId, NodeId>,
    messages: u64,
    bytes: u64,
}

fn timeouts() -> Timeouts {
    Timeouts::derive(Duration::from_secs(10)).expect("in range")
}

/// What this thread has computed so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// Through the codec, as on a link.
fn carried(message: &Message) -> (Message, u64) {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("it fits");
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    (decoder.pull().expect("a message").expect("whole"), bytes.len() as u64)
}

impl World {
    fn new() -> Self {
        let schedule = Schedule {
            last: Step(10),
            steps_per_epoch: 10,
            checkpoint: Every::Never,
            validation: Every::Never,
            validation_micro_batches: 0,
            verify: 0,
        };
        let supervisor = Supervisor::new(SupervisorConfig {
            instance: Instance(1),
            wanted_nodes: NODES,
            most_nodes: NODES,
            most_ranks: RANKS,
            min_ranks: 1,
            join_timeout: Duration::from_secs(60),
            timeouts: timeouts(),
            losses: Losses::AreReplaced { max_restarts: 10 },
            reduce: Reduce::Exact,
            sharded: None,
            balance: false,
            batches: BatchPlan::new(Seed(1), u64::from(40 * RANKS), 4 * RANKS, 1).expect("ten steps"),
            schedule,
            taken_over: None,
            start: StartFrom::Fresh,
            first_generation: Generation(1),
            reserved: Generation(10),
        });
        let (queue, homes) = (BTreeMap::new(), BTreeMap::new());
        let mut world = Self {
            queue,
            next: 0,
            supervisor,
            busy: Instant::ZERO,
            nodes: BTreeMap::new(),
            members: BTreeMap::new(),
            homes,
            messages: 0,
            bytes: 0,
        };
        world.supervisor.start(Instant::ZERO);
        for node in (0..NODES).map(NodeId) {
            let ranks = RANKS / NODES;
            let config = NodeConfig {
                node,
                boot: BootId(1),
                host: format!("host-{node}"),
                ranks,
                timeouts: timeouts(),
            };
            let (mut machine, mut effects) = (Node::new(config), Vec::new());
            machine.start(Instant::ZERO, &mut effects);
            world.nodes.insert(node, machine);
            world.node_does(Instant::ZERO, node, effects);
        }
        world
    }

    fn at(&mut self, when: Instant, event: Event) {
        self.next += 1;
        self.queue.insert((when, self.next), event);
    }

    fn tell_supervisor(&mut self, now: Instant, message: Message) {
        self.messages += 1;
        self.at(now + WAY, Event::ToSupervisor(message));
    }

    fn node_does(&mut self, now: Instant, node: NodeId, effects: Vec<NodeEffect>) {
        for effect in effects {
            match effect {
                NodeEffect::Send(report) => self.tell_supervisor(now, Message::NodeReport(report)),
                NodeEffect::Start(member, incarnation) => {
                    let profile = Profile {
                        fingerprint: Fingerprint {
                            isa: "avx512".into(),
                            self_test: Digest([1; 32]),
                            kernel_revision: 1,
                        },
                        pid: member.0,
                        host: format!("host-{node}"),
                        device: "cpu".into(),
                        address: Some(([10, 0, 0, 1], 29_401).into()),
                        sees_run_folder: true,
                    };
                    let config = MemberConfig {
                        member,
                        incarnation,
                        profile,
                        timeouts: timeouts(),
                        limits: Limits::default(),
                    };
                    let (mut machine, mut effects) = (Member::new(config), Vec::new());
                    machine.start(now + WORK, &mut effects);
                    self.members.insert(member, machine);
                    self.homes.insert(member, node);
                    effects.into_iter().for_each(|effect| self.at(now + WORK, Event::Does(member, effect)));
                }
                _ => {}
            }
        }
    }

    /// The supervisor reads a message once it is free; its answers leave when all of them are made.
    fn supervisor_hears(&mut self, now: Instant, message: &Message) {
        let begun = cpu_time();
        let (message, bytes) = carried(message);
        let (start, mut effects) = (self.busy.max(now), Vec::new());
        match &message {
            Message::Report(report) => self.supervisor.handle_report(start, report, &mut effects),
            Message::NodeReport(report) => self.supervisor.handle_node_report(start, report, &mut effects),
            Message::Heartbeat(beat) => self.supervisor.handle_heartbeat(start, beat),
            _ => {}
        }
        // The disk is quicker than the ranks, which form meanwhile.
        let ranges = effects.iter().find_map(|effect| match effect {
            SupervisorEffect::WriteRanges(generation, _) => Some(*generation),
            _ => None,
        });
        if let Some(generation) = ranges {
            self.supervisor.handle_ranges(start, generation, &mut effects);
        }
        let mut answers = Vec::new();
        for effect in effects {
            match effect {
                SupervisorEffect::Send(directive) => answers.push(Message::Directive(directive)),
                SupervisorEffect::Order(order) => answers.push(Message::NodeOrder(order)),
                _ => {}
            }
        }
        let carried: Vec<(Message, u64)> = answers.iter().map(carried).collect();
        self.busy = start + (cpu_time() - begun) + HANDLING * (1 + carried.len() as u32);
        self.messages += carried.len() as u64;
        self.bytes += bytes + carried.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let arrives = self.busy + WAY;
        for (answer, _) in carried {
            match &answer {
                Message::NodeOrder(order) => self.at(arrives, Event::ToNode(order.node, answer)),
                Message::Directive(directive) => self.at(arrives, Event::ToMember(directive.member, answer)),
                _ => {}
            }
        }
    }

    fn member_does(&mut self, now: Instant, member: MemberId, effect: MemberEffect) {
        let mut effects = Vec::new();
        let Some(machine) = self.members.get_mut(&member) else { return };
        match effect {
            MemberEffect::Send(report) => return self.tell_supervisor(now, Message::Report(report)),
            MemberEffect::Quit { generation, .. } => {
                let left = Left { generation, applied: None, bootstrap: None };
                machine.handle_left(now, left, &mut effects);
            }
            MemberEffect::Build { generation, .. } => machine.handle_built(generation, &mut effects),
            MemberEffect::Load { generation, resume_point } => {
                let (applied, holding) = (resume_point.step, Holding::whole());
                let state_digest = Digest([7; 32]);
                machine.handle_loaded(
                    now,
                    Loaded { generation, applied, holding, state_digest },
                    &mut effects,
                );
            }
            _ => {}
        }
        effects.into_iter().for_each(|effect| self.at(now, Event::Does(member, effect)));
    }

    /// Runs until the generation does; when that is.
    fn run(&mut self) -> Instant {
        while self.supervisor.phase() != Phase::Run {
            let ((now, _), event) = self.queue.pop_first().expect("something goes on");
            let mut effects = Vec::new();
            match event {
                Event::ToSupervisor(message) => self.supervisor_hears(now, &message),
                Event::ToNode(node, Message::NodeOrder(order)) => {
                    let mut effects = Vec::new();
                    if let Some(machine) = self.nodes.get_mut(&node) {
                        machine.handle_order(now, &order, &mut effects);
                    }
                    self.node_does(now, node, effects);
                }
                Event::ToMember(member, Message::Directive(directive)) => {
                    if let Some(machine) = self.members.get_mut(&member) {
                        machine.handle_directive(now, &directive, &mut effects);
                    }
                    effects.into_iter().for_each(|effect| self.at(now, Event::Does(member, effect)));
                }
                Event::Does(member, effect) => self.member_does(now, member, effect),
                Event::ToNode(..) | Event::ToMember(..) => {}
            }
        }
        self.busy
    }
}

#[test]
fn a_thousand_ranks_form_a_generation_within_a_bounded_number_of_messages_a_rank() {
    let begun = std::time::Instant::now();
    let mut world = World::new();
    let took = world.run();
    assert_eq!(world.supervisor.membership().world().0, RANKS);
    assert_eq!(world.supervisor.generation(), Generation(1));
    println!(
        "{RANKS} ranks on {NODES} hosts: {} messages = {:.2} a rank, {:.1} MB; {:.0} ms of virtual time, {:.2} s of wall time",
        world.messages,
        world.messages as f64 / f64::from(RANKS),
        world.bytes as f64 / 1e6,
        took.since(Instant::ZERO).as_secs_f64() * 1e3,
        begun.elapsed().as_secs_f64()
    );
    assert!(world.messages <= MOST_PER_RANK * u64::from(RANKS), "{} messages", world.messages);
}
