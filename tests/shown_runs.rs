//! Every configuration that the guide shows, and every one of `examples/`, trains for two steps on small files of the right
//! form; together they have every kind that a configuration can name.
//!
//! It does not know what the numbers come to: only that a reader who copies a block gets a run.

use crate::docs_current::{blocks, read, root, yaml_files};
use crate::harness::files::{idx, npy};
use crate::harness::turn::has_turn;
use crate::harness::{dtrain, finish, output, write_text};
use crate::parquet_tables::{write_parquet, write_pictures};
use crate::shards::add;
use dtrain::config::Config;
use image::RgbImage;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The keys that name a kind.
const KINDS: [&str; 5] = ["data.kind", "model.kind", "loss.kind", "optimizer.kind", "schedule.kind"];
/// Data and a model in Rust: `examples/own_model.rs` has them, and CI runs it. Those of a Python program are tested in `tests/python`.
const PROGRAMS: [&str; 2] = ["own", "torch"];
const SAMPLES: usize = 100;

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Bytes that are the same each time and look like nothing.
fn noise(count: usize) -> Vec<u8> {
    (0..count).map(|place| (place.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

/// Classes 0, 1, 2, 0, ...: a byte each.
fn classes(count: usize) -> Vec<u8> {
    (0..count).map(|place| (place % 3) as u8).collect()
}

/// A table whose last column is what `label` makes of the number of the row.
fn table(header: &str, columns: usize, label: impl Fn(usize) -> String) -> String {
    let numbers = noise(SAMPLES * columns);
    let row = |(row, values): (usize, &[u8])| {
        let values: String = values.iter().map(|value| format!("{value},")).collect();
        format!("{values}{}\n", label(row))
    };
    header.to_owned() + &numbers.chunks(columns).enumerate().map(row).collect::<String>()
}

/// The files that the blocks of the guide name, and those of `examples/`.
fn write_data(folder: &Path) {
    for (part, images) in [("train", SAMPLES), ("t10k", 30)] {
        let (pixels, count) = (noise(images * 28 * 28), images as u32);
        write(folder, &format!("{part}-images-idx3-ubyte.gz"), &idx(&[count, 28, 28], &pixels));
        write(folder, &format!("{part}-labels-idx1-ubyte.gz"), &idx(&[count], &classes(images)));
    }
    let species = table("a,b,c,d,species\n", 4, |row| ["setosa", "virginica"][row % 2].to_owned());
    write(folder, "table.csv", species.as_bytes());
    let prices = table("rooms,area,price\n", 2, |row| format!("{}.5", row * 3));
    write(folder, "houses.csv", prices.as_bytes());
    write_parquet(&folder.join("houses.parquet"), &prices);
    let patients =
        table("a,b,c,patient,outcome\n", 3, |row| format!("p{:02},{}", row % 7, ["well", "ill"][row % 2]));
    write(folder, "patients.csv", patients.as_bytes());
    write(folder, "sensors.csv", table("", 600, |row| (row % 3).to_string()).as_bytes());
    write(folder, "x.npy", &npy("|u1", &[SAMPLES, 8], &noise(SAMPLES * 8)));
    write(folder, "volumes.npy", &npy("|u1", &[SAMPLES, 1, 4, 8, 8], &noise(SAMPLES * 256)));
    write(folder, "y.npy", &npy("|u1", &[SAMPLES], &classes(SAMPLES)));
    let (mut shard, mut pictures) = (tar::Builder::new(Vec::new()), Vec::new());
    for (number, class) in ["cat", "dog"].into_iter().cycle().take(20).enumerate() {
        let photos = folder.join("photos").join(class);
        fs::create_dir_all(&photos).unwrap();
        let picture = RgbImage::from_raw(40, 30, noise(40 * 30 * 3)).expect("as many bytes");
        let file = photos.join(format!("{number}.jpg"));
        picture.save(&file).unwrap();
        let bytes = fs::read(&file).unwrap();
        add(&mut shard, &format!("{number}.jpg"), &bytes);
        pictures.push((bytes, number as i64 % 2));
        add(&mut shard, &format!("{number}.cls"), (number % 2).to_string().as_bytes());
    }
    fs::create_dir_all(folder.join("shards")).unwrap();
    fs::create_dir_all(folder.join("cifar10/data")).unwrap();
    write_pictures(&folder.join("cifar10/data/train-00000-of-00001.parquet"), &pictures);
    write(folder, "shards/photos.tar", &shard.into_inner().unwrap());
    for (number, class) in ["falls", "walks"].into_iter().cycle().take(10).enumerate() {
        let place = folder.join("clips").join(class);
        fs::create_dir_all(&place).unwrap();
        write(&place, &format!("{number}.npy"), &npy("|u1", &[17, 16, 16], &noise(17 * 256)));
    }
    for subject in ["s1", "s2", "s3"] {
        fs::create_dir_all(folder.join("recordings").join(subject)).unwrap();
        let moves = table("time,x,y,activity\n", 3, |row| ["sits", "walks"][row / 50].to_owned());
        let timed = |(row, line): (usize, &str)| match line.split_once(',') {
            Some((_, rest)) if row > 0 => format!("{row},{rest}\n"),
            _ => format!("{line}\n"),
        };
        let moves: String = moves.lines().enumerate().map(timed).collect();
        write(folder, &format!("recordings/{subject}/walk.csv"), moves.as_bytes());
        write(folder, &format!("recordings/{subject}/sit.csv"), moves.as_bytes());
    }
    for part in ["train", "test"] {
        let har = folder.join("UCI HAR Dataset").join(part);
        fs::create_dir_all(har.join("Inertial Signals")).unwrap();
        let lines = |width: usize| {
            noise(20 * width)
                .chunks(width)
                .map(|row| row.iter().map(|value| format!(" {value}")).collect::<String>() + "\n")
                .collect::<String>()
        };
        write(&har, &format!("Inertial Signals/acc_x_{part}.txt"), lines(128).as_bytes());
        write(&har, &format!("X_{part}.txt"), lines(561).as_bytes());
        for name in ["y", "subject"] {
            write(&har, &format!("{name}_{part}.txt"), "1\n2\n".repeat(10).as_bytes());
        }
    }
    for name in ["shakespeare.txt", "input.txt"] {
        write_text(&folder.join(name), 3_000);
    }
    for ids in ["nanoGPT/data/shakespeare_char", "data/shakespeare_char"] {
        fs::create_dir_all(folder.join(ids)).unwrap();
        for (name, count) in [("train.bin", 2_000), ("val.bin", 200)] {
            let ids_below_65 = noise(count).into_iter().flat_map(|byte| u16::from(byte % 65).to_le_bytes());
            write(&folder.join(ids), name, &ids_below_65.collect::<Vec<u8>>());
        }
    }
}

/// Every `section.kind: value` of a configuration as a run writes it.
fn kinds(config: &str) -> BTreeSet<(String, String)> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in config.lines() {
        if let Some(kind) = line.strip_prefix("  kind: ") {
            found.insert((format!("{section}.kind"), kind.split_whitespace().next().unwrap().to_owned()));
        } else if !line.starts_with(' ') {
            section = line.split(':').next().unwrap();
        }
    }
    found
}

/// What a key accepts, from the table of keys.
fn accepted(key: &str) -> Vec<String> {
    let reference = Config::reference();
    let row = reference.lines().find(|line| line.starts_with(&format!("| `{key}` |"))).unwrap();
    row.split(" | ").nth(3).unwrap().split(" \\| ").map(str::to_owned).collect()
}

#[test]
fn every_configuration_of_the_guide_trains_and_together_they_have_every_kind() {
    if !has_turn(1) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_data(folder.path());
    let mut shown: Vec<(String, String)> = Vec::new();
    for page in ["first-training.md", "data.md", "model.md"] {
        let text = read(&root().join("docs/guide").join(page));
        shown.extend(blocks(&text, "yaml").into_iter().map(|block| (format!("a block of {page}"), block)));
    }
    for example in yaml_files() {
        // On its machine the files lie elsewhere.
        let text = read(&example).replace("/usr/share/datasets/fashion-mnist/", "");
        shown.push((example.display().to_string(), text));
    }
    let mut seen = BTreeSet::new();
    for (number, (from, text)) in shown.iter().enumerate() {
        let (file, run) = (format!("shown-{number}.yaml"), format!("run-{number}"));
        fs::write(folder.path().join(&file), text).unwrap();
        // The climb of one cycle is its own.
        let warmup = if text.contains("one_cycle") { "" } else { "schedule.warmup=none" };
        let short = format!("epochs=none steps=2 {warmup} ranks=1 threads=1");
        let ended = finish(dtrain(folder.path(), &format!("train --json -c {file} {short} run_dir={run}")));
        assert_eq!(ended.code, Some(0), "{from}:\n{text}\n{}", ended.stderr);
        seen.extend(kinds(&read(&folder.path().join(run).join("config.yaml"))));
    }
    for key in KINDS {
        for kind in accepted(key).into_iter().filter(|kind| !PROGRAMS.contains(&kind.as_str())) {
            let wanted = (key.to_owned(), kind.clone());
            assert!(seen.contains(&wanted), "no configuration of the guide or of examples/ has {key}={kind}");
        }
    }
}

#[test]
fn the_page_on_using_a_model_works_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let examples = folder.path().join("examples");
    fs::create_dir(&examples).unwrap();
    for table in ["houses.csv", "new-houses.csv"] {
        fs::copy(root().join("examples").join(table), examples.join(table)).unwrap();
    }
    let commands = blocks(&read(&root().join("docs/guide/use.md")), "sh").concat();
    for line in commands.lines() {
        let arguments = line.strip_prefix("dtrain ").expect("a command of dtrain");
        output(folder.path(), arguments).0.succeeded();
    }
    let predicted = fs::read_to_string(folder.path().join("predicted.csv")).unwrap();
    assert_eq!(predicted.lines().count(), 9, "the head and a line a house");
    let prices = predicted.lines().skip(1).map(|line| line.parse::<f64>().unwrap());
    assert!(prices.clone().all(|price| (150_000.0..500_000.0).contains(&price)), "{predicted}");
    assert!(folder.path().join("houses.onnx").is_file());
}
