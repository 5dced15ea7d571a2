//! Trains a small CNN for five steps with ranks that reduce over NCCL, and prints the digest of its state: the same for any number
//! of ranks.
//!
//! ```text
//! DTRAIN_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 DTRAIN_NCCL=/usr/lib/libnccl.so.2 \
//!     cargo run -p dtrain-cuda --example digest_nccl -- 2
//! ```
//!
//! A rank is a thread, on the GPU of its number; more ranks than GPUs share them, which NCCL from 2.30.3 on allows with
//! `NCCL_MULTI_RANK_GPU_ENABLE=1`. NCCL is the one that `DTRAIN_NCCL` names, or that the dynamic linker finds. Without it, or
//! without a GPU, it says `skipped: WHY`. With `DTRAIN_FAKE_CUDA=1` it runs on the fake driver, if `DTRAIN_NCCL` names the fake library
//! and `FAKE_NCCL_DRIVER` that driver.

#[path = "../tests/on_gpu/digest.rs"]
mod digest;
#[path = "../tests/on_gpu/machine.rs"]
mod machine;
#[path = "../tests/on_gpu/over_nccl.rs"]
mod over_nccl;

use dtrain_nccl::NcclLibrary;
use machine::Machine;
use std::process::ExitCode;

/// The digest of all ranks. *Panics* with the words of whatever fails.
fn digest(machine: &Machine, library: &NcclLibrary, world: u32) -> String {
    let gpus: Vec<_> = (0..machine.count().min(world as usize)).map(|ordinal| machine.gpu(ordinal)).collect();
    digest::digest(&gpus, library, world)
}

fn main() -> ExitCode {
    let world = std::env::args().nth(1).and_then(|world| world.parse().ok());
    let Some(world @ 1..=digest::COUNT) = world else {
        eprintln!("error: one argument is needed: the number of ranks, 1 to {}", digest::COUNT);
        return ExitCode::from(2);
    };
    if machine::is_fake() && std::env::var_os("FAKE_NCCL_DRIVER").is_none() {
        println!("skipped: NCCL does not work on the fake driver");
        return ExitCode::SUCCESS;
    }
    let Some(machine) = Machine::open() else { return ExitCode::SUCCESS };
    match over_nccl::library() {
        Ok(library) => println!("digest {}", digest(&machine, &library, world)),
        Err(error) => println!("skipped: {}", error.to_string().lines().next().unwrap_or_default()),
    }
    ExitCode::SUCCESS
}
