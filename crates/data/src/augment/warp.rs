//! Shearing, moving and turning a picture: each pixel is the nearest one of where it comes from.
//!
//! It does not know why a picture is warped.

use dtrain_types::numbers::sine_and_cosine;

/// Where a place of the new picture was in the old one: `x' = across * [x, y, 1]`, `y' = down * [x, y, 1]`. Pixel 0 goes from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Warp {
    across: [f64; 3],
    down: [f64; 3],
}

/// An axis of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// From left to right.
    Across,
    /// From top to bottom.
    Down,
}

/// What each pixel of one plane becomes.
pub(super) struct Canvas<'a> {
    /// Its height and width.
    pub sides: [usize; 2],
    /// What comes in from outside.
    pub outside: f32,
    /// Room for a plane.
    pub before: &'a mut Vec<f32>,
}

impl Warp {
    const STILL: Self = Self { across: [1.0, 0.0, 0.0], down: [0.0, 1.0, 0.0] };

    /// Moves rows (columns) to the side, by `slope` more than the one before.
    pub fn shear(axis: Axis, slope: f64) -> Self {
        match axis {
            Axis::Across => Self { across: [1.0, slope, 0.0], ..Self::STILL },
            Axis::Down => Self { down: [slope, 1.0, 0.0], ..Self::STILL },
        }
    }

    /// Moves to the right (down) by so many pixels.
    pub fn shift(axis: Axis, pixels: f64) -> Self {
        match axis {
            Axis::Across => Self { across: [1.0, 0.0, -pixels], ..Self::STILL },
            Axis::Down => Self { down: [0.0, 1.0, -pixels], ..Self::STILL },
        }
    }

    /// Turns a picture of these sides about its middle, against the clock.
    pub fn turn([height, width]: [usize; 2], degrees: f64) -> Self {
        let (sine, cosine) = sine_and_cosine(degrees);
        let (x, y) = (width as f64 / 2.0, height as f64 / 2.0);
        Self {
            across: [cosine, -sine, x - cosine * x + sine * y],
            down: [sine, cosine, y - sine * x - cosine * y],
        }
    }

    /// Warps one plane.
    pub fn apply(&self, plane: &mut [f32], canvas: &mut Canvas<'_>) {
        let [height, width] = canvas.sides;
        canvas.before.clear();
        canvas.before.extend_from_slice(plane);
        let place = |[x, y]: [f64; 2], [a, b, c]: [f64; 3], side: usize| {
            let place = (a * x + b * y + c).floor();
            (place >= 0.0 && place < side as f64).then_some(place as usize)
        };
        for (row, out) in plane.chunks_exact_mut(width).enumerate() {
            for (column, out) in out.iter_mut().enumerate() {
                let middle = [column as f64 + 0.5, row as f64 + 0.5];
                let from = place(middle, self.down, height).zip(place(middle, self.across, width));
                *out = from.map_or(canvas.outside, |(y, x)| canvas.before[y * width + x]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warped(warp: Warp) -> [f32; 9] {
        let mut plane = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        warp.apply(&mut plane, &mut Canvas { sides: [3, 3], outside: 0.0, before: &mut Vec::new() });
        plane
    }

    #[test]
    fn planes_are_moved_sheared_and_turned() {
        assert_eq!(warped(Warp::shift(Axis::Across, 1.0)), [0.0, 1.0, 2.0, 0.0, 4.0, 5.0, 0.0, 7.0, 8.0]);
        assert_eq!(warped(Warp::shift(Axis::Down, -1.0)), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.0, 0.0, 0.0]);
        assert_eq!(
            warped(Warp::shear(Axis::Across, 0.5)),
            [1.0, 2.0, 3.0, 5.0, 6.0, 0.0, 8.0, 9.0, 0.0],
            "rows go to the left by a quarter, three quarters and five quarters of a pixel"
        );
        assert_eq!(
            warped(Warp::shear(Axis::Down, -0.5)),
            [1.0, 0.0, 0.0, 4.0, 2.0, 3.0, 7.0, 5.0, 6.0],
            "columns go down by a quarter, three quarters and five quarters of a pixel"
        );
        for still in [Warp::STILL, Warp::turn([3, 3], 0.0), Warp::turn([3, 3], 10.0)] {
            assert_eq!(warped(still), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        }
        assert_eq!(
            warped(Warp::turn([3, 3], 45.0)),
            [2.0, 3.0, 6.0, 1.0, 5.0, 9.0, 4.0, 7.0, 8.0],
            "what is right goes up"
        );
    }
}
