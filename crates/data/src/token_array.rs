//! Arrays of token ids: sequences of one length that a trained model of tokens goes on from.
//!
//! It does not know tokenizers.

use crate::arrays::{Format, format};
use crate::{DataError, INPUT_NEEDS, npy};
use std::path::Path;

/// Token ids of a `.npy` file. *Shape*: `[n, time]`.
#[derive(Debug)]
pub struct TokenArray {
    ids: Vec<u32>,
    time: usize,
}

impl TokenArray {
    /// Opens a file; nothing if it is no `.npy` array. `context`: tokens that the model sees at once; `vocabulary`: every id is
    /// below it.
    ///
    /// *Errors*: another shape, more tokens than the model sees, an element that is no id; a damaged file.
    pub fn open(file: &Path, context: usize, vocabulary: u32) -> Result<Option<Self>, DataError> {
        if format(file, INPUT_NEEDS)? != Some(Format::NumPy) {
            return Ok(None);
        }
        let other = |problem: String, instead: String| DataError::OtherIds {
            file: file.to_owned(),
            problem,
            instead,
        };
        let (row, numbers) = npy::numbers(file)?;
        let [time] = row[..] else {
            let shape: String = row.iter().map(|side| format!(", {side}")).collect();
            let problem = format!("has shape [n{shape}], expected token ids [n, time]");
            return Err(other(problem, "one sequence is ids.reshape(1, -1)".into()));
        };
        if time > context {
            let problem = format!("has sequences of {time} tokens, and the model sees {context}");
            return Err(other(problem, format!("give the last tokens alone: ids[:, -{context}:]")));
        }
        let is_id = |number: f64| number.fract() == 0.0 && (0.0..f64::from(vocabulary)).contains(&number);
        if let Some((place, number)) = numbers.iter().enumerate().find(|(_, number)| !is_id(**number)) {
            let (row, token) = (place / time + 1, place % time + 1);
            let problem =
                format!("row {row}, token {token}: {number} is no id of a vocabulary of {vocabulary}");
            return Err(other(problem, "use the tokenizer of the training data".into()));
        }
        Ok(Some(Self { ids: numbers.into_iter().map(|id| id as u32).collect(), time }))
    }

    /// How many sequences there are.
    #[must_use]
    pub fn rows(&self) -> u64 {
        (self.ids.len() / self.time) as u64
    }

    /// Tokens of a sequence.
    #[must_use]
    pub fn time(&self) -> usize {
        self.time
    }

    /// One sequence. *Panics* if there is none of that number.
    #[must_use]
    pub fn sequence(&self, row: u64) -> &[u32] {
        &self.ids[row as usize * self.time..][..self.time]
    }
}
