//! What the search depends on outside of the files themselves, as a value: so a test can make up another machine.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The variables that are read.
const VARIABLES: &[&str] = &[
    "DTRAIN_LIBRARY_PATH",
    "DTRAIN_LIBRARY_ONLY",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "PYENV_VERSION",
    "HOME",
    "PATH",
    "LD_LIBRARY_PATH",
];

/// Folders that distributions, containers and installers use.
const STANDARD: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/local/lib",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/lib64",
    "/opt/rocm/lib",
    // The Windows subsystem for Linux, and NixOS.
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// Variables, and the places that a system has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The variables that are set.
    pub variables: BTreeMap<&'static str, OsString>,
    /// The dynamic linker's list of libraries.
    pub linker_cache: PathBuf,
    /// Folders that are looked at last, in this order.
    pub standard: Vec<PathBuf>,
}

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn here() -> Self {
        let set = VARIABLES.iter().filter_map(|name| Some((*name, env::var_os(name)?)));
        Self {
            variables: set.filter(|(_, value)| !value.is_empty()).collect(),
            linker_cache: "/etc/ld.so.cache".into(),
            standard: STANDARD.iter().map(PathBuf::from).collect(),
        }
    }

    /// The value of a variable; nothing if it is empty.
    pub(crate) fn value(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(name).map(OsString::as_os_str)
    }

    /// The value of a variable as a path.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.value(name).map(PathBuf::from)
    }

    /// The paths of a variable that holds several. One that is empty means the current folder to the linker, and is
    /// left out here: a library is not taken from where somebody happens to stand.
    pub(crate) fn paths(&self, name: &str) -> Vec<PathBuf> {
        let value = self.value(name).unwrap_or_default();
        env::split_paths(value).filter(|path| !path.as_os_str().is_empty()).collect()
    }

    /// Whether only what is named for this program is looked at.
    pub(crate) fn only_named(&self) -> bool {
        self.value("DTRAIN_LIBRARY_ONLY").is_some_and(|value| value != "0")
    }
}
