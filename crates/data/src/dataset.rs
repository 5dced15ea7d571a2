//! What a data set is to the rest of dtrain: samples by number, written straight into a batch.
//!
//! This is also the seam for data of your own. It does not know in which order samples are read, nor how many
//! make a batch.

use crate::{DataError, Mix};
use dtrain_types::{Key, MicroBatch, Step};
use serde::{Deserialize, Serialize};

/// The class of a token that counts neither in the loss nor in the accuracy.
pub const IGNORED: u32 = u32::MAX;

/// What the inputs of one sample are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    /// Real numbers.
    Values {
        /// Shape of one sample: `[features]`, or `[channels, height, width]`.
        shape: Vec<usize>,
    },
    /// Tokens of a vocabulary.
    Tokens {
        /// Tokens in one sample.
        length: usize,
        /// Every token is below this.
        vocabulary: u32,
    },
}

/// What is to be predicted for one sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetSpec {
    /// One class.
    Class {
        /// Every class is below this.
        classes: u32,
    },
    /// One class for each token of the input; [`IGNORED`] where none is asked for.
    ClassPerToken {
        /// Every class is below this.
        classes: u32,
    },
    /// Real numbers.
    Values {
        /// How many.
        width: usize,
    },
}

/// What one sample looks like; the same for every sample of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSpec {
    /// Its inputs.
    pub input: InputSpec,
    /// Its target.
    pub target: TargetSpec,
}

impl SampleSpec {
    /// Input elements of one sample.
    #[must_use]
    pub fn input_width(&self) -> usize {
        match &self.input {
            InputSpec::Values { shape } => shape.iter().product(),
            InputSpec::Tokens { length, .. } => *length,
        }
    }

    /// Target elements of one sample.
    #[must_use]
    pub fn target_width(&self) -> usize {
        match &self.target {
            TargetSpec::Class { .. } => 1,
            TargetSpec::ClassPerToken { .. } => self.input_width(),
            TargetSpec::Values { width } => *width,
        }
    }

    /// How many classes there are, if classes are predicted.
    #[must_use]
    pub fn classes(&self) -> Option<u32> {
        match self.target {
            TargetSpec::Class { classes } | TargetSpec::ClassPerToken { classes } => Some(classes),
            TargetSpec::Values { .. } => None,
        }
    }
}

/// A set of samples with numbers from 0.
///
/// `read` may be called by several threads at once and in any order, so it must depend on its arguments alone: then
/// a run has the same bits however many workers read ahead.
///
/// ```
/// use dtrain_data::{DataError, Dataset, InputSpec, SampleSlot, SampleSpec, TargetSpec};
/// use dtrain_types::{Key, MicroBatch, Step};
///
/// /// Is the sum of two numbers above one?
/// struct Sums;
///
/// impl Dataset for Sums {
///     fn len(&self) -> u64 {
///         10_000
///     }
///     fn spec(&self) -> SampleSpec {
///         SampleSpec { input: InputSpec::Values { shape: vec![2] }, target: TargetSpec::Class { classes: 2 } }
///     }
///     fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
///         let pair = [(index % 100) as f32 / 100.0, (index / 100) as f32 / 100.0];
///         sample.values().copy_from_slice(&pair);
///         sample.set_class(u32::from(pair[0] + pair[1] > 1.0));
///         Ok(())
///     }
/// }
/// # assert_eq!(Sums.len(), 10_000);
/// ```
pub trait Dataset: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each sample looks like.
    fn spec(&self) -> SampleSpec;

    /// Writes sample `index` (below [`Dataset::len`]) into one row of a batch. The row comes zeroed.
    ///
    /// With a key the sample may be varied at random, drawing from that key only: the key names the place of the
    /// sample in the run, so the draw repeats wherever and whenever the row is read. Without one (validation) the
    /// sample is read as it is.
    ///
    /// *Errors*: whatever reading can meet; [`DataError::other`] wraps any error.
    fn read(&self, index: u64, augment: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError>;

    /// Hears which samples of a micro-batch will be read, in their order, before the first of them is: a data set that reads in other
    /// processes can begin. It hears so from any thread, of micro-batches of training alone, and maybe of some that nobody reads
    /// in the end.
    fn announce(&self, micro_batch: (Step, MicroBatch), samples: &mut dyn Iterator<Item = u64>) {
        let _ = (micro_batch, samples);
    }

    /// How the samples of a micro-batch are mixed with each other once they are read, in training.
    fn mix(&self) -> Mix {
        Mix::default()
    }

    /// The class of sample `index` when that is known without reading its inputs. Only a short cut for counting.
    fn label(&self, index: u64) -> Option<u32> {
        let _ = index;
        None
    }
}

/// One row of a batch, to be written by [`Dataset::read`].
///
/// *Panics*: a method panics if the data set's spec says that the row holds something else.
#[derive(Debug)]
pub struct SampleSlot<'a> {
    pub(crate) input: RowMut<'a>,
    pub(crate) target: RowMut<'a>,
}

/// A row of one of the two buffers.
#[derive(Debug)]
pub(crate) enum RowMut<'a> {
    F32(&'a mut [f32]),
    U32(&'a mut [u32]),
}

impl SampleSlot<'_> {
    /// The input numbers, in the order of the spec's shape (last dimension innermost).
    pub fn values(&mut self) -> &mut [f32] {
        match &mut self.input {
            RowMut::F32(row) => row,
            RowMut::U32(_) => panic!("the spec says that inputs are tokens, not values"),
        }
    }

    /// The input tokens.
    pub fn tokens(&mut self) -> &mut [u32] {
        match &mut self.input {
            RowMut::U32(row) => row,
            RowMut::F32(_) => panic!("the spec says that inputs are values, not tokens"),
        }
    }

    /// Sets the class of the sample.
    pub fn set_class(&mut self, class: u32) {
        match &mut self.target {
            RowMut::U32(row) if row.len() == 1 => row[0] = class,
            RowMut::U32(row) => panic!("the spec says that there are {} classes, one per token", row.len()),
            RowMut::F32(_) => panic!("the spec says that targets are values, not a class"),
        }
    }

    /// The target classes, one per token. They come as [`IGNORED`].
    pub fn token_classes(&mut self) -> &mut [u32] {
        match &mut self.target {
            RowMut::U32(row) => row,
            RowMut::F32(_) => panic!("the spec says that targets are values, not classes"),
        }
    }

    /// The target numbers.
    pub fn target_values(&mut self) -> &mut [f32] {
        match &mut self.target {
            RowMut::F32(row) => row,
            RowMut::U32(_) => panic!("the spec says that targets are classes, not values"),
        }
    }
}
