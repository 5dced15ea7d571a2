//! A count with its noun, as messages to people have it.

use std::fmt::Display;

/// `1 rank`, `2 ranks`, `0 classes`.
#[must_use]
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let words = plural(&count, noun);
    format!("{count} {words}")
}

/// The noun alone, as it stands behind this count.
#[must_use]
pub fn plural<N: PartialEq + From<u8>>(count: &N, noun: &str) -> String {
    // The ch of an epoch is a k.
    let hisses = ["s", "x", "ch"].iter().any(|end| noun.ends_with(end)) && !noun.ends_with("epoch");
    match (*count == N::from(1), hisses) {
        (true, _) => noun.to_owned(),
        (false, true) => format!("{noun}es"),
        (false, false) => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_kind_is_no_plural() {
        assert_eq!((counted(1u32, "rank"), counted(2u64, "rank")), ("1 rank".into(), "2 ranks".into()));
        assert_eq!(counted(20u8, "whole epoch"), "20 whole epochs");
        assert_eq!(counted(0usize, "micro-batch"), "0 micro-batches");
        assert_eq!(
            (counted(3u32, "process"), plural(&1u32, "class")),
            ("3 processes".into(), "class".into())
        );
    }
}
