//! What the root of the program hands to the runtime: how to build the parts of a rank, and nothing chosen yet.
//!
//! The runtime does not know which data set, model, device or network it drives. A rank calls its [`Recipe`] once,
//! with its set-up.

use dtrain_collective::{Assignment, Backend, Geometry, Reduce};
use dtrain_data::{Dataset, EvaluationPlan, Feed};
use dtrain_engine::Replica;
use dtrain_protocol::{Bootstrap, Profile, RankSetup, Schedule, Timeouts};
use dtrain_types::{MemberId, Wire};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Builds the parts of a rank from its set-up.
pub trait Recipe: Send + Sync {
    /// *Errors*: one sentence for people; it becomes the first cause of the run's end.
    fn rank(&self, setup: &RankSetup, member: MemberId, arena: Option<OwnedFd>) -> Result<RankParts, String>;
}

/// What is validated on, and how it is cut.
#[derive(Clone)]
pub struct ValidationSet {
    /// The samples.
    pub dataset: Arc<dyn Dataset>,
    /// Their micro-batches.
    pub plan: EvaluationPlan,
}

/// Everything that a rank is made of.
pub struct RankParts {
    /// What its compute thread works with.
    pub compute: ComputeParts,
    /// Who this rank is, for the rendezvous.
    pub profile: Profile,
    /// Derived from the run's one knob, `detect`.
    pub timeouts: Timeouts,
    /// Connects the rank to its peers.
    pub fabric: Box<dyn Fabric>,
}

/// What the compute thread of a rank works with.
pub struct ComputeParts {
    /// The model replica on its device.
    pub replica: Box<dyn Replica>,
    /// The training samples, step by step.
    pub feed: Feed,
    /// The held-out samples, if there are any.
    pub validation: Option<ValidationSet>,
    /// Loader threads.
    pub workers: usize,
    /// What is due after which step.
    pub schedule: Schedule,
    /// How many ranks hold each shard of the state, where its ranks hold shards.
    pub redundancy: Option<u32>,
    /// How gradients are summed.
    pub mode: Reduce,
    /// What every node of the sum is rounded to.
    pub wire: Wire,
    /// How much of a gradient is sent at once while the rest is computed, at least, where there is a way that is worth it; none:
    /// everything waits for the all-reduce. *Units*: bytes.
    pub bucket_bytes: Option<usize>,
    /// The folder of the run.
    pub run_dir: PathBuf,
    /// Of how many of the newest steps is written down where the time went; none: of none.
    pub profile: Option<NonZeroU32>,
}

/// A generation as one rank sees it: what the collectives know of it, and who sits where.
#[derive(Clone, Debug)]
pub struct Plane {
    /// Ranges and the own rank.
    pub membership: Assignment,
    /// Members, hosts and addresses, by rank.
    pub members: dtrain_protocol::Membership,
    /// What rank 0 made for all to meet, if it made anything.
    pub bootstrap: Option<Bootstrap>,
}

/// Why a data plane cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The peers could not be met; another generation may.
    #[error("{what}")]
    Unreached {
        /// A sentence.
        what: String,
        /// The members that could not be reached.
        unreachable: Vec<MemberId>,
    },
    /// This process can build none any more; another one in its place can.
    #[error("{0}")]
    Stuck(String),
}

impl From<String> for FabricError {
    fn from(what: String) -> Self {
        Self::Unreached { what, unreachable: Vec::new() }
    }
}

/// Builds the data plane of one generation after another.
pub trait Fabric: Send {
    /// What the ranks of a generation need to meet, made anew at each call. It is asked of rank 0 while the generation is
    /// formed; none where nothing is needed, or where it could not be made, which `connect` then tells.
    ///
    /// *Blocks* on the system for a moment, never for peers.
    fn bootstrap(&mut self) -> Option<Bootstrap> {
        None
    }

    /// A backend for this generation, prepared for steps of `counts` micro-batches, that rounds every sum as `wire` says.
    ///
    /// *Errors*: memory or peers that cannot be reached. *Blocks* at most `detect`.
    fn connect(
        &mut self,
        plane: &Plane,
        geometry: Geometry,
        mode: Reduce,
        wire: Wire,
        counts: &[u32],
    ) -> Result<Box<dyn Backend>, FabricError>;
}

/// The name of this host, for people.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
