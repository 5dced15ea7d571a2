//! The collectives of one rank over a mapped arena.
//!
//! A collective is two barriers with one pass between them. Before the first, every rank owns its slots; between them,
//! a rank reads its chunk of all roots and writes its chunk of every slot 0, and nothing else; after the second, every
//! rank owns its slots again. It does not know how the generation came about, nor what the floats mean.

use super::barrier::{Barrier, ShmAbort};
use super::kernel::{Pass, sum_into};
use super::{Isa, Mapping, ShmError};
use dtrain_collective::{
    Aborter, Arena, BLOCK, Backend, Chunks, CollectiveError, CountPlan, Geometry, Membership, Mode, Op,
    OpKind, Plans, Sequence,
};
use dtrain_types::{Generation, Rank, Trailer, WorldSize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The shared-memory backend of one rank in one generation.
#[derive(Debug)]
pub struct ShmBackend {
    arena: ShmArena,
    plans: Plans,
    /// Where each leaf starts in the arena, by count of micro-batches.
    leaves: BTreeMap<u32, Vec<usize>>,
    /// Where slot 0 of each rank starts.
    outs: Vec<usize>,
    barrier: Barrier,
    isa: Isa,
    stack: Vec<f32>,
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    last: Option<Sequence>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Running { sequence: Sequence, kind: OpKind, operand: u32 },
    Dead,
}

impl ShmBackend {
    /// Joins a generation in an arena, prepared for steps of `counts` micro-batches.
    ///
    /// The arena may be larger than the generation needs. *Errors*: [`ShmError::TooSmall`], [`ShmError::RankTaken`],
    /// [`ShmError::Membership`].
    pub fn new(
        mapping: Arc<Mapping>,
        membership: Membership,
        mode: Mode,
        counts: &[u32],
    ) -> Result<Self, ShmError> {
        membership.check()?;
        let (generation, rank, world) = (membership.generation, membership.rank, membership.world());
        let have = mapping.geometry();
        let needed = Geometry::plan(have.len, &membership.ranges, counts, mode);
        let fits = needed.root_slots <= have.root_slots && needed.scratch_slots <= have.scratch_slots;
        if !fits || world > mapping.world() {
            return Err(ShmError::TooSmall {
                generation,
                world,
                needed,
                arena_world: mapping.world(),
                arena: have,
            });
        }
        mapping.claim(rank, generation)?;
        let outs = (0..world.0 as usize).map(|peer| mapping.slot(peer, 0)).collect();
        let mut backend = Self {
            barrier: Barrier::new(mapping.clone(), generation, rank, world.0 as usize),
            arena: ShmArena { mapping, rank },
            plans: Plans::new(membership, mode),
            leaves: BTreeMap::new(),
            outs,
            isa: Isa::detect(),
            stack: Vec::new(),
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            last: None,
            state: State::Idle,
        };
        backend.prepare(counts);
        Ok(backend)
    }

    /// A handle that stops every rank of a generation in this arena, for a process that is none of them.
    #[must_use]
    pub fn watcher(mapping: Arc<Mapping>, generation: Generation) -> Aborter {
        Aborter::new(Arc::new(ShmAbort::new(mapping, generation)))
    }

    /// Uses a lower instruction set than the processor has; the bits stay the same. *Panics* if it lacks it.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        let best = Isa::detect();
        assert!(
            isa == Isa::Baseline || isa == best || best == Isa::Avx512,
            "this processor has {best:?}, not {isa:?}"
        );
        self.isa = isa;
        self
    }

    /// Says how many cores the ranks of this host may use, where that is fewer than the machine has (a container).
    /// With fewer cores than ranks a waiting rank does not spin.
    #[must_use]
    pub fn with_cores(mut self, cores: usize) -> Self {
        self.barrier.set_cores(cores);
        self
    }

    fn world(&self) -> WorldSize {
        self.plans.membership().world()
    }

    fn rank(&self) -> usize {
        self.arena.rank.index()
    }

    fn begin(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        self.barrier.check()?;
        if self.state == State::Dead {
            return Err(CollectiveError::Dead);
        }
        assert_eq!(self.state, State::Idle, "collective {seq} starts inside another one");
        assert!(self.last.is_none_or(|last| last < seq), "collective {seq} comes after {:?}", self.last);
        if let Some((count, trailers)) = op.reduction() {
            let own = self.plans.get(count).leaves_of(self.rank()).len();
            assert_eq!(
                trailers.len(),
                own,
                "a step of {count} micro-batches needs a trailer for each own root"
            );
            for (root, trailer) in trailers.iter().enumerate() {
                self.arena.mapping.put_trailer(self.rank(), root, trailer);
            }
        }
        if let Op::Broadcast { from } = op {
            assert!(from.0 < self.world().0, "rank {from} broadcasts in a world of {}", self.world());
        }
        self.last = Some(seq);
        self.state = State::Running { sequence: seq, kind: op.kind(), operand: op.operand() };
        if self.world().0 > 1 {
            let intent = intent(seq, op.kind(), op.operand());
            self.arena.mapping.intent(self.rank()).store(intent, Ordering::Relaxed);
            self.barrier.arrive();
        }
        Ok(())
    }

    fn complete(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        self.barrier.check()?;
        let State::Running { sequence, kind, operand } = self.state else {
            assert_eq!(self.state, State::Dead, "collective {seq} finishes but was not started");
            return Err(CollectiveError::Dead);
        };
        assert_eq!(sequence, seq, "the collective in progress is another one");
        if self.world().0 > 1 {
            self.barrier.pass()?;
            self.compare_intents(seq, kind, operand)?;
            self.run(kind, operand);
        }
        let reduced = self.reduce_trailers(kind, operand);
        if self.world().0 > 1 {
            self.barrier.arrive();
            self.barrier.pass()?;
        }
        self.state = State::Idle;
        Ok(reduced)
    }

    /// All ranks must be in the same collective: a peer that is in another one reads and writes other memory.
    fn compare_intents(&self, seq: Sequence, kind: OpKind, operand: u32) -> Result<(), CollectiveError> {
        let ours = intent(seq, kind, operand);
        for peer in 0..self.world().0 {
            let theirs = self.arena.mapping.intent(peer as usize).load(Ordering::Relaxed);
            if theirs != ours {
                let (theirs, ours) = (format!("{theirs:#018x}"), format!("{ours:#018x}"));
                return Err(CollectiveError::Mismatch { from: Rank(peer), sequence: seq, theirs, ours });
            }
        }
        Ok(())
    }

    /// The pass between the barriers: this rank's part of the work, for everybody.
    fn run(&mut self, kind: OpKind, operand: u32) {
        let rank = self.rank();
        let geometry = self.arena.geometry();
        let own = Chunks::even(geometry.len, self.world().0 as usize).chunk(rank);
        match kind {
            OpKind::AllReduce => self.sum(operand, 0..self.outs.len(), own),
            OpKind::ReduceScatter => self.sum(operand, rank..rank + 1, own),
            OpKind::AllGather => {
                for to in (0..self.outs.len()).filter(|to| *to != rank) {
                    self.copy_slot_0(rank, to, own.clone());
                }
            }
            OpKind::Broadcast if operand as usize != rank => {
                self.copy_slot_0(operand as usize, rank, 0..geometry.len)
            }
            OpKind::Broadcast | OpKind::Barrier => {}
        }
    }

    fn sum(&mut self, count: u32, to: std::ops::Range<usize>, chunk: std::ops::Range<usize>) {
        let pass = Pass {
            base: self.arena.mapping.base(),
            leaves: &self.leaves[&count],
            outs: &self.outs[to],
            at: chunk.start,
            len: chunk.len(),
        };
        let order = self.plans.get(count).data_order();
        // SAFETY: all leaves and destinations are slots of `len` floats and the chunk lies inside. Between the barriers
        // the elements of this chunk are touched by this rank alone, in all buffers (chunks of other ranks do not
        // overlap), and no lease is out: leases borrow the backend. Slots are the same or apart. `isa` was detected.
        unsafe { sum_into(self.isa, order, &pass, &mut self.stack) };
    }

    fn copy_slot_0(&self, from: usize, to: usize, range: std::ops::Range<usize>) {
        let base = self.arena.mapping.base();
        // SAFETY: both are slots of `len` floats of different ranks and the range lies inside. Between the barriers
        // `from` is only read, and this range of `to` is written by this rank alone: in a gather each rank writes its own
        // chunk, in a broadcast each rank writes its own slot.
        unsafe {
            let source = base.add(self.outs[from] + range.start).cast_const();
            std::ptr::copy_nonoverlapping(source, base.add(self.outs[to] + range.start), range.len());
        }
    }

    fn reduce_trailers(&mut self, kind: OpKind, operand: u32) -> Trailer {
        if !matches!(kind, OpKind::AllReduce | OpKind::ReduceScatter) {
            return Trailer::EMPTY;
        }
        let plan = self.plans.get(operand);
        self.trailers.clear();
        for rank in 0..self.outs.len() {
            for root in 0..plan.leaves_of(rank).len() {
                self.trailers.push(self.arena.mapping.get_trailer(rank, root));
            }
        }
        plan.trailer_order().sum_trailers(&self.trailers, &mut self.trailer_stack)
    }

    fn or_die<T>(&mut self, result: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        if result.is_err() {
            self.state = State::Dead;
        }
        result
    }
}

/// What a rank is doing, in one word: kind, low bits of the sequence, operand.
fn intent(seq: Sequence, kind: OpKind, operand: u32) -> u64 {
    (kind as u64 + 1) << 56 | (seq.0 & 0xff_ffff) << 32 | u64::from(operand)
}

impl Backend for ShmBackend {
    fn prepare(&mut self, counts: &[u32]) {
        self.plans.prepare(counts);
        let world = self.outs.len();
        let have = self.arena.geometry();
        for &count in counts {
            let plan: &CountPlan = self.plans.get(count);
            let slots =
                (0..world).flat_map(|rank| (0..plan.leaves_of(rank).len()).map(move |slot| (rank, slot)));
            assert!(
                (0..world).all(|rank| plan.leaves_of(rank).len() <= have.root_slots),
                "the arena lacks root slots"
            );
            let mapping = &self.arena.mapping;
            self.leaves.insert(count, slots.map(|(rank, slot)| mapping.slot(rank, slot)).collect());
            let room = plan.leaf_count();
            self.trailers.reserve(room);
            self.trailer_stack.reserve(room);
            let stack = self.stack.len().max(plan.data_order().depth() * BLOCK);
            self.stack.resize(stack, 0.0);
        }
    }

    fn arena(&mut self) -> &mut dyn Arena {
        assert_eq!(self.state, State::Idle, "slots are lent between collectives of a living backend only");
        &mut self.arena
    }

    fn start(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        let result = self.begin(seq, op);
        self.or_die(result)
    }

    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        let result = self.complete(seq);
        self.or_die(result)
    }

    fn aborter(&self) -> Aborter {
        Aborter::new(self.barrier.abort_handle())
    }

    fn describe(&self) -> String {
        let mode = match self.plans.mode() {
            Mode::Exact => "exact",
            Mode::Ring => "ring",
        };
        format!("shared memory, {mode}, rank {} of {}, {:?}", self.arena.rank, self.world(), self.isa)
    }
}

impl Drop for ShmBackend {
    fn drop(&mut self) {
        self.arena.mapping.release(self.arena.rank);
    }
}

/// The slots of one rank.
#[derive(Debug)]
struct ShmArena {
    mapping: Arc<Mapping>,
    rank: Rank,
}

impl ShmArena {
    fn slice(&mut self, slot: usize) -> *mut [f32] {
        let geometry = self.mapping.geometry();
        let start = self.mapping.base().wrapping_add(self.mapping.slot(self.rank.index(), slot));
        std::ptr::slice_from_raw_parts_mut(start, geometry.len)
    }
}

impl Arena for ShmArena {
    fn geometry(&self) -> Geometry {
        self.mapping.geometry()
    }

    fn lease(&mut self, slot: usize) -> &mut [f32] {
        // SAFETY: the slot lies in the mapping, aligned. Outside a collective it belongs to this rank alone: the rank is
        // claimed by one backend in all processes, peers touch it only between two barriers that this rank takes part in,
        // and the lease borrows the backend, which it needs for that.
        unsafe { &mut *self.slice(slot) }
    }

    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]) {
        assert_ne!(left, right, "a pair is two slots");
        // SAFETY: as `lease`; two different slots do not overlap.
        unsafe { (&mut *self.slice(left), &mut *self.slice(right)) }
    }
}
