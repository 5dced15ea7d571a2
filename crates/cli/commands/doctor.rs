//! `dtrain doctor`: what this machine has, what it lacks, and what to do about it.

use super::{print, print_json};
use crate::arguments::{Doctor as Arguments, DoctorProbe};
use crate::doctor::{self, Check, Report, Verdict};
use crate::error::CliError;
use console::style;
use dtrain_telemetry::UnixTime;
use serde_json::json;
use std::fmt::Write;

/// Examines this machine and says what it found.
///
/// *Errors*: training on the CPU does not work, or what was asked for does not. *Blocks* while libraries start.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    let report = doctor::examine(arguments);
    if arguments.json {
        report.checks.iter().try_for_each(|check| print_json(&check_json(check)))?;
        print_json(&summary_json(&report))?;
    } else {
        print(&text(&report))?;
    }
    let wanted = arguments.gpu.then(|| report.gpu.clone()).flatten().map(|why| ("GPUs", why));
    match report.cpu.map(|why| ("the CPU", why)).or(wanted) {
        None => Ok(()),
        Some((on, why)) => {
            let error = CliError::failed(format!("training on {on} does not work here")).cause(why);
            Err(error.hint("each line above that says missing has a hint"))
        }
    }
}

/// Opens one library, for the process above.
///
/// *Errors*: as `doctor::answer`.
pub fn probe(arguments: &DoctorProbe) -> Result<(), CliError> {
    doctor::answer(arguments)
}

/// The widest name of a check.
const NAME: usize = 13;

fn text(report: &Report) -> String {
    let mut text = format!("dtrain {} on {}\n", crate::arguments::VERSION, dtrain_telemetry::hostname());
    for Check { name, verdict, found, hint, .. } in &report.checks {
        let word = format!("{:<8}", verdict.name());
        let word = match verdict {
            Verdict::Ok => style(word).green(),
            Verdict::Warn => style(word).yellow(),
            Verdict::Missing => style(word).red(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {word} {:<NAME$}  {found}", style(name).bold());
        if let Some(hint) = hint {
            let _ = writeln!(text, "  {:<8} {}", "", style(format!("hint: {hint}")).dim());
        }
    }
    let told = |on: &str, missing: &Option<String>| match missing {
        None => format!("training on {on} works here\n"),
        Some(why) => format!("training on {on} does not work here: {why}\n"),
    };
    text + &told("the CPU", &report.cpu) + &told("GPUs", &report.gpu)
}

fn check_json(check: &Check) -> serde_json::Value {
    json!({
        "time": UnixTime::now(),
        "event": "check",
        "check": check.key(),
        "verdict": check.verdict.name(),
        "found": check.found,
        "hint": check.hint,
        "details": check.details,
    })
}

fn summary_json(report: &Report) -> serde_json::Value {
    json!({
        "time": UnixTime::now(),
        "event": "summary",
        "ok": report.count(Verdict::Ok),
        "warn": report.count(Verdict::Warn),
        "missing": report.count(Verdict::Missing),
        "cpu": report.cpu.is_none(),
        "cpu_problem": report.cpu,
        "gpu": report.gpu.is_none(),
        "gpu_problem": report.gpu,
        "gpus": report.gpus,
    })
}
