//! The ledger: which samples were really fed, in a chain that shows every later change.
//!
//! `ledger.jsonl` has one line for each span of steps under one membership, closed by the hash of the line before.
//! The first line binds the run to its batch plan, so the whole file can be recomputed: [`audit`] adds up what every
//! step must have fed and compares. The ledger is made durable up to step `s` before the checkpoint of `s` appears,
//! and the checkpoint's manifest holds the hash of its last line, so the two vouch for one another.
//!
//! ```text
//! {"run":"digits","plan":{"seed":7,"samples":1797,"global_batch":64,"micro_batch":16},"prev":"0000..."}
//! {"from":1,"to":29,"generation":1,"ranges":[[0,2],[2,4]],"samples":1797,"check":"5b1c...","prev":"9d41..."}
//! {"resume":20,"prev":"77ab..."}
//! ```
//!
//! A `resume` line cancels every step above its own; a step covered twice without one is an error. The ledger does
//! not know losses, devices or times, and it guards against accidents and errors, not against a forger: whoever can
//! run blake3 can write another chain.

mod audit;
mod line;
mod problem;
mod scan;
#[cfg(test)]
mod tests;
mod writer;

pub use audit::{AuditReport, EpochUse, Newest, audit};
pub use line::{Binding, LineHash, PlanNumbers};
pub use problem::{AuditProblem, Wrong};
pub use writer::{LedgerError, LedgerWriter};
