//! How the stand-ins are tried: opened beside the test, in processes of their own, on streams of the fake driver, with numbers that
//! are made up.

use libloading::Library;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the test for which a process was started.
const ALONE: &str = "FAKE_TEST_ALONE";

/// The path of a library that cargo builds beside this test.
pub fn beside(name: &str) -> PathBuf {
    std::env::current_exe().expect("this binary").with_file_name(name)
}

/// Opens a library of this workspace.
///
/// *Panics* if it is not there.
pub fn open(path: &Path) -> Library {
    // SAFETY: the libraries of this workspace run no code when they are opened.
    unsafe { Library::new(path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a test again in a process of its own, with these variables; nothing in that process itself.
///
/// *Panics* if the test fails there, or is none.
pub fn in_a_process(test: &str, variables: &[(&str, &str)], work: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return work();
    }
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture"]).env(ALONE, test);
    let output = command.envs(variables.iter().copied()).output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "there is no test {test}: {said}");
}

/// Numbers about zero that are never the same.
pub fn about_zero(seed: u32) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

/// The fake driver's functions that a stream takes.
pub struct Streams(Library);

impl Streams {
    /// Those of the driver at this path.
    pub fn of(driver: &Path) -> Self {
        Self(open(driver))
    }

    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller names the type that cuda.h has.
        unsafe { *self.0.get::<F>(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")) }
    }

    /// A stream of the first device, whose context is current from now on.
    pub fn stream(&self) -> usize {
        let (mut context, mut stream) = (0usize, 0usize);
        // SAFETY: the types are those of cuda.h.
        unsafe {
            assert_eq!(self.call::<unsafe extern "C" fn(u32) -> u32>("cuInit")(0), 0);
            let retain: unsafe extern "C" fn(*mut usize, c_int) -> u32 =
                self.call("cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&mut context, 0), 0);
            assert_eq!(self.call::<unsafe extern "C" fn(usize) -> u32>("cuCtxSetCurrent")(context), 0);
            let create: unsafe extern "C" fn(*mut usize, u32) -> u32 = self.call("cuStreamCreate");
            assert_eq!(create(&mut stream, 1), 0);
        }
        stream
    }

    /// Waits until a stream is through. *Blocks*.
    pub fn wait(&self, stream: usize) {
        // SAFETY: the type is that of cuda.h.
        let done = unsafe { self.call::<unsafe extern "C" fn(usize) -> u32>("cuStreamSynchronize")(stream) };
        assert_eq!(done, 0);
    }
}
