//! A model that was trained on arrays is measured on other arrays with their targets: the figures are those of training where
//! the samples are.

use crate::harness::files::{idx, npy};
use crate::harness::{folder, json, refused, train, write_table, write_text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Numbers in [0, 1), the same each time.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| next()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn eval(folder: &Path, arguments: &str) -> Value {
    json(folder, &format!("eval --json {arguments}"))
}

/// `[rows, 6]` numbers whose class, of three, is the greatest of the first three; and twice a price.
fn write_arrays(folder: &Path, name: &str, rows: usize, seed: u64) {
    let values = noise(rows * 6, seed);
    let greatest = |row: &[f32]| (0..3).fold(0, |best, at| if row[at] > row[best] { at } else { best });
    let classes: Vec<u8> = values.chunks(6).map(|row| greatest(row) as u8).collect();
    let prices: Vec<f32> = values.chunks(6).map(|row| 300_000.0 + 1e5 * row[0] - 5e4 * row[4]).collect();
    let both: Vec<f32> = prices.iter().flat_map(|price| [*price, 3.0 - price / 1e5]).collect();
    let put = |end: &str, bytes: Vec<u8>| fs::write(folder.join(format!("{name}-{end}.npy")), bytes).unwrap();
    put("x", npy("<f4", &[rows, 6], &floats(&values)));
    put("class", npy("|u1", &[rows], &classes));
    let wide: Vec<u8> = classes.iter().flat_map(|class| f64::from(*class).to_le_bytes()).collect();
    put("real", npy("<f8", &[rows, 1], &wide));
    put("price", npy("<f4", &[rows], &floats(&prices)));
    put("both", npy("<f4", &[rows, 2], &floats(&both)));
}

#[test]
fn figures_of_arrays_with_targets_are_those_of_training_where_the_samples_are() {
    let folder = folder();
    let path = folder.path();
    write_arrays(path, "train", 400, 1);
    write_arrays(path, "val", 150, 2);
    let run = |name: &str, targets: &str, rest: &str| {
        let files = format!("data.inputs=train-x.npy data.targets=train-{targets}.npy");
        let val = format!("data.val_inputs=val-x.npy data.val_targets=val-{targets}.npy");
        let run = train(path, &format!("data.kind=npy {files} {val} epochs=3 name={name} {rest}"));
        run.succeeded();
        run
    };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let classes = run("classes", "class", "");
    let own = eval(path, "classes");
    for targets in ["class", "real"] {
        let given = eval(path, &format!("classes --data val-x.npy --targets val-{targets}.npy"));
        assert_eq!(own, given, "the same samples come to the same figures");
    }
    // One epoch is the best: that which `eval` takes.
    let said: Vec<f64> = classes.events("epoch").map(|epoch| number(&epoch["val_accuracy"])).collect();
    assert!(said.contains(&number(&own["accuracy"])), "{own}, and training said {said:?}");
    assert!(path.join("runs/classes/eval/val-x/confusion.csv").is_file());

    let prices = run("prices", "price", "loss.kind=mse");
    let given = eval(path, "prices --data val-x.npy --targets val-price.npy --ranks 2 --batch 7");
    for figure in ["rmse", "r2"] {
        let name = format!("val_{figure}");
        let said: Vec<f64> = prices.events("epoch").map(|epoch| number(&epoch[&name])).collect();
        let got = number(&given[figure]);
        assert!(said.iter().any(|said| (got - said).abs() < 1e-4 * said.abs()), "{figure}: {got}, {said:?}");
    }
    run("both", "both", "loss.kind=mse");
    let (own, given) = (eval(path, "both"), eval(path, "both --data val-x.npy --targets val-both.npy"));
    for target in 0..2 {
        let of = |figures: &Value| number(&figures["targets"][target]["mae"]);
        assert!((of(&own) - of(&given)).abs() < 1e-4 * of(&own), "{own} {given}");
    }
}

#[test]
fn images_in_idx_files_are_measured_with_their_labels_packed_or_not() {
    let folder = folder();
    let path = folder.path();
    let images = |rows: usize, seed| {
        let pixels: Vec<u8> = noise(rows * 64, seed).iter().map(|value| (value * 255.0) as u8).collect();
        let labels: Vec<u8> = pixels.chunks(64).map(|image| u8::from(image[9] > 127)).collect();
        (idx(&[rows as u32, 8, 8], &pixels), idx(&[rows as u32], &labels))
    };
    for (part, rows, seed) in [("train", 300, 3), ("t10k", 90, 4)] {
        let (images, labels) = images(rows, seed);
        for (kind, bytes) in [("images-idx3", images), ("labels-idx1", labels)] {
            let name = format!("{part}-{kind}-ubyte");
            fs::write(path.join(&name), bytes).unwrap();
            let packed = Command::new("gzip").current_dir(path).args(["--keep", &name]).status();
            assert!(packed.unwrap().success());
        }
    }
    let files = "data.images=train-images-idx3-ubyte data.labels=train-labels-idx1-ubyte";
    let val = "data.val_images=t10k-images-idx3-ubyte data.val_labels=t10k-labels-idx1-ubyte";
    train(path, &format!("data.kind=idx {files} {val} model.channels=[4] epochs=2 name=i")).succeeded();
    let own = eval(path, "i");
    assert_eq!(own["samples"], 90);
    for end in ["", ".gz"] {
        let given = format!("i --data t10k-images-idx3-ubyte{end} --labels t10k-labels-idx1-ubyte{end}");
        assert_eq!(eval(path, &given), own, "{end}");
    }
    let swapped = "eval i --data t10k-labels-idx1-ubyte --labels t10k-images-idx3-ubyte";
    refused(path, swapped, &["begins with 00 00 08 01", "may be swapped"]);
    let other = "eval i --data t10k-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz";
    refused(path, other, &["has 90 samples but", "has 300 targets", "hint:"]);
}

#[test]
fn targets_that_do_not_fit_an_array_are_said_as_they_are() {
    let folder = folder();
    let path = folder.path();
    write_arrays(path, "a", 200, 5);
    let files = "data.kind=npy data.inputs=a-x.npy data.targets=a-class.npy";
    train(path, &format!("{files} epochs=1 name=c")).succeeded();
    let numbers = "data.kind=npy data.inputs=a-x.npy data.targets=a-both.npy loss.kind=mse";
    train(path, &format!("{numbers} epochs=1 name=v")).succeeded();
    write_table(&path.join("table.csv"), 20);
    write_text(&path.join("text.txt"), 2_000);
    let put = |name: &str, bytes: Vec<u8>| fs::write(path.join(name), bytes).unwrap();
    put("short.npy", npy("|u1", &[199], &[0; 199]));
    put("four.npy", npy("|u1", &[200], &[vec![0; 150], vec![3; 50]].concat()));
    put("half.npy", npy("<f4", &[200], &floats(&vec![0.5; 200])));
    put("nan.npy", npy("<f4", &[200], &floats(&vec![f32::NAN; 200])));
    put("narrow.npy", npy("<f4", &[200, 5], &floats(&vec![0.5; 1000])));
    let array = "--data a-x.npy";
    for (arguments, words) in [
        (format!("c {array}"), &["a-x.npy is an array without targets", "hint: ", "--targets y.npy"][..]),
        (format!("c {array} --targets nowhere.npy"), &["nowhere.npy does not exist", "hint: "]),
        (
            format!("c {array} --targets text.txt"),
            &["text.txt is no array", "hint: targets are a .npy array"],
        ),
        (
            format!("c {array} --targets short.npy"),
            &["a-x.npy has 200 samples but short.npy has 199 targets"],
        ),
        (
            format!("c {array} --targets four.npy"),
            &["four.npy row 151: 3 is no class of the model", "the classes 0 to 2"],
        ),
        (format!("c {array} --targets half.npy"), &["half.npy row 1: 0.5 is no class of the model"]),
        (format!("c {array} --targets a-both.npy"), &["a-both.npy has targets of shape [2]", "shape [n]"]),
        (format!("v {array} --targets a-price.npy"), &["expected 2 numbers a sample", "shape [n, 2]"]),
        (format!("v {array} --targets nan.npy"), &["nan.npy row 1, element 1: the value is NaN", "hint: "]),
        (
            "c --data narrow.npy --targets a-class.npy".to_owned(),
            &["narrow.npy have shape [5], and the model was trained on [6]", "hint: "],
        ),
        (
            "c --data table.csv --targets a-class.npy".to_owned(),
            &["table.csv line 1: 33 columns, expected 6, or 7", "hint: "],
        ),
        ("c --targets a-class.npy".to_owned(), &["--data"]),
    ] {
        refused(path, &format!("eval {arguments}"), words);
        let left = ["a-x", "narrow", "table"].map(|name| path.join("runs/c/eval").join(name));
        assert!(left.iter().all(|folder| !folder.exists()), "{arguments} left figures");
    }
    fs::write(path.join("six.csv"), "1,2,3,4,5,6,0\n").unwrap();
    refused(
        path,
        "eval c --data six.csv --targets a-class.npy",
        &["six.csv is a table", "one of its columns"],
    );
    train(path, "data.kind=text data.path=text.txt data.context=8 model.width=8 model.heads=1 model.layers=1 steps=2 name=t")
        .succeeded();
    refused(path, "eval t --data text.txt --targets a-class.npy", &["its own tokens", "leave --targets out"]);
}
