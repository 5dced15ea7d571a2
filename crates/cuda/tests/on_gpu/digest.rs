//! A small run whose digest is the same however many ranks do it: eight micro-batches of a CNN with batch norm and dropout, each
//! rank its share of them, five steps.
//!
//! Gradients are computed and merged in the slots of the arena, on the device and in tree order, as a rank does. Between ranks NCCL adds them up.

#![allow(dead_code)]

use crate::over_nccl;
use dtrain_collective::{Aborter, Assignment, Backend, Geometry, Op, Reduce, Sequence, rank_roots};
use dtrain_cuda::collectives::NcclDevice;
use dtrain_cuda::driver::Gpu;
use dtrain_cuda::{CudaDevice, Precision, rehearsed};
use dtrain_engine::models::peer::{integers, uniform};
use dtrain_engine::models::{CnnOptions, cnn};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchView, DecayGroup, DeviceReplica, Inputs, Keeping, Kept, Loss, LrSchedule, Model, Optimizer, Replica,
    Rule, Targets,
};
use dtrain_nccl::{NcclBackend, NcclLibrary, NcclSetup};
use dtrain_types::{Generation, Merger, MicroBatch, MicroRange, Rank, Seed, Step, Trailer, cut_evenly};
use std::sync::Arc;

/// Micro-batches of a step.
pub const COUNT: u32 = 8;
const ROWS: usize = 4;
const STEPS: u64 = 5;
const SIDE: usize = 8;

/// A rank's model, as every rank starts it. No operation finds in a step that it wants more memory.
pub fn replica(gpu: &Arc<Gpu>) -> DeviceReplica<CudaDevice> {
    let device = CudaDevice::new(gpu, Precision::F32).expect("a stream and its workspace");
    let options = CnnOptions { channels: vec![4, 6], hidden: vec![16], ..CnnOptions::default() };
    let chain = cnn(&options, 10).expect("the options make sense");
    let model = Model::new(&device, chain, Shape::values(ROWS, &[1, SIDE, SIDE]), Loss::cross_entropy());
    let optimizer = Optimizer {
        decays: DecayGroup::All,
        clip_norm: Some(1.0),
        ..Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-2))
    };
    let replica = DeviceReplica::new(device, model.expect("it fits"), optimizer, Seed(7));
    rehearsed(replica.expect("memory")).unwrap_or_else(|error| panic!("{error}"))
}

/// The micro-batches of each rank.
pub fn ranges(world: u32) -> Vec<MicroRange> {
    cut_evenly(COUNT, world)
}

/// The slots that a rank needs.
pub fn geometry(replica: &dyn Replica, ranges: &[MicroRange]) -> Geometry {
    Geometry::plan(replica.about().gradient_len(), ranges, &[COUNT], Reduce::Exact)
}

pub fn membership(rank: Rank, ranges: &[MicroRange]) -> Assignment {
    Assignment { generation: Generation(1), rank, ranges: ranges.to_vec() }
}

/// The samples of a micro-batch.
pub fn samples(step: Step, m: u32) -> (Vec<f32>, Vec<u32>) {
    let stream = 1000 + step.0 * u64::from(COUNT) + u64::from(m);
    (uniform(stream, ROWS * SIDE * SIDE, 1.0), integers(stream + 500, ROWS, 10))
}

/// The same for a replica.
pub fn batch<'a>((values, classes): &'a (Vec<f32>, Vec<u32>)) -> BatchView<'a> {
    BatchView { rows: ROWS, inputs: Inputs::Values(values), targets: Targets::Classes(classes) }
}

/// One micro-batch into a slot; gives its trailer.
fn micro_batch(replica: &mut DeviceReplica<CudaDevice>, step: Step, m: u32, slot: usize) -> Trailer {
    let samples = samples(step, m);
    let batch = batch(&samples);
    replica.begin(step, MicroBatch(m), &batch, Kept::alone(slot)).expect("a device that works");
    replica.figures().trailer(MicroBatch(m), 0)
}

/// The micro-batches of a root into its slots, merged like a binary counter.
fn root(
    replica: &mut DeviceReplica<CudaDevice>,
    geometry: Geometry,
    step: Step,
    index: usize,
    range: MicroRange,
) -> Trailer {
    let mut merger = Merger::default();
    let mut pending = vec![Trailer::EMPTY; Merger::buffers(range.len())];
    let mut pairs = Vec::new();
    for m in range.lo..range.hi {
        let next = merger.next_buffer();
        pending[next] = micro_batch(replica, step, m, geometry.slot(index, next));
        merger.push(|left, right| pairs.push((left, right)));
        if m + 1 == range.hi {
            merger.finish(|left, right| pairs.push((left, right)));
        }
        for (left, right) in pairs.drain(..) {
            replica.add_kept(geometry.slot(index, right), geometry.slot(index, left));
            pending[left] = pending[left].merge(&pending[right]);
        }
    }
    pending[0]
}

/// From now on a rank's gradients lie in the slots of its arena. The memory that they had is freed, which a driver does behind all
/// work of the GPU: so all ranks that share one settle before the first of them begins a collective, or one that frees would wait
/// for a peer's collective that waits for it.
pub fn settle(replica: &mut DeviceReplica<CudaDevice>, backend: &mut dyn Backend) {
    let slots = 0..backend.arena().geometry().slots();
    let slot = |slot| backend.arena().on_device(slot).expect("it lies on the device");
    assert!(replica.keep_in(&slots.map(slot).collect::<Vec<_>>()), "slots of this device");
}

/// All steps of one rank that has settled; gives the digest of its state in the end.
fn steps(replica: &mut DeviceReplica<CudaDevice>, backend: &mut dyn Backend, range: MicroRange) -> String {
    let geometry = backend.arena().geometry();
    for step in (1..=STEPS).map(Step) {
        let roots = rank_roots(range, COUNT, Reduce::Exact).into_iter().enumerate();
        let trailers: Vec<Trailer> =
            roots.map(|(index, range)| root(replica, geometry, step, index, range)).collect();
        let op = Op::AllReduce { micro_batches: COUNT, trailers: &trailers };
        backend.start(Sequence(step.0), &op).expect("a sound start");
        let whole = backend.finish(Sequence(step.0)).expect("a sound finish");
        replica.update_kept(step, whole.weight, whole.samples).expect("a device that works");
    }
    state_digest(replica)
}

pub fn state_digest(replica: &mut dyn Replica) -> String {
    let state = replica.bring_state().expect("a device that works");
    state.state_digest().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ends the others' waits when a rank panics, so that a run fails and does not hang.
struct AbortOnPanic(Aborter);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a rank panicked");
        }
    }
}

/// Ranks that run together: models and what adds up for them.
pub type Ranks<B> = Vec<(DeviceReplica<CudaDevice>, B)>;

/// Runs ranks that have settled as threads; gives the digest that all of them have. *Panics* if they differ.
///
/// They are given back whole: what a rank holds lives until all are done, because memory is freed behind all work of a GPU.
pub fn on_threads<B: Backend + Send>(ranks: Ranks<B>, ranges: &[MicroRange]) -> (String, Ranks<B>) {
    let (digests, ranks): (Vec<String>, Ranks<B>) = std::thread::scope(|scope| {
        let run = |((mut replica, mut backend), range): ((_, B), MicroRange)| {
            scope.spawn(move || {
                let _ends_the_others = AbortOnPanic(backend.aborter());
                (steps(&mut replica, &mut backend, range), (replica, backend))
            })
        };
        let threads: Vec<_> = ranks.into_iter().zip(ranges.iter().copied()).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).unzip()
    });
    assert!(digests.iter().all(|digest| *digest == digests[0]), "ranks differ: {digests:?}");
    (digests[0].clone(), ranks)
}

/// Ranks that meet over NCCL, on GPUs that they share in turn; settled.
pub fn meet(
    gpus: &[Arc<Gpu>],
    library: &NcclLibrary,
    ranges: &[MicroRange],
) -> Ranks<NcclBackend<NcclDevice>> {
    let id = library.unique_id().unwrap_or_else(|error| panic!("{error}"));
    let connect = |rank: u32| {
        let gpu = &gpus[rank as usize % gpus.len()];
        let mut replica = replica(gpu);
        let setup = NcclSetup {
            membership: membership(Rank(rank), ranges),
            mode: Reduce::Exact,
            counts: &[COUNT],
            cuts: &[],
        };
        let (geometry, stream) = (geometry(&replica, ranges), replica.device().stream());
        let mut backend = over_nccl::meet(gpu, (library, &id), setup, geometry, Some(stream));
        settle(&mut replica, &mut backend);
        (replica, backend)
    };
    over_nccl::together(0..ranges.len() as u32, connect)
}

/// The digest of all ranks. *Panics* with the words of whatever fails.
pub fn digest(gpus: &[Arc<Gpu>], library: &NcclLibrary, world: u32) -> String {
    let ranges = ranges(world);
    let (digest, ranks) = on_threads(meet(gpus, library, &ranges), &ranges);
    // Models live until all have ended.
    let (_replicas, backends): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    over_nccl::together(backends, over_nccl::end);
    digest
}
