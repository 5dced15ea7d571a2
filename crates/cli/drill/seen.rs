//! What somebody outside knows of a run: its `--json` lines, folded as they come.
//!
//! It does not know where the lines come from or what is done to the run. Time is not its business.

use serde_json::Value;
use std::collections::BTreeMap;

/// A rank that the run says it lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub member: u64,
    /// Why, in the run's own words.
    pub cause: String,
}

/// What the last line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Of all parameters; empty when the run did not come to its end.
    pub digest: String,
    /// Steps that had to be computed again.
    pub lost_steps: u64,
}

/// More than this nobody reads.
const MOST_NOTICES: usize = 1000;

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The newest step.
    pub last_step: u64,
    /// The first step that did not follow the one before it.
    pub disorder: Option<String>,
    /// The process of each rank that takes part now, by member.
    pub ranks: BTreeMap<u64, u32>,
    /// Ranks that were lost, in the order of the news.
    pub faults: Vec<Fault>,
    /// The step of the newest checkpoint.
    pub checkpoint: Option<u64>,
    /// What it told of itself, as far as it fits a report, with the newest step before it.
    pub notices: Vec<(u64, String)>,
    /// How it ended.
    pub ending: Option<Ending>,
    /// The newest generation.
    pub generation: u64,
}

impl Seen {
    /// The same run when it is started again: its next step is the one after the newest.
    #[must_use]
    pub fn next_life(&self) -> Self {
        Self { last_step: self.last_step, disorder: self.disorder.clone(), ..Self::default() }
    }

    /// Takes one line in. Lines that it does not know change nothing.
    pub fn take(&mut self, line: &Value) {
        let count = |key: &str| line[key].as_u64().unwrap_or_default();
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        match line["event"].as_str().unwrap_or_default() {
            "step" => {
                let (step, expected) = (count("step"), self.last_step + 1);
                if step != expected && self.disorder.is_none() {
                    self.disorder = Some(format!("step {step} came where {expected} was due"));
                }
                self.last_step = step;
            }
            "rank_started" => {
                // A generation names all its ranks: who is not named has no part in it.
                if count("generation") > self.generation {
                    self.generation = count("generation");
                    self.ranks.clear();
                }
                self.ranks.insert(count("member"), u32::try_from(count("pid")).unwrap_or_default());
            }
            "fault" => self.faults.push(Fault { member: count("member"), cause: text("cause") }),
            "notice" if self.notices.len() < MOST_NOTICES => {
                self.notices.push((self.last_step, text("text")));
            }
            "checkpoint" => self.checkpoint = Some(count("step")),
            "summary" => {
                self.ending = Some(Ending { digest: text("digest"), lost_steps: count("lost_steps") });
            }
            _ => {}
        }
    }
}

/// Whether a line is a step.
#[must_use]
pub fn is_step(line: &Value) -> bool {
    line["event"] == "step"
}

/// Whether a line is a step that a later generation made: what the one before had made may be told after it ended.
#[must_use]
pub fn is_step_after(line: &Value, generation: u64) -> bool {
    is_step(line) && line["generation"].as_u64() > Some(generation)
}

/// Whether a line says that a lost rank is coming back: the state is copied to it next.
#[must_use]
pub fn is_join(line: &Value) -> bool {
    line["event"] == "notice" && line["text"].as_str().is_some_and(|text| text.contains("join"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(lines: &[Value]) -> Seen {
        let mut seen = Seen::default();
        lines.iter().for_each(|line| seen.take(line));
        seen
    }

    #[test]
    fn a_gap_and_a_repetition_are_each_noticed_and_the_first_is_kept() {
        let steps = |numbers: &[u64]| -> Vec<Value> {
            numbers.iter().map(|step| json!({"event": "step", "step": step})).collect()
        };
        assert_eq!(seen(&steps(&[1, 2, 3])).disorder, None);
        assert_eq!(seen(&steps(&[1, 3, 3])).disorder.unwrap(), "step 3 came where 2 was due");
        assert_eq!(seen(&steps(&[1, 2, 2])).disorder.unwrap(), "step 2 came where 3 was due");
        assert_eq!(seen(&steps(&[2])).disorder.unwrap(), "step 2 came where 1 was due");
        let mut resumed = seen(&steps(&[1, 2])).next_life();
        resumed.take(&json!({"event": "step", "step": 3}));
        assert_eq!(resumed.disorder, None);
    }

    #[test]
    fn who_is_not_named_by_a_new_generation_has_no_part_in_it() {
        let started = |generation: u64, member: u64, pid: u64| json!({"event": "rank_started", "generation": generation, "member": member, "pid": pid});
        let seen = seen(&[started(1, 0, 10), started(1, 1, 11), started(2, 1, 11)]);
        assert_eq!(seen.ranks, BTreeMap::from([(1, 11)]));
    }

    #[test]
    fn the_end_of_a_run_is_its_summary() {
        let line = json!({"event": "summary", "digest": "ab", "lost_steps": 3});
        assert_eq!(seen(&[line]).ending, Some(Ending { digest: "ab".into(), lost_steps: 3 }));
        assert_eq!(seen(&[json!({"event": "news of tomorrow"}), json!(7)]).ending, None);
    }
}
