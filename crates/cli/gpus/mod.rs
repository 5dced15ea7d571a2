//! The GPUs of this host: which there are, which of them a program may use, and which versions of libraries they need.
//!
//! It trains nothing; `plan.rs` says whether this build can.

mod bus;
mod choose;
mod inventory;
mod listed;
mod open;
mod room;
mod versions;

pub use bus::on_the_bus;
pub use choose::{Chosen, Host, choose, count};
pub use inventory::Inventory;
pub use listed::listed;
pub use open::open_gpu;
pub use room::{answer as answer_room, most_rows};
pub use versions::oldest;

use crate::config::{Config, Machine, ON_GPUS, Problem};

/// This machine, as its scheduler and its limits present it.
#[must_use]
pub fn this_machine() -> Machine {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Machine { cores: u32::try_from(cores).expect("fewer than 2^32 cores"), gpus: count_here }
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
    Host { trains: ON_GPUS, count: listed, inventory: Inventory::here }
}
