//! A device with all kernels loaded: what every rank on it shares.

use super::cache::KernelCache;
use super::context::{About, Context};
use super::error::{DriverError, GpuError};
use super::library::Driver;
use crate::kernels::{FILES, File, KERNELS, Kernel};
use crate::nvrtc::{Nvrtc, NvrtcError};
use cudarc::driver::sys;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A device whose kernels are loaded.
#[derive(Debug)]
pub struct Gpu {
    /// By the place of a kernel in the table.
    functions: BTreeMap<usize, sys::CUfunction>,
    modules: Vec<sys::CUmodule>,
    context: Arc<Context>,
}

// SAFETY: modules and functions may be used by any thread with the context, which every call makes current.
unsafe impl Send for Gpu {}
// SAFETY: as above; nothing changes them.
unsafe impl Sync for Gpu {}

/// Where the kernels came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Files that were compiled now.
    pub compiled: usize,
    /// Files whose machine code was in the cache.
    pub cached: usize,
    /// Why machine code could not be kept for the next time: the first reason.
    pub not_kept: Option<String>,
}

impl Gpu {
    /// Takes hold of a device and loads every kernel, from the cache or compiled now, on all cores.
    ///
    /// *Errors*: of the driver, of the compiler. *Blocks* while kernels are compiled: seconds, the first time.
    pub fn open(
        driver: &Driver,
        ordinal: usize,
        nvrtc: &Nvrtc,
        cache: &KernelCache,
    ) -> Result<(Arc<Self>, Loaded), GpuError> {
        let context = Context::open(driver, ordinal)?;
        let (images, loaded) = images(nvrtc, cache, &context.about().architecture())?;
        let mut gpu = Self { functions: BTreeMap::new(), modules: Vec::new(), context };
        for (file, image) in FILES.iter().zip(&images) {
            gpu.load(file, image)?;
        }
        Ok((Arc::new(gpu), loaded))
    }

    /// A device on paper: see [`Context::on_paper`].
    #[must_use]
    pub fn on_paper(about: About) -> Arc<Self> {
        let functions = KERNELS.iter().map(|kernel| (ptr::from_ref(*kernel).addr(), ptr::null_mut()));
        Arc::new(Self {
            functions: functions.collect(),
            modules: Vec::new(),
            context: Context::on_paper(about),
        })
    }

    /// How many files of kernels for an architecture are not in the cache.
    #[must_use]
    pub fn lacking(nvrtc: &Nvrtc, cache: &KernelCache, architecture: &str) -> usize {
        let lacks = |file: &&&File| cache.get(&cache.key(nvrtc, &file.source(), architecture)).is_none();
        FILES.iter().filter(lacks).count()
    }

    /// Compiles the kernels for an architecture that are not in the cache, so that whoever opens such a GPU next need not.
    ///
    /// *Errors*: of the compiler. *Blocks*: seconds, the first time.
    pub fn prepare(nvrtc: &Nvrtc, cache: &KernelCache, architecture: &str) -> Result<Loaded, GpuError> {
        Ok(images(nvrtc, cache, architecture)?.1)
    }

    /// The device's context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// A kernel's function. *Panics* if it is not in the table.
    pub(crate) fn function(&self, kernel: &'static Kernel) -> sys::CUfunction {
        self.functions[&ptr::from_ref(kernel).addr()]
    }

    fn load(&mut self, file: &File, image: &[u8]) -> Result<(), DriverError> {
        let mut module = ptr::null_mut();
        // SAFETY: the image is whole: the compiler's, or from the cache, where its digest was compared.
        let load = || unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        self.context.call("cuModuleLoadData", load)?;
        self.modules.push(module);
        for kernel in file.kernels() {
            let name = CString::new(kernel.name).expect("a name has no NUL");
            let mut function = ptr::null_mut();
            // SAFETY: the module was loaded just now; the name ends with NUL.
            let find = || unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            self.context.call("cuModuleGetFunction", find)?;
            self.functions.insert(ptr::from_ref(kernel).addr(), function);
        }
        Ok(())
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for module in &self.modules {
            // SAFETY: loaded once, unloaded once; streams, which launch its kernels, hold this.
            self.context.give_back("cuModuleUnload", || unsafe { sys::cuModuleUnload(*module) });
        }
    }
}

/// The machine code of every file, in the order of the table.
fn images(
    nvrtc: &Nvrtc,
    cache: &KernelCache,
    architecture: &str,
) -> Result<(Vec<Vec<u8>>, Loaded), NvrtcError> {
    // Those of many kernels take seconds: begun first, nobody waits in the end for one of them alone.
    let mut order: Vec<_> = FILES.iter().enumerate().collect();
    order.sort_by_key(|(_, file)| Reverse(file.kernels().count()));
    let (next, done) = (AtomicUsize::new(0), Mutex::new((BTreeMap::new(), Loaded::default())));
    let work = || -> Result<(), NvrtcError> {
        while let Some(&(i, file)) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let source = file.source();
            let key = cache.key(nvrtc, &source, architecture);
            let known = cache.get(&key);
            let was_known = known.is_some();
            let image =
                known.map_or_else(|| Ok(nvrtc.compile(file.name, &source, architecture)?.bytes), Ok)?;
            let not_kept = (!was_known).then(|| cache.put(&key, &image).err()).flatten();
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            let (images, loaded) = &mut *done;
            images.insert(i, image);
            *(if was_known { &mut loaded.cached } else { &mut loaded.compiled }) += 1;
            if loaded.not_kept.is_none() {
                loaded.not_kept = not_kept.map(|error| error.to_string());
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(FILES.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a compiling thread does not panic"))
    })?;
    let (images, loaded) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((images.into_values().collect(), loaded))
}
