//! A trained model is used, by the command line alone: from a table with words and holes to predictions, and figures that are
//! computed here again from the predictions.

use crate::harness::{audit_is_clean, dtrain, folder, json, output, said, train, write_table, write_text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Numbers in [0, 1) that any program can make.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Mean 0, deviation 1, nearly normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// Prices near 300 000 with a noise of 5 000; the id and the date say nothing.
fn houses(rows: usize, seed: u64) -> String {
    let (mut noise, mut text) = (Noise(seed), "id,sold,city,rooms,area,price\n".to_owned());
    for row in 0..rows {
        let city = (noise.next() * 4.0) as usize;
        let rooms = (noise.next() * 8.0) as usize + 1;
        let area = 100.0 + 30.0 * noise.normal();
        let price = 280_000.0 + 20_000.0 * city as f64 + 9_000.0 * rooms as f64 + 700.0 * (area - 100.0);
        let price = price + 5_000.0 * noise.normal();
        let city = ["Bern", "Oslo", "Paris", "Rome"][city];
        writeln!(text, "{row},2024-05-{:02},{city},{rooms},{area:.2},{price:.1}", row % 28 + 1).unwrap();
    }
    text
}

/// Three kinds told apart by a word and two numbers, of which one is often missing.
fn animals(rows: usize, seed: u64) -> String {
    let (mut noise, mut text) = (Noise(seed), "colour,length,weight,kind\n".to_owned());
    for _ in 0..rows {
        let kind = (noise.next() * 3.0) as usize;
        let colour = if kind == 0 { "red" } else { ["black", "red", "grey"][(noise.next() * 3.0) as usize] };
        let (length, weight) = (kind as f64 + 0.4 * noise.normal(), 0.5 * noise.normal() - kind as f64);
        let weight = if noise.next() < 0.1 { "NA".to_owned() } else { format!("{weight:.3}") };
        writeln!(text, "{colour},{length:.3},{weight},{}", ["fox", "cat", "dog"][kind]).unwrap();
    }
    text
}

/// A table without one of its columns.
fn without(table: &str, column: &str) -> String {
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let at = head.iter().position(|name| *name == column).unwrap();
    let cut = |mut line: Vec<&str>| {
        line.remove(at);
        line.join(",") + "\n"
    };
    cut(head) + &lines.map(cut).collect::<String>()
}

fn column(table: &str, name: &str) -> Vec<String> {
    let mut lines = table.lines();
    let at = lines.next().unwrap().split(',').position(|other| other == name).unwrap();
    lines.map(|line| line.split(',').nth(at).unwrap().to_owned()).collect()
}

fn numbers(table: &str, name: &str) -> Vec<f64> {
    column(table, name).iter().map(|field| field.parse().unwrap()).collect()
}

fn eval(folder: &Path, arguments: &str) -> Value {
    json(folder, &format!("eval --json {arguments}"))
}

fn predict(folder: &Path, arguments: &str) -> String {
    said(folder, &format!("predict {arguments}"))
}

/// The error of a command that is to be refused; nothing may be left of `output`.
fn refused(folder: &Path, arguments: &str, words: &[&str]) {
    let (finished, text) = output(folder, arguments);
    assert_eq!(finished.code.map(|code| code != 0), Some(true), "{arguments}: {text}");
    words.iter().for_each(|words| finished.said(words));
    let left =
        fs::read_dir(folder).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let left: Vec<String> = left.filter(|name| name.contains("tmp") || name.starts_with("out.")).collect();
    assert!(left.is_empty(), "{arguments} left {left:?}");
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-5 * one.abs().max(1.0)
}

#[test]
fn a_regression_on_prices_is_trained_in_their_unit_and_its_figures_are_those_of_its_predictions() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("houses.csv"), houses(4_000, 1)).unwrap();
    let test = houses(700, 2);
    fs::write(path.join("test.csv"), &test).unwrap();
    fs::write(path.join("new.csv"), without(&without(&test, "price"), "id")).unwrap();
    let run = train(path, "data.kind=csv data.path=houses.csv data.label=price loss.kind=mse name=h");
    run.succeeded();
    for words in
        ["id: left out (another value in every row)", "sold: left out (a date)", "city: 4 words", "RMSE"]
    {
        run.said(words);
    }
    let rmse = run.summary()["val_rmse"].as_f64().expect("a regression has an RMSE");
    assert!(rmse < 6_000.0, "RMSE {rmse} with default settings, where the noise is 5 000");
    let predicted = predict(path, "h new.csv");
    let (targets, predicted) = (numbers(&test, "price"), numbers(&predicted, "prediction"));
    assert_eq!(targets.len(), predicted.len());
    let errors: Vec<f64> = targets.iter().zip(&predicted).map(|(target, value)| value - target).collect();
    let count = targets.len() as f64;
    let squares = errors.iter().map(|error| error * error).sum::<f64>();
    let mean = targets.iter().sum::<f64>() / count;
    let spread = targets.iter().map(|target| (target - mean) * (target - mean)).sum::<f64>();
    let figures = eval(path, "h --data test.csv");
    let figure = |name: &str| figures[name].as_f64().unwrap();
    assert!(close(figure("rmse"), (squares / count).sqrt()), "{figures}");
    assert!(close(figure("mae"), errors.iter().map(|error| error.abs()).sum::<f64>() / count), "{figures}");
    assert!(close(figure("r2"), 1.0 - squares / spread), "{figures}");
    assert!(figure("rmse") < 6_000.0);
    // What the best checkpoint came to on the validation part is what training said of it.
    let best = eval(path, "h")["rmse"].as_f64().unwrap();
    let said = run.events("epoch").map(|epoch| epoch["val_rmse"].as_f64().unwrap()).fold(f64::MAX, f64::min);
    assert!((best - said).abs() < 1e-3 * best, "{best} against {said}");
    let mae = eval(path, "h")["mae"].as_f64().unwrap();
    let said = |epoch: &Value| epoch["val_mae"].as_f64().unwrap();
    assert!(run.events("epoch").any(|epoch| (mae - said(epoch)).abs() < 1e-5 * mae), "{mae}");
    assert!(run.summary()["val_mae"].as_f64().is_some() && mae < best);
}

#[test]
fn classes_from_a_table_with_words_and_holes_and_their_figures_computed_again() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("animals.csv"), animals(1_500, 3)).unwrap();
    let test = animals(400, 4);
    fs::write(path.join("test.csv"), &test).unwrap();
    train(path, "data.kind=csv data.path=animals.csv name=a checkpoint.best=val_f1").succeeded();
    let predicted = predict(path, "a test.csv");
    let (targets, called) = (column(&test, "kind"), column(&predicted, "prediction"));
    let names = ["cat", "dog", "fox"];
    let shares: Vec<Vec<f64>> = names.iter().map(|name| numbers(&predicted, &format!("p({name})"))).collect();
    let mut confusion: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut loss = 0.0;
    for (row, (target, called)) in targets.iter().zip(&called).enumerate() {
        *confusion.entry((target, called)).or_default() += 1;
        let all: f64 = shares.iter().map(|share| share[row]).sum();
        assert!((all - 1.0).abs() < 1e-5, "row {row} adds up to {all}");
        loss -= shares[names.iter().position(|name| name == target).unwrap()][row].ln();
    }
    let count = |target, called| confusion.get(&(target, called)).copied().unwrap_or(0) as f64;
    let f1 = |name| {
        let all = names.iter().map(|other| count(name, *other) + count(*other, name)).sum::<f64>();
        2.0 * count(name, name) / all
    };
    let figures = eval(path, "a --data test.csv");
    let accuracy = names.iter().map(|name| count(name, name)).sum::<f64>() / targets.len() as f64;
    assert!(accuracy > 0.8, "{accuracy}");
    assert!(close(figures["accuracy"].as_f64().unwrap(), accuracy), "{figures}");
    assert!(close(
        figures["macro_f1"].as_f64().unwrap(),
        names.iter().map(|name| f1(name)).sum::<f64>() / 3.0
    ));
    assert!((figures["loss"].as_f64().unwrap() - loss / targets.len() as f64).abs() < 1e-5, "{figures}");
    // Of all pairs of a sample of the class and another one, the share in which the first is the surer one.
    let mut mean = 0.0;
    for (class, name) in names.iter().enumerate() {
        let (mut pairs, mut right) = (0.0, 0.0);
        let rows = || targets.iter().enumerate();
        for (one, _) in rows().filter(|(_, target)| *target == name) {
            for (other, _) in rows().filter(|(_, target)| *target != name) {
                let (one, other) = (shares[class][one], shares[class][other]);
                pairs += 1.0;
                right += if one == other { 0.5 } else { f64::from(u8::from(one > other)) };
            }
        }
        let auc = figures["classes"][class]["auc"].as_f64().unwrap();
        assert!((auc - right / pairs).abs() < 1e-3, "{name}: {auc}, by all pairs {}", right / pairs);
        mean += auc / 3.0;
    }
    assert!(close(figures["auc"].as_f64().unwrap(), mean), "{figures}");
    let classes = fs::read_to_string(path.join("runs/a/eval/test/classes.csv")).unwrap();
    assert!(
        classes.starts_with("class,precision,recall,f1,samples,auc,average_precision\ncat,"),
        "{classes}"
    );
    let matrix = fs::read_to_string(path.join("runs/a/eval/test/confusion.csv")).unwrap();
    let row =
        |target| names.iter().map(|called| count(target, *called).to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(matrix.lines().nth(1).unwrap(), format!("cat,{}", row("cat")));
    assert!(fs::read_to_string(path.join("runs/a/eval/test/confusion.svg")).unwrap().contains("<svg"));
}

#[test]
fn predictions_have_the_same_bits_for_any_ranks_any_batch_and_any_order() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("animals.csv"), animals(1_000, 5)).unwrap();
    train(path, "data.kind=csv data.path=animals.csv name=a epochs=3 model.batch_norm=true").succeeded();
    // Several pieces of a quarter of a mebibyte, so that workers take turns.
    let many = without(&animals(40_000, 6), "kind");
    fs::write(path.join("many.csv"), &many).unwrap();
    let all = predict(path, "a many.csv --ranks 1");
    assert_eq!(all.lines().count(), 40_001);
    for how in ["--ranks 2", "--ranks 3 --batch 7", "--ranks 2 --batch 1000"] {
        assert!(predict(path, &format!("a many.csv {how}")) == all, "{how} has other bits");
    }
    let mut lines: Vec<&str> = many.lines().skip(1).collect();
    lines.reverse();
    let head = many.lines().next().unwrap();
    fs::write(path.join("turned.csv"), format!("{head}\n{}\n", lines.join("\n"))).unwrap();
    let turned = predict(path, "a turned.csv");
    assert!(turned.lines().skip(1).eq(all.lines().skip(1).collect::<Vec<_>>().into_iter().rev()));
    // The same from standard input, into a file, and as JSON.
    let mut command = dtrain(path, "predict a - -o out.jsonl");
    command.stdin(fs::File::open(path.join("many.csv")).unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success());
    let text = fs::read_to_string(path.join("out.jsonl")).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["prediction"].as_str(), all.lines().nth(1).unwrap().split(',').next());
    assert_eq!(text.lines().count(), 40_000);
}

#[test]
fn every_kind_of_model_predicts_what_it_was_measured_on() {
    let folder = folder();
    let path = folder.path();
    write_table(&path.join("table.csv"), 300);
    write_text(&path.join("text.txt"), 4_000);
    let table = "data.kind=csv data.path=table.csv epochs=1";
    for (name, settings) in [
        ("digits", "epochs=1 model.channels=[4,8]".to_owned()),
        ("mlp", format!("{table} model.kind=mlp")),
        ("cnn1d", format!("{table} data.shape=[2,16] model.kind=cnn1d model.channels=[4,8]")),
        (
            "cnn3d",
            format!("{table} data.shape=[1,2,4,4] model.kind=cnn3d model.channels=[4] model.pool=last"),
        ),
    ] {
        let run = train(path, &format!("{settings} name={name}"));
        run.succeeded();
        let figures = eval(path, name);
        let said = run.summary()["val_accuracy"].as_f64().unwrap();
        assert!(
            close(figures["accuracy"].as_f64().unwrap(), said),
            "{name}: {figures}, and training said {said}"
        );
        if name != "digits" {
            let rows = predict(path, &format!("{name} table.csv")).lines().count();
            assert_eq!(rows, 301, "{name}: a line a row and the names");
        }
    }
    for kind in ["gpt", "gpt2", "llama"] {
        let small =
            "model.layers=1 model.width=16 model.heads=2 data.context=8 steps=20 checkpoint.best=val_loss";
        let run =
            train(path, &format!("data.kind=text data.path=text.txt model.kind={kind} {small} name={kind}"));
        run.succeeded();
        let figures = eval(path, kind);
        let (loss, said) = (figures["loss"].as_f64().unwrap(), run.summary()["val_loss"].as_f64().unwrap());
        assert!(close(loss, said), "{kind}: {loss} against {said}");
        assert!(close(figures["perplexity"].as_f64().unwrap(), loss.exp()));
    }
}

#[test]
fn an_array_of_images_is_predicted_into_an_array() {
    let folder = folder();
    let path = folder.path();
    train(path, "epochs=1 model.channels=[4,8] name=d").succeeded();
    let mut array = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    array.extend(
        format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (5, 8, 8), }").bytes(),
    );
    array.extend((0..5 * 64).map(|at| (at % 17) as u8));
    fs::write(path.join("images.npy"), &array).unwrap();
    predict(path, "d images.npy -o out.npy");
    let written = fs::read(path.join("out.npy")).unwrap();
    assert_eq!(written.len(), 128 + 5 * 10 * 4);
    assert!(String::from_utf8_lossy(&written[..128]).contains("(5, 10)"));
    fs::remove_file(path.join("out.npy")).unwrap();
    // The same numbers as lines of a table.
    let rows: Vec<String> = array[128..]
        .chunks(64)
        .map(|row| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        .collect();
    fs::write(path.join("images.csv"), rows.join("\n")).unwrap();
    let lines = predict(path, "d images.csv");
    for (row, line) in written[128..].chunks(40).zip(lines.lines().skip(1)) {
        let binary: Vec<f32> =
            row.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        let text: Vec<f32> = line.split(',').skip(1).map(|field| field.parse().unwrap()).collect();
        assert_eq!(binary, text);
    }
    let at = array.windows(9).position(|window| window == b"(5, 8, 8)").unwrap();
    let mut other = array.clone();
    other[at..at + 10].copy_from_slice(b"(5, 4, 16)");
    fs::write(path.join("other.npy"), &other).unwrap();
    refused(path, "predict d other.npy -o out.npy", &["shape [1, 4, 16]", "trained on [1, 8, 8]"]);
}

#[test]
fn what_cannot_be_predicted_is_said_with_its_line_and_leaves_nothing() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("animals.csv"), animals(600, 7)).unwrap();
    train(path, "data.kind=csv data.path=animals.csv name=a epochs=1 data.unseen=refuse").succeeded();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write("missing.csv", "colour,length\nred,1\n");
    write("new.csv", "colour,length,weight,age\nred,1,2,3\n");
    write("word.csv", "colour,length,weight\nred,1,2\nred,tall,2\n");
    write("unseen.csv", "colour,length,weight\nred,1,2\ngreen,1,2\n");
    write("ragged.csv", "colour,length,weight\nred,1\n");
    write("empty.csv", "");
    for (file, words) in [
        (
            "missing.csv",
            &["missing.csv line 1: column \"weight\" of the training table is missing", "hint:"][..],
        ),
        ("new.csv", &["new.csv line 1: the training table had no column \"age\"", "hint:"]),
        ("word.csv", &["word.csv line 3, column 2 (length): \"tall\" is not a number"]),
        ("unseen.csv", &["unseen.csv line 3", "\"green\" is in no row of the training table", "data.unseen"]),
        ("ragged.csv", &["ragged.csv line 2: 2 columns, expected 3"]),
        ("empty.csv", &["empty.csv holds no sample"]),
        ("nowhere.csv", &["nowhere.csv does not exist"]),
    ] {
        refused(path, &format!("predict a {file} -o out.csv"), words);
    }
    refused(
        path,
        "predict a animals.csv -o out.xlsx",
        &["does not say how to write", ".csv, .jsonl or .npy"],
    );
    refused(path, "predict a animals.csv --format npy", &["an array needs a file"]);
    refused(path, "predict b animals.csv", &["b"]);
    write("out-of-classes.csv", "colour,length,weight,kind\nred,1,2,wolf\n");
    refused(path, "eval a --data out-of-classes.csv", &["out-of-classes.csv line 2: \"wolf\" is no class"]);
    refused(path, "eval a --data word.csv", &["has no column of the target"]);
    // A manifest that was changed by hand, and a damaged shard.
    let newest = fs::read_dir(path.join("runs/a/checkpoints")).unwrap().next().unwrap().unwrap().path();
    let manifest = newest.join("manifest.json");
    let whole = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, whole.replace("\"refuse\"", "\"ignore\"")).unwrap();
    refused(path, "predict a animals.csv -o out.csv", &["is damaged", "seal"]);
    fs::write(&manifest, &whole).unwrap();
    let shards = fs::read_dir(&newest).unwrap().map(|entry| entry.unwrap().path());
    let shard =
        shards.into_iter().find(|path| path.extension().is_some_and(|end| end == "safetensors")).unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    refused(path, "predict a animals.csv -o out.csv", &["is damaged", "dtrain checkpoint verify"]);
}

#[test]
fn a_missing_value_is_filled_or_refused_as_the_configuration_says() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("animals.csv"), animals(300, 8)).unwrap();
    let table = "data.kind=csv data.path=animals.csv epochs=1";
    let run = train(path, &format!("{table} data.missing=refuse"));
    run.ended_with(2);
    run.said("column 3 (weight): \"NA\" is not a number");
    run.said("data.missing=fill");
    let run = train(path, &format!("{table} data.columns=[-weight,length:category] name=c"));
    run.said("weight: left out (as data.columns says)");
    run.said("length: left out (too many different words)");
    run.succeeded();
    let run = train(path, &format!("{table} data.columns=[size]"));
    run.ended_with(2);
    run.said("no column \"size\", only colour, length, weight, kind");
}

#[test]
fn a_finished_run_is_made_longer_and_nothing_of_it_is_made_twice() {
    let folder = folder();
    let path = folder.path();
    let model = "model=mlp model.hidden=[16] name=r";
    train(path, &format!("{model} epochs=2")).succeeded();
    let longer = train(path, "--resume r epochs=4");
    longer.succeeded();
    longer.said("4 epochs instead of 2 epochs");
    assert_eq!(longer.steps(), (47..=92).collect::<Vec<_>>());
    audit_is_clean(path, "r");
    train(path, "--resume r epochs=3").ended_with(2);
    // It is that long now: going on says so.
    let done = train(path, "--resume r");
    done.succeeded();
    assert!(done.steps().is_empty());
}

#[test]
fn runs_are_listed_with_their_results_and_what_differs_between_them() {
    let folder = folder();
    let path = folder.path();
    let (none, _) = output(path, "runs");
    none.ended_with(2);
    none.said("no runs");
    for (name, rate) in [("a", "1e-3"), ("b", "2e-3")] {
        let settings = format!("model=mlp model.hidden=[8] epochs=1 optimizer.lr={rate} name={name}");
        train(path, &settings).succeeded();
    }
    let (listed, text) = output(path, "runs --json");
    listed.succeeded();
    let runs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), 2);
    for (run, rate) in runs.iter().zip(["0.001", "0.002"]) {
        assert_eq!(run["differs"], serde_json::json!({"optimizer.lr": rate}), "{text}");
        assert!(run["results"]["val_accuracy"].as_f64().is_some() && run["step"] == 23, "{text}");
    }
    let (_, text) = output(path, "runs");
    assert!(text.contains("accuracy") && text.contains("optimizer.lr=0.002"), "{text}");
}

#[test]
fn the_largest_micro_batch_is_found_by_what_the_ranks_take() {
    let folder = folder();
    let (found, text) = output(folder.path(), "plan --largest --json global_batch=256 ranks=2");
    found.succeeded();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["micro_batch"], 256, "{text}");
    // Two ranks of a model whose activations of 2^20 samples take more than any machine of today has.
    let wide =
        "plan --largest --json data.kind=digits model=mlp model.hidden=[65536] global_batch=1048576 ranks=64";
    let (found, text) = output(folder.path(), wide);
    found.succeeded();
    let answer: Value = serde_json::from_str(&text).unwrap();
    let number = |name: &str| answer[name].as_u64().unwrap();
    assert!(number("micro_batch") < 1_048_576 && number("rank_bytes") * 64 <= number("free_bytes"), "{text}");
}

#[test]
fn a_model_is_not_measured_on_data_that_have_changed_since() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("animals.csv"), animals(300, 9)).unwrap();
    train(path, "data.kind=csv data.path=animals.csv name=a epochs=1").succeeded();
    eval(path, "a");
    fs::write(path.join("animals.csv"), animals(300, 10)).unwrap();
    refused(path, "eval a", &["the data of runs/a have changed since it was trained", "--data test.csv"]);
    eval(path, "a --data animals.csv");
}
