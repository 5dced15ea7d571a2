//! The data plane of a generation as a rank's compute thread has it: the backend, and all that follows from the membership.
//!
//! Made once a generation, so that a step looks it up and allocates nothing. It does not know what is computed, nor when.

use crate::gradient_slot::{Rests, cuts};
use crate::recipe::ComputeParts;
use dtrain_collective::{Backend, Geometry, Membership, Mode, Sequence, rank_roots};
use dtrain_engine::Figures;
use dtrain_types::{BatchPlan, Generation, Merger, MicroRange, Rank, Step, Trailer, Wire};

/// The backend of a generation, with what follows from its membership.
pub struct DataPlane {
    /// Runs the collectives.
    pub backend: Box<dyn Backend>,
    /// The last collective: all ranks count the same ones.
    pub sequence: Sequence,
    /// The ranks that see the run folder.
    pub writers: Vec<Rank>,
    /// Who takes part.
    pub membership: Membership,
    /// The slots of this rank.
    pub geometry: Geometry,
    /// The roots of this rank for each number of micro-batches that a step can have.
    pub roots: Vec<(u32, Vec<MicroRange>)>,
    /// One per root.
    pub trailers: Vec<Trailer>,
    /// Pending trailers of the root being merged.
    pub pending: Vec<Trailer>,
    /// The additions that the last pass of a step leaves, as slots.
    pub merges: Vec<[usize; 2]>,
    /// How long what is left of that pass takes.
    pub rests: Rests,
    /// The ledger's sum of each of the micro-batches that are computed together.
    pub checks: Vec<u64>,
    /// What each of them says of itself.
    pub figures: Vec<Figures>,
    /// Where the gradients of a root are added up.
    pub sums: Sums,
}

/// Where the gradients of a root are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// In the slots of the arena.
    InSlots,
    /// There too, but the pass that computes the last of them does it.
    Offered,
    /// In the replica's own memory, where they were computed.
    InReplica,
    /// In the slots of the arena, which are memory of the replica's device.
    OnDevice,
}

impl DataPlane {
    /// A plane whose ranks have met, for steps of `counts` micro-batches of which a rank computes up to `group` at once.
    pub fn new(
        mut backend: Box<dyn Backend>,
        membership: Membership,
        writers: Vec<Rank>,
        counts: &[u32],
        mode: Mode,
        group: usize,
    ) -> Self {
        let roots_of = |count: &u32| (*count, rank_roots(membership.range(), *count, mode));
        let geometry = backend.arena().geometry();
        Self {
            backend,
            sequence: Sequence(0),
            writers,
            geometry,
            roots: counts.iter().map(roots_of).collect(),
            trailers: Vec::with_capacity(geometry.root_slots),
            pending: vec![Trailer::EMPTY; geometry.scratch_slots + 1],
            merges: Vec::with_capacity(geometry.scratch_slots),
            rests: Rests::default(),
            checks: vec![0; group],
            figures: vec![Figures::default(); group],
            sums: Sums::InSlots,
            membership,
        }
    }

    /// Notes the additions that follow when a subtree of so many micro-batches is pushed as the last one of a root.
    pub fn note_merges(&mut self, root: usize, mut merger: Merger, leaves: u32) {
        self.merges.clear();
        let Self { merges, geometry, .. } = self;
        let mut note = |left, right| merges.push([left, right].map(|pending| geometry.slot(root, pending)));
        merger.push_subtree(leaves, &mut note);
        merger.finish(note);
    }

    /// Adds two pending subtrees of a root: their trailers, and their sums where they lie.
    pub fn merge(&mut self, parts: &mut ComputeParts, root: usize, [left, right]: [usize; 2], sums: Sums) {
        match sums {
            Sums::InSlots => {
                let slots = [left, right].map(|pending| self.geometry.slot(root, pending));
                let (into, from) = self.backend.arena().lease_pair(slots[0], slots[1]);
                parts.replica.add(from, into);
                parts.replica.round(parts.wire, into);
            }
            Sums::InReplica | Sums::OnDevice => {
                let [left, right] = [left, right].map(|pending| self.kept(root, pending));
                parts.replica.add_kept(right, left);
            }
            Sums::Offered => {}
        }
        self.pending[left] = self.pending[left].merge(&self.pending[right]);
    }

    /// Whether the replica keeps the gradients that are added up.
    pub fn keeps(&self) -> bool {
        matches!(self.sums, Sums::InReplica | Sums::OnDevice)
    }

    /// The number under which the replica keeps a pending subtree of a root.
    pub fn kept(&self, root: usize, pending: usize) -> usize {
        match self.sums {
            Sums::OnDevice => self.geometry.slot(root, pending),
            Sums::InReplica | Sums::InSlots | Sums::Offered => pending,
        }
    }

    /// Finds the place in which the replica has the least to do: slots on its device, memory of its own, or those of the host.
    pub fn settle_sums(&mut self, parts: &mut ComputeParts) {
        // Nobody else rounds what a replica adds up for itself.
        if parts.wire != Wire::F32 || parts.replica.about().group > 1 {
            return;
        }
        let arena = self.backend.arena();
        let slots: Option<Vec<_>> = (0..self.geometry.slots()).map(|slot| arena.on_device(slot)).collect();
        self.sums = match &slots {
            Some(slots) if parts.replica.keep_in(slots) => Sums::OnDevice,
            _ if parts.replica.keep(self.most_pending()) => Sums::InReplica,
            _ => Sums::InSlots,
        };
        // How a library cuts its own sums is part of their bits.
        if let (Sums::OnDevice, Mode::Exact, Some(bytes)) = (self.sums, parts.mode, parts.bucket_bytes) {
            self.backend.cut(&cuts(&parts.replica.about().layout, bytes));
        }
    }

    /// Whether the gradient of a step of so many roots need not leave the replica: this rank alone made it.
    pub fn stays_at_home(&self, roots: usize) -> bool {
        self.keeps() && roots == 1 && self.membership.world().0 == 1
    }

    /// The trailer of the step that was made, if its gradient stayed at home.
    pub fn trailer_at_home(&self) -> Option<Trailer> {
        self.trailers.first().copied().filter(|_| self.stays_at_home(self.trailers.len()))
    }

    /// How many subtrees of a root wait at once, at most.
    pub fn most_pending(&self) -> usize {
        let roots = self.roots.iter().flat_map(|(_, roots)| roots);
        roots.map(|root| Merger::buffers(root.len())).max().unwrap_or(0)
    }
}

/// The numbers of micro-batches that a step of this run can have.
#[must_use]
pub fn step_counts(plan: &BatchPlan) -> Vec<u32> {
    let last = plan.step(Step(plan.steps_per_epoch())).micro_batches;
    let mut counts = vec![plan.step(Step(1)).micro_batches, last];
    counts.dedup();
    counts
}

/// A rank's collective membership from the protocol's.
pub fn collective_membership(
    generation: Generation,
    rank: Rank,
    membership: &dtrain_protocol::Membership,
) -> Membership {
    Membership { generation, rank, ranges: membership.seats.iter().map(|seat| seat.range).collect() }
}
