//! The collectives of one rank over a mapped arena.
//!
//! A collective is two barriers with one pass between them. Before the first, every rank owns its slots; between them,
//! a rank reads its chunk of all roots and writes its chunk of every slot 0, or of the first alone, and nothing else; after the second, every
//! rank owns its slots again. Where ranks share cores the sums are cut into pieces instead, each is added up by whoever
//! claims it, and that all are done is the second barrier: so a core need not go from rank to rank in between. The order of
//! a sum is fixed by its place and not by who adds it up. It does not know how the generation came about, nor what the
//! floats mean.

use super::abort::ShmAbort;
use super::group::Group;
use super::pieces::Pieces;
use super::{Isa, Mapping, ShmError};
use dtrain_collective::{
    Aborter, Arena, Assignment, Backend, Chunks, CollectiveError, CountPlan, Geometry, Intent, Op, OpKind,
    Plans, Progress, Reduce, Sequence, SumOrder,
};
use dtrain_types::{Generation, Rank, Trailer, Wire, WorldSize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shared-memory backend of one rank in one generation.
#[derive(Debug)]
pub struct ShmBackend {
    group: Group,
    plans: Plans,
    /// Where each leaf starts in the arena, by count of micro-batches.
    leaves: BTreeMap<u32, Vec<usize>>,
    /// How each rank's chunk is added up, by count of micro-batches; one order if all are alike. Shared work needs them all.
    orders: BTreeMap<u32, Vec<SumOrder>>,
    /// Where slot 0 of each rank starts.
    outs: Vec<usize>,
    /// How many of them an all-reduce fills: all, or the first alone.
    sums: usize,
    /// The chunk that this rank adds up.
    own: Range<usize>,
    /// In a collective that moves floats: what each rank gives of its slot 0 to this one.
    taken: Vec<Range<usize>>,
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    progress: Progress,
}

impl ShmBackend {
    /// Joins a generation in an arena, prepared for steps of `counts` micro-batches.
    ///
    /// The arena may be larger than the generation needs. *Errors*: [`ShmError::TooSmall`], [`ShmError::RankTaken`],
    /// [`ShmError::Membership`].
    pub fn new(
        mapping: Arc<Mapping>,
        membership: Assignment,
        mode: Reduce,
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
        let group = Group::join(mapping, generation, rank, world.0 as usize)?;
        let outs = (0..world.0 as usize).map(|peer| group.slot(peer, 0)).collect();
        let own = Chunks::even(have.len, world.0 as usize).chunk(rank.index());
        let mut backend = Self {
            group,
            plans: Plans::new(membership, mode),
            leaves: BTreeMap::new(),
            orders: BTreeMap::new(),
            sums: world.0 as usize,
            outs,
            own,
            taken: Vec::with_capacity(world.0 as usize),
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            progress: Progress::default(),
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
        self.group.set_isa(isa);
        self
    }

    /// Says how many cores the ranks of this host may use, where that is fewer than the machine has (a container).
    /// With fewer cores than ranks a waiting rank does not spin, and if one rank says so, all share the work of sums.
    #[must_use]
    pub fn with_cores(mut self, cores: usize) -> Self {
        self.group.set_cores(cores);
        self
    }

    /// Rounds every sum, as the owner of the slots rounds the roots; the same on all ranks.
    #[must_use]
    pub fn with_wire(mut self, wire: Wire) -> Self {
        self.group.set_wire(wire);
        self
    }

    /// Stores every sum of an all-reduce once, in slot 0 of the first rank, from where all read it (`Backend::reduced`); the same on all
    /// ranks. The rule is theirs: the first rank leases slot 0 again when all have come to a barrier after their last look.
    #[must_use]
    pub fn with_sum_in_common(mut self) -> Self {
        self.sums = 1;
        self
    }

    /// Measures the memory itself: all that an all-reduce of one root a rank moves, and nothing of what it computes.
    ///
    /// After a barrier each rank reads and writes its chunk of slot 0 of every rank, or the pieces that it claims, buffer by
    /// buffer, flipping signs; the time ends with the barrier without which no rank could know that its buffer is done.
    /// *Blocks* and *Errors* as a collective of this number.
    pub fn time_of_memory(&mut self, seq: Sequence) -> Result<Duration, CollectiveError> {
        let result = self.touch_all(seq);
        self.progress.or_die(result)
    }

    fn touch_all(&mut self, seq: Sequence) -> Result<Duration, CollectiveError> {
        self.begin(seq, &Op::Barrier)?;
        self.group.agree(self.progress.running(seq)?)?;
        let begun = Instant::now();
        if self.group.shares() {
            let pieces = self.pieces();
            let Self { group, outs, .. } = self;
            group.share(pieces.count(), |group, piece| group.touch(outs, pieces.piece(piece).1))?;
        } else {
            self.group.touch(&self.outs, self.own.clone());
            self.group.meet()?;
        }
        let took = begun.elapsed();
        self.group.leave();
        self.progress.end();
        Ok(took)
    }

    fn world(&self) -> WorldSize {
        self.plans.membership().world()
    }

    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn begin(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        self.group.check()?;
        self.progress.may_begin(seq)?;
        if let Some((count, trailers)) = op.reduction() {
            let own = self.plans.get(count).leaves_of(self.rank()).len();
            assert_eq!(
                trailers.len(),
                own,
                "a step of {count} micro-batches needs a trailer for each own root"
            );
            for (root, trailer) in trailers.iter().enumerate() {
                self.group.put_trailer(root, trailer);
            }
        }
        op.assert_fits(self.world());
        self.plan_moves(op);
        let intent = Intent::new(seq, op);
        self.progress.begin(intent);
        self.group.announce(intent);
        Ok(())
    }

    /// Notes what this rank is to copy from whom.
    fn plan_moves(&mut self, op: &Op<'_>) {
        let (rank, world, len) = (self.rank(), self.outs.len(), self.group.geometry().len);
        let takes = op.moves(rank, world, len).is_some_and(|own| own.takes);
        self.taken.clear();
        for peer in (0..world).filter(|_| takes) {
            let given = op.moves(peer, world, len).and_then(|theirs| theirs.gives);
            self.taken.push(given.filter(|_| peer != rank).unwrap_or(0..0));
        }
    }

    fn complete(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        self.group.check()?;
        let intent = self.progress.running(seq)?;
        if intent.kind == OpKind::AllReduce {
            self.group.fetch(&self.outs[..self.sums], self.own.clone());
        }
        self.group.agree(intent)?;
        let reduced = match intent.kind {
            OpKind::AllReduce | OpKind::ReduceScatter if self.group.shares() => {
                self.share(intent.kind, intent.operand)?;
                self.reduce_trailers(intent.kind, intent.operand)
            }
            // All have agreed on it, so all were here.
            OpKind::Barrier => Trailer::EMPTY,
            _ => {
                // A rank alone has its sum where it should be: its only root is the whole tree.
                if self.outs.len() > 1 {
                    self.run(intent.kind, intent.operand);
                }
                self.group.arrive();
                // While the others come.
                let reduced = self.reduce_trailers(intent.kind, intent.operand);
                self.group.pass()?;
                reduced
            }
        };
        self.group.leave();
        self.progress.end();
        Ok(reduced)
    }

    /// A sum whose pieces are whoever's who has a core, until all are done.
    fn share(&mut self, kind: OpKind, operand: u32) -> Result<(), CollectiveError> {
        let pieces = self.pieces();
        let Self { group, orders, leaves, outs, sums, .. } = self;
        let (orders, leaves) = (&orders[&operand], &leaves[&operand]);
        group.share(pieces.count(), |group, piece| {
            let (owner, part) = pieces.piece(piece);
            let to = if kind == OpKind::ReduceScatter { owner..owner + 1 } else { 0..*sums };
            group.sum(&orders[owner % orders.len()], leaves, &outs[to], part);
        })
    }

    fn pieces(&self) -> Pieces {
        Pieces::new(self.group.geometry().len, self.outs.len())
    }

    /// The pass between the barriers: this rank's part of the work, for everybody.
    fn run(&mut self, kind: OpKind, operand: u32) {
        let rank = self.rank();
        let to = match kind {
            OpKind::AllReduce => 0..self.sums,
            OpKind::ReduceScatter => rank..rank + 1,
            OpKind::AllGather | OpKind::Broadcast | OpKind::Barrier | OpKind::Copy => {
                // Slot 0 of this rank is written by this rank alone, and only outside of what it gives itself.
                let others = self.taken.iter().enumerate().filter(|(_, given)| !given.is_empty());
                return others.for_each(|(from, given)| self.group.copy_slot_0(from, rank, given.clone()));
            }
        };
        let order = self.plans.get(operand).data_order();
        self.group.sum(order, &self.leaves[&operand], &self.outs[to], self.own.clone());
    }

    fn reduce_trailers(&mut self, kind: OpKind, operand: u32) -> Trailer {
        if !matches!(kind, OpKind::AllReduce | OpKind::ReduceScatter) {
            return Trailer::EMPTY;
        }
        let plan = self.plans.get(operand);
        self.trailers.clear();
        for rank in 0..self.outs.len() {
            for root in 0..plan.leaves_of(rank).len() {
                self.trailers.push(self.group.get_trailer(rank, root));
            }
        }
        plan.trailer_order().sum_trailers(&self.trailers, &mut self.trailer_stack)
    }
}

/// How each rank's chunk is added up in a step of `count` micro-batches: along one tree, or each around the ring to its owner.
fn orders_of_chunks(plans: &Plans, count: u32) -> Vec<SumOrder> {
    if plans.mode() == Reduce::Exact {
        return vec![plans.get(count).data_order().clone()];
    }
    let mut membership = plans.membership().clone();
    let order = |rank| {
        membership.rank = Rank(rank);
        CountPlan::new(&membership, Reduce::Ring, count).data_order().clone()
    };
    (0..plans.membership().world().0).map(order).collect()
}

impl Backend for ShmBackend {
    fn prepare(&mut self, counts: &[u32]) {
        self.plans.prepare(counts);
        let world = self.outs.len();
        let have = self.group.geometry();
        for &count in counts {
            let plan: &CountPlan = self.plans.get(count);
            let slots =
                (0..world).flat_map(|rank| (0..plan.leaves_of(rank).len()).map(move |slot| (rank, slot)));
            assert!(
                (0..world).all(|rank| plan.leaves_of(rank).len() <= have.root_slots),
                "the arena lacks root slots"
            );
            self.leaves.insert(count, slots.map(|(rank, slot)| self.group.slot(rank, slot)).collect());
            let room = plan.leaf_count();
            self.trailers.reserve(room);
            self.trailer_stack.reserve(room);
            let orders = orders_of_chunks(&self.plans, count);
            orders.iter().for_each(|order| self.group.prepare(order));
            self.orders.insert(count, orders);
        }
    }

    fn arena(&mut self) -> &mut dyn Arena {
        self.progress.assert_idle();
        self.group.arena()
    }

    fn reduced(&mut self) -> &[f32] {
        self.progress.assert_idle();
        match self.sums == self.outs.len() {
            true => self.group.arena().lease(0),
            false => self.group.first_slot(),
        }
    }

    fn reduced_before(&mut self) -> Option<&[f32]> {
        Some(self.group.own_slot()).filter(|_| self.sums == self.outs.len())
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
        Aborter::new(self.group.abort_handle())
    }

    fn describe(&self) -> String {
        let mode = self.plans.mode().describe(self.group.wire());
        format!("shared memory, {mode}, rank {} of {}, {:?}", self.rank(), self.world(), self.group.isa())
    }
}
