//! What `auto` makes of GPUs and of NCCL: it takes them where a test has passed, once for each kind of GPU, driver and libraries, and
//! says why. On the driver of `crates/fake-cuda` and the NCCL of `crates/fake-nccl`, which compute wrong where that is asked for.

use crate::harness::fake_libraries::{FAKE_NVML, Workshop};
use crate::harness::gpus::Host;
use crate::harness::turn::has_turn;
use crate::harness::{Finished, MLP, dtrain, finish};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// A machine with two GPUs that NVML knows, NCCL, and a cache of its own; compiled kernels are those of all tests.
struct Machine {
    host: Host,
    cache: tempfile::TempDir,
    _workshop: Workshop,
}

impl Machine {
    fn new() -> Option<Self> {
        let (host, workshop) = (Host::new()?.with_nccl(), Workshop::open()?);
        host.lay("libnvidia-ml.so.1", &workshop.build("libnvidia-ml.so.1", FAKE_NVML));
        let cache = tempfile::tempdir().expect("a temporary place");
        let kernels = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda/dtrain/kernels");
        std::fs::create_dir_all(&kernels).expect("a folder");
        std::fs::create_dir(cache.path().join("dtrain")).expect("a folder");
        symlink(kernels, cache.path().join("dtrain/kernels")).expect("a link");
        Some(Self { host, cache, _workshop: workshop })
    }

    fn verdicts(&self) -> PathBuf {
        self.cache.path().join("dtrain/verdicts")
    }

    /// The texts of all verdicts that are kept.
    fn kept(&self) -> BTreeMap<String, String> {
        let files = std::fs::read_dir(self.verdicts()).into_iter().flatten().flatten();
        let text = |file: std::fs::DirEntry| {
            let name = file.file_name().to_string_lossy().into_owned();
            Some((name, std::fs::read_to_string(file.path()).ok()?))
        };
        files.filter_map(text).collect()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = self.host.equip(dtrain(self.host.path(), arguments));
        command.env("XDG_CACHE_HOME", self.cache.path());
        command
    }

    fn train(&self, settings: &str, variables: &[(&str, &str)]) -> Finished {
        let mut command = self.command(&format!("train --json {MLP} steps=2 {settings}"));
        command.envs(variables.iter().copied());
        let run = finish(command);
        run.succeeded();
        run
    }
}

fn on_gpus(run: &Finished) -> bool {
    run.events("rank_started")
        .all(|event| event["device"].as_str().is_some_and(|name| name.starts_with("cuda")))
}

#[test]
fn auto_takes_gpus_and_nccl_whose_test_has_passed_once_for_each_driver() {
    if !has_turn(23) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let named = machine.train("devices=cuda:0 ranks=1", &[]);
    assert!(machine.kept().is_empty(), "whoever names GPUs is not asked for a test");
    let first = machine.train("", &[]);
    first.said("auto: 2 GPUs are here, and the test of them has passed (");
    first.said("backend auto: NCCL ");
    first.said("whose test on these GPUs has passed");
    assert!(on_gpus(&first) && first.summary()["ranks"] == 2);
    assert_eq!(first.digest(), named.digest());
    let kept = machine.kept();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept.values().all(|text| text.contains("passed") && text.contains("kernels")), "{kept:?}");
    // What was judged is not tested again: a library that would fail is taken at its word.
    let again = machine.train("backend=auto", &[("FAKE_CUDA_WRONG", "layer_norm_f32")]);
    assert!(on_gpus(&again) && machine.kept() == kept);
    // Another driver is another subject.
    let other = machine.train("", &[("FAKE_CUDA_VERSION", "13010")]);
    assert!(on_gpus(&other));
    assert_eq!(machine.kept().len(), 4);
    // Every family of models and every optimizer is for GPUs.
    let vit = "data.kind=digits global_batch=50 micro_batch=25 model.kind=vit model.width=16 model.layers=1 model.heads=2";
    let others = finish(machine.command(&format!("train --json {vit} optimizer.kind=muon steps=1")));
    others.succeeded();
    assert!(on_gpus(&others) && others.summary()["ranks"] == 2);
}

#[test]
fn what_fails_its_test_is_left_alone_and_the_reason_is_told_and_kept() {
    if !has_turn(7) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let cpu = machine.train("devices=cpu", &[]);
    // None of the MLP's own.
    let failed = machine.train("", &[("FAKE_CUDA_WRONG", "layer_norm_f32")]);
    let words = "auto: 2 GPUs are here, and the test of them has failed: cuda:0 (";
    failed.said(words);
    failed.said("of the test are off by");
    assert!(!on_gpus(&failed));
    assert_eq!(failed.digest(), cpu.digest());
    let kept = machine.kept();
    assert!(kept.len() == 1 && kept.values().all(|text| text.contains("failed")), "{kept:?}");
    // The driver is whole again, and the verdict stays until somebody takes it away.
    machine.train("", &[]).said(words);
    let doctor = finish(machine.command("doctor --gpu --json"));
    doctor.ended_with(1);
    let test = doctor.lines.iter().find(|line| line["check"] == "gpu_test").expect("a line for the test");
    assert_eq!(test["verdict"], "missing", "{test}");
    assert!(test["found"].as_str().is_some_and(|found| found.contains("failed: cuda:0 (")), "{test}");
    assert!(test["hint"].as_str().is_some_and(|hint| hint.contains("devices: auto trains on the CPU")));
    std::fs::remove_dir_all(machine.verdicts()).expect("it was kept");
    // A test that cannot be made is no verdict.
    let dead = machine.train("", &[("FAKE_CUDA_FAIL", "kernel:30:700")]);
    dead.said("they cannot be tested: cuda:0 (");
    assert!(!on_gpus(&dead) && machine.kept().is_empty());
    // NCCL alone is wrong.
    let host = machine.train("", &[("FAKE_NCCL_WRONG", "1")]);
    host.said("backend auto: gradients go through the host: the test of NCCL ");
    host.said("has failed: rank ");
    assert!(on_gpus(&host));
    assert_eq!(host.digest(), machine.train("devices=cuda:0 ranks=1", &[]).digest());
    let doctor = finish(machine.command("doctor --gpu --json"));
    doctor.succeeded();
    let verdict = |name: &str| {
        let line = doctor.lines.iter().find(|line| line["check"] == name);
        line.unwrap_or_else(|| panic!("no {name}: {:?}", doctor.lines))["verdict"].clone()
    };
    assert_eq!((verdict("gpu_test"), verdict("nccl_test")), ("ok".into(), "missing".into()));
    let used = |name: &str| {
        let line = doctor.lines.iter().find(|line| line["check"] == name).expect("a line for each library");
        [&line["found"], &line["hint"]].map(|words| words.as_str().unwrap_or_default().to_owned()).concat()
    };
    assert!(used("cublaslt").contains("multiplies large matrices of bf16, f16 and tf32"));
    assert!(used("nvrtc").contains("compiles dtrain's kernels"));
}

#[test]
fn a_cache_that_cannot_be_written_and_a_run_that_was_begun_on_a_cpu_are_told() {
    if !has_turn(9) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    std::fs::write(machine.verdicts(), "in the way").expect("a file");
    let run = machine.train("ranks=1", &[]);
    run.said("the test of them has passed; that is not kept: ");
    assert!(on_gpus(&run));
    // Begun where there is no GPU.
    let mut bare = dtrain(machine.host.path(), &format!("train --json {MLP} steps=2 name=begun ranks=1"));
    bare.env("DTRAIN_LIBRARY_PATH", machine.cache.path()).env("DTRAIN_LIBRARY_ONLY", "1");
    let begun = finish(bare);
    begun.succeeded();
    let longer = finish(machine.command("train --json --resume runs/begun steps=4"));
    longer.said("this run was begun on a CPU, whose bits it keeps; devices=all trains there");
    assert!(!on_gpus(&longer));
    assert_eq!(longer.steps(), [3, 4]);
}

#[test]
fn windows_that_gpus_have_no_room_for_go_through_the_host_where_that_was_left_to_dtrain() {
    if !has_turn(18) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let wide = "data.kind=digits model.kind=mlp model.hidden=[512,512,512] global_batch=4 micro_batch=1 steps=1 ranks=2 devices=cuda:0,1 \
                state=sharded redundancy=1 shard=parameters";
    let planned = |backend: &str| -> u64 {
        let plan = finish(machine.command(&format!("plan --json {wide} backend={backend}")));
        plan.succeeded();
        let rows = plan.lines[0]["memory_bytes"].as_object().expect("a table").values();
        rows.map(|bytes| bytes.as_u64().expect("bytes")).sum()
    };
    let (host, nccl) = (planned("host"), planned("nccl"));
    assert!(host + (4 << 20) < nccl, "{host} bytes through the host, {nccl} over NCCL");
    // A GPU has 80 GiB, of which the driver keeps half of one.
    let run = |free: u64, how: &str| {
        let busy = ((81_920 - 512) << 20) - free;
        let mut command = machine.command(&format!("train --json {wide} {how}"));
        command.env("FAKE_BUSY", (busy >> 20).to_string());
        finish(command)
    };
    let roomy = run(nccl + (2 << 20), "");
    roomy.said("whose test on these GPUs has passed");
    let tight = run(nccl - (2 << 20), "");
    tight.said("gradients go through the host: the GPUs have no room for windows that travel between them");
    assert_eq!(tight.digest(), roomy.digest());
    let asked = run(nccl - (2 << 20), "backend=nccl");
    asked.ended_with(2);
    asked.said("1 rank needs");
}
