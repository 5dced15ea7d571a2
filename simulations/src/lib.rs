//! The sweep: many seeds of the simulator on several threads, and what they met.
//!
//! The scenarios and the list of sabotages are in `tests/`. This package does not know how a simulation works.

mod sweep;

pub use sweep::{Found, Limit, Sweep, Tally, sweep};
