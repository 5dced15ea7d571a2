//! How the tokens of a text come to standard output.

use crate::error::CliError;
use crate::run_tokenizer::failed;
use crate::tokens::{Tokens, bytes_of};
use dtrain_tokenizer::Shown;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};

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

    /// A text has come to its end, and others follow, a line each or more.
    ///
    /// *Errors*: as [`Page::put`].
    pub fn end_of_line(&mut self) -> Result<(), CliError> {
        self.rest()?;
        self.line_break("\n")
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
}
