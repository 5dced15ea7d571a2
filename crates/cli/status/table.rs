//! How a run is, as a table for people: a line a subject, then a line a rank.

use super::{Leader, Sight};
use crate::report::{Stream, age, bytes, duration, grouped, loss, measure, percent};
use dtrain_telemetry::{GpuReadings, Progress, RankStanding};
use dtrain_types::{MemberId, counted};
use std::time::Duration;

/// More ranks than these are summed up.
const MOST_RANKS: usize = 32;

/// The table, lines and all.
#[must_use]
pub fn table(sight: &Sight) -> String {
    let p = &sight.progress;
    let mut lines = vec![("run", format!("{}  {}", sight.place, state(sight)))];
    if p.begun.steps > 0 || p.at().0 > 0 {
        lines.push(("step", far(sight)));
    }
    lines.extend(pace(p).map(|text| ("pace", text)));
    if p.at().0 > 0 {
        lines.push(("loss", learning(p)));
    }
    let results = p.results.iter().map(|(name, number)| format!("{name} {}", result(name, *number)));
    let results: Vec<String> = results.collect();
    match (p.results_step, p.epoch) {
        _ if results.is_empty() => {}
        (Some(step), _) => {
            lines.push(("results", format!("of step {}: {}", grouped(step.0), results.join("  "))))
        }
        (None, Some(epoch)) => lines.push(("epoch", format!("{}: {}", epoch.0 + 1, results.join("  ")))),
        (None, None) => {}
    }
    if let Some(name) = &p.checkpoint {
        let behind = p.at().0.saturating_sub(p.checkpoint_step);
        lines.push(("saved", format!("{name}, {} ago", counted(behind, "step"))));
    }
    if p.failed_checkpoints > 0 {
        lines.push((
            "warning",
            format!("{} could not be written", counted(p.failed_checkpoints, "checkpoint")),
        ));
    }
    lines.extend(faults(p).map(|text| ("faults", text)));
    for (gpu, now) in &p.gpus {
        lines.push(("GPU", format!("{gpu}: {}", load(now))));
    }
    let line =
        |(name, text): &(&str, String)| format!("{} {text}\n", Stream::Output.bold(&format!("{name:<8}")));
    let text: String = lines.iter().map(line).collect();
    text + &ranks(p)
}

fn state(sight: &Sight) -> String {
    let p = &sight.progress;
    let word = p.state.word();
    let heard = || p.heard_at.map_or_else(|| "never".to_owned(), |at| age(at.0 as u64, sight.now.0 as u64));
    match (sight.leader, &p.summary) {
        (_, Some(summary)) if summary.steps >= p.begun.steps => format!("finished {}", heard()),
        (_, Some(summary)) => match &summary.stopped {
            Some(why) => format!("stopped early {}: {why}", heard()),
            None => format!("ended before its last step, {}", heard()),
        },
        (Leader::Here(pid), None) => format!("{word}, led by process {pid}"),
        (Leader::Answered, None) => format!("{word}, led by process {} on {}", p.begun.pid, p.begun.host),
        (Leader::Elsewhere, None) => {
            format!("{word}, led from {}; last heard of {}", p.begun.host, heard())
        }
        (Leader::Nobody, None) if p.begun_at.is_none() => "has not begun".to_owned(),
        (Leader::Nobody, None) => {
            format!("nobody leads it (killed?); last heard of {}; --resume goes on with it", heard())
        }
    }
}

fn far(sight: &Sight) -> String {
    let p = &sight.progress;
    let step = grouped(p.at().0);
    if p.begun.steps == 0 {
        return step;
    }
    let share = percent(p.at().0 as f64 / p.begun.steps as f64);
    let mut text = format!("{step} of {} ({share})", grouped(p.begun.steps));
    if p.begun.steps_per_epoch > 0 {
        let epochs = p.begun.steps.div_ceil(p.begun.steps_per_epoch);
        text += &format!("  epoch {} of {epochs}", p.newest.epoch.0 + 1);
    }
    if let Some(left) = p.seconds_left().filter(|_| sight.is_live()) {
        text += &format!("  {} left", duration(Duration::from_secs_f64(left.clamp(0.0, 1e9))));
    }
    text
}

fn pace(p: &Progress) -> Option<String> {
    let mut text = format!("{} samples/s", grouped(p.speed?.round() as u64));
    if let Some(tokens) = p.begun.tokens_per_sample {
        text += &format!("  {} tokens/s", grouped((p.speed? * tokens as f64).round() as u64));
    }
    if p.step_seconds > 0.0 && p.steps > 0 {
        let step = Duration::from_secs_f64(p.step_seconds / p.steps as f64);
        text += &format!("  {:.2} ms a step", step.as_secs_f64() * 1e3);
        text += &format!(", {} of it waiting for other ranks", percent(p.waiting_seconds / p.step_seconds));
    }
    Some(text)
}

fn learning(p: &Progress) -> String {
    let mut text = loss(p.newest.loss);
    if let Some(rate) = p.newest.learning_rate {
        text += &format!("  learning rate {rate:.2e}");
    }
    if let Some(norm) = p.newest.gradient_norm {
        text += &format!("  gradient norm {}", measure(norm));
    }
    text
}

fn result(name: &str, number: f64) -> String {
    match name {
        "val_accuracy" => percent(number),
        name if name.ends_with("loss") => loss(number),
        _ => measure(number),
    }
}

fn faults(p: &Progress) -> Option<String> {
    let all: u64 = p.faults.values().sum();
    if all == 0 && p.restarts == 0 && p.lost_steps == 0 {
        return None;
    }
    let kinds: Vec<String> = p.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let mut text = format!("{} ({})", counted(all, "fault"), kinds.join(", "));
    text += &format!(", {}, {}", counted(p.restarts, "restart"), counted(p.recoveries, "recovery"));
    if p.recoveries > 0 {
        text += &format!(" of {:.2} s on average", p.recovery_seconds / p.recoveries as f64);
    }
    text += &format!(", {} lost", counted(p.lost_steps, "step"));
    if let Some(newest) = p.newest_fault.as_ref().and_then(|fault| fault.lines().next()) {
        text += &format!("; the newest: {newest}");
    }
    Some(text)
}

fn load(now: &GpuReadings) -> String {
    let mut words: Vec<String> = now.utilisation.map(|share| format!("{share} %")).into_iter().collect();
    words.extend(now.memory_used.map(|used| bytes(used.0)));
    words.extend(now.temperature.map(|degrees| format!("{degrees} C")));
    words.extend(now.power.map(|watts| format!("{watts:.0} W")));
    words.join(", ")
}

fn ranks(p: &Progress) -> String {
    let mut text = format!("{} {} of {} at work", Stream::Output.bold("ranks   "), p.alive, p.wanted);
    text += &match p.generation {
        0 => "\n".to_owned(),
        generation => format!(", generation {generation}\n"),
    };
    // Those of which something is to be said come first; the others are many and alike.
    let mut shown: Vec<(&MemberId, &RankStanding)> = p.ranks.iter().collect();
    if shown.len() > MOST_RANKS {
        shown.sort_by_key(|(member, rank)| (!rank.is_lost, rank.slow.is_none(), rank.faults == 0, **member));
        shown.truncate(MOST_RANKS);
    }
    if shown.is_empty() {
        return text;
    }
    let width = |of: fn(&RankStanding) -> usize| shown.iter().map(|(_, rank)| of(rank)).max().unwrap_or(0);
    let host = width(|rank| rank.host.chars().count()).max(4);
    let device = width(|rank| rank.device.chars().count()).max(6);
    text += &format!("    rank  member  {:host$}  {:device$}  {:>8}  state\n", "host", "device", "process");
    for (member, rank) in &shown {
        let member = member.to_string();
        text += &format!(
            "    {:>4}  {member:>6}  {:host$}  {:device$}  {:>8}  {}\n",
            rank.rank,
            rank.host,
            rank.device,
            rank.pid,
            standing(rank, p)
        );
    }
    match p.ranks.len() - shown.len() {
        0 => text,
        others => format!("{text}    and {others} more\n"),
    }
}

fn standing(rank: &RankStanding, p: &Progress) -> String {
    let is_at_work = !rank.is_lost && p.alive > 0;
    let mut words = vec![match (rank.is_lost, is_at_work) {
        (true, _) => "lost".to_owned(),
        (false, true) => "at work".to_owned(),
        (false, false) => "gone".to_owned(),
    }];
    let slow = rank.slow.filter(|_| is_at_work);
    words.extend(slow.map(|ratio| format!("{ratio:.1} times as slow as the others")));
    words.extend((rank.restarts > 0).then(|| counted(rank.restarts, "restart")));
    words.extend((rank.faults > 0).then(|| counted(rank.faults, "fault")));
    words.join(", ")
}
