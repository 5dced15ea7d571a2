//! What a field says where nobody has a value.
//!
//! It does not know whether one is needed.

/// What a field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nothing {
    /// That there is none.
    Missing,
    /// `None`: that there is none among numbers; among words it is one, as of a garage that a house has not.
    None,
    /// Something.
    Word,
}

/// Whether a field stands for a value that nobody has.
pub(crate) fn nothing(field: &str) -> Nothing {
    const WORDS: [&str; 8] = ["", "?", "-", "na", "n/a", "#n/a", "nan", "null"];
    // Most fields are numbers, and none of these words begins as one.
    if field.as_bytes().first().is_some_and(u8::is_ascii_digit) {
        return Nothing::Word;
    }
    let field = field.trim();
    match field.len() {
        5.. => Nothing::Word,
        _ if WORDS.iter().any(|word| word.eq_ignore_ascii_case(field)) => Nothing::Missing,
        _ if field.eq_ignore_ascii_case("none") => Nothing::None,
        _ => Nothing::Word,
    }
}
