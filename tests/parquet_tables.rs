//! Tables in Parquet files: the bits of the same table as text, and predictions of either by a model of the other.

use crate::harness::{folder, json, output, said, train};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

/// Writes a table of text, whose first line has names, as Parquet: a column of numbers as such, one with empty fields among them as
/// numbers that may be missing, and all others as texts.
pub fn write_parquet(path: &Path, text: &str) {
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let column = |at: usize| rows[1..].iter().map(move |row| row[at]);
    let is_number = |at| column(at).all(|field| field.is_empty() || field.parse::<f64>().is_ok());
    let kinds = rows[0].iter().enumerate().map(|(at, name)| match is_number(at) {
        true => format!("OPTIONAL DOUBLE {name};"),
        false => format!("REQUIRED BYTE_ARRAY {name} (UTF8);"),
    });
    let schema = format!("message table {{ {} }}", kinds.collect::<String>());
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut at = 0;
    while let Some(mut out) = group.next_column().unwrap() {
        if is_number(at) {
            let levels: Vec<i16> = column(at).map(|field| i16::from(!field.is_empty())).collect();
            let values: Vec<f64> = column(at).filter_map(|field| field.parse().ok()).collect();
            out.typed::<DoubleType>().write_batch(&values, Some(&levels), None).unwrap();
        } else {
            let values: Vec<ByteArray> = column(at).map(ByteArray::from).collect();
            out.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        }
        out.close().unwrap();
        at += 1;
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// Writes pictures, each the bytes of a file, and their classes as the Hub does.
pub fn write_pictures(path: &Path, pictures: &[(Vec<u8>, i64)]) {
    let schema = "message schema {
        OPTIONAL GROUP image { OPTIONAL BYTE_ARRAY bytes; OPTIONAL BYTE_ARRAY path (UTF8); }
        OPTIONAL INT64 label;
    }";
    let names = r#"{"info": {"features": {"label": {"names": ["lies", "stands"], "_type": "ClassLabel"}}}}"#;
    let about = Some(vec![KeyValue::new("huggingface".to_owned(), names.to_owned())]);
    let properties = WriterProperties::builder().set_key_value_metadata(about).build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for pictures in pictures.chunks(7) {
        let mut group = writer.next_row_group().unwrap();
        let bytes: Vec<ByteArray> =
            pictures.iter().map(|picture| ByteArray::from(picture.0.clone())).collect();
        let mut out = group.next_column().unwrap().unwrap();
        out.typed::<ByteArrayType>().write_batch(&bytes, Some(&vec![2; bytes.len()]), None).unwrap();
        out.close().unwrap();
        let mut out = group.next_column().unwrap().unwrap();
        out.typed::<ByteArrayType>().write_batch(&[], Some(&vec![1; bytes.len()]), None).unwrap();
        out.close().unwrap();
        let labels: Vec<i64> = pictures.iter().map(|picture| picture.1).collect();
        let mut out = group.next_column().unwrap().unwrap();
        out.typed::<Int64Type>().write_batch(&labels, Some(&vec![1; labels.len()]), None).unwrap();
        out.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Flowers whose kind follows from their numbers, some of which are missing.
fn flowers(rows: usize) -> String {
    let row = |row: usize| {
        let (kind, size) = (row % 2, (row * 37 % 50) as f64 / 10.0);
        let leaf = if row.is_multiple_of(9) { String::new() } else { (size + 3.0 * kind as f64).to_string() };
        format!("{size},{leaf},{},{}\n", ["red", "white", "blue"][row % 3], ["rose", "tulip"][kind])
    };
    "size,leaf,colour,kind\n".to_owned() + &(0..rows).map(row).collect::<String>()
}

const RUN: &str = "data.label=kind data.val_split=0.2 model.hidden=[16] optimizer.lr=0.01 epochs=6";

#[test]
fn a_parquet_table_trains_to_the_bits_of_text_and_predicts_both() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("flowers.csv"), flowers(300)).unwrap();
    write_parquet(&path.join("flowers.parquet"), &flowers(300));
    let by_text = train(path, &format!("data.kind=csv data.path=flowers.csv {RUN} ranks=1 name=text"));
    by_text.succeeded();
    for (name, world) in [("one", "ranks=1"), ("three", "ranks=3 threads=1 workers=2")] {
        let run =
            train(path, &format!("data.kind=parquet data.path=flowers.parquet {RUN} {world} name={name}"));
        run.succeeded();
        run.said("colour: 3 words");
        assert_eq!(run.digest(), by_text.digest(), "{world}");
    }
    // What a model of text was told of delimiters is not said of Parquet files.
    fs::write(path.join("semicolons.csv"), flowers(300).replace(',', ";")).unwrap();
    let other =
        format!("data.kind=csv data.path=semicolons.csv data.delimiter=; {RUN} ranks=1 name=semicolons");
    train(path, &other).succeeded();
    let table = said(path, "predict text flowers.csv");
    assert_eq!(table.lines().count(), 301);
    for words in [
        "text flowers.parquet",
        "three flowers.csv",
        "three flowers.parquet --ranks 2",
        "semicolons flowers.parquet",
    ] {
        assert_eq!(said(path, &format!("predict {words}")), table, "{words}");
    }
    let accuracies = ["flowers.csv", "flowers.parquet"]
        .map(|data| json(path, &format!("eval three --data {data} --json"))["accuracy"].clone());
    assert!(accuracies[0].is_number() && accuracies[0] == accuracies[1], "{accuracies:?}");

    let whole = fs::read(path.join("flowers.parquet")).unwrap();
    fs::write(path.join("cut.parquet"), &whole[..whole.len() / 2]).unwrap();
    for (data, words) in [
        ("data.path=flowers.csv", "flowers.csv begins with something else, expected PAR1"),
        ("data.path=cut.parquet", "cannot read cut.parquet"),
        ("data.path=flowers.parquet data.label=price", "has no column \"price\", only size, leaf"),
        ("data.path=flowers.parquet data.header=true", "data.header"),
    ] {
        let wrong = train(path, &format!("data.kind=parquet {RUN} {data} name=wrong"));
        wrong.ended_with(2);
        wrong.said(words);
        wrong.said("hint: ");
        assert!(!path.join("runs/wrong").exists(), "{data}");
    }
    let (told, _) = output(path, "predict three cut.parquet");
    told.said("cannot read cut.parquet");
}
