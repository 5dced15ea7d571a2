//! A rank's compute thread as a machine: what it does on each order, and what it asks for.
//!
//! It mirrors the training loop of the runtime: build the data plane, load or copy the state, make steps, leave. It can be
//! told to leave at any moment and does so inside a collective or between two micro-batches; a step counts as made only
//! once its update is applied. It does not know time, the network or the control plane.

mod plane;
mod state;
mod steps;
mod words;

use crate::disk::Disk;
use crate::job::{Engine, flat};
use crate::sabotage::Sabotage;
use dtrain_collective::{Geometry, Membership, Mode, Op, RankMachine, Sequence};
use dtrain_engine::State;
use dtrain_protocol::{
    self as protocol, Activity, CheckpointId, Digest, Owed, Source, StartFrom, StopFlag, Truth,
};
use dtrain_types::{Epoch, Generation, Instant, MemberId, Merger, MicroRange, Rank, Step, StepPlan, Trailer};
use state::digest_as_floats;
use std::collections::{BTreeSet, VecDeque};
pub use words::{Ask, At, News, Parcel, ShardJob, Work};

/// Steps are collectives of these numbers and above; what comes before them builds and copies.
const FIRST_STEP: u64 = 1_000;
/// Pieces of a gradient that are given away before the rest of it is there.
const OFFERS: usize = 2;
/// Short, so that small worlds have several segments.
const SEGMENT: usize = 16;
/// Floats that carry a digest, two bytes in each.
const DIGEST_FLOATS: usize = 16;

/// What is left to do in this generation, in order.
#[derive(Clone, Debug)]
enum Todo {
    Verify(Step),
    Validate(Epoch, Step),
    AwaitValidated(Epoch),
    Save(Step),
    Step(Step),
    Finish,
}

/// What is being done.
#[derive(Debug)]
enum Task {
    Rest,
    Meet,
    Load(StartFrom),
    Copy(Copy),
    Micro(Box<Micro>),
    /// How many pieces were given away before the one that is on its way.
    Offer(Box<Micro>, usize),
    Reduce(StepPlan),
    Update(StepPlan, Trailer),
    Evaluate(Epoch, Step),
}

#[derive(Debug)]
struct Copy {
    sources: Vec<Rank>,
    targets: Vec<Rank>,
    step: Step,
    window: usize,
    /// A source's floats, or what a target has of them so far: fresh memory.
    floats: Vec<f32>,
    digest: [f32; DIGEST_FLOATS],
}

#[derive(Debug)]
struct Micro {
    plan: StepPlan,
    roots: Vec<MicroRange>,
    root: usize,
    next: u32,
    merger: Merger,
    pending: Vec<Trailer>,
    trailers: Vec<Trailer>,
}

/// The data plane of a generation.
#[derive(Debug)]
struct Plane {
    machine: RankMachine,
    members: protocol::Membership,
    generation: Generation,
    rank: Rank,
    sequence: u64,
    /// The second round of the collective in progress has begun.
    gathering: bool,
    /// Peers whose connections broke.
    lost: BTreeSet<MemberId>,
}

/// What the member tells the thread without a word in its queue.
#[derive(Clone, Copy, Debug, Default)]
struct Controls {
    paused: bool,
    stop: u32,
    validated: Option<Epoch>,
    settled: CheckpointId,
}

/// The compute thread of one life.
#[derive(Debug)]
pub struct Compute {
    state: Option<State>,
    plane: Option<Plane>,
    parked: Vec<Parcel>,
    /// Connections of data planes to come that broke already.
    broke_early: Vec<(Generation, MemberId)>,
    task: Task,
    todo: VecDeque<Todo>,
    controls: Controls,
    /// The generation for which this one is to be left.
    quit: Option<Generation>,
    saving: Option<CheckpointId>,
    last_saved: Option<CheckpointId>,
    ticket: u64,
    working: bool,
    begun: Instant,
    busy: f64,
    sabotage: Option<Sabotage>,
}

/// What a compute thread works with.
pub struct Tools<'a> {
    /// The engine of all ranks.
    pub engine: &'a mut Engine,
    /// The run folder.
    pub disk: &'a Disk,
    /// The time of its process.
    pub now: Instant,
    /// What it asks for.
    pub asks: &'a mut Vec<Ask>,
}

impl Tools<'_> {
    fn tell(&mut self, news: News) {
        self.asks.push(Ask::Tell(news));
    }
}

impl Compute {
    /// A thread without a state.
    #[must_use]
    pub fn new(sabotage: Option<Sabotage>) -> Self {
        Self {
            state: None,
            plane: None,
            parked: Vec::new(),
            broke_early: Vec::new(),
            task: Task::Rest,
            todo: VecDeque::new(),
            controls: Controls::default(),
            quit: None,
            saving: None,
            last_saved: None,
            ticket: 0,
            working: false,
            begun: Instant::ZERO,
            busy: 0.0,
            sabotage,
        }
    }

    /// The updates that its state holds.
    #[must_use]
    pub fn applied(&self) -> Option<Step> {
        self.state.as_ref().map(|state| state.applied)
    }

    /// Digest of its state.
    #[must_use]
    pub fn state_digest(&self) -> Option<Digest> {
        self.state.as_ref().map(|state| Digest(state.state_digest()))
    }

    /// How many frames wait for their collective (S10).
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// What it does and what is left to do, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let (todo, controls) = (&self.todo, &self.controls);
        let (work, parked) = (self.working, self.parked.len());
        format!("{:?}, working {work}, then {todo:?}, {controls:?}, {parked} parked", self.at())
    }

    /// What the member's driver would sample.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match &self.task {
            Task::Rest => match self.todo.front() {
                Some(Todo::Save(_)) => Activity::Saving,
                _ => Activity::Idle,
            },
            Task::Meet | Task::Load(_) | Task::Copy(_) => Activity::Preparing,
            Task::Micro(_) | Task::Offer(..) | Task::Update(..) => Activity::Computing,
            Task::Reduce(_) => Activity::Reducing,
            Task::Evaluate(..) => Activity::Validating,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn at(&self) -> At {
        let gathering = self.plane.as_ref().is_some_and(|plane| plane.gathering);
        let rank = self.plane.as_ref().map(|plane| plane.rank);
        match &self.task {
            Task::Rest => match self.todo.front() {
                Some(Todo::AwaitValidated(_)) => At::Validate,
                Some(Todo::Save(_)) => At::Save,
                _ => At::Rest,
            },
            Task::Meet => At::Build,
            Task::Load(_) => At::Load,
            Task::Copy(copy) if rank.is_some_and(|rank| copy.sources.contains(&rank)) => At::CopySource,
            Task::Copy(_) => At::CopyTarget,
            Task::Micro(_) => At::Compute,
            Task::Offer(..) => At::Offer,
            Task::Reduce(_) if gathering => At::Round2,
            Task::Reduce(_) => At::Round1,
            Task::Update(..) => At::Update,
            Task::Evaluate(..) => At::Validate,
        }
    }

    /// Order: meet all peers of a generation.
    pub fn build(
        &mut self,
        tools: &mut Tools<'_>,
        generation: Generation,
        rank: Rank,
        members: protocol::Membership,
    ) {
        assert!(matches!(self.task, Task::Rest) && self.plane.is_none(), "what was before is left first");
        let ranges = members.seats.iter().map(|seat| seat.range).collect();
        let membership = Membership { generation, rank, ranges };
        let micro_batches = tools.engine.job().plan.micro_batches();
        let geometry = Geometry::bound(tools.engine.gradient_len(), micro_batches, Mode::Exact);
        let mut machine = RankMachine::with_segment(membership, Mode::Exact, geometry, SEGMENT)
            .expect("the supervisor cuts ranges in order");
        machine.prepare(&tools.engine.job().counts());
        machine.start(Sequence(0), &Op::Barrier);
        self.broke_early.retain(|(of, _)| *of >= generation);
        let early = self.broke_early.iter().filter(|(of, _)| *of == generation);
        let (gathering, lost) = (false, early.map(|(_, peer)| *peer).collect::<BTreeSet<MemberId>>());
        let lost = lost.into_iter().filter(|peer| members.rank_of(*peer).is_some()).collect();
        self.plane = Some(Plane { machine, members, generation, rank, sequence: 0, gathering, lost });
        self.task = Task::Meet;
        self.began(tools);
    }

    /// Order: take this state.
    pub fn load(&mut self, tools: &mut Tools<'_>, truth: &Truth) {
        let Some(plane) = &self.plane else { return };
        match &truth.source {
            Source::Start(from) => {
                self.task = Task::Load(*from);
                self.work(tools, Work::Load);
            }
            Source::Ranks(sources) => {
                let world = plane.members.world().0;
                let targets: Vec<Rank> =
                    (0..world).map(Rank).filter(|rank| !sources.contains(rank)).collect();
                if targets.is_empty() {
                    return self.told_loaded(tools);
                }
                let is_source = sources.contains(&plane.rank);
                let mut copy = Copy {
                    sources: sources.clone(),
                    targets,
                    step: truth.step,
                    window: 0,
                    floats: Vec::new(),
                    digest: [0.0; DIGEST_FLOATS],
                };
                if is_source {
                    let state = self.state.as_ref().expect("a source has the state");
                    (copy.floats, copy.digest) = (flat(state), digest_as_floats(state.state_digest()));
                }
                self.task = Task::Copy(copy);
                self.work(tools, Work::Window);
            }
        }
    }

    /// Order: make steps.
    pub fn run(&mut self, tools: &mut Tools<'_>, from: Step, owed: Owed) {
        let Some(at) = self.applied() else { return };
        self.todo.clear();
        if let Some(epoch) = owed.validate {
            self.todo.push_back(Todo::Validate(epoch, at));
        }
        if owed.checkpoint {
            self.todo.push_back(Todo::Save(at));
        }
        if let Some(epoch) = owed.validate.filter(|_| !owed.ends) {
            self.todo.push_back(Todo::AwaitValidated(epoch));
        }
        self.todo.push_back(if owed.ends { Todo::Finish } else { Todo::Step(from) });
        self.go(tools);
    }

    /// Order: leave whatever is being done for the sake of a newer generation.
    pub fn quit(&mut self, tools: &mut Tools<'_>, generation: Generation) {
        self.quit = Some(generation);
        self.controls.stop = 0;
        if self.working && self.sabotage == Some(Sabotage::LeftTooEarly) {
            return tools.tell(News::Left { generation, applied: self.applied() });
        }
        if !self.working {
            self.leave(tools);
        }
    }

    /// The bits to set in the stop flag.
    pub fn ask_stop(&mut self, flag: StopFlag) {
        self.controls.stop |= flag.0;
    }

    /// Pause before the next step, or go on.
    pub fn pause(&mut self, tools: &mut Tools<'_>, paused: bool) {
        self.controls.paused = paused;
        self.go(tools);
    }

    /// All validations up to this one are recorded.
    pub fn validated(&mut self, tools: &mut Tools<'_>, epoch: Epoch) {
        self.controls.validated = self.controls.validated.max(Some(epoch));
        self.go(tools);
    }

    /// All checkpoints up to this one are settled.
    pub fn settled(&mut self, tools: &mut Tools<'_>, id: CheckpointId) {
        self.controls.settled = self.controls.settled.max(id);
        self.go(tools);
    }

    /// The shard that was being written is durable or given up.
    pub fn saved(&mut self, tools: &mut Tools<'_>) {
        self.saving = None;
        self.go(tools);
    }

    /// A peer's connection broke.
    pub fn peer_lost(&mut self, tools: &mut Tools<'_>, generation: Generation, peer: MemberId) {
        match &mut self.plane {
            Some(plane) if plane.generation == generation => {
                plane.lost.insert(peer);
                self.break_off_if_lost(tools);
            }
            _ => self.broke_early.push((generation, peer)),
        }
    }

    /// A frame arrived.
    pub fn arrived(&mut self, tools: &mut Tools<'_>, parcel: Parcel) {
        self.parked.push(parcel);
        self.pump(tools);
    }

    /// Work that was asked for is done.
    pub fn worked(&mut self, tools: &mut Tools<'_>, ticket: u64) {
        if !self.working || ticket != self.ticket {
            return;
        }
        self.working = false;
        let leaves = self.quit.is_some();
        match std::mem::replace(&mut self.task, Task::Rest) {
            // An update whose collective is over is applied: peers have it, too.
            Task::Update(plan, trailer) => self.update(tools, &plan, trailer),
            _ if leaves => {}
            Task::Micro(micro) => self.micro_batch(tools, micro),
            Task::Offer(micro, pieces) => self.offer(tools, micro, pieces + 1),
            Task::Evaluate(epoch, step) => self.evaluate(tools, epoch, step),
            Task::Load(from) => self.take_from(tools, from),
            Task::Copy(copy) => {
                self.task = Task::Copy(copy);
                self.begin_window(tools);
            }
            other => unreachable!("{other:?} is no work"),
        }
        if leaves { self.leave(tools) } else { self.go(tools) }
    }

    fn leave(&mut self, tools: &mut Tools<'_>) {
        let Some(generation) = self.quit.take() else { return };
        (self.task, self.plane) = (Task::Rest, None);
        self.todo.clear();
        self.parked.retain(|parcel| parcel.header.tag.generation >= generation);
        tools.tell(News::Left { generation, applied: self.applied() });
    }

    fn work(&mut self, tools: &mut Tools<'_>, work: Work) {
        self.ticket += 1;
        self.working = true;
        tools.asks.push(Ask::Work(self.ticket, work));
    }
}
