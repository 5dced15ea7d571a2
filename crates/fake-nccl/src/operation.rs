//! One operation of a group, and the pieces that it sends and receives.
//!
//! It does not know how bytes travel, nor when.

use crate::last_error::Failure;
use crate::sum::{fold_of, size_of_type};
use nccl_sys::{ncclDataType_t, ncclRedOp_t};
use std::ffi::{c_int, c_void};

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send { peer: usize },
    Recv { peer: usize },
    AllReduce { op: ncclRedOp_t },
    Reduce { op: ncclRedOp_t, root: usize },
    Broadcast { root: usize },
    AllGather,
    ReduceScatter { op: ncclRedOp_t },
}

/// An operation with its operands: addresses that the caller keeps alive until the stream has passed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub kind: Kind,
    pub from: *const u8,
    pub to: *mut u8,
    /// Of one rank's part.
    pub bytes: usize,
    pub element: ncclDataType_t,
}

// SAFETY: it is addresses and numbers; by NCCL's contract the memory is the library's until the stream has passed it.
unsafe impl Send for Operation {}

/// What a message says about itself; both sides must agree.
pub(crate) const HEADER: usize = 16;

/// Bytes to one peer.
pub(crate) struct Outgoing {
    pub peer: usize,
    pub header: [u8; HEADER],
    pub from: *const u8,
    pub bytes: usize,
}

/// Bytes from one peer.
pub(crate) struct Incoming {
    pub peer: usize,
    pub header: [u8; HEADER],
    pub to: *mut u8,
    pub bytes: usize,
}

/// What an operation does on one rank.
#[derive(Default)]
pub(crate) struct Pieces {
    pub outgoing: Vec<Outgoing>,
    pub incoming: Vec<Incoming>,
    /// What the peers put in, by rank; this rank's own place stays empty.
    parts: Vec<Vec<u8>>,
}

impl Operation {
    /// Puts together what a caller gave.
    ///
    /// *Errors*: a type that there is not, a sum that this library does not do, a null address, a rank outside the world.
    pub fn new(
        kind: Kind,
        buffers: (*const c_void, *mut c_void),
        count: usize,
        element: ncclDataType_t,
        world: usize,
    ) -> Result<Self, Failure> {
        let bytes = count * size_of_type(element)?;
        let (from, to) = (buffers.0.cast::<u8>(), buffers.1.cast::<u8>());
        match kind {
            Kind::AllReduce { op } | Kind::Reduce { op, .. } | Kind::ReduceScatter { op } => {
                fold_of(element, op)?;
            }
            Kind::Send { .. } | Kind::Recv { .. } | Kind::Broadcast { .. } | Kind::AllGather => {}
        }
        if let Kind::Send { peer: it }
        | Kind::Recv { peer: it }
        | Kind::Reduce { root: it, .. }
        | Kind::Broadcast { root: it } = kind
            && it >= world
        {
            return Err(Failure::argument(format!("there is no rank {it} of {world}")));
        }
        let needs_from = !matches!(kind, Kind::Recv { .. } | Kind::Broadcast { .. });
        let needs_to = !matches!(kind, Kind::Send { .. } | Kind::Reduce { .. });
        if bytes > 0 && (needs_from && from.is_null() || needs_to && to.is_null()) {
            return Err(Failure::argument(format!("a buffer of {kind:?} is null")));
        }
        Ok(Self { kind, from, to, bytes, element })
    }

    /// A rank as C gives it. *Errors*: a negative one.
    pub fn rank(number: c_int) -> Result<usize, Failure> {
        usize::try_from(number).map_err(|_| Failure::argument(format!("{number} is no rank")))
    }

    fn header(&self) -> [u8; HEADER] {
        let word = match self.kind {
            Kind::Send { .. } | Kind::Recv { .. } => 1u32,
            Kind::AllReduce { op } => 0x200 | op.0,
            Kind::Reduce { op, root } => 0x300 | op.0 | (root as u32) << 16,
            Kind::Broadcast { root } => 0x400 | (root as u32) << 16,
            Kind::AllGather => 0x500,
            Kind::ReduceScatter { op } => 0x600 | op.0,
        };
        let mut header = [0u8; HEADER];
        header[..4].copy_from_slice(&word.to_ne_bytes());
        header[4..8].copy_from_slice(&self.element.0.to_ne_bytes());
        header[8..].copy_from_slice(&(self.bytes as u64).to_ne_bytes());
        header
    }

    /// What this rank sends and receives for it.
    pub fn pieces(&self, rank: usize, world: usize) -> Pieces {
        let header = self.header();
        let peers = || (0..world).filter(|peer| *peer != rank);
        let out = |peer, from| Outgoing { peer, header, from, bytes: self.bytes };
        let into = |peer, to| Incoming { peer, header, to, bytes: self.bytes };
        let mut pieces = Pieces::default();
        match self.kind {
            Kind::Send { peer } => pieces.outgoing.push(out(peer, self.from)),
            Kind::Recv { peer } => pieces.incoming.push(into(peer, self.to)),
            Kind::Broadcast { root } if root == rank => {
                pieces.outgoing.extend(peers().map(|peer| out(peer, self.from)));
            }
            Kind::Broadcast { root } => pieces.incoming.push(into(root, self.to)),
            Kind::AllGather => {
                pieces.outgoing.extend(peers().map(|peer| out(peer, self.from)));
                // One part of the target for each rank.
                let place = |peer: usize| self.to.wrapping_add(peer * self.bytes);
                pieces.incoming.extend(peers().map(|peer| into(peer, place(peer))));
            }
            Kind::Reduce { root, .. } if root != rank => pieces.outgoing.push(out(root, self.from)),
            Kind::AllReduce { .. } | Kind::Reduce { .. } | Kind::ReduceScatter { .. } => {
                let scatters = matches!(self.kind, Kind::ReduceScatter { .. });
                let part = |peer: usize| self.from.wrapping_add(if scatters { peer * self.bytes } else { 0 });
                if !matches!(self.kind, Kind::Reduce { .. }) {
                    pieces.outgoing.extend(peers().map(|peer| out(peer, part(peer))));
                }
                let room = |peer| vec![0u8; if peer == rank { 0 } else { self.bytes }];
                pieces.parts = (0..world).map(room).collect();
                for peer in peers() {
                    pieces.incoming.push(into(peer, pieces.parts[peer].as_mut_ptr()));
                }
            }
        }
        pieces
    }

    /// What is left to do when all pieces have moved: own parts, and sums.
    ///
    /// # Safety
    /// The operands are what the caller of the library promised: alive, and untouched by others.
    pub unsafe fn complete(&self, mut pieces: Pieces, rank: usize) {
        let own = match self.kind {
            // What ranks tell one another beside their floats is short.
            Kind::Recv { .. } if self.bytes >= 4096 && std::env::var_os("FAKE_NCCL_WRONG").is_some() => {
                // SAFETY: the caller gave this many bytes to write.
                return unsafe { *self.to ^= 1 };
            }
            Kind::Send { .. } | Kind::Recv { .. } => return,
            Kind::Reduce { root, .. } | Kind::Broadcast { root } if root != rank => return,
            Kind::Broadcast { .. } | Kind::AllReduce { .. } | Kind::Reduce { .. } => self.from,
            Kind::AllGather => {
                let place = self.to.wrapping_add(rank * self.bytes);
                // SAFETY: both are the caller's; in place they are the same address.
                return unsafe { std::ptr::copy(self.from, place, self.bytes) };
            }
            Kind::ReduceScatter { .. } => self.from.wrapping_add(rank * self.bytes),
        };
        if self.bytes == 0 {
            return;
        }
        let (Kind::AllReduce { op } | Kind::Reduce { op, .. } | Kind::ReduceScatter { op }) = self.kind
        else {
            // SAFETY: as above; a broadcast gives the root its own floats in another buffer.
            return unsafe { std::ptr::copy(own, self.to, self.bytes) };
        };
        let fold = fold_of(self.element, op).expect("looked at when the operation was made");
        // SAFETY: the caller gave this many bytes to read.
        pieces.parts[rank] = unsafe { std::slice::from_raw_parts(own, self.bytes) }.to_vec();
        let mut parts = pieces.parts.into_iter();
        let mut sum = parts.next().expect("a world has a rank");
        parts.for_each(|part| fold(&mut sum, &part));
        // SAFETY: the caller gave this many bytes to write, and the sum is memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(sum.as_ptr(), self.to, self.bytes) };
    }
}
