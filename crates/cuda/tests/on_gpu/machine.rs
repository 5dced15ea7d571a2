//! The GPU of the machine that a program was carried to, or the fake one where `DTRAIN_FAKE_CUDA=1` asks for it.
//!
//! The driver is the one that the dynamic linker finds, NVRTC the one that `DTRAIN_NVRTC` names. Where there is none of them
//! a program says `skipped: WHY` and has nothing to do; a GPU that is there and cannot be taken up is a failure.

// Each program uses its part.
#![allow(dead_code)]

use dtrain_cuda::driver::{Driver, DriverError, Gpu, KernelCache};
use dtrain_cuda::libraries::cublaslt::CublasLt;
use dtrain_cuda::libraries::cudnn::Cudnn;
use dtrain_cuda::nvrtc::Nvrtc;
use dtrain_cuda::{CudaDevice, Precision};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What opens GPUs.
pub struct Machine {
    driver: Driver,
    nvrtc: Nvrtc,
    cache: KernelCache,
}

/// Whether the fake driver is asked for.
pub fn is_fake() -> bool {
    std::env::var_os("DTRAIN_FAKE_CUDA").is_some_and(|asked| asked == "1")
}

/// The fake driver: cargo builds it beside tests, and examples lie one folder further.
pub fn fake_library() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let folder = this.parent()?;
    ["libfake_cuda.so", "../deps/libfake_cuda.so"]
        .map(|name| folder.join(name))
        .into_iter()
        .find(|p| p.exists())
}

/// Where kernels that were built for the fake are kept: with those of the other tests, if this is a test.
fn fake_cache(library: &Path) -> KernelCache {
    let folder = option_env!("CARGO_TARGET_TMPDIR").map(PathBuf::from);
    let folder = folder.or_else(|| Some(library.parent()?.to_owned())).unwrap_or_else(std::env::temp_dir);
    KernelCache::at(&folder.join("fake-cuda-kernels"))
}

impl Machine {
    /// What is there; else it says why there is nothing. *Panics* if a driver is there and does not work.
    pub fn open() -> Option<Self> {
        let found = if is_fake() { Self::fake() } else { Self::real() };
        found.map_err(|why| println!("skipped: {why}")).ok()
    }

    fn fake() -> Result<Self, String> {
        let library = fake_library().ok_or("the fake driver is not beside this program")?;
        let driver = Driver::open(Some(&library)).unwrap_or_else(|error| panic!("the fake driver: {error}"));
        let nvrtc = Nvrtc::load(&library).unwrap_or_else(|error| panic!("the fake compiler: {error}"));
        Ok(Self { driver, nvrtc, cache: fake_cache(&library) })
    }

    fn real() -> Result<Self, String> {
        let driver = match Driver::open(None) {
            Ok(driver) => driver,
            // 100 is what a driver says where no GPU is visible.
            Err(error @ (DriverError::NoDriver { .. } | DriverError::Call { code: 100, .. })) => {
                return Err(first_line(&error.to_string()));
            }
            Err(error) => panic!("{error}"),
        };
        if driver.count().unwrap_or_else(|error| panic!("{error}")) == 0 {
            return Err("the driver shows no GPU".to_owned());
        }
        let path = std::env::var_os("DTRAIN_NVRTC").ok_or("DTRAIN_NVRTC names no NVRTC")?;
        let nvrtc = Nvrtc::load(Path::new(&path)).unwrap_or_else(|error| panic!("{error}"));
        Ok(Self { driver, nvrtc, cache: KernelCache::of_user() })
    }

    /// How many GPUs there are.
    pub fn count(&self) -> usize {
        self.driver.count().unwrap_or_else(|error| panic!("{error}"))
    }

    /// One of them with its kernels.
    pub fn gpu(&self, ordinal: usize) -> Arc<Gpu> {
        let opened = Gpu::open(&self.driver, ordinal, &self.nvrtc, &self.cache);
        opened.unwrap_or_else(|error| panic!("{error}")).0
    }
}

/// cuBLASLt on a GPU: the file that `DTRAIN_CUBLASLT` names, or the fake one beside the fake driver; says it where there is none.
pub fn cublaslt_on(gpu: &Arc<Gpu>) -> Option<Arc<CublasLt>> {
    let Some(path) = named_or_fake("DTRAIN_CUBLASLT", "libfake_cublaslt.so") else {
        println!("skipped: DTRAIN_CUBLASLT names no cuBLASLt");
        return None;
    };
    gpu.context().enter().unwrap_or_else(|error| panic!("{error}"));
    let library = CublasLt::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(Arc::new(library))
}

/// cuDNN: the file that `DTRAIN_CUDNN` names, or the fake one beside the fake driver; says it where there is none.
pub fn cudnn() -> Option<Cudnn> {
    let Some(path) = named_or_fake("DTRAIN_CUDNN", "libfake_cudnn.so") else {
        println!("skipped: DTRAIN_CUDNN names no cuDNN");
        return None;
    };
    Some(Cudnn::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The file that a variable names, or one beside the fake driver if that is asked for.
fn named_or_fake(variable: &str, fake: &str) -> Option<PathBuf> {
    let beside = || fake_library().map(|driver| driver.with_file_name(fake)).filter(|path| path.exists());
    std::env::var_os(variable).map(PathBuf::from).or_else(|| beside().filter(|_| is_fake()))
}

/// A stream on a GPU.
pub fn device_on(gpu: &Arc<Gpu>, precision: Precision) -> CudaDevice {
    CudaDevice::new(gpu, precision).expect("a stream and its workspace")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
