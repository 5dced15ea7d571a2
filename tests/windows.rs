//! From recordings of sensors to predictions of their windows, and the folder of UCI-HAR as it is: the same bits for any number of ranks
//! and readers.

use crate::harness::{dtrain, folder, json, output, said, train};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// A number from 0 to 1 that follows from its place.
fn noise(place: usize) -> f32 {
    ((place.wrapping_mul(2_654_435_761) >> 9) % 4096) as f32 / 4096.0
}

/// How a body moves: still, slowly, fast; each subject in its own phase and strength.
fn signal(activity: usize, subject: usize, channel: usize, row: usize) -> f32 {
    let (speed, strength) = [(0.0, 0.05), (0.35, 1.0), (0.9, 1.2)][activity];
    let phase = subject as f32 * 0.7 + channel as f32;
    let strength = strength * (0.8 + 0.05 * subject as f32);
    strength * (speed * row as f32 + phase).sin() + 0.1 * noise(row * 31 + channel * 7 + subject)
}

const ACTIVITIES: [&str; 3] = ["sits", "walks", "runs"];

/// Six subjects, a folder each, who do one thing after the other: times with a gap between them, two channels and a note.
fn recordings(path: &Path) {
    for subject in 0..6 {
        let folder = path.join("bodies").join(format!("s{subject}"));
        fs::create_dir_all(&folder).unwrap();
        for (activity, name) in ACTIVITIES.iter().enumerate() {
            let mut text = "when,x,y,note,does\n".to_owned();
            for row in 0..160 {
                let at = row + if row >= 90 { 60 } else { 0 };
                let [x, y] = [0, 1].map(|channel| signal(activity, subject, channel, row));
                writeln!(text, "2024-05-01T10:{:02}:{:04.1}Z,{x},{y},ok,{name}", at / 600, at as f32 / 10.0)
                    .unwrap();
            }
            fs::write(folder.join(format!("{name}.csv")), text).unwrap();
        }
    }
}

const RUN: &str = "data.kind=windows data.path=bodies data.time=when data.gap=1 data.label=does data.length=32 data.stride=16 \
                   data.group=folder data.held_out=[s1,s4] model.channels=[8,8] model.hidden=[16] model.dropout=0 optimizer.lr=0.01 \
                   global_batch=12 micro_batch=4 epochs=6";

#[test]
fn recordings_become_a_model_that_predicts_windows_of_files_folders_and_standard_input() {
    let folder = folder();
    let path = folder.path();
    recordings(path);
    let run = train(path, &format!("{RUN} ranks=2 threads=1 name=bodies"));
    run.succeeded();
    // 90 rows and 70 behind the gap are 4 and 3 windows of a file.
    let told = json(path, "eval bodies --json");
    assert_eq!((&told["groups"], told["samples"].as_u64()), (&json!(["s1", "s4"]), Some(2 * 3 * 7)));
    assert!(told["accuracy"].as_f64().unwrap() > 0.9, "{told}");
    let flat = train(
        path,
        &format!("{RUN} model.kind=mlp model.hidden=[32] ranks=1 name=flat")
            .replace("model.channels=[8,8] model.hidden=[16] ", ""),
    );
    flat.succeeded();
    assert!(flat.summary()["val_accuracy"].as_f64().unwrap() > 0.8);

    // The same files, wherever they lie.
    fs::rename(path.join("bodies"), path.join("moved")).unwrap();
    let moved = json(path, "eval bodies --data moved/s1 --json");
    assert_eq!(moved["samples"].as_u64(), Some(21));
    assert!(moved["accuracy"].as_f64().unwrap() > 0.85, "{moved}");
    let table = said(path, "predict bodies moved/s4 moved/s1/runs.csv");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("file,from,to,prediction,p(runs),p(sits),p(walks)", 1 + 21 + 7));
    assert!(
        lines[1].starts_with("moved/s4/runs.csv,2,33,runs,")
            && lines[5].starts_with("moved/s4/runs.csv,92,123,"),
        "{table}"
    );
    for work in ["--ranks 1", "--ranks 3 --batch 1", "--batch 7"] {
        assert_eq!(said(path, &format!("predict bodies moved/s4 moved/s1/runs.csv {work}")), table);
    }
    said(path, "predict bodies moved/s4 -o out.jsonl");
    let first = fs::read_to_string(path.join("out.jsonl")).unwrap();
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!((&first["file"], first["to"].as_u64()), (&json!("moved/s4/runs.csv"), Some(33)));
    // Without a label, columns in another order, from standard input.
    let text = fs::read_to_string(path.join("moved/s4/runs.csv")).unwrap();
    let turned = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        format!("{},{},{}\n", fields[2], fields[0], fields[1])
    };
    let turned: String = text.lines().map(turned).collect();
    fs::write(path.join("turned.csv"), &turned).unwrap();
    let mut command = dtrain(path, "predict bodies -");
    let given = fs::File::open(path.join("turned.csv")).unwrap();
    let told = command.stdin(given).stderr(Stdio::inherit()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert_eq!(told.replace("standard input", "moved/s4/runs.csv").lines().collect::<Vec<_>>(), lines[..8]);

    fs::write(path.join("short.csv"), "when,x,y\n1,1,1\n").unwrap();
    fs::write(path.join("lacking.csv"), "when,x\n1,1\n").unwrap();
    fs::write(path.join("timeless.csv"), "x,y\n1,1\n").unwrap();
    fs::write(path.join("back.csv"), "when,x,y\n2,1,1\n1,1,1\n").unwrap();
    fs::write(path.join("stray.csv"), text.replace("runs", "flies")).unwrap();
    for (arguments, words) in [
        (
            "predict bodies short.csv -o x.csv",
            "short.csv has no window of 32 rows: the longest stretch without a gap has 1",
        ),
        (
            "predict bodies moved/s4 lacking.csv -o x.csv",
            "lacking.csv line 1: column \"y\" of the training table is missing",
        ),
        ("predict bodies timeless.csv", "timeless.csv line 1: the column of the time is missing"),
        ("predict bodies back.csv", "back.csv line 3: the time 1 is before 2"),
        ("predict bodies nowhere.csv", "nowhere.csv does not exist"),
        ("eval bodies --data turned.csv", "turned.csv has no column of the target"),
        ("eval bodies --data stray.csv", "stray.csv line 2: \"flies\" is no class"),
        ("eval bodies", "does not exist"),
    ] {
        let (told, _) = output(path, arguments);
        assert_ne!(told.code, Some(0), "{arguments}");
        told.said(words);
        told.said("hint: ");
        assert!(!path.join("x.csv").exists());
    }
}

#[test]
fn the_bits_of_windows_do_not_depend_on_ranks_and_readers() {
    let folder = folder();
    let path = folder.path();
    recordings(path);
    let short = RUN.replace("epochs=6", "epochs=2");
    let one = train(path, &format!("{short} ranks=1 name=one"));
    one.succeeded();
    for (name, world) in [
        ("two", "ranks=2 threads=1 workers=0"),
        ("three", "ranks=3 threads=1 workers=3"),
        ("threads", "ranks=5 isolation=thread checkpoint.every=none"),
    ] {
        let run = train(path, &format!("{short} {world} name={name}"));
        run.succeeded();
        assert_eq!(run.digest(), one.digest(), "{world}");
    }
}

/// The folder of UCI-HAR with windows of 32, two signals, three activities and four features.
fn har(path: &Path) {
    let root = path.join("UCI HAR Dataset");
    for (part, subjects) in [("train", 1..6), ("test", 6..8)] {
        let signals = root.join(part).join("Inertial Signals");
        fs::create_dir_all(&signals).unwrap();
        let [mut x, mut y, mut labels, mut who, mut features] = [const { String::new() }; 5];
        for (subject, activity, window) in subjects.flat_map(|subject| {
            (0..3).flat_map(move |activity| (0..6).map(move |window| (subject, activity, window)))
        }) {
            let row = |channel: usize| {
                let value = |row| format!(" {:15.7e}", signal(activity, subject, channel, window * 17 + row));
                (0..32).map(value).collect::<String>() + "\n"
            };
            x += &row(0);
            y += &row(1);
            writeln!(labels, "{}", activity + 1).unwrap();
            writeln!(who, "{subject}").unwrap();
            let mean = signal(activity, subject, 0, window).abs();
            writeln!(features, " {mean:e} {:e} {:e} 0", activity as f32 + noise(window), noise(subject))
                .unwrap();
        }
        let write = |name: &str, text: &str| {
            fs::write(root.join(part).join(format!("{name}_{part}.txt")), text).unwrap()
        };
        write("Inertial Signals/acc_x", &x);
        write("Inertial Signals/acc_y", &y);
        write("y", &labels);
        write("subject", &who);
        write("X", &features);
    }
    fs::write(root.join("activity_labels.txt"), "1 SITTING\n2 WALKING\n3 RUNNING\n").unwrap();
    fs::rename(root, path.join("har")).unwrap();
}

#[test]
fn the_folder_of_uci_har_is_read_as_it_is() {
    let folder = folder();
    let path = folder.path();
    har(path);
    let run = "data.kind=windows data.path=har data.length=32 model.hidden=[16] model.dropout=0 optimizer.lr=0.01 global_batch=12 \
               micro_batch=4 epochs=8";
    let signals = train(path, &format!("{run} model.channels=[8,8] ranks=2 threads=1 name=signals"));
    signals.succeeded();
    let told = json(path, "eval signals --json");
    assert_eq!((&told["groups"], told["samples"].as_u64()), (&json!(["6", "7"]), Some(36)));
    assert!(told["accuracy"].as_f64().unwrap() > 0.9, "{told}");
    let again = json(path, "eval signals --data har/test --json");
    assert_eq!((&again["accuracy"], &again["loss"]), (&told["accuracy"], &told["loss"]));
    let table = said(path, "predict signals har/test");
    assert!(
        table.starts_with("file,from,to,prediction,p(SITTING),p(WALKING),p(RUNNING)\nhar/test,1,1,SITTING,"),
        "{table}"
    );
    let named =
        train(path, &format!("{run} model.channels=[8,8] data.held_out=[2,7] epochs=1 ranks=1 name=named"));
    named.succeeded();
    assert_eq!(json(path, "eval named --json")["groups"], json!(["2", "7"]));
    let features = train(path, &format!("{run} data.har=features ranks=1 name=features"));
    features.succeeded();
    assert!(features.summary()["val_accuracy"].as_f64().unwrap() > 0.8);
    assert_eq!(said(path, "predict features har").lines().count(), 1 + 90 + 36);

    let refused = |arguments: &str, words: &str| {
        let wrong = train(path, &format!("{run} {arguments} ranks=1 name=wrong"));
        assert_ne!(wrong.code, Some(0), "{arguments}");
        wrong.said(words);
        wrong.said("hint: ");
    };
    refused("data.length=64", "acc_x_train.txt has 32 numbers on a line, and 64 are wanted");
    refused("loss.kind=mse", "the activities of UCI-HAR are classes");
    refused("data.gap=1", "a gap is one in time, and data.time is none");
    let change = |file: &str, text: &str, arguments: &str, words: &str| {
        let file = path.join("har/train").join(file);
        let whole = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("WHOLE", &whole)).unwrap();
        refused(arguments, words);
        fs::write(&file, whole).unwrap();
    };
    change("y_train.txt", "WHOLE4\n", "", "y_train.txt has 91 targets");
    change("y_train.txt", "one\n", "", "y_train.txt row 1: label \"one\" is not a whole number");
    change("subject_train.txt", "1\n", "", "subject_train.txt has 1 target");
    change(
        "Inertial Signals/acc_y_train.txt",
        "1 2 x\n",
        "",
        "acc_y_train.txt line 1, column 3: \"x\" is not a number",
    );
    change(
        "Inertial Signals/acc_y_train.txt",
        "WHOLE1 2\n",
        "",
        "acc_y_train.txt line 91: 2 columns, expected 32",
    );
    fs::write(path.join("har/activity_labels.txt"), "1 SITTING\n2 WALKING\n").unwrap();
    refused("", "label 3 is not in activity_labels.txt");
    fs::remove_file(path.join("har/test/Inertial Signals/acc_y_test.txt")).unwrap();
    let (told, _) = output(path, "predict signals har/test");
    assert_ne!(told.code, Some(0));
    told.said("har/test has acc_x, and the model was trained on acc_x, acc_y");
}
