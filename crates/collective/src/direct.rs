//! The direct algorithm: every rank sends each owner its part, the owner adds, and sends the sum to everyone.
//!
//! Two rounds, whatever the world size. Round 0 contributes: for each of its roots a rank sends every owner the part of
//! that owner's chunk, or a frame without floats if it has no root (lockstep lemma: an owner finishes only when it has
//! heard everyone). Round 1 gathers: each owner sends its chunk to everyone. A reduce-scatter is round 0 alone; a gather
//! is round 1 alone; a broadcast is a gather in which one rank owns everything; a barrier one in which nobody owns
//! anything. Pure data: it does not know how frames travel.

use crate::machine::{Seat, foreign};
use crate::{
    Arena, BLOCK, Chunks, CollectiveError, CountPlan, Frame, Header, HostArena, Op, Outgoing, Plans, Tag,
    Verdict, sum_block,
};
use dtrain_types::{Rank, Trailer};
use std::collections::VecDeque;
use std::sync::Arc;

const CONTRIBUTE: u32 = 0;
const GATHER: u32 = 1;

/// One rank's part in one direct collective after another.
#[derive(Debug)]
pub(crate) struct Direct {
    seat: Seat,
    chunks: Chunks,
    /// What is added, in a reduction.
    plan: Option<Arc<CountPlan>>,
    /// Whether round 1 takes place.
    gathers: bool,
    /// Contributions of the peers to this rank's chunk, leaf after leaf.
    staging: Vec<f32>,
    stack: Vec<f32>,
    /// By leaf.
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    /// Contributions that arrived: leaf by segment of the own chunk, then one for each rank without a leaf.
    contributed: Vec<bool>,
    /// Contributions that each segment of the own chunk still waits for.
    missing: Vec<usize>,
    /// Segments of the own chunk that are not summed yet.
    unsummed: usize,
    /// Where the segments of each rank begin in `gathered`.
    gather_base: Vec<usize>,
    gathered: Vec<bool>,
    ungathered: usize,
    /// The next contribution to send, and how many segments the longest chunk has.
    cursor: Cursor,
    longest: usize,
    /// Own segments that are to go out to all peers, and the peer that is next.
    ready: VecDeque<usize>,
    ready_step: usize,
}

/// A place in the order of contributions: segment by segment, so that the owners can begin early; then the peers,
/// beginning with the right neighbour, so that not everyone sends to rank 0 first; then the own roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    segment: usize,
    step: usize,
    part: usize,
}

impl Direct {
    pub fn new(seat: Seat) -> Self {
        Self {
            seat,
            chunks: Chunks::even(0, seat.world),
            plan: None,
            gathers: false,
            staging: Vec::new(),
            stack: Vec::new(),
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            contributed: Vec::new(),
            missing: Vec::new(),
            unsummed: 0,
            gather_base: Vec::new(),
            gathered: Vec::new(),
            ungathered: 0,
            cursor: Cursor { segment: 0, step: 1, part: 0 },
            longest: 0,
            ready: VecDeque::new(),
            ready_step: 1,
        }
    }

    /// Makes room for every collective over buffers of `len` floats, so that none allocates.
    pub fn prepare(&mut self, plans: &Plans, len: usize) {
        let (rank, world) = (self.seat.rank, self.seat.world);
        let even = Chunks::even(len, world).with_segment(self.seat.segment);
        let whole = Chunks::whole(len, rank).with_segment(self.seat.segment);
        let own_segments = even.segments(rank);
        let mut leaves = 0;
        for plan in plans.iter() {
            leaves = leaves.max(plan.leaf_count());
            let peers = plan.leaf_count() - plan.leaves_of(rank).len();
            let staging = self.staging.len().max(peers * even.chunk(rank).len());
            self.staging.resize(staging, 0.0);
            let stack = self.stack.len().max(plan.data_order().depth() * BLOCK);
            self.stack.resize(stack, 0.0);
        }
        reserve(&mut self.trailers, leaves);
        reserve(&mut self.trailer_stack, leaves);
        reserve(&mut self.contributed, leaves * own_segments + world);
        let most_segments =
            whole.segments(rank) + (0..world).map(|owner| even.segments(owner)).sum::<usize>();
        reserve(&mut self.missing, most_segments);
        reserve(&mut self.gather_base, world);
        reserve(&mut self.gathered, most_segments + world);
        self.ready.clear();
        self.ready.reserve(most_segments);
    }

    /// Takes up a collective.
    pub fn begin(&mut self, op: &Op<'_>, plan: Option<Arc<CountPlan>>, arena: &mut HostArena) {
        let (rank, world, len) = (self.seat.rank, self.seat.world, arena.geometry().len);
        let chunks = match op {
            Op::Broadcast { from } => Chunks::whole(len, from.index()),
            Op::Barrier => Chunks::even(0, world),
            Op::AllReduce { .. } | Op::ReduceScatter { .. } | Op::AllGather => Chunks::even(len, world),
        };
        self.chunks = chunks.with_segment(self.seat.segment);
        self.gathers = !matches!(op, Op::ReduceScatter { .. });
        self.plan = plan;
        self.longest = (0..world).map(|owner| self.chunks.segments(owner)).max().unwrap_or(0);
        self.cursor =
            Cursor { segment: if self.plan.is_some() { 0 } else { self.longest }, step: 1, part: 0 };
        self.settle();
        self.ready.clear();
        self.ready_step = 1;
        self.expect_gathers(world);
        let own_segments = self.chunks.segments(rank);
        let Some(plan) = &self.plan else {
            self.unsummed = 0;
            return self.ready.extend(0..own_segments);
        };
        let own = plan.leaves_of(rank);
        self.trailers.clear();
        self.trailers.resize(plan.leaf_count(), Trailer::EMPTY);
        let (_, given) = op.reduction().expect("a plan belongs to a reduction");
        self.trailers[own.clone()].copy_from_slice(given);
        self.contributed.clear();
        self.contributed.resize(plan.leaf_count() * own_segments + world, false);
        let spares = (0..world).filter(|peer| *peer != rank && plan.leaves_of(*peer).is_empty()).count();
        self.missing.clear();
        self.missing.resize(own_segments, plan.leaf_count() - own.len());
        self.missing[0] += spares;
        self.unsummed = own_segments;
        // Only where all other ranks are spares, or there are none, is a segment complete from the start.
        for segment in (0..own_segments).filter(|segment| *segment > 0 || spares == 0) {
            if self.missing[segment] == 0 {
                self.sum_segment(segment, arena);
            }
        }
    }

    fn expect_gathers(&mut self, world: usize) {
        self.gather_base.clear();
        let mut base = 0;
        for owner in 0..world {
            self.gather_base.push(base);
            base += self.chunks.segments(owner);
        }
        self.gathered.clear();
        self.gathered.resize(base, false);
        self.ungathered = if self.gathers { base - self.chunks.segments(self.seat.rank) } else { 0 };
    }

    /// Whether this rank has sent and received everything.
    pub fn is_done(&self) -> bool {
        self.cursor.segment >= self.longest
            && self.nothing_ready()
            && self.unsummed == 0
            && self.ungathered == 0
    }

    /// The sum of all trailers; [`Trailer::EMPTY`] where nothing is reduced.
    pub fn reduced(&mut self) -> Trailer {
        match &self.plan {
            None => Trailer::EMPTY,
            Some(plan) => plan.trailer_order().sum_trailers(&self.trailers, &mut self.trailer_stack),
        }
    }

    fn nothing_ready(&self) -> bool {
        self.ready.is_empty() || !self.gathers || self.seat.world == 1
    }

    /// The next frame to send: sums first, because others wait for them.
    pub fn poll_send<'a>(&self, tag: Tag, arena: &'a HostArena) -> Option<Outgoing<'a>> {
        let (rank, world) = (self.seat.rank, self.seat.world);
        if !self.nothing_ready() {
            let segment = *self.ready.front()?;
            let tag = Tag { round: GATHER, part: 0, segment: segment as u32, ..tag };
            let payload = &arena.slot(0)[self.chunks.segment(rank, segment)];
            let to = Rank(((rank + self.ready_step) % world) as u32);
            return Some(Outgoing { to, header: Header { tag, trailer: None }, payload });
        }
        let Cursor { segment, step, part } = self.cursor;
        let plan = self.plan.as_ref().filter(|_| segment < self.longest)?;
        let owner = (rank + step) % world;
        let own = plan.leaves_of(rank);
        let tag = Tag { round: CONTRIBUTE, part: part as u32, segment: segment as u32, ..tag };
        let trailer = (segment == 0 && !own.is_empty()).then(|| self.trailers[own.start + part]);
        let payload = match own.is_empty() {
            true => &[],
            false => &arena.slot(part)[self.chunks.segment(owner, segment)],
        };
        Some(Outgoing { to: Rank(owner as u32), header: Header { tag, trailer }, payload })
    }

    /// Notes that the frame of the last `poll_send` is on its way.
    pub fn sent(&mut self) {
        if self.nothing_ready() {
            self.cursor.part += 1;
            return self.settle();
        }
        self.ready_step += 1;
        if self.ready_step == self.seat.world {
            self.ready.pop_front();
            self.ready_step = 1;
        }
    }

    /// Moves the cursor on to a contribution that exists, or to the end.
    fn settle(&mut self) {
        let own = self.plan.as_ref().map_or(0, |plan| plan.leaves_of(self.seat.rank).len());
        while self.cursor.segment < self.longest {
            let Cursor { segment, step, part } = self.cursor;
            if step >= self.seat.world {
                self.cursor = Cursor { segment: segment + 1, step: 1, part: 0 };
                continue;
            }
            // A rank without a root sends each owner one frame without floats.
            let parts = if own == 0 { usize::from(segment == 0) } else { own };
            if part < parts && segment < self.chunks.segments((self.seat.rank + step) % self.seat.world) {
                return;
            }
            self.cursor = Cursor { segment, step: step + 1, part: 0 };
        }
    }

    /// Uses a frame of this collective.
    pub fn handle_frame(
        &mut self,
        frame: &Frame<'_>,
        arena: &mut HostArena,
    ) -> Result<Verdict, CollectiveError> {
        match frame.header.tag.round {
            CONTRIBUTE => self.take_contribution(frame, arena)?,
            GATHER => self.take_sum(frame, arena)?,
            _ => return Err(foreign(frame, "no such round")),
        }
        Ok(Verdict::Taken)
    }

    fn take_contribution(&mut self, frame: &Frame<'_>, arena: &mut HostArena) -> Result<(), CollectiveError> {
        let Some(plan) = &self.plan else { return Err(foreign(frame, "nothing is added here")) };
        let (from, rank) = (frame.from.index(), self.seat.rank);
        let (part, segment) = (frame.header.tag.part as usize, frame.header.tag.segment as usize);
        let (theirs, segments) = (plan.leaves_of(from), self.chunks.segments(rank));
        let spare = theirs.is_empty();
        if part >= theirs.len().max(1) || segment >= if spare { 1 } else { segments } {
            return Err(foreign(frame, "no such root or segment"));
        }
        if frame.header.trailer.is_some() != (segment == 0 && !spare) {
            return Err(foreign(frame, "the trailer is missing or out of place"));
        }
        let range = self.chunks.segment(rank, segment);
        if frame.payload.len() != if spare { 0 } else { range.len() } {
            return Err(foreign(frame, "wrong number of floats"));
        }
        let place = match spare {
            true => plan.leaf_count() * segments + from,
            false => (theirs.start + part) * segments + segment,
        };
        if std::mem::replace(&mut self.contributed[place], true) {
            return Err(foreign(frame, "it came before"));
        }
        if !spare {
            let leaf = theirs.start + part;
            let chunk = self.chunks.chunk(rank);
            let at = staging_of(leaf, plan.leaves_of(rank)) * chunk.len() + range.start - chunk.start;
            self.staging[at..][..range.len()].copy_from_slice(frame.payload);
            if let Some(trailer) = frame.header.trailer {
                self.trailers[leaf] = trailer;
            }
        }
        self.missing[segment] -= 1;
        if self.missing[segment] == 0 {
            self.sum_segment(segment, arena);
        }
        Ok(())
    }

    /// Adds all leaves of one segment of the own chunk into slot 0.
    fn sum_segment(&mut self, segment: usize, arena: &mut HostArena) {
        let plan = self.plan.as_ref().expect("only a reduction sums");
        let (own, chunk) = (plan.leaves_of(self.seat.rank), self.chunks.chunk(self.seat.rank));
        let range = self.chunks.segment(self.seat.rank, segment);
        for start in range.clone().step_by(BLOCK) {
            let n = BLOCK.min(range.end - start);
            let leaf = |leaf: usize| match own.contains(&leaf) {
                true => &arena.slot(leaf - own.start)[start..start + n],
                false => {
                    let at = staging_of(leaf, own.clone()) * chunk.len() + start - chunk.start;
                    &self.staging[at..at + n]
                }
            };
            sum_block(plan.data_order(), n, &mut self.stack, leaf);
            arena.lease(0)[start..start + n].copy_from_slice(&self.stack[..n]);
        }
        self.unsummed -= 1;
        if self.gathers {
            self.ready.push_back(segment);
        }
    }

    fn take_sum(&mut self, frame: &Frame<'_>, arena: &mut HostArena) -> Result<(), CollectiveError> {
        let (owner, segment) = (frame.from.index(), frame.header.tag.segment as usize);
        if !self.gathers || frame.header.tag.part != 0 || segment >= self.chunks.segments(owner) {
            return Err(foreign(frame, "no such segment is gathered"));
        }
        if frame.header.trailer.is_some() {
            return Err(foreign(frame, "a sum carries no trailer"));
        }
        let range = self.chunks.segment(owner, segment);
        if frame.payload.len() != range.len() {
            return Err(foreign(frame, "wrong number of floats"));
        }
        if self.still_owes(owner, segment) {
            return Err(foreign(frame, "a sum came before this rank put in its part"));
        }
        if std::mem::replace(&mut self.gathered[self.gather_base[owner] + segment], true) {
            return Err(foreign(frame, "it came before"));
        }
        arena.lease(0)[range].copy_from_slice(frame.payload);
        self.ungathered -= 1;
        Ok(())
    }

    /// Whether slot 0 still holds floats of this segment that are to be sent to its owner.
    fn still_owes(&self, owner: usize, segment: usize) -> bool {
        let (rank, world) = (self.seat.rank, self.seat.world);
        let gives = self.plan.as_ref().is_some_and(|plan| !plan.leaves_of(rank).is_empty());
        let step = (owner + world - rank) % world;
        gives && (self.cursor.segment, self.cursor.step) <= (segment, step)
    }
}

/// The place of a peer's leaf among the leaves that are staged: all but the own ones.
fn staging_of(leaf: usize, own: std::ops::Range<usize>) -> usize {
    if leaf < own.start { leaf } else { leaf - own.len() }
}

fn reserve<T>(vec: &mut Vec<T>, room: usize) {
    vec.clear();
    vec.reserve(room);
}
