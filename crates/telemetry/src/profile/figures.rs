//! The table of a profile: what a step is made of, for each rank and for all, so that the rows add up to the step.
//!
//! *Units*: milliseconds a step, mean over the steps of a rank, then over ranks. Means, because medians do not add up.

use super::part::{Doing, Part, StepTimes};
use dtrain_types::{Incarnation, MemberId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The row of what no span covers: orders, records, the clock itself.
pub const TIME_LEFT: &str = "other";
const MILLIS: f64 = 1e6;

/// What a profiled run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileReport {
    /// The trace; none if it could not be written.
    pub trace: Option<String>,
    /// What a step takes.
    pub step_ms: f64,
    /// What it is made of; the rows add up to `step_ms`.
    pub parts: Vec<Row>,
    /// Communication that went on while the same rank computed.
    pub hidden_ms: f64,
    /// Steps, of all ranks together, whose wait for others is in their communication: somebody's arrival is not known.
    pub waits_unknown: u64,
    /// Each rank by itself; those of a member that was replaced, each life.
    pub ranks: Vec<RankTimes>,
    /// Ranks whose part is not there.
    pub lost: Vec<LostPart>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was done.
    pub part: String,
    /// Mean over ranks.
    pub ms: f64,
    /// Share of the step.
    pub share: f64,
    /// Of the rank that had least of it.
    pub min_ms: f64,
    /// Of the rank that had most of it.
    pub max_ms: f64,
    /// That rank.
    pub most: Rank,
}

/// The times of one life of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// The process slot.
    pub member: MemberId,
    /// Its rank in its last step.
    pub rank: Rank,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its host.
    pub host: String,
    /// How many steps were looked at.
    pub steps: u64,
    /// What one of them takes.
    pub step_ms: f64,
    /// What it is made of; they add up to `step_ms`.
    pub parts: BTreeMap<String, f64>,
    /// Communication that went on while this rank computed.
    pub hidden_ms: f64,
}

/// A rank that took part and whose part is not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostPart {
    /// The process slot.
    pub member: MemberId,
    /// Its rank when it began.
    pub rank: Rank,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its host.
    pub host: String,
    /// In words.
    pub why: String,
}

impl ProfileReport {
    /// The table of these parts.
    #[must_use]
    pub fn of(parts: &[Part]) -> Self {
        let ranks: Vec<RankTimes> = parts.iter().filter_map(RankTimes::of).collect();
        if ranks.is_empty() {
            return Self::default();
        }
        let step_ms = mean(&ranks, |rank| rank.step_ms);
        let names = Doing::ALL.iter().map(|doing| doing.name()).chain([TIME_LEFT]);
        let rows = names.filter_map(|name| Row::of(name, &ranks, step_ms)).collect();
        let hidden_ms = mean(&ranks, |rank| rank.hidden_ms);
        Self { step_ms, parts: rows, hidden_ms, ranks, ..Self::default() }
    }

    /// A row by its name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.parts.iter().find(|row| row.part == name)
    }
}

impl Row {
    /// None where no rank did it.
    fn of(name: &str, ranks: &[RankTimes], step_ms: f64) -> Option<Self> {
        let of = |rank: &RankTimes| rank.parts.get(name).copied().unwrap_or(0.0);
        let most = ranks.iter().max_by(|a, b| of(a).total_cmp(&of(b)))?;
        let max_ms = of(most);
        if max_ms == 0.0 && name != TIME_LEFT {
            return None;
        }
        let min_ms = ranks.iter().map(of).fold(f64::INFINITY, f64::min);
        let ms = mean(ranks, of);
        let share = if step_ms > 0.0 { ms / step_ms } else { 0.0 };
        Some(Self { part: name.to_owned(), ms, share, min_ms, max_ms, most: most.rank })
    }
}

impl RankTimes {
    /// None if it finished no step.
    fn of(part: &Part) -> Option<Self> {
        let last = part.steps.last()?;
        let count = part.steps.len() as f64;
        let a_step = |nanos: u64| nanos as f64 / MILLIS / count;
        let total: u64 = part.steps.iter().map(StepTimes::nanos).sum();
        let mut sums: BTreeMap<Doing, u64> = BTreeMap::new();
        for span in part.steps.iter().flat_map(|step| &step.spans) {
            *sums.entry(span.doing).or_default() += span.nanos();
        }
        let left = total.saturating_sub(sums.values().sum());
        let named = sums.into_iter().map(|(doing, nanos)| (doing.name().to_owned(), a_step(nanos)));
        let parts = named.chain([(TIME_LEFT.to_owned(), a_step(left))]).collect();
        Some(Self {
            member: part.member,
            rank: last.rank,
            incarnation: part.incarnation,
            host: part.host.clone(),
            steps: part.steps.len() as u64,
            step_ms: a_step(total),
            parts,
            hidden_ms: a_step(part.steps.iter().map(hidden).sum()),
        })
    }
}

/// How long a rank communicated and worked at once in a step.
fn hidden(step: &StepTimes) -> u64 {
    let work = || step.spans.iter().filter(|span| span.doing.is_work());
    step.ahead().map_or(0, |sent| work().map(|work| sent.overlap(work)).sum())
}

fn mean(ranks: &[RankTimes], of: impl Fn(&RankTimes) -> f64) -> f64 {
    ranks.iter().map(of).sum::<f64>() / ranks.len() as f64
}

#[cfg(test)]
mod tests {
    use super::super::part::Span;
    use super::*;
    use dtrain_types::{Generation, Step, WorldSize};

    fn part(rank: u32, spans: &[(Doing, u64, u64)], ended: u64) -> Part {
        part_that_offers(None, rank, spans, ended)
    }

    fn part_that_offers(offered: Option<u64>, rank: u32, spans: &[(Doing, u64, u64)], ended: u64) -> Part {
        let spans = spans.iter().map(|(doing, begun, ended)| Span {
            doing: *doing,
            begun: begun * 1_000_000,
            ended: ended * 1_000_000,
            micro_batch: None,
        });
        let step = StepTimes {
            step: Step(1),
            generation: Generation(1),
            rank: Rank(rank),
            world: WorldSize(2),
            begun: 0,
            ended: ended * 1_000_000,
            offered: offered.map(|millis| millis * 1_000_000),
            spans: spans.collect(),
        };
        Part {
            member: MemberId(rank),
            incarnation: Incarnation(1),
            host: "here".into(),
            pid: 7,
            clock: "one".into(),
            to_unix: 0,
            steps: vec![step],
        }
    }

    #[test]
    fn rows_add_up_to_the_step_for_each_rank_and_for_all() {
        use Doing::{Backward, Communication, Forward, Wait};
        let quick = [(Forward, 0, 2), (Backward, 2, 5), (Wait, 5, 9), (Communication, 9, 10)];
        let slow = [(Forward, 0, 3), (Backward, 3, 9), (Communication, 9, 10)];
        let report = ProfileReport::of(&[part(0, &quick, 12), part(1, &slow, 11)]);
        assert!((report.step_ms - 11.5).abs() < 1e-9);
        let sum: f64 = report.parts.iter().map(|row| row.ms).sum();
        assert!((sum - report.step_ms).abs() < 1e-9, "{report:?}");
        for rank in &report.ranks {
            assert!((rank.parts.values().sum::<f64>() - rank.step_ms).abs() < 1e-9, "{rank:?}");
        }
        let backward = report.row("backward").unwrap();
        assert_eq!((backward.ms, backward.min_ms, backward.max_ms, backward.most), (4.5, 3.0, 6.0, Rank(1)));
        let wait = report.row("wait").unwrap();
        assert_eq!((wait.min_ms, wait.max_ms, wait.most), (0.0, 4.0, Rank(0)));
        assert_eq!(report.row(TIME_LEFT).unwrap().ms, 1.5);
        assert!(report.row("validation").is_none(), "nobody validated");
    }

    #[test]
    fn communication_is_hidden_while_its_rank_computes_and_not_else() {
        use Doing::{Backward, Communication, Wait};
        let after = ProfileReport::of(&[part(0, &[(Backward, 0, 5), (Communication, 5, 8)], 8)]);
        assert_eq!(after.hidden_ms, 0.0);
        let spans = [(Backward, 0, 5), (Wait, 5, 6), (Communication, 6, 8)];
        let meanwhile = ProfileReport::of(&[part_that_offers(Some(3), 0, &spans, 8)]);
        assert_eq!(meanwhile.hidden_ms, 2.0);
        assert_eq!(meanwhile.parts.iter().map(|row| row.ms).sum::<f64>(), 8.0);
    }

    #[test]
    fn a_life_without_a_step_is_in_no_mean() {
        let idle = Part { steps: Vec::new(), ..part(1, &[], 0) };
        let report = ProfileReport::of(&[part(0, &[(Doing::Forward, 0, 4)], 4), idle]);
        assert_eq!((report.ranks.len(), report.step_ms), (1, 4.0));
    }
}
