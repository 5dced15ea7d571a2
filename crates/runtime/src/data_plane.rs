//! The data plane of a generation as a rank's compute thread has it: the backend, and all that follows from the membership.
//!
//! Made once a generation, so that a step looks it up and allocates nothing. It does not know what is computed, nor when.

use crate::carrier::{CarriedRounds, Out};
use crate::exchange::Wires;
use crate::gradients::{AllReduce, Company, Gradients, Share};
use crate::lendable::Lendable;
use crate::recipe::ComputeParts;
use crate::shards::Shards;
use dtrain_collective::{Assignment, Backend, Geometry, Reduce, Sequence, rank_roots};
use dtrain_engine::{About, BatchFigures};
use dtrain_rounds::Rounds;
use dtrain_types::{BatchPlan, Generation, Merger, MicroRange, Rank, Step, Trailer};

/// The backend of a generation, with what follows from its membership.
pub struct DataPlane {
    /// Runs the collectives.
    pub backend: Lendable,
    /// The last collective: all ranks count the same ones.
    pub sequence: Sequence,
    /// The ranks that see the run folder.
    pub writers: Vec<Rank>,
    /// Who takes part.
    pub membership: Assignment,
    /// The slots of this rank.
    pub geometry: Geometry,
    /// The roots of this rank for each number of micro-batches that a step can have.
    pub roots: Vec<(u32, Vec<MicroRange>)>,
    /// One per root.
    pub trailers: Vec<Trailer>,
    /// Pending trailers of the root being merged.
    pub pending: Vec<Trailer>,
    /// The ledger's sum of each of the micro-batches that are computed together.
    pub checks: Vec<u64>,
    /// What each of them says of itself.
    pub figures: Vec<BatchFigures>,
    /// Who holds the gradients.
    pub gradients: Gradients,
    /// Who holds which shards of the state, where ranks hold shards.
    pub shards: Option<Shards>,
    /// How a step is made, where nobody has all of a gradient.
    pub rounds: Option<CarriedRounds>,
}

impl DataPlane {
    /// A plane whose ranks have met, for steps of `counts` micro-batches of which a rank computes up to `group` at once.
    pub fn new(
        mut backend: Box<dyn Backend>,
        membership: Assignment,
        writers: Vec<Rank>,
        counts: &[u32],
        mode: Reduce,
        group: usize,
    ) -> Self {
        let roots_of = |count: &u32| (*count, rank_roots(membership.range(), *count, mode));
        let geometry = backend.arena().geometry();
        Self {
            backend: Lendable::new(backend),
            sequence: Sequence(0),
            writers,
            geometry,
            roots: counts.iter().map(roots_of).collect(),
            trailers: Vec::with_capacity(geometry.root_slots),
            pending: vec![Trailer::EMPTY; geometry.scratch_slots + 1],
            checks: vec![0; group],
            figures: vec![BatchFigures::default(); group],
            gradients: Gradients::Host(None),
            shards: None,
            rounds: None,
            membership,
        }
    }

    /// Finds the holder of the gradients. Call it behind the last copy of a state.
    pub fn choose_gradients(&mut self, parts: &mut ComputeParts) {
        let roots = || self.roots.iter().map(|(_, roots)| roots);
        let one_root = self.membership.world().0 == 1 && roots().all(|roots| roots.len() == 1);
        let company = if one_root { Company::Alone } else { Company::Peers };
        let most_pending = roots().flatten().map(|root| Merger::buffers(root.len())).max().unwrap_or(0);
        let micro_batches = roots().flatten().map(|root| root.len() as usize).max().unwrap_or(0);
        let share = Share { company, most_pending, micro_batches };
        self.gradients = match self.rounds {
            Some(_) => Gradients::Host(None),
            None => Gradients::choose(self.backend.as_mut(), share, parts),
        };
        let kept = match &self.rounds {
            Some(CarriedRounds { rounds, .. }) if rounds.are_there() => {
                "on the devices of those who hold their shards, to which windows travel while the rest is computed"
            }
            Some(_) => "by those who hold their shards, to whom windows travel while the rest is computed",
            None => self.gradients.describe(),
        };
        tracing::debug!(backend = self.backend.describe(), "gradients are kept {kept}");
    }

    /// What this rank computes of a step, in the loader's words: a range, and every so-manieth of it.
    pub fn own_micro_batches(&self) -> (MicroRange, u32) {
        let Assignment { rank, ranges, .. } = &self.membership;
        match &self.rounds {
            None => (self.membership.range(), 1),
            Some(_) => {
                let hi = ranges.last().map_or(0, |range| range.hi);
                (MicroRange { lo: rank.0.min(hi), hi }, ranges.len() as u32)
            }
        }
    }

    /// What ranks exchange floats by, and the rounds of a step, which take it. *Panics* where there are none.
    pub fn in_rounds(&mut self) -> (&mut Rounds, Wires<'_>) {
        let Self { rounds, backend, sequence, .. } = self;
        let CarriedRounds { rounds, .. } = rounds.as_mut().expect(IN_ROUNDS);
        (rounds, Wires { backend: backend.as_mut(), sequence })
    }

    /// Begins passes in rounds. *Panics* where there are none.
    pub fn set_out(&mut self) -> Out<'_> {
        let Self { rounds, backend, sequence, .. } = self;
        rounds.as_mut().expect(IN_ROUNDS).set_out(backend, sequence)
    }

    /// The all-reduce of the step in hand, which has so many micro-batches.
    pub fn all_reduce(&self, micro_batches: u32) -> AllReduce {
        AllReduce { sequence: self.sequence, micro_batches }
    }
}

/// Why there are rounds: nobody asks otherwise.
const IN_ROUNDS: &str = "a step is made in rounds";

/// The numbers of micro-batches that a step of this run can have.
#[must_use]
pub fn step_counts(plan: &BatchPlan) -> Vec<u32> {
    let last = plan.step(Step(plan.steps_per_epoch())).micro_batches;
    let mut counts = vec![plan.step(Step(1)).micro_batches, last];
    counts.dedup();
    counts
}

/// Those whose sums the backend makes: none where ranks exchange windows, and make sums themselves.
#[must_use]
pub fn summed_counts(about: &About, plan: &BatchPlan) -> Vec<u32> {
    if about.windows.is_some() { Vec::new() } else { step_counts(plan) }
}

/// A rank's collective membership from the protocol's.
pub fn collective_membership(
    generation: Generation,
    rank: Rank,
    membership: &dtrain_protocol::Membership,
) -> Assignment {
    Assignment {
        generation,
        rank,
        ranges: membership.participants.iter().map(|participant| participant.range).collect(),
    }
}
