//! The GPUs of this host: which there are, which of them a program may use, and which versions of libraries they need.
//!
//! It trains nothing; `plan.rs` says whether this build can.

mod bus;
mod choose;
mod inventory;
mod listed;
mod open;
mod room;

pub use bus::on_the_bus;
pub use choose::{Chosen, Host, OnGpus, choose, count};
pub use inventory::Inventory;
pub use listed::listed;
pub use open::open_gpu;
pub use room::{answer as answer_room, most_rows};

use crate::config::{Config, Problem};
use dtrain_locate::{Library, Version};

/// The oldest version of a library that dtrain works with; none where any does.
///
/// *Source*: CUDA 12 for the driver, so that what NVRTC 12 compiles loads; 2.14 for NCCL, the first that can be told not
/// to block and so be aborted; 11.8 for NVRTC, the first that knows Hopper.
#[must_use]
pub fn least(library: Library) -> Option<Version> {
    match library {
        Library::Driver => Some(Version::new(&[12, 0])),
        Library::Nvrtc => Some(Version::new(&[11, 8])),
        Library::Nccl => Some(Version::new(&[2, 14])),
        Library::Nvml | Library::CublasLt | Library::Cudnn => None,
    }
}

/// What the ranks of this host train on.
///
/// *Errors*: as [`choose`]. *Blocks* while the driver wakes up, where GPUs were asked for.
pub fn choose_here(config: &Config) -> Result<Chosen, Problem> {
    choose(config, here())
}

/// How many GPUs of this host `devices: all` comes to, which is how many ranks it begins with; 0 where
/// they train on the CPU. *Blocks* while the driver wakes up, where this build trains on GPUs.
#[must_use]
pub fn count_here() -> u32 {
    count(here())
}

fn here() -> Host<impl FnOnce() -> u32, impl FnOnce() -> Inventory> {
    Host { trains: crate::plan::ON_GPUS, count: listed, inventory: Inventory::here }
}
