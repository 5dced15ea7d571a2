//! A run of `dtrain run` in a folder of its own, judged from outside: by files, pids and exit codes.

use crate::harness::{children, dtrain};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What does not happen for so long never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes the pid of this rank, of a child of it, and of one that has left its session and its parent; then stays.
pub const FAMILY: &str = "sleep 1000 & echo $! > child.$RANK.part; mv child.$RANK.part child.$RANK
    (setsid sh -c 'echo $$ > far.$RANK.part; mv far.$RANK.part far.$RANK; exec sleep 1000' &)
    while [ ! -e far.$RANK ]; do sleep 0.01; done
    echo $$ > pid.$RANK.part; mv pid.$RANK.part pid.$RANK; ";

pub const ENDS_WHEN_TOLD: &str =
    "echo $$ > part.$RANK; mv part.$RANK pid.$RANK; while [ ! -e end.$RANK ]; do sleep 0.01; done; exit 3";

/// A run in a folder of its own. Its scripts write there, and so do its two streams.
pub struct Job {
    pub folder: TempDir,
    pub child: Child,
}

impl Job {
    /// `sh -c SCRIPT` on each rank.
    pub fn start(flags: &str, script: &str) -> Self {
        Self::with(flags, &["--", "sh", "-c", script], &[])
    }

    pub fn with(flags: &str, words: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::within(tempfile::tempdir().unwrap(), flags, words, variables)
    }

    pub fn within(folder: TempDir, flags: &str, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let stream = |name| Stdio::from(fs::File::create(folder.path().join(name)).unwrap());
        let mut command = dtrain(folder.path(), &format!("run {flags}"));
        for name in [
            "OMP_NUM_THREADS",
            "MASTER_ADDR",
            "MASTER_PORT",
            "CUDA_VISIBLE_DEVICES",
            "PYTHONUNBUFFERED",
            "DTRAIN_TOKEN",
            "DTRAIN_TOKEN_FILE",
        ] {
            command.env_remove(name);
        }
        command.args(words).envs(variables.iter().copied());
        let child = command.stdout(stream("stdout")).stderr(stream("stderr")).spawn().unwrap();
        Self { folder, child }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// What `condition` gives once it gives something.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = condition() {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} never came\n{}", self.read("stderr"));
            std::thread::yield_now();
        }
    }

    /// The number in a file that a script has written.
    #[track_caller]
    pub fn number(&self, name: &str) -> u32 {
        self.wait_for(name, || self.read(name).trim().parse().ok())
    }

    #[track_caller]
    pub fn wait_for_words(&self, words: &str) {
        self.wait_for(words, || self.read("stderr").contains(words).then_some(()));
    }

    pub fn guard(&self) -> u32 {
        self.child.id()
    }

    pub fn supervisor(&self) -> u32 {
        self.wait_for("the supervisor", || children(self.guard()).first().copied())
    }

    /// The pids that `FAMILY` wrote for these ranks, and that of the supervisor.
    pub fn family(&self, ranks: u32) -> Vec<u32> {
        let own = (0..ranks).flat_map(|rank| ["pid", "child", "far"].map(|who| format!("{who}.{rank}")));
        own.map(|name| self.number(&name)).chain([self.supervisor()]).collect()
    }

    /// The exit code, once it has ended.
    #[track_caller]
    pub fn code(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end\n{}", self.read("stderr"));
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub fn ends_with(&mut self, code: i32) -> String {
        let ended = self.code();
        let words = self.read("stderr");
        assert_eq!(ended, Some(code), "{words}");
        assert!(!words.contains("panicked"), "{words}");
        words
    }

    /// The line that names the first cause.
    #[track_caller]
    pub fn first_causes(&self) -> Vec<String> {
        let words = self.read("stderr");
        words.lines().filter_map(|line| Some(line.split_once("first cause: ")?.1.to_owned())).collect()
    }

    /// The variables of a rank, from a file that `env` wrote.
    pub fn variables(&self, name: &str) -> BTreeMap<String, String> {
        let text = self.read(name);
        text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
