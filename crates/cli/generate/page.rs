//! What tokens are to people: the bytes of a text, what the run's tokenizer makes of them, or numbers; and how they come to standard output.

use crate::error::CliError;
use crate::run_tokenizer::{self, failed};
use crate::trained::Trained;
use dtrain_data::{InputSpec, Source};
use dtrain_tokenizer::{Shown, Tokenizer};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Read, Write};
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
    /// Those of a model.
    ///
    /// *Errors*: it is no model of texts; its tokenizer cannot be read.
    pub fn of(trained: &Trained) -> Result<Self, CliError> {
        match (&trained.preparation.input, &trained.config.data) {
            (InputSpec::Tokens { .. }, Some(Source::Text(_))) => Ok(Self::Bytes),
            (InputSpec::Tokens { vocabulary, .. }, _) => Ok(match run_tokenizer::of(&trained.run)? {
                Some(tokenizer) => Self::Known(tokenizer, *vocabulary),
                None => Self::Ids(*vocabulary),
            }),
            (InputSpec::Values { .. }, _) => {
                let error = CliError::usage(format!("{} is no model of texts", trained.run.path.display()));
                Err(error.hint("`dtrain predict` says what it makes of samples"))
            }
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
                let bytes = written(text)?;
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
                    (text, _) => {
                        run_tokenizer::encode(tokenizer, "the prompt", &written(text)?, *vocabulary)?
                    }
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

/// A prompt, or what standard input has of it.
fn written(text: Option<&str>) -> Result<Vec<u8>, CliError> {
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

/// Standard output, and how tokens are shown there.
pub struct Page {
    tokens: Tokens,
    /// A terminal is shown no byte that it might obey.
    is_terminal: bool,
    /// Bytes of a character that has not come to its end, and tokens that are parts of one.
    begun: Vec<u8>,
    parts: Shown,
    /// Whether a number stands in this line.
    has_number: bool,
    is_unread: bool,
}

impl Page {
    /// An empty one.
    #[must_use]
    pub fn new(tokens: Tokens) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let (begun, parts) = (Vec::new(), Shown::default());
        Self { tokens, is_terminal, begun, parts, has_number: false, is_unread: false }
    }

    /// Whether whoever read it has gone away; what is put then is an error.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Shows tokens at once; what may be the beginning of a character waits for the rest of it.
    ///
    /// *Errors*: of the system, or of the tokenizer.
    pub fn put(&mut self, tokens: &[u32]) -> Result<(), CliError> {
        match &self.tokens {
            Tokens::Bytes => self.text(bytes_of(tokens)),
            Tokens::Known(tokenizer, _) => {
                let text = self.parts.more(tokenizer, tokens).map_err(|error| failed(&error))?;
                self.text(text.into_bytes())
            }
            Tokens::Ids(_) => {
                let mut text = String::new();
                for token in tokens {
                    text += if std::mem::replace(&mut self.has_number, true) { " " } else { "" };
                    text += &token.to_string();
                }
                self.write(text.as_bytes())
            }
        }
    }

    /// The only text has come to its end. A text into a file is that of the model alone.
    ///
    /// *Errors*: as [`Page::put`].
    pub fn end(&mut self) -> Result<(), CliError> {
        self.rest()?;
        let is_exact = !matches!(self.tokens, Tokens::Ids(_)) && !self.is_terminal;
        if is_exact { Ok(()) } else { self.line_break("\n") }
    }

    /// One of several texts has.
    ///
    /// *Errors*: as [`Page::put`].
    pub fn end_of_several(&mut self) -> Result<(), CliError> {
        self.rest()?;
        self.line_break(if matches!(self.tokens, Tokens::Ids(_)) { "\n" } else { "\n---\n" })
    }

    /// A JSON object as a line.
    ///
    /// *Errors*: of the system.
    pub fn line(&mut self, object: &Value) -> Result<(), CliError> {
        self.write(format!("{object}\n").as_bytes())
    }

    /// Shows what waited in vain for the rest of a character.
    fn rest(&mut self) -> Result<(), CliError> {
        let Tokens::Known(tokenizer, _) = &self.tokens else { return Ok(()) };
        let rest = self.parts.rest(tokenizer).map_err(|error| failed(&error))?;
        self.text(rest.into_bytes())
    }

    fn text(&mut self, mut bytes: Vec<u8>) -> Result<(), CliError> {
        if self.is_terminal {
            self.begun.append(&mut bytes);
            bytes = harmless(&mut self.begun).into_bytes();
        }
        self.write(&bytes)
    }

    fn line_break(&mut self, with: &str) -> Result<(), CliError> {
        self.begun.clear();
        self.has_number = false;
        self.write(with.as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let mut output = io::stdout().lock();
        output.write_all(bytes).and_then(|()| output.flush()).map_err(|error| {
            self.is_unread = error.kind() == io::ErrorKind::BrokenPipe;
            CliError::failed("cannot write to standard output").because(&error)
        })
    }
}

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().map(|token| *token as u8).collect()
}

/// What of these bytes is text, without what a terminal would obey; a character that has only begun stays.
fn harmless(bytes: &mut Vec<u8>) -> String {
    let mut shown = String::new();
    let mut rest = &bytes[..];
    loop {
        let (text, behind) = match std::str::from_utf8(rest) {
            Ok(text) => (text, None),
            Err(error) => {
                let (text, wrong) = rest.split_at(error.valid_up_to());
                let text = std::str::from_utf8(text).unwrap_or_default();
                (text, Some((wrong, error.error_len())))
            }
        };
        for character in text.chars() {
            match character {
                '\n' | '\t' => shown.push(character),
                character if character.is_control() => shown.extend(character.escape_default()),
                character => shown.push(character),
            }
        }
        match behind {
            None => rest = &[],
            Some((begun, None)) => rest = begun,
            Some((wrong, Some(len))) => {
                shown.push(char::REPLACEMENT_CHARACTER);
                rest = &wrong[len..];
                continue;
            }
        }
        break;
    }
    *bytes = rest.to_vec();
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_shown_whole_characters_and_nothing_that_it_would_obey() {
        let mut bytes = Vec::new();
        let mut shown = |more: &[u8]| {
            bytes.extend(more);
            harmless(&mut bytes)
        };
        assert_eq!(shown("so\tit is\n".as_bytes()), "so\tit is\n");
        assert_eq!(shown(b"\x1b[31m\r\x07"), "\\u{1b}[31m\\r\\u{7}");
        let dash = "\u{2014}".as_bytes();
        assert_eq!([shown(&dash[..1]), shown(&dash[1..2]), shown(&dash[2..])], ["", "", "\u{2014}"]);
        assert_eq!(shown(&[b'a', 0xff, b'b', dash[0], b'c']), "a\u{fffd}b\u{fffd}c");
        assert_eq!(shown("\u{9b}31m".as_bytes()), "\\u{9b}31m");
    }

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
