//! Nothing is lost when ranks die: judged from outside, by pids, by wall time and by the lines of `--json`.
//!
//! Every disturbed run must end with the digest of an undisturbed one, have one `step` event for every step, in order,
//! and a ledger that adds up.

use crate::harness::turn::has_turn;
use crate::harness::{
    self, CNN, Finished, GPT, MLP, Rng, Running, Signal, audit_is_clean, folder, lives, seed, signal, train,
    wait_until_gone,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// Recovered, and did not only go on: from the kill to the next step event.
const WORST: Duration = Duration::from_secs(2);

fn whole_digest(folder: &Path, model: &str) -> String {
    train(folder, &format!("{model} ranks=1 name=whole")).digest()
}

/// One step event for every step, and the digest, and the books.
fn is_undisturbed(folder: &Path, run: &Finished, name: &str, digest: &str, steps: u64) {
    assert_eq!(run.digest(), digest, "{}", run.stderr);
    assert_eq!(run.steps(), (1..=steps).collect::<Vec<u64>>(), "{}", run.stderr);
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    audit_is_clean(folder, name);
}

/// Reads until the next step event; how long that took.
fn next_step(running: &mut Running, since: Instant) -> Duration {
    assert!(running.wait_for(|line| line["event"] == "step").is_some(), "the run ended");
    since.elapsed()
}

/// Reads until the world has `world` ranks again; `None` if the run ends first.
fn wait_for_world(running: &mut Running, world: usize) -> Option<()> {
    let whole = |line: &serde_json::Value| line["event"] == "generation" && line["ranks"] == world;
    running.wait_for(whole).map(drop)
}

/// Kills ranks of a run of four at random moments, a few at a time, until it ends. Some of those that hold the state
/// always live on.
fn storm(folder: &Path, model: &str, steps: u64, rng: &mut Rng, most: usize) {
    let digest = whole_digest(folder, model);
    let mut running = Running::start(folder, &format!("{model} ranks=4 max_restarts=1000 name=storm"));
    running.wait_for_step(2);
    let mut kills = 0;
    loop {
        running.catch_up();
        let pids = running.rank_pids();
        let victims = (1 + rng.below(most as u64) as usize).min(pids.len() - 1);
        let first = rng.below(4) as usize;
        let chosen: Vec<u32> = (0..victims).map(|i| pids[(first + i) % pids.len()]).collect();
        let moment = Instant::now();
        chosen.iter().for_each(|pid| harness::try_kill(*pid));
        kills += chosen.len();
        // Every death is told, and a new generation works after the last of them.
        let mut told = 0;
        let recovered = running.wait_for(|line| {
            told += usize::from(line["event"] == "fault");
            told >= chosen.len() && line["event"] == "recovery"
        });
        if recovered.is_none() {
            break;
        }
        let took = moment.elapsed();
        assert!(took < WORST, "{took:?} for {} kills\n{}", chosen.len(), running.story());
        let survivors = pids.iter().filter(|pid| !chosen.contains(pid));
        assert!(survivors.into_iter().all(|pid| lives(*pid)), "a survivor was replaced");
        // The next moment: at once, after some steps, or when all are there again.
        let come = match rng.below(3) {
            0 => Some(()),
            1 => {
                let wait = running.last_step() + rng.below(steps / 40) + 1;
                running.wait_for(|l| l["event"] == "step" && l["step"].as_u64() >= Some(wait)).map(drop)
            }
            _ => wait_for_world(&mut running, 4),
        };
        if come.is_none() {
            break;
        }
    }
    let run = running.finish();
    // How many fit into a run depends on the machine.
    assert!(kills >= 1, "nobody was killed");
    is_undisturbed(folder, &run, "storm", &digest, steps);
}

#[test]
fn ranks_that_are_killed_at_random_moments_cost_no_step_and_no_bit() {
    let seed = seed();
    println!("seed {seed}");
    let mut rng = Rng(seed);
    for (model, steps) in [(MLP, 6_000), (CNN, 120), (GPT, 120)] {
        let folder = folder();
        let model = format!("{model} steps={steps} threads=1 checkpoint.every=40~steps");
        storm(folder.path(), &model, steps, &mut rng, 1);
    }
}

/// A model with so many parameters for so few samples that much of a step is the update, which ranks make together.
#[test]
fn ranks_that_are_killed_in_the_middle_of_an_update_cost_no_step_and_no_bit() {
    if !has_turn(17) {
        return;
    }
    let seed = seed();
    println!("seed {seed}");
    let folder = folder();
    let model = "data.kind=digits global_batch=8 micro_batch=2 model.kind=mlp model.hidden=[1024,1024] steps=300 threads=1 \
                 checkpoint.every=100~steps";
    storm(folder.path(), model, 300, &mut Rng(seed), 2);
}

#[test]
fn several_ranks_killed_at_once_up_to_all_but_one_cost_nothing_either() {
    if !has_turn(5) {
        return;
    }
    let seed = seed();
    println!("seed {seed}");
    let folder = folder();
    let model = format!("{MLP} steps=8000 threads=1 checkpoint.every=100~steps");
    storm(folder.path(), &model, 8_000, &mut Rng(seed), 3);
}

#[test]
fn the_survivors_keep_their_processes_and_the_dead_come_back_with_a_new_life() {
    let folder = folder();
    let mut running = Running::start(folder.path(), &format!("{MLP} steps=100000 threads=1 ranks=4"));
    running.wait_for_step(20);
    let before = running.rank_pids();
    signal(Signal::KILL, before[1]);
    assert!(wait_for_world(&mut running, 3).is_some());
    assert!(wait_for_world(&mut running, 4).is_some());
    running.wait_for_step(running.last_step() + 1);
    let after = running.rank_pids();
    assert_eq!([before[0], before[2], before[3]], [after[0], after[2], after[3]]);
    assert_ne!(before[1], after[1]);
    let reborn = running.lines.iter().rfind(|l| l["event"] == "rank_started" && l["member"] == 1);
    assert_eq!(reborn.expect("it came back")["incarnation"], 2);
    let recovery = running.lines.iter().find(|line| line["event"] == "recovery").expect("a recovery");
    assert_eq!(recovery["member"], 1);
    assert!(recovery["seconds"].as_f64().is_some_and(|seconds| seconds < WORST.as_secs_f64()));
}

/// Where nobody holds the state any more, the run goes on from its newest checkpoint, and says what that cost.
#[test]
fn when_all_ranks_die_the_run_resumes_from_its_checkpoint_by_itself() {
    let folder = folder();
    let model = format!("{MLP} steps=800 threads=1 checkpoint.every=50~steps");
    let digest = whole_digest(folder.path(), &model);
    for ranks in [1, 3] {
        let name = format!("all-{ranks}");
        let mut running = Running::start(folder.path(), &format!("{model} ranks={ranks} name={name}"));
        running.wait_for_checkpoint();
        running.wait_for_step(running.last_step() + 20);
        running.rank_pids().into_iter().for_each(|pid| signal(Signal::KILL, pid));
        let run = running.finish();
        assert_eq!(run.digest(), digest, "{}", run.stderr);
        assert_eq!(run.steps(), (1..=800).collect::<Vec<u64>>(), "no step is announced twice");
        let lost = run.summary()["lost_steps"].as_u64().expect("a number");
        assert!(lost < 100, "{lost} steps lost with a checkpoint every 50");
        run.said("the run goes on from step");
        audit_is_clean(folder.path(), &name);
    }
}

#[test]
fn ranks_that_die_before_the_first_checkpoint_begin_again() {
    let folder = folder();
    let model = format!("{MLP} steps=300 threads=1 checkpoint.every=none");
    let digest = whole_digest(folder.path(), &model);
    let mut running = Running::start(folder.path(), &format!("{model} ranks=2 name=again"));
    running.wait_for_step(100);
    running.rank_pids().into_iter().for_each(|pid| signal(Signal::KILL, pid));
    let run = running.finish();
    assert_eq!(run.digest(), digest);
    assert_eq!(run.steps(), (1..=300).collect::<Vec<u64>>());
    assert!(run.summary()["lost_steps"].as_u64() >= Some(100));
    audit_is_clean(folder.path(), "again");
}

/// Stopped, named, ended, replaced; and woken at the worst moment it changes nothing.
#[test]
fn a_stopped_rank_is_named_and_replaced_and_waking_it_changes_nothing() {
    if !has_turn(15) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=3000 threads=1");
    let digest = whole_digest(folder.path(), &model);
    let detect = Duration::from_millis(400);
    let how = format!("{model} ranks=3 detect=400ms name=stopped");
    let mut running = Running::start(folder.path(), &how);
    for round in 0..3usize {
        running.wait_for_step(running.lines.len() as u64 / 2 + 20);
        let pids = running.rank_pids();
        let victim = pids[round % pids.len()];
        let moment = Instant::now();
        signal(Signal::STOP, victim);
        let fault = running.wait_for(|line| line["event"] == "fault").expect("it is named");
        assert!(fault["cause"].as_str().is_some_and(|cause| cause.contains("silent for")), "{fault}");
        assert!(fault["doing"].as_str().is_some_and(|doing| doing.ends_with("in the all-reduce")), "{fault}");
        // It is woken just as it is given up.
        harness::try_signal_to(Signal::CONT, victim);
        let took = next_step(&mut running, moment);
        assert!(took < 3 * detect, "{took:?}");
        wait_until_gone(&[victim]);
        assert!(wait_for_world(&mut running, 3).is_some());
    }
    let run = running.finish();
    is_undisturbed(folder.path(), &run, "stopped", &digest, 3_000);
}

/// Late deaths: between the last step and the end of the run, and in the middle of a validation.
#[test]
fn ranks_that_die_when_epochs_and_the_run_end_cost_neither_validation_nor_checkpoint() {
    if !has_turn(12) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} epochs=12 threads=1 checkpoint.every=1~epoch");
    let whole = train(folder.path(), &format!("{model} ranks=1 name=whole"));
    let epochs = |run: &Finished| -> Vec<String> {
        let keys = ["epoch", "train_loss", "val_loss", "val_accuracy", "val_f1"];
        run.events("epoch").map(|e| keys.map(|key| e[key].to_string()).join(" ")).collect()
    };
    let mut running = Running::start(folder.path(), &format!("{model} ranks=3 max_restarts=1000 name=late"));
    let steps_per_epoch = 1_150u64.div_ceil(50);
    let mut rng = Rng(seed());
    println!("seed {}", rng.0);
    loop {
        // The last step of an epoch is committed: its validation begins.
        let ends = |line: &serde_json::Value| {
            line["event"] == "step" && line["step"].as_u64().is_some_and(|s| s % steps_per_epoch == 0)
        };
        if running.wait_for(ends).is_none() {
            break;
        }
        let pids = running.rank_pids();
        harness::try_kill(pids[rng.below(pids.len() as u64) as usize]);
    }
    let run = running.finish();
    assert_eq!(run.digest(), whole.digest(), "{}", run.stderr);
    assert_eq!(epochs(&run), epochs(&whole));
    let newest =
        harness::checkpoints(&folder.path().join("runs/late")).pop().expect("the last checkpoint is there");
    assert_eq!(harness::checkpoint_step(&newest), run.steps().last().copied().unwrap());
    audit_is_clean(folder.path(), "late");
}

#[test]
fn a_rank_that_dies_too_often_stays_away_and_the_others_finish() {
    if !has_turn(18) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=4000 threads=1");
    let digest = whole_digest(folder.path(), &model);
    let mut running = Running::start(folder.path(), &format!("{model} ranks=3 max_restarts=2 name=often"));
    running.wait_for_step(20);
    for _ in 0..3 {
        signal(Signal::KILL, running.rank_pids()[2]);
        assert!(wait_for_world(&mut running, 2).is_some());
        if running
            .wait_for(|l| {
                l["event"] == "notice" && l["text"].to_string().contains("not started again")
                    || l["event"] == "generation" && l["ranks"] == 3
            })
            .is_none()
        {
            break;
        }
    }
    let run = running.finish();
    is_undisturbed(folder.path(), &run, "often", &digest, 4_000);
    assert_eq!(run.summary()["ranks"], 2);
    run.said("stays away; the others go on");
}

#[test]
fn with_fewer_ranks_than_min_ranks_the_run_waits_for_the_lost_ones_and_makes_no_step() {
    let folder = folder();
    let model = format!("{MLP} steps=600 threads=1");
    let digest = whole_digest(folder.path(), &model);
    let mut running = Running::start(folder.path(), &format!("{model} ranks=2 min_ranks=2 name=both"));
    running.wait_for_step(20);
    signal(Signal::KILL, running.rank_pids()[0]);
    let run = running.finish();
    is_undisturbed(folder.path(), &run, "both", &digest, 600);
    assert!(run.events("generation").all(|generation| generation["ranks"] == 2), "never with one rank");
}

#[test]
fn a_rank_of_a_ring_that_dies_costs_no_step() {
    let folder = folder();
    let model = format!("{MLP} steps=600 threads=1 reduce=ring");
    let mut running = Running::start(folder.path(), &format!("{model} ranks=3 name=ring"));
    running.wait_for_step(50);
    signal(Signal::KILL, running.rank_pids()[1]);
    let run = running.finish();
    run.succeeded();
    assert_eq!(run.steps(), (1..=600).collect::<Vec<u64>>());
    assert_eq!(run.summary()["lost_steps"], 0);
    audit_is_clean(folder.path(), "ring");
}

/// Eight ranks on one micro-batch a piece, of which three are spares: they hold the state and take part.
#[test]
fn spares_take_over_for_ranks_that_die() {
    let folder = folder();
    let model = format!("{MLP} global_batch=20 micro_batch=4 steps=500 threads=1");
    let digest = whole_digest(folder.path(), &model);
    let mut running = Running::start(folder.path(), &format!("{model} ranks=8 max_restarts=0 name=spares"));
    running.wait_for_step(20);
    for rank in [0, 3, 5] {
        let pids = running.rank_pids();
        signal(Signal::KILL, pids[rank]);
        assert!(wait_for_world(&mut running, pids.len() - 1).is_some());
    }
    let run = running.finish();
    is_undisturbed(folder.path(), &run, "spares", &digest, 500);
    assert_eq!(run.summary()["ranks"], 5);
}

/// A rank that is stopped three quarters of the time gets fewer micro-batches; the bits stay the same.
#[test]
fn a_slow_rank_gets_fewer_micro_batches_and_the_bits_stay_the_same() {
    if !has_turn(18) {
        return;
    }
    let folder = folder();
    let model = "data.kind=digits global_batch=120 micro_batch=5 model.kind=mlp model.hidden=[128] steps=3000 threads=1";
    let digest = whole_digest(folder.path(), model);
    let mut running = Running::start(folder.path(), &format!("{model} ranks=2 balance=on name=slow"));
    running.wait_for_step(5);
    let victim = running.rank_pids()[1];
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = std::sync::Arc::clone(&stop);
    let brake = std::thread::spawn(move || {
        while !told.load(std::sync::atomic::Ordering::Relaxed) && lives(victim) {
            // Not a wait for an event: this is what makes the rank slow.
            harness::try_signal_to(Signal::STOP, victim);
            std::thread::sleep(Duration::from_millis(6));
            harness::try_signal_to(Signal::CONT, victim);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let balanced = running.wait_for(|line| {
        line["event"] == "notice"
            && line["text"].as_str().is_some_and(|text| text.contains("follow the speed"))
    });
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    brake.join().expect("the brake does not panic");
    harness::try_signal_to(Signal::CONT, victim);
    let run = running.finish();
    assert!(balanced.is_some(), "the ranges were never cut anew\n{}", run.stderr);
    is_undisturbed(folder.path(), &run, "slow", &digest, 3_000);
    let ledger = std::fs::read_to_string(folder.path().join("runs/slow/ledger.jsonl")).expect("a ledger");
    let ranges = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).ok().map(|line| line["ranges"].to_string())
    };
    let cuts: std::collections::BTreeSet<String> = ledger.lines().filter_map(ranges).collect();
    assert!(cuts.len() > 1, "one cut only: {cuts:?}");
}
