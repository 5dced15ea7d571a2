//! What the tests that are shared with `fake_driver` ask for, on the GPU that is there.

#![allow(dead_code)]

use crate::machine::{Machine, device_on, fake_library, is_fake};
use crate::stand_in::Extent;
use crate::stand_in::build::compiler;
use dtrain_cuda::driver::Gpu;
use dtrain_cuda::{CudaDevice, Precision};
use libloading::Library;
use std::ffi::{CStr, c_char};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// The first GPU with its kernels, loaded once; nothing where there is none, which is said.
pub fn gpu() -> Option<Arc<Gpu>> {
    static GPU: OnceLock<Option<Arc<Gpu>>> = OnceLock::new();
    GPU.get_or_init(|| Machine::open().map(|machine| machine.gpu(0))).clone()
}

pub fn device() -> Option<Arc<CudaDevice>> {
    device_in(Precision::F32)
}

pub fn device_in(precision: Precision) -> Option<Arc<CudaDevice>> {
    gpu().map(|gpu| Arc::new(device_on(&gpu, precision)))
}

/// How much of a check there is time for: a fake GPU is slow.
pub fn extent() -> Extent {
    if is_fake() { Extent::Small } else { Extent::Whole }
}

/// The fake driver's own functions; a real one has nothing to say.
pub struct Fake(Option<Library>);

impl Fake {
    pub fn new() -> Self {
        let path = is_fake().then(fake_library).flatten();
        // SAFETY: it has no initialisers of its own.
        Self(path.map(|path| unsafe { Library::new(path) }.expect("the fake driver")))
    }

    /// What a driver would not have noticed.
    pub fn wrong(&self) -> String {
        let Some(library) = &self.0 else { return String::new() };
        // SAFETY: the type is that of the fake's `control.rs`; the text is never freed.
        unsafe {
            let wrong = library.get::<unsafe extern "C" fn() -> *const c_char>(b"fakeCudaWrong\0");
            CStr::from_ptr(wrong.expect("it is there")()).to_string_lossy().into_owned()
        }
    }
}

/// Runs the tests of this binary that these arguments leave on the fake driver, so that what only a GPU can show is known to come to its end. Nothing where it
/// was not built, as on the machine that the binary was carried to.
pub fn runs_on_the_fake(arguments: &[&str]) {
    if is_fake() || fake_library().is_none() || compiler().is_none() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(arguments).arg("--nocapture");
    // Streams that work only when they are waited for: a wait that is missing between two of them is seen each time.
    command.envs([("DTRAIN_FAKE_CUDA", "1"), ("FAKE_CUDA_LAZY", "1")]);
    let output = command.output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" passed; 0 failed") && !said.contains("skipped: "), "{said}");
}
