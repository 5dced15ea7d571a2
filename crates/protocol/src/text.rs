//! How much of a text goes into a message.

/// The most bytes of a text (an error, a panic) inside a message; [`cut_text`] keeps the beginning.
pub const MAX_TEXT: usize = 4096;

/// The first [`MAX_TEXT`] bytes of `text`, cut at a character.
#[must_use]
pub fn cut_text(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}
