//! A run that was killed, stopped or finished goes on where its newest checkpoint stands, on any number of ranks, with
//! the bits of a run that nothing happened to.

use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, Finished, GPT, MLP, Rng, Running, Signal, audit_is_clean, checkpoint_step, checkpoints, folder,
    seed, signal, train,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Kills every process of a run at a random moment, again and again, each time going on with another number of ranks;
/// the last time it is left alone.
fn killed_again_and_again(model: &str, every: u64, worlds: &[&str]) {
    let seed = seed();
    println!("DTRAIN_TEST_SEED={seed} repeats this");
    let mut rng = Rng(seed);
    let folder = folder();
    let run = folder.path().join("runs/hurt");
    let how = format!("{model} checkpoint.every={every}~steps name=hurt");
    let (mut resume, mut before) = ("", None);
    for world in worlds {
        let mut running = Running::start(folder.path(), &format!("{how} {world} {resume}"));
        running.wait_for_checkpoint();
        let moment = Instant::now() + Duration::from_micros(rng.below(60_000));
        // Lines are read all the time, so that the run never waits for its reader.
        let ended = running.wait_for(|_| Instant::now() >= moment).is_none();
        assert!(!ended, "seed {seed}: the run ended before it could be killed");
        running.kill_everything();
        let hurt = running.finish();
        assert_eq!(hurt.code, None, "seed {seed}: {}", hurt.stderr);
        goes_on_from(before, every, &hurt.steps(), seed);
        before = hurt.steps().last().copied();
        assert!(!checkpoints(&run).is_empty());
        resume = "--resume";
    }
    let last = train(folder.path(), &format!("{how} ranks=4 threads=1 --resume"));
    goes_on_from(before, every, &last.steps(), seed);
    let whole = train(folder.path(), &format!("{model} ranks=2 threads=1 name=whole"));
    assert_eq!(last.digest(), whole.digest(), "seed {seed}: after {} kills", worlds.len());
    assert_eq!(last.summary()["steps"], whole.summary()["steps"]);
    nothing_is_left_over(&run);
    audit_is_clean(folder.path(), "hurt");
}

/// The first step after a kill is one that a checkpoint led to, not two intervals before the last one seen.
fn goes_on_from(before: Option<u64>, every: u64, steps: &[u64], seed: u64) {
    let Some(before) = before else { return };
    let first = *steps.first().expect("a resumed run has steps");
    assert!(first > 1, "seed {seed}: the run began again");
    assert!(
        first <= before + 1 && first + 2 * every > before,
        "seed {seed}: resumed at {first}, was at {before}"
    );
    let in_order = steps.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert!(in_order, "seed {seed}: every step once and in order");
}

/// No half-written checkpoint stays: what lies there is complete, or the mark of the best.
fn nothing_is_left_over(run: &Path) {
    let whole = checkpoints(run);
    for entry in fs::read_dir(run.join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        let known = whole.contains(&path) || path.file_name().is_some_and(|name| name == "best");
        assert!(known, "{} was left over", path.display());
    }
}

#[test]
fn an_mlp_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_run() {
    if !has_turn(12) {
        return;
    }
    let worlds = [
        "ranks=3 threads=1",
        "ranks=1",
        "ranks=5 threads=1 workers=0",
        "ranks=2 isolation=thread",
        "ranks=8 threads=1",
    ];
    killed_again_and_again(&format!("{MLP} steps=6000"), 50, &worlds);
}

#[test]
fn a_cnn_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_run() {
    if !has_turn(12) {
        return;
    }
    let worlds = ["ranks=2 threads=1", "ranks=5 threads=1", "ranks=1 workers=2"];
    killed_again_and_again(&format!("{CNN} steps=500"), 10, &worlds);
}

#[test]
fn a_gpt_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_run() {
    if !has_turn(24) {
        return;
    }
    let worlds = ["ranks=3 threads=1", "ranks=2", "ranks=8 threads=1"];
    killed_again_and_again(&format!("{GPT} steps=600"), 10, &worlds);
}

/// A finished run of 60 steps with a checkpoint each 20, in `runs/a`.
fn finished_run() -> (tempfile::TempDir, PathBuf, Finished) {
    let folder = folder();
    let run = train(folder.path(), &format!("{SHORT} ranks=2 name=a"));
    run.succeeded();
    let path = folder.path().join("runs/a");
    (folder, path, run)
}

const SHORT: &str = "data.kind=digits global_batch=50 micro_batch=7 model.kind=mlp model.hidden=[24] threads=1 steps=60 \
                     checkpoint.every=20~steps";

/// Every file of a run with its content, to see that nothing was written.
fn files(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(run).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap_or_default();
            all.push((path, bytes));
        }
    }
    all.sort();
    all
}

fn remove_checkpoints(run: &Path, newer_than: u64) {
    for checkpoint in checkpoints(run) {
        if checkpoint_step(&checkpoint) > newer_than {
            fs::remove_dir_all(checkpoint).unwrap();
        }
    }
    let best = run.join("checkpoints/best");
    if best.is_symlink() {
        fs::remove_file(best).unwrap();
    }
}

#[test]
fn with_all_checkpoints_deleted_a_resume_is_refused_and_writes_nothing() {
    let (folder, run, _) = finished_run();
    remove_checkpoints(&run, 0);
    let before = files(&run);
    for how in ["--resume a", "name=a --resume", "resume=runs/a"] {
        let refused = train(folder.path(), how);
        refused.ended_with(2);
        refused.said("no valid checkpoint");
        refused.said("hint:");
        assert!(refused.lines.is_empty(), "nothing was begun");
        assert_eq!(files(&run), before, "{how}");
    }
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    train(folder.path(), "--resume a").ended_with(2);
}

#[test]
fn a_run_that_does_not_exist_cannot_be_resumed() {
    let folder = folder();
    for how in ["--resume", "--resume nobody", "resume=runs/nobody", "name=nobody --resume"] {
        let refused = train(folder.path(), how);
        refused.ended_with(2);
        refused.said("there is no run");
    }
    assert!(!folder.path().join("runs").exists(), "nothing was written");
}

#[test]
fn a_run_that_is_complete_says_so_and_computes_nothing() {
    let (folder, run, whole) = finished_run();
    let ledger = fs::read(run.join("ledger.jsonl")).unwrap();
    for how in ["--resume a", "--resume a ranks=5", "name=a --resume isolation=thread"] {
        let again = train(folder.path(), how);
        again.succeeded();
        again.said("is complete");
        assert_eq!(again.steps(), [0u64; 0], "no step is made again");
        assert_eq!(again.digest(), whole.digest());
        for key in ["steps", "val_loss", "val_accuracy", "run"] {
            assert_eq!(again.summary()[key], whole.summary()[key], "{key}");
        }
    }
    assert_eq!(fs::read(run.join("ledger.jsonl")).unwrap(), ledger);
    audit_is_clean(folder.path(), "a");
}

#[test]
fn with_resume_auto_one_command_line_begins_goes_on_and_finds_the_run_complete() {
    if !has_turn(2) {
        return;
    }
    let folder = folder();
    let command = format!("{MLP} steps=3000 checkpoint.every=50~steps threads=1 name=a resume=auto");
    let mut running = Running::start(folder.path(), &format!("{command} ranks=2"));
    running.wait_for_checkpoint();
    running.kill_everything();
    let killed = running.finish();
    let mut running = Running::start(folder.path(), &format!("{command} ranks=3"));
    running.wait_for_checkpoint();
    signal(Signal::TERM, running.pid());
    let stopped = running.finish();
    stopped.ended_with(130);
    goes_on_from(killed.steps().last().copied(), 50, &stopped.steps(), 0);
    let whole = train(folder.path(), &format!("{command} ranks=1"));
    assert_eq!(whole.steps().first().copied(), stopped.steps().last().map(|step| step + 1));
    let again = train(folder.path(), &format!("{command} ranks=1"));
    assert_eq!((again.digest(), again.steps()), (whole.digest(), vec![]));
    let straight = train(folder.path(), &format!("{MLP} steps=3000 name=b ranks=1"));
    assert_eq!(whole.digest(), straight.digest());
    audit_is_clean(folder.path(), "a");
}

#[test]
fn a_run_killed_before_its_first_checkpoint_starts_again_with_auto_and_is_refused_without() {
    if !has_turn(9) {
        return;
    }
    let folder = folder();
    let command = format!("{MLP} steps=3000 checkpoint.every=none ranks=2 threads=1 name=a");
    let mut running = Running::start(folder.path(), &command);
    running.wait_for_step(5);
    running.kill_everything();
    drop(running.finish());
    train(folder.path(), &format!("{command} --resume")).ended_with(2);
    let again = train(folder.path(), &format!("{command} resume=auto"));
    assert_eq!(again.steps().first(), Some(&1));
    let straight = train(folder.path(), &format!("{MLP} steps=3000 name=b ranks=1"));
    assert_eq!(again.digest(), straight.digest());
    audit_is_clean(folder.path(), "a");
}

#[test]
fn a_key_that_changes_the_bits_is_refused_and_named_with_the_way_out() {
    let (folder, run, _) = finished_run();
    remove_checkpoints(&run, 40);
    let before = files(&run);
    for changed in [
        "seed=8",
        "global_batch=51",
        "micro_batch=8",
        "steps=59",
        "reduce=ring",
        "data.augment=none",
        "data.normalize=none",
        "model.hidden=[25]",
        "model.dropout=0.1",
        "loss.label_smoothing=0.1",
        "optimizer.lr=1e-3",
        "optimizer.clip_norm=1",
        "schedule.kind=linear",
    ] {
        let key = changed.split('=').next().unwrap();
        let refused = train(folder.path(), &format!("--resume a {changed}"));
        refused.ended_with(2);
        refused.said(key);
        refused.said("when the run started");
        refused.said("--fork");
        assert_eq!(files(&run), before, "{changed}");
    }
    let forked = train(folder.path(), "--resume a --fork seed=8");
    forked.succeeded();
    assert_eq!(forked.summary()["run"], "runs/a-2");
    assert_eq!(forked.steps().first(), Some(&1), "a fork is a run of its own");
    assert_eq!(files(&run), before, "the run it started from is left alone");
}

#[test]
fn keys_that_leave_the_bits_alone_may_change_at_each_resume() {
    if !has_turn(12) {
        return;
    }
    let (folder, run, whole) = finished_run();
    for changed in [
        "ranks=1",
        "ranks=8",
        "threads=2",
        "workers=0",
        "workers=3",
        "isolation=thread ranks=3",
        "detect=3s",
        "checkpoint.every=7~steps checkpoint.keep=1",
        "verify=1 ranks=3",
        "join_timeout=9s min_ranks=2 ranks=2",
        "isa=scalar",
        "batch_size=25 ranks=3",
    ] {
        remove_checkpoints(&run, 40);
        let resumed = train(folder.path(), &format!("--resume a {changed}"));
        assert_eq!(resumed.digest(), whole.digest(), "{changed}");
        assert_eq!(resumed.steps(), (41..=60).collect::<Vec<_>>(), "{changed}");
        // Each resume finds its own work done and takes it away again; one with another `keep` also its start.
        if checkpoints(&run).iter().all(|checkpoint| checkpoint_step(checkpoint) > 40) {
            fs::remove_dir_all(&run).unwrap();
            train(folder.path(), &format!("{SHORT} ranks=2 name=a")).succeeded();
        } else {
            audit_is_clean(folder.path(), "a");
        }
    }
}

/// The audit compares the ledger with the newest checkpoint: a line past it that was never resumed over is fine, and one
/// that a resume cancelled too.
#[test]
fn a_ledger_that_is_ahead_of_the_newest_checkpoint_is_clean() {
    let (folder, run, _) = finished_run();
    remove_checkpoints(&run, 20);
    audit_is_clean(folder.path(), "a");
    train(folder.path(), "--resume a ranks=3").succeeded();
    audit_is_clean(folder.path(), "a");
}
