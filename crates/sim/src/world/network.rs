//! What every path between hosts lets through, and what is on its way.

use crate::Life;
use crate::clock::SECOND;
use crate::world::Parcel;
use dtrain_types::{Generation, MemberId, NodeId};
use std::collections::BTreeSet;

/// A connection over which nothing gets through for so long is dead. *Units*: nanoseconds.
pub(super) const IDLE: u64 = SECOND;

/// What does not get through, from whom to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// From one host to all others, the supervisor included.
    From(NodeId),
    /// To one host from all others.
    To(NodeId),
    /// Between two ranks' data connections.
    Pair(MemberId, MemberId),
    /// The words between a host and the supervisor: the link is gone, and the host calls again.
    Words(NodeId),
}

pub(super) struct Stalled {
    pub from: Life,
    pub to: Life,
    pub generation: Generation,
    pub parcel: Box<Parcel>,
}

/// The state of all paths.
pub(super) struct Network {
    pub ranks: usize,
    /// What is blocked, by the number of the fault that did it.
    pub blocks: Vec<(usize, Block)>,
    /// When the last frame of each pair arrives: a stream keeps its order.
    pub arrives: Vec<u64>,
    pub stalled: Vec<Stalled>,
    pub dead: BTreeSet<(MemberId, MemberId, Generation)>,
    /// Control words are lost in so many cases of a thousand.
    pub noise: u64,
}

impl Network {
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            blocks: Vec::new(),
            arrives: vec![0; ranks * ranks],
            stalled: Vec::new(),
            dead: BTreeSet::new(),
            noise: 0,
        }
    }

    /// Whether nothing is cut and no word is lost.
    pub fn is_sound(&self) -> bool {
        self.noise == 0 && self.blocks.is_empty()
    }

    pub fn has(&self, block: Block) -> bool {
        self.blocks.iter().any(|(_, known)| *known == block)
    }

    /// Whether the supervisor, which is on host 0, reaches a host.
    pub fn is_open_down(&self, host: NodeId) -> bool {
        let cut = self.has(Block::To(host)) || self.has(Block::From(NodeId(0)));
        host.0 == 0 || !(cut || self.has(Block::Words(host)))
    }

    /// Whether a host reaches the supervisor.
    pub fn is_open_up(&self, host: NodeId) -> bool {
        let cut = self.has(Block::From(host)) || self.has(Block::To(NodeId(0)));
        host.0 == 0 || !(cut || self.has(Block::Words(host)))
    }

    pub fn is_open(&self, from: (MemberId, NodeId), to: (MemberId, NodeId)) -> bool {
        let pair = |a, b| self.has(Block::Pair(a, b)) || self.has(Block::Pair(b, a));
        let hosts = from.1 == to.1 || !(self.has(Block::From(from.1)) || self.has(Block::To(to.1)));
        hosts && !pair(from.0, to.0)
    }
}
