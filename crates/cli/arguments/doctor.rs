//! The command lines of `doctor`, and of the processes that it looks with.

use clap::Args;
use std::path::PathBuf;

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  dtrain doctor                       everything that can be seen from here
  dtrain doctor --gpu                 the same; exit code 1 unless GPUs can train
  dtrain doctor --master 10.0.0.1     and the way to the first host of several
  dtrain doctor --json                one JSON object a check, with every place that was looked at

Exit codes: 0 training on the CPU works here, 1 it does not or what was asked for does not, 2 usage.";

/// `dtrain doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// Fail unless training on GPUs works
    #[arg(long)]
    pub gpu: bool,
    /// Look at the way to the first host of several too
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub master: Option<String>,
    /// How long a library may take to answer; GPUs that sleep take seconds each to wake up
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Write one JSON object a line to standard output
    #[arg(long)]
    pub json: bool,
}

/// `dtrain doctor-probe`.
#[derive(Args, Clone, Debug)]
pub struct DoctorProbe {
    /// The library to find.
    #[arg(long)]
    pub library: Option<String>,
    /// Files that are not opened, as JSON.
    #[arg(long, default_value = "[]")]
    pub avoid: String,
    /// The NVML to read GPUs through.
    #[arg(long, conflicts_with = "library")]
    pub gpus: Option<PathBuf>,
}

/// `dtrain room-probe`.
#[derive(Args, Clone, Debug)]
pub struct RoomProbe {
    /// The GPU.
    #[arg(long)]
    pub gpu: u32,
    /// How many ranks are to share it.
    #[arg(long)]
    pub replicas: u32,
}

/// `dtrain gpu-probe`.
#[derive(Args, Clone, Debug)]
pub struct GpuProbe {
    /// The GPUs.
    #[arg(long, value_delimiter = ',', required = true)]
    pub gpus: Vec<u32>,
    /// The NCCL to be tested between them; without it they are tested themselves.
    #[arg(long)]
    pub nccl: Option<PathBuf>,
    /// Give the verdict that is kept or, where a test is to be run, the one that it comes to: `remembers` or `tests`.
    #[arg(long, value_parser = ["remembers", "tests"])]
    pub judge: Option<String>,
    /// Choose what a library does of the `products`, `convolutions` or `attention` that the standard input lists.
    #[arg(long, value_parser = ["products", "convolutions", "attention"])]
    pub pins: Option<String>,
}
