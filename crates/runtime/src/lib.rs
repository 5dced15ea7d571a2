//! Where the pure machines meet the world: actors, threads, processes, files.
//!
//! Four actors, each a machine or an owner plus its handles: `supervisor` forms the world and watches it, `node`
//! starts and kills the ranks of this host, `rank` serves one rank, `sync` builds and aborts its data plane. The
//! training loop itself is `compute`, on a thread of its own; it fits a screen. Between hosts, `gateway` is where nodes
//! reach the supervisor and `uplink` how a node does; on the supervisor's own host `keeper` is the process
//! that holds the ranks.
//!
//! This crate does not know which data set, model, device or network it drives: the root hands it a [`Recipe`].

mod batches;
mod broke;
mod carrier;
mod clock;
mod compute;
mod controls;
mod copy_state;
mod data_plane;
mod ending_file;
mod exchange;
mod figures;
mod folder_note;
mod found;
mod gateway;
mod gradient_slot;
mod gradients;
mod hosts_file;
mod journal;
mod keeper;
mod kept_state;
mod lendable;
mod link;
mod mail;
mod metric;
mod news;
mod node;
mod observer;
mod out_of_memory;
mod outlives;
mod passes;
mod patience;
mod profiler;
mod ranges_file;
mod rank;
mod rank_handles;
mod rank_host;
mod recipe;
mod recorder;
mod run;
mod run_files;
mod saver;
mod scores;
mod sharded_state;
mod sharded_whole;
mod shards;
mod shared_state;
mod skipped;
mod state_files;
mod supervisor;
mod sync;
mod uplink;
mod visit;

pub use clock::Clock;
pub use data_plane::{collective_membership, step_counts};
pub use dtrain_rounds::buffers as folding_buffers;
pub use ending_file::forget_ending;
pub use folder_note::FolderNote;
pub use found::Found;
pub use gateway::Gateway;
pub use gradient_slot::cuts;
pub use hosts_file::forget_hosts;
pub use journal::{Conclusion, Journal, RunFigures};
pub use keeper::{KeeperPlan, KeeperSetup, KeptName, MakeMemory, NAMED_IN, keep_if_asked};
pub use metric::{EpochMetric, Measured, NotMeasured, Predicts, Quantity};
pub use node::Isolation;
pub use observer::{Observer, StepSeen};
pub use outlives::Outlives;
pub use patience::{Patience, Standing};
pub use ranges_file::forget_ranges;
pub use rank::serve;
pub use rank_handles::{HANDLES_VARIABLE, RankHandles, TETHER_VARIABLE, inherited};
pub use rank_host::{Program, RankExit};
pub use recipe::{ComputeParts, Fabric, FabricError, Plane, RankParts, Recipe, ValidationSet, host_name};
pub use run::{Ranks, RunPlan, supervise};
pub use run_files::{RunFacts, RunFiles};
pub use rustix::process::Signal;
pub use state_files::{frozen_specs, specs};
pub use uplink::{Callee, HostConfig, HostEnd, HostNews, Succession, Uplink, UplinkError};
pub use visit::visit;
