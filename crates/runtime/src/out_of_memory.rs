//! How often the kernel has killed a process of our control group for want of memory.
//!
//! A process that was killed this way ends by the same signal as one that a person killed; only the group's counter
//! tells the two apart. Does not know which process it was.

use std::path::{Path, PathBuf};

/// The counter of this process's control group.
#[derive(Debug)]
pub struct Kills {
    file: Option<PathBuf>,
    seen: u64,
}

impl Kills {
    /// Begins to watch; without a readable counter nothing is ever new.
    #[must_use]
    pub fn watch() -> Self {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let file = candidates(&groups).into_iter().find(|file| count(file).is_some());
        let seen = file.as_deref().and_then(count).unwrap_or(0);
        Self { file, seen }
    }

    /// Whether the kernel has killed one since the last call.
    pub fn is_new(&mut self) -> bool {
        let now = self.file.as_deref().and_then(count).unwrap_or(self.seen);
        let new = now > self.seen;
        self.seen = now;
        new
    }
}

/// Where the counter of a process in these groups may be: one hierarchy (v2), or one of memory's own (v1).
fn candidates(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let group = group.trim_start_matches('/');
        if controllers.is_empty() {
            files.push(Path::new("/sys/fs/cgroup").join(group).join("memory.events"));
        } else if controllers.split(',').any(|name| name == "memory") {
            files.push(Path::new("/sys/fs/cgroup/memory").join(group).join("memory.oom_control"));
            files.push(PathBuf::from("/sys/fs/cgroup/memory/memory.oom_control"));
        }
    }
    files
}

fn count(file: &Path) -> Option<u64> {
    parse(&std::fs::read_to_string(file).ok()?)
}

/// The number in the line `oom_kill N`, which both versions have.
fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_the_counter_are_found_and_read() {
        let v1 = "4:memory:/a/b\n0::/\n";
        assert_eq!(candidates(v1)[0], PathBuf::from("/sys/fs/cgroup/memory/a/b/memory.oom_control"));
        assert_eq!(candidates("0::/x\n"), [PathBuf::from("/sys/fs/cgroup/x/memory.events")]);
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(parse("low 0\nhigh 0\nmax 2\noom 1\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn a_kill_is_new_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "oom_kill 1\n").expect("writes");
        let mut kills = Kills { file: Some(file.path().into()), seen: 0 };
        assert!(kills.is_new() && !kills.is_new());
    }
}
