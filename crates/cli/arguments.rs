//! The command line, read by clap: what the user typed, with types, and nothing looked up yet.
//!
//! It does not know what a configuration key means; `key=value` arguments pass through as they are.

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use std::path::{Path, PathBuf};

/// Version and revision, as `--version` shows them.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("DTRAIN_REVISION"), ")");

const EXAMPLES: &str = "\
Examples:
  dtrain train                                train a CNN on the digits inside this program
  dtrain train epochs=5 optimizer.lr=1e-3     the same, with other settings
  dtrain train -c mnist.yaml ranks=4          your data, on four ranks
  dtrain train -c mnist.yaml --resume         go on where the newest run stopped
  dtrain plan -c mnist.yaml                   what would be trained, and how much memory it takes";

const TRAIN_EXAMPLES: &str = "\
Examples:
  dtrain train                                          the digits inside this program, on all cores
  dtrain train model=mlp model.hidden=[256,128]         another model
  dtrain train data.kind=csv data.path=table.csv        your own table; the last column is the label
  dtrain train --print-config > run.yaml                every key with its meaning, to edit
  dtrain train -c run.yaml name=first optimizer.lr=1e-3 a file, and two settings over it
  dtrain train --resume runs/first ranks=4              go on with other ranks: the same bits
  dtrain train --resume runs/first --fork optimizer.lr=1e-4   a new run from that state

Exit codes: 0 done, 1 training failed, 2 usage or configuration, 3 not enough ranks left, 130 interrupted.";

/// Train neural networks data-parallel: the same bits on any number of ranks.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version = VERSION, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train on this host, on all its cores
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(Train),
    /// Show what would be trained: layout, memory, micro-batches per rank
    Plan(Plan),
    /// List, verify, export or compare checkpoints
    #[command(subcommand)]
    Checkpoint(Checkpoint),
    /// Check that every sample of a run was used exactly once
    Audit(Audit),
    /// Measure this machine
    #[command(subcommand)]
    Bench(Bench),
}

/// Where a configuration comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// Configuration file (YAML); `--print-config` makes one
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Settings that win over the file, such as optimizer.lr=3e-4
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// How much is said, and to whom.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// Write one JSON object a line to standard output
    #[arg(long)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
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
    /// Write the configuration with every default and stop
    #[arg(long)]
    pub print_config: bool,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain plan`.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub settings: Settings,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain checkpoint`.
#[derive(Clone, Debug, Subcommand)]
pub enum Checkpoint {
    /// List the checkpoints of a run, newest first
    Ls(RunArgument),
    /// Read every byte of every checkpoint and compare digests
    Verify(RunArgument),
    /// Write the parameters of a checkpoint as one safetensors file
    Export {
        /// Run folder or name, with /CHECKPOINT or /best for another than the newest
        from: String,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Compare two checkpoints, tensor by tensor
    Diff {
        /// Run folder or name, with /CHECKPOINT or /best for another than the newest
        first: String,
        /// The other one
        second: String,
        /// Write one JSON object a line to standard output
        #[arg(long)]
        json: bool,
    },
}

/// A run, for commands that read one.
#[derive(Args, Clone, Debug)]
pub struct RunArgument {
    /// Run folder or name
    pub run: String,
    /// Write one JSON object a line to standard output
    #[arg(long)]
    pub json: bool,
}

/// `dtrain audit`.
#[derive(Args, Clone, Debug)]
pub struct Audit {
    /// The run.
    #[command(flatten)]
    pub run: RunArgument,
}

/// `dtrain bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Measure training steps of a known workload
    Step(BenchStep),
}

/// `dtrain bench step`.
#[derive(Args, Clone, Debug)]
pub struct BenchStep {
    /// Which workload
    #[arg(long, value_parser = ["mlp", "gpt", "cnn"])]
    pub work: String,
    /// Ranks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Compute threads of a rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

impl Arguments {
    /// Reads the command line of this process.
    ///
    /// *Errors*: what clap says, with a hint where a key was written as a flag. Help and version are such "errors".
    pub fn read() -> Result<Self, clap::Error> {
        Self::from_words(std::env::args_os())
    }

    /// Reads the words of a command line, the program's name first.
    ///
    /// *Errors*: as [`Arguments::read`].
    pub fn from_words(words: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Self, clap::Error> {
        let mut arguments = Self::try_parse_from(words).map_err(key_as_flag)?;
        if let Command::Train(train) = &mut arguments.command {
            train.give_back_override();
        }
        Ok(arguments)
    }
}

/// The command line of a program with data and a model of its own: that of `dtrain train`.
#[derive(Debug, Parser)]
#[command(about = "Train on this host, on all its cores", after_help = OWN_EXAMPLES)]
pub struct OwnArguments {
    #[command(flatten)]
    train: Train,
}

const OWN_EXAMPLES: &str = "Examples (put the program's name in front):
  ranks=4 epochs=5 optimizer.lr=1e-3     settings, as `dtrain train --print-config` lists them
  --resume                               go on with the newest run
  --json --quiet                         one JSON object a line, for programs";

impl OwnArguments {
    /// Reads the command line of this process.
    ///
    /// *Errors*: as [`Arguments::read`].
    pub fn read() -> Result<Train, clap::Error> {
        let mut train = Self::try_parse().map_err(key_as_flag)?.train;
        train.give_back_override();
        Ok(train)
    }
}

impl Train {
    /// `--resume ranks=3` means the newest run with three ranks, not a run called `ranks=3`.
    fn give_back_override(&mut self) {
        if let Some(run) =
            self.resume.as_mut().filter(|run| run.contains('=') && !Path::new(run.as_str()).exists())
        {
            self.settings.overrides.insert(0, std::mem::take(run));
        }
    }
}

/// Users of other trainers write `--epochs 5`: the message then says how it is written here.
fn key_as_flag(error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let flag = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => flag.clone(),
        _ => return error,
    };
    let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default().replace('-', "_");
    let Some(key) = crate::config::Config::nearest_key(&name) else { return error };
    let mut error = error;
    let tip = format!("settings are written without dashes: {key}=VALUE").into();
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::from_words(line.split(' ').map(Into::into))
    }

    fn train(line: &str) -> Train {
        match read(line).unwrap().command {
            Command::Train(train) => train,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_setting_behind_resume_is_not_taken_for_a_run() {
        let train = train("dtrain train --resume ranks=3 epochs=2");
        assert_eq!((train.resume.as_deref(), train.settings.overrides.len()), (Some(""), 2));
    }

    #[test]
    fn resume_takes_a_run_or_none() {
        assert_eq!(train("dtrain train --resume runs/a ranks=3").resume.as_deref(), Some("runs/a"));
        assert_eq!(train("dtrain train ranks=3 --resume").resume.as_deref(), Some(""));
        assert_eq!(train("dtrain train ranks=3").resume, None);
        assert!(read("dtrain train --fork").is_err(), "a fork needs a run to fork");
    }

    #[test]
    fn a_key_written_as_a_flag_is_answered_with_how_to_write_it() {
        let message = read("dtrain train --ranks 3").unwrap_err().to_string();
        assert!(message.contains("ranks=VALUE"), "{message}");
        let message = read("dtrain train --batch-size=3").unwrap_err().to_string();
        assert!(message.contains("batch_size=VALUE"), "{message}");
    }
}
