//! NVRTC, the compiler of kernels that comes as a library, found and loaded at run time.
//!
//! Only CUBIN is asked for: a driver older than the compiler refuses its PTX. Nothing is contracted into a fused
//! multiply-add that the source does not write as one.
//!
//! This file does not know a GPU: it compiles for the architecture that it is told.

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// Why a kernel could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum NvrtcError {
    /// The library is not there or is no NVRTC.
    #[error("cannot load {path}: {cause}", path = path.display())]
    Load {
        /// What was tried.
        path: PathBuf,
        /// What the loader said.
        cause: libloading::Error,
    },
    /// A call failed.
    #[error("{call} of {file} for {architecture} returned {code}: {log}")]
    Call {
        /// The function.
        call: &'static str,
        /// What was being compiled.
        file: String,
        /// For which GPUs.
        architecture: String,
        /// The result.
        code: i32,
        /// The compiler's messages.
        log: String,
    },
}

/// A GPU's machine code for one file, and what the compiler said.
#[derive(Debug)]
pub struct Cubin {
    /// An ELF file.
    pub bytes: Vec<u8>,
    /// The compiler's log, with the resources of each kernel.
    pub log: String,
}

/// What one kernel takes of a multiprocessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread that did not fit into registers, stored and loaded.
    pub spilled: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
}

impl Cubin {
    /// What each kernel takes, as the assembler's messages have it.
    #[must_use]
    pub fn resources(&self) -> Vec<Resources> {
        let mut found: Vec<Resources> = Vec::new();
        for line in self.log.lines() {
            if let Some(rest) = line.split("Compiling entry function '").nth(1) {
                let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
                found.push(Resources { kernel, registers: 0, spilled: 0, shared: 0 });
            }
            let Some(last) = found.last_mut() else { continue };
            // A number stands before the words that say what it is.
            let before = |words: &str| -> u32 {
                let at = line.find(words).unwrap_or(0);
                line[..at].split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or(0)
            };
            last.spilled += before(" bytes spill stores") + before(" bytes spill loads");
            last.registers += before(" registers");
            last.shared += before(" bytes smem");
        }
        found
    }
}

type Program = *mut c_void;
/// The call that failed, its code, and the compiler's log.
type Failure = (&'static str, i32, String);

/// How every kernel is compiled: nothing is contracted, rounded or flushed otherwise than the source says.
#[must_use]
pub(crate) fn options(architecture: &str) -> [String; 7] {
    [
        &format!("--gpu-architecture={architecture}"),
        "--std=c++17",
        "--fmad=false",
        "--ftz=false",
        "--prec-div=true",
        "--prec-sqrt=true",
        "--ptxas-options=-v",
    ]
    .map(str::to_owned)
}

/// How it is told whether a compiler takes a source: as far as the code between, without machine code.
fn options_of_a_look() -> [String; 3] {
    ["--gpu-architecture=compute_80", "--std=c++17", "-dlto"].map(str::to_owned)
}

/// The library.
pub struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    /// Loads the library at `path`.
    ///
    /// *Errors*: [`NvrtcError::Load`].
    pub fn load(path: &Path) -> Result<Self, NvrtcError> {
        // SAFETY: NVRTC's initialisers touch nothing of ours.
        let library = unsafe { Library::new(path) }
            .map_err(|cause| NvrtcError::Load { path: path.to_owned(), cause })?;
        let nvrtc = Self { library };
        // SAFETY: the symbol is only looked up.
        unsafe { nvrtc.library.get::<*const c_void>(b"nvrtcGetCUBIN\0") }
            .map_err(|cause| NvrtcError::Load { path: path.to_owned(), cause })?;
        Ok(nvrtc)
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the type is that of nvrtc.h; both pointers live for the call.
        let _: c_int = unsafe {
            self.function::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(b"nvrtcVersion\0")(
                &mut major, &mut minor,
            )
        };
        (major, minor)
    }

    /// Compiles a source for one architecture, such as `sm_90a`.
    ///
    /// *Errors*: [`NvrtcError::Call`] with the compiler's messages.
    pub fn compile(&self, file: &str, source: &str, architecture: &str) -> Result<Cubin, NvrtcError> {
        self.with_program(file, source, architecture, |program| {
            let log = self.compile_program(program, &options(architecture))?;
            match self.bytes(program, b"nvrtcGetCUBINSize\0", b"nvrtcGetCUBIN\0") {
                Ok(bytes) => Ok(Cubin { bytes, log }),
                Err(code) => Err(("nvrtcGetCUBIN", code, log)),
            }
        })
    }

    /// Whether this compiler takes a source, in a sixth of the time that compiling it would need: compilers of other versions
    /// refuse what newer ones take.
    ///
    /// *Errors*: [`NvrtcError::Call`] with the compiler's messages.
    pub fn accepts(&self, file: &str, source: &str) -> Result<(), NvrtcError> {
        self.with_program(file, source, "any GPU", |program| {
            self.compile_program(program, &options_of_a_look()).map(|_| ())
        })
    }

    /// Does something with a program of the library.
    fn with_program<T>(
        &self,
        file: &str,
        source: &str,
        architecture: &str,
        run: impl FnOnce(Program) -> Result<T, Failure>,
    ) -> Result<T, NvrtcError> {
        let failed = |call, code, log: String| NvrtcError::Call {
            call,
            file: file.to_owned(),
            architecture: architecture.to_owned(),
            code,
            log,
        };
        let text = |s: &str| CString::new(s).expect("a source has no NUL");
        let (name, source) = (text(file), text(source));
        let mut program: Program = ptr::null_mut();
        // SAFETY: types are those of nvrtc.h; strings end with NUL and live for the call; there are no headers.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int>(b"nvrtcCreateProgram\0")(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        if code != 0 {
            return Err(failed("nvrtcCreateProgram", code, String::new()));
        }
        let result = run(program);
        // SAFETY: the type is that of nvrtc.h; the program was made above and is not used after this.
        unsafe {
            self.function::<unsafe extern "C" fn(*mut Program) -> c_int>(b"nvrtcDestroyProgram\0")(
                &mut program,
            )
        };
        result.map_err(|(call, code, log)| failed(call, code, log))
    }

    /// The compiler's log.
    fn compile_program(&self, program: Program, options: &[String]) -> Result<String, Failure> {
        let text = |option: &String| CString::new(option.as_str()).expect("an option has no NUL");
        let options: Vec<CString> = options.iter().map(text).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: types are those of nvrtc.h; the program is alive, the options live for the call.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>(
                b"nvrtcCompileProgram\0",
            )(program, pointers.len() as c_int, pointers.as_ptr())
        };
        let log =
            self.bytes(program, b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0").unwrap_or_default();
        let log = CStr::from_bytes_until_nul(&log)
            .map_or_else(|_| String::new(), |log| log.to_string_lossy().into_owned());
        if code == 0 { Ok(log) } else { Err(("nvrtcCompileProgram", code, log)) }
    }

    /// What a pair of functions for size and content gives.
    fn bytes(&self, program: Program, size: &[u8], content: &[u8]) -> Result<Vec<u8>, i32> {
        let mut len = 0usize;
        // SAFETY: the type is that of nvrtc.h; the program is alive.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(size)(program, &mut len)
        };
        if code != 0 {
            return Err(code);
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the type is that of nvrtc.h; the buffer has the length that the library asked for.
        let code = unsafe {
            self.function::<unsafe extern "C" fn(Program, *mut u8) -> c_int>(content)(
                program,
                bytes.as_mut_ptr(),
            )
        };
        if code == 0 { Ok(bytes) } else { Err(code) }
    }

    /// A function of the library.
    ///
    /// SAFETY: `F` has to be its type in nvrtc.h.
    unsafe fn function<F>(&self, name: &[u8]) -> Symbol<'_, F> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get(name) }.expect("a function of every NVRTC since 11.1")
    }
}
