//! The folder of UCI-HAR as it is: `train/` and `test/`, in each the windows of every signal in a file of its own, a line a window, and
//! beside them labels, subjects, and 561 features of each window.
//!
//! *Source*: D. Anguita and others, "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013.

use super::error::RecordingError;
use super::options::{HarInputs, NEEDS, RecordingGroup, WindowsOptions};
use super::parts::finish;
use super::streams::Streams;
use crate::bytes::open_lines;
use crate::csv::CsvTarget;
use crate::csv::lines::{ColumnRef, number};
use crate::groups::Groups;
use crate::preparation::{ColumnUse, Role};
use crate::rows::{Store, Table, Targets};
use crate::{DataError, HeldOut, Opened};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::path::{Path, PathBuf};

const SIGNALS: &str = "Inertial Signals";

/// Such a folder, or one part of it.
#[derive(Debug)]
pub(super) struct Har {
    /// `train` and maybe `test`; or the one part.
    parts: Vec<PathBuf>,
    /// What activities are called, by their numbers; empty where no file says it.
    names: BTreeMap<u64, String>,
    inputs: HarInputs,
}

/// What was read of a part.
pub(super) struct Part {
    pub windows: u64,
    /// The number of each activity, where the file is there.
    pub labels: Option<Vec<u64>>,
}

impl Har {
    /// Knows the folder by its layout.
    pub fn of(path: &Path, inputs: HarInputs) -> Option<Self> {
        let (root, parts) = match is_part(path) {
            true => (path.parent()?.to_owned(), vec![path.to_owned()]),
            false => {
                let parts = ["train", "test"].map(|part| path.join(part));
                (path.to_owned(), parts.into_iter().filter(|part| is_part(part)).collect())
            }
        };
        let text = std::fs::read_to_string(root.join("activity_labels.txt")).unwrap_or_default();
        let name = |line: &str| {
            let (number, name) = line.trim().split_once(char::is_whitespace)?;
            Some((number.parse().ok()?, name.trim().to_owned()))
        };
        let names = text.lines().filter_map(name).collect();
        (!parts.is_empty()).then_some(Self { parts, names, inputs })
    }

    /// The folders of its parts.
    pub fn parts(&self) -> &[PathBuf] {
        &self.parts
    }

    /// What an activity is called.
    pub fn name_of(&self, label: u64) -> String {
        self.names.get(&label).cloned().unwrap_or_else(|| label.to_string())
    }

    /// The files of the channels of a part, with the names of these.
    fn files(&self, part: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
        let ending = format!("_{}.txt", name(part));
        if self.inputs == HarInputs::Features {
            return Ok(vec![("X".to_owned(), part.join(format!("X{ending}")))]);
        }
        let folder = part.join(SIGNALS);
        let listed = std::fs::read_dir(&folder).map_err(|error| DataError::io(&folder, NEEDS, error))?;
        let paths: Result<Vec<PathBuf>, _> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut paths = paths.map_err(|error| DataError::io(&folder, NEEDS, error))?;
        paths.sort();
        let signal = |path: PathBuf| Some((name(&path).strip_suffix(&ending)?.to_owned(), path));
        let files: Vec<_> = paths.into_iter().filter_map(signal).collect();
        match files.is_empty() {
            true => Err(DataError::Empty { file: folder }),
            false => Ok(files),
        }
    }

    /// The names of the channels; of features `None` each.
    fn channels(&self, part: &Path, widest: usize) -> Result<Vec<Option<String>>, DataError> {
        Ok(match self.inputs {
            HarInputs::Features => vec![None; widest],
            HarInputs::Signals => self.files(part)?.into_iter().map(|(name, _)| Some(name)).collect(),
        })
    }

    /// Reads a part into `streams`, of which the channels are known by name, and the length of a window, if they are given.
    pub fn read(
        &self,
        part: &Path,
        streams: &mut Streams,
        expected: Option<(&[String], usize)>,
    ) -> Result<Part, DataError> {
        let files = self.files(part)?;
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        if let (Some((trained, _)), HarInputs::Signals) = (expected, self.inputs)
            && trained != names
        {
            let (got, expected) = (names.join(", "), trained.join(", "));
            return Err(RecordingError::OtherWindows { path: part.to_owned(), got, expected }.into());
        }
        let labels_file = part.join(format!("y_{}.txt", name(part)));
        let labels = if labels_file.is_file() { Some(whole(&labels_file)?) } else { None };
        let mut channels: Vec<Matrix> = Vec::with_capacity(files.len());
        for (_, file) in &files {
            let matrix = Matrix::read(file)?;
            if let Some(first) = channels.first() {
                same_count((&files[0].1, first.rows), (file, matrix.rows))?;
            }
            let wanted =
                if self.inputs == HarInputs::Features { streams.channels() } else { streams.length() };
            if matrix.width != wanted {
                let (file, got) = (file.clone(), matrix.width);
                return Err(RecordingError::OtherLength { file, got, wanted }.into());
            }
            channels.push(matrix);
        }
        let rows = channels[0].rows;
        if let Some(labels) = &labels {
            same_count((&files[0].1, rows), (&labels_file, labels.len()))?;
        }
        for row in 0..rows {
            let of_row: Vec<&[f32]> = channels.iter().map(|channel| channel.row(row)).collect();
            match self.inputs {
                HarInputs::Features => streams.add_window(&of_row[0].chunks(1).collect::<Vec<_>>()),
                HarInputs::Signals => streams.add_window(&of_row),
            }
        }
        Ok(Part { windows: rows as u64, labels })
    }
}

/// Opens the folder: `test` is what is held out, unless groups are named.
pub(super) fn open(folder: &Har, options: &WindowsOptions) -> Result<Opened, DataError> {
    if options.table.target == CsvTarget::Value {
        return Err(RecordingError::Activities.into());
    }
    let (length, widest) = match folder.inputs {
        HarInputs::Signals => (options.form.length, 0),
        HarInputs::Features => (1, Matrix::width_of(&folder.files(&folder.parts[0])?[0].1)?),
    };
    let names = folder.channels(&folder.parts[0], widest)?;
    let known: Vec<String> = names.iter().flatten().cloned().collect();
    let together = matches!(options.table.val_split.held_out, HeldOut::Groups(_));
    let mut tables: Vec<(PathBuf, Streams, Vec<u64>, Groups)> = Vec::new();
    for part in &folder.parts {
        if tables.is_empty() || !together {
            let streams = Streams::new(names.len(), length);
            tables.push((part.clone(), streams, Vec::new(), Groups::default()));
        }
        let (_, streams, labels, groups) = tables.last_mut().expect("just put there");
        let read = folder.read(part, streams, Some((known.as_slice(), length)))?;
        let missing = |file: &str| DataError::Missing { file: part.join(file), needs: NEEDS };
        labels.extend(read.labels.ok_or_else(|| missing(&format!("y_{}.txt", name(part))))?);
        let subjects_file = part.join(format!("subject_{}.txt", name(part)));
        let subjects = whole(&subjects_file)?;
        same_count((part, read.windows as usize), (&subjects_file, subjects.len()))?;
        subjects.iter().for_each(|subject| groups.push(&subject.to_string()));
    }
    let all: BTreeSet<u64> = tables.iter().flat_map(|(_, _, labels, _)| labels).copied().collect();
    let classes: Vec<u64> = match folder.names.is_empty() {
        true => all.into_iter().collect(),
        false => folder.names.keys().copied().collect(),
    };
    let table = |(file, streams, labels, groups): (PathBuf, Streams, Vec<u64>, Groups)| {
        let class = |(row, label): (u64, u64)| {
            let class = classes.binary_search(&label).map(|class| class as u32);
            class.map_err(|_| RecordingError::NoActivity { file: file.clone(), line: row, label })
        };
        let targets = (1..).zip(labels).map(class).collect::<Result<Vec<u32>, _>>()?;
        Ok::<Table, DataError>(Table {
            rows: streams.len() as u64,
            shape: if folder.inputs == HarInputs::Features {
                vec![names.len()]
            } else {
                vec![names.len(), length]
            },
            features: Vec::new(),
            store: Store::Windows(streams),
            targets: Targets::Classes(targets),
            groups: (options.group != RecordingGroup::None).then_some(groups),
            file,
        })
    };
    let mut tables = tables.into_iter().map(table).collect::<Result<Vec<_>, _>>()?.into_iter();
    let (train, val) = (tables.next().expect("there is a part"), tables.next());
    let class_names: Vec<String> = classes.iter().map(|label| folder.name_of(*label)).collect();
    let count = class_names.len() as u32;
    let column = |name: &Option<String>| ColumnUse {
        name: name.clone(),
        role: Role::Number { fill: None, missing: 0 },
    };
    finish(train, val, options, (class_names, Some(count)), names.iter().map(column).collect())
}

fn is_part(folder: &Path) -> bool {
    let named = |prefix: &str| folder.join(format!("{prefix}_{}.txt", name(folder))).is_file();
    folder.join(SIGNALS).is_dir() || (named("X") && named("y"))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn same_count(one: (&Path, usize), other: (&Path, usize)) -> Result<(), DataError> {
    if one.1 == other.1 {
        return Ok(());
    }
    let ((inputs_file, inputs), (targets_file, targets)) = (one, other);
    let (inputs_file, targets_file) = (inputs_file.to_owned(), targets_file.to_owned());
    Err(DataError::CountMismatch {
        inputs_file,
        inputs: inputs as u64,
        targets_file,
        targets: targets as u64,
    })
}

/// Numbers between spaces, as many on each line.
struct Matrix {
    values: Vec<f32>,
    rows: usize,
    width: usize,
}

impl Matrix {
    fn read(file: &Path) -> Result<Self, DataError> {
        let mut matrix = Self { values: Vec::new(), rows: 0, width: 0 };
        for (line, text) in (1..).zip(open_lines(file, NEEDS)?.lines()) {
            let text = text.map_err(|error| DataError::io(file, NEEDS, error))?;
            let before = matrix.values.len();
            for (column, field) in text.split_ascii_whitespace().enumerate() {
                matrix.values.push(number(file, line, ColumnRef { column, name: None }, field)?);
            }
            let got = matrix.values.len() - before;
            if got == 0 {
                continue;
            }
            if matrix.rows > 0 && got != matrix.width {
                return Err(DataError::RaggedRow {
                    file: file.to_owned(),
                    line,
                    expected: matrix.width,
                    got,
                });
            }
            (matrix.rows, matrix.width) = (matrix.rows + 1, got);
        }
        match matrix.rows {
            0 => Err(DataError::Empty { file: file.to_owned() }),
            _ => Ok(matrix),
        }
    }

    /// The numbers on the first line of a file.
    fn width_of(file: &Path) -> Result<usize, DataError> {
        let mut first = String::new();
        let read = open_lines(file, NEEDS)?.read_line(&mut first);
        read.map_err(|error| DataError::io(file, NEEDS, error))?;
        Ok(first.split_ascii_whitespace().count())
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..(row + 1) * self.width]
    }
}

/// Whole numbers, one a line.
fn whole(file: &Path) -> Result<Vec<u64>, DataError> {
    let mut numbers = Vec::new();
    for (row, text) in (1..).zip(open_lines(file, NEEDS)?.lines()) {
        let text = text.map_err(|error| DataError::io(file, NEEDS, error))?;
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let wrong = || DataError::LabelNotInteger { file: file.to_owned(), row, text: format!("{text:?}") };
        numbers.push(text.parse().map_err(|_| wrong())?);
    }
    Ok(numbers)
}
