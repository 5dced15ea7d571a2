//! Stages, models and replicas, judged from outside: against finite differences, against PyTorch, and against
//! themselves under another cut of the work.

mod averages;
mod decoding;
mod frozen;
mod golden;
mod gradients;
mod groups;
mod losses;
mod muon;
mod parameter_groups;
mod peers;
mod plans;
mod recomputed;
mod scaling;
mod steps;

use dtrain_engine::cpu::{Cpu, CpuOptions};
use dtrain_engine::{BatchFigures, BatchView, Gradient, MicroBatchGroup, ModelReplica, Replica};
use dtrain_types::MicroBatch;

/// A CPU device with one thread.
fn cpu() -> Cpu {
    cpu_with(1)
}

/// A CPU device with so many threads.
fn cpu_with(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).expect("the best instruction set is there")
}

/// Computes a group at once, whose batches are all there.
fn compute<'a>(
    replica: &mut ModelReplica<Cpu>,
    group: &MicroBatchGroup,
    batch: impl Fn(u32) -> BatchView<'a>,
    gradient: &mut dyn Gradient,
    figures: &mut [BatchFigures],
) {
    let last = group.micro_batches.hi - 1;
    for m in group.micro_batches.lo..last {
        replica.prefetch(group, MicroBatch(m), &batch(m)).expect("it fits");
    }
    replica.compute(group, &batch(last), gradient, figures).expect("it fits");
}
