//! `dtrain audit` is clean after whatever a run went through, and finds every line of the ledger that was deleted,
//! doubled, moved or edited, by its number.

use crate::harness::turn::has_turn;
use crate::harness::{MLP, Running, checkpoint_step, checkpoints, folder, output, train};
use dtrain_telemetry::ledger::LineHash;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A run that was killed twice and went on each time on other ranks: its ledger has bindings, spans and resumes.
fn eventful_run(folder: &Path) -> PathBuf {
    let model = format!("{MLP} steps=1200 threads=1 checkpoint.every=100~steps name=a");
    for how in ["ranks=3", "ranks=2 --resume"] {
        let mut running = Running::start(folder, &format!("{model} {how}"));
        running.wait_for_checkpoint();
        let step = running.last_step();
        running.wait_for_step(step + 20);
        running.kill_everything();
        drop(running.finish());
    }
    train(folder, &format!("{model} ranks=4 --resume")).succeeded();
    folder.join("runs/a")
}

/// `dtrain audit` of run `a`: exit code, what it prints, what it says of problems.
fn audit(folder: &Path) -> (Option<i32>, String, String) {
    let (audit, text) = output(folder, "audit a");
    assert!(!audit.stderr.contains("panicked"), "{}", audit.stderr);
    (audit.code, text, audit.stderr)
}

fn write(ledger: &Path, lines: &[String]) {
    fs::write(ledger, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
}

/// The audit must fail and name one of `lines` (from 1): the one that was changed, or the one after it, whose hash of the
/// line before no longer fits. `None` where the end is missing, which no line tells.
fn is_found(folder: &Path, what: &str, lines: &[usize]) {
    let (code, text, problems) = audit(folder);
    assert_eq!(code, Some(1), "{what}: {text}{problems}");
    assert!(text.is_empty(), "{what}: a failed audit says nothing good: {text}");
    assert!(problems.contains("does not add up"), "{what}: {problems}");
    let first = problems.lines().find(|line| line.contains("caused by:")).expect("a cause");
    let named = lines.iter().any(|line| first.contains(&format!("line {line}:")));
    assert!(
        named || lines.is_empty() && !first.contains("line "),
        "{what}: wanted line {lines:?}, got {first}"
    );
}

#[test]
fn a_clean_run_is_clean_and_the_numbers_add_up() {
    let folder = folder();
    let run = train(folder.path(), &format!("{MLP} steps=40 ranks=2 threads=1 name=a"));
    run.succeeded();
    let (code, text, problems) = audit(folder.path());
    assert_eq!((code, problems.as_str()), (Some(0), ""));
    assert!(text.contains("40 steps") && text.contains("each exactly once an epoch"), "{text}");
    let (json, text) = output(folder.path(), "audit a --json");
    json.succeeded();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["clean"], &report["steps"]), (&Value::Bool(true), &Value::from(40)));
    assert_eq!(report["samples"], run.summary()["samples"]);
    assert_eq!(report["epochs"][0]["used"], report["epochs"][0]["of"]);
    let [used, of] = ["used", "of"].map(|key| report["epochs"][1][key].as_u64().unwrap());
    assert!(used < of, "the second epoch was not finished: {text}");
}

#[test]
fn every_line_that_is_deleted_doubled_or_moved_is_found() {
    if !has_turn(7) {
        return;
    }
    let folder = folder();
    let ledger = eventful_run(folder.path()).join("ledger.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(audit(folder.path()).0, Some(0));
    let resumes = lines.iter().filter(|line| line.contains("\"resume\"")).count();
    assert!(resumes == 2 && lines.len() > 10, "{text}");
    for at in 0..lines.len() {
        let mut deleted = lines.clone();
        deleted.remove(at);
        write(&ledger, &deleted);
        let last = at + 1 == lines.len();
        // Without its last line a ledger is whole, and too short for the newest checkpoint.
        let named: &[usize] = if last { &[] } else { &[at + 1] };
        is_found(folder.path(), &format!("line {} deleted", at + 1), named);
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at].clone());
        write(&ledger, &doubled);
        is_found(folder.path(), &format!("line {} doubled", at + 1), &[at + 2]);
        if !last {
            let mut moved = lines.clone();
            moved.swap(at, at + 1);
            write(&ledger, &moved);
            is_found(folder.path(), &format!("lines {} and {} swapped", at + 1, at + 2), &[at + 1]);
        }
    }
    fs::write(&ledger, "").unwrap();
    is_found(folder.path(), "everything deleted", &[]);
    fs::write(&ledger, &text).unwrap();
    assert_eq!(audit(folder.path()).0, Some(0), "it was the changes");
}

/// The path of every number and text in a value.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| leaves(value, &format!("{path}/{key}"), found))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| leaves(item, &format!("{path}/{i}"), found))
        }
        _ => found.push(path.to_owned()),
    }
}

/// Another value of the same kind: one more, or another last digit.
fn other(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_u64().unwrap() + 1),
        Value::String(text) => {
            let last = if text.ends_with('0') { '1' } else { '0' };
            Value::from(format!("{}{last}", &text[..text.len() - 1]))
        }
        other => panic!("no such value is in a ledger: {other}"),
    }
}

#[test]
fn every_field_of_every_kind_of_line_that_is_edited_is_found() {
    if !has_turn(20) {
        return;
    }
    let folder = folder();
    let ledger = eventful_run(folder.path()).join("ledger.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (mut edits, mut kinds) = (0, BTreeMap::new());
    for at in 0..lines.len() {
        let line: Value = serde_json::from_str(&lines[at]).unwrap();
        let mut fields = Vec::new();
        leaves(&line, "", &mut fields);
        // Every field of the first and of the second line of a kind; of those behind one, in turn.
        let seen: &mut usize = kinds.entry(fields.clone()).or_default();
        *seen += 1;
        if *seen > 2 && at + 1 < lines.len() {
            fields = vec![fields.swap_remove(at % fields.len())];
        }
        for field in fields {
            let mut edited = line.clone();
            let value = edited.pointer_mut(&field).unwrap();
            *value = other(value);
            let mut changed = lines.clone();
            changed[at] = edited.to_string();
            assert_ne!(changed, lines);
            write(&ledger, &changed);
            let what = format!("{field} of line {} edited: {}", at + 1, changed[at]);
            is_found(folder.path(), &what, &[at + 1, at + 2]);
            edits += 1;
        }
        // What is no JSON, and what says the same in other bytes.
        let broken = lines[at].replacen('"', "'", 1);
        let spaced = lines[at].replacen(':', ": ", 1);
        for (what, new) in [("broken", broken), ("spaced", spaced)] {
            if at > 4 && at % 4 > 0 {
                continue;
            }
            let mut changed = lines.clone();
            changed[at] = new;
            write(&ledger, &changed);
            is_found(folder.path(), &format!("line {} {what}", at + 1), &[at + 1, at + 2]);
        }
    }
    assert!(edits > 50, "{edits} edits");
}

/// Whoever can edit a line can edit the hashes after it too. The samples are recomputed from the configuration all the
/// same, and the newest checkpoint knows the hash of the line that it was written after.
#[test]
fn an_edit_with_all_hashes_made_good_is_still_found() {
    let folder = folder();
    let ledger = eventful_run(folder.path()).join("ledger.jsonl");
    let lines: Vec<String> = fs::read_to_string(&ledger).unwrap().lines().map(str::to_owned).collect();
    let last = lines.len() - 1;
    for (at, field, line) in [(last, "/samples", last + 1), (last, "/check", last + 1), (1, "/check", 2)] {
        let mut forged = lines.clone();
        let mut edited: Value = serde_json::from_str(&forged[at]).unwrap();
        let value = edited.pointer_mut(field).unwrap();
        *value = other(value);
        forged[at] = edited.to_string();
        for i in at + 1..forged.len() {
            let before = LineHash::of(forged[i - 1].as_bytes()).to_string();
            let mut next: Value = serde_json::from_str(&forged[i]).unwrap();
            next["prev"] = Value::from(before);
            forged[i] = next.to_string();
        }
        write(&ledger, &forged);
        is_found(folder.path(), &format!("{field} of line {} forged", at + 1), &[line]);
    }
}

#[test]
fn a_ledger_under_another_configuration_is_found() {
    let folder = folder();
    train(folder.path(), &format!("{MLP} steps=40 ranks=2 threads=1 name=a")).succeeded();
    let config = folder.path().join("runs/a/config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    for (from, to) in [("seed: 7", "seed: 8"), ("global_batch: 50", "global_batch: 49")] {
        assert!(text.contains(from));
        fs::write(&config, text.replacen(from, to, 1)).unwrap();
        is_found(folder.path(), to, &[1]);
    }
}

/// What a crash may leave is no forgery: the end of a line that never became whole.
#[test]
fn a_torn_last_line_is_passed_over_and_said() {
    let folder = folder();
    let run = eventful_run(folder.path());
    let ledger = run.join("ledger.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    let next = r#"{"from":1201,"to":1300,"generation":9,"ran"#;
    fs::write(&ledger, format!("{text}{next}")).unwrap();
    let (code, said, problems) = audit(folder.path());
    assert_eq!(code, Some(0), "{problems}");
    assert!(said.contains(&format!("{} bytes", next.len())), "{said}");
    // The newest checkpoint was written after the line that is torn now: that is no crash.
    let cut = text.trim_end().rfind('\n').unwrap() + 20;
    fs::write(&ledger, &text[..cut]).unwrap();
    is_found(folder.path(), "a torn line that a checkpoint knows", &[]);
}

#[test]
fn a_run_that_cannot_be_audited_is_refused() {
    let folder = folder();
    let (nobody, _) = output(folder.path(), "audit nobody");
    nobody.ended_with(2);
    nobody.said("there is no run nobody");
    let run = eventful_run(folder.path());
    assert_eq!(checkpoint_step(checkpoints(&run).last().unwrap()), 1200);
    fs::remove_file(run.join("ledger.jsonl")).unwrap();
    let (refused, _) = output(folder.path(), "audit a");
    refused.ended_with(2);
    refused.said("ledger.jsonl");
}
