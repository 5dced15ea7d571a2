//! The command line of `dtrain bench`.
//!
//! Words that are not clap's own (sizes, operations) pass through as they are: their messages have hints.

use super::output::Output;
use clap::{Args, Subcommand};
use std::str::FromStr;

const COLLECTIVES_EXAMPLES: &str = "\
Examples:
  dtrain bench collectives                                    all-reduce of two ranks, 4 KiB to 256 MiB
  dtrain bench collectives --ranks 4 --limit                  beside what the memory allows
  dtrain bench collectives --op all --sizes 64KiB,16MiB       every operation
  dtrain bench collectives --from 1KiB --to 1GiB --factor 2   other steps

A time is that of the slowest rank, from a barrier to its result. Every result is compared, bit for bit, with a plain sum.
algo is size / time and bus is what nccl-tests calls bus bandwidth: all_reduce x 2(n-1)/n, reduce_scatter and all_gather
x (n-1)/n, broadcast and copy x 1.
Exit codes: 0 measured and right, 1 a wrong result or a rank that died, 2 usage.";

const GPU_PLAN_EXAMPLES: &str = "\
Examples:
  dtrain bench gpu-plan                                       GPT-2 small, 64 x 1024 tokens, bf16
  dtrain bench gpu-plan --work mlp --batch 4096               another workload
  dtrain bench gpu-plan --ceilings 312,1.9                    the time on another GPU

Nothing is computed: every launch of a step is counted, with the bytes that it moves through the GPU's memory at least and
what it multiplies. The time is the sum over launches, each at the ceiling that it meets first.
Exit codes: 0 counted, 2 usage.";

/// `dtrain bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Measure training steps of a known workload
    Step(BenchStep),
    /// Measure how much faster more ranks are, and where the time goes
    Scaling(BenchScaling),
    /// Measure collectives between the ranks of this host, as nccl-tests does, and check every result
    #[command(after_help = COLLECTIVES_EXAMPLES)]
    Collectives(BenchCollectives),
    /// Count what a training step costs a GPU, on a machine without one
    #[command(after_help = GPU_PLAN_EXAMPLES)]
    GpuPlan(BenchGpuPlan),
}

/// `dtrain bench step`.
#[derive(Args, Clone, Debug)]
pub struct BenchStep {
    /// Which workload
    #[arg(long, value_parser = ["mlp", "gpt", "cnn", "cnn3d"])]
    pub work: String,
    /// Ranks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Compute threads of a rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Micro-batches that each rank's batch is cut into
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub micro_batches: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// What products and attention round their operands to: f32 (nothing) or bf16
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16"])]
    pub precision: String,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain bench collectives`.
#[derive(Args, Clone, Debug)]
pub struct BenchCollectives {
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub ranks: u32,
    /// all_reduce, reduce_scatter, all_gather, broadcast, barrier, copy (of state to the last rank), or all
    #[arg(long, value_name = "OP", default_value = "all_reduce")]
    pub op: String,
    /// Sizes of a rank's buffer, with commas between them
    #[arg(long, value_name = "SIZES", conflicts_with_all = ["from", "to", "factor"])]
    pub sizes: Option<String>,
    /// The smallest size
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub from: String,
    /// The largest size
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub to: String,
    /// From one size to the next
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub factor: u64,
    /// The order of sums: exact or ring
    #[arg(long, default_value = "exact")]
    pub mode: String,
    /// What values and sums are rounded to: f32 or bf16
    #[arg(long, default_value = "f32")]
    pub wire: String,
    /// A process or a thread for each rank
    #[arg(long, default_value = "process")]
    pub isolation: String,
    /// Measured operations of a size [default: more for small sizes, 9 to 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub samples: Option<u32>,
    /// Measure the memory itself too: all that an all-reduce moves, without the sums
    #[arg(long)]
    pub limit: bool,
    /// Keep each rank on one core, as mpirun does; training leaves that to the system
    #[arg(long)]
    pub pin: bool,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain bench gpu-plan`.
#[derive(Args, Clone, Debug)]
pub struct BenchGpuPlan {
    /// Which workload
    #[arg(long, value_parser = ["gpt2", "vit", "llama", "mlp", "gpt", "cnn", "cnn3d"], default_value = "gpt2")]
    pub work: String,
    /// Samples of a step, which are one micro-batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: u32,
    /// What is multiplied: f32, bf16 or f16
    #[arg(long, default_value = "bf16", value_parser = ["f32", "bf16", "f16"])]
    pub precision: String,
    /// What the GPU does at most: TFLOP/s of products in halves, TB/s of memory, TFLOP/s in f32 (60 if left out); the default is what
    /// was measured of an H100, and nine tenths of its 67 in f32
    #[arg(long, value_name = "TFLOPS,TBS[,TFLOPS]", default_value = "798,3.0,60")]
    pub ceilings: Ceilings,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// What a GPU does at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// On tensor cores. *Units*: operations a second.
    pub operations: f64,
    /// To its memory and from it. *Units*: bytes a second.
    pub bytes: f64,
    /// In f32, which tensor cores do not do. *Units*: operations a second.
    pub plain_operations: f64,
}

impl FromStr for Ceilings {
    type Err = String;

    /// `798,3.0` or `798,3.0,60`: TFLOP/s, TB/s, TFLOP/s in f32.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<f64>, _> = text.split(',').map(|number| number.trim().parse()).collect();
        let numbers = numbers.ok().filter(|numbers| numbers.iter().all(|number| *number > 0.0));
        match numbers.as_deref() {
            Some(&[operations, bytes, ref plain @ ..]) if plain.len() < 2 => {
                let plain = plain.first().unwrap_or(&60.0);
                let [operations, bytes, plain_operations] = [operations, bytes, *plain].map(|n| n * 1e12);
                Ok(Self { operations, bytes, plain_operations })
            }
            _ => Err(format!("{text} is not TFLOP/s and TB/s with a comma between, such as 798,3.0")),
        }
    }
}

/// `dtrain bench scaling`.
#[derive(Args, Clone, Debug)]
pub struct BenchScaling {
    /// Which workload
    #[arg(long, value_parser = ["mlp", "gpt", "cnn", "cnn3d"], default_value = "mlp")]
    pub work: String,
    /// The most ranks [default: as many as there are cores for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub ranks: Option<u32>,
    /// Compute threads of a rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// What stays the same when ranks are added: the batch of a rank (weak), of a step (strong), or each in turn
    #[arg(long, default_value = "both", value_parser = ["weak", "strong", "both"])]
    pub kind: String,
    /// Seconds to measure each number of ranks
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain bench-rank`.
#[derive(Args, Clone, Debug)]
pub struct BenchRank {
    /// Which rank.
    #[arg(long)]
    pub rank: u32,
    /// The process that it dies with.
    #[arg(long)]
    pub parent: i32,
    /// What is measured, as JSON.
    pub case: String,
}
