//! `dtrain bench step`: how fast this machine trains a workload that PyTorch was measured on too.

use crate::arguments::{Bench as Arguments, BenchStep};
use crate::bench_step;
use crate::error::CliError;

/// Runs the command.
///
/// *Errors*: the measurement failed. *Blocks* for as long as it measures.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    match arguments {
        Arguments::Step(step) => bench_step(step),
    }
}

fn bench_step(arguments: &BenchStep) -> Result<(), CliError> {
    bench_step::run(arguments)
}
