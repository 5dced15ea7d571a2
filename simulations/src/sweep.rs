//! Seeds in a row, shared out to threads; the first ones that break an invariant, and the table of coverage.
//!
//! This file does not know what a seed does.

use dtrain_sim::{Coverage, Settings, Violation, simulate};
use dtrain_types::Seed;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a sweep goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many seeds.
    Seeds(u64),
    /// So long.
    Time(Duration),
}

/// What is to be swept.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The settings of every simulation; the seed is the first.
    pub settings: Settings,
    /// When it ends.
    pub limit: Limit,
    /// On how many threads.
    pub threads: usize,
    /// It ends after so many seeds that break something.
    pub most_found: usize,
}

/// A seed that breaks something.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// What it breaks.
    pub violations: Vec<Violation>,
}

/// What a sweep met.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Which faults met which places.
    pub coverage: Coverage,
    /// Seeds that break something, by seed.
    pub found: Vec<Found>,
    /// How many events there were.
    pub events: u64,
    /// How many generations.
    pub generations: u64,
    /// How long it took.
    pub took: Duration,
}

impl Tally {
    /// How many seeds were run.
    #[must_use]
    pub fn seeds(&self) -> u64 {
        self.coverage.runs[0]
    }

    /// *Units*: seeds a minute.
    #[must_use]
    pub fn pace(&self) -> f64 {
        self.seeds() as f64 * 60.0 / self.took.as_secs_f64().max(1e-9)
    }
}

/// Runs seeds until the limit.
#[must_use]
pub fn sweep(plan: &Sweep) -> Tally {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    let tally = Mutex::new(Tally::default());
    let work = || {
        let mut own = Tally::default();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let over = match plan.limit {
                Limit::Seeds(count) => at >= count,
                Limit::Time(length) => begun.elapsed() >= length,
            };
            if over {
                break;
            }
            let seed = plan.settings.seed.0.wrapping_add(at);
            let report = simulate(&Settings { seed: Seed(seed), ..plan.settings.clone() });
            own.coverage.add(&report.coverage);
            own.events += report.events;
            own.generations += report.generations;
            if !report.violations.is_empty() {
                let mut all = tally.lock().expect("no thread panics while it holds this");
                all.found.push(Found { seed, violations: report.violations });
                if all.found.len() >= plan.most_found {
                    next.store(u64::MAX / 2, Ordering::Relaxed);
                    break;
                }
            }
        }
        let mut all = tally.lock().expect("no thread panics while it holds this");
        all.coverage.add(&own.coverage);
        all.events += own.events;
        all.generations += own.generations;
    };
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut tally = tally.into_inner().expect("all threads are joined");
    tally.found.sort_by_key(|found| found.seed);
    tally.took = begun.elapsed();
    tally
}
