//! One rank's collectives as a pure machine: frames in, frames out.
//!
//! The driver's contract: `start`, which `offer` may precede; then, in any order, `handle_frame` for what arrives and
//! `poll_send` followed by `sent` for what can leave; when `is_done`, `finish`. Frames may come in any order between ranks.
//! [`crate::HostBackend`] drives it over a [`crate::Transport`], a simulator over its own network. It reads no clock and does
//! no I/O.

use crate::direct::Direct;
use crate::position::{Position, foreign};
use crate::ring::Ring;
use crate::{
    Assignment, CollectiveError, Frame, Geometry, HostArena, Moves, Narrow, Op, OpKind, Outgoing, Plans,
    Reduce, SEGMENT, Sequence, Slots, Tag, Take, Verdict,
};
use dtrain_types::{Generation, Trailer, Wire};
use std::cmp::Ordering;

/// The collectives of one rank in one generation, over slots of its own or over some that were lent to it.
#[derive(Debug)]
pub struct RankMachine<A = HostArena> {
    plans: Plans,
    arena: A,
    direct: Direct,
    ring: Ring,
    /// What every sum is rounded to.
    wire: Wire,
    /// The collective in progress: its tag with round, part and segment 0.
    current: Option<Tag>,
    /// Part of it was offered, and it is not started.
    offered: bool,
    last: Option<Sequence>,
}

impl RankMachine {
    /// A machine with zeroed slots. *Errors*: [`CollectiveError::Assignment`].
    pub fn new(membership: Assignment, mode: Reduce, geometry: Geometry) -> Result<Self, CollectiveError> {
        Self::with_segment(membership, mode, geometry, SEGMENT)
    }

    /// As `new`, with at most `segment` floats in a frame, the same on all ranks. *Panics* if it is 0.
    pub fn with_segment(
        membership: Assignment,
        mode: Reduce,
        geometry: Geometry,
        segment: usize,
    ) -> Result<Self, CollectiveError> {
        Self::over(HostArena::new(geometry), membership, mode, segment)
    }
}

impl<A: Slots> RankMachine<A> {
    /// A machine that works in `arena`, with at most `segment` floats in a frame, the same on all ranks.
    ///
    /// *Errors*: [`CollectiveError::Assignment`]. *Panics* if `segment` is 0.
    pub fn over(
        arena: A,
        membership: Assignment,
        mode: Reduce,
        segment: usize,
    ) -> Result<Self, CollectiveError> {
        membership.check()?;
        let (rank, world) = (membership.rank.index(), membership.ranges.len());
        let position = Position { rank, world, segment };
        let plans = Plans::new(membership, mode);
        let mut machine = Self {
            arena,
            direct: Direct::new(position),
            ring: Ring::new(position),
            plans,
            wire: Wire::F32,
            current: None,
            offered: false,
            last: None,
        };
        machine.prepare(&[]);
        Ok(machine)
    }

    /// Rounds every sum, as the owner of the slots has rounded the roots; the same on all ranks. *Panics* in a collective.
    #[must_use]
    pub fn with_wire(mut self, wire: Wire) -> Self {
        self.set_wire(wire);
        self
    }

    /// Has room for so many segments of each root that comes before its time, in place of 64; whoever sends more waits. Before steps are planned. *Panics*
    /// if it is 0.
    #[must_use]
    pub fn with_room_for(mut self, segments: usize) -> Self {
        self.direct.set_staged(segments);
        self
    }

    /// As [`RankMachine::with_wire`], for one that is in its place already.
    pub fn set_wire(&mut self, wire: Wire) {
        assert_eq!(self.current, None, "a collective is in progress");
        self.wire = wire;
    }

    /// What the floats of a collective are rounded to: those of one that adds nothing stay as they are.
    fn wire_of(&self, kind: OpKind) -> Wire {
        match kind {
            OpKind::AllReduce | OpKind::ReduceScatter => self.wire,
            OpKind::AllGather | OpKind::Broadcast | OpKind::Barrier | OpKind::Copy => Wire::F32,
        }
    }

    /// Plans steps of these counts. *Panics* if a count is not covered by the ranges, if a rank has more roots than the
    /// geometry has slots, or in a collective.
    pub fn prepare(&mut self, counts: &[u32]) {
        assert_eq!(self.current, None, "a collective is in progress");
        let geometry = self.arena.geometry();
        self.plans.prepare(counts);
        let own = self.plans.membership().rank.index();
        let fits = self.plans.iter().all(|plan| plan.leaves_of(own).len() <= geometry.root_slots);
        assert!(fits, "{geometry:?} lacks root slots");
        self.direct.prepare(&self.plans, geometry.len);
        self.ring.prepare(&self.plans, geometry.len);
    }

    /// The gradient buffers; while part of a sum is offered, for what lies before that part. *Panics* in a collective.
    pub fn arena(&mut self) -> &mut A {
        assert!(self.current.is_none() || self.offered, "slots are lent between collectives only");
        &mut self.arena
    }

    /// Slot 0 as it is, to read: in a collective too, which may have written anything there.
    #[must_use]
    pub fn own_slot(&self) -> &[f32] {
        self.arena.read(0, 0..self.arena.geometry().len)
    }

    /// For whom this machine works.
    #[must_use]
    pub fn membership(&self) -> &Assignment {
        self.plans.membership()
    }

    /// The order of its sums.
    #[must_use]
    pub fn mode(&self) -> Reduce {
        self.plans.mode()
    }

    /// How its sums are made, for the log.
    #[must_use]
    pub fn describe_sums(&self) -> &'static str {
        self.mode().describe(self.wire)
    }

    fn generation(&self) -> Generation {
        self.plans.membership().generation
    }

    fn runs_ring(&self, kind: OpKind) -> bool {
        self.plans.mode() == Reduce::Ring && kind == OpKind::AllReduce
    }

    /// Whether [`RankMachine::offer`] is of use: a ring takes a gradient as a whole, and alone there is nobody to send to.
    #[must_use]
    pub fn takes_offers(&self) -> bool {
        !self.runs_ring(OpKind::AllReduce) && self.membership().world().0 > 1
    }

    /// Takes up an all-reduce whose trailers are not known yet, and says that the roots of this rank are final from element
    /// `from` on: that part may be sent and is overwritten with sums. Later calls give more; `start` gives the rest.
    ///
    /// *Panics* as [`crate::Backend::offer`], and in a ring.
    pub fn offer(&mut self, seq: Sequence, micro_batches: u32, from: usize) {
        assert!(!self.runs_ring(OpKind::AllReduce), "a ring takes a gradient as a whole");
        self.open(seq, OpKind::AllReduce, micro_batches);
        self.offered = true;
        self.direct.give(from, &mut self.arena);
    }

    /// Takes up a direct sum, unless part of it was offered.
    fn open(&mut self, seq: Sequence, kind: OpKind, micro_batches: u32) {
        if self.offered {
            let offered = self.current.map(|tag| (tag.sequence, tag.op, tag.operand));
            assert_eq!(offered, Some((seq, kind, micro_batches)), "part of another sum was offered");
            return;
        }
        self.take_up(seq, kind, micro_batches);
        let plan = self.plans.get(micro_batches).clone();
        self.direct.begin_sum(kind, self.wire, plan, self.arena.geometry().len);
    }

    /// Takes up a collective. *Panics* as [`crate::Backend::start`].
    pub fn start(&mut self, seq: Sequence, op: &Op<'_>) {
        let world = self.plans.membership().world();
        op.assert_fits(world);
        let Some((count, trailers)) = op.reduction() else {
            let len = self.arena.geometry().len;
            let moves = |rank| op.moves(rank, world.0 as usize, len).expect("it is no reduction");
            return self.start_moves(seq, (op.kind(), op.operand()), op.take(), moves);
        };
        let rank = self.plans.membership().rank.index();
        let own = self.plans.get(count).leaves_of(rank).len();
        assert_eq!(trailers.len(), own, "a step of {count} micro-batches needs a trailer for each own root");
        if self.runs_ring(op.kind()) {
            self.take_up(seq, op.kind(), count);
            let plan = self.plans.get(count).clone();
            return self.ring.begin(trailers, self.wire, plan);
        }
        self.open(seq, op.kind(), count);
        self.offered = false;
        self.direct.tell(trailers);
        self.direct.give(0, &mut self.arena);
    }

    /// Takes up a collective that moves floats, where what each rank gives and takes is told by the caller: for ranks
    /// that stand for several. Kind and operand are what all ranks must agree on. *Panics* as `start`.
    pub fn start_moves(
        &mut self,
        seq: Sequence,
        what: (OpKind, u32),
        take: Take,
        moves: impl Fn(usize) -> Moves,
    ) {
        assert!(!self.runs_ring(what.0), "a sum moves more than this");
        self.take_up(seq, what.0, what.1);
        self.direct.begin_moves(moves, take);
    }

    /// As [`crate::Backend::narrow`]; a ring takes no notice. *Panics* in a collective.
    pub fn narrow(&mut self, narrow: Narrow) {
        assert_eq!(self.current, None, "a collective is in progress");
        self.direct.narrow(narrow);
    }

    fn take_up(&mut self, sequence: Sequence, op: OpKind, operand: u32) {
        assert_eq!(self.current, None, "collective {sequence} starts inside another one");
        assert!(
            self.last.is_none_or(|last| last < sequence),
            "collective {sequence} comes after {:?}",
            self.last
        );
        let generation = self.generation();
        self.current = Some(Tag { generation, sequence, op, operand, round: 0, part: 0, segment: 0 });
        self.last = Some(sequence);
    }

    /// Judges a frame, and uses it if its time has come.
    ///
    /// *Errors*: [`CollectiveError::Foreign`] and [`CollectiveError::Mismatch`]; the machine is of no use afterwards.
    pub fn handle_frame(&mut self, frame: &Frame<'_>) -> Result<Verdict, CollectiveError> {
        let tag = frame.header.tag;
        match tag.generation.cmp(&self.generation()) {
            Ordering::Less => return Ok(Verdict::Stale),
            Ordering::Greater => return Ok(Verdict::Later),
            Ordering::Equal => {}
        }
        let membership = self.plans.membership();
        if frame.from == membership.rank || frame.from.0 >= membership.world().0 {
            return Err(foreign(frame, "there is no such peer"));
        }
        if self.last.is_none_or(|last| tag.sequence > last) {
            return Ok(Verdict::Later);
        }
        let Some(current) = self.current.filter(|current| current.sequence == tag.sequence) else {
            return Err(foreign(frame, "its collective is over"));
        };
        if (tag.op, tag.operand) != (current.op, current.operand) {
            let words = |tag: Tag| format!("{:?} {}", tag.op, tag.operand);
            let (from, sequence) = (frame.from, tag.sequence);
            return Err(CollectiveError::Mismatch {
                from,
                sequence,
                theirs: words(tag),
                ours: words(current),
            });
        }
        if frame.header.wire != self.wire_of(current.op) {
            return Err(foreign(frame, "its floats are rounded in another way"));
        }
        match self.runs_ring(current.op) {
            true => self.ring.handle_frame(frame, &mut self.arena),
            false => self.direct.handle_frame(frame, &mut self.arena),
        }
    }

    /// The next frame that can leave, if any. The same one until `sent` or `handle_frame`.
    #[must_use]
    pub fn poll_send(&self) -> Option<Outgoing<'_>> {
        let tag = self.current?;
        match self.runs_ring(tag.op) {
            true => self.ring.poll_send(tag, &self.arena),
            false => self.direct.poll_send(tag, &self.arena),
        }
    }

    /// Notes that the frame of the `poll_send` just before is on its way. *Panics* outside a collective.
    pub fn sent(&mut self) {
        match self.runs_ring(self.current.expect("only a collective sends").op) {
            true => self.ring.sent(),
            false => self.direct.sent(),
        }
    }

    /// Whether the collective in progress has sent and received everything. True outside a collective.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self.current {
            None => true,
            Some(tag) if self.runs_ring(tag.op) => self.ring.is_done(),
            Some(_) => self.direct.is_done(),
        }
    }

    /// Ends the collective; gives the reduced trailer. *Panics* if it is another one or not done.
    pub fn finish(&mut self, seq: Sequence) -> Trailer {
        let tag = self.current.expect("a collective is in progress");
        assert!(
            tag.sequence == seq && self.is_done(),
            "collective {} is in progress, {seq} finishes",
            tag.sequence
        );
        self.current = None;
        match self.runs_ring(tag.op) {
            true => self.ring.reduced(),
            false => self.direct.reduced(),
        }
    }
}
