//! The library as any C program sees it: opened by its path, called through the bindings, one thread a rank.

use nccl_sys::{NcclLib, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

const FLOAT: ncclDataType_t = ncclDataType_t::ncclFloat32;
const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
const OK: ncclResult_t = ncclResult_t::ncclSuccess;
/// More than fits into a queue between two ranks, and no multiple of anything.
const LEN: usize = 20_011;

fn library() -> NcclLib {
    let path = std::env::current_exe().expect("this binary").with_file_name("libfake_nccl.so");
    // SAFETY: the library of this workspace runs no code when it is opened.
    unsafe { NcclLib::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn last_error(nccl: &NcclLib) -> String {
    // SAFETY: the text is never freed.
    unsafe { CStr::from_ptr(nccl.ncclGetLastError(null_mut())) }.to_str().expect("UTF-8").to_owned()
}

fn unique_id(nccl: &NcclLib) -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: it writes the id.
    assert_eq!(unsafe { nccl.ncclGetUniqueId(&mut id) }, OK);
    id
}

/// Joins as one rank; blocks until all have.
fn join(nccl: &NcclLib, id: ncclUniqueId, rank: usize, world: usize) -> ncclComm_t {
    let mut comm = null_mut();
    // SAFETY: it writes the handle; no configuration means that calls block.
    let code = unsafe { nccl.ncclCommInitRank(&mut comm, world as c_int, id, rank as c_int) };
    assert_eq!(code, OK, "{}", last_error(nccl));
    comm
}

/// Runs `work` as each rank of a communicator.
fn ranks<R: Send>(world: usize, work: impl Fn(&NcclLib, ncclComm_t, usize) -> R + Sync) -> Vec<R> {
    let nccl = library();
    let id = unique_id(&nccl);
    std::thread::scope(|scope| {
        let (nccl, work) = (&nccl, &work);
        let spawn = |rank| scope.spawn(move || work(nccl, join(nccl, id, rank, world), rank));
        let threads: Vec<_> = (0..world).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

fn mine(rank: usize) -> Vec<f32> {
    (0..LEN).map(|i| (rank as f32 + 0.1) * 1.7f32.powi((i % 40) as i32 - 20)).collect()
}

/// By rank, left to right.
fn sum(world: usize) -> Vec<f32> {
    let mut sum = mine(0);
    (1..world).for_each(|rank| sum.iter_mut().zip(mine(rank)).for_each(|(a, b)| *a += b));
    sum
}

#[test]
fn every_collective_gives_what_the_header_says() {
    let world = 4;
    ranks(world, |nccl, comm, rank| {
        let mut own = mine(rank);
        let mut out = vec![f32::NAN; LEN * world];
        let (from, to) = (own.as_mut_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: both buffers are as long as the calls say; without a stream the work is done when a call returns.
        unsafe {
            assert_eq!(nccl.ncclAllReduce(from, to, LEN, FLOAT, SUM, comm, null_mut()), OK);
            assert_eq!(out[..LEN], sum(world));
            assert_eq!(nccl.ncclReduce(from, to, LEN, FLOAT, SUM, 2, comm, null_mut()), OK);
            assert_eq!(nccl.ncclBroadcast(to, to, LEN, FLOAT, 2, comm, null_mut()), OK);
            assert_eq!(out[..LEN], sum(world));
            assert_eq!(nccl.ncclAllGather(from, to, LEN, FLOAT, comm, null_mut()), OK);
            assert!((0..world).all(|peer| out[peer * LEN..][..LEN] == mine(peer)));
            let part = LEN / world;
            assert_eq!(nccl.ncclReduceScatter(from, to, part, FLOAT, SUM, comm, null_mut()), OK);
            assert_eq!(out[..part], sum(world)[rank * part..][..part]);
            assert_eq!(nccl.ncclAllReduce(from, from, LEN, FLOAT, SUM, comm, null_mut()), OK);
            assert_eq!(own, sum(world), "in place");
            assert_eq!(nccl.ncclCommDestroy(comm), OK);
        }
    });
}

#[test]
fn a_group_moves_all_its_pieces_at_once_whatever_their_order() {
    let world = 3;
    ranks(world, |nccl, comm, rank| {
        let own = mine(rank);
        let mut got = vec![vec![f32::NAN; LEN]; world];
        // SAFETY: as above. Every rank sends before it receives, more than a queue holds, and to itself too.
        unsafe {
            assert_eq!(nccl.ncclGroupStart(), OK);
            for peer in 0..world {
                let peer = peer as c_int;
                assert_eq!(nccl.ncclSend(own.as_ptr().cast(), LEN, FLOAT, peer, comm, null_mut()), OK);
            }
            for (peer, got) in got.iter_mut().enumerate().rev() {
                let peer = peer as c_int;
                assert_eq!(nccl.ncclRecv(got.as_mut_ptr().cast(), LEN, FLOAT, peer, comm, null_mut()), OK);
            }
            assert_eq!(nccl.ncclGroupEnd(), OK);
            assert_eq!(nccl.ncclCommDestroy(comm), OK);
        }
        assert!((0..world).all(|peer| got[peer] == mine(peer)));
    });
}

#[test]
fn what_cannot_be_is_refused_with_a_text() {
    ranks(1, |nccl, comm, _| {
        let mut x = [1.0f32; 4];
        let address = x.as_mut_ptr().cast();
        // SAFETY: every call is refused before it touches memory.
        unsafe {
            assert_eq!(
                nccl.ncclSend(address, 4, FLOAT, 7, comm, null_mut()),
                ncclResult_t::ncclInvalidArgument
            );
            assert_eq!(last_error(nccl), "there is no rank 7 of 1");
            let half = ncclDataType_t::ncclFloat16;
            let code = nccl.ncclAllReduce(address, address, 4, half, SUM, comm, null_mut());
            assert_eq!(code, ncclResult_t::ncclInvalidArgument);
            assert_eq!(nccl.ncclGroupEnd(), ncclResult_t::ncclInvalidUsage);
            assert_eq!(nccl.ncclCommDestroy(comm), OK);
            assert_eq!(nccl.ncclCommDestroy(comm), ncclResult_t::ncclInvalidArgument);
            assert!(last_error(nccl).contains("no communicator"), "{}", last_error(nccl));
            let mut late = null_mut();
            let made_up = ncclUniqueId { internal: [3; 128] };
            assert_eq!(nccl.ncclCommInitRank(&mut late, 1, made_up, 0), ncclResult_t::ncclInvalidArgument);
        }
    });
}

/// Polls until the state is another than `ncclInProgress`.
fn settled(nccl: &NcclLib, comm: ncclComm_t) -> ncclResult_t {
    loop {
        let mut state = OK;
        // SAFETY: it writes the state.
        assert_eq!(unsafe { nccl.ncclCommGetAsyncError(comm, &mut state) }, OK);
        if state != ncclResult_t::ncclInProgress {
            return state;
        }
        std::thread::yield_now();
    }
}

#[test]
fn who_does_not_block_must_poll_before_the_next_call() {
    let nccl = library();
    let mut config = ncclConfig_t { blocking: 0, ..ncclConfig_t::INITIALIZER };
    let mut comm = null_mut();
    let mut x = [1.0f32; 4];
    let address = x.as_mut_ptr().cast();
    // SAFETY: the handle and the buffer outlive the calls.
    unsafe {
        let code = nccl.ncclCommInitRankConfig(&mut comm, 1, unique_id(&nccl), 0, &mut config);
        assert_eq!(code, ncclResult_t::ncclInProgress);
        assert_eq!(settled(&nccl, comm), OK);
        let reduce = || nccl.ncclAllReduce(address, address, 4, FLOAT, SUM, comm, null_mut());
        assert_eq!(reduce(), ncclResult_t::ncclInProgress);
        assert_eq!(reduce(), ncclResult_t::ncclInvalidUsage, "it was not polled since");
        assert_eq!(settled(&nccl, comm), OK);
        assert_eq!(reduce(), ncclResult_t::ncclInProgress);
        assert_eq!(nccl.ncclCommAbort(comm), OK);
    }
    config.magic = 1;
    // SAFETY: it is refused for its magic number.
    let code = unsafe { nccl.ncclCommInitRankConfig(&mut comm, 1, unique_id(&nccl), 0, &mut config) };
    assert_eq!(code, ncclResult_t::ncclInvalidArgument);
}

#[test]
fn a_peer_that_does_something_else_is_an_error_with_both_sides_in_it() {
    let texts = ranks(2, |nccl, comm, rank| {
        let mut x = [1.0f32; 8];
        let address = x.as_mut_ptr().cast();
        // SAFETY: the buffer is longer than both counts.
        unsafe {
            let count = 4 + rank;
            nccl.ncclAllReduce(address, address, count, FLOAT, SUM, comm, null_mut());
            let state = settled(nccl, comm);
            let text = last_error(nccl);
            assert_eq!(nccl.ncclCommAbort(comm), OK);
            (state, text)
        }
    });
    for (state, text) in texts {
        assert_eq!(state, ncclResult_t::ncclInvalidUsage);
        assert!(text.contains("16 bytes") && text.contains("20 bytes"), "{text}");
    }
}

#[test]
fn an_abort_ends_a_wait_for_a_peer_that_never_comes() {
    let nccl = library();
    let id = unique_id(&nccl);
    std::thread::scope(|scope| {
        let absent = scope.spawn(|| join(&nccl, id, 1, 2) as usize);
        let comm = join(&nccl, id, 0, 2) as usize;
        let absent = absent.join().expect("it has joined") as ncclComm_t;
        let shared = &nccl;
        let waiting = scope.spawn(move || {
            let mut x = [1.0f32; 4];
            let address = x.as_mut_ptr().cast();
            // SAFETY: the buffer outlives the call, which ends when the communicator is aborted.
            unsafe { shared.ncclAllReduce(address, address, 4, FLOAT, SUM, comm as ncclComm_t, null_mut()) }
        });
        // SAFETY: both handles are alive.
        unsafe {
            assert_eq!(nccl.ncclCommAbort(comm as ncclComm_t), OK);
            assert_eq!(nccl.ncclCommAbort(absent), OK);
        }
        // Either the abort came first, and there was no communicator, or it ended the wait.
        let code = waiting.join().expect("it ends");
        assert!([OK, ncclResult_t::ncclInvalidArgument].contains(&code), "{code:?}");
    });
}
