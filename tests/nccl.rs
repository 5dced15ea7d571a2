//! Training whose gradients go over NCCL, judged from outside: the same bits as over shared memory, nothing lost when a rank
//! dies inside an all-reduce, and one clear error where the library cannot serve.
//!
//! The library is that of `crates/fake-nccl`: NCCL's C interface over host memory, between real processes.

use crate::harness::hosts::Hosts;
use crate::harness::nccl::{Stand, over_nccl, with_fake, with_libraries, without};
use crate::harness::{
    CNN, Finished, GPT, MLP, Running, Signal, audit_is_clean, dtrain, finish, folder, signal, train,
};
use std::path::Path;

/// A group of calls in the 40th step of a generation that begins with a fresh state: two of a barrier, then three a step,
/// of which the second carries the gradients.
const INSIDE: u32 = 2 + 3 * 39 + 2;

fn whole_digest(folder: &Path, model: &str) -> String {
    train(folder, &format!("{model} ranks=1 name=whole")).digest()
}

/// One step event for every step, and the digest, and the books.
#[track_caller]
fn is_undisturbed(folder: &Path, run: &Finished, digest: &str, steps: u64) {
    assert_eq!(run.digest(), digest, "{}", run.stderr);
    assert_eq!(run.steps(), (1..=steps).collect::<Vec<u64>>(), "{}", run.stderr);
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    audit_is_clean(folder, "hurt");
}

/// The process of every life of a member that held a rank.
fn processes_of(run: &Finished, member: u64) -> Vec<u64> {
    let started = run.events("rank_started").filter(|line| line["member"] == member);
    let mut pids: Vec<u64> = started.map(|line| line["pid"].as_u64().expect("a pid")).collect();
    pids.dedup();
    pids
}

/// Reads until `ranks` ranks of the first generation work.
#[track_caller]
fn wait_for_ranks(running: &mut Running, ranks: u64) {
    let last = running.wait_for(|line| line["event"] == "rank_started" && line["rank"] == ranks - 1);
    assert!(last.is_some(), "the run ended\n{}", running.story());
}

#[test]
fn every_world_has_the_bits_of_shared_memory() {
    let folder = folder();
    for (model, steps) in [(MLP, 40), (CNN, 12), (GPT, 12)] {
        let model = format!("{model} steps={steps} threads=1");
        let want = train(folder.path(), &format!("{model} ranks=2")).digest();
        for how in ["ranks=1", "ranks=2", "ranks=3", "ranks=5", "ranks=3 isolation=thread"] {
            let run = finish(over_nccl(folder.path(), &format!("{model} {how}")));
            assert_eq!(run.digest(), want, "{model} {how}\n{}", run.stderr);
            run.said("gradients go over NCCL 2.32.3");
        }
    }
}

#[test]
fn more_ranks_than_micro_batches_and_a_ring_work_too() {
    let folder = folder();
    let model = format!("{MLP} steps=20 threads=1");
    let want = whole_digest(folder.path(), &model);
    assert_eq!(finish(over_nccl(folder.path(), &format!("{model} ranks=9"))).digest(), want);
    let ring = |backend: &str| {
        let arguments = format!("{model} ranks=3 reduce=ring");
        if backend == "nccl" {
            finish(over_nccl(folder.path(), &arguments)).digest()
        } else {
            train(folder.path(), &arguments).digest()
        }
    };
    assert_eq!(ring("nccl"), ring("nccl"), "the library adds in one order");
    assert_ne!(ring("nccl"), want, "and not along the tree");
    assert!(!ring("host").is_empty());
}

#[test]
fn a_rank_killed_inside_an_all_reduce_costs_no_step_and_the_others_keep_their_processes() {
    let folder = folder();
    let model = format!("{MLP} steps=400 threads=1 checkpoint.every=20~steps");
    let digest = whole_digest(folder.path(), &model);
    let mut command = over_nccl(folder.path(), &format!("{model} ranks=3 name=hurt"));
    let stand = Stand::new(&mut command, folder.path(), 1, INSIDE);
    let mut running = Running::of(command);
    wait_for_ranks(&mut running, 3);
    let victim = stand.wait(&running);
    assert_eq!(victim, running.rank_pids()[1]);
    signal(Signal::KILL, victim);
    let run = running.finish();
    is_undisturbed(folder.path(), &run, &digest, 400);
    let faults: Vec<_> = run.events("fault").collect();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(run.events("recovery").count(), 1);
    assert_eq!((processes_of(&run, 0).len(), processes_of(&run, 2).len()), (1, 1), "{}", run.stderr);
}

#[test]
fn two_kills_one_after_the_other_cost_no_step_either() {
    let folder = folder();
    let model = format!("{MLP} steps=1500 threads=1 checkpoint.every=100~steps");
    let digest = whole_digest(folder.path(), &model);
    let mut command = over_nccl(folder.path(), &format!("{model} ranks=3 name=hurt"));
    let stand = Stand::new(&mut command, folder.path(), 1, INSIDE);
    let mut running = Running::of(command);
    wait_for_ranks(&mut running, 3);
    let first = stand.wait(&running);
    // Whoever is rank 1 in a later generation stands there too.
    let again = stand.again();
    signal(Signal::KILL, first);
    let second = again.wait(&running);
    assert_ne!(first, second);
    signal(Signal::KILL, second);
    let run = running.finish();
    is_undisturbed(folder.path(), &run, &digest, 1500);
    assert_eq!(run.events("fault").count(), 2, "{}", run.stderr);
    assert_eq!(processes_of(&run, 0).len(), 1, "rank 0 was never hurt");
}

#[test]
fn a_lost_rank_zero_makes_way_for_another_that_makes_the_next_id() {
    let folder = folder();
    let model = format!("{MLP} steps=400 threads=1");
    let digest = whole_digest(folder.path(), &model);
    let mut command = over_nccl(folder.path(), &format!("{model} ranks=3 name=hurt"));
    let stand = Stand::new(&mut command, folder.path(), 0, INSIDE);
    let mut running = Running::of(command);
    wait_for_ranks(&mut running, 3);
    signal(Signal::KILL, stand.wait(&running));
    let run = running.finish();
    is_undisturbed(folder.path(), &run, &digest, 400);
    assert_eq!((processes_of(&run, 1).len(), processes_of(&run, 2).len()), (1, 1), "{}", run.stderr);
}

#[test]
fn a_rank_that_is_stopped_inside_an_all_reduce_is_replaced() {
    let folder = folder();
    let model = format!("{MLP} steps=400 threads=1 detect=500ms");
    let digest = whole_digest(folder.path(), &model);
    let mut command = over_nccl(folder.path(), &format!("{model} ranks=2 name=hurt"));
    let stand = Stand::new(&mut command, folder.path(), 1, INSIDE);
    let mut running = Running::of(command);
    wait_for_ranks(&mut running, 2);
    signal(Signal::STOP, stand.wait(&running));
    let run = running.finish();
    is_undisturbed(folder.path(), &run, &digest, 400);
    assert_eq!(processes_of(&run, 0).len(), 1);
}

#[test]
fn a_library_that_does_not_come_back_from_an_abort_ends_its_rank_and_not_the_run() {
    let folder = folder();
    let model = format!("{MLP} steps=200 threads=1 detect=200ms checkpoint.every=20~steps");
    let digest = whole_digest(folder.path(), &model);
    let mut command = over_nccl(folder.path(), &format!("{model} ranks=2 name=hurt"));
    command.env("FAKE_NCCL_STUCK_ABORT", "1");
    let stand = Stand::new(&mut command, folder.path(), 1, INSIDE);
    let mut running = Running::of(command);
    wait_for_ranks(&mut running, 2);
    signal(Signal::KILL, stand.wait(&running));
    let run = running.finish();
    assert_eq!(run.digest(), digest, "{}", run.stderr);
    let words: Vec<String> = run.events("fault").map(ToString::to_string).collect();
    assert!(words.iter().any(|fault| fault.contains("was not aborted after")), "{words:?}");
    assert_eq!(processes_of(&run, 0).len(), 2, "the survivor was replaced");
}

#[test]
fn a_rank_that_cannot_join_ends_the_run_with_the_words_of_the_library() {
    let folder = folder();
    let mut command = over_nccl(folder.path(), &format!("{MLP} steps=20 threads=1 ranks=2 detect=100ms"));
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

#[test]
fn a_library_that_cannot_serve_is_one_clear_error_before_anything_is_written() {
    let folder = folder();
    let path = folder.path();
    let asked = || dtrain(path, "train --json backend=nccl steps=1 ranks=2");
    let nothing = path.join("nothing");
    std::fs::create_dir(&nothing).unwrap();
    is_refused(
        path,
        &finish(with_libraries(asked(), &nothing)),
        &["there is no NCCL", "DTRAIN_LIBRARY_PATH"],
    );
    let mut old = with_fake(asked(), path);
    old.env("FAKE_NCCL_VERSION", "2804");
    is_refused(path, &finish(old), &["is version 2.8.4, at least 2.14 is needed"]);
    let lacks = with_libraries(asked(), &without("ncclCommAbort", path));
    is_refused(path, &finish(lacks), &["has no ncclCommAbort, which NCCL has since 2.4"]);
    let mut blocking = with_fake(asked(), path);
    blocking.env("NCCL_COMM_BLOCKING", "1");
    is_refused(path, &finish(blocking), &["NCCL_COMM_BLOCKING=1 makes every call of NCCL block", "unset it"]);
    // Without the name by which the fake is told from it, it is the real one as far as anybody can see.
    let real = with_libraries(asked(), &without("fakeNcclTakesHostMemory", path));
    is_refused(path, &finish(real), &["moves the memory of GPUs", "trains on its CPU", "backend=host"]);
}

#[test]
fn between_hosts_it_needs_a_trusted_network_and_says_that_it_is_plain() {
    let model = format!("{MLP} steps=60 threads=1");
    let hosts = Hosts::on_loopback("2");
    let libraries = hosts.folder(0);
    let refused = finish(with_fake(hosts.node(0, &format!("{model} backend=nccl")), &libraries));
    is_refused(&libraries, &refused, &["neither encrypted nor authenticated", "trusted_network=true"]);
    let second = Running::of(with_fake(hosts.node(1, "ranks=2"), &libraries));
    let how = format!("{model} ranks=1 backend=nccl trusted_network=true name=hosts");
    let run = finish(with_fake(hosts.node(0, &how), &libraries));
    assert_eq!(run.digest(), whole_digest(folder().path(), &model), "{}", run.stderr);
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
    let folder = folder();
    let asked =
        |more: &str| over_nccl(folder.path(), &format!("{MLP} steps=100000 threads=1 ranks=2 {more}"));
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
    let wrong = train(folder.path(), "--log nccl=loud steps=1");
    wrong.ended_with(2);
    wrong.said("nccl=debug");
}
