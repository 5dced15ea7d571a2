//! A communicator's handle, shared by who calls and who aborts: every call holds a lock, and an abort takes the handle
//! away, so that nothing is ever called on a handle that is gone.

use crate::pause::{Deadline, Pause};
use crate::{NcclError, NcclLibrary};
use dtrain_collective::{AbortFlag, CollectiveError};
use nccl_sys::{NcclLib, ncclComm_t, ncclResult_t};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An address of the library.
pub(crate) struct Handle(pub ncclComm_t);

// SAFETY: NCCL lets any thread call on a communicator, one at a time; the lock around it sees to that.
unsafe impl Send for Handle {}

pub(crate) struct Shared {
    library: NcclLibrary,
    /// `None` once it was aborted or destroyed.
    handle: Mutex<Option<Handle>>,
    pub flag: AbortFlag,
}

impl Shared {
    pub fn new(library: NcclLibrary, handle: ncclComm_t) -> Self {
        Self { library, handle: Mutex::new(Some(Handle(handle))), flag: AbortFlag::default() }
    }

    pub fn library(&self) -> &NcclLibrary {
        &self.library
    }

    fn handle(&self) -> MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// *Errors*: [`NcclError::Aborted`], once somebody has asked for the abort.
    pub fn may_go_on(&self) -> Result<(), NcclError> {
        self.flag.check().map_err(|error| match error {
            CollectiveError::Aborted { reason } => NcclError::Aborted { reason },
            other => unreachable!("a flag says nothing but aborted: {other}"),
        })
    }

    /// Calls the library with the handle, while nobody else does.
    ///
    /// *Errors*: `Aborted`, and whatever the call says.
    pub fn call(
        &self,
        name: &'static str,
        work: impl FnOnce(&NcclLib, ncclComm_t) -> ncclResult_t,
    ) -> Result<ncclResult_t, NcclError> {
        self.with(|comm| self.library.check(name, work(self.library.raw(), comm), comm))
    }

    /// As `call`, for more than one call in a row.
    pub fn with<R>(&self, work: impl FnOnce(ncclComm_t) -> Result<R, NcclError>) -> Result<R, NcclError> {
        self.may_go_on()?;
        let handle = self.handle();
        // The abort may have come while this thread waited for the lock.
        self.may_go_on()?;
        let handle = handle.as_ref().expect("only an abort takes the handle, and it sets the flag before");
        work(handle.0)
    }

    /// Takes the handle out, for who ends the communicator.
    pub fn take(&self) -> Option<Handle> {
        self.handle().take()
    }

    /// Whether the library has done what it was asked for.
    ///
    /// *Errors*: what happened behind our back, and `Aborted`.
    pub fn is_settled(&self) -> Result<bool, NcclError> {
        self.is_done("work that was begun")
    }

    fn is_done(&self, what: &'static str) -> Result<bool, NcclError> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the handle is alive under the lock; it writes the state.
        self.call("ncclCommGetAsyncError", |nccl, comm| unsafe {
            nccl.ncclCommGetAsyncError(comm, &mut state)
        })?;
        let state = self.with(|comm| self.library.check(what, state, comm))?;
        Ok(state == ncclResult_t::ncclSuccess)
    }

    /// *Blocks* until the library has done what it was asked for.
    ///
    /// *Errors*: as `is_settled`, and [`NcclError::Deadline`] if there is one.
    pub fn settle(&self, what: &'static str, deadline: Option<Deadline>) -> Result<(), NcclError> {
        let mut pause = Pause::default();
        while !self.is_done(what)? {
            if let Some(deadline) = deadline.filter(Deadline::is_over) {
                return Err(NcclError::Deadline { what, within: deadline.within });
            }
            pause.once();
        }
        Ok(())
    }
}
