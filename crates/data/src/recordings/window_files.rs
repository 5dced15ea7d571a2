//! Recordings that are to be predicted, cut as those of training were: one file, a folder, a part of UCI-HAR, standard input.

use super::error::RecordingError;
use super::files;
use super::har::Har;
use super::options::{HarInputs, NEEDS};
use super::recording::{Places, Recording, add_target};
use super::streams::Streams;
use crate::arrays::format;
use crate::bytes::{open_lines, unpacked};
use crate::csv::CsvOptions;
use crate::csv::lines::number;
use crate::groups::Names;
use crate::preparation::Role;
use crate::rows::Targets;
use crate::{DataError, InputSpec, Preparation, TargetSpec};
use std::io::BufRead;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Windows with their places.
#[derive(Debug)]
pub struct WindowFiles {
    streams: Streams,
    spots: Vec<WindowSpot>,
    files: Vec<PathBuf>,
    labels: Option<Vec<String>>,
}

/// Where a window is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSpot {
    file: usize,
    /// The line of its first row, from 1.
    pub from: u64,
    /// The line of its last row.
    pub to: u64,
}

impl WindowFiles {
    /// Cuts what a path names; nothing if the model takes no windows, or if the file is an array. `table` says how files were read for
    /// training.
    ///
    /// *Errors*: columns that are not those of training; no window; see [`RecordingError`].
    pub fn open(
        path: &Path,
        preparation: &Preparation,
        table: &CsvOptions,
    ) -> Result<Option<Self>, DataError> {
        let (Some(form), InputSpec::Values { shape }) = (preparation.window, &preparation.input) else {
            return Ok(None);
        };
        let inputs = if shape.len() == 1 { HarInputs::Features } else { HarInputs::Signals };
        if let Some(folder) = Har::of(path, inputs) {
            return Self::of_har(&folder, preparation, shape).map(Some);
        }
        if inputs == HarInputs::Features {
            let (path, got) = (path.to_owned(), "no folder of UCI-HAR".to_owned());
            let expected = format!("the {} features of one", shape[0]);
            return Err(RecordingError::OtherWindows { path, got, expected }.into());
        }
        let is_input = path == Path::new("-");
        let plain = !is_input && path.metadata().is_ok_and(|about| about.is_file());
        if plain && format(path, NEEDS)?.is_some() {
            return Ok(None);
        }
        let listed = if is_input { vec![PathBuf::from("standard input")] } else { files::all(path)? };
        let mut windows = Self {
            streams: Streams::new(shape[0], form.length),
            spots: Vec::new(),
            files: listed,
            labels: Some(Vec::new()),
        };
        let mut longest = 0;
        for file in 0..windows.files.len() {
            let text: Box<dyn BufRead> = match is_input {
                true => unpacked(Box::new(std::io::stdin()))
                    .map_err(|source| DataError::Io { file: windows.files[file].clone(), source })?,
                false => open_lines(&windows.files[file], NEEDS)?,
            };
            longest = longest.max(windows.add(file, text, preparation, table)?);
        }
        if windows.spots.is_empty() {
            let path = if is_input { windows.files[0].clone() } else { path.to_owned() };
            return Err(RecordingError::NoWindow { path, longest, length: form.length }.into());
        }
        Ok(Some(windows))
    }

    /// Adds the windows of a file; gives the rows of its longest stretch.
    fn add(
        &mut self,
        file: usize,
        text: Box<dyn BufRead>,
        preparation: &Preparation,
        table: &CsvOptions,
    ) -> Result<usize, DataError> {
        let form = preparation.window.expect("the model takes windows");
        let path = self.files[file].clone();
        let mut names = Names::default();
        let mut of_rows = match preparation.target {
            TargetSpec::Values { .. } => Targets::Values { values: Vec::new(), width: 1 },
            _ => Targets::Classes(Vec::new()),
        };
        let mut targets = of_rows.empty();
        let mut has_target = false;
        let recording = Recording::read(
            text,
            (&path, table, form.gap),
            |line, first| {
                let places = Places::of_prediction(&preparation.columns, (&path, line), first, form.gap)?;
                has_target = places.target.is_some();
                Ok(places)
            },
            |line, at| {
                let text = line.fields()[at.column].trim();
                match &mut of_rows {
                    Targets::Classes(classes) => classes.push(names.id(text)),
                    Targets::Values { values, .. } => values.push(number(&path, line.number, at, text)?),
                }
                Ok(())
            },
        )?;
        for stretch in &recording.stretches {
            for first in self.streams.add(recording.values_of(stretch), form.stride) {
                let rows = stretch.rows.start + first..stretch.rows.start + first + form.length;
                let (from, to) = (recording.lines[rows.start], recording.lines[rows.end - 1]);
                self.spots.push(WindowSpot { file, from, to });
                if has_target {
                    add_target(&of_rows, rows, &mut targets);
                }
            }
        }
        match (&mut self.labels, has_target) {
            (Some(labels), true) => labels.extend(match &targets {
                Targets::Classes(ids) => ids.iter().map(|id| names.name(*id).to_owned()).collect::<Vec<_>>(),
                Targets::Values { values, .. } => values.iter().map(ToString::to_string).collect(),
            }),
            (labels, _) => *labels = None,
        }
        Ok(recording.stretches.iter().map(|stretch| stretch.rows.len()).max().unwrap_or(0))
    }

    fn of_har(folder: &Har, preparation: &Preparation, shape: &[usize]) -> Result<Self, DataError> {
        let channels = preparation.columns.iter().filter(|column| matches!(column.role, Role::Number { .. }));
        let trained: Vec<String> = channels.filter_map(|column| column.name.clone()).collect();
        let length = shape.get(1).copied().unwrap_or(1);
        let mut streams = Streams::new(shape[0], length);
        let (mut spots, mut labels, mut parts) = (Vec::new(), Some(Vec::new()), Vec::new());
        for (file, part) in folder.parts().iter().enumerate() {
            let read = folder.read(part, &mut streams, Some((trained.as_slice(), length)))?;
            spots.extend((1..=read.windows).map(|line| WindowSpot { file, from: line, to: line }));
            match (&mut labels, read.labels) {
                (Some(labels), Some(read)) => labels.extend(read.iter().map(|label| folder.name_of(*label))),
                (labels, _) => *labels = None,
            }
            parts.push(part.clone());
        }
        Ok(Self { streams, spots, files: parts, labels })
    }

    /// How many windows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// Where windows are from.
    #[must_use]
    pub fn spots(&self, windows: Range<usize>) -> &[WindowSpot] {
        &self.spots[windows]
    }

    /// The file of a window.
    #[must_use]
    pub fn file(&self, spot: WindowSpot) -> &Path {
        &self.files[spot.file]
    }

    /// What is true of each window, where all files say it.
    #[must_use]
    pub fn labels(&self) -> Option<&[String]> {
        self.labels.as_deref()
    }

    /// What a model takes: the values of these windows, normalised as those of training were.
    ///
    /// *Panics* if there are no such windows.
    #[must_use]
    pub fn read(&self, windows: Range<usize>, preparation: &Preparation) -> Vec<f32> {
        let mut values = Vec::new();
        for window in windows {
            let first = values.len();
            values.extend(self.streams.window(window));
            preparation.normalise(&mut values[first..]);
        }
        values
    }
}
