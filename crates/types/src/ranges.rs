//! Who computes what: a contiguous range of micro-batches per rank.

use serde::{Deserialize, Serialize};

/// The micro-batches `lo..hi` of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MicroRange {
    /// First micro-batch.
    pub lo: u32,
    /// One past the last.
    pub hi: u32,
}

impl MicroRange {
    /// How many micro-batches the range holds.
    #[must_use]
    pub fn len(self) -> u32 {
        self.hi - self.lo
    }

    /// Whether it holds none: a hot spare.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.lo == self.hi
    }

    /// Those that a step of `count` micro-batches has.
    #[must_use]
    pub fn within(self, count: u32) -> Self {
        Self { lo: self.lo.min(count), hi: self.hi.min(count) }
    }
}

/// Cuts `0..count` into one contiguous range per rank, as even as whole micro-batches allow.
///
/// A cut moves to a node of the reduction tree when no rank gets more than 5 % above the even share by it. Ranks
/// beyond `count` get an empty range at the end.
///
/// *Panics* if `world` is 0.
#[must_use]
pub fn cut_evenly(count: u32, world: u32) -> Vec<MicroRange> {
    assert!(world > 0, "a generation has at least one rank");
    cut_in_proportion(count, &vec![1.0; world as usize])
}

/// Cuts `0..count` in proportion to `speeds` (micro-batches per second, or any common unit).
///
/// *Order*: a pure function of its arguments. *Panics* if `speeds` is empty or a speed is not finite and positive.
#[must_use]
pub fn cut_in_proportion(count: u32, speeds: &[f64]) -> Vec<MicroRange> {
    assert!(!speeds.is_empty(), "a generation has at least one rank");
    assert!(
        speeds.iter().all(|s| s.is_finite() && *s > 0.0),
        "a speed is a finite positive number: {speeds:?}"
    );
    // Spares come last: the ranks beyond `count` would compute nothing.
    let busy = speeds.len().min(count as usize);
    let total: f64 = speeds[..busy].iter().sum();
    let mut ranges = Vec::with_capacity(speeds.len());
    let (mut lo, mut passed) = (0u32, 0.0f64);
    for (i, speed) in speeds.iter().enumerate() {
        if i >= busy {
            ranges.push(MicroRange { lo: count, hi: count });
            continue;
        }
        passed += speed;
        let ideal = passed / total * f64::from(count);
        let left = (busy - i - 1) as u32;
        let hi =
            if left == 0 { count } else { near_tree_node(ideal, count, busy).clamp(lo + 1, count - left) };
        ranges.push(MicroRange { lo, hi });
        lo = hi;
    }
    ranges
}

/// The cut nearest to `ideal` that is a multiple of the largest power of two costing at most 5 % of a share.
fn near_tree_node(ideal: f64, count: u32, busy: usize) -> u32 {
    let even = ideal.round();
    let slack = 0.05 * f64::from(count) / busy as f64;
    let mut power = 1u32 << count.ilog2();
    while power > 1 {
        let cut = (ideal / f64::from(power)).round() * f64::from(power);
        if cut > 0.0 && cut < f64::from(count) && (cut - even).abs() <= slack {
            return cut as u32;
        }
        power /= 2;
    }
    even as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_every_micro_batch_once_in_order() {
        for count in 0..=70 {
            for world in 1..=16 {
                let ranges = cut_evenly(count, world);
                assert_eq!(ranges.len(), world as usize);
                let mut next = 0;
                for range in &ranges {
                    assert_eq!(range.lo, next);
                    next = range.hi;
                }
                assert_eq!(next, count);
                let (min, max) = (ranges.iter().map(|r| r.len()).min(), ranges.iter().map(|r| r.len()).max());
                let even = count.div_ceil(world);
                assert!(
                    max.unwrap_or(0) <= even + count.div_ceil(20 * world),
                    "{count} over {world}: {min:?} {max:?}"
                );
            }
        }
    }

    #[test]
    fn ranks_beyond_the_micro_batches_are_spares_at_the_end() {
        let ranges = cut_evenly(3, 5);
        assert_eq!(ranges.iter().map(|r| r.len()).collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
    }

    #[test]
    fn a_faster_rank_gets_more() {
        let ranges = cut_in_proportion(12, &[1.0, 2.0]);
        assert_eq!(ranges, [MicroRange { lo: 0, hi: 4 }, MicroRange { lo: 4, hi: 12 }]);
    }

    #[test]
    fn a_short_step_has_some_of_a_range_or_nothing_of_it() {
        let range = MicroRange { lo: 2, hi: 5 };
        assert_eq!([0, 2, 3, 5, 9].map(|count| range.within(count).len()), [0, 0, 1, 3, 3]);
        assert_eq!(range.within(9), range);
    }
}
