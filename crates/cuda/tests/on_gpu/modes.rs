//! How long an all-reduce over NCCL takes in exact order, and in the library's own (`ncclAllReduce`): both by turns, in one run.
//!
//! A rank is a thread. What is timed is the collective from its start to its end, records of the ranks included, of the slowest
//! rank. This file does not know where the library and the GPUs come from.

use crate::over_nccl::{self, together};
use dtrain_collective::{Aborter, Assignment, Backend, Geometry, Op, Reduce, Sequence};
use dtrain_cuda::collectives::NcclDevice;
use dtrain_cuda::driver::Gpu;
use dtrain_nccl::{NcclBackend, NcclLibrary, NcclSetup, UniqueId};
use dtrain_types::{Generation, Rank, Trailer, cut_evenly};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds that are not counted.
const WARM_UP: usize = 3;

/// What an all-reduce of this size takes: medians.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub bytes: usize,
    pub exact: Duration,
    pub ring: Duration,
}

impl Took {
    pub fn ratio(&self) -> f64 {
        self.exact.as_secs_f64() / self.ring.as_secs_f64()
    }
}

/// Ends the others' waits when a rank panics, so that a run fails and does not hang.
struct AbortOnPanic(Aborter);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a rank panicked");
        }
    }
}

/// One rank's part of both communicators.
struct Pair {
    backends: [NcclBackend<NcclDevice>; 2],
    rank: Rank,
    world: u32,
    next: u64,
}

impl Pair {
    /// Meets the other ranks. *Blocks* until they are all there.
    fn new(
        gpu: &Arc<Gpu>,
        library: &NcclLibrary,
        ids: &[UniqueId; 2],
        rank: Rank,
        world: u32,
        len: usize,
    ) -> Self {
        let meet = |mode: Reduce, id: &UniqueId| {
            let ranges = cut_evenly(world, world);
            let geometry = Geometry::plan(len, &ranges, &[world], mode);
            let membership = Assignment { generation: Generation(1), rank, ranges };
            let setup = NcclSetup { membership, mode, counts: &[world], cuts: &[] };
            over_nccl::meet(gpu, (library, id), setup, geometry, None)
        };
        let [exact, ring] = ids;
        Self { backends: [meet(Reduce::Exact, exact), meet(Reduce::Ring, ring)], rank, world, next: 1 }
    }

    /// Both find the right sum of what the ranks give; then all of it is zeros.
    fn check(&mut self) {
        for which in 0..2 {
            self.backends[which].arena().lease(0).fill(self.rank.0 as f32 + 1.0);
            self.reduce(which);
            let wanted = (self.world * (self.world + 1) / 2) as f32;
            let slot = self.backends[which].arena().lease(0);
            assert!(slot.iter().all(|x| *x == wanted), "{} is not {wanted}", slot[0]);
            slot.fill(0.0);
        }
    }

    /// An all-reduce behind a barrier; gives what it took.
    fn reduce(&mut self, which: usize) -> Duration {
        let (micro_batches, trailers) = (self.world, &[Trailer::EMPTY]);
        self.collective(which, &Op::Barrier);
        let begun = Instant::now();
        self.collective(which, &Op::AllReduce { micro_batches, trailers });
        begun.elapsed()
    }

    fn collective(&mut self, which: usize, op: &Op<'_>) {
        let number = Sequence(self.next);
        self.next += 1;
        let backend = &mut self.backends[which];
        let done = backend.start(number, op).and_then(|()| backend.finish(number));
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    /// All rounds, the counted ones by turns.
    fn rounds(&mut self, rounds: usize) -> Vec<[Duration; 2]> {
        let _ends_the_others = self.backends.each_ref().map(|backend| AbortOnPanic(backend.aborter()));
        self.check();
        let mut times: Vec<_> =
            (0..WARM_UP + rounds).map(|_| [0, 1].map(|which| self.reduce(which))).collect();
        times.split_off(WARM_UP)
    }

    /// Ends both communicators. *Blocks* for the other ranks.
    fn end(self) {
        self.backends.into_iter().for_each(over_nccl::end);
    }
}

/// What `world` ranks take that share these GPUs in turn. *Panics* with the words of whatever fails, and if a sum is wrong.
pub fn took(gpus: &[Arc<Gpu>], library: &NcclLibrary, world: u32, bytes: usize, rounds: usize) -> Took {
    let ids = [(); 2].map(|()| library.unique_id().unwrap_or_else(|error| panic!("{error}")));
    let meet = |rank: u32| {
        let gpu = &gpus[rank as usize % gpus.len()];
        Pair::new(gpu, library, &ids, Rank(rank), world, bytes / size_of::<f32>())
    };
    let mut pairs = together(0..world, meet);
    let of_ranks = together(&mut pairs, |pair| pair.rounds(rounds));
    together(pairs, Pair::end);
    let [exact, ring] = [0, 1].map(|which| {
        let slowest = |round: usize| of_ranks.iter().map(|rounds| rounds[round][which]).max();
        let mut times: Vec<Duration> = (0..rounds).filter_map(slowest).collect();
        times.sort_unstable();
        times[times.len() / 2]
    });
    Took { bytes, exact, ring }
}
