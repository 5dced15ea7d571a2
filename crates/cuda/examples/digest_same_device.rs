//! Trains a small CNN for five steps with some ranks on one GPU, and prints the digest of its state: the same for any number
//! of ranks that divide the work.
//!
//! ```text
//! DTRAIN_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 cargo run -p dtrain-cuda --example digest_same_device -- 4
//! ```
//!
//! Without a GPU it says `skipped: WHY`; with `DTRAIN_FAKE_CUDA=1` it runs on the fake driver.

#[path = "../tests/on_gpu/digest.rs"]
mod digest;
#[path = "../tests/on_gpu/machine.rs"]
mod machine;

use std::process::ExitCode;

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|ranks| ranks.parse().ok());
    let Some(ranks @ 1..=digest::COUNT) = ranks else {
        eprintln!("error: one argument is needed: the number of ranks, 1 to {}", digest::COUNT);
        return ExitCode::from(2);
    };
    if let Some(machine) = machine::Machine::open() {
        println!("digest {}", digest::same_device(&machine.gpu(0), ranks));
    }
    ExitCode::SUCCESS
}
