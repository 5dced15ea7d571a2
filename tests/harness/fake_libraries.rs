//! Made-up NVIDIA libraries for tests: small shared objects in C that answer as the real ones do.
//!
//! rustc links with `cc`, so where tests are built there is one. A test that finds none says so and passes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds shared objects in a folder.
pub struct Workshop {
    compiler: PathBuf,
    folder: tempfile::TempDir,
}

impl Workshop {
    /// A workshop, or `None` and a word on standard error where there is no C compiler.
    pub fn open() -> Option<Self> {
        let compiler = std::env::var_os("CC").map_or_else(|| PathBuf::from("cc"), PathBuf::from);
        let works =
            Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success());
        if !works {
            eprintln!("skipped: there is no C compiler ({})", compiler.display());
            return None;
        }
        Some(Self { compiler, folder: tempfile::tempdir().expect("a temporary folder") })
    }

    /// Where it all lies, links resolved.
    pub fn root(&self) -> PathBuf {
        std::fs::canonicalize(self.folder.path()).expect("the folder is there")
    }

    /// Builds `file` (below the folder) from C; its path.
    pub fn build(&self, file: &str, source: &str) -> PathBuf {
        self.build_needing(file, source, &[])
    }

    /// Builds `file` so that it needs other libraries, which the linker looks for by their bare names.
    pub fn build_needing(&self, file: &str, source: &str, needed: &[&Path]) -> PathBuf {
        let path = self.root().join(file);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        let code = path.with_extension("c");
        std::fs::write(&code, source).expect("the source can be written");
        let name = path.file_name().expect("a file has a name").to_str().expect("in UTF-8");
        // `libnccl.so.2.32.3` is known to the linker as `libnccl.so.2`, as the real ones are.
        let soname = name.split_inclusive('.').take(3).collect::<String>();
        let mut command = Command::new(&self.compiler);
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(&code).args(needed);
        command.arg(format!("-Wl,-soname,{}", soname.trim_end_matches('.')));
        let output = command.output().expect("the compiler starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_file(code).expect("the source was written");
        path
    }
}

/// `int FUNCTION(int *v)` that gives `number`.
pub fn gives(function: &str, number: i64) -> String {
    format!("int {function}(int *v) {{ *v = {number}; return 0; }}\n")
}

/// `size_t FUNCTION(void)` that returns `number`.
pub fn returns(function: &str, number: u64) -> String {
    format!("unsigned long {function}(void) {{ return {number}; }}\n")
}

/// A healthy library of each kind in `folder`, as a machine of CUDA 13.0 has them; the path of the folder.
pub fn complete(workshop: &Workshop, folder: &str) -> PathBuf {
    let at = |file: &str| format!("{folder}/{file}");
    workshop.build(&at("libcuda.so.1"), &gives("cuDriverGetVersion", 13000));
    workshop.build(&at("libnvrtc.so.13"), "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }");
    workshop.build(&at("libcublasLt.so.13"), &returns("cublasLtGetVersion", 130_002));
    workshop.build(&at("libcudnn.so.9"), &returns("cudnnGetVersion", 91_300));
    workshop.build(&at("libnccl.so.2"), &gives("ncclGetVersion", 23203));
    workshop.build(&at("libnvidia-ml.so.1"), FAKE_NVML);
    workshop.root().join(folder)
}

/// NVML of a machine with two GPUs. `FAKE_GPUS` changes how many there are.
pub const FAKE_NVML: &str = include_str!("fake_nvml.c");
