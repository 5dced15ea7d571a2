//! The command line of `train`, and where every command has its configuration from.

use super::output::Output;
use clap::Args;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

pub(super) const TRAIN_EXAMPLES: &str = "\
Examples:
  dtrain train                                          the digits inside this program, on all cores
  dtrain train model=mlp model.hidden=[256,128]         another model
  dtrain train data.kind=csv data.path=table.csv        your own table; the last column is the label
  dtrain train --print-config > run.yaml                every key with its meaning, to edit
  dtrain train -c run.yaml name=first optimizer.lr=1e-3 a file, and two settings over it
  dtrain train --resume runs/first ranks=4              go on with other ranks: the same bits
  dtrain train --resume runs/first --fork optimizer.lr=1e-4   a new run from that state

Exit codes: 0 done, 1 training failed, 2 usage or configuration, 3 not enough ranks left, 130 interrupted.";

/// Where a configuration comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// Configuration file (YAML); `--print-config` makes one
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Settings that win over the file, such as optimizer.lr=3e-4
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// What a program of its own says, over which the file wins.
    #[arg(skip)]
    pub base: Vec<String>,
}

/// `dtrain train`.
#[derive(Args, Clone, Debug, Default)]
pub struct Train {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub settings: Settings,
    /// Go on with a run: its folder or name; without one the newest of this name
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "")]
    pub resume: Option<String>,
    /// With --resume: start a new run from that state, so that any key may change
    #[arg(long, requires = "resume")]
    pub fork: bool,
    /// With --fork: keep the optimizer's state, as if the steps before belonged to the new run
    #[arg(long, requires = "fork")]
    pub keep_optimizer: bool,
    /// Write the configuration with every default and stop
    #[arg(long)]
    pub print_config: bool,
    /// Say what would be trained, as one JSON object, and stop: for drills.
    #[arg(long, hide = true)]
    pub describe: bool,
    /// Show where the time of the steps goes: a table at the end, and RUN/profile/trace.json for ui.perfetto.dev
    #[arg(long)]
    pub profile: bool,
    /// With --profile: of the newest N steps of each rank [default: 1000]
    #[arg(long, value_name = "N", requires = "profile")]
    pub profile_steps: Option<NonZeroU32>,
    /// Log what a part does on standard error, as PART=LEVEL: nccl=debug shows communicators, and asks NCCL for its words
    #[arg(long, value_name = "FILTER", value_parser = crate::log::filter)]
    pub log: Option<String>,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// Steps that a profile has when nobody says how many.
const PROFILED_STEPS: NonZeroU32 = NonZeroU32::new(1_000).expect("it is not zero");

impl Train {
    /// The same with its flags for keys as settings, which those that were typed win over.
    #[must_use]
    pub fn with_flags_as_settings(&self) -> Self {
        let mut train = self.clone();
        if self.profile {
            let steps = self.profile_steps.unwrap_or(PROFILED_STEPS);
            train.settings.overrides.insert(0, format!("profile={steps}"));
        }
        train
    }

    /// `--resume ranks=3` means the newest run with three ranks, not a run called `ranks=3`.
    pub(super) fn give_back_override(&mut self) {
        if let Some(run) =
            self.resume.as_mut().filter(|run| run.contains('=') && !Path::new(run.as_str()).exists())
        {
            self.settings.overrides.insert(0, std::mem::take(run));
        }
    }
}
