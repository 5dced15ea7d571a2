//! A run ends when its validation does not improve any more: at the same step with the same bits, whatever the number of ranks
//! and whatever happens to them, and it goes on only when more is asked for.

use crate::harness::turn::has_turn;
use crate::harness::{Running, Signal, audit_is_clean, folder, output, signal, train};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Labels that are mostly chance, so that a network soon learns the noise.
fn table(path: &Path) {
    let mut text = "a,b,c,label\n".to_owned();
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for _ in 0..240 {
        let (a, b, c) = (next() % 1_000, next() % 1_000, next() % 1_000);
        let label = if next() % 4 == 0 { next() % 2 } else { u64::from(a > 500) };
        writeln!(text, "{a},{b},{c},{}", ["no", "yes"][label as usize]).unwrap();
    }
    fs::write(path.join("table.csv"), text).unwrap();
}

const RUN: &str = "data.kind=csv data.path=table.csv model.hidden=[64] optimizer.lr=0.02 schedule.kind=constant \
                   schedule.warmup=none global_batch=16 micro_batch=4 epochs=60 stop.patience=3 stop.metric=val_loss";

#[test]
fn a_run_stops_early_at_the_same_step_with_the_same_bits_for_any_number_of_ranks() {
    if !has_turn(9) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    table(path);
    let mut ends = Vec::new();
    for world in [
        "ranks=1",
        "ranks=2 threads=1",
        "ranks=3 threads=1",
        "ranks=2 isolation=thread checkpoint.every=none",
    ] {
        let name = format!("run-{}", ends.len());
        let run = train(path, &format!("{RUN} {world} name={name}"));
        run.succeeded();
        let losses: Vec<f64> = run.events("epoch").map(|epoch| epoch["val_loss"].as_f64().unwrap()).collect();
        let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap();
        assert_eq!(losses.len(), best + 1 + 3, "three validations after the best: {losses:?}");
        assert!(losses.len() < 60);
        let stop = run.events("stop").next().expect("an event says it");
        assert_eq!(stop["epoch"], losses.len() as u64 - 1);
        let why = run.summary()["stopped"].as_str().unwrap();
        assert!(why.starts_with("val_loss has not improved for 3 validations"), "{why}");
        let last = *run.steps().last().unwrap();
        let saved = run.events("checkpoint").last().expect("the end is saved");
        assert_eq!((stop["step"].as_u64(), saved["step"].as_u64()), (Some(last), Some(last)));
        ends.push((last, run.digest()));
        audit_is_clean(path, &name);
    }
    ends.dedup();
    assert_eq!(ends.len(), 1, "{ends:?}");
}

#[test]
fn a_kill_does_not_move_the_end_and_a_run_that_stopped_goes_on_only_when_asked_for_more() {
    let folder = folder();
    let path = folder.path();
    table(path);
    let whole = train(path, &format!("{RUN} ranks=1 name=whole"));
    whole.succeeded();
    let end = *whole.steps().last().unwrap();
    // A rank is killed, and then all of them with the supervisor: what was counted is in the checkpoint.
    let mut hurt = Running::start(path, &format!("{RUN} ranks=3 threads=1 name=hurt"));
    hurt.wait_for_step(end / 3);
    signal(Signal::KILL, hurt.rank_pids()[1]);
    let far =
        hurt.wait_for(|event| event["event"] == "epoch" && event["epoch"].as_u64() >= Some(end / 15 / 2));
    if far.is_some() {
        hurt.kill_everything();
    }
    hurt.finish();
    let rest = train(path, "--resume hurt ranks=2 threads=1");
    rest.succeeded();
    assert_eq!(rest.digest(), whole.digest());
    assert_eq!(rest.summary()["steps"], end);
    audit_is_clean(path, "hurt");

    let again = train(path, "--resume whole");
    again.succeeded();
    assert!(again.steps().is_empty(), "nobody asked for more");
    again.said("whole stopped early");
    let wider = train(path, "--resume whole stop.patience=5");
    wider.succeeded();
    assert_eq!(wider.steps().first(), Some(&(end + 1)));
    let longer = train(path, "--resume hurt epochs=70");
    longer.succeeded();
    assert_eq!(longer.steps().first(), Some(&(end + 1)));
}

#[test]
fn a_regression_is_judged_by_its_mean_absolute_error_with_the_same_bits_for_any_number_of_ranks() {
    let folder = folder();
    let path = folder.path();
    let rows: String =
        (0..120).map(|row| format!("{row},{},{}.25\n", row * row % 17, 1000 + row * 7 % 50)).collect();
    fs::write(path.join("rows.csv"), rows).unwrap();
    let run = "data.kind=csv data.path=rows.csv loss.kind=mse epochs=60 data.val_split=0.4 global_batch=16 micro_batch=3 \
               optimizer.lr=0.05 checkpoint.best=val_mae stop.metric=val_mae stop.patience=3";
    let mut seen: Vec<Vec<u64>> = Vec::new();
    for ranks in 1..=3 {
        let run = train(path, &format!("{run} ranks={ranks} threads=1 name=r{ranks}"));
        run.succeeded();
        let maes: Vec<f64> = run.events("epoch").map(|epoch| epoch["val_mae"].as_f64().unwrap()).collect();
        assert!(run.summary()["stopped"].as_str().unwrap().contains("val_mae"), "{}", run.summary());
        let best = maes.iter().copied().fold(f64::MAX, f64::min);
        let (_, text) = output(path, &format!("eval r{ranks} --json"));
        let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mae = figures["mae"].as_f64().unwrap();
        assert!((mae - best).abs() < 1e-5 * best, "the best has {best}, `eval` says {mae}");
        seen.push(maes.iter().map(|mae| mae.to_bits()).collect());
    }
    assert!(seen[0] == seen[1] && seen[0] == seen[2], "{seen:?}");
    train(path, &format!("{run} name=x checkpoint.best=val_f1")).said("mse has no val_f1");
}

#[test]
fn epochs_are_compared_by_any_metric_and_one_that_there_is_not_is_refused_with_all_that_there_are() {
    let folder = folder();
    let path = folder.path();
    table(path);
    let run =
        train(path, &format!("{RUN} ranks=1 name=a checkpoint.best=val_f1[yes] stop.metric=val_recall[no]"));
    run.succeeded();
    let numbers: Vec<f64> = run.events("epoch").map(|epoch| epoch["val_f1[yes]"].as_f64().unwrap()).collect();
    let marked = run.events("checkpoint").filter(|checkpoint| checkpoint["best"] == true).last().unwrap();
    let best = numbers.iter().copied().fold(0.0, f64::max);
    let steps_per_epoch = run.steps().len() as u64 / numbers.len() as u64;
    let at = marked["step"].as_u64().unwrap() / steps_per_epoch - 1;
    assert_eq!(numbers[at as usize], best, "{numbers:?}");
    // What follows from the order of the samples, and `eval` says the same of the best.
    let ranked =
        train(path, &format!("{RUN} ranks=3 name=ranked checkpoint.best=val_auc stop.metric=val_ap[yes]"));
    ranked.succeeded();
    let of =
        |name: &str| ranked.events("epoch").map(|epoch| epoch[name].as_f64().unwrap()).collect::<Vec<f64>>();
    ranked.said("  auc 0.");
    let (_, text) = output(path, "eval ranked --json");
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(figures["auc"].as_f64().unwrap(), of("val_auc").into_iter().fold(0.0, f64::max));
    let yes = figures["classes"].as_array().unwrap().iter().find(|class| class["class"] == "yes").unwrap();
    assert!(of("val_ap[yes]").contains(&yes["average_precision"].as_f64().unwrap()), "{text}");
    let wrong = train(path, &format!("{RUN} name=b checkpoint.best=val_f1[maybe]"));
    wrong.ended_with(2);
    wrong.said("this run has no val_f1[maybe]");
    wrong.said("val_f1[");
    train(path, &format!("{RUN} name=c stop.metric=val_rmse")).said("cross_entropy has no val_rmse");
    train(path, &format!("{RUN} name=d data.val_split=0")).said("no samples are held out");
}
