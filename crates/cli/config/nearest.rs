//! The word the user may have meant.

/// The candidate nearest to `word`, if one is near enough to be worth a suggestion.
///
/// *Order*: the first of equally near candidates.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    // A third of the word may be wrong, and always one letter of it.
    let limit = (word.chars().count() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let distance = distance(&word, candidate).min(tail_distance(&word, candidate));
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Users write `lr` for `optimizer.lr`: the part after the dot counts too, at a small price.
fn tail_distance(word: &str, candidate: &str) -> usize {
    match candidate.rsplit_once('.') {
        Some((_, tail)) if !word.contains('.') => distance(word, tail) + usize::from(word != tail),
        _ => usize::MAX,
    }
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
///
/// *Source*: optimal string alignment, L. Boytsov 2011, "Indexing methods for approximate dictionary searching".
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let width = b.len() + 1;
    let mut table = vec![0; (a.len() + 1) * width];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            let at = |i: usize, j: usize| table[i * width + j];
            let cost = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = at(i - 1, j - 1) + usize::from(a[i - 1] != b[j - 1]);
                let mut least = replaced.min(at(i - 1, j) + 1).min(at(i, j - 1) + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(at(i - 2, j - 2) + 1);
                }
                least
            };
            table[i * width + j] = cost;
        }
    }
    table[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 6] =
        ["optimizer.lr", "micro_batch", "global_batch", "epochs", "ranks", "optimizer.beta1"];

    #[test]
    fn a_slip_of_the_finger_finds_the_key() {
        for (word, key) in [
            ("optimiser.lr", "optimizer.lr"),
            ("lr", "optimizer.lr"),
            ("micro-batch", "micro_batch"),
            ("microbatch", "micro_batch"),
            ("epoch", "epochs"),
            ("rnaks", "ranks"),
            ("Ranks", "ranks"),
        ] {
            assert_eq!(nearest(word, KEYS), Some(key), "{word}");
        }
    }

    #[test]
    fn a_word_from_elsewhere_finds_nothing() {
        for word in ["gradient_checkpointing", "zzz", "x"] {
            assert_eq!(nearest(word, KEYS), None, "{word}");
        }
    }

    #[test]
    fn the_distance_counts_a_swap_once() {
        assert_eq!(distance("", ""), 0);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
