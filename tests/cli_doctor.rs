//! `dtrain doctor` and the key `devices` on made-up machines: one without any NVIDIA library, one with all, and worse ones.

use crate::harness::fake_libraries::{Workshop, complete, gives};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary where only the libraries of one folder are looked at, whatever this machine has.
fn dtrain(libraries: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    command.args(arguments).env("NO_COLOR", "1").env_remove("CUDA_VISIBLE_DEVICES");
    command.env("DTRAIN_LIBRARY_PATH", libraries).env("DTRAIN_LIBRARY_ONLY", "1");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The objects of `doctor --json`: the checks, and the summary.
fn report(mut command: Command) -> (Vec<Value>, Value, Output) {
    let output = command.arg("--json").output().unwrap();
    let stdout = text(&output.stdout);
    let mut lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap_or_else(|| panic!("nothing said: {}", text(&output.stderr)));
    assert_eq!(summary["event"], "summary");
    for line in &lines {
        assert_eq!(line["event"], "check", "{line}");
        assert!(line["time"].is_f64() && line["found"].is_string() && line["details"].is_object(), "{line}");
        assert!(line["verdict"] == "ok" || line["hint"].is_string(), "{line} has no hint");
        let name = line["check"].as_str().unwrap();
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
    }
    for verdict in ["ok", "warn", "missing"] {
        let count = lines.iter().filter(|line| line["verdict"] == verdict).count();
        assert_eq!(summary[verdict], count, "{verdict}: {stdout}");
    }
    (lines, summary, output)
}

fn check<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    lines.iter().find(|line| line["check"] == name).unwrap_or_else(|| panic!("no check {name}: {lines:?}"))
}

#[test]
fn without_any_library_the_cpu_trains_and_every_absence_has_a_hint() {
    let nothing = tempfile::tempdir().unwrap();
    let (lines, summary, output) = report(dtrain(nothing.path(), &["doctor"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!((&summary["cpu"], &summary["gpu"]), (&Value::Bool(true), &Value::Bool(false)));
    assert!(summary["gpu_problem"].as_str().unwrap().starts_with("CUDA driver: not found"), "{summary}");
    for name in ["cuda_driver", "nvml", "nvrtc", "cublaslt", "cudnn", "nccl"] {
        let line = check(&lines, name);
        assert_eq!(line["verdict"], "missing");
        assert_eq!(line["details"]["looked"].as_array().unwrap().len(), 1, "only the folder that is named");
    }
    assert!(check(&lines, "nccl")["hint"].as_str().unwrap().contains("pip install nvidia-nccl-cu13"));
    for name in [
        "kernel",
        "processor",
        "cores",
        "arena",
        "memory",
        "open_files",
        "locked_memory",
        "port",
        "host_name",
        "clock",
    ] {
        check(&lines, name);
    }
    let said = dtrain(nothing.path(), &["doctor"]).output().unwrap();
    let said = text(&said.stdout);
    for words in [
        "  ok       arena",
        "  missing  NCCL",
        "hint: ",
        "training on the CPU works here",
        "training on GPUs does not work here: CUDA driver",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_is_asked_for_and_not_usable_is_exit_code_1() {
    let nothing = tempfile::tempdir().unwrap();
    let output = dtrain(nothing.path(), &["doctor", "--gpu"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("error: training on GPUs does not work here") && stderr.contains("hint: "),
        "{stderr}"
    );
}

#[test]
fn a_machine_with_everything_is_told_with_versions_paths_and_readings() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = complete(&workshop, "lib");
    let mut command = dtrain(&folder, &["doctor"]);
    command.env("CUDA_VISIBLE_DEVICES", "1,0").env("FAKE_GPUS", "4").env("FAKE_BUSY", "2048");
    let (lines, summary, output) = report(command);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for (name, version, file) in [
        ("cuda_driver", "13.0", "libcuda.so.1"),
        ("nvml", "580.65.06", "libnvidia-ml.so.1"),
        ("nvrtc", "13.0", "libnvrtc.so.13"),
        ("cublaslt", "13.0.2", "libcublasLt.so.13"),
        ("cudnn", "9.13.0", "libcudnn.so.9"),
        ("nccl", "2.32.3", "libnccl.so.2"),
    ] {
        let line = check(&lines, name);
        assert_eq!(line["verdict"], "ok", "{line}");
        assert_eq!(line["details"]["found"]["version"], version);
        assert_eq!(line["details"]["found"]["path"], folder.join(file).to_str().unwrap());
    }
    assert_eq!(check(&lines, "gpus")["details"]["visible"], serde_json::json!([1, 0]));
    assert_eq!(summary["gpus"], 2);
    let gpus: Vec<&Value> = lines.iter().filter(|line| line["check"] == "gpu").collect();
    assert_eq!(gpus.len(), 4);
    let words = "3: Made-up GPU, sm_90, 2.5 GiB of 80.0 GiB used, 43 % busy, 53 C, 123 W";
    assert_eq!((&gpus[3]["found"], &gpus[3]["verdict"]), (&Value::from(words), &Value::from("warn")));
    assert!(gpus[3]["hint"].as_str().unwrap().contains("in use by process 4242"), "{}", gpus[3]);
    assert_eq!(check(&lines, "gpu_links")["found"], "6 pairs by NVLink");
    assert_eq!(summary["gpu_problem"], Value::Null, "{summary}");
}

#[test]
fn a_gpu_that_is_older_than_the_kernels_is_told() {
    let Some(workshop) = Workshop::open() else { return };
    let mut command = dtrain(&complete(&workshop, "lib"), &["doctor"]);
    command.env("FAKE_GPUS", "1").env("FAKE_SM", "75");
    let (lines, ..) = report(command);
    let line = check(&lines, "gpu");
    assert_eq!(line["verdict"], "warn", "{line}");
    assert!(line["found"].as_str().unwrap().starts_with("0: Made-up GPU, sm_75, "), "{line}");
    assert!(line["hint"].as_str().unwrap().contains("older than Ampere"), "{line}");
}

#[test]
fn a_library_that_kills_or_is_too_old_is_named_and_the_rest_of_the_report_stands() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = complete(&workshop, "lib");
    workshop.build(
        "lib/libnccl.so.2",
        "__attribute__((constructor)) static void die(void) { __builtin_trap(); }",
    );
    workshop.build(
        "lib/libcudnn.so.9",
        "unsigned long cudnnGetVersion(void) { *(volatile int *)8 = 1; return 0; }",
    );
    workshop.build("lib/libcuda.so.1", &gives("cuDriverGetVersion", 11040));
    let (lines, _, output) = report(dtrain(&folder, &["doctor"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for (name, words) in [
        ("nccl", "libnccl.so.2 ends the process that asks it: killed by signal 4 (SIGILL)"),
        ("cudnn", "libcudnn.so.9 ends the process that asks it: killed by signal 11 (SIGSEGV)"),
        ("cuda_driver", "libcuda.so.1 is version 11.4, at least 12.0 is needed"),
    ] {
        let line = check(&lines, name);
        assert_eq!(line["verdict"], "missing", "{line}");
        assert!(line["found"].as_str().unwrap().contains(words), "{line}");
    }
    assert_eq!(check(&lines, "gpus")["verdict"], "ok");
    // Another one of the same name is taken where one kills, and both are told.
    workshop.build("more/libnccl.so.2", &gives("ncclGetVersion", 22907));
    let both = std::env::join_paths([&folder, &workshop.root().join("more")]).unwrap();
    let (lines, ..) = report(dtrain(Path::new(&both), &["doctor"]));
    let line = check(&lines, "nccl");
    assert!(line["found"].as_str().unwrap().starts_with("2.29.7 at "), "{line}");
    assert!(line["hint"].as_str().unwrap().contains("passed over: "), "{line}");
}

#[test]
fn a_library_that_hangs_is_given_up_and_named() {
    let Some(workshop) = Workshop::open() else { return };
    let hangs = "int pause(void); __attribute__((constructor)) static void hang(void) { for (;;) pause(); }";
    workshop.build("lib/libnccl.so.2.9", hangs);
    workshop.build("lib/libnccl.so.2.8", &gives("ncclGetVersion", 22803));
    let folder = workshop.root().join("lib");
    let (lines, _, output) = report(dtrain(&folder, &["doctor", "--timeout", "1"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let line = check(&lines, "nccl");
    assert!(line["found"].as_str().unwrap().starts_with("2.28.3 at "), "{line}");
    let why = &line["details"]["refused"][0]["why"];
    assert_eq!((&why["why"], &why["how"]), (&Value::from("deadly"), &Value::from("no answer in 1 s")));
}

#[test]
fn a_driver_that_does_not_run_is_told_in_its_own_words() {
    let Some(workshop) = Workshop::open() else { return };
    let folder = complete(&workshop, "lib");
    let mut command = dtrain(&folder, &["doctor"]);
    command.env("FAKE_NVML", "9");
    let (lines, summary, _) = report(command);
    assert!(
        check(&lines, "nvml")["found"]
            .as_str()
            .unwrap()
            .contains("nvmlInit_v2 returns 9 (Driver Not Loaded)")
    );
    assert!(check(&lines, "nvml")["hint"].as_str().unwrap().contains("modprobe nvidia"));
    assert_eq!(
        (&check(&lines, "gpus")["verdict"], &summary["gpus"]),
        (&Value::from("missing"), &Value::from(0))
    );
}

#[test]
fn the_way_to_a_first_host_is_looked_at_where_one_is_given() {
    let nothing = tempfile::tempdir().unwrap();
    let listener = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap().to_string();
    let (lines, ..) = report(dtrain(nothing.path(), &["doctor", "--master", &there]));
    let line = check(&lines, "master");
    assert_eq!(line["verdict"], "ok", "{line}");
    drop(listener);
    let (lines, ..) = report(dtrain(nothing.path(), &["doctor", "--master", &there]));
    let line = check(&lines, "master");
    assert!(
        line["verdict"] == "warn" && line["found"].as_str().unwrap().contains("nobody listens there"),
        "{line}"
    );
    let (lines, ..) = report(dtrain(nothing.path(), &["doctor", "--master", "10.0.0.1:x"]));
    assert_eq!(check(&lines, "master")["verdict"], "missing");
}

#[test]
fn who_keeps_the_clock_is_asked_and_one_that_hangs_is_passed_over() {
    let chrony = |offset: &str, leap: &str| {
        format!("echo 0A000001,10.0.0.1,3,1.0,{offset},0.0,0.0,-8.1,0.0,0.0,0.0,0.0,64.5,{leap}")
    };
    let cannot = "echo 506 Cannot talk to daemon; exit 1".to_owned();
    let hangs = "exec sleep 1000".to_owned();
    for (chronyc, timedatectl, verdict, words) in [
        (chrony("-0.0015", "Normal"), "echo no", "ok", "kept by chrony, 1.5 ms off"),
        (chrony("90000.0", "Normal"), "echo yes", "warn", "kept by chrony, 90000.0 s off"),
        (
            chrony("0.0", "'Not synchronised'"),
            "echo yes",
            "warn",
            "chrony says that it agrees with no server",
        ),
        (cannot.clone(), "echo no", "warn", "systemd says that it agrees with no server"),
        (hangs, "echo yes", "ok", "kept by systemd"),
        (cannot, "exit 1", "ok", "who keeps it cannot be told: neither chronyc nor timedatectl answers"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in [("chronyc", chronyc.as_str()), ("timedatectl", timedatectl)] {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = dtrain(folder.path(), &["doctor"]);
        command.env("PATH", format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap()));
        let (lines, ..) = report(command);
        let line = check(&lines, "clock");
        assert_eq!(
            (line["verdict"].as_str(), line["found"].as_str()),
            (Some(verdict), Some(words)),
            "{line}"
        );
    }
}

#[test]
fn the_ffmpeg_that_decodes_videos_is_told_or_why_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str, script: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    };
    let good = program("ffmpeg", "echo ffmpeg version 4.4.2-0ubuntu0.22.04.1 Copyright; echo built with gcc");
    let other = program("other", "echo other version 3");
    let broken = program("broken", "echo no libavcodec.so.58 >&2; exit 127");
    let nowhere = folder.path().join("nowhere");
    let shown = |path: &Path| path.to_str().unwrap().to_owned();
    for (named, search, found, hint) in [
        (None, Some(folder.path()), format!("4.4.2-0ubuntu0.22.04.1 at {}", shown(&good)), ""),
        (Some(&good), None, format!("4.4.2-0ubuntu0.22.04.1 at {}", shown(&good)), ""),
        (
            None,
            None,
            "which is not on PATH".to_owned(),
            "only videos (data.kind: clips) need it; install ffmpeg",
        ),
        (
            Some(&nowhere),
            Some(folder.path()),
            format!("DTRAIN_FFMPEG={} is no program", shown(&nowhere)),
            "only videos",
        ),
        (Some(&other), None, format!("{} does not tell its version: ", shown(&other)), "DTRAIN_FFMPEG=PATH"),
        (Some(&broken), None, "no libavcodec.so.58".to_owned(), "DTRAIN_FFMPEG=PATH"),
    ] {
        let mut command = dtrain(folder.path(), &["doctor"]);
        command.env("PATH", search.unwrap_or(Path::new(""))).env_remove("DTRAIN_FFMPEG");
        command.envs(named.map(|named| ("DTRAIN_FFMPEG", named)));
        let (lines, summary, output) = report(command);
        assert_eq!((output.status.code(), &summary["cpu"]), (Some(0), &Value::Bool(true)));
        let line = check(&lines, "ffmpeg");
        assert!(line["found"].as_str().unwrap().contains(&found), "{line}");
        assert_eq!(line["verdict"], if hint.is_empty() { "ok" } else { "missing" }, "{line}");
        assert!(line["hint"].as_str().unwrap_or_default().contains(hint), "{line}");
    }
}

/// One error, a hint that names the doctor or the way out, exit code 2, nothing written.
#[track_caller]
fn refused(mut command: Command, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = command.current_dir(folder.path()).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(words) && stderr.matches("error:").count() == 1, "not {words}: {stderr}");
    assert!(stderr.contains("hint: ") && !stderr.contains("panicked"), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn gpus_that_cannot_be_had_are_one_clear_error_before_anything_is_written() {
    let nothing = tempfile::tempdir().unwrap();
    for command in ["train", "plan"] {
        // What stands on the bus of the machine that runs this test decides the words; the rest is the same.
        let command = dtrain(nothing.path(), &[command, "devices=cuda:0"]);
        refused(
            command,
            "`dtrain doctor` says what is missing and how to get it; devices=cpu trains on the cores",
        );
    }
    let Some(workshop) = Workshop::open() else { return };
    let folder = complete(&workshop, "lib");
    let train = |devices: &str| dtrain(&folder, &["train", &format!("devices={devices}")]);
    refused(train("cuda:0,1"), "the CUDA driver has no function cu");
    refused(train("cuda:0,2"), "there is no cuda:2: this host has 2 GPUs");
    let mut hidden = train("cuda:1");
    hidden.env("CUDA_VISIBLE_DEVICES", "1");
    refused(hidden, "there is no cuda:1: CUDA_VISIBLE_DEVICES=1 leaves one GPU");
    let mut none = train("cuda:0");
    none.env("CUDA_VISIBLE_DEVICES", "");
    refused(none, "CUDA_VISIBLE_DEVICES= leaves none of 2 GPUs");
    workshop.build("old/libcuda.so.1", &gives("cuDriverGetVersion", 11040));
    let old = dtrain(&workshop.root().join("old"), &["train", "devices=cuda:0"]);
    refused(old, "the NVIDIA driver is too old: it serves CUDA 11.4, at least 12.0 is needed");
}

#[test]
fn what_is_left_to_dtrain_is_said_in_the_plan_and_the_banner() {
    let nothing = tempfile::tempdir().unwrap();
    for devices in ["auto", "all"] {
        for command in ["plan", "train"] {
            let folder = tempfile::tempdir().unwrap();
            let arguments = [command, &format!("devices={devices}"), "ranks=1", "steps=1"];
            let output = dtrain(nothing.path(), &arguments).current_dir(folder.path()).output().unwrap();
            let stderr = text(&output.stderr);
            assert!(output.status.success(), "{stderr}");
            assert!(
                stderr.contains("1 rank on the CPU") && stderr.contains(&format!("{devices}: ")),
                "{stderr}"
            );
        }
    }
    let output = dtrain(nothing.path(), &["plan", "devices=cpu"]).output().unwrap();
    assert!(!text(&output.stderr).contains("cpu: "), "there was nothing to choose");
}

#[test]
fn a_rank_finds_the_debugging_of_nccl_that_its_user_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = dtrain(folder.path(), &["run", "--nproc", "1", "--", "sh", "-c", "echo $NCCL_DEBUG"]);
    let output = command.env("NCCL_DEBUG", "INFO").output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "INFO", "{}", text(&output.stderr));
    let mut train = dtrain(folder.path(), &["train", "--json", "ranks=1", "steps=1000000"]);
    train.current_dir(folder.path()).env("NCCL_DEBUG", "INFO").env("DTRAIN_LOG", "nccl=debug");
    let mut run = train.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let started =
        lines.find_map(|line| Some(line.unwrap()).filter(|line| line.contains("rank_started"))).unwrap();
    let pid = serde_json::from_str::<Value>(&started).unwrap()["pid"].as_u64().unwrap();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    let has = |wanted: &str| environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes());
    assert!(
        has("NCCL_DEBUG=INFO") && has("DTRAIN_LOG=nccl=debug"),
        "{}",
        String::from_utf8_lossy(&environment)
    );
}
