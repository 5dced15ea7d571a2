//! What a world is made from: sizes, network, faults. Everything random in a world follows from the plan's seed.

use dtrain_protocol::{CheckpointEvery, Reduce, Request, Schedule, StartFrom, Timeouts};
use dtrain_types::Step;
use std::time::Duration;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    pub fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.below(most.as_nanos() as u64 + 1))
    }
}

/// What goes wrong with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`.
    Kill,
    /// Stops answering and computing.
    Hang,
    /// Its engine fails, and it says so.
    Fail,
}

/// What a world is made from.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub members: u32,
    pub min_ranks: u32,
    pub absent: Vec<u32>,
    pub schedule: Schedule,
    pub reduce: Reduce,
    pub start: StartFrom,
    /// Percent of messages lost, and repeated.
    pub loss: u64,
    pub repeat: u64,
    pub delay: Duration,
    pub step: Duration,
    pub faults: Vec<(Duration, u32, Fault)>,
    pub requests: Vec<(Duration, Request)>,
    /// The member whose disk is full at the checkpoint of this step.
    pub disk_full: Option<(u32, u64)>,
    /// The member whose state is wrong from this step on.
    pub rotten: Option<(u32, u64)>,
    /// The member with another fingerprint.
    pub other_bits: Option<u32>,
    /// The step whose gradient is not finite, and the micro-batch that made it so.
    pub non_finite: Option<(u64, u32)>,
    /// After which step the reader of the event log pauses, and for how long.
    pub reader_pauses: Option<(u64, Duration)>,
    /// When, and for how long, the whole host sleeps.
    pub asleep: Option<(Duration, Duration)>,
}

impl Plan {
    pub fn calm(members: u32, steps: u64) -> Self {
        Self {
            seed: 1,
            members,
            min_ranks: 1,
            absent: Vec::new(),
            schedule: Schedule {
                last: Step(steps),
                steps_per_epoch: 4,
                checkpoint: CheckpointEvery::Epochs(1),
                validation_micro_batches: 5,
                verify: 1,
            },
            reduce: Reduce::Exact,
            start: StartFrom::Fresh,
            loss: 0,
            repeat: 0,
            delay: Duration::from_millis(1),
            step: Duration::from_millis(20),
            faults: Vec::new(),
            requests: Vec::new(),
            disk_full: None,
            rotten: None,
            other_bits: None,
            non_finite: None,
            reader_pauses: None,
            asleep: None,
        }
    }
}

pub fn timeouts() -> Timeouts {
    Timeouts::derive(Duration::from_secs(1)).expect("a second is in range")
}
