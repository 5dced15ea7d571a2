//! The backend and its communicators over the fake library, between threads and between processes; and what happens with
//! a library that is old, lacks functions or is not there.

mod aborts;
mod communicators;
mod host_device;
mod libraries;
mod matrix;
mod on_slot;
mod parts;
mod planes;
mod processes;
mod real;
mod support;

// The same made-up gradients and plain sums that the other backends are held against.

// What every backend has to do.
#[path = "../../../collective/tests/collectives/conformance.rs"]
mod conformance;

// Steps that are put in piece by piece.
#[path = "../../../collective/tests/collectives/offered.rs"]
mod offered;
#[path = "../../../collective/tests/collectives/piecewise.rs"]
mod piecewise;
