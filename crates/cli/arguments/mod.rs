//! The command line, read by clap: what the user typed, with types, and nothing looked up yet.
//!
//! It does not know what a configuration key means; `key=value` arguments pass through as they are.

mod bench;
mod doctor;
mod drill;
mod node;
mod output;
mod run;
mod simulate;
mod status;
mod tokenize;
mod train;
mod trained;

pub use bench::{Bench, BenchCollectives, BenchGpuPlan, BenchRank, BenchScaling, BenchStep, Ceilings};
use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};
use doctor::DOCTOR_EXAMPLES;
pub use doctor::{Doctor, DoctorProbe, GpuProbe, RoomProbe};
use drill::DRILL_EXAMPLES;
pub use drill::{Drill, DrillKind};
use node::NODE_EXAMPLES;
pub use node::{Drain, Node, Ready};
pub use output::Output;
pub use run::{Processes, RunLauncher, RunProgram, RunRank};
use simulate::SIMULATE_EXAMPLES;
pub use simulate::{SeedRange, Simulate, SimulatedPlane};
pub use status::{Runs, Status, Track};
use std::path::PathBuf;
pub use tokenize::{FIELD, Tokenize};
use train::TRAIN_EXAMPLES;
pub use train::{Settings, Train};
pub use trained::{Chat, Drawing, Eval, Export, ExportTo, Generate, Predict, Work};

/// Version and revision, as `--version` shows them.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("DTRAIN_REVISION"), ")");

const EXAMPLES: &str = "\
Examples:
  dtrain train                                train a CNN on the digits inside this program
  dtrain train epochs=5 optimizer.lr=1e-3     the same, with other settings
  dtrain train -c mnist.yaml ranks=4          your data, on four ranks
  dtrain train -c mnist.yaml --resume         go on where the newest run stopped
  dtrain plan -c mnist.yaml                   what would be trained, and how much memory it takes";

const HELP_EXAMPLES: &str = "\
Examples:
  dtrain help                  the topics
  dtrain help data             how your own data is read
  dtrain help train            what `dtrain train --help` says
  dtrain help optimizer.lr     one key: default, values, meaning
  dtrain help keys model       the keys of a section";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  dtrain completions bash > ~/.local/share/bash-completion/completions/dtrain
  dtrain completions zsh > ~/.zfunc/_dtrain          (with ~/.zfunc in fpath)
  dtrain completions fish > ~/.config/fish/completions/dtrain.fish";

/// Train neural networks data-parallel: the same bits on any number of ranks.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version = VERSION, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
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
    /// Train on several hosts: start it on each of them
    #[command(after_help = NODE_EXAMPLES)]
    Node(Node),
    /// Say whether the `node` here has ranks in a run: a readiness probe
    Ready(Ready),
    /// Let the `node` here leave after the step in hand: a preStop hook
    Drain(Drain),
    /// Make the secret that the hosts of a cluster share
    #[command(subcommand)]
    Token(Token),
    /// Start any program on every device, as torchrun does
    #[command(after_help = run::EXAMPLES)]
    Run(RunProgram),
    /// The process under `run` that starts and watches the ranks; not for people
    #[command(hide = true)]
    RunLauncher(RunLauncher),
    /// A rank under `run-launcher`, before it becomes the program; not for people
    #[command(hide = true)]
    RunRank(RunRank),
    /// Show how a run is: ranks, pace, losses, faults, time left
    #[command(after_help = status::STATUS_EXAMPLES)]
    Status(Status),
    /// List all runs with their best results and what differs between them
    #[command(after_help = status::RUNS_EXAMPLES)]
    Runs(Runs),
    /// Send a run to its trackers: what they did not take while it went on
    #[command(after_help = status::TRACK_EXAMPLES)]
    Track(Track),
    /// Measure a trained model: accuracy, F1 and confusion, RMSE and R2, or perplexity
    #[command(after_help = trained::EVAL_EXAMPLES)]
    Eval(Eval),
    /// Predict classes or numbers for new samples with a trained model
    #[command(after_help = trained::PREDICT_EXAMPLES)]
    Predict(Predict),
    /// Have a trained model of texts go on with one
    #[command(after_help = trained::GENERATE_EXAMPLES)]
    Generate(Generate),
    /// Talk with a trained model that learnt from conversations
    #[command(after_help = trained::CHAT_EXAMPLES)]
    Chat(Chat),
    /// Write a trained model for other programs: ONNX, PyTorch, safetensors
    #[command(after_help = trained::EXPORT_EXAMPLES)]
    Export(Export),
    /// Turn texts into token ids to train on, by a tokenizer of Hugging Face or a new one
    #[command(after_help = tokenize::EXAMPLES)]
    Tokenize(Tokenize),
    /// Show what would be trained: layout, memory, micro-batches per rank
    Plan(PlanArguments),
    /// List, verify, export or compare checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Check that every sample of a run was used exactly once
    Audit(Audit),
    /// Say what this machine has, what it lacks, and what to do about it
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(Doctor),
    /// A child of `doctor` that opens one library; not for people
    #[command(hide = true)]
    DoctorProbe(DoctorProbe),
    /// A child of `train` that builds replicas on a GPU; not for people
    #[command(hide = true)]
    RoomProbe(RoomProbe),
    /// A child that tests GPUs; not for people
    #[command(hide = true)]
    GpuProbe(GpuProbe),
    /// Measure this machine
    #[command(subcommand)]
    Bench(Bench),
    /// A rank of `bench collectives`; not for people
    #[command(hide = true)]
    BenchRank(BenchRank),
    /// Disturb a run of your configuration on purpose, and see that nothing is lost
    #[command(after_help = DRILL_EXAMPLES)]
    Drill(Drill),
    /// Run whole clusters with crashes and broken networks in virtual time
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(Simulate),
    /// Explain a command, a topic of the guide, or a key of the configuration
    #[command(after_help = HELP_EXAMPLES)]
    Help(Help),
    /// Write a script that completes command lines in a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Write man pages into a folder, one a command
    Man(Man),
}

/// `dtrain help`.
#[derive(Args, Clone, Debug)]
pub struct Help {
    /// A command, a topic or a key; without any, what there is
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
}

/// `dtrain completions`.
#[derive(Args, Clone, Debug)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `dtrain man`.
#[derive(Args, Clone, Debug)]
pub struct Man {
    /// The folder; it is made if it is not there
    pub folder: PathBuf,
}

/// `dtrain token`.
#[derive(Clone, Debug, Subcommand)]
pub enum Token {
    /// Draw a new one
    New {
        /// Write it to a new file that only its owner may read, instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// `dtrain plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArguments {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub settings: Settings,
    /// Find the largest micro-batch that the ranks of this host have room for
    #[arg(long)]
    pub largest: bool,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain checkpoint`.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointCommand {
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
        let mut arguments =
            Self::try_parse_from(words).map_err(|error| without_hidden(key_as_flag(error)))?;
        if let Command::Train(train) | Command::Node(Node { train, .. }) = &mut arguments.command {
            train.give_back_override();
        }
        Ok(arguments)
    }
}

/// What a program with data and a model of its own is asked for.
#[derive(Clone, Debug)]
pub enum OwnCommand {
    /// To train on this host.
    Train(Train),
    /// To train as one host of several.
    Node(Node),
}

/// The command line of one host of several of such a program: that of `dtrain node`.
#[derive(Debug, Parser)]
#[command(about = "Train on this host as one of several", after_help = NODE_EXAMPLES)]
struct OwnNode {
    #[command(flatten)]
    node: Node,
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
  node --rank 1 --master 10.0.0.1        one host of several, see `dtrain node --help`
  --json --quiet                         one JSON object a line, for programs";

impl OwnArguments {
    /// Reads the words of a command line, the program's name first: `node` behind it asks for one host of several.
    ///
    /// *Errors*: as [`Arguments::read`].
    pub fn from_words(words: impl Iterator<Item = std::ffi::OsString>) -> Result<OwnCommand, clap::Error> {
        let mut words: Vec<_> = words.collect();
        let is_node = words.get(1).is_some_and(|word| word == "node");
        let mut command = match is_node {
            true => {
                words.remove(1);
                OwnCommand::Node(OwnNode::try_parse_from(words).map_err(key_as_flag)?.node)
            }
            false => OwnCommand::Train(Self::try_parse_from(words).map_err(key_as_flag)?.train),
        };
        let (OwnCommand::Train(train) | OwnCommand::Node(Node { train, .. })) = &mut command;
        train.give_back_override();
        Ok(command)
    }
}

/// The command line as people see it: without the commands that dtrain calls itself by.
#[must_use]
pub fn shown_command() -> clap::Command {
    let all = Arguments::command();
    let shown: Vec<clap::Command> =
        all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    clap::Command::new("dtrain")
        .version(VERSION)
        .about(all.get_about().cloned().unwrap_or_default())
        .after_help(EXAMPLES)
        .disable_help_subcommand(true)
        .subcommands(shown.into_iter().map(|command| command.disable_help_subcommand(true)))
}

/// What is not for people is not suggested to them either.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let kind = ContextKind::SuggestedSubcommand;
    let Some(ContextValue::Strings(words)) = error.remove(kind) else { return error };
    let all = Arguments::command();
    let is_shown = |word: &String| all.find_subcommand(word).is_some_and(|command| !command.is_hide_set());
    let shown: Vec<String> = words.into_iter().filter(is_shown).collect();
    if !shown.is_empty() {
        error.insert(kind, ContextValue::Strings(shown));
    }
    error
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
        Arguments::command().debug_assert();
    }

    #[test]
    fn commands_that_are_not_for_people_are_not_suggested() {
        for (typed, meant) in
            [("ruun", Some("'run'")), ("ben", Some("'bench'")), ("doctr", Some("'doctor'")), ("room", None)]
        {
            let message = read(&format!("dtrain {typed}")).unwrap_err().to_string();
            assert_eq!(meant.is_some(), message.contains("similar"), "{message}");
            assert!(meant.is_none_or(|word| message.contains(word)), "{message}");
            for hidden in
                ["run-launcher", "run-rank", "bench-rank", "doctor-probe", "room-probe", "gpu-probe"]
            {
                assert!(!message.contains(hidden), "{message}");
            }
        }
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
