//! What the engine asks of a device, read from its source: so that an operation that is new there is missed here.

/// What a device that takes one micro-batch at a time never gets, and leaves to the trait.
const OF_SEVERAL_MICRO_BATCHES: [&str; 3] = ["product_of_leaves", "column_sums_of_leaves", "round"];

/// The functions that a GPU must have.
pub fn functions() -> Vec<&'static str> {
    let text = include_str!("../../../engine/src/device.rs");
    let body = text.split("pub trait Device:").nth(1).and_then(|rest| rest.split("\n}").next());
    let name = |line: &'static str| line.trim().strip_prefix("fn ")?.split(['(', '<']).next();
    let all: Vec<&str> = body.expect("the trait").lines().filter_map(name).collect();
    assert!(all.len() > 40, "only {all:?} were found");
    assert!(OF_SEVERAL_MICRO_BATCHES.iter().all(|name| all.contains(name)), "{all:?}");
    all.into_iter().filter(|name| !OF_SEVERAL_MICRO_BATCHES.contains(name)).collect()
}
