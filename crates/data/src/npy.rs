//! Pairs of NumPy arrays: one of inputs, one of targets, the first dimension counting samples.
//!
//! Arrays of bytes are mapped and stay bytes; others are converted to `f32` when they are opened. It does not know
//! archives (`.npz`), objects or Fortran order.
//!
//! *Source*: NEP 1, "A simple file format for NumPy arrays".

mod header;

use crate::bytes::{Bytes, open_lines};
use crate::rows::{Recipe, Store, Table, Targets, assemble, class_of};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
use header::{Element, Header};
use std::io::Read;
use std::path::{Path, PathBuf};

const NEEDS: &str = "kind npy needs `inputs` and `targets`, two arrays saved by numpy.save";

/// What the array of targets holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NpyTarget {
    /// Whole numbers are classes, real numbers are values.
    #[default]
    ByType,
    /// Classes.
    Class {
        /// The number of classes; by default one more than the highest label.
        classes: Option<u32>,
    },
    /// Numbers to be predicted.
    Value,
}

/// Which arrays, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct NpyOptions {
    /// Training inputs. *Shape*: `[n, features]`, `[n, height, width]`, or `[n, channels, ...]` with two or more sides.
    pub inputs: PathBuf,
    /// Training targets. *Shape*: `[n]` for classes; `[n]` or `[n, width]` for values.
    pub targets: PathBuf,
    /// Validation inputs and targets; without them `val_split` says what is held out.
    pub val: Option<(PathBuf, PathBuf)>,
    /// What is held out if there are no validation arrays.
    pub val_split: ValSplit,
    /// What the targets are.
    pub target: NpyTarget,
    /// Variations of the training samples, if they are images.
    pub augment: Augment,
    /// Scaling per channel or column.
    pub normalise: Normalise,
    /// Whether targets that are numbers are brought to mean 0 and deviation 1.
    pub normalise_targets: bool,
}

impl NpyOptions {
    /// A pair of arrays; nothing is held out.
    #[must_use]
    pub fn new(inputs: impl Into<PathBuf>, targets: impl Into<PathBuf>) -> Self {
        Self {
            inputs: inputs.into(),
            targets: targets.into(),
            val: None,
            val_split: ValSplit::default(),
            target: NpyTarget::default(),
            augment: Augment::default(),
            normalise: Normalise::default(),
            normalise_targets: false,
        }
    }
}

pub(crate) fn open(options: &NpyOptions) -> Result<Opened, DataError> {
    let train = table(&options.inputs, &options.targets, options.target)?;
    // The training part decides; a validation array of another type must not turn classes into values.
    let target = match (&train.targets, options.target) {
        (Targets::Classes(_), NpyTarget::ByType) => NpyTarget::Class { classes: None },
        (Targets::Values { .. }, _) => NpyTarget::Value,
        (_, given) => given,
    };
    let val = match &options.val {
        Some((inputs, targets)) => Some(table(inputs, targets, target)?),
        None => None,
    };
    if let (Targets::Values { width, .. }, Some(Targets::Values { width: got, .. }), Some((_, file))) =
        (&train.targets, val.as_ref().map(|val| &val.targets), &options.val)
        && width != got
    {
        return Err(DataError::Shape { file: file.clone(), expected: vec![*width], got: vec![*got] });
    }
    let recipe = Recipe {
        classes: if let NpyTarget::Class { classes } = options.target { classes } else { None },
        split: options.val_split.clone(),
        normalise: options.normalise,
        augment: options.augment,
        normalise_targets: options.normalise_targets,
        ..Recipe::default()
    };
    assemble(train, val, recipe)
}

fn table(inputs_file: &Path, targets_file: &Path, target: NpyTarget) -> Result<Table, DataError> {
    let inputs = Array::open(inputs_file)?;
    let targets = Array::open(targets_file)?;
    let (rows, count) = (inputs.rows(), targets.rows());
    if rows != count {
        return Err(DataError::CountMismatch {
            inputs_file: inputs_file.to_owned(),
            inputs: rows,
            targets_file: targets_file.to_owned(),
            targets: count,
        });
    }
    let shape = shape_of_row(&inputs.header);
    let targets = match target {
        NpyTarget::Class { classes } => targets.classes(classes)?,
        NpyTarget::ByType if targets.header.element.is_whole() => targets.classes(None)?,
        NpyTarget::ByType | NpyTarget::Value => {
            let width = targets.header.shape[1..].iter().product();
            Targets::Values { values: targets.floats()?, width }
        }
    };
    let store = match inputs.header.element {
        Element::U1 => Store::Bytes { offset: inputs.header.offset, bytes: inputs.bytes },
        _ => Store::Floats(inputs.floats()?),
    };
    let file = inputs_file.to_owned();
    Ok(Table { file, rows, shape, store, targets, features: Vec::new(), groups: None })
}

/// The rows of an array of inputs alone: their number, the shape of one, and their values.
pub(crate) fn inputs(file: &Path) -> Result<(u64, Vec<usize>, Store), DataError> {
    let array = Array::open(file)?;
    let (rows, shape) = (array.rows(), shape_of_row(&array.header));
    let store = match array.header.element {
        Element::U1 => Store::Bytes { offset: array.header.offset, bytes: array.bytes },
        _ => Store::Floats(array.floats()?),
    };
    Ok((rows, shape, store))
}

/// The shape of an array of bytes, its file, and where its elements begin in that.
///
/// *Errors*: it is none, or is damaged.
pub(crate) fn bytes(file: &Path) -> Result<(Vec<usize>, Bytes, usize), DataError> {
    let Array { header, bytes, .. } = Array::open(file)?;
    match header.element {
        Element::U1 => Ok((header.shape, bytes, header.offset)),
        other => {
            let got = format!("{} bytes each", other.size());
            Err(DataError::ElementType { file: file.to_owned(), expected: "uint8", got })
        }
    }
}

/// The elements of an array, and the shape of one row of them: `[]` where a row is one number.
pub(crate) fn numbers(file: &Path) -> Result<(Vec<usize>, Vec<f64>), DataError> {
    let array = Array::open(file)?;
    let numbers: Vec<f64> = array.elements().collect();
    if let Some(place) = numbers.iter().position(|number| !number.is_finite()) {
        let width = array.header.shape[1..].iter().product::<usize>();
        let (row, element, value) = ((place / width) as u64 + 1, place % width + 1, numbers[place]);
        return Err(DataError::NotFinite { file: file.to_owned(), row, element, value });
    }
    Ok((array.header.shape[1..].to_vec(), numbers))
}

/// One value, an image of one channel, or as it stands.
fn shape_of_row(header: &Header) -> Vec<usize> {
    match header.shape[1..] {
        [] => vec![1],
        [height, width] => vec![1, height, width],
        ref shape => shape.to_vec(),
    }
}

/// The most bytes that the header of an array of inputs has here.
const LONGEST_HEADER: u64 = 1 << 17;

/// The shape of one sample of an array of inputs, as its header says; `None` if there is no such file, or it is no array.
///
/// *Blocks* on the disk for the first bytes alone.
#[must_use]
pub fn sample_shape(inputs: &Path) -> Option<Vec<usize>> {
    // The bytes of a pipe are there once, for who opens it.
    if !inputs.metadata().ok()?.is_file() {
        return None;
    }
    let mut start = Vec::new();
    open_lines(inputs, NEEDS).ok()?.take(LONGEST_HEADER).read_to_end(&mut start).ok()?;
    Header::parse(inputs, &start).ok().map(|header| shape_of_row(&header))
}

/// One array: its header, checked against the length of its file.
struct Array {
    file: PathBuf,
    header: Header,
    bytes: Bytes,
}

impl Array {
    fn open(file: &Path) -> Result<Self, DataError> {
        let bytes = Bytes::open(file, NEEDS)?;
        let header = Header::parse(file, &bytes)?;
        if header.shape.contains(&0) {
            return Err(DataError::Empty { file: file.to_owned() });
        }
        let elements =
            header.shape.iter().fold(header.element.size() as u64, |n, dim| n.saturating_mul(*dim as u64));
        let (expected, got) = (elements.saturating_add(header.offset as u64), bytes.len() as u64);
        if expected != got {
            return Err(DataError::WrongLength { file: file.to_owned(), expected, got });
        }
        Ok(Self { file: file.to_owned(), header, bytes })
    }

    fn rows(&self) -> u64 {
        self.header.shape[0] as u64
    }

    /// The elements, each exactly as `f64` but for whole numbers beyond 2^53.
    fn elements(&self) -> impl Iterator<Item = f64> + '_ {
        let element = self.header.element;
        self.bytes[self.header.offset..].chunks_exact(element.size()).map(move |bytes| element.value(bytes))
    }

    fn floats(&self) -> Result<Vec<f32>, DataError> {
        let width = self.header.shape[1..].iter().product::<usize>();
        let finite = |(place, value): (usize, f64)| {
            let narrow = value as f32;
            if narrow.is_finite() {
                return Ok(narrow);
            }
            let (row, element) = ((place / width) as u64 + 1, place % width + 1);
            Err(DataError::NotFinite { file: self.file.clone(), row, element, value })
        };
        self.elements().enumerate().map(finite).collect()
    }

    fn classes(&self, classes: Option<u32>) -> Result<Targets, DataError> {
        if self.header.shape[1..].iter().product::<usize>() != 1 {
            let (expected, got) = (vec![self.header.shape[0]], self.header.shape.clone());
            return Err(DataError::Shape { file: self.file.clone(), expected, got });
        }
        let class = |(row, value): (u64, f64)| {
            if value.fract() == 0.0 {
                return class_of(&self.file, row, value as i64, classes);
            }
            Err(DataError::LabelNotInteger { file: self.file.clone(), row, text: value.to_string() })
        };
        Ok(Targets::Classes((1..).zip(self.elements()).map(class).collect::<Result<_, _>>()?))
    }
}
