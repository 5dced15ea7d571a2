//! Pictures in Parquet files, as the Hugging Face Hub has them: the same as in folders; and what is wrong with a file.

mod support;

use dtrain_data::{Broken, ImageFiles, Normalise, Opened, PictureTablesOptions, ShardsOptions, Source, open};
use image::{ImageFormat, Rgb, RgbImage};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{file, folders, refused, shards, values_and_classes};

const HUB: &str = "message schema {
    OPTIONAL GROUP image { OPTIONAL BYTE_ARRAY bytes; OPTIONAL BYTE_ARRAY path (UTF8); }
    OPTIONAL INT64 label;
}";
const NAMES: &str = r#"{"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}"#;

/// A picture, or none, and its class, or none.
type Row = (Option<Vec<u8>>, Option<i64>);

/// Writes rows in groups of three.
fn write(path: &Path, rows: &[Row], about: Option<&str>) {
    write_as(path, rows, about, "label");
}

fn write_as(path: &Path, rows: &[Row], about: Option<&str>, label: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let about = about.map(|about| vec![KeyValue::new("huggingface".to_owned(), about.to_owned())]);
    let properties = WriterProperties::builder()
        .set_compression(parquet::basic::Compression::SNAPPY)
        .set_key_value_metadata(about)
        .build();
    let schema = Arc::new(parse_message_type(&HUB.replace("label", label)).unwrap());
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    for rows in rows.chunks(3) {
        let mut group = writer.next_row_group().unwrap();
        let texts = |text: fn(&Row) -> Option<Vec<u8>>| {
            let levels: Vec<i16> = rows.iter().map(|row| if text(row).is_some() { 2 } else { 1 }).collect();
            (levels, rows.iter().filter_map(text).map(ByteArray::from).collect::<Vec<_>>())
        };
        for column in [texts(|row| row.0.clone()), texts(|_| Some(b"x.png".to_vec()))] {
            let mut out = group.next_column().unwrap().unwrap();
            out.typed::<ByteArrayType>().write_batch(&column.1, Some(&column.0), None).unwrap();
            out.close().unwrap();
        }
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.1.is_some())).collect();
        let labels: Vec<i64> = rows.iter().filter_map(|row| row.1).collect();
        let mut out = group.next_column().unwrap().unwrap();
        out.typed::<Int64Type>().write_batch(&labels, Some(&levels), None).unwrap();
        out.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// With a column of classes that is called as the Hub does.
fn labelled(shards: ShardsOptions) -> Source {
    Source::ParquetImages(PictureTablesOptions { shards, label: "label".to_owned() })
}

fn opened(options: ShardsOptions) -> Opened {
    open(&labelled(options)).expect("the files are as they should be")
}

fn picture(number: u8) -> Vec<u8> {
    let format = [ImageFormat::Png, ImageFormat::Jpeg][usize::from(number % 2)];
    let mut bytes = Cursor::new(Vec::new());
    let colour = |x: u32, y: u32| Rgb([number * 20, x as u8 * 30, y as u8 * 30]);
    RgbImage::from_fn(6, 5, colour).write_to(&mut bytes, format).expect("an image");
    bytes.into_inner()
}

/// Ten pictures of two classes, cats first.
fn rows() -> Vec<Row> {
    (0..10).map(|at| (Some(picture(at)), Some(i64::from(at / 5)))).collect()
}

/// The same in folders.
fn by_folders(folder: &Path) -> Opened {
    for (at, (bytes, class)) in rows().into_iter().enumerate() {
        let place = folder.join(["cat", "dog"][class.unwrap() as usize]);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(format!("{at}.png")), bytes.unwrap()).unwrap();
    }
    open(&Source::Images(folders(folder))).unwrap()
}

#[test]
fn a_file_of_the_hub_has_the_pixels_names_and_classes_of_the_same_files_in_folders() {
    let folder = tempfile::tempdir().unwrap();
    let by_folders = by_folders(&folder.path().join("photos"));
    let expected = values_and_classes(&*by_folders.train);
    let path = folder.path().join("hub/data/train-00000-of-00001.parquet");
    write(&path, &rows(), Some(NAMES));
    for cache in [0, 100, 1 << 20] {
        for path in [&path, &folder.path().join("hub")] {
            let by_table = opened(ShardsOptions { cache, ..shards(path) });
            assert_eq!(values_and_classes(&*by_table.train), expected);
            assert_eq!(by_table.class_names, ["cat", "dog"]);
        }
    }
    let many = opened(ShardsOptions { classes: Some(4), ..shards(&path) });
    assert_eq!(many.class_names, ["0", "1", "2", "3"]);

    let preparation = by_folders.preparation.expect("there is one");
    let files = ImageFiles::open(&path, &preparation).unwrap().expect("a file of pictures");
    assert_eq!(files.files()[7], path.join("7"));
    assert_eq!(files.read(0..10, &preparation).unwrap(), expected.0);
    let (files, classes) = ImageFiles::labelled(&folder.path().join("hub"), &preparation).unwrap();
    assert_eq!((files.files().len(), classes), (10, expected.1.clone()));

    // Where the column of classes has another name, a model knows it.
    let coarse = folder.path().join("coarse.parquet");
    write_as(&coarse, &rows(), None, "coarse_label");
    assert!(ImageFiles::labelled(&coarse, &preparation).is_err());
    let by_table = open(&Source::ParquetImages(PictureTablesOptions {
        shards: shards(&coarse),
        label: "coarse_label".to_owned(),
    }))
    .unwrap();
    let preparation = by_table.preparation.expect("there is one");
    assert_eq!(ImageFiles::labelled(&coarse, &preparation).unwrap().1, expected.1);
}

#[test]
fn files_are_training_or_validation_by_the_beginnings_of_their_names() {
    let counts = |names: &[(&str, usize)], change: &dyn Fn(&Path, &mut ShardsOptions)| {
        let folder = tempfile::tempdir().unwrap();
        for (name, count) in names {
            write(&folder.path().join(name), &rows()[..*count], None);
        }
        let mut options = shards(folder.path());
        change(folder.path(), &mut options);
        let opened = opened(options);
        (opened.train.len(), opened.val.map(|val| val.len()))
    };
    let same = |_: &Path, _: &mut ShardsOptions| {};
    let both = [("train-0.parquet", 10), ("train-1.parquet", 7), ("test-0.parquet", 6)];
    assert_eq!(counts(&both, &same), (17, Some(6)));
    assert_eq!(counts(&[&both[..], &[("validation-0.parquet", 8)]].concat(), &same), (17, Some(8)));
    assert_eq!(counts(&[("a.parquet", 10), ("trains.parquet", 6)], &same), (16, None));
    let other = |folder: &Path, options: &mut ShardsOptions| {
        options.val_path = Some(folder.join("train-1.parquet"));
    };
    assert_eq!(counts(&both, &other), (17, Some(7)));
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("x.parquet");
    let says = |words: &str| {
        let standardised = ShardsOptions { normalise: Normalise::Standardise, ..shards(&path) };
        let said = refused(labelled(standardised));
        assert!(said.contains("x.parquet") && said.contains(words), "{said:?} lacks {words:?}");
    };
    let spoilt = |at: usize, row: Row| {
        let mut rows = rows();
        rows[at] = row;
        write(&path, &rows, Some(NAMES));
    };
    spoilt(4, (None, Some(1)));
    says("x.parquet/4: the row has no bytes of an image");
    spoilt(8, (Some(b"no image".to_vec()), Some(1)));
    says("x.parquet/8");
    assert_eq!(opened(ShardsOptions { broken: Broken::Skip, ..shards(&path) }).train.len(), 9);
    spoilt(4, (Some(picture(1)), None));
    says("a row without a class in group 1");
    spoilt(4, (Some(picture(1)), Some(-1)));
    says("row 4: label -1 is out of range");
    spoilt(4, (Some(picture(1)), Some(2)));
    says("row 4: label 2 is out of range for 2 classes");
    write(&path, &[], None);
    says("holds no sample");
    let whole = {
        write(&path, &rows(), None);
        fs::read(&path).unwrap()
    };
    let wrong =
        refused(Source::ParquetImages(PictureTablesOptions { shards: shards(&path), label: "kind".into() }));
    assert!(wrong.contains("no column \"kind\" of classes"), "{wrong}");
    file(folder.path(), "x.parquet", &whole[..whole.len() / 2]);
    says("x.parquet");
    file(folder.path(), "x.parquet", "no Parquet");
    says("x.parquet");
    fs::remove_file(&path).unwrap();
    says("does not exist");
    let said = refused(labelled(shards(folder.path())));
    assert!(said.contains("has no .parquet files"), "{said}");

    // Spoilt bytes give an error or pictures, and never a panic.
    let mut state = 7u64;
    for _ in 0..200 {
        let mut spoilt = whole.clone();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = 4 + (state >> 33) as usize % (whole.len() - 4);
        spoilt[place] = (state >> 25) as u8;
        let path = file(folder.path(), "spoilt.parquet", spoilt);
        let options = ShardsOptions { broken: Broken::Skip, ..shards(&path) };
        if let Err(error) = open(&labelled(options)) {
            assert!(!error.to_string().is_empty() && !error.hint().is_empty());
        }
    }
}
