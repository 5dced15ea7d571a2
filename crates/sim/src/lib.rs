//! The simulator: a whole cluster in virtual time, on one thread, from one seed.
//!
//! It drives the pure machines of the control plane and of the collectives and the real CPU engine on a tiny model, over a
//! simulated network, simulated disks and processes that crash, hang and come back. After every event the invariants are
//! checked; the end is compared with a plain single-process run. See `docs/design/protocol/simulation.md`.
//!
//! This crate does not know sockets, files, threads or clocks, and nothing of the runtime that carries the same machines.

mod clock;
mod compute;
mod coverage;
mod disk;
mod fact;
mod fault;
mod invariants;
mod job;
mod memory;
mod queue;
mod random;
mod sabotage;
mod situation;
mod world;

pub use compute::{At, Compute};
pub use coverage::Coverage;
pub use disk::{DiskError, SimDisk};
pub use fact::{Excuses, Fact, Invariant, LeftState, Life, Violation};
pub use fault::{FaultKind, Faults, Planned, Steps, When};
pub use invariants::all as invariants;
pub use job::{Engine, Job, MICRO_BATCHES, Oracle};
pub use random::Chance;
pub use sabotage::Sabotage;
pub use situation::Situation;
pub use world::{DataPlane, EndsBy, Settings, SimReport, simulate};
