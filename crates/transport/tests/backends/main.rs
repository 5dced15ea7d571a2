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

// Steps that are offered before they are computed to the end.
#[path = "../../../collective/tests/collectives/offered.rs"]
mod offered;
#[path = "../../../collective/tests/collectives/piecewise.rs"]
mod piecewise;

// The same sums with every node rounded.

// What every backend has to do.
#[path = "../../../collective/tests/collectives/conformance.rs"]
mod conformance;
