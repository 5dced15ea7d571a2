//! Parquet tables: what they become is what a text table with the same fields becomes, and what is wrong with one is told.

mod support;

use dtrain_data::{
    Column, CsvOptions, CsvRows, CsvTarget, HeldOut, Missing, Opened, ParquetText, RowEnds, RowParser,
    Source, ValSplit, Written, open,
};
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{file, refused, values_and_classes};

const SCHEMA: &str = "message table {
    REQUIRED INT64 rooms;
    OPTIONAL DOUBLE area;
    REQUIRED FLOAT height;
    REQUIRED BYTE_ARRAY city (UTF8);
    REQUIRED BOOLEAN garage;
    REQUIRED INT64 sold (TIMESTAMP(MICROS,true));
    REQUIRED INT32 built (DATE);
    REQUIRED BYTE_ARRAY kind (UTF8);
}";
const ROWS: usize = 40;

fn city(row: usize) -> &'static str {
    ["Ulm", "Köln, \"am\" Rhein", "Bonn"][row % 3]
}

fn area(row: usize) -> Option<f64> {
    (!row.is_multiple_of(7)).then_some(row as f64 * 0.37 + 20.0)
}

/// The rows of a table in two groups, as a Parquet file.
fn houses(folder: &Path, compression: Compression) -> PathBuf {
    let path = folder.join("houses.parquet");
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, properties).unwrap();
    for rows in [0..ROWS / 2, ROWS / 2..ROWS] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = 0;
        while let Some(mut out) = group.next_column().unwrap() {
            let rows = rows.clone();
            match column {
                0 => {
                    let values: Vec<i64> = rows.map(|row| row as i64 % 6).collect();
                    out.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
                }
                1 => {
                    let levels: Vec<i16> = rows.clone().map(|row| i16::from(area(row).is_some())).collect();
                    let values: Vec<f64> = rows.filter_map(area).collect();
                    out.typed::<DoubleType>().write_batch(&values, Some(&levels), None).unwrap();
                }
                2 => {
                    let values: Vec<f32> = rows.map(|row| row as f32 / 3.0).collect();
                    out.typed::<FloatType>().write_batch(&values, None, None).unwrap();
                }
                3 | 7 => {
                    let word = |row| if column == 3 { city(row) } else { ["flat", "house"][row % 2] };
                    let values: Vec<ByteArray> = rows.map(|row| ByteArray::from(word(row))).collect();
                    out.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
                }
                4 => {
                    let values: Vec<bool> = rows.map(|row| row % 5 == 0).collect();
                    out.typed::<BoolType>().write_batch(&values, None, None).unwrap();
                }
                5 => {
                    let values: Vec<i64> = rows.map(|row| 1_704_276_000_000_000 + row as i64).collect();
                    out.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
                }
                _ => {
                    let values: Vec<i32> = rows.map(|row| row as i32).collect();
                    out.typed::<Int32Type>().write_batch(&values, None, None).unwrap();
                }
            }
            out.close().unwrap();
            column += 1;
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    path
}

/// The same as text.
fn text() -> String {
    let mut text = "rooms,area,height,city,garage,sold,built,kind\n".to_owned();
    for row in 0..ROWS {
        let area = area(row).map_or(String::new(), |area| area.to_string());
        let (height, garage) = (row as f32 / 3.0, u8::from(row % 5 == 0));
        let city = city(row).replace('"', "\"\"");
        let kind = ["flat", "house"][row % 2];
        text += &format!(
            "{},{area},{height},\"{city}\",{garage},2024-01-03T10:00:00Z,1970-01-01,{kind}\n",
            row % 6
        );
    }
    text
}

fn options(path: &Path) -> CsvOptions {
    let written =
        if path.extension().is_some_and(|ending| ending == "csv") { Written::Text } else { Written::Parquet };
    CsvOptions {
        written,
        missing: Missing::Fill,
        label: Column::Name("kind".into()),
        val_split: ValSplit { fraction: 0.2, ..ValSplit::default() },
        ..CsvOptions::new(path)
    }
}

fn told(opened: &Opened) -> String {
    let parts = [Some(&opened.train), opened.val.as_ref()];
    let values: Vec<_> = parts.into_iter().flatten().map(|part| values_and_classes(&**part)).collect();
    format!("{:?} {:?} {values:?}", opened.class_names, opened.preparation)
}

#[test]
fn a_parquet_table_becomes_what_the_same_text_becomes() {
    let folder = tempfile::tempdir().unwrap();
    let by_text = options(&file(folder.path(), "houses.csv", text()));
    // As pyarrow writes, as Polars does, and as one may ask them to.
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(GzipLevel::default());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd, gzip, Compression::LZ4_RAW] {
        let by_parquet = options(&houses(folder.path(), compression));
        let both = |change: &dyn Fn(&mut CsvOptions)| {
            [&by_text, &by_parquet].map(|options| {
                let mut options = options.clone();
                change(&mut options);
                told(&open(&Source::Csv(options)).expect("a table"))
            })
        };
        let [text, parquet] = both(&|_| {});
        assert_eq!(parquet, text);
        assert!(text.contains("Köln"), "{text}");
        let [text, parquet] = both(&|options| {
            options.group = Some(Column::Name("city".into()));
            options.val_split.held_out = HeldOut::Groups(vec!["Bonn".into()]);
        });
        assert_eq!(parquet, text);
        let [text, parquet] = both(&|options| {
            options.columns = vec!["rooms".parse().unwrap(), "height".parse().unwrap()];
            options.label = Column::Name("garage".into());
            options.target = CsvTarget::Class { classes: Some(2) };
        });
        assert_eq!(parquet, text);
        let second = Some(by_parquet.path.clone());
        let with_second = CsvOptions { val_path: second, ..by_parquet.clone() };
        assert_eq!(open(&Source::Csv(with_second)).unwrap().val.unwrap().len(), ROWS as u64);
    }
}

#[test]
fn its_text_is_that_of_a_table_to_be_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let path = houses(folder.path(), Compression::SNAPPY);
    let mut said = String::new();
    ParquetText::open(File::open(&path).unwrap()).unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(
        said.lines().next(),
        Some("\"rooms\",\"area\",\"height\",\"city\",\"garage\",\"sold\",\"built\",\"kind\"")
    );
    assert_eq!(said.lines().count(), 1 + ROWS);
    assert!(said.contains("\n1,20.37,0.33333334,\"Köln, \"\"am\"\" Rhein\",0,2024-01-03T10:00:00Z,1970-01-02T00:00:00Z,\"house\"\n"), "{said}");

    let all = ValSplit { fraction: 0.0, ..ValSplit::default() };
    let opened = open(&Source::Csv(CsvOptions { val_split: all, ..options(&path) })).unwrap();
    let preparation = opened.preparation.clone().expect("there is one");
    let first = said.lines().next().unwrap();
    let parser = RowParser::new(&preparation, (&path, 1), first, RowEnds::new(first, Some(','))).unwrap();
    let mut rows = CsvRows::default();
    parser.parse(said.split_once('\n').unwrap().1.as_bytes(), 2, &mut rows).unwrap();
    assert_eq!(rows.values, values_and_classes(&*opened.train).0);
    // What is no Parquet file is given back as it was.
    let other = file(folder.path(), "other.csv", text());
    let mut same = ParquetText::of(File::open(other).unwrap()).unwrap().err().expect("it is text");
    said.clear();
    same.read_to_string(&mut said).unwrap();
    assert_eq!(said, text());
}

/// A file with one column of this type, without rows.
fn empty(folder: &Path, column: &str) -> PathBuf {
    let path = folder.join("one.parquet");
    let schema = Arc::new(parse_message_type(&format!("message table {{ {column} }}")).unwrap());
    let file = File::create(&path).unwrap();
    SerializedFileWriter::new(file, schema, Arc::default()).unwrap().close().unwrap();
    path
}

#[test]
fn what_is_no_table_is_told_with_the_column_or_the_row() {
    let folder = tempfile::tempdir().unwrap();
    let says = |path: &Path, words: &str| {
        let said = refused(Source::Csv(options(path)));
        assert!(said.contains(words), "{said:?} lacks {words:?}");
    };
    says(&folder.path().join("gone.parquet"), "gone.parquet does not exist");
    says(
        &file(folder.path(), "text.parquet", text()),
        "text.parquet begins with something else, expected PAR1",
    );
    says(&file(folder.path(), "short.parquet", "PAR1"), "cannot read");
    says(&empty(folder.path(), "REQUIRED INT64 kind;"), "holds no sample");
    says(&empty(folder.path(), "REQUIRED BYTE_ARRAY picture;"), "column \"picture\" holds bytes");
    says(
        &empty(folder.path(), "REQUIRED GROUP image { REQUIRED BYTE_ARRAY bytes; }"),
        "column \"image\" holds a list, a map or a structure",
    );
    says(&empty(folder.path(), "REPEATED INT64 many;"), "column \"many\" holds a list");
    let path = houses(folder.path(), Compression::SNAPPY);
    let missing = CsvOptions { label: Column::Name("price".into()), ..options(&path) };
    assert!(refused(Source::Csv(missing)).contains("has no column \"price\", only rooms, area"));
    let whole = fs::read(&path).unwrap();
    says(&file(folder.path(), "cut.parquet", &whole[..whole.len() / 2]), "cut.parquet");
}

#[test]
fn a_spoilt_file_gives_an_error_or_a_table_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(houses(folder.path(), Compression::SNAPPY)).unwrap();
    let mut state = 7u64;
    for _ in 0..400 {
        let mut spoilt = whole.clone();
        for _ in 0..2 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            spoilt[4 + (state >> 33) as usize % (whole.len() - 4)] = (state >> 25) as u8;
        }
        if let Err(error) = open(&Source::Csv(options(&file(folder.path(), "spoilt.parquet", spoilt)))) {
            assert!(!error.to_string().is_empty() && !error.hint().is_empty());
        }
    }
}
