//! The flags of all commands that people and programs listen to.

use clap::Args;

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
