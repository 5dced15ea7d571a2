//! `dtrain bench`: how fast this machine trains a workload that PyTorch was measured on too, and how fast its ranks
//! reach each other.

use crate::arguments::{Bench as Arguments, BenchRank};
use crate::error::CliError;
use crate::{bench_collectives, bench_gpu_plan, bench_scaling, bench_step};

/// Runs the command.
///
/// *Errors*: the measurement failed. *Blocks* for as long as it measures.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    match arguments {
        Arguments::Step(step) => bench_step::run(step),
        Arguments::Scaling(scaling) => bench_scaling::run(scaling),
        Arguments::Collectives(collectives) => bench_collectives::run(collectives),
        Arguments::GpuPlan(plan) => bench_gpu_plan::run(plan),
    }
}

/// A rank of `bench collectives`, for the process above.
///
/// *Errors*: it was not started by dtrain.
pub fn rank(arguments: &BenchRank) -> Result<(), CliError> {
    bench_collectives::be_a_rank(arguments)
}
