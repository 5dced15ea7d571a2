//! Calls between `ncclGroupStart` and `ncclGroupEnd`: kept by thread, posted together.

use crate::communicator::Communicator;
use crate::last_error::{Failure, code_of};
use crate::operation::Operation;
use nccl_sys::{HostStream, ncclResult_t};
use std::cell::RefCell;
use std::sync::Arc;

#[derive(Default)]
struct Group {
    depth: u32,
    calls: Vec<(Arc<Communicator>, *mut HostStream, Operation)>,
    /// The first call that was refused: then nothing of the group is done.
    refused: Option<ncclResult_t>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Whether the calling thread is inside a group.
pub(crate) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Posts an operation, or keeps it for the end of the group.
pub(crate) fn submit(
    communicator: Arc<Communicator>,
    stream: *mut HostStream,
    operation: Result<Operation, Failure>,
) -> ncclResult_t {
    if !is_open() {
        return code_of(operation.and_then(|operation| communicator.post(vec![operation], stream)));
    }
    let code = code_of(operation.map(|operation| {
        GROUP.with_borrow_mut(|group| group.calls.push((communicator, stream, operation)));
        ncclResult_t::ncclSuccess
    }));
    if code != ncclResult_t::ncclSuccess {
        GROUP.with_borrow_mut(|group| *group.refused.get_or_insert(code));
    }
    code
}

/// Ends a group; the outermost one posts, one job for each communicator and stream.
pub(crate) fn end() -> Result<ncclResult_t, Failure> {
    let group = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Err(Failure::usage("ncclGroupEnd without ncclGroupStart"));
        }
        group.depth -= 1;
        Ok(if group.depth == 0 { std::mem::take(group) } else { Group::default() })
    })?;
    if let Some(code) = group.refused {
        return Err(Failure::new(code, "a call of the group was refused"));
    }
    let mut jobs: Vec<(Arc<Communicator>, *mut HostStream, Vec<Operation>)> = Vec::new();
    for (communicator, stream, operation) in group.calls {
        let same = |job: &&mut (Arc<Communicator>, *mut HostStream, Vec<Operation>)| {
            Arc::ptr_eq(&job.0, &communicator) && job.1 == stream
        };
        match jobs.iter_mut().find(same) {
            Some((_, _, operations)) => operations.push(operation),
            None => jobs.push((communicator, stream, vec![operation])),
        }
    }
    let mut answer = ncclResult_t::ncclSuccess;
    for (communicator, stream, operations) in jobs {
        if communicator.post(operations, stream)? == ncclResult_t::ncclInProgress {
            answer = ncclResult_t::ncclInProgress;
        }
    }
    Ok(answer)
}
