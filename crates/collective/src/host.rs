//! A backend over any transport of frames: the machine of `machine.rs`, and the loop of `drive.rs`.
//!
//! It does not know what carries the frames.

use crate::drive::{drive, flush, pump};
use crate::{
    Abort, AbortFlag, Aborter, Arena, Assignment, Backend, CollectiveError, Geometry, Narrow, Op,
    RankMachine, Reduce, SEGMENT, Sequence, Transport, Waker,
};
use dtrain_types::{Trailer, Wire};
use std::sync::Arc;

/// Collectives in host memory over a [`Transport`].
pub struct HostBackend<T> {
    machine: RankMachine,
    transport: T,
    abort: Arc<HostAbort>,
    dead: bool,
    /// How the offers for the next sum went.
    offered: Result<(), CollectiveError>,
}

struct HostAbort {
    flag: AbortFlag,
    wake: Waker,
}

impl Abort for HostAbort {
    fn abort(&self, reason: &str) {
        self.flag.set(reason);
        (self.wake)();
    }
}

impl<T: Transport> HostBackend<T> {
    /// Joins a generation over `transport`, prepared for steps of `counts` micro-batches.
    ///
    /// *Errors*: [`CollectiveError::Assignment`]. *Panics* as [`Backend::prepare`].
    pub fn new(
        transport: T,
        membership: Assignment,
        mode: Reduce,
        geometry: Geometry,
        counts: &[u32],
    ) -> Result<Self, CollectiveError> {
        let machine = RankMachine::with_segment(membership, mode, geometry, SEGMENT)?;
        let mut backend = Self::from_machine(transport, machine);
        backend.prepare(counts);
        Ok(backend)
    }

    /// Drives a machine that was made elsewhere, for instance with other segments.
    #[must_use]
    pub fn from_machine(transport: T, machine: RankMachine) -> Self {
        let abort = Arc::new(HostAbort { flag: AbortFlag::default(), wake: transport.waker() });
        Self { machine, transport, abort, dead: false, offered: Ok(()) }
    }

    /// Rounds every sum, as the owner of the slots rounds the roots; the same on all ranks. *Panics* in a collective.
    #[must_use]
    pub fn with_wire(mut self, wire: Wire) -> Self {
        self.machine.set_wire(wire);
        self
    }

    fn alive(&self) -> Result<(), CollectiveError> {
        self.abort.flag.check()?;
        if self.dead { Err(CollectiveError::Dead) } else { Ok(()) }
    }

    fn or_die<R>(&mut self, result: Result<R, CollectiveError>) -> Result<R, CollectiveError> {
        self.dead |= result.is_err();
        result
    }
}

impl<T: Transport> Backend for HostBackend<T> {
    fn prepare(&mut self, counts: &[u32]) {
        self.machine.prepare(counts);
    }

    fn arena(&mut self) -> &mut dyn Arena {
        assert!(!self.dead, "slots are lent by a living backend only");
        self.machine.arena()
    }

    fn reduced_before(&mut self) -> Option<&[f32]> {
        Some(self.machine.own_slot())
    }

    fn narrow(&mut self, narrow: &Narrow) {
        self.machine.narrow(narrow.clone());
    }

    fn takes_offers(&self) -> bool {
        self.machine.takes_offers()
    }

    fn offer(&mut self, seq: Sequence, micro_batches: u32, from: usize) {
        if self.takes_offers() && self.offered.is_ok() {
            self.offered = self.alive().and_then(|()| {
                self.machine.offer(seq, micro_batches, from);
                pump(&mut self.machine, &mut self.transport)
            });
        }
    }

    fn start(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError> {
        let offered = std::mem::replace(&mut self.offered, Ok(()));
        let result = self.alive().and(offered).and_then(|()| {
            self.machine.start(seq, op);
            flush(&mut self.machine, &mut self.transport).map(drop)
        });
        self.or_die(result)
    }

    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        let result = self.alive().and_then(|()| {
            let Self { machine, transport, abort, .. } = self;
            drive(machine, transport, || abort.flag.check())
        });
        self.or_die(result).map(|()| self.machine.finish(seq))
    }

    fn aborter(&self) -> Aborter {
        Aborter::new(self.abort.clone())
    }

    fn describe(&self) -> String {
        let Assignment { rank, .. } = self.machine.membership();
        let (mode, world) = (self.machine.describe_sums(), self.machine.membership().world());
        format!("{}, {mode}, rank {rank} of {world}", self.transport.describe())
    }
}
