//! What training on GPUs needs: GPUs on the bus, a driver, the libraries, and GPUs that may be used.

use super::check::{Check, Verdict};
use super::probe;
use crate::config::{Devices, ON_GPUS, OnGpus};
use crate::gpus::{Asking, Judged, TestVerdict as Tested, of_child, on_the_bus};
use crate::report::bytes;
use dtrain_locate::{Finding, Library, Refusal, visible};
use dtrain_telemetry::{Gpu, Pair, Route};
use dtrain_types::counted;
use serde_json::json;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The oldest generation that the kernels are compiled for in tests: Ampere.
const OLDEST: (u32, u32) = (8, 0);

/// What was seen of GPUs.
pub(super) struct SeenGpus {
    pub checks: Vec<Check>,
    /// How many may be used.
    pub usable: u32,
    /// What stands in the way of training on them.
    pub missing: Option<String>,
}

/// Looks for the libraries all at once, then at the GPUs.
pub(super) fn look(patience: Duration, asking: Asking) -> SeenGpus {
    let findings: Vec<Finding> = thread::scope(|scope| {
        let children = Library::ALL.map(|library| scope.spawn(move || probe::find(library, patience)));
        children.map(|child| child.join().expect("a probe does not panic")).into()
    });
    let of =
        |library| findings.iter().find(|finding| finding.library == library).expect("all were looked for");
    let bus = on_the_bus();
    let driver = of(Library::Driver);
    let cuda = driver.found.as_ref().map(|found| found.version.number(0));
    let told = of(Library::Nvml).found.as_ref().map(|found| probe::gpus(&found.path, patience));
    let mut checks = Vec::new();
    // In a container and under Windows the bus may be hidden, and the GPUs there all the same.
    if !bus.is_empty() || !matches!(&told, Some(Ok(told)) if !told.gpus.is_empty()) {
        checks.push(on_bus(&bus));
    }
    checks.extend(findings.iter().map(|finding| library(finding, cuda, &bus)));
    let mut usable = 0;
    match told {
        Some(Ok(told)) => {
            let (check, left) = list(&told.gpus);
            usable = left;
            checks.push(check);
            checks.extend(told.gpus.iter().map(one));
            checks.extend(links(&told.pairs));
        }
        Some(Err(why)) => {
            checks.push(Check::missing("GPUs", why).hint("`nvidia-smi` and `dmesg` may say more"))
        }
        None => {
            checks.push(Check::missing("GPUs", "unknown without NVML").hint("it comes with NVIDIA's driver"))
        }
    }
    let nccl = of(Library::Nccl).found.as_ref().map(|found| found.path.as_path());
    if usable > 0 && cuda.is_some() && of(Library::Nvrtc).found.is_some() {
        checks.extend(verdicts(usable, nccl, asking));
    }
    let missing = missing(&checks, usable);
    SeenGpus { checks, usable, missing }
}

/// The first thing without which no GPU trains.
fn missing(checks: &[Check], usable: u32) -> Option<String> {
    let needed = ["CUDA driver", "NVRTC", "GPUs", "GPU test"];
    let lacks =
        |name: &&str| checks.iter().find(|check| check.name == *name && check.verdict == Verdict::Missing);
    let lacking = needed.iter().find_map(lacks).map(|check| format!("{}: {}", check.name, check.found));
    let none = || (usable == 0).then(|| "no GPU may be used here".to_owned());
    let unable = || {
        (ON_GPUS == OnGpus::Nobody).then(|| "this version of dtrain does not train on GPUs yet".to_owned())
    };
    lacking.or_else(none).or_else(unable)
}

fn on_bus(bus: &[String]) -> Check {
    let check = match bus.len() {
        0 => Check::warn("bus", "no NVIDIA GPU is on the bus of this machine")
            .hint("training on the CPU needs none; in a container or a virtual machine a GPU has to be passed through"),
        count => Check::ok("bus", format!("{} ({})", counted(count, "NVIDIA GPU"), bus.join(", "))),
    };
    check.details(json!({"addresses": bus}))
}

/// Whether the GPUs and NCCL compute what they should, and what `auto` makes of it.
fn verdicts(usable: u32, nccl: Option<&Path>, asking: Asking) -> Vec<Check> {
    let numbers: Vec<String> = (0..usable).map(|number| number.to_string()).collect();
    let Ok(Devices::Cuda(list)) = Devices::parse(&format!("cuda:{}", numbers.join(","))) else {
        return Vec::new();
    };
    let gpu = of_child(&list, None, asking);
    let passed = gpu.verdict == Tested::Passed;
    let mut checks = vec![verdict(
        "GPU test",
        &gpu,
        asking,
        ["devices: auto trains there", "devices: auto trains on the CPU"],
    )];
    if let (true, 2.., Some(path)) = (passed, usable, nccl) {
        let nccl = of_child(&list, Some(path), asking);
        let auto = ["backend: auto takes it", "backend: auto takes gradients through the host"];
        checks.push(verdict("NCCL test", &nccl, asking, auto));
    }
    checks
}

/// A verdict, and which of two things it comes to.
fn verdict(name: &'static str, judged: &Judged, asking: Asking, [then, otherwise]: [&str; 2]) -> Check {
    let Judged { verdict, kept } = judged;
    let check = match (verdict, asking, kept) {
        (Tested::Passed, _, Ok(file)) => Check::ok(name, format!("passed: {then} ({})", file.display())),
        (Tested::Passed, _, Err(why)) => {
            Check::warn(name, format!("passed: {then}")).hint(format!("it is tested each time: {why}"))
        }
        (Tested::Failed(words), _, kept) => {
            let file = kept
                .as_ref()
                .map_or(String::new(), |file| format!("; without {} it is tested again", file.display()));
            Check::missing(name, format!("failed: {words}"))
                .hint(format!("{otherwise}; a newer driver may help{file}"))
        }
        (Tested::Unknown(_), Asking::Remembers, _) => {
            Check::warn(name, "not tested yet").hint("`dtrain doctor --gpu` does, and so does the first run")
        }
        (Tested::Unknown(words), Asking::Tests, _) => {
            Check::missing(name, format!("cannot be tested: {words}")).hint(otherwise.to_owned())
        }
    };
    check.details(json!(judged))
}

/// What dtrain does with a library, for those that it can do without.
fn use_of(library: Library) -> Option<&'static str> {
    match library {
        Library::CublasLt => Some(
            "multiplies large matrices of bf16, f16 and tf32 where it is faster than dtrain's own kernels",
        ),
        Library::Cudnn => Some(
            "convolves in bf16, f16 and tf32, and does attention in bf16 and f16, where it is faster than dtrain's own kernels",
        ),
        Library::Nccl => Some("carries gradients between GPUs; without it they go through the host"),
        Library::Nvrtc => Some("compiles dtrain's kernels"),
        Library::Driver | Library::Nvml => None,
    }
}

/// A library, and how to get one that does. `cuda` is the major version that the driver serves.
fn library(finding: &Finding, cuda: Option<u32>, bus: &[String]) -> Check {
    let name = finding.library.name();
    let details = json!(finding);
    let get = how_to_get(finding.library, cuda, bus);
    let refused = |code| {
        finding.refused.iter().any(|file| matches!(&file.why, Refusal::Failed { code: c, .. } if *c == code))
    };
    let get = match finding.library {
        // NVML_ERROR_LIB_RM_VERSION_MISMATCH and NVML_ERROR_DRIVER_NOT_LOADED.
        Library::Nvml if refused(18) => {
            "the driver was updated, and the kernel still runs the old one: reboot, or load its modules anew".to_owned()
        }
        Library::Nvml if refused(9) => {
            "the kernel's part of the driver is not loaded: `modprobe nvidia`; `dmesg` says why it does not come".to_owned()
        }
        _ => get,
    };
    let Some(found) = &finding.found else {
        let too_old = finding.refused.iter().find(|file| matches!(file.why, Refusal::TooOld { .. }));
        let found = too_old
            .map_or_else(|| finding.sentence(), |file| format!("{} {}", file.path.display(), file.why));
        let get = match use_of(finding.library) {
            Some(words) => format!("{words}; {get}"),
            None => get,
        };
        return Check::missing(name, found).hint(get).details(details);
    };
    let mut told = format!("{} at {} ({})", found.version, found.path.display(), found.origin);
    if finding.library == Library::Driver {
        told = format!("serves CUDA {told}");
    }
    if let Some(words) = use_of(finding.library) {
        told += &format!(": {words}");
    }
    // These two are made for one CUDA each; NCCL and cuDNN bring what they need.
    let paired = matches!(finding.library, Library::Nvrtc | Library::CublasLt);
    let check = match cuda {
        Some(cuda) if paired && found.version.number(0) > cuda => Check::warn(name, told)
            .hint(format!("it is newer than the CUDA {cuda} that the driver serves: {get}")),
        _ if finding.refused.is_empty() => Check::ok(name, told),
        _ => {
            let first = &finding.refused[0];
            Check::ok(name, told).hint(format!("passed over: {} {}", first.path.display(), first.why))
        }
    };
    check.details(details)
}

fn how_to_get(library: Library, cuda: Option<u32>, bus: &[String]) -> String {
    let elsewhere = "if it is somewhere else, DTRAIN_LIBRARY_PATH names its folder";
    let package = |cu12: &str, cu13: &str| {
        let name = if cuda.is_some_and(|cuda| cuda < 13) { cu12 } else { cu13 };
        format!("`pip install {name}`, or NVIDIA's toolkit; {elsewhere}")
    };
    match library {
        Library::Driver | Library::Nvml if !bus.is_empty() => {
            "install NVIDIA's driver (525 or newer) with the package manager of your system; in a container start it with \
             `--gpus all` and NVIDIA's container toolkit on the host"
                .to_owned()
        }
        Library::Driver | Library::Nvml => "it comes with NVIDIA's driver, for which there must be a GPU".to_owned(),
        Library::Nvrtc => package("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"),
        Library::CublasLt => package("nvidia-cublas-cu12", "nvidia-cublas"),
        Library::Cudnn => package("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
        Library::Nccl => package("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    }
}

/// How many GPUs there are, and how many of them may be used.
fn list(gpus: &[Gpu]) -> (Check, u32) {
    let names: Vec<Option<String>> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let list = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let found = visible(&names, list.as_deref());
    let (left, ended_at) = (found.gpus(), found.first_other().map(str::to_owned).or(found.ended_at));
    let usable = u32::try_from(left.len()).unwrap_or(u32::MAX);
    let words = list.as_ref().map(|list| list.to_string_lossy().into_owned());
    let details = json!({"count": gpus.len(), "visible": left, "cuda_visible_devices": words});
    let mut found = counted(gpus.len(), "GPU");
    if let Some(words) = &words {
        found += &format!(", CUDA_VISIBLE_DEVICES={words} leaves {}", left.len());
    }
    let check = match (left.as_slice(), ended_at) {
        ([], _) if gpus.is_empty() => Check::missing("GPUs", "the driver knows none").hint("`nvidia-smi -L` lists them; `dmesg` may say more"),
        (_, Some(entry)) => {
            let why = match entry.starts_with("MIG-") {
                true => "is a slice of a GPU (MIG), which dtrain does not know",
                false => "names no GPU of this host",
            };
            let verdict = if usable == 0 { Verdict::Missing } else { Verdict::Warn };
            Check::new("GPUs", verdict, found).hint(format!("{entry:?} {why}, and the list ends there"))
        }
        ([], None) => Check::missing("GPUs", found).hint("unset it, or name the GPUs: CUDA_VISIBLE_DEVICES=0,1"),
        _ if mixed(gpus) && std::env::var_os("CUDA_DEVICE_ORDER").is_none_or(|order| order != "PCI_BUS_ID") => {
            Check::warn("GPUs", found).hint(
                "they are of different models: without CUDA_DEVICE_ORDER=PCI_BUS_ID other programs number them by speed, \
                 not as nvidia-smi does",
            )
        }
        _ => Check::ok("GPUs", found),
    };
    (check.details(details), usable)
}

fn mixed(gpus: &[Gpu]) -> bool {
    gpus.windows(2).any(|two| two[0].name != two[1].name)
}

/// A GPU is too old if the kernels were never compiled for it, and taken if somebody computes on it, or more of its memory is used than a driver needs.
fn one(gpu: &Gpu) -> Check {
    let now = &gpu.now;
    let mut found = vec![format!("{}: {}", gpu.index, gpu.name.as_deref().unwrap_or("of unknown model"))];
    found.extend(gpu.capability.map(|(major, minor)| format!("sm_{major}{minor}")));
    if let (Some(used), Some(all)) = (now.memory_used, gpu.memory) {
        found.push(format!("{} of {} used", bytes(used.0), bytes(all.0)));
    }
    found.extend(now.utilisation.map(|share| format!("{share} % busy")));
    found.extend(now.temperature.map(|degrees| format!("{degrees} C")));
    found.extend(now.power.map(|watts| format!("{watts:.0} W")));
    let found = found.join(", ");
    let others = gpu.processes.as_deref().unwrap_or_default();
    let check = match others {
        _ if gpu.capability.is_some_and(|capability| capability < OLDEST) => Check::warn("GPU", found).hint(
            "it is older than Ampere (sm_80), the oldest for which dtrain's kernels are compiled and bf16 is in hardware",
        ),
        [] => Check::ok("GPU", found),
        pids => {
            let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
            Check::warn("GPU", found)
                .hint(format!("in use by process {}; `nvidia-smi` shows whose", pids.join(", ")))
        }
    };
    check.details(json!(gpu))
}

fn links(pairs: &[Pair]) -> Option<Check> {
    if pairs.is_empty() {
        return None;
    }
    let count = |wanted| pairs.iter().filter(|pair| pair.route == wanted).count();
    let routes = [
        (Some(Route::Nvlink), "by NVLink"),
        (Some(Route::Switch), "by a switch of the bus"),
        (Some(Route::Node), "through one processor"),
        (Some(Route::System), "between processors"),
        (None, "unknown"),
    ];
    let routes = routes.into_iter().filter(|(route, _)| count(*route) > 0);
    let found: Vec<String> =
        routes.map(|(route, words)| format!("{} {words}", counted(count(route), "pair"))).collect();
    let strangers = pairs.iter().filter(|pair| pair.peers == Some(false)).count();
    let found = found.join(", ");
    let check = match strangers {
        0 => Check::ok("GPU links", found),
        some => Check::warn("GPU links", found).hint(format!(
            "{} may not read each other's memory, so data goes through the host: slower, and right; in a virtual machine \
             or with IOMMU on this is usual (`nvidia-smi topo -p2p r`)",
            counted(some, "pair")
        )),
    };
    Some(check.details(json!({"pairs": pairs})))
}
