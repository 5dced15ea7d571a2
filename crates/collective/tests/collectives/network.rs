//! A network in one thread: frames between all ranks lie in one heap, from which a seed picks the next to arrive.

use dtrain_collective::{
    Assignment, CollectiveError, Frame, Geometry, Header, Op, RankMachine, Reduce, Sequence, Verdict,
};
use dtrain_oracle::halves::rounded;
use dtrain_oracle::plain::compute_rounded;
use dtrain_types::{Generation, Key, MicroBatch, MicroRange, Rank, Seed, Site, Step, Wire};

pub const GENERATION: Generation = Generation(5);

/// A frame on its way.
#[derive(Clone, Debug)]
pub struct Flying {
    pub from: Rank,
    pub to: usize,
    pub header: Header,
    pub payload: Vec<f32>,
}

pub struct Network {
    pub machines: Vec<RankMachine>,
    pub flying: Vec<Flying>,
    key: Key,
    draws: u32,
    /// What the leaves and sums of a rank are rounded to.
    round: fn(f32) -> f32,
}

impl Network {
    pub fn new(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce, segment: usize) -> Self {
        let geometry = Geometry::plan(len, ranges, counts, mode);
        let machine = |rank| {
            let membership =
                Assignment { generation: GENERATION, rank: Rank(rank as u32), ranges: ranges.to_vec() };
            let machine =
                RankMachine::with_segment(membership, mode, geometry, segment).expect("a good membership");
            // Some have room for a single segment that comes before its time.
            let mut machine = if rank % 3 == 2 { machine } else { machine.with_room_for(1 + rank % 3) };
            machine.prepare(counts);
            machine
        };
        let key = Key::new(Seed(len as u64), Step(ranges.len() as u64), MicroBatch(0), Site(1));
        let machines = (0..ranges.len()).map(machine).collect();
        Self { machines, flying: Vec::new(), key, draws: 0, round: |x| x }
    }

    /// The same with every leaf and sum rounded to bf16.
    pub fn rounded(mut self) -> Self {
        self.machines.iter_mut().for_each(|machine| machine.set_wire(Wire::Bf16));
        self.round = rounded;
        self
    }

    /// Computes a step on one rank and starts its all-reduce.
    pub fn start_step(&mut self, rank: usize, seq: Sequence, count: u32) {
        let (range, mode) = (self.machines[rank].membership().range(), self.machines[rank].mode());
        let trailers = compute_rounded(self.machines[rank].arena(), range, count, mode, self.round);
        self.machines[rank].start(seq, &Op::AllReduce { micro_batches: count, trailers: &trailers });
        self.send(rank);
    }

    /// Puts all that a rank can send on its way.
    pub fn send(&mut self, rank: usize) {
        let machine = &mut self.machines[rank];
        while let Some(out) = machine.poll_send() {
            let (to, header, payload) = (out.to.index(), out.header, out.payload.to_vec());
            self.flying.push(Flying { from: Rank(rank as u32), to, header, payload });
            machine.sent();
        }
    }

    /// Delivers one frame, any of those that are not for later; false when there is none.
    pub fn deliver_one(&mut self) -> Result<bool, CollectiveError> {
        for _ in 0..self.flying.len() {
            self.draws += 1;
            let flying = self.flying.swap_remove(self.key.bits(self.draws) as usize % self.flying.len());
            let frame = Frame { from: flying.from, header: flying.header, payload: &flying.payload };
            match self.machines[flying.to].handle_frame(&frame)? {
                Verdict::Taken | Verdict::Stale => {
                    self.send(flying.to);
                    return Ok(true);
                }
                Verdict::Later => self.flying.push(flying),
            }
        }
        Ok(false)
    }

    /// Delivers until nothing moves.
    pub fn settle(&mut self) -> Result<(), CollectiveError> {
        // A random pick may miss the only frame whose time has come; many rounds do not.
        let mut idle = 0;
        while !self.flying.is_empty() && idle < 40 {
            idle = if self.deliver_one()? { 0 } else { idle + 1 };
        }
        Ok(())
    }
}
