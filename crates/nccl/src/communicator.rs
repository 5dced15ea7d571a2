//! A communicator by its states: forming, ready. What may not be done in a state cannot be written.
//!
//! Every call is one that does not block, and every wait has a deadline or an aborter. Whatever ends a communicator takes
//! it by value; an abort by somebody else is a typed error at the next call. Who drops one aborts it, and waits for that for
//! at most two seconds.
//!
//! ```compile_fail
//! fn after_the_end(ready: dtrain_nccl::Communicator, within: std::time::Duration) {
//!     let _ = ready.finalize(within);
//!     ready.world(); // it is gone
//! }
//! ```

use crate::abort::Owned;
use crate::device::Stream;
use crate::pause::Deadline;
use crate::shared::Shared;
use crate::{CommunicatorAborter, NcclError, NcclGroup, NcclLibrary, UniqueId};
use dtrain_types::{Rank, WorldSize};
use nccl_sys::ncclConfig_t;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

/// A communicator whose ranks are not all there yet.
#[derive(Debug)]
pub struct Forming {
    ready: Communicator,
}

/// A communicator that can do its work.
#[derive(Debug)]
pub struct Communicator {
    owned: Owned,
    rank: usize,
    world: usize,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.shared.library())
    }
}

/// Whether communicators can be made here that never block.
///
/// *Errors*: [`NcclError::Blocking`] where the environment overrules the configuration.
pub fn must_not_block() -> Result<(), NcclError> {
    match std::env::var_os("NCCL_COMM_BLOCKING").is_some_and(|value| value == "1") {
        true => Err(NcclError::Blocking),
        false => Ok(()),
    }
}

impl Forming {
    /// Begins to meet the other ranks: `world` of them, all with this id, each in a call of its own.
    ///
    /// *Errors*: [`NcclError::Failed`], [`NcclError::Blocking`], [`NcclError::NoThread`].
    pub fn begin(
        library: &NcclLibrary,
        id: &UniqueId,
        rank: Rank,
        world: WorldSize,
    ) -> Result<Self, NcclError> {
        must_not_block()?;
        let (mut handle, mut config) =
            (null_mut(), ncclConfig_t { blocking: 0, ..ncclConfig_t::INITIALIZER });
        // SAFETY: it writes the handle and reads the configuration before it returns.
        let code = unsafe {
            let (world, rank) = (world.0 as c_int, rank.0 as c_int);
            library.raw().ncclCommInitRankConfig(&mut handle, world, id.raw(), rank, &mut config)
        };
        library.check("ncclCommInitRankConfig", code, null_mut())?;
        let owned = Owned::new(Shared::new(library.clone(), handle))?;
        Ok(Self { ready: Communicator { owned, rank: rank.index(), world: world.0 as usize } })
    }

    /// Stops it from any thread.
    #[must_use]
    pub fn aborter(&self) -> CommunicatorAborter {
        self.ready.aborter()
    }

    /// Meets the other ranks. *Blocks* at most `within`.
    ///
    /// *Errors*: [`NcclError::Deadline`] if they did not all come, `Aborted`, `Failed`; then it is aborted.
    pub fn wait(self, within: Duration) -> Result<Communicator, NcclError> {
        let what = "the meeting of all ranks";
        self.ready.owned.shared.settle(what, Some(Deadline::after(within)))?;
        Ok(self.ready)
    }
}

impl Communicator {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> usize {
        self.world
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &NcclLibrary {
        self.owned.shared.library()
    }

    /// Stops it from any thread.
    #[must_use]
    pub fn aborter(&self) -> CommunicatorAborter {
        self.owned.aborter()
    }

    /// Whether all is well, as far as the library knows.
    ///
    /// *Errors*: what happened behind our back, and `Aborted`.
    pub fn check(&self) -> Result<(), NcclError> {
        self.owned.shared.is_settled().map(drop)
    }

    /// Puts calls on a stream as one. When it returns they are in the stream's order, and not done.
    ///
    /// *Blocks* until the library has taken them, which at the first group with a peer may need that peer. *Errors*:
    /// `Failed`, and `Aborted`, which ends the wait.
    pub fn group(
        &self,
        stream: Stream,
        work: impl FnOnce(&NcclGroup<'_>) -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let shared = &self.owned.shared;
        shared.with(|comm| NcclGroup::run(shared.library(), comm, stream, work))?;
        shared.settle("a group of calls", None)
    }

    /// Aborts it. *Blocks* at most `within`. *Errors*: [`NcclError::Stuck`].
    pub fn abort(self, within: Duration) -> Result<(), NcclError> {
        let aborter = self.aborter();
        aborter.abort("this rank aborted it");
        let result = aborter.wait(within);
        if result.is_err() {
            self.owned.leave();
        }
        result
    }

    /// Ends it in order: when all ranks have done all that they began. *Blocks* at most `within`.
    ///
    /// *Errors*: `Deadline`, `Aborted`, `Failed`; then it is aborted.
    pub fn finalize(self, within: Duration) -> Result<(), NcclError> {
        let shared = &self.owned.shared;
        // SAFETY: the handle is alive under the lock.
        shared.call("ncclCommFinalize", |nccl, comm| unsafe { nccl.ncclCommFinalize(comm) })?;
        shared.settle("the end of a communicator", Some(Deadline::after(within)))?;
        let Some(handle) = shared.take() else { return shared.may_go_on() };
        // SAFETY: the handle was taken out, so nobody calls on it again; after a finalize this is local.
        let code = unsafe { shared.library().raw().ncclCommDestroy(handle.0) };
        self.owned.is_destroyed();
        shared.library().check("ncclCommDestroy", code, null_mut()).map(drop)
    }
}
