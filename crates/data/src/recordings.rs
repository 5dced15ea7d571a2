//! Recordings of sensors, a row a moment and a column a channel, cut into windows. No window goes over the end of a recording, a gap in
//! its time, or from one group into another.
//!
//! Files are tables (`csv.rs` reads their fields), or the folder of UCI-HAR as it is (`har.rs`). It does not know what a model does with
//! a window.

mod clock;
mod error;
mod files;
mod form;
mod har;
mod options;
mod parts;
mod recording;
mod streams;
mod window_files;

use crate::bytes::open_lines;
use crate::csv::became;
use crate::csv::labels::Labels;
use crate::csv::survey::Survey;
use crate::groups::Groups;
use crate::preparation::{ColumnUse, LeftOut, Role};
use crate::rows::{Feature, Store, Table};
use crate::{DataError, Opened};
pub use error::RecordingError;
pub use form::WindowForm;
use options::NEEDS;
pub use options::{HarInputs, RecordingGroup, WindowsOptions};
use parts::finish;
use recording::{Places, Recording};
use std::path::{Path, PathBuf};
pub(crate) use streams::Streams;
pub use window_files::{WindowFiles, WindowSpot};

pub(crate) fn open(options: &WindowsOptions) -> Result<Opened, DataError> {
    if let Some(folder) = har::Har::of(&options.table.path, options.har) {
        return har::open(&folder, options);
    }
    let table = &options.table;
    let (split, form) = (&table.val_split, options.form);
    let one_by_one = options.group == RecordingGroup::None && split.held_out == crate::HeldOut::Scattered;
    if one_by_one && table.val_path.is_none() && split.fraction > 0.0 && form.stride < form.length {
        return Err(RecordingError::Overlap { length: form.length, stride: form.stride }.into());
    }
    let files = files::all(&table.path)?;
    let columns = columns(&files, options)?;
    let mut labels = Labels::new(table.target);
    let mut train = read((&table.path, &files), options, &columns, &mut labels)?;
    let mut val = match &table.val_path {
        Some(path) => Some(read((path, &files::all(path)?), options, &columns, &mut labels)?),
        None => None,
    };
    let class_names = labels.finish([Some(&mut train), val.as_mut()].into_iter().flatten());
    let named = u32::try_from(class_names.len()).ok().filter(|names| *names > 0);
    finish(train, val, options, (class_names, table.classes().or(named)), columns)
}

/// What each column is, by all values of all files: numbers are channels, words are left out.
fn columns(files: &[PathBuf], options: &WindowsOptions) -> Result<Vec<ColumnUse>, DataError> {
    let mut survey = Survey::new(&options.table);
    for file in files {
        survey.add(open_lines(file, NEEDS)?, file)?;
    }
    let (first, mut columns) = (files[0].clone(), survey.finish()?);
    let asked_for = options.table.columns.iter().any(|rule| rule.wish != crate::Wish::LeaveOut);
    for (at, column) in columns.iter_mut().enumerate() {
        if !matches!(column.role, Role::Category { .. }) {
            continue;
        }
        if asked_for {
            let column = column.name.clone().unwrap_or_else(|| at.to_string());
            return Err(RecordingError::WordsInChannel { file: first, column }.into());
        }
        column.role = Role::LeftOut(LeftOut::Words);
    }
    match columns.iter().any(|column| matches!(column.role, Role::Number { .. })) {
        true => Ok(columns),
        false => Err(DataError::NoInputs { file: first, columns: became(&columns) }),
    }
}

/// Reads and cuts all files of a folder, or the one file that it is.
fn read(
    (folder, files): (&Path, &[PathBuf]),
    options: &WindowsOptions,
    columns: &[ColumnUse],
    labels: &mut Labels,
) -> Result<Table, DataError> {
    let channels = columns.iter().filter(|column| matches!(column.role, Role::Number { .. })).count();
    let mut streams = Streams::new(channels, options.form.length);
    let mut targets = labels.column();
    let mut groups = (options.group != RecordingGroup::None).then(Groups::default);
    let mut longest = 0;
    for file in files {
        let mut of_rows = labels.column();
        let recording = Recording::read(
            open_lines(file, NEEDS)?,
            (file, &options.table, options.form.gap),
            |line, header| Places::of_training(columns, (file, line), header),
            |line, at| labels.read(file, line, at, &mut of_rows),
        )?;
        let by_file = match options.group {
            RecordingGroup::File => Some(files::relative(folder, file)),
            RecordingGroup::Folder => Some(files::folder_of(folder, file)?),
            RecordingGroup::Column | RecordingGroup::None => None,
        };
        for stretch in &recording.stretches {
            longest = longest.max(stretch.rows.len());
            let windows = streams.add(recording.values_of(stretch), options.form.stride);
            for first in windows {
                let rows = stretch.rows.start + first..stretch.rows.start + first + options.form.length;
                recording::add_target(&of_rows, rows, &mut targets);
                if let Some(groups) = &mut groups {
                    groups.push(by_file.as_deref().or(stretch.group.as_deref()).unwrap_or_default());
                }
            }
        }
    }
    if streams.len() == 0 {
        let length = options.form.length;
        return Err(RecordingError::NoWindow { path: folder.to_owned(), longest, length }.into());
    }
    let feature = |column: &ColumnUse| match &column.role {
        Role::Number { fill: Some(_), .. } => Some(Feature::NumberOrMissing),
        Role::Number { fill: None, .. } => Some(Feature::Number),
        _ => None,
    };
    Ok(Table {
        file: folder.to_owned(),
        rows: streams.len() as u64,
        shape: vec![channels, options.form.length],
        features: columns.iter().filter_map(feature).collect(),
        store: Store::Windows(streams),
        targets,
        groups,
    })
}
