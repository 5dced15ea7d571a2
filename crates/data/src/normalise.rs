//! How raw values become inputs of about unit size.
//!
//! The statistics are those of the training part, also for validation. It does not know what the values mean.

/// What is done to each input value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Normalise {
    /// Subtracts the mean and divides by the standard deviation of the training part, per channel of an image or per
    /// column of a table. A constant channel becomes 0.
    #[default]
    Standardise,
    /// Multiplies by one factor, such as 1/255.
    Scale(f32),
    /// Takes the values as they are.
    Keep,
}

/// The mean that is subtracted and the factor that is multiplied, per channel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scaling {
    pub mean: Vec<f32>,
    pub factor: Vec<f32>,
}

impl Scaling {
    /// The scaling of `channels` channels; `moments` is asked only where statistics are needed.
    pub fn new(how: Normalise, channels: usize, moments: impl FnOnce() -> Vec<Moments>) -> Self {
        let fixed = |factor| Self { mean: vec![0.0; channels], factor: vec![factor; channels] };
        match how {
            Normalise::Keep => fixed(1.0),
            Normalise::Scale(factor) => fixed(factor),
            Normalise::Standardise => {
                let moments = moments();
                Self {
                    mean: moments.iter().map(|m| m.mean as f32).collect(),
                    factor: moments
                        .iter()
                        .map(|m| if m.deviation > 0.0 { (1.0 / m.deviation) as f32 } else { 1.0 })
                        .collect(),
                }
            }
        }
    }
}

/// Mean and standard deviation (population) of one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moments {
    pub mean: f64,
    pub deviation: f64,
}

/// The moments of each channel over rows of `channels` planes, in row order.
///
/// *Order*: sums are taken in `f64`, row by row, so they are the same on every machine. The values are shifted by
/// the first of their channel, which keeps the sum of squares exact where values are large and close together.
pub(crate) fn moments<'a, T: Copy + Into<f32> + 'a>(
    rows: impl Iterator<Item = &'a [T]>,
    channels: usize,
) -> Vec<Moments> {
    let mut shift: Option<Vec<f64>> = None;
    let (mut sum, mut squares) = (vec![0.0f64; channels], vec![0.0f64; channels]);
    let mut count = 0.0f64;
    for row in rows {
        let plane = row.len() / channels;
        let first =
            shift.get_or_insert_with(|| row.chunks_exact(plane).map(|p| f64::from(p[0].into())).collect());
        for (channel, values) in row.chunks_exact(plane).enumerate() {
            for value in values {
                let value = f64::from((*value).into()) - first[channel];
                sum[channel] += value;
                squares[channel] += value * value;
            }
        }
        count += plane as f64;
    }
    let shift = shift.unwrap_or_else(|| vec![0.0; channels]);
    (0..channels)
        .map(|c| {
            let mean = sum[c] / count.max(1.0);
            let variance = (squares[c] / count.max(1.0) - mean * mean).max(0.0);
            Moments { mean: shift[c] + mean, deviation: variance.sqrt() }
        })
        .collect()
}

/// The moments of each channel of bytes.
pub(crate) fn byte_moments<'a>(rows: impl Iterator<Item = &'a [u8]>, channels: usize) -> Vec<Moments> {
    let mut sums = ByteSums::new(channels);
    rows.for_each(|row| sums.add(row));
    sums.moments()
}

/// Sums of bytes and of their squares, of each channel. They are whole numbers, so they are exact and the compiler can take many bytes
/// at a time: statistics of 47 MB must not hold up the start of a rank.
#[derive(Debug)]
pub(crate) struct ByteSums {
    sums: Vec<(u64, u64)>,
    count: u64,
}

impl ByteSums {
    pub fn new(channels: usize) -> Self {
        Self { sums: vec![(0, 0); channels], count: 0 }
    }

    /// Adds a row.
    pub fn add(&mut self, row: &[u8]) {
        /// Squares of so many bytes fit into a `u32`.
        const BLOCK: usize = 1 << 16;
        let plane = row.len() / self.sums.len();
        for (values, (sum, squares)) in row.chunks_exact(plane).zip(&mut self.sums) {
            for block in values.chunks(BLOCK) {
                *sum += u64::from(block.iter().map(|v| u32::from(*v)).sum::<u32>());
                *squares += u64::from(block.iter().map(|v| u32::from(*v) * u32::from(*v)).sum::<u32>());
            }
        }
        self.count += plane as u64;
    }

    /// The moments of each channel.
    pub fn moments(self) -> Vec<Moments> {
        let count = self.count.max(1) as f64;
        let of = |(sum, squares): (u64, u64)| {
            let mean = sum as f64 / count;
            Moments { mean, deviation: (squares as f64 / count - mean * mean).max(0.0).sqrt() }
        };
        self.sums.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_per_channel_and_survive_a_large_offset() {
        let rows = [[1.0e6f32, 1.0e6 + 2.0, 5.0, 5.0], [1.0e6 + 4.0, 1.0e6 + 6.0, 5.0, 5.0]];
        let moments = moments(rows.iter().map(|r| &r[..]), 2);
        assert_eq!(moments[0], Moments { mean: 1.0e6 + 3.0, deviation: 5.0f64.sqrt() });
        assert_eq!(moments[1], Moments { mean: 5.0, deviation: 0.0 });
        let scaling = Scaling::new(Normalise::Standardise, 2, || moments);
        assert_eq!(scaling.factor[1], 1.0, "a constant channel is not divided by zero");
    }

    #[test]
    fn moments_of_bytes_are_those_of_numbers() {
        let rows: Vec<Vec<u8>> =
            (0..4u32).map(|r| (0..600u32).map(|i| (i * 7 + r * 31) as u8).collect()).collect();
        let numbers: Vec<Vec<f32>> =
            rows.iter().map(|row| row.iter().map(|v| f32::from(*v)).collect()).collect();
        let exact = byte_moments(rows.iter().map(|r| &r[..]), 3);
        for (byte, number) in exact.iter().zip(moments(numbers.iter().map(|r| &r[..]), 3)) {
            assert!(
                (byte.mean - number.mean).abs() < 1e-9 && (byte.deviation - number.deviation).abs() < 1e-9
            );
        }
        let bright = vec![255u8; 3 << 16];
        assert_eq!(byte_moments(std::iter::once(&bright[..]), 1), [Moments { mean: 255.0, deviation: 0.0 }]);
    }

    #[test]
    fn fixed_scaling_asks_for_no_statistics() {
        let scaling = Scaling::new(Normalise::Scale(0.5), 3, || panic!("not needed"));
        assert_eq!((scaling.mean, scaling.factor), (vec![0.0; 3], vec![0.5; 3]));
    }
}
