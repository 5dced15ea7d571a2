//! NVRTC's functions: a program is built by the C++ compiler of this machine, over the shim.
//!
//! As with the real one the text needs no header, and a program that is wrong is refused with the compiler's messages.

// The types of all of them are those of nvrtc.h; what a pointer has to point to is said there.
#![allow(clippy::missing_safety_doc, missing_docs)]

#[path = "../../cuda/tests/shim/compiled.rs"]
mod compiled;

use crate::handles::Handles;
use crate::knobs::count;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The stand-in for a GPU: what kernels are built over.
const SHIM: [(&str, &str); 2] = [
    ("shim.h", include_str!("../../cuda/tests/shim/shim.h")),
    ("tensor.h", include_str!("../../cuda/tests/shim/tensor.h")),
];

const SUCCESS: c_int = 0;
const INVALID_INPUT: c_int = 3;
const INVALID_PROGRAM: c_int = 4;
const INVALID_OPTION: c_int = 5;
const COMPILATION: c_int = 6;
const INTERNAL: c_int = 11;

struct Program {
    source: String,
    /// What came of it: image and messages.
    made: Mutex<(Vec<u8>, CString)>,
}

static PROGRAMS: Handles<Program> = Handles::new(0x9406_0000);

/// Files of one compilation.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("fake-nvrtc-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

fn compiler() -> Option<String> {
    let asked = std::env::var("CXX").ok().filter(|name| !name.is_empty());
    let works = |name: &String| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    asked.into_iter().chain(["c++", "g++", "clang++"].map(str::to_owned)).find(works)
}

/// The names of the kernels of a text in which macros are no more.
fn kernels(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for rest in text.split("extern \"C\" __global__").skip(1) {
        let mut rest = rest;
        while let Some(at) = rest.find('(') {
            let word = rest[..at].trim_end();
            let start = word.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |at| at + 1);
            if &word[start..] != "__launch_bounds__" {
                found.push(word[start..].to_owned());
                break;
            }
            rest = &rest[at + 1..];
        }
    }
    found
}

/// Runs the compiler. *Errors*: its messages.
fn run(command: &mut Command) -> Result<Vec<u8>, (c_int, String)> {
    let output = command.output().map_err(|error| (INTERNAL, error.to_string()))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err((COMPILATION, String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// Builds a program, or finds what was built of the same text before.
fn build(source: &str, folder: &Path) -> Result<Vec<u8>, (c_int, String)> {
    let failed = |error: std::io::Error| (INTERNAL, error.to_string());
    let compiler = compiler().ok_or((INTERNAL, "no C++ compiler (c++, g++, clang++, or CXX)".to_owned()))?;
    let kept = compiled::kept(&compiler, &[SHIM[0].1, SHIM[1].1, source]);
    let found = || kept.as_ref().and_then(|kept| std::fs::read(kept).ok());
    if let Some(found) = found() {
        return Ok(found);
    }
    let _building = kept.as_deref().and_then(compiled::building);
    if let Some(found) = found() {
        return Ok(found);
    }
    let [plain, whole, image] = ["plain.cpp", "whole.cpp", "image.so"].map(|name| folder.join(name));
    std::fs::write(&plain, source).map_err(failed)?;
    let expanded = run(Command::new(&compiler).args(["-std=c++17", "-E", "-w", "-DSTAND_IN"]).arg(&plain))?;
    let expanded = String::from_utf8_lossy(&expanded).into_owned();
    let mut text =
        format!("#include \"shim.h\"\n{}", expanded.replace("extern \"C\" __global__", "__global__"));
    for name in kernels(&expanded) {
        text.push_str(&format!("\nSHIM_KERNEL({name}, {name})\n"));
    }
    std::fs::write(&whole, text).map_err(failed)?;
    SHIM.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text)).map_err(failed)?;
    run(Command::new(&compiler).args(compiled::flags()).arg("-o").args([&image, &whole]))?;
    if let Some(kept) = &kept {
        compiled::keep(kept, &image);
    }
    std::fs::read(&image).map_err(failed)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    // Another stand-in is another compiler: what was built over an older one and kept is not taken for its work.
    static MINOR: LazyLock<c_int> = LazyLock::new(|| {
        let texts = SHIM.iter().map(|(_, text)| *text).chain(compiled::flags()).flat_map(str::bytes);
        let digest = texts.fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        (digest % 10_000) as c_int
    });
    // SAFETY: as nvrtc.h says.
    unsafe { (*major, *minor) = (13, *MINOR) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut usize,
    source: *const c_char,
    _name: *const c_char,
    headers: c_int,
    _header_texts: *const *const c_char,
    _header_names: *const *const c_char,
) -> c_int {
    if headers != 0 {
        return INVALID_INPUT;
    }
    // SAFETY: as nvrtc.h says.
    unsafe {
        let source = CStr::from_ptr(source).to_string_lossy().into_owned();
        *program = PROGRAMS.add(Arc::new(Program { source, made: Mutex::default() }));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut usize) -> c_int {
    // SAFETY: as nvrtc.h says.
    let removed = PROGRAMS.remove(unsafe { *program });
    if removed.is_some() { SUCCESS } else { INVALID_PROGRAM }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: usize,
    count_of_options: c_int,
    options: *const *const c_char,
) -> c_int {
    let asked = count("nvrtcCompileProgram");
    let Some(program) = PROGRAMS.get(program) else { return INVALID_PROGRAM };
    // SAFETY: as nvrtc.h says.
    let option = |i: usize| unsafe { CStr::from_ptr(*options.add(i)) }.to_string_lossy().into_owned();
    let options: Vec<String> = (0..count_of_options as usize).map(option).collect();
    if !options.iter().any(|option| option.starts_with("--gpu-architecture=sm_")) {
        return INVALID_OPTION;
    }
    let built = match (asked, Folder::new()) {
        (0, Ok(folder)) => build(&program.source, &folder.0),
        (0, Err(error)) => Err((INTERNAL, error.to_string())),
        (code, _) => Err((code as c_int, "asked to fail".to_owned())),
    };
    let (code, image, log) = match built {
        Ok(image) => (SUCCESS, image, String::new()),
        Err((code, log)) => (code, Vec::new(), log),
    };
    let log = CString::new(log.replace('\0', " ")).unwrap_or_default();
    *program.made.lock().unwrap_or_else(PoisonError::into_inner) = (image, log);
    code
}

/// Gives something of a program.
fn made<R>(program: usize, give: impl FnOnce(&[u8], &CString) -> R) -> Option<R> {
    let program = PROGRAMS.get(program)?;
    let made = program.made.lock().unwrap_or_else(PoisonError::into_inner);
    Some(give(&made.0, &made.1))
}

macro_rules! results {
    ($($name:ident($to:ty) |$image:ident, $log:ident, $out:ident| $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(program: usize, $out: $to) -> c_int {
                // SAFETY: as nvrtc.h says: there is room for what the other function of the pair told.
                made(program, |$image, $log| unsafe { $body }).map_or(INVALID_PROGRAM, |()| SUCCESS)
            }
        )*
    };
}

results! {
    nvrtcGetCUBINSize(*mut usize) |image, _log, out| *out = image.len();
    nvrtcGetCUBIN(*mut u8) |image, _log, out| std::ptr::copy_nonoverlapping(image.as_ptr(), out, image.len());
    nvrtcGetProgramLogSize(*mut usize) |_image, log, out| *out = log.as_bytes_with_nul().len();
    nvrtcGetProgramLog(*mut u8) |_image, log, out| {
        std::ptr::copy_nonoverlapping(log.as_ptr().cast(), out, log.as_bytes_with_nul().len())
    };
}
