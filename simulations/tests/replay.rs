//! One seed gives one history: in one process twice, and in two processes.

use dtrain_sim::{Settings, simulate};
use std::process::Command;

/// Asks a second process, which is this test again, for the trace of a seed.
const ASKED: &str = "DTRAIN_SIM_TRACE_OF";

fn trace(seed: u64) -> String {
    let report = simulate(&Settings::of(seed));
    format!("trace {:016x} {} {:?}", report.trace, report.events, report.digest)
}

#[test]
fn two_processes_with_one_seed_have_the_same_history() {
    if let Ok(seed) = std::env::var(ASKED) {
        return println!("{}", trace(seed.parse().expect("a seed")));
    }
    for seed in [7, 36, 271, 415] {
        let name = "two_processes_with_one_seed_have_the_same_history";
        let other = Command::new(std::env::current_exe().expect("this test is a file"))
            .args(["--exact", name, "--nocapture"])
            .env(ASKED, seed.to_string())
            .output()
            .expect("it starts again");
        let said = String::from_utf8_lossy(&other.stdout).into_owned();
        assert!(said.contains(&trace(seed)), "seed {seed}: {} here, there {said}", trace(seed));
    }
}

#[test]
fn two_seeds_have_two_histories() {
    assert_ne!(trace(1), trace(2));
}

#[test]
fn telling_the_story_changes_nothing() {
    let silent = simulate(&Settings::of(36));
    let told = simulate(&Settings { story: true, ..Settings::of(36) });
    assert_eq!((silent.trace, silent.events), (told.trace, told.events));
    assert!(silent.story.is_empty() && told.story.iter().any(|line| line.contains("FAULT")));
}
