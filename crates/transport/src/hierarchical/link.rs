//! A leader's end of the exchange between hosts: the machine of the collective crate over the leader's own slots in
//! shared memory.
//!
//! Each host is one rank of that machine, with the range of all its ranks. It does not know who its peers on the host are;
//! that they are aborted it hears through the arena.

use crate::shm::{AbortWatch, SharedSlots, ShmAbort};
use dtrain_collective::{
    CollectiveError, Moves, Narrow, Op, OpKind, RankMachine, Sequence, Take, Transport, drive, pump,
};
use dtrain_types::{Trailer, Wire};
use std::sync::Arc;

/// What a leader has to reach the other hosts.
pub(super) struct Link<T> {
    machine: RankMachine<SharedSlots>,
    transport: T,
    abort: Arc<ShmAbort>,
    _watch: AbortWatch,
}

impl<T: Transport> Link<T> {
    /// *Errors*: the kernel's, when it has no thread for the watch.
    pub fn new(
        machine: RankMachine<SharedSlots>,
        transport: T,
        abort: Arc<ShmAbort>,
    ) -> std::io::Result<Self> {
        let watch = AbortWatch::start(abort.clone(), transport.waker())?;
        Ok(Self { machine, transport, abort, _watch: watch })
    }

    /// Plans steps of these counts.
    pub fn prepare(&mut self, counts: &[u32]) {
        self.machine.prepare(counts);
    }

    /// Rounds every sum between hosts.
    pub fn set_wire(&mut self, wire: Wire) {
        self.machine.set_wire(wire);
    }

    /// What hosts need and have.
    pub fn narrow(&mut self, narrow: Narrow) {
        self.machine.narrow(narrow);
    }

    /// Sends what the host has of its next sum from element `from` on, and takes what has come. *Errors*: as `sum`.
    pub fn offer(
        &mut self,
        sequence: Sequence,
        micro_batches: u32,
        from: usize,
    ) -> Result<(), CollectiveError> {
        self.machine.offer(sequence, micro_batches, from);
        pump(&mut self.machine, &mut self.transport)
    }

    /// Sums what all hosts have; the sum appears in the leader's slot 0.
    ///
    /// *Blocks* until every host has put in its part, or the generation is aborted on this host. *Errors*: as the
    /// machine's and the transport's, with hosts as ranks.
    pub fn sum(
        &mut self,
        sequence: Sequence,
        micro_batches: u32,
        trailers: &[Trailer],
    ) -> Result<Trailer, CollectiveError> {
        self.machine.start(sequence, &Op::AllReduce { micro_batches, trailers });
        self.drive()?;
        Ok(self.machine.finish(sequence))
    }

    /// Moves floats between the leaders' slots 0. *Blocks* and *Errors*: as `sum`.
    pub fn exchange(
        &mut self,
        sequence: Sequence,
        what: (OpKind, u32),
        take: Take,
        moves: &[Moves],
    ) -> Result<(), CollectiveError> {
        self.machine.start_moves(sequence, what, take, |host| moves[host].clone());
        self.drive()?;
        self.machine.finish(sequence);
        Ok(())
    }

    pub fn describe(&self) -> String {
        self.transport.describe()
    }

    fn drive(&mut self) -> Result<(), CollectiveError> {
        let Self { machine, transport, abort, .. } = self;
        drive(machine, transport, || abort.check())
    }
}
