//! `dtrain bench gpu-plan`: what a training step costs a GPU, counted launch by launch on a machine without one.
//!
//! The step is the replica's own, over a driver on paper: nothing is computed, but every launch is given to it, with the memory
//! that it moves and what it multiplies. From these and three ceilings of a GPU follows the time that a step takes there at least.
//!
//! It does not know how far below its ceilings a GPU stays.

use crate::arguments::{BenchGpuPlan, Ceilings};
use crate::error::CliError;
use crate::plan::paper_gpu;
use dtrain_cuda::driver::{Gpu, KernelTally, Tally};
use dtrain_cuda::{CudaDevice, Precision, Work as Cost};
use dtrain_engine::models::peer::{Large, PeerData, Work};
use dtrain_engine::{DeviceReplica, EngineError, Keeping, Kept, Loss, LossScaling, Model};
use dtrain_types::{MicroBatch, Seed, Step};
use serde_json::json;

/// What a launch takes at least. *Units*: seconds.
fn least(ceilings: Ceilings, work: Cost) -> f64 {
    let multiplying = work.operations as f64 / ceilings.operations
        + work.plain_operations as f64 / ceilings.plain_operations;
    multiplying.max(work.bytes as f64 / ceilings.bytes)
}

/// What a step comes to.
struct Plan {
    tally: Tally,
    ceilings: Ceilings,
}

/// Counts and prints.
///
/// *Errors*: a model that cannot be planned.
pub fn run(arguments: &BenchGpuPlan) -> Result<(), CliError> {
    let plan = Plan { tally: counted(arguments).map_err(CliError::failed)?, ceilings: arguments.ceilings };
    if arguments.output.json {
        say!("{}", plan.json(arguments));
    } else {
        plan.print(arguments);
    }
    Ok(())
}

/// What the third step asks for: the first ones make what later ones use again. It is driven as a rank alone on its GPU drives it:
/// what a step came to is asked for when the next one was given.
fn counted(arguments: &BenchGpuPlan) -> Result<Tally, String> {
    let (mut replica, data) = started(arguments).map_err(|error| error.to_string())?;
    let batch = data.batch();
    let mut tally = Tally::default();
    assert!(replica.work_ahead(1), "there is room on paper");
    for number in 1..=3 {
        let step = Step(number);
        let _before = replica.device().gpu().context().take_tally();
        let begun = replica.begin(step, MicroBatch(0), &batch, Kept::alone(0));
        begun.map_err(|error| error.to_string())?;
        let samples = replica.figures_later().samples;
        replica.update_ahead(step, samples).map_err(|error| error.to_string())?;
        if number > 1 {
            replica.outcome().map_err(|error| error.to_string())?;
        }
        tally = replica.device().gpu().context().take_tally().expect("it is on paper");
    }
    Ok(tally)
}

fn started(arguments: &BenchGpuPlan) -> Result<(DeviceReplica<CudaDevice>, PeerData), EngineError> {
    let gpu = Gpu::on_paper(paper_gpu());
    let precision =
        Precision::from_name(&arguments.precision).expect("one of those that the command line knows");
    let device = CudaDevice::new(&gpu, precision)?;
    let rows = arguments.batch as usize;
    let ((stages, input), data) = match Large::named(&arguments.work) {
        Some(large) => (large.stages(rows)?, large.data_for(rows)),
        None => {
            let mut all = Work::ALL.into_iter();
            let work = all.find(|work| work.name() == arguments.work);
            let work = work.expect("one of those that the command line knows");
            (work.stages(rows)?, work.data_for(rows))
        }
    };
    let model = Model::new(&device, stages, input, Loss::cross_entropy())?;
    let model = match precision {
        Precision::F16 => model.scaling_loss(LossScaling::default()),
        Precision::F32 | Precision::Tf32 | Precision::Bf16 => model,
    };
    Ok((DeviceReplica::new(device, model, Work::Mlp.optimizer(), Seed(7))?, data))
}

fn is_product(kernel: &str) -> bool {
    kernel.starts_with("product") || kernel.starts_with("linear")
}

fn converts(kernel: &str) -> bool {
    kernel.starts_with("to_") || kernel.starts_with("from_")
}

impl Plan {
    fn bytes(&self, of: impl Fn(&str) -> bool) -> u64 {
        let all = self.tally.kernels.values().filter(|tally| of(tally.kernel.name));
        all.map(|tally| tally.work.bytes).sum()
    }

    fn launches(&self, of: impl Fn(&str) -> bool) -> u64 {
        let all = self.tally.kernels.values().filter(|tally| of(tally.kernel.name));
        all.map(|tally| tally.launches).sum()
    }

    /// Times that the host waited before everything of the step was given.
    fn waits(&self) -> usize {
        let all = self.tally.launches.len();
        self.tally.waits.iter().filter(|given| (1..all).contains(*given)).count()
    }

    /// *Units*: seconds.
    fn time(&self) -> f64 {
        self.tally.launches.iter().map(|(_, work)| least(self.ceilings, *work)).sum()
    }

    /// The time of one kernel's launches. *Units*: seconds.
    fn time_of(&self, kernel: &str) -> f64 {
        let all = self.tally.launches.iter().filter(|(launched, _)| launched.name == kernel);
        all.map(|(_, work)| least(self.ceilings, *work)).sum()
    }

    /// All that it moves and multiplies.
    fn work(&self) -> Cost {
        self.tally.kernels.values().fold(Cost::default(), |all, KernelTally { work, .. }| Cost {
            bytes: all.bytes + work.bytes,
            operations: all.operations + work.operations,
            plain_operations: all.plain_operations + work.plain_operations,
        })
    }

    fn json(&self, arguments: &BenchGpuPlan) -> serde_json::Value {
        let work = self.work();
        json!({
            "work": arguments.work,
            "batch": arguments.batch,
            "precision": arguments.precision,
            "bytes_outside_products": self.bytes(|kernel| !is_product(kernel)),
            "bytes": work.bytes,
            "operations": work.operations + work.plain_operations,
            "conversion_launches": self.launches(converts),
            "host_waits": self.waits(),
            "launches": self.launches(|_| true),
            "peak_bytes": self.tally.peak,
            "predicted_ms": self.time() * 1e3,
        })
    }

    fn print(&self, arguments: &BenchGpuPlan) {
        let Ceilings { operations, bytes, plain_operations } = self.ceilings;
        say!(
            "{} with a batch of {} in {}, on a GPU of {:.0} TFLOP/s, {:.2} TB/s and {:.0} TFLOP/s in f32",
            arguments.work,
            arguments.batch,
            arguments.precision,
            operations / 1e12,
            bytes / 1e12,
            plain_operations / 1e12
        );
        say!("\n{:32} {:>8} {:>9} {:>9} {:>9} {:>9}", "kernel", "launches", "blocks", "GB", "TFLOP", "ms");
        let mut rows: Vec<(&KernelTally, f64)> =
            self.tally.kernels.values().map(|tally| (tally, self.time_of(tally.kernel.name))).collect();
        rows.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        for (KernelTally { kernel, launches, fewest, work }, time) in rows {
            line(kernel.name, *launches, &fewest.to_string(), *work, time);
        }
        line("all", self.launches(|_| true), "", self.work(), self.time());
        say!(
            "\n{:.1} GB outside of products, {} launches that only convert, {} waits of the host, {:.1} GB of memory",
            self.bytes(|kernel| !is_product(kernel)) as f64 / 1e9,
            self.launches(converts),
            self.waits(),
            self.tally.peak as f64 / 1e9
        );
    }
}

/// A row; of blocks the fewest of a launch, which keep a GPU busy or do not.
fn line(name: &str, launches: u64, blocks: &str, work: Cost, time: f64) {
    let operations = work.operations + work.plain_operations;
    let (gigabytes, teraflops) = (work.bytes as f64 / 1e9, operations as f64 / 1e12);
    say!("{name:32} {launches:>8} {blocks:>9} {gigabytes:>9.2} {teraflops:>9.3} {:>9.3}", time * 1e3);
}
