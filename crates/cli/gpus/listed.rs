//! How many devices this host has, for `--nproc auto`. Asks no driver library: a count is in the file system.

use dtrain_locate::visible;
use std::path::Path;

/// Where NVIDIA's driver lists its GPUs, a folder each.
const NVIDIA: &str = "/proc/driver/nvidia/gpus";

/// Devices that a program started here would see: GPUs, and slices of them.
pub fn listed() -> u32 {
    let there = std::fs::read_dir(Path::new(NVIDIA)).map_or(0, |entries| entries.flatten().count());
    let list = std::env::var_os("CUDA_VISIBLE_DEVICES");
    // Their names are the driver's to tell.
    let left = visible(&vec![None; there], list.as_deref()).devices.len();
    u32::try_from(left).unwrap_or(u32::MAX)
}
