//! `dtrain bench step`: the peers' workloads through the whole of dtrain: a run as `dtrain train` makes it.
//!
//! Nothing is switched off for the measurement but checkpoints within it and validation, which the peers do not have
//! either. The model and its one batch are those of PyTorch's script, see `dtrain_engine::models::peer`.

use crate::arguments::BenchStep;
use crate::bench_data;
use crate::config::{Config, HostCount, Precision};
use crate::error::CliError;
use crate::gpus::{Auto, choose_here, this_machine};
use crate::nccl::ChosenBackend;
use crate::plan::Plan;
use crate::run_folder::RunFolder;
use crate::session::{Predecessor, Session};
use crate::watch::Watchers;
use dtrain_engine::models::peer::Work;
use dtrain_protocol::Outcome;
use dtrain_runtime::{Observer, RunFigures, StepSeen};
use dtrain_types::counted;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

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
    /// What products round their operands to.
    pub precision: Precision,
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
    let precision =
        Precision::from_name(&arguments.precision).expect("one of those that the command line knows");
    let answer = ask(&Question { work, ranks, threads, batches: ranks, micro_batches, seconds, precision })?;
    let Answer { rate, figures, .. } = answer;
    let peak = figures.peak_rss as f64 / (1024.0 * 1024.0);
    if arguments.output.json {
        let line = json!({
            "work": work.name(),
            "ranks": arguments.ranks,
            "threads": arguments.threads,
            "micro_batches": arguments.micro_batches,
            "precision": precision.name(),
            "samples_per_second": rate,
            "peak_rss_mb": peak,
            "steps": figures.steps,
        });
        say!("{line}");
    } else {
        let (ranks, threads) = (arguments.ranks, arguments.threads);
        let (name, micro) = (work.name(), arguments.micro_batches);
        say!(
            "{name} ranks {ranks} threads {threads} micro-batches {micro} samples/s {rate:.1} rss {peak:.0} MiB"
        );
    }
    Ok(())
}

/// The workload of this name.
///
/// *Errors*: there is none.
pub fn work(name: &str) -> Result<Work, CliError> {
    let found = Work::ALL.into_iter().find(|work| work.name() == name);
    found.ok_or_else(|| CliError::usage(format!("there is no workload {name}")))
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
    // A short run tells how many steps fill the time.
    let short = session(question, 2 * WARM_UP, scratch.join("short"))?;
    let samples = f64::from(question.batches) * question.work.batch() as f64;
    let steps = (f64::from(question.seconds) * short.rate / samples).ceil() as u64 + WARM_UP;
    session(question, steps.max(3 * WARM_UP), scratch.join("long"))
}

/// The run that is measured, as anybody would ask for it.
fn config(question: &Question, steps: u64) -> Result<Config, CliError> {
    let Question { work, ranks, threads, batches, micro_batches, precision, .. } = *question;
    let batch = work.batch() as u32;
    let settings = [
        "data.kind=own".to_owned(),
        format!("data.name={}", bench_data::own(work).name),
        "model.kind=own".to_owned(),
        format!("ranks={ranks}"),
        format!("min_ranks={ranks}"),
        format!("threads={threads}"),
        format!("global_batch={}", batch * batches),
        format!("micro_batch={}", batch / micro_batches),
        format!("steps={steps}"),
        "devices=cpu".to_owned(),
        format!("precision={}", precision.name()),
        "max_restarts=0".to_owned(),
        "checkpoint.every=none".to_owned(),
        "optimizer.lr=0.001".to_owned(),
        "optimizer.weight_decay=0.01".to_owned(),
        "optimizer.decays=all".to_owned(),
        "schedule.kind=constant".to_owned(),
        "schedule.warmup=none".to_owned(),
    ];
    Ok(Config::parse(None, &settings, this_machine())?)
}

fn session(question: &Question, steps: u64, folder: PathBuf) -> Result<Answer, CliError> {
    let config = config(question, steps)?;
    let chosen = choose_here(&config, Auto::Cpu("this is measured where it was asked for"))?;
    let (backend, _) = ChosenBackend::choose(&config, HostCount::One, None)?;
    let plan = Plan::open(&config, None)?;
    let replica = plan.prototype(&chosen)?.replica;
    let run = RunFolder::create_named(folder)?;
    let (resume, lead, cuda, gpus, json) = (None, None, None, None, false);
    let predecessor = Predecessor::None;
    let (agreement, watchers) = (None, Watchers::default());
    let session = Session {
        plan,
        replica,
        backend,
        agreement,
        frozen: None,
        run,
        resume,
        lock: None,
        predecessor,
        lead,
        cuda,
        by_libraries: Default::default(),
        gpus,
        watchers,
        json,
    };
    let stopwatch = Arc::new(Mutex::new(Stopwatch::default()));
    let conclusion = session.run(Box::new(Timer(Arc::clone(&stopwatch))))?.conclusion;
    let Outcome::Finished(_) = conclusion.outcome else {
        return Err(CliError::failed(format!("the benchmark did not finish: {:?}", conclusion.outcome)));
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
