//! The kinds of data that can be named in a configuration, and the one way to open them.

use crate::{
    CsvOptions, DataError, Dataset, DigitsOptions, IdxOptions, NpyOptions, TextOptions, TokensOptions,
};
use crate::{csv, digits, idx, npy, text, tokens};
use std::fmt;
use std::sync::Arc;

/// A data set by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Handwritten digits, 8x8, built into the program.
    Digits(DigitsOptions),
    /// Images in IDX files: MNIST and its family.
    Idx(IdxOptions),
    /// A table of numbers.
    Csv(CsvOptions),
    /// A pair of NumPy arrays.
    Npy(NpyOptions),
    /// A text, byte by byte.
    Text(TextOptions),
    /// Token ids that a tokenizer wrote.
    Tokens(TokensOptions),
}

/// A data set ready for use.
pub struct Opened {
    /// The training part.
    pub train: Arc<dyn Dataset>,
    /// The validation part, if there is one.
    pub val: Option<Arc<dyn Dataset>>,
    /// A name per class; empty if no class is predicted, or if the classes are tokens.
    pub class_names: Vec<String>,
    /// Whom to thank, if the data ship with dtrain.
    pub attribution: Option<&'static str>,
}

impl Opened {
    /// A data set of one's own, without validation.
    #[must_use]
    pub fn new(train: Arc<dyn Dataset>) -> Self {
        Self { train, val: None, class_names: Vec::new(), attribution: None }
    }

    /// With samples to validate on.
    #[must_use]
    pub fn with_validation(self, val: Arc<dyn Dataset>) -> Self {
        Self { val: Some(val), ..self }
    }

    /// With a name per class.
    #[must_use]
    pub fn with_classes(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { class_names: names.into_iter().map(Into::into).collect(), ..self }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("train", &self.train.len())
            .field("val", &self.val.as_ref().map(|val| val.len()))
            .field("spec", &self.train.spec())
            .finish_non_exhaustive()
    }
}

/// Opens a data set.
///
/// *Errors*: see [`DataError`]; whatever is wrong with the files is found here, not in the middle of a run,
/// except token ids beyond the vocabulary, which are found where they are read.
/// *Order*: splits and statistics depend on the files and options alone.
pub fn open(source: &Source) -> Result<Opened, DataError> {
    let opened = match source {
        Source::Digits(options) => digits::open(options),
        Source::Idx(options) => idx::open(options),
        Source::Csv(options) => csv::open(options),
        Source::Npy(options) => npy::open(options),
        Source::Text(options) => text::open(options),
        Source::Tokens(options) => tokens::open(options),
    }?;
    tracing::debug!(
        train = opened.train.len(),
        val = opened.val.as_ref().map(|val| val.len()),
        "data set opened"
    );
    Ok(opened)
}
