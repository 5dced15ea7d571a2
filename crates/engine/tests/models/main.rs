//! Stages, models and replicas, judged from outside: against finite differences, against PyTorch, and against
//! themselves under another cut of the work.

mod golden;
mod gradients;
mod groups;
mod losses;
mod peers;
mod plans;
mod recomputed;
mod scaling;
mod steps;

use dtrain_engine::cpu::{Cpu, CpuOptions};

/// A CPU device with one thread.
fn cpu() -> Cpu {
    cpu_with(1)
}

/// A CPU device with so many threads.
fn cpu_with(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).expect("the best instruction set is there")
}
