//! What tests of collectives hold them against: made-up gradients, the plain sums of them as their definition says, and what every
//! backend has to do with them.
//!
//! The tests of every backend use it, and give it a way to make a world of theirs. It is a crate so that it is optimised where they
//! are not: they add up more numbers here than they send.
//!
//! It does not know a transport.

pub mod conformance;
pub mod halves;
pub mod offered;
pub mod piecewise;
pub mod plain;
