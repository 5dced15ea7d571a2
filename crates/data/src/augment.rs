//! Random variations of images: which part is seen, how large, and in which colours.
//!
//! A variation is drawn from the sample's key alone, so the same place of a run sees the same picture on every rank,
//! by every thread, and again after a crash. It does not know how a picture is read, nor what it is scaled to.

mod colour;
mod cut;
mod erase;
mod error;
mod jitter;
mod mix;
mod planes;
mod rand;
mod range;
mod rectangle;
mod resample;
mod scratch;
mod warp;
mod window;
mod words;

use crate::DataError;
pub use cut::{Crop, Cut};
use dtrain_types::Key;
use erase::erase;
pub use error::AugmentParseError;
pub use jitter::Jitter;
pub use mix::Mix;
pub(crate) use mix::{mix_all, with_the_one_before};
pub(crate) use planes::Planes;
use rand::Picture;
pub use rand::RandAugment;
pub(crate) use range::ValueRange;
use scratch::Scratch;
use std::fmt;
use std::str::FromStr;
pub(crate) use window::{Window, through_window};

/// How training images are varied; the parts combine, and the default varies nothing.
///
/// As text: `none`, or any of `flip`, `shift` (one pixel), `shift:K`, `crop:S`, `crop:HxW`, `resized-crop:S`, `resized-crop:HxW`,
/// `rand-augment`, `rand-augment:N,M`, `jitter`, `jitter:B,C,S`, `erase`, `mixup`, `mixup:A`, `cutmix` and `cutmix:A`, joined by `+`. They
/// are done in this order, whatever the order of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augment {
    /// Mirrors left and right, every second time.
    pub flip: bool,
    /// Moves by up to this many pixels in each direction; what comes in from outside is 0.
    pub shift: u32,
    /// Takes a part of the picture at a random place; validation takes the one in the middle.
    pub crop: Option<Crop>,
    /// Does some of fourteen things to geometry and colours.
    pub rand: Option<RandAugment>,
    /// Changes brightness, contrast and saturation.
    pub jitter: Option<Jitter>,
    /// Makes a rectangle 0, every fourth time.
    pub erase: bool,
    /// Mixes the samples of a micro-batch, and their targets.
    pub mix: Mix,
}

impl FromStr for Augment {
    type Err = AugmentParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut augment = Self::default();
        for part in text.split('+').map(str::trim) {
            augment.add(part)?;
        }
        match augment.crop {
            Some(Crop::Resized(_)) if augment.shift > 0 => {
                Err(AugmentParseError::Both { one: "shift", other: "resized-crop" })
            }
            _ => Ok(augment),
        }
    }
}

impl Augment {
    fn add(&mut self, part: &str) -> Result<(), AugmentParseError> {
        let (name, numbers) = part.split_once(':').map_or((part, None), |(n, s)| (n.trim(), Some(s.trim())));
        let unknown = || AugmentParseError::Unknown { text: part.to_owned() };
        let wrong = |expected| AugmentParseError::Numbers { text: part.to_owned(), expected };
        match (name, numbers) {
            ("none", None) => {}
            ("flip", None) => self.flip = true,
            ("shift", None) => self.shift = 1,
            ("shift", Some(size)) => self.shift = size.parse().map_err(|_| unknown())?,
            ("crop", Some(size)) => self.take(Crop::Cut(sides(size).ok_or_else(unknown)?))?,
            ("resized-crop", Some(size)) => {
                let inside = |sides: &[usize; 2]| sides.iter().all(|side| (1..=LARGEST).contains(side));
                let sides = sides(size).filter(inside);
                self.take(Crop::Resized(
                    sides.ok_or_else(|| wrong("resized-crop:S or :HxW with sides from 1 to 8192"))?,
                ))?;
            }
            ("rand-augment", None) => self.rand = Some(RandAugment::default()),
            ("rand-augment", Some(numbers)) => {
                let (operations, magnitude) = two(numbers)
                    .filter(|(operations, magnitude)| {
                        (1..=RandAugment::MOST).contains(operations) && *magnitude <= RandAugment::STRONGEST
                    })
                    .ok_or_else(|| wrong("rand-augment:N,M with 1 to 16 operations of magnitude 0 to 30"))?;
                self.rand = Some(RandAugment { operations, magnitude });
            }
            ("jitter", None) => self.jitter = Some(Jitter::default()),
            ("jitter", Some(numbers)) => {
                let three = Jitter::parse(numbers);
                self.jitter =
                    Some(three.ok_or_else(|| wrong("jitter:B,C,S with three numbers from 0 to 10"))?);
            }
            ("erase", None) => self.erase = true,
            ("mixup" | "cutmix", numbers) => {
                // As torchvision's recipes have them.
                let usual = if name == "mixup" { 0.2 } else { 1.0 };
                let alpha = numbers.map_or(Some(usual), Mix::parse);
                let alpha = alpha.ok_or_else(|| wrong("mixup:A or cutmix:A with a number from 0.05 to 2"))?;
                *(if name == "mixup" { &mut self.mix.mixup } else { &mut self.mix.cutmix }) = Some(alpha);
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn take(&mut self, crop: Crop) -> Result<(), AugmentParseError> {
        match (self.crop, crop) {
            (Some(Crop::Cut(_)), Crop::Resized(_)) | (Some(Crop::Resized(_)), Crop::Cut(_)) => {
                Err(AugmentParseError::Both { one: "crop", other: "resized-crop" })
            }
            _ => {
                self.crop = Some(crop);
                Ok(())
            }
        }
    }
}

/// The largest side of a resized crop: what is more is a slip of the pen.
const LARGEST: usize = 8192;

/// `S` or `HxW`.
fn sides(text: &str) -> Option<[usize; 2]> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    Some([height.parse().ok()?, width.parse().ok()?])
}

/// `N,M`.
fn two(text: &str) -> Option<(u32, u32)> {
    let (one, other) = text.split_once(',')?;
    Some((one.trim().parse().ok()?, other.trim().parse().ok()?))
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
        match self.crop {
            Some(Crop::Cut([height, width])) => parts.push(format!("crop:{height}x{width}")),
            Some(Crop::Resized([height, width])) => parts.push(format!("resized-crop:{height}x{width}")),
            None => {}
        }
        if let Some(RandAugment { operations, magnitude }) = self.rand {
            parts.push(format!("rand-augment:{operations},{magnitude}"));
        }
        if let Some(Jitter { brightness, contrast, saturation }) = self.jitter {
            parts.push(format!("jitter:{brightness},{contrast},{saturation}"));
        }
        if self.erase {
            parts.push("erase".to_owned());
        }
        parts.extend(self.mix.mixup.map(|alpha| format!("mixup:{alpha}")));
        parts.extend(self.mix.cutmix.map(|alpha| format!("cutmix:{alpha}")));
        f.write_str(if parts.is_empty() { "none".to_owned() } else { parts.join("+") }.as_str())
    }
}

impl Augment {
    /// Whether nothing is varied or cut.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether more is done to a picture than to show a part of it as it is.
    pub(crate) fn repaints(&self) -> bool {
        matches!(self.crop, Some(Crop::Resized(_))) || self.varies_values()
    }

    /// Whether colours are changed, or pixels put in place of others.
    fn varies_values(&self) -> bool {
        self.rand.is_some() || self.jitter.is_some() || self.erase
    }

    /// Checks that the augmentation fits samples of this shape.
    ///
    /// *Errors*: they are no images, or the crop or shift is as large as they are or larger.
    pub(crate) fn check(&self, shape: &[usize]) -> Result<(), DataError> {
        let fits = match Planes::of(shape) {
            _ if self.is_none() => true,
            Some(Planes { height, width, .. }) => {
                let inside = match self.crop {
                    Some(Crop::Cut([h, w])) => (1..=height).contains(&h) && (1..=width).contains(&w),
                    Some(Crop::Resized(_)) | None => true,
                };
                inside && (self.shift as usize) < height.min(width)
            }
            None => false,
        };
        if fits { Ok(()) } else { Err(DataError::Augment { what: self.to_string(), shape: shape.to_vec() }) }
    }

    /// Height and width of what is taken of an image.
    pub(crate) fn output(&self, height: usize, width: usize) -> [usize; 2] {
        self.crop.map_or([height, width], Crop::sides)
    }

    /// What is done to samples of this shape that are not varied: those of validation, and what is predicted.
    pub(crate) fn cut(&self, shape: &[usize]) -> Option<Cut> {
        let Planes { height, width, .. } = Planes::of(shape)?;
        self.crop.map(|crop| Cut { from: [height, width], crop })
    }

    /// The window of an image that a key draws; without a key the one in the middle.
    pub(crate) fn window(&self, key: Option<&Key>, height: usize, width: usize) -> Window {
        let [rows, columns] = self.output(height, width);
        let Some(key) = key else { return Window::middle([height, width], [rows, columns]) };
        let (spare_rows, spare_columns) = (height - rows, width - columns);
        let reach = 2 * self.shift + 1;
        let shift = |index| key.below(index, reach) as isize - self.shift as isize;
        let place = |index, spare: usize| key.below(index, spare as u32 + 1) as isize;
        Window {
            top: shift(words::SHIFT) + place(words::CROP, spare_rows),
            left: shift(words::SHIFT + 1) + place(words::CROP + 1, spare_columns),
            flip: self.flips(key),
            height: rows,
            width: columns,
        }
    }

    fn flips(&self, key: &Key) -> bool {
        self.flip && key.below(words::FLIP, 2) == 1
    }

    /// Draws a raw picture as a key says, still raw; without a key as it is cut for validation. `range` is that of all training
    /// pictures.
    pub(crate) fn paint<T: Copy + Default + Into<f32>>(
        &self,
        (picture, planes): (&[T], Planes),
        key: Option<&Key>,
        range: ValueRange,
        out: &mut [f32],
    ) {
        scratch::with(|scratch| {
            let from = [planes.height, planes.width];
            scratch.make_room(from, self.output(planes.height, planes.width));
            let sides = self.show((picture, planes), key, out, scratch);
            if let Some(key) = key {
                self.vary(out, planes.with_sides(sides), key, range, scratch);
            }
        });
    }

    /// The part of a picture that is seen, at the size that it is to have.
    fn show<T: Copy + Default + Into<f32>>(
        &self,
        (picture, planes): (&[T], Planes),
        key: Option<&Key>,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> [usize; 2] {
        let Planes { height, width, .. } = planes;
        let sides = self.output(height, width);
        let planes = picture.chunks_exact(planes.plane()).zip(out.chunks_exact_mut(sides[0] * sides[1]));
        if let Some(Crop::Resized(_)) = self.crop {
            let part = cut::part([height, width], sides, key);
            scratch.resampler.prepare(part, sides);
            let flips = key.is_some_and(|key| self.flips(key));
            for (plane, out) in planes {
                scratch.resampler.plane(plane, width, out);
                if flips {
                    out.chunks_exact_mut(sides[1]).for_each(<[f32]>::reverse);
                }
            }
        } else {
            let window = self.window(key, height, width);
            planes
                .for_each(|(plane, out)| through_window(window, plane, width, out, |value: T| value.into()));
        }
        sides
    }

    /// Changes what is seen.
    fn vary(&self, values: &mut [f32], planes: Planes, key: &Key, range: ValueRange, scratch: &mut Scratch) {
        range.keep(values);
        if self.rand.is_some() || self.jitter.is_some() {
            range.to_levels(values);
            if let Some(rand) = self.rand {
                let outside = range.level(range.zero());
                rand.change(&mut Picture { levels: values, planes, outside }, key, scratch);
            }
            if let Some(jitter) = self.jitter {
                jitter.change(values, planes.channels, key);
            }
            range.back_from_levels(values);
        }
        if self.erase {
            erase(values, planes, range.zero(), key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{MicroBatch, Seed, Site, Step};

    #[test]
    fn text_and_value_are_the_same_thing() {
        for text in [
            "none",
            "flip",
            "shift:1",
            "flip+shift:2",
            "flip+shift:3+crop:24x20",
            "resized-crop:24x20",
            "rand-augment:2,9",
            "jitter:0.4,0,1.5",
            "flip+resized-crop:8192x1+rand-augment:16,30+jitter:10,0.1,0.3+erase",
            "flip+mixup:0.2+cutmix:1",
        ] {
            assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        }
        for (short, long) in [
            ("shift", "shift:1"),
            ("crop:7", "crop:7x7"),
            ("resized-crop:7", "resized-crop:7x7"),
            ("rand-augment", "rand-augment:2,9"),
            ("jitter", "jitter:0.4,0.4,0.4"),
            ("cutmix + mixup", "mixup:0.2+cutmix:1"),
            (" erase + jitter: 1, 2 ,3 + flip", "flip+jitter:1,2,3+erase"),
        ] {
            assert_eq!(short.parse::<Augment>().unwrap().to_string(), long);
        }
        for text in ["", "flop", "shift:x", "crop", "flip:2", "crop:3x", "resized-crop", "erase:1", "jitter+"]
        {
            let error = text.parse::<Augment>().unwrap_err();
            assert!(matches!(error, AugmentParseError::Unknown { .. }), "{text:?}: {error}");
        }
        for text in [
            "resized-crop:0",
            "resized-crop:8193",
            "resized-crop:4x",
            "rand-augment:2",
            "rand-augment:0,9",
            "rand-augment:17,9",
            "rand-augment:2,31",
            "rand-augment:2,-1",
            "jitter:0.4",
            "jitter:1,2,3,4",
            "jitter:1,2,-0.1",
            "jitter:1,2,nan",
            "jitter:1,2,10.5",
        ] {
            let error = text.parse::<Augment>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("augmentation {text:?} is no ")), "{error}");
            assert!(error.hint().len() > 10);
        }
        for text in ["crop:4+resized-crop:4", "resized-crop:4+crop:4", "shift+resized-crop:4"] {
            let error = text.parse::<Augment>().unwrap_err();
            assert!(matches!(error, AugmentParseError::Both { .. }), "{text:?}: {error}");
        }
    }

    #[test]
    fn every_shift_and_both_sides_are_drawn() {
        let augment = Augment { flip: true, shift: 1, crop: Some(Crop::Cut([6, 7])), ..Augment::default() };
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
        assert!(Augment { crop: Some(Crop::Cut([0, 3])), ..Augment::default() }.check(&[1, 9, 9]).is_err());
        assert!(Augment { crop: Some(Crop::Cut([9, 10])), ..Augment::default() }.check(&[1, 9, 9]).is_err());
        assert!(Augment::default().check(&[64]).is_ok());
    }
}
