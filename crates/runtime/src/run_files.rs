//! The files of one run: events, metrics, TensorBoard, ledger, checkpoints, and the lock that makes them ours.
//!
//! Knows where each number goes and in which order files become durable (the ledger before the manifest that names
//! it). It does not know why anything happened.

use crate::ending_file::write_ending;
use crate::found::Found;
use crate::metric::{EpochMetric, Predicts};
use crate::observer::StepSeen;
use crate::outlives::Outlives;
use crate::patience::{Patience, Standing};
use crate::ranges_file::RangesFile;
use dtrain_checkpoint::{
    FileStore, MANIFEST_VERSION, Manifest, Owner, RealDisk, RunLock, ShardInfo, Store, TensorSpec,
    reserve_generations,
};
use dtrain_engine::OwnMetric;
use dtrain_protocol::{Cause, CheckpointId, Digest, Ending, Event, ManifestOrder, Schedule, StepRecord};
use dtrain_telemetry::ledger::LedgerWriter;
use dtrain_telemetry::{
    Board, EpochMetrics, EventLog, GpuWatch, JsonLines, Metrics, RunEvent as LogEvent, StepMetrics,
    TelemetryError, UnixTime,
};
use dtrain_types::{BatchPlan, Bytes, Epoch, Generation, MicroRange, Seed, Step, counted};
use std::io::Write;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;

/// What the manifest of every checkpoint of a run says.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// The folder of the run.
    pub run_dir: PathBuf,
    /// The lineage: the name of the run.
    pub run: String,
    /// The checkpoint that this process resumed from.
    pub parent: Option<CheckpointId>,
    /// The seed.
    pub seed: Seed,
    /// Which samples each step holds.
    pub plan: BatchPlan,
    /// What is due when.
    pub schedule: Schedule,
    /// The configuration keys that decide the bits.
    pub bits: serde_json::Map<String, serde_json::Value>,
    /// `exact` or `ring`.
    pub reduce: String,
    /// The revision of this program.
    pub revision: String,
    /// Every tensor of the state.
    pub specs: Vec<TensorSpec>,
    /// How many checkpoints are kept.
    pub keep: NonZeroUsize,
    /// What makes a checkpoint the best.
    pub best: Option<EpochMetric>,
    /// When it ends before its length.
    pub patience: Option<Patience>,
    /// What is known of that where it goes on.
    pub standing: Option<Standing>,
    /// What is predicted, and so which numbers of a validation mean something.
    pub predicts: Predicts,
    /// Metrics of a program's own, by the names of their results, as `val_top5`.
    pub own_metrics: Vec<(String, OwnMetric)>,
    /// What turns a sample as people have it into what the model is trained on, for every manifest.
    pub preparation: Option<serde_json::Value>,
    /// The digest of the parameters that stay as they are, where some lie apart.
    pub frozen: Option<dtrain_types::Digest>,
    /// What a supervisor that died in this run has written down, where its ranks may still be there.
    pub found: Option<Found>,
    /// Whether TensorBoard gets its files.
    pub tensorboard: bool,
    /// What the steps are to outlive that ranks are told to be written down.
    pub outlives: Outlives,
}

/// Standard output, for programs.
pub type Echo = JsonLines<Box<dyn Write + Send>>;

/// The files of a run, open and ours.
pub struct RunFiles {
    facts: RunFacts,
    store: FileStore,
    lock: RunLock,
    ledger: LedgerWriter,
    events: EventLog,
    metrics: Metrics,
    /// Programs that read our standard output get every event too.
    echo: Option<Echo>,
    /// Who computes which micro-batches, in the newest generations: a step may be told of after the next one was formed.
    ranges: RangesFile,
    best_score: Option<f64>,
    /// Where others see what is written.
    board: Option<Arc<Board>>,
}

impl RunFiles {
    /// Opens or begins the files of a run whose folder is locked by `lock`.
    ///
    /// *Errors*: a sentence naming the file. *Blocks* on the disk.
    pub fn open(
        facts: RunFacts,
        lock: RunLock,
        ledger: LedgerWriter,
        echo: Option<Echo>,
    ) -> Result<Self, String> {
        let dir = &facts.run_dir;
        let store = FileStore::new(dir);
        store.sweep(&lock).map_err(|error| error.to_string())?;
        let events = EventLog::append(&dir.join("events.jsonl")).map_err(|error| error.to_string())?;
        let metrics = open_metrics(&facts).map_err(|error| error.to_string())?;
        let best_score = best_so_far(&store, facts.best.as_ref());
        let found = facts.found.as_ref().map(|found| found.ranges.clone()).unwrap_or_default();
        let ranges = RangesFile::new(dir, facts.outlives, found);
        Ok(Self { facts, store, lock, ledger, events, metrics, echo, ranges, best_score, board: None })
    }

    /// Shows on a board what is written.
    #[must_use]
    pub fn shown_on(mut self, board: Arc<Board>) -> Self {
        self.metrics = self.metrics.shown_on(Arc::clone(&board));
        self.board = Some(board);
        self
    }

    /// Writes the readings of these GPUs beside the steps, for programs and for TensorBoard.
    #[must_use]
    pub fn watching(mut self, gpus: Option<Arc<GpuWatch>>) -> Self {
        if let Some(gpus) = gpus {
            self.metrics = self.metrics.watching(gpus);
        }
        self
    }

    /// What manifests say, and what numbers mean.
    #[must_use]
    pub fn facts(&self) -> &RunFacts {
        &self.facts
    }

    /// Whether `step` is the last of its epoch.
    #[must_use]
    pub fn ends_epoch(&self, step: Step) -> bool {
        self.facts.plan.step(step).ends_epoch
    }

    /// Whether `step` is the last of the run.
    #[must_use]
    pub fn is_last(&self, step: Step) -> bool {
        step >= self.facts.schedule.last
    }

    /// Whether the run validates after `step`.
    #[must_use]
    pub fn validates(&self, step: Step) -> bool {
        self.facts.schedule.validates(step)
    }

    /// The epoch that `step` belongs to.
    #[must_use]
    pub fn epoch_of(&self, step: Step) -> Epoch {
        self.facts.plan.step(step).epoch
    }

    /// When the run ends before its length, and what is known of that where it goes on.
    #[must_use]
    pub fn patience(&self) -> (Option<&Patience>, Option<&Standing>) {
        (self.facts.patience.as_ref(), self.facts.standing.as_ref())
    }

    /// Writes down who computes what in a generation, by rank.
    ///
    /// *Errors*: a sentence; the file does not take it. *Blocks* on the disk.
    pub fn ranges(&mut self, generation: Generation, ranges: Vec<MicroRange>) -> Result<(), String> {
        let written = self.ranges.add(generation, ranges, self.ledger.generation());
        written.map_err(|error| format!("cannot write who computes what: {error}"))
    }

    /// Writes a committed step: ledger, event, metrics.
    ///
    /// *Errors*: the first file that refused; the others are written all the same.
    pub fn step(&mut self, record: &StepRecord, seen: &StepSeen) -> Result<(), String> {
        // A supervisor that died may have written it into one file and not into the next.
        let new = record.step > self.ledger.reached();
        let ledger = if new { self.enter(record) } else { Ok(()) };
        let [events, metrics] =
            self.facts.found.as_ref().map_or([Step(0); 2], |found| [found.events, found.metrics]);
        let (in_events, in_metrics) = (record.step <= events, record.step <= metrics);
        let event = LogEvent::Step {
            step: record.step,
            epoch: record.epoch,
            generation: record.generation,
            loss: seen.loss,
            samples: seen.samples,
        };
        let logged = if in_events { Ok(()) } else { self.log(&event) };
        let metrics = StepMetrics {
            step: record.step,
            epoch: record.epoch,
            loss: seen.loss,
            samples: seen.samples,
            learning_rate: Some(record.lr),
            gradient_norm: Some(record.gradient_norm),
            samples_per_second: (seen.seconds > 0.0).then(|| seen.samples as f64 / seen.seconds),
            seconds: Some(record.seconds),
            waiting_seconds: Some(record.seconds - record.busy),
        };
        let metrics = if in_metrics { Ok(()) } else { self.metrics.step(UnixTime::now(), &metrics) };
        let metrics = metrics.map_err(|error| error.to_string());
        ledger.and(logged).and(metrics)
    }

    /// Enters a step into the ledger. Where a full disk kept from it who computed what, and the supervisor died that knew it, one range stands
    /// for all: the books would have to end there.
    fn enter(&mut self, record: &StepRecord) -> Result<(), String> {
        let all = [MicroRange { lo: 0, hi: self.facts.plan.micro_batches() }];
        let known = self.ranges.of(record.generation);
        let (ranges, trailer) = (known.unwrap_or(&all), &record.trailer);
        let entered =
            self.ledger.commit(record.step, record.generation, ranges, trailer.samples, trailer.check);
        entered.map_err(|error| error.to_string())?;
        known.map(drop).ok_or_else(|| {
            format!("who computed what in generation {} was never written down", record.generation)
        })
    }

    /// Writes a finished epoch. *Errors*: as for a step.
    pub fn epoch(&mut self, seen: &EpochMetrics) -> Result<(), String> {
        let logged = self.log(&LogEvent::Epoch(seen.clone()));
        let metrics = self.metrics.epoch(UnixTime::now(), seen).map_err(|error| error.to_string());
        logged.and(metrics).and(self.flush())
    }

    /// Writes one that was validated inside. *Errors*: as for a step.
    pub fn validation(&mut self, seen: &EpochMetrics) -> Result<(), String> {
        let logged = self.log(&LogEvent::Validation(seen.clone()));
        let metrics = self.metrics.validation(UnixTime::now(), seen).map_err(|error| error.to_string());
        logged.and(metrics).and(self.flush())
    }

    /// Writes what happened, where it has a line in the event log.
    pub fn event(&mut self, event: &Event) -> Result<(), String> {
        let line = match event {
            Event::RankStarted { member, rank, incarnation, generation, profile } => LogEvent::RankStarted {
                member: *member,
                rank: *rank,
                incarnation: *incarnation,
                generation: *generation,
                pid: profile.pid,
                host: profile.host.clone(),
                device: profile.device.clone(),
            },
            Event::Fault(cause) | Event::Refused(cause) => fault(cause),
            Event::Recovered { member, seconds, step } => {
                LogEvent::Recovery { member: *member, seconds: *seconds, step: *step }
            }
            Event::Resumed { from, lost } => LogEvent::Notice {
                text: format!(
                    "nobody holds the state: on from step {from}, {} again",
                    counted(*lost, "step")
                ),
            },
            Event::GivenUp { member, restarts } => LogEvent::Notice {
                text: format!(
                    "member {member} is not started again, after {} in a minute",
                    counted(*restarts, "restart")
                ),
            },
            Event::LeftOut { member } => {
                LogEvent::Notice { text: format!("member {member} did not come in time") }
            }
            Event::HostsMissing { there, wanted } => {
                LogEvent::Notice { text: format!("{there} of {} came in time", counted(*wanted, "host")) }
            }
            Event::HadEnded { step } => LogEvent::Notice {
                text: format!("the run had ended with step {step} when its supervisor died"),
            },
            Event::TookOver { members, step } => LogEvent::Notice {
                text: format!("a supervisor took over: {} found, at step {step}", counted(*members, "rank")),
            },
            Event::PassedOver { from, to } => LogEvent::Notice {
                text: format!(
                    "the logs lack steps {from} to {to}, of which nobody can tell any more; the ledger has them"
                ),
            },
            Event::Reforming { reason } => LogEvent::Notice { text: format!("a new generation: {reason}") },
            Event::Straggler { member, rank, ratio, slow } => {
                LogEvent::Straggler { member: *member, rank: *rank, ratio: *ratio, slow: *slow }
            }
            Event::NodeJoined { node, host, ranks } => LogEvent::Notice {
                text: format!("node {node} ({host}) is here with {}", counted(*ranks, "rank")),
            },
            Event::NodeAway { node } => LogEvent::Notice { text: format!("node {node} is away") },
            Event::StoodStill { length } => LogEvent::Notice {
                text: format!("the supervisor stood still for {:.1} s (paused?)", length.as_secs_f64()),
            },
            Event::Running { generation, from_step } => {
                let ranges = self.ranges.of(*generation).unwrap_or_default();
                LogEvent::Generation {
                    generation: *generation,
                    ranks: ranges.len() as u32,
                    step: Step(from_step.0 - 1),
                    ranges: ranges.iter().map(|range| (range.lo, range.hi)).collect(),
                }
            }
            Event::CheckpointGivenUp { id, reason, .. } => {
                LogEvent::CheckpointFailed { generation: id.generation, step: id.step, cause: reason.clone() }
            }
            _ => return Ok(()),
        };
        self.log(&line).and(self.hand_over())
    }

    /// Writes one event to the log, and to standard output where programs listen.
    ///
    /// *Errors*: the log cannot be written.
    pub fn log(&mut self, event: &LogEvent) -> Result<(), String> {
        let now = UnixTime::now();
        if let Some(board) = &self.board {
            board.note(|progress| progress.event(now, event));
        }
        // A reader that closed its end has seen enough.
        if self.echo.as_mut().is_some_and(|echo| echo.event(now, event).is_err()) {
            self.echo = None;
        }
        self.events.event(now, event).map_err(|error| error.to_string())
    }

    /// Lets what is written outlive what it has to: then ranks may be told so.
    ///
    /// *Errors*: a file does not take it; the others are written all the same. *Blocks* on the disk where they are to outlive its host.
    pub fn flush(&mut self) -> Result<(), String> {
        let ranges =
            self.ranges.catch_up().map_err(|error| format!("cannot write who computes what: {error}"));
        let files = match self.facts.outlives {
            Outlives::Process => self.hand_over(),
            Outlives::Power => self.sync(),
        };
        ranges.and(files)
    }

    /// Hands what is written to the system, the ledger first: then this process may end at any moment.
    fn hand_over(&mut self) -> Result<(), String> {
        let ledger = self.ledger.hand_over().map_err(|error| error.to_string());
        let flushed = [self.events.flush(), self.metrics.flush(UnixTime::now())];
        ledger.and(flushed.into_iter().collect::<Result<(), _>>().map_err(|error| error.to_string()))
    }

    /// Waits until what is written is on the disk, the ledger first: then this host may lose its power at any moment.
    fn sync(&mut self) -> Result<(), String> {
        let ledger = self.ledger.flush().map(drop).map_err(|error| error.to_string());
        let synced = [self.events.sync(), self.metrics.sync(UnixTime::now())];
        ledger.and(synced.into_iter().collect::<Result<(), _>>().map_err(|error| error.to_string()))
    }

    /// Writes down what the run ended with, behind every step and validation.
    ///
    /// *Errors*: a sentence; a file does not take it. *Blocks* on the disk.
    pub fn end(&mut self, ending: &Ending) -> Result<(), String> {
        let flushed = self.flush();
        let written = write_ending(&self.facts.run_dir, ending, self.facts.outlives);
        flushed.and(written.map_err(|error| format!("cannot write how the run ended: {error}")))
    }

    /// Reserves the numbers of generations up to this one, durably.
    ///
    /// *Errors*: a sentence. *Blocks* on the disk.
    pub fn reserve(&mut self, upto: Generation) -> Result<(), String> {
        self.lock.confirm().map_err(|error| error.to_string())?;
        // All numbers below are ours, or were another life's: nobody else reserves in a folder that is locked.
        let floor = Generation(upto.0.saturating_sub(1));
        let reserved = reserve_generations(&RealDisk, &self.facts.run_dir, floor, NonZeroU64::MIN);
        reserved.map(drop).map_err(|error| format!("cannot reserve a generation: {error}"))
    }

    /// Throws away what was written of a checkpoint that nobody will complete.
    pub fn give_up(&mut self, id: CheckpointId) {
        if let Err(error) = self.store.abandon(id) {
            tracing::warn!(%error, "what is left of a checkpoint could not be removed");
        }
    }

    /// Makes a checkpoint of durable shards: ledger first, then the manifest; then the best is marked and old ones go.
    ///
    /// Gives what went wrong beside it: the mark of the best, the removal of an old one, a line of a log.
    ///
    /// *Errors*: a sentence; then there is no such checkpoint. *Blocks* on the disk.
    pub fn commit_checkpoint(
        &mut self,
        order: &ManifestOrder,
        validation: Option<&EpochMetrics>,
        standing: Option<&Standing>,
    ) -> Result<Result<(), String>, String> {
        let begun = std::time::Instant::now();
        let ledger = self.ledger.flush().map_err(|error| error.to_string())?;
        // No checkpoint is ahead of the logs either: whoever goes on finds the steps that led to it.
        let told = self.sync();
        let validation = validation.filter(|seen| seen.step == order.id.step);
        let mut manifest = self.manifest(order, validation, Digest(ledger.0));
        manifest.stopping = standing.and_then(|standing| serde_json::to_value(standing).ok());
        self.store.commit(&manifest, &self.lock).map_err(|error| error.to_string())?;
        let (best, marked) = self.mark_if_best(manifest.id, validation);
        let retained = self.store.retain(self.facts.keep).map(drop).map_err(|error| error.to_string());
        let event = LogEvent::Checkpoint {
            generation: order.id.generation,
            step: order.id.step,
            name: order.id.to_string(),
            bytes: order.shards.iter().map(|shard| shard.bytes.0).sum(),
            seconds: begun.elapsed().as_secs_f64(),
            best,
        };
        let logged = self.log(&event);
        Ok(told.and(marked).and(retained).and(logged).and(self.hand_over()))
    }

    /// The step of the checkpoint that the run goes on from.
    #[must_use]
    pub fn resumed_from(&self) -> Step {
        self.facts.parent.map_or(Step(0), |id| id.step)
    }

    /// What a supervisor that died in this run has written down, where its ranks may still be there.
    #[must_use]
    pub fn found(&self) -> Option<&Found> {
        self.facts.found.as_ref()
    }

    /// Marks a checkpoint that is better than all before it.
    fn mark_if_best(
        &mut self,
        id: CheckpointId,
        validation: Option<&EpochMetrics>,
    ) -> (bool, Result<(), String>) {
        let score = validation.and_then(|seen| self.facts.best.as_ref()?.score(seen));
        if !score.is_some_and(|score| self.best_score.is_none_or(|before| score > before)) {
            return (false, Ok(()));
        }
        match self.store.mark_best(id) {
            Ok(()) => {
                self.best_score = score;
                (true, Ok(()))
            }
            Err(error) => (false, Err(error.to_string())),
        }
    }

    fn manifest(&self, order: &ManifestOrder, validation: Option<&EpochMetrics>, ledger: Digest) -> Manifest {
        let facts = &self.facts;
        let shards = order.shards.iter().map(|shard| ShardInfo {
            file: shard.name.clone(),
            bytes: Bytes(shard.bytes.0),
            blake3: shard.digest,
        });
        Manifest {
            version: MANIFEST_VERSION,
            id: order.id,
            run: facts.run.clone(),
            parent: facts.parent,
            seed: facts.seed,
            epoch: facts.plan.step(order.id.step).epoch,
            bits: facts.bits.clone(),
            fingerprint: order.fingerprint.to_string(),
            reduce: facts.reduce.clone(),
            ledger,
            metrics: validation.map(metrics_of).unwrap_or_default(),
            state_digest: order.state_digest,
            digest: order.digest,
            created: format!("{:.0}", UnixTime::now().0),
            revision: facts.revision.clone(),
            preparation: facts.preparation.clone(),
            frozen: facts.frozen,
            stopping: None,
            shards: shards.collect(),
            tensors: facts.specs.clone(),
        }
    }
}

fn open_metrics(facts: &RunFacts) -> Result<Metrics, TelemetryError> {
    let metrics = Metrics::open(&facts.run_dir, UnixTime::now())?;
    if !facts.tensorboard {
        return Ok(metrics);
    }
    // Of what was written before, TensorBoard shows what comes up to this step.
    let resume = facts.found.as_ref().map(|found| found.metrics).or(facts.parent.map(|id| id.step));
    metrics.for_tensorboard(&facts.run_dir, UnixTime::now(), resume)
}

fn metrics_of(seen: &EpochMetrics) -> serde_json::Map<String, serde_json::Value> {
    let all = std::iter::once(("train_loss", seen.train_loss)).chain(seen.results());
    all.map(|(name, number)| (name.to_owned(), serde_json::json!(number))).collect()
}

fn best_so_far(store: &FileStore, best: Option<&EpochMetric>) -> Option<f64> {
    let id = store.best().ok().flatten()?;
    let checkpoint = store.open(id, dtrain_checkpoint::Check::Sizes).ok()?;
    best?.score_in(&checkpoint.manifest().metrics)
}

fn fault(cause: &Cause) -> LogEvent {
    LogEvent::Fault {
        member: cause.member,
        rank: cause.rank,
        host: cause.host.clone(),
        phase: cause.phase.to_string(),
        cause: cause.what.to_string(),
        kind: cause.what.kind().to_owned(),
        doing: cause.doing.map(|doing| doing.to_string()),
    }
}
