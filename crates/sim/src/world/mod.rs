//! The world: one supervisor, its hosts and their ranks, and everything between them, event after event.
//!
//! This file holds the state and the loop; what happens to each part is in the files beside it.

mod data;
mod event;
mod faults;
mod ghost;
mod hosts;
mod journal;
mod network;
mod ranks;
mod settings;
mod successor;
mod supervisor;

use crate::clock::{Clock, MILLI, SECOND};
use crate::compute::{Ask, Compute, News, Parcel, ShardJob};
use crate::coverage::Coverage;
use crate::disk::SimDisk;
use crate::fact::{Excuses, Fact, Invariant, Life, Violation};
use crate::fault::Planned;
use crate::job::{Engine, Oracle};
use crate::memory::HostMemory;
use crate::queue::{Class, Queue};
use crate::random::Chance;
use crate::sabotage::Sabotage;
use crate::situation::Situation;
use event::{Asleep, Entry, Event};
use network::Network;

use dtrain_protocol::{
    BootId, Digest, Limits, Member, MemberEffect, Node, NodeEffect, Outcome, Supervisor, SupervisorEffect,
    TakenOver, Timeouts,
};
use dtrain_types::{Generation, NodeId, Step};

pub use settings::{DataPlane, EndsBy, Settings};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// After the last fault a run ends within so long. *Units*: nanoseconds.
const BOUND: u64 = 90 * SECOND;
/// A hang that only patience finds takes this much longer.
const PATIENT_BOUND: u64 = 1_500 * SECOND;
/// A boundary that was asked for comes within so many steps, where no word is lost.
const BOUNDARY: u64 = 12;
/// No run has so many events.
const MOST_EVENTS: u64 = 6_000_000;

/// How a simulation went.
#[derive(Clone, Debug)]
pub struct SimReport {
    /// The seed.
    pub seed: u64,
    /// A hash over every event.
    pub trace: u64,
    /// The digest of the final state; none if the run did not come to its end.
    pub digest: Option<Digest>,
    /// How the run ended.
    pub outcome: Option<Outcome>,
    /// What was broken.
    pub violations: Vec<Violation>,
    /// Which fault met which place.
    pub coverage: Coverage,
    /// How many events there were.
    pub events: u64,
    /// How many generations.
    pub generations: u64,
    /// How long it took in virtual time. *Units*: seconds.
    pub seconds: f64,
    /// What happened, for people; empty unless asked for.
    pub story: Vec<String>,
}

/// Events that wait until something wakes.
#[derive(Default)]
struct Sleep {
    until: u64,
    waiting: Vec<(Class, Event)>,
}

/// A rank's process.
struct Process {
    life: Life,
    host: NodeId,
    boot: BootId,
    clock: Clock,
    member: Member,
    compute: Compute,
    armed: Option<u64>,
    /// When it last heard the supervisor.
    heard: u64,
    sleep: Sleep,
    hang: Sleep,
    /// How much slower than others it computes. *Units*: thousandths.
    slow: u64,
    /// When its last news gets through: news keeps its order.
    news_at: u64,
    generation: Generation,
    /// The newest generation in which it was told to be rank 0: it makes what that one needs to meet.
    first_in: Option<Generation>,
    place: Situation,
    /// It exits by itself with this code.
    exits: Option<i32>,
}

/// A host.
struct Host {
    node: Option<Node>,
    boot: BootId,
    clock: Clock,
    armed: Option<u64>,
    /// When it last heard the supervisor.
    heard: u64,
    sleep: Sleep,
    /// Until when words from it or to it may be lost, or late.
    muffled: u64,
    leaves: bool,
    /// What its ranks share, where they meet there.
    memory: Option<HostMemory>,
}

/// A supervisor that nobody obeys any more.
struct Ghost {
    supervisor: Supervisor,
    clock: Clock,
    until: u64,
}

/// The whole simulation.
struct World {
    settings: Settings,
    times: Timeouts,
    now: u64,
    queue: Queue<Event>,
    chance: Chance,
    engine: Engine,
    oracle: Oracle,
    disk: SimDisk,
    network: Network,
    supervisor: Supervisor,
    clock: Clock,
    supervisor_armed: Option<u64>,
    supervisor_sleep: Sleep,
    /// Since when it was heard by nobody, and how long it has stood still in all.
    stood_since: u64,
    stood: u64,
    /// When the supervisor has handled what came before.
    busy_until: u64,
    /// The supervisor's process is dead.
    dead: bool,
    /// What it has entered and is not on the disk yet, in order, and when the last of it is.
    journal: VecDeque<Entry>,
    journal_at: u64,
    /// What is on the disk of the run.
    on_disk: TakenOver,
    /// The generations of which the supervisor knows who computes what, and those of which the disk has it.
    ranges_known: BTreeSet<Generation>,
    ranges_on_disk: BTreeSet<Generation>,
    /// Which hosts were let in, as the disk has it.
    let_in: BTreeSet<NodeId>,
    /// The host whose supervisor died with it, where another one leads from then on.
    vacant: Option<NodeId>,
    /// A supervisor that was replaced and is not dead.
    ghost: Option<Ghost>,
    /// Whether the one that is held to be dead will turn out to be.
    wakes_again: bool,
    /// The newest generation that was ever reserved.
    reserved: Generation,
    /// The first one of the supervisor that is there.
    leads_by: Generation,
    hosts: Vec<Host>,
    processes: Vec<Option<Box<Process>>>,
    checkers: Vec<Box<dyn Invariant>>,
    planned: Vec<Planned>,
    /// Faults that have begun and end later, and how many times each place was entered.
    entered: [u32; Situation::ALL.len()],
    losses: u32,
    /// The committed step at which a boundary was asked for.
    asked: Option<Step>,
    /// The supervisor has told of a cause for another generation since the last one.
    caused: bool,
    named_resume_point: Generation,
    excuses: Excuses,
    /// When something was last done to each member, and to all.
    touched: Vec<u64>,
    touched_all: u64,
    /// When the last fault happened or ended, as far as is known.
    last_fault: u64,
    patient: bool,
    start_fails: bool,
    /// Lives that the supervisor has heard.
    answered: BTreeSet<Life>,
    /// Lives whose processes are on their way.
    starting: BTreeMap<Life, NodeId>,
    /// Lives that have begun.
    begun: BTreeSet<Life>,
    slow_start_until: u64,
    renamed: Situation,
    /// The disk takes so many times as long as a fast one.
    disk_slow: u64,
    /// How much members hold and say at once.
    limits: Limits,
    violations: Vec<Violation>,
    coverage: Coverage,
    trace: u64,
    events: u64,
    outcome: Option<Outcome>,
    story: Vec<String>,
    member_effects: Vec<MemberEffect>,
    supervisor_effects: Vec<SupervisorEffect>,
    node_effects: Vec<NodeEffect>,
    asks: Vec<Ask>,
}

/// Runs one simulation to its end. A panic of a machine is a violation, too: an assertion that only a bug can break.
///
/// *Order*: a function of the settings alone.
#[must_use]
pub fn simulate(settings: &Settings) -> SimReport {
    let mut world = World::new(settings.clone().drawn());
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "a panic without a message".to_owned());
        world.violations.push(Violation { invariant: "assertion", text });
    }
    world.report()
}

impl World {
    fn run(&mut self) {
        self.begin();
        while self.outcome.is_none() && self.violations.is_empty() {
            let Some((at, class, event)) = self.queue.pop() else {
                return self.fact(&Fact::NeverEnded("nothing is left to happen"));
            };
            self.now = at;
            self.events += 1;
            self.handle(class, event);
            self.check_time();
        }
        if !self.violations.is_empty() {
            self.tell_where_all_stand();
        }
    }

    fn new(settings: Settings) -> Self {
        let seed = settings.seed;
        let job = settings::job(&settings);
        let mut engine = Engine::new(&job);
        let oracle = Oracle::new(&mut engine);
        let mut chance = Chance::new(seed, 1);
        let planned = settings.faults.plan(&mut Chance::new(seed, 2), settings.plane.steps());
        let times = settings::times(&settings);
        let supervisor = Supervisor::new(settings::config(&settings, &job, times));
        let clock = draw_clock(&mut chance);
        let disk_slow = *chance.pick(&[1, 1, 4, 12]);
        // The usual limits are never met in so few steps.
        let limits = match chance.per_mille(500) {
            true => Limits { steps: 3, others: 1, unacknowledged: 6 },
            false => Limits::default(),
        };
        let hosts = (0..settings.nodes).map(|_| Host {
            node: None,
            boot: BootId(0),
            clock: draw_clock(&mut chance),
            armed: None,
            heard: 0,
            sleep: Sleep::default(),
            muffled: 0,
            leaves: false,
            memory: None,
        });
        let hosts = hosts.collect();
        let ranks = settings.ranks as usize;
        Self {
            times,
            now: 0,
            queue: Queue::new(Chance::new(seed, 3)),
            chance,
            engine,
            oracle,
            disk: SimDisk::default(),
            network: Network::new(ranks),
            supervisor,
            clock,
            supervisor_armed: None,
            supervisor_sleep: Sleep::default(),
            stood_since: 0,
            stood: 0,
            busy_until: 0,
            dead: false,
            journal: VecDeque::new(),
            journal_at: 0,
            on_disk: TakenOver::default(),
            ranges_known: BTreeSet::new(),
            ranges_on_disk: BTreeSet::new(),
            let_in: BTreeSet::new(),
            vacant: None,
            ghost: None,
            wakes_again: false,
            reserved: settings::RESERVED,
            leads_by: Generation(0),
            hosts,
            processes: (0..ranks).map(|_| None).collect(),
            checkers: crate::invariants::all(),
            planned,
            entered: [0; Situation::ALL.len()],
            losses: 0,
            asked: None,
            caused: false,
            named_resume_point: Generation(0),
            excuses: Excuses::default(),
            touched: vec![0; ranks],
            touched_all: 0,
            last_fault: 0,
            patient: false,
            start_fails: false,
            answered: BTreeSet::new(),
            starting: BTreeMap::new(),
            begun: BTreeSet::new(),
            slow_start_until: 0,
            renamed: Situation::Nobody,
            disk_slow,
            limits,
            violations: Vec::new(),
            coverage: Coverage::default(),
            trace: 0xCBF2_9CE4_8422_2325,
            events: 0,
            outcome: None,
            story: Vec::new(),
            member_effects: Vec::new(),
            supervisor_effects: Vec::new(),
            node_effects: Vec::new(),
            asks: Vec::new(),
            settings,
        }
    }

    fn begin(&mut self) {
        self.supervisor.start(self.clock.show(0));
        self.arm_supervisor();
        for host in 0..self.settings.nodes {
            let late = if host == 0 { 0 } else { self.chance.below(50 * MILLI) };
            self.push(late, Event::Boots(NodeId(host)));
        }
        self.plan_timed_faults();
    }

    /// Schedules an input.
    fn push(&mut self, after: u64, event: Event) {
        self.queue.push(self.now + after, Class::Input, event);
    }

    fn breaks(&self, promise: Sabotage) -> bool {
        self.settings.sabotage == Some(promise)
    }

    /// Mixes numbers into the trace.
    fn mark(&mut self, what: u64, numbers: &[u64]) {
        for number in [self.now, what].iter().chain(numbers) {
            self.trace = (self.trace ^ number).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(29);
        }
    }

    /// Adds a line to the story, if one is told.
    fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.settings.story {
            let at = self.now as f64 / SECOND as f64;
            self.story.push(format!("{at:>12.6}  {}", line()));
        }
    }

    /// Tells all checkers.
    fn fact(&mut self, fact: &Fact<'_>) {
        for checker in &mut self.checkers {
            if let Err(text) = checker.see(fact, &self.oracle) {
                self.violations.push(Violation { invariant: checker.name(), text });
            }
        }
    }

    fn check_time(&mut self) {
        let bound = if self.patient { PATIENT_BOUND } else { BOUND };
        if self.now > self.last_fault + bound || self.events > MOST_EVENTS {
            let text = format!(
                "generation {} is in phase {} at step {}, {} s after the last fault, {} events",
                self.supervisor.generation(),
                self.supervisor.phase(),
                self.supervisor.committed(),
                (self.now - self.last_fault) / SECOND,
                self.events,
            );
            self.fact(&Fact::NeverEnded(&text));
        }
    }

    fn tell_where_all_stand(&mut self) {
        for process in self.processes.iter().flatten() {
            let (life, member, compute) = (process.life, &process.member, &process.compute);
            let (stage, place) = (member.stage().clone(), process.place.name());
            let (generation, applied) = (member.generation(), compute.applied());
            self.story.push(format!(
                "{life}: generation {generation}, {stage:?}, {place}, applied {applied:?}, {}",
                compute.describe()
            ));
        }
    }

    fn handle(&mut self, class: Class, event: Event) {
        match event {
            Event::Fault(at) => self.begin_fault(at),
            Event::Heal(at) => self.end_fault(at),
            Event::LinksDie(at) => self.links_die(at),
            Event::Wake(asleep) => self.wake(asleep),
            Event::Boots(host) => self.boot(host),
            Event::SupervisorBegins => self.begin_supervisor(),
            Event::Ghost => self.haunt(),
            Event::Killed(life) => self.kill_now(life),
            Event::Expires { from, to, generation } => self.expire(from, to, generation),
            Event::Order(_) | Event::NodeTimer(..) | Event::Ended(..) | Event::Started(..) => {
                self.at_host(class, event);
            }
            Event::Directive(_)
            | Event::BeatDown(_)
            | Event::MemberTimer(_)
            | Event::News(..)
            | Event::Worked(..)
            | Event::HostMet(_)
            | Event::ShardWritten(..)
            | Event::ShardSynced(..)
            | Event::Frame { .. }
            | Event::PeerLost(..) => self.at_rank(class, event),
            _ => self.at_supervisor(class, event),
        }
    }

    /// Something that stood still goes on: what arrived meanwhile comes first, in its order.
    fn wake(&mut self, asleep: Asleep) {
        let now = self.now;
        let sleep = match asleep {
            Asleep::Supervisor => Some(&mut self.supervisor_sleep),
            Asleep::Host(host) => Some(&mut self.hosts[host.0 as usize].sleep),
            Asleep::Rank(life) => self.process_mut(life).map(|process| &mut process.sleep),
            Asleep::Compute(life) => self.process_mut(life).map(|process| &mut process.hang),
        };
        let Some(sleep) = sleep.filter(|sleep| now >= sleep.until) else { return };
        let mut waiting = std::mem::take(&mut sleep.waiting);
        waiting.sort_by_key(|(class, _)| *class);
        if asleep == Asleep::Supervisor && self.chance.per_mille(500) {
            // What arrived lies in sockets that nobody has read yet, and timers wait for nothing.
            waiting.reverse();
            waiting.sort_by_key(|(class, _)| std::cmp::Reverse(*class));
        }
        for (after, (class, event)) in waiting.into_iter().enumerate() {
            self.queue.push(now + after as u64, class, event);
        }
        self.tell(|| format!("{asleep:?} goes on"));
    }

    fn process_mut(&mut self, life: Life) -> Option<&mut Process> {
        let process = self.processes.get_mut(life.member.0 as usize)?.as_deref_mut()?;
        (process.life == life).then_some(process)
    }

    fn report(self) -> SimReport {
        let mut coverage = self.coverage;
        coverage.runs = [1, u64::from(self.last_fault == 0)];
        let digest = match &self.outcome {
            Some(Outcome::Finished(end) | Outcome::Interrupted(Some(end))) => Some(end.digest),
            _ => None,
        };
        SimReport {
            seed: self.settings.seed.0,
            trace: self.trace,
            digest,
            outcome: self.outcome,
            violations: self.violations,
            coverage,
            events: self.events,
            generations: self.supervisor.generation().0,
            seconds: self.now as f64 / SECOND as f64,
            story: self.story,
        }
    }
}

fn draw_clock(chance: &mut Chance) -> Clock {
    Clock { offset: chance.below(1_000 * SECOND), drift: chance.below(401) as i64 - 200 }
}
