//! The slot of the arena that a gradient is laid into, and what is done with each part of it as soon as that is final.
//!
//! A part is rounded. In the last pass of a step, where the backend takes offers, it is also added to what the passes before
//! have left, bucket by bucket, and offered to the peers while the rest is computed, if that takes long enough. Additions are
//! those of the reduction tree in either case, so the bits are the same. It does not know what is computed, nor how the
//! backend sends it.

use crate::profiler::Profiler;
use dtrain_collective::{Backend, Sequence, add_to};
use dtrain_engine::Gradient;
use dtrain_types::Wire;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The first bucket is no larger than this, so that the link has something to do early. *Units*: bytes.
const FIRST_BUCKET: usize = 1 << 20;
/// Where the rest of a pass takes less than a bucket takes at this speed, sending it early hides nothing and costs the cores
/// that compute the rest. *Units*: bytes a second.
const FAST_LINK: f64 = 1e9;

/// How long the rest of the last pass of a step takes from each of its stages on, as the step before had it.
#[derive(Debug, Default)]
pub struct Rests {
    known: Vec<Duration>,
    settled: Vec<Instant>,
}

impl Rests {
    /// Whether what is left behind the newest stage takes this long; yes where no step was made yet.
    fn is_at_least(&self, wanted: Duration) -> bool {
        self.known.get(self.settled.len().saturating_sub(1)).is_none_or(|rest| *rest >= wanted)
    }

    /// The pass was over at `end`.
    fn learn(&mut self, end: Instant) {
        self.known.clear();
        self.known.extend(self.settled.drain(..).map(|at| end - at));
    }
}

/// A slot of the arena, part by part. See the file's comment.
pub struct GradientSlot<'a> {
    backend: &'a mut dyn Backend,
    slot: usize,
    /// What each part is rounded to, where the replica does not do it.
    wire: Wire,
    /// For the last pass of a step, where the backend takes offers.
    offers: Option<Offers<'a>>,
    /// Hears of what is offered.
    profiler: &'a mut Profiler,
    len: usize,
    /// Everything from here on is final.
    open: usize,
    /// Everything from here on is added up, and offered.
    offered: usize,
}

/// What becomes of the parts of the last pass of a step.
pub struct Offers<'a> {
    /// The all-reduce that they are for.
    pub sequence: Sequence,
    /// Micro-batches of the step.
    pub micro_batches: u32,
    /// How much is offered at once, at least. *Units*: bytes.
    pub bucket_bytes: usize,
    /// The additions that are left in this rank's last root, as slots: the second is added to the first.
    pub merges: &'a [[usize; 2]],
    /// What each sum is rounded to.
    pub wire: Wire,
    /// How long what is left takes.
    pub rests: &'a mut Rests,
}

impl<'a> GradientSlot<'a> {
    /// A slot of which nothing is final.
    pub fn new(
        backend: &'a mut dyn Backend,
        slot: usize,
        wire: Wire,
        offers: Option<Offers<'a>>,
        profiler: &'a mut Profiler,
    ) -> Self {
        let len = backend.arena().geometry().len;
        Self { backend, slot, wire, offers, profiler, len, open: len, offered: len }
    }

    /// The pass is over.
    pub fn finish(self) {
        if let Some(offers) = self.offers {
            offers.rests.learn(Instant::now());
        }
    }

    /// Adds up and offers what is final, if it makes a bucket. What is final last goes with the start of the all-reduce.
    fn hand_on(&mut self) {
        let Some(offers) = &mut self.offers else { return };
        offers.rests.settled.push(Instant::now());
        let (from, fresh) = (self.open, self.open..self.offered);
        let is_first = self.offered == self.len;
        let bucket = if is_first { FIRST_BUCKET.min(offers.bucket_bytes) } else { offers.bucket_bytes };
        let at_best = Duration::from_secs_f64(bucket as f64 / FAST_LINK);
        let is_ripe = size_of::<f32>() * fresh.len() >= bucket && offers.rests.is_at_least(at_best);
        if from > 0 && !is_ripe {
            return;
        }
        for [into, other] in offers.merges {
            let (into, other) = self.backend.arena().lease_pair_part(*into, *other, fresh.clone());
            add_to(offers.wire, into, other);
        }
        self.offered = from;
        if from > 0 {
            self.backend.offer(offers.sequence, offers.micro_batches, from);
            self.profiler.offered();
        }
    }
}

impl Gradient for GradientSlot<'_> {
    fn elements(&self) -> usize {
        self.len
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.backend.arena().lease_part(self.slot, part)
    }

    fn settle(&mut self, from: usize) {
        let fresh = from..self.open;
        if self.wire != Wire::F32 {
            let fresh = self.backend.arena().lease_part(self.slot, fresh);
            self.wire.round(fresh);
        }
        self.open = from;
        self.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_taken_for_long_until_a_step_has_shown_it() {
        let (mut rests, begun) = (Rests::default(), Instant::now());
        let seconds = |seconds| begun + Duration::from_secs(seconds);
        for at in [0, 2] {
            rests.settled.push(seconds(at));
            assert!(rests.is_at_least(Duration::MAX));
        }
        rests.learn(seconds(3));
        let wanted = Duration::from_secs(2);
        rests.settled.push(seconds(10));
        assert!(rests.is_at_least(wanted), "three seconds were left behind the first stage");
        rests.settled.push(seconds(11));
        assert!(!rests.is_at_least(wanted), "and one behind the second");
    }
}
