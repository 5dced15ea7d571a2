//! A text that is shown while its tokens come: a character may be several of them.

use crate::error::TokenizerError;
use crate::tokenizer::Tokenizer;

/// What stands where bytes are no character, or the first ones of one.
const REPLACED: char = '\u{fffd}';
/// No character has more tokens: what is not one by then never becomes one.
const LONGEST: usize = 8;

/// Turns tokens into text as they come.
///
/// What a token looks like may depend on the one before (a blank in front of a word, but not of the first): so each is decoded behind those that were shown
/// last.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The tokens that were shown last, and behind `shown` of them what was not yet.
    ids: Vec<u32>,
    shown: usize,
}

impl Shown {
    /// The text that more tokens make; what may be the beginning of a character waits for the next.
    ///
    /// *Errors*: of the tokenizer.
    pub fn more(&mut self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
        let mut text = String::new();
        for id in ids {
            self.ids.push(*id);
            let new = self.new_text(tokenizer)?;
            if new.ends_with(REPLACED) && self.ids.len() - self.shown < LONGEST {
                continue;
            }
            text += &new;
            self.ids.drain(..self.shown);
            self.shown = self.ids.len();
        }
        Ok(text)
    }

    /// The text of what waited in vain, and begins anew.
    ///
    /// *Errors*: of the tokenizer.
    pub fn rest(&mut self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let rest = self.new_text(tokenizer);
        *self = Self::default();
        rest
    }

    /// What all tokens say more than those that were shown.
    fn new_text(&self, tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
        let before = tokenizer.decode(&self.ids[..self.shown])?;
        let all = tokenizer.decode(&self.ids)?;
        match all.strip_prefix(before.as_str()) {
            Some(new) => Ok(new.to_owned()),
            // A decoder that goes over what it has written, as those that clean up blanks do.
            None => tokenizer.decode(&self.ids[self.shown..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn;

    #[test]
    fn characters_come_whole_and_all_that_comes_is_the_text() {
        let text = "a \u{1f600}\u{e9}b";
        let bytes = learn(std::iter::empty(), 257).unwrap();
        let ids = bytes.encode(text).unwrap();
        let mut shown = Shown::default();
        let parts: Vec<String> = ids.iter().map(|id| shown.more(&bytes, &[*id]).unwrap()).collect();
        assert_eq!(parts, ["a", " ", "", "", "", "\u{1f600}", "", "\u{e9}", "b"]);
        assert_eq!(shown.rest(&bytes).unwrap(), "");
        // Half a character is one that is none, and a text that begins is another one.
        assert_eq!(shown.more(&bytes, &ids[..4]).unwrap(), "a ");
        assert_eq!(shown.rest(&bytes).unwrap(), "\u{fffd}");
        assert_eq!(shown.more(&bytes, &ids[..1]).unwrap(), "a");
        // What never becomes a character is not waited for without end.
        let lone = [ids[2 + 1]; 40];
        assert!(shown.more(&bytes, &lone).unwrap().chars().count() >= 30);
    }

    #[test]
    fn a_blank_in_front_of_a_word_is_shown_but_not_of_the_first() {
        let file = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,
            "post_processor":null,"decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},
            "model":{"type":"BPE","unk_token":null,"vocab":{"\u2581a":0},"merges":[]}}"#;
        let words = Tokenizer::of(file.into()).unwrap();
        let mut shown = Shown::default();
        let parts = [0, 0, 0].map(|id| shown.more(&words, &[id]).unwrap());
        assert_eq!(parts, ["a", " a", " a"]);
    }
}
