//! A part of a picture at another size: each pixel is the mean of those around its place, by their nearness.
//!
//! Sums are in one order, one product after the other, so the bits are the same by every instruction set.
//!
//! *Source*: bilinear resizing with antialiasing, as of Pillow and of torchvision's `resize`.

use super::rectangle::Rectangle;

/// From some rows and columns of planes to planes of another size.
#[derive(Debug, Default)]
pub(super) struct Resampler {
    down: Taps,
    across: Taps,
    part: Option<Rectangle>,
    /// The rows of the part, at their new width.
    rows: Vec<f32>,
}

/// Which pixels of a line each new one is made of, and how much each counts.
#[derive(Debug, Default)]
struct Taps {
    /// The first pixel, and where its weight is.
    starts: Vec<(usize, usize)>,
    weights: Vec<f32>,
}

/// Pixels of a line.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    length: usize,
}

impl Taps {
    /// Of `length` pixels, or of a part of them.
    fn make_room(&mut self, length: usize, count: usize) {
        self.starts.clear();
        self.starts.reserve(count + 1);
        // Each has those within its reach on both sides, which is the scale or 1, and the two at the ends.
        self.weights.clear();
        self.weights.reserve(2 * length + 4 * count);
    }

    fn fill(&mut self, part: Part, count: usize) {
        self.starts.clear();
        self.weights.clear();
        let scale = part.length as f64 / count as f64;
        let reach = scale.max(1.0);
        for at in 0..count {
            let middle = (at as f64 + 0.5) * scale;
            let from = ((middle - reach + 0.5).max(0.0) as usize).min(part.length - 1);
            let end = ((middle + reach + 0.5) as usize).clamp(from + 1, part.length);
            let near = |pixel: usize| (1.0 - ((pixel as f64 + 0.5 - middle) / reach).abs()).max(0.0);
            let sum: f64 = (from..end).map(near).sum();
            self.starts.push((part.first + from, self.weights.len()));
            self.weights.extend((from..end).map(|pixel| (near(pixel) / sum) as f32));
        }
        self.starts.push((0, self.weights.len()));
    }

    /// The first pixel of each new one, and the weights of that and of the next ones.
    fn each(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let weights = |pair: &[(usize, usize)]| (pair[0].0, &self.weights[pair[0].1..pair[1].1]);
        self.starts.windows(2).map(weights)
    }
}

impl Resampler {
    /// Makes room for any part of a picture.
    pub fn make_room(&mut self, from: [usize; 2], to: [usize; 2]) {
        self.down.make_room(from[0], to[0]);
        self.across.make_room(from[1], to[1]);
        self.rows.clear();
        self.rows.reserve(from[0] * to[1]);
    }

    /// What is taken of each plane, and the sides that it gets.
    pub fn prepare(&mut self, part: Rectangle, [height, width]: [usize; 2]) {
        self.down.fill(Part { first: 0, length: part.height }, height);
        self.across.fill(Part { first: part.left, length: part.width }, width);
        self.part = Some(part);
    }

    /// One plane, whose rows have `width` pixels.
    ///
    /// *Panics*: nothing is prepared.
    pub fn plane<T: Copy + Into<f32>>(&mut self, image: &[T], width: usize, out: &mut [f32]) {
        let part = self.part.expect("a part is prepared");
        let new_width = self.across.starts.len() - 1;
        self.rows.clear();
        for row in image.chunks_exact(width).skip(part.top).take(part.height) {
            self.rows.extend(self.across.each().map(|(first, weights)| {
                let products =
                    row[first..].iter().zip(weights).map(|(value, weight)| (*value).into() * weight);
                products.fold(0.0f32, |sum, product| sum + product)
            }));
        }
        for (out, (first, weights)) in out.chunks_exact_mut(new_width).zip(self.down.each()) {
            out.fill(0.0);
            for (row, weight) in self.rows.chunks_exact(new_width).skip(first).zip(weights) {
                out.iter_mut().zip(row).for_each(|(out, value)| *out += value * weight);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resampled(part: Rectangle, sides: [usize; 2]) -> Vec<f32> {
        let image: Vec<u8> = (0..16).map(|at| 10 * (at % 4) + 100 * (at / 8)).collect();
        let mut out = vec![-1.0; sides[0] * sides[1]];
        let mut resampler = Resampler::default();
        resampler.prepare(part, sides);
        resampler.plane(&image, 4, &mut out);
        out
    }

    #[test]
    fn a_part_is_copied_doubled_or_halved() {
        let part = Rectangle { top: 1, left: 1, height: 2, width: 3 };
        assert_eq!(resampled(part, [2, 3]), [10.0, 20.0, 30.0, 110.0, 120.0, 130.0], "as it is");
        let row = Rectangle { top: 0, left: 0, height: 1, width: 2 };
        assert_eq!(resampled(row, [1, 4]), [0.0, 2.5, 7.5, 10.0], "between two pixels");
        assert_eq!(resampled(row, [3, 1]), [5.0; 3]);
        let whole = Rectangle { top: 0, left: 0, height: 4, width: 4 };
        let quarter = resampled(whole, [1, 1]);
        assert!((quarter[0] - 65.0).abs() < 1e-4, "{quarter:?}");
        let smaller = resampled(whole, [4, 2]);
        // Those of the nearest two count thrice as much as the next.
        let left = (0.0 * 0.75 + 10.0 * 0.75 + 20.0 * 0.25) / 1.75;
        assert!((smaller[0] - left).abs() < 1e-4, "{smaller:?}");
    }
}
