//! A rank's compute thread as a machine: what it does on each order, and what it asks for.
//!
//! What comes next is said by the [`Agenda`], as in the runtime: it builds the data plane, loads, copies or adopts the state, does one
//! task after the other, and leaves. It can be told to leave at any moment and does so inside a collective or between two
//! micro-batches; a step counts as made only once its update is applied. It does not know time, the network or the control plane.

use crate::compute::doing::DIGEST_FLOATS;
mod doing;
mod holding;
mod host;
mod host_plane;
mod plane;
mod replay;
mod rounds;
mod shards;
mod shared;
mod state;
mod steps;
mod tools;
mod watched;
mod windowed;
mod words;

use crate::job::{Engine, flat};
use crate::sabotage::Sabotage;
use doing::{Computed, Copying, Doing, ROOM, SEGMENT, digest_as_floats};
use dtrain_collective::{Assignment, Geometry, HostArena, RankMachine, Reduce, Take};
use dtrain_engine::{Sharer, State};
use dtrain_protocol::{
    self as protocol, Activity, Agenda, Digest, Pending, ResumePoint, Signals, StateHolder, StateSource,
    StopFlag, Task,
};
use dtrain_rounds::Rounds;
use dtrain_types::{CheckpointId, Generation, Instant, MemberId, Rank, Step, Trailer};
use host_plane::HostPlane;
use std::collections::BTreeSet;
use windowed::{Pass, Relics};

pub use holding::Shards;
pub use tools::Tools;
pub use watched::Lent;
pub use words::{Ask, At, News, Parcel, ShardJob, Work};

/// The data plane of a generation.
#[derive(Debug)]
struct Plane {
    /// Frames between ranks: between all, or between the leaders of hosts.
    machine: RankMachine,
    /// The members whose frames these are, by their rank in the machine.
    peers: Vec<MemberId>,
    /// The place in the memory of the host, where ranks meet there.
    host: Option<HostPlane>,
    /// The state that all start from.
    resume_point: Step,
    members: protocol::Membership,
    generation: Generation,
    rank: Rank,
    sequence: u64,
    /// The second round of the collective in progress has begun.
    gathering: bool,
    /// Peers whose connections broke.
    lost: BTreeSet<MemberId>,
    /// How a step is made, where nobody has all of a gradient.
    rounds: Option<Rounds>,
    /// What lay where ranks tell one another what they measured of a sum.
    displaced: Vec<f32>,
}

/// The compute thread of one life.
#[derive(Debug)]
pub struct Compute {
    state: Option<State>,
    plane: Option<Plane>,
    parked: Vec<Parcel>,
    /// Connections of data planes to come that broke already.
    broke_early: Vec<(Generation, MemberId)>,
    doing: Doing,
    agenda: Agenda,
    signals: Signals,
    /// The checkpoint that it copied its share for last.
    copied: Option<CheckpointId>,
    /// The bits to set in the next trailer's stop flag.
    stop: StopFlag,
    /// Its part in the state of the host, where ranks share one.
    sharer: Option<Sharer>,
    /// What it holds, where ranks hold shards.
    shards: Option<Shards>,
    computed: Option<Computed>,
    /// What a broken promise keeps of rounds.
    relics: Relics,
    /// The generation for which this one is to be left.
    quit: Option<Generation>,
    ticket: u64,
    working: bool,
    begun: Instant,
    busy: f64,
    sabotage: Option<Sabotage>,
}

impl Compute {
    /// A thread without a state; with a part in that of its host, where ranks share one, or holding nothing yet, where they hold shards.
    #[must_use]
    pub fn new(
        agenda: Agenda,
        (sharer, shards): (Option<Sharer>, Option<Shards>),
        sabotage: Option<Sabotage>,
    ) -> Self {
        Self {
            state: None,
            plane: None,
            parked: Vec::new(),
            broke_early: Vec::new(),
            doing: Doing::Rest,
            agenda,
            signals: Signals::default(),
            copied: None,
            stop: StopFlag::default(),
            sharer,
            shards,
            computed: None,
            relics: Relics::default(),
            quit: None,
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
        match (&self.sharer, &self.shards) {
            (Some(sharer), _) => sharer.applied(),
            (None, Some(shards)) => shards.applied(),
            (None, None) => self.state.as_ref().map(|state| state.applied),
        }
    }

    /// Whether it reads a state that it shares.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.sharer.as_ref().is_some_and(|sharer| sharer.applied().is_some())
    }

    /// Digest of a state of its own.
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
        let (next, signals) = (self.agenda.next(), &self.signals);
        let (work, parked) = (self.working, self.parked.len());
        format!("{:?}, working {work}, then {next:?}, {signals:?}, {parked} parked", self.at())
    }

    /// What the member's driver would sample.
    #[must_use]
    pub fn activity(&self) -> Activity {
        match &self.doing {
            Doing::Rest => match self.agenda.next() {
                Some(Task::Checkpoint(_)) => Activity::Saving,
                _ => Activity::Idle,
            },
            Doing::Reach
            | Doing::Load(_)
            | Doing::Copy(_)
            | Doing::Share(_)
            | Doing::Complete
            | Doing::Open => Activity::Preparing,
            Doing::Micro(_) | Doing::Offer(..) | Doing::Update(_) | Doing::UpdateShare(_) => {
                Activity::Computing
            }
            Doing::Reduce | Doing::Agree | Doing::Meet | Doing::Gather | Doing::GatherAll(_) => {
                Activity::Reducing
            }
            Doing::Evaluate(..) => Activity::Validating,
            // Whoever computes does not say so each time that it waits for a window.
            Doing::Pass(windowed) => match &windowed.pass {
                Pass::Validation(_) => Activity::Validating,
                pass if self.computes_in(pass) => Activity::Computing,
                Pass::Round { .. } | Pass::Trailers => Activity::Reducing,
            },
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn at(&self) -> At {
        let gathering = self.plane.as_ref().is_some_and(|plane| plane.gathering);
        let rank = self.plane.as_ref().map(|plane| plane.rank);
        match &self.doing {
            Doing::Rest => match self.agenda.next() {
                Some(Task::AwaitValidation(_)) => At::Validate,
                Some(Task::Checkpoint(_)) => At::Save,
                _ => At::Rest,
            },
            Doing::Reach => At::Build,
            Doing::Load(_) | Doing::Open => At::Load,
            Doing::Complete => At::Complete,
            Doing::Copy(copy) if rank.is_some_and(|rank| copy.sources.contains(&rank)) => At::CopySource,
            Doing::Copy(_) => At::CopyTarget,
            Doing::Micro(_) => At::Compute,
            Doing::Offer(..) => At::Offer,
            Doing::Reduce if gathering => At::Round2,
            Doing::Reduce => At::Round1,
            Doing::Update(_) => At::Update,
            Doing::UpdateShare(_) => At::UpdateShare,
            Doing::Share(_) => At::ShareOut,
            Doing::Agree | Doing::Gather => At::Gather,
            Doing::GatherAll(_) => At::GatherAll,
            Doing::Meet => At::Meet,
            Doing::Evaluate(..) => At::Validate,
            Doing::Pass(windowed) => match (&windowed.pass, windowed.takes) {
                (Pass::Validation(_), _) => At::Validate,
                (_, None) => At::Compute,
                (_, Some(Take::Rest)) => At::Gather,
                (_, Some(Take::Needed)) => At::Round1,
                (_, Some(Take::All)) => At::Round2,
            },
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
        assert!(matches!(self.doing, Doing::Rest) && self.plane.is_none(), "what was before is left first");
        let holder = if self.sharer.is_some() { StateHolder::Host } else { StateHolder::Rank };
        let host = tools.memory.is_some().then(|| HostPlane::new(&members, rank, holder));
        let (membership, peers) = match &host {
            Some(participant) => participant.leaders(&members, generation),
            None => {
                let ranges = members.participants.iter().map(|participant| participant.range).collect();
                let peers = members.participants.iter().map(|participant| participant.member).collect();
                (Assignment { generation, rank, ranges }, peers)
            }
        };
        let in_windows = self.shards.as_ref().is_some_and(|shards| shards.windows.is_some());
        let slots = if in_windows { window_geometry(tools.engine) } else { geometry(tools.engine) };
        let mut machine = RankMachine::with_segment(membership, Reduce::Exact, slots, SEGMENT)
            .expect("the supervisor cuts ranges in order")
            .with_room_for(ROOM);
        machine.prepare(&tools.engine.job().counts());
        self.broke_early.retain(|(of, _)| *of >= generation);
        let early = self.broke_early.iter().filter(|(of, _)| *of == generation);
        let (gathering, lost) = (false, early.map(|(_, peer)| *peer).collect::<BTreeSet<MemberId>>());
        let lost = lost.into_iter().filter(|peer| peers.contains(peer)).collect();
        let (sequence, resume_point) = (0, Step(0));
        self.plane = Some(Plane {
            displaced: Vec::new(),
            machine,
            peers,
            host,
            resume_point,
            members,
            generation,
            rank,
            sequence,
            gathering,
            lost,
            rounds: None,
        });
        self.prepare(tools);
        self.doing = Doing::Reach;
        self.enter(tools);
    }

    /// Order: take this state.
    pub fn load(&mut self, tools: &mut Tools<'_>, resume_point: &ResumePoint) {
        let Some(plane) = &mut self.plane else { return };
        plane.resume_point = resume_point.step;
        if self.sharer.is_some() {
            let writers: Vec<Rank> = (0..plane.members.world().0).map(Rank).collect();
            let opening = Agenda::opening(resume_point, plane.rank, &writers);
            return self.open(tools, opening, resume_point);
        }
        match &resume_point.source {
            StateSource::Start(from) => {
                self.doing = Doing::Load(*from);
                self.work(tools, Work::Load);
            }
            StateSource::Shards(held) => self.share_out(tools, held, resume_point.step),
            StateSource::Ranks(sources) => {
                let world = plane.members.world().0;
                let targets: Vec<Rank> =
                    (0..world).map(Rank).filter(|rank| !sources.contains(rank)).collect();
                if targets.is_empty() {
                    return self.told_loaded(tools);
                }
                let is_source = sources.contains(&plane.rank);
                let mut copy = Copying {
                    sources: sources.clone(),
                    targets,
                    step: resume_point.step,
                    window: 0,
                    floats: Vec::new(),
                    digest: [0.0; DIGEST_FLOATS],
                };
                if is_source {
                    let state = self.state.as_ref().expect("a source has the state");
                    (copy.floats, copy.digest) = (flat(state), digest_as_floats(state.state_digest()));
                }
                self.doing = Doing::Copy(copy);
                self.work(tools, Work::Window);
            }
        }
    }

    /// Order: make steps.
    pub fn run(&mut self, tools: &mut Tools<'_>, from: Step, pending: Pending) {
        let holder = match &self.shards {
            Some(_) => StateHolder::Shards,
            None if self.shares() => StateHolder::Host,
            None => StateHolder::Rank,
        };
        self.agenda.begin(holder, from, pending);
        self.go(tools);
    }

    /// Order: leave whatever is being done for the sake of a newer generation.
    pub fn quit(&mut self, tools: &mut Tools<'_>, generation: Generation) {
        self.quit = Some(generation);
        self.stop = StopFlag::default();
        if self.working && self.sabotage == Some(Sabotage::LeftTooEarly) {
            return tools.tell(News::Left { generation, applied: self.applied() });
        }
        if !self.working {
            self.leave(tools);
        }
    }

    /// The bits to set in the stop flag.
    pub fn ask_stop(&mut self, flag: StopFlag) {
        self.stop = self.stop.with(flag);
    }

    /// Something that a task may wait for has changed.
    pub fn signal(&mut self, tools: &mut Tools<'_>, change: impl FnOnce(&mut Signals)) {
        change(&mut self.signals);
        self.go(tools);
    }

    /// A peer's connection broke.
    pub fn peer_lost(&mut self, tools: &mut Tools<'_>, generation: Generation, peer: MemberId) {
        match &mut self.plane {
            Some(plane) if plane.generation == generation => {
                if plane.peers.contains(&peer) {
                    plane.lost.insert(peer);
                    self.break_off_if_lost(tools);
                }
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
        match std::mem::replace(&mut self.doing, Doing::Rest) {
            // An update whose collective is over is applied: peers have it, too.
            Doing::Update(step) => self.update(tools, step),
            Doing::UpdateShare(_) if self.shards.is_some() => self.update_shards(tools),
            Doing::UpdateShare(step) => self.update_share(tools, step),
            _ if leaves => {}
            Doing::Micro(micro) => self.micro_batch(tools, micro),
            Doing::Offer(micro, pieces) => self.offer(tools, micro, pieces + 1),
            Doing::Evaluate(step) => self.evaluate(tools, step),
            doing @ Doing::Pass(_) => {
                self.doing = doing;
                self.advance(tools);
            }
            Doing::Load(from) => self.take_from(tools, from),
            Doing::Complete => self.complete(tools),
            doing @ (Doing::Reduce | Doing::Copy(_)) if self.host_is_at_work() => {
                self.doing = doing;
                self.host_worked(tools);
            }
            Doing::Copy(copy) => {
                self.doing = Doing::Copy(copy);
                self.begin_window(tools);
            }
            Doing::Share(sharing) => {
                self.doing = Doing::Share(sharing);
                self.begin_piece(tools);
            }
            other => unreachable!("{other:?} is no work"),
        }
        if leaves { self.leave(tools) } else { self.go(tools) }
    }

    /// Its process is killed: what it was writing into the memory of the host stays as far as it got.
    pub fn killed(&mut self, tools: &mut Tools<'_>, writes: u64) {
        let Some(sharer) = self.sharer.as_mut().filter(|_| self.working) else { return };
        sharer.stop_after(writes);
        match self.doing {
            Doing::UpdateShare(_) => {
                self.write_share(tools);
            }
            Doing::Complete => self.complete_update(tools),
            _ => {}
        }
    }

    fn leave(&mut self, tools: &mut Tools<'_>) {
        let Some(generation) = self.quit.take() else { return };
        self.keep_sum(tools);
        (self.doing, self.plane) = (Doing::Rest, None);
        self.close(tools);
        let applied = self.applied();
        if let Some(record) = self.agenda.handle_left(applied)
            && self.sabotage != Some(Sabotage::UntoldUpdate)
        {
            match self.shards {
                Some(_) => self.tell_made(tools, record),
                None => self.tell_decided(tools, record),
            }
        }
        self.parked.retain(|parcel| parcel.header.tag.generation >= generation);
        tools.tell(News::Left { generation, applied });
    }

    fn work(&mut self, tools: &mut Tools<'_>, work: Work) {
        self.ticket += 1;
        self.working = true;
        tools.asks.push(Ask::Work(self.ticket, work));
    }

    /// This rank's slots: its own memory, or its part of the host's.
    fn arena<'a>(plane: &'a mut Plane, tools: &'a mut Tools<'_>) -> &'a mut HostArena {
        match (&plane.host, tools.memory.as_deref_mut()) {
            (Some(participant), Some(memory)) => &mut memory.slots[participant.local],
            _ => plane.machine.arena(),
        }
    }
}

/// Room for windows, and for what ranks tell one another of all micro-batches of a step.
fn window_geometry(engine: &Engine) -> Geometry {
    let micro_batches = engine.job().plan.micro_batches();
    let trailers = 2 * Trailer::WORDS * micro_batches as usize;
    Geometry::bound(engine.gradient_len().max(trailers), micro_batches, Reduce::Exact)
}

/// Room for every generation.
pub fn geometry(engine: &Engine) -> Geometry {
    Geometry::bound(engine.gradient_len(), engine.job().plan.micro_batches(), Reduce::Exact)
}
