//! The lines before the first step: what is trained on what, how a step is cut, and what is left unused.

use super::numbers::{amount, bytes, duration, grouped};
use crate::config::{Checkpoint, Isolation, Length, Machine, Precision, Reduce, Wire};
use crate::gpus::Chosen;
use crate::plan::Plan;
use crate::request::Start;
use crate::run_folder::RunFolder;
use console::style;
use dtrain_data::{ColumnUse, ExampleCounts, HeldOutGroups, InputSpec, Role, TargetSpec};
use dtrain_engine::Replica;
use dtrain_protocol::Timeouts;
use dtrain_telemetry::Gpu;
use dtrain_types::{Remirror, ShardLevel, counted};
use std::fmt::Write;

/// What a person wants to see confirmed before an hour of training.
#[must_use]
pub fn banner(
    plan: &Plan,
    replica: &dyn Replica,
    run: Option<(&RunFolder, &Start)>,
    (machine, chosen): (Machine, &Chosen),
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, words: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {} {words}", style(format!("{name:<8}")).for_stderr().bold());
    };
    if let Some((run, start)) = run {
        line("run", run.path.display().to_string());
        match start {
            Start::Fresh => {}
            Start::Resume(id) => {
                line(
                    "resume",
                    format!("after step {} of {}, from checkpoint {id}", id.step, plan.last_step()),
                );
            }
            Start::Fork { from, checkpoint, updates } => {
                let from = from.path.display();
                let what = match updates {
                    Some(_) => "parameters and the optimizer's state",
                    None => "parameters",
                };
                line("fork", format!("{what} of checkpoint {checkpoint} of {from}; steps begin anew"));
            }
        }
    }
    line("data", data(plan));
    if let Some(groups) = &plan.opened.groups {
        line("groups", wrapped(&held_out_groups(groups)));
    }
    if let Some(columns) = columns(plan) {
        line("columns", wrapped(&columns));
    }
    if let Some(target) = target(plan) {
        line("target", target);
    }
    if let Some(classes) =
        plan.classes.as_ref().filter(|_| matches!(plan.spec.target, TargetSpec::Class { .. }))
    {
        line("classes", wrapped(&classes.to_string()));
    }
    if let Some(words) = only_held_out(plan) {
        line("warning", words);
    }
    line("model", model(plan, replica, chosen));
    let world = &plan.config.world;
    line(
        "batch",
        format!("{}  (micro x ranks x accumulation = global)", plan.config.batch.sentence(world.ranks)),
    );
    line("length", length(plan));
    let Checkpoint { every, best, .. } = &plan.config.checkpoint;
    let needs_validation = best.as_ref().is_some_and(|name| name != "train_loss");
    if let Some(every) = every.filter(|_| needs_validation && !plan.marks_the_best()) {
        let words = "no checkpoint but the last is of a step that is validated";
        line("best", format!("{words}; validation.every=\"{every}\" would be each"));
    }
    line("devices", devices(plan, chosen));
    if let Some(words) = unused(plan, machine, chosen) {
        line("unused", words);
    }
    if let Some(redundancy) = world.redundancy {
        let words = match redundancy.count() {
            1 => "sharded, redundancy=1: a lost rank costs the steps since the newest checkpoint".to_owned(),
            count => {
                let what = match world.shard {
                    ShardLevel::Optimizer => "the optimizer's state",
                    ShardLevel::Gradients => "the optimizer's state and of gradients",
                    ShardLevel::Parameters => "the optimizer's state, of gradients and of parameters",
                };
                let lazily = match world.remirror {
                    Remirror::Now => "",
                    Remirror::Lazy => "; one fewer while a lost one is not replaced",
                };
                format!("sharded: {count} ranks keep each part of {what}, all where there are fewer{lazily}")
            }
        };
        line("state", words);
    }
    if plan.config.reduce == Reduce::Ring {
        line("reduce", format!("ring: the bits depend on the number of ranks ({})", world.ranks));
    }
    if plan.config.wire == Wire::Bf16 {
        line("wire", "bf16: gradients and their sums are rounded; half the bytes between hosts".into());
    }
    if let Ok(timeouts) = Timeouts::derive(world.detect) {
        let shown = [("heartbeat", timeouts.heartbeat), ("progress", timeouts.progress)];
        let shown = shown.map(|(name, time)| format!("{name} {}", duration(time)));
        line("detect", format!("{} ({})", duration(world.detect), shown.join(", ")));
    }
    text
}

/// The widest line of a list, its name included. *Units*: characters.
const WIDEST: usize = 100;

/// A list that goes on under itself where it would be too wide for a terminal.
fn wrapped(list: &str) -> String {
    let (indent, mut text, mut width) = (" ".repeat(11), String::new(), 11);
    for (place, item) in list.split(", ").enumerate() {
        if place > 0 {
            text += ",";
            if width + item.len() + 2 > WIDEST {
                text = text + "\n" + &indent;
                width = indent.len();
            } else {
                text += " ";
                width += 2;
            }
        }
        text += item;
        width += item.chars().count();
    }
    text
}

fn data(plan: &Plan) -> String {
    let held_out = plan.opened.val.as_ref().map_or(0, |val| val.len());
    let input = match &plan.spec.input {
        InputSpec::Values { shape } => {
            format!("values [{}]", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
        InputSpec::Tokens { length, vocabulary } => format!("{} of {vocabulary}", counted(*length, "token")),
    };
    let samples = amount(plan.batches.samples(), "training sample");
    let mut text = format!("{}: {samples}, {} held out", plan.kind(), grouped(held_out));
    if let Some(set) = plan.validation().filter(|set| set.dataset.len() < held_out) {
        text += &format!(" (validated on {})", grouped(set.dataset.len()));
    }
    if plan.external().is_none() {
        text += &format!(", {input}");
    }
    if let Some(ExampleCounts { examples, taken, places, .. }) = plan.opened.examples {
        let share = 100.0 * taken as f64 / places as f64;
        text += &format!(", {share:.0} % of them in {}", amount(examples, "example"));
    }
    if let Some(attribution) = plan.opened.attribution {
        let source = attribution.split(',').next().unwrap_or(attribution);
        text += &format!(" ({source})");
    }
    text
}

/// What is to be said of examples that do not fit.
pub fn notes_of_cuts(counts: &ExampleCounts) -> Vec<String> {
    let ExampleCounts { cut, left_out, .. } = *counts;
    let mut notes = Vec::new();
    if left_out > 0 {
        let what = amount(left_out, "example");
        notes.push(format!(
            "{what} left out: nothing of an answer is within data.context, which cuts their ends"
        ));
    }
    if cut > 0 {
        notes.push(format!("{} longer than data.context, which cuts their ends", amount(cut, "example")));
    }
    notes
}

/// What is to be said of examples and their samples before they are trained on.
pub fn notes_of_examples(counts: &ExampleCounts) -> Vec<String> {
    const HALF: u64 = 2;
    let ExampleCounts { places, taken, is_packed, .. } = *counts;
    let mut notes = notes_of_cuts(counts);
    if !is_packed && HALF * taken < places {
        let share = 100.0 * taken as f64 / places as f64;
        notes.push(format!(
            "examples fill {share:.0} % of their samples; data.packing=on puts several into one"
        ));
    }
    notes
}

/// Which groups are held out.
pub fn held_out_groups(groups: &HeldOutGroups) -> String {
    let names = if groups.names.is_empty() { "none".to_owned() } else { groups.names.join(", ") };
    format!("{} of {} held out: {names}", groups.names.len(), groups.all)
}

/// What became of each column of a table, where that is not plain: all of them are numbers.
fn columns(plan: &Plan) -> Option<String> {
    let columns = &plan.opened.preparation.as_ref()?.columns;
    let plain = |column: &ColumnUse| matches!(column.role, Role::Number { missing: 0, .. } | Role::Target);
    if columns.iter().all(plain) {
        return None;
    }
    let shown = |(at, column): (usize, &ColumnUse)| {
        // A name may have line breaks, this line has none.
        let one_line = |name: &String| name.split_whitespace().collect::<Vec<_>>().join(" ");
        let name = column.name.as_ref().map_or_else(|| format!("column {at}"), one_line);
        let filled = |count: u64, with: &str| match count {
            0 => String::new(),
            count => format!(" ({} missing: {with})", grouped(count)),
        };
        match &column.role {
            Role::Target => format!("{name}: predicted"),
            Role::Number { fill, missing } => {
                let with = fill.map_or(String::new(), |fill| format!("{fill:.4}"));
                format!("{name}: number{}", filled(*missing, &with))
            }
            Role::Category { words, missing, .. } => {
                format!("{name}: {}{}", counted(words.len(), "word"), filled(missing.unwrap_or(0), "none"))
            }
            Role::LeftOut(why) => format!("{name}: left out ({})", why.reason()),
        }
    };
    Some(columns.iter().enumerate().map(shown).collect::<Vec<_>>().join(", "))
}

/// How the target of a regression was standardised.
fn target(plan: &Plan) -> Option<String> {
    let scale = plan.opened.preparation.as_ref()?.targets.as_ref()?;
    let ([mean], [deviation]) = (&scale.mean[..], &scale.deviation[..]) else {
        return Some(format!("{}, each standardised", counted(scale.mean.len(), "number")));
    };
    Some(format!("mean {mean:.6}, deviation {deviation:.6}: standardised; RMSE is in its own unit"))
}

/// Nothing can be learned of a class without a training sample: a slip in a label, or in the choice of files.
fn only_held_out(plan: &Plan) -> Option<String> {
    let classes = plan.only_held_out();
    let (name, count) = classes.first()?;
    let more = match classes.len() - 1 {
        0 => String::new(),
        more => format!(" (and of {more} more)"),
    };
    let file = plan.config.held_out_file().unwrap_or("the held-out part");
    Some(format!(
        "no training sample is of class {name:?}{more}, and {file} has {count} of it: nothing can be learned of it\n{:11}hint: \
         give the training part samples of it, or correct its label",
        ""
    ))
}

fn model(plan: &Plan, replica: &dyn Replica, chosen: &Chosen) -> String {
    let layout = &replica.about().layout;
    let memory = plan.memory(replica, chosen);
    let parameters = amount(layout.parameters as u64, "parameter");
    let name = plan.config.model.kind().name();
    let frozen = match layout.frozen_len() {
        0 => String::new(),
        frozen => format!(", beside {} that stay as they are", grouped(frozen as u64)),
    };
    let mut text = format!("{name}: {parameters}{frozen}, {} a rank", bytes(memory.total().0));
    if plan.config.model_suits_samples() {
        text += &format!(
            "\n{:11}{name} because of the shape of a sample; model.kind=mlp takes it as one row",
            ""
        );
    }
    text
}

fn length(plan: &Plan) -> String {
    let (per_epoch, last) = (plan.batches.steps_per_epoch(), plan.last_step().0);
    match plan.config.length {
        Length::Epochs(epochs) => {
            let epochs = Length::Epochs(epochs);
            format!("{epochs} of {} = {}", Length::Steps(per_epoch), Length::Steps(last))
        }
        Length::Steps(steps) => format!("{} ({per_epoch} an epoch)", Length::Steps(steps)),
    }
}

fn devices(plan: &Plan, chosen: &Chosen) -> String {
    let world = &plan.config.world;
    let place = match world.isolation {
        Isolation::Process => "a process each",
        Isolation::Thread => "threads of one process",
    };
    let ranks = counted(world.ranks, "rank");
    match chosen {
        Chosen::Gpus { list, why, .. } => {
            let why = why.as_ref().map_or(String::new(), |why| format!("\n{:11}{why}", ""));
            format!("{ranks} on {list}, {place}, precision {}{why}", plan.config.precision.name())
        }
        Chosen::Cpu { why } => {
            let (threads, isa) = (counted(world.threads, "compute thread"), plan.isa_in_use());
            let precision = match plan.config.precision {
                Precision::F32 => String::new(),
                other => format!(", precision {}", other.name()),
            };
            let slow = plan.is_slowed_by_precision().then_some(SLOWED);
            let words = why.as_deref().into_iter().chain(slow);
            let words: String = words.map(|words| format!("\n{:11}{words}", "")).collect();
            format!("{ranks} on the CPU, {place}, {threads} a rank, isa {isa}{precision}{words}")
        }
    }
}

/// What is said of bf16 where nothing multiplies it.
const SLOWED: &str = "without AMX bf16 takes longer than f32; its bits are those that AMX gives";

/// Compute capability from which on GPUs have tensor cores for bf16 and TF32.
const WITH_TENSOR_CORES: (u32, u32) = (8, 0);

/// Cores that nobody computes on, of a CPU or a GPU, and the key that changes that; or too many threads for the cores.
fn unused(plan: &Plan, machine: Machine, chosen: &Chosen) -> Option<String> {
    let world = &plan.config.world;
    let micro_batches = plan.config.batch.micro_batches();
    let busy_ranks = world.ranks.min(micro_batches);
    let busy = busy_ranks.saturating_mul(world.threads);
    let cores = machine.cores;
    if busy_ranks < world.ranks {
        let spare = world.ranks - busy_ranks;
        let are = if spare == 1 { "is a spare" } else { "are spares" };
        let is = if micro_batches == 1 { "there is" } else { "there are" };
        return Some(format!(
            "{spare} of {} {are}: {is} {} a step; micro_batch={} gives each rank one",
            counted(world.ranks, "rank"),
            counted(micro_batches, "micro-batch"),
            (plan.config.batch.global / world.ranks).max(1)
        ));
    }
    if let Chosen::Gpus { gpus, .. } = chosen {
        let have = |gpu: &Gpu| gpu.capability.is_none_or(|capability| capability >= WITH_TENSOR_CORES);
        let none = plan.external().is_none() && plan.config.precision == Precision::F32;
        let words = "tensor cores; precision=bf16 would use them, or tf32, where there is cuBLASLt";
        return (none && gpus.iter().all(have)).then(|| words.to_owned());
    }
    if busy < cores {
        let free = cores - busy;
        let ranks = (cores / world.threads).min(micro_batches);
        let more = match ranks > world.ranks {
            true => format!("ranks={ranks}"),
            false => format!("threads={}", cores / world.ranks),
        };
        return (cores / world.ranks > world.threads || ranks > world.ranks).then(|| {
            format!(
                "{free} of {}; {more} would use {}",
                counted(cores, "core"),
                if free == 1 { "it" } else { "them" }
            )
        });
    }
    (busy > cores).then(|| {
        format!(
            "nothing: {busy} compute threads share {}; fewer ranks are not slower",
            counted(cores, "core")
        )
    })
}
