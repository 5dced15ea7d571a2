//! Nothing but the machine decides: what a real run told its supervisor, told again, has the same effects.

use crate::harness::{MLP, Running, Signal, dtrain, folder, signal};
use dtrain_protocol::transcript::{read, replay};

/// A run with deaths, validations, checkpoints and a drain at the end; its transcript is told again.
#[test]
fn a_transcript_of_a_real_run_with_deaths_has_the_same_effects_when_it_is_told_again() {
    let folder = folder();
    let path = folder.path().join("transcript");
    let model = format!("{MLP} steps=1000000 threads=1 ranks=3 checkpoint.every=200~steps name=told");
    let mut command = dtrain(folder.path(), &format!("train --json {model}"));
    command.env("DTRAIN_TRANSCRIPT", &path);
    let mut running = Running::of(command);
    for round in 0..3 {
        running.wait_for_step(running.lines.len() as u64 + 50);
        signal(Signal::KILL, running.rank_pids()[round]);
        let whole = running.wait_for(|line| line["event"] == "generation" && line["ranks"] == 3);
        assert!(whole.is_some(), "it comes back");
    }
    running.wait_for_checkpoint();
    signal(Signal::TERM, running.pid());
    running.finish().ended_with(130);
    let bytes = std::fs::read(&path).expect("a transcript was written");
    let (config, lines) = read(&bytes).expect("it can be read");
    assert!(lines.len() > 100, "{} inputs", lines.len());
    assert_eq!(replay(config.clone(), &lines), Ok(lines.len()));
    // A checker that cannot fail checks nothing: without one of its inputs the run is another.
    let mut other = lines.clone();
    let report = other.iter().position(|line| matches!(line.input, dtrain_protocol::Input::NodeReport(_)));
    other.remove(report.expect("a node reported"));
    assert!(replay(config, &other).is_err());
}
