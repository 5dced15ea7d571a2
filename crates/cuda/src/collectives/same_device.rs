//! The collectives of several ranks, threads of one process, on one GPU.
//!
//! Their slots lie in one allocation, so an all-reduce is one kernel a rank: it adds its chunk of all roots in order and
//! writes the sum into everybody's slot 0. Who may touch what when is told twice: on the host by a meeting (a rank has given
//! its work to its stream), on the device by events (the work is done).
//!
//! One collective, for ranks A and B:
//! 1. A records `ready` behind its micro-batches and arrives. B does the same.
//! 2. Both have arrived. A's stream waits for B's `ready`, B's for A's: all roots are complete.
//! 3. A adds its chunk and writes it to both slots 0, B the other chunk. Each records `done` and arrives.
//! 4. Both have arrived. A's stream waits for B's `done`: now A's slot 0 is whole, and nobody reads A's roots any more.
//!
//! An event is put into a stream again only when all have given their wait for it: `ready` after 4, `done` after 2.
//! Everything on a stream waits for what was given before, so nothing on the device waits for a rank that never comes.

use super::meeting::Meeting;
use super::slots::{GpuSlots, stride};
use super::sum::PlannedSum;
use crate::driver::{Buffer, DriverError, Event, Stream};
use dtrain_collective::{
    Aborter, Arena, Backend, Chunks, CollectiveError, Geometry, Intent, Membership, Mode, Op, OpKind, Plans,
    Progress, Sequence,
};
use dtrain_types::{Generation, Rank, Trailer, WorldSize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Why a rank could not join.
#[derive(Debug, thiserror::Error)]
pub enum SameDeviceError {
    /// The device refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The membership makes no sense.
    #[error(transparent)]
    Membership(#[from] CollectiveError),
    /// The arena was made for fewer ranks or slots.
    #[error(
        "the arena has room for {has} with {arena:?}, generation {generation} needs {world} with {needed:?}"
    )]
    TooSmall {
        /// The generation.
        generation: Generation,
        /// Its ranks.
        world: WorldSize,
        /// Its slots.
        needed: Geometry,
        /// Ranks of the arena.
        has: WorldSize,
        /// Slots of the arena.
        arena: Geometry,
    },
    /// Another backend has this rank's slots.
    #[error("rank {rank} of this arena is taken")]
    RankTaken {
        /// The rank.
        rank: Rank,
    },
}

/// The slots of all ranks on one GPU, in one allocation. It outlives generations.
#[derive(Debug)]
pub struct GpuArena {
    geometry: Geometry,
    world: WorldSize,
    /// By rank: behind what the rank has computed, behind its part of a collective.
    events: Vec<[Event; 2]>,
    memory: Arc<Buffer<f32>>,
    joined: Mutex<Joined>,
}

#[derive(Debug, Default)]
struct Joined {
    /// The ranks whose slots somebody has.
    taken: BTreeSet<usize>,
    meetings: BTreeMap<Generation, Arc<Meeting>>,
}

impl GpuArena {
    /// Zeroed slots for `world` ranks. *Blocks* until they are. *Errors*: of the driver.
    pub fn new(stream: &Stream, world: WorldSize, geometry: Geometry) -> Result<Arc<Self>, DriverError> {
        let (context, ranks) = (stream.gpu().context(), world.0 as usize);
        let floats = stride(geometry) * geometry.slots() * ranks;
        let memory = Arc::new(Buffer::new(context, floats)?);
        // SAFETY: it is nobody else's yet, and the stream is waited for.
        unsafe { stream.fill(memory.address(), floats, 0)? };
        stream.finish()?;
        let events = (0..ranks).map(|_| Ok([Event::new(context)?, Event::new(context)?]));
        let events = events.collect::<Result<_, DriverError>>()?;
        Ok(Arc::new(Self { geometry, world, events, memory, joined: Mutex::default() }))
    }

    fn slot(&self, rank: usize, slot: usize) -> u64 {
        let floats = stride(self.geometry) * (rank * self.geometry.slots() + slot);
        self.memory.address() + (floats * size_of::<f32>()) as u64
    }

    /// Takes a rank's slots in a generation; ranks that are still in an older one learn that it is over.
    fn join(&self, membership: &Membership) -> Result<Arc<Meeting>, SameDeviceError> {
        let (rank, generation) = (membership.rank, membership.generation);
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, older) in joined.meetings.range(..generation) {
            older.supersede(rank);
        }
        joined.meetings.retain(|known, _| *known >= generation);
        if !joined.taken.insert(rank.index()) {
            return Err(SameDeviceError::RankTaken { rank });
        }
        let new = || Arc::new(Meeting::new(generation, membership.ranges.len()));
        let meeting = joined.meetings.entry(generation).or_insert_with(new).clone();
        if joined.meetings.last_key_value().is_some_and(|(last, _)| *last > generation) {
            meeting.supersede(rank);
        }
        Ok(meeting)
    }

    fn leave(&self, rank: usize) {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).taken.remove(&rank);
    }
}

/// The backend of one rank in one generation.
#[derive(Debug)]
pub struct SameDeviceBackend {
    /// By count of micro-batches.
    sums: BTreeMap<u32, PlannedSum>,
    slots: GpuSlots,
    arena: Arc<GpuArena>,
    meeting: Arc<Meeting>,
    stream: Arc<Stream>,
    plans: Plans,
    /// In a collective that moves floats: what each rank gives of its slot 0 to this one.
    taken: Vec<Range<usize>>,
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    progress: Progress,
    /// What the device failed in while nobody could be told.
    failure: Option<CollectiveError>,
}

fn failed(error: DriverError) -> CollectiveError {
    CollectiveError::Device { what: error.to_string() }
}

impl SameDeviceBackend {
    /// Joins a generation in an arena, prepared for steps of `counts` micro-batches. `stream` is the one on which the rank
    /// computes: a collective comes behind what is on it.
    ///
    /// *Errors*: [`SameDeviceError`]. *Panics* as [`Backend::prepare`].
    pub fn new(
        arena: &Arc<GpuArena>,
        stream: &Arc<Stream>,
        membership: Membership,
        mode: Mode,
        counts: &[u32],
    ) -> Result<Self, SameDeviceError> {
        membership.check()?;
        let (generation, rank, world) = (membership.generation, membership.rank.index(), membership.world());
        let have = arena.geometry;
        let needed = Geometry::plan(have.len, &membership.ranges, counts, mode);
        let fits = needed.root_slots <= have.root_slots && needed.scratch_slots <= have.scratch_slots;
        if !fits || world > arena.world {
            return Err(SameDeviceError::TooSmall {
                generation,
                world,
                needed,
                has: arena.world,
                arena: have,
            });
        }
        let meeting = arena.join(&membership)?;
        let mut backend = Self {
            sums: BTreeMap::new(),
            slots: GpuSlots::inside(stream, have, arena.memory.clone(), arena.slot(rank, 0)),
            arena: arena.clone(),
            meeting,
            stream: stream.clone(),
            taken: Vec::with_capacity(membership.ranges.len()),
            plans: Plans::new(membership, mode),
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            progress: Progress::default(),
            failure: None,
        };
        backend.prepare(counts);
        match backend.failure.take() {
            None => Ok(backend),
            Some(failure) => Err(failure.into()),
        }
    }

    fn rank(&self) -> usize {
        self.plans.membership().rank.index()
    }

    fn world(&self) -> usize {
        self.plans.membership().ranges.len()
    }

    /// The elements that this rank adds.
    fn own_chunk(&self) -> Range<usize> {
        Chunks::even(self.arena.geometry.len, self.world()).chunk(self.rank())
    }

    fn plan_sums(&mut self) -> Result<(), DriverError> {
        let (own, world, chunk) = (self.rank(), self.world(), self.own_chunk());
        let (arena, stream) = (self.arena.clone(), self.stream.clone());
        let at = |rank, slot| arena.slot(rank, slot) + (chunk.start * size_of::<f32>()) as u64;
        // The own slot 0 first: a reduce-scatter writes nowhere else.
        let peers = (0..world).filter(|rank| *rank != own);
        let targets: Vec<u64> = [own].into_iter().chain(peers).map(|rank| at(rank, 0)).collect();
        let Self { sums, plans, .. } = self;
        for (count, plan) in plans.by_count() {
            if sums.contains_key(&count) {
                continue;
            }
            let of_rank = |rank: usize| (0..plan.leaves_of(rank).len()).map(move |slot| (rank, slot));
            let leaves: Vec<u64> = (0..world).flat_map(of_rank).map(|(rank, slot)| at(rank, slot)).collect();
            let sum = PlannedSum::new(&stream, plan.data_order(), &leaves, &targets, chunk.len())?;
            sums.insert(count, sum);
        }
        Ok(())
    }

    fn alive(&self) -> Result<(), CollectiveError> {
        self.meeting.check()?;
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn begin(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        self.alive()?;
        self.progress.may_begin(seq)?;
        op.assert_fits(WorldSize(self.world() as u32));
        let trailers = match op.reduction() {
            None => &[],
            Some((count, trailers)) => {
                let own = self.plans.get(count).leaves_of(self.rank()).len();
                let what = "a trailer for each own root";
                assert_eq!(trailers.len(), own, "a step of {count} micro-batches needs {what}");
                trailers
            }
        };
        self.plan_moves(op);
        let intent = Intent::new(seq, op);
        self.progress.begin(intent);
        self.slots.settle().map_err(failed)?;
        self.stream.record(&self.arena.events[self.rank()][0]).map_err(failed)?;
        self.meeting.announce(self.rank(), intent, trailers);
        Ok(())
    }

    /// Notes what this rank is to copy from whom.
    fn plan_moves(&mut self, op: &Op<'_>) {
        let (rank, world, len) = (self.rank(), self.world(), self.arena.geometry.len);
        let takes = op.moves(rank, world, len).is_some_and(|own| own.takes);
        self.taken.clear();
        for peer in (0..world).filter(|_| takes) {
            let given = op.moves(peer, world, len).and_then(|theirs| theirs.gives);
            self.taken.push(given.filter(|_| peer != rank).unwrap_or(0..0));
        }
    }

    fn complete(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        self.alive()?;
        let intent = self.progress.running(seq)?;
        let rank = self.rank();
        self.meeting.agree(rank, intent)?;
        self.wait_for_peers(0).map_err(failed)?;
        self.work(intent).map_err(failed)?;
        self.stream.record(&self.arena.events[rank][1]).map_err(failed)?;
        let reduced = self.reduce_trailers(intent);
        self.meeting.arrive(rank);
        self.meeting.pass(rank)?;
        self.wait_for_peers(1).map_err(failed)?;
        // What is told to be done is done: a device that fails later fails in something else.
        self.stream.finish().map_err(failed)?;
        self.progress.end();
        Ok(reduced)
    }

    /// What this rank's stream is given from now on comes behind this event of every peer.
    fn wait_for_peers(&self, event: usize) -> Result<(), DriverError> {
        let peers = (0..self.world()).filter(|peer| *peer != self.rank());
        peers.into_iter().try_for_each(|peer| self.stream.wait_for(&self.arena.events[peer][event]))
    }

    /// This rank's part of the work between the two barriers. A rank alone has its sum where it should be.
    fn work(&self, intent: Intent) -> Result<(), DriverError> {
        let world = self.world();
        let targets = match intent.kind {
            _ if world == 1 => return Ok(()),
            OpKind::AllReduce => world,
            OpKind::ReduceScatter => 1,
            OpKind::AllGather | OpKind::Broadcast | OpKind::Barrier | OpKind::Copy => {
                return self.taken.iter().enumerate().try_for_each(|(from, part)| self.fetch(from, part));
            }
        };
        // SAFETY: leaves and targets are slots of this arena. All roots are complete behind the events that the stream
        // waits for; this chunk of all slots is touched by this rank alone until it has arrived again.
        unsafe { self.sums[&intent.operand].run(&self.stream, targets) };
        self.stream.gpu().context().check()
    }

    /// Copies part of a peer's slot 0 into the own one.
    fn fetch(&self, from: usize, part: &Range<usize>) -> Result<(), DriverError> {
        let at = |rank| self.arena.slot(rank, 0) + (part.start * size_of::<f32>()) as u64;
        // SAFETY: parts of two ranks' slots. The peer's part is complete behind its event, and nobody writes it before this
        // rank has arrived again; nobody else touches the own part.
        unsafe { self.stream.copy(at(from), at(self.rank()), part.len() * size_of::<f32>()) }
    }

    fn reduce_trailers(&mut self, intent: Intent) -> Trailer {
        if !matches!(intent.kind, OpKind::AllReduce | OpKind::ReduceScatter) {
            return Trailer::EMPTY;
        }
        self.meeting.collect(&mut self.trailers);
        let plan = self.plans.get(intent.operand);
        plan.trailer_order().sum_trailers(&self.trailers, &mut self.trailer_stack)
    }
}

impl Backend for SameDeviceBackend {
    fn prepare(&mut self, counts: &[u32]) {
        self.plans.prepare(counts);
        let (have, world) = (self.arena.geometry, self.world());
        let most = |plan: &Arc<dtrain_collective::CountPlan>| {
            (0..world).map(|rank| plan.leaves_of(rank).len()).max().unwrap_or(0)
        };
        assert!(self.plans.iter().all(|plan| most(plan) <= have.root_slots), "the arena lacks root slots");
        let room = self.plans.iter().map(|plan| plan.leaf_count()).max().unwrap_or(0);
        self.trailers.reserve(room);
        self.trailer_stack.reserve(room);
        if let Err(error) = self.plan_sums() {
            self.failure = Some(failed(error));
        }
    }

    fn arena(&mut self) -> &mut dyn Arena {
        self.progress.assert_idle();
        &mut self.slots
    }

    fn start(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        let result = self.begin(seq, op);
        self.progress.or_die(result)
    }

    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        let result = self.complete(seq);
        self.progress.or_die(result)
    }

    fn aborter(&self) -> Aborter {
        Aborter::new(self.meeting.clone())
    }

    fn describe(&self) -> String {
        let mode = if self.plans.mode() == Mode::Exact { "exact" } else { "ring" };
        let about = self.stream.gpu().context().about();
        let (rank, world) = (self.rank(), self.world());
        format!("GPU {} ({}) shared by all ranks, {mode}, rank {rank} of {world}", about.ordinal, about.name)
    }
}

impl Drop for SameDeviceBackend {
    fn drop(&mut self) {
        // What this rank gave to its stream may write into the slots of others, who must not go on before it is done. It waits
        // for nothing that was not given. If the device has failed this returns at once, and nothing matters any more.
        let _failed = self.stream.finish();
        self.arena.leave(self.rank());
    }
}
