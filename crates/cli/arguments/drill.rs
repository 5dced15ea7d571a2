//! The command line of `drill`.

use super::output::Output;
use super::train::Settings;
use clap::Args;

pub(super) const DRILL_EXAMPLES: &str = "\
Examples:
  dtrain drill kill -c run.yaml                 kill ranks of your training, again and again
  dtrain drill kill ranks=4 --times 20          ... twenty times, on four ranks
  dtrain drill hang -c run.yaml detect=500ms    stop ranks, which are to be named and replaced
  dtrain drill sigterm -c run.yaml --times 3    stop the run as a batch queue does, and go on with it
  dtrain drill partition -c run.yaml ranks=4    cut the link between two hosts, which are made on this machine
  dtrain drill disk-full -c run.yaml            fill the disk before a checkpoint
  dtrain drill kill ranks=3 -- python train.py  kill ranks of your PyTorch program

It trains in a temporary folder: no run of yours is touched. Without steps= or epochs= it chooses the length.
partition needs network namespaces and disk-full a file system of its own: root, or a machine that gives users namespaces.
Exit codes: 0 every promise held, 1 one did not (or no file system for disk-full), 2 usage (or no namespaces for partition),
130 interrupted.";

/// What a drill does to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DrillKind {
    /// Kill ranks (kill -9)
    Kill,
    /// Stop ranks (kill -STOP), so that they hang
    Hang,
    /// Cut the link between two hosts on this machine, and mend it
    Partition,
    /// Fill the disk before a checkpoint
    DiskFull,
    /// Ask the run to stop (kill -TERM), and go on with it
    Sigterm,
}

impl DrillKind {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Hang => "hang",
            Self::Partition => "partition",
            Self::DiskFull => "disk-full",
            Self::Sigterm => "sigterm",
        }
    }

    /// Whether the run goes on with fewer ranks for a while.
    #[must_use]
    pub fn loses_ranks(self) -> bool {
        matches!(self, Self::Kill | Self::Hang | Self::Partition)
    }
}

/// `dtrain drill`.
#[derive(Args, Clone, Debug)]
pub struct Drill {
    /// What is done to the run
    pub kind: DrillKind,
    /// Where the configuration comes from.
    #[command(flatten)]
    pub settings: Settings,
    /// A program with a model of its own in place of `dtrain train`, behind --: python train.py
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
    /// How often [default: kill 5, hang and partition 2, the others once]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub times: Option<u32>,
    /// partition: how long the link is cut [default: 3 x detect]
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}
