//! Ranks over NCCL, threads of one process, which may share a GPU.
//!
//! A driver frees memory behind all work of a GPU. A rank that frees would wait there for a peer on its own GPU, whose collective
//! waits for it. So all ranks meet, and plan their sums, before the first of them begins a collective, and all have done their last
//! one before the first of them ends. In between nobody may free memory.

use dtrain_collective::Geometry;
use dtrain_cuda::collectives::{GpuSlots, NcclDevice};
use dtrain_cuda::driver::{Gpu, Stream};
use dtrain_nccl::{Device, Forming, NcclBackend, NcclError, NcclLibrary, NcclSetup, UniqueId, open};
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for one another, and for the library at the end.
const MEETING: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(10);

/// The library that `DTRAIN_NCCL` names, or that the dynamic linker finds. *Errors*: none can be used.
#[allow(dead_code)]
pub fn library() -> Result<NcclLibrary, NcclError> {
    match std::env::var_os("DTRAIN_NCCL") {
        Some(path) => open(&[path.into()]),
        None => open(&["libnccl.so.2".into(), "librccl.so.1".into()]),
    }
}

/// Meets the other ranks, with slots that another stream fills, or nobody. *Blocks* until they are all there.
///
/// *Panics* with the words of whatever fails.
pub fn meet(
    gpu: &Arc<Gpu>,
    (library, id): (&NcclLibrary, &UniqueId),
    setup: NcclSetup<'_>,
    geometry: Geometry,
    filled_on: Option<&Arc<Stream>>,
) -> NcclBackend<NcclDevice> {
    let device = NcclDevice::new(gpu).unwrap_or_else(|error| panic!("{error}"));
    let slots = GpuSlots::new(device.communication(), geometry);
    let slots = slots.and_then(|slots| match filled_on {
        Some(stream) => slots.filled_on(stream),
        None => Ok(slots),
    });
    let slots = slots.unwrap_or_else(|error| panic!("{error}"));
    device.enter().expect("a device that works");
    let forming = Forming::begin(library, id, setup.membership.rank, setup.membership.world());
    let communicator = forming.and_then(|forming| forming.wait(MEETING));
    let communicator = communicator.unwrap_or_else(|error| panic!("{error}"));
    NcclBackend::new(device, slots, communicator, setup).unwrap_or_else(|error| panic!("{error}"))
}

/// Ends a communicator in which nothing has failed. *Blocks* for the other ranks. *Panics* as [`meet`].
pub fn end(backend: NcclBackend<NcclDevice>) {
    let parts = backend.dissolve(END).unwrap_or_else(|error| panic!("{error}"));
    let communicator = parts.communicator.expect("nothing has failed");
    communicator.finalize(END).unwrap_or_else(|error| panic!("{error}"));
}

/// Runs each as a thread. *Blocks* until all are done: nobody is ahead of the others. *Panics* if one does.
pub fn together<T: Send, U: Send>(all: impl IntoIterator<Item = T>, run: impl Fn(T) -> U + Sync) -> Vec<U> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || run(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}
