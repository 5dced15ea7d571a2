//! Which bytes of a collective go where, as calls of one group; the order of sums is that of `dtrain-collective`.
//!
//! It knows addresses and ranks, and waits for nothing.

use crate::device::{Address, Device, DeviceError};
use crate::{NcclError, NcclGroup};
use dtrain_collective::{Assignment, Chunks, CountPlan, Moves, Plans, Reduce};
use std::ops::Range;

/// Neighbours in a slot that are summed as one, and who owns which of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    start: usize,
    chunks: Chunks,
}

impl Part {
    pub fn new(elements: Range<usize>, world: usize) -> Self {
        Self { start: elements.start, chunks: Chunks::even(elements.len(), world) }
    }

    /// A slot of `len` floats, cut at these elements, from its end to its start.
    pub fn all(len: usize, cuts: &[usize], world: usize) -> Vec<Self> {
        let starts = || cuts.iter().copied().chain([0]);
        let ends = [len].into_iter().chain(starts());
        ends.zip(starts()).map(|(end, start)| Self::new(start..end, world)).collect()
    }

    pub fn start(&self) -> usize {
        self.start
    }

    /// The elements of the slot that a rank owns.
    pub fn chunk(&self, rank: usize) -> Range<usize> {
        let chunk = self.chunks.chunk(rank);
        self.start + chunk.start..self.start + chunk.end
    }

    /// All of them.
    pub fn elements(&self, world: usize) -> Range<usize> {
        self.start..self.chunk(world - 1).end
    }
}

/// Where everything of one rank lies.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub rank: usize,
    pub world: usize,
    /// The slots that may be roots.
    pub slots: Vec<Address>,
    /// One record for each rank.
    pub records: Address,
    pub record_size: usize,
    /// The peers' roots of this rank's chunk, one after the other.
    pub staging: Address,
}

const FLOAT: usize = size_of::<f32>();

/// Floats that a rank stages for one of these parts, at most.
fn most_staged(rank: usize, plans: &Plans, parts: &[Part]) -> usize {
    let leaves = plans.iter().map(|plan| plan.leaf_count() - plan.leaves_of(rank).len()).max();
    let floats = parts.iter().map(|part| part.chunk(rank).len()).max();
    leaves.unwrap_or(0) * floats.unwrap_or(0)
}

/// How many floats a rank needs beside its slots of `len` floats for what its peers send it, in steps of these counts: where sums are cut at
/// these elements ([`NcclSetup::cuts`](crate::NcclSetup::cuts)).
///
/// *Panics* as [`Backend::prepare`](dtrain_collective::Backend::prepare).
#[must_use]
pub fn staged_floats(membership: &Assignment, counts: &[u32], len: usize, cuts: &[usize]) -> usize {
    let (rank, world) = (membership.rank.index(), membership.ranges.len());
    let mut plans = Plans::new(membership.clone(), Reduce::Exact);
    plans.prepare(counts);
    most_staged(rank, &plans, &Part::all(len, cuts, world))
}

impl Map {
    fn peers(&self) -> impl Iterator<Item = usize> {
        // Each rank begins with its right neighbour, so that not all begin with the same one.
        (1..self.world).map(|step| (self.rank + step) % self.world)
    }

    /// Where the record of a rank lies.
    pub fn record(&self, rank: usize) -> Address {
        self.records.plus(rank * self.record_size)
    }

    /// Where a leaf of this rank's chunk lies: in a slot, or staged.
    fn leaf(&self, plan: &CountPlan, part: &Part, leaf: usize) -> Address {
        let chunk = part.chunk(self.rank);
        match plan.staged(leaf, self.rank) {
            Some(place) => self.staging.float(place * chunk.len()),
            None => self.slots[leaf - plan.leaves_of(self.rank).start].float(chunk.start),
        }
    }

    /// Floats that are staged for one of these parts, at most.
    pub fn most_staged(&self, plans: &Plans, parts: &[Part]) -> usize {
        most_staged(self.rank, plans, parts)
    }

    /// Plans the addition of this rank's chunk of a part.
    pub fn plan_sum<D: Device>(
        &self,
        device: &D,
        plan: &CountPlan,
        part: &Part,
    ) -> Result<D::Sum, DeviceError> {
        let leaves: Vec<Address> = (0..plan.leaf_count()).map(|leaf| self.leaf(plan, part, leaf)).collect();
        let chunk = part.chunk(self.rank);
        device.plan_sum(plan.data_order(), &leaves, self.slots[0].float(chunk.start), chunk.len())
    }

    /// Everybody's record to everybody.
    ///
    /// # Safety
    /// As [`NcclGroup::send`], for all that this map names.
    pub unsafe fn tell(&self, group: &NcclGroup<'_>) -> Result<(), NcclError> {
        self.peers().try_for_each(|peer| {
            // SAFETY: the caller vouches for the records.
            unsafe {
                group.send(self.record(self.rank), self.record_size, peer)?;
                group.receive(self.record(peer), self.record_size, peer)
            }
        })
    }

    /// The own roots of each owner's chunk to that owner, and the peers' roots of the own chunk to the staging.
    ///
    /// # Safety
    /// As [`NcclGroup::send`], for all that this map names.
    pub unsafe fn contribute(
        &self,
        group: &NcclGroup<'_>,
        plan: &CountPlan,
        part: &Part,
    ) -> Result<(), NcclError> {
        let own = part.chunk(self.rank);
        for peer in self.peers() {
            let theirs = part.chunk(peer);
            for root in 0..plan.leaves_of(self.rank).len() {
                let from = self.slots[root].float(theirs.start);
                // SAFETY: the caller vouches for the slots; the chunk lies inside.
                unsafe { self.send(group, from, theirs.len(), peer)? };
            }
            for leaf in plan.leaves_of(peer) {
                // SAFETY: the caller vouches for the staging, which was made for all leaves.
                unsafe { self.receive(group, self.leaf(plan, part, leaf), own.len(), peer)? };
            }
        }
        Ok(())
    }

    /// What each rank gives of slot 0 to all who take and need it; `moves` tells it of every rank.
    ///
    /// # Safety
    /// As [`NcclGroup::send`], for all that this map names.
    pub unsafe fn spread(
        &self,
        group: &NcclGroup<'_>,
        moves: impl Fn(usize) -> Moves,
        needs: impl Fn(usize, &Range<usize>) -> bool,
    ) -> Result<(), NcclError> {
        let own = moves(self.rank);
        for peer in self.peers() {
            let theirs = moves(peer);
            if let Some(given) = own.gives.clone().filter(|given| theirs.takes && needs(peer, given)) {
                let from = self.slots[0].float(given.start);
                // SAFETY: the caller vouches for slot 0; what is given lies inside.
                unsafe { self.send(group, from, given.len(), peer)? };
            }
            if let Some(given) = theirs.gives.filter(|given| own.takes && needs(self.rank, given)) {
                let to = self.slots[0].float(given.start);
                // SAFETY: as above; parts of different ranks do not overlap.
                unsafe { self.receive(group, to, given.len(), peer)? };
            }
        }
        Ok(())
    }

    /// Nothing is sent of an empty part, and nobody waits for it: that all are there was told by the records.
    unsafe fn send(
        &self,
        group: &NcclGroup<'_>,
        from: Address,
        floats: usize,
        to: usize,
    ) -> Result<(), NcclError> {
        // SAFETY: passed on.
        if floats == 0 { Ok(()) } else { unsafe { group.send(from, floats * FLOAT, to) } }
    }

    /// As `send`, from the other side.
    unsafe fn receive(
        &self,
        group: &NcclGroup<'_>,
        to: Address,
        floats: usize,
        from: usize,
    ) -> Result<(), NcclError> {
        // SAFETY: passed on.
        if floats == 0 { Ok(()) } else { unsafe { group.receive(to, floats * FLOAT, from) } }
    }
}
