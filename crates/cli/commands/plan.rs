//! `dtrain plan`: what would be trained, without training it.

use super::{print, print_json};
use crate::arguments::PlanArguments as Arguments;
use crate::config::{HostCount, Rule};
use crate::doctor::free_memory;
use crate::error::CliError;
use crate::gpus::{Auto, Chosen, choose_here, most_rows, this_machine};
use crate::nccl::ChosenBackend;
use crate::plan::Plan;
use crate::report::{Reader, Voice, banner, bytes, grouped};
use crate::request::settings;
use dtrain_engine::{Replica, hidden_matrices};
use dtrain_types::{MicroRange, cut_evenly};
use serde_json::json;
use std::fmt::Write;

/// Shows the plan of a configuration.
///
/// *Errors*: of the configuration or its data.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    let machine = this_machine();
    let config = settings(&arguments.settings, machine)?;
    config.check_one_host()?;
    let chosen = choose_here(&config, Auto::ByTest)?;
    let mut plan = Plan::open(&config, None)?;
    let chosen = chosen.unless(plan.check_device(), &config)?;
    if let Ok((backend, _)) = ChosenBackend::choose(&config, HostCount::One, chosen.cuda().as_ref()) {
        plan.carried_by(&backend);
    }
    if arguments.largest {
        return largest(plan, &chosen, Reader::of(arguments.output));
    }
    let in_shards = plan.choose_state(&chosen)?;
    let prototype = plan.prototype(&chosen)?;
    let replica = prototype.replica.as_ref();
    if arguments.output.json {
        return print_json(&as_json(&plan, replica, &chosen));
    }
    let voice = Voice::of(arguments.output);
    voice.say(&banner(&plan, replica, None, (machine, &chosen)));
    in_shards.iter().for_each(|note| voice.say(&format!("  note: {note}")));
    print(&tables(&plan, replica, &chosen))
}

/// Prints the largest micro-batch that there is room for.
///
/// *Errors*: not even one sample fits; a configuration that no micro-batch suits.
fn largest(plan: Plan, chosen: &Chosen, reader: Reader) -> Result<(), CliError> {
    let (global, ranks) = (plan.config.batch.global, plan.config.world.ranks);
    let (rows, each, free) = match chosen.cuda() {
        Some(list) => {
            (most_rows(&plan.config.with_micro_batch(global), &list)?.map(|(rows, _)| rows), None, None)
        }
        None => {
            let free = free_memory();
            let (rows, each) = most_rows_on_cores(plan, free)?;
            (rows, each, free)
        }
    };
    let Some(rows) = rows else {
        let error = CliError::failed("there is no room for a single sample");
        return Err(error.hint("a smaller model needs less, and so do fewer ranks"));
    };
    if reader == Reader::Program {
        return print_json(
            &json!({"micro_batch": rows, "global_batch": global, "rank_bytes": each, "free_bytes": free}),
        );
    }
    let most = if rows == global { " (a global batch: it can be no larger)" } else { "" };
    let room = match (each, free) {
        (Some(each), Some(free)) => {
            format!(": {} a rank, {ranks} of them, {} free", bytes(each), bytes(free))
        }
        _ => String::new(),
    };
    print(&format!("micro_batch={rows}{most}{room}\nanother micro_batch is another run: its bits differ\n"))
}

/// The largest micro-batch whose replicas fit into nine tenths of the free memory, of a global batch, half of it, half of that, and so on;
/// and what one of them takes. *Units*: samples, bytes.
///
/// *Errors*: none of them suits the model.
fn most_rows_on_cores(mut plan: Plan, free: Option<u64>) -> Result<(Option<u32>, Option<u64>), CliError> {
    let ranks = u64::from(plan.config.world.ranks);
    let sizes = std::iter::successors(Some(plan.config.batch.global), |rows| Some(rows / 2));
    let mut unsuited = None;
    for rows in sizes.take_while(|rows| *rows > 0) {
        plan = plan.with_micro_batch(rows)?;
        // Batch norm, for one, needs more rows than the last micro-batch of an epoch may have.
        let size = match plan.planned_on_cores() {
            Ok(about) => about.memory.total().0,
            Err(error) => {
                unsuited = Some(error);
                continue;
            }
        };
        if free.is_none_or(|free| size.saturating_mul(ranks) <= free / 10 * 9) {
            return Ok((Some(rows), Some(size)));
        }
        unsuited = None;
    }
    unsuited.map_or(Ok((None, None)), Err)
}

fn ranges(plan: &Plan) -> Vec<MicroRange> {
    cut_evenly(plan.config.batch.micro_batches(), plan.config.world.ranks)
}

fn tables(plan: &Plan, replica: &dyn Replica, chosen: &Chosen) -> String {
    let layout = &replica.about().layout;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let tensors = || layout.tensors.iter().chain(&layout.frozen);
    let wide = tensors().map(|tensor| tensor.name.len()).max().unwrap_or(0).max(28);
    let _ = writeln!(text, "{:<wide$} {:<20} {:>10}  section", "tensor", "shape", "elements");
    for tensor in tensors() {
        let (shape, elements) = (format!("{:?}", tensor.shape), grouped(tensor.elements() as u64));
        let _ =
            writeln!(text, "{:<wide$} {shape:<20} {elements:>10}  {}", tensor.name, tensor.section.name());
    }
    if let Rule::Muon(_) = plan.config.optimizer.rule {
        let names: Vec<&str> = hidden_matrices(layout).iter().map(|tensor| &*tensor.name).collect();
        let _ = writeln!(text, "\nby muon: {}\nall else by adamw", names.join(", "));
    }
    let memory = plan.memory(replica, chosen);
    let parameters = ((layout.parameters + layout.frozen_len()) as u64).max(1);
    let _ = writeln!(text, "\n{:<28} {:>12} {:>20}", "memory of a rank", "size", "bytes a parameter");
    for (what, size) in &memory.rows {
        let each = size.0 as f64 / parameters as f64;
        let _ = writeln!(text, "{what:<28} {:>12} {each:>20.2}", bytes(size.0));
    }
    let each = memory.total().0 as f64 / parameters as f64;
    let _ = writeln!(text, "{:<28} {:>12} {each:>20.2}", "total", bytes(memory.total().0));
    let ranks = plan.config.world.ranks;
    let is_shared = plan.config.optimizer.rule.in_shares() && plan.config.world.redundancy.is_none();
    if chosen.cuda().is_none() && ranks > 1 && is_shared {
        let _ =
            writeln!(text, "parameters, statistics and optimizer state are there once for all {ranks} ranks");
    }
    let _ = writeln!(text, "\n{:<28} {:>12}", "rank", "micro-batches of a full step");
    for (rank, range) in ranges(plan).iter().enumerate() {
        let words = match plan.rounds_of(rank as u32) {
            Some(of) if of.is_empty() => "none: it takes part in rounds".to_owned(),
            Some(of) => format!("{} ({})", list(&of), of.len()),
            None if range.is_empty() => "none: a spare".to_owned(),
            None => format!("{}..{} ({})", range.lo, range.hi, range.len()),
        };
        let _ = writeln!(text, "{rank:<28} {words:>12}");
    }
    text
}

fn as_json(plan: &Plan, replica: &dyn Replica, chosen: &Chosen) -> serde_json::Value {
    let layout = &replica.about().layout;
    let tensors: Vec<_> = layout
        .tensors
        .iter()
        .chain(&layout.frozen)
        .map(|t| json!({"name": t.name, "shape": t.shape, "section": t.section.name(), "offset": t.offset}))
        .collect();
    let memory: serde_json::Map<_, _> = plan
        .memory(replica, chosen)
        .rows
        .iter()
        .map(|(what, size)| ((*what).to_owned(), size.0.into()))
        .collect();
    let (batch, world) = (plan.config.batch, &plan.config.world);
    json!({
        "samples": plan.batches.samples(),
        "steps_per_epoch": plan.batches.steps_per_epoch(),
        "steps": plan.last_step().0,
        "global_batch": batch.global,
        "micro_batch": batch.micro,
        "micro_batches": batch.micro_batches(),
        "ranks": world.ranks,
        "threads": world.threads,
        "precision": plan.config.precision.name(),
        "ranges": ranges(plan).iter().map(|range| [range.lo, range.hi]).collect::<Vec<_>>(),
        "parameters": layout.parameters,
        "memory_bytes": memory,
        "tensors": tensors,
    })
}

/// The first of some numbers, and the last one.
fn list(numbers: &[u32]) -> String {
    match numbers {
        [first, second, .., last] if numbers.len() > 3 => format!("{first}, {second}, ... {last}"),
        _ => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}
