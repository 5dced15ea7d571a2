//! `dtrain bench step`: the peers' workloads through the whole of dtrain: processes, supervisor, all-reduce, ledger.
//!
//! Nothing is switched off for the measurement but checkpoints and validation, which the peers do not have either.
//! The model, its start and its one batch are those of PyTorch's script, see `dtrain_engine::models::peer`.

use crate::arguments::BenchStep;
use crate::bench_rank::{Measure, SEED, timeouts, work};
use crate::error::CliError;
use crate::fabric::new_arena;
use crate::rank_setup::RankTask;
use dtrain_checkpoint::RunLock;
use dtrain_collective::{Geometry, Reduce};
use dtrain_engine::Replica;
use dtrain_engine::models::peer::Work;
use dtrain_protocol::{Losses, Outcome, StartFrom, SupervisorConfig};
use dtrain_runtime::{
    Isolation, Journal, Observer, Program, RunFacts, RunFigures, RunFiles, RunPlan, StepSeen, supervise,
};
use dtrain_telemetry::ledger::{Binding, LedgerWriter};
use dtrain_types::{Generation, Instance, WorldSize, counted, cut_evenly};
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Steps that are not counted: pages, caches and schedulers settle.
const WARM_UP: u64 = 10;

/// What somebody wants to know the speed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The workload.
    pub work: Work,
    /// Ranks.
    pub ranks: u32,
    /// Compute threads of a rank.
    pub threads: u32,
    /// The peers' batches in a global batch.
    pub batches: u32,
    /// Micro-batches that each of them is cut into.
    pub micro_batches: u32,
    /// How long to measure. *Units*: seconds.
    pub seconds: u32,
}

/// How fast it is.
#[derive(Clone, Debug)]
pub struct Answer {
    /// *Units*: samples a second, of all ranks together.
    pub rate: f64,
    /// Share of the time that the rank which reported a step first spent on its own gradients and the update.
    pub computing: f64,
    /// Share of the time that it spent in the all-reduce: moving, adding, and waiting for slower ranks.
    pub reducing: f64,
    /// What the run counted.
    pub figures: RunFigures,
}

/// Measures and prints. *Blocks* for the time asked for and a little more.
///
/// *Errors*: the run failed.
pub fn run(arguments: &BenchStep) -> Result<(), CliError> {
    let work = work(&arguments.work)?;
    let BenchStep { ranks, threads, micro_batches, seconds, .. } = *arguments;
    if !work.batch().is_multiple_of(micro_batches as usize) {
        let batch = work.batch();
        let message = format!(
            "a batch of {batch} samples cannot be cut into {} of one size",
            counted(micro_batches, "micro-batch")
        );
        return Err(CliError::usage(message));
    }
    let answer = ask(&Question { work, ranks, threads, batches: ranks, micro_batches, seconds })?;
    let Answer { rate, figures, .. } = answer;
    let peak = figures.peak_rss as f64 / (1024.0 * 1024.0);
    if arguments.output.json {
        let line = json!({
            "work": work.name(),
            "ranks": arguments.ranks,
            "threads": arguments.threads,
            "micro_batches": arguments.micro_batches,
            "samples_per_second": rate,
            "peak_rss_mb": peak,
            "steps": figures.steps,
        });
        println!("{line}");
    } else {
        let (ranks, threads) = (arguments.ranks, arguments.threads);
        let (name, micro) = (work.name(), arguments.micro_batches);
        println!(
            "{name} ranks {ranks} threads {threads} micro-batches {micro} samples/s {rate:.1} rss {peak:.0} MiB"
        );
    }
    Ok(())
}

/// Trains for a while and counts. *Blocks* for the time asked for and a little more.
///
/// *Errors*: the run failed.
pub fn ask(question: &Question) -> Result<Answer, CliError> {
    let scratch = std::env::temp_dir().join(format!("dtrain-bench-{}", std::process::id()));
    let answer = measure(question, &scratch);
    // Nothing in it is of use to anyone; what cannot be removed is in the system's temporary folder.
    let _ = std::fs::remove_dir_all(&scratch);
    answer
}

fn measure(question: &Question, scratch: &Path) -> Result<Answer, CliError> {
    let Question { work, ranks, threads, batches, micro_batches, seconds } = *question;
    let of = |name: &str, steps| {
        let run_dir = scratch.join(name);
        Measure { work, ranks, threads, batches, micro_batches, steps, run_dir }
    };
    // A short run tells how many steps fill the time.
    let short = session(&of("short", 2 * WARM_UP))?;
    let samples = f64::from(batches) * work.batch() as f64;
    let steps = (f64::from(seconds) * short.rate / samples).ceil() as u64 + WARM_UP;
    session(&of("long", steps.max(3 * WARM_UP)))
}

fn session(measure: &Measure) -> Result<Answer, CliError> {
    let failed = |what: String| CliError::failed(what);
    std::fs::create_dir_all(&measure.run_dir).map_err(|e| failed(e.to_string()))?;
    let replica = measure.replica().map_err(failed)?;
    let (plan, schedule) = (measure.plan(), measure.schedule());
    let instance = Instance(u64::from(std::process::id()));
    let lock = RunLock::acquire(&measure.run_dir, instance).map_err(|e| failed(e.to_string()))?;
    let binding = Binding::new("bench", SEED, &plan);
    let ledger = LedgerWriter::open(&measure.run_dir.join("ledger.jsonl"), &binding);
    let facts = RunFacts {
        run_dir: measure.run_dir.clone(),
        run: "bench".into(),
        parent: None,
        seed: SEED,
        plan,
        schedule,
        bits: serde_json::Map::new(),
        reduce: "exact".into(),
        revision: crate::arguments::VERSION.into(),
        specs: Vec::new(),
        keep: NonZeroUsize::MIN,
        best: None,
        classifies: false,
    };
    let files =
        RunFiles::open(facts, lock, ledger.map_err(|e| failed(e.to_string()))?, None).map_err(failed)?;
    let ranges = cut_evenly(plan.micro_batches(), measure.ranks);
    let counts = dtrain_runtime::step_counts(&plan);
    let geometry = Geometry::plan(replica.about().gradient_len(), &ranges, &counts, Reduce::Exact);
    let state = Some(replica.about().state);
    let stopwatch = Arc::new(Mutex::new(Stopwatch::default()));
    let run_plan = RunPlan {
        supervisor: SupervisorConfig {
            instance,
            wanted_nodes: 1,
            most_nodes: 1,
            most_ranks: measure.ranks,
            min_ranks: measure.ranks,
            join_timeout: Duration::from_secs(60),
            timeouts: timeouts(),
            losses: Losses::EndTheRun,
            reduce: Reduce::Exact,
            balance: false,
            batches: plan,
            schedule,
            start: StartFrom::Fresh,
            first_generation: Generation(1),
            reserved: Generation(1),
        },
        ranks: measure.ranks,
        isolation: Isolation::Process(Program::this()),
        arena: Some(new_arena(WorldSize(measure.ranks), geometry, state).map_err(failed)?),
        setup: RankTask::Bench(measure.clone()).to_setup(),
        gateway: None,
    };
    drop(replica);
    let observer = Box::new(Timer(Arc::clone(&stopwatch)));
    let conclusion = supervise(run_plan, Journal::new(files, observer)).map_err(|e| failed(e.to_string()))?;
    let Outcome::Finished(_) = conclusion.outcome else {
        return Err(failed(format!("the benchmark did not finish: {:?}", conclusion.outcome)));
    };
    let stopwatch = stopwatch.lock().expect("the journal has ended");
    let [rate, computing, reducing] =
        [stopwatch.samples as f64, stopwatch.busy, stopwatch.reducing].map(|sum| stopwatch.a_second(sum));
    Ok(Answer { rate, computing, reducing, figures: conclusion.figures })
}

/// When the warm-up ended, when the newest step came, and what was fed and done between.
#[derive(Default)]
struct Stopwatch {
    begun: Option<Instant>,
    newest: Option<Instant>,
    samples: u64,
    busy: f64,
    reducing: f64,
}

impl Stopwatch {
    fn a_second(&self, sum: f64) -> f64 {
        let seconds = self.begun.zip(self.newest).map_or(0.0, |(a, b)| (b - a).as_secs_f64());
        if seconds > 0.0 { sum / seconds } else { 0.0 }
    }
}

struct Timer(Arc<Mutex<Stopwatch>>);

impl Observer for Timer {
    fn step(&mut self, step: &StepSeen) {
        let mut watch = self.0.lock().expect("no holder panics");
        let now = Instant::now();
        if watch.begun.is_some() {
            watch.newest = Some(now);
            watch.samples += step.samples;
            watch.busy += step.busy;
            watch.reducing += step.seconds - step.busy;
        } else if step.step.0 >= WARM_UP {
            watch.begun = Some(now);
        }
    }
}
