//! NCCL's C interface over host memory, between real processes: what tests open instead of `libnccl.so.2`.
//!
//! Ranks meet in a memfd that the unique id names by process and descriptor, so nothing is left behind, and as with the
//! real library the process that made the id must live until all have joined. All bytes go through queues in that
//! memory, one for each ordered pair of ranks.
//!
//! What it keeps of the real library, because its users must live with it:
//! - A call on a communicator puts work on a stream and returns before the work is done. The stream is a
//!   `nccl_sys::HostStream` of the caller, or one of the driver that `FAKE_NCCL_DRIVER` names (see `queue.rs`); without one the
//!   work is done at once. So the order of communication among the
//!   caller's own additions and copies comes from the stream alone, as on a GPU, and a test finds what waits for nothing.
//! - With `blocking = 0` calls answer `ncclInProgress`, and until the caller has polled `ncclSuccess` every further call is
//!   refused. The real library only says that it must not be made.
//! - A peer that dies inside a collective leaves the others waiting until they abort. An abort is local.
//! - A communicator that is used after its end is refused, and not a crash.
//!
//! What it does not do: other devices than host memory, windows, registered buffers, communicators made inside a group or from
//! others (split, shrink, grow, revoke), sums of half-precision numbers. Sums are taken by rank, so all ranks get the same bits.
//!
//! For tests that hurt: `FAKE_NCCL_VERSION=21403` is what `ncclGetVersion` says, `FAKE_NCCL_FAIL_AT=3` makes the third
//! group of each communicator fail after its call has returned, `FAKE_NCCL_FAIL_JOIN=1` makes rank 1 fail to join,
//! `FAKE_NCCL_WRONG=1` changes a bit of what a rank receives from another one if it is 4 KiB or more,
//! `FAKE_NCCL_STUCK_ABORT=1` makes `ncclCommAbort` never return, and `FAKE_NCCL_STAND=1:22:PIPE` makes rank 1 stand still in
//! its 22nd group (see `stand.rs`). A library that lacks a
//! function is a copy of this one with another name in its table of symbols.

mod calls;
mod channel;
mod communicator;
mod engine;
mod group;
mod last_error;
mod operation;
mod queue;
mod segment;
mod stand;
mod sum;
