//! A trained model is taken away: what ONNX Runtime and PyTorch make of an export is what `dtrain predict` says, on raw inputs,
//! element by element; of texts, every logit.
//!
//! They are looked for in `DTRAIN_TEST_PYTHON`, or else in `python3`; what is not there is said to be skipped.

use crate::harness::files::npy;
use crate::harness::turn::has_turn;
use crate::harness::{folder, json, output, said, train, write_table, write_text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The Python that has a package, if there is one.
fn python_with(packages: &str) -> Option<String> {
    let python = std::env::var("DTRAIN_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(&python);
    let found =
        command.args(["-c", &format!("import {packages}")]).output().is_ok_and(|out| out.status.success());
    if !found {
        eprintln!("skipped: {python} has no {packages}; DTRAIN_TEST_PYTHON names one that has");
    }
    found.then_some(python)
}

/// `[rows, shape...]` of numbers like those of [`write_table`].
fn write_array(path: &Path, rows: usize, shape: &[usize]) {
    let sides = shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {sides},), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{text:<117}\n").bytes());
    let width = rows * shape.iter().product::<usize>();
    bytes.extend((0..width).flat_map(|at| (((at * 7919) % 1013) as f32 / 97.0 - 4.0).to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

fn check(python: &str, folder: &Path, arguments: [&str; 4]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/check_export.py");
    let out = Command::new(python).current_dir(folder).arg(script).args(arguments).output().unwrap();
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn exports_say_what_predict_says_on_raw_inputs() {
    if !has_turn(19) {
        return;
    }
    let pythons =
        [("onnx", python_with("numpy, onnxruntime")), ("torch", python_with("numpy, torch, safetensors"))];
    let folder = folder();
    let path = folder.path();
    write_table(&path.join("table.csv"), 300);
    let prices: Vec<String> = fs::read_to_string(path.join("table.csv"))
        .unwrap()
        .lines()
        .enumerate()
        .map(|(row, line)| match row {
            _ if line.starts_with(|first: char| first.is_alphabetic()) => line.to_owned(),
            _ => format!("{},{}", line.rsplit_once(',').unwrap().0, 300_000 + 37 * (row % 50)),
        })
        .collect();
    fs::write(path.join("prices.csv"), prices.join("\n")).unwrap();
    let table = "data.kind=csv data.path=table.csv epochs=1";
    for (name, settings, shape) in [
        ("mlp", format!("{table} model.kind=mlp model.batch_norm=true model.dropout=0.1"), &[32][..]),
        ("plain", "data.kind=csv data.path=prices.csv loss.kind=mse epochs=2".to_owned(), &[32]),
        ("cnn", "epochs=1 model.channels=[4,8]".to_owned(), &[1, 8, 8]),
        ("cnn1d", format!("{table} data.shape=[2,16] model.kind=cnn1d model.channels=[4,8]"), &[2, 16]),
        (
            "cnn3d",
            format!("{table} data.shape=[1,2,4,4] model.kind=cnn3d model.channels=[4] model.pool=last"),
            &[1, 2, 4, 4],
        ),
        ("resnet", "epochs=1 model.kind=resnet model.width=4".to_owned(), &[1, 8, 8]),
        (
            "bottlenecks",
            "steps=9 model.kind=resnet model.depth=50 model.width=2 model.stem=large".to_owned(),
            &[1, 8, 8],
        ),
        ("vit", "epochs=1 model.kind=vit model.layers=2 model.width=12 model.patch=2".to_owned(), &[1, 8, 8]),
        (
            "transformer",
            format!(
                "{table} data.shape=[2,16] model.kind=transformer model.layers=1 model.width=8 model.dropout=0.1"
            ),
            &[2, 16],
        ),
        (
            "lstm",
            format!(
                "{table} data.shape=[2,16] model.kind=lstm model.layers=2 model.width=7 model.dropout=0.1"
            ),
            &[2, 16],
        ),
        ("gru", format!("{table} data.shape=[2,16] model.kind=gru model.width=7"), &[2, 16]),
    ] {
        train(path, &format!("{settings} name={name}")).succeeded();
        write_array(&path.join("raw.npy"), 9, shape);
        said(path, &format!("predict {name} raw.npy -o predicted.npy"));
        said(path, &format!("export {name} --to onnx"));
        said(path, &format!("export {name} --to torch -o {name}-torch"));
        for (kind, python) in &pythons {
            let model = if *kind == "onnx" { format!("{name}.onnx") } else { format!("{name}-torch") };
            if let Some(python) = python {
                check(python, path, [kind, &model, "raw.npy", "predicted.npy"]);
            }
        }
    }
    write_text(&path.join("text.txt"), 4_000);
    for (kind, other) in [
        ("gpt", "model.dropout=0.1"),
        ("gpt2", "model.dropout=0.1"),
        (
            "llama",
            "model.kv_heads=1 model.head_width=6 model.qkv_bias=true model.qk_norm=true model.rope_theta=50 model.rope_scaling=llama3 model.rope_context=4",
        ),
    ] {
        let small = format!("model.layers=2 model.width=16 model.heads=2 {other} data.context=8 steps=30");
        train(path, &format!("data.kind=text data.path=text.txt model.kind={kind} {small} name={kind}"))
            .succeeded();
        let figures = json(path, &format!("eval {kind} --json"));
        let loss = figures["loss"].to_string();
        let ids: Vec<u8> = (0..9 * 8).map(|at| (at * 7919 % 251) as u8).collect();
        fs::write(path.join("ids.npy"), npy("|u1", &[9, 8], &ids)).unwrap();
        said(path, &format!("predict {kind} ids.npy -o logits.npy"));
        said(path, &format!("export {kind} --to onnx"));
        said(path, &format!("export {kind} --to torch"));
        for (to, python) in &pythons {
            let model = if *to == "onnx" { format!("{kind}.onnx") } else { format!("{kind}-torch") };
            if let Some(python) = python {
                check(python, path, [to, &model, "text.txt", &loss]);
                check(python, path, [to, &model, "ids.npy", "logits.npy"]);
            }
        }
    }
}

/// A field over two lines, with a delimiter and quotes in it.
const BERN: &str = "\"Bern, \"\"old\"\"\ntown\"";

#[test]
fn an_export_carries_what_prepares_its_samples_and_is_whole_or_not_there() {
    let folder = folder();
    let path = folder.path();
    fs::write(
        path.join("t.csv"),
        format!("city,size,kind\n{BERN},1,a\nRome,,b\n{BERN},3,a\nRome,4,b\n{BERN},5,a\nRome,6,b\n"),
    )
    .unwrap();
    train(
        path,
        "data.kind=csv data.path=t.csv global_batch=2 micro_batch=1 epochs=1 data.val_split=0 name=t",
    )
    .succeeded();
    said(path, "export t --to safetensors");
    let bytes = fs::read(path.join("t.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let preparation: Value =
        serde_json::from_str(header["__metadata__"]["preparation"].as_str().unwrap()).unwrap();
    assert_eq!(preparation["class_names"], serde_json::json!(["a", "b"]));
    assert_eq!(
        preparation["columns"][0]["role"]["category"]["words"],
        serde_json::json!(["Bern, \"old\"\ntown", "Rome"])
    );
    said(path, "export t --to torch -o out");
    for file in ["model.py", "model.safetensors", "predict.py", "preparation.json"] {
        assert!(path.join("out").join(file).is_file(), "{file}");
    }
    let (again, _) = output(path, "export t --to torch -o out");
    again.ended_with(2);
    again.said("out is there already");
    let (nowhere, _) = output(path, "export t --to onnx -o nowhere/t.onnx");
    nowhere.ended_with(1);
    nowhere.said("cannot write nowhere/t.onnx");
    let (unknown, _) = output(path, "export t --to keras");
    unknown.ended_with(2);
    // What Python says of words, holes and names is what dtrain says.
    let Some(python) = python_with("torch, safetensors") else { return };
    fs::write(path.join("new.csv"), format!("size,city\n2,Rome\n,{BERN}\n9,Oslo\nNone,None\n")).unwrap();
    let ours = said(path, "predict t new.csv");
    let theirs = Command::new(python).current_dir(path).args(["out/predict.py", "new.csv"]).output().unwrap();
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    assert_eq!((ours.lines().next(), ours.lines().count()), (theirs.lines().next(), theirs.lines().count()));
    for (ours, theirs) in ours.lines().zip(theirs.lines()).skip(1) {
        let fields = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let (ours, theirs) = (fields(ours), fields(theirs));
        assert_eq!(ours[0], theirs[0]);
        for (a, b) in ours[1..].iter().zip(&theirs[1..]) {
            assert!((a.parse::<f64>().unwrap() - b.parse::<f64>().unwrap()).abs() < 1e-5, "{a} against {b}");
        }
    }
}
