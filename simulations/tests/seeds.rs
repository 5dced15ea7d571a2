//! The sweep as part of every test run: fixed seeds, so that a change of the protocol that breaks one is seen at once.

use dtrain_sim::{DataPlane, FaultKind, Faults, Settings, simulate};
use dtrain_simulations::{Limit, Sweep, sweep};
use dtrain_types::{Remirror, ShardLevel};

fn swept(settings: Settings, seeds: u64) {
    std::panic::set_hook(Box::new(|_| {}));
    let tally =
        sweep(&Sweep { settings: settings.clone(), limit: Limit::Seeds(seeds), threads: 2, most_found: 1 });
    let _ = std::panic::take_hook();
    if let Some(found) = tally.found.first() {
        let report = simulate(&Settings { seed: dtrain_types::Seed(found.seed), story: true, ..settings });
        panic!("seed {}: {:?}\n{}", found.seed, found.violations, report.story.join("\n"));
    }
    assert_eq!(tally.seeds(), seeds);
}

#[test]
fn the_first_seeds_of_the_usual_cluster_break_nothing() {
    swept(Settings::of(0), 600);
}

#[test]
fn small_large_and_lonely_clusters_break_nothing() {
    for (ranks, nodes, steps) in [(1, 1, 30), (2, 2, 30), (3, 3, 30), (13, 4, 20), (20, 2, 10), (4, 2, 60)] {
        swept(Settings { ranks, nodes, steps, ..Settings::of(50_000) }, 60);
    }
}

/// Seeds of wider sweeps that once broke something, each with what it was.
#[test]
fn seeds_that_once_broke_something_break_nothing_any_more() {
    // A supervisor that stood still, in a run that was asked to end meanwhile, did not wait for a host that had to call it again.
    swept(Settings::of(209_784), 1);
    // Of ranks that all waited in a collective the supervisor took another one than the one that had hung until a moment before.
    swept(Settings { plane: DataPlane::Shards(ShardLevel::Optimizer), ..Settings::of(403_555) }, 1);
    // A rank that was being given a state began the run anew with what it had of it, once the rest was lost.
    for (seed, level) in [(602_370, ShardLevel::Gradients), (604_466, ShardLevel::Optimizer)] {
        let plane = DataPlane::Shards(level);
        swept(Settings { plane, remirror: Remirror::Lazy, ..Settings::of(seed) }, 1);
    }
    // A supervisor died while all left, and whoever took over knew every step and no end.
    swept(Settings::of(987_711_381_000_600), 1);
    // Whoever took over went on with ranks that had been left out long before, although a checkpoint had what was made since.
    swept(Settings::of(600_024_990), 1);
    // Ranks that waited in a collective for a digest said that they save, and one of them was taken for the one that hung.
    let mut dies = FaultKind::ALL.to_vec();
    dies.extend([FaultKind::SupervisorCrash; 23]);
    let dies = |seed| Settings { faults: Faults::Drawn(dies.clone()), ..Settings::of(seed) };
    swept(dies(500_043_550), 1);
    // Ranks that hold shards and had been left out one step before had no sum of it, and the run ended with that.
    swept(dies(700_025_482), 1);
}
