//! Arrays of inputs without targets: what is to be predicted.

use crate::bytes::open_lines;
use crate::rows::Store;
use crate::{DataError, InputSpec, Preparation, idx, npy};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// Samples of a `.npy` or IDX file.
#[derive(Debug)]
pub struct InputArray {
    rows: u64,
    width: usize,
    store: Store,
    state: State,
}

/// What was done to samples before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// They are as those of training.
    Whole,
    /// They are cut as the model takes them.
    Cut,
}

/// The formats of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    NumPy,
    Idx,
}

/// What may be predicted.
pub const INPUT_NEEDS: &str = "an input is a table, a .npy array, an IDX file, an image, a clip or a folder of them, or - for standard input";

/// The format of a file, by its first bytes; none if it is no array.
pub(crate) fn format(file: &Path, needs: &'static str) -> Result<Option<Format>, DataError> {
    let mut start = Vec::new();
    let read = open_lines(file, needs)?.take(6).read_to_end(&mut start);
    read.map_err(|error| DataError::io(file, needs, error))?;
    Ok(match start[..] {
        [0x93, b'N', b'U', b'M', b'P', b'Y'] => Some(Format::NumPy),
        [0, 0, 8, ..] => Some(Format::Idx),
        _ => None,
    })
}

impl InputArray {
    /// Opens a file; nothing if it is no array.
    ///
    /// *Errors*: samples of another shape than those of training; a damaged file.
    pub fn open(file: &Path, preparation: &Preparation) -> Result<Option<Self>, DataError> {
        let (rows, got, store) = match format(file, INPUT_NEEDS)? {
            Some(Format::NumPy) => npy::inputs(file)?,
            Some(Format::Idx) => idx::images(file)?,
            None => return Ok(None),
        };
        let shape = |input: &InputSpec| match input {
            InputSpec::Values { shape } => shape.clone(),
            InputSpec::Tokens { length, .. } => vec![*length],
        };
        let expected = shape(&preparation.whole());
        // One channel need not be said.
        let said = |shape: &[usize]| shape.strip_prefix(&[1]).unwrap_or(shape).to_vec();
        let state = match said(&got) {
            got if got == said(&expected) => State::Whole,
            got if got == said(&shape(&preparation.input)) => State::Cut,
            _ => return Err(DataError::OtherShape { file: file.to_owned(), expected, got }),
        };
        Ok(Some(Self { rows, width: got.iter().product(), store, state }))
    }

    /// How many samples there are.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The values of these samples, normalised as those of training were: what a model takes.
    ///
    /// *Panics* if there are no such samples.
    #[must_use]
    pub fn read(&self, rows: Range<u64>, preparation: &Preparation) -> Vec<f32> {
        let place = rows.start as usize * self.width..rows.end as usize * self.width;
        let mut values: Vec<f32> = match &self.store {
            Store::Floats(values) => values[place].to_vec(),
            Store::Pictures(_) | Store::Windows(_) => unreachable!("an array is no folder"),
            Store::Bytes { bytes, offset } => {
                bytes[*offset..][place].iter().map(|byte| f32::from(*byte)).collect()
            }
        };
        let mut width = self.width;
        if let (State::Whole, Some(_)) = (self.state, preparation.cut) {
            let rows = values.chunks_exact(self.width);
            values = rows.flat_map(|row| preparation.middle(row.to_vec())).collect();
            width = preparation.spec().input_width();
        }
        values.chunks_exact_mut(width).for_each(|row| preparation.normalise(row));
        values
    }
}
