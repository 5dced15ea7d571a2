//! How many devices this host has, for `--nproc auto`. Asks no driver library: a count is in the file system.

use super::amd::AmdGpus;
use dtrain_locate::visible;
use std::path::Path;

/// Where NVIDIA's driver lists its GPUs, a folder each.
const NVIDIA: &str = "/proc/driver/nvidia/gpus";

/// Devices that a program started here would see, whoever made them: NVIDIA's or, where it would see none of those, AMD's.
pub fn seen_by_programs() -> u32 {
    match listed() {
        0 => AmdGpus::here().count(),
        some => some,
    }
}

/// Where to look if a program sees no device: the variables that may hide the GPUs of this host.
pub fn hidden_by() -> &'static str {
    match AmdGpus::here() {
        amd if amd.all.is_empty() => "CUDA_VISIBLE_DEVICES",
        amd => amd.narrowings.last().map_or("ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES", |by| by.variable),
    }
}

/// Devices of NVIDIA's that a program started here would see: GPUs, and slices of them.
pub fn listed() -> u32 {
    let there = std::fs::read_dir(Path::new(NVIDIA)).map_or(0, |entries| entries.flatten().count());
    let list = std::env::var_os("CUDA_VISIBLE_DEVICES");
    // Their names are the driver's to tell.
    let left = visible(&vec![None; there], list.as_deref()).devices.len();
    u32::try_from(left).unwrap_or(u32::MAX)
}
