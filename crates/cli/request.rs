//! From the words of a command line to what is to be run: which configuration, in which folder, from which state.
//!
//! Nothing is written here. The answer is a [`Request`]; `commands/train.rs` makes the folder and starts it.

use crate::arguments::{Settings, Train};
use crate::config::{Config, Machine, Resume, Rule, Source};
use crate::error::CliError;
use crate::kept::LeftKeeper;
use crate::rank_setup::left_probe;
use crate::run_folder::{CONFIG, RUNS, RunFolder, base_of, runs_hint};
use crate::slurm::was_requeued;
use crate::unusable::{none_usable, passed_over, unusable};
use dtrain_checkpoint::{Check, CheckpointId, Damage, Fault, FileStore, Store};
use std::path::{Path, PathBuf};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Request {
    /// With which settings.
    pub config: Config,
    /// In which folder.
    pub place: Place,
    /// From which state.
    pub start: Start,
    /// The configuration before, where the run is made longer than its schedule was made for.
    pub shorter: Option<Config>,
    /// What the user should know before it starts, a line each.
    pub notes: Vec<String>,
}

/// In which folder a run is to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a new one that the user named; it must not exist.
    Named(PathBuf),
    /// In a new one, numbered under this name.
    Numbered(String),
    /// In the one where it lies already.
    Existing(RunFolder),
}

/// From which state a run is to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// From initial parameters.
    Fresh,
    /// From a checkpoint of its own.
    Resume(CheckpointId),
    /// From a checkpoint of another run, as a new run.
    Fork {
        /// The other run.
        from: RunFolder,
        /// Its checkpoint.
        checkpoint: CheckpointId,
        /// Updates that the optimizer has seen, if its state is kept.
        updates: Option<u64>,
    },
}

/// Reads a configuration that starts nothing.
///
/// *Errors*: of the configuration.
pub fn settings(settings: &Settings, machine: Machine) -> Result<Config, CliError> {
    let Settings { base, file, overrides } = settings;
    Ok(Config::load_over(base, file.as_deref(), overrides, machine)?)
}

/// Which run the words of a command line mean.
struct Meant {
    /// The run, if it has begun.
    run: Option<RunFolder>,
    /// What the words come to over the defaults or their file; nothing where the run's own file is their base.
    config: Option<Config>,
    /// It goes on, or starts again where it lies.
    auto: bool,
    /// Nobody asked for it but a scheduler.
    requeued: bool,
}

impl Meant {
    /// Nothing of the run itself is read.
    ///
    /// *Errors*: of the configuration; a run that does not exist.
    fn new(arguments: &Train, machine: Machine) -> Result<Self, CliError> {
        let asked = asked_run(arguments);
        if let (Some(run), None) = (&asked, &arguments.settings.file) {
            // The base is the run's own file. The arguments alone must say which run is meant, and may hold keys
            // that fit that file and not the defaults.
            let found = match run.as_str() {
                "" => newest(&Wanted::from_words(&arguments.settings))?,
                run => RunFolder::find(run)?,
            };
            return Ok(Self { run: Some(found), config: None, auto: false, requeued: false });
        }
        let config = settings(&arguments.settings, machine)?;
        // A scheduler that starts a job again wants what it was about, not another run beside it.
        let requeued =
            asked.is_none() && !arguments.fork && !config.says_whether_to_resume() && was_requeued();
        let resume = if requeued { &Resume::Auto } else { &config.resume };
        let auto = *resume == Resume::Auto && asked.is_none();
        let run = match (asked.as_deref(), resume) {
            (Some(""), _) => Some(newest(&Wanted::from_config(&config))?),
            (Some(run), _) => Some(RunFolder::find(run)?),
            (None, Resume::Run(path)) => Some(RunFolder::find(&path.to_string_lossy())?),
            (None, Resume::Auto) => Wanted::from_config(&config).find(),
            (None, Resume::Never) => None,
        };
        Ok(Self { run, config: Some(config), auto, requeued })
    }
}

/// The run that these words go on with, if it has begun: its folder, of which nothing is read.
#[must_use]
pub fn run_meant(arguments: &Train, machine: Machine) -> Option<RunFolder> {
    if arguments.fork {
        return None;
    }
    Meant::new(arguments, machine).ok()?.run
}

impl Request {
    /// Understands a command line.
    ///
    /// *Errors*: of the configuration; a run that does not exist, has no valid checkpoint, or would get other bits.
    pub fn new(arguments: &Train, machine: Machine) -> Result<Self, CliError> {
        match Meant::new(arguments, machine)? {
            Meant { run: Some(run), config: Some(config), auto: true, requeued } => {
                let mut request = Self::start_or_go_on(run, config, arguments, machine)?;
                if requeued {
                    request.notes.insert(0, "this job was requeued, so it goes on with its run".to_owned());
                }
                Ok(request)
            }
            Meant { run: Some(run), config, .. } => Self::go_on(run, config, arguments, machine),
            Meant { run: None, config, .. } => Self::fresh(config.expect("words that mean no run have one")),
        }
    }

    fn fresh(config: Config) -> Result<Self, CliError> {
        let place = new_place(&config, config.base_name());
        if let Place::Named(path) = &place {
            RunFolder::check_free(path)?;
        }
        Ok(Self { config, place, start: Start::Fresh, shorter: None, notes: Vec::new() })
    }

    /// `resume: auto`: a run that was stopped before its first checkpoint starts again in its folder.
    fn start_or_go_on(
        run: RunFolder,
        config: Config,
        arguments: &Train,
        machine: Machine,
    ) -> Result<Self, CliError> {
        let none_yet = FileStore::new(&run.path).ids().is_ok_and(|ids| ids.is_empty());
        if none_yet {
            let (place, start) = (Place::Existing(run), Start::Fresh);
            return Ok(Self { config, place, start, shorter: None, notes: Vec::new() });
        }
        let own_file = arguments.settings.file.is_none();
        Self::go_on(run, (!own_file).then_some(config), arguments, machine)
    }

    /// Goes on with `run`. `config` is what the user gave with -c; without it the run's own file is the base.
    fn go_on(
        run: RunFolder,
        config: Option<Config>,
        arguments: &Train,
        machine: Machine,
    ) -> Result<Self, CliError> {
        let source = Source { path: run.path.join(CONFIG), text: run.config_text()? };
        let old = Config::parse::<&str>(Some(source.clone()), &[], machine)?;
        let own_file = config.is_none();
        let new = match config {
            Some(config) => config,
            None => Config::parse(Some(source), &arguments.settings.overrides, machine)?,
        };
        // Ranks whose supervisor died may have made more steps than any checkpoint knows.
        let none_yet = FileStore::new(&run.path).ids().is_ok_and(|ids| ids.is_empty());
        let is_left = left_probe(&run.path).is_some() || LeftKeeper::of(&run.path).is_some();
        if none_yet && !arguments.fork && is_left {
            let config = old.resumed_by(&new)?.config;
            let (place, start) = (Place::Existing(run), Start::Fresh);
            return Ok(Self { config, place, start, shorter: None, notes: Vec::new() });
        }
        let (checkpoint, mut notes) = newest_checkpoint(&run)?;
        notes.extend(new.unlike(&arguments.settings.base, machine)?);
        if arguments.fork {
            let updates =
                arguments.keep_optimizer.then(|| kept_updates(&old, &new, checkpoint)).transpose()?;
            // A name that stands in the file of the forked run is that run's.
            let config = if own_file && !new.was_named_by_argument() { new.unnamed() } else { new };
            let place = new_place(&config, base_of(&run.name));
            if let Place::Named(path) = &place {
                RunFolder::check_free(path)?;
            }
            return Ok(Self {
                config,
                place,
                start: Start::Fork { from: run, checkpoint, updates },
                shorter: None,
                notes,
            });
        }
        let resumed = old.resumed_by(&new)?;
        notes.extend(resumed.notes);
        Ok(Self {
            config: resumed.config,
            place: Place::Existing(run),
            start: Start::Resume(checkpoint),
            shorter: resumed.longer.then_some(old),
            notes,
        })
    }
}

/// How many updates the optimizer's state of a checkpoint has seen.
///
/// *Errors*: the other run keeps a state of another kind.
fn kept_updates(old: &Config, new: &Config, checkpoint: CheckpointId) -> Result<u64, CliError> {
    let moments = |config: &Config| match config.optimizer.rule {
        Rule::AdamW { .. } => "adamw",
        Rule::Sgd { momentum: 0.0, .. } => "sgd without momentum",
        Rule::Lion { .. } => "lion",
        Rule::Muon(_) => "muon",
        Rule::Sgd { .. } => "sgd",
        Rule::Torch => "torch",
    };
    let (had, has) = (moments(old), moments(new));
    if had != has {
        let message = format!("the optimizer's state of {had} is no beginning for {has}");
        return Err(CliError::usage(message).hint("leave --keep-optimizer out, or keep the optimizer's kind"));
    }
    Ok(old.optimizer.updates_before + checkpoint.step.0)
}

fn named_path(config: &Config) -> Option<PathBuf> {
    let by_name = config.name.as_ref().map(|name| Path::new(RUNS).join(name));
    config.run_dir.clone().or(by_name)
}

fn new_place(config: &Config, base: &str) -> Place {
    named_path(config).map_or_else(|| Place::Numbered(base.to_owned()), Place::Named)
}

/// The run that `--resume` asks for; empty is the newest of its name. `resume=PATH` says the same.
fn asked_run(arguments: &Train) -> Option<String> {
    let by_key = || {
        let mut values = arguments.settings.overrides.iter().filter_map(|word| word.strip_prefix("resume="));
        values.next_back().filter(|value| !matches!(*value, "never" | "auto")).map(str::to_owned)
    };
    arguments.resume.clone().or_else(by_key)
}

/// Which run is meant where none is given by its path.
struct Wanted {
    path: Option<PathBuf>,
    base: String,
}

impl Wanted {
    fn from_config(config: &Config) -> Self {
        Self { path: named_path(config), base: config.base_name().to_owned() }
    }

    fn from_words(settings: &Settings) -> Self {
        let value = |keys: &[&str]| {
            let words = settings.base.iter().chain(&settings.overrides);
            let mut given = words.filter_map(|word| word.split_once('='));
            given.rfind(|(key, _)| keys.contains(key)).map(|(_, value)| value.to_owned())
        };
        let by_name = || value(&["name"]).map(|name| Path::new(RUNS).join(name));
        Self {
            path: value(&["run_dir"]).map(PathBuf::from).or_else(by_name),
            base: value(&["data.name", "data.kind", "data"]).unwrap_or_else(|| "digits".to_owned()),
        }
    }

    fn find(&self) -> Option<RunFolder> {
        match &self.path {
            Some(path) => path.join(CONFIG).is_file().then(|| RunFolder::at(path.clone())),
            None => RunFolder::newest(&self.base),
        }
    }
}

fn newest(wanted: &Wanted) -> Result<RunFolder, CliError> {
    wanted.find().ok_or_else(|| {
        let shown =
            wanted.path.as_ref().map_or_else(|| wanted.base.clone(), |path| path.display().to_string());
        CliError::usage(format!("there is no run {shown} to resume")).hint(runs_hint())
    })
}

/// The newest checkpoint of which every digest agrees, with a note for each newer one that was passed over.
fn newest_checkpoint(run: &RunFolder) -> Result<(CheckpointId, Vec<String>), CliError> {
    let newest = FileStore::new(&run.path).newest_valid().map_err(|error| {
        CliError::usage(format!("cannot read the checkpoints of {}", run.path.display())).because(&error)
    })?;
    match newest.checkpoint {
        Some(checkpoint) => Ok((checkpoint.manifest().id, newest.damaged.iter().map(passed_over).collect())),
        None => Err(none_usable(&run.path, &newest.damaged)),
    }
}

/// A checkpoint that a command line means.
#[derive(Debug)]
pub struct ChosenCheckpoint {
    /// Its run.
    pub run: RunFolder,
    /// The checkpoint.
    pub id: CheckpointId,
    /// What the user should know of the choice, a line each.
    pub notes: Vec<String>,
}

/// A checkpoint named on the command line: `RUN`, `RUN/best` or `RUN/g3-s001200`.
///
/// *Errors*: no such run or checkpoint; one of another version.
pub fn checkpoint_argument(text: &str) -> Result<ChosenCheckpoint, CliError> {
    if let Ok(run) = RunFolder::find(text) {
        let (id, notes) = newest_checkpoint(&run)?;
        return Ok(ChosenCheckpoint { run, id, notes });
    }
    let (run, name) = text.trim_end_matches('/').rsplit_once('/').unwrap_or((text, ""));
    // The path of the folder itself is understood too: RUN/checkpoints/g3-s001200.
    let run = RunFolder::find(run.trim_end_matches("/checkpoints"))?;
    let id = match name {
        "best" => FileStore::new(&run.path)
            .best()
            .map_err(|error| CliError::usage("cannot read the best checkpoint").because(&error))?
            .ok_or_else(|| {
                CliError::usage(format!("no checkpoint of {} is marked best", run.path.display()))
            })?,
        name => name.parse().map_err(|error: dtrain_types::Misspelt| {
            CliError::usage(error.to_string()).hint("`dtrain checkpoint ls RUN` lists them")
        })?,
    };
    let opened = FileStore::new(&run.path).open(id, Check::Sizes);
    match opened {
        Ok(_) => Ok(ChosenCheckpoint { run, id, notes: Vec::new() }),
        Err(Damage { fault: Fault::Missing, file, .. }) if file == "manifest.json" => {
            let error = CliError::usage(format!("{} has no checkpoint {id}", run.path.display()));
            Err(error.hint("`dtrain checkpoint ls RUN` lists them"))
        }
        Err(damage) => Err(unusable(&format!("checkpoint {id} of {}", run.path.display()), &damage)),
    }
}
