//! NCCL as what carries the gradients, judged from outside: one clear error where it cannot serve, several hosts, and what the log
//! tells. The bits, and what it costs when a rank dies, are in `nccl_on_gpus.rs`.
//!
//! The library is that of `crates/fake-nccl`: NCCL's C interface over host memory, between real processes, which puts its work on
//! the streams of the driver of `crates/fake-cuda`.

use crate::harness::gpus::Host;
use crate::harness::hosts::Hosts;
use crate::harness::nccl::without;
use crate::harness::turn::has_turn;
use crate::harness::{Finished, MLP, Running, Signal, finish, signal};
use std::path::Path;

fn machine() -> Option<Host> {
    Host::new().map(Host::with_nccl)
}

/// Reads until `ranks` ranks of the first generation work.
#[track_caller]
fn wait_for_ranks(running: &mut Running, ranks: u64) {
    let last = running.wait_for(|line| line["event"] == "rank_started" && line["rank"] == ranks - 1);
    assert!(last.is_some(), "the run ended\n{}", running.story());
}

#[test]
fn a_rank_that_cannot_join_ends_the_run_with_the_words_of_the_library() {
    let Some(machine) = machine() else { return };
    let mut command = machine.on_gpus(2, &format!("{MLP} steps=20 detect=500ms"));
    command.env("FAKE_NCCL_FAIL_JOIN", "1");
    let run = finish(command);
    run.ended_with(1);
    run.said("the meeting of all ranks failed: unhandled system error");
    run.said("NCCL_SOCKET_IFNAME");
    assert!(run.steps().is_empty());
}

/// What a run that is refused leaves: exit code 2, a hint, these words, and nothing on the disk.
#[track_caller]
fn is_refused(folder: &Path, run: &Finished, words: &[&str]) {
    run.ended_with(2);
    words.iter().for_each(|words| run.said(words));
    run.said("backend");
    run.said("hint:");
    assert!(!folder.join("runs").exists(), "something was written");
}

/// A machine whose NCCL lacks a function.
fn lacks(function: &str) -> Option<Host> {
    let machine = Host::new()?;
    let library = without(function, machine.path());
    machine.lay("libnccl.so.2", &library.join("libnccl.so.2"));
    Some(machine)
}

#[test]
fn a_library_that_cannot_serve_is_one_clear_error_before_anything_is_written() {
    let (Some(machine), Some(bare), Some(lacks)) = (machine(), Host::new(), lacks("ncclCommAbort")) else {
        return;
    };
    let none = finish(bare.on_gpus(2, "steps=1"));
    is_refused(bare.path(), &none, &["there is no NCCL", "DTRAIN_LIBRARY_PATH"]);
    let refused = |name: &str, value: &str, words: &[&str]| {
        let mut command = machine.on_gpus(2, "steps=1");
        command.env(name, value);
        is_refused(machine.path(), &finish(command), words);
    };
    refused("FAKE_NCCL_VERSION", "2804", &["is version 2.8.4, at least 2.14 is needed"]);
    let words = ["NCCL_COMM_BLOCKING=1 makes every call of NCCL block", "unset it"];
    refused("NCCL_COMM_BLOCKING", "1", &words);
    let run = finish(lacks.on_gpus(2, "steps=1"));
    is_refused(lacks.path(), &run, &["has no ncclCommAbort, which NCCL has since 2.4"]);
}

#[test]
fn a_library_for_gpus_is_refused_on_the_cpu() {
    let Some(machine) = machine() else { return };
    let on_cpu = machine.train(&format!("{MLP} steps=3 devices=cpu ranks=2 backend=nccl"));
    let words =
        ["moves the memory of GPUs, and this host trains on its CPU", "hint: devices=all trains on GPUs"];
    is_refused(machine.path(), &on_cpu, &words);
}

#[test]
fn between_hosts_it_needs_a_trusted_network_and_says_that_it_is_plain() {
    if !has_turn(13) {
        return;
    }
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} steps=20");
    let hosts = Hosts::on_loopback("2");
    let node = |rank, arguments: &str| machine.equip(hosts.node(rank, arguments));
    let first = |settings: &str| node(0, &format!("{model} devices=cuda:0 ranks=1 backend=nccl {settings}"));
    let words = ["neither encrypted nor authenticated", "trusted_network=true"];
    is_refused(&hosts.folder(0), &finish(first("")), &words);
    let second = Running::of(node(1, "devices=cuda:0,1 ranks=2"));
    let run = finish(first("trusted_network=true name=hosts"));
    let whole = machine.train(&format!("{model} devices=cuda:0 ranks=1 name=whole"));
    assert_eq!(run.digest(), whole.digest(), "{}", run.stderr);
    assert_eq!(run.stderr.matches("is plain").count(), 1, "{}", run.stderr);
    assert_eq!(run.summary()["ranks"], 3);
    second.finish().succeeded();
}

/// A variable in the environment that a process was started with.
fn variable_of(pid: u32, name: &str) -> Option<String> {
    let all = std::fs::read(format!("/proc/{pid}/environ")).expect("it lives");
    let mut all = all.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    all.find_map(|one| one.strip_prefix(&format!("{name}=")).map(str::to_owned))
}

#[test]
fn the_log_tells_of_communicators_and_the_library_is_asked_for_its_words() {
    if !has_turn(23) {
        return;
    }
    let Some(machine) = machine() else { return };
    let asked = |more: &str| {
        let mut command = machine.on_gpus(2, &format!("{MLP} steps=100000 {more}"));
        command.env_remove("DTRAIN_LOG");
        command
    };
    let of_a_rank = |command| {
        let mut running = Running::of(command);
        wait_for_ranks(&mut running, 2);
        let value = variable_of(running.rank_pids()[1], "NCCL_DEBUG");
        signal(Signal::TERM, running.pid());
        (value, running.finish())
    };
    let (debug, run) = of_a_rank(asked("--log nccl=debug"));
    assert_eq!(debug.as_deref(), Some("INFO"));
    run.ended_with(130);
    for words in ["a communicator is made", "generation=1", "rank=1", "2.32.3", "libfake_nccl", "dissolved"] {
        run.said(words);
    }
    let mut own = asked("--log nccl=debug");
    own.env("NCCL_DEBUG", "WARN");
    assert_eq!(of_a_rank(own).0.as_deref(), Some("WARN"), "what the user set stays");
    let (debug, run) = of_a_rank(asked(""));
    assert_eq!(debug, None);
    assert!(!run.stderr.contains("a communicator is"), "{}", run.stderr);
    let wrong = machine.train("--log nccl=loud steps=1");
    wrong.ended_with(2);
    wrong.said("nccl=debug");
}
