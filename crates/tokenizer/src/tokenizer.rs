//! A tokenizer: its file, its vocabulary, short texts.

use crate::error::TokenizerError;
use std::fs;
use std::path::Path;

/// What ends a text, by the names that models have for it, those of GPT-2 and Llama first.
const ENDS: [&str; 6] = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>", "[EOS]"];

/// Turns texts into token ids and back. Threads may share it.
pub struct Tokenizer {
    pub(crate) inner: tokenizers::Tokenizer,
    /// The file, as it was or will be.
    bytes: Vec<u8>,
    vocabulary: u32,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. *Blocks* on the disk.
    ///
    /// *Errors*: it cannot be read, or is something else.
    pub fn open(file: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            fs::read(file).map_err(|source| TokenizerError::Unreadable { file: file.to_owned(), source })?;
        let other = |problem: String| TokenizerError::Other { file: file.to_owned(), problem };
        Self::of(bytes).map_err(|error| match error {
            TokenizerError::Fails(problem) => other(problem),
            error => error,
        })
    }

    /// That of a file's bytes.
    pub(crate) fn of(bytes: Vec<u8>) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(fails)?;
        // What a file says of batches is for those who feed a model with it: a text has all of its tokens.
        inner.with_truncation(None).map_err(fails)?;
        inner.with_padding(None);
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |greatest| greatest + 1);
        match vocabulary {
            0 => Err(TokenizerError::Fails("it has no tokens".into())),
            vocabulary => Ok(Self { inner, bytes, vocabulary }),
        }
    }

    /// What the file holds, byte by byte.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many ids there are: each is below this.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// The id of a token by its name.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token that ends a text, if there is one by any of the usual names: its name and id.
    #[must_use]
    pub fn end_of_text(&self) -> Option<(&'static str, u32)> {
        ENDS.into_iter().find_map(|name| Some((name, self.id(name)?)))
    }

    /// The tokens of a text, without those that some models want around it.
    ///
    /// *Errors*: of the tokenizer, as of a text with a character that it has no token for.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.inner.encode_fast(text, false).map_err(fails)?.get_ids().to_vec())
    }

    /// The text of tokens; what is no text in it is replaced.
    ///
    /// *Errors*: of the tokenizer.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids, false).map_err(fails)
    }
}

pub(crate) fn fails(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Fails(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_tokenizer_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        let said = || Tokenizer::open(&file).err().unwrap().to_string();
        assert!(said().contains("cannot read"), "{}", said());
        for text in ["", "{", "[1, 2]", r#"{"model": 3}"#] {
            fs::write(&file, text).unwrap();
            assert!(
                said().contains("tokenizer.json is no tokenizer of Hugging Face: "),
                "{text}: {}",
                said()
            );
        }
    }
}
