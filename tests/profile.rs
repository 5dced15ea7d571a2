//! `dtrain train --profile`: the trace and the table of a run, judged from outside; and that the run itself is the same.

use crate::harness::hosts::Hosts;
use crate::harness::turn::has_turn;
use crate::harness::{Finished, GPT, MLP, Running, Signal, dtrain, finish, folder, signal, train};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Microseconds lose their last bits when a time and a duration are added.
const ROUNDING: f64 = 1e-3;

/// A complete event of a trace.
#[derive(Clone, Debug)]
struct Event {
    name: String,
    step: u64,
    begun: f64,
    ended: f64,
}

/// The complete events of each thread of a trace, in the order of the file.
fn threads(run: &Path) -> BTreeMap<(u64, u64), Vec<Event>> {
    let text = fs::read_to_string(run.join("profile/trace.json")).expect("there is a trace");
    let trace: Value = serde_json::from_str(&text).expect("it is JSON");
    let mut threads: BTreeMap<_, Vec<Event>> = BTreeMap::new();
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {value}"));
    for event in trace["traceEvents"].as_array().expect("a list of events") {
        if event["ph"] == "M" {
            continue;
        }
        assert_eq!(event["ph"], "X", "{event}");
        let [begun, took] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a time"));
        assert!(begun >= 0.0 && took >= 0.0, "{event}");
        let name = event["name"].as_str().expect("a name").to_owned();
        let thread = (number(&event["pid"]), number(&event["tid"]));
        let step = number(&event["args"]["step"]);
        threads.entry(thread).or_default().push(Event { name, step, begun, ended: begun + took });
    }
    threads
}

/// Spans of one thread lie inside one another or do not touch.
fn nests(events: &[Event]) {
    let mut events = events.to_vec();
    events.sort_by(|a, b| a.begun.total_cmp(&b.begun).then(b.ended.total_cmp(&a.ended)));
    let mut open: Vec<Event> = Vec::new();
    for event in events {
        while open.last().is_some_and(|last| last.ended <= event.begun + ROUNDING) {
            open.pop();
        }
        if let Some(last) = open.last() {
            assert!(event.ended <= last.ended + ROUNDING, "{event:?} sticks out of {last:?}");
        }
        open.push(event);
    }
}

fn report(run: &Finished) -> &Value {
    let mut reports = run.events("profile");
    let report = reports.next().unwrap_or_else(|| panic!("no profile\n{}", run.stderr));
    assert!(reports.next().is_none(), "one profile");
    report
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The rows add up to the step, of all and of each rank.
fn adds_up(report: &Value) {
    let step = number(&report["step_ms"]);
    let rows = report["parts"].as_array().unwrap();
    let [ms, share] = ["ms", "share"].map(|key| rows.iter().map(|row| number(&row[key])).sum::<f64>());
    assert!(step > 0.0 && (ms - step).abs() < 1e-6 * step, "{ms} is not {step}: {report}");
    assert!((share - 1.0).abs() < 1e-6, "{report}");
    for rank in report["ranks"].as_array().unwrap() {
        let (step, parts) = (number(&rank["step_ms"]), rank["parts"].as_object().unwrap());
        let sum: f64 = parts.values().map(number).sum();
        assert!(parts.values().all(|ms| number(ms) >= 0.0) && (sum - step).abs() < 1e-6 * step, "{rank}");
    }
}

fn ranks_of(report: &Value) -> Vec<u64> {
    report["ranks"].as_array().unwrap().iter().map(|rank| rank["rank"].as_u64().unwrap()).collect()
}

fn names(events: &[Event]) -> BTreeSet<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

#[test]
fn a_profile_has_every_step_of_both_ranks_and_leaves_the_bits_alone() {
    let folder = folder();
    let model = format!("{MLP} epochs=2 threads=1 ranks=2 checkpoint.every=20~steps verify=10");
    let plain = train(folder.path(), &model);
    assert_eq!(plain.events("profile").count(), 0);
    for place in ["process", "thread"] {
        let run = train(folder.path(), &format!("{model} isolation={place} name={place} --profile"));
        assert_eq!(run.digest(), plain.digest(), "{place}");
        let path = folder.path().join("runs").join(place);
        let threads = threads(&path);
        assert_eq!(threads.len(), 2, "{place}");
        for events in threads.values() {
            nests(events);
            let steps: Vec<u64> = events.iter().filter(|e| e.name == "step").map(|e| e.step).collect();
            assert_eq!(steps, run.steps(), "{place}: each step once, in order");
            for step in &steps {
                let of_it: Vec<Event> = events.iter().filter(|e| e.step == *step).cloned().collect();
                let wanted = ["data", "forward", "backward", "communication", "optimizer"];
                assert!(wanted.iter().all(|name| names(&of_it).contains(name)), "{place}: {of_it:?}");
            }
            let seen = names(events);
            assert!(
                ["validation", "checkpoint", "verify", "add"].iter().all(|n| seen.contains(n)),
                "{seen:?}"
            );
        }
        let report = report(&run);
        adds_up(report);
        assert_eq!(ranks_of(report), [0, 1]);
        assert_eq!((&report["waits_unknown"], number(&report["hidden_ms"])), (&Value::from(0), 0.0));
        assert!(report["lost"].as_array().unwrap().is_empty(), "{report}");
        run.said("where the time of a step goes, mean of 2 ranks");
        run.said("communication hidden behind computing: none");
        let left: Vec<_> =
            fs::read_dir(path.join("profile")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["trace.json"], "parts went into the trace");
    }
}

/// All ranks of a step are in the all-reduce together at its end: whoever waits stops when the last one comes.
#[test]
fn the_wait_for_others_ends_when_the_last_rank_comes() {
    let folder = folder();
    let run = train(folder.path(), &format!("{GPT} steps=12 threads=1 ranks=3 name=a --profile"));
    run.succeeded();
    let threads = threads(&folder.path().join("runs/a"));
    assert_eq!(threads.len(), 3);
    for step in run.steps() {
        let of = |name: &str| {
            let all = threads.values().flatten().filter(|event| event.step == step && event.name == name);
            all.cloned().collect::<Vec<_>>()
        };
        let (waits, sent) = (of("wait"), of("communication"));
        assert!(sent.len() == 3 && waits.len() <= 2, "step {step}: {waits:?} {sent:?}");
        let last = sent.iter().map(|event| event.begun).fold(0.0, f64::max);
        assert!(
            sent.iter().all(|event| (event.begun - last).abs() < ROUNDING || event.ended <= last + ROUNDING)
        );
        assert!(waits.iter().all(|event| event.ended <= last + ROUNDING), "step {step}");
    }
}

#[test]
fn only_the_newest_steps_are_kept_where_fewer_are_asked_for() {
    let folder = folder();
    let run =
        train(folder.path(), &format!("{MLP} steps=40 threads=1 ranks=2 name=a --profile --profile-steps 7"));
    run.succeeded();
    for events in threads(&folder.path().join("runs/a")).values() {
        let steps: Vec<u64> = events.iter().filter(|e| e.name == "step").map(|e| e.step).collect();
        assert_eq!(steps, (34..=40).collect::<Vec<_>>());
    }
    // A profile is asked for anew: going on with the run makes none, and does not show the old one as its own.
    let config = fs::read_to_string(folder.path().join("runs/a/config.yaml")).unwrap();
    assert!(config.lines().any(|line| line.starts_with("profile: none")), "{config}");
}

#[test]
fn a_killed_rank_loses_its_part_and_nothing_else() {
    if !has_turn(14) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=1500 threads=1 ranks=2 detect=500ms");
    let plain = train(folder.path(), &model);
    let mut running = Running::start(folder.path(), &format!("{model} name=a --profile"));
    running.wait_for_step(40);
    let killed = running.rank_pids()[1];
    signal(Signal::KILL, killed);
    let run = running.finish();
    assert_eq!(run.digest(), plain.digest());
    assert!(run.events("fault").count() > 0);
    let report = report(&run);
    adds_up(report);
    let lost = report["lost"].as_array().unwrap();
    let why = "it ended before it could write its part";
    assert!(lost.iter().any(|lost| lost["rank"] == 1 && lost["why"] == why), "{report}");
    run.said(why);
    let threads = threads(&folder.path().join("runs/a"));
    assert!(!threads.is_empty());
    threads.values().for_each(|events| nests(events));
}

#[test]
fn an_interrupted_run_shows_its_profile_too() {
    let folder = folder();
    let mut running =
        Running::start(folder.path(), &format!("{MLP} steps=1000000 threads=1 ranks=2 name=a --profile"));
    running.wait_for_step(40);
    signal(Signal::TERM, running.pid());
    let run = running.finish();
    run.ended_with(130);
    adds_up(report(&run));
    assert_eq!(threads(&folder.path().join("runs/a")).len(), 2);
}

#[test]
fn a_profile_that_cannot_be_written_ends_no_run() {
    let folder = folder();
    let model = format!("{MLP} steps=30 threads=1 ranks=2");
    let plain = train(folder.path(), &model);
    // A run that goes on in a folder where `profile` is a file.
    let run = folder.path().join("runs/a");
    train(folder.path(), &format!("{MLP} steps=30 threads=1 ranks=2 name=a")).succeeded();
    fs::write(run.join("profile"), "not a folder").unwrap();
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    let again = finish(dtrain(folder.path(), &format!("train --json {model} name=a resume=auto --profile")));
    assert_eq!(again.digest(), plain.digest());
    again.said("there will be no profile");
    again.said("no rank has written down a step");
    assert_eq!(report(&again)["lost"].as_array().unwrap().len(), 2);
}

#[test]
fn the_ranks_of_a_host_without_the_run_folder_are_told_and_the_others_are_shown() {
    let hosts = Hosts::on_loopback("2");
    let model = format!("{GPT} steps=20 threads=1 name=a --profile");
    let first = hosts.start(0, &format!("{model} ranks=1"));
    let second = hosts.start(1, "ranks=1 threads=1 data.path=text.txt");
    let run = first.finish();
    run.succeeded();
    second.finish().succeeded();
    let report = report(&run);
    adds_up(report);
    let lost = report["lost"].as_array().unwrap();
    assert!(lost.len() == 1 && lost[0]["why"] == "its host does not see the folder of the run", "{report}");
    assert_eq!(report["waits_unknown"], 20, "nobody knows when the other came: {report}");
    assert_eq!(threads(&hosts.folder(0).join("runs/a")).len(), 1);
}

#[test]
fn the_flag_is_for_the_first_host_and_its_number_for_the_flag() {
    let hosts = Hosts::on_loopback("2");
    let refused = finish(hosts.node(1, "--profile"));
    refused.ended_with(2);
    refused.said("--profile is for the host of rank 0");
    let folder = folder();
    let refused = finish(dtrain(folder.path(), "train --profile-steps 5"));
    refused.ended_with(2);
    refused.said("--profile");
}
