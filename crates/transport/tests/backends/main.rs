//! Real backends, between threads and between processes.

mod aborts;
mod arenas;
mod hierarchical;
mod hosts;
mod processes;
mod rounding;
mod survivors;
mod threads;

// The same made-up gradients and plain sums that the pure machines are held against.
#[path = "../../../collective/tests/collectives/plain.rs"]
mod plain;

// Steps that are offered before they are computed to the end.
#[path = "../../../collective/tests/collectives/offered.rs"]
mod offered;
#[path = "../../../collective/tests/collectives/piecewise.rs"]
mod piecewise;

// The same sums with every node rounded.
#[path = "../../../collective/tests/collectives/halves.rs"]
mod halves;

// What every backend has to do.
#[path = "../../../collective/tests/collectives/conformance.rs"]
mod conformance;
