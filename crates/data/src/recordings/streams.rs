//! The values of recordings, kept once however much windows overlap: channel after channel, stretch after stretch.

use crate::normalise::{Moments, moments};
use crate::split::Selection;

/// Where a window lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Where its stretch begins among the values.
    stretch: usize,
    /// The rows of the stretch.
    rows: usize,
    /// Its first row in the stretch.
    first: usize,
}

/// Stretches of rows, and the windows over them.
#[derive(Debug)]
pub(crate) struct Streams {
    values: Vec<f32>,
    channels: usize,
    length: usize,
    windows: Vec<Place>,
}

impl Streams {
    /// None yet.
    pub fn new(channels: usize, length: usize) -> Self {
        Self { values: Vec::new(), channels, length, windows: Vec::new() }
    }

    /// Adds a stretch, given row after row, and its windows; gives the first row of each. A stretch without a window is not kept.
    pub fn add(&mut self, rows: &[f32], stride: usize) -> Vec<usize> {
        let (stretch, count) = (self.values.len(), rows.len() / self.channels);
        if count < self.length {
            return Vec::new();
        }
        for channel in 0..self.channels {
            self.values.extend(rows.iter().skip(channel).step_by(self.channels));
        }
        let firsts: Vec<usize> = (0..=count - self.length).step_by(stride).collect();
        self.windows.extend(firsts.iter().map(|first| Place { stretch, rows: count, first: *first }));
        firsts
    }

    /// Adds a stretch that is one window, given channel after channel.
    pub fn add_window(&mut self, channels: &[&[f32]]) {
        self.windows.push(Place { stretch: self.values.len(), rows: self.length, first: 0 });
        channels.iter().for_each(|channel| self.values.extend_from_slice(channel));
    }

    /// How many channels there are.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The rows of a window.
    pub fn length(&self) -> usize {
        self.length
    }

    /// How many windows there are.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// The values of one channel of a window.
    pub fn channel(&self, window: usize, channel: usize) -> &[f32] {
        let Place { stretch, rows, first } = self.windows[window];
        &self.values[stretch + channel * rows + first..][..self.length]
    }

    /// The values of a window, channel after channel.
    pub fn window(&self, window: usize) -> Vec<f32> {
        (0..self.channels).flat_map(|channel| self.channel(window, channel)).copied().collect()
    }

    /// Whether two windows share rows.
    pub fn overlap(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.windows[one], self.windows[other]);
        one.stretch == other.stretch && one.first.abs_diff(other.first) < self.length
    }

    /// Mean and deviation of each channel over some windows.
    pub fn moments(&self, rows: &Selection) -> Vec<Moments> {
        let of = |channel| {
            let windows = (0..rows.len()).map(|at| self.channel(rows.row(at) as usize, channel));
            moments(windows, 1)[0]
        };
        (0..self.channels).map(of).collect()
    }

    /// The mean of each channel over those values of some windows that are there.
    pub fn fills(&self, rows: &Selection) -> Vec<f32> {
        let mean = |channel| {
            let (mut sum, mut count) = (0.0f64, 0u64);
            for at in 0..rows.len() {
                let values = self.channel(rows.row(at) as usize, channel);
                for value in values.iter().filter(|value| !value.is_nan()) {
                    sum += f64::from(*value);
                    count += 1;
                }
            }
            (sum / count.max(1) as f64) as f32
        };
        (0..self.channels).map(mean).collect()
    }

    /// Puts what stands for missing values of each channel in their place.
    pub fn complete(&mut self, fills: &[f32]) {
        let mut begun = None;
        for window in 0..self.windows.len() {
            let Place { stretch, rows, .. } = self.windows[window];
            if begun.replace(stretch) == Some(stretch) {
                continue;
            }
            let values = &mut self.values[stretch..stretch + rows * self.channels];
            for (values, fill) in values.chunks_exact_mut(rows).zip(fills) {
                values.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = *fill);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_show_their_rows_of_each_channel_and_overlap_inside_a_stretch_only() {
        let mut streams = Streams::new(2, 3);
        let rows: Vec<f32> = (0..7).flat_map(|row| [row as f32, 10.0 * row as f32]).collect();
        assert_eq!(streams.add(&rows, 2), [0, 2, 4]);
        assert_eq!(streams.add(&rows[..4], 2), [0; 0], "too short");
        assert_eq!(streams.add(&rows[..6], 1), [0]);
        assert_eq!(streams.window(1), [2.0, 3.0, 4.0, 20.0, 30.0, 40.0]);
        assert_eq!(streams.window(3), [0.0, 1.0, 2.0, 0.0, 10.0, 20.0]);
        assert!(streams.overlap(0, 1) && !streams.overlap(0, 2) && !streams.overlap(2, 3));
        let all = Selection::Range { first: 0, len: 4 };
        assert_eq!(streams.moments(&all)[0].mean, 27.0 / 12.0 + 3.0 / 12.0);
    }

    #[test]
    fn what_is_missing_becomes_the_mean_of_what_some_windows_have() {
        let mut streams = Streams::new(1, 2);
        streams.add(&[1.0, f32::NAN, 3.0, 5.0, 100.0, f32::NAN], 2);
        let fills = streams.fills(&Selection::Range { first: 0, len: 2 });
        assert_eq!(fills, [3.0]);
        streams.complete(&fills);
        assert_eq!((streams.window(0), streams.window(2)), (vec![1.0, 3.0], vec![100.0, 3.0]));
    }
}
