//! Opens GPUs: the driver and the compiler of kernels are found, the kernels come from the cache or are compiled.

use super::chosen::Chosen;
use super::versions::oldest;
use crate::config::{Config, CudaList, Problem};
use dtrain_cuda::driver::{Context, Driver, Gpu, KernelCache, Loaded};
use dtrain_cuda::nvrtc::Nvrtc;
use dtrain_locate::{Environment, Finder, Found, Library, Refusal, Refused};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// What every GPU of a host is opened with.
pub(super) struct Tools {
    pub driver: Driver,
    /// Where the driver is.
    pub driver_path: PathBuf,
    pub nvrtc: Nvrtc,
    cache: KernelCache,
}

impl Tools {
    /// *Errors*: what is missing, with a hint.
    pub fn find() -> Result<Self, String> {
        let finder = Finder::new(Environment::here());
        let find = |library: Library| -> Result<PathBuf, String> {
            let finding = finder.find(library, oldest(library).as_ref());
            let sentence = finding.sentence();
            let hint = "`dtrain doctor` says how to get it; devices=cpu trains on the cores";
            let missing = || format!("{}: {sentence}\nhint: {hint}", library.name());
            finding.found.map(|found| found.path).ok_or_else(missing)
        };
        let driver_path = find(Library::Driver)?;
        let driver = Driver::open(Some(&driver_path)).map_err(|error| error.to_string())?;
        let newest = driver.version().major();
        let compiler = compiler(&finder, newest).map_or_else(|| find(Library::Nvrtc), Ok)?;
        let nvrtc = Nvrtc::load(&compiler).map_err(|error| error.to_string())?;
        Ok(Self { driver, driver_path, nvrtc, cache: KernelCache::of_user() })
    }
}

/// The first NVRTC that a driver for CUDA `newest` takes the code of: a newer one is passed over. Where there is no other, that one,
/// with a word.
fn compiler(finder: &Finder, newest: u32) -> Option<PathBuf> {
    let (mut finder, mut passed) = (finder.clone(), None::<Found>);
    loop {
        let found = finder.find(Library::Nvrtc, oldest(Library::Nvrtc).as_ref()).found;
        match found {
            Some(found) if found.version.number(0) > newest => {
                let why = Refusal::TooNew { version: found.version.to_string(), newest };
                finder = finder.avoiding(Refused { path: found.path.clone(), why });
                passed.get_or_insert(found);
            }
            Some(found) => {
                if let Some(newer) = passed {
                    let path = newer.path.display();
                    tracing::warn!("NVRTC {} at {path} is newer than the driver: passed over", newer.version);
                }
                return Some(found.path);
            }
            None => {
                let newer = passed?;
                let words = "its code may not load: a newer driver, or NVRTC of CUDA";
                tracing::warn!(
                    "NVRTC {} is newer than the driver, {words} {newest}, is the way out",
                    newer.version
                );
                return Some(newer.path);
            }
        }
    }
}

fn tell(loaded: &Loaded) {
    tracing::debug!(compiled = loaded.compiled, cached = loaded.cached, "kernels");
    if let Some(why) = &loaded.not_kept {
        tracing::warn!(why, "compiled kernels could not be kept for the next start");
    }
}

impl Chosen {
    /// Sees to it that the ranks can open their GPUs at once: ranks are waited for, and a compiler may take longer than that.
    /// No memory of a GPU is taken. `tell_people` hears of an architecture that the compiler has to work for first.
    ///
    /// *Errors*: no driver, no compiler, no such GPU. *Blocks* while the driver wakes up and, the first time, while kernels
    /// are compiled.
    pub fn prepare(&self, config: &Config, tell_people: impl Fn(&str)) -> Result<(), Problem> {
        let Some(list) = self.cuda() else { return Ok(()) };
        prepare(&list, tell_people).map_err(|error| {
            let (message, hint) =
                error.split_once("\nhint: ").unwrap_or((&error, "devices=cpu trains on the cores"));
            config.problem("devices", message).hint(hint)
        })
    }
}

/// Whether what dtrain's own kernels need is on this host: the driver, and the compiler.
///
/// *Errors*: what is missing, in a sentence for people. *Blocks* while they are looked for.
pub fn can_compute_here() -> Result<(), String> {
    Tools::find().map(drop)
}

fn prepare(list: &CudaList, tell_people: impl Fn(&str)) -> Result<(), String> {
    let tools = Tools::find()?;
    let mut architectures = BTreeSet::new();
    for number in list.numbers() {
        let about = Context::look(&tools.driver, *number as usize);
        architectures.insert(about.map_err(|error| format!("cuda:{number}: {error}"))?.architecture());
    }
    for architecture in architectures {
        if Gpu::lacking(&tools.nvrtc, &tools.cache, &architecture) > 0 {
            tell_people(&format!("compiling the kernels for {architecture}: up to a minute, once"));
        }
        let prepared = Gpu::prepare(&tools.nvrtc, &tools.cache, &architecture);
        tell(&prepared.map_err(|error| error.to_string())?);
    }
    Ok(())
}

/// The GPU of this number among those that this process sees.
///
/// *Errors*: a sentence for people, with a hint. *Blocks* as [`Chosen::prepare`].
pub fn open_gpu(number: u32) -> Result<Arc<Gpu>, String> {
    let Tools { driver, nvrtc, cache, .. } = Tools::find()?;
    let opened = Gpu::open(&driver, number as usize, &nvrtc, &cache);
    let (gpu, loaded) = opened.map_err(|error| error.to_string())?;
    tell(&loaded);
    Ok(gpu)
}
