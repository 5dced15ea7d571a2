//! A communicator by its states: forming, ready, revoked. What may not be done in a state cannot be written.
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
use crate::library::Function;
use crate::pause::{Deadline, Pause};
use crate::shared::Shared;
use crate::{CommunicatorAborter, Group, Library, NcclError, UniqueId};
use dtrain_types::{Rank, WorldSize};
use nccl_sys::{NCCL_SHRINK_ABORT, NCCL_SHRINK_DEFAULT, NcclLib, ncclComm_t, ncclConfig_t, ncclResult_t};
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

/// A communicator in which nothing moves any more, and from which another one can be made.
#[derive(Debug)]
pub struct Revoked {
    owned: Owned,
    rank: usize,
    world: usize,
}

/// In what state ranks are left out of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentState {
    /// Nothing is under way.
    Quiet,
    /// Work may hang, because a rank was lost: it is ended first.
    Failed,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.shared.library())
    }
}

/// A configuration by which no call blocks.
fn config() -> ncclConfig_t {
    ncclConfig_t { blocking: 0, ..ncclConfig_t::INITIALIZER }
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
    pub fn begin(library: &Library, id: &UniqueId, rank: Rank, world: WorldSize) -> Result<Self, NcclError> {
        must_not_block()?;
        let (mut handle, mut config) = (null_mut(), config());
        // SAFETY: it writes the handle and reads the configuration before it returns.
        let code = unsafe {
            let (world, rank) = (world.0 as c_int, rank.0 as c_int);
            library.raw().ncclCommInitRankConfig(&mut handle, world, id.raw(), rank, &mut config)
        };
        Self::adopt(library, "ncclCommInitRankConfig", code, handle, (rank.index(), world.0 as usize))
    }

    /// Begins to join ranks that are there: their coordinator's id, and a rank behind theirs in the grown world.
    ///
    /// *Errors*: as `begin`, and [`NcclError::Missing`].
    pub fn begin_in_grown(
        library: &Library,
        id: &UniqueId,
        rank: Rank,
        world: WorldSize,
    ) -> Result<Self, NcclError> {
        library.require(Function::CommGrow)?;
        must_not_block()?;
        let (mut handle, mut config, id) = (null_mut(), config(), id.raw());
        // SAFETY: as in `begin`; a new rank has no parent.
        let code = unsafe {
            let (world, rank) = (world.0 as c_int, rank.0 as c_int);
            library.raw().ncclCommGrow(null_mut(), world, &id, rank, &mut handle, &mut config)
        };
        Self::adopt(library, "ncclCommGrow", code, handle, (rank.index(), world.0 as usize))
    }

    fn adopt(
        library: &Library,
        call: &'static str,
        code: ncclResult_t,
        handle: ncclComm_t,
        place: (usize, usize),
    ) -> Result<Self, NcclError> {
        library.check(call, code, null_mut())?;
        let owned = Owned::new(Shared::new(library.clone(), handle))?;
        Ok(Self { ready: Communicator { owned, rank: place.0, world: place.1 } })
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
    pub fn library(&self) -> &Library {
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
        work: impl FnOnce(&Group<'_>) -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let shared = &self.owned.shared;
        shared.with(|comm| Group::run(shared.library(), comm, stream, work))?;
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

    /// Makes communicators of those ranks that name one color, in the order of their keys; `None` for no color. Nothing
    /// may be under way. *Blocks* at most `within`.
    ///
    /// *Errors*: [`NcclError::Missing`], `Deadline`, `Aborted`, `Failed`.
    pub fn split(
        &self,
        color: Option<u16>,
        key: u16,
        within: Duration,
    ) -> Result<Option<Communicator>, NcclError> {
        self.library().require(Function::CommSplit)?;
        let color = color.map_or(nccl_sys::NCCL_SPLIT_NOCOLOR, c_int::from);
        multiply(&self.owned, ("ncclCommSplit", within), |nccl, comm, child, config| {
            // SAFETY: the handle is alive under the lock; target and configuration live until the work is done.
            unsafe { nccl.ncclCommSplit(comm, color, c_int::from(key), child, config) }
        })
    }

    /// Makes a communicator without some of the ranks; they need not live. The others keep their order. *Blocks* at most
    /// `within`. This one is gone afterwards.
    ///
    /// *Errors*: as `split`. *Panics* if `without` is empty or not of this world.
    pub fn shrink(
        self,
        without: &[Rank],
        state: ParentState,
        within: Duration,
    ) -> Result<Communicator, NcclError> {
        shrink(&self.owned, self.world, without, state, within)
    }

    /// Makes the id by which new ranks find this communicator; one rank does so, for one growth.
    ///
    /// *Errors*: [`NcclError::Missing`], `Failed`, `Aborted`.
    pub fn growth_id(&self) -> Result<UniqueId, NcclError> {
        self.library().require(Function::CommGetUniqueId)?;
        let mut raw = nccl_sys::ncclUniqueId { internal: [0; 128] };
        let read = |nccl: &NcclLib, comm| {
            // SAFETY: the handle is alive under the lock; it writes the id.
            unsafe { nccl.ncclCommGetUniqueId(comm, &mut raw) }
        };
        self.owned.shared.call("ncclCommGetUniqueId", read)?;
        Ok(UniqueId::of(&raw))
    }

    /// Makes a communicator with more ranks, which come by [`Forming::begin_in_grown`]; the rank that made the id gives
    /// it, the others `None`. Nothing may be under way. *Blocks* at most `within`. This one is gone afterwards.
    ///
    /// *Errors*: as `split`.
    pub fn grow(
        self,
        world: WorldSize,
        id: Option<&UniqueId>,
        within: Duration,
    ) -> Result<Communicator, NcclError> {
        self.library().require(Function::CommGrow)?;
        let id = id.map(UniqueId::raw);
        let id = id.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let grown = multiply(&self.owned, ("ncclCommGrow", within), |nccl, comm, child, config| {
            // SAFETY: as in `split`; a rank that is there gives -1 and keeps its place.
            unsafe { nccl.ncclCommGrow(comm, world.0 as c_int, id, -1, child, config) }
        })?;
        grown.ok_or_else(|| no_child("ncclCommGrow"))
    }

    /// Ends all that is under way, here, so that another communicator can be made of it. *Blocks* at most `within`.
    ///
    /// *Errors*: [`NcclError::Missing`], `Deadline`, `Aborted`, `Failed`; then it is aborted.
    pub fn revoke(self, within: Duration) -> Result<Revoked, NcclError> {
        self.library().require(Function::CommRevoke)?;
        let shared = &self.owned.shared;
        // SAFETY: the handle is alive under the lock; there are no flags yet.
        shared.call("ncclCommRevoke", |nccl, comm| unsafe { nccl.ncclCommRevoke(comm, 0) })?;
        shared.settle("the revocation of a communicator", Some(Deadline::after(within)))?;
        Ok(Revoked { owned: self.owned, rank: self.rank, world: self.world })
    }
}

impl Revoked {
    /// The rank that this was.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Stops it from any thread.
    #[must_use]
    pub fn aborter(&self) -> CommunicatorAborter {
        self.owned.aborter()
    }

    /// As [`Communicator::shrink`]: nothing is under way any more.
    ///
    /// *Errors* and *Panics* as there.
    pub fn shrink(self, without: &[Rank], within: Duration) -> Result<Communicator, NcclError> {
        shrink(&self.owned, self.world, without, ParentState::Quiet, within)
    }
}

fn shrink(
    parent: &Owned,
    world: usize,
    without: &[Rank],
    state: ParentState,
    within: Duration,
) -> Result<Communicator, NcclError> {
    assert!(!without.is_empty(), "a communicator shrinks by at least one rank");
    assert!(without.iter().all(|rank| rank.index() < world), "{without:?} of {world} ranks");
    parent.shared.library().require(Function::CommShrink)?;
    let mut without: Vec<c_int> = without.iter().map(|rank| rank.0 as c_int).collect();
    let flags = match state {
        ParentState::Quiet => NCCL_SHRINK_DEFAULT,
        ParentState::Failed => NCCL_SHRINK_ABORT,
    };
    let child = multiply(parent, ("ncclCommShrink", within), |nccl, comm, child, config| {
        let (list, count) = (without.as_mut_ptr(), without.len() as c_int);
        // SAFETY: as in `split`; the list is read before the call returns.
        unsafe { nccl.ncclCommShrink(comm, list, count, child, config, flags as c_int) }
    })?;
    child.ok_or_else(|| no_child("ncclCommShrink"))
}

fn no_child(call: &'static str) -> NcclError {
    let meaning = "it gave no communicator".to_owned();
    NcclError::Failed { call, code: ncclResult_t::ncclInternalError.0, meaning, last: String::new() }
}

/// What the library fills in while it makes a communicator from another.
struct Child {
    handle: ncclComm_t,
    config: ncclConfig_t,
}

/// Makes a communicator from another: the library answers at once and writes the new handle when its work is done.
fn multiply(
    parent: &Owned,
    (name, within): (&'static str, Duration),
    call: impl FnOnce(&NcclLib, ncclComm_t, *mut ncclComm_t, *mut ncclConfig_t) -> ncclResult_t,
) -> Result<Option<Communicator>, NcclError> {
    let deadline = Deadline::after(within);
    // On the heap, and left there after a failure: the library may still write to it.
    let child = Box::into_raw(Box::new(Child { handle: null_mut(), config: config() }));
    parent.shared.call(name, |nccl, comm| {
        // SAFETY: addresses inside the box above.
        let (handle, config) = unsafe { (&raw mut (*child).handle, &raw mut (*child).config) };
        call(nccl, comm, handle, config)
    })?;
    parent.shared.settle(name, Some(deadline))?;
    // SAFETY: the parent is idle again, so the library has written what it had to write, and knows the address no more.
    let handle = unsafe { Box::from_raw(child) }.handle;
    if handle.is_null() {
        return Ok(None);
    }
    let owned = Owned::new(Shared::new(parent.shared.library().clone(), handle))?;
    // A call of ours on the child would end the wait for the parent's abort, so both are looked at.
    let mut pause = Pause::default();
    while !owned.shared.is_settled()? {
        parent.shared.may_go_on()?;
        if deadline.is_over() {
            return Err(NcclError::Deadline { what: name, within });
        }
        pause.once();
    }
    let place = |name, read: unsafe fn(&NcclLib, ncclComm_t, *mut c_int) -> ncclResult_t| {
        let mut number: c_int = 0;
        // SAFETY: the handle is alive under the lock; it writes one number.
        owned.shared.call(name, |nccl, comm| unsafe { read(nccl, comm, &mut number) })?;
        Ok::<usize, NcclError>(number as usize)
    };
    let rank = place("ncclCommUserRank", NcclLib::ncclCommUserRank)?;
    let world = place("ncclCommCount", NcclLib::ncclCommCount)?;
    Ok(Some(Communicator { owned, rank, world }))
}
