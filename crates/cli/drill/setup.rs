//! What is run in a drill: the user's settings, a length that leaves room for every fault, and a folder of the drill's
//! own.
//!
//! Nothing is started here. What the user wrote on the command line is never changed, except the place of the run.

use super::cut::{cut_length, shares};
use super::described::Described;
use super::run::{Stop, program};
use super::{Disturbed, InjectedFault};
use crate::arguments::{Drill, DrillKind};
use crate::config::{Config, Isolation, Length, Reduce};
use crate::error::CliError;
use crate::gpus::{Auto, choose_here, this_machine};
use crate::plan::Plan;
use crate::request::settings;
use dtrain_types::counted;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A fault has a stretch of the run of its own, about as long: time to be lost, to come back and to work again.
const STRETCH: Duration = Duration::from_millis(800);
/// Steps of minutes do not make a stretch of one step: something must happen between two faults.
const FEWEST_STEPS: u64 = 6;
/// Before the first fault and after the last one the run is left alone.
const CALM_STRETCHES: u64 = 2;
/// Of checkpoints in a stretch, where the user did not say how often they are written.
const CHECKPOINTS: u64 = 4;
/// A host whose link is back joins within so long, where nothing is wrong.
const RETURN: Duration = Duration::from_secs(2);
/// So many times the steps are made where they were too few: a busy machine is timed when it is slow, and is fast later.
const LONGER: u64 = 3;
/// A rank that is disturbed all the time would be given up.
const MAX_RESTARTS: u32 = 1000;

/// How long a step takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// With all ranks.
    pub whole: Duration,
    /// With those that are left while a host is cut off.
    pub rest: Duration,
}

/// What a drill runs.
#[derive(Debug)]
pub struct Setup {
    /// What is done to the run.
    pub kind: DrillKind,
    /// How often.
    pub times: u64,
    /// Ranks of the run.
    pub ranks: usize,
    /// A silent rank is given up after this.
    pub detect: Duration,
    /// With fewer ranks no step is made.
    pub min_ranks: usize,
    /// So long a run waits for a host, and a host for its run.
    pub join_timeout: Duration,
    /// So long the link of a host is cut.
    pub cut: Duration,
    /// Whether the bits are those of any number of ranks.
    pub exact: bool,
    /// Steps between two validations.
    pub validation_every: Option<u64>,
    /// Steps of the run; 0 until they are chosen.
    pub steps: u64,
    /// Steps between two checkpoints.
    pub checkpoint_every: Option<u64>,
    /// *Units*: bytes of one checkpoint, about.
    pub checkpoint_bytes: u64,
    /// What the user should know before it starts, a line each.
    pub notes: Vec<String>,
    /// Where the runs of this drill lie.
    pub folder: PathBuf,
    /// Ends the runs of a drill that is stopped.
    pub stop: Stop,
    /// The words of a program with a model of its own; none is `dtrain train`.
    program: Vec<OsString>,
    words: Vec<OsString>,
    threads: u32,
    given_length: bool,
    given_checkpoints: bool,
    warmup: Option<Length>,
    steps_per_epoch: u64,
}

impl Setup {
    /// Understands a command line.
    ///
    /// *Errors*: of the configuration or its data; a kind that cannot be done with it.
    pub fn new(arguments: &Drill, folder: &Path, stop: Stop) -> Result<Self, CliError> {
        let program = arguments.program.clone();
        let mut words = Vec::new();
        if let Some(file) = &arguments.settings.file {
            words.extend(["-c".into(), file.clone().into_os_string()]);
        }
        words.extend(arguments.settings.overrides.iter().map(OsString::from));
        let (config, described) = match program.is_empty() {
            true => described_here(arguments)?,
            false => {
                let described = Described::ask(&program, &words)?;
                (described.config()?, described)
            }
        };
        refuse(arguments, &config)?;
        let cut = match arguments.kind {
            DrillKind::Partition => cut_length(arguments, &config)?,
            _ => Duration::ZERO,
        };
        let steps_per_epoch = described.steps_per_epoch;
        let in_steps = |length: Length| length.in_steps(steps_per_epoch);
        let given = |key: &str| is_given(&arguments.settings.overrides, key);
        words.extend(["name=none".into(), "resume=never".into()]);
        let mut setup = Self {
            kind: arguments.kind,
            times: u64::from(arguments.times.unwrap_or(default_times(arguments.kind))),
            ranks: config.world.ranks as usize,
            detect: config.world.detect,
            min_ranks: config.world.min_ranks as usize,
            join_timeout: config.world.join_timeout,
            cut,
            exact: config.reduce == Reduce::Exact,
            validation_every: config.validation.every.map(in_steps).filter(|_| described.held_out > 0),
            steps: 0,
            checkpoint_every: config.checkpoint.every.map(in_steps),
            // Parameters, and two moments for each.
            checkpoint_bytes: described.parameters * 12,
            notes: Vec::new(),
            folder: folder.to_owned(),
            stop,
            program,
            words,
            threads: config.world.threads,
            given_length: given("steps") || given("epochs"),
            given_checkpoints: given("checkpoint.every"),
            warmup: config.schedule.warmup,
            steps_per_epoch,
        };
        if setup.kind.loses_ranks() && !given("max_restarts") {
            setup.words.push(format!("max_restarts={MAX_RESTARTS}").into());
        }
        if setup.kind == DrillKind::DiskFull {
            setup.words.push("checkpoint.keep=1".into());
        }
        if setup.kind == DrillKind::Partition {
            let [here, there] = shares(setup.ranks);
            let seconds = cut.as_secs_f64();
            setup
                .notes
                .push(format!("two hosts with {here} and {there} of the ranks; a cut lasts {seconds:.1} s"));
        }
        if setup.given_length {
            setup.choose_steps(described.last_step)?;
        }
        Ok(setup)
    }

    /// Whether the length must still be chosen, from the time that a step takes.
    #[must_use]
    pub fn needs_step_time(&self) -> bool {
        self.steps == 0
    }

    /// Makes the run long enough for all faults.
    ///
    /// *Errors*: none here: there is room by construction.
    pub fn fit(&mut self, pace: Pace) -> Result<(), CliError> {
        let steps_in = |time: Duration, step: Duration| {
            let fitting = time.as_secs_f64() / step.as_secs_f64().max(1e-6);
            // A number of microseconds: it fits.
            (fitting.ceil() as u64).max(FEWEST_STEPS)
        };
        let stretch = steps_in(STRETCH, pace.whole);
        // While a link is cut, steps may be faster than with all ranks.
        let cut = match self.kind {
            DrillKind::Partition => steps_in(self.cut + RETURN, pace.rest.min(pace.whole)),
            _ => 0,
        };
        self.choose_steps(stretch * (self.times + CALM_STRETCHES) + cut * self.times)?;
        self.words.push(format!("steps={}", self.steps).into());
        // The warm-up of a long training may be longer than a drill.
        let warmup = self.warmup.map_or(0, |warmup| warmup.in_steps(self.steps_per_epoch));
        if warmup > self.steps {
            self.words.push("schedule.warmup=none".into());
            self.notes.push(format!(
                "without the warm-up of {}, which is longer than the drill",
                counted(warmup, "step")
            ));
        }
        Ok(())
    }

    /// Whether all that is wrong is that the run was over before the last fault was: the length that was chosen for it was
    /// too short.
    #[must_use]
    pub fn was_too_short(&self, disturbed: &Disturbed, expected: &str) -> bool {
        let Disturbed { faults, ended, lost_steps, .. } = disturbed;
        let is_back = |fault: &InjectedFault| match self.kind {
            DrillKind::Partition => fault.returned.is_some(),
            _ => fault.recovery.is_some(),
        };
        let is_whole = faults.len() as u64 == self.times && faults.iter().all(is_back);
        let same = ended.seen.ending.as_ref().is_some_and(|ending| ending.digest == expected);
        let is_well = ended.code == Some(0)
            && ended.seen.disorder.is_none()
            && *lost_steps == 0
            && faults.iter().all(|fault| fault.not_kept.is_empty())
            && (same || !self.exact);
        !self.given_length && !is_whole && is_well
    }

    /// Makes the run longer, for another try.
    ///
    /// *Errors*: none here: there is more room than before.
    pub fn lengthen(&mut self) -> Result<(), CliError> {
        self.folder.push("longer");
        self.choose_steps(self.steps * LONGER)?;
        self.words.push(format!("steps={}", self.steps).into());
        Ok(())
    }

    fn choose_steps(&mut self, steps: u64) -> Result<(), CliError> {
        let stretch = steps / (self.times + CALM_STRETCHES);
        if stretch < 2 {
            let message =
                format!("{} leave no room for {}", counted(steps, "step"), counted(self.times, "fault"));
            return Err(CliError::usage(message).hint("give more steps=, fewer --times, or no length at all"));
        }
        self.steps = steps;
        if !self.given_checkpoints {
            let every = (stretch / CHECKPOINTS).max(1);
            self.checkpoint_every = Some(every);
            self.words.push(format!("checkpoint.every={every} steps").into());
        }
        Ok(())
    }

    /// The step from which on the fault of this number, from 0, may be done.
    #[must_use]
    pub fn stretch_begins(&self, number: u64) -> u64 {
        self.steps / (self.times + CALM_STRETCHES) * (number + 1)
    }

    /// The folder of one of the runs.
    #[must_use]
    pub fn run_dir(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The command of a run of this configuration in `run_dir`. `around` is a command that it is started with.
    ///
    /// *Errors*: the program cannot find itself.
    pub fn train(&self, run_dir: &Path, around: &[OsString]) -> Result<Command, CliError> {
        let mut words: Vec<OsString> = vec!["--json".into()];
        words.extend(self.words.iter().cloned());
        let mut place = OsString::from("run_dir=");
        place.push(run_dir);
        words.push(place);
        self.trains(around, words)
    }

    /// The command that goes on with the run in this folder.
    ///
    /// *Errors*: as [`Setup::train`].
    pub fn resume(&self, run_dir: &Path) -> Result<Command, CliError> {
        self.trains(&[], vec!["--json".into(), "--resume".into(), run_dir.into()])
    }

    fn trains(&self, around: &[OsString], mut words: Vec<OsString>) -> Result<Command, CliError> {
        if self.program.is_empty() {
            words.insert(0, "train".into());
        }
        program(&self.program, around, &words)
    }

    /// The command of one of two hosts of such a run; the first one tells programs of it.
    ///
    /// *Errors*: the program cannot find itself.
    pub fn node(
        &self,
        host: usize,
        master: &str,
        run_dir: &Path,
        around: &[OsString],
    ) -> Result<Command, CliError> {
        let line = format!("node --rank {host} --master {master} --nodes 2");
        let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        words.extend((host == 0).then(|| "--json".into()));
        words.extend(self.words.iter().cloned());
        words.extend(self.part(host));
        let mut place = OsString::from("run_dir=");
        place.push(run_dir);
        words.push(place);
        program(&self.program, around, &words)
    }

    /// The settings of a host for its part of the ranks: each has the threads that it would have on one host.
    #[must_use]
    pub fn part(&self, host: usize) -> [OsString; 2] {
        let ranks = shares(self.ranks)[host];
        [format!("ranks={ranks}").into(), format!("threads={}", self.threads).into()]
    }
}

/// What `dtrain train` would train.
fn described_here(arguments: &Drill) -> Result<(Config, Described), CliError> {
    let config = settings(&arguments.settings, this_machine())?;
    let plan = Plan::open(&config, None)?;
    let chosen = choose_here(&config, Auto::ByTest)?.unless(plan.check_device(), &config)?;
    let prototype = plan.prototype(&chosen)?;
    let described = Described::of(&plan, prototype.replica.as_ref())?;
    Ok((config, described))
}

/// What cannot be drilled.
fn refuse(arguments: &Drill, config: &Config) -> Result<(), CliError> {
    if arguments.kind != DrillKind::Partition && arguments.seconds.is_some() {
        let message = format!("--seconds says nothing about the drill {}", arguments.kind.name());
        return Err(
            CliError::usage(message).hint("it is how long the drill partition cuts the link of a host")
        );
    }
    let by_rank = matches!(arguments.kind, DrillKind::Kill | DrillKind::Hang);
    if by_rank && config.world.isolation == Isolation::Thread {
        let message = "ranks that are threads of one process cannot be lost one by one";
        return Err(config
            .problem("isolation", message)
            .hint("write isolation=process for the drill")
            .into());
    }
    Ok(())
}

fn default_times(kind: DrillKind) -> u32 {
    match kind {
        DrillKind::Kill => 5,
        DrillKind::Hang | DrillKind::Partition => 2,
        DrillKind::DiskFull | DrillKind::Sigterm => 1,
    }
}

/// Whether the command line itself has a value for a key.
fn is_given(overrides: &[String], key: &str) -> bool {
    overrides.iter().filter_map(|word| word.split_once('=')).any(|(given, _)| given.trim() == key)
}
