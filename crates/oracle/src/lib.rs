//! What tests of collectives hold them against: made-up gradients, and the plain sums of them as their definition says.
//!
//! The tests of every backend use it. It is a crate so that it is optimised where they are not: they add up more numbers here than
//! they send.
//!
//! It does not know a transport.

pub mod halves;
pub mod plain;
