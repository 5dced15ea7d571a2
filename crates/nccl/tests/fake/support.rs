//! The fake library, communicators of a whole world, and this binary again as a child.

use crate::host_device::{HostDevice, HostSlots};
use dtrain_collective::{Assignment, Backend, Geometry, Reduce};
use dtrain_nccl::{Communicator, Forming, NcclBackend, NcclLibrary, NcclSetup, UniqueId, open};
use dtrain_oracle::conformance::membership;
use dtrain_types::{MicroRange, Rank, WorldSize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Longer than anything takes that ends at all: nothing in these tests waits so long.
pub const LONG: Duration = Duration::from_secs(60);

pub fn library_path() -> PathBuf {
    // Cargo builds it as a dependency of these tests, beside them.
    std::env::current_exe().expect("this binary").with_file_name("libfake_nccl.so")
}

pub fn library() -> NcclLibrary {
    open(&[library_path()]).expect("the fake library")
}

/// One communicator of a world; *blocks* until all have joined.
pub fn join(library: &NcclLibrary, id: &UniqueId, rank: usize, world: usize) -> Communicator {
    let forming = Forming::begin(library, id, Rank(rank as u32), WorldSize(world as u32));
    forming.and_then(|forming| forming.wait(LONG)).expect("all ranks come")
}

/// A communicator for each rank; no call blocks, so one thread begins them all.
pub fn communicators(world: usize) -> Vec<Communicator> {
    let library = library();
    let id = library.unique_id().expect("an id");
    let begin = |rank| Forming::begin(&library, &id, Rank(rank), WorldSize(world as u32)).expect("begun");
    let forming: Vec<Forming> = (0..world as u32).map(begin).collect();
    forming.into_iter().map(|forming| forming.wait(LONG).expect("all ranks come")).collect()
}

pub fn backend(
    communicator: Communicator,
    membership: Assignment,
    counts: &[u32],
    geometry: Geometry,
    mode: Reduce,
) -> NcclBackend<HostDevice> {
    of_setup(communicator, geometry, NcclSetup { membership, mode, counts, cuts: &[] })
}

fn of_setup(communicator: Communicator, geometry: Geometry, setup: NcclSetup<'_>) -> NcclBackend<HostDevice> {
    let device = HostDevice::new().expect("a thread for the stream");
    NcclBackend::new(device, HostSlots::new(geometry), communicator, setup).expect("a good setup")
}

/// One backend for each rank.
pub fn backends(
    ranges: &[MicroRange],
    counts: &[u32],
    len: usize,
    mode: Reduce,
) -> Vec<NcclBackend<HostDevice>> {
    backends_cut_at(ranges, counts, len, mode, &[])
}

/// The same, whose sums are cut at these elements.
pub fn backends_cut_at(
    ranges: &[MicroRange],
    counts: &[u32],
    len: usize,
    mode: Reduce,
    cuts: &[usize],
) -> Vec<NcclBackend<HostDevice>> {
    let geometry = Geometry::plan(len, ranges, counts, mode);
    let setup = |rank| NcclSetup { membership: membership(1, rank, ranges), mode, counts, cuts };
    let made = communicators(ranges.len()).into_iter().enumerate();
    made.map(|(rank, it)| of_setup(it, geometry, setup(rank))).collect()
}

/// This test binary again, doing what the test of this name does for children.
pub fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture"]).env("DTRAIN_TEST_CHILD", "1");
    command
}

pub fn is_child() -> bool {
    std::env::var_os("DTRAIN_TEST_CHILD").is_some()
}

/// Is used where a test has a whole world of backends and does not care which ones.
pub fn boxed(backends: Vec<NcclBackend<HostDevice>>) -> Vec<Box<dyn Backend>> {
    backends.into_iter().map(|backend| Box::new(backend) as Box<dyn Backend>).collect()
}
