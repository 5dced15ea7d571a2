//! From the key `devices` and what the host has to what its ranks train on, or to why they cannot.

use super::amd::AmdGpus;
use super::brought::OfProgram;
use super::chosen::{Auto, Chosen, Refused, are_here};
use super::inventory::Inventory;
use super::judged::Judged;
use super::rocm;
use crate::config::{Config, CudaList, Devices, Offload, OnGpus, PassesBy, Problem};
use crate::external::BuiltFor;
use dtrain_locate::{Refusal, Visible, visible};
use dtrain_types::counted;

/// What the choice depends on.
pub struct Host<C, I, V> {
    /// Whom this build trains on GPUs for.
    pub trains: OnGpus,
    /// A cheap count of NVIDIA's GPUs that may be used.
    pub count: C,
    /// All that can be known of them, which may take seconds.
    pub inventory: I,
    /// Whether they compute what they should, which may take a minute.
    pub verdict: V,
    /// The program that makes the passes, where another one does.
    pub program: OfProgram,
    /// AMD's GPUs.
    pub amd: AmdGpus,
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
    let chosen = devices_of(&config.world.devices, config.passes_by(), auto, host);
    chosen.map_err(|(message, hint)| config.problem("devices", message).hint(hint))?.suits(config)
}

/// How many GPUs `auto` or `all` comes to; 0 where [`choose`] takes the CPU or refuses.
pub fn count<C: Fn() -> u32, I: FnOnce() -> Inventory, V: FnOnce(&CudaList) -> Judged>(
    devices: &Devices,
    passes: PassesBy,
    host: Host<C, I, V>,
) -> u32 {
    let chosen = devices_of(devices, passes, Auto::ByTest, host);
    chosen.ok().and_then(|chosen| chosen.cuda()).map_or(0, |list| list.numbers().len() as u32)
}

fn devices_of<C: Fn() -> u32, I: FnOnce() -> Inventory, V: FnOnce(&CudaList) -> Judged>(
    devices: &Devices,
    passes: PassesBy,
    auto: Auto,
    host: Host<C, I, V>,
) -> Result<Chosen, Refused> {
    if passes != PassesBy::Kernels && host.program.built_for == BuiltFor::Amd {
        return rocm::choose(devices, auto, &host.amd, host.program.reaches);
    }
    let strangers = strangers(&host.amd, passes);
    let (word, needed) = match devices {
        Devices::Cpu => return Ok(Chosen::Cpu { why: None }),
        Devices::Cuda(list) => {
            let inventory = (host.inventory)();
            let chosen = cuda(list, host.trains, &inventory);
            return chosen.map_err(|refused| strangers.filter(|_| inventory.is_bare()).unwrap_or(refused));
        }
        Devices::Auto => ("auto", false),
        Devices::All => ("all", true),
    };
    let cores = |words: String| Ok(Chosen::Cpu { why: Some(format!("{word}: {words}")) });
    let none = || strangers.as_ref().map_or("no GPU is here".to_owned(), |(words, _)| words.clone());
    let there = |words: &str| match (host.count)() {
        0 => none(),
        some => format!("{}, and {words}", are_here(some as usize)),
    };
    let stays = match (host.trains, needed, auto) {
        (OnGpus::Nobody, ..) => Some("this version does not train on GPUs yet"),
        (_, false, Auto::Cpu(why)) => Some(why),
        (OnGpus::WhoAsks, false, Auto::ByTest) => {
            Some("devices=all trains there; that is new, and not the default yet")
        }
        (OnGpus::WhoAsks, true, _) | (OnGpus::Tested | OnGpus::Everybody, ..) => None,
    };
    if let Some(words) = stays {
        return cores(there(words));
    }
    let is_tested = host.trains == OnGpus::Tested && !needed;
    if is_tested && (host.count)() == 0 {
        return cores(none());
    }
    let is_asked = matches!(passes, PassesBy::Program(_)) && !needed;
    if let Some(Err(why)) = is_asked.then(host.program.reaches) {
        return cores(there(&why));
    }
    let inventory = (host.inventory)();
    match every(&inventory) {
        // Nothing of dtrain's own runs on them.
        Ok(chosen) if is_tested && state_is_with_the_host(passes, host.program.kernels) => {
            Ok(chosen.untested("PyTorch alone computes there: the state is in the host's memory"))
        }
        Ok(chosen) if is_tested => Ok(chosen.judged(host.verdict)),
        Ok(chosen) => Ok(chosen),
        Err(_) if inventory.is_bare() => match strangers {
            Some(strangers) if needed => Err(strangers),
            _ => cores(none()),
        },
        Err(refused) if needed => Err(refused),
        Err((message, _)) => cores(message),
    }
}

/// Whether the state of a program's model will lie in the host's memory.
fn state_is_with_the_host(passes: PassesBy, kernels: fn() -> Result<(), String>) -> bool {
    match passes {
        PassesBy::Kernels | PassesBy::Program(Offload::Nothing) => false,
        PassesBy::Program(Offload::State) => true,
        PassesBy::Program(Offload::Auto) => kernels().is_err(),
    }
}

/// That AMD's GPUs are here and are not for these passes.
fn strangers(amd: &AmdGpus, passes: PassesBy) -> Option<Refused> {
    let (why, way) = match passes {
        PassesBy::Kernels => (
            "dtrain's own kernels are NVIDIA's",
            "a PyTorch program trains on them, with ROCm's PyTorch; devices=cpu trains on the cores",
        ),
        PassesBy::Program(_) => (
            "this PyTorch is not ROCm's",
            "a build of PyTorch for ROCm computes on them; devices=cpu trains on the cores",
        ),
    };
    (amd.count() > 0).then(|| (format!("{}, and {why}", amd.are_here()), way.to_owned()))
}

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

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
