//! The launcher behind `dtrain run`: processes of any program, started as torchrun starts them, that live and die as one.
//!
//! Three processes of this binary stand over each other, so that no death leaves anything behind:
//! ```text
//! dtrain run        the guard: holds the terminal's place, passes signals down           (guard.rs)
//!   dtrain run-launcher   the supervisor, in a session of its own: starts, watches, restarts (supervisor.rs, life.rs)
//!     PROGRAM           the ranks, each in a session of its own: run-rank became it      (rank.rs)
//!       ...               whatever they start
//! ```
//! - A rank dies with its supervisor by the kernel's parent-death signal.
//! - Whatever a rank started and left falls to the supervisor, which is a child subreaper, and is killed before the next
//!   start and at the end (`descendants`). If the supervisor is killed, it falls to the guard, a subreaper too.
//! - If the guard is killed, the supervisor sees it by pidfd and ends everything. It has its own session, so a signal to
//!   the whole process group of the command does not hit both.
//!
//! So only somebody who kills guard and supervisor in one instant can leave a grandchild. This needs no privilege; a
//! cgroup would add nothing (who would kill it?), and a PID namespace would show the ranks other pids than their logs
//! and their users see.
//!
//! It does not know what the program computes, how a command line is read, and nothing of `dtrain train`.

mod assembly;
mod cause;
mod descendants;
mod environment;
mod error;
mod guard;
mod launch;
mod life;
mod link;
mod message;
mod output;
mod rank;
mod supervisor;
mod tail;
mod watch;
mod words;

pub use error::{LaunchError, Wrong};
pub use guard::guard;
pub use launch::{Console, Hosts, Launch, Master};
pub use link::Meeting;
pub use rank::become_rank;
pub use supervisor::supervise;
