//! What a trained model cannot be used for is said as it is, with its line; and a model of texts is measured on new ones.

use crate::harness::files::{make_newer, reseal};
use crate::harness::{checkpoints, dtrain, folder, json, output, train, write_text, write_tokens};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;

#[track_caller]
fn refused(folder: &Path, arguments: &str, words: &[&str]) {
    let (finished, text) = output(folder, arguments);
    assert_ne!(finished.code, Some(0), "{arguments}: {text}");
    words.iter().for_each(|words| finished.said(words));
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

fn eval(folder: &Path, arguments: &str) -> Value {
    json(folder, &format!("eval --json {arguments}"))
}

const TABLE: &str = "length,width,kind\n1,2,cat\n3,4,dog\n2,2,cat\n4,4,dog\n1,1,cat\n5,4,dog\n2,1,cat\n4,5,dog\n1,3,cat\n5,5,dog\n";

/// A run of a few steps on a small table.
fn pets(path: &Path) {
    fs::write(path.join("pets.csv"), TABLE).unwrap();
    train(
        path,
        "data.kind=csv data.path=pets.csv name=pets epochs=2 global_batch=4 micro_batch=2 data.val_split=0.3",
    )
    .succeeded();
}

#[test]
fn a_model_of_texts_is_measured_on_a_new_text_and_one_of_tokens_on_new_ids() {
    let folder = folder();
    let path = folder.path();
    write_text(&path.join("text.txt"), 4_000);
    let small = "model.layers=1 model.width=16 model.heads=2 data.context=8 steps=20";
    train(path, &format!("data.kind=text data.path=text.txt name=text {small}")).succeeded();
    // What training held out, as a file of its own, comes to the same loss.
    let text = fs::read(path.join("text.txt")).unwrap();
    let held_out = eval(path, "text");
    let windows = held_out["tokens"].as_u64().unwrap() as usize;
    let from = text.len() - text.len() / 10;
    fs::write(path.join("new.txt"), &text[from..]).unwrap();
    let new = eval(path, "text --data new.txt");
    let near = |one: &Value, other: &Value| {
        (one["loss"].as_f64().unwrap() - other["loss"].as_f64().unwrap()).abs() < 0.05
    };
    assert!(
        near(&new, &held_out) && new["tokens"].as_u64().unwrap() as usize <= windows + 8,
        "{new} {held_out}"
    );
    assert!(path.join("runs/text/eval/new/figures.json").is_file());
    refused(path, "eval text --data nowhere.txt", &["nowhere.txt does not exist"]);

    write_tokens(&path.join("ids"), 4_000);
    let tokens = format!("data.kind=tokens data.path=ids data.vocabulary=512 name=tokens {small}");
    train(path, &tokens).succeeded();
    let figures = eval(path, "tokens --data ids/train.bin");
    let (loss, perplexity) = (figures["loss"].as_f64().unwrap(), figures["perplexity"].as_f64().unwrap());
    assert!((perplexity - loss.exp()).abs() < 1e-6 * perplexity && figures["tokens"].as_u64() > Some(1_000));
}

#[test]
fn an_error_about_columns_has_the_line_of_the_header_and_one_about_a_label_does_not_speak_of_columns() {
    let folder = folder();
    let path = folder.path();
    pets(path);
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write("late.csv", "\n\nlength,kind\n1,cat\n");
    refused(
        path,
        "predict pets late.csv",
        &["late.csv line 3: column \"width\" of the training table is missing"],
    );
    write("stray.csv", "length,width,kind\n1,2,cow\n");
    write("unlabelled.csv", "length,width,kind\n1,2,\n");
    let stray =
        ["stray.csv line 2: \"cow\" is no class of the training table", "hint: the model knows cat, dog"];
    refused(path, "eval pets --data stray.csv", &stray);
    refused(path, "eval pets --data unlabelled.csv", &["unlabelled.csv line 2: the label is missing"]);
    write("inf.csv", "length,width\n1,inf\n");
    refused(path, "predict pets inf.csv", &["inf.csv line 2, column 2 (width): the value is inf"]);
    refused(path, "predict pets .", &[". is a folder", "name its files"]);
    let mut command = dtrain(path, "predict pets -");
    write("array.npy", "");
    fs::write(path.join("array.npy"), b"\x93NUMPY\x01\x00v\x00{'descr'}\n").unwrap();
    let given = fs::File::open(path.join("array.npy")).unwrap();
    let ended = command.stdin(given).stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("standard input is a .npy array, not a table"), "{said}");
}

#[test]
fn figures_of_a_file_called_validation_do_not_take_the_place_of_those_of_the_run() {
    let folder = folder();
    let path = folder.path();
    pets(path);
    fs::write(path.join("validation.csv"), TABLE).unwrap();
    let own = eval(path, "pets");
    let kept = fs::read(path.join("runs/pets/eval/validation/figures.json")).unwrap();
    let other = eval(path, "pets --data validation.csv");
    assert_ne!(own["samples"], other["samples"]);
    assert_eq!(fs::read(path.join("runs/pets/eval/validation/figures.json")).unwrap(), kept);
    assert!(path.join("runs/pets/eval/validation.csv-data/confusion.svg").is_file());
}

#[test]
fn a_checkpoint_of_another_version_is_not_called_damaged_and_one_without_preparation_says_so() {
    let folder = folder();
    let path = folder.path();
    pets(path);
    let run = path.join("runs/pets");
    let best = fs::canonicalize(run.join("checkpoints/best")).unwrap();
    let (manifest, name) =
        (best.join("manifest.json"), best.file_name().unwrap().to_string_lossy().into_owned());
    let whole = fs::read_to_string(&manifest).unwrap();
    make_newer(&best);
    let (finished, _) = output(path, "predict pets pets.csv");
    finished.ended_with(2);
    finished.said(&format!("another version of dtrain made checkpoint {name} of runs/pets: manifest version 9, this program reads version 1"));
    assert!(!finished.stderr.contains("damaged"), "{}", finished.stderr);
    fs::write(&manifest, &whole).unwrap();
    reseal(&best, |body| {
        let lines = body.lines().filter(|line| !line.starts_with("  \"preparation\""));
        lines.collect::<Vec<_>>().join("\n")
    });
    refused(
        path,
        "predict pets pets.csv",
        &["does not say how its samples are prepared", "dtrain train --resume"],
    );
}

#[test]
fn a_checkpoint_of_another_version_that_is_passed_over_is_said_and_one_that_is_needed_is_refused_with_what_to_do()
 {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("pets.csv"), TABLE).unwrap();
    let pets =
        "data.kind=csv data.path=pets.csv name=pets epochs=3 global_batch=4 micro_batch=2 data.val_split=0.3";
    train(path, &format!("{pets} checkpoint.best=none checkpoint.every=1~epoch")).succeeded();
    let all = checkpoints(&path.join("runs/pets"));
    let name = |at: usize| all[at].file_name().unwrap().to_string_lossy().into_owned();
    assert!(all.len() >= 2, "{all:?}");
    let newest = all.len() - 1;
    make_newer(&all[newest]);
    let said = format!(
        "passed over checkpoint {}, made by another version of dtrain: manifest version 9",
        name(newest)
    );
    let used = format!("checkpoint {} of", name(newest - 1));
    for command in ["eval pets", "export pets --to safetensors", "export pets --to onnx"] {
        let (finished, text) = output(path, command);
        finished.succeeded();
        finished.said(&said);
        assert!(text.contains(&used), "{command}: {text}");
        assert!(!finished.stderr.contains("damaged"), "{}", finished.stderr);
    }
    let (finished, text) = output(path, "predict pets pets.csv");
    finished.succeeded();
    finished.said(&said);
    assert_eq!(text.lines().count(), 11, "the note is not among the predictions");
    let (quiet, _) = output(path, "predict pets pets.csv -q");
    assert_eq!(quiet.stderr, "");
    let (listed, text) = output(path, "checkpoint verify pets");
    listed.ended_with(1);
    listed.said("1 checkpoint of another version of dtrain");
    assert!(text.contains("made by another version of dtrain") && !text.contains("damaged"), "{text}");
    let named = format!("runs/pets/{}", name(newest));
    refused(
        path,
        &format!("predict {named} pets.csv"),
        &["another version of dtrain made checkpoint", "hint: use that version"],
    );
    refused(
        path,
        "predict runs/pets/g9-s000001 pets.csv",
        &["runs/pets has no checkpoint g9-s000001", "checkpoint ls"],
    );
    let resumed = train(path, "--resume pets");
    resumed.succeeded();
    resumed.said(&said);

    // Where there is no other, it is what is wrong.
    for checkpoint in checkpoints(&path.join("runs/pets")) {
        if checkpoint != all[newest] {
            make_newer(&checkpoint);
        }
    }
    for command in ["eval pets", "predict pets pets.csv", "export pets --to torch", "train --resume pets"] {
        let (finished, _) = output(path, command);
        finished.ended_with(2);
        finished.said("another version of dtrain made every checkpoint of runs/pets");
        finished.said("hint: use that version, or start a new run");
        assert!(!finished.stderr.contains("damaged"), "{}", finished.stderr);
    }
    assert!(!path.join("pets-torch").exists());
    // One of them is damaged, too: each is said as what it is.
    fs::write(all[0].join("manifest.json"), "{}").unwrap();
    refused(
        path,
        "train --resume pets",
        &["has no checkpoint that this version of dtrain can use", "manifest version 9", "damaged: g1-"],
    );
}
