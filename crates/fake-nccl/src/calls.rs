//! The C functions themselves, by the names and types of `nccl.h`.
//!
//! Each looks its arguments over and hands on to the module that does the work. None of them follows an address that a
//! caller has no reason to give.
#![allow(non_snake_case)]

use crate::communicator::{Busy, Calls, Communicator, knob};
use crate::group;
use crate::last_error::{self, Failure, code_of};
use crate::operation::{Kind, Operation};
use crate::segment::make_id;
use nccl_sys::{
    NCCL_API_MAGIC, NCCL_VERSION_CODE, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t,
    ncclResult_t, ncclUniqueId,
};
use std::ffi::{c_char, c_int, c_void};

/// Writes an answer to where a caller wants it.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn answer<T>(to: *mut T, value: T) -> Result<ncclResult_t, Failure> {
    if to.is_null() {
        return Err(Failure::argument("an address to write to is null"));
    }
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { to.write(value) };
    Ok(ncclResult_t::ncclSuccess)
}

/// Whether a configuration wants calls to block; `None` without one or where it leaves that open.
///
/// # Safety
/// `config` is null or can be read.
unsafe fn wants_blocking(config: *const ncclConfig_t) -> Result<Option<bool>, Failure> {
    // SAFETY: the caller vouches for the address.
    let Some(config) = (unsafe { config.as_ref() }) else { return Ok(None) };
    if config.magic != NCCL_API_MAGIC || config.size < 24 {
        return Err(Failure::argument("the configuration was not made by NCCL_CONFIG_INITIALIZER"));
    }
    match config.blocking {
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        nccl_sys::UNDEFINED => Ok(None),
        other => Err(Failure::argument(format!("blocking is 0 or 1, not {other}"))),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    let number = knob("FAKE_NCCL_VERSION").map_or(NCCL_VERSION_CODE as c_int, |number| number as c_int);
    // SAFETY: the caller gives an address to write to.
    code_of(unsafe { answer(version, number) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t {
    // SAFETY: the caller gives an address to write to.
    code_of(make_id().and_then(|made| unsafe { answer(id, made) }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: ncclResult_t) -> *const c_char {
    use ncclResult_t as R;
    let text = match code {
        R::ncclSuccess => c"no error",
        R::ncclUnhandledCudaError => c"unhandled cuda error",
        R::ncclSystemError => c"unhandled system error",
        R::ncclInternalError => c"internal error",
        R::ncclInvalidArgument => c"invalid argument",
        R::ncclInvalidUsage => c"invalid usage",
        R::ncclRemoteError => c"remote process exited or there was a network error",
        R::ncclInProgress => c"NCCL operation in progress",
        R::ncclTimeout => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: ncclComm_t) -> *const c_char {
    last_error::last().as_ptr()
}

/// Makes a communicator that begins to join.
///
/// # Safety
/// `target` is null or can be written, `config` is null or can be read.
unsafe fn init(
    target: *mut ncclComm_t,
    world: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> Result<ncclResult_t, Failure> {
    // SAFETY: null or the caller's configuration.
    let blocking = unsafe { wants_blocking(config) }?.unwrap_or(true);
    let calls = if blocking { Calls::Block } else { Calls::Return };
    if group::is_open() {
        return Err(Failure::usage("this library makes no communicators inside a group"));
    }
    let (handle, communicator) = Communicator::make(Operation::rank(rank)?, Operation::rank(world)?, calls)?;
    // SAFETY: the caller gives an address to write to.
    unsafe { answer(target, handle) }?;
    communicator.perform(move |it| it.join(&id))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    target: *mut ncclComm_t,
    world: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the promises of the caller.
    code_of(unsafe { init(target, world, id, rank, config) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(
    target: *mut ncclComm_t,
    world: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: the same promises; no configuration is allowed.
    code_of(unsafe { init(target, world, id, rank, std::ptr::null_mut()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(comm: ncclComm_t, error: *mut ncclResult_t) -> ncclResult_t {
    // SAFETY: the caller gives an address to write to.
    code_of(Communicator::find(comm).and_then(|it| unsafe { answer(error, it.poll()) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller gives an address to write to.
    code_of(Communicator::find(comm).and_then(|it| unsafe { answer(count, it.world as c_int) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller gives an address to write to.
    code_of(Communicator::find(comm).and_then(|it| unsafe { answer(rank, it.rank as c_int) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller gives an address to write to. There is one device: this host.
    code_of(Communicator::find(comm).and_then(|_| unsafe { answer(device, 0) }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    let finalize = || {
        let it = Communicator::find(comm)?;
        it.take_up(Busy::Finalizing)?;
        if !it.blocking {
            return Ok(ncclResult_t::ncclInProgress);
        }
        it.finalize_and_wait();
        Ok(it.poll())
    };
    code_of(finalize())
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    code_of(Communicator::find(comm).map(|it| {
        it.finalize_and_wait();
        it.stop();
        Communicator::forget(comm);
        ncclResult_t::ncclSuccess
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    code_of(Communicator::find(comm).map(|it| {
        while knob("FAKE_NCCL_STUCK_ABORT").is_some() {
            std::thread::park();
        }
        it.stop();
        Communicator::forget(comm);
        ncclResult_t::ncclSuccess
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> ncclResult_t {
    group::start();
    ncclResult_t::ncclSuccess
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> ncclResult_t {
    code_of(group::end())
}

/// The part that all calls with a stream share.
fn put(
    kind: Result<Kind, Failure>,
    buffers: (*const c_void, *mut c_void),
    elements: (usize, ncclDataType_t),
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let communicator = match Communicator::find(comm) {
        Ok(communicator) => communicator,
        Err(failure) => return code_of(Err(failure)),
    };
    let (count, element) = elements;
    let operation = kind.and_then(|kind| Operation::new(kind, buffers, count, element, communicator.world));
    group::submit(communicator, stream.cast(), operation)
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    element: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let kind = Operation::rank(peer).map(|peer| Kind::Send { peer });
    put(kind, (from, std::ptr::null_mut()), (count, element), comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let kind = Operation::rank(peer).map(|peer| Kind::Recv { peer });
    put(kind, (std::ptr::null(), to), (count, element), comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    put(Ok(Kind::AllReduce { op }), (from, to), (count, element), comm, stream)
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let kind = Operation::rank(root).map(|root| Kind::Reduce { op, root });
    put(kind, (from, to), (count, element), comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let kind = Operation::rank(root).map(|root| Kind::Broadcast { root });
    put(kind, (from, to), (count, element), comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    put(Ok(Kind::AllGather), (from, to), (count, element), comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    put(Ok(Kind::ReduceScatter { op }), (from, to), (count, element), comm, stream)
}
