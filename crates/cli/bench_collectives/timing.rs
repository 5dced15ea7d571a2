//! What one rank does: rewrite, meet, run the operation against the clock, compare. It does not know where it lives.

use super::case::Case;
use super::values::{Reference, fill};
use dtrain_collective::{Backend, CollectiveError, HostBackend, Op, Sequence};
use dtrain_transport::{MemoryTransport, ShmBackend};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A rank's end of what carries the floats: the backends of training.
pub enum Way {
    Shared(Box<ShmBackend>),
    Queues(Box<HostBackend<MemoryTransport>>),
}

impl Way {
    pub fn backend(&mut self) -> &mut dyn Backend {
        match self {
            Self::Shared(backend) => &mut **backend,
            Self::Queues(backend) => &mut **backend,
        }
    }
}

/// The clock of one rank at each operation, which is that of the whole host. *Units*: nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    pub begun: Vec<u64>,
    pub ended: Vec<u64>,
    /// How long the memory alone took, where that is measured.
    pub memory: Vec<u64>,
}

/// What a rank comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    Times(Times),
    /// An operation gave a wrong result.
    Wrong(String),
    /// It ended without a word.
    Died(String),
    /// An operation gave none.
    Failed(String),
}

impl Said {
    /// Which of several ranks without times is to blame: the others stopped because of it.
    pub fn blame(&self) -> u8 {
        match self {
            Self::Wrong(_) => 3,
            Self::Died(_) => 2,
            Self::Failed(_) => 1,
            Self::Times(_) => 0,
        }
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Keeps this thread on one of the cores that it may use; ranks beyond the cores begin again with the first.
fn pin(rank: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut own = CpuSet::new();
    own.set(cores[rank % cores.len()]);
    // Where pinning is forbidden the numbers are only noisier.
    let _ = sched_setaffinity(None, &own);
}

/// Measures one case as one of its ranks. *Blocks* until its peers have done the same.
pub fn measure(case: &Case, rank: usize, way: Way) -> Said {
    if case.pin {
        pin(rank);
    }
    let mut runner = Runner { case, rank, way, sequence: 0, reference: Reference::new(case, rank) };
    let said = runner.run().unwrap_or_else(|error| Said::Failed(error.to_string()));
    if !matches!(said, Said::Times(_)) {
        // The others wait for this rank, and it does not come.
        runner.way.backend().aborter().abort("a rank gave up");
    }
    said
}

struct Runner<'a> {
    case: &'a Case,
    rank: usize,
    way: Way,
    sequence: u64,
    reference: Reference,
}

impl Runner<'_> {
    fn run(&mut self) -> Result<Said, CollectiveError> {
        let (sources, targets) = (self.case.sources(), self.case.targets());
        let op = self.case.op(&sources, &targets);
        let mut times = Times::default();
        let (warm_up, rounds) = (self.case.warm_up(), self.case.warm_up() + self.case.samples);
        for round in 0..rounds {
            let (begun, ended) = self.operation(&op, round)?;
            if let Err(wrong) = self.reference.check(self.way.backend().arena().lease(0), round) {
                return Ok(Said::Wrong(wrong));
            }
            if round >= warm_up {
                times.begun.push(begun);
                times.ended.push(ended);
            }
            if let Some(took) = self.memory(round)? {
                if let Err(wrong) = self.reference.check_flipped(self.way.backend().arena().lease(0), round) {
                    return Ok(Said::Wrong(wrong));
                }
                times.memory.extend((round >= warm_up).then_some(took));
            }
        }
        // Nobody leaves while a peer may still look.
        self.collective(&Op::Barrier)?;
        Ok(Said::Times(times))
    }

    fn operation(&mut self, op: &Op<'_>, round: u32) -> Result<(u64, u64), CollectiveError> {
        fill(self.way.backend().arena().lease(0), self.case.wire(), self.rank, round, 0);
        self.collective(&Op::Barrier)?;
        let begun = now();
        self.collective(op)?;
        let ended = now();
        self.await_all()?;
        Ok((begun, ended))
    }

    /// The memory alone, straight after the operation that it is held against.
    fn memory(&mut self, round: u32) -> Result<Option<u64>, CollectiveError> {
        self.sequence += 1;
        match &mut self.way {
            Way::Shared(backend) if self.case.limit => {
                fill(backend.arena().lease(0), self.case.wire(), self.rank, round, 0);
                let took = backend.time_of_memory(Sequence(self.sequence))?;
                self.await_all()?;
                Ok(Some(took.as_nanos() as u64))
            }
            _ => Ok(None),
        }
    }

    /// Nobody compares results before all have read the clock: a peer on the same core would hold the comparison for its own
    /// time, and that takes many times as long as a small operation.
    fn await_all(&mut self) -> Result<(), CollectiveError> {
        self.collective(&Op::Barrier)
    }

    fn collective(&mut self, op: &Op<'_>) -> Result<(), CollectiveError> {
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        let backend = self.way.backend();
        backend.start(sequence, op)?;
        backend.finish(sequence).map(drop)
    }
}
