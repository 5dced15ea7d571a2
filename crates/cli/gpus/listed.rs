//! How many devices this host has, for `--nproc auto`. Asks no driver library: a count is in the file system.

use std::ffi::OsStr;
use std::path::Path;

/// Where NVIDIA's driver lists its GPUs, a folder each.
const NVIDIA: &str = "/proc/driver/nvidia/gpus";

/// GPUs that a program started here would see.
pub fn listed() -> u32 {
    let there = std::fs::read_dir(Path::new(NVIDIA)).map_or(0, |entries| entries.flatten().count());
    visible(there, std::env::var_os("CUDA_VISIBLE_DEVICES").as_deref())
}

/// How many of the GPUs that are there `CUDA_VISIBLE_DEVICES` leaves.
///
/// *Source*: CUDA programming guide, environment variables: the list ends at the first entry that names no device.
fn visible(there: usize, wanted: Option<&OsStr>) -> u32 {
    let left = match wanted.map(OsStr::to_string_lossy) {
        None => there,
        Some(list) => {
            let names_one = |entry: &&str| match entry.trim().parse::<i64>() {
                Ok(index) => usize::try_from(index).is_ok_and(|index| index < there),
                Err(_) => ["GPU-", "MIG-"].iter().any(|kind| entry.trim().starts_with(kind)),
            };
            let named = list.split(',').take_while(names_one).count();
            // Without a GPU a name names nothing. A MIG slice has a name, and there may be more slices than GPUs.
            if there == 0 { 0 } else { named }
        }
    };
    u32::try_from(left).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn the_list_of_visible_devices_ends_at_the_first_that_is_none() {
        for (there, list, expected) in [
            (4, None, 4),
            (4, Some(""), 0),
            (4, Some("0,2"), 2),
            (4, Some("-1"), 0),
            (4, Some("1,-1,2"), 1),
            (4, Some("0,9,1"), 1),
            (4, Some("NoDevFiles"), 0),
            (4, Some("GPU-8932f937,GPU-12"), 2),
            (1, Some("MIG-a,MIG-b,MIG-c"), 3),
            (0, Some("0,1"), 0),
            (0, Some("GPU-1"), 0),
        ] {
            assert_eq!(visible(there, list.map(std::ffi::OsStr::new)), expected, "{there} {list:?}");
        }
    }
}
