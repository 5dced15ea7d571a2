//! A supervisor that stands still, as a paused machine or a slow disk makes it: judged from outside, with `kill -STOP` of its process.
//!
//! Nothing has died, so nothing may be lost: no process, no step, no bit, and the generation is the same.

use crate::harness::hosts::Hosts;
use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, MLP, Running, Signal, audit_is_clean, folder, lives, ranks_of, signal, train, wait_until_gone,
};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Enough steps to stand still in several times. The first stop costs nobody his patience, the second is longer than everyone waits
/// for anybody else.
const STEPS: u64 = 6_000;
const STOPS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// A busy machine lets a rank wait, too.
const DETECT: &str = "detect=1500ms";

fn model() -> String {
    format!("{MLP} steps={STEPS} threads=1 checkpoint.every=500~steps")
}

/// That of a run which nobody disturbs.
fn whole_digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| {
        let folder = folder();
        train(folder.path(), &format!("{} ranks=1 name=whole", model())).digest()
    })
}

/// Stops the process for a while; some steps later all these processes are still the ones that were there.
#[track_caller]
fn stand_still(run: &mut Running, length: Duration, ranks: &[u32]) {
    run.catch_up();
    signal(Signal::STOP, run.pid());
    std::thread::sleep(length);
    signal(Signal::CONT, run.pid());
    run.wait_for_step(run.last_step() + 20);
    assert!(ranks.iter().all(|pid| lives(*pid)), "{length:?} cost a rank\n{}", run.story());
}

#[track_caller]
fn is_undisturbed(run: &Finished, folder: &Path, name: &str) {
    assert_eq!(run.digest(), whole_digest(), "{}", run.stderr);
    assert_eq!(run.steps(), (1..=STEPS).collect::<Vec<u64>>(), "{}", run.stderr);
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    assert_eq!(run.events("fault").count(), 0, "{}", run.stderr);
    assert_eq!(run.events("generation").count(), 1, "{}", run.stderr);
    let stood = run.events("notice").filter(|notice| notice["text"].as_str().is_some_and(is_told)).count();
    assert!(stood >= 1, "nobody was told\n{}", run.stderr);
    audit_is_clean(folder, name);
}

fn is_told(text: &str) -> bool {
    text.contains("the supervisor stood still for 4.") || text.contains("the supervisor stood still for 5.")
}

#[test]
fn a_supervisor_that_stands_still_costs_no_rank_no_step_and_no_generation() {
    if !has_turn(10) {
        return;
    }
    let folder = folder();
    let mut run = Running::start(folder.path(), &format!("{} {DETECT} ranks=3 name=still", model()));
    run.wait_for_step(20);
    let ranks = run.rank_pids();
    for length in STOPS {
        stand_still(&mut run, length, &ranks);
    }
    let run = run.finish();
    is_undisturbed(&run, folder.path(), "still");
    run.said("the supervisor stood still for");
}

#[test]
fn the_host_of_a_supervisor_that_stands_still_costs_the_other_hosts_nothing() {
    if !has_turn(11) {
        return;
    }
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{} {DETECT} ranks=1 name=still", model()));
    first.wait_for_step(20);
    let ranks = [ranks_of(first.pid()), ranks_of(second.pid())].concat();
    assert_eq!(ranks.len(), 3);
    for length in STOPS {
        stand_still(&mut first, length, &ranks);
    }
    let run = first.finish();
    is_undisturbed(&run, &hosts.folder(0), "still");
    let second = second.finish();
    second.succeeded();
    // Longer than a link lives over which nothing comes.
    second.said("answers again");
}

#[test]
fn a_supervisor_that_stands_still_for_longer_than_everyone_waits_finds_its_ranks_gone_and_starts_others() {
    if !has_turn(4) {
        return;
    }
    let folder = folder();
    let model = model();
    let line = format!("{model} detect=500ms master_timeout=2500ms ranks=3 name=still");
    let mut run = Running::start(folder.path(), &line);
    run.wait_for_step(20);
    let ranks = run.rank_pids();
    signal(Signal::STOP, run.pid());
    // They end by themselves: who could end them stands still. What is left of them is for it to take away.
    wait_until_gone(&ranks);
    signal(Signal::CONT, run.pid());
    let run = run.finish();
    assert_eq!(run.digest(), whole_digest(), "{}", run.stderr);
    assert_eq!(run.steps(), (1..=STEPS).collect::<Vec<u64>>(), "{}", run.stderr);
    audit_is_clean(folder.path(), "still");
}

/// For its supervisor it was cut off; to itself it seems as if the supervisor had been silent for all that time.
#[test]
fn a_host_that_stands_still_itself_for_longer_than_it_would_wait_is_taken_back() {
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2 join_timeout=2s");
    let model = format!("{MLP} steps=1000000 threads=1 detect=500ms master_timeout=2500ms");
    let mut first = hosts.start(0, &format!("{model} ranks=1 name=still"));
    first.wait_for_step(20);
    signal(Signal::STOP, second.pid());
    std::thread::sleep(Duration::from_secs(4));
    signal(Signal::CONT, second.pid());
    let whole = |line: &serde_json::Value| line["event"] == "generation" && line["ranks"] == 3;
    assert!(first.wait_for(whole).is_some(), "{}", first.story());
    first.wait_for_step(first.last_step() + 20);
    assert!(lives(second.pid()));
}

#[test]
fn a_host_that_is_asked_to_leave_waits_for_no_supervisor_that_stands_still() {
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{MLP} steps=1000000 threads=1 ranks=1 name=still"));
    first.wait_for_step(20);
    let ranks = ranks_of(second.pid());
    signal(Signal::STOP, first.pid());
    signal(Signal::TERM, second.pid());
    second.finish().ended_with(130);
    wait_until_gone(&ranks);
    // Awake again it goes on alone.
    signal(Signal::CONT, first.pid());
    let alone = |line: &serde_json::Value| line["event"] == "generation" && line["ranks"] == 1;
    assert!(first.wait_for(alone).is_some(), "{}", first.story());
}
