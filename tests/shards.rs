//! From shards and Parquet files of pictures to predictions: the same bits as from folders, for any number of ranks, readers and room for what is decoded.

use crate::harness::{folder, json, output, said, train};
use crate::parquet_tables::write_pictures;
use image::{ImageFormat, Rgb, RgbImage};
use std::fs;
use std::io::Cursor;
use std::path::Path;
use tar::{Builder, Header};

/// Adds a file to an archive.
pub fn add(shard: &mut Builder<Vec<u8>>, name: &str, bytes: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    shard.append_data(&mut header, name, bytes).unwrap();
}

/// A picture of a bar that lies (0) or stands (1), as a file.
fn bar(number: u32, class: u32) -> Vec<u8> {
    let (at, dark) = (2 + number * 7 % 12, (number * 37 % 80) as u8);
    let is_bar = |x: u32, y: u32| (at..at + 4).contains(if class == 0 { &y } else { &x });
    let picture = RgbImage::from_fn(20, 18, |x, y| Rgb([if is_bar(x, y) { 200 } else { dark }; 3]));
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// The same pictures in folders and in two shards.
fn pictures(path: &Path) {
    for class in 0..2 {
        let mut shard = Builder::new(Vec::new());
        let place = path.join("bars").join(class.to_string());
        fs::create_dir_all(&place).unwrap();
        for number in 0..40 {
            let bytes = bar(number, class);
            fs::write(place.join(format!("{number:02}.png")), &bytes).unwrap();
            add(&mut shard, &format!("{number:02}.png"), &bytes);
            match number % 2 {
                0 => add(&mut shard, &format!("{number:02}.cls"), class.to_string().as_bytes()),
                _ => add(
                    &mut shard,
                    &format!("{number:02}.json"),
                    format!("{{\"label\": {class}}}").as_bytes(),
                ),
            }
        }
        fs::create_dir_all(path.join("shards")).unwrap();
        fs::write(path.join(format!("shards/{class}.tar")), shard.into_inner().unwrap()).unwrap();
    }
}

const RUN: &str = "data.size=16 data.val_split=0.25 data.augment=[flip,shift:2] model.channels=[8] model.hidden=[16] \
                   model.dropout=0 optimizer.lr=0.01 global_batch=12 micro_batch=4 epochs=6";

#[test]
fn shards_train_to_the_bits_of_folders_and_are_predicted() {
    let folder = folder();
    let path = folder.path();
    pictures(path);
    let by_folders = train(path, &format!("data.kind=images data.path=bars {RUN} ranks=1 name=folders"));
    by_folders.succeeded();
    for (name, world) in [
        ("one", "ranks=1"),
        ("three", "ranks=3 threads=1 workers=2 data.cache=10KiB"),
        ("none", "ranks=2 data.cache=none"),
    ] {
        let run = train(path, &format!("data.kind=tar data.path=shards {RUN} {world} name={name}"));
        run.succeeded();
        assert_eq!(run.digest(), by_folders.digest(), "{world}");
    }
    let table = said(path, "predict three shards/1.tar bars/0/03.png");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("file,prediction,p(0),p(1)", 1 + 40 + 1));
    assert!(
        lines[1].starts_with("shards/1.tar/00.png,") && lines[41].starts_with("bars/0/03.png,"),
        "{table}"
    );
    assert_eq!(said(path, "predict folders shards/1.tar bars/0/03.png --ranks 2"), table);
    let [by_shards, by_folders] =
        ["three --data shards", "three --data bars"].map(|data| json(path, &format!("eval {data} --json")));
    assert_eq!(by_shards["samples"].as_u64(), Some(80));
    assert_eq!(by_shards["accuracy"], by_folders["accuracy"]);
    assert_eq!(json(path, "eval three --data shards/0.tar --json")["samples"].as_u64(), Some(40));

    let whole = fs::read(path.join("shards/0.tar")).unwrap();
    fs::write(path.join("cut.tar"), &whole[..whole.len() / 2]).unwrap();
    let cut = train(path, &format!("data.kind=tar data.path=cut.tar {RUN} name=cut"));
    cut.ended_with(2);
    cut.said("cut.tar ");
    cut.said("hint: the file is cut off");
    assert!(!path.join("runs/cut").exists());
    let (told, _) = output(path, "predict three cut.tar");
    told.said("cut.tar");
    told.said("hint: ");
}

#[test]
fn images_of_the_hub_train_to_the_bits_of_folders_and_are_predicted() {
    let folder = folder();
    let path = folder.path();
    let mut pictures = Vec::new();
    for (class, name) in (0..).zip(["lies", "stands"]) {
        fs::create_dir_all(path.join("bars").join(name)).unwrap();
        for number in 0..40 {
            let bytes = bar(number, class);
            fs::write(path.join("bars").join(name).join(format!("{number:02}.png")), &bytes).unwrap();
            pictures.push((bytes, i64::from(class)));
        }
    }
    write_pictures(&path.join("bars.parquet"), &pictures);
    let by_folders = train(path, &format!("data.kind=images data.path=bars {RUN} ranks=1 name=folders"));
    by_folders.succeeded();
    for (name, world) in [("one", "ranks=1"), ("three", "ranks=3 threads=1 workers=2 data.cache=none")] {
        let run = train(
            path,
            &format!("data.kind=parquet_images data.path=bars.parquet {RUN} {world} name={name}"),
        );
        run.succeeded();
        assert_eq!(run.digest(), by_folders.digest(), "{world}");
    }
    let table = said(path, "predict three bars.parquet");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("file,prediction,p(lies),p(stands)", 1 + 80));
    assert!(lines[80].starts_with("bars.parquet/79,"), "{table}");
    let [by_table, by_folders] =
        ["bars.parquet", "bars"].map(|data| json(path, &format!("eval three --data {data} --json")));
    assert_eq!(by_table["samples"].as_u64(), Some(80));
    assert_eq!(by_table["accuracy"], by_folders["accuracy"]);
    let wrong = train(
        path,
        &format!("data.kind=parquet_images data.path=bars.parquet data.label=kind {RUN} name=wrong"),
    );
    wrong.ended_with(2);
    wrong.said("bars.parquet: no column \"kind\" of classes");
    wrong.said("hint: ");
}
