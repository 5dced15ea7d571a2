//! Random variations of images: flip, shift, crop.
//!
//! A variation is drawn from the sample's key alone, so the same place of a run sees the same picture on every rank,
//! by every thread, and again after a crash. It does not know pixels, only which window of an image is taken.

use crate::DataError;
use dtrain_types::Key;
use std::fmt;
use std::str::FromStr;

/// How training images are varied; the parts combine, and the default varies nothing.
///
/// As text: `none`, or any of `flip`, `shift` (one pixel), `shift:K`, `crop:S` and `crop:HxW`, joined by `+`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augment {
    /// Mirrors left and right, every second time.
    pub flip: bool,
    /// Moves by up to this many pixels in each direction; what comes in from outside is 0.
    pub shift: u32,
    /// Takes a window of this height and width at a random place; validation takes the one in the middle.
    pub crop: Option<[usize; 2]>,
}

/// A text that names no augmentation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown augmentation {text:?}, expected none, flip, shift, shift:K, crop:S or crop:HxW, joined by +"
)]
pub struct AugmentParseError {
    /// The text.
    pub text: String,
}

impl FromStr for Augment {
    type Err = AugmentParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut augment = Self::default();
        for part in text.split('+').map(str::trim) {
            let (name, size) = part.split_once(':').map_or((part, None), |(n, s)| (n.trim(), Some(s.trim())));
            let wrong = || AugmentParseError { text: part.to_owned() };
            match (name, size) {
                ("none", None) => {}
                ("flip", None) => augment.flip = true,
                ("shift", None) => augment.shift = 1,
                ("shift", Some(size)) => augment.shift = size.parse().map_err(|_| wrong())?,
                ("crop", Some(size)) => {
                    let (height, width) = size.split_once('x').unwrap_or((size, size));
                    let side = |text: &str| text.parse().map_err(|_| wrong());
                    augment.crop = Some([side(height)?, side(width)?]);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(augment)
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.flip {
            parts.push("flip".to_owned());
        }
        if self.shift > 0 {
            parts.push(format!("shift:{}", self.shift));
        }
        if let Some([height, width]) = self.crop {
            parts.push(format!("crop:{height}x{width}"));
        }
        f.write_str(if parts.is_empty() { "none".to_owned() } else { parts.join("+") }.as_str())
    }
}

/// The part of an image that is taken: output pixel `(y, x)` is input pixel `(top + y, left + x)`, mirrored within
/// the window if `flip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub top: isize,
    pub left: isize,
    pub flip: bool,
    pub height: usize,
    pub width: usize,
}

impl Augment {
    /// Whether nothing is varied or cut.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the augmentation fits samples of this shape.
    ///
    /// *Errors*: they are no images, or the crop or shift is as large as they are or larger.
    pub(crate) fn check(&self, shape: &[usize]) -> Result<(), DataError> {
        let fits = match *shape {
            _ if self.is_none() => true,
            [_, height, width] | [_, _, height, width] => {
                let inside = |[h, w]: [usize; 2]| (1..=height).contains(&h) && (1..=width).contains(&w);
                (self.shift as usize) < height.min(width) && self.crop.is_none_or(inside)
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(DataError::Augment { what: self.to_string(), shape: shape.to_vec() }) }
    }

    /// Height and width of what is taken of an image.
    pub(crate) fn output(&self, height: usize, width: usize) -> [usize; 2] {
        self.crop.unwrap_or([height, width])
    }

    /// The window of an image that a key draws; without a key the one in the middle.
    pub(crate) fn window(&self, key: Option<&Key>, height: usize, width: usize) -> Window {
        let [rows, columns] = self.output(height, width);
        let (spare_rows, spare_columns) = (height - rows, width - columns);
        let Some(key) = key else {
            let (top, left) = ((spare_rows / 2) as isize, (spare_columns / 2) as isize);
            return Window { top, left, flip: false, height: rows, width: columns };
        };
        // Each draw has its own index, so that adding one part does not change what another draws.
        let reach = 2 * self.shift + 1;
        let shift = |index| key.below(index, reach) as isize - self.shift as isize;
        let place = |index, spare: usize| key.below(index, spare as u32 + 1) as isize;
        Window {
            top: shift(1) + place(3, spare_rows),
            left: shift(2) + place(4, spare_columns),
            flip: self.flip && key.below(0, 2) == 1,
            height: rows,
            width: columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{MicroBatch, Seed, Site, Step};

    #[test]
    fn text_and_value_are_the_same_thing() {
        for text in ["none", "flip", "shift:1", "flip+shift:2", "flip+shift:3+crop:24x20"] {
            assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        }
        assert_eq!("shift".parse::<Augment>().unwrap().shift, 1);
        assert_eq!("crop:7".parse::<Augment>().unwrap().crop, Some([7, 7]));
        for text in ["", "flop", "shift:x", "crop", "flip:2", "crop:3x"] {
            assert!(text.parse::<Augment>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_shift_and_both_sides_are_drawn() {
        let augment = Augment { flip: true, shift: 1, crop: Some([6, 7]) };
        let mut seen = std::collections::BTreeSet::new();
        for row in 0..2000 {
            let key = Key::new(Seed(3), Step(1), MicroBatch(0), Site(row));
            let window = augment.window(Some(&key), 8, 8);
            assert_eq!(window, augment.window(Some(&key), 8, 8));
            assert!((-1..=3).contains(&window.top) && (-1..=2).contains(&window.left), "{window:?}");
            seen.insert((window.top, window.left, window.flip));
        }
        assert_eq!(seen.len(), 5 * 4 * 2);
    }

    #[test]
    fn an_augmentation_that_does_not_fit_is_refused() {
        let shift = Augment { shift: 8, ..Augment::default() };
        assert!(shift.check(&[1, 8, 9]).is_err());
        assert!(shift.check(&[1, 9, 9]).is_ok());
        assert!(shift.check(&[64]).is_err());
        assert!(Augment { crop: Some([0, 3]), ..Augment::default() }.check(&[1, 9, 9]).is_err());
        assert!(Augment { crop: Some([9, 10]), ..Augment::default() }.check(&[1, 9, 9]).is_err());
        assert!(Augment::default().check(&[64]).is_ok());
    }
}
