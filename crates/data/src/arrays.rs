//! Arrays of inputs without targets: what is to be predicted.

use crate::rows::Store;
use crate::{DataError, InputSpec, Preparation, idx, npy};
use std::ops::Range;
use std::path::Path;

/// Samples of a `.npy` or IDX file.
#[derive(Debug)]
pub struct InputArray {
    rows: u64,
    width: usize,
    store: Store,
}

/// Whether a file begins as an array does, and not as text.
///
/// *Errors*: it cannot be read.
pub fn is_array(file: &Path) -> Result<bool, DataError> {
    let needs = "an input is a table, a .npy array, an IDX file, or - for standard input";
    let mut start = Vec::new();
    let reader = crate::bytes::open_lines(file, needs)?;
    let read = std::io::Read::read_to_end(&mut std::io::Read::take(reader, 6), &mut start);
    read.map_err(|error| DataError::io(file, needs, error))?;
    Ok(start.starts_with(b"\x93NUMPY") || start.starts_with(&[0, 0, 8]))
}

impl InputArray {
    /// Opens a file.
    ///
    /// *Errors*: samples of another shape than those of training; a damaged file.
    pub fn open(file: &Path, preparation: &Preparation) -> Result<Self, DataError> {
        let numpy = npy::inputs(file);
        let (rows, got, store) = match numpy {
            Err(DataError::Header { .. } | DataError::WrongMagic { .. }) => idx::images(file)?,
            other => other?,
        };
        let expected = match &preparation.input {
            InputSpec::Values { shape } => shape.clone(),
            InputSpec::Tokens { length, .. } => vec![*length],
        };
        // One channel need not be said.
        let said = |shape: &[usize]| shape.strip_prefix(&[1]).unwrap_or(shape).to_vec();
        if said(&got) != said(&expected) {
            return Err(DataError::OtherShape { file: file.to_owned(), expected, got });
        }
        Ok(Self { rows, width: expected.iter().product(), store })
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
            Store::Bytes { bytes, offset } => {
                bytes[*offset..][place].iter().map(|byte| f32::from(*byte)).collect()
            }
        };
        values.chunks_exact_mut(self.width).for_each(|row| preparation.normalise(row));
        values
    }
}
