//! What this host has of NVIDIA's GPUs, as one value: what `devices` is held against.

use super::bus::on_the_bus;
use super::versions::oldest;
use dtrain_locate::{Environment, Finder, Finding, Library};
use dtrain_telemetry::{Gpu, GpuError, Gpus};
use std::ffi::OsString;
use std::path::PathBuf;

/// The driver and the GPUs of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Inventory {
    /// NVIDIA's GPUs on the bus, driver or not.
    pub on_bus: usize,
    /// The driver's library, if there is one that is new enough.
    pub driver: Finding,
    /// Every GPU, or why they cannot be told.
    pub gpus: Result<Vec<Gpu>, String>,
    /// Where NVML is, for readings while a run goes on.
    pub nvml: Option<PathBuf>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<OsString>,
}

impl Inventory {
    /// Whether there is neither a GPU of NVIDIA's nor a driver for one.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.on_bus == 0 && self.driver.found.is_none()
    }

    /// That of this host. *Blocks* while the driver wakes up.
    #[must_use]
    pub fn here() -> Self {
        let finder = Finder::new(Environment::here());
        let find = |library| finder.find(library, oldest(library).as_ref());
        let nvml = find(Library::Nvml);
        let gpus = match &nvml.found {
            None => Err(format!("NVML: {}", nvml.sentence())),
            Some(found) => {
                Gpus::open(&found.path).and_then(|all| read(&all)).map_err(|error| error.to_string())
            }
        };
        let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
        let driver = find(Library::Driver);
        Self { on_bus: on_the_bus().len(), driver, gpus, nvml: nvml.found.map(|found| found.path), visible }
    }
}

fn read(all: &Gpus) -> Result<Vec<Gpu>, GpuError> {
    (0..all.count()).map(|index| all.gpu(index)).collect()
}
