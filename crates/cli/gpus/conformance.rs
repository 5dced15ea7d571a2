//! The test that a verdict rests on: what a child does. On a GPU, the models of the fingerprint in every precision, twice, beside the
//! CPU; over NCCL, sums of ranks that have one GPU each, bit for bit beside sums of the host.
//!
//! It does not know who asks, nor where the verdict is kept.

use super::judged::{Judged, TestVerdict};
use super::open_gpu;
use super::verdict::{Asking, of_gpus, of_nccl, one_line};
use crate::arguments::GpuProbe;
use crate::commands::print_json;
use crate::config::Devices;
use crate::error::CliError;
use crate::nccl::NcclFabric;
use dtrain_collective::{Assignment, Backend, Geometry, Op, Reduce, Sequence, rank_roots};
use dtrain_cuda::driver::Stream;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::models::peer::uniform;
use dtrain_engine::{LossScaling, Tolerance, device_conforms};
use dtrain_nccl::open;
use dtrain_protocol::{Bootstrap, Membership};
use dtrain_runtime::{Fabric, Plane};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, Wire, cut_evenly};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Elements of a sum: several parts of a transfer, and no round number.
const ELEMENTS: usize = 100_003;
/// Sums one behind the other.
const SUMS: u64 = 3;
/// What ranks wait for one another at most is a multiple of it.
const DETECT: Duration = Duration::from_secs(1);

/// Does what a child is there for.
///
/// *Errors*: nobody reads. *Blocks* for seconds.
pub fn answer(asked: &GpuProbe) -> Result<(), CliError> {
    // A child whose parent is killed is to leave nothing behind.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| CliError::failed("cannot follow the parent").because(&error))?;
    if let Some(word) = &asked.pins {
        return super::pinned::answer(asked.gpus[0], word);
    }
    if let Some(judge) = &asked.judge {
        return print_json(&json!(judged(asked, judge)));
    }
    // Operations of a device that fails panic with its words.
    std::panic::set_hook(Box::new(|_| {}));
    let tested = catch_unwind(AssertUnwindSafe(|| match &asked.nccl {
        None => asked.gpus.iter().try_for_each(|number| on_gpu(*number)),
        Some(library) => over_nccl(library, &asked.gpus),
    }));
    let verdict = match tested {
        Ok(Ok(())) => TestVerdict::Passed,
        Ok(Err(Wrong::Result(words))) => TestVerdict::Failed(words),
        Ok(Err(Wrong::NoResult(words))) => TestVerdict::Unknown(words),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            TestVerdict::Unknown(words.unwrap_or_else(|| "the test panicked".to_owned()))
        }
    };
    print_json(&json!(verdict))
}

/// The verdict that is kept, or that a child of this one comes to.
fn judged(asked: &GpuProbe, judge: &str) -> Judged {
    let asking = if judge == "tests" { Asking::Tests } else { Asking::Remembers };
    let numbers: Vec<String> = asked.gpus.iter().map(u32::to_string).collect();
    let unknown = |why: String| Judged { verdict: TestVerdict::Unknown(why.clone()), kept: Err(why) };
    let Ok(Devices::Cuda(list)) = Devices::parse(&format!("cuda:{}", numbers.join(","))) else {
        return unknown("there are no such GPUs".to_owned());
    };
    match &asked.nccl {
        None => of_gpus(&list, asking),
        Some(path) => match open(std::slice::from_ref(path)) {
            Ok(library) => of_nccl(&library, &list, asking),
            Err(error) => unknown(one_line(error)),
        },
    }
}

/// Why a test has not passed.
enum Wrong {
    /// What it computed is wrong.
    Result(String),
    /// It could not compute.
    NoResult(String),
}

/// How far a precision may be from the CPU's f32: some times of what the stand-in for a GPU is off by. A ReLU near zero that rounding
/// turns the other way is most of it; f16, whose kernels are those of bf16, shows the rest. An update divides a gradient by its own size:
/// one near zero moves it by as much as a large one.
fn tolerance(precision: Precision) -> Tolerance {
    match precision {
        // What no library does is f32.
        Precision::F32 | Precision::Tf32 => {
            Tolerance { losses: 1e-5, gradient: 1e-5, update: 2e-2, scaling: None }
        }
        Precision::Bf16 => Tolerance { losses: 1e-2, gradient: 0.4, update: 0.7, scaling: None },
        // A small scale: no step of the test is to be skipped.
        Precision::F16 => {
            let scaling = Some(LossScaling { start: 64.0, ..LossScaling::default() });
            Tolerance { losses: 1e-3, gradient: 2e-2, update: 0.3, scaling }
        }
    }
}

fn on_gpu(number: u32) -> Result<(), Wrong> {
    let gpu = open_gpu(number).map_err(|error| Wrong::NoResult(one_line(error)))?;
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let open = || Ok(CudaDevice::new(&gpu, precision)?);
        let judged = device_conforms(open, tolerance(precision));
        let judged = judged.map_err(|error| Wrong::NoResult(one_line(error)))?;
        judged.map_err(|words| Wrong::Result(format!("in {}, {words}", precision.name())))?;
    }
    Ok(())
}

/// What a rank puts into a sum.
fn part(rank: usize, sum: u64) -> Vec<f32> {
    uniform(100 * sum + rank as u64, ELEMENTS, 1.0)
}

fn over_nccl(library: &Path, gpus: &[u32]) -> Result<(), Wrong> {
    let no_result = |words: String| Wrong::NoResult(words);
    let library = open(&[library.to_owned()]).map_err(|error| no_result(one_line(error)))?;
    let ranks = gpus.len() as u32;
    let id = library.unique_id().map_err(|error| no_result(one_line(error)))?;
    let ranges = cut_evenly(ranks, ranks);
    let all: Vec<_> = std::thread::scope(|scope| {
        let run = |(rank, number): (usize, &u32)| {
            let (library, ranges, id, number) = (library.clone(), ranges.clone(), Bootstrap(id.0), *number);
            scope.spawn(move || -> Result<Vec<Vec<f32>>, String> {
                let gpu = open_gpu(number)?;
                let stream = Arc::new(Stream::new(&gpu).map_err(one_line)?);
                let geometry = Geometry::plan(ELEMENTS, &ranges, &[ranges.len() as u32], Reduce::Exact);
                let mut fabric = NcclFabric::new(library, DETECT, &stream, geometry).map_err(one_line)?;
                sums(&mut fabric, geometry, rank, &ranges, id)
            })
        };
        let threads: Vec<_> = gpus.iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank's words are its result")).collect()
    });
    for (rank, found) in all.into_iter().enumerate() {
        let found = found.map_err(no_result)?;
        for (sum, found) in (1..=SUMS).zip(found) {
            // Of two ranks the tree has one addition.
            let mut wanted = part(0, sum);
            for other in 1..gpus.len() {
                wanted.iter_mut().zip(part(other, sum)).for_each(|(sum, part)| *sum += part);
            }
            if found.iter().zip(&wanted).any(|(found, wanted)| found.to_bits() != wanted.to_bits()) {
                return Err(Wrong::Result(format!("rank {rank} has other bits in sum {sum} than the host")));
            }
        }
    }
    Ok(())
}

/// The sums of one rank, as it sees them.
fn sums(
    fabric: &mut NcclFabric,
    geometry: Geometry,
    rank: usize,
    ranges: &[MicroRange],
    id: Bootstrap,
) -> Result<Vec<Vec<f32>>, String> {
    let count = ranges.len() as u32;
    let membership =
        Assignment { generation: Generation(1), rank: Rank(rank as u32), ranges: ranges.to_vec() };
    let roots = rank_roots(ranges[rank], count, Reduce::Exact).len();
    let plane = Plane { membership, members: Membership::default(), bootstrap: Some(id) };
    let mut backend: Box<dyn Backend> =
        fabric.connect(&plane, geometry, Reduce::Exact, Wire::F32, &[count]).map_err(one_line)?;
    backend.prepare(&[count]);
    let trailers = vec![Trailer { samples: 1, weight: 1.0, ..Trailer::EMPTY }; roots];
    let mut found = Vec::new();
    for sum in 1..=SUMS {
        for root in 0..roots {
            backend.arena().lease(geometry.slot(root, 0)).copy_from_slice(&part(rank, sum));
        }
        let op = Op::AllReduce { micro_batches: count, trailers: &trailers };
        backend.start(Sequence(sum), &op).map_err(one_line)?;
        backend.finish(Sequence(sum)).map_err(one_line)?;
        found.push(backend.reduced().to_vec());
    }
    Ok(found)
}
