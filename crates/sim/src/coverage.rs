//! How often each fault met each place: the proof that a sweep went everywhere.
//!
//! This file only counts.

use crate::Situation;
use crate::fault::FaultKind;
use std::collections::BTreeMap;

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    met: BTreeMap<(FaultKind, Situation), u64>,
    /// Runs, and those of them without a fault.
    pub runs: [u64; 2],
}

impl Coverage {
    /// A fault met a place.
    pub fn note(&mut self, kind: FaultKind, place: Situation) {
        *self.met.entry((kind, place)).or_default() += 1;
    }

    /// Takes over the counts of another table.
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.met {
            *self.met.entry(*key).or_default() += count;
        }
        self.runs = [self.runs[0] + other.runs[0], self.runs[1] + other.runs[1]];
    }

    /// How often a fault met a place.
    #[must_use]
    pub fn of(&self, kind: FaultKind, place: Situation) -> u64 {
        self.met.get(&(kind, place)).copied().unwrap_or(0)
    }

    /// The table as text: a line per fault, a column per place.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("{:<18}", "fault");
        for place in Situation::ALL {
            text += &format!("{:>8}", place.name());
        }
        for kind in FaultKind::ALL {
            text += &format!("\n{:<18}", kind.name());
            for place in Situation::ALL {
                text += &format!("{:>8}", self.of(kind, place));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_add_up_and_are_shown_with_names() {
        let mut one = Coverage { runs: [2, 1], ..Coverage::default() };
        one.note(FaultKind::Crash, Situation::Round2);
        let mut two = one.clone();
        two.add(&one);
        assert_eq!((two.of(FaultKind::Crash, Situation::Round2), two.runs), (2, [4, 2]));
        let text = two.render();
        assert!(text.contains("round2") && text.lines().count() == FaultKind::ALL.len() + 1, "{text}");
    }
}
