//! Readings of processes from `/proc`: peak memory, the host's name.
//!
//! It does not know which process is which rank.

use crate::TelemetryError;
use dtrain_types::Bytes;
use std::fs;
use std::io;

/// The most physical memory that a process has had.
///
/// *Errors*: the process has ended, or the system does not tell.
pub fn peak_rss(pid: u32) -> Result<Bytes, TelemetryError> {
    let failed = |source| TelemetryError::Process { what: "peak memory", pid, source };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(failed)?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    // A process that has exited and was not waited for has a status without memory.
    let kib: u64 = kib.ok_or_else(|| failed(io::Error::other("its status has no VmHWM")))?;
    Ok(Bytes(kib * 1024))
}

/// The name of this host.
#[must_use]
pub fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_grows_when_memory_is_touched() {
        let pid = std::process::id();
        let before = peak_rss(pid).unwrap();
        // Touched page by page, so that it is really there.
        let mut block = vec![0u8; 64 << 20];
        block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        let after = peak_rss(pid).unwrap();
        assert_eq!(block.iter().map(|byte| u64::from(*byte)).sum::<u64>(), (64 << 20) / 4096);
        assert!(after.0 >= before.0.max(64 << 20), "{before} then {after}");
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error_with_its_number() {
        let pid = u32::MAX - 1;
        assert!(
            peak_rss(pid)
                .unwrap_err()
                .to_string()
                .starts_with("cannot read peak memory of process 4294967294")
        );
    }
}
