//! Readings of NVIDIA's GPUs through NVML: which there are, how busy, how full, how warm, and how they reach each other.
//!
//! What a GPU or its driver does not tell is `None`, not an error: older drivers lack functions and consumer cards lack
//! sensors. It does not know where the library is (`dtrain-locate` does), nor which rank uses which GPU.

use dtrain_types::Bytes;
use nvml_wrapper::enum_wrappers::device::{
    P2pCapabilitiesIndex, P2pStatus, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Why there are no readings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct GpuError {
    /// What was asked for.
    pub what: String,
    /// What NVML says.
    pub why: String,
}

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its number, in the order of the bus, as `nvidia-smi` shows it.
    pub index: u32,
    /// Its model.
    pub name: Option<String>,
    /// Its name among all GPUs (`GPU-...`).
    pub uuid: Option<String>,
    /// Its compute capability, major and minor: 9 and 0 are `sm_90`.
    pub capability: Option<(u32, u32)>,
    /// All of its memory.
    pub memory: Option<Bytes>,
    /// The processes that compute on it. In a container other containers' processes are not seen.
    pub processes: Option<Vec<u32>>,
    /// How it is now.
    pub now: GpuReadings,
}

/// What changes while a GPU works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReadings {
    /// Memory in use, by anybody.
    pub memory_used: Option<Bytes>,
    /// Share of the last moments in which a kernel ran. *Units*: per cent.
    pub utilisation: Option<u32>,
    /// *Units*: degrees Celsius.
    pub temperature: Option<u32>,
    /// *Units*: watts.
    pub power: Option<f64>,
}

/// How data goes from one GPU to another, the quickest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Links of their own.
    Nvlink,
    /// Switches of the bus, without the processor.
    Switch,
    /// One host bridge or NUMA node.
    Node,
    /// Between NUMA nodes.
    System,
}

/// Two GPUs and what is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Number of the one.
    pub first: u32,
    /// Number of the other.
    pub second: u32,
    /// Whether each may read the other's memory.
    pub peers: Option<bool>,
    /// The way between them.
    pub route: Option<Route>,
}

/// The GPUs of this machine, ready to be read.
pub struct Gpus {
    nvml: Nvml,
    count: u32,
}

impl Gpus {
    /// Starts NVML from its file.
    ///
    /// *Errors*: it cannot be opened, or has no driver below it. *Blocks* while the driver wakes up (seconds, where
    /// nothing else uses the GPUs).
    pub fn open(library: &Path) -> Result<Self, GpuError> {
        let failed = |error: NvmlError| GpuError {
            what: format!("cannot start {}", library.display()),
            why: error.to_string(),
        };
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().map_err(failed)?;
        let count = nvml.device_count().map_err(failed)?;
        Ok(Self { nvml, count })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// All that is known of a GPU.
    ///
    /// *Errors*: there is no such GPU, or it has fallen off the bus.
    pub fn gpu(&self, index: u32) -> Result<Gpu, GpuError> {
        let device = self.device(index)?;
        Ok(Gpu {
            index,
            name: device.name().ok(),
            uuid: device.uuid().ok(),
            capability: capability(&device),
            memory: device.memory_info().ok().map(|memory| Bytes(memory.total)),
            processes: device
                .running_compute_processes()
                .ok()
                .map(|all| all.iter().map(|one| one.pid).collect()),
            now: readings(&device),
        })
    }

    /// How a GPU is now.
    ///
    /// *Errors*: as [`Gpus::gpu`].
    pub fn read(&self, index: u32) -> Result<GpuReadings, GpuError> {
        Ok(readings(&self.device(index)?))
    }

    /// Every two GPUs.
    ///
    /// *Order*: by number. *Errors*: as [`Gpus::gpu`].
    pub fn pairs(&self) -> Result<Vec<Pair>, GpuError> {
        let pairs =
            (0..self.count).flat_map(|first| (first + 1..self.count).map(move |second| (first, second)));
        pairs.map(|(first, second)| self.pair(first, second)).collect()
    }

    fn pair(&self, first: u32, second: u32) -> Result<Pair, GpuError> {
        let (one, other) = (self.device(first)?, self.device(second)?);
        let may = |what| one.p2p_status(&other, what).ok().map(|status| status == P2pStatus::Ok);
        let peers = may(P2pCapabilitiesIndex::Read);
        let route = match may(P2pCapabilitiesIndex::NvLink) {
            Some(true) => Some(Route::Nvlink),
            _ => one.topology_common_ancestor(other).ok().map(|level| match level {
                TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple => Route::Switch,
                TopologyLevel::HostBridge | TopologyLevel::Node => Route::Node,
                TopologyLevel::System => Route::System,
            }),
        };
        Ok(Pair { first, second, peers, route })
    }

    fn device(&self, index: u32) -> Result<Device<'_>, GpuError> {
        let failed = |error: NvmlError| GpuError { what: format!("GPU {index}"), why: error.to_string() };
        self.nvml.device_by_index(index).map_err(failed)
    }
}

fn capability(device: &Device<'_>) -> Option<(u32, u32)> {
    let told = device.cuda_compute_capability().ok()?;
    Some((told.major.try_into().ok()?, told.minor.try_into().ok()?))
}

fn readings(device: &Device<'_>) -> GpuReadings {
    GpuReadings {
        memory_used: device.memory_info().ok().map(|memory| Bytes(memory.used)),
        utilisation: device.utilization_rates().ok().map(|share| share.gpu),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        power: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0),
    }
}
