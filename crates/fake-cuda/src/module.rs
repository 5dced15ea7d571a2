//! Modules: shared objects whose kernels were built over the shim, and what a launch of them does.

use crate::codes::{Code, ILLEGAL_ADDRESS, LAUNCH_FAILED, SUCCESS};
use crate::knobs::{count, knobs};
use crate::memory::Kind;
use crate::world::{Device, complain};
use libloading::Library;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

/// The shim keeps a block's threads in global variables: one launch of a module at a time.
pub(crate) struct Module {
    library: Mutex<Library>,
    /// The linker knows a library by the path it was opened with, so the descriptor in it is not to be used for another.
    _file: File,
}

type Run = unsafe extern "C" fn(*mut *const c_void, c_uint, c_uint, c_uint, c_uint) -> *const c_char;
type Letters = unsafe extern "C" fn() -> *const c_char;

pub(crate) struct Function {
    module: Arc<Module>,
    run: Run,
    /// The types of its parameters, as the shim names them.
    letters: String,
    name: String,
}

/// A launch, with its arguments copied.
pub(crate) struct Launch {
    pub function: Arc<Function>,
    pub blocks: u32,
    pub threads: u32,
    values: Vec<Vec<u64>>,
}

/// How long the image of an ELF file is: its table of sections is its end.
///
/// # Safety
/// An image that begins as an ELF file has the header of one.
unsafe fn length(image: *const u8) -> Option<usize> {
    // SAFETY: the caller's promise; the header has 64 bytes.
    let head = unsafe { std::slice::from_raw_parts(image, 64) };
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let short = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    head.starts_with(b"\x7fELF\x02").then(|| word(40) as usize + short(58) * short(60))
}

impl Module {
    /// Loads an image. Nothing if it is none.
    ///
    /// # Safety
    /// As `length`, and the image is as long as its header says.
    pub unsafe fn load(image: *const u8) -> Option<Self> {
        // SAFETY: the caller's promise: four bytes are there in any case.
        if unsafe { std::slice::from_raw_parts(image, 4) } != b"\x7fELF" {
            return None;
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(image, length(image)?) };
        let file = rustix::fs::memfd_create("fake-cuda-module", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        let mut file = File::from(file);
        std::io::Write::write_all(&mut file, bytes).ok()?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: what the fake compiler built has no initialisers of its own.
        let library = unsafe { Library::new(format!("/proc/self/fd/{descriptor}")) };
        library.ok().map(|library| Self { library: Mutex::new(library), _file: file })
    }

    pub fn function(self: &Arc<Self>, name: &str) -> Option<Function> {
        let library = self.library.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the types are those of `SHIM_KERNEL`; the function is called only while the module is kept.
        unsafe {
            let run = *library.get::<Run>(format!("shim_run_{name}\0").as_bytes()).ok()?;
            let letters = library.get::<Letters>(format!("shim_letters_{name}\0").as_bytes()).ok()?;
            let letters = CStr::from_ptr(letters()).to_str().ok()?.to_owned();
            Some(Function { module: self.clone(), run, letters, name: name.to_owned() })
        }
    }
}

/// Bytes of a parameter.
fn size(letter: char) -> usize {
    match letter {
        'u' | 'r' => 4,
        'C' => 52,
        'V' => 72,
        'P' => 44,
        _ => 8,
    }
}

impl Launch {
    /// Copies the arguments, as the driver does before its call returns. Nothing if a parameter has no known type.
    ///
    /// # Safety
    /// There is an argument for each parameter, of its type.
    pub unsafe fn new(
        function: Arc<Function>,
        [blocks, threads]: [u32; 2],
        values: *const *const c_void,
    ) -> Option<Self> {
        if function.letters.contains('?') {
            complain(format!("{} has a parameter of a type that is not known here", function.name));
            return None;
        }
        let copied = function.letters.chars().enumerate().map(|(i, letter)| {
            let mut copy = vec![0u64; size(letter).div_ceil(8)];
            // SAFETY: the caller's promise; the copy has room.
            unsafe {
                let from = (*values.add(i)).cast::<u8>();
                std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr().cast::<u8>(), size(letter));
            }
            copy
        });
        let values = copied.collect();
        Some(Self { function, blocks, threads, values })
    }

    /// The sign of the first element that it wrote is the other one.
    fn spoil(&self) {
        let mut written = self.function.letters.chars().zip(&self.values);
        let written = written
            .find(|(letter, value)| letter.is_ascii_uppercase() && "FHD".contains(*letter) && value[0] != 0);
        let Some((letter, value)) = written else { return };
        let last = match letter {
            'F' => 3,
            'H' => 1,
            _ => 7,
        };
        let byte = (value[0] as usize + last) as *mut u8;
        // SAFETY: the kernel wrote an element there, whose last byte this is.
        unsafe { *byte ^= 0x80 };
    }

    /// Runs it, block by block.
    pub fn run(&self, device: &Device) -> Code {
        let Function { module, run, letters, name } = &*self.function;
        for asked in [count("kernel"), count(name)] {
            if asked != SUCCESS {
                return asked;
            }
        }
        for (letter, value) in letters.chars().zip(&self.values) {
            let address = value[0] as usize;
            let is_pointer = !"ulrCVP".contains(letter);
            if is_pointer && address != 0 && !device.memory.has(address, 0, Some(Kind::Device)) {
                complain(format!("{name} is given {address:#x}, which is no memory of its device"));
                return ILLEGAL_ADDRESS;
            }
        }
        let mut pointers: Vec<*const c_void> =
            self.values.iter().map(|value| value.as_ptr().cast()).collect();
        let _one_at_a_time = module.library.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the type is that of `SHIM_KERNEL`, the arguments are those of the kernel, and the module is locked. What
        // the kernel does to memory is its caller's affair, as on a GPU.
        let said = unsafe { run(pointers.as_mut_ptr(), self.blocks, self.threads, knobs().order, 0) };
        if said.is_null() {
            if knobs().wrong.as_deref() == Some(name) {
                self.spoil();
            }
            return SUCCESS;
        }
        // SAFETY: a text of the module's own, which is locked.
        let said = unsafe { CStr::from_ptr(said) }.to_string_lossy();
        complain(format!("{name}: {said}"));
        LAUNCH_FAILED
    }
}
