//! The ranks of one host in one generation: their barrier, their slots, and what is done to slots between two barriers.
//!
//! Whoever uses it keeps this order: `announce`, `pass`, then sums and copies of parts that are this rank's affair,
//! `meet` as often as needed or `share` once, and `leave` after the last one. A rank is its index in the arena. It does not know what a
//! collective is made of, nor whether there are other hosts.

use super::abort::ShmAbort;
use super::ahead::Words;
use super::barrier::{Barrier, SAID_BITS};
use super::claims::Claims;
use super::kernel::{fetch, sum_into, touch};
use super::pass::Pass;
use super::wait::wait_until;
use super::{Isa, Mapping, ShmError};
use dtrain_collective::{Arena, BLOCK, CollectiveError, Geometry, Intent, Slots, SumOrder};
use dtrain_types::{Generation, Rank, Trailer, Wire};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The bit of what is announced that says that, as far as its rank knows, not every rank has a core.
const CROWDED: u64 = 1 << (SAID_BITS - 1);

/// The most floats of a part that is fetched ahead: to ask for more takes longer than not to ask (decision 0033).
const FETCHED: usize = 1024;

/// What is said of a collective: its kind, and low bits of the sequence over the operand, so that where either is another, so is what
/// is said.
fn packed(intent: Intent) -> u64 {
    let Intent { sequence, kind, operand } = intent;
    (kind as u64) << 34 | (sequence.0 & 0xff_ffff) << 10 ^ u64::from(operand)
}

/// One rank's place among the ranks of its host.
#[derive(Debug)]
pub(crate) struct Group {
    arena: ShmArena,
    rank: usize,
    world: usize,
    barrier: Barrier,
    claims: Claims,
    words: Words,
    isa: Isa,
    /// What every sum is rounded to.
    wire: Wire,
    stack: Vec<f32>,
    /// Between `announce` and `leave` the slots are not this rank's alone.
    inside: bool,
    /// How many collectives came before this one; of two places for trailers and announcements they take turns, see `layout::TURNS`.
    turn: usize,
    /// Whether the ranks share the work of this collective: one of them at least knows of too few cores.
    shares: bool,
}

impl Group {
    /// Takes a rank of the arena. *Errors*: [`ShmError::RankTaken`].
    pub fn join(
        mapping: Arc<Mapping>,
        generation: Generation,
        rank: Rank,
        world: usize,
    ) -> Result<Self, ShmError> {
        mapping.claim(rank, generation)?;
        let barrier = Barrier::new(mapping.clone(), generation, rank, world);
        let claims = Claims::new(mapping.clone(), generation);
        let words = Words::new(mapping.clone(), generation);
        let arena = ShmArena { open: mapping.geometry().len, mapping, rank };
        Ok(Self {
            arena,
            rank: rank.index(),
            world,
            barrier,
            claims,
            words,
            isa: Isa::detect(),
            wire: Wire::F32,
            stack: Vec::new(),
            inside: false,
            turn: 0,
            shares: false,
        })
    }

    /// Makes room for sums in this order.
    pub fn prepare(&mut self, order: &SumOrder) {
        let stack = self.stack.len().max(order.depth() * BLOCK);
        self.stack.resize(stack, 0.0);
    }

    /// Uses a lower instruction set than the processor has. *Panics* if it lacks it.
    pub fn set_isa(&mut self, isa: Isa) {
        let best = Isa::detect();
        assert!(
            isa == Isa::Baseline || isa == best || best == Isa::Avx512,
            "this processor has {best:?}, not {isa:?}"
        );
        self.isa = isa;
    }

    /// Rounds every sum, as all ranks of the generation do.
    pub fn set_wire(&mut self, wire: Wire) {
        self.wire = wire;
    }

    pub fn wire(&self) -> Wire {
        self.wire
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Says how many cores the ranks of this host may use.
    pub fn set_cores(&mut self, cores: usize) {
        self.barrier.set_cores(cores);
    }

    /// This rank's index in the arena.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks of this host take part.
    pub fn world(&self) -> usize {
        self.world
    }

    pub fn geometry(&self) -> Geometry {
        self.arena.geometry()
    }

    /// Where a slot of a rank starts in the arena, for [`Group::sum`].
    pub fn slot(&self, rank: usize, slot: usize) -> usize {
        self.arena.mapping.slot(rank, slot)
    }

    /// The gradient buffers. *Panics* in a collective.
    pub fn arena(&mut self) -> &mut dyn Arena {
        assert!(!self.inside, "slots are lent between collectives of a living backend only");
        &mut self.arena
    }

    /// Slot 0 of the first rank, to read. *Panics* in a collective.
    ///
    /// By a rule among the ranks nobody writes it meanwhile: see `ShmBackend::with_sum_in_common`.
    pub fn first_slot(&mut self) -> &[f32] {
        assert!(!self.inside, "slots are read between collectives of a living backend only");
        let start = self.arena.mapping.base().wrapping_add(self.slot(0, 0));
        // SAFETY: the slot lies in the mapping, aligned, and any bytes are floats; by the rule nobody writes it.
        unsafe { std::slice::from_raw_parts(start, self.geometry().len) }
    }

    /// Slot 0 of this rank, to read, also after a collective broke off.
    ///
    /// By a rule of the caller nobody writes it: see `Backend::reduced_before`.
    pub fn own_slot(&self) -> &[f32] {
        let start = self.arena.mapping.base().wrapping_add(self.slot(self.rank, 0));
        // SAFETY: the slot lies in the mapping, aligned, and any bytes are floats; by the rule nobody writes it.
        unsafe { std::slice::from_raw_parts(start, self.geometry().len) }
    }

    /// This rank's slots as a machine sees them, for one that runs while this rank alone touches them: between two
    /// barriers of a collective in which the peers keep off them, or ahead of it in what they have all added up.
    pub fn slots(&self) -> SharedSlots {
        SharedSlots { mapping: self.arena.mapping.clone(), rank: self.rank }
    }

    pub fn abort_handle(&self) -> Arc<ShmAbort> {
        self.barrier.abort_handle()
    }

    /// *Errors*: `Aborted`, once this rank or a peer has aborted the generation.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.barrier.check()
    }

    /// Lays out a trailer for the peers; the next barrier makes it seen.
    pub fn put_trailer(&self, root: usize, trailer: &Trailer) {
        self.arena.mapping.put_trailer(self.turn, self.rank, root, trailer);
    }

    /// Reads a trailer that a barrier made seen.
    pub fn get_trailer(&self, rank: usize, root: usize) -> Trailer {
        self.arena.mapping.get_trailer(self.turn, rank, root)
    }

    /// Gives the peers this rank's slots from element `from` on, ahead of the collective: only what lies before is leased from
    /// now on. They hear of it by the words.
    pub fn open_from(&mut self, from: usize) {
        assert!(!self.inside, "a collective has all of the slots");
        self.arena.open = self.arena.open.min(from);
    }

    /// How far the ranks are ahead of their next sum.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Asks for what this rank is about to sum out of the caches of the peers, if it is short, while they announce the collective: `part`
    /// of each of `outs`, which are slots 0 from that of the first rank on. Nothing depends on it.
    ///
    /// To look for the peers' words at once, in place of this, takes longer: whoever looks before a peer has written takes the
    /// line from it.
    pub fn fetch(&self, outs: &[usize], part: Range<usize>) {
        assert!(part.end <= self.geometry().len, "{part:?} of {:?}", self.geometry());
        if part.len() <= FETCHED && self.barrier.spins() {
            let base = self.arena.mapping.base();
            let peers = outs.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
            peers.for_each(|(_, out)| fetch(base.wrapping_add(out + part.start), part.len()));
        }
    }

    /// Begins a collective: tells the peers which, and that this rank's slots are theirs to read.
    pub fn announce(&mut self, intent: Intent) {
        self.inside = true;
        let crowded = if self.world > 1 && !self.barrier.spins() { CROWDED } else { 0 };
        self.barrier.announce(self.turn, self.number(), packed(intent) | crowded);
    }

    /// *Blocks* until all ranks have announced, and all the same. A peer that is in another collective reads and writes
    /// other memory. *Errors*: `Aborted`, `Superseded`, `Mismatch`.
    pub fn agree(&mut self, intent: Intent) -> Result<(), CollectiveError> {
        self.barrier.pass_announced(self.turn, self.number())?;
        let ours = packed(intent);
        self.shares = false;
        for peer in 0..self.world {
            let word = self.arena.mapping.announcement(self.turn, peer).load(Ordering::Relaxed);
            let announced = word & ((1 << SAID_BITS) - 1);
            // Seen by all alike, so all share the work or none does, even if they count cores differently.
            self.shares |= announced & CROWDED != 0;
            let theirs = announced & !CROWDED;
            if theirs != ours {
                let (theirs, ours) = (format!("{theirs:#012x}"), format!("{ours:#012x}"));
                let (from, sequence) = (Rank(peer as u32), intent.sequence);
                return Err(CollectiveError::Mismatch { from, sequence, theirs, ours });
            }
        }
        Ok(())
    }

    /// The number of this collective in its generation, from 1 on.
    fn number(&self) -> u64 {
        self.turn as u64 + 1
    }

    /// *Blocks* until all ranks are here; what they wrote before is seen afterwards. *Errors*: `Aborted`, `Superseded`.
    pub fn meet(&mut self) -> Result<(), CollectiveError> {
        self.arrive();
        self.pass()
    }

    /// Tells the peers that this rank is at the next barrier, with all that it wrote before.
    pub fn arrive(&mut self) {
        self.barrier.arrive();
    }

    /// *Blocks* until all ranks are where this one has arrived. *Errors*: `Aborted`, `Superseded`.
    pub fn pass(&self) -> Result<(), CollectiveError> {
        self.barrier.pass()
    }

    /// Whether the ranks share the work of the collective that they have agreed on, instead of owning a part each.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Does pieces of work until none is left, and *blocks* until those that others do are done: in place of `meet`.
    ///
    /// `work` is given a piece that is this rank's affair alone. A rank that is late finds nothing left to do. *Errors*:
    /// `Aborted`, `Superseded`.
    pub fn share(
        &mut self,
        pieces: u16,
        mut work: impl FnMut(&mut Self, u16),
    ) -> Result<(), CollectiveError> {
        assert!(self.inside && self.shares, "work is shared in a collective in which all agreed to it");
        self.claims.begin();
        let mut done = 0;
        while let Some(piece) = self.claims.claim(pieces)? {
            work(self, piece);
            done += 1;
        }
        self.claims.finish(done, pieces)?;
        let (abort, bell) = (self.abort_handle(), &self.arena.mapping.work().done.bell);
        wait_until(self.barrier.cores(), &abort, bell, || self.claims.are_done(pieces))
    }

    /// Ends a collective: the slots are this rank's own again.
    pub fn leave(&mut self) {
        self.inside = false;
        self.arena.open = self.geometry().len;
        self.turn += 1;
        // So that the line in which the next collective is announced is back from the peers' caches when it is.
        self.put_trailer(0, &Trailer::EMPTY);
    }

    /// Adds `leaves` into each of `outs`, in `order`, each sum rounded, for the elements of `part`: the caller's affair, no peer's.
    ///
    /// Leaves and outs are starts of slots, from [`Group::slot`]. *Panics* outside a collective, unless this rank has given the
    /// part ahead of it.
    pub fn sum(&mut self, order: &SumOrder, leaves: &[usize], outs: &[usize], part: Range<usize>) {
        let ours = self.inside || self.arena.open <= part.start;
        assert!(ours && part.end <= self.geometry().len, "{part:?} of {:?}", self.geometry());
        let base = self.arena.mapping.base();
        let pass = Pass { base, leaves, outs, at: part.start, len: part.len(), wire: self.wire };
        // SAFETY: all leaves and destinations are slots of `len` floats and the part lies inside. Between the barriers
        // the elements of this part are touched by this rank alone, in all buffers (the parts of other ranks do not
        // overlap, and a claimed piece is nobody else's), and no lease is out: leases borrow the group and end before
        // `announce`. Ahead of a collective that holds for parts that all ranks have given, which the caller saw in their words:
        // leases end before what was given. Slots are the same or apart. `isa` was detected.
        unsafe { sum_into(self.isa, order, &pass, &mut self.stack) };
    }

    /// Flips the sign of the elements of `part` in each of `outs`: the caller's affair, no peer's. *Panics* outside a
    /// collective.
    pub fn touch(&mut self, outs: &[usize], part: Range<usize>) {
        assert!(self.inside && part.end <= self.geometry().len, "{part:?} of {:?}", self.geometry());
        let base = self.arena.mapping.base();
        let pass = Pass { base, leaves: &[], outs, at: part.start, len: part.len(), wire: self.wire };
        // SAFETY: as `sum`.
        unsafe { touch(self.isa, &pass) };
    }

    /// Copies part of slot 0 of one rank into slot 0 of another.
    ///
    /// Between the barriers nobody writes this part of the source, and nobody else touches this part of the destination.
    /// *Panics* outside a collective, and if both are one rank.
    pub fn copy_slot_0(&self, from: usize, to: usize, part: Range<usize>) {
        assert!(self.inside && from != to && part.end <= self.geometry().len, "{part:?} from {from} to {to}");
        let (base, from, to) = (self.arena.mapping.base(), self.slot(from, 0), self.slot(to, 0));
        // SAFETY: both are slots of `len` floats of different ranks and the part lies inside; who touches it is stated
        // above and holds by the schedules of the backends.
        unsafe {
            let source = base.add(from + part.start).cast_const();
            std::ptr::copy_nonoverlapping(source, base.add(to + part.start), part.len());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.arena.mapping.release(self.arena.rank);
    }
}

/// The slots of one rank, for a machine that works in them in the middle of a collective.
#[derive(Debug)]
pub(crate) struct SharedSlots {
    mapping: Arc<Mapping>,
    rank: usize,
}

impl SharedSlots {
    fn part(&self, slot: usize, part: Range<usize>) -> (*mut f32, usize) {
        let len = self.mapping.geometry().len;
        assert!(part.start <= part.end && part.end <= len, "{part:?} of {len} floats");
        (self.mapping.base().wrapping_add(self.mapping.slot(self.rank, slot) + part.start), part.len())
    }
}

impl Slots for SharedSlots {
    fn geometry(&self) -> Geometry {
        self.mapping.geometry()
    }

    fn read(&self, slot: usize, part: Range<usize>) -> &[f32] {
        let (start, len) = self.part(slot, part);
        // SAFETY: the part lies in the mapping, aligned. While the machine runs, no other process and no lease writes
        // this rank's slots: see `Group::slots`. The slice borrows the machine's own slots, which it alone writes.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    fn write(&mut self, slot: usize, part: Range<usize>) -> &mut [f32] {
        let (start, len) = self.part(slot, part);
        // SAFETY: as `read`; and nobody reads a part before the machine is done with it.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

/// The slots of one rank, lent between collectives.
#[derive(Debug)]
struct ShmArena {
    mapping: Arc<Mapping>,
    rank: Rank,
    /// Up to where slots may be leased: what lies behind was given to the peers.
    open: usize,
}

impl ShmArena {
    fn slice(&mut self, slot: usize, part: Range<usize>) -> *mut [f32] {
        assert!(part.start <= part.end && part.end <= self.open, "{part:?} of {} floats", self.open);
        let start = self.mapping.base().wrapping_add(self.mapping.slot(self.rank.index(), slot));
        std::ptr::slice_from_raw_parts_mut(start.wrapping_add(part.start), part.len())
    }
}

impl Arena for ShmArena {
    fn geometry(&self) -> Geometry {
        self.mapping.geometry()
    }

    fn lease(&mut self, slot: usize) -> &mut [f32] {
        self.lease_part(slot, 0..self.mapping.geometry().len)
    }

    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]) {
        self.lease_pair_part(left, right, 0..self.mapping.geometry().len)
    }

    fn lease_part(&mut self, slot: usize, part: Range<usize>) -> &mut [f32] {
        // SAFETY: the part lies in the mapping, aligned. Outside a collective it belongs to this rank alone: the rank is
        // claimed by one backend in all processes, peers touch it only between two barriers that this rank takes part in or
        // behind `open`, and the lease borrows the backend, which it needs for either.
        unsafe { &mut *self.slice(slot, part) }
    }

    fn lease_pair_part(&mut self, left: usize, right: usize, part: Range<usize>) -> (&mut [f32], &mut [f32]) {
        assert_ne!(left, right, "a pair is two slots");
        // SAFETY: as `lease_part`; two different slots do not overlap.
        unsafe { (&mut *self.slice(left, part.clone()), &mut *self.slice(right, part)) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ArenaFile;
    use super::*;
    use dtrain_collective::{Abort, OpKind, Sequence};
    use dtrain_types::WorldSize;

    const INTENT: Intent = Intent { sequence: Sequence(1), kind: OpKind::AllReduce, operand: 1 };

    /// Three ranks that have agreed on a collective whose work they share.
    fn agreed() -> [Group; 3] {
        let geometry = Geometry { len: 8, root_slots: 1, scratch_slots: 0 };
        let mapping =
            ArenaFile::create(WorldSize(3), geometry).and_then(|file| file.map()).expect("an arena");
        let mut ranks = [0, 1, 2].map(|rank| {
            let mut group = Group::join(mapping.clone(), Generation(1), Rank(rank), 3).expect("free");
            group.set_cores(1);
            group
        });
        ranks.iter_mut().for_each(|rank| rank.announce(INTENT));
        ranks.iter_mut().for_each(|rank| rank.agree(INTENT).expect("all are here"));
        assert!(ranks.iter().all(Group::shares));
        ranks
    }

    #[test]
    fn whatever_alone_is_another_is_said_and_leaves_the_bit_of_the_cores() {
        let mut said = std::collections::BTreeSet::new();
        OpKind::ALL.iter().for_each(|kind| assert!(said.insert(packed(Intent { kind: *kind, ..INTENT }))));
        for bit in 0..24 {
            assert!(said.insert(packed(Intent { sequence: Sequence(1 ^ 1 << bit), ..INTENT })), "{bit}");
        }
        for at in 0..32 {
            let operand = INTENT.operand ^ 1 << at;
            assert_ne!(packed(Intent { operand, ..INTENT }), packed(INTENT), "bit {at}");
            said.insert(packed(Intent { operand, ..INTENT }));
        }
        let last = Intent { sequence: Sequence(u64::MAX), kind: OpKind::Copy, operand: u32::MAX };
        assert!(said.into_iter().chain([packed(last)]).all(|said| said < CROWDED));
    }

    #[test]
    fn one_rank_can_do_all_of_the_work_and_leave_and_the_late_ones_still_read_what_was_announced() {
        let [mut first, mut late, mut last] = agreed();
        let mut seen = Vec::new();
        first.share(4, |_, piece| seen.push(piece)).expect("it waits for nobody");
        assert_eq!(seen, [0, 1, 2, 3]);
        first.leave();
        // It announces the next collective, with another trailer, while the others are in this one.
        let loss = |loss| Trailer { loss, ..Trailer::EMPTY };
        first.put_trailer(0, &loss(2.0));
        first.announce(Intent { sequence: Sequence(2), ..INTENT });
        for rank in [&mut late, &mut last] {
            rank.agree(INTENT).expect("they still see what all announced here");
            assert_eq!(rank.get_trailer(0, 0).loss.to_bits(), 0, "of this collective and not of the next");
            rank.share(4, |_, piece| panic!("piece {piece} was done")).expect("nothing is left to wait for");
        }
    }

    #[test]
    fn a_rank_that_dies_with_a_piece_holds_the_others_until_the_generation_is_aborted() {
        let [dead, mut left, mut right] = agreed();
        // It takes a piece, as the first thing that `share` does, and is never heard of again.
        let mut claims = Claims::new(dead.arena.mapping.clone(), Generation(1));
        claims.begin();
        assert_eq!(claims.claim(4), Ok(Some(0)));
        let done = std::sync::atomic::AtomicU32::new(0);
        let count = |_: &mut Group, _: u16| {
            done.fetch_add(1, Ordering::SeqCst);
        };
        let wait = |rank: &mut Group| rank.share(4, count);
        std::thread::scope(|scope| {
            let waiting = [&mut left, &mut right].map(|rank| scope.spawn(|| wait(rank)));
            // Nothing but the abort ends this, whether it comes before or after they have fallen asleep.
            while done.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            dead.abort_handle().abort("a rank was killed");
            for thread in waiting {
                let result = thread.join().expect("no panic");
                assert!(matches!(result, Err(CollectiveError::Aborted { .. })), "{result:?}");
            }
        });
    }
}
