//! From the key `devices` and what the host has to what its ranks train on, or to why they cannot.

use super::inventory::Inventory;
use super::judged::{Judged, TestVerdict};
use crate::config::{Config, CudaList, Devices, OnGpus, Precision, Problem};
use crate::external::is_external;
use crate::report::bytes;
use dtrain_locate::{Refusal, Visible, visible};
use dtrain_telemetry::{GPU_INTERVAL, Gpu, GpuWatch, Gpus};
use dtrain_types::{Bytes, counted};
use std::path::PathBuf;
use std::sync::Arc;

/// What the ranks of this host train on.
#[derive(Clone, Debug, PartialEq)]
pub enum Chosen {
    /// The CPU, and why, where the user left it to dtrain.
    Cpu {
        /// For people; nothing where the user asked for the CPU.
        why: Option<String>,
    },
    /// These GPUs.
    Gpus {
        /// In the order of ranks.
        list: CudaList,
        /// What NVML told of them, in the same order; nothing where there is no NVML.
        gpus: Vec<Gpu>,
        /// Where NVML is.
        nvml: Option<PathBuf>,
        /// For people; nothing where the user named them.
        why: Option<String>,
    },
}

/// What `devices: auto` may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// GPUs, if a test of them has passed.
    ByTest,
    /// The CPU alone, for this reason.
    Cpu(&'static str),
}

/// What the choice depends on.
pub struct Host<C, I, V> {
    /// Whom this build trains on GPUs for.
    pub trains: OnGpus,
    /// A cheap count of the GPUs that may be used.
    pub count: C,
    /// All that can be known of them, which may take seconds.
    pub inventory: I,
    /// Whether they compute what they should, which may take a minute.
    pub verdict: V,
}

const WAY_OUT: &str =
    "`dtrain doctor` says what is missing and how to get it; devices=cpu trains on the cores";

/// Chooses. Nothing is asked of the driver unless it matters.
///
/// *Errors*: GPUs that were asked for and cannot be used, a precision that only GPUs have; the key is named, with a hint.
pub fn choose<C: Fn() -> u32, I: FnOnce() -> Inventory, V: FnOnce(&CudaList) -> Judged>(
    config: &Config,
    auto: Auto,
    host: Host<C, I, V>,
) -> Result<Chosen, Problem> {
    choose_devices(config, auto, host)?.suits(config)
}

fn choose_devices<C: Fn() -> u32, I: FnOnce() -> Inventory, V: FnOnce(&CudaList) -> Judged>(
    config: &Config,
    auto: Auto,
    host: Host<C, I, V>,
) -> Result<Chosen, Problem> {
    let problem = |(message, hint): (String, String)| config.problem("devices", message).hint(hint);
    let (word, needed) = match &config.world.devices {
        Devices::Cpu => return Ok(Chosen::Cpu { why: None }),
        Devices::Cuda(list) => return cuda(list, host.trains, &(host.inventory)()).map_err(problem),
        Devices::Auto => ("auto", false),
        Devices::All => ("all", true),
    };
    let there = |words: &str| match (host.count)() {
        0 => format!("{word}: no GPU is here"),
        1 => format!("{word}: one GPU is here, and {words}"),
        some => format!("{word}: {some} GPUs are here, and {words}"),
    };
    // Another program's passes were not tested.
    let trains = if is_external(config) { host.trains.min(OnGpus::WhoAsks) } else { host.trains };
    let stays = match (trains, needed, auto) {
        (OnGpus::Nobody, ..) => Some("this version does not train on GPUs yet"),
        (_, false, Auto::Cpu(why)) => Some(why),
        (OnGpus::WhoAsks, false, Auto::ByTest) => {
            Some("devices=all trains there; that is new, and not the default yet")
        }
        (OnGpus::WhoAsks, true, _) | (OnGpus::Tested | OnGpus::Everybody, ..) => None,
    };
    if let Some(words) = stays {
        return Ok(Chosen::Cpu { why: Some(there(words)) });
    }
    let is_tested = trains == OnGpus::Tested && !needed;
    if is_tested && (host.count)() == 0 {
        return Ok(Chosen::Cpu { why: Some(format!("{word}: no GPU is here")) });
    }
    let inventory = (host.inventory)();
    let nothing_here = inventory.on_bus == 0 && inventory.driver.found.is_none();
    match every(&inventory) {
        Ok(chosen) if is_tested => Ok(chosen.judged(host.verdict)),
        Ok(chosen) => Ok(chosen),
        Err(_) if nothing_here => Ok(Chosen::Cpu { why: Some(format!("{word}: no GPU is here")) }),
        Err(refused) if needed => Err(problem(refused)),
        Err((message, _)) => Ok(Chosen::Cpu { why: Some(format!("{word}: {message}")) }),
    }
}

/// How many GPUs `auto` or `all` comes to; 0 where [`choose`] takes the CPU or refuses.
pub fn count<C: Fn() -> u32, I: FnOnce() -> Inventory, V: FnOnce(&CudaList) -> Judged>(
    devices: &Devices,
    host: Host<C, I, V>,
) -> u32 {
    let is_tested = host.trains == OnGpus::Tested && *devices == Devices::Auto;
    let asks = matches!(host.trains, OnGpus::Nobody | OnGpus::WhoAsks) && *devices == Devices::Auto;
    if host.trains == OnGpus::Nobody || asks || (is_tested && (host.count)() == 0) {
        return 0;
    }
    let chosen = every(&(host.inventory)());
    let chosen = if is_tested { chosen.map(|chosen| chosen.judged(host.verdict)) } else { chosen };
    match chosen {
        Ok(Chosen::Gpus { list, .. }) => list.numbers().len() as u32,
        Ok(Chosen::Cpu { .. }) | Err(_) => 0,
    }
}

type Refused = (String, String);

/// All GPUs that may be used.
fn every(inventory: &Inventory) -> Result<Chosen, Refused> {
    let numbers = left(inventory).unwrap_or_default();
    let all: Vec<String> = (0..numbers.len()).map(|number| number.to_string()).collect();
    match Devices::parse(&format!("cuda:{}", all.join(","))) {
        Ok(Devices::Cuda(list)) => cuda(&list, OnGpus::Everybody, inventory),
        _ => Err(driver(inventory).err().unwrap_or_else(|| none_left(inventory))),
    }
}

/// The GPUs that may be used, by their numbers on this host; nothing if they cannot be told.
fn left(inventory: &Inventory) -> Option<Vec<u32>> {
    devices(inventory).map(|devices| devices.gpus())
}

fn devices(inventory: &Inventory) -> Option<Visible> {
    let gpus = inventory.gpus.as_ref().ok()?;
    let names: Vec<Option<String>> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    Some(visible(&names, inventory.visible.as_deref()))
}

fn none_left(inventory: &Inventory) -> Refused {
    match (&inventory.gpus, &inventory.visible) {
        (Err(why), _) => (format!("the GPUs cannot be told: {why}"), WAY_OUT.to_owned()),
        (Ok(gpus), Some(list)) if !gpus.is_empty() => (
            format!(
                "CUDA_VISIBLE_DEVICES={} leaves none of {}{}",
                list.to_string_lossy(),
                counted(gpus.len(), "GPU"),
                devices(inventory).and_then(|found| slice(&found)).unwrap_or_default()
            ),
            "unset it, or name the GPUs in it: CUDA_VISIBLE_DEVICES=0,1".to_owned(),
        ),
        _ => ("the driver knows no GPU".to_owned(), WAY_OUT.to_owned()),
    }
}

/// That slices are no GPUs to train on here, where the list begins with one.
fn slice(found: &Visible) -> Option<String> {
    let name = found.first_other().filter(|name| name.starts_with("MIG-"))?;
    Some(format!(": {name} is a slice of a GPU (MIG), which dtrain does not train on yet"))
}

fn driver(inventory: &Inventory) -> Result<(), Refused> {
    if inventory.driver.found.is_some() {
        return Ok(());
    }
    let old = inventory.driver.refused.iter().find_map(|file| match &file.why {
        Refusal::TooOld { version, least } => Some((version, least)),
        _ => None,
    });
    if let Some((version, least)) = old {
        let message =
            format!("the NVIDIA driver is too old: it serves CUDA {version}, at least {least} is needed");
        return Err((
            message,
            "update the driver (525 or newer); `dtrain doctor` shows it; devices=cpu trains on the cores"
                .into(),
        ));
    }
    let message = match inventory.on_bus {
        0 => "there is no NVIDIA GPU and no NVIDIA driver on this host".to_owned(),
        1 => "there is an NVIDIA GPU on this host, and no driver for it".to_owned(),
        some => format!("there are {some} NVIDIA GPUs on this host, and no driver for them"),
    };
    Err((message, WAY_OUT.to_owned()))
}

fn cuda(list: &CudaList, trains: OnGpus, inventory: &Inventory) -> Result<Chosen, Refused> {
    driver(inventory)?;
    let mut chosen = Vec::new();
    // Without NVML the driver will tell later what is not there.
    if let (Some(left), Ok(gpus)) = (left(inventory), &inventory.gpus) {
        if left.is_empty() {
            return Err(none_left(inventory));
        }
        for number in list.numbers() {
            let Some(gpu) = left.get(*number as usize) else {
                return Err(out_of_range(*number, left.len(), inventory));
            };
            chosen.extend(gpus.iter().find(|known| known.index == *gpu).cloned());
        }
    }
    if trains == OnGpus::Nobody {
        let message = format!("{list}: this version of dtrain does not train on GPUs yet");
        let hint = "devices=cpu trains on the cores; `dtrain run` starts a PyTorch script on the GPUs";
        return Err((message, hint.to_owned()));
    }
    Ok(Chosen::Gpus { list: list.clone(), gpus: chosen, nvml: inventory.nvml.clone(), why: None })
}

fn out_of_range(number: u32, count: usize, inventory: &Inventory) -> Refused {
    let which = match &inventory.visible {
        None => "this host has".to_owned(),
        Some(list) => format!("CUDA_VISIBLE_DEVICES={} leaves", list.to_string_lossy()),
    };
    let gpus = if count == 1 { "one GPU" } else { "GPUs" };
    let known = match count {
        1 => "it is cuda:0".to_owned(),
        _ => format!("they are cuda:0 to cuda:{}", count - 1),
    };
    let many = if count == 1 { String::new() } else { format!("{count} ") };
    (
        format!("there is no cuda:{number}: {which} {many}{gpus}"),
        format!("{known}, in the order of nvidia-smi; `dtrain doctor` lists them"),
    )
}

impl Chosen {
    /// These GPUs, if a test of them has passed; else the CPU, and why.
    fn judged(self, verdict: impl FnOnce(&CudaList) -> Judged) -> Self {
        let Self::Gpus { list, gpus, nvml, .. } = self else { return self };
        let Judged { verdict, kept } = verdict(&list);
        let (is, [they, them]) = match gpus.len() {
            1 => ("one GPU is here".to_owned(), ["it", "it"]),
            some => (format!("{some} GPUs are here"), ["they", "them"]),
        };
        let why = match (&verdict, kept) {
            (TestVerdict::Passed, Ok(file)) => {
                let why = Some(format!("auto: {is}, and the test of {them} has passed ({})", file.display()));
                return Self::Gpus { list, gpus, nvml, why };
            }
            (TestVerdict::Passed, Err(why)) => {
                let why =
                    Some(format!("auto: {is}, and the test of {them} has passed; that is not kept: {why}"));
                return Self::Gpus { list, gpus, nvml, why };
            }
            (TestVerdict::Failed(words), _) => format!("the test of {them} has failed: {words}"),
            (TestVerdict::Unknown(words), _) => format!("{they} cannot be tested: {words}"),
        };
        Self::Cpu { why: Some(format!("auto: {is}, and {why}; devices=all trains there all the same")) }
    }

    /// The same for a configuration whose model `auto` cannot train there; it has to suit the precision too.
    ///
    /// *Errors*: a precision that only GPUs have.
    pub fn unless(self, lacking: Result<(), Problem>, config: &Config) -> Result<Self, Problem> {
        match (&self, lacking) {
            (Self::Gpus { why: Some(_), .. }, Err(problem)) => {
                let why = Some(format!("auto: {}", problem.message));
                Self::Cpu { why }.suits(config)
            }
            _ => Ok(self),
        }
    }

    /// Itself, if it has the precision that is asked for.
    ///
    /// *Errors*: a precision that only GPUs have.
    fn suits(self, config: &Config) -> Result<Self, Problem> {
        match (&self, config.precision) {
            // A program of its own rounds by itself.
            _ if is_external(config) => Ok(self),
            (Self::Cpu { why }, halves @ (Precision::Bf16 | Precision::F16)) => {
                let why = why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                let words = format!("{} is for GPUs, and this host trains on its CPU{why}", halves.name());
                let problem = config.problem("precision", words);
                Err(problem
                    .hint("devices=cuda:0 or devices=all trains on GPUs; precision=f32 is what a CPU has"))
            }
            _ => Ok(self),
        }
    }

    /// The GPUs, if it is some.
    #[must_use]
    pub fn cuda(&self) -> Option<CudaList> {
        match self {
            Self::Cpu { .. } => None,
            Self::Gpus { list, .. } => Some(list.clone()),
        }
    }

    /// Begins to read the GPUs that were chosen, if there are some and they can be read.
    #[must_use]
    pub fn watch(&self) -> Option<Arc<GpuWatch>> {
        let Self::Gpus { gpus, nvml: Some(library), .. } = self else { return None };
        let numbers = gpus.iter().map(|gpu| gpu.index).collect();
        let all = Gpus::open(library).map_err(|error| error.to_string());
        let watch = all
            .and_then(|all| GpuWatch::start(all, numbers, GPU_INTERVAL).map_err(|error| error.to_string()));
        // A run goes on without readings.
        watch.map(Arc::new).inspect_err(|error| tracing::warn!(%error, "the GPUs are not read")).ok()
    }

    /// Which of the GPUs others compute on too: that is allowed, and slow.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let Self::Gpus { list, gpus, .. } = self else { return None };
        let both = list.numbers().iter().zip(gpus);
        let taken = both.filter(|(_, gpu)| gpu.processes.as_ref().is_some_and(|pids| !pids.is_empty()));
        let taken: Vec<String> = taken.map(|(number, _)| format!("cuda:{number}")).collect();
        (!taken.is_empty())
            .then(|| format!("others compute on {} too; `dtrain doctor` shows who", taken.join(" and ")))
    }

    /// Whether the GPUs have room for their ranks, as far as NVML tells.
    ///
    /// *Errors*: the first one that has not, and who else uses it.
    pub fn has_room(&self, config: &Config, a_rank: Bytes) -> Result<(), Problem> {
        let Self::Gpus { list, gpus, .. } = self else { return Ok(()) };
        let ranks = config.world.ranks;
        for (number, gpu) in list.numbers().iter().zip(gpus) {
            let here = (0..ranks).filter(|place| list.of_rank(*place, ranks) == *number).count() as u64;
            let (Some(all), Some(used)) = (gpu.memory, gpu.now.memory_used) else { continue };
            let (free, needed) = (all.0.saturating_sub(used.0), a_rank.0.saturating_mul(here));
            if needed <= free {
                continue;
            }
            let message = format!(
                "cuda:{number} has {} free of {}, and {} {}",
                bytes(free),
                bytes(all.0),
                if here == 1 { "1 rank needs".to_owned() } else { format!("{here} ranks need") },
                bytes(needed)
            );
            let others = gpu.processes.as_deref().unwrap_or_default();
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            let hint = match others.is_empty() {
                true => "a smaller micro_batch or fewer ranks need less; `dtrain plan` shows what takes it"
                    .to_owned(),
                false => format!("process {} uses it: end it, or name another GPU", others.join(", ")),
            };
            return Err(config.problem("devices", message).hint(hint));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
