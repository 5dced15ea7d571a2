//! The GPUs of this host: which there are, which of them a program may use, and which versions of libraries they need. NVIDIA's, for
//! dtrain's own kernels and for other programs; AMD's, for other programs.
//!
//! It trains nothing; `plan.rs` says whether this build can.

mod amd;
mod brought;
mod bus;
mod choose;
mod chosen;
mod conformance;
mod inventory;
mod judged;
mod listed;
mod open;
mod pinned;
mod rocm;
mod room;
mod verdict;
mod versions;

pub use amd::{AmdGpu, AmdGpus};
pub use brought::is_brought;
pub use bus::on_the_bus;
pub use choose::{Host, choose, count};
pub use chosen::{Auto, Chosen};
pub use conformance::answer as answer_test;
pub use inventory::Inventory;
pub use judged::{Judged, TestVerdict};
pub use listed::{hidden_by, seen_by_programs};
pub use open::{can_compute_here, open_gpu};
pub use pinned::{ByLibraries, KeptPins, Pinned, by_libraries};
pub use room::{answer as answer_room, most_rows};
pub use verdict::{Asking, of_child, of_nccl};

pub use versions::oldest;

use crate::config::{Config, CudaList, Devices, Machine, ON_GPUS, PassesBy, Problem};
use brought::OfProgram;
use listed::listed;
use std::sync::{Mutex, PoisonError};

/// This machine, as its scheduler and its limits present it.
#[must_use]
pub fn this_machine() -> Machine {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Machine { cores: u32::try_from(cores).expect("fewer than 2^32 cores"), gpus: count_here }
}

/// The same as one of several hosts: `auto` is no GPU there, and none is asked for their number.
#[must_use]
pub fn this_machine_of_several() -> Machine {
    let gpus = |devices: &Devices, passes: PassesBy| {
        if *devices == Devices::Auto { 0 } else { count_here(devices, passes) }
    };
    Machine { gpus, ..this_machine() }
}

/// Why `auto` stays on the CPU where other hosts may join: theirs may have other GPUs, or none.
pub const ON_SEVERAL_HOSTS: Auto = Auto::Cpu("with several hosts devices=all, on each, trains there");

/// What the ranks of this host train on.
///
/// *Errors*: as [`choose`]. *Blocks* while the driver wakes up, where GPUs were asked for or may be taken; the first time, while they
/// are tested.
pub fn choose_here(config: &Config, auto: Auto) -> Result<Chosen, Problem> {
    choose(config, auto, here())
}

/// How many GPUs of this host `auto` or `all` comes to, which is how many ranks it begins with; 0 where
/// they train on the CPU. *Blocks* as [`choose_here`].
#[must_use]
pub fn count_here(devices: &Devices, passes: PassesBy) -> u32 {
    count(devices, passes, here())
}

fn here() -> Host<impl Fn() -> u32, impl FnOnce() -> Inventory, impl FnOnce(&CudaList) -> Judged> {
    Host {
        trains: ON_GPUS,
        count: signs,
        inventory: Inventory::here,
        verdict: judged_once,
        program: OfProgram::here(can_compute_here),
        amd: AmdGpus::here(),
    }
}

/// How many GPUs of NVIDIA's there may be, as far as the file system tells: those that the driver lists or, where it hides that, those on the bus;
/// one where somebody names a folder of NVIDIA's libraries.
fn signs() -> u32 {
    let named = u32::from(std::env::var_os("DTRAIN_LIBRARY_PATH").is_some());
    match listed() {
        0 if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some_and(|list| list.is_empty()) => 0,
        0 => (on_the_bus().len() as u32).max(named),
        some => some,
    }
}

/// The verdict on these GPUs. A process asks once: a configuration is read for the number of ranks, and then for the devices.
fn judged_once(list: &CudaList) -> Judged {
    static JUDGED: Mutex<Option<(CudaList, Judged)>> = Mutex::new(None);
    let mut known = JUDGED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((of, judged)) if of == list => judged.clone(),
        _ => {
            let judged = verdict::of_gpus(list, Asking::Tests);
            *known = Some((list.clone(), judged.clone()));
            judged
        }
    }
}
