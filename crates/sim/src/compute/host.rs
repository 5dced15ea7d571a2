//! Collectives of ranks that meet in the memory of a host, as the runtime's are: each contributes, all add up a share, the leaders of
//! several hosts exchange what their hosts have, and each spreads a share. Between the stages lies a barrier of the host.
//!
//! It does not know what is summed, nor when. Parts that are sent ahead are not simulated here: between hosts alone they are.

use super::Compute;
use super::doing::{Doing, FIRST_STEP};
use super::tools::Tools;
use super::words::{Ask, Work};
use crate::compute::HostPlane;
use crate::compute::host_plane::{HostOp, Stage};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Chunks, Moves, Op, Sequence, Take};
use dtrain_protocol as protocol;
use dtrain_types::Trailer;
use std::ops::Range;

impl Compute {
    pub(super) fn is_on_host(&self) -> bool {
        self.plane.as_ref().and_then(|plane| plane.host.as_ref()).is_some()
    }

    pub(super) fn host_is_at_work(&self) -> bool {
        self.plane.as_ref().and_then(|plane| plane.host.as_ref()).is_some_and(HostPlane::works)
    }

    /// Comes to a generation in the memory of the host, and to its first barrier.
    pub(super) fn host_enter(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        if !memory.meeting.enter(plane.generation, participant.ranks()) {
            return self.break_off(tools, "the generation is over".to_owned());
        }
        if self.sabotage == Some(Sabotage::ReusedSum) {
            memory.slots[0].lease(0).fill(0.0);
        }
        self.host_give(tools, &Op::Barrier);
    }

    /// Begins a collective.
    pub(super) fn host_give(&mut self, tools: &mut Tools<'_>, op: &Op<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        participant.op = match op {
            Op::Barrier => HostOp::Barrier,
            Op::AllReduce { micro_batches, trailers } => {
                memory.meeting.trailers[participant.local] = trailers.to_vec();
                HostOp::Sum { count: *micro_batches }
            }
            other => {
                let (world, len) = (plane.members.participants.len(), memory.slots[0].geometry().len);
                let of = |rank: usize| other.moves(rank, world, len).expect("it moves floats");
                let of_ranks: Vec<Moves> = (0..world).map(of).collect();
                let of_hosts = |host: &Range<usize>| Moves::together(of_ranks[host.clone()].iter().cloned());
                let of_hosts = participant.hosts.iter().map(of_hosts).collect();
                let intent = dtrain_collective::Intent::new(Sequence(plane.sequence), other);
                HostOp::Copy { kind: intent.kind, operand: intent.operand, of_ranks, of_hosts }
            }
        };
        participant.stage = Stage::Given;
        self.host_arrive(tools);
    }

    /// Comes to the next barrier of the host.
    fn host_arrive(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        if memory.meeting.generation != plane.generation {
            return self.break_off(tools, "the generation is over".to_owned());
        }
        participant.round = memory.meeting.arrive(participant.local);
        if memory.meeting.all_came_to(participant.round) {
            tools.asks.push(Ask::WakeHost);
        }
    }

    /// The ranks of the host are waked: if all have come to the barrier, what lies behind it is begun.
    pub fn host_met(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        let waits =
            matches!(participant.stage, Stage::Given | Stage::Folded | Stage::Exchanged | Stage::Spread);
        if !waits || self.working || memory.meeting.generation != plane.generation {
            return;
        }
        if memory.meeting.broken {
            return self.break_off(tools, "a rank of this host broke off".to_owned());
        }
        if !memory.meeting.all_came_to(participant.round) {
            return;
        }
        match participant.stage {
            Stage::Given => self.host_fold(tools),
            Stage::Folded => self.host_exchange(tools),
            Stage::Exchanged => self.host_spread(tools),
            _ => self.host_end(tools),
        }
    }

    fn host_fold(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        match &participant.op {
            HostOp::Sum { count } => {
                if participant.sums_once {
                    // Before a peer can say something of the next step.
                    participant.trailer = participant.trailers(memory, *count)[0];
                }
                participant.stage = Stage::Folding;
                plane.gathering = true;
                self.work(tools, Work::Add);
            }
            HostOp::Barrier if participant.sums_once => self.host_end(tools),
            HostOp::Barrier => {
                participant.stage = Stage::Folded;
                self.host_arrive(tools);
            }
            HostOp::Copy { of_ranks, .. } => {
                let own = &of_ranks[participant.hosts[participant.host].start + participant.local];
                if let Some(given) = own.gives.clone().filter(|_| participant.local > 0) {
                    memory.copy((participant.local, 0), (0, 0), given);
                }
                participant.stage = Stage::Folded;
                self.host_arrive(tools);
            }
        }
    }

    /// The share that was worked at is done.
    pub(super) fn host_worked(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        match (participant.stage, &participant.op) {
            (Stage::Folding, HostOp::Sum { count }) => {
                participant.fold(memory, *count);
                participant.stage = Stage::Folded;
            }
            (Stage::Spreading, op) => {
                let share = Chunks::even(memory.slots[0].geometry().len, participant.ranks())
                    .chunk(participant.local);
                let first = participant.hosts[participant.host].start;
                for peer in 1..participant.ranks() {
                    let takes = match op {
                        HostOp::Copy { of_ranks, .. } => of_ranks[first + peer].takes,
                        _ => true,
                    };
                    if takes {
                        memory.copy((0, 0), (peer, 0), share.clone());
                    }
                }
                participant.stage = Stage::Spread;
            }
            (stage, op) => unreachable!("{stage:?} of {op:?} is no work"),
        }
        let leads = participant.local == 0 && participant.stage == Stage::Folded;
        self.host_arrive(tools);
        if leads && self.sabotage == Some(Sabotage::UnmetFold) {
            self.host_exchange(tools);
        }
    }

    /// On the leader of a host among several: begins the exchange. All others wait for its end.
    fn host_exchange(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        if participant.sums_once {
            return self.host_end(tools);
        }
        if participant.local > 0 {
            participant.stage = Stage::Exchanged;
            return self.host_arrive(tools);
        }
        participant.stage = Stage::Exchanging;
        let (machine, sequence) = (&mut plane.machine, Sequence(plane.sequence));
        let take_in = |machine: &mut dtrain_collective::RankMachine, root: usize| {
            machine.arena().lease(root).copy_from_slice(memory.slots[0].slot(root));
        };
        match &participant.op {
            HostOp::Sum { count } => {
                let trailers = participant.trailers(memory, *count);
                (0..trailers.len()).for_each(|root| take_in(machine, root));
                machine.start(sequence, &Op::AllReduce { micro_batches: *count, trailers: &trailers });
            }
            HostOp::Barrier => machine.start(sequence, &Op::Barrier),
            HostOp::Copy { kind, operand, of_hosts, .. } => {
                take_in(machine, 0);
                machine.start_moves(sequence, (*kind, *operand), Take::All, |host| of_hosts[host].clone());
            }
        }
        self.began(tools);
    }

    /// The exchange of the leaders is over.
    pub(super) fn host_exchanged(&mut self, tools: &mut Tools<'_>, trailer: Trailer) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        if !matches!(participant.op, HostOp::Barrier) {
            memory.slots[0].lease(0).copy_from_slice(plane.machine.arena().slot(0));
        }
        memory.meeting.trailers[0] = vec![trailer];
        participant.stage = Stage::Exchanged;
        self.host_arrive(tools);
    }

    fn host_spread(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let (Some(participant), Some(memory)) = (&mut plane.host, tools.memory.as_deref_mut()) else {
            return;
        };
        if matches!(participant.op, HostOp::Barrier) {
            return self.host_end(tools);
        }
        participant.trailer = memory.meeting.trailers[0][0];
        participant.stage = Stage::Spreading;
        self.work(tools, Work::Add);
    }

    fn host_end(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let Some(participant) = &mut plane.host else { return };
        participant.stage = Stage::Idle;
        let trailer = participant.trailer;
        self.ended(tools, trailer);
        self.go(tools);
    }

    /// Begins the barrier of a task.
    pub(super) fn meet(&mut self, tools: &mut Tools<'_>) {
        // Which of the two it is follows from what comes behind it.
        let skipped = match self.agenda.next() {
            Some(protocol::Task::Commit(_)) => Sabotage::UnmetUpdate,
            _ => Sabotage::UnmetMeasure,
        };
        if self.sabotage == Some(skipped) {
            return;
        }
        self.doing = Doing::Meet;
        if self.shards.is_some() {
            let Some(plane) = &mut self.plane else { return };
            plane.sequence += 1;
            plane.gathering = false;
            return self.start(tools, &Op::Barrier);
        }
        if let Some(plane) = &mut self.plane {
            plane.sequence = plane.sequence.max(FIRST_STEP);
        }
        self.host_give(tools, &Op::Barrier);
    }
}
