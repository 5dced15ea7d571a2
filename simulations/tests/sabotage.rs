//! Each promise of a driver, broken: the random sweep finds every one of them, and says which invariant caught it.

use dtrain_sim::{FaultKind, Faults, Sabotage, Settings};
use dtrain_simulations::{Limit, Sweep, sweep};
use turn::has_turn;

#[path = "../../tests/harness/turn.rs"]
mod turn;

/// So many seeds are enough to find any of them.
const SEEDS: u64 = 2_000;

/// Those that take hundreds of seeds to be found, and take turns.
const RARE: [Sabotage; 5] = [
    Sabotage::UnmetMeasure,
    Sabotage::LostJournal,
    Sabotage::LeftBehind,
    Sabotage::HauntedNumbers,
    Sabotage::LostSum,
];

/// Those that only a supervisor shows that dies at the right moment: every second fault is the death of one.
const OF_TAKEOVER: [Sabotage; 2] = [Sabotage::EarlyRanges, Sabotage::UnreadEnding];

#[test]
fn every_broken_promise_is_found_by_the_random_sweep() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut unfound = Vec::new();
    for sabotage in Sabotage::ALL {
        let rare = RARE.iter().position(|rare| *rare == sabotage);
        if rare.is_some_and(|number| !has_turn(2 * number)) {
            continue;
        }
        let mut settings = Settings { sabotage: Some(sabotage), ..Settings::of(0) };
        if OF_TAKEOVER.contains(&sabotage) {
            let others = FaultKind::ALL.to_vec();
            let deaths = [FaultKind::SupervisorCrash].repeat(others.len());
            settings.faults = Faults::Drawn([others, deaths].concat());
        }
        let tally = sweep(&Sweep { settings, limit: Limit::Seeds(SEEDS), threads: 2, most_found: 1 });
        match tally.found.first() {
            Some(found) => {
                let caught = &found.violations[0];
                println!(
                    "{sabotage:?}: {} after {} seeds: {:.90}",
                    caught.invariant,
                    tally.seeds(),
                    caught.text
                );
            }
            None => unfound.push(sabotage),
        }
    }
    assert_eq!(unfound, [], "not found in {SEEDS} seeds");
}
