//! What the tokens of a model are to people: the bytes of a text, what the run's tokenizer makes of them, or numbers.

use crate::error::CliError;
use crate::run_tokenizer::{self, failed};
use crate::trained::Trained;
use dtrain_data::{InputSpec, Source};
use dtrain_tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::io::{self, Read};
use std::sync::Arc;

/// What the tokens of a model are.
#[derive(Clone, Debug)]
pub enum Tokens {
    /// Bytes.
    Bytes,
    /// Numbers below this, of a tokenizer that nobody here knows.
    Ids(u32),
    /// Those of a tokenizer, below this.
    Known(Arc<Tokenizer>, u32),
}

impl Tokens {
    /// Those of a model; nothing if it is no model of texts.
    ///
    /// *Errors*: its tokenizer cannot be read.
    pub fn of(trained: &Trained) -> Result<Option<Self>, CliError> {
        let InputSpec::Tokens { vocabulary, .. } = trained.preparation.input else { return Ok(None) };
        if let Some(Source::Text(_)) = trained.config.data {
            return Ok(Some(Self::Bytes));
        }
        let known = run_tokenizer::of(&trained.run)?.map(|tokenizer| Self::Known(tokenizer, vocabulary));
        Ok(Some(known.unwrap_or(Self::Ids(vocabulary))))
    }

    /// Those of a model of texts.
    ///
    /// *Errors*: it is no such model; its tokenizer cannot be read.
    pub fn of_texts(trained: &Trained) -> Result<Self, CliError> {
        Self::of(trained)?.ok_or_else(|| {
            let error = CliError::usage(format!("{} is no model of texts", trained.run.path.display()));
            error.hint("`dtrain predict` says what it makes of samples")
        })
    }

    /// The tokens of a line of a text; none where nobody knows them.
    ///
    /// *Errors*: it is no text, or has a token that the model does not know.
    pub fn of_line(&self, line: &[u8]) -> Result<Option<Vec<u32>>, CliError> {
        match self {
            Self::Bytes => Ok(Some(line.iter().map(|byte| u32::from(*byte)).collect())),
            Self::Ids(_) => Ok(None),
            Self::Known(tokenizer, vocabulary) => {
                run_tokenizer::encode(tokenizer, "a line", line, *vocabulary).map(Some)
            }
        }
    }

    /// One as text: a byte that can be printed as it is, another one as in a string of Rust or Python; what the tokenizer makes of it; a number.
    #[must_use]
    pub fn shown(&self, token: u32) -> String {
        match (self, u8::try_from(token)) {
            (Self::Known(tokenizer, _), _) => tokenizer.decode(&[token]).unwrap_or_default(),
            (Self::Bytes, Ok(byte @ b' '..=b'~')) => char::from(byte).to_string(),
            (Self::Bytes, Ok(byte)) => byte.escape_ascii().to_string(),
            _ => token.to_string(),
        }
    }

    /// One as JSON: text, or a number.
    #[must_use]
    pub fn named_one(&self, token: u32) -> Value {
        match self {
            Self::Bytes | Self::Known(..) => json!(self.shown(token)),
            Self::Ids(_) => json!(token),
        }
    }

    /// The token that ends a text, if there is one.
    #[must_use]
    pub fn end(&self) -> Option<u32> {
        match self {
            Self::Known(tokenizer, vocabulary) => {
                tokenizer.end_of_text().map(|(_, id)| id).filter(|id| id < vocabulary)
            }
            Self::Bytes | Self::Ids(_) => None,
        }
    }

    /// What of a text is to be seen: not the end of another one, which it may begin behind.
    #[must_use]
    pub fn visible<'a>(&self, text: &'a [u32]) -> &'a [u32] {
        match text {
            [first, rest @ ..] if Some(*first) == self.end() => rest,
            text => text,
        }
    }

    /// What a text begins with. *Blocks* on standard input where it is `-`.
    ///
    /// *Errors*: ids for bytes or the other way round, none, one that there is not.
    pub fn prompt(&self, text: Option<&str>, ids: &[u32]) -> Result<Vec<u32>, CliError> {
        match self {
            Self::Bytes if !ids.is_empty() => {
                let error = CliError::usage("--ids: the tokens of this model are bytes");
                Err(error.hint("write the text itself: --prompt TEXT"))
            }
            Self::Bytes => {
                let bytes = given(text)?;
                match bytes.is_empty() {
                    true => Err(CliError::usage("the prompt is empty").hint("one line break is enough")),
                    false => Ok(bytes.into_iter().map(u32::from).collect()),
                }
            }
            Self::Ids(_) if ids.is_empty() => {
                let error =
                    CliError::usage("the model was trained on token ids, and the run has no tokenizer");
                let hint = "write the ids that the text begins with (--ids 464,3280), or put the tokenizer.json that made them into the \
                            folder of the run";
                Err(error.hint(hint))
            }
            Self::Known(tokenizer, vocabulary) if ids.is_empty() => {
                let prompt = match (text, self.end()) {
                    // As behind the end of another text.
                    (None, Some(end)) => vec![end],
                    (text, _) => run_tokenizer::encode(tokenizer, "the prompt", &given(text)?, *vocabulary)?,
                };
                match prompt.is_empty() {
                    true => Err(CliError::usage("the prompt is empty").hint("one line break is enough")),
                    false => Ok(prompt),
                }
            }
            Self::Ids(vocabulary) | Self::Known(_, vocabulary) => {
                match ids.iter().find(|id| *id >= vocabulary) {
                    Some(id) => {
                        Err(CliError::usage(format!("--ids: {id} is no token, they are below {vocabulary}")))
                    }
                    None => Ok(ids.to_vec()),
                }
            }
        }
    }

    /// A prompt and what is behind it as JSON: text, in which what is no text is replaced, or numbers.
    ///
    /// *Errors*: of the tokenizer.
    pub fn named(&self, prompt: &[u32], behind: &[u32]) -> Result<[Value; 2], CliError> {
        Ok(match self {
            Self::Bytes => [prompt, behind].map(|tokens| json!(String::from_utf8_lossy(&bytes_of(tokens)))),
            Self::Ids(_) => [prompt, behind].map(|tokens| json!(tokens)),
            Self::Known(tokenizer, _) => {
                let decode = |tokens: &[u32]| tokenizer.decode(tokens).map_err(|error| failed(&error));
                let (shown, all) = (decode(prompt)?, decode(&[prompt, behind].concat())?);
                let behind = match all.strip_prefix(shown.as_str()) {
                    Some(behind) => behind.to_owned(),
                    None => decode(behind)?,
                };
                [json!(shown), json!(behind)]
            }
        })
    }
}

/// A text, or what standard input has where it is `-`; a line break where there is none. *Blocks* on standard input.
///
/// *Errors*: of the system.
pub fn given(text: Option<&str>) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    match text {
        Some("-") => {
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| CliError::failed("cannot read standard input").because(&error))?;
        }
        text => bytes.extend(text.unwrap_or("\n").bytes()),
    }
    Ok(bytes)
}

/// Tokens that are bytes, as these.
#[must_use]
pub fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().map(|token| *token as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_what_the_model_reads_or_an_error() {
        let bytes = Tokens::Bytes.prompt(Some("a\u{e9}"), &[]).unwrap();
        assert_eq!(bytes, [97, 0xc3, 0xa9]);
        assert_eq!(Tokens::Bytes.prompt(None, &[]).unwrap(), [10]);
        assert_eq!(Tokens::Ids(9).prompt(None, &[8, 0]).unwrap(), [8, 0]);
        let learnt = Arc::new(dtrain_tokenizer::learn(std::iter::empty(), 257).unwrap());
        let known = Tokens::Known(Arc::clone(&learnt), 257);
        let word = learnt.encode("a\u{e9}").unwrap();
        assert_eq!((known.prompt(Some("a\u{e9}"), &[]).unwrap(), word.len()), (word.clone(), 3));
        assert_eq!((known.prompt(None, &[]).unwrap(), known.prompt(None, &[8]).unwrap()), (vec![0], vec![8]));
        assert_eq!([known.visible(&[0, 8]), known.visible(&[8, 0])], [&[8][..], &[8, 0]]);
        assert_eq!(known.named(&word[..1], &word[1..]).unwrap(), [json!("a"), json!("\u{e9}")]);
        // Of a model that was trained on other ids.
        let other = Tokens::Known(learnt, 1);
        for (tokens, text, ids) in [
            (known.clone(), Some(""), vec![]),
            (known, None, vec![257]),
            (other, Some("a"), vec![]),
            (Tokens::Bytes, Some(""), vec![]),
            (Tokens::Bytes, None, vec![1]),
            (Tokens::Ids(9), None, vec![]),
            (Tokens::Ids(9), Some("a"), vec![]),
            (Tokens::Ids(9), None, vec![3, 9]),
        ] {
            assert!(tokens.prompt(text, &ids).is_err(), "{tokens:?} {text:?} {ids:?}");
        }
    }
}
