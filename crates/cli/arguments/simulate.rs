//! The command line of `simulate`.

use clap::Args;

pub(super) const SIMULATE_EXAMPLES: &str = "\
Examples:
  dtrain simulate --seed 7             one run, and whether it broke anything
  dtrain simulate --seed 7 --trace     the same, with its story
  dtrain simulate --seeds 0..20000     a sweep, with the table of what met what
  dtrain simulate --minutes 2          as many new seeds as fit
  dtrain simulate --seeds 0..100 --faults crash,noise

Exit codes: 0 nothing is broken, 1 an invariant is, 2 usage.";

/// `dtrain simulate`.
#[derive(Args, Clone, Debug)]
pub struct Simulate {
    /// Run this seed alone
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "minutes"])]
    pub seed: Option<u64>,
    /// Run the seeds from A up to B, without B
    #[arg(long, value_name = "A..B", conflicts_with = "minutes")]
    pub seeds: Option<SeedRange>,
    /// Run new seeds for so long
    #[arg(long, value_name = "M")]
    pub minutes: Option<f64>,
    /// How many ranks the cluster has
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// On how many hosts (a quarter of the drawn seeds has one)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: u32,
    /// How ranks reach one another: by links, in the memory of hosts, or as the seed says
    #[arg(long, value_enum, default_value_t = SimulatedPlane::Drawn)]
    pub plane: SimulatedPlane,
    /// How many steps are made
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub steps: u64,
    /// What goes wrong: all, none, or kinds of faults with commas between them
    #[arg(long, value_name = "KINDS", default_value = "all")]
    pub faults: String,
    /// Tell the story of the seed
    #[arg(long)]
    pub trace: bool,
    /// Write one JSON object a line to standard output
    #[arg(long)]
    pub json: bool,
}

/// How simulated ranks reach one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SimulatedPlane {
    /// As the seed says.
    Drawn,
    /// Each has a link to every other one.
    Links,
    /// As links, and each holds shards of the optimizer's state.
    Shards,
    /// The same, and gradients travel in windows.
    Gradients,
    /// The same, and each has but its shards of the parameters.
    Parameters,
    /// In the memory of their hosts; those of one host alone share their state there.
    Hosts,
}

/// Seeds in a row, as in `0..20000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedRange {
    /// The first.
    pub first: u64,
    /// One past the last.
    pub end: u64,
}

impl std::str::FromStr for SeedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match ends {
            Some((first, end)) if first < end => Ok(Self { first, end }),
            _ => Err("expected two rising numbers, as in 0..20000".to_owned()),
        }
    }
}
