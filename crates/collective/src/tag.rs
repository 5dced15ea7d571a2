//! The place of a frame in the schedules of all generations.

use crate::operation::{OpKind, Sequence};
use dtrain_types::Generation;

/// The place of a frame in the schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The sender's generation.
    pub generation: Generation,
    /// The collective.
    pub sequence: Sequence,
    /// Which collective that is.
    pub op: OpKind,
    /// [`crate::Op::operand`]: micro-batches, the broadcasting rank, or a hash of who copies to whom.
    pub operand: u32,
    /// Direct: 0 contributes, 1 gathers. Ring: the hop.
    pub round: u32,
    /// Which of the sender's roots this is part of; 0 where there is only one thing to send.
    pub part: u32,
    /// The segment of the chunk.
    pub segment: u32,
}
