//! What an update is besides its rule: a moving average of the parameters, groups of them, the state that a fork keeps; and Muon, whose
//! updates are made as a whole. All have the same bits for any number of ranks and after kills; what is validated is what is evaluated,
//! predicted with and exported.

use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, Running, Signal, audit_is_clean, folder, json, output, said, signal, train, write_table,
};
use std::fs;
use std::path::Path;

const RUN: &str = "data.kind=csv data.path=table.csv model.hidden=[24] optimizer.lr=0.003 schedule.kind=constant \
                   schedule.warmup=none global_batch=16 micro_batch=4 epochs=12";

fn table() -> tempfile::TempDir {
    let folder = folder();
    write_table(&folder.path().join("table.csv"), 200);
    folder
}

#[test]
fn an_average_has_one_digest_for_any_number_of_ranks_and_after_kills() {
    if !has_turn(3) {
        return;
    }
    let folder = table();
    let path = folder.path();
    let one = train(path, &format!("{RUN} ema=0.9 ranks=1 name=one"));
    one.succeeded();
    has_one_digest(path, &format!("{RUN} ema=0.9"), "threads=1", &one);
    let without = train(path, &format!("{RUN} ranks=2 threads=1 name=without"));
    assert_ne!(without.digest(), one.digest());
    kills_cost_nothing(path, &format!("{RUN} ema=0.99 epochs=150"));
}

/// Two ranks, three and five threads end with the bits of this run; those of `three` have these settings.
#[track_caller]
fn has_one_digest(path: &Path, run: &str, three: &str, one: &Finished) {
    for (name, world) in [
        ("two", "ranks=2 threads=1"),
        ("three", &*format!("ranks=3 {three}")),
        ("threads", "ranks=5 isolation=thread checkpoint.every=none"),
    ] {
        let other = train(path, &format!("{run} {world} name={name}"));
        other.succeeded();
        assert_eq!(other.digest(), one.digest(), "{world}");
    }
}

/// Two of three ranks are killed one after the other: no step is lost, and the digest, which is given, is that of an undisturbed run.
#[track_caller]
fn kills_cost_nothing(path: &Path, run: &str) -> String {
    let calm = train(path, &format!("{run} ranks=1 checkpoint.every=none name=calm"));
    let mut hurt = Running::start(path, &format!("{run} ranks=3 threads=1 checkpoint.every=none name=hurt"));
    for at in [40, 400] {
        hurt.wait_for_step(at);
        signal(Signal::KILL, *hurt.rank_pids().last().unwrap());
    }
    let hurt = hurt.finish();
    hurt.succeeded();
    assert_eq!(hurt.summary()["lost_steps"], 0);
    assert_eq!(hurt.digest(), calm.digest());
    audit_is_clean(path, "hurt");
    calm.digest()
}

#[test]
fn what_is_validated_is_what_is_evaluated_and_exported() {
    let folder = table();
    let path = folder.path();
    let run = train(path, &format!("{RUN} ema=0.97 ranks=2 threads=1 name=a"));
    run.succeeded();
    let last = run.events("epoch").last().expect("there are epochs");
    let checkpoint = run.events("checkpoint").last().expect("the end is saved");
    let place = format!("runs/a/checkpoints/{}", checkpoint["name"].as_str().unwrap());
    let told = json(path, &format!("eval {place} --json"));
    let [told, valued] = [&told["loss"], &last["val_loss"]].map(|loss| loss.as_f64().unwrap());
    assert!((told - valued).abs() < 1e-5 * valued, "{told} {valued}");
    // The parameters of the last step are others.
    let plain = train(path, &format!("{RUN} ranks=1 name=plain"));
    assert_ne!(plain.events("epoch").last().unwrap()["val_loss"], last["val_loss"]);
    // A run that begins with what was exported, and makes no step worth the name, validates as this one did.
    output(path, &format!("export {place} --to safetensors -o model.safetensors")).0.succeeded();
    let still = format!(
        "{RUN} model.init_from=model.safetensors optimizer.kind=sgd optimizer.lr=1e-30 steps=1 epochs=none"
    );
    let still = train(path, &format!("{still} ranks=1 name=still"));
    still.succeeded();
    assert_eq!(still.events("epoch").last().unwrap()["val_loss"], last["val_loss"]);
    let resumed = train(path, "--resume a epochs=14");
    resumed.succeeded();
    let other = train(path, "--resume a epochs=16 ema=0.5");
    other.ended_with(2);
    other.said("ema");
}

#[test]
fn a_fork_may_keep_the_optimizer_s_state_and_says_so() {
    let folder = table();
    let path = folder.path();
    train(path, &format!("{RUN} ema=0.9 ranks=1 name=a")).succeeded();
    let steps = |run: &str| {
        let text = fs::read_to_string(path.join("runs").join(run).join("config.yaml")).unwrap();
        let line = text.lines().find(|line| line.contains("updates_before")).unwrap().to_owned();
        line.split('#').next().unwrap().split(':').nth(1).unwrap().trim().parse::<u64>().unwrap()
    };
    let kept = train(path, "--resume a --fork --keep-optimizer name=kept epochs=3 ranks=2 threads=1");
    kept.succeeded();
    let all = steps("kept");
    assert!(all > 100, "{all}");
    // Same bits on any number of ranks, also of the first steps, which need the moments.
    let three = train(path, "--resume a --fork --keep-optimizer name=three epochs=3 ranks=3 threads=1");
    assert_eq!(three.digest(), kept.digest());
    let fresh = train(path, "--resume a --fork name=fresh epochs=3 ranks=1");
    fresh.succeeded();
    assert_eq!(steps("fresh"), 0);
    assert_ne!(fresh.digest(), kept.digest());
    // Of a fork of a fork, the updates add up; without the average, and with it again.
    let again = train(path, "--resume kept --fork --keep-optimizer name=again epochs=1 ema=none");
    again.succeeded();
    assert_eq!(steps("again"), all + kept.steps().len() as u64);
    train(path, "--resume again --fork --keep-optimizer name=once-more epochs=1 ema=0.9").succeeded();
    // The run stands on its own, and goes on.
    fs::remove_dir_all(path.join("runs/a")).unwrap();
    train(path, "--resume kept epochs=4").succeeded();

    let wrong = train(path, "--resume kept --fork --keep-optimizer optimizer.kind=sgd name=wrong");
    wrong.ended_with(2);
    wrong.said("the optimizer's state of adamw is no beginning for sgd");
    assert!(!path.join("runs/wrong").exists());
    let wrong = train(path, &format!("{RUN} optimizer.updates_before=5 name=wrong"));
    wrong.ended_with(2);
    wrong.said("there is no file with the optimizer's state");
    assert!(!path.join("runs/wrong").exists());
    let wrong = train(path, "--resume kept --keep-optimizer");
    wrong.ended_with(2);
    wrong.said("--fork");
    let wrong = train(path, &format!("{RUN} ema=1.5 name=wrong"));
    wrong.ended_with(2);
    wrong.said("ema");
}

#[test]
fn groups_of_parameters_have_one_digest_for_any_number_of_ranks_and_a_wrong_one_is_refused() {
    let folder = table();
    let path = folder.path();
    let groups = "optimizer.lr_factors=[\"0.*=0.1\",\"*.bias=2\"] optimizer.no_decay=*.bias";
    let one = train(path, &format!("{RUN} {groups} ranks=1 name=one"));
    one.succeeded();
    let three = train(path, &format!("{RUN} {groups} ranks=3 threads=1 name=three"));
    assert_eq!(three.digest(), one.digest());
    assert_ne!(train(path, &format!("{RUN} ranks=1 name=plain")).digest(), one.digest());
    for (words, told) in [
        ("optimizer.lr_factors=[\"tail*=0.1\"]", "no parameter is called tail*; they are called 0.weight"),
        ("optimizer.lr_factors=[\"0.*=fast\"]", "0.* has no factor: write 0.*=0.1"),
        ("optimizer.lr_factors=[\"0.*\"]", "0.* has no factor: write 0.*=0.1"),
        ("optimizer.lr_factors=[\"0.*=-1\"]", "0.* has -1, and a factor is a number of at least 0"),
        ("optimizer.no_decay=[weight]", "no parameter is called weight"),
    ] {
        let wrong = train(path, &format!("{RUN} {words} name=wrong"));
        wrong.ended_with(2);
        wrong.said(told);
        assert!(!path.join("runs/wrong").exists());
    }
}

const MUON: &str = "optimizer.kind=muon model.hidden=[24,16] optimizer.lr=0.01 ema=0.9 optimizer.clip_norm=1";

#[test]
fn muon_has_one_digest_for_any_number_of_ranks_and_after_kills_and_resumes() {
    if !has_turn(2) {
        return;
    }
    let folder = table();
    let path = folder.path();
    let run = format!("{RUN} {MUON} epochs=30");
    let one = train(path, &format!("{run} ranks=1 name=one"));
    one.succeeded();
    has_one_digest(path, &run, "threads=2 isa=scalar", &one);
    let long = format!("{run} epochs=150");
    let calm = kills_cost_nothing(path, &long);
    let mut part = Running::start(path, &format!("{long} ranks=2 threads=1 name=part"));
    part.wait_for_step(500);
    part.kill_everything();
    let _ = part.finish();
    let rest = train(path, "--resume part ranks=3");
    rest.succeeded();
    assert!(rest.steps()[0] > 1, "it goes on");
    assert_eq!(rest.digest(), calm);
    output(path, "checkpoint verify part").0.succeeded();
}

#[test]
fn muon_learns_the_digits_and_its_state_goes_on_in_a_fork() {
    if !has_turn(16) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    let digits = "model.hidden=[64,32] epochs=6 ranks=2 threads=1";
    let run = train(path, &format!("{digits} optimizer.kind=muon name=digits"));
    run.succeeded();
    let accuracy = run.events("epoch").last().unwrap()["val_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.93, "{accuracy}");
    let fork = "--resume digits --fork --keep-optimizer epochs=1";
    let [two, three] = [2, 3].map(|ranks| train(path, &format!("{fork} ranks={ranks} name=on-{ranks}")));
    two.succeeded();
    assert_eq!(two.digest(), three.digest());
    let fresh = train(path, "--resume digits --fork epochs=1 name=fresh");
    assert_ne!(fresh.digest(), two.digest(), "the state counts");
    for (words, told) in [
        (
            "--fork --keep-optimizer optimizer.kind=adamw",
            "the optimizer's state of muon is no beginning for adamw",
        ),
        ("optimizer.kind=adamw", "optimizer.kind: it was muon when the run started, and is adamw now"),
        ("optimizer.ns_steps=4", "optimizer.ns_steps: it was 5 when the run started, and is 4 now"),
    ] {
        let wrong = train(path, &format!("--resume digits {words}"));
        wrong.ended_with(2);
        wrong.said(told);
    }
}

#[test]
fn what_muon_cannot_be_is_refused_with_a_hint_and_nothing_is_written() {
    let folder = table();
    let path = folder.path();
    for (words, told) in [
        ("optimizer.ns_steps=0", "optimizer.ns_steps"),
        ("optimizer.ns_steps=100", "a whole number from 1 to 99"),
        (
            "optimizer.ns_coefficients=[3.4,-4.7]",
            "optimizer.ns_coefficients: they are three numbers: a, b and c",
        ),
        ("optimizer.ns_coefficients=[a,b,c]", "optimizer.ns_coefficients"),
        ("optimizer.momentum=1", "a number from 0 to below 1"),
        ("optimizer.weight_decay=-0.1", "a number of at least 0"),
        ("optimizer.adamw_lr_factor=-1", "a number of at least 0"),
        ("optimizer.lr=-0.02", "a number above 0"),
        ("optimizer.adjust_lr_fn=spectral", "original | match_rms_adamw"),
        ("optimizer.betas=[0.9,0.99]", "optimizer.betas"),
        ("optimizer.matrices=[\"blocks.*\"]", "no parameter is called blocks.*; they are called 0.weight"),
        ("optimizer.matrices=[\"*.bias\"]", "no weight matrix of a hidden layer is there for muon"),
        ("model.hidden=[]", "no weight matrix of a hidden layer is there for muon"),
        ("optimizer.kind=adamw optimizer.ns_steps=5", "optimizer.ns_steps"),
    ] {
        let wrong = train(path, &format!("{RUN} optimizer.kind=muon {words} name=wrong"));
        wrong.ended_with(2);
        wrong.said(told);
        wrong.said("hint:");
    }
    assert!(!path.join("runs").exists());
    let planned = said(path, &format!("plan {RUN} {MUON} ranks=2"));
    assert!(planned.contains("by muon: 0.weight, 2.weight\nall else by adamw"), "{planned}");
    assert!(!planned.contains("once for all"), "{planned}");
}
