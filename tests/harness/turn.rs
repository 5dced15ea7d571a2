//! Tests that take long take turns where somebody asks for it, as `.ci/run` does by the hour: `DTRAIN_TEST_TURN=2/4` is the second quarter of them.

/// Whether it is the turn of a long test; where it is not, that is said. `number` spreads the tests over the turns.
pub fn has_turn(number: usize) -> bool {
    let Ok(asked) = std::env::var("DTRAIN_TEST_TURN") else { return true };
    let (turn, of) = asked
        .split_once('/')
        .and_then(|(turn, of)| Some((turn.parse::<usize>().ok()?, of.parse::<usize>().ok()?)))
        .filter(|(turn, of)| (1..=*of).contains(turn))
        .unwrap_or_else(|| panic!("DTRAIN_TEST_TURN is {asked:?}, not like 2/4"));
    let has = number % of == turn - 1;
    if !has {
        eprintln!("skipped: it is the turn of others ({asked})");
    }
    has
}
