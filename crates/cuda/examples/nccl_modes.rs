//! What exact order costs: an all-reduce over NCCL in exact order and by `ncclAllReduce`, by turns, from 1 MiB to 256 MiB.
//!
//! ```text
//! DTRAIN_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 DTRAIN_NCCL=/usr/lib/libnccl.so.2 \
//!     cargo run --release -p dtrain-cuda --example nccl_modes -- 2
//! ```
//!
//! The arguments are the number of ranks, and the largest size in MiB if it is another one. Ranks and library are those of
//! `digest_nccl`. A line a size, and last the worst ratio. Without library or GPU it says `skipped: WHY`. With `DTRAIN_FAKE_CUDA=1` it
//! runs on the fake driver, if `DTRAIN_NCCL` names the fake library and `FAKE_NCCL_DRIVER` that driver.

#[path = "../tests/on_gpu/machine.rs"]
mod machine;
#[path = "../tests/on_gpu/modes.rs"]
mod modes;
#[path = "../tests/on_gpu/over_nccl.rs"]
mod over_nccl;

use machine::Machine;
use modes::Took;
use std::process::ExitCode;

const SIZES: [usize; 5] = [1, 4, 16, 64, 256];
const ROUNDS: usize = 21;

fn main() -> ExitCode {
    let numbers: Vec<Option<usize>> = std::env::args().skip(1).map(|number| number.parse().ok()).collect();
    let (world @ 2..=64, most) = (match numbers.as_slice() {
        [Some(world)] => (*world, SIZES[SIZES.len() - 1]),
        [Some(world), Some(most)] => (*world, *most),
        _ => (0, 0),
    }) else {
        eprintln!(
            "error: one argument is needed, the number of ranks, 2 to 64; a second one is the largest size in MiB"
        );
        return ExitCode::from(2);
    };
    if machine::is_fake() && std::env::var_os("FAKE_NCCL_DRIVER").is_none() {
        println!("skipped: NCCL does not work on the fake driver");
        return ExitCode::SUCCESS;
    }
    let Some(machine) = Machine::open() else { return ExitCode::SUCCESS };
    let library = match over_nccl::library() {
        Ok(library) => library,
        Err(error) => {
            println!("skipped: {}", error.to_string().lines().next().unwrap_or_default());
            return ExitCode::SUCCESS;
        }
    };
    let gpus: Vec<_> = (0..machine.count().min(world)).map(|ordinal| machine.gpu(ordinal)).collect();
    let mut all: Vec<Took> = Vec::new();
    for size in SIZES.into_iter().filter(|size| *size <= most) {
        let took = modes::took(&gpus, &library, world as u32, size << 20, ROUNDS);
        let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let (exact, ring) = (milliseconds(took.exact), milliseconds(took.ring));
        println!("{size} MiB: exact {exact:.3} ms, ncclAllReduce {ring:.3} ms, ratio {:.3}", took.ratio());
        all.push(took);
    }
    match all.iter().max_by(|a, b| a.ratio().total_cmp(&b.ratio())) {
        Some(worst) => {
            let (ratio, size, on) = (worst.ratio(), worst.bytes >> 20, gpus.len());
            println!(
                "worst {ratio:.3} at {size} MiB, largest {:.3}, {world} ranks, GPUs: {on}",
                all[all.len() - 1].ratio()
            );
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("error: the smallest size is {} MiB", SIZES[0]);
            ExitCode::from(2)
        }
    }
}
