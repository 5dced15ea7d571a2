//! Texts of any length into ids: a long one in pieces, on all cores, with the ids that it has as a whole.

use crate::error::TokenizerError;
use crate::tokenizer::{Tokenizer, fails};

/// The shortest piece of a text that is long. *Units*: bytes.
const PIECE: usize = 1 << 18;
/// What is encoded at once. *Units*: bytes.
const AT_ONCE: usize = 1 << 23;
/// A tokenizer that could be cut at none of so many places is cut nowhere: one that puts something in front of each text, say.
const TRIES: u32 = 64;

/// Collects texts and gives their ids, in order.
///
/// A text is cut behind a line break alone, between two characters that are no blanks beside it, and where the lines on both sides have the tokens by themselves that they
/// have together. A tokenizer for which that is nowhere true is given each text as a whole.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    /// What is put behind each text.
    end: Option<u32>,
    /// The text in hand, behind its last cut, and up to where it was looked through for the next.
    begun: String,
    searched: usize,
    /// What waits to be encoded, and its bytes.
    waiting: Vec<Piece>,
    bytes: usize,
    /// How often in a row a place was no cut; none once there was one.
    in_vain: Option<u32>,
    /// The shortest piece, and what is encoded at once.
    sizes: [usize; 2],
    ids: Vec<u32>,
}

/// Some of a text.
struct Piece {
    text: String,
    /// Whether the text ends behind it.
    is_last: bool,
}

impl<'a> Encoder<'a> {
    /// With a token that is put behind each text, or none.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, end: Option<u32>) -> Self {
        let (begun, waiting, ids) = (String::new(), Vec::new(), Vec::new());
        let sizes = [PIECE, AT_ONCE];
        Self { tokenizer, end, begun, searched: 0, waiting, bytes: 0, in_vain: Some(0), sizes, ids }
    }

    /// More of the text in hand. *Blocks* while it computes.
    ///
    /// *Errors*: of the tokenizer.
    pub fn put(&mut self, text: &str) -> Result<(), TokenizerError> {
        self.begun += text;
        while self.begun.len() >= 2 * self.sizes[0]
            && let Some(cut) = self.next_cut()?
        {
            let rest = self.begun.split_off(cut);
            let text = std::mem::replace(&mut self.begun, rest);
            self.wait(Piece { text, is_last: false })?;
        }
        Ok(())
    }

    /// The text in hand is over; one without a byte has no tokens, and no end. *Blocks* while it computes.
    ///
    /// *Errors*: of the tokenizer.
    pub fn end(&mut self) -> Result<(), TokenizerError> {
        self.searched = 0;
        match std::mem::take(&mut self.begun) {
            text if text.is_empty() => Ok(()),
            text => self.wait(Piece { text, is_last: true }),
        }
    }

    /// The ids so far, which it forgets.
    pub fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ids)
    }

    /// The ids of all that was put. *Blocks* while it computes.
    ///
    /// *Errors*: of the tokenizer.
    pub fn finish(mut self) -> Result<Vec<u32>, TokenizerError> {
        self.end()?;
        self.encode()?;
        Ok(self.ids)
    }

    fn wait(&mut self, piece: Piece) -> Result<(), TokenizerError> {
        self.bytes += piece.text.len();
        self.waiting.push(piece);
        if self.bytes >= self.sizes[1] { self.encode() } else { Ok(()) }
    }

    fn encode(&mut self) -> Result<(), TokenizerError> {
        let pieces: Vec<&str> = self.waiting.iter().map(|piece| piece.text.as_str()).collect();
        let encoded = self.tokenizer.inner.encode_batch_fast(pieces, false).map_err(fails)?;
        for (encoding, piece) in encoded.iter().zip(&self.waiting) {
            self.ids.extend_from_slice(encoding.get_ids());
            self.ids.extend(self.end.filter(|_| piece.is_last));
        }
        self.waiting.clear();
        self.bytes = 0;
        Ok(())
    }

    /// Where the text in hand can be cut, behind a piece at least.
    fn next_cut(&mut self) -> Result<Option<usize>, TokenizerError> {
        if self.in_vain.is_some_and(|tries| tries >= TRIES) {
            return Ok(None);
        }
        let bytes = self.begun.as_bytes();
        // The last line may go on in what comes next.
        let Some(whole) = bytes[self.searched..].iter().rposition(|byte| *byte == b'\n') else {
            self.searched = bytes.len();
            return Ok(None);
        };
        let whole = self.searched + whole;
        let mut from = self.searched.max(self.sizes[0]);
        while let Some(place) = bytes.get(from..whole).and_then(|rest| rest.iter().position(|b| *b == b'\n'))
        {
            let cut = from + place + 1;
            from = cut;
            let Some(lines) = lines_beside(&self.begun, cut) else { continue };
            if self.is_same_apart(lines)? {
                (self.in_vain, self.searched) = (None, 0);
                return Ok(Some(cut));
            }
            self.in_vain = self.in_vain.map(|tries| tries + 1);
            if self.in_vain == Some(TRIES) {
                return Ok(None);
            }
        }
        self.searched = whole;
        Ok(None)
    }

    fn is_same_apart(&self, [before, behind]: [&str; 2]) -> Result<bool, TokenizerError> {
        let apart = [self.tokenizer.encode(before)?, self.tokenizer.encode(behind)?].concat();
        Ok(apart == self.tokenizer.encode(&[before, behind].concat())?)
    }
}

/// The lines before and behind a line break that ends at `cut`, if characters that are no blanks stand beside it.
fn lines_beside(text: &str, cut: usize) -> Option<[&str; 2]> {
    let line = text[..cut].strip_suffix('\n')?;
    let line = line.strip_suffix('\r').unwrap_or(line);
    let begun = line.rfind('\n').map_or(0, |at| at + 1);
    let ended = text[cut..].find('\n').map_or(text.len(), |at| cut + at + 1);
    let is_between = !line.ends_with(char::is_whitespace)
        && line.len() > begun
        && !text[cut..].starts_with(char::is_whitespace)
        && cut < text.len();
    is_between.then(|| [&text[begun..cut], &text[cut..ended]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn;

    /// Lines of all sorts: blank ones, with blanks around them, ended as on Windows, with characters of several bytes.
    fn text() -> String {
        let words = ["the ", "cat", " sat", "\u{e4}\u{1f600}", "12", "  ", ",", "\t"];
        let mut state = 7u32;
        let mut next = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % below
        };
        let line = |next: &mut dyn FnMut(usize) -> usize| {
            let words: String = (0..next(9)).map(|_| words[next(words.len())]).collect();
            words + ["\n", "\n", "\n", "\r\n", "\n\n"][next(5)]
        };
        (0..900).map(|_| line(&mut next)).collect()
    }

    /// Puts a blank in front of each text, as those of SentencePiece do.
    const WITH_A_BLANK: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},
        "post_processor":null,"decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},
        "model":{"type":"BPE","unk_token":"?","fuse_unk":false,"byte_fallback":false,
        "vocab":{"?":0,"\u2581":1,"a":2,"t":3,"\n":4,"at":5,"\u2581at":6},"merges":[["a","t"],["\u2581","at"]]}}"#;

    fn ids(tokenizer: &Tokenizer, parts: &[&str], sizes: [usize; 2]) -> Vec<u32> {
        let mut encoder = Encoder { sizes, ..Encoder::new(tokenizer, Some(0)) };
        parts.iter().for_each(|part| encoder.put(part).unwrap());
        let mut ids = encoder.take();
        ids.extend(encoder.finish().unwrap());
        ids
    }

    #[test]
    fn a_text_in_pieces_has_the_ids_of_the_whole() {
        let text = text();
        let learnt = learn([text.clone()].into_iter(), 400).unwrap();
        let blank = Tokenizer::of(WITH_A_BLANK.into()).unwrap();
        for (tokenizer, is_cut) in [(&learnt, true), (&blank, false)] {
            let whole = [tokenizer.encode(&text).unwrap(), vec![0]].concat();
            for size in [1, 7, 40, 300] {
                let parts: Vec<&str> = text.split_inclusive(' ').collect();
                assert!(ids(tokenizer, &parts, [size, 5 * size]) == whole, "{size}");
                assert!(ids(tokenizer, &[&text], [size, 1]) == whole, "{size}");
            }
            let mut encoder = Encoder { sizes: [40, 1 << 20], ..Encoder::new(tokenizer, None) };
            encoder.put(&text).unwrap();
            assert_eq!(encoder.waiting.len() > 100, is_cut, "{}", encoder.waiting.len());
        }
    }

    /// One of bytes, as GPT-2's, with these pairs alone; of a line break and a blank it writes the names of GPT-2.
    fn with_pairs(pairs: &[[&str; 2]]) -> Tokenizer {
        let known = ["\u{10a}", "\u{120}", "a", "b"].map(str::to_owned).into_iter();
        let known = known.chain(pairs.iter().map(|pair| pair.concat())).enumerate();
        let known: Vec<String> = known.map(|(id, token)| format!("{token:?}:{id}")).collect();
        let bytes = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}"#;
        let file = format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{bytes},
            "post_processor":null,"decoder":{bytes},"model":{{"type":"BPE","unk_token":null,"vocab":{{{}}},"merges":{pairs:?}}}}}"#,
            known.join(",")
        );
        Tokenizer::of(file.into_bytes()).unwrap()
    }

    #[test]
    fn no_run_of_blanks_is_cut_though_the_lines_beside_would_let_it() {
        // Blanks are one token up to the last before a character, and all of them at the end of a text.
        let (line, blank) = ("\u{10a}", "\u{120}");
        let before = with_pairs(&[[line, blank], ["\u{10a}\u{120}", line]]);
        let behind = with_pairs(&[[line, line], [blank, "\u{10a}\u{10a}"], [line, "\u{120}\u{10a}\u{10a}"]]);
        for (tokenizer, text) in [(before, "a\n \nb".repeat(9)), (behind, "a\n \n\n\nb".repeat(9))] {
            let whole = tokenizer.encode(&text).unwrap();
            for size in [1, 2, 3, 5, 8] {
                let parts: Vec<&str> = text.split_inclusive('b').collect();
                assert_eq!(ids(&tokenizer, &parts, [size, 1]), [&whole[..], &[0]].concat(), "{size}");
            }
        }
    }

    #[test]
    fn each_text_has_its_end_and_an_empty_one_is_none() {
        let tokenizer = learn(["the cat the cat".to_owned()].into_iter(), 300).unwrap();
        let mut encoder = Encoder::new(&tokenizer, Some(0));
        for text in ["the", "", " cat"] {
            encoder.put(text).unwrap();
            encoder.end().unwrap();
        }
        let one = |text| tokenizer.encode(text).unwrap();
        assert_eq!(encoder.finish().unwrap(), [one("the"), vec![0], one(" cat"), vec![0]].concat());
    }

    #[test]
    fn a_cut_lies_between_characters_that_are_no_blanks() {
        let beside = |text: &str, cut| lines_beside(text, cut).map(|lines| lines.map(str::to_owned));
        assert_eq!(beside("a\nb\nc\nd", 4), Some(["b\n".into(), "c\n".into()]));
        assert_eq!(beside("b\r\nc", 3), Some(["b\r\n".into(), "c".into()]));
        for (text, cut) in [("b \nc", 3), ("b\n c", 2), ("b\n\nc", 3), ("b\n", 2), ("\nc", 1), ("b\nc", 1)] {
            assert_eq!(beside(text, cut), None, "{text:?}");
        }
    }
}
