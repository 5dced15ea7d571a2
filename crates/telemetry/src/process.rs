//! Readings of processes from `/proc`: peak memory, processor time per thread, the host's name.
//!
//! It does not know which process is which rank.

use crate::TelemetryError;
use dtrain_types::Bytes;
use std::fs;
use std::io;
use std::time::Duration;

/// Length of a clock tick in `/proc`. *Units*: nanoseconds. Linux reports 100 ticks a second on every platform here.
const TICK_NANOS: u64 = 10_000_000;

/// How long one thread has computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    /// The thread's id.
    pub thread: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its processor time, in user and system mode.
    pub cpu: Duration,
}

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

/// The processor time of each thread of a process, by thread id.
///
/// *Errors*: the process has ended. A thread that ends meanwhile is left out.
pub fn thread_times(pid: u32) -> Result<Vec<ThreadTime>, TelemetryError> {
    let failed = |source| TelemetryError::Process { what: "threads", pid, source };
    let mut times = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        let folder = entry.map_err(failed)?.path();
        let thread = folder.file_name().and_then(|name| name.to_str()?.parse().ok());
        let cpu = fs::read_to_string(folder.join("schedstat"))
            .ok()
            .and_then(|text| from_schedstat(&text))
            .or_else(|| from_stat(&fs::read_to_string(folder.join("stat")).ok()?));
        let name = fs::read_to_string(folder.join("comm"));
        if let (Some(thread), Some(cpu), Ok(name)) = (thread, cpu, name) {
            times.push(ThreadTime { thread, name: name.trim_end().to_owned(), cpu });
        }
    }
    times.sort_unstable_by_key(|time| time.thread);
    Ok(times)
}

/// The name of this host.
#[must_use]
pub fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// Nanoseconds on a processor. Kernels without scheduler statistics have the file, but with zeros.
fn from_schedstat(text: &str) -> Option<Duration> {
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    if nanos == 0 { None } else { Some(Duration::from_nanos(nanos)) }
}

/// Ticks in user and system mode: fields 14 and 15, counted from 1. Field 2 is the name in parentheses and may hold
/// spaces, so counting starts after the last one.
fn from_stat(text: &str) -> Option<Duration> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_nanos((user + system) * TICK_NANOS))
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
    fn this_thread_is_among_the_threads() {
        let name = "reading-test";
        let seen =
            std::thread::Builder::new().name(name.into()).spawn(|| thread_times(std::process::id()).unwrap());
        let times = seen.unwrap().join().unwrap();
        assert!(times.iter().any(|time| time.name == name), "{times:?}");
        assert!(times.is_sorted_by_key(|time| time.thread));
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
        assert!(thread_times(pid).is_err());
    }

    #[test]
    fn both_files_of_the_system_are_understood() {
        assert_eq!(from_schedstat("123456789 5 7\n"), Some(Duration::from_nanos(123_456_789)));
        assert_eq!(from_schedstat("0 0 0\n"), None);
        let stat = "42 (a ) name) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 9 9 9";
        assert_eq!(from_stat(stat), Some(Duration::from_secs(2)));
        assert_eq!(from_stat("42 (cut"), None);
    }
}
