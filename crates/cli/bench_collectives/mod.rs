//! `dtrain bench collectives`: how fast the ranks of this host reach each other, measured as nccl-tests measures GPUs.
//!
//! The backends are those of training. For each size the ranks start anew, because all slots of an arena have one length.
//! A rank rewrites its buffer, as a backward pass does, meets the others at a barrier, and only then is the operation
//! timed; every result is compared with a plain sum. It does not know a model, a step or a supervisor.

mod case;
mod plan;
mod ranks;
mod table;
mod timing;
mod values;

use crate::arguments::{BenchCollectives, BenchRank};
use crate::commands::{print, print_json};
use crate::config::Isolation;
use crate::error::CliError;
use plan::BenchPlan;
use table::{Columns, Row};

/// Measures and prints, a line for each operation and size.
///
/// *Errors*: words that say nothing (usage); a wrong result or a rank that died (failed). *Blocks* while it measures.
pub fn run(arguments: &BenchCollectives) -> Result<(), CliError> {
    let plan = BenchPlan::read(arguments)?;
    if !arguments.output.json && !arguments.output.quiet {
        print(&table::head(&plan))?;
    }
    let columns = if plan.limit { Columns::WithLimit } else { Columns::Times };
    for case in plan.cases() {
        let times = match plan.isolation {
            Isolation::Process => ranks::in_processes(&case)?,
            Isolation::Thread => ranks::in_threads(&case)?,
        };
        let row = Row::new(&case, plan.isolation, &times)?;
        if arguments.output.json {
            print_json(&row.json())?;
        } else {
            print(&row.text(columns))?;
        }
    }
    Ok(())
}

/// What a rank process does: measures one case and writes its times to standard output.
///
/// *Errors*: it was not started by `bench collectives`.
pub fn be_a_rank(arguments: &BenchRank) -> Result<(), CliError> {
    ranks::be_a_rank(arguments)
}
