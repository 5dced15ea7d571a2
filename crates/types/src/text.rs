//! A text that is not the spelling of an id: ids have one spelling each, and say so when they are read.

use std::fmt;

/// A text that is not the spelling of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misspelt {
    text: String,
    wanted: &'static str,
}

/// So much of a text is shown.
const SHOWN: usize = 70;

impl Misspelt {
    pub(crate) fn new(text: &str, wanted: &'static str) -> Self {
        Self { text: text.to_owned(), wanted }
    }
}

impl fmt::Display for Misspelt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{:.SHOWN$}` is not {}", self.text, self.wanted)
    }
}

impl std::error::Error for Misspelt {}
