//! A rank's part in the collectives of its host: where it stands there, and what it gives and takes.

use crate::memory::HostMemory;
use dtrain_collective::host_range;
use dtrain_collective::sum_block;
use dtrain_collective::{Arena, Assignment, BLOCK, Chunks, HostPlan, Moves, OpKind, Reduce};
use dtrain_protocol::{self as protocol, StateHolder};
use dtrain_types::{Generation, MemberId, MicroRange, Rank, Trailer, Wire};
use std::ops::Range;

/// How far a collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    /// What this rank gives is there.
    Given,
    /// It adds up its share.
    Folding,
    Folded,
    /// Its leader exchanges with those of other hosts.
    Exchanging,
    Exchanged,
    /// It copies its share to its peers.
    Spreading,
    Spread,
}

/// What a collective does.
#[derive(Clone, Debug)]
pub(super) enum HostOp {
    Barrier,
    Sum { count: u32 },
    Copy { kind: OpKind, operand: u32, of_ranks: Vec<Moves>, of_hosts: Vec<Moves> },
}

/// A rank's place in the memory of its host.
#[derive(Debug)]
pub(super) struct HostPlane {
    /// Its place among the ranks of the host.
    pub local: usize,
    /// The host's place, and the ranks of each host.
    pub host: usize,
    pub hosts: Vec<Range<usize>>,
    pub sums_once: bool,
    /// Micro-batches of the ranks of this host.
    pub ranges: Vec<MicroRange>,
    /// The barrier that it came to last.
    pub round: u64,
    pub stage: Stage,
    pub op: HostOp,
    pub trailer: Trailer,
}

impl HostPlane {
    /// The place of a rank in a host. Where its ranks share a state they have the sum once, too, in the first slot of all.
    pub fn new(members: &protocol::Membership, rank: Rank, holder: StateHolder) -> Self {
        let mut hosts: Vec<Range<usize>> = Vec::new();
        for (at, participant) in members.participants.iter().enumerate() {
            match hosts.last_mut().filter(|host| members.participants[host.start].node == participant.node) {
                Some(host) => host.end = at + 1,
                None => hosts.push(at..at + 1),
            }
        }
        let host = hosts.iter().position(|host| host.contains(&rank.index())).expect("every rank has a host");
        let ranges =
            members.participants[hosts[host].clone()].iter().map(|participant| participant.range).collect();
        Self {
            local: rank.index() - hosts[host].start,
            host,
            hosts,
            sums_once: holder == StateHolder::Host,
            ranges,
            round: 0,
            stage: Stage::Idle,
            op: HostOp::Barrier,
            trailer: Trailer::EMPTY,
        }
    }

    /// The world of the leaders, as this rank's host takes part in it, and who they are.
    pub fn leaders(
        &self,
        members: &protocol::Membership,
        generation: Generation,
    ) -> (Assignment, Vec<MemberId>) {
        let range = |host: &Range<usize>| {
            let ranges: Vec<MicroRange> =
                members.participants[host.clone()].iter().map(|participant| participant.range).collect();
            host_range(&ranges)
        };
        let ranges = self.hosts.iter().map(range).collect();
        let peers = self.hosts.iter().map(|host| members.participants[host.start].member).collect();
        (Assignment { generation, rank: Rank(self.host as u32), ranges }, peers)
    }

    /// How many ranks the host has.
    pub fn ranks(&self) -> usize {
        self.ranges.len()
    }

    pub fn exchanges(&self) -> bool {
        self.stage == Stage::Exchanging && self.local == 0
    }

    pub fn works(&self) -> bool {
        matches!(self.stage, Stage::Folding | Stage::Spreading)
    }

    pub fn plan(&self, count: u32) -> HostPlan {
        HostPlan::new(&self.ranges, count, Reduce::Exact, |rank, root| rank * ROOTS + root)
    }

    /// Adds up this rank's share of the roots of its host, in their order: see [`HostPlan`].
    pub fn fold(&self, memory: &mut HostMemory, count: u32) {
        let len = memory.slots[0].geometry().len;
        let share = Chunks::even(len, self.ranks()).chunk(self.local);
        for fold in self.plan(count).folds.iter().filter(|fold| !fold.is_in_place()) {
            let mut stack = vec![0.0; BLOCK * fold.order.depth()];
            let leaf =
                |i: usize| &memory.slots[fold.starts[i] / ROOTS].slot(fold.starts[i] % ROOTS)[share.clone()];
            sum_block(&fold.order, Wire::F32, share.len(), &mut stack, leaf);
            memory.slots[0].lease(fold.out % ROOTS)[share.clone()].copy_from_slice(&stack[..share.len()]);
        }
    }

    /// What the host says of each of its roots.
    pub fn trailers(&self, memory: &HostMemory, count: u32) -> Vec<Trailer> {
        let plan = self.plan(count);
        let of = |(rank, root): &(usize, usize)| memory.meeting.trailers[*rank][*root];
        let leaves: Vec<Trailer> = plan.leaves.iter().map(of).collect();
        let sum = |fold: &dtrain_collective::RootFold| {
            fold.order.sum_trailers(&leaves[fold.leaves.clone()], &mut Vec::new())
        };
        plan.folds.iter().map(sum).collect()
    }
}

/// Numbers of roots are smaller.
pub(super) const ROOTS: usize = 1_000;
