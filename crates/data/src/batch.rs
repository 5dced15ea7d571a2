//! The buffers of one micro-batch, filled by a data set and recycled by the loader.
//!
//! A batch does not know which samples belong into it; see [`crate::Feed`] and [`crate::EvaluationPlan`].

use crate::augment::{mix_all, with_the_one_before};
use crate::dataset::RowMut;
use crate::{DataError, Dataset, IGNORED, InputSpec, Mix, SampleSlot, SampleSpec, TargetSpec};
use dtrain_types::{Key, MicroBatch, Step};

/// The elements of one side of a batch, row after row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elements<'a> {
    /// Real numbers.
    F32(&'a [f32]),
    /// Tokens or classes.
    U32(&'a [u32]),
}

impl<'a> Elements<'a> {
    /// The numbers.
    ///
    /// *Panics* if these are tokens or classes.
    #[must_use]
    pub fn f32(self) -> &'a [f32] {
        match self {
            Self::F32(values) => values,
            Self::U32(_) => panic!("these elements are u32, not f32"),
        }
    }

    /// The tokens or classes.
    ///
    /// *Panics* if these are numbers.
    #[must_use]
    pub fn u32(self) -> &'a [u32] {
        match self {
            Self::U32(values) => values,
            Self::F32(_) => panic!("these elements are f32, not u32"),
        }
    }
}

#[derive(Clone, Debug)]
enum Buffer {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

impl Buffer {
    fn rows(&self, elements: usize) -> Elements<'_> {
        match self {
            Self::F32(v) => Elements::F32(&v[..elements]),
            Self::U32(v) => Elements::U32(&v[..elements]),
        }
    }

    /// Row `row`, reset: a recycled buffer must not let the batch before it shine through.
    fn fresh_row(&mut self, row: usize, width: usize, empty: u32) -> RowMut<'_> {
        let place = row * width..(row + 1) * width;
        match self {
            Self::F32(v) => {
                let row = &mut v[place];
                row.fill(0.0);
                RowMut::F32(row)
            }
            Self::U32(v) => {
                let row = &mut v[place];
                row.fill(empty);
                RowMut::U32(row)
            }
        }
    }
}

/// One micro-batch: inputs, targets, and where it stands in the run.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) step: Step,
    pub(crate) micro_batch: MicroBatch,
    pub(crate) check: u64,
    rows: usize,
    capacity: usize,
    spec: SampleSpec,
    input_width: usize,
    target_width: usize,
    inputs: Buffer,
    targets: Buffer,
    /// What its samples are mixed in, if they are.
    mixed: Option<Mixed>,
}

/// Memory for mixing.
#[derive(Clone, Debug)]
struct Mixed {
    /// An input, and a target of numbers.
    input: Vec<f32>,
    target: Vec<f32>,
    /// Of each sample a class, another, and a share.
    classes: Vec<u32>,
}

/// One sample to be read into a batch.
pub(crate) struct Wanted {
    pub sample: u64,
    pub augment: Option<Key>,
}

impl Batch {
    /// Allocates buffers for up to `capacity` samples of this kind.
    #[must_use]
    pub fn new(spec: &SampleSpec, capacity: usize) -> Self {
        let (input_width, target_width) = (spec.input_width(), spec.target_width());
        let inputs = match spec.input {
            InputSpec::Values { .. } => Buffer::F32(vec![0.0; capacity * input_width]),
            InputSpec::Tokens { .. } => Buffer::U32(vec![0; capacity * input_width]),
        };
        let targets = match spec.target {
            TargetSpec::Class { .. } | TargetSpec::ClassPerToken { .. } => {
                Buffer::U32(vec![IGNORED; capacity * target_width])
            }
            TargetSpec::Values { .. } => Buffer::F32(vec![0.0; capacity * target_width]),
        };
        Self {
            step: Step(0),
            micro_batch: MicroBatch(0),
            check: 0,
            rows: 0,
            capacity,
            spec: spec.clone(),
            input_width,
            target_width,
            inputs,
            targets,
            mixed: None,
        }
    }

    /// The same for samples that are mixed once they are read.
    #[must_use]
    pub(crate) fn with_mixing(mut self) -> Self {
        let classes = if self.spec.classes().is_some() { 3 * self.capacity } else { 0 };
        let target = if classes > 0 { 0 } else { self.target_width };
        self.mixed = Some(Mixed {
            input: vec![0.0; self.input_width],
            target: vec![0.0; target],
            classes: vec![0; classes],
        });
        self
    }

    /// Mixes the samples that were read, and their targets, as a key draws.
    pub(crate) fn mix(&mut self, mix: &Mix, key: &Key) {
        let (Some(mixed), Buffer::F32(inputs)) = (&mut self.mixed, &mut self.inputs) else { return };
        let InputSpec::Values { shape } = &self.spec.input else { return };
        let inputs = &mut inputs[..self.rows * self.input_width];
        let share = mix.samples(inputs, shape, key, &mut mixed.input);
        match &mut self.targets {
            Buffer::U32(classes) => {
                let classes = &classes[..self.rows];
                let others = classes.iter().cycle().skip(self.rows.saturating_sub(1));
                let pairs = classes.iter().zip(others).zip(mixed.classes.as_chunks_mut().0);
                pairs.for_each(|((own, other), mixed)| *mixed = [*own, *other, share.to_bits()]);
            }
            Buffer::F32(values) if self.rows > 1 => {
                let values = &mut values[..self.rows * self.target_width];
                with_the_one_before(values, &mut mixed.target, |own, other| mix_all(own, other, share));
            }
            Buffer::F32(_) => {}
        }
    }

    /// The step it belongs to; 0 for validation.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Its number in the step, or in the validation set.
    #[must_use]
    pub fn micro_batch(&self) -> MicroBatch {
        self.micro_batch
    }

    /// How many samples it holds.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many samples it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What each of its samples looks like.
    #[must_use]
    pub fn spec(&self) -> &SampleSpec {
        &self.spec
    }

    /// The ledger's word: the wrapping sum of [`dtrain_types::BatchPlan::check`] over the samples really read; 0 for
    /// validation.
    #[must_use]
    pub fn check(&self) -> u64 {
        self.check
    }

    /// The inputs. *Shape*: `[rows, ...]` as in the spec.
    #[must_use]
    pub fn inputs(&self) -> Elements<'_> {
        self.inputs.rows(self.rows * self.input_width)
    }

    /// The classes of samples that were mixed: of each its own, the other one, and the share of the first, as the bits of an f32; nothing
    /// where none are. *Shape*: `[rows, 3]`.
    #[must_use]
    pub fn mixed_classes(&self) -> Option<&[u32]> {
        let mixed = self.mixed.as_ref().filter(|mixed| !mixed.classes.is_empty());
        mixed.map(|mixed| &mixed.classes[..3 * self.rows])
    }

    /// The targets; of samples that were mixed their own classes, or mixed numbers. *Shape*: `[rows]`, `[rows, length]` or
    /// `[rows, width]`.
    #[must_use]
    pub fn targets(&self) -> Elements<'_> {
        self.targets.rows(self.rows * self.target_width)
    }

    /// Reads the wanted samples into rows 0, 1, ... and forgets what was there.
    ///
    /// *Errors*: what the data set gives, and tokens or classes outside the spec; the batch is then empty.
    /// *Panics* if there are more samples than rows.
    pub(crate) fn fill(
        &mut self,
        dataset: &dyn Dataset,
        wanted: impl Iterator<Item = Wanted>,
    ) -> Result<(), DataError> {
        self.rows = 0;
        let mut rows = 0;
        for want in wanted {
            assert!(rows < self.capacity, "a batch of {} rows is full", self.capacity);
            let mut slot = SampleSlot {
                input: self.inputs.fresh_row(rows, self.input_width, 0),
                target: self.targets.fresh_row(rows, self.target_width, IGNORED),
            };
            dataset.read(want.sample, want.augment.as_ref(), &mut slot)?;
            inside_spec(&self.spec, want.sample, &slot)?;
            rows += 1;
        }
        self.rows = rows;
        Ok(())
    }
}

/// A wrong class would index past the end of a row of logits, so it stops here, with the sample's number.
fn inside_spec(spec: &SampleSpec, sample: u64, slot: &SampleSlot<'_>) -> Result<(), DataError> {
    if let (InputSpec::Tokens { vocabulary, .. }, RowMut::U32(tokens)) = (&spec.input, &slot.input)
        && let Some(token) = tokens.iter().find(|t| *t >= vocabulary)
    {
        return Err(DataError::TokenOutOfRange { sample, token: *token, vocabulary: *vocabulary });
    }
    let RowMut::U32(classes_read) = &slot.target else { return Ok(()) };
    let wrong = match spec.target {
        TargetSpec::Class { classes } => classes_read.iter().find(|c| **c >= classes).map(|c| (*c, classes)),
        TargetSpec::ClassPerToken { classes } => {
            classes_read.iter().find(|c| **c >= classes && **c != IGNORED).map(|c| (*c, classes))
        }
        TargetSpec::Values { .. } => None,
    };
    match wrong {
        Some((IGNORED, _)) => Err(DataError::NoClassSet { sample }),
        Some((class, classes)) => Err(DataError::ClassOutOfRange { sample, class, classes }),
        None => Ok(()),
    }
}
