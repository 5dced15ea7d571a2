//! A supervisor that is killed, judged from outside: its ranks are the same processes afterwards, and no step is lost or made twice.

use crate::harness::try_signal_to;
use crate::harness::turn::has_turn;
use crate::harness::{
    self, MLP, Running, Signal, audit_is_clean, checkpoints, children, folder, keepers_of, lives,
    logged_steps, ranks_of, signal, train, wait_until_gone,
};
use std::time::{Duration, Instant};

#[test]
fn a_supervisor_that_is_killed_costs_no_step_no_bit_and_no_rank() {
    if !has_turn(5) {
        return;
    }
    // With checkpoints, and without any; by --resume, and by the same words as at first.
    for (checkpoint, again) in [("checkpoint.every=200~steps", "--resume a"), ("checkpoint.every=none", "")] {
        let folder = folder();
        let model = format!("{MLP} steps=1500 threads=1 {checkpoint}");
        let words = format!("{model} ranks=4 name=a resume=auto");
        let again = if again.is_empty() { words.as_str() } else { again };
        let mut run = Running::start(folder.path(), &words);
        run.wait_for_step(20);
        let ranks = run.rank_pids();
        let keepers = keepers_of(run.pid());
        for life in 1..5 {
            run.wait_for_step(20 + life * 100);
            signal(Signal::KILL, run.pid());
            // Nobody is in a hurry: ranks go on as far as they may meanwhile.
            std::thread::sleep(Duration::from_millis(40 * life));
            assert_eq!(run.finish().code, None);
            run = Running::start(folder.path(), again);
            assert!(ranks.iter().chain(&keepers).all(|pid| lives(*pid)), "life {life}");
        }
        let run = run.finish();
        let whole = train(folder.path(), &format!("{model} ranks=1 name=whole"));
        assert_eq!(run.digest(), whole.digest(), "{}", run.stderr);
        assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
        assert_eq!(
            logged_steps(&folder.path().join("runs/a")),
            (1..=1500).collect::<Vec<u64>>(),
            "{}",
            run.stderr
        );
        audit_is_clean(folder.path(), "a");
        wait_until_gone(&[ranks, keepers].concat());
        assert!(!folder.path().join("runs/a/.keeper").exists());
    }
}

/// A job that is taken back just after its supervisor was started again: its ranks hold thousands of steps that are in no checkpoint.
#[test]
fn who_is_asked_to_end_while_it_takes_over_saves_what_the_ranks_hold() {
    let folder = folder();
    let model = format!("{MLP} steps=100000 threads=1 checkpoint.every=1000000~steps");
    let words = format!("{model} ranks=3 name=a resume=auto");
    for life in 1..=4 {
        let mut run = Running::start(folder.path(), &words);
        run.wait_for_step(200 * life);
        signal(Signal::KILL, run.pid());
        run.finish();
        let mut next = Running::start(folder.path(), &words);
        // The first that it tells of it has heard from ranks that still wait for their generation.
        next.wait_for_step(200 * life);
        signal(Signal::TERM, next.pid());
        let ended = next.finish();
        ended.ended_with(130);
        let all = logged_steps(&folder.path().join("runs/a"));
        let saved = checkpoints(&folder.path().join("runs/a")).pop().expect("what was made is saved");
        assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>(), "{}", ended.stderr);
        assert_eq!(harness::checkpoint_step(&saved), all.len() as u64, "{}", ended.stderr);
    }
    audit_is_clean(folder.path(), "a");
}

/// A full disk may keep it out, and have room again for the steps.
#[test]
fn a_generation_that_the_disk_did_not_take_leaves_no_gap_in_the_books() {
    let folder = folder();
    let run_dir = folder.path().join("runs/a");
    // Two hundred steps an epoch: at the end of each, ranks wait for the supervisor.
    let model = "data=digits global_batch=7 micro_batch=1 model.kind=mlp steps=1500 threads=1";
    let words = format!("{model} checkpoint.every=200~steps ranks=4 name=a resume=auto");
    let mut run = Running::start(folder.path(), &words);
    run.wait_for_step(20);
    // Nothing can be put into the place of a folder that has something in it.
    std::fs::remove_file(run_dir.join(".ranges")).expect("ranges are written down");
    std::fs::create_dir_all(run_dir.join(".ranges/in-the-way")).expect("a folder");
    signal(Signal::KILL, run.rank_pids()[1]);
    let whole_again = |line: &serde_json::Value| line["event"] == "generation" && line["generation"] == 3;
    assert!(run.wait_for(whole_again).is_some(), "{}", run.story());
    run.wait_for_step(run.last_step() + 20);
    // While it stands still ranks make steps that it does not write down.
    signal(Signal::STOP, run.pid());
    std::thread::sleep(Duration::from_millis(200));
    signal(Signal::KILL, run.pid());
    assert_eq!(run.finish().code, None);
    let run = Running::start(folder.path(), &words).finish();
    run.said("who computed what in generation ");
    let whole = train(folder.path(), &format!("{model} ranks=1 name=whole"));
    assert_eq!((run.digest(), &run.summary()["lost_steps"]), (whole.digest(), &0.into()), "{}", run.stderr);
    assert_eq!(logged_steps(&run_dir), (1..=1500).collect::<Vec<u64>>());
    audit_is_clean(folder.path(), "a");
}

#[test]
fn a_supervisor_that_is_killed_in_the_first_epoch_is_followed_like_any_other() {
    let folder = folder();
    // More than two hundred steps an epoch, of a model that takes its time.
    let model = "data.kind=digits global_batch=7 micro_batch=1 model.kind=mlp model.hidden=[512,512] steps=60 threads=1";
    let mut run = Running::start(folder.path(), &format!("{model} checkpoint.every=none ranks=2 name=a"));
    run.wait_for_step(2);
    signal(Signal::KILL, run.pid());
    assert_eq!(run.finish().code, None);
    let run = train(folder.path(), "--resume a");
    assert_eq!(run.digest(), train(folder.path(), &format!("{model} ranks=1 name=whole")).digest());
    assert_eq!(
        (&run.summary()["lost_steps"], &run.summary()["epochs"]),
        (&0.into(), &0.into()),
        "{}",
        run.stderr
    );
}

#[test]
fn a_rank_that_dies_while_there_is_no_supervisor_costs_no_step_either() {
    if !has_turn(18) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=1500 threads=1 checkpoint.every=none");
    let mut run = Running::start(folder.path(), &format!("{model} ranks=3 name=a"));
    run.wait_for_step(50);
    let ranks = run.rank_pids();
    signal(Signal::KILL, run.pid());
    signal(Signal::KILL, ranks[1]);
    run.finish();
    let run = harness::train(folder.path(), "--resume a");
    assert_eq!(run.digest(), train(folder.path(), &format!("{model} ranks=1 name=whole")).digest());
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    assert_eq!(
        logged_steps(&folder.path().join("runs/a")),
        (1..=1500).collect::<Vec<u64>>(),
        "{}",
        run.stderr
    );
    audit_is_clean(folder.path(), "a");
}

#[test]
fn ranks_of_a_run_that_goes_on_with_other_words_end_and_the_checkpoint_counts() {
    if !has_turn(4) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=3000 threads=1 checkpoint.every=50~steps");
    let mut run = Running::start(folder.path(), &format!("{model} ranks=3 name=a"));
    run.wait_for_checkpoint();
    let ranks = run.rank_pids();
    signal(Signal::KILL, run.pid());
    run.finish();
    let run = train(folder.path(), "--resume a ranks=2");
    assert!(ranks.iter().all(|pid| !lives(*pid)), "two sets of ranks for one run");
    assert_eq!(run.digest(), train(folder.path(), &format!("{model} ranks=1 name=whole")).digest());
    audit_is_clean(folder.path(), "a");
}

#[test]
fn whoever_asks_for_a_run_whose_supervisor_lives_is_refused_and_disturbs_nobody() {
    let folder = folder();
    let mut run = Running::start(folder.path(), &format!("{MLP} steps=1000000 threads=1 ranks=2 name=a"));
    run.wait_for_checkpoint();
    let ranks = ranks_of(run.pid());
    for more in ["", "ranks=1"] {
        let twin = harness::finish(harness::dtrain(folder.path(), &format!("train --resume a {more}")));
        twin.ended_with(2);
        twin.said("is in use by process");
    }
    run.wait_for_step(run.last_step() + 20);
    assert_eq!(ranks_of(run.pid()), ranks);
}

#[test]
fn what_holds_the_ranks_may_be_killed_too_and_the_newest_checkpoint_counts() {
    if !has_turn(21) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=3000 threads=1 checkpoint.every=50~steps");
    let mut run = Running::start(folder.path(), &format!("{model} ranks=3 name=a"));
    run.wait_for_checkpoint();
    let (ranks, keepers) = (run.rank_pids(), keepers_of(run.pid()));
    signal(Signal::KILL, keepers[0]);
    wait_until_gone(&ranks);
    let regrouped = |line: &serde_json::Value| line["event"] == "generation" && line["ranks"] == 3;
    assert!(run.wait_for(regrouped).is_some(), "{}", run.story());
    let run = run.finish();
    assert_eq!(run.digest(), train(folder.path(), &format!("{model} ranks=1 name=whole")).digest());
    run.said("nobody holds the state any more");
    audit_is_clean(folder.path(), "a");
    assert!(!checkpoints(&folder.path().join("runs/a")).is_empty());
}

#[test]
fn ranks_that_wait_for_a_supervisor_end_when_they_are_asked_to() {
    let folder = folder();
    let mut run = Running::start(folder.path(), &format!("{MLP} steps=1000000 threads=1 ranks=2 name=a"));
    run.wait_for_step(20);
    let (ranks, keepers) = (run.rank_pids(), keepers_of(run.pid()));
    signal(Signal::TERM, keepers[0]);
    run.wait_for_step(run.last_step() + 20);
    assert!(ranks.iter().all(|pid| lives(*pid)), "with a supervisor it means that one");
    signal(Signal::KILL, run.pid());
    run.finish();
    let asked = Instant::now();
    // The end of the supervisor may be on its way.
    while lives(keepers[0]) {
        assert!(asked.elapsed() < Duration::from_secs(20), "it waits on");
        try_signal_to(Signal::TERM, keepers[0]);
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_until_gone(&ranks);
}

/// Its words and its colours are the supervisor's; signals of the terminal are for that alone.
#[test]
fn a_terminal_that_interrupts_all_of_a_run_stops_it_with_a_checkpoint() {
    let folder = folder();
    let mut run = Running::start(
        folder.path(),
        &format!("{MLP} steps=1000000 threads=1 ranks=2 checkpoint.every=none"),
    );
    run.wait_for_step(20);
    let all = [children(run.pid()), ranks_of(run.pid()), vec![run.pid()]].concat();
    all.iter().for_each(|pid| signal(Signal::INT, *pid));
    let run = run.finish();
    run.ended_with(130);
    run.said("is saved; go on with");
    wait_until_gone(&all);
}
