//! The classic ring: a reduce-scatter of `n - 1` hops, then a gather of `n - 1` hops, each chunk cut into segments that
//! follow one another around the ring.
//!
//! In hop `s` a rank sends chunk `rank - 1 - s` to its right neighbour. So chunk `c` starts at rank `c + 1`, is summed on
//! its way as `((x[c+1] + x[c+2]) + ...) + x[c]`, each sum rounded where it is made, ends complete at rank `c`, and goes round
//! once more. A rank without a micro-batch passes on what it gets. The trailers travel beside segment 0 of the first `n - 1`
//! hops, and every rank adds all of them by rank. Pure data: it does not know how frames travel.

use crate::add::add_to;
use crate::position::{Position, foreign};
use crate::{Chunks, CollectiveError, CountPlan, Frame, Header, Outgoing, Plans, Slots, Tag, Verdict};
use dtrain_types::{Rank, Trailer, Wire};
use std::collections::VecDeque;
use std::sync::Arc;

/// One rank's part in one ring all-reduce after another.
#[derive(Debug)]
pub(crate) struct Ring {
    position: Position,
    chunks: Chunks,
    plan: Option<Arc<CountPlan>>,
    /// What the sums of this collective are rounded to.
    wire: Wire,
    /// By leaf.
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    /// Arrived: hop by segment.
    seen: Vec<bool>,
    longest: usize,
    missing: usize,
    /// What may be sent, as hop and segment, in the order in which it became complete.
    queue: VecDeque<(usize, usize)>,
}

impl Ring {
    pub fn new(position: Position) -> Self {
        Self {
            position,
            chunks: Chunks::even(0, position.world),
            plan: None,
            wire: Wire::F32,
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            seen: Vec::new(),
            longest: 0,
            missing: 0,
            queue: VecDeque::new(),
        }
    }

    fn hops(&self) -> usize {
        2 * (self.position.world - 1)
    }

    /// Makes room for every step over buffers of `len` floats, so that none allocates.
    pub fn prepare(&mut self, plans: &Plans, len: usize) {
        self.chunks = Chunks::even(len, self.position.world).with_segment(self.position.segment);
        self.longest = (0..self.position.world).map(|owner| self.chunks.segments(owner)).max().unwrap_or(0);
        let leaves = plans.iter().map(|plan| plan.leaf_count()).max().unwrap_or(0);
        self.trailers.clear();
        self.trailers.reserve(leaves);
        self.trailer_stack.reserve(leaves);
        self.seen.resize(self.hops() * self.longest, false);
        self.queue.clear();
        self.queue.reserve(self.hops() * self.longest);
    }

    /// Takes up an all-reduce, whose sums are rounded.
    pub fn begin(&mut self, trailers: &[Trailer], wire: Wire, plan: Arc<CountPlan>) {
        self.wire = wire;
        self.trailers.clear();
        self.trailers.resize(plan.leaf_count(), Trailer::EMPTY);
        self.trailers[plan.leaves_of(self.position.rank)].copy_from_slice(trailers);
        self.seen.fill(false);
        let left = self.left();
        self.missing = (0..self.hops()).map(|hop| self.chunks.segments(self.chunk_sent(left, hop))).sum();
        self.plan = Some(plan);
        self.queue.clear();
        if self.hops() > 0 {
            let first = self.chunks.segments(self.chunk_sent(self.position.rank, 0));
            self.queue.extend((0..first).map(|segment| (0, segment)));
        }
    }

    /// Whether this rank has sent and received everything.
    pub fn is_done(&self) -> bool {
        self.missing == 0 && self.queue.is_empty()
    }

    /// The sum of all trailers.
    pub fn reduced(&mut self) -> Trailer {
        let plan = self.plan.as_ref().expect("an all-reduce has a plan");
        plan.trailer_order().sum_trailers(&self.trailers, &mut self.trailer_stack)
    }

    fn left(&self) -> usize {
        (self.position.rank + self.position.world - 1) % self.position.world
    }

    /// The chunk that `rank` sends in `hop`.
    fn chunk_sent(&self, rank: usize, hop: usize) -> usize {
        (rank + 2 * self.position.world - 1 - hop) % self.position.world
    }

    /// Whose trailer `rank` sends in `hop`, in the first half.
    fn trailer_sent(&self, rank: usize, hop: usize) -> usize {
        (rank + self.position.world - hop) % self.position.world
    }

    fn contributes(&self, rank: usize) -> bool {
        self.plan.as_ref().is_some_and(|plan| !plan.leaves_of(rank).is_empty())
    }

    fn is_summing(&self, hop: usize) -> bool {
        hop < self.position.world - 1
    }

    /// Whether anything has been put into the chunk that `sender` sends in `hop`.
    fn has_floats(&self, sender: usize, hop: usize) -> bool {
        let world = self.position.world;
        !self.is_summing(hop) || (0..=hop).any(|back| self.contributes((sender + world - back) % world))
    }

    /// The trailer that `sender` owes beside a frame, as the rank that it belongs to.
    fn trailer_due(&self, sender: usize, hop: usize, segment: usize) -> Option<usize> {
        let origin = self.trailer_sent(sender, hop % self.position.world);
        (self.is_summing(hop) && segment == 0 && self.contributes(origin)).then_some(origin)
    }

    /// The next frame to send.
    pub fn poll_send<'a>(&self, tag: Tag, arena: &'a impl Slots) -> Option<Outgoing<'a>> {
        let &(hop, segment) = self.queue.front()?;
        let rank = self.position.rank;
        let payload = match self.has_floats(rank, hop) {
            true => arena.read(0, self.chunks.segment(self.chunk_sent(rank, hop), segment)),
            false => &[],
        };
        let plan = self.plan.as_ref().expect("an all-reduce has a plan");
        let due = self.trailer_due(rank, hop, segment);
        let trailer = due.map(|origin| self.trailers[plan.leaves_of(origin).start]);
        let tag = Tag { round: hop as u32, part: 0, segment: segment as u32, ..tag };
        let to = Rank(((rank + 1) % self.position.world) as u32);
        Some(Outgoing { to, header: Header { tag, wire: self.wire, trailer }, payload })
    }

    /// Notes that the frame of the last `poll_send` is on its way.
    pub fn sent(&mut self) {
        self.queue.pop_front();
    }

    /// Uses a frame of this collective.
    pub fn handle_frame(
        &mut self,
        frame: &Frame<'_>,
        arena: &mut impl Slots,
    ) -> Result<Verdict, CollectiveError> {
        let (rank, left) = (self.position.rank, self.left());
        let Tag { round, part, segment, .. } = frame.header.tag;
        let (hop, segment) = (round as usize, segment as usize);
        if frame.from.index() != left {
            return Err(foreign(frame, "it is not from the left neighbour"));
        }
        if hop >= self.hops() || part != 0 || segment >= self.chunks.segments(self.chunk_sent(left, hop)) {
            return Err(foreign(frame, "no such hop or segment"));
        }
        let due = self.trailer_due(left, hop, segment);
        if due.is_some() != frame.header.trailer.is_some() {
            return Err(foreign(frame, "the trailer is missing or out of place"));
        }
        let range = self.chunks.segment(self.chunk_sent(left, hop), segment);
        let floats = self.has_floats(left, hop);
        if frame.payload.len() != if floats { range.len() } else { 0 } {
            return Err(foreign(frame, "wrong number of floats"));
        }
        if std::mem::replace(&mut self.seen[hop * self.longest + segment], true) {
            return Err(foreign(frame, "it came before"));
        }
        if let (Some(origin), Some(trailer)) = (due, frame.header.trailer) {
            let leaf = self.plan.as_ref().expect("an all-reduce has a plan").leaves_of(origin).start;
            self.trailers[leaf] = trailer;
        }
        let slot = arena.write(0, range);
        match (floats, self.is_summing(hop) && self.contributes(rank)) {
            (true, true) => add_to(self.wire, slot, frame.payload),
            (true, false) => slot.copy_from_slice(frame.payload),
            (false, _) => {}
        }
        if hop + 1 < self.hops() {
            self.queue.push_back((hop + 1, segment));
        }
        self.missing -= 1;
        Ok(Verdict::Taken)
    }
}
