//! The fake driver, a device on it, and this binary again as a child.

use crate::stand_in::build::compiler;
use dtrain_cuda::driver::{Driver, Gpu, KernelCache};
use dtrain_cuda::nvrtc::Nvrtc;
use dtrain_cuda::{CudaDevice, Precision};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Cargo builds it as a dependency of these tests, beside them.
pub fn library_path() -> PathBuf {
    std::env::current_exe().expect("this binary").with_file_name("libfake_cuda.so")
}

pub fn driver() -> Driver {
    Driver::open(Some(&library_path())).expect("the fake driver")
}

/// The fake compiler: it is in the same library.
pub fn nvrtc() -> Nvrtc {
    Nvrtc::load(&library_path()).expect("the fake compiler")
}

/// Kernels that were built are kept from run to run, as a user's are.
pub fn cache() -> KernelCache {
    KernelCache::at(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-cuda-kernels"))
}

/// A device of this process with its kernels, loaded once; nothing without a C++ compiler.
pub fn gpu() -> Option<Arc<Gpu>> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    compiler()?;
    let open = || Gpu::open(&driver(), 0, &nvrtc(), &cache()).unwrap_or_else(|error| panic!("{error}")).0;
    Some(GPU.get_or_init(open).clone())
}

pub fn device() -> Option<Arc<CudaDevice>> {
    device_in(Precision::F32)
}

pub fn device_in(precision: Precision) -> Option<Arc<CudaDevice>> {
    gpu().map(|gpu| Arc::new(CudaDevice::new(&gpu, precision).expect("a stream and its workspace")))
}

/// The fake's own functions.
pub struct Fake(Library);

impl Fake {
    pub fn new() -> Self {
        // SAFETY: it has no initialisers of its own.
        Self(unsafe { Library::new(library_path()) }.expect("the fake driver"))
    }

    pub fn calls(&self, function: &str) -> u64 {
        let function = CString::new(function).expect("a name");
        // SAFETY: the type is that of the fake's `control.rs`; the name ends with NUL.
        unsafe {
            let calls = self.0.get::<unsafe extern "C" fn(*const c_char) -> u64>(b"fakeCudaCalls\0");
            calls.expect("it is there")(function.as_ptr())
        }
    }

    /// Calls that hand out or take back memory.
    pub fn memory_calls(&self) -> u64 {
        ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost"]
            .iter()
            .map(|name| self.calls(name))
            .sum()
    }

    /// Makes streams lazy that are created while the guard lives. One test at a time.
    pub fn lazy(&self) -> Lazy<'_> {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_lazy(1);
        Lazy { fake: self, _one: one }
    }

    fn set_lazy(&self, lazy: c_int) {
        // SAFETY: the type is that of the fake's `control.rs`.
        unsafe { self.0.get::<extern "C" fn(c_int)>(b"fakeCudaLazy\0").expect("it is there")(lazy) };
    }

    pub fn alive(&self) -> u64 {
        // SAFETY: the type is that of the fake's `control.rs`.
        unsafe { self.0.get::<extern "C" fn() -> u64>(b"fakeCudaAlive\0").expect("it is there")() }
    }

    /// What a driver would not have noticed.
    pub fn wrong(&self) -> String {
        // SAFETY: the type is that of the fake's `control.rs`; the text is never freed.
        unsafe {
            let wrong = self.0.get::<extern "C" fn() -> *const c_char>(b"fakeCudaWrong\0");
            CStr::from_ptr(wrong.expect("it is there")()).to_string_lossy().into_owned()
        }
    }
}

pub struct Lazy<'f> {
    fake: &'f Fake,
    _one: MutexGuard<'static, ()>,
}

impl Drop for Lazy<'_> {
    fn drop(&mut self) {
        self.fake.set_lazy(0);
    }
}

/// This test binary again, doing what the test of this name does for children, with variables for the fake driver.
pub fn child(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("DTRAIN_TEST_CHILD", "1");
    let output = command.envs(variables.iter().copied()).output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    said
}

pub fn is_child() -> bool {
    std::env::var_os("DTRAIN_TEST_CHILD").is_some()
}
