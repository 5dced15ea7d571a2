//! Each promise of a driver, broken: the random sweep finds every one of them, and says which invariant caught it.

use dtrain_sim::{Sabotage, Settings};
use dtrain_simulations::{Limit, Sweep, sweep};

/// So many seeds are enough to find any of them.
const SEEDS: u64 = 2_000;

#[test]
fn every_broken_promise_is_found_by_the_random_sweep() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut unfound = Vec::new();
    for sabotage in Sabotage::ALL {
        let settings = Settings { sabotage: Some(sabotage), ..Settings::of(0) };
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
