//! Pictures in Parquet files, as the Hugging Face Hub has them: a column of structures with the bytes of an image file, and a column of
//! classes. A picture is decoded when it is read, out of the mapped file.
//!
//! Of a row group, all rows before a picture are unpacked with it: the Hub writes groups of a hundred to a thousand. It does not know how
//! a picture is decoded; see `images/picture.rs`.

use crate::bytes::Bytes;
use crate::images::{Decoder, PictureForm, entries, retain, side_by_side};
use crate::parquet_text::guarded;
use crate::rows::class_of;
use crate::shards::{LabelNeed, ManyPictures, ShardsOptions, open_as};
use crate::{DataError, Opened, ShardsError};
use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::path::{Path, PathBuf};

/// What this kind of data is made of.
const NEEDS: &str = "kind parquet_images needs a .parquet file, or a folder of them";
/// What the Hub calls the column of classes.
const LABEL: &str = "label";
/// How the names of files for validation begin, the better ones first.
const VALIDATION: [&str; 3] = ["validation", "val", "test"];

/// Which files, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureTablesOptions {
    /// What is as of tar archives.
    pub shards: ShardsOptions,
    /// The column of the classes.
    pub label: String,
}

pub(crate) fn open(options: &PictureTablesOptions) -> Result<Opened, DataError> {
    let PictureTablesOptions { shards, label } = options;
    let (train, beside) = parts(&shards.path)?;
    let val = match &shards.val_path {
        Some(path) => all_files(path)?,
        None => beside,
    };
    let tables = |files: &[PathBuf]| PictureTables::open(files, shards.form, Some(label));
    let train = tables(&train)?;
    let val = if val.is_empty() { None } else { Some(tables(&val)?) };
    let class_names = train.class_names.clone();
    let mut opened = open_as(shards, train, val, class_names)?;
    if let Some(preparation) = &mut opened.preparation {
        preparation.label = Some(label.clone()).filter(|label| label != LABEL);
    }
    Ok(opened)
}

/// The files for training and those for validation.
fn parts(path: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
    let all = all_files(path)?;
    let of = |part: &str| -> Vec<PathBuf> {
        let is_of = |file: &&PathBuf| {
            let rest =
                file.file_stem().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(part));
            rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        all.iter().filter(is_of).cloned().collect()
    };
    let train = of("train");
    if train.is_empty() {
        return Ok((all, Vec::new()));
    }
    let val = VALIDATION.into_iter().map(of).find(|files| !files.is_empty());
    Ok((train, val.unwrap_or_default()))
}

/// A file, or those of a folder or of the `data` in it, in the order of their names.
fn all_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let in_folder = |folder: &Path| -> Result<Vec<PathBuf>, DataError> {
        let mut files = entries(folder, NEEDS)?;
        files.retain(|path| is_table(path));
        Ok(files)
    };
    let mut files = in_folder(path)?;
    let data = path.join("data");
    if files.is_empty() && data.is_dir() {
        files = in_folder(&data)?;
    }
    match files.is_empty() {
        true => Err(ShardsError::NoTables { folder: path.to_owned() }.into()),
        false => Ok(files),
    }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet")) && !path.is_dir()
}

/// The pictures of some files, one file after the other.
#[derive(Debug)]
pub(crate) struct PictureTables {
    tables: Vec<PictureTable>,
    rows: Vec<Place>,
    form: PictureForm,
    /// What the first file calls the classes; empty if it does not.
    class_names: Vec<String>,
}

/// One file.
struct PictureTable {
    file: PathBuf,
    reader: SerializedFileReader<::bytes::Bytes>,
    /// The number of the column of bytes.
    image: usize,
}

/// Where a picture is.
#[derive(Debug)]
struct Place {
    table: usize,
    group: usize,
    /// In its group.
    row: usize,
    /// In its file.
    number: u64,
    /// Where labels were needed.
    class: Option<i64>,
}

impl std::fmt::Debug for PictureTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PictureTable")
            .field("file", &self.file)
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

impl PictureTables {
    /// Whether a path is such a file, or a folder that has some.
    pub fn are(path: &Path) -> bool {
        match path.is_dir() {
            true => all_files(path).is_ok(),
            false => is_table(path),
        }
    }

    /// Opens all of a path, with their labels or without, for a model.
    ///
    /// *Errors*: as [`PictureTables::open`].
    pub fn of_path(
        path: &Path,
        form: PictureForm,
        label: Option<&str>,
        need: LabelNeed,
    ) -> Result<Self, DataError> {
        let label = (need == LabelNeed::Class).then(|| label.unwrap_or(LABEL));
        Self::open(&all_files(path)?, form, label)
    }

    /// Opens files, with the column of labels if one is named.
    ///
    /// *Errors*: a file that is none, or that lacks one of the columns; a row without a label.
    fn open(files: &[PathBuf], form: PictureForm, label: Option<&str>) -> Result<Self, DataError> {
        let open = |at: usize| PictureTable::open(&files[at], label);
        let opened = side_by_side(files.len(), open).into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mut tables, mut rows, mut class_names) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (table, places)) in opened.into_iter().enumerate() {
            if at == 0 {
                class_names = label.map(|label| table.class_names(label)).unwrap_or_default();
            }
            rows.extend(places.into_iter().map(|place| Place { table: at, ..place }));
            tables.push(table);
        }
        Ok(Self { tables, rows, form, class_names })
    }

    fn name(&self, place: &Place) -> PathBuf {
        self.tables[place.table].file.join(place.number.to_string())
    }
}

impl ManyPictures for PictureTables {
    fn file(&self) -> &Path {
        &self.tables[0].file
    }

    fn classes(&self, known: Option<u32>) -> Result<Vec<u32>, DataError> {
        let class = |place: &Place| {
            let label = place.class.expect("labels were needed");
            class_of(&self.tables[place.table].file, place.number, label, known)
        };
        self.rows.iter().map(class).collect()
    }

    /// Those of the files, and the numbers of their rows from 0.
    fn names(&self) -> Vec<PathBuf> {
        self.rows.iter().map(|place| self.name(place)).collect()
    }

    fn keep(&mut self, kept: &[bool]) {
        retain(&mut self.rows, kept);
    }
}

impl Decoder for PictureTables {
    fn decode(&self, row: usize) -> Result<Box<[u8]>, DataError> {
        let place = &self.rows[row];
        let bytes = self.tables[place.table].bytes(place).map_err(|error| error.to_string());
        let pixels = bytes.and_then(|bytes| {
            let bytes = bytes.ok_or("the row has no bytes of an image")?;
            self.form.of_bytes(bytes.data())
        });
        pixels.map_err(|reason| DataError::Picture { file: self.name(place), reason })
    }
}

impl PictureTable {
    fn open(file: &Path, label: Option<&str>) -> Result<(Self, Vec<Place>), DataError> {
        let bytes = ::bytes::Bytes::from_owner(Bytes::open(file, NEEDS)?);
        let length = bytes.len() as u64;
        let wrong = |problem: String| ShardsError::NotPictures { file: file.to_owned(), problem };
        let reader =
            guarded(|| SerializedFileReader::new(bytes)).map_err(|error| wrong(error.to_string()))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let images = columns.iter().enumerate().filter(|(_, column)| {
            matches!(column.path().parts(), [_, last] if last == "bytes")
                && column.physical_type() == Physical::BYTE_ARRAY
        });
        let images: Vec<usize> = images.map(|(at, _)| at).collect();
        let [image] = images[..] else {
            let several = if images.is_empty() { "no column" } else { "several columns" };
            return Err(wrong(format!("{several} of images, which are structures with bytes")).into());
        };
        let column = |label: &str| {
            let place =
                columns.iter().position(|column| matches!(column.path().parts(), [only] if only == label));
            place.ok_or_else(|| wrong(format!("no column {label:?} of classes")))
        };
        let label = label.map(column).transpose()?;
        let table = Self { file: file.to_owned(), reader, image };
        let (mut places, mut number) = (Vec::new(), 0);
        for (group, about) in table.reader.metadata().row_groups().iter().enumerate() {
            // What is said to have more rows than bytes is damaged.
            let rows = u64::try_from(about.num_rows()).ok().filter(|rows| *rows <= length);
            let rows = rows.ok_or_else(|| wrong(format!("a group of {} rows", about.num_rows())))?;
            let classes = label.map(|label| table.labels(group, label, rows as usize)).transpose();
            let classes = classes.map_err(|error| wrong(error.to_string()))?;
            for row in 0..rows as usize {
                let class = classes.as_ref().map(|classes| classes[row]);
                places.push(Place { table: 0, group, row, number, class });
                number += 1;
            }
        }
        Ok((table, places))
    }

    /// The classes of a row group.
    fn labels(&self, group: usize, column: usize, rows: usize) -> Result<Vec<i64>, ParquetError> {
        let (mut levels, mut wide) = (Vec::new(), Vec::new());
        guarded(|| {
            match self.reader.get_row_group(group)?.get_column_reader(column)? {
                ColumnReader::Int64ColumnReader(mut column) => {
                    column.read_records(rows, Some(&mut levels), None, &mut wide)?;
                }
                ColumnReader::Int32ColumnReader(mut column) => {
                    let mut narrow = Vec::new();
                    column.read_records(rows, Some(&mut levels), None, &mut narrow)?;
                    wide.extend(narrow.into_iter().map(i64::from));
                }
                _ => {
                    return Err(ParquetError::General(
                        "the column of classes is not of whole numbers".to_owned(),
                    ));
                }
            }
            Ok(())
        })?;
        match wide.len() == rows {
            true => Ok(wide),
            false => Err(ParquetError::General(format!("a row without a class in group {group}"))),
        }
    }

    /// The bytes of a picture; none where the row has none.
    fn bytes(&self, place: &Place) -> Result<Option<parquet::data_type::ByteArray>, ParquetError> {
        guarded(|| {
            let group = self.reader.get_row_group(place.group)?;
            let ColumnReader::ByteArrayColumnReader(mut column) = group.get_column_reader(self.image)? else {
                return Err(ParquetError::General("the column of images is not of bytes".to_owned()));
            };
            column.skip_records(place.row)?;
            let (mut levels, mut repeats, mut values) = (Vec::new(), Vec::new(), Vec::new());
            column.read_records(1, Some(&mut levels), Some(&mut repeats), &mut values)?;
            Ok(values.pop())
        })
    }

    /// What the `datasets` of Hugging Face wrote down about the classes.
    fn class_names(&self, label: &str) -> Vec<String> {
        let about = self.reader.metadata().file_metadata().key_value_metadata();
        let text = about
            .into_iter()
            .flatten()
            .find(|pair| pair.key == "huggingface")
            .and_then(|pair| pair.value.as_deref());
        let described: Option<serde_json::Value> = text.and_then(|text| serde_json::from_str(text).ok());
        let names = described.as_ref().and_then(|all| all["info"]["features"][label]["names"].as_array());
        let names =
            names.and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
        names.unwrap_or_default()
    }
}
