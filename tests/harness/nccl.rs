//! Runs whose gradients go over the fake NCCL: where the library lies, and a rank that stands still inside a collective.

use super::Running;
use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A rank that does not come to its place for so long never does.
const PATIENCE: Duration = Duration::from_secs(120);

/// The fake library, which cargo builds as a dependency of these tests, beside them.
pub fn fake() -> PathBuf {
    std::env::current_exe().expect("this binary").with_file_name("libfake_nccl.so")
}

/// A copy of the fake library in whose table of symbols one function has another name, in a folder of its own.
pub fn without(function: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(fake()).expect("the fake library");
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "the library has no {function}");
    places.iter().for_each(|at| bytes[at + 1] = b'x');
    let own = folder.join(format!("without-{function}"));
    std::fs::create_dir_all(&own).expect("a folder");
    std::fs::write(own.join("libnccl.so.2"), bytes).expect("a temporary file");
    own
}

/// A place in a collective where one rank of a run stands still, once for each time that it is made anew.
pub struct Stand {
    pipe: PathBuf,
    said: std::sync::mpsc::Receiver<u32>,
}

impl Stand {
    /// Has the command's rank `rank` stand still in this group of calls.
    pub fn new(command: &mut Command, folder: &Path, rank: u32, group: u32) -> Self {
        let pipe = folder.join("stand");
        command.env("FAKE_NCCL_STAND", format!("{rank}:{group}:{}", pipe.display()));
        Self::at(pipe)
    }

    fn at(pipe: PathBuf) -> Self {
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("a named pipe");
        // Open for both, so that neither side waits for the other to open it.
        let ours = OpenOptions::new().read(true).write(true).open(&pipe).expect("the pipe");
        let (tell, said) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if BufReader::new(ours).read_line(&mut line).is_ok_and(|read| read > 0) {
                // Nobody may be waiting any more.
                let _ = tell.send(line.trim().parse().expect("a process id"));
            }
        });
        Self { pipe, said }
    }

    /// Waits until the rank stands there; its process.
    #[track_caller]
    pub fn wait(&self, running: &Running) -> u32 {
        match self.said.recv_timeout(PATIENCE) {
            Ok(pid) => pid,
            Err(_) => panic!("no rank stood still\n{}", running.story()),
        }
    }

    /// Once more, for whoever comes there next.
    pub fn again(&self) -> Self {
        Self::at(self.pipe.clone())
    }
}
