//! The command lines of those who watch runs: `status`, `runs`, `track`.

use clap::Args;
use std::path::PathBuf;

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  dtrain status                            the newest run of this folder, again and again until it ends
  dtrain status runs/first --once          once; without a terminal that is always so
  dtrain status runs/first --json          one JSON object
  dtrain status --json --watch             one a second, a line each, until the run ends
  dtrain status --master 10.0.0.1          a run of several hosts, asked over the network (DTRAIN_TOKEN_FILE names its token)

It reads the folder of the run and locks nothing. Exit code 2: there is no such run.";

pub(super) const RUNS_EXAMPLES: &str = "\
Examples:
  dtrain runs                              all of runs/, the newest last
  dtrain runs --sort val_accuracy          the largest last; any result, or name, step, age
  dtrain runs --sort val_loss --reverse    the other way round
  dtrain runs sweep/ --json                one JSON object a line";

pub(super) const TRACK_EXAMPLES: &str = "\
Examples:
  dtrain track runs/first                                            what its trackers did not take yet
  dtrain track runs/first track=mlflow mlflow.uri=http://host:5000   a tracker that the run did not have

Exit codes: 0 everything is sent, 1 a tracker does not take it, 2 usage.";

/// `dtrain status`.
#[derive(Args, Clone, Debug)]
pub struct Status {
    /// The run: its folder or its name [default: the newest in runs/]
    pub run: Option<String>,
    /// Show it once, on a terminal too
    #[arg(long, conflicts_with = "watch")]
    pub once: bool,
    /// Show it again and again until it ends, without a terminal too
    #[arg(long)]
    pub watch: bool,
    /// Seconds from one time to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub every: u32,
    /// Write JSON to standard output
    #[arg(long)]
    pub json: bool,
    /// Ask the first host of a run on several: ADDR or ADDR:PORT
    #[arg(long, value_name = "ADDR", conflicts_with = "run")]
    pub master: Option<String>,
}

/// `dtrain runs`.
#[derive(Args, Clone, Debug)]
pub struct Runs {
    /// The folder of the runs [default: runs]
    pub folder: Option<PathBuf>,
    /// By what they are sorted, the largest last: a result such as val_accuracy, or name, step, age
    #[arg(long, value_name = "KEY", default_value = "age")]
    pub sort: String,
    /// The other way round
    #[arg(long)]
    pub reverse: bool,
    /// Write one JSON object a line to standard output
    #[arg(long)]
    pub json: bool,
}

/// `dtrain track`.
#[derive(Args, Clone, Debug)]
pub struct Track {
    /// The run: its folder or its name
    pub run: String,
    /// Settings over those of the run, such as track=mlflow and mlflow.uri=http://host:5000
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}
