//! Rows in memory with a target each: what images and tables become, whatever file they came from.
//!
//! Bytes stay bytes and are converted while a batch is filled, so 60 000 small images take 47 MB, not 188. It does
//! not know file formats.

use crate::augment::{Augment, Planes, ValueRange, through_window};
use crate::bytes::Bytes;
use crate::groups::{Groups, HeldOutGroups};
use crate::images::Pictures;
use crate::normalise::{ByteSums, Moments, Normalise, Scaling, byte_moments, moments};
use crate::preparation::{ColumnUse, Preparation, Role, TargetScale};
use crate::recordings::Streams;
use crate::split::{HeldOut, Selection, ValSplit};
use crate::{DataError, Dataset, InputSpec, Mix, Opened, SampleSlot, SampleSpec, TargetSpec};
use dtrain_types::Key;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most classes that are taken from labels alone. A column of identifiers is not a class.
pub(crate) const MAX_DERIVED_CLASSES: u32 = 65_536;

/// Pictures that are decoded at once for their statistics.
const PICTURES: usize = 256;

/// The elements of all rows, row after row.
#[derive(Debug)]
pub(crate) enum Store {
    Bytes {
        bytes: Bytes,
        offset: usize,
    },
    Floats(Vec<f32>),
    /// Bytes that are decoded when they are read.
    Pictures(Pictures),
    /// Windows over recordings.
    Windows(Streams),
}

/// The targets of all rows.
#[derive(Debug)]
pub(crate) enum Targets {
    Classes(Vec<u32>),
    Values { values: Vec<f32>, width: usize },
}

impl Targets {
    /// None of the same kind.
    pub fn empty(&self) -> Self {
        match self {
            Self::Classes(_) => Self::Classes(Vec::new()),
            Self::Values { width, .. } => Self::Values { values: Vec::new(), width: *width },
        }
    }
}

/// One file's worth of rows, checked: every row has a target and every value is finite.
#[derive(Debug)]
pub(crate) struct Table {
    pub file: PathBuf,
    pub rows: u64,
    /// Shape of one row as it is stored.
    pub shape: Vec<usize>,
    pub store: Store,
    pub targets: Targets,
    /// What each value of a row is, where not all are numbers that are there.
    pub features: Vec<Feature>,
    /// The group of each row, where rows that belong together are held out together.
    pub groups: Option<Groups>,
}

/// What one value of a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A number.
    Number,
    /// A number, or `NaN` for one that is missing: it becomes the mean of the training rows that have one.
    NumberOrMissing,
    /// 1 if this word stands there, else 0; it is not scaled.
    Word,
}

/// What is made of a table.
#[derive(Debug, Default)]
pub(crate) struct Recipe {
    /// The number of classes if it is known beforehand.
    pub classes: Option<u32>,
    pub split: ValSplit,
    pub normalise: Normalise,
    pub normalise_targets: bool,
    pub augment: Augment,
    pub class_names: Vec<String>,
    /// The columns of a table in a text file.
    pub columns: Vec<ColumnUse>,
}

/// Makes the training and validation sets out of one table, or of two.
pub(crate) fn assemble(
    mut train: Table,
    mut val: Option<Table>,
    mut recipe: Recipe,
) -> Result<Opened, DataError> {
    if train.rows == 0 {
        return Err(DataError::Empty { file: train.file });
    }
    if let Some(val) = &val {
        if val.rows == 0 {
            return Err(DataError::Empty { file: val.file.clone() });
        }
        if val.shape != train.shape {
            let (expected, got) = (train.shape.clone(), val.shape.clone());
            return Err(DataError::Shape { file: val.file.clone(), expected, got });
        }
    }
    recipe.augment.check(&train.shape)?;
    if let Normalise::Scale(factor) = recipe.normalise
        && !factor.is_finite()
    {
        let got = factor.to_string();
        return Err(DataError::Option { option: "normalize", got, expected: "a finite factor" });
    }
    let classes = recipe.classes.or_else(|| {
        let highest =
            [Some(&train), val.as_ref()].into_iter().flatten().filter_map(Table::highest_class).max();
        highest.map(|class| class + 1)
    });
    if let (Some(_), HeldOut::Groups(names)) = (&val, &recipe.split.held_out) {
        let (got, expected) =
            (format!("[{}]", names.join(", ")), "scattered or last where a file of its own is held out");
        return Err(DataError::Option { option: "held_out", got, expected });
    }
    let (train_rows, held_out, groups) = match (&val, &train.groups) {
        (Some(val), groups) => {
            let groups = groups.as_ref().zip(val.groups.as_ref());
            let groups = groups.map(|(train, val)| HeldOutGroups::of_two(train, val));
            (Selection::Range { first: 0, len: train.rows }, None, groups)
        }
        (None, Some(groups)) => {
            let (train, val, groups) = recipe.split.cut_groups(groups)?;
            (train, val, Some(groups))
        }
        (None, None) => {
            let (kept, val) = recipe.split.cut(train.rows)?;
            (train.apart(kept, val.as_ref()), val, None)
        }
    };
    let fills = train.fills(&train_rows);
    let targets = train.target_scale(&train_rows).filter(|_| recipe.normalise_targets);
    for table in [Some(&mut train), val.as_mut()].into_iter().flatten() {
        table.complete(&fills, targets.as_ref());
    }
    let moments = match recipe.normalise {
        Normalise::Standardise => train.moments(&train_rows)?,
        Normalise::Scale(_) | Normalise::Keep => Vec::new(),
    };
    let mut scaling = Scaling::new(recipe.normalise, train.channels(), || moments);
    // Where there are words there is one dimension, and each feature is a channel.
    for (at, _) in train.features.iter().enumerate().filter(|(_, feature)| **feature == Feature::Word) {
        if at < scaling.mean.len() {
            (scaling.mean[at], scaling.factor[at]) = (0.0, 1.0);
        }
    }
    note_fills(&mut recipe.columns, &fills);
    let range = if recipe.augment.repaints() { train.range(&train_rows) } else { ValueRange::BYTES };
    let train = Arc::new(train);
    let spec = sample_spec(&train, &recipe, classes);
    let part = |table: &Arc<Table>, selection| -> Arc<dyn Dataset> {
        Arc::new(Rows {
            table: Arc::clone(table),
            selection,
            scaling: scaling.clone(),
            augment: recipe.augment,
            range,
            spec: spec.clone(),
        })
    };
    let val = match (val, held_out) {
        (Some(val), _) => {
            let len = val.rows;
            Some(part(&Arc::new(val), Selection::Range { first: 0, len }))
        }
        (None, held_out) => held_out.map(|rows| part(&train, rows)),
    };
    let class_names = match (recipe.class_names.is_empty(), classes) {
        (true, Some(classes)) => (0..classes).map(|class| class.to_string()).collect(),
        _ => recipe.class_names,
    };
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect();
    let preparation = Preparation {
        input: spec.input.clone(),
        target: spec.target.clone(),
        header: recipe.columns.iter().any(|column| column.name.is_some()),
        columns: recipe.columns,
        mean: wide(&scaling.mean),
        factor: wide(&scaling.factor),
        class_names: class_names.clone(),
        class_counts: Vec::new(),
        targets,
        picture: None,
        clip: None,
        window: None,
        cut: recipe.augment.cut(&train.shape),
        label: None,
    };
    let preparation = Some(preparation);
    let train = part(&train, train_rows);
    Ok(Opened { train, val, class_names, preparation, groups, examples: None, attribution: None })
}

/// Writes down what stands for the missing values of each column.
fn note_fills(columns: &mut [ColumnUse], fills: &[f32]) {
    let mut feature = 0;
    for column in columns {
        match &mut column.role {
            Role::Number { fill, .. } => {
                if let (Some(fill), Some(mean)) = (fill, fills.get(feature)) {
                    *fill = f64::from(*mean);
                }
                feature += 1;
            }
            Role::Category { words, .. } => feature += words.len(),
            Role::Target | Role::LeftOut(_) => {}
        }
    }
}

fn sample_spec(table: &Table, recipe: &Recipe, classes: Option<u32>) -> SampleSpec {
    let mut shape = table.shape.clone();
    if let [_, height, width] | [_, _, height, width] = &mut shape[..] {
        [*height, *width] = recipe.augment.output(*height, *width);
    }
    let target = match &table.targets {
        Targets::Classes(_) => {
            TargetSpec::Class { classes: classes.expect("a table of classes has a class") }
        }
        Targets::Values { width, .. } => TargetSpec::Values { width: *width },
    };
    SampleSpec { input: InputSpec::Values { shape }, target }
}

/// A label as a class, or an error that names its row.
pub(crate) fn class_of(file: &Path, row: u64, label: i64, classes: Option<u32>) -> Result<u32, DataError> {
    let bound = classes.unwrap_or(MAX_DERIVED_CLASSES);
    match u32::try_from(label) {
        Ok(class) if class < bound => Ok(class),
        _ => Err(DataError::LabelOutOfRange { file: file.to_owned(), row, label, classes: bound }),
    }
}

impl Table {
    /// The groups that are normalised together: channels of an image, columns of a table.
    fn channels(&self) -> usize {
        self.shape[0]
    }

    fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// Training rows without those at their end that share moments with the first that is held out.
    fn apart(&self, kept: Selection, held_out: Option<&Selection>) -> Selection {
        let (Store::Windows(streams), Some(held_out), Selection::Range { first, len }) =
            (&self.store, held_out, &kept)
        else {
            return kept;
        };
        let next = held_out.row(0) as usize;
        let shares = |len: &u64| *len > 0 && streams.overlap((first + len - 1) as usize, next);
        let len = (0..=*len).rev().find(|len| !shares(len)).unwrap_or(0);
        Selection::Range { first: *first, len }
    }

    fn highest_class(&self) -> Option<u32> {
        match &self.targets {
            Targets::Classes(classes) => classes.iter().max().copied(),
            Targets::Values { .. } => None,
        }
    }

    /// What stands for a missing value of each feature: its mean over those of these rows that have one. None where nothing
    /// can be missing.
    fn fills(&self, rows: &Selection) -> Vec<f32> {
        if !self.features.contains(&Feature::NumberOrMissing) {
            return Vec::new();
        }
        let values = match &self.store {
            Store::Floats(values) => values,
            Store::Windows(streams) => return streams.fills(rows),
            Store::Bytes { .. } | Store::Pictures(_) => return Vec::new(),
        };
        let width = self.width();
        let (mut sums, mut counts) = (vec![0.0f64; width], vec![0u64; width]);
        for row in (0..rows.len()).map(|at| rows.row(at) as usize) {
            for (at, value) in values[row * width..(row + 1) * width].iter().enumerate() {
                if !value.is_nan() {
                    sums[at] += f64::from(*value);
                    counts[at] += 1;
                }
            }
        }
        let mean = |(sum, count): (f64, u64)| (sum / count.max(1) as f64) as f32;
        sums.into_iter().zip(counts).map(mean).collect()
    }

    /// Mean and deviation of the targets of these rows, where they are numbers. A constant target has deviation 1.
    fn target_scale(&self, rows: &Selection) -> Option<TargetScale> {
        let Targets::Values { values, width } = &self.targets else { return None };
        let row = |at| rows.row(at) as usize;
        let moments =
            moments((0..rows.len()).map(|at| &values[row(at) * width..(row(at) + 1) * width]), *width);
        let deviation = |deviation: f64| if deviation > 0.0 { deviation } else { 1.0 };
        Some(TargetScale {
            mean: moments.iter().map(|moments| moments.mean).collect(),
            deviation: moments.iter().map(|moments| deviation(moments.deviation)).collect(),
        })
    }

    /// Puts the fills where values are missing, and brings targets to their scale.
    fn complete(&mut self, fills: &[f32], scale: Option<&TargetScale>) {
        if let (Store::Floats(values), false) = (&mut self.store, fills.is_empty()) {
            for row in values.chunks_exact_mut(fills.len()) {
                row.iter_mut()
                    .zip(fills)
                    .filter(|(value, _)| value.is_nan())
                    .for_each(|(value, fill)| *value = *fill);
            }
        }
        if let Store::Windows(streams) = &mut self.store {
            streams.complete(fills);
        }
        if let (Targets::Values { values, width }, Some(scale)) = (&mut self.targets, scale) {
            for row in values.chunks_exact_mut(*width) {
                let each = row.iter_mut().enumerate();
                each.for_each(|(target, value)| *value = scale.standardise(target, f64::from(*value)));
            }
        }
    }

    /// Between which values those of these rows lie.
    fn range(&self, rows: &Selection) -> ValueRange {
        let Store::Floats(values) = &self.store else { return ValueRange::BYTES };
        let width = self.width();
        let row = |row: usize| values[row * width..(row + 1) * width].iter().copied();
        ValueRange::of((0..rows.len()).flat_map(|at| row(rows.row(at) as usize)))
    }

    fn moments(&self, rows: &Selection) -> Result<Vec<Moments>, DataError> {
        let (width, channels) = (self.width(), self.channels());
        let place = |index: u64| {
            let row = rows.row(index) as usize;
            row * width..(row + 1) * width
        };
        Ok(match &self.store {
            Store::Bytes { bytes, offset } => {
                let data = &bytes[*offset..];
                byte_moments((0..rows.len()).map(|i| &data[place(i)]), channels)
            }
            Store::Floats(values) => moments((0..rows.len()).map(|i| &values[place(i)]), channels),
            Store::Windows(streams) => streams.moments(rows),
            Store::Pictures(pictures) => {
                let mut sums = ByteSums::new(channels);
                let numbers: Vec<usize> = (0..rows.len()).map(|i| rows.row(i) as usize).collect();
                for numbers in numbers.chunks(PICTURES) {
                    pictures.rows(numbers)?.iter().for_each(|pixels| sums.add(pixels));
                }
                sums.moments()
            }
        })
    }
}

/// Some rows of a table as a data set.
struct Rows {
    table: Arc<Table>,
    selection: Selection,
    scaling: Scaling,
    augment: Augment,
    /// Of the training part.
    range: ValueRange,
    spec: SampleSpec,
}

impl Dataset for Rows {
    fn len(&self) -> u64 {
        self.selection.len()
    }

    fn spec(&self) -> SampleSpec {
        self.spec.clone()
    }

    fn mix(&self) -> Mix {
        self.augment.mix
    }

    fn read(&self, index: u64, augment: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        let row = self.selection.row(index) as usize;
        match &self.table.targets {
            Targets::Classes(classes) => sample.set_class(classes[row]),
            Targets::Values { values, width } => {
                sample.target_values().copy_from_slice(&values[row * width..(row + 1) * width]);
            }
        }
        let width = self.table.width();
        let place = row * width..(row + 1) * width;
        match &self.table.store {
            Store::Bytes { bytes, offset } => {
                self.convert(&bytes[*offset..][place], augment, sample.values())
            }
            Store::Floats(values) => self.convert(&values[place], augment, sample.values()),
            Store::Pictures(pictures) => self.convert(&pictures.row(row)?, augment, sample.values()),
            Store::Windows(streams) => {
                let scaling = self.scaling.mean.iter().zip(&self.scaling.factor);
                let channels = sample.values().chunks_exact_mut(streams.length()).zip(scaling);
                for (channel, (out, (mean, factor))) in channels.enumerate() {
                    let values = out.iter_mut().zip(streams.channel(row, channel));
                    values.for_each(|(out, value)| *out = (value - mean) * factor);
                }
            }
        }
        Ok(())
    }

    fn label(&self, index: u64) -> Option<u32> {
        match &self.table.targets {
            Targets::Classes(classes) => Some(classes[self.selection.row(index) as usize]),
            Targets::Values { .. } => None,
        }
    }
}

impl Rows {
    /// Normalises one row into the batch, through the window of its augmentation if it has one.
    fn convert<T: Copy + Default + Into<f32>>(&self, row: &[T], key: Option<&Key>, out: &mut [f32]) {
        let Scaling { mean, factor } = &self.scaling;
        let plane = row.len() / mean.len();
        if plane == 1 {
            for (((out, value), mean), factor) in out.iter_mut().zip(row).zip(mean).zip(factor) {
                *out = ((*value).into() - mean) * factor;
            }
            return;
        }
        let planes = Planes::of(&self.table.shape).filter(|_| !self.augment.is_none());
        if let Some(planes) = planes.filter(|_| self.augment.repaints()) {
            self.augment.paint((row, planes), key, self.range, out);
            let channels = out.chunks_exact_mut(out.len() / mean.len()).zip(mean.iter().zip(factor));
            for (out, (mean, factor)) in channels {
                out.iter_mut().for_each(|value| *value = (*value - mean) * factor);
            }
            return;
        }
        // Of a clip all frames are varied alike.
        let frames = planes.map_or(1, |planes| planes.frames);
        let window =
            planes.map(|Planes { height, width, .. }| (self.augment.window(key, height, width), width));
        let out_plane = out.len() / mean.len();
        for (c, (channel, out)) in row.chunks_exact(plane).zip(out.chunks_exact_mut(out_plane)).enumerate() {
            let (mean, factor) = (mean[c], factor[c]);
            let scale = |value: T| (value.into() - mean) * factor;
            let Some((window, width)) = window else {
                out.iter_mut().zip(channel).for_each(|(out, value)| *out = scale(*value));
                continue;
            };
            for (image, out) in
                channel.chunks_exact(plane / frames).zip(out.chunks_exact_mut(out_plane / frames))
            {
                through_window(window, image, width, out, scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_beyond_the_classes_names_its_row() {
        let file = Path::new("y.npy");
        assert_eq!(class_of(file, 1, 9, Some(10)).unwrap(), 9);
        for (label, classes) in [(10, Some(10)), (-1, None), (i64::MAX, None), (1 << 20, None)] {
            let error = class_of(file, 77, label, classes).unwrap_err();
            assert!(error.to_string().contains(&format!("y.npy row 77: label {label}")), "{error}");
        }
    }
}
