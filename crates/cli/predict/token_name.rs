//! What tokens are to people who read predictions and write the lines that they are of.

use crate::error::CliError;
use crate::run_tokenizer;
use crate::trained::Trained;
use dtrain_data::Source;
use dtrain_tokenizer::Tokenizer;
use std::sync::Arc;

/// What a token is to people.
#[derive(Clone, Debug)]
pub enum TokenName {
    /// A byte of a text.
    Byte,
    /// A number: nobody here knows the tokenizer.
    Id,
    /// What this tokenizer makes of it.
    Known(Arc<Tokenizer>),
}

impl TokenName {
    /// That of the tokens of a model.
    ///
    /// *Errors*: the tokenizer of the run cannot be read.
    pub fn of(trained: &Trained) -> Result<Self, CliError> {
        if let Some(Source::Text(_)) = trained.config.data {
            return Ok(Self::Byte);
        }
        Ok(run_tokenizer::of(&trained.run)?.map_or(Self::Id, Self::Known))
    }

    /// The tokens of a line of a text; none where nobody knows them.
    ///
    /// *Errors*: it is no text, or has a token that is not below `vocabulary`.
    pub fn tokens(&self, line: &[u8], vocabulary: u32) -> Result<Option<Vec<u32>>, CliError> {
        match self {
            Self::Byte => Ok(Some(line.iter().map(|byte| u32::from(*byte)).collect())),
            Self::Id => Ok(None),
            Self::Known(tokenizer) => run_tokenizer::encode(tokenizer, "a line", line, vocabulary).map(Some),
        }
    }
}
