//! Runs that validate inside epochs: the same numbers after the same steps, whoever computes them and whatever happens to them.

use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, MLP, Running, Signal, audit_is_clean, folder, logged, output, refused, signal, train,
};
use serde_json::Value;
use std::path::Path;

/// What was validated: its step, and each number.
fn validated(events: &[Value]) -> Vec<String> {
    let keys = [
        "epoch",
        "step",
        "val_loss",
        "val_accuracy",
        "val_f1",
        "val_precision",
        "val_recall",
        "val_auc",
        "val_ap",
    ];
    let events = events.iter().filter(|event| !event["val_loss"].is_null());
    events.map(|event| keys.map(|key| event[key].to_string()).join(" ")).collect()
}

/// The lines of a log that tell of validations, in their order.
fn told(run: &Path) -> Vec<Value> {
    let mut all = [logged(run, "validation"), logged(run, "epoch")].concat();
    all.sort_by_key(|event| event["step"].as_u64());
    all
}

fn steps(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["step"].as_u64().expect("a step")).collect()
}

fn val_loss_at(run: &Finished, step: u64) -> &Value {
    let mut all = run.events("validation").chain(run.events("epoch"));
    &all.find(|event| event["step"] == step).expect("it is validated")["val_loss"]
}

#[test]
fn validations_inside_epochs_are_the_same_on_any_ranks_and_move_no_bit() {
    let folder = folder();
    let path = folder.path();
    // 23 steps an epoch, 69 in all.
    let model = "data=digits epochs=3 threads=1";
    let plain = train(path, &format!("{model} ranks=1 name=plain"));
    plain.succeeded();
    let mut all = Vec::new();
    for world in ["ranks=1", "ranks=2", "ranks=3 isolation=thread", "ranks=4"] {
        let name = format!("run-{}", all.len());
        let run = train(
            path,
            &format!("{model} {world} name={name} validation.every=10~steps checkpoint.every=20~steps"),
        );
        run.succeeded();
        assert_eq!(run.digest(), plain.digest());
        let run_dir = path.join("runs").join(&name);
        assert_eq!(steps(&logged(&run_dir, "validation")), [10, 20, 30, 40, 50, 60]);
        // Epochs end as ever, and the last step is validated although it is no multiple.
        let epochs = logged(&run_dir, "epoch");
        assert_eq!(steps(&epochs), [23, 46, 69]);
        assert_eq!(val_loss_at(&run, 69), val_loss_at(&plain, 69));
        assert_eq!(run.summary()["val_loss"], plain.summary()["val_loss"]);
        let saved =
            run.events("checkpoint").map(|event| (event["step"].as_u64().unwrap(), event["best"] == true));
        let best: Vec<u64> = saved.filter(|(_, best)| *best).map(|(step, _)| step).collect();
        assert!(best.contains(&20), "a checkpoint of a validated step can be the best: {best:?}");
        run.said("step 10/69");
        all.push(validated(&told(&run_dir)));
    }
    assert_eq!(all[0].len(), 7);
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    let (run, words) = output(path, "status run-0");
    run.succeeded();
    assert!(words.contains("epoch"), "{words}");
}

#[test]
fn a_validation_inside_an_epoch_is_made_once_whoever_dies() {
    if !has_turn(7) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    let model = format!("{MLP} steps=600 threads=1 validation.every=7~steps checkpoint.every=100~steps");
    let whole = train(path, &format!("{model} ranks=1 name=whole"));
    whole.succeeded();
    let words = format!("{model} ranks=3 name=hurt resume=auto max_restarts=1000");
    let mut hurt = Running::start(path, &words);
    for round in 1..=6u64 {
        hurt.wait_for_step(round * 70);
        // Every rank stands in a validation, or will soon.
        match round % 3 {
            0 => {
                signal(Signal::KILL, hurt.pid());
                assert_eq!(hurt.finish().code, None);
                hurt = Running::start(path, &words);
            }
            rank => signal(Signal::KILL, hurt.rank_pids()[rank as usize]),
        }
    }
    let hurt = hurt.finish();
    assert_eq!(hurt.digest(), whole.digest(), "{}", hurt.stderr);
    assert_eq!(hurt.summary()["lost_steps"], 0, "{}", hurt.stderr);
    let [hurt, whole] = ["hurt", "whole"].map(|name| validated(&told(&path.join("runs").join(name))));
    assert_eq!(hurt, whole);
    assert_eq!(whole.len(), 600 / 7 + 1);
    audit_is_clean(path, "hurt");
}

#[test]
fn patience_counts_validations_inside_epochs() {
    let folder = folder();
    let path = folder.path();
    let model = "data=digits steps=2000 model.kind=mlp optimizer.lr=0.05 schedule.kind=constant schedule.warmup=none \
                 threads=1 validation.every=5~steps checkpoint.every=none checkpoint.best=val_loss stop.patience=4";
    let mut ends = Vec::new();
    for world in ["ranks=1", "ranks=3"] {
        let run = train(path, &format!("{model} {world} name=run-{}", ends.len()));
        run.succeeded();
        let stop = run.events("stop").next().expect("it stops early");
        let (last, why) = (stop["step"].as_u64().unwrap(), stop["why"].as_str().unwrap());
        assert_eq!(run.steps().last(), Some(&last));
        assert!(last < 2000 && last % 5 == 0, "{last}");
        let losses: Vec<(u64, f64)> = run
            .events("validation")
            .chain(run.events("epoch").filter(|event| !event["val_loss"].is_null()))
            .map(|event| (event["step"].as_u64().unwrap(), event["val_loss"].as_f64().unwrap()))
            .collect();
        let best = losses.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
        assert_eq!(last, best + 4 * 5, "four validations after the best");
        assert!(why.contains(&format!("after step {best} is the best")), "{why}");
        ends.push((last, run.digest()));
    }
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn a_part_of_what_is_held_out_is_the_same_part_on_any_ranks_and_moves_no_bit() {
    let folder = folder();
    let path = folder.path();
    let model = "data=digits epochs=2 model.kind=mlp threads=1 validation.every=20~steps";
    let plain = train(path, &format!("{model} ranks=1 name=plain"));
    plain.succeeded();
    plain.said("360 held out");
    assert!(!plain.stderr.contains("validated on"), "{}", plain.stderr);
    let mut all = Vec::new();
    for (world, seed) in [("ranks=1", 7), ("ranks=2", 7), ("ranks=5 isolation=thread", 7), ("ranks=1", 8)] {
        let name = format!("part-{}", all.len());
        let run = train(path, &format!("{model} {world} seed={seed} name={name} validation.samples=50"));
        run.succeeded();
        run.said("360 held out (validated on 50)");
        let lines = told(&path.join("runs").join(&name));
        let accuracies: Vec<f64> = lines.iter().filter_map(|line| line["val_accuracy"].as_f64()).collect();
        assert_eq!(accuracies.len(), 3);
        for right in accuracies.iter().map(|accuracy| accuracy * 50.0) {
            assert!((right - right.round()).abs() < 1e-9, "{right} of 50 are right");
        }
        if seed == 7 {
            assert_eq!(run.digest(), plain.digest());
            all.push(validated(&lines));
        }
    }
    assert_ne!(all[0], validated(&told(&path.join("runs/plain"))));
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    // More than there are is all of them, and a run may go on with another number.
    let more = train(path, &format!("{model} ranks=1 name=more validation.samples=1000"));
    assert_eq!(more.summary()["val_loss"], plain.summary()["val_loss"]);
    let on = train(path, "--resume part-0 epochs=3 validation.samples=all");
    on.succeeded();
    on.said("360 held out");
    // What a trained model is measured on is all of it.
    let (eval, words) = output(path, "eval part-1");
    eval.succeeded();
    assert!(words.contains("360"), "{words}");
    refused(path, "train validation.samples=0", &["validation.samples", "at least 1"]);
    refused(path, "train validation.samples=some", &["validation.samples", "all"]);
    refused(path, "train limit_val_batches=5", &["validation.samples"]);
}

#[test]
fn a_run_that_nothing_marks_the_best_of_says_so_and_wrong_lengths_are_refused() {
    let folder = folder();
    let path = folder.path();
    let few = "data=digits model.kind=mlp ranks=1 steps=40";
    let blind = train(path, &format!("{few} checkpoint.every=10~steps"));
    blind.said("no checkpoint but the last");
    blind.said("validation.every=\"10 steps\"");
    for fine in [
        "checkpoint.every=10~steps validation.every=10~steps",
        "checkpoint.every=none",
        "checkpoint.best=none checkpoint.every=10~steps",
    ] {
        let run = train(path, &format!("{few} {fine}"));
        run.succeeded();
        assert!(!run.stderr.contains("no checkpoint but"), "{fine}: {}", run.stderr);
    }
    let never = train(path, &format!("{few} validation.every=none name=never"));
    never.succeeded();
    assert_eq!(validated(&told(&path.join("runs/never"))).len(), 1, "the end alone");
    refused(path, "train validation.every=0", &["validation.every", "at least one"]);
    refused(path, "train validation.every=often", &["validation.every", "500 steps"]);
    refused(path, "train eval_steps=5", &["validation.every"]);
}
