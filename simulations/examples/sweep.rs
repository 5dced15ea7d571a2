//! A sweep without the rest of dtrain: `sweep A B` runs the seeds A..B, `sweep A` tells the story of one.
//!
//! Words after that choose the world and its faults: `12x3` is 12 ranks on 3 hosts; `none`, `all` or the name of a kind is what goes
//! wrong; `shards`, `gradients` or `parameters` is what ranks share out, `lazy` has its mirrors copied when
//! ranks are back, `joined` begins with one host, whom the others join. A kind that is named more often is drawn more often, and `supervisor-crash:23` names it 23 times.

use dtrain_sim::{DataPlane, FaultKind, Faults, Settings, simulate};
use dtrain_simulations::{Limit, Sweep, sweep};
use dtrain_types::{Remirror, ShardLevel};

/// The kinds that a word names; none if it names something else.
fn kinds(word: &str) -> Option<Vec<FaultKind>> {
    let (name, times) = word.split_once(':').unwrap_or((word, "1"));
    let named = match name {
        "none" => Vec::new(),
        "all" => FaultKind::ALL.to_vec(),
        _ => vec![FaultKind::parse(name)?],
    };
    Some(named.repeat(times.parse().ok()?))
}

/// What a word says that ranks share out.
fn shared_out(word: &str) -> Option<DataPlane> {
    let level = match word {
        "shards" => ShardLevel::Optimizer,
        "gradients" => ShardLevel::Gradients,
        "parameters" => ShardLevel::Parameters,
        _ => return None,
    };
    Some(DataPlane::Shards(level))
}

/// How many ranks on how many hosts a word asks for.
fn world(word: &str) -> Option<(u32, u32)> {
    let (ranks, nodes) = word.split_once('x')?;
    Some((ranks.parse().ok()?, nodes.parse().ok()?))
}

fn main() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let first = number(0)
        .ok_or("sweep FIRST [END] [RANKSxHOSTS] [shards|gradients|parameters] [lazy] [joined] [FAULT...]")?;
    let end = number(1);
    let mut settings = Settings::of(first);
    let mut drawn = None;
    for word in &words[if end.is_some() { 2 } else { 1 }..] {
        if let Some((ranks, nodes)) = world(word) {
            (settings.ranks, settings.nodes) = (ranks, nodes);
        } else if let Some(plane) = shared_out(word) {
            settings.plane = plane;
        } else if word == "joined" {
            settings.begins_with = Some(1);
        } else if word == "lazy" {
            settings.remirror = Remirror::Lazy;
        } else {
            let more = kinds(word).ok_or_else(|| format!("{word} is no fault"))?;
            drawn.get_or_insert_with(Vec::new).extend(more);
        }
    }
    settings.faults = drawn.map_or(settings.faults, Faults::Drawn);
    std::panic::set_hook(Box::new(|_| {}));
    match end {
        Some(end) => many(settings, end - first),
        None => story(settings),
    }
    Ok(())
}

fn story(settings: Settings) {
    let report = simulate(&Settings { story: true, ..settings });
    for line in &report.story {
        println!("{line}");
    }
    println!(
        "{:016x} {} events {} generations {:.3} s",
        report.trace, report.events, report.generations, report.seconds
    );
    println!("{:?} {:?}", report.violations, report.outcome);
}

fn many(settings: Settings, seeds: u64) {
    let tally = sweep(&Sweep { settings, limit: Limit::Seeds(seeds), threads: 2, most_found: 40 });
    println!("{}", tally.coverage.render());
    for found in &tally.found {
        let text: String = found.violations[0].text.chars().take(220).collect();
        println!("{} {} {text}", found.seed, found.violations[0].invariant);
    }
    println!(
        "{} seeds, {} found, {:.0} a minute, {} events, {} generations, fault-free {}",
        tally.seeds(),
        tally.found.len(),
        tally.pace(),
        tally.events,
        tally.generations,
        tally.coverage.runs[1]
    );
}
