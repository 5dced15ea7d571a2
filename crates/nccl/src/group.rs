//! Calls that the library takes as one: they are on the stream together or not at all, and move at once.

use crate::device::{Address, Stream};
use crate::{NcclError, NcclLibrary};
use nccl_sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use std::ffi::c_int;

/// An open group of one communicator.
pub struct NcclGroup<'a> {
    library: &'a NcclLibrary,
    comm: ncclComm_t,
    stream: Stream,
}

impl NcclGroup<'_> {
    /// Opens a group, lets `work` fill it, and closes it.
    pub(crate) fn run(
        library: &NcclLibrary,
        comm: ncclComm_t,
        stream: Stream,
        work: impl FnOnce(&NcclGroup<'_>) -> Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        let nccl = library.raw();
        // SAFETY: no argument.
        library.check("ncclGroupStart", unsafe { nccl.ncclGroupStart() }, comm)?;
        let result = work(&NcclGroup { library, comm, stream });
        // SAFETY: it ends the group above, also after an error inside it.
        let ended = library.check("ncclGroupEnd", unsafe { nccl.ncclGroupEnd() }, comm);
        result.and(ended.map(drop))
    }

    fn check(&self, call: &'static str, code: ncclResult_t) -> Result<(), NcclError> {
        self.library.check(call, code, self.comm).map(drop)
    }

    /// Sends bytes to a rank.
    ///
    /// # Safety
    /// `from` is `bytes` bytes that the device can read, untouched until the stream has passed this group; the stream lives
    /// so long.
    pub unsafe fn send(&self, from: Address, bytes: usize, to: usize) -> Result<(), NcclError> {
        let (kind, stream) = (ncclDataType_t::ncclUint8, self.stream.0);
        // SAFETY: the caller vouches for the memory; the communicator is alive while its lock is held.
        let code =
            unsafe { self.library.raw().ncclSend(from.cast(), bytes, kind, to as c_int, self.comm, stream) };
        self.check("ncclSend", code)
    }

    /// Receives bytes from a rank.
    ///
    /// # Safety
    /// `to` is `bytes` bytes that the device can write, nobody else's until the stream has passed this group; the stream
    /// lives so long.
    pub unsafe fn receive(&self, to: Address, bytes: usize, from: usize) -> Result<(), NcclError> {
        let (kind, stream) = (ncclDataType_t::ncclUint8, self.stream.0);
        // SAFETY: as above.
        let code =
            unsafe { self.library.raw().ncclRecv(to.cast(), bytes, kind, from as c_int, self.comm, stream) };
        self.check("ncclRecv", code)
    }

    /// Sums floats of all ranks in place, in an order that is the library's affair.
    ///
    /// # Safety
    /// `at` is `floats` floats that the device can read and write, nobody else's until the stream has passed this
    /// group; the stream lives so long.
    pub unsafe fn all_reduce(&self, at: Address, floats: usize) -> Result<(), NcclError> {
        let (kind, op, stream) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum, self.stream.0);
        // SAFETY: as above.
        let code = unsafe {
            let nccl = self.library.raw();
            nccl.ncclAllReduce(at.cast(), at.cast(), floats, kind, op, self.comm, stream)
        };
        self.check("ncclAllReduce", code)
    }
}
