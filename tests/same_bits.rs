//! Promise P1: the final parameters are the same bits for every world size, in threads and in processes, for any
//! number of compute threads and loader workers, for every instruction set, and after a kill and a resume.

mod harness;

use harness::{Running, checkpoints, signal, train, write_text};
use std::path::Path;

/// Models whose global batch does not divide: 8 micro-batches of 7, the last one short, and a short last step.
const MODELS: [(&str, &str); 3] = [
    ("mlp", "data.kind=digits global_batch=50 micro_batch=7 model.kind=mlp model.hidden=[24] steps=40"),
    (
        "cnn",
        "data.kind=digits data.augment=shift global_batch=50 micro_batch=7 model.kind=cnn model.batch_norm=true \
         model.dropout=0.2 steps=32",
    ),
    (
        "gpt",
        "data.kind=text data.path=text.txt data.context=16 global_batch=22 micro_batch=3 model.kind=gpt model.layers=2 \
         model.width=32 model.heads=4 model.dropout=0.1 steps=20",
    ),
];

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_text(&folder.path().join("text.txt"), 4_000);
    folder
}

fn digest(folder: &Path, model: &str, how: &str) -> String {
    train(folder, &format!("{model} {how}")).digest()
}

fn all_agree(name: &str, model: &str, ways: &[&str]) {
    let folder = folder();
    let one = digest(folder.path(), model, "ranks=1 threads=1");
    for how in ways {
        assert_eq!(digest(folder.path(), model, how), one, "{name} with {how}");
    }
}

const WORLDS: [&str; 5] = [
    "ranks=2 threads=1",
    "ranks=3 threads=1",
    "ranks=5 threads=1",
    "ranks=8 threads=1",
    "ranks=13 threads=1",
];
const PLACES: [&str; 7] = [
    "ranks=2 threads=1 isolation=thread",
    "ranks=3 threads=1 isolation=thread",
    "ranks=1 threads=2",
    "ranks=2 threads=4",
    "ranks=2 threads=1 workers=0",
    "ranks=2 threads=1 workers=3",
    "ranks=2 threads=1 isa=scalar",
];

#[test]
fn an_mlp_has_the_same_bits_on_every_world_size() {
    all_agree("mlp", MODELS[0].1, &WORLDS);
}

#[test]
fn a_cnn_with_batch_norm_and_dropout_has_the_same_bits_on_every_world_size() {
    all_agree("cnn", MODELS[1].1, &WORLDS);
}

#[test]
fn a_gpt_has_the_same_bits_on_every_world_size() {
    all_agree("gpt", MODELS[2].1, &WORLDS);
}

#[test]
fn threads_workers_isolation_and_instruction_set_do_not_change_the_bits() {
    for (name, model) in MODELS {
        all_agree(name, model, &PLACES);
    }
}

#[test]
fn another_seed_gives_other_bits() {
    let folder = folder();
    let one = digest(folder.path(), MODELS[0].1, "ranks=1");
    assert_ne!(digest(folder.path(), MODELS[0].1, "ranks=1 seed=8"), one);
}

/// Kills everything with `name` at a step after the first complete checkpoint, resumes on another number of ranks,
/// and compares with the undisturbed run.
fn killed_and_resumed(model: &str, name: &str, at_step: u64) {
    let folder = folder();
    let undisturbed = digest(folder.path(), model, "ranks=2 threads=1 name=whole");
    let how = "threads=1 checkpoint.every=5~steps";
    let mut running = Running::start(folder.path(), &format!("{model} {how} ranks=3 name=hurt"));
    let run = folder.path().join("runs/hurt");
    let last_step = running
        .wait_for(|line| {
            line["event"] == "step"
                && line["step"].as_u64().is_some_and(|step| step >= at_step)
                && !checkpoints(&run).is_empty()
        })
        .map_or(0, |line| line["step"].as_u64().expect("a number"));
    assert!(last_step > 0, "the run came to step {at_step}");
    let ranks = running.rank_pids();
    assert_eq!(ranks.len(), 3);
    signal(name, running.child.id());
    if name == "KILL" {
        for pid in &ranks {
            // They may be gone already: they die with their parent.
            let _ = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).output();
        }
    }
    let hurt = running.finish();
    let before = hurt.steps().last().copied().expect("steps were seen");
    if name == "TERM" {
        assert_eq!(hurt.code, Some(130), "{}", hurt.stderr);
    }
    let resumed = train(folder.path(), &format!("{model} {how} ranks=5 name=hurt --resume"));
    let first = resumed.steps().first().copied().expect("the resumed run has steps");
    assert!(first > 1, "a resumed run goes on");
    assert!(first + 10 >= before, "resumed at {first}, was at {before}");
    assert_eq!(resumed.digest(), undisturbed, "after {name} at step {last_step}");
}

#[test]
fn an_mlp_killed_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    killed_and_resumed(MODELS[0].1, "KILL", 17);
}

#[test]
fn a_cnn_terminated_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    killed_and_resumed(MODELS[1].1, "TERM", 13);
}

#[test]
fn a_gpt_killed_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    killed_and_resumed(MODELS[2].1, "KILL", 9);
}
