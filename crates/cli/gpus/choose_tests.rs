//! The choice of devices on made-up hosts.

use super::super::amd::tests::healthy as amd_gpus;
use super::super::judged::TestVerdict;
use super::*;
use crate::config::Machine;
use crate::fake_libraries;
use dtrain_locate::{Finding, Found, Library, Origin, Refused as File, Version};
use dtrain_telemetry::{Gpu, GpuReadings};
use dtrain_types::Bytes;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        name: Some("Made-up".into()),
        uuid: Some(format!("GPU-{index}")),
        capability: Some((9, 0)),
        memory: Some(Bytes(1000 * MIB)),
        processes: Some(Vec::new()),
        now: GpuReadings { memory_used: Some(Bytes(100 * MIB)), ..GpuReadings::default() },
    }
}

fn driver_of(version: Option<&str>) -> Finding {
    let found = version.map(|text| Found {
        path: "/lib/libcuda.so.1".into(),
        origin: Origin::Standard,
        version: Version::parse(text).unwrap(),
    });
    Finding { library: Library::Driver, found, refused: Vec::new(), looked: Vec::new() }
}

fn healthy(count: u32) -> Inventory {
    let gpus = Ok((0..count).map(gpu).collect());
    Inventory { on_bus: count as usize, driver: driver_of(Some("13.0")), gpus, nvml: None, visible: None }
}

fn bare(on_bus: usize) -> Inventory {
    Inventory {
        on_bus,
        driver: driver_of(None),
        gpus: Err("NVML: not found in 3 places".into()),
        nvml: None,
        visible: None,
    }
}

fn config(arguments: &[&str]) -> Config {
    Config::parse(None, arguments, Machine { cores: 2, gpus: |_, _| 0 }).unwrap()
}

fn choice(devices: &str, trains: OnGpus, inventory: Inventory) -> Result<Chosen, Problem> {
    let count = inventory.gpus.as_ref().map_or(0, Vec::len) as u32;
    choose(&config(&[&format!("devices={devices}")]), Auto::ByTest, host_of(trains, count, inventory, passed))
}

fn passed() -> Judged {
    Judged { verdict: TestVerdict::Passed, kept: Ok("/cache/gpu.json".into()) }
}

fn host_of(
    trains: OnGpus,
    count: u32,
    inventory: Inventory,
    verdict: impl FnOnce() -> Judged,
) -> Host<impl Fn() -> u32, impl FnOnce() -> Inventory, impl FnOnce(&CudaList) -> Judged> {
    let (count, inventory, verdict) = (move || count, || inventory, |_: &CudaList| verdict());
    Host { trains, count, inventory, verdict, program: STAGES, amd: AmdGpus::default() }
}

/// There is no program that makes the passes.
const STAGES: OfProgram = OfProgram {
    built_for: BuiltFor::Cpus,
    reaches: || panic!("there is no program to be asked"),
    kernels: || panic!("it is tested whether they compute, not whether they can be had"),
};

/// PyTorch for NVIDIA's GPUs, on a host that lacks nothing.
const PYTORCH: OfProgram = OfProgram { built_for: BuiltFor::Nvidia, reaches: || Ok(()), kernels: || Ok(()) };

#[track_caller]
fn refused(devices: &str, trains: OnGpus, inventory: Inventory, words: &str) {
    let problem = choice(devices, trains, inventory).unwrap_err();
    assert!(problem.message.contains(words), "{problem}");
    assert_eq!(problem.key.as_deref(), Some("devices"));
    assert!(problem.hint.is_some_and(|hint| hint.contains("devices=cpu")
        || hint.contains("doctor")
        || hint.contains("CUDA_VISIBLE")));
}

#[track_caller]
fn on_cpu(devices: &str, trains: OnGpus, inventory: Inventory, words: Option<&str>) {
    let why = words.map(str::to_owned);
    assert_eq!(choice(devices, trains, inventory).unwrap(), Chosen::Cpu { why });
}

#[test]
fn gpus_that_are_asked_for_and_cannot_be_used_are_refused_with_the_first_reason() {
    refused("cuda:0", OnGpus::Nobody, bare(0), "there is no NVIDIA GPU and no NVIDIA driver on this host");
    refused(
        "cuda:0",
        OnGpus::Everybody,
        bare(1),
        "there is an NVIDIA GPU on this host, and no driver for it",
    );
    let mut old = bare(2);
    let why = Refusal::TooOld { version: Version::new(&[11, 4]), least: Version::new(&[12, 0]) };
    old.driver.refused.push(File { path: "/lib/libcuda.so.1".into(), why });
    refused(
        "cuda:0",
        OnGpus::Everybody,
        old,
        "the NVIDIA driver is too old: it serves CUDA 11.4, at least 12.0 is needed",
    );
    refused("cuda:0,2", OnGpus::Everybody, healthy(2), "there is no cuda:2: this host has 2 GPUs");
    refused("cuda:1", OnGpus::Everybody, healthy(1), "there is no cuda:1: this host has one GPU");
    refused(
        "cuda:1",
        OnGpus::Everybody,
        Inventory { visible: Some("1".into()), ..healthy(4) },
        "CUDA_VISIBLE_DEVICES=1 leaves one GPU",
    );
    refused(
        "cuda:0",
        OnGpus::Everybody,
        Inventory { visible: Some("".into()), ..healthy(4) },
        "leaves none of 4 GPUs",
    );
    refused("cuda:0", OnGpus::Everybody, healthy(0), "the driver knows no GPU");
    refused(
        "cuda:0",
        OnGpus::Nobody,
        healthy(2),
        "cuda:0: this version of dtrain does not train on GPUs yet",
    );
}

#[test]
fn gpus_are_counted_among_those_that_are_visible() {
    let inventory = Inventory { visible: Some("3,GPU-1".into()), ..healthy(4) };
    let Ok(Chosen::Gpus { list, gpus, .. }) = choice("cuda:1,0", OnGpus::Everybody, inventory) else {
        panic!("refused")
    };
    assert_eq!(list.numbers(), [1, 0]);
    assert_eq!(gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn what_is_left_to_dtrain_says_what_it_chose() {
    on_cpu("cpu", OnGpus::Everybody, healthy(2), None);
    on_cpu("auto", OnGpus::Nobody, bare(0), Some("auto: no GPU is here"));
    on_cpu("auto", OnGpus::Everybody, bare(0), Some("auto: no GPU is here"));
    on_cpu("all", OnGpus::Everybody, bare(0), Some("all: no GPU is here"));
    on_cpu(
        "auto",
        OnGpus::Nobody,
        healthy(2),
        Some("auto: 2 GPUs are here, and this version does not train on GPUs yet"),
    );
    on_cpu(
        "all",
        OnGpus::Nobody,
        healthy(1),
        Some("all: one GPU is here, and this version does not train on GPUs yet"),
    );
    on_cpu(
        "auto",
        OnGpus::Everybody,
        bare(2),
        Some("auto: there are 2 NVIDIA GPUs on this host, and no driver for them"),
    );
    refused(
        "all",
        OnGpus::Everybody,
        bare(2),
        "there are 2 NVIDIA GPUs on this host, and no driver for them",
    );
    for devices in ["auto", "all"] {
        let inventory = Inventory { visible: Some("1,3".into()), ..healthy(4) };
        let Ok(Chosen::Gpus { list, gpus, .. }) = choice(devices, OnGpus::Everybody, inventory) else {
            panic!("refused")
        };
        assert_eq!((list.numbers(), gpus[1].index), (&[0, 1][..], 3), "{devices}");
    }
}

#[test]
fn a_gpu_without_room_is_refused_with_who_uses_it() {
    let mut inventory = healthy(2);
    let gpus = inventory.gpus.as_mut().unwrap();
    gpus[1].now.memory_used = Some(Bytes(800 * MIB));
    gpus[1].processes = Some(vec![4242]);
    let Ok(chosen) = choice("cuda:0,1", OnGpus::Everybody, inventory) else { panic!("refused") };
    assert_eq!(chosen.note().as_deref(), Some("others compute on cuda:1 too; `dtrain doctor` shows who"));
    let two = config(&["devices=cuda:0,1"]);
    assert_eq!(two.world.ranks, 2, "one rank a GPU");
    assert_eq!(chosen.has_room(&two, Bytes(200 * MIB)), Ok(()));
    let problem = chosen.has_room(&two, Bytes(201 * MIB)).unwrap_err();
    assert!(
        problem.message.starts_with("cuda:1 has 200.0 MiB free of 1000.0 MiB, and 1 rank needs 201.0 MiB"),
        "{problem}"
    );
    assert_eq!(problem.hint.as_deref(), Some("process 4242 uses it: end it, or name another GPU"));
    let four = config(&["devices=cuda:0,1", "ranks=4"]);
    assert!(chosen.has_room(&four, Bytes(101 * MIB)).unwrap_err().message.contains("2 ranks need 202.0 MiB"));
}

#[test]
fn gpus_that_were_chosen_are_read_while_a_run_goes_on() {
    let Some(workshop) = fake_libraries::Workshop::open() else { return };
    let nvml = Some(workshop.build("libnvidia-ml.so.1", fake_libraries::FAKE_NVML));
    let inventory = Inventory { nvml, visible: Some("1".into()), ..healthy(2) };
    let watch = choice("cuda:0", OnGpus::Everybody, inventory).unwrap().watch().expect("NVML starts");
    let sample = watch.after(0);
    assert_eq!(
        sample.gpus.iter().map(|(gpu, now)| (*gpu, now.temperature)).collect::<Vec<_>>(),
        [(1, Some(51))]
    );
    // A run goes on without readings.
    let without = Inventory { nvml: Some("/nowhere/libnvidia-ml.so.1".into()), ..healthy(2) };
    assert!(choice("cuda:0", OnGpus::Everybody, without).unwrap().watch().is_none());
    assert!(choice("cpu", OnGpus::Everybody, healthy(2)).unwrap().watch().is_none());
}

#[test]
fn auto_and_all_begin_with_a_rank_for_each_gpu_that_they_come_to() {
    let counted = |devices: &str, trains: OnGpus, inventory: Inventory| {
        let there = inventory.gpus.as_ref().map_or(0, Vec::len) as u32;
        let devices = Devices::parse(devices).unwrap();
        count(&devices, PassesBy::Kernels, host_of(trains, there, inventory, passed))
    };
    let visible = |list: &str| Inventory { visible: Some(list.into()), ..healthy(4) };
    let mut old = healthy(4);
    old.driver.found = None;
    for (machine, gpus) in [
        (healthy(4), 4),
        (visible("2,0"), 2),
        (visible("GPU-3"), 1),
        (visible(""), 0),
        (visible("MIG-3"), 0),
        (visible("1,MIG-3"), 1),
        (healthy(0), 0),
        (bare(0), 0),
        (bare(2), 0),
        (old, 0),
    ] {
        for devices in ["auto", "all"] {
            // What is counted is what is chosen.
            let chosen = choice(devices, OnGpus::Everybody, machine.clone());
            let on = match &chosen {
                Ok(Chosen::Gpus { list, .. }) => list.numbers().len() as u32,
                _ => 0,
            };
            assert_eq!(
                (counted(devices, OnGpus::Everybody, machine.clone()), on),
                (gpus, gpus),
                "{devices} on {machine:?}"
            );
        }
        assert_eq!(
            counted("all", OnGpus::Nobody, machine),
            0,
            "a build that does not train on GPUs has none"
        );
    }
}

#[test]
fn as_long_as_gpus_are_for_those_who_ask_auto_stays_on_the_cpu_and_says_how_to_ask() {
    let words = "auto: 2 GPUs are here, and devices=all trains there; that is new, and not the default yet";
    on_cpu("auto", OnGpus::WhoAsks, healthy(2), Some(words));
    for asked in ["all", "cuda:0,1"] {
        let chosen = choice(asked, OnGpus::WhoAsks, healthy(2)).unwrap();
        assert_eq!(chosen.cuda().map(|list| list.to_string()).as_deref(), Some("cuda:0,1"), "{asked}");
    }
}

#[test]
fn what_only_gpus_have_is_refused_wherever_a_host_comes_to_its_cpu() {
    ["tf32", "f16"].into_iter().for_each(refused_on_a_cpu);
    // Both have bf16.
    for (devices, gpus) in [("cpu", 1), ("auto", 0), ("all", 0)] {
        let inventory = if gpus > 0 { healthy(gpus) } else { bare(0) };
        let host = host_of(OnGpus::WhoAsks, gpus, inventory, passed);
        let config = config(&[&format!("devices={devices}"), "precision=bf16"]);
        assert!(matches!(choose(&config, Auto::ByTest, host), Ok(Chosen::Cpu { .. })), "{devices}");
    }
}

fn refused_on_a_cpu(precision: &str) {
    let asked = |devices: &str, inventory: Inventory| {
        let count = inventory.gpus.as_ref().map_or(0, Vec::len) as u32;
        let host = host_of(OnGpus::WhoAsks, count, inventory, passed);
        let config = config(&[&format!("devices={devices}"), &format!("precision={precision}")]);
        choose(&config, Auto::ByTest, host)
    };
    for (devices, inventory) in
        [("cpu", healthy(1)), ("auto", healthy(1)), ("auto", bare(0)), ("all", bare(0))]
    {
        let problem = asked(devices, inventory).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some("precision"), "{devices}: {problem}");
        assert!(problem.to_string().contains(precision), "{problem}");
        assert!(problem.hint.is_some_and(|hint| hint.contains("devices=all") && hint.contains("f32")));
    }
    for devices in ["cuda:0", "all"] {
        assert!(asked(devices, healthy(1)).unwrap().cuda().is_some(), "{devices}");
    }
    // What keeps a GPU from being used is said first.
    assert_eq!(asked("cuda:0", bare(0)).unwrap_err().key.as_deref(), Some("devices"));
}

#[test]
fn auto_is_the_gpus_where_their_test_has_passed_and_says_so_and_else_the_cpu_and_says_why() {
    let of = |settings: &[&str], auto: Auto, verdict: TestVerdict, kept: Result<PathBuf, String>| {
        let host = host_of(OnGpus::Tested, 2, healthy(2), || Judged { verdict, kept });
        choose(&config(settings), auto, host).unwrap()
    };
    let kept = || Ok("/cache/gpu.json".into());
    let Chosen::Gpus { list, why, .. } = of(&["devices=auto"], Auto::ByTest, TestVerdict::Passed, kept())
    else {
        panic!("on the CPU")
    };
    assert_eq!(list.to_string(), "cuda:0,1");
    assert_eq!(why.unwrap(), "auto: 2 GPUs are here, and the test of them has passed (/cache/gpu.json)");
    let unkept = of(&["devices=auto"], Auto::ByTest, TestVerdict::Passed, Err("read-only".into()));
    assert!(
        matches!(&unkept, Chosen::Gpus { why: Some(why), .. } if why.ends_with("that is not kept: read-only"))
    );
    for (auto, verdict, words) in [
        (
            Auto::ByTest,
            TestVerdict::Failed("cuda:1: off by 3".into()),
            "auto: 2 GPUs are here, and the test of them has failed: cuda:1: off by 3; devices=all trains there all the same",
        ),
        (
            Auto::ByTest,
            TestVerdict::Unknown("it hangs".into()),
            "auto: 2 GPUs are here, and they cannot be tested: it hangs; devices=all trains there all the same",
        ),
        (Auto::Cpu("it is Monday"), TestVerdict::Passed, "auto: 2 GPUs are here, and it is Monday"),
    ] {
        let chosen = of(&["devices=auto"], auto, verdict, kept());
        assert_eq!(chosen, Chosen::Cpu { why: Some(words.to_owned()) });
    }
    // Whoever names them is not asked for a test.
    let named = of(&["devices=all"], Auto::Cpu("no"), TestVerdict::Failed("no".into()), kept());
    assert!(matches!(&named, Chosen::Gpus { why: None, .. }));
    // A model that they lack is for the CPU where it was left to dtrain, and an error where they were named.
    let problem = || Err(config(&[]).problem("devices", "the model of this program is made for the CPU"));
    let auto = of(&["devices=auto"], Auto::ByTest, TestVerdict::Passed, kept());
    let why = Some("auto: the model of this program is made for the CPU".to_owned());
    assert_eq!(auto.unless(problem(), &config(&[])), Ok(Chosen::Cpu { why }));
    assert!(matches!(named.unless(problem(), &config(&[])), Ok(Chosen::Gpus { .. })));
    let ranks = |verdict: TestVerdict| {
        let host = host_of(OnGpus::Tested, 2, healthy(2), || Judged { verdict, kept: kept() });
        count(&Devices::Auto, PassesBy::Kernels, host)
    };
    assert_eq!([ranks(TestVerdict::Passed), ranks(TestVerdict::Failed("off".into()))], [2, 0]);
    // Without a sign of a GPU nothing is woken.
    let nothing = Host {
        trains: OnGpus::Tested,
        count: || 0,
        inventory: || panic!("the driver was woken for nothing"),
        verdict: |_: &CudaList| panic!("nothing is tested"),
        program: STAGES,
        amd: AmdGpus::default(),
    };
    let why = Some("auto: no GPU is here".to_owned());
    assert_eq!(choose(&config(&["devices=auto"]), Auto::ByTest, nothing), Ok(Chosen::Cpu { why }));
}

/// What `auto` comes to for a PyTorch program, on a host with two GPUs of NVIDIA's.
fn of_pytorch(settings: &[&str], program: OfProgram, verdict: impl FnOnce() -> Judged) -> Chosen {
    let config = config(&[&["data.kind=torch", "devices=auto"], settings].concat());
    let host = Host { program, ..host_of(OnGpus::Tested, 2, healthy(2), verdict) };
    choose(&config, Auto::ByTest, host).unwrap()
}

#[test]
fn auto_of_a_pytorch_program_is_the_gpus_whose_test_has_passed_or_on_which_nothing_of_dtrain_runs() {
    let untested = || panic!("PyTorch is not tested");
    let Chosen::Gpus { list, why, .. } = of_pytorch(&[], PYTORCH, passed) else { panic!("on the CPU") };
    assert_eq!(list.to_string(), "cuda:0,1");
    assert_eq!(why.unwrap(), "auto: 2 GPUs are here, and the test of them has passed (/cache/gpu.json)");
    let lacking = OfProgram { kernels: || Err("NVRTC: not found".to_owned()), ..PYTORCH };
    for (settings, program) in [(&["offload=state"][..], PYTORCH), (&[], lacking)] {
        let Chosen::Gpus { why, .. } = of_pytorch(settings, program, untested) else { panic!("on the CPU") };
        let words =
            "auto: 2 GPUs are here, and PyTorch alone computes there: the state is in the host's memory";
        assert_eq!(why.as_deref(), Some(words), "{settings:?}");
    }
    // Who wants the state there wants the test.
    let failed = || Judged { verdict: TestVerdict::Failed("off".into()), kept: Ok("/cache/gpu.json".into()) };
    for settings in [&[][..], &["offload=none"]] {
        let words = "auto: 2 GPUs are here, and the test of them has failed: off; devices=all trains there all the same";
        assert_eq!(of_pytorch(settings, PYTORCH, failed), Chosen::Cpu { why: Some(words.into()) });
    }
    assert!(
        of_pytorch(&["offload=none"], lacking, passed).cuda().is_some(),
        "why not is told where it is made"
    );
}

#[test]
fn a_pytorch_that_computes_on_no_gpu_stays_on_the_cores_with_a_word() {
    let cpus = OfProgram {
        built_for: BuiltFor::Cpus,
        reaches: || Err("PyTorch 2.9 is a build for CPUs".to_owned()),
        ..PYTORCH
    };
    let untested = || panic!("the GPUs are not tested");
    let why = Some("auto: 2 GPUs are here, and PyTorch 2.9 is a build for CPUs".to_owned());
    assert_eq!(of_pytorch(&[], cpus, untested), Chosen::Cpu { why: why.clone() });
    assert_eq!(of_pytorch(&["offload=state"], cpus, untested), Chosen::Cpu { why });
    let passes = PassesBy::Program(Offload::Auto);
    let ranks = |program: OfProgram| {
        let host = Host { program, ..host_of(OnGpus::Tested, 2, healthy(2), passed) };
        count(&Devices::Auto, passes, host)
    };
    assert_eq!([ranks(PYTORCH), ranks(cpus)], [2, 0]);
}

#[test]
fn gpus_of_amd_alone_are_for_a_pytorch_that_is_made_for_them() {
    let host = |program: OfProgram| Host {
        program,
        amd: amd_gpus(2),
        ..host_of(OnGpus::Tested, 0, bare(0), || panic!("there is nothing to test"))
    };
    let stages =
        |devices: &str| choose(&config(&[&format!("devices={devices}")]), Auto::ByTest, host(STAGES));
    let why = Some("auto: 2 AMD GPUs are here, and dtrain's own kernels are NVIDIA's".to_owned());
    assert_eq!(stages("auto"), Ok(Chosen::Cpu { why }));
    for devices in ["all", "cuda:0"] {
        let problem = stages(devices).unwrap_err();
        assert_eq!(problem.message, "2 AMD GPUs are here, and dtrain's own kernels are NVIDIA's");
        assert!(problem.hint.is_some_and(|hint| hint.contains("PyTorch") && hint.contains("devices=cpu")));
    }
    let program = |devices: &str, program: OfProgram| {
        let config = config(&["data.kind=torch", &format!("devices={devices}")]);
        choose(&config, Auto::ByTest, host(program))
    };
    let rocm = OfProgram { built_for: BuiltFor::Amd, ..PYTORCH };
    for devices in ["auto", "all", "cuda:0,1"] {
        let chosen = program(devices, rocm).unwrap();
        assert_eq!(chosen.cuda().map(|list| list.to_string()).as_deref(), Some("cuda:0,1"), "{devices}");
    }
    assert_eq!(count(&Devices::All, PassesBy::Program(Offload::Auto), host(rocm)), 2);
    let why = Some("auto: 2 AMD GPUs are here, and this PyTorch is not ROCm's".to_owned());
    assert_eq!(program("auto", PYTORCH), Ok(Chosen::Cpu { why }));
    let problem = program("all", PYTORCH).unwrap_err();
    assert!(problem.hint.is_some_and(|hint| hint.contains("PyTorch for ROCm")), "{}", problem.message);
}
