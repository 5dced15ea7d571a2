//! Targets without inputs: what is true of samples that lie in another file.
//!
//! It does not know what is predicted of them.

use crate::arrays::{Format, format};
use crate::{DataError, Preparation, TargetSpec, idx, npy};
use std::path::Path;

/// Targets of a `.npy` or IDX file, as numbers.
#[derive(Debug)]
pub struct TargetArray {
    values: Vec<f64>,
    width: usize,
}

/// What may hold targets.
const NEEDS: &str = "targets are a .npy array, or labels in an IDX file";

impl TargetArray {
    /// Opens targets of a model whose samples are prepared so: one class a sample, or as many numbers as it predicts.
    ///
    /// *Errors*: no array; another shape; a class that the model does not know; a damaged file. *Panics* for a model of texts.
    pub fn open(file: &Path, preparation: &Preparation) -> Result<Self, DataError> {
        let (shape, values) = match format(file, NEEDS)? {
            Some(Format::NumPy) => npy::numbers(file)?,
            Some(Format::Idx) => (Vec::new(), idx::labels(file)?),
            None => return Err(DataError::NoArray { file: file.to_owned(), needs: NEEDS }),
        };
        let (expected, classes) = match preparation.target {
            TargetSpec::Class { classes } => (1, Some(classes)),
            TargetSpec::Values { width } => (width, None),
            TargetSpec::ClassPerToken { .. } => panic!("the targets of a text are its tokens"),
        };
        if shape.iter().product::<usize>() != expected {
            return Err(DataError::TargetShape { file: file.to_owned(), expected, got: shape });
        }
        if let Some(classes) = classes {
            let is_class = |value: f64| value.fract() == 0.0 && (0.0..f64::from(classes)).contains(&value);
            if let Some((row, value)) = (1..).zip(&values).find(|(_, value)| !is_class(**value)) {
                return Err(DataError::NoClass { file: file.to_owned(), row, label: *value, classes });
            }
        }
        Ok(Self { values, width: expected })
    }

    /// How many samples there are targets of.
    #[must_use]
    pub fn rows(&self) -> u64 {
        (self.values.len() / self.width) as u64
    }

    /// The targets, sample by sample: a class, or numbers in their own unit.
    pub fn samples(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.width)
    }
}
