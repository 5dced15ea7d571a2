//! `dtrain audit`: was every sample of every epoch used exactly once?
//!
//! The ledger of the run is recomputed from its configuration and data, and compared with its newest checkpoint.

use super::{print, print_json};
use crate::arguments::Audit as Arguments;
use crate::config::{Config, Source};
use crate::error::CliError;
use crate::external::{PROGRAM, is_external};
use crate::gpus::this_machine;
use crate::plan::Plan;
use crate::report::amount;
use crate::run_folder::{CONFIG, RunFolder};
use crate::unusable::passed_over;
use dtrain_checkpoint::{FileStore, Manifest, Store};
use dtrain_telemetry::ledger::{AuditReport, EpochUse, LineHash, Newest, audit};
use dtrain_types::{BatchPlan, counted};
use serde_json::json;

/// The ledger in a run folder.
const LEDGER: &str = "ledger.jsonl";

/// Audits a run.
///
/// *Errors*: no such run (usage); a ledger that does not add up (failed). *Blocks* on the disk.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    let run = RunFolder::find(&arguments.run.run)?;
    let source = Source { path: run.path.join(CONFIG), text: run.config_text()? };
    let config = Config::parse::<&str>(Some(source), &[], this_machine())?;
    let batches = batches(&run, &config)?;
    let path = run.path.join(LEDGER);
    let bytes = std::fs::read(&path).map_err(|error| {
        CliError::usage(format!("cannot read {}", path.display()))
            .because(&error)
            .hint("a run writes it with its first step")
    })?;
    let newest = newest(&run)?;
    match audit(&bytes, &batches, newest) {
        Ok(report) if arguments.run.json => print_json(&as_json(&report, newest)),
        Ok(report) => print(&text(&report, newest)),
        Err(problems) => {
            let error = CliError::failed(format!("{} does not add up", path.display()));
            Err(problems.iter().fold(error, |error, problem| error.cause(problem.to_string())))
        }
    }
}

/// Which samples each step of a run holds: of another program's data, which only that program opens, by the number that it wrote down
/// when the run began.
fn batches(run: &RunFolder, config: &Config) -> Result<BatchPlan, CliError> {
    if !is_external(config) {
        return Ok(Plan::open(config, None)?.batches);
    }
    let path = run.path.join(PROGRAM);
    let told = std::fs::read_to_string(&path)
        .map_err(|error| CliError::usage(format!("cannot read {}", path.display())).because(&error))?;
    let samples =
        serde_json::from_str::<serde_json::Value>(&told).ok().and_then(|told| told["samples"].as_u64());
    let samples =
        samples.ok_or_else(|| CliError::failed(format!("{} tells no number of samples", path.display())))?;
    let plan = BatchPlan::new(config.seed, samples, config.batch.global, config.batch.micro);
    plan.map_err(|error| CliError::failed(error.to_string()))
}

fn newest(run: &RunFolder) -> Result<Option<Newest>, CliError> {
    let newest = FileStore::new(&run.path)
        .newest_valid()
        .map_err(|error| CliError::failed("the checkpoints cannot be read").because(&error))?;
    newest.damaged.iter().for_each(|damage| tracing::warn!("{}", passed_over(damage)));
    let of = |manifest: &Manifest| Newest { step: manifest.id.step, ledger: LineHash(manifest.ledger.0) };
    Ok(newest.checkpoint.map(|checkpoint| of(checkpoint.manifest())))
}

fn text(report: &AuditReport, newest: Option<Newest>) -> String {
    let mut text = format!(
        "{}: {}, {}, each exactly once an epoch\n",
        report.run,
        amount(report.reached.0, "step"),
        amount(report.samples, "sample")
    );
    let (complete, begun): (Vec<&EpochUse>, Vec<&EpochUse>) =
        report.epochs.iter().partition(|epoch| epoch.complete());
    text += &format!("  {}\n", counted(complete.len(), "whole epoch"));
    for epoch in begun {
        text += &format!(
            "  epoch {} in part: {} of {}\n",
            epoch.epoch.0 + 1,
            epoch.used,
            counted(epoch.of, "sample")
        );
    }
    if report.resumes > 0 {
        text += &format!("  {}; {}\n", counted(report.resumes, "resume"), again(report.cancelled));
    }
    if report.torn > 0 {
        text += &format!(
            "  a torn last line of {}, as a crash leaves it, was passed over\n",
            counted(report.torn, "byte")
        );
    }
    match newest {
        Some(newest) => text + &format!("  agrees with the checkpoint of step {}\n", newest.step),
        None => text + "  there is no checkpoint to compare with\n",
    }
}

fn again(steps: u64) -> String {
    let were = if steps == 1 { "was" } else { "were" };
    format!("{} {were} computed again", counted(steps, "step"))
}

fn as_json(report: &AuditReport, newest: Option<Newest>) -> serde_json::Value {
    let epoch = |e: &EpochUse| json!({"epoch": e.epoch.0, "used": e.used, "of": e.of});
    json!({
        "run": report.run,
        "clean": true,
        "steps": report.reached.0,
        "samples": report.samples,
        "resumes": report.resumes,
        "cancelled": report.cancelled,
        "torn_bytes": report.torn,
        "checkpoint_step": newest.map(|newest| newest.step.0),
        "epochs": report.epochs.iter().map(epoch).collect::<Vec<_>>(),
    })
}
