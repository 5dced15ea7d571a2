//! One run of this binary on this host: opens the run's files, starts the supervisor, and makes the summary.
//!
//! What is to be run was decided before (`request.rs`) and is made of parts that `plan.rs` picked.

mod taken_over;

use crate::conclude::conclude;
use crate::config::{CudaList, HostCount, Isolation as IsolationKey, NamedMetrics, TrackerKind};
use crate::error::CliError;
use crate::external::Agreement;
use crate::fabric::{HostFabric, new_arena};
use crate::gpus::ByLibraries;
use crate::hosts::Lead;
use crate::kept::{LeftKeeper, forget_keeper, name_keeper};
use crate::leader::forget_leader;
use crate::nccl::ChosenBackend;
use crate::plan::Plan;
use crate::rank_setup::{Hosts, RunSetup, left_probe, remove_probe, write_probe};
use crate::recipe::ConfigRecipe;
use crate::report::{self, Human, Reader, Voice};
use crate::run_folder::RunFolder;
use crate::watch::{self, Watchers, Watching};
use dtrain_checkpoint::{
    Check, CheckpointId, Digest, FileStore, RealDisk, RunLock, Store, StoreError, reserve_generations,
};
use dtrain_collective::Geometry;
use dtrain_engine::{Replica, StateShape};
use dtrain_protocol::{Ending, Losses, Outcome, RankSetup, StartFrom, SupervisorConfig, TakenOver, Timeouts};
use dtrain_runtime::{
    Conclusion, Found, Gateway, Journal, KeeperPlan, KeeperSetup, Observer, Outlives, Program, RankHandles,
    Ranks, RunFacts, RunFiles, RunPlan, Standing, forget_ending, forget_hosts, forget_ranges, serve, specs,
    supervise,
};
use dtrain_telemetry::ledger::{Binding, LedgerWriter};
use dtrain_telemetry::profile::{self, ProfileReport};
use dtrain_telemetry::{Board, Flush, GpuWatch, JsonLines, RunEvent, Summary, TelemetryError, UnixTime};
use dtrain_types::{Generation, Instance, NodeId, Step, WorldSize};
use std::collections::BTreeMap;
use std::io::Write;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// The most ranks that all hosts together may have.
const MOST_RANKS: u32 = 65_536;

/// Who led the run before, in the same folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// Nobody whose ranks could still be there.
    None,
    /// A supervisor that died in the middle of this very run: the ranks of this host or of others may wait for the next one, with the
    /// state.
    Died,
}

/// What a session works with.
pub struct Session {
    /// The configuration with its data and what follows from them.
    pub plan: Plan,
    /// A replica made of it, to be asked for shapes; ranks make their own.
    pub replica: Box<dyn Replica>,
    /// What carries the gradients.
    pub backend: ChosenBackend,
    /// What the ranks of another program's model must agree with.
    pub agreement: Option<Agreement>,
    /// The digest of the parameters that stay as they are, which lie in the folder of the run, if there are such.
    pub frozen: Option<Digest>,
    /// The folder of the run; it exists and holds `config.yaml`. Its name is the run's lineage.
    pub run: RunFolder,
    /// The checkpoint to go on from.
    pub resume: Option<CheckpointId>,
    /// The lock of that folder, where it is held already.
    pub lock: Option<RunLock>,
    /// Who led it before.
    pub predecessor: Predecessor,
    /// Where other hosts join, if there may be any.
    pub lead: Option<Lead>,
    /// The GPUs that the ranks of this host train on, if they do.
    pub cuda: Option<CudaList>,
    /// What libraries do there.
    pub by_libraries: ByLibraries,
    /// The same GPUs, if they can be read.
    pub gpus: Option<Arc<GpuWatch>>,
    /// Whoever watches it from outside.
    pub watchers: Watchers,
    /// Whether programs read standard output.
    pub json: bool,
}

/// Runs what the command line asked for, and says what it came to.
///
/// *Errors*: the run failed, was interrupted, or could not begin. *Blocks* for the whole run.
pub fn run(session: Session, voice: Voice) -> Result<Summary, CliError> {
    let last = session.plan.last_step();
    let complete = session.resume.filter(|id| session.is_complete_with(*id));
    // Where others may wait to hear it, they do first.
    let alone = session.predecessor == Predecessor::None;
    if let Some(id) = complete.filter(|id| alone || session.ending_of(*id).is_none()) {
        return session.already_complete(id, voice);
    }
    let epochs = last.0.div_ceil(session.plan.batches.steps_per_epoch());
    let observer = Human::new(voice, last, epochs).watching(session.gpus.clone());
    let observer = observer.showing(session.plan.shown_results());
    let reader = if session.json { Reader::Program } else { Reader::Person };
    let Ended { conclusion, summary, profile, watching } = session.run(Box::new(observer))?;
    if let Some(report) = &profile {
        voice.show(reader, |stream| report::profile(report, stream));
    }
    let concluded = conclude(&conclusion, summary, voice, reader);
    watching.into_iter().for_each(|watching| watching.finish(&conclusion.outcome, voice));
    concluded
}

/// What a session came to.
pub struct Ended {
    /// The outcome and what the journal knows.
    pub conclusion: Conclusion,
    /// The numbers, as the last line of `--json` has them; none when the run came to no end of its own.
    pub summary: Summary,
    /// Where the time of the steps went, if that was asked for.
    pub profile: Option<ProfileReport>,
    /// Whoever watched, and may not have everything yet.
    pub watching: Option<Watching>,
}

impl Session {
    /// Runs it and shows it to an observer. *Blocks* for the whole run.
    ///
    /// *Errors*: the folder is in use by another run, its files cannot be opened, or the system refuses a process.
    pub fn run(mut self, mut observer: Box<dyn Observer>) -> Result<Ended, CliError> {
        let lock = self.lock.take().map_or_else(|| lock(&self.run.path), Ok)?;
        let instance = lock.holder().instance;
        let left = self.left_keeper()?;
        let found = match self.predecessor {
            Predecessor::Died => {
                Some(Found::read(&self.run.path).map_err(|e| refused("read the run's files", &e))?)
            }
            Predecessor::None => None,
        };
        if found.is_none() {
            forget_ending(&self.run.path);
            forget_hosts(&self.run.path);
            forget_ranges(&self.run.path);
        }
        let ledger = self.open_ledger(found.as_ref())?;
        let taken_over = found.as_ref().map(|found| self.taken_over(found, &ledger));
        // Who takes over leads by a number of its own before it names a generation.
        let numbers = if taken_over.is_some() { 2 } else { 1 };
        let generations = next_generations(&self.run.path, &ledger, numbers)?;
        let echo = self.json.then(standard_output);
        let facts = RunFacts { found, ..self.facts()? };
        let files = RunFiles::open(facts, lock, ledger, echo).map_err(CliError::failed)?;
        let board = Arc::new(Board::default());
        let mut files = files.watching(self.gpus.take()).shown_on(Arc::clone(&board));
        self.lead =
            self.lead.take().map(|lead| Lead { gateway: lead.gateway.telling(Arc::clone(&board)), ..lead });
        let mut begun = watch::begun(&self.plan, self.replica.as_ref(), &self.run);
        begun.hosts = self.lead.as_ref().map_or(1, |lead| lead.nodes);
        begun.device = self.cuda.as_ref().map_or(begun.device, ToString::to_string);
        files.log(&RunEvent::Run(begun)).map_err(CliError::failed)?;
        if self.plan.config.profile.is_some() {
            profile::prepare(&self.run.path).unwrap_or_else(|error| no_profile(observer.as_mut(), &error));
        }
        let many = self.lead.is_some();
        let run_plan = self.run_plan(instance, generations, taken_over, left)?;
        let mut watching = std::mem::take(&mut self.watchers).start(&self.plan, &self.run, &board);
        let observer = watching.relayed(observer);
        let conclusion =
            supervise(run_plan, Journal::new(files, observer)).map_err(|e| refused("run", &e))?;
        if many {
            remove_probe(&self.run.path);
            forget_leader(&self.run.path);
            forget_hosts(&self.run.path);
        }
        forget_keeper(&self.run.path);
        forget_ranges(&self.run.path);
        forget_ending(&self.run.path);
        Ok(Ended { watching: Some(watching), ..self.end(conclusion) })
    }

    /// The node whose host led before, where this is another one.
    fn succeeds(&self) -> Option<NodeId> {
        self.lead.as_ref().and_then(|lead| lead.succeeds)
    }

    /// The keeper that the life before left, if it is to be taken over. Ranks of another run, or that were told something else, end here.
    fn left_keeper(&self) -> Result<Option<LeftKeeper>, CliError> {
        // Those of the host that led before are not ours, if they can be seen from here at all.
        let left = LeftKeeper::of(&self.run.path).filter(|_| self.succeeds().is_none());
        match (left, self.predecessor) {
            (Some(left), Predecessor::Died) if left.is_ours => Ok(Some(left)),
            (Some(left), _) => left
                .name
                .dismiss()
                .map(|()| None)
                .map_err(|error| refused("end the ranks that the run before left", &error)),
            (None, _) => Ok(None),
        }
    }

    /// A run that has nothing left to do: its summary is what its last checkpoint says.
    fn already_complete(self, id: CheckpointId, voice: Voice) -> Result<Summary, CliError> {
        let stopped = self.standing().filter(|_| self.has_stopped()).map(|standing| standing.to_string());
        let Self { plan, run, json, .. } = self;
        let reader = if json { Reader::Program } else { Reader::Person };
        voice.show(reader, |_| match &stopped {
            None => format!("{} is complete: checkpoint {id} holds its last step", run.name),
            Some(why) => format!(
                "{} stopped early with checkpoint {id}: {why}\nstop.patience=none, a larger one, or more epochs let it go on",
                run.name
            ),
        });
        let checkpoint = FileStore::new(&run.path).open(id, Check::Sizes);
        let manifest = checkpoint.map_err(|damage| CliError::failed(damage.to_string()))?.into_manifest();
        let number = |name: &str| manifest.metrics.get(name).and_then(serde_json::Value::as_f64);
        let summary = Summary {
            digest: manifest.digest.to_string(),
            steps: id.step.0,
            epochs: id.step.0 / plan.batches.steps_per_epoch(),
            samples_per_second: f64::NAN,
            train_loss: number("train_loss"),
            val_loss: number("val_loss"),
            val_accuracy: number("val_accuracy"),
            val_f1: number("val_f1"),
            val_rmse: number("val_rmse"),
            val_mae: number("val_mae"),
            val_r2: number("val_r2"),
            metrics: own_results(&plan, number),
            stopped,
            ranks: plan.config.world.ranks,
            run: run.path.display().to_string(),
            ..Summary::default()
        };
        if json {
            let told = standard_output().event(UnixTime::now(), &RunEvent::Summary(summary.clone()));
            told.map_err(|error| CliError::failed(error.to_string()))?;
        }
        Ok(summary)
    }

    /// Whether this checkpoint holds the last step that the run is to make.
    fn is_complete_with(&self, id: CheckpointId) -> bool {
        id.step >= self.plan.last_step() || self.has_stopped()
    }

    /// What a run ended with that has this checkpoint of its last step. One that cannot be read is the ranks' to report.
    fn ending_of(&self, id: CheckpointId) -> Option<Ending> {
        let manifest = FileStore::new(&self.run.path).open(id, Check::Sizes).ok()?.into_manifest();
        let (digest, state_digest) = (manifest.digest, manifest.state_digest);
        Some(Ending { step: id.step, digest, state_digest, checkpoint: Some(id), device_peak: None })
    }

    fn open_ledger(&self, found: Option<&Found>) -> Result<LedgerWriter, CliError> {
        let binding = Binding::new(self.run.name.clone(), self.plan.config.seed, &self.plan.batches);
        let hint = "`dtrain audit` says what is wrong with it";
        let fail =
            |error: dtrain_telemetry::ledger::LedgerError| CliError::failed(error.to_string()).hint(hint);
        let mut ledger = LedgerWriter::open(&self.run.path.join("ledger.jsonl"), &binding).map_err(fail)?;
        match self.resume {
            // Whoever is still there goes on behind what is written.
            _ if found.is_some() => {}
            Some(id) => ledger.resume(id.step).map_err(fail)?,
            // A run that was stopped before its first checkpoint starts again.
            None if ledger.reached() > Step(0) => ledger.resume(Step(0)).map_err(fail)?,
            None => {}
        }
        Ok(ledger)
    }

    /// What the checkpoint to go on from says of early stopping. A run that is asked for another length begins to count anew.
    fn standing(&self) -> Option<Standing> {
        let id = self.resume?;
        // A checkpoint that cannot be read is the ranks' to report: they load it.
        let manifest = FileStore::new(&self.run.path).open(id, Check::Sizes).ok()?.into_manifest();
        let standing: Standing = serde_json::from_value(manifest.stopping?).ok()?;
        let now: BTreeMap<&str, String> = self.plan.config.bits().collect();
        let is_as_long = ["epochs", "steps"].iter().all(|key| {
            manifest.bits.get(*key).and_then(serde_json::Value::as_str) == now.get(key).map(String::as_str)
        });
        Some(if is_as_long { standing } else { standing.renewed() })
    }

    /// Whether the run has ended before its length, and is not asked for more.
    fn has_stopped(&self) -> bool {
        let patience = self.plan.metrics().ok().and_then(|metrics| metrics.patience);
        patience.zip(self.standing()).is_some_and(|(patience, standing)| patience.is_over(&standing))
    }

    fn facts(&self) -> Result<RunFacts, CliError> {
        let config = &self.plan.config;
        let NamedMetrics { best, patience } = self.plan.metrics()?;
        Ok(RunFacts {
            run_dir: self.run.path.clone(),
            run: self.run.name.clone(),
            parent: self.resume,
            seed: config.seed,
            plan: self.plan.batches,
            schedule: self.plan.schedule(),
            bits: config
                .bits()
                .map(|(key, value)| (key.to_owned(), serde_json::Value::String(value)))
                .collect(),
            reduce: config.reduce.name().to_owned(),
            revision: crate::arguments::VERSION.to_owned(),
            specs: specs(self.replica.as_ref()),
            keep: NonZeroUsize::new(config.checkpoint.keep).unwrap_or(NonZeroUsize::MIN),
            best,
            patience,
            standing: self.standing(),
            predicts: self.plan.predicts(),
            own_metrics: self.plan.own_metrics(),
            preparation: serde_json::to_value(self.plan.preparation()).ok(),
            frozen: self.frozen,
            found: None,
            tensorboard: config.watching.tracks(TrackerKind::TensorBoard),
            outlives: if self.lead.is_some() { Outlives::Power } else { Outlives::Process },
        })
    }

    fn run_plan(
        &mut self,
        instance: Instance,
        generations: RangeInclusive<u64>,
        taken_over: Option<TakenOver>,
        left: Option<LeftKeeper>,
    ) -> Result<RunPlan, CliError> {
        let succeeds = self.succeeds();
        let lead = self.lead.take();
        let config = &self.plan.config;
        let (world, mode) = (config.world.ranks, config.reduce);
        let hosts = if lead.is_some() { HostCount::Several } else { HostCount::One };
        let timeouts = config
            .world
            .timeouts(hosts)
            .map_err(|error| CliError::usage(error.to_string()).hint("detect=1s is the default"))?;
        tracing::info!(%timeouts, "timeouts");
        // Ranks of several hosts have no memory in common, and those on GPUs keep their state there.
        let on_gpus = self.cuda.is_some() && self.plan.keeps_on_gpus();
        // Updates that take parameters together are made as a whole, by each rank.
        let is_whole = !config.optimizer.rule.in_shares();
        let sharded = config.world.redundancy.is_some();
        let state = match lead.is_some() || on_gpus || is_whole || sharded {
            true => None,
            false => Some(self.replica.about().state),
        };
        let supervisor = SupervisorConfig {
            instance,
            wanted_nodes: lead.as_ref().map_or(1, |lead| lead.nodes),
            most_nodes: lead.as_ref().map_or(1, |lead| lead.most),
            most_ranks: if lead.is_some() { MOST_RANKS } else { world },
            min_ranks: config.world.min_ranks,
            join_timeout: config.world.join_timeout,
            timeouts,
            losses: match config.world.isolation {
                IsolationKey::Process => Losses::AreReplaced { max_restarts: config.world.max_restarts },
                // Threads of one process cannot be ended one by one.
                IsolationKey::Thread => Losses::EndTheRun,
            },
            sharded: sharded.then_some(config.world.remirror),
            balance: config.world.balance,
            reduce: mode,
            batches: self.plan.batches,
            schedule: self.plan.schedule(),
            start: self.resume.map_or(StartFrom::Fresh, StartFrom::Checkpoint),
            taken_over,
            first_generation: Generation(*generations.start()),
            reserved: Generation(*generations.end()),
        };
        let (gateway, setup) = self.rank_setups(lead)?;
        let ranks = match config.world.isolation {
            _ if succeeds.is_some() => Ranks::Elsewhere,
            IsolationKey::Process => self.kept_ranks(setup, state, &timeouts, left, hosts)?,
            IsolationKey::Thread => self.threads(setup, state)?,
        };
        let listens_to_signals = crate::early_signals::no_longer;
        Ok(RunPlan { supervisor, ranks, gateway, listens_to_signals })
    }

    /// What the ranks of this host are set up with, and where other hosts join.
    fn rank_setups(&self, lead: Option<Lead>) -> Result<(Option<Gateway>, RankSetup), CliError> {
        let run_dir = self.run.path.clone();
        // As it lies in the folder: whoever goes on with the run, by whatever words, says the same.
        let (gpus, told) = (self.cuda.clone(), self.plan.config.told(&self.run.name));
        // The ranks of one host are told what was chosen, so that all of them choose alike.
        let told =
            if lead.is_none() { self.plan.told_places(&told.carried_by(self.backend.kind())) } else { told };
        let yaml = told.to_yaml();
        let external = self.agreement.clone();
        let by_libraries = self.by_libraries.clone();
        let mut run =
            RunSetup { run_dir, hosts: None, gpus, yaml, external, by_libraries, frozen: self.frozen };
        let Some(Lead { gateway, mesh, leader, succeeds, .. }) = lead else {
            return Ok((None, run.to_setup()));
        };
        let drawn = (crate::random::u64(), crate::random::u64());
        let (Ok(high), Ok(low)) = drawn else { return Err(CliError::failed("cannot draw a random number")) };
        // Hosts that wait know the run by it.
        let left = left_probe(&self.run.path).filter(|_| self.predecessor == Predecessor::Died);
        let probe = left.unwrap_or_else(|| format!("{high:016x}{low:016x}"));
        write_probe(&self.run.path, &probe)
            .and_then(|()| leader.write(&self.run.path))
            .map_err(|error| refused("write to the folder of the run", &error))?;
        let gateway = if succeeds.is_some() { gateway.alone() } else { gateway };
        let samples = self.plan.opened.train.len();
        run.hosts = Some(Hosts { probe, samples, mesh: None });
        // Other hosts have GPUs of their own, or none.
        let gateway =
            gateway.of_run(self.run.path.clone(), RunSetup { gpus: None, ..run.clone() }.to_setup());
        run.hosts.iter_mut().for_each(|hosts| hosts.mesh = Some(mesh));
        Ok((Some(gateway), run.to_setup()))
    }

    /// How large the sums of this host's ranks are.
    fn geometry(&self) -> Geometry {
        // Ranges are cut anew with every generation: there must be room for any.
        let (micro_batches, mode) = (self.plan.batches.micro_batches(), self.plan.config.reduce);
        Geometry::bound(self.replica.about().slot_len(micro_batches), micro_batches, mode)
    }

    /// Ranks that a keeper holds, with the memory that they share.
    fn kept_ranks(
        &self,
        setup: RankSetup,
        state: Option<StateShape>,
        timeouts: &Timeouts,
        left: Option<LeftKeeper>,
        hosts: HostCount,
    ) -> Result<Ranks, CliError> {
        let (world, geometry) = (self.plan.config.world.ranks, self.geometry());
        // Over NCCL they share no memory: each has its slots for itself.
        let shares = !self.is_over_nccl();
        let memory = move || match shares {
            true => new_arena(WorldSize(world), geometry, state).map(Some),
            false => Ok(None),
        };
        let is_there = left.is_some();
        if !is_there {
            // Said before a process is started that would have no room.
            memory().map_err(no_memory)?;
        }
        let named = left.map_or_else(|| name_keeper(&self.run.path), |left| Ok(left.name));
        let name = named.map_err(|error| refused("write to the folder of the run", &error))?;
        let setup = KeeperSetup::new(&name, world, &self.program(), setup, timeouts);
        let setup = match hosts {
            HostCount::One => setup,
            HostCount::Several => setup.in_shared(&self.run.path),
        };
        let program = self.plan.external().map_or_else(Program::this, |program| program.dtrain_alone());
        let memory = Box::new(move || memory().map_err(std::io::Error::other));
        Ok(Ranks::Kept(Box::new(KeeperPlan { name, program, setup, memory, is_there })))
    }

    /// Ranks as threads of this process, which reach each other by what they share, if they share anything.
    fn threads(&self, setup: RankSetup, state: Option<StateShape>) -> Result<Ranks, CliError> {
        let (config, geometry) = (&self.plan.config, self.geometry());
        let shared = match self.is_over_nccl() {
            true => None,
            false => {
                let world = WorldSize(config.world.ranks);
                let shared = HostFabric::between_threads(world, geometry, config.reduce, state);
                Some(shared.map_err(no_memory)?)
            }
        };
        let recipe = ConfigRecipe { threads: shared, brought: self.plan.brought };
        let serve = move |handles: RankHandles| {
            if let Err(error) = serve(handles, &recipe) {
                tracing::error!(%error, "a rank could not be served");
            }
        };
        Ok(Ranks::Threads { count: config.world.ranks, serve: Arc::new(serve), setup })
    }

    /// What a rank process runs.
    fn program(&self) -> Program {
        self.plan.external().map_or_else(|| self.backend.program(), |program| program.rank_program())
    }

    fn is_over_nccl(&self) -> bool {
        matches!(self.backend, ChosenBackend::Nccl(_))
    }

    fn end(self, mut conclusion: Conclusion) -> Ended {
        let figures = &conclusion.figures;
        let ending = match &conclusion.outcome {
            Outcome::Finished(ending) | Outcome::Interrupted(Some(ending)) => Some(*ending),
            _ => None,
        };
        let seconds = figures.training_seconds;
        let summary = Summary {
            digest: ending.map(|ending: Ending| ending.digest.to_string()).unwrap_or_default(),
            steps: ending.map_or(figures.last_step, |ending| ending.step.0),
            epochs: figures.epochs,
            samples: figures.samples,
            seconds,
            samples_per_second: if seconds > 0.0 { figures.samples as f64 / seconds } else { f64::NAN },
            train_loss: figures.train_loss,
            val_loss: figures.validation.as_ref().and_then(|seen| seen.val_loss),
            val_accuracy: figures.validation.as_ref().and_then(|seen| seen.val_accuracy),
            val_f1: figures.validation.as_ref().and_then(|seen| seen.val_f1),
            val_rmse: figures.validation.as_ref().and_then(|seen| seen.val_rmse),
            val_mae: figures.validation.as_ref().and_then(|seen| seen.others.get("val_mae").copied()),
            val_r2: figures.validation.as_ref().and_then(|seen| seen.val_r2),
            metrics: own_results(&self.plan, |name| figures.validation.as_ref()?.others.get(name).copied()),
            stopped: figures.stopped.as_ref().map(ToString::to_string),
            ranks: figures.ranks,
            generations: figures.generations,
            lost_steps: figures.lost_steps,
            recoveries: figures.recoveries.clone(),
            peak_rss_mb: figures.peak_rss as f64 / (1024.0 * 1024.0),
            gpu_peak_bytes: ending.and_then(|ending| ending.device_peak).map(|peak| peak.0),
            run: self.run.path.display().to_string(),
        };
        let profile = self.plan.config.profile.map(|_| self.profile(&mut conclusion));
        let logged = conclusion.files.log(&RunEvent::Summary(summary.clone()));
        if let Err(problem) = logged.and(conclusion.files.flush()) {
            // The journal told of the disk; standard output and the report have the summary.
            tracing::debug!(problem, "the summary could not be logged");
        }
        Ended { conclusion, summary, profile, watching: None }
    }

    /// Puts together what the ranks wrote down of their steps. Whatever is wrong with it, the run is what it is.
    fn profile(&self, conclusion: &mut Conclusion) -> ProfileReport {
        let (report, written) = profile::collect(&self.run.path, &conclusion.lives);
        if let Err(error) = written {
            tracing::warn!(%error, "there is no trace of this run");
        }
        if let Err(problem) = conclusion.files.log(&RunEvent::Profile(report.clone())) {
            tracing::debug!(problem, "the profile could not be logged");
        }
        report
    }
}

/// Tells people that nothing will be written down.
fn no_profile(observer: &mut dyn Observer, error: &TelemetryError) {
    observer.warning(&format!("there will be no profile: {error}"));
}

fn no_memory(problem: String) -> CliError {
    CliError::failed(problem).hint("fewer ranks or a smaller model need less memory")
}

/// Makes a run folder ours for a new life of its supervisor.
///
/// *Errors*: another process works in it.
pub fn lock(run_dir: &Path) -> Result<RunLock, CliError> {
    let instance = Instance(crate::random::u64().map_err(|e| refused("draw a random number", &e))?);
    RunLock::acquire(run_dir, instance)
        .map_err(|error| CliError::usage(error.to_string()).hint("wait for the other run to end, or stop it"))
}

fn standard_output() -> JsonLines<Box<dyn Write + Send>> {
    JsonLines::new(Box::new(std::io::stdout()), "standard output", Flush::EachLine)
}

fn refused(what: &str, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot {what}: {error}"))
}

/// Reserves so many numbers of generations, durably, above every one that the run may have used.
fn next_generations(
    run_dir: &Path,
    ledger: &LedgerWriter,
    count: u64,
) -> Result<RangeInclusive<u64>, CliError> {
    let fail = |error: StoreError| CliError::failed(format!("cannot reserve a generation: {error}"));
    let newest =
        FileStore::new(run_dir).ids().map_err(fail)?.first().map_or(Generation(0), |id| id.generation);
    let floor = newest.max(ledger.generation());
    let count = NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN);
    reserve_generations(&RealDisk, run_dir, floor, count).map_err(fail)
}

/// What the metrics of a program's own came to.
fn own_results(plan: &Plan, number: impl Fn(&str) -> Option<f64>) -> BTreeMap<String, f64> {
    let names = plan.own_metrics().into_iter().map(|(name, _)| name);
    names.filter_map(|name| number(&name).map(|number| (name, number))).collect()
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
