//! Streams of the driver of tests, and how work is put behind what they have.
//!
//! A caller on a GPU hands over a stream of its driver, into which the real library puts kernels. A stand-in puts work of the host
//! there, by a function that drivers have. It is told by a variable where that driver is, so that it finds the one that the caller
//! has open.

use libloading::Library;
use std::ffi::c_void;
use std::fmt;
use std::sync::OnceLock;

/// What a stream runs.
pub type Job = unsafe extern "C" fn(*mut c_void);

/// `cuLaunchHostFunc`.
type Launch = unsafe extern "C" fn(stream: *mut c_void, job: Job, argument: *mut c_void) -> u32;

/// Why a stream was given nothing.
pub enum Refused {
    /// The driver that was named cannot be opened, or is none.
    NoDriver(String),
    /// The driver refuses the stream.
    ByDriver(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NoDriver(why) | Self::ByDriver(why)) = self;
        f.write_str(why)
    }
}

/// The driver that a variable names, if it does. It is looked for once, and never closed.
pub struct Driver {
    variable: &'static str,
    found: OnceLock<Option<Result<(Library, Launch), String>>>,
}

impl Driver {
    /// The driver whose path this variable holds.
    pub const fn named_by(variable: &'static str) -> Self {
        Self { variable, found: OnceLock::new() }
    }

    fn found(&self) -> Option<&Result<(Library, Launch), String>> {
        let find = || {
            let path = std::env::var_os(self.variable)?;
            // SAFETY: it is open already, so nothing of it runs now.
            let open = || unsafe {
                let library = Library::new(&path)?;
                let launch = *library.get::<Launch>(b"cuLaunchHostFunc\0")?;
                Ok((library, launch))
            };
            Some(open().map_err(|error: libloading::Error| error.to_string()))
        };
        self.found.get_or_init(find).as_ref()
    }

    /// Whether streams are those of a driver.
    pub fn is_named(&self) -> bool {
        self.found().is_some()
    }

    /// Puts a job behind everything that the stream was given, or does it at once where no driver was named.
    ///
    /// *Errors*: no driver where one was named, or one that refuses the stream. Then the job is not run.
    ///
    /// # Safety
    /// The stream is the driver's; job and argument belong together, until the stream is through.
    pub unsafe fn put(&self, stream: *mut c_void, job: Job, argument: *mut c_void) -> Result<(), Refused> {
        match self.found() {
            None => {
                // SAFETY: the caller's promise.
                unsafe { job(argument) };
                Ok(())
            }
            // SAFETY: the caller's promise; the job runs once.
            Some(Ok((_, launch))) => match unsafe { launch(stream, job, argument) } {
                0 => Ok(()),
                code => Err(Refused::ByDriver(format!("cuLaunchHostFunc: {code}"))),
            },
            Some(Err(error)) => Err(Refused::NoDriver(format!("{}: {error}", self.variable))),
        }
    }

    /// The same with work that is given away.
    ///
    /// *Errors*: as of `put`.
    ///
    /// # Safety
    /// The stream is the driver's; what the work uses is there until the stream is through.
    pub unsafe fn give<W: FnOnce() + Send + 'static>(
        &self,
        stream: *mut c_void,
        work: W,
    ) -> Result<(), Refused> {
        let work = Box::into_raw(Box::new(work));
        // SAFETY: the caller's promise; the box is what the job takes.
        let put = unsafe { self.put(stream, run::<W>, work.cast()) };
        if put.is_err() {
            // SAFETY: nobody took it.
            drop(unsafe { Box::from_raw(work) });
        }
        put
    }
}

/// Does work that was given away, and lets go of it.
///
/// # Safety
/// It is a box's of this type, which is not used again.
unsafe extern "C" fn run<W: FnOnce()>(work: *mut c_void) {
    // SAFETY: the caller's promise.
    let work = unsafe { Box::from_raw(work.cast::<W>()) };
    work();
}
