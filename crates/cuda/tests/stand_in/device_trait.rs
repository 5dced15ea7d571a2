//! What the engine asks of a device, read from its source: so that an operation that is new there is missed here.

/// What a GPU does not get, and leaves to the trait: it takes one micro-batch at a time, its state is not in common with others, and it keeps no keys and values
/// yet of texts that are gone on with.
const LEFT: [&str; 7] = [
    "product_of_leaves",
    "column_sums_of_leaves",
    "round",
    "adamw_to",
    "decodes",
    "kv_cache_len",
    "attention_of_newest",
];

/// The functions that a GPU must have.
pub fn functions() -> Vec<&'static str> {
    let text = include_str!("../../../engine/src/device.rs");
    let body = text.split("pub trait Device:").nth(1).and_then(|rest| rest.split("\n}").next());
    let name = |line: &'static str| line.trim().strip_prefix("fn ")?.split(['(', '<']).next();
    let all: Vec<&str> = body.expect("the trait").lines().filter_map(name).collect();
    assert!(all.len() > 40, "only {all:?} were found");
    assert!(LEFT.iter().all(|name| all.contains(name)), "{all:?}");
    all.into_iter().filter(|name| !LEFT.contains(name)).collect()
}
