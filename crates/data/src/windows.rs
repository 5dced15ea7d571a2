//! Windows over a sequence of tokens: sample `i` reads `context` tokens from `i * context` and predicts the token after
//! each.
//!
//! Windows do not overlap, so an epoch reads each token once. Tokens after the last full window of a part are not
//! used. It does not know how a token lies in a file.

use crate::split::held_out_count;
use crate::{DataError, InputSpec, SampleSpec, TargetSpec};
use std::ops::Range;
use std::path::Path;

/// A file of tokens that is to be cut.
pub(crate) struct Sequence<'a> {
    pub file: &'a Path,
    /// Tokens in it.
    pub length: usize,
    /// What a token is called in messages, in the plural.
    pub unit: &'static str,
    /// Tokens in one sample.
    pub context: usize,
}

impl Sequence<'_> {
    /// The training part, and the share at the end that is held out for validation, if one is.
    ///
    /// *Errors*: a context of 0, a share that is none, a part that is shorter than one window.
    pub fn split(&self, val_split: f64) -> Result<(Windows, Option<Windows>), DataError> {
        let held_out = held_out_count(val_split, self.length as u64)?;
        let kept = self.length - held_out as usize;
        let train = self.part("training", 0..kept)?;
        let val = if held_out > 0 { Some(self.part("validation", kept..self.length)?) } else { None };
        Ok((train, val))
    }

    /// Some of the tokens as one part.
    ///
    /// *Errors*: a context of 0, fewer tokens than one window has.
    pub fn part(&self, part: &'static str, tokens: Range<usize>) -> Result<Windows, DataError> {
        let &Self { file, unit, context, .. } = self;
        if context == 0 {
            return Err(DataError::Option { option: "context", got: "0".into(), expected: "at least 1" });
        }
        let samples = (tokens.len().saturating_sub(1) / context) as u64;
        if samples == 0 {
            let (got, needed) = (tokens.len() as u64, context as u64 + 1);
            return Err(DataError::TooShort { file: file.to_owned(), part, got, unit, needed });
        }
        Ok(Windows { first: tokens.start, samples, context })
    }
}

/// The windows of one part.
pub(crate) struct Windows {
    first: usize,
    pub samples: u64,
    context: usize,
}

impl Windows {
    /// The places in the file of the tokens that sample `index` reads, and of the one after them.
    pub fn places(&self, index: u64) -> Range<usize> {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
        let start = self.first + index as usize * self.context;
        start..start + self.context + 1
    }

    /// What each sample looks like if every token is below `vocabulary`.
    pub fn spec(&self, vocabulary: u32) -> SampleSpec {
        SampleSpec {
            input: InputSpec::Tokens { length: self.context, vocabulary },
            target: TargetSpec::ClassPerToken { classes: vocabulary },
        }
    }
}
