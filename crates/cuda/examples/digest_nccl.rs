//! The run of `digest_same_device` by ranks that reduce over NCCL: the same digest.
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

use dtrain_collective::Mode;
use dtrain_nccl::{Library, NcclSetup, candidates, open};
use dtrain_types::Rank;
use machine::Machine;
use over_nccl::together;
use std::path::PathBuf;
use std::process::ExitCode;

/// The digest of all ranks. *Panics* with the words of whatever fails.
fn digest(machine: &Machine, library: &Library, world: u32) -> String {
    let ranges = digest::ranges(world);
    let id = library.unique_id().unwrap_or_else(|error| panic!("{error}"));
    let gpus: Vec<_> = (0..machine.count().min(world as usize)).map(|ordinal| machine.gpu(ordinal)).collect();
    let connect = |rank: u32| {
        let gpu = &gpus[rank as usize % gpus.len()];
        let mut replica = digest::replica(gpu);
        let membership = digest::membership(Rank(rank), &ranges);
        let setup = NcclSetup { membership, mode: Mode::Exact, counts: &[digest::COUNT] };
        let (geometry, stream) = (digest::geometry(&replica, &ranges), replica.device().stream());
        let mut backend = over_nccl::meet(gpu, (library, &id), setup, geometry, Some(stream));
        digest::settle(&mut replica, &mut backend);
        (replica, backend)
    };
    let (digest, ranks) = digest::on_threads(together(0..world, connect), &ranges);
    // Models live until all have ended.
    let (_replicas, backends): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    together(backends, over_nccl::end);
    digest
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
    let named = std::env::var_os("DTRAIN_NCCL").map(PathBuf::from);
    match open(&candidates(named.as_deref())) {
        Ok(library) => println!("digest {}", digest(&machine, &library, world)),
        Err(error) => println!("skipped: {}", error.to_string().lines().next().unwrap_or_default()),
    }
    ExitCode::SUCCESS
}
