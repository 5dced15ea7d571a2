//! One file of rows: which of them belong together, and what stands in them.
//!
//! It does not know windows.

use super::clock::instant;
use super::error::RecordingError;
use crate::DataError;
use crate::csv::CsvOptions;
use crate::csv::encoder::{Encoder, Fill};
use crate::csv::lines::{ColumnRef, Line, Lines};
use crate::csv::parser::{Is, by_name, by_order};
use crate::preparation::{ColumnUse, LeftOut, Role};
use crate::rows::Targets;
use std::io::BufRead;
use std::ops::Range;
use std::path::Path;

/// Rows that follow each other without a gap, of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub rows: Range<usize>,
    /// What stands in the column of the group, where there is one.
    pub group: Option<String>,
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Recording {
    /// The channels of each row.
    values: Vec<f32>,
    channels: usize,
    /// The line of each row in the file, from 1.
    pub lines: Vec<u64>,
    pub stretches: Vec<Stretch>,
}

/// Where the columns of training are in a file.
#[derive(Debug)]
pub(super) struct Places {
    /// The channels in the order of training: the column there, and its place here.
    channels: Vec<(usize, usize)>,
    pub target: Option<usize>,
    time: Option<usize>,
    group: Option<usize>,
    /// What the header calls the columns; empty without one.
    names: Vec<String>,
    width: usize,
    encoder: Encoder,
}

impl Places {
    /// Of a file of training: it has the channels of the first, the label, and time and group where that has them.
    pub fn of_training(
        columns: &[ColumnUse],
        (file, line): (&Path, u64),
        first: &[&str],
    ) -> Result<Self, DataError> {
        let unlike = |problem: String| {
            let problem = problem.replace("training table", "first recording");
            RecordingError::UnlikeFirst { file: file.to_owned(), line, problem }
        };
        let places = Self::new(columns, first, Fill::Later).map_err(unlike)?;
        let has = |role| columns.iter().any(|column| column.role == role);
        let lacking = [
            (places.target, Role::Target, "label"),
            (places.time, Role::LeftOut(LeftOut::Time), "time"),
            (places.group, Role::LeftOut(LeftOut::Group), "group"),
        ];
        match lacking.into_iter().find(|(place, role, _)| place.is_none() && has(role.clone())) {
            Some((_, _, what)) => Err(unlike(format!("the column of the {what} is missing")).into()),
            None => Ok(places),
        }
    }

    /// Of a file to be predicted: it has the channels of training, and the time where a gap in it cuts.
    pub fn of_prediction(
        columns: &[ColumnUse],
        (file, line): (&Path, u64),
        first: &[&str],
        gap: Option<f64>,
    ) -> Result<Self, DataError> {
        let other = |problem| DataError::OtherColumns { file: file.to_owned(), line, problem };
        let places = Self::new(columns, first, Fill::Now).map_err(other)?;
        match gap.is_some() && places.time.is_none() {
            true => Err(other("the column of the time is missing, and a gap in it ends a window".to_owned())),
            false => Ok(places),
        }
    }

    fn new(columns: &[ColumnUse], first: &[&str], fill: Fill) -> Result<Self, String> {
        let has_header = columns.iter().any(|column| column.name.is_some());
        let here = if has_header { by_name(columns, first)? } else { by_order(columns, first.len())? };
        let place = |is: Is| here.iter().position(|other| *other == is);
        let left_out = |why| {
            let column = columns.iter().position(|column| column.role == Role::LeftOut(why))?;
            place(Is::Ignored(column))
        };
        Ok(Self {
            channels: (0..columns.len())
                .filter_map(|column| Some((column, place(Is::Input(column))?)))
                .collect(),
            target: place(Is::Target),
            time: left_out(LeftOut::Time),
            group: left_out(LeftOut::Group),
            names: if has_header {
                first.iter().map(|name| (*name).to_owned()).collect()
            } else {
                Vec::new()
            },
            width: first.len(),
            encoder: Encoder::new(columns, fill),
        })
    }

    fn at(&self, column: usize) -> ColumnRef<'_> {
        ColumnRef { column, name: self.names.get(column).map(String::as_str) }
    }
}

/// The time of a row, and how it is written.
type Moment = (f64, String);

impl Recording {
    /// Reads a file; `places` finds its columns by its first line, `label` takes the target of each row where there is one.
    ///
    /// *Errors*: the first line that is not as the others are; a time that goes back.
    pub fn read(
        text: impl BufRead,
        (file, table, gap): (&Path, &CsvOptions, Option<f64>),
        places: impl FnOnce(u64, &[&str]) -> Result<Places, DataError>,
        mut label: impl FnMut(&Line<'_>, ColumnRef<'_>) -> Result<(), DataError>,
    ) -> Result<Self, DataError> {
        let mut lines = Lines::new(text, file, table.skip, table.delimiter)?;
        let mut places = Some(places);
        let mut known: Option<Places> = None;
        let mut recording =
            Self { values: Vec::new(), channels: 0, lines: Vec::new(), stretches: Vec::new() };
        let mut before: Option<Moment> = None;
        while let Some(line) = lines.next_line()? {
            if let Some(places) = places.take() {
                let first: Vec<&str> = line.fields().iter().map(AsRef::as_ref).collect();
                let found = known.insert(places(line.number, &first)?);
                recording.channels = found.channels.len();
                if !found.names.is_empty() {
                    continue;
                }
            }
            let places = known.as_ref().expect("the first line says where columns are");
            let (fields, number) = (line.fields(), line.number);
            if fields.len() != places.width {
                let (expected, got) = (places.width, fields.len());
                return Err(DataError::RaggedRow { file: file.to_owned(), line: number, expected, got });
            }
            let now = match places.time {
                Some(place) => Some(moment(file, number, places.at(place), &fields[place])?),
                None => None,
            };
            recording.begin_row(
                places.group.map(|place| &*fields[place]),
                (&before, &now, gap),
                (file, number),
            )?;
            before = now;
            for (column, place) in &places.channels {
                let at = (file, number, places.at(*place));
                places.encoder.encode(*column, &fields[*place], at, &mut recording.values)?;
            }
            if let Some(place) = places.target {
                label(&line, places.at(place))?;
            }
            recording.lines.push(number);
        }
        match recording.lines.is_empty() {
            true => Err(DataError::Empty { file: file.to_owned() }),
            false => Ok(recording),
        }
    }

    /// Adds a row to the stretch in front of it, or begins another one.
    fn begin_row(
        &mut self,
        group: Option<&str>,
        (before, now, gap): (&Option<Moment>, &Option<Moment>, Option<f64>),
        (file, line): (&Path, u64),
    ) -> Result<(), DataError> {
        let row = self.lines.len();
        if let Some(stretch) = self.stretches.last_mut().filter(|stretch| stretch.group.as_deref() == group) {
            let gone = before.as_ref().zip(now.as_ref());
            if let Some(((_, before), (_, text))) = gone.filter(|(before, now)| now.0 < before.0) {
                let (file, text, before) = (file.to_owned(), text.clone(), before.clone());
                return Err(RecordingError::TimeGoesBack { file, line, text, before }.into());
            }
            if !gone.zip(gap).is_some_and(|((before, now), gap)| now.0 - before.0 > gap) {
                stretch.rows.end = row + 1;
                return Ok(());
            }
        }
        self.stretches.push(Stretch { rows: row..row + 1, group: group.map(str::to_owned) });
        Ok(())
    }

    /// The channels of the rows of a stretch.
    pub fn values_of(&self, stretch: &Stretch) -> &[f32] {
        &self.values[stretch.rows.start * self.channels..stretch.rows.end * self.channels]
    }
}

fn moment(file: &Path, line: u64, at: ColumnRef<'_>, field: &str) -> Result<Moment, DataError> {
    let no_time =
        || RecordingError::NoTime { file: file.to_owned(), line, column: at.shown(), text: field.to_owned() };
    Ok((instant(field).ok_or_else(no_time)?, field.to_owned()))
}

/// Adds the target of a window: the class that most of its rows have, or the mean of numbers.
pub(super) fn add_target(of_rows: &Targets, rows: Range<usize>, targets: &mut Targets) {
    match (of_rows, targets) {
        (Targets::Classes(of_rows), Targets::Classes(classes)) => classes.push(majority(&of_rows[rows])),
        (Targets::Values { values: of_rows, .. }, Targets::Values { values, .. }) => {
            let count = rows.len() as f64;
            values.push((of_rows[rows].iter().map(|value| f64::from(*value)).sum::<f64>() / count) as f32);
        }
        _ => unreachable!("both are of one kind"),
    }
}

/// What is most frequent; of several, what comes first.
fn majority(classes: &[u32]) -> u32 {
    let mut counts: Vec<(u32, usize)> = Vec::new();
    for class in classes {
        match counts.iter_mut().find(|(other, _)| other == class) {
            Some((_, count)) => *count += 1,
            None => counts.push((*class, 1)),
        }
    }
    // Of those that are equal `max_by_key` gives the last.
    counts.iter().rev().max_by_key(|(_, count)| *count).expect("a window has rows").0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_window_is_the_most_frequent_and_of_several_the_first() {
        assert_eq!(majority(&[3, 1, 1, 3, 2, 1]), 1);
        assert_eq!(majority(&[2, 2, 1, 1, 0]), 2);
        assert_eq!(majority(&[0, 1, 1, 0]), 0);
        let mut means = Targets::Values { values: Vec::new(), width: 1 };
        add_target(&Targets::Values { values: vec![9.0, 1.0, 2.0], width: 1 }, 1..3, &mut means);
        assert!(matches!(means, Targets::Values { values, .. } if values == [1.5]));
    }
}
