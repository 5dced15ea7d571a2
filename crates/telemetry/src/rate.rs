//! Samples per second over the last while, and how long the rest will take.
//!
//! Time is an argument. The window forgets old observations, so a pause or a slow start does not weigh on the figure
//! for the rest of the run.

use dtrain_types::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Observations kept in a window: enough that its age moves smoothly.
const KEPT: usize = 64;

/// A moving rate of samples.
#[derive(Clone, Debug)]
pub struct Rate {
    window: Duration,
    /// The past, oldest first, at least `window / KEPT` apart.
    past: VecDeque<(Instant, u64)>,
    latest: Option<(Instant, u64)>,
}

impl Rate {
    /// A rate over the last `window`.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        Self { window, past: VecDeque::with_capacity(KEPT + 2), latest: None }
    }

    /// Takes note that `samples` samples had been fed in all at `now`.
    ///
    /// A total that falls (steps are computed again after a crash) starts the window anew.
    pub fn observe(&mut self, now: Instant, samples: u64) {
        if self.latest.is_some_and(|(_, before)| samples < before) {
            self.past.clear();
        }
        let spacing = self.window / KEPT as u32;
        if self.past.back().is_none_or(|(at, _)| now.since(*at) >= spacing) {
            self.past.push_back((now, samples));
        }
        // The oldest may be older than the window, as long as the next one is not: the window is then covered.
        while self.past.len() > 2 && now.since(self.past[1].0) >= self.window {
            self.past.pop_front();
        }
        while self.past.len() > KEPT + 1 {
            self.past.pop_front();
        }
        self.latest = Some((now, samples));
    }

    /// Samples per second; `None` until time has passed between two observations.
    #[must_use]
    pub fn samples_per_second(&self) -> Option<f64> {
        let (first, before) = *self.past.front()?;
        let (now, samples) = self.latest?;
        let seconds = now.since(first).as_secs_f64();
        (seconds > 0.0).then(|| (samples - before) as f64 / seconds)
    }

    /// How long it takes from the last observation until `total` samples have been fed; `None` while that is not
    /// known.
    #[must_use]
    pub fn remaining(&self, total: u64) -> Option<Duration> {
        let (_, samples) = self.latest?;
        let rate = self.samples_per_second().filter(|rate| *rate > 0.0)?;
        Duration::try_from_secs_f64(total.saturating_sub(samples) as f64 / rate).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_steady_rate_is_found_and_extrapolated() {
        let mut rate = Rate::new(Duration::from_secs(10));
        assert_eq!((rate.samples_per_second(), rate.remaining(9)), (None, None));
        rate.observe(at(0), 0);
        assert_eq!(rate.samples_per_second(), None);
        for step in 1..=100 {
            rate.observe(at(step * 10), step * 64);
        }
        assert_eq!(rate.samples_per_second(), Some(6400.0));
        assert_eq!(rate.remaining(12_800), Some(Duration::from_secs(1)));
        assert_eq!(rate.remaining(10), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten_and_memory_is_bounded() {
        let mut rate = Rate::new(Duration::from_secs(1));
        let mut samples = 0;
        for step in 0..20_000u64 {
            samples += if step < 10_000 { 1 } else { 5 };
            rate.observe(at(step), samples);
            assert!(rate.past.len() <= KEPT + 2);
        }
        let found = rate.samples_per_second().unwrap();
        assert!((found - 5000.0).abs() < 1e-6, "{found}");
    }

    #[test]
    fn a_total_that_falls_starts_anew() {
        let mut rate = Rate::new(Duration::from_secs(10));
        rate.observe(at(0), 100);
        rate.observe(at(1000), 200);
        rate.observe(at(2000), 150);
        assert_eq!(rate.samples_per_second(), None);
        rate.observe(at(3000), 180);
        assert_eq!(rate.samples_per_second(), Some(30.0));
    }
}
