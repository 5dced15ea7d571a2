//! `dtrain simulate`: whole clusters in virtual time, one seed or many; a seed that breaks something is told with the one
//! command that replays it.
//!
//! This file does not know how a simulation works, only how its results are said.

use super::{print, print_json};
use crate::arguments::{Simulate as Arguments, SimulatedPlane};
use crate::error::CliError;
use crate::report::{amount, grouped};
use dtrain_sim::{DataPlane, FaultKind, Faults, Settings, SimReport, Violation, simulate};
use dtrain_simulations::{Limit, Sweep, Tally, sweep};
use dtrain_types::{Seed, ShardLevel, counted};
use serde_json::{Value, json};
use std::time::Duration;

/// So many lines of a story are told where nobody asked for all of it.
const SHORT: usize = 30;
/// A sweep ends after so many seeds that break something.
const MOST_FOUND: usize = 10;
/// Seeds of a sweep that nobody gave a length.
const SEEDS: u64 = 100;

/// Simulates.
///
/// *Errors*: kinds of faults that there are not (usage); an invariant that is broken (failed). *Blocks* on the CPU.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    let settings = settings(arguments)?;
    // Panics of a machine are told as violations, with the seed; their own words would come without it.
    std::panic::set_hook(Box::new(|_| {}));
    match arguments.seed {
        Some(seed) => one(arguments, &Settings { seed: Seed(seed), ..settings }),
        None => many(arguments, settings),
    }
}

fn settings(arguments: &Arguments) -> Result<Settings, CliError> {
    let Arguments { ranks, nodes, steps, .. } = *arguments;
    if nodes > ranks {
        return Err(CliError::usage(format!(
            "{} cannot be on {}",
            counted(ranks, "rank"),
            counted(nodes, "host")
        ))
        .hint("give --nodes no more than --ranks"));
    }
    let faults = faults(&arguments.faults)?;
    let plane = match arguments.plane {
        SimulatedPlane::Drawn => DataPlane::Drawn,
        SimulatedPlane::Links => DataPlane::Links,
        SimulatedPlane::Hosts => DataPlane::Hosts,
        SimulatedPlane::Shards => DataPlane::Shards(ShardLevel::Optimizer),
        SimulatedPlane::Gradients => DataPlane::Shards(ShardLevel::Gradients),
        SimulatedPlane::Parameters => DataPlane::Shards(ShardLevel::Parameters),
    };
    Ok(Settings { ranks, nodes, plane, steps, faults, ..Settings::of(0) })
}

fn faults(words: &str) -> Result<Faults, CliError> {
    let kind = |word: &str| {
        let all: Vec<&str> = FaultKind::ALL.iter().map(|kind| kind.name()).collect();
        FaultKind::parse(word).ok_or_else(|| {
            CliError::usage(format!("there is no fault `{word}`"))
                .hint(format!("there are all, none, {}", all.join(", ")))
        })
    };
    match words {
        "all" => Ok(Faults::all()),
        "none" => Ok(Faults::none()),
        words => Ok(Faults::Drawn(words.split(',').map(kind).collect::<Result<_, _>>()?)),
    }
}

fn one(arguments: &Arguments, settings: &Settings) -> Result<(), CliError> {
    let report = simulate(&Settings { story: arguments.trace, ..settings.clone() });
    let story: String = report.story.iter().map(|line| format!("{line}\n")).collect();
    match arguments.json {
        true => {
            report.story.iter().try_for_each(|line| print_json(&json!({"event": "story", "text": line})))?;
            print_json(&as_json(&report))?;
        }
        false => print(&format!("{story}{}\n", text(&report)))?,
    }
    if report.violations.is_empty() { Ok(()) } else { Err(broken(arguments, settings, &report.violations)) }
}

fn many(arguments: &Arguments, settings: Settings) -> Result<(), CliError> {
    let (first, limit) = match (arguments.seeds, arguments.minutes) {
        (Some(seeds), _) => (seeds.first, Limit::Seeds(seeds.end - seeds.first)),
        (None, Some(minutes)) => {
            let length = Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| {
                CliError::usage(format!("--minutes {minutes} is no length of time")).because(&error)
            })?;
            (fresh(), Limit::Time(length))
        }
        (None, None) => (fresh(), Limit::Seeds(SEEDS)),
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if !arguments.json {
        print(&format!("seeds from {first}, on {}\n", counted(threads, "thread")))?;
    }
    let plan = Sweep {
        settings: Settings { seed: Seed(first), ..settings.clone() },
        limit,
        threads,
        most_found: MOST_FOUND,
    };
    let tally = sweep(&plan);
    match arguments.json {
        true => print_json(&tally_as_json(first, &tally))?,
        false => print(&format!("{}\n{}\n", tally.coverage.render(), summary(&tally)))?,
    }
    match tally.found.first() {
        None => Ok(()),
        Some(found) => {
            Err(broken(arguments, &Settings { seed: Seed(found.seed), ..settings }, &found.violations))
        }
    }
}

/// A seed that nobody has tried.
fn fresh() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Far apart, so that two sweeps do not meet; short enough to be typed.
    (now.as_millis() as u64 % 1_000_000_000) * 1_000_000
}

/// The command that replays a seed.
fn replay(arguments: &Arguments, seed: Seed) -> String {
    let Arguments { ranks, nodes, steps, faults, .. } = arguments;
    let mut command = format!("dtrain simulate --seed {seed} --trace");
    for (name, given, default) in
        [("ranks", u64::from(*ranks), 8), ("nodes", u64::from(*nodes), 2), ("steps", *steps, 30)]
    {
        if given != default {
            command += &format!(" --{name} {given}");
        }
    }
    match arguments.plane {
        SimulatedPlane::Drawn => {}
        SimulatedPlane::Links => command += " --plane links",
        SimulatedPlane::Shards => command += " --plane shards",
        SimulatedPlane::Gradients => command += " --plane gradients",
        SimulatedPlane::Parameters => command += " --plane parameters",
        SimulatedPlane::Hosts => command += " --plane hosts",
    }
    if faults != "all" {
        command += &format!(" --faults {faults}");
    }
    command
}

/// The error that names what is broken, with the end of the story.
fn broken(arguments: &Arguments, settings: &Settings, violations: &[Violation]) -> CliError {
    let seed = settings.seed;
    let error = CliError::failed(format!("seed {seed} breaks an invariant"));
    let error = violations.iter().fold(error, |error, v| error.cause(format!("{}: {}", v.invariant, v.text)));
    let report = simulate(&Settings { story: true, ..settings.clone() });
    let from = report.story.len().saturating_sub(SHORT);
    let story = report.story[from..].iter().fold(error, |error, line| error.cause(line.clone()));
    story.hint(format!("replay it with: {}", replay(arguments, seed)))
}

fn hex(report: &SimReport) -> Option<String> {
    report.digest.map(|digest| digest.to_string())
}

fn text(report: &SimReport) -> String {
    let state = hex(report).map_or_else(|| "no final state".to_owned(), |digest| format!("digest {digest}"));
    format!(
        "seed {}: trace {:016x}, {state}, {}, {} in {:.3} s of virtual time, {}",
        report.seed,
        report.trace,
        counted(report.generations, "generation"),
        amount(report.events, "event"),
        report.seconds,
        counted(report.violations.len(), "violation"),
    )
}

fn violations(all: &[Violation]) -> Vec<Value> {
    all.iter().map(|v| json!({"invariant": v.invariant, "text": v.text})).collect()
}

fn as_json(report: &SimReport) -> Value {
    json!({
        "seed": report.seed,
        "trace": format!("{:016x}", report.trace),
        "digest": hex(report),
        "violations": violations(&report.violations),
        "generations": report.generations,
        "events": report.events,
        "seconds": report.seconds,
    })
}

fn summary(tally: &Tally) -> String {
    let broke = if tally.found.len() == 1 { "breaks" } else { "break" };
    format!(
        "{} ({} without a fault), {} {broke} something; {}, {}; {:.0} seeds a minute",
        amount(tally.seeds(), "seed"),
        grouped(tally.coverage.runs[1]),
        tally.found.len(),
        amount(tally.events, "event"),
        amount(tally.generations, "generation"),
        tally.pace(),
    )
}

fn tally_as_json(first: u64, tally: &Tally) -> Value {
    let found = tally.found.iter();
    let coverage: serde_json::Map<String, Value> = FaultKind::ALL
        .iter()
        .map(|kind| {
            let of = |place: &dtrain_sim::Situation| {
                (place.name().to_owned(), json!(tally.coverage.of(*kind, *place)))
            };
            (kind.name().to_owned(), Value::Object(dtrain_sim::Situation::ALL.iter().map(of).collect()))
        })
        .collect();
    json!({
        "first_seed": first,
        "seeds": tally.seeds(),
        "without_fault": tally.coverage.runs[1],
        "violations": found
            .map(|found| json!({"seed": found.seed, "violations": violations(&found.violations)}))
            .collect::<Vec<_>>(),
        "events": tally.events,
        "generations": tally.generations,
        "seeds_a_minute": tally.pace(),
        "coverage": coverage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments as Line;
    use clap::Parser;

    fn parsed(words: &[&str]) -> Arguments {
        let line = ["dtrain", "simulate"].iter().chain(words);
        match Line::try_parse_from(line).expect("a good line").command {
            crate::arguments::Command::Simulate(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_that_replays_a_seed_has_every_setting_that_is_not_the_default() {
        let plain = parsed(&["--seeds", "3..9"]);
        assert_eq!(replay(&plain, Seed(4)), "dtrain simulate --seed 4 --trace");
        let other = parsed(&["--minutes", "1", "--ranks", "5", "--faults", "crash,noise"]);
        assert_eq!(
            replay(&other, Seed(4)),
            "dtrain simulate --seed 4 --trace --ranks 5 --faults crash,noise"
        );
    }

    #[test]
    fn a_kind_of_fault_that_there_is_not_and_more_hosts_than_ranks_are_usage_errors() {
        for words in [&["--faults", "crash,flood"][..], &["--ranks", "1", "--nodes", "2"]] {
            assert_eq!(run(&parsed(words)).expect_err("usage").kind(), crate::error::Kind::Usage);
        }
    }
}
