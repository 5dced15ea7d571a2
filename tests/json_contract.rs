//! What programs may rely on: the lines of `--json`, their keys and types, and the files of a run.

use crate::harness::turn::has_turn;
use crate::harness::{CNN, GPT, MLP, Running, Signal, dtrain, finish, folder, output, signal, train};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What a value must be.
#[derive(Clone, Copy, Debug)]
enum Is {
    Count,
    /// A number, finite.
    Number,
    /// A number, or null where there is none.
    NumberOrNull,
    Text,
    /// Text, not empty.
    Word,
    /// 64 hexadecimal digits.
    Digest,
    Numbers,
    /// Pairs, of which each begins where the one before it ends.
    Ranges,
}

impl Is {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Count => value.is_u64(),
            Self::Number => value.as_f64().is_some_and(f64::is_finite),
            Self::NumberOrNull => value.is_null() || value.as_f64().is_some_and(f64::is_finite),
            Self::Text => value.is_string(),
            Self::Word => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::Digest => value
                .as_str()
                .is_some_and(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())),
            Self::Ranges => {
                let pairs: Vec<(u64, u64)> = serde_json::from_value(value.clone()).unwrap_or_default();
                !pairs.is_empty() && pairs.windows(2).all(|two| two[0].1 == two[1].0)
            }
            Self::Numbers => value.as_array().is_some_and(|all| all.iter().all(Value::is_number)),
        }
    }
}

const RUN: &[(&str, Is)] = &[
    ("run", Is::Word),
    ("version", Is::Word),
    ("pid", Is::Count),
    ("host", Is::Word),
    ("data", Is::Word),
    ("model", Is::Word),
    ("device", Is::Word),
    ("ranks", Is::Count),
    ("hosts", Is::Count),
    ("steps", Is::Count),
    ("steps_per_epoch", Is::Count),
    ("global_batch", Is::Count),
    ("parameters", Is::Count),
];
const STEP: &[(&str, Is)] = &[
    ("step", Is::Count),
    ("epoch", Is::Count),
    ("generation", Is::Count),
    ("loss", Is::Number),
    ("samples", Is::Count),
];
const EPOCH: &[(&str, Is)] = &[
    ("epoch", Is::Count),
    ("train_loss", Is::Number),
    ("val_loss", Is::Number),
    ("val_accuracy", Is::Number),
    ("val_f1", Is::Number),
];
const RANK_STARTED: &[(&str, Is)] = &[
    ("member", Is::Count),
    ("rank", Is::Count),
    ("incarnation", Is::Count),
    ("generation", Is::Count),
    ("pid", Is::Count),
    ("host", Is::Word),
    ("device", Is::Word),
];
const FAULT: &[(&str, Is)] = &[
    ("member", Is::Count),
    ("rank", Is::Count),
    ("host", Is::Word),
    ("phase", Is::Word),
    ("cause", Is::Word),
    ("kind", Is::Word),
];
const GENERATION: &[(&str, Is)] =
    &[("generation", Is::Count), ("ranks", Is::Count), ("step", Is::Count), ("ranges", Is::Ranges)];
const RECOVERY: &[(&str, Is)] = &[("member", Is::Count), ("seconds", Is::Number), ("step", Is::Count)];
const NOTICE: &[(&str, Is)] = &[("text", Is::Word)];
const STRAGGLER: &[(&str, Is)] = &[("member", Is::Count), ("rank", Is::Count), ("ratio", Is::Number)];
const CHECKPOINT: &[(&str, Is)] = &[
    ("generation", Is::Count),
    ("step", Is::Count),
    ("name", Is::Word),
    ("bytes", Is::Count),
    ("seconds", Is::Number),
];
const CHECKPOINT_FAILED: &[(&str, Is)] =
    &[("generation", Is::Count), ("step", Is::Count), ("cause", Is::Word)];
const PROFILE: &[(&str, Is)] =
    &[("step_ms", Is::Number), ("hidden_ms", Is::Number), ("waits_unknown", Is::Count)];
const SUMMARY: &[(&str, Is)] = &[
    ("digest", Is::Text),
    ("steps", Is::Count),
    ("epochs", Is::Count),
    ("samples", Is::Count),
    ("seconds", Is::Number),
    ("samples_per_second", Is::NumberOrNull),
    ("train_loss", Is::NumberOrNull),
    ("val_loss", Is::NumberOrNull),
    ("val_accuracy", Is::NumberOrNull),
    ("val_f1", Is::NumberOrNull),
    ("ranks", Is::Count),
    ("generations", Is::Count),
    ("lost_steps", Is::Count),
    ("recoveries", Is::Numbers),
    ("peak_rss_mb", Is::Number),
    ("run", Is::Word),
];

#[track_caller]
fn has(line: &Value, keys: &[(&str, Is)]) {
    for (key, is) in keys {
        let value = line.get(key).unwrap_or_else(|| panic!("no {key} in {line}"));
        assert!(is.holds(value), "{key} is no {is:?} in {line}");
    }
}

/// Every line is an event with a time, and has the keys of its kind; the last one is the summary.
#[track_caller]
fn keeps_the_contract(lines: &[Value]) {
    let mut before = 0.0;
    for (i, line) in lines.iter().enumerate() {
        let time = line["time"].as_f64().unwrap_or_else(|| panic!("no time in {line}"));
        assert!(time >= before && time > 1.7e9, "{line} after {before}");
        before = time;
        let keys = match line["event"].as_str().unwrap_or_else(|| panic!("no event in {line}")) {
            "run" => RUN,
            "step" => STEP,
            "epoch" => EPOCH,
            "rank_started" => RANK_STARTED,
            "fault" => FAULT,
            "generation" => GENERATION,
            "recovery" => RECOVERY,
            "notice" => NOTICE,
            "straggler" => STRAGGLER,
            "checkpoint" => CHECKPOINT,
            "checkpoint_failed" => CHECKPOINT_FAILED,
            "profile" => PROFILE,
            "summary" => SUMMARY,
            other => panic!("who said {other}?"),
        };
        has(line, keys);
        assert_eq!(
            line["event"] == "summary",
            i + 1 == lines.len(),
            "the summary is the last line, and only it"
        );
    }
}

fn lines_of(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn every_line_of_a_run_has_its_keys_and_the_numbers_fit_together() {
    let folder = folder();
    for (model, length, world, place) in
        [(MLP, "epochs=2", 3, "process"), (CNN, "steps=33", 2, "thread"), (GPT, "epochs=1", 1, "process")]
    {
        let how =
            format!("{model} {length} ranks={world} threads=1 isolation={place} checkpoint.every=20~steps");
        let run = train(folder.path(), &how);
        run.succeeded();
        keeps_the_contract(&run.lines);
        let summary = run.summary();
        assert!(Is::Digest.holds(&summary["digest"]), "{summary}");
        let steps = run.steps();
        assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>(), "each step once, in order");
        assert_eq!(summary["steps"].as_u64(), steps.last().copied());
        let samples: u64 = run.events("step").map(|step| step["samples"].as_u64().unwrap()).sum();
        assert_eq!(summary["samples"].as_u64(), Some(samples));
        let [seconds, rate] = ["seconds", "samples_per_second"].map(|key| summary[key].as_f64().unwrap());
        assert!(seconds > 0.0 && (rate * seconds / samples as f64 - 1.0).abs() < 1e-6, "{summary}");
        assert_eq!(summary["ranks"], world);
        assert_eq!((&summary["generations"], &summary["lost_steps"]), (&Value::from(1), &Value::from(0)));
        assert_eq!(summary["recoveries"], Value::Array(vec![]));
        assert!(summary["peak_rss_mb"].as_f64().unwrap() > 1.0, "{summary}");
        let last = run.events("epoch").last().expect("an epoch ended");
        for key in ["val_loss", "val_accuracy", "val_f1"] {
            assert_eq!(summary[key], last[key], "{key}");
        }
        let ranks: Vec<u64> = run.events("rank_started").map(|e| e["rank"].as_u64().unwrap()).collect();
        assert_eq!(ranks, (0..world).collect::<Vec<_>>());
        let mut pids: Vec<u64> = run.events("rank_started").map(|e| e["pid"].as_u64().unwrap()).collect();
        pids.dedup();
        assert_eq!(pids.len(), if place == "process" { world as usize } else { 1 });
    }
}

/// Losses of an epoch are means over its samples; they can be computed again from the steps.
#[test]
fn the_loss_of_an_epoch_is_the_mean_over_its_samples() {
    let folder = folder();
    let run = train(folder.path(), &format!("{MLP} epochs=3 ranks=3 threads=1"));
    run.succeeded();
    let epochs: Vec<&Value> = run.events("epoch").collect();
    assert_eq!(epochs.len(), 3);
    for (number, epoch) in epochs.iter().enumerate() {
        assert_eq!(epoch["epoch"], number);
        let of_it = run.events("step").filter(|step| step["epoch"] == number);
        let (mut loss, mut samples) = (0.0, 0.0);
        for step in of_it {
            let fed = step["samples"].as_f64().unwrap();
            (loss, samples) = (loss + step["loss"].as_f64().unwrap() * fed, samples + fed);
        }
        assert_eq!(samples, 1437.0);
        let [mean, said] = [loss / samples, epoch["train_loss"].as_f64().unwrap()];
        assert!((mean - said).abs() < 1e-9 * mean, "epoch {number}: {said}, from its steps {mean}");
    }
    let summary = run.summary();
    assert_eq!((&summary["epochs"], &summary["train_loss"]), (&Value::from(3), &epochs[2]["train_loss"]));
}

#[test]
fn a_run_without_validation_data_or_without_classes_has_null_where_it_knows_nothing() {
    let folder = folder();
    let rows =
        (0..40).map(|i| format!("{},{},{}\n", i % 7, i % 5, f64::from(i % 3) / 2.0)).collect::<String>();
    fs::write(folder.path().join("table.csv"), rows).unwrap();
    let model = "data.kind=csv data.path=table.csv loss.kind=mse checkpoint.best=none global_batch=8 micro_batch=2 epochs=2 \
                 ranks=2 threads=1";
    for (split, known) in [("0", false), ("0.25", true)] {
        let run = train(folder.path(), &format!("{model} data.val_split={split}"));
        run.succeeded();
        for line in run.events("epoch").chain([run.summary()]) {
            assert!(Is::Number.holds(&line["train_loss"]), "{line}");
            assert_eq!(Is::Number.holds(&line["val_loss"]), known, "{line}");
            for key in ["val_loss", "val_accuracy", "val_f1"] {
                assert!(line.get(key).is_some(), "the key is there: {line}");
            }
            assert!(line["val_accuracy"].is_null() && line["val_f1"].is_null(), "{line}");
        }
        assert_eq!(run.events("epoch").count(), 2);
    }
}

#[test]
fn a_run_that_fails_or_is_stopped_keeps_the_contract_too() {
    let folder = folder();
    for name in ["KILL", "TERM"] {
        let model =
            format!("{MLP} steps=1000000 threads=1 ranks=3 min_ranks=3 max_restarts=0 name={name} --profile");
        let mut running = Running::start(folder.path(), &model);
        running.wait_for_step(40);
        match name {
            "KILL" => signal(Signal::KILL, running.rank_pids()[1]),
            _ => signal(Signal::TERM, running.pid()),
        }
        let run = running.finish();
        keeps_the_contract(&run.lines);
        let summary = run.summary();
        assert_eq!(summary["run"].as_str(), Some(format!("runs/{name}").as_str()));
        assert_eq!(summary["steps"].as_u64(), run.steps().last().copied());
        assert_eq!(Is::Digest.holds(&summary["digest"]), name == "TERM", "{summary}");
        assert_eq!(run.events("fault").count() > 0, name == "KILL");
        assert_eq!(run.events("profile").count(), 1);
        assert!(summary["peak_rss_mb"].as_f64().unwrap() > 1.0, "{summary}");
        assert_eq!(run.lines, lines_of(&folder.path().join(format!("runs/{name}/events.jsonl"))));
    }
}

#[test]
fn the_files_of_a_run_hold_what_was_echoed() {
    let folder = folder();
    let run = train(folder.path(), &format!("{MLP} epochs=2 ranks=3 threads=1 name=a"));
    run.succeeded();
    let path = folder.path().join("runs/a");
    assert_eq!(lines_of(&path.join("events.jsonl")), run.lines);
    let metrics = lines_of(&path.join("metrics.jsonl"));
    let of = |kind: &str| metrics.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(of("step").len(), run.steps().len());
    for (metric, event) in of("step").iter().zip(run.events("step")) {
        for key in ["step", "epoch", "loss", "samples"] {
            assert_eq!(metric[key], event[key]);
        }
        for key in ["learning_rate", "gradient_norm", "samples_per_second", "seconds", "waiting_seconds"] {
            assert!(metric[key].as_f64().is_some_and(|x| x.is_finite() && x >= 0.0), "{key} in {metric}");
        }
    }
    for (metric, event) in of("epoch").iter().zip(run.events("epoch")) {
        for key in ["epoch", "train_loss", "val_loss", "val_accuracy", "val_f1"] {
            assert_eq!(metric[key], event[key]);
        }
    }
    assert_eq!(of("epoch").len(), 2);
    assert!(path.join("ledger.jsonl").is_file() && path.join("checkpoints/best/manifest.json").is_file());
}

/// The records of a TensorBoard file: length, checksum of it, bytes, checksum of those.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let mut file = BufReader::new(fs::File::open(path).unwrap());
    let mut all = Vec::new();
    let mut head = [0; 12];
    while file.read_exact(&mut head).is_ok() {
        let length = u64::from_le_bytes(head[..8].try_into().unwrap());
        let mut bytes = vec![0; usize::try_from(length).unwrap() + 4];
        file.read_exact(&mut bytes).expect("a record is whole");
        bytes.truncate(bytes.len() - 4);
        all.push(bytes);
    }
    all
}

#[test]
fn tensorboard_finds_every_step_and_epoch() {
    let folder = folder();
    let run = train(folder.path(), &format!("{MLP} epochs=2 ranks=2 threads=1 name=a"));
    run.succeeded();
    let files: Vec<_> =
        fs::read_dir(folder.path().join("runs/a/tb")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let name = files[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    let records = records(&files[0]);
    let holds = |record: &[u8], tag: &str| record.windows(tag.len()).any(|window| window == tag.as_bytes());
    assert!(holds(&records[0], "brain.Event:2"), "it begins with the version");
    let count = |tag: &str| records.iter().filter(|record| holds(record, tag)).count();
    assert_eq!(count("train/loss"), run.steps().len());
    assert_eq!(count("train/learning_rate"), run.steps().len());
    assert_eq!((count("epoch/val_loss"), count("epoch/val_accuracy")), (2, 2));
}

/// `config.yaml` holds every default: given back, it makes the same run, whatever the defaults become.
#[test]
fn the_stored_configuration_makes_the_same_run_again() {
    let folder = folder();
    for (i, model) in [MLP, CNN, GPT].into_iter().enumerate() {
        let first = train(
            folder.path(),
            &format!("{model} steps=12 schedule.warmup=3~steps ranks=2 threads=1 name=a{i}"),
        );
        let again = train(folder.path(), &format!("-c runs/a{i}/config.yaml name=b{i}"));
        assert_eq!(again.digest(), first.digest());
        let [a, b] = ["a", "b"]
            .map(|run| fs::read_to_string(folder.path().join(format!("runs/{run}{i}/config.yaml"))).unwrap());
        let differ: Vec<_> = a.lines().zip(b.lines()).filter(|(a, b)| a != b).collect();
        assert!(
            a.lines().count() == b.lines().count() && differ.len() == 1 && differ[0].0.starts_with("name:"),
            "{differ:?}"
        );
        // What is printed is what is stored, but for the name.
        let (printed, text) =
            output(folder.path(), &format!("train --print-config -c runs/a{i}/config.yaml"));
        printed.succeeded();
        assert_eq!(text, a);
    }
}

#[test]
fn a_quiet_run_says_nothing_to_people_and_a_plain_one_its_result_on_standard_output() {
    let folder = folder();
    let quiet = train(folder.path(), &format!("{MLP} steps=40 ranks=2 threads=1 --quiet"));
    quiet.succeeded();
    assert_eq!(quiet.stderr, "");
    let (plain, text) = output(folder.path(), &format!("train {MLP} steps=40 ranks=2 threads=1"));
    plain.succeeded();
    for words in ["2 ranks on the CPU", "epoch 1/2", "run      runs/digits-2"] {
        plain.said(words);
    }
    for words in ["done     40 steps, 1 epoch, ", "digest   ", "run      runs/digits-2"] {
        assert!(text.contains(words), "the result lacks {words}: {text}");
    }
    assert!(!plain.stderr.contains("digest"), "the result is said once: {}", plain.stderr);
    assert!(!plain.stderr.contains('\u{1b}') && !text.contains('\u{1b}'), "a log has no colours");
}

/// `dtrain train --json | head -1`.
#[test]
fn a_reader_that_closes_its_end_has_seen_enough_and_the_run_goes_on() {
    if !has_turn(5) {
        return;
    }
    let folder = folder();
    let mut command =
        dtrain(folder.path(), &format!("train --json {MLP} steps=2000 ranks=2 threads=1 name=a"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    drop(reader);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let events = lines_of(&folder.path().join("runs/a/events.jsonl"));
    keeps_the_contract(&events);
    assert_eq!(events[0], serde_json::from_str::<Value>(&line).unwrap());
    assert_eq!(events.last().unwrap()["steps"], 2000);
}

/// `dtrain train --json 2>&1 | head -1`.
#[test]
fn a_reader_of_all_output_that_closes_its_end_does_not_stop_the_run_either() {
    let folder = folder();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command =
        dtrain(folder.path(), &format!("train --json {MLP} steps=300 ranks=2 threads=1 name=a"));
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    reader.read_exact(&mut [0; 12]).unwrap();
    drop(reader);
    let begun = Instant::now();
    let code = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended.code();
        }
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it neither ends nor goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(code, Some(0));
    let events = lines_of(&folder.path().join("runs/a/events.jsonl"));
    assert_eq!(events.last().unwrap()["steps"], 300);
}

#[test]
fn the_benchmark_of_a_step_prints_one_object_with_its_keys() {
    if !has_turn(11) {
        return;
    }
    let folder = folder();
    for (work, ranks, micro_batches) in [("mlp", 2, 1), ("mlp", 1, 8)] {
        let mut how = format!("bench step --work {work} --ranks {ranks} --threads 1 --seconds 1 --json");
        if micro_batches > 1 {
            how += &format!(" --micro-batches {micro_batches}");
        }
        let bench = finish(dtrain(folder.path(), &how));
        bench.succeeded();
        let last = bench.lines.last().expect("a line");
        assert_eq!(bench.lines.len(), 1, "{:?}", bench.lines);
        has(last, &[("samples_per_second", Is::Number), ("peak_rss_mb", Is::Number)]);
        assert_eq!(
            (&last["work"], &last["ranks"], &last["threads"], &last["micro_batches"]),
            (&work.into(), &ranks.into(), &1.into(), &micro_batches.into())
        );
        assert!(
            last["samples_per_second"].as_f64() > Some(1.0) && last["peak_rss_mb"].as_f64() > Some(1.0),
            "{last}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "it leaves nothing but what was there");
}
