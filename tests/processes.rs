//! The life and death of rank processes, seen from outside: who is named, how soon, with which exit code, and that
//! nobody is left behind.

use crate::harness::turn::has_turn;
use crate::harness::{
    self, Finished, MLP, Running, Signal, audit_is_clean, checkpoint_step, checkpoints, folder, keepers_of,
    lives, ranks_of, signal, signal_group, train, wait_until_gone,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::path::Path;
use std::time::{Duration, Instant};

/// A run that would go on for minutes.
const LONG: &str = "steps=1000000 threads=1";

fn long(folder: &Path, more: &str) -> Running {
    Running::start(folder, &format!("{MLP} {LONG} {more}"))
}

/// A run of `world` ranks that can lose none of them: nobody is started again, and all are needed.
fn brittle(world: usize) -> String {
    format!("ranks={world} min_ranks={world} max_restarts=0")
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

/// The report of a failed run: what it says after everything else.
fn report(run: &Finished) -> &str {
    let at = run.stderr.find("error: ").unwrap_or_else(|| panic!("no report:\n{}", run.stderr));
    &run.stderr[at..]
}

/// The report says that too few ranks are left, and names first this rank of this host and what happened to it; its
/// fault is the first event of its kind.
fn names_first(run: &Finished, rank: u64, what: &str) {
    run.ended_with(3);
    let first = report(run).lines().find(|line| line.contains("first cause: ")).unwrap();
    let who = format!("first cause: rank {rank} (member {rank}) on {}: ", host());
    assert!(first.starts_with(&who) && first.contains(what), "{first}\n{}", run.stderr);
    assert!(report(run).contains("hint: "), "{}", run.stderr);
    let fault = run.events("fault").next().expect("a fault event");
    assert_eq!((fault["rank"].as_u64(), fault["member"].as_u64()), (Some(rank), Some(rank)));
    assert_eq!(fault["host"].as_str(), Some(host().as_str()));
    assert!(fault["cause"].as_str().unwrap().contains(what), "{fault}");
    assert_eq!(run.summary()["digest"], "", "there is no final state");
}

#[test]
fn a_killed_rank_that_nobody_may_replace_ends_the_run_within_a_second_with_a_report_that_names_it_first() {
    let folder = folder();
    for (world, rank) in [(2, 0), (2, 1), (3, 1), (5, 4)] {
        let mut running = long(folder.path(), &brittle(world));
        running.wait_for_step(20);
        let pids = running.rank_pids();
        assert_eq!(pids.len(), world);
        let killed = Instant::now();
        signal(Signal::KILL, pids[rank]);
        let run = running.finish();
        let took = run.ended - killed;
        assert!(took < Duration::from_secs(1), "{took:?}\n{}", run.stderr);
        names_first(&run, rank as u64, "killed by signal 9 (SIGKILL)");
        wait_until_gone(&pids);
    }
}

#[test]
fn two_ranks_killed_at_once_are_both_reported() {
    let folder = folder();
    let mut running = long(folder.path(), &brittle(3));
    running.wait_for_step(20);
    let pids = running.rank_pids();
    signal(Signal::KILL, pids[0]);
    signal(Signal::KILL, pids[2]);
    let run = running.finish();
    run.ended_with(3);
    let reported = report(&run).matches("killed by signal 9").count();
    assert_eq!(reported, 2, "{}", run.stderr);
    wait_until_gone(&pids);
}

#[test]
fn after_a_rank_was_killed_the_run_goes_on_from_its_checkpoint_as_the_hint_says() {
    if !has_turn(22) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=2000 threads=1 checkpoint.every=50~steps name=a");
    let mut running = Running::start(folder.path(), &format!("{model} {}", brittle(3)));
    running.wait_for_checkpoint();
    signal(Signal::KILL, running.rank_pids()[1]);
    let run = running.finish();
    names_first(&run, 1, "signal 9");
    run.said("dtrain train --resume runs/a");
    let resumed = train(folder.path(), "--resume a");
    let before = run.steps().last().copied().unwrap();
    let first = resumed.steps()[0];
    assert!(first > 1 && first <= before + 1 && first + 100 > before, "resumed at {first}, was at {before}");
    let whole = train(folder.path(), &format!("{MLP} steps=2000 ranks=1 name=b"));
    assert_eq!(resumed.digest(), whole.digest());
    audit_is_clean(folder.path(), "a");
}

/// The deaths of members that have no rank yet, and of those that are just getting one.
#[test]
fn a_rank_killed_while_the_run_begins_ends_it_too() {
    let folder = folder();
    for _ in 0..5 {
        let running = long(folder.path(), &brittle(3));
        let victim = loop {
            if let Some(child) = ranks_of(running.pid()).first() {
                break *child;
            }
        };
        signal(Signal::KILL, victim);
        let run = running.finish();
        run.ended_with(3);
        let first = report(&run).lines().find(|line| line.contains("first cause: ")).unwrap();
        assert!(first.contains("killed by signal 9"), "{}", run.stderr);
        wait_until_gone(&[victim]);
    }
}

#[test]
fn ranks_of_a_supervisor_that_is_killed_wait_for_another_one_and_then_end() {
    let folder = folder();
    for stopped in [false, true] {
        let mut running = long(folder.path(), "ranks=3 detect=1s master_timeout=2500ms");
        running.wait_for_step(20);
        let pids = running.rank_pids();
        assert!(pids.len() == 3 && pids.iter().all(|pid| lives(*pid)));
        let keepers = keepers_of(running.pid());
        assert_eq!(keepers.len(), 1);
        if stopped {
            signal(Signal::STOP, pids[1]);
        }
        let killed = Instant::now();
        signal(Signal::KILL, running.pid());
        // Whoever waits for the end of its output waits for nobody else.
        assert_eq!(running.finish().code, None);
        assert!(killed.elapsed() < Duration::from_secs(2));
        assert!(pids.iter().all(|pid| lives(*pid)), "they keep their state");
        wait_until_gone(&pids);
        wait_until_gone(&keepers);
        assert!(killed.elapsed() >= Duration::from_secs(2), "after {:?}", killed.elapsed());
    }
}

#[test]
fn no_rank_outlives_a_supervisor_that_is_killed_while_it_starts_them() {
    let folder = folder();
    for wanted in [1, 2, 5] {
        let mut running = long(folder.path(), "ranks=5 detect=60s");
        let found = loop {
            let found = ranks_of(running.pid());
            if found.len() >= wanted {
                break found;
            }
        };
        signal(Signal::KILL, running.pid());
        // Nobody has a state yet that would be lost.
        wait_until_gone(&found);
        assert!(running.wait_for(|_| false).is_none());
        assert_eq!(running.finish().code, None);
    }
}

#[test]
fn nobody_is_left_behind_by_a_run_that_ends_well() {
    let folder = folder();
    let mut running = Running::start(folder.path(), &format!("{MLP} steps=40 ranks=5 threads=1"));
    running.wait_for_step(1);
    let pids = running.rank_pids();
    running.finish().succeeded();
    assert!(pids.iter().all(|pid| !lives(*pid)), "the run ends after its ranks");
}

/// Stopped by a signal: exit code 130, after the step in hand and a checkpoint of it.
fn is_interrupted_with_a_checkpoint(folder: &Path, run: &Finished) {
    run.ended_with(130);
    let last = run.steps().last().copied().expect("steps were made");
    let folder = folder.join(run.summary()["run"].as_str().unwrap());
    let newest = checkpoints(&folder).pop().expect("a checkpoint was written");
    assert_eq!(checkpoint_step(&newest), last, "{}", run.stderr);
    run.said(&format!("interrupted after step {last}"));
    run.said(newest.file_name().unwrap().to_str().unwrap());
    run.said("is saved; go on with `dtrain train --resume");
    assert!(!run.stderr.contains("error:"), "who stops a run made no mistake: {}", run.stderr);
    assert_ne!(run.summary()["digest"], "");
    assert_eq!(run.summary()["steps"].as_u64(), Some(last));
    assert_eq!(run.events("fault").count(), 0, "{}", run.stderr);
}

#[test]
fn a_signal_to_the_supervisor_stops_the_run_at_a_step_with_a_checkpoint() {
    let folder = folder();
    for (name, how) in [
        (Signal::TERM, "ranks=3"),
        (Signal::INT, "ranks=2"),
        (Signal::TERM, "ranks=2 isolation=thread"),
        (Signal::INT, "ranks=1"),
        // What Slurm warns with.
        (Signal::USR1, "ranks=2"),
    ] {
        let mut running = long(folder.path(), &format!("{how} checkpoint.every=none"));
        running.wait_for_step(20);
        let pids = running.rank_pids();
        signal(name, running.pid());
        let run = running.finish();
        is_interrupted_with_a_checkpoint(folder.path(), &run);
        wait_until_gone(&pids);
    }
}

/// A batch system warns all processes, and asks them to end soon after.
#[test]
fn a_warning_and_a_request_to_end_behind_it_stop_the_run_once() {
    if !has_turn(1) {
        return;
    }
    let folder = folder();
    let slow = "global_batch=1437 micro_batch=31 isa=scalar steps=50 schedule.warmup=none threads=1";
    let mut running = Running::start(folder.path(), &format!("{slow} ranks=2 checkpoint.every=none"));
    assert!(running.wait_for(|line| line["event"] == "rank_started").is_some());
    for name in [Signal::USR1, Signal::USR1, Signal::TERM] {
        signal_group(name, running.pid());
    }
    let run = running.finish();
    is_interrupted_with_a_checkpoint(folder.path(), &run);
}

#[test]
fn ctrl_c_reaches_the_whole_process_group_and_stops_the_run_once() {
    let folder = folder();
    let mut running = long(folder.path(), "ranks=3 checkpoint.every=none");
    running.wait_for_step(20);
    signal_group(Signal::INT, running.pid());
    let run = running.finish();
    is_interrupted_with_a_checkpoint(folder.path(), &run);
}

/// Some launchers signal every process that they know: it is the supervisor's to answer, not the ranks'.
#[test]
fn signals_to_the_ranks_themselves_change_nothing() {
    if !has_turn(20) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=2000 threads=1");
    let mut running = Running::start(folder.path(), &format!("{model} ranks=3 name=a"));
    running.wait_for_step(20);
    for pid in running.rank_pids() {
        for name in [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1] {
            signal(name, pid);
        }
    }
    let disturbed = running.finish();
    let whole = train(folder.path(), &format!("{model} ranks=1 name=b"));
    assert_eq!(disturbed.digest(), whole.digest());
}

#[test]
fn a_signal_before_the_first_step_ends_the_run_too() {
    let folder = folder();
    for _ in 0..3 {
        let running = long(folder.path(), "ranks=5 checkpoint.every=none");
        while ranks_of(running.pid()).is_empty() {}
        let found = ranks_of(running.pid());
        signal(Signal::TERM, running.pid());
        let run = running.finish();
        run.ended_with(130);
        run.said("interrupted after step");
        assert_eq!(run.events("fault").count(), 0, "{}", run.stderr);
        wait_until_gone(&found);
    }
}

#[test]
fn the_second_signal_ends_the_run_at_once() {
    let folder = folder();
    // Steps of some seconds: the first signal waits for the step in hand, the second does not.
    let slow = "global_batch=1437 micro_batch=31 isa=scalar steps=50 schedule.warmup=none threads=1";
    for place in ["process", "thread"] {
        let how = format!("{slow} ranks=2 isolation={place} checkpoint.every=none");
        let mut running = Running::start(folder.path(), &how);
        assert!(running.wait_for(|line| line["event"] == "rank_started").is_some());
        signal(Signal::TERM, running.pid());
        running.wait_for_words("once more to stop at once");
        signal(Signal::TERM, running.pid());
        let run = running.finish();
        run.ended_with(130);
        run.said("nothing is saved; there is no checkpoint yet: start again");
        let path = folder.path().join(run.summary()["run"].as_str().unwrap());
        assert!(checkpoints(&path).is_empty());
        assert_eq!(run.steps(), [0u64; 0], "it did not wait for the step in hand");
    }
}

#[test]
fn a_stopped_rank_is_named_as_silent_and_ended() {
    let folder = folder();
    let detect = Duration::from_millis(300);
    for rank in [0, 1, 2] {
        let mut running = long(folder.path(), &format!("{} detect=300ms", brittle(3)));
        running.wait_for_step(20);
        let pids = running.rank_pids();
        let stopped = Instant::now();
        signal(Signal::STOP, pids[rank]);
        let run = running.finish();
        let took = run.ended - stopped;
        names_first(&run, rank as u64, "silent for");
        // Its last word came at most a few heartbeats, an eighth of `detect` each, before it was stopped.
        assert!(took > detect / 2, "it was given up too early, after {took:?}");
        assert!(took < 10 * detect, "{took:?}\n{}", run.stderr);
        wait_until_gone(&pids);
    }
}

/// Limits a process from outside, as a container would.
fn limit(pid: u32, resource: Resource, bound: u64) {
    let limit = Rlimit { current: Some(bound), maximum: Some(bound) };
    prlimit(Pid::from_raw(i32::try_from(pid).unwrap()), resource, limit).expect("they are our processes");
}

#[test]
fn a_rank_that_runs_out_of_memory_is_named_with_its_last_words() {
    if !has_turn(14) {
        return;
    }
    let folder = folder();
    // A state of 83 MB: its copy for the first checkpoint is more than the 64 MB that an allocator keeps at hand for a thread.
    let model =
        "data.kind=digits model.kind=mlp model.hidden=[2600,2600] steps=200 threads=1 ranks=1 max_restarts=0";
    let mut running = Running::start(folder.path(), &format!("{model} checkpoint.every=20~steps"));
    running.wait_for_step(1);
    limit(running.rank_pids()[0], Resource::As, 1);
    let run = running.finish();
    names_first(&run, 0, "killed by signal 6 (SIGABRT)");
    let lines: Vec<&str> = report(&run).lines().skip_while(|line| !line.contains("first cause: ")).collect();
    assert!(lines[1].contains("its last lines"), "{lines:?}");
    assert!(lines[2].contains("memory allocation"), "{lines:?}");
}

/// A rank that dies while it writes its shard leaves no checkpoint, and the one before it stays.
#[test]
fn a_rank_that_dies_in_the_middle_of_a_checkpoint_costs_that_checkpoint_only() {
    if !has_turn(5) {
        return;
    }
    let folder = folder();
    let run_path = folder.path().join("runs/a");
    let model = format!("{MLP} steps=2000 threads=1 checkpoint.every=100~steps name=a");
    let mut running = Running::start(folder.path(), &format!("{model} {}", brittle(2)));
    running.wait_for_checkpoint();
    let kept = checkpoints(&run_path).last().map(|path| checkpoint_step(path)).unwrap();
    // A file that grows past this kills its writer with SIGXFSZ.
    limit(running.rank_pids()[1], Resource::Fsize, 1_000);
    let run = running.finish();
    names_first(&run, 1, "killed by signal 25");
    let newest = checkpoints(&run_path).last().map(|path| checkpoint_step(path)).unwrap();
    assert!(newest >= kept && newest <= kept + 200, "{kept} stayed, {newest} is the newest");
    let resumed = train(folder.path(), "--resume a ranks=3");
    assert_eq!(resumed.steps()[0], newest + 1);
    let whole = train(folder.path(), &format!("{MLP} steps=2000 ranks=1 name=b"));
    assert_eq!(resumed.digest(), whole.digest());
    audit_is_clean(folder.path(), "a");
}

/// A rank that may open no file cannot write its shard: people are told, and training goes on.
#[test]
fn a_shard_that_cannot_be_written_gives_up_its_checkpoint_and_training_goes_on() {
    let folder = folder();
    let model = format!("{MLP} steps=400 threads=1 checkpoint.every=100~steps name=a");
    let mut running = Running::start(folder.path(), &format!("{model} ranks=2"));
    running.wait_for_checkpoint();
    limit(running.rank_pids()[1], Resource::Nofile, 0);
    let run = running.finish();
    let whole = train(folder.path(), &format!("{MLP} steps=400 ranks=1 name=b"));
    assert_eq!(run.digest(), whole.digest());
    let failed = run.events("checkpoint_failed").last().expect("a checkpoint was given up");
    assert_eq!(failed["step"].as_u64(), Some(400));
    assert!(failed["cause"].as_str().unwrap().contains("open files"), "{failed}");
    run.said("s000400 was not written");
    run.said("training goes on");
    audit_is_clean(folder.path(), "a");
}

/// Data files must stay as they are during a run. One that does not kills its readers, and the report says by what.
#[test]
fn a_data_file_that_is_cut_off_under_a_run_is_reported() {
    let folder = folder();
    let model = harness::GPT;
    let mut running = Running::start(
        folder.path(),
        &format!("{model} steps=100000 threads=1 checkpoint.every=none {}", brittle(2)),
    );
    running.wait_for_step(3);
    std::fs::OpenOptions::new().write(true).truncate(true).open(folder.path().join("text.txt")).unwrap();
    let run = running.finish();
    run.ended_with(3);
    let first = report(&run).lines().find(|line| line.contains("first cause: ")).unwrap();
    assert!(first.contains("killed by signal 7 (SIGBUS)"), "{}", run.stderr);
    run.said("data file");
}
