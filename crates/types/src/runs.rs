//! Runs of elements, or of whatever is counted: as few as there can be, and what is left of them without others.

use std::ops::Range;

/// The same elements in runs that rise, none of them empty, none of which touches the next.
///
/// *Order*: a pure function of which elements they are.
#[must_use]
pub fn joined<T: Ord + Copy>(runs: impl IntoIterator<Item = Range<T>>) -> Vec<Range<T>> {
    let mut runs: Vec<Range<T>> = runs.into_iter().filter(|run| !run.is_empty()).collect();
    runs.sort_by_key(|run| run.start);
    let mut all: Vec<Range<T>> = Vec::with_capacity(runs.len());
    for run in runs {
        match all.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => all.push(run),
        }
    }
    all
}

/// What is left of these runs without those, in runs that rise.
#[must_use]
pub fn without(runs: &[Range<usize>], taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = joined(runs.iter().cloned());
    for cut in taken {
        let parts = |run: &Range<usize>| [run.start..run.end.min(cut.start), run.start.max(cut.end)..run.end];
        left = left.iter().flat_map(parts).filter(|run| run.start < run.end).collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_cut() {
        let all = joined([5..9, 0..2, 9..12, 2..2, 20..30]);
        assert_eq!(all, [0..2, 5..12, 20..30]);
        assert_eq!(without(&all, &[1..6, 8..9, 25..40]), [0..1, 6..8, 9..12, 20..25]);
        assert_eq!(without(&[3..5, 8..9], &[3..5, 8..9]), []);
        assert_eq!(without(&all, &[]), all);
    }
}
