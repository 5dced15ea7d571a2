//! `dtrain bench scaling`: how much faster more ranks are, with the work of each rank fixed (weak) and with that of all
//! ranks together fixed (strong), and where the time goes.
//!
//! Each row is a run of `bench step`'s: processes, supervisor, all-reduce, ledger. It does not know how one is measured.

use crate::arguments::BenchScaling;
use crate::bench_step::{Answer, Question, ask, work};
use crate::commands::{print, print_json};
use crate::config::Precision;
use crate::error::CliError;
use crate::report::{grouped, percent};
use serde_json::json;

/// Up to so many ranks every number is measured, above only powers of two and the last.
const EVERY: u32 = 8;
/// Strong scaling cuts a step so that every number of ranks has equal shares, as long as that takes no more
/// micro-batches than this.
const MOST_EQUAL: u32 = 24;

/// What stays the same when ranks are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// The work of a rank.
    Weak,
    /// The work of a step.
    Strong,
}

impl Scaling {
    fn name(self) -> &'static str {
        match self {
            Self::Weak => "weak",
            Self::Strong => "strong",
        }
    }

    fn batches(self, ranks: u32, all: &[u32]) -> u32 {
        match self {
            Self::Weak => ranks,
            Self::Strong => equal_shares(all),
        }
    }
}

/// The ranks that are measured, one rank first.
fn worlds(most: u32) -> Vec<u32> {
    let wanted = |ranks: &u32| *ranks <= EVERY && most <= EVERY || ranks.is_power_of_two() || *ranks == most;
    (1..=most).filter(wanted).collect()
}

/// The fewest micro-batches of which every number of ranks gets equal shares; that of the most ranks where it is too many.
fn equal_shares(worlds: &[u32]) -> u32 {
    let most = worlds.last().copied().unwrap_or(1);
    (most..=MOST_EQUAL).find(|count| worlds.iter().all(|ranks| count.is_multiple_of(*ranks))).unwrap_or(most)
}

/// Measures and prints, a line for each number of ranks.
///
/// *Errors*: words that say nothing (usage); a run that failed. *Blocks* while it measures.
pub fn run(arguments: &BenchScaling) -> Result<(), CliError> {
    let work = work(&arguments.work)?;
    let scalings = match arguments.kind.as_str() {
        "weak" => vec![Scaling::Weak],
        "strong" => vec![Scaling::Strong],
        _ => vec![Scaling::Weak, Scaling::Strong],
    };
    let BenchScaling { ranks, threads, seconds, output, .. } = *arguments;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let most = ranks.unwrap_or((cores / threads).max(1));
    let worlds = worlds(most);
    if !output.json {
        let head =
            format!("{}, {threads} thread(s) a rank, {cores} core(s), {seconds} s each\n", work.name());
        print(&(head + HEAD))?;
    }
    for scaling in scalings {
        let mut alone = None;
        for ranks in &worlds {
            let batches = scaling.batches(*ranks, &worlds);
            let (micro_batches, precision) = (1, Precision::F32);
            let question =
                Question { work, ranks: *ranks, threads, batches, micro_batches, seconds, precision };
            let answer = ask(&question)?;
            let row = Row { scaling, question, alone: *alone.get_or_insert(answer.rate), answer, cores };
            if output.json { print_json(&row.json())? } else { print(&row.text())? }
        }
    }
    Ok(())
}

const HEAD: &str = "kind   ranks  batch   samples/s  speed-up  efficiency  computing  all-reduce  other\n";

struct Row {
    scaling: Scaling,
    question: Question,
    answer: Answer,
    /// Samples a second of one rank.
    alone: f64,
    cores: u32,
}

impl Row {
    fn global_batch(&self) -> u64 {
        u64::from(self.question.batches) * self.question.work.batch() as u64
    }

    fn speed_up(&self) -> f64 {
        self.answer.rate / self.alone
    }

    fn efficiency(&self) -> f64 {
        self.speed_up() / f64::from(self.question.ranks)
    }

    /// What neither computing nor the all-reduce accounts for: the loop itself, and news to the supervisor.
    fn other(&self) -> f64 {
        (1.0 - self.answer.computing - self.answer.reducing).max(0.0)
    }

    fn needs(&self) -> u32 {
        self.question.ranks * self.question.threads
    }

    fn json(&self) -> serde_json::Value {
        let Question { work, ranks, threads, batches, .. } = self.question;
        json!({
            "scaling": self.scaling.name(),
            "work": work.name(),
            "ranks": ranks,
            "threads": threads,
            "cores": self.cores,
            "micro_batches": batches,
            "global_batch": self.global_batch(),
            "samples_per_second": self.answer.rate,
            "speed_up": self.speed_up(),
            "efficiency": self.efficiency(),
            "computing": self.answer.computing,
            "reducing": self.answer.reducing,
            "other": self.other(),
            "steps": self.answer.figures.steps,
            "peak_rss_mb": self.answer.figures.peak_rss as f64 / (1024.0 * 1024.0),
        })
    }

    fn text(&self) -> String {
        let Answer { rate, computing, reducing, .. } = self.answer;
        let rate = if rate < 1000.0 { format!("{rate:.1}") } else { grouped(rate.round() as u64) };
        let note = if self.needs() > self.cores { "  more threads than cores" } else { "" };
        format!(
            "{:<6}{:>6}{:>7}{rate:>12}{:>10.2}{:>12}{:>11}{:>12}{:>7}{note}\n",
            self.scaling.name(),
            self.question.ranks,
            self.global_batch(),
            self.speed_up(),
            percent(self.efficiency()),
            percent(computing),
            percent(reducing),
            percent(self.other()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_ranks_up_to_eight_is_measured_and_then_powers_of_two() {
        assert_eq!(worlds(1), [1]);
        assert_eq!(worlds(5), [1, 2, 3, 4, 5]);
        assert_eq!(worlds(24), [1, 2, 4, 8, 16, 24]);
    }

    #[test]
    fn a_step_of_strong_scaling_can_be_cut_into_equal_shares() {
        assert_eq!(equal_shares(&worlds(2)), 2);
        assert_eq!(equal_shares(&worlds(4)), 12);
        assert_eq!(equal_shares(&worlds(24)), 24);
        // 1 to 8 would need 840: the last has one each, and the others what there is.
        assert_eq!(equal_shares(&worlds(8)), 8);
    }
}
