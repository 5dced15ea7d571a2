//! The collectives of one rank over a communicator.
//!
//! A collective is work on one stream, put there by `start`: first the records (see `record.rs`), then the floats, with a
//! mark behind each. `finish` waits for the marks, so the device works while the host goes on. *exact*: every owner gets
//! all roots of its chunk, the device adds them in tree order, and the sums go to everybody. *ring*: one all-reduce of the
//! library. Trailers are added on the host, in the order of `dtrain-collective`, as every other backend does.
//!
//! A sum may be cut into parts, each of which is put on the stream as soon as its roots are final. Ranks put them there in one
//! order, those that offer nothing too: the parts from the last to the second, the records, the first part.
//!
//! It does not know what the floats mean, nor how the communicator came about.

mod on_slot;

use crate::device::{Device, DeviceArena, DeviceError, MemoryPlace};
use crate::pause::{Deadline, Pause};
use crate::transfer::{Map, Part};
use crate::{Communicator, CommunicatorAborter, NcclError, NcclGroup, record};
use dtrain_collective::{
    Abort, AbortFlag, Aborter, Arena, Assignment, Backend, CollectiveError, CountPlan, DeviceSlot, Geometry,
    Intent, Moves, Narrow, Op, OpKind, Plans, Progress, Reduce, Sequence, Take,
};
use dtrain_types::{DeviceMemory, Rank, Trailer};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The place of the part that is a whole slot.
const WHOLE: usize = 0;

/// How long a drop waits for the stream before it leaves the memory behind.
const GRACE: Duration = Duration::from_secs(2);

/// What a backend is made for.
#[derive(Clone, Debug)]
pub struct NcclSetup<'a> {
    /// The generation.
    pub membership: Assignment,
    /// The order of the sums.
    pub mode: Reduce,
    /// Steps that are prepared for: micro-batches.
    pub counts: &'a [u32],
    /// At which elements the parts of an all-reduce begin, falling, without 0; the same on all ranks. Parts are offered, and there is room
    /// for the largest one of each peer. Without any it is one, and nothing is offered.
    pub cuts: &'a [usize],
}

/// What is left of a backend: what the next one can be made of.
pub struct BackendParts<D: Device> {
    /// The device; its stream is at rest.
    pub device: D,
    /// The slots. After a failure nothing is known of what is in them.
    pub arena: D::Arena,
    /// The communicator, unless the backend had failed.
    pub communicator: Option<Communicator>,
}

/// Collectives over NCCL or RCCL, with the help of a device.
pub struct NcclBackend<D: Device> {
    /// `None` only in the end.
    held: Option<Held<D>>,
    communicator: Option<Communicator>,
    map: Map,
    /// Every slot as one, and behind it the parts of an all-reduce, from the end of a slot to its start: at least one.
    parts: Vec<Part>,
    /// The next all-reduce, if parts of it were put on the stream ahead of its start.
    offered: Option<Offered>,
    plans: Plans,
    progress: Progress,
    abort: Arc<NcclAbort>,
    trailers: Vec<Trailer>,
    trailer_stack: Vec<Trailer>,
    /// What the device failed in while nobody could be told.
    failure: Option<CollectiveError>,
    /// What ranks need and have, where that is known.
    narrow: Option<Narrow>,
}

/// How far an all-reduce is that has not been started.
#[derive(Clone, Copy, Debug)]
struct Offered {
    sequence: Sequence,
    micro_batches: u32,
    /// How many parts are on the stream.
    parts: usize,
}

/// All that the stream may touch. The device comes last: its stream must outlive what it touches.
struct Held<D: Device> {
    /// By count of micro-batches and place of the part.
    sums: BTreeMap<(u32, usize), D::Sum>,
    /// The records on the host, and on the device.
    mailbox: D::Memory,
    records: D::Memory,
    staging: D::Memory,
    staged: usize,
    /// What was lent to those who work on the slots.
    lent: Vec<DeviceMemory>,
    /// Behind the records, and behind everything.
    told: D::Event,
    done: D::Event,
    arena: D::Arena,
    device: D,
}

struct NcclAbort {
    flag: AbortFlag,
    communicator: CommunicatorAborter,
}

impl Abort for NcclAbort {
    fn abort(&self, reason: &str) {
        self.flag.set(reason);
        self.communicator.abort(reason);
    }
}

impl From<DeviceError> for CollectiveError {
    fn from(error: DeviceError) -> Self {
        Self::Device { what: error.0 }
    }
}

impl<D: Device> NcclBackend<D> {
    /// Takes up a generation on a device, in an arena that may be larger than the generation needs.
    ///
    /// *Errors*: [`CollectiveError::Assignment`]; `Device` if there is not enough memory. *Panics* if the communicator is
    /// not that of the membership, if the arena lacks slots, and as [`Backend::prepare`].
    pub fn new(
        device: D,
        arena: D::Arena,
        communicator: Communicator,
        setup: NcclSetup<'_>,
    ) -> Result<Self, CollectiveError> {
        setup.membership.check()?;
        let (rank, world) = (setup.membership.rank.index(), setup.membership.ranges.len());
        let place = (communicator.rank(), communicator.world());
        assert_eq!(place, (rank, world), "the communicator is not that of the generation");
        let geometry = arena.geometry();
        let covered = setup.membership.ranges.last().map_or(0, |range| range.hi);
        let record_size = record::size(covered, setup.mode);
        let held = Held {
            sums: BTreeMap::new(),
            mailbox: device.allocate(MemoryPlace::Host, world * record_size)?,
            records: device.allocate(MemoryPlace::Device, world * record_size)?,
            staging: device.allocate(MemoryPlace::Device, 0)?,
            staged: 0,
            lent: Vec::new(),
            told: device.event()?,
            done: device.event()?,
            arena,
            device,
        };
        let map = Map {
            rank,
            world,
            slots: (0..geometry.root_slots).map(|slot| held.arena.address(slot)).collect(),
            records: held.device.address(&held.records),
            record_size,
            staging: held.device.address(&held.staging),
        };
        let abort = NcclAbort { flag: AbortFlag::default(), communicator: communicator.aborter() };
        let (len, cuts) = (geometry.len, setup.cuts);
        let falls = cuts.windows(2).all(|pair| pair[0] > pair[1]);
        assert!(falls && cuts.iter().all(|at| (1..len).contains(at)), "cuts at {cuts:?} of {len}");
        let mut parts = vec![Part::new(0..len, world)];
        parts.extend(Part::all(len, cuts, world));
        let mut backend = Self {
            parts,
            offered: None,
            held: Some(held),
            communicator: Some(communicator),
            map,
            plans: Plans::new(setup.membership, setup.mode),
            progress: Progress::default(),
            abort: Arc::new(abort),
            trailers: Vec::new(),
            trailer_stack: Vec::new(),
            failure: None,
            narrow: None,
        };
        backend.prepare(setup.counts);
        backend.failure.take().map_or(Ok(backend), Err)
    }

    /// Ends this backend and gives back what it was made of. *Blocks* for a failed one's abort and for the stream, at most
    /// `within` each.
    ///
    /// *Errors*: [`NcclError::Stuck`] if the stream still works on the memory after an abort; then the memory is never
    /// freed. *Panics* in a collective of a living backend.
    pub fn dissolve(mut self, within: Duration) -> Result<BackendParts<D>, NcclError> {
        // A sum that was begun and not started never ends.
        let alive = self.alive().is_ok() && !self.progress.is_dead() && self.offered.is_none();
        if alive {
            self.progress.assert_idle();
        }
        let communicator = self.communicator.take().expect("only the end takes it");
        let communicator = match alive {
            true => Some(communicator),
            false => match communicator.abort(within) {
                Ok(()) => None,
                Err(stuck) => {
                    // The library may still work on the memory, so it is left behind, and nobody waits for its stream.
                    std::mem::forget(self.held.take());
                    return Err(stuck);
                }
            },
        };
        let held = self.held.take().expect("only the end takes it");
        match is_at_rest(&held, within) {
            true => Ok(BackendParts { device: held.device, arena: held.arena, communicator }),
            false => {
                std::mem::forget(held);
                Err(NcclError::Stuck { within })
            }
        }
    }

    fn held(&self) -> &Held<D> {
        self.held.as_ref().expect("only the end takes it")
    }

    fn communicator(&self) -> &Communicator {
        self.communicator.as_ref().expect("only the end takes it")
    }

    fn alive(&self) -> Result<(), CollectiveError> {
        self.abort.flag.check()?;
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Passes a result on. After an error the backend is dead, and its work on the device is ended.
    fn or_die<T>(&mut self, result: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        if let Err(error) = &result {
            // Not the flag of this backend: later calls say that it is dead, unless somebody else aborted it.
            self.abort.communicator.abort(&error.to_string());
        }
        self.progress.or_die(result)
    }

    fn begin(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        self.alive()?;
        self.progress.may_begin(seq)?;
        op.assert_fits(self.plans.membership().world());
        let intent = Intent::new(seq, op);
        let trailers = match op.reduction() {
            None => &[],
            Some((count, trailers)) => {
                let own = self.plans.get(count).leaves_of(self.map.rank).len();
                let what = "a trailer for each own root";
                assert_eq!(trailers.len(), own, "a step of {count} micro-batches needs {what}");
                trailers
            }
        };
        self.progress.begin(intent);
        if op.kind() == OpKind::ReduceScatter {
            self.plan_sums(WHOLE..self.parts.len())?;
        }
        self.settle()?;
        let last = self.parts.len() - 1;
        if op.kind() == OpKind::AllReduce {
            let early = self.take_up(seq, intent.operand);
            (early..last).try_for_each(|place| self.sum(intent, place))?;
        }
        self.offered = None;
        let generation = self.plans.membership().generation;
        record::write(self.letter(self.map.rank), generation, intent, trailers);
        self.tell()?;
        match op.kind() {
            OpKind::AllReduce => self.sum(intent, last)?,
            OpKind::ReduceScatter => self.sum(intent, WHOLE)?,
            OpKind::AllGather | OpKind::Broadcast | OpKind::Barrier | OpKind::Copy => {
                let (world, len) = (self.map.world, self.held().arena.geometry().len);
                let narrow = self.narrow.as_ref();
                let lacks = |to: usize, given: &Range<usize>| match (op.take(), narrow) {
                    (Take::All, _) | (_, None) => true,
                    (Take::Rest, Some(narrow)) => !narrow.is_there(to, given),
                    (Take::Needed, Some(narrow)) => narrow.is_needed(to, given),
                };
                self.spread(|rank| op.moves(rank, world, len).expect("it is no reduction"), lacks)?;
            }
        }
        let held = self.held();
        Ok(held.device.record(&held.done)?)
    }

    /// A rank's record on the host; nobody else's between collectives, and after the first mark.
    fn letter(&mut self, rank: usize) -> &mut [u8] {
        let size = self.map.record_size;
        let held = self.held.as_mut().expect("only the end takes it");
        let address = held.device.address(&held.mailbox).plus(rank * size);
        // SAFETY: the mailbox is host memory for a record of each rank, and the stream is done with it: before the
        // collective puts its copies there, and behind its first mark. The borrow of `self` keeps it alive.
        unsafe { std::slice::from_raw_parts_mut(address.0, size) }
    }

    /// Puts the exchange of records on the stream, with a mark behind it.
    fn tell(&self) -> Result<(), CollectiveError> {
        let (held, map) = (self.held(), &self.map);
        let (mailbox, own) = (held.device.address(&held.mailbox), map.rank * map.record_size);
        if map.world > 1 {
            // SAFETY: both are memory for a record of each rank, which is dropped when the stream has passed the last mark.
            unsafe { held.device.copy(mailbox.plus(own), map.record(map.rank), map.record_size)? };
            // SAFETY: as above.
            self.group(|group| unsafe { map.tell(group) })?;
            // SAFETY: as above; the host looks at it behind the mark.
            unsafe { held.device.copy(map.records, mailbox, map.world * map.record_size)? };
        }
        Ok(held.device.record(&held.told)?)
    }

    fn group(
        &self,
        work: impl FnOnce(&NcclGroup<'_>) -> Result<(), NcclError>,
    ) -> Result<(), CollectiveError> {
        Ok(self.communicator().group(self.held().device.stream(), work)?)
    }

    /// What the host wrote into leases is put on the device, and the stream behind what fills the slots.
    fn settle(&mut self) -> Result<(), CollectiveError> {
        Ok(self.held.as_mut().expect("only the end takes it").arena.settle()?)
    }

    /// How many parts of this all-reduce are on the stream. *Panics* if it is another one that was begun.
    fn take_up(&self, sequence: Sequence, micro_batches: u32) -> usize {
        let Some(offered) = self.offered else { return 1 };
        let same = (offered.sequence, offered.micro_batches) == (sequence, micro_batches);
        assert!(same, "part of another sum was offered: {offered:?}");
        offered.parts
    }

    /// Puts the parts on the stream that lie from element `from` on, but the first one: that is for `start`.
    fn put_in(&mut self, seq: Sequence, micro_batches: u32, from: usize) -> Result<(), CollectiveError> {
        let (begun, last) = (self.take_up(seq, micro_batches), self.parts.len() - 1);
        let ripe = self.parts[begun..last].iter().take_while(|part| part.start() >= from).count();
        if ripe == 0 {
            return Ok(());
        }
        self.alive()?;
        self.progress.may_begin(seq)?;
        self.settle()?;
        let intent = Intent::new(seq, &Op::AllReduce { micro_batches, trailers: &[] });
        let parts = begun + ripe;
        (begun..parts).try_for_each(|place| self.sum(intent, place))?;
        self.offered = Some(Offered { sequence: seq, micro_batches, parts });
        Ok(())
    }

    /// Puts the sum of a part on the stream. A rank alone has it where it should be: its only root is the whole tree.
    fn sum(&self, intent: Intent, place: usize) -> Result<(), CollectiveError> {
        match self.plans.mode() {
            _ if self.map.world == 1 => Ok(()),
            Reduce::Exact => self.sum_exact(intent, place),
            Reduce::Ring => self.sum_ring(intent, place),
        }
    }

    /// *Order*: the reduction tree.
    fn sum_exact(&self, intent: Intent, place: usize) -> Result<(), CollectiveError> {
        let (held, map, part) = (self.held(), &self.map, &self.parts[place]);
        let plan: &CountPlan = self.plans.get(intent.operand);
        // SAFETY: the part is this backend's until `finish`, and all memory lives until the stream has passed it.
        self.group(|group| unsafe { map.contribute(group, plan, part) })?;
        // SAFETY: as above; the stream comes to the addition when all leaves are there.
        unsafe { held.device.add(&held.sums[&(intent.operand, place)])? };
        match intent.kind {
            OpKind::AllReduce => {
                let moves = |rank| Moves { gives: Some(part.chunk(rank)), takes: true };
                self.spread(moves, |to, given| self.narrow.as_ref().is_none_or(|it| it.is_needed(to, given)))
            }
            _ => Ok(()),
        }
    }

    /// *Order*: the library's. A reduce-scatter is the same sum, of which the rank looks at its chunk alone.
    fn sum_ring(&self, intent: Intent, place: usize) -> Result<(), CollectiveError> {
        let (held, map) = (self.held(), &self.map);
        let elements = self.parts[place].elements(map.world);
        let (at, floats) = (map.slots[0].float(elements.start), elements.len());
        if self.plans.get(intent.operand).leaves_of(map.rank).is_empty() {
            // A rank without a micro-batch adds what changes no float: only with -0 is x + y = x for every x, -0 included.
            // SAFETY: the part is this backend's until `finish`.
            unsafe { held.device.fill(at, floats, -0.0)? };
        }
        // SAFETY: as above.
        self.group(|group| unsafe { group.all_reduce(at, floats) })
    }

    fn spread(
        &self,
        moves: impl Fn(usize) -> Moves,
        needs: impl Fn(usize, &Range<usize>) -> bool,
    ) -> Result<(), CollectiveError> {
        // SAFETY: the slots are this backend's until `finish`, and live until the stream has passed this.
        self.group(|group| unsafe { self.map.spread(group, moves, needs) })
    }

    fn complete(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        self.alive()?;
        let intent = self.progress.running(seq)?;
        self.reach(&self.held().told)?;
        let generation = self.plans.membership().generation;
        let (own, world) = (self.map.rank, self.map.world);
        for peer in (0..world).filter(|peer| *peer != own) {
            record::agree(self.letter(peer), Rank(peer as u32), generation, intent)?;
        }
        self.reach(&self.held().done)?;
        let reduced = self.reduce_trailers(intent);
        self.progress.end();
        Ok(reduced)
    }

    /// *Blocks* until the stream has passed a mark, and all is well.
    fn reach(&self, mark: &D::Event) -> Result<(), CollectiveError> {
        let mut pause = Pause::default();
        loop {
            let happened = self.held().device.has_happened(mark)?;
            // In this order. An abort ends the work on the stream, so the stream may pass the mark although nothing was
            // done. But the flag is set before the abort begins: who sees the mark because of it then sees the flag.
            self.abort.flag.check()?;
            self.communicator().check()?;
            if happened {
                return Ok(());
            }
            pause.once();
        }
    }

    fn reduce_trailers(&mut self, intent: Intent) -> Trailer {
        if !matches!(intent.kind, OpKind::AllReduce | OpKind::ReduceScatter) {
            return Trailer::EMPTY;
        }
        let plan = self.plans.get(intent.operand).clone();
        self.trailers.clear();
        for rank in 0..self.map.world {
            for root in 0..plan.leaves_of(rank).len() {
                let trailer = record::trailer(self.letter(rank), root);
                self.trailers.push(trailer);
            }
        }
        plan.trailer_order().sum_trailers(&self.trailers, &mut self.trailer_stack)
    }

    /// Plans what an all-reduce adds, and without cuts a reduce-scatter too: where there are some, nobody makes room for all of a slot.
    fn plan_all(&mut self) {
        let first = if self.parts.len() > WHOLE + 2 { WHOLE + 1 } else { WHOLE };
        if let Err(error) = self.plan_sums(first..self.parts.len()) {
            self.failure = Some(error.into());
        }
    }

    /// Makes room for what peers send of parts of these places, one part after the other, and plans the additions.
    fn plan_sums(&mut self, places: Range<usize>) -> Result<(), DeviceError> {
        if self.plans.mode() == Reduce::Ring || self.map.world == 1 {
            return Ok(());
        }
        let held = self.held.as_mut().expect("only the end takes it");
        let most = self.map.most_staged(&self.plans, &self.parts[places.clone()]);
        if most > held.staged {
            // What there was makes room first.
            held.staging = held.device.allocate(MemoryPlace::Device, 0)?;
            held.staging = held.device.allocate(MemoryPlace::Device, most * size_of::<f32>())?;
            held.staged = most;
            self.map.staging = held.device.address(&held.staging);
            held.sums.clear();
        }
        for (count, plan) in self.plans.by_count() {
            for (place, part) in self.parts.iter().enumerate().filter(|(place, _)| places.contains(place)) {
                if let Entry::Vacant(entry) = held.sums.entry((count, place)) {
                    entry.insert(self.map.plan_sum(&held.device, plan, part)?);
                }
            }
        }
        Ok(())
    }
}

/// *Blocks* at most `within` until the stream has passed all that was put on it.
fn is_at_rest<D: Device>(held: &Held<D>, within: Duration) -> bool {
    let deadline = Deadline::after(within);
    let mut pause = Pause::default();
    // A mark of its own: a collective that failed halfway has put down none.
    if held.device.record(&held.done).is_err() {
        return false;
    }
    loop {
        match held.device.has_happened(&held.done) {
            Ok(true) => return true,
            Ok(false) if !deadline.is_over() => pause.once(),
            Ok(false) | Err(_) => return false,
        }
    }
}

impl<D: Device> Drop for NcclBackend<D> {
    fn drop(&mut self) {
        // First the communicator, so that its work on the stream ends; it waits for that by itself.
        drop(self.communicator.take());
        let Some(held) = self.held.take() else { return };
        if !is_at_rest(&held, GRACE) {
            tracing::warn!("the memory of {} is left to a stream that does not end", held.device.describe());
            std::mem::forget(held);
        }
    }
}

impl<D: Device> Backend for NcclBackend<D> {
    fn prepare(&mut self, counts: &[u32]) {
        self.plans.prepare(counts);
        let Geometry { root_slots, .. } = self.held().arena.geometry();
        let own = self.map.rank;
        let fits = self
            .plans
            .iter()
            .all(|plan| (0..self.map.world).all(|rank| plan.leaves_of(rank).len() <= root_slots));
        assert!(fits, "the arena of rank {own} lacks root slots");
        let room = self.plans.iter().map(|plan| plan.leaf_count()).max().unwrap_or(0);
        self.trailers.reserve(room);
        self.trailer_stack.reserve(room);
        self.plan_all();
    }

    fn arena(&mut self) -> &mut dyn Arena {
        self.progress.assert_idle();
        &mut self.held.as_mut().expect("only the end takes it").arena
    }

    fn device_slot(&mut self) -> Option<&mut dyn DeviceSlot> {
        Some(self)
    }

    fn narrow(&mut self, narrow: &Narrow) {
        self.narrow = Some(narrow.clone());
    }

    fn takes_offers(&self) -> bool {
        self.parts.len() > WHOLE + 2
    }

    fn offer(&mut self, seq: Sequence, micro_batches: u32, from: usize) {
        if self.progress.is_dead() || self.failure.is_some() {
            return;
        }
        if let Err(error) = self.put_in(seq, micro_batches, from) {
            // `start` tells it.
            self.failure = Some(error);
        }
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
        Aborter::new(self.abort.clone())
    }

    fn describe(&self) -> String {
        let mode = if self.plans.mode() == Reduce::Exact { "exact" } else { "ring" };
        let (library, device) = (self.communicator().library(), self.held().device.describe());
        let (rank, world) = (self.map.rank, self.map.world);
        format!("NCCL {} on {device}, {mode}, rank {rank} of {world}", library.version())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn minus_zero_changes_no_float_and_zero_does() {
        for x in [0.0f32, -0.0, 1.5, f32::INFINITY, f32::MIN_POSITIVE / 2.0, f32::MAX] {
            assert_eq!((x + -0.0).to_bits(), x.to_bits());
            assert_eq!((-0.0 + x).to_bits(), x.to_bits());
        }
        assert_ne!((-0.0f32 + 0.0).to_bits(), (-0.0f32).to_bits());
    }
}
