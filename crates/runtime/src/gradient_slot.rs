//! The slot of the arena that a gradient is laid into, and what is done with each part of it as soon as that is final.
//!
//! A part is rounded. In the last pass of a step, where the backend takes offers, it is also added to what the passes before
//! have left, bucket by bucket, and offered to the peers while the rest is computed, if that takes long enough. Additions are
//! those of the reduction tree in either case, so the bits are the same. Where slots are memory of the replica's device, it is the
//! replica that adds, and this hands on what it settles. It does not know what is computed, nor how the backend sends it.

use crate::profiler::Profiler;
use dtrain_collective::{Backend, Sequence, add_to};
use dtrain_engine::{Gradient, Kept, Layout};
use dtrain_types::Wire;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The first bucket is no larger than this, so that the link has something to do early. *Units*: bytes.
const FIRST_BUCKET: usize = 1 << 20;
/// Parts of a slot on a device begin at multiples of this. *Units*: floats.
const LINE: usize = 64;
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

/// A slot in which a replica computes on its device. It is told of what is final as the pass is given to the device, and the
/// backend sees to the order there.
pub struct DeviceSlot<'a> {
    backend: &'a mut dyn Backend,
    kept: Kept,
    offers: Option<Offers<'a>>,
}

impl<'a> DeviceSlot<'a> {
    /// A slot of which nothing is final.
    pub fn new(backend: &'a mut dyn Backend, kept: Kept, offers: Option<Offers<'a>>) -> Self {
        Self { backend, kept, offers }
    }
}

impl Gradient for DeviceSlot<'_> {
    fn elements(&self) -> usize {
        self.kept.elements()
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.kept.part(part)
    }

    fn settle(&mut self, from: usize) {
        // What is final last goes with the start of the all-reduce.
        if let Some(offers) = self.offers.as_ref().filter(|_| from > 0) {
            self.backend.offer(offers.sequence, offers.micro_batches, from);
        }
    }

    fn kept(&self) -> Option<usize> {
        self.kept.kept()
    }

    fn merges(&self) -> &[[usize; 2]] {
        self.offers.as_ref().map_or(&[], |offers| offers.merges)
    }
}

/// Where gradients are cut that are offered in buckets of at least so many bytes: falling, at starts of stages.
pub fn cuts(layout: &Layout, bucket_bytes: usize) -> Vec<usize> {
    let (mut cuts, mut end) = (Vec::new(), layout.gradient_len());
    let mut bucket = FIRST_BUCKET.min(bucket_bytes);
    for stage in layout.stages.iter().rev() {
        // On a cache line of the device: what is behind it is final too.
        let at = stage.parameters.start.next_multiple_of(LINE);
        if at > 0 && at < end && size_of::<f32>() * (end - at) >= bucket {
            cuts.push(at);
            (end, bucket) = (at, bucket_bytes);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::StageSlice;

    #[test]
    fn buckets_end_where_stages_do_and_the_first_one_is_small() {
        let stage =
            |parameters: Range<usize>| StageSlice { name: String::new(), kind: "", parameters, stats: 0..0 };
        let layout = |ends: &[usize]| {
            let starts = std::iter::once(&0).chain(ends);
            let stages = starts.zip(ends).map(|(start, end)| stage(*start..*end)).collect();
            Layout { stages, parameters: *ends.last().expect("a stage"), ..Layout::default() }
        };
        let million = 1 << 20;
        let even = layout(&[million, 2 * million, 3 * million, 4 * million]);
        assert_eq!(cuts(&even, 4 << 20), [3 * million, 2 * million, million]);
        assert_eq!(
            cuts(&even, 8 << 20),
            [3 * million, million],
            "the first is cut off as soon as it is a MiB"
        );
        assert_eq!(cuts(&layout(&[100, 130, 300, 301]), 64), [192, 128], "on lines, and none that is empty");
        assert!(cuts(&layout(&[10]), 1).is_empty() && cuts(&layout(&[0]), 1).is_empty());
    }

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
