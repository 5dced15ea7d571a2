//! What the system allows: memory, open files, locked memory, `/dev/shm`. None of these alone keeps training from
//! working; each has cost somebody an evening.

use super::check::Check;
use crate::report::bytes;
use rustix::process::{Resource, Rlimit, getrlimit};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// With less a small model trains, and little else. *Units*: bytes.
const LEAST_MEMORY: u64 = 1 << 30;
/// A rank needs half a dozen, the supervisor as many a rank, a data set with many files more.
const LEAST_FILES: u64 = 1024;
/// What a container has unless it is told otherwise is 64 MiB; NCCL and data loaders of PyTorch need more.
const LEAST_SHM: u64 = 256 << 20;

pub(super) fn checks() -> Vec<Check> {
    vec![memory(), files(), locked(), shm()]
}

/// A line of the kernel's table of memory. *Units*: bytes.
fn of_memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Memory that a program may still take, if the system tells. *Units*: bytes.
pub(crate) fn free_memory() -> Option<u64> {
    of_memory("MemAvailable").map(|free| memory_limit().map_or(free, |limit| limit.min(free)))
}

fn memory() -> Check {
    let (total, available) = (of_memory("MemTotal"), of_memory("MemAvailable"));
    let limit = memory_limit().filter(|limit| total.is_none_or(|total| *limit < total));
    let details = json!({"total": total, "available": available, "cgroup_limit": limit});
    let (Some(total), Some(available)) = (total, available) else {
        return Check::warn("memory", "/proc/meminfo does not tell").details(details);
    };
    let mut found = format!("{} of {} free", bytes(available), bytes(total));
    if let Some(limit) = limit {
        found += &format!(", the control group allows {}", bytes(limit));
    }
    let check = match limit.map_or(available, |limit| limit.min(available)) < LEAST_MEMORY {
        true => Check::warn("memory", found).hint(
            "`dtrain plan` shows what a rank needs; a rank that the kernel kills for it is named as such",
        ),
        false => Check::ok("memory", found),
    };
    check.details(details)
}

/// The smallest limit of the control groups around this process.
fn memory_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let groups = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => Some(("/sys/fs/cgroup", "memory.max", path)),
            "memory" => Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path)),
            _ => None,
        }
    });
    groups.filter_map(|(root, file, path)| least(Path::new(root), file, path)).min()
}

fn least(root: &Path, file: &str, path: &str) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    let around = group.ancestors().take_while(|folder| folder.starts_with(root)).map(PathBuf::from);
    around.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()).min()
}

fn shown(limit: Option<u64>, unit: impl Fn(u64) -> String) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), unit)
}

fn files() -> Check {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let found =
        format!("{} ({} at most)", shown(current, |n| n.to_string()), shown(maximum, |n| n.to_string()));
    let check = match current.is_some_and(|allowed| allowed < LEAST_FILES) {
        true => Check::warn("open files", found).hint(format!("`ulimit -n {LEAST_FILES}` in this shell")),
        false => Check::ok("open files", found),
    };
    check.details(json!({"current": current, "most": maximum}))
}

fn locked() -> Check {
    let allowed = getrlimit(Resource::Memlock).current;
    let adapters = fs::read_dir("/sys/class/infiniband").map_or(0, |all| all.flatten().count());
    let found = shown(allowed, bytes);
    let check = match allowed.is_some() && adapters > 0 {
        true => Check::warn("locked memory", found).hint(
            "the network adapters here (InfiniBand, RoCE) register memory: `ulimit -l unlimited`, or in a container \
             `--ulimit memlock=-1`",
        ),
        false => Check::ok("locked memory", found),
    };
    check.details(json!({"limit": allowed, "rdma_adapters": adapters}))
}

fn shm() -> Check {
    let Ok(stat) = rustix::fs::statvfs("/dev/shm") else {
        return Check::warn("/dev/shm", "there is none")
            .hint("dtrain does not need it; NCCL and PyTorch's data loaders do");
    };
    let (total, free) = (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize);
    let found = format!("{} of {} free", bytes(free), bytes(total));
    let check = match free < LEAST_SHM {
        true => Check::warn("/dev/shm", found).hint(
            "dtrain does not need it, but NCCL and PyTorch's data loaders do: start the container with `--shm-size=1g`",
        ),
        false => Check::ok("/dev/shm", found),
    };
    check.details(json!({"total": total, "free": free}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_around_a_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("slice/job");
        fs::create_dir_all(&group).unwrap();
        let write =
            |below: &str, text: &str| fs::write(root.path().join(below).join("memory.max"), text).unwrap();
        assert_eq!(least(root.path(), "memory.max", "/slice/job"), None);
        write("slice", "2147483648\n");
        write("slice/job", "max\n");
        assert_eq!(least(root.path(), "memory.max", "/slice/job"), Some(2 << 30));
        write("slice/job", "1073741824\n");
        assert_eq!(least(root.path(), "memory.max", "/slice/job"), Some(1 << 30));
    }
}
