//! Which part of a picture is taken, and at which size: of training pictures at a random place, of all others in the middle.
//!
//! It does not know what a picture shows, nor what else is done to it.

use super::planes::Planes;
use super::rectangle::{Drawn, Rectangle};
use super::scratch;
use super::window::{Window, through_window};
use super::words::RESIZED_CROP;
use dtrain_types::Key;
use serde::{Deserialize, Serialize};

/// What is taken of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crop {
    /// A window of this height and width.
    Cut([usize; 2]),
    /// A part of a random area and aspect, scaled to this height and width.
    ///
    /// *Source*: `RandomResizedCrop` of torchvision.
    Resized([usize; 2]),
}

impl Crop {
    /// The height and width that pictures have then.
    #[must_use]
    pub fn sides(self) -> [usize; 2] {
        match self {
            Self::Cut(sides) | Self::Resized(sides) => sides,
        }
    }
}

/// From 8 % of the area to all of it.
const AREA: [f64; 2] = [0.08, 1.0];
/// ln(4 / 3): widths from 3/4 to 4/3 of the height.
const LOG_ASPECT: f64 = 0.287_682_072_451_780_9;

/// The part of a picture that a resized crop takes.
pub(super) fn part(sides: [usize; 2], wanted: [usize; 2], key: Option<&Key>) -> Rectangle {
    let Some(key) = key else { return Rectangle::middle(sides, wanted) };
    let log_aspect = [-LOG_ASPECT, LOG_ASPECT];
    let drawn = Drawn { area: AREA, log_aspect, most: sides, word: RESIZED_CROP };
    Rectangle::draw(key, sides, &drawn).unwrap_or_else(|| fallback(sides))
}

/// The largest in the middle that is not wider or higher than a random one may be.
fn fallback(sides @ [height, width]: [usize; 2]) -> Rectangle {
    let ratio = match (3 * width > 4 * height, 4 * width < 3 * height) {
        (true, _) => [3, 4],
        (_, true) => [4, 3],
        _ => sides,
    };
    Rectangle::middle(sides, ratio)
}

/// What is taken of pictures that are not varied: the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The height and width that pictures have before.
    pub from: [usize; 2],
    /// What is taken.
    pub crop: Crop,
}

impl Cut {
    /// The middle of a raw sample that has these channels, and frames if it is a clip.
    pub(crate) fn middle(&self, values: &[f32], channels_and_frames: usize) -> Vec<f32> {
        let [height, width] = self.from;
        let planes = Planes { channels: channels_and_frames, frames: 1, height, width };
        let sides = self.crop.sides();
        let mut taken = vec![0.0; channels_and_frames * sides[0] * sides[1]];
        let planes = values.chunks_exact(planes.plane()).zip(taken.chunks_exact_mut(sides[0] * sides[1]));
        match self.crop {
            Crop::Cut(_) => {
                let window = Window::middle(self.from, sides);
                planes.for_each(|(plane, out)| through_window(window, plane, width, out, |value| value));
            }
            Crop::Resized(_) => scratch::with(|scratch| {
                scratch.resampler.prepare(part(self.from, sides, None), sides);
                planes.for_each(|(plane, out)| scratch.resampler.plane(plane, width, out));
            }),
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{MicroBatch, Seed, Site, Step};

    #[test]
    fn parts_have_the_areas_and_aspects_that_are_said_and_come_from_everywhere() {
        let (mut least, mut most, mut corners) = (f64::MAX, 0.0f64, [false; 4]);
        for row in 0..3000 {
            let key = Key::new(Seed(4), Step(1), MicroBatch(0), Site(row));
            let Rectangle { top, left, height, width } = part([60, 80], [9, 9], Some(&key));
            assert!(top + height <= 60 && left + width <= 80);
            let (area, aspect) = ((height * width) as f64 / 4800.0, width as f64 / height as f64);
            assert!((0.07..=1.0).contains(&area) && (0.7..=1.42).contains(&aspect), "{area} {aspect}");
            (least, most) = (least.min(area), most.max(area));
            let far = [top < 5, top > 30, left < 5, left > 40];
            corners.iter_mut().zip(far).for_each(|(seen, now)| *seen |= now);
        }
        assert!(least < 0.1 && most > 0.9, "{least} {most}");
        assert_eq!(corners, [true; 4]);
    }

    #[test]
    fn a_picture_that_no_part_fits_gives_its_middle() {
        let middle = |sides| {
            let Rectangle { top, left, height, width } = fallback(sides);
            [top, left, height, width]
        };
        assert_eq!(middle([30, 400]), [0, 180, 30, 40]);
        assert_eq!(middle([400, 30]), [180, 0, 40, 30]);
        assert_eq!(middle([30, 40]), [0, 0, 30, 40]);
        let key = Key::new(Seed(4), Step(1), MicroBatch(0), Site(0));
        assert_eq!(part([1, 1000], [9, 9], Some(&key)), fallback([1, 1000]));
    }

    #[test]
    fn the_middle_of_all_other_pictures_is_cut_or_scaled() {
        let values: Vec<f32> = (0..32).map(|at| at as f32).collect();
        let cut = Cut { from: [4, 4], crop: Crop::Cut([2, 2]) };
        assert_eq!(cut.middle(&values, 2), [5.0, 6.0, 9.0, 10.0, 21.0, 22.0, 25.0, 26.0]);
        let whole = Cut { from: [4, 4], crop: Crop::Resized([4, 4]) };
        assert_eq!(whole.middle(&values, 2), values);
        let scaled = Cut { from: [4, 4], crop: Crop::Resized([1, 1]) }.middle(&values, 2);
        assert!((scaled[0] - 7.5).abs() < 1e-4 && (scaled[1] - 23.5).abs() < 1e-4, "{scaled:?}");
    }
}
