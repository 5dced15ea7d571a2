//! The command line of `dtrain run`, with the names that torchrun gives its flags, and those of its processes.

use clap::Args;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  dtrain run --nproc 2 train.py --lr 0.1        two processes of python3, as torchrun starts them
  dtrain run --nproc auto --max-restarts 3 train.py     one per GPU; all are started again when one fails
  dtrain run --nproc 4 --log-dir logs -- ./my-program   any program; a log file for each rank
  dtrain run --nproc 2 -m package.train         a Python module
  dtrain run --nodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc 8 train.py   on each of two hosts
  DTRAIN_TOKEN_FILE=token dtrain run --nodes 2 ... --max-restarts 3 train.py     hosts start again together

torchrun's spellings (--nproc-per-node, --nnodes, --standalone, --max_restarts ...) are understood.
Exit codes: 0 all exited with 0, 1 a process failed, 2 usage, 130 interrupted.";

/// How many processes of a program are started on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// This many.
    Count(u32),
    /// One a GPU; without GPUs one a core.
    Auto,
    /// One a GPU.
    Gpu,
    /// One a core.
    Cpu,
}

impl std::str::FromStr for Processes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            _ => match text.parse() {
                Ok(count @ 1..=MOST_PROCESSES) => Ok(Self::Count(count)),
                _ => Err(format!("expected auto, gpu, cpu, or a whole number from 1 to {MOST_PROCESSES}")),
            },
        }
    }
}

/// More processes on one host are a slip of the finger.
const MOST_PROCESSES: u32 = 4096;

/// `dtrain run`. Each flag has the names that torchrun gives it, and its variable.
#[derive(Args, Clone, Debug)]
pub struct RunProgram {
    /// Processes on this host: a number, or auto (one a GPU, else one a core), gpu, cpu
    #[arg(long, aliases = ["nproc-per-node", "nproc_per_node"], env = "PET_NPROC_PER_NODE", hide_env = true)]
    #[arg(value_name = "N|auto", default_value = "1")]
    pub nproc: Processes,
    /// Hosts; start this command on each
    #[arg(long, aliases = ["nnodes"], value_name = "N")]
    pub nodes: Option<String>,
    /// Which of the hosts this is, from 0
    #[arg(long, alias = "node_rank", value_name = "R")]
    pub node_rank: Option<u32>,
    /// Address of host 0, for the program's own rendezvous [default with one host: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "ADDR", env = "PET_MASTER_ADDR", hide_env = true)]
    pub master_addr: Option<String>,
    /// Its port there [default with one host: a fresh free one at each start]
    #[arg(long, alias = "master_port", value_name = "PORT", env = "PET_MASTER_PORT", hide_env = true)]
    pub master_port: Option<u16>,
    /// How often all processes are started again when one fails
    #[arg(long, alias = "max_restarts", value_name = "N", env = "PET_MAX_RESTARTS", hide_env = true)]
    #[arg(default_value_t = 0)]
    pub max_restarts: u32,
    /// Seconds for which several hosts wait for each other, at the beginning and after a host is lost
    #[arg(long, alias = "join_timeout", value_name = "SECONDS", default_value_t = 600)]
    pub join_timeout: u32,
    /// Seconds between SIGTERM and SIGKILL [default: 30]
    #[arg(long, alias = "shutdown_timeout", value_name = "SECONDS", env = "PET_SHUTDOWN_TIMEOUT")]
    #[arg(hide_env = true)]
    pub shutdown_timeout: Option<u32>,
    /// Folder for a log file per rank and attempt
    #[arg(long, alias = "log_dir", value_name = "DIR", env = "PET_LOG_DIR", hide_env = true)]
    pub log_dir: Option<PathBuf>,
    /// What stands before each line of a rank on the console; "" for nothing
    #[arg(long, alias = "log_line_prefix_template", value_name = "TEXT")]
    #[arg(env = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", hide_env = true)]
    #[arg(
        long_help = "What stands before each line of a rank on the console, with ${rank}, ${local_rank}, \
                       ${role_name} and ${hostname} filled in; \"\" for nothing. By default \"[rank N]: \" where \
                       there is more than one process."
    )]
    pub log_line_prefix_template: Option<String>,
    /// Keep off the console, with --log-dir: 1 standard output, 2 standard error, 3 both
    #[arg(short = 'r', long, value_name = "0..3", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=3))]
    pub redirects: u8,
    /// Show only these local ranks on the console, such as 0,1
    #[arg(long, alias = "local_ranks_filter", value_name = "RANKS", value_delimiter = ',')]
    pub local_ranks_filter: Option<Vec<u32>>,
    /// Run a Python module instead of a script
    #[arg(short, long)]
    pub module: bool,
    /// Start a .py file itself, not python3 with it
    #[arg(long, alias = "no_python", conflicts_with = "module")]
    pub no_python: bool,
    /// TORCHELASTIC_RUN_ID [default: a random one]
    #[arg(long, aliases = ["rdzv-id", "rdzv_id"], value_name = "ID")]
    pub run_id: Option<String>,
    /// ROLE_NAME
    #[arg(long, default_value = "default")]
    pub role: String,
    /// Say nothing of its own but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// One host; what is the default here
    #[arg(long, hide = true)]
    pub standalone: bool,
    /// torchrun's rendezvous; only what needs none is taken
    #[arg(long, alias = "rdzv_backend", hide = true)]
    pub rdzv_backend: Option<String>,
    /// The address of torchrun's rendezvous
    #[arg(long, alias = "rdzv_endpoint", hide = true)]
    pub rdzv_endpoint: Option<String>,
    /// torchrun's copying of output to console and file, which is always done here
    #[arg(short = 't', long, hide = true)]
    pub tee: Option<String>,
    /// torchrun's polling interval; nothing is polled here
    #[arg(long, alias = "monitor_interval", hide = true)]
    pub monitor_interval: Option<String>,
    /// The program and its arguments; a first word that ends in .py is run with python3
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
}

/// `dtrain run-launcher`.
#[derive(Args, Clone, Debug)]
pub struct RunLauncher {
    /// The process that keeps this one.
    pub guard: i32,
    /// What it was asked for.
    #[command(flatten)]
    pub run: RunProgram,
}

/// `dtrain run-rank`.
#[derive(Args, Clone, Debug)]
pub struct RunRank {
    /// The process that watches this one.
    pub parent: i32,
    /// What it becomes.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<std::ffi::OsString>,
}
