//! The direct algorithm: every rank sends each owner its part, the owner adds, and sends the sum to everyone.
//!
//! Two rounds, whatever the world size. Round 0 contributes: for each of its roots a rank sends every owner its part of that, or
//! a frame without floats if it has no root (lockstep lemma: an owner finishes only when it has heard everyone). Round 1
//! gathers: each owner sends its part to everyone. An all-reduce is cut into stripes, and goes from the end of the buffer to
//! its start, where gradients become final last: a rank can put in what is final before it has the rest, and both rounds of
//! that go on meanwhile. A reduce-scatter is round 0 alone, over one chunk each; a gather
//! is round 1 alone; a broadcast is a gather in which one rank owns everything; a barrier one in which nobody owns
//! anything; a copy one in which only the sources own a part and only the targets hear of it. In round 1 nobody is sent what it does not need, where
//! that is known. Pure data: it does not know how frames travel.

use crate::chunk::Parts;
use crate::position::{Position, foreign};
use crate::{
    BLOCK, Chunks, CollectiveError, CountPlan, Frame, Header, Moves, Narrow, OpKind, Outgoing, Plans, Slots,
    Tag, Take, Verdict, sum_block,
};
use dtrain_types::{Rank, Trailer, Wire};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// How many segments an owner takes of each root ahead of those that it cannot add up yet: 16 MiB of each root of a peer. What comes earlier waits with
/// whoever sends it. (All ranks send their segments in one order, so the foremost one that an owner waits for is never behind one that has to wait.)
pub(crate) const STAGED: usize = 64;

const CONTRIBUTE: u32 = 0;
const GATHER: u32 = 1;

/// One rank's part in one direct collective after another.
#[derive(Debug)]
pub(crate) struct Direct {
    position: Position,
    /// Who owns what: sums it in a reduction, sends it in round 1.
    parts: Parts,
    /// What is added, in a reduction.
    plan: Option<Arc<CountPlan>>,
    /// What the floats of this collective are rounded to: what only moves stays as it is.
    wire: Wire,
    /// Whether this rank takes the parts of the others in round 1.
    takes: bool,
    /// To whom this rank sends its part in round 1, beginning with its right neighbour.
    audience: Vec<usize>,
    /// Which of them need a segment of it: place in the audience by segment.
    asked: Vec<bool>,
    /// What ranks need and have, where that is known.
    narrow: Option<Narrow>,
    /// Contributions of the peers to this rank's part, leaf after leaf, each segment as long as the longest: of the last segments that are not summed.
    staging: Vec<f32>,
    /// So many of each leaf.
    staged: usize,
    stack: Vec<f32>,
    /// By leaf.
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    /// Contributions that arrived: leaf by segment of the own part, then one for each rank without a leaf.
    contributed: Vec<bool>,
    /// Contributions that each segment of the own part still waits for; this rank's own roots count as one.
    missing: Vec<usize>,
    /// Segments of the own part that are not summed yet.
    unsummed: usize,
    /// Segments of the own part up to the last one that is not summed.
    left: usize,
    /// Where the final part of this rank's roots begins.
    given: usize,
    /// Own segments that lie in it: the last ones.
    own_given: usize,
    /// Whether the trailers of this rank's roots are there. They travel with the first segments, which are sent last.
    told: bool,
    /// Where the segments of each rank begin in `gathered`.
    gather_base: Vec<usize>,
    gathered: Vec<bool>,
    ungathered: usize,
    /// The next contribution to send.
    cursor: Cursor,
    /// Own segments that are to go out, and the place in the audience that is next.
    ready: VecDeque<usize>,
    ready_step: usize,
}

/// A place in the order of contributions: segment by segment from the last to the first, so that the owners can begin early;
/// then the peers, beginning with the right neighbour, so that not everyone sends to rank 0 first; then the own roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    /// Segments that are left, this one included; 0 behind the last contribution.
    left: usize,
    step: usize,
    part: usize,
}

/// The contribution that completes a segment, as it arrived.
struct Fresh<'a> {
    leaf: usize,
    floats: &'a [f32],
}

impl Direct {
    pub fn new(position: Position) -> Self {
        Self {
            position,
            parts: Parts::new(position.world, position.segment),
            plan: None,
            wire: Wire::F32,
            takes: false,
            audience: Vec::new(),
            asked: Vec::new(),
            narrow: None,
            staging: Vec::new(),
            staged: STAGED,
            stack: Vec::new(),
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            contributed: Vec::new(),
            missing: Vec::new(),
            unsummed: 0,
            left: 0,
            given: 0,
            own_given: 0,
            told: false,
            gather_base: Vec::new(),
            gathered: Vec::new(),
            ungathered: 0,
            cursor: Cursor { left: 0, step: 1, part: 0 },
            ready: VecDeque::new(),
            ready_step: 0,
        }
    }

    /// Takes so many segments of each root ahead, in place of [`STAGED`]. *Panics* if it is 0.
    pub fn set_staged(&mut self, segments: usize) {
        assert!(segments > 0, "an owner has room for what it waits for");
        self.staged = segments;
    }

    /// Makes room for every collective over buffers of `len` floats, so that none allocates.
    pub fn prepare(&mut self, plans: &Plans, len: usize) {
        let (rank, world) = (self.position.rank, self.position.world);
        let (mut own, mut all, mut staged) = (0, 0, 0);
        for kind in [OpKind::AllReduce, OpKind::ReduceScatter] {
            self.cut(kind, len);
            own = own.max(self.parts.segments(rank));
            all = all.max((0..world).map(|owner| self.parts.segments(owner)).sum());
            staged = staged.max(self.parts.copy(rank, self.staged, 1, 0));
        }
        all = all.max(Chunks::whole(len, rank).with_segment(self.position.segment).segments(rank));
        let mut leaves = 0;
        for plan in plans.iter() {
            leaves = leaves.max(plan.leaf_count());
            let peers = plan.leaf_count() - plan.leaves_of(rank).len();
            let staging = self.staging.len().max(peers * staged);
            self.staging.resize(staging, 0.0);
            let stack = self.stack.len().max(plan.data_order().depth() * BLOCK);
            self.stack.resize(stack, 0.0);
        }
        reserve(&mut self.trailers, leaves);
        reserve(&mut self.trailer_stack, leaves);
        reserve(&mut self.contributed, leaves * own + world);
        reserve(&mut self.missing, own);
        reserve(&mut self.gather_base, world);
        reserve(&mut self.audience, world);
        reserve(&mut self.asked, world * all);
        reserve(&mut self.gathered, all + world);
        self.ready.clear();
        self.ready.reserve(all);
    }

    /// Cuts a buffer for a reduction.
    fn cut(&mut self, kind: OpKind, len: usize) {
        let world = self.position.world;
        match kind {
            OpKind::AllReduce => self.parts.stripe(len),
            _ => self.parts.assign(|owner| Some(Chunks::even(len, world).chunk(owner))),
        }
    }

    /// Takes up a reduction, whose sums are rounded; only an all-reduce has a second round. Nothing is final yet.
    pub fn begin_sum(&mut self, kind: OpKind, wire: Wire, plan: Arc<CountPlan>, len: usize) {
        let (rank, world) = (self.position.rank, self.position.world);
        self.cut(kind, len);
        self.expect(|_| kind == OpKind::AllReduce, Narrow::is_needed);
        let longest = (0..world).map(|owner| self.parts.segments(owner)).max().unwrap_or(0);
        self.cursor = Cursor { left: longest, step: 1, part: 0 };
        let own_segments = self.parts.segments(rank);
        self.trailers.clear();
        self.trailers.resize(plan.leaf_count(), Trailer::EMPTY);
        self.contributed.clear();
        self.contributed.resize(plan.leaf_count() * own_segments + world, false);
        let spares = (0..world).filter(|peer| *peer != rank && plan.leaves_of(*peer).is_empty()).count();
        self.missing.clear();
        self.missing.resize(own_segments, plan.leaf_count() - plan.leaves_of(rank).len() + 1);
        self.missing[0] += spares;
        (self.unsummed, self.left) = (own_segments, own_segments);
        (self.plan, self.wire) = (Some(plan), wire);
        (self.given, self.own_given, self.told) = (len, 0, false);
        self.settle();
    }

    /// Notes the trailers of this rank's roots. *Panics* unless there is one for each.
    pub fn tell(&mut self, trailers: &[Trailer]) {
        let plan = self.plan.as_ref().expect("only a reduction has trailers");
        self.trailers[plan.leaves_of(self.position.rank)].copy_from_slice(trailers);
        self.told = true;
    }

    /// Notes that this rank's roots are final from element `from` on.
    pub fn give(&mut self, from: usize, arena: &mut impl Slots) {
        self.given = self.given.min(from);
        let segments = self.parts.segments(self.position.rank);
        while self.own_given < segments {
            let segment = segments - 1 - self.own_given;
            if self.parts.segment(self.position.rank, segment).start < self.given {
                break;
            }
            self.own_given += 1;
            self.missing[segment] -= 1;
            if self.missing[segment] == 0 {
                self.sum_segment(segment, None, arena);
            }
        }
    }

    /// Notes what ranks need and have, from the next collective on.
    pub fn narrow(&mut self, narrow: Narrow) {
        self.narrow = Some(narrow);
    }

    /// Takes up a collective that moves floats: what each rank gives of slot 0, and who takes it.
    pub fn begin_moves(&mut self, moves: impl Fn(usize) -> Moves, take: Take) {
        (self.plan, self.wire, self.told) = (None, Wire::F32, true);
        self.parts.assign(|owner| moves(owner).gives);
        let lacks: fn(&Narrow, usize, &Range<usize>) -> bool = match take {
            Take::Rest => |narrow, rank, elements| !narrow.is_there(rank, elements),
            Take::Needed => Narrow::is_needed,
            Take::All => |_, _, _| true,
        };
        self.expect(|rank| moves(rank).takes, lacks);
        self.cursor = Cursor { left: 0, step: 1, part: 0 };
        self.unsummed = 0;
        self.ready.extend(0..self.parts.segments(self.position.rank));
        self.skip();
    }

    /// Notes who takes what its owner sends in round 1, and what of it each needs, where that is known.
    fn expect(
        &mut self,
        takes: impl Fn(usize) -> bool,
        needs: impl Fn(&Narrow, usize, &Range<usize>) -> bool,
    ) {
        let (rank, world) = (self.position.rank, self.position.world);
        self.takes = takes(rank);
        self.audience.clear();
        self.audience.extend((1..world).map(|step| (rank + step) % world).filter(|peer| takes(*peer)));
        self.ready.clear();
        self.ready_step = 0;
        let Self { narrow, parts, asked, audience, .. } = self;
        let needs = |rank, owner, segment| {
            // An empty segment is word that its owner is here.
            let elements: Range<usize> = parts.segment(owner, segment);
            elements.is_empty() || narrow.as_ref().is_none_or(|narrow| needs(narrow, rank, &elements))
        };
        asked.clear();
        for segment in 0..parts.segments(rank) {
            asked.extend(audience.iter().map(|peer| needs(*peer, rank, segment)));
        }
        self.gather_base.clear();
        self.gathered.clear();
        for owner in 0..world {
            self.gather_base.push(self.gathered.len());
            // What this rank does not need is as if it had come.
            self.gathered
                .extend((0..parts.segments(owner)).map(|it| owner == rank || !needs(rank, owner, it)));
        }
        let missing = self.gathered.iter().filter(|there| !**there).count();
        self.ungathered = if self.takes { missing } else { 0 };
    }

    /// Whether this rank has sent and received everything.
    pub fn is_done(&self) -> bool {
        self.told
            && self.cursor.left == 0
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
        self.ready.is_empty() || self.audience.is_empty()
    }

    /// The next frame to send: sums first, because others wait for them.
    pub fn poll_send<'a>(&self, tag: Tag, arena: &'a impl Slots) -> Option<Outgoing<'a>> {
        let (rank, world) = (self.position.rank, self.position.world);
        if !self.nothing_ready() {
            let segment = *self.ready.front()?;
            let tag = Tag { round: GATHER, part: 0, segment: segment as u32, ..tag };
            let payload = arena.read(0, self.parts.segment(rank, segment));
            let to = Rank(self.audience[self.ready_step] as u32);
            return Some(Outgoing { to, header: Header { tag, wire: self.wire, trailer: None }, payload });
        }
        let Cursor { left, step, part } = self.cursor;
        let (plan, segment) = (self.plan.as_ref()?, left.checked_sub(1)?);
        let owner = (rank + step) % world;
        let range = self.parts.segment(owner, segment);
        if range.start < self.given || (segment == 0 && !self.told) {
            return None;
        }
        let own = plan.leaves_of(rank);
        let tag = Tag { round: CONTRIBUTE, part: part as u32, segment: segment as u32, ..tag };
        let trailer = (segment == 0 && !own.is_empty()).then(|| self.trailers[own.start + part]);
        let payload = match own.is_empty() {
            true => &[],
            false => arena.read(part, range),
        };
        Some(Outgoing { to: Rank(owner as u32), header: Header { tag, wire: self.wire, trailer }, payload })
    }

    /// Notes that the frame of the last `poll_send` is on its way.
    pub fn sent(&mut self) {
        if self.nothing_ready() {
            self.cursor.part += 1;
            return self.settle();
        }
        self.ready_step += 1;
        self.skip();
    }

    /// Moves on to a segment that is ready and the next who needs it, or to the end of those that are ready.
    fn skip(&mut self) {
        let peers = self.audience.len();
        while let Some(segment) = self.ready.front() {
            if self.ready_step == peers {
                if peers == 0 {
                    return;
                }
                self.ready.pop_front();
                self.ready_step = 0;
            } else if self.asked[segment * peers + self.ready_step] {
                return;
            } else {
                self.ready_step += 1;
            }
        }
    }

    /// Moves the cursor on to a contribution that exists, or to the end.
    fn settle(&mut self) {
        let own = self.plan.as_ref().map_or(0, |plan| plan.leaves_of(self.position.rank).len());
        while let Cursor { left: left @ 1.., step, part } = self.cursor {
            let segment = left - 1;
            if step >= self.position.world {
                self.cursor = Cursor { left: segment, step: 1, part: 0 };
                continue;
            }
            // A rank without a root sends each owner one frame without floats.
            let parts = if own == 0 { usize::from(segment == 0) } else { own };
            if part < parts
                && segment < self.parts.segments((self.position.rank + step) % self.position.world)
            {
                return;
            }
            self.cursor = Cursor { left, step: step + 1, part: 0 };
        }
    }

    /// Uses a frame of this collective.
    pub fn handle_frame(
        &mut self,
        frame: &Frame<'_>,
        arena: &mut impl Slots,
    ) -> Result<Verdict, CollectiveError> {
        match frame.header.tag.round {
            CONTRIBUTE => self.take_contribution(frame, arena),
            GATHER => self.take_sum(frame, arena).map(|()| Verdict::Taken),
            _ => Err(foreign(frame, "no such round")),
        }
    }

    fn take_contribution(
        &mut self,
        frame: &Frame<'_>,
        arena: &mut impl Slots,
    ) -> Result<Verdict, CollectiveError> {
        let Some(plan) = &self.plan else { return Err(foreign(frame, "nothing is added here")) };
        let (from, rank) = (frame.from.index(), self.position.rank);
        let (part, segment) = (frame.header.tag.part as usize, frame.header.tag.segment as usize);
        let (theirs, segments) = (plan.leaves_of(from), self.parts.segments(rank));
        let spare = theirs.is_empty();
        if part >= theirs.len().max(1) || segment >= if spare { 1 } else { segments } {
            return Err(foreign(frame, "no such root or segment"));
        }
        if frame.header.trailer.is_some() != (segment == 0 && !spare) {
            return Err(foreign(frame, "the trailer is missing or out of place"));
        }
        let range = self.parts.segment(rank, segment);
        if frame.payload.len() != if spare { 0 } else { range.len() } {
            return Err(foreign(frame, "wrong number of floats"));
        }
        let place = match spare {
            true => plan.leaf_count() * segments + from,
            false => (theirs.start + part) * segments + segment,
        };
        let leaf = (!spare).then_some(theirs.start + part);
        // The others of its segments are in its place.
        if leaf.is_some() && segment + self.staged < self.left {
            return Ok(Verdict::Later);
        }
        if std::mem::replace(&mut self.contributed[place], true) {
            return Err(foreign(frame, "it came before"));
        }
        if let (Some(leaf), Some(trailer)) = (leaf, frame.header.trailer) {
            self.trailers[leaf] = trailer;
        }
        self.missing[segment] -= 1;
        if self.missing[segment] == 0 {
            // Nobody waits for the others any more, so this one is added from where it is.
            self.sum_segment(segment, leaf.map(|leaf| Fresh { leaf, floats: frame.payload }), arena);
        } else if let Some(leaf) = leaf {
            let place = plan.staged(leaf, rank).expect("it is a peer's");
            let at = self.parts.copy(rank, self.staged, place, segment);
            self.staging[at..][..range.len()].copy_from_slice(frame.payload);
        }
        Ok(Verdict::Taken)
    }

    /// Adds all leaves of one segment of the own part into slot 0. The others than `fresh` are in slots or staged.
    fn sum_segment(&mut self, segment: usize, fresh: Option<Fresh<'_>>, arena: &mut impl Slots) {
        let plan = self.plan.as_ref().expect("only a reduction sums");
        let rank = self.position.rank;
        let own = plan.leaves_of(rank);
        let range = self.parts.segment(rank, segment);
        for start in range.clone().step_by(BLOCK) {
            let n = BLOCK.min(range.end - start);
            let leaf = |leaf: usize| match (plan.staged(leaf, rank), &fresh) {
                (None, _) => arena.read(leaf - own.start, start..start + n),
                (_, Some(fresh)) if fresh.leaf == leaf => &fresh.floats[start - range.start..][..n],
                (Some(place), _) => {
                    let at = self.parts.copy(rank, self.staged, place, segment) + start - range.start;
                    &self.staging[at..at + n]
                }
            };
            sum_block(plan.data_order(), self.wire, n, &mut self.stack, leaf);
            arena.write(0, start..start + n).copy_from_slice(&self.stack[..n]);
        }
        self.unsummed -= 1;
        while self.left > 0 && self.missing[self.left - 1] == 0 {
            self.left -= 1;
        }
        self.ready.push_back(segment);
        self.skip();
    }

    fn take_sum(&mut self, frame: &Frame<'_>, arena: &mut impl Slots) -> Result<(), CollectiveError> {
        let (owner, segment) = (frame.from.index(), frame.header.tag.segment as usize);
        if !self.takes || frame.header.tag.part != 0 || segment >= self.parts.segments(owner) {
            return Err(foreign(frame, "no such segment is gathered"));
        }
        if frame.header.trailer.is_some() {
            return Err(foreign(frame, "a sum carries no trailer"));
        }
        let range = self.parts.segment(owner, segment);
        if frame.payload.len() != range.len() {
            return Err(foreign(frame, "wrong number of floats"));
        }
        if self.still_owes(owner, segment) {
            return Err(foreign(frame, "a sum came before this rank put in its part"));
        }
        if std::mem::replace(&mut self.gathered[self.gather_base[owner] + segment], true) {
            return Err(foreign(frame, "it came before"));
        }
        arena.write(0, range).copy_from_slice(frame.payload);
        self.ungathered -= 1;
        Ok(())
    }

    /// Whether slot 0 still holds floats of this segment that are to be sent to its owner.
    fn still_owes(&self, owner: usize, segment: usize) -> bool {
        let (rank, world) = (self.position.rank, self.position.world);
        let gives = self.plan.as_ref().is_some_and(|plan| !plan.leaves_of(rank).is_empty());
        let step = (owner + world - rank) % world;
        let Cursor { left, step: next, .. } = self.cursor;
        gives && (segment + 1 < left || (segment + 1 == left && next <= step))
    }
}

fn reserve<T>(vec: &mut Vec<T>, room: usize) {
    vec.clear();
    vec.reserve(room);
}
