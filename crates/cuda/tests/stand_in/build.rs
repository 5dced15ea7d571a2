//! Builds kernels for the stand-in and runs them: a C++ compiler that is found at run time, a shared library for each file.

use super::accesses::{self, Access, Accesses};
use super::compiled;

use dtrain_cuda::kernels::{FILES, File, Kernel};
use dtrain_cuda::{CudaDevice, KernelLaunch, Queue};
use libloading::Library;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tempfile::TempDir;

/// One place of a kernel's file that is made wrong.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// The kernel that the place belongs to.
    pub kernel: &'static Kernel,
    /// What stands there, once in the file and its parts.
    pub from: &'static str,
    /// What is put there.
    pub to: &'static str,
}

/// A C++ compiler, if there is one. Only for Linux: the stand-in leans on its linker's names of sections.
pub fn compiler() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let works = |name: &str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success()).then(|| PathBuf::from(name))
    };
    let found = FOUND.get_or_init(|| {
        if !cfg!(target_os = "linux") {
            println!("skipped: kernels are run on Linux only");
            return None;
        }
        let asked = std::env::var("CXX").ok().filter(|name| !name.is_empty());
        let found = match asked {
            Some(name) => works(&name),
            None => ["c++", "g++", "clang++"].into_iter().find_map(works),
        };
        if found.is_none() {
            println!("skipped: no C++ compiler (c++, g++, clang++, or CXX), kernels are not run");
        }
        found
    });
    found.as_deref()
}

/// The kernels of one file. The stand-in keeps its threads in global variables: one launch at a time.
pub struct Built {
    library: Mutex<Library>,
    /// What was built, where somebody may ask for the line of an address.
    watched: Option<(PathBuf, TempDir)>,
}

/// The text of a file as the stand-in builds it: kernels by their C++ names, so that mutants can stand beside them.
fn plain(text: &str) -> String {
    text.replace("extern \"C\" __global__", "__global__")
}

/// The numbers in a text.
fn numbers_in(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).collect()
}

/// A line that makes kernels of some sizes by a macro, `NAME(32, 64)`: the macro and the sizes.
fn sizes(line: &str) -> Option<(&str, Vec<&str>)> {
    let (name, sizes) = line.strip_suffix(')')?.split_once('(')?;
    let is_call = name.bytes().all(|c| c.is_ascii_uppercase() || c == b'_')
        && sizes.split(", ").all(|size| size.parse::<u32>().is_ok());
    is_call.then(|| (name, numbers_in(sizes)))
}

/// A text without the kernels of other sizes than `kernel`, and without macros behind it.
fn of_its_sizes(text: &str, kernel: &Kernel) -> String {
    let own = numbers_in(kernel.name);
    let is_wanted = |line: &&str| sizes(line).is_none_or(|(_, sizes)| own.ends_with(&sizes));
    let macros: BTreeSet<_> = text.lines().filter_map(|line| Some(sizes(line)?.0)).collect();
    let kept = text.lines().filter(is_wanted).map(ToOwned::to_owned);
    kept.chain(macros.iter().map(|name| format!("#undef {name}"))).map(|line| line + "\n").collect()
}

impl Built {
    /// Builds a file and, beside its kernels or instead of them, kernels made wrong; those are called `kernel_mN`.
    pub fn new(file: &File, mutations: &[Mutation]) -> Self {
        Self::of(file, mutations, Watched::No)
    }

    /// The same, with each access watched.
    pub fn watched(file: &File, mutations: &[Mutation]) -> Self {
        Self::of(file, mutations, Watched::Yes)
    }

    fn of(file: &File, mutations: &[Mutation], watched: Watched) -> Self {
        let folder = tempfile::tempdir().expect("a folder for what is built");
        let mut source = String::from("#include \"shim.h\"\n");
        if mutations.is_empty() {
            source.push_str(&plain(&file.source()));
            for Kernel { name, .. } in file.kernels() {
                source.push_str(&format!("SHIM_KERNEL({name}, {name})\n"));
            }
        }
        for (i, Mutation { kernel, from, to }) in mutations.iter().enumerate() {
            let whole = file.source();
            assert_eq!(whole.matches(from).count(), 1, "{}: {from:?} has to stand there once", file.name);
            let text = plain(&whole.replacen(from, to, 1));
            let text = of_its_sizes(&text, kernel);
            let name = kernel.name;
            source
                .push_str(&format!("namespace m{i} {{\n{text}}}\nSHIM_KERNEL({name}_m{i}, m{i}::{name})\n"));
        }
        // Under the name by which the stand-in for NVIDIA's compiler keeps the same kernels: whoever comes first builds them for both.
        let asked = if mutations.is_empty() { file.source() } else { source.clone() };
        let path = match watched {
            Watched::No => Self::library(&source, &asked, folder.path()),
            Watched::Yes => accesses::library(compiler().expect("asked before"), &source, folder.path()),
        };
        // SAFETY: the library has no initialisers but those of C++'s own containers.
        let library = unsafe { Library::new(&path) }.expect("what was built can be loaded");
        let watched = (watched == Watched::Yes).then_some((path, folder));
        Self { library: Mutex::new(library), watched }
    }

    /// Builds a text in `folder`, or finds what was built before of what was `asked` for.
    fn library(source: &str, asked: &str, folder: &Path) -> PathBuf {
        let compiler = compiler().expect("asked before");
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim");
        let [words, tensor] = ["shim.h", "tensor.h"]
            .map(|name| std::fs::read_to_string(shim.join(name)).expect("it stands there"));
        let library = folder.join("kernels.so");
        let kept = compiled::kept(&compiler.to_string_lossy(), &[&words, &tensor, asked]);
        // A copy each: a library is loaded once under one name, with the variables of its threads.
        let found =
            || kept.as_ref().is_some_and(|kept| kept.is_file() && std::fs::copy(kept, &library).is_ok());
        if found() {
            return library;
        }
        let _building = kept.as_deref().and_then(compiled::building);
        if found() {
            return library;
        }
        let path = folder.join("kernels.cpp");
        std::fs::write(&path, source).expect("the folder is ours");
        let output = Command::new(compiler)
            .args(compiled::flags())
            .arg("-I")
            .arg(shim)
            .arg("-o")
            .args([&library, &path])
            .output()
            .expect("the compiler starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if let Some(kept) = &kept {
            compiled::keep(kept, &library);
        }
        library
    }

    fn lock(&self) -> MutexGuard<'_, Library> {
        self.library.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A kernel's parameters as the compiler sees them.
    pub fn letters(&self, kernel: &Kernel) -> String {
        let library = self.lock();
        let name = format!("shim_letters_{}", kernel.name);
        // SAFETY: the type is that of SHIM_KERNEL; it returns a string of the library.
        unsafe {
            let letters =
                library.get::<unsafe extern "C" fn() -> *const c_char>(&name).expect("it was built");
            CStr::from_ptr(letters()).to_str().expect("letters").to_owned()
        }
    }

    /// Runs a kernel. *Errors*: what the stand-in has to say.
    fn run(&self, label: &str, launch: &KernelLaunch, way: Way) -> Result<(), String> {
        let library = self.lock();
        let mut values: Vec<*const c_void> =
            launch.arguments().iter().map(|argument| argument.value()).collect();
        type Run = unsafe extern "C" fn(*mut *const c_void, c_uint, c_uint, c_uint, c_uint) -> *const c_char;
        let Way { order, at_the_edge } = way;
        // SAFETY: the type is that of SHIM_KERNEL. The arguments have the kernel's types: `KernelLaunch` compares them with the
        // table, and a test the table with the source. Memory was promised by whoever made the slices.
        unsafe {
            let run = library.get::<Run>(&format!("shim_run_{label}")).expect("it was built");
            // Where any grid does, two or three blocks have to loop.
            let most = if launch.any_grid && order > 0 { order + 1 } else { u32::MAX };
            let said = run(
                values.as_mut_ptr(),
                launch.blocks.min(most),
                launch.kernel.threads,
                order,
                at_the_edge.into(),
            );
            if said.is_null() { Ok(()) } else { Err(CStr::from_ptr(said).to_string_lossy().into_owned()) }
        }
    }

    /// An error whose addresses have their lines behind them.
    fn with_lines(&self, error: &str) -> String {
        match (&self.watched, error.split_once(": +")) {
            (Some((path, _)), Some((what, places))) => {
                format!("{what}: {}", accesses::lines(path, &format!("+{places}")))
            }
            _ => error.to_owned(),
        }
    }

    /// Adds what the accesses of a kernel took since this was asked for last.
    fn add_accesses(&self, kernel: &'static Kernel, all: &mut Accesses) {
        let Some((path, _)) = &self.watched else { return };
        let library = self.lock();
        // SAFETY: the type is that of accesses.cpp; it returns a string of the library.
        let text = unsafe {
            let all = library
                .get::<unsafe extern "C" fn() -> *const c_char>("shim_accesses")
                .expect("it was built with it");
            CStr::from_ptr(all()).to_str().expect("numbers").to_owned()
        };
        for (places, access) in text.lines().map(|line| Access::parse(kernel, path, line)) {
            all.entry((kernel.name, places)).and_modify(|before| before.add(&access)).or_insert(access);
        }
    }
}

/// Whether accesses are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watched {
    No,
    Yes,
}

/// A file's kernels as they are, built once.
pub fn built(file: &'static File) -> &'static Built {
    static ALL: OnceLock<All> = OnceLock::new();
    once(&ALL, file, || Built::new(file, &[]))
}

/// The same, with each access watched.
fn watched(file: &'static File) -> &'static Built {
    static ALL: OnceLock<All> = OnceLock::new();
    once(&ALL, file, || Built::watched(file, &[]))
}

type All = BTreeMap<&'static str, OnceLock<Built>>;

fn once(all: &'static OnceLock<All>, file: &File, build: impl FnOnce() -> Built) -> &'static Built {
    // A file that is there for two kinds of halves has kernels of two names.
    let first = |file: &File| file.kernels().next().expect("a file has a kernel").name;
    let all = all.get_or_init(|| FILES.iter().map(|file| (first(file), OnceLock::new())).collect());
    all[first(file)].get_or_init(build)
}

/// How launches are run.
#[derive(Clone, Copy)]
struct Way {
    /// Of threads and blocks: 0 is first to last, 1 last to first, others are shuffled.
    order: u32,
    /// Whether memory ends at a page that may not be touched, and who touches it is to be caught.
    at_the_edge: bool,
}

/// Runs launches at once, in an order of threads and blocks (and with another grid where any does), and keeps what was
/// wrong.
pub struct StandIn<'m> {
    way: Way,
    /// A kernel that is replaced, by what.
    mutant: Option<(&'static Kernel, &'m Built, String)>,
    /// A device that launches go to, and that has the memory.
    device: Option<Arc<CudaDevice>>,
    /// What accesses took, where they are watched.
    accesses: Option<RefCell<Accesses>>,
    wrong: RefCell<Vec<String>>,
    bits: RefCell<std::hash::DefaultHasher>,
}

impl<'m> StandIn<'m> {
    /// With kernels as they are; `order` 0 is first to last, 1 last to first, others are shuffled.
    pub fn new(order: u32) -> Self {
        Self {
            way: Way { order, at_the_edge: false },
            mutant: None,
            device: None,
            accesses: None,
            wrong: RefCell::default(),
            bits: RefCell::default(),
        }
    }

    /// With each access watched: places that two threads touch without a barrier between are wrong.
    pub fn watching() -> Self {
        Self { accesses: Some(RefCell::default()), ..Self::new(0) }
    }

    /// What accesses took, where they are watched.
    pub fn accesses(&self) -> Accesses {
        self.accesses.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Through the driver: launches go to a device's stream, and memory is the device's.
    pub fn through(device: &Arc<CudaDevice>) -> Self {
        Self { device: Some(device.clone()), ..Self::new(0) }
    }

    /// The device, if launches go through a driver.
    pub fn device(&self) -> Option<&Arc<CudaDevice>> {
        self.device.as_ref()
    }

    /// The same, with memory up against pages that may not be touched. One at a time: it catches a signal.
    pub fn on_the_edge(mut self) -> Self {
        self.way.at_the_edge = true;
        self
    }

    /// Whether memory ends at a page that may not be touched.
    pub fn at_the_edge(&self) -> bool {
        self.way.at_the_edge
    }

    /// With mutant number `index` of `built` instead of a kernel.
    pub fn with(mutation: &Mutation, built: &'m Built, index: usize) -> Self {
        let label = format!("{}_m{index}", mutation.kernel.name);
        Self { mutant: Some((mutation.kernel, built, label)), ..Self::new(0) }
    }

    /// The same, in another order of threads and blocks.
    pub fn in_order(mut self, order: u32) -> Self {
        self.way.order = order;
        self
    }

    /// Something was wrong.
    pub fn wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    /// Keeps bits that have to be the same in every order.
    pub fn note(&self, bits: impl Iterator<Item = u64>) {
        let mut hasher = self.bits.borrow_mut();
        bits.for_each(|bits| hasher.write_u64(bits));
    }

    /// What was wrong, and a hash of all that was written.
    pub fn end(self) -> (Vec<String>, u64) {
        (self.wrong.into_inner(), self.bits.into_inner().finish())
    }
}

// SAFETY: a launch has ended when this returns, or is on the stream that everything of this stand-in goes through.
unsafe impl Queue for StandIn<'_> {
    /// One, so that small matrices are computed in all of the tiles that there are.
    fn multiprocessors(&self) -> usize {
        1
    }

    fn launch(&self, launch: &KernelLaunch) {
        if let Some(device) = &self.device {
            return device.stream().launch(launch);
        }
        let (built, label) = match &self.mutant {
            Some((kernel, built, label)) if kernel.name == launch.kernel.name => (*built, &label[..]),
            _ if self.accesses.is_some() => (watched(launch.kernel.file), launch.kernel.name),
            _ => (built(launch.kernel.file), launch.kernel.name),
        };
        if let Err(error) = built.run(label, launch, self.way) {
            self.wrong(format!("{}: {}", launch.kernel.name, built.with_lines(&error)));
        }
        if let Some(all) = &self.accesses {
            built.add_accesses(launch.kernel, &mut all.borrow_mut());
        }
    }
}
