//! The slot of the arena that a gradient is written into, and what is done with each part of it as soon as that is final.
//!
//! In the last pass of a step, where the backend takes offers, a part is added to what the passes before have left, bucket by
//! bucket, and offered to the peers while the rest is computed, if that takes long enough. It does not know what is computed, nor
//! how the backend sends it.

use crate::profiler::Profiler;
use dtrain_collective::{Backend, Sequence, add_to};
use dtrain_engine::{Gradient, Layout};
use dtrain_types::Wire;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The first bucket is no larger than this, so that the link has something to do early. *Units*: bytes.
const FIRST_BUCKET: usize = 1 << 20;
/// A bucket is no larger than this, or than was asked for: a rank has room for one of each of its peers. *Units*: bytes.
const LARGEST_BUCKET: usize = 64 << 20;
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

/// What a rank does with the parts of the last pass of a step while it goes.
#[derive(Debug)]
pub struct Offering {
    /// How much is offered at once, at least. *Units*: bytes.
    bucket_bytes: usize,
    /// The additions that are left in this rank's last root, as slots: the second is added to the first.
    pub merges: Vec<[usize; 2]>,
    /// How long what is left takes.
    rests: Rests,
}

impl Offering {
    /// Buckets of at least so many bytes, of roots that leave up to so many additions.
    pub fn new(bucket_bytes: usize, most_merges: usize) -> Self {
        Self { bucket_bytes, merges: Vec::with_capacity(most_merges), rests: Rests::default() }
    }
}

/// An offering, and what its parts are for.
pub struct Offer<'a> {
    /// The all-reduce.
    pub sequence: Sequence,
    /// Micro-batches of its step.
    pub micro_batches: u32,
    /// What each sum is rounded to.
    pub wire: Wire,
    /// What is done with them.
    pub offering: &'a mut Offering,
}

/// A slot of the arena, part by part. See the file's comment.
pub struct GradientSlot<'a> {
    backend: &'a mut dyn Backend,
    slot: usize,
    /// In the last pass of a step, where the backend takes offers.
    offer: Option<Offer<'a>>,
    /// Hears when the backward pass begins, and of what is offered.
    profiler: &'a mut Profiler,
    len: usize,
    /// Everything from here on is added up, and offered.
    offered: usize,
}

impl<'a> GradientSlot<'a> {
    /// A slot of which nothing is final.
    pub fn new(
        backend: &'a mut dyn Backend,
        slot: usize,
        offer: Option<Offer<'a>>,
        profiler: &'a mut Profiler,
    ) -> Self {
        let len = backend.arena().geometry().len;
        Self { backend, slot, offer, profiler, len, offered: len }
    }

    /// The pass is over.
    pub fn finish(self) {
        if let Some(Offer { offering, .. }) = self.offer {
            offering.rests.learn(Instant::now());
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

    /// Adds up and offers what is final, if it makes a bucket. What is final last goes with the start of the all-reduce.
    fn settle(&mut self, from: usize) {
        let Some(Offer { sequence, micro_batches, wire, offering }) = &mut self.offer else { return };
        let Offering { bucket_bytes, merges, rests } = &mut **offering;
        rests.settled.push(Instant::now());
        let fresh = from..self.offered;
        let is_first = self.offered == self.len;
        let bucket = if is_first { FIRST_BUCKET.min(*bucket_bytes) } else { *bucket_bytes };
        let at_best = Duration::from_secs_f64(bucket as f64 / FAST_LINK);
        let is_ripe = size_of::<f32>() * fresh.len() >= bucket && rests.is_at_least(at_best);
        if from > 0 && !is_ripe {
            return;
        }
        for [into, other] in merges.iter() {
            let (into, other) = self.backend.arena().lease_pair_part(*into, *other, fresh.clone());
            add_to(*wire, into, other);
        }
        self.offered = from;
        if from > 0 {
            self.backend.offer(*sequence, *micro_batches, from);
            self.profiler.offered();
        }
    }

    fn backward_begins(&mut self) {
        self.profiler.backward_begins();
    }
}

/// Where gradients are cut that are offered in buckets of at least so many bytes: falling, at starts of stages, and inside of them where
/// a bucket would be far larger.
#[must_use]
pub fn cuts(layout: &Layout, bucket_bytes: usize) -> Vec<usize> {
    let (mut cuts, mut end) = (Vec::new(), layout.gradient_len());
    let mut bucket = FIRST_BUCKET.min(bucket_bytes);
    let most = LARGEST_BUCKET.max(bucket_bytes) / size_of::<f32>() / LINE * LINE;
    let mut cut = |at: usize, end: usize| {
        let pieces = (end - at).div_ceil(most);
        let inside = (1..pieces).rev().map(|piece| at + ((end - at) * piece / pieces).next_multiple_of(LINE));
        cuts.extend(inside.chain([at]));
    };
    for stage in layout.stages.iter().rev() {
        // On a cache line of the device: what is behind it is final too.
        let at = stage.parameters.start.next_multiple_of(LINE);
        if at > 0 && at < end && size_of::<f32>() * (end - at) >= bucket {
            cut(at, end);
            (end, bucket) = (at, bucket_bytes);
        }
    }
    cut(0, end);
    // The start of all is no cut.
    cuts.pop();
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
        // 144 MiB in front, and 80 behind it.
        let large = layout(&[36 * million, 56 * million]);
        assert_eq!(cuts(&large, 4 << 20), [46, 36, 24, 12].map(|at| at * million));
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
