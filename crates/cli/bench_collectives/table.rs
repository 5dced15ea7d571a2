//! From the times of all ranks to a line for people or for programs. It does not measure.

use super::case::{Case, bus_factor};
use super::plan::BenchPlan;
use super::ranks::{backend, check_barrier};
use super::timing::Times;
use crate::config::Isolation;
use crate::config::Value;
use crate::error::CliError;
use dtrain_types::counted;
use serde_json::{Value as Json, json};

/// Which columns a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Times and bandwidths.
    Times,
    /// And what the memory of this machine can do.
    WithLimit,
}

/// What one case came to. *Units*: microseconds, and 10^9 bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    case: Case,
    isolation: Isolation,
    median: f64,
    least: f64,
    most: f64,
    /// The memory alone: the median, and the least.
    memory: Option<(f64, f64)>,
}

/// The middle one of some numbers, or the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

/// For each sample the time of its slowest rank, sorted. *Units*: microseconds.
fn slowest(all: &[Times], took: impl Fn(&Times) -> Vec<u64>) -> Vec<f64> {
    let mut slowest: Vec<u64> = Vec::new();
    for times in all {
        let took = took(times);
        slowest.resize(took.len(), 0);
        slowest.iter_mut().zip(took).for_each(|(slowest, took)| *slowest = took.max(*slowest));
    }
    slowest.sort_unstable();
    slowest.into_iter().map(|nanoseconds| nanoseconds as f64 / 1e3).collect()
}

impl Row {
    /// *Errors*: a barrier that was none.
    pub fn new(case: &Case, isolation: Isolation, all: &[Times]) -> Result<Self, CliError> {
        check_barrier(case, all)?;
        let span =
            |times: &Times| times.ended.iter().zip(&times.begun).map(|(end, begin)| end - begin).collect();
        let sorted = slowest(all, span);
        let memory = slowest(all, |times| times.memory.clone());
        Ok(Self {
            case: case.clone(),
            isolation,
            median: median(&sorted),
            least: sorted[0],
            most: sorted[sorted.len() - 1],
            memory: case.limit.then(|| (median(&memory), memory[0])),
        })
    }

    /// Size over time, and that times the bus factor; none where nothing moves.
    fn bandwidths(&self) -> Option<(f64, f64)> {
        let factor = bus_factor(self.case.operation, self.case.ranks)?;
        let algo = self.case.bytes as f64 / self.median / 1e3;
        Some((algo, algo * factor))
    }

    pub fn json(&self) -> Json {
        let Case { operation, bytes, ranks, samples, .. } = &self.case;
        let bandwidths = self.bandwidths();
        let mut line = json!({
            "op": operation.name(),
            "ranks": ranks,
            "backend": backend(&self.case, self.isolation),
            "mode": self.case.mode().name(),
            "wire": self.case.wire().name(),
            "bytes": bytes,
            "samples": samples,
            "median_us": self.median,
            "least_us": self.least,
            "most_us": self.most,
            "algo_gb_s": bandwidths.map(|(algo, _)| algo),
            "bus_gb_s": bandwidths.map(|(_, bus)| bus),
        });
        if let Some((memory, least)) = self.memory {
            line["limit_us"] = json!(memory);
            line["limit_least_us"] = json!(least);
            line["of_limit"] = json!(memory / self.median);
        }
        line
    }

    /// A line of the table below [`head`].
    pub fn text(&self, columns: Columns) -> String {
        let Self { case, median, least, most, .. } = self;
        let size = if case.bytes == 0 { "-".to_owned() } else { Value::Size(case.bytes).to_string() };
        let (algo, bus) = match self.bandwidths() {
            Some((algo, bus)) => (digits(algo), digits(bus)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let [median, least, most] = [median, least, most].map(|time| digits(*time));
        let mut line = format!(
            "{:<WIDTH$}{size:>9}{median:>11}{least:>11}{most:>11}{algo:>10}{bus:>10}",
            case.operation.name()
        );
        if columns == Columns::WithLimit {
            let (memory, share) = match self.memory {
                Some((memory, _)) => (digits(memory), format!("{:.0} %", 100.0 * memory / self.median)),
                None => ("-".to_owned(), "-".to_owned()),
            };
            line += &format!("{memory:>11}{share:>9}");
        }
        line + "\n"
    }
}

/// The widest name of an operation, and a space.
const WIDTH: usize = 15;

/// Three digits that count.
fn digits(number: f64) -> String {
    match number {
        n if n < 9.995 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

/// What was asked for, and the names and units of the columns.
pub fn head(plan: &BenchPlan) -> String {
    let ranks = match plan.isolation {
        Isolation::Process => counted(plan.ranks, "process"),
        Isolation::Thread => counted(plan.ranks, "thread"),
    };
    let queues = plan.ring && plan.isolation == Isolation::Thread;
    let way = if queues { "queues" } else { "shared memory" };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = counted(cores, "core");
    let wire = if plan.bf16 { "bf16" } else { "f32" };
    let mode = if plan.ring { "ring" } else { "exact" };
    let pinned = if plan.pin { ", pinned" } else { "" };
    let mut text = format!("{ranks} on {cores}{pinned}, {way}, {mode}, {wire}; every result is checked\n");
    let names = format!(
        "{:<WIDTH$}{:>9}{:>11}{:>11}{:>11}{:>10}{:>10}",
        "op", "size", "median us", "least us", "most us", "algo GB/s", "bus GB/s"
    );
    let more = if plan.limit { format!("{:>11}{:>9}", "memory us", "of limit") } else { String::new() };
    text += &format!("{names}{more}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::case::example;
    use super::*;
    use dtrain_collective::OpKind;

    fn times(spans: &[u64], memory: &[u64]) -> Times {
        let begun: Vec<u64> = (0..spans.len() as u64).map(|i| 1_000_000 * i).collect();
        let ended = begun.iter().zip(spans).map(|(begin, span)| begin + span).collect();
        Times { begun, ended, memory: memory.to_vec() }
    }

    #[test]
    fn the_slowest_rank_of_each_sample_counts() {
        let case = Case { samples: 3, ..example(OpKind::AllReduce, 2, 1000) };
        let all =
            [times(&[1000, 9000, 2000], &[500, 500, 500]), times(&[3000, 1000, 4000], &[900, 100, 800])];
        let row = Row::new(&case, Isolation::Process, &all).unwrap();
        assert_eq!((row.median, row.least, row.most, row.memory), (4.0, 3.0, 9.0, Some((0.8, 0.5))));
        let line = row.json();
        // 4 000 bytes in 4 us are 1 GB/s, and two ranks have a bus factor of 1.
        assert_eq!((&line["algo_gb_s"], &line["bus_gb_s"]), (&json!(1.0), &json!(1.0)));
        assert_eq!((&line["limit_us"], &line["of_limit"]), (&json!(0.8), &json!(0.2)));
        assert!(row.text(Columns::WithLimit).contains("20 %"), "{}", row.text(Columns::WithLimit));
    }

    #[test]
    fn a_barrier_that_lets_somebody_through_too_early_is_an_error() {
        let case = Case { samples: 1, limit: false, ..example(OpKind::Barrier, 2, 0) };
        let early = Times { begun: vec![10], ended: vec![20], memory: Vec::new() };
        let late = Times { begun: vec![21], ended: vec![30], memory: Vec::new() };
        assert!(Row::new(&case, Isolation::Process, &[early.clone(), late]).is_err());
        let row = Row::new(&case, Isolation::Process, &[early.clone(), early]).unwrap();
        assert_eq!(row.json()["bus_gb_s"], Json::Null);
    }

    #[test]
    fn columns_stand_below_their_names() {
        let plan = BenchPlan {
            ranks: 2,
            operations: vec![OpKind::AllReduce],
            sizes: vec![4000],
            ring: false,
            bf16: false,
            isolation: Isolation::Process,
            samples: None,
            limit: true,
            pin: true,
        };
        let case = Case { samples: 1, ..example(OpKind::ReduceScatter, 2, 64 << 20) };
        let row = Row::new(&case, plan.isolation, &[times(&[99_999_999], &[12_345_678])]).unwrap();
        let head = head(&plan);
        let names = head.lines().last().unwrap();
        assert_eq!(
            row.text(Columns::WithLimit).trim_end().len(),
            names.len(),
            "{head}{}",
            row.text(Columns::WithLimit)
        );
        assert_eq!([0.5, 12.34, 1234.5].map(digits), ["0.50", "12.3", "1234"]);
    }
}
