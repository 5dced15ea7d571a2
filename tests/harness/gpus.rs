//! A machine with GPUs, where there are none: on the driver and the compiler of `crates/fake-cuda`, which are laid where a user's
//! libraries would be found.

use super::files::npy;
use super::{Finished, dtrain, finish, folder};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder to run in, and the libraries of a machine with two GPUs.
pub struct Host {
    folder: TempDir,
    libraries: TempDir,
}

impl Host {
    /// `None`, and a word, without a C++ compiler: the fake compiler needs one.
    pub fn new() -> Option<Self> {
        let works =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
        if !["c++", "g++", "clang++"].iter().any(works) {
            eprintln!("skipped: there is no C++ compiler");
            return None;
        }
        let libraries = tempfile::tempdir().expect("a temporary place");
        // Cargo builds it as a dependency of these tests, beside them.
        let fake = std::env::current_exe().expect("a temporary place").with_file_name("libfake_cuda.so");
        for name in ["libcuda.so.1", "libnvrtc.so.13"] {
            symlink(&fake, libraries.path().join(name)).expect("a temporary place");
        }
        Some(Self { folder: folder(), libraries })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Lays 80 sequences of 9 places with 3 channels there, of 4 classes; the settings that train on them.
    pub fn sequences(&self) -> &'static str {
        let values: Vec<u8> = (0..80 * 27).map(|i| (i * 37 % 251) as u8).collect();
        let classes: Vec<u8> = (0..80).map(|i: u8| i % 5 % 4).collect();
        for (name, bytes) in
            [("x.npy", npy("|u1", &[80, 3, 9], &values)), ("y.npy", npy("|u1", &[80], &classes))]
        {
            std::fs::write(self.path().join(name), bytes).expect("an array");
        }
        "data.kind=npy data.inputs=x.npy data.targets=y.npy"
    }

    pub fn equip(&self, mut command: Command) -> Command {
        command.env("DTRAIN_LIBRARY_PATH", self.libraries.path()).env("DTRAIN_LIBRARY_ONLY", "1");
        // Compiled once for all tests and runs, as a user's are.
        command.env("XDG_CACHE_HOME", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda"));
        command.env("FAKE_NCCL_DRIVER", self.libraries.path().join("libcuda.so.1"));
        for name in ["CUDA_VISIBLE_DEVICES", "FAKE_NCCL_VERSION", "FAKE_NCCL_STAND", "NCCL_DEBUG"] {
            command.env_remove(name);
        }
        command
    }

    /// Where the driver is.
    pub fn driver(&self) -> PathBuf {
        self.libraries.path().join("libcuda.so.1")
    }

    /// Lays a library beside the driver.
    pub fn lay(&self, name: &str, library: &Path) {
        symlink(library, self.libraries.path().join(name)).expect("a link");
    }

    /// Lays a library of NCCL beside the driver, one that puts its work on the streams of that driver.
    pub fn with_nccl(self) -> Self {
        self.lay("libnccl.so.2", &super::nccl::fake());
        self
    }

    pub fn command(&self, settings: &str) -> Command {
        self.equip(dtrain(self.path(), &format!("train --json {settings}")))
    }

    /// Training over NCCL on so many GPUs, each for a rank of its own.
    pub fn on_gpus(&self, gpus: u32, settings: &str) -> Command {
        let list: Vec<String> = (0..gpus).map(|gpu| gpu.to_string()).collect();
        let devices = format!("devices=cuda:{} ranks={gpus} backend=nccl", list.join(","));
        let mut command = self.command(&format!("{settings} {devices}"));
        command.env("FAKE_CUDA_DEVICES", gpus.to_string());
        command
    }

    pub fn train(&self, settings: &str) -> Finished {
        finish(self.command(settings))
    }

    /// Trains with a variable of the fake driver.
    pub fn hurt(&self, variable: &str, value: &str, settings: &str) -> Finished {
        let mut command = self.command(settings);
        command.env(variable, value);
        finish(command)
    }
}
