//! Who holds the gradients of a rank's steps: where a pass writes them, who adds them up, what travels, what the update reads.
//!
//! Chosen once a generation, as what gives everybody the least to do. Additions are those of the reduction tree in any case, so the
//! bits are the same. It does not know which micro-batches there are, nor what comes before or after a step.

use crate::batches::Batches;
use crate::broke::{Broke, engine, off};
use crate::gradient_slot::{GradientSlot, Offer, Offering};
use crate::profiler::Profiler;
use crate::recipe::ComputeParts;
use dtrain_collective::{Backend, Geometry, Op, Sequence};
use dtrain_engine::{
    BatchFigures, BatchView, EngineError, Keeping, Kept, MicroBatchGroup, Replica, UpdateInfo,
};
use dtrain_protocol::Failure;
use dtrain_types::{Merger, Step, Trailer, Wire};

/// The holder of the gradients of a generation.
pub enum Gradients {
    /// The host, in the slots of the arena. With an offering, the last pass of a step adds up and hands on what it makes final.
    Host(Option<Offering>),
    /// The device of the replica, in the slots of the arena, which are memory of its own; the same offering.
    Device(Option<Offering>),
    /// The replica, in memory of its own, from which the sum of a root is brought to its slot.
    Replica,
    /// The replica, and no gradient leaves it: there is no other rank.
    Home(Told),
}

/// When the host hears of a step that no other rank has a part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It waits for its losses and for its update.
    AtOnce,
    /// When the next step was given to the device, which works all the time.
    Behind,
}

/// What a rank computes of a step.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Whether that is all of it.
    pub company: Company,
    /// The most pending parts of a root.
    pub most_pending: usize,
    /// The most micro-batches.
    pub micro_batches: usize,
}

/// Whether a generation has other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// This rank computes all of a step, as one root.
    Alone,
    /// It does not.
    Peers,
}

/// The all-reduce of a step.
#[derive(Clone, Copy, Debug)]
pub struct AllReduce {
    /// Its number.
    pub sequence: Sequence,
    /// Micro-batches of the step.
    pub micro_batches: u32,
}

/// A part of a root that waits to be merged, as `Merger` numbers them.
#[derive(Clone, Copy, Debug)]
pub struct Subtree {
    /// Which root of this rank.
    pub root: usize,
    /// Which of its pending parts.
    pub pending: usize,
}

/// When a pass has its turn.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Others follow in this step.
    Early,
    /// It is the last one, before this all-reduce.
    Last(AllReduce),
}

/// One pass: what is computed into which subtree.
pub struct Pass<'a> {
    /// Its micro-batches; those but the last were fetched.
    pub group: MicroBatchGroup,
    /// Of the last micro-batch.
    pub batch: &'a BatchView<'a>,
    /// Where its gradient goes.
    pub into: Subtree,
    /// When.
    pub turn: Turn,
}

/// What a pass works with.
pub struct Tools<'a> {
    /// Has the slots.
    pub backend: &'a mut dyn Backend,
    /// Computes.
    pub replica: &'a mut dyn Replica,
    /// Have the next one.
    pub batches: &'a mut Batches,
    /// Hears of the pass.
    pub profiler: &'a mut Profiler,
}

impl Turn {
    fn all_reduce(&self) -> Option<AllReduce> {
        match self {
            Self::Early => None,
            Self::Last(all_reduce) => Some(*all_reduce),
        }
    }
}

fn keeper(replica: &mut dyn Replica) -> &mut dyn Keeping {
    replica.keeping().expect("a replica that holds gradients was chosen because it keeps them")
}

impl Told {
    /// Behind, if the replica has room for the losses of so many micro-batches. Parts of an update follow one another on the host.
    fn by(replica: &mut dyn Replica, micro_batches: usize) -> Self {
        if replica.sharding().is_none() && keeper(replica).work_ahead(micro_batches) {
            Self::Behind
        } else {
            Self::AtOnce
        }
    }
}

impl Gradients {
    /// Finds the holder that has the least to do: a replica that keeps gradients, in slots on its device or the most pending ones in
    /// memory of its own, or the host. Call it behind the last copy of a state, which goes through the slots.
    pub fn choose(backend: &mut dyn Backend, share: Share, parts: &mut ComputeParts) -> Self {
        let Share { company, most_pending, micro_batches } = share;
        let ComputeParts { replica, wire, bucket_bytes, .. } = parts;
        let (replica, geometry) = (replica.as_mut(), backend.arena().geometry());
        let offering = bucket_bytes.filter(|_| backend.takes_offers());
        let offering = offering.map(|bytes| Offering::new(bytes, geometry.scratch_slots));
        // What is leased of a slot on a device is a copy: nothing is offered of that.
        let on_device = backend.arena().on_device(0).is_some();
        let on_host = |offering: Option<Offering>| Self::Host(offering.filter(|_| !on_device));
        // Nobody else rounds what a replica adds up for itself, or keeps the sum of several micro-batches.
        if *wire != Wire::F32 || replica.about().group > 1 || replica.keeping().is_none() {
            return on_host(offering);
        }
        // Alone, a gradient has the number of its subtree wherever it is kept.
        let slots: Vec<usize> = match company {
            Company::Alone => (0..=geometry.scratch_slots).map(|pending| geometry.slot(0, pending)).collect(),
            Company::Peers => (0..geometry.slots()).collect(),
        };
        let slots: Option<Vec<_>> = slots.into_iter().map(|slot| backend.arena().on_device(slot)).collect();
        if slots.is_some_and(|slots| keeper(replica).keep_in(&slots)) {
            return match company {
                Company::Alone => Self::Home(Told::by(replica, micro_batches)),
                Company::Peers => Self::Device(offering),
            };
        }
        match (keeper(replica).keep(most_pending), company) {
            (true, Company::Alone) => Self::Home(Told::by(replica, micro_batches)),
            (true, Company::Peers) => Self::Replica,
            (false, _) => on_host(offering),
        }
    }

    /// The number under which a replica keeps a subtree.
    fn number(&self, geometry: Geometry, Subtree { root, pending }: Subtree) -> usize {
        match self {
            Self::Device(_) => geometry.slot(root, pending),
            Self::Host(_) | Self::Replica | Self::Home(_) => pending,
        }
    }

    /// Notes what the last pass of a step leaves to add, which has so many micro-batches: for that pass, where it does so.
    pub fn note_merges(&mut self, geometry: Geometry, root: usize, mut merger: Merger, leaves: u32) {
        let (Self::Host(Some(offering)) | Self::Device(Some(offering))) = self else { return };
        let merges = &mut offering.merges;
        merges.clear();
        let mut note = |left, right| merges.push([left, right].map(|pending| geometry.slot(root, pending)));
        merger.push_subtree(leaves, &mut note);
        merger.finish(note);
    }

    /// Computes a pass into its subtree. In the last one of a step, an offering adds up and hands on what becomes final.
    ///
    /// *Errors*: of the replica, or of the data.
    pub fn fill(
        &mut self,
        pass: &Pass<'_>,
        tools: Tools<'_>,
        figures: &mut [BatchFigures],
    ) -> Result<(), Failure> {
        let geometry = tools.backend.arena().geometry();
        let (number, told) = (self.number(geometry, pass.into), self.told());
        match (self, pass.turn.all_reduce()) {
            (Self::Host(offering), all_reduce) => {
                let slot = geometry.slot(pass.into.root, pass.into.pending);
                fill_slot(slot, offering.as_mut().zip(all_reduce), pass, tools, figures)
            }
            (Self::Device(Some(offering)), Some(all_reduce)) => {
                let AllReduce { sequence, micro_batches } = all_reduce;
                let Tools { backend, replica, batches, .. } = tools;
                // Told as the pass is given to the device; the backend sees to the order there. What is final last goes with the
                // start of the all-reduce.
                let offer = &mut |from| {
                    if from > 0 {
                        backend.offer(sequence, micro_batches, from);
                    }
                };
                let to = Kept { number, merges: &offering.merges, settled: Some(offer) };
                fill_kept(to, pass, (replica, batches), Told::AtOnce, figures)
            }
            (Self::Device(_) | Self::Replica | Self::Home(_), _) => {
                let with = (tools.replica, tools.batches);
                fill_kept(Kept::alone(number), pass, with, told, figures)
            }
        }
    }

    /// Adds two pending subtrees of a root, the right one to the left one, and rounds the sum; after a last pass that did so itself,
    /// there is nothing to do.
    pub fn merge(
        &self,
        [left, right]: [Subtree; 2],
        turn: Turn,
        backend: &mut dyn Backend,
        replica: &mut dyn Replica,
        wire: Wire,
    ) {
        let geometry = backend.arena().geometry();
        match (self, turn) {
            (Self::Host(Some(_)) | Self::Device(Some(_)), Turn::Last(_)) => {}
            (Self::Host(_), _) => {
                let [into, from] = [left, right].map(|of| geometry.slot(of.root, of.pending));
                let (into, from) = backend.arena().lease_pair(into, from);
                replica.add(wire, from, into);
            }
            (Self::Device(_) | Self::Replica | Self::Home(_), _) => {
                let [into, from] = [left, right].map(|of| self.number(geometry, of));
                keeper(replica).add_kept(from, into);
            }
        }
    }

    /// A root is whole: from here on it lies where it is reduced.
    ///
    /// *Errors*: of the replica.
    pub fn close(
        &self,
        root: usize,
        backend: &mut dyn Backend,
        replica: &mut dyn Replica,
    ) -> Result<(), Failure> {
        match self {
            Self::Host(_) | Self::Device(_) | Self::Home(_) => Ok(()),
            Self::Replica => {
                let slot = backend.arena().geometry().slot(root, 0);
                keeper(replica).bring(0, backend.arena().lease(slot)).map_err(engine)
            }
        }
    }

    /// The sum of the roots of all ranks, of which `trailers` has this rank's; gives that of the trailers.
    ///
    /// *Blocks* for all ranks. *Errors*: as `Backend::finish`.
    pub fn reduce(
        &self,
        AllReduce { sequence, micro_batches }: AllReduce,
        trailers: &[Trailer],
        backend: &mut dyn Backend,
    ) -> Result<Trailer, Broke> {
        match self {
            Self::Home(_) => {
                let [trailer] = trailers else { panic!("{} roots of a rank that is alone", trailers.len()) };
                Ok(*trailer)
            }
            Self::Host(_) | Self::Device(_) | Self::Replica => {
                backend.start(sequence, &Op::AllReduce { micro_batches, trailers }).map_err(off)?;
                backend.finish(sequence).map_err(off)
            }
        }
    }

    /// What it is, for the log.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Host(None) => "in the memory of the host",
            Self::Host(Some(_)) => "in the memory of the host, and travel while the rest is computed",
            Self::Device(None) => "in slots on the device",
            Self::Device(Some(_)) => "in slots on the device, and travel while the rest is computed",
            Self::Replica => "in memory of the replica, from which sums are brought",
            Self::Home(_) => "in memory of the replica, which is alone",
        }
    }

    /// Whether the sum is gradient 0 of those that the replica keeps: else it lies on the host.
    #[must_use]
    pub fn reduced_is_kept(&self) -> bool {
        matches!(self, Self::Home(_) | Self::Device(_))
    }

    /// When the host hears of a step.
    #[must_use]
    pub fn told(&self) -> Told {
        match self {
            Self::Home(told) => *told,
            Self::Host(_) | Self::Device(_) | Self::Replica => Told::AtOnce,
        }
    }

    /// Applies the sum, whose trailer this is, from where it lies. Gives nothing where that is told behind: then
    /// [`Keeping::outcome`] has it.
    ///
    /// *Errors*: as `Replica::update`.
    pub fn update(
        &self,
        step: Step,
        trailer: &Trailer,
        backend: &mut dyn Backend,
        replica: &mut dyn Replica,
    ) -> Result<Option<UpdateInfo>, EngineError> {
        let Trailer { weight, samples, .. } = *trailer;
        match self {
            Self::Home(Told::Behind) => keeper(replica).update_ahead(step, samples).map(|()| None),
            Self::Home(Told::AtOnce) | Self::Device(_) => {
                keeper(replica).update_kept(step, weight, samples).map(Some)
            }
            Self::Host(_) | Self::Replica => {
                replica.update(step, backend.reduced(), weight, samples).map(Some)
            }
        }
    }
}

/// Computes a pass into a slot of the arena.
fn fill_slot(
    slot: usize,
    offering: Option<(&mut Offering, AllReduce)>,
    pass: &Pass<'_>,
    tools: Tools<'_>,
    figures: &mut [BatchFigures],
) -> Result<(), Failure> {
    let offer = offering.map(|(offering, AllReduce { sequence, micro_batches })| Offer {
        sequence,
        micro_batches,
        wire: pass.group.wire,
        offering,
    });
    let mut to = GradientSlot::new(tools.backend, slot, offer, tools.profiler);
    tools.replica.compute(&pass.group, pass.batch, &mut to, figures).map_err(engine)?;
    to.finish();
    Ok(())
}

/// Computes a pass into a gradient that the replica keeps. The next batch goes ahead while the device works.
fn fill_kept(
    to: Kept<'_>,
    pass: &Pass<'_>,
    (replica, batches): (&mut dyn Replica, &mut Batches),
    told: Told,
    figures: &mut [BatchFigures],
) -> Result<(), Failure> {
    let MicroBatchGroup { step, .. } = pass.group;
    let [figures] = figures else { panic!("{:?} of a replica that keeps one at a time", pass.group) };
    keeper(replica).begin(step, pass.group.first(), pass.batch, to).map_err(engine)?;
    batches.prefetch(replica)?;
    *figures = match told {
        Told::AtOnce => keeper(replica).figures(),
        Told::Behind => keeper(replica).figures_later(),
    };
    Ok(())
}
