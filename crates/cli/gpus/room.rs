//! How large a micro-batch the GPUs of this host have room for, found out by building replicas there.
//!
//! That is done in children, dtrain again, one a GPU: this process takes no memory of a GPU, and what a child took is free
//! when it has ended. A child reads the configuration from its standard input and answers with one line.

use super::brought::child;
use super::open_gpu;
use crate::arguments::RoomProbe;
use crate::commands::print_json;
use crate::config::{Config, CudaList, Source};
use crate::error::CliError;
use crate::gpus::this_machine;
use crate::plan::Plan;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Stdio;

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The largest micro-batch; none where not even one sample has room.
    Rows(Option<u32>),
    Failed(String),
}

/// The largest micro-batch that all these GPUs have room for, with all the ranks that each of them gets, and which GPU it is that
/// has no room for more. Nothing where one of them has room for none.
///
/// *Errors*: a GPU that cannot be opened, a child that died. *Blocks* while replicas are built: seconds.
pub fn most_rows(config: &Config, list: &CudaList) -> Result<Option<(u32, u32)>, CliError> {
    let mut ranks = BTreeMap::<u32, u32>::new();
    for place in 0..config.world.ranks {
        *ranks.entry(list.of_rank(place, config.world.ranks)).or_default() += 1;
    }
    let mut least = None;
    for (gpu, replicas) in ranks {
        match ask(config, gpu, replicas)? {
            Some(rows) => least = least.into_iter().chain([(rows, gpu)]).min(),
            None => return Ok(None),
        }
    }
    Ok(least)
}

fn ask(config: &Config, gpu: u32, replicas: u32) -> Result<Option<u32>, CliError> {
    let fail = |what: &str| CliError::failed(format!("cuda:{gpu}: {what}"));
    let started = child("room-probe").and_then(|mut child| {
        child.args(["--gpu", &gpu.to_string(), "--replicas", &replicas.to_string()]);
        // What it writes to standard error is for the terminal.
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    });
    let mut child = started.map_err(|error| fail("a child cannot be started").because(&error))?;
    let mut input = child.stdin.take().expect("it was piped");
    // One that has died says so by its end.
    let _ = input.write_all(config.to_yaml().as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(|error| fail("a child is lost").because(&error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().rev().find_map(|line| serde_json::from_str(line).ok()) {
        Some(Answer::Rows(rows)) => Ok(rows),
        Some(Answer::Failed(words)) => Err(fail(&words)),
        None => Err(fail(&format!("building replicas there ended with {}", output.status))),
    }
}

/// Does what a child is there for.
///
/// *Errors*: arguments that no parent gives, or nobody reads.
pub fn answer(asked: &RoomProbe) -> Result<(), CliError> {
    // A child whose parent is killed is to leave nothing behind.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| CliError::failed("cannot follow the parent").because(&error))?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| CliError::usage("the configuration cannot be read").because(&error))?;
    let source = Source { path: PathBuf::from("standard input"), text };
    let config = Config::parse::<&str>(Some(source), &[], this_machine())?;
    let plan = Plan::open(&config, None)?;
    let look = || -> Result<Option<u32>, String> {
        let gpu = open_gpu(asked.gpu)?;
        Ok(plan.most_rows_on(&gpu, config.batch.micro, asked.replicas))
    };
    print_json(&json!(look().map_or_else(Answer::Failed, Answer::Rows)))
}
