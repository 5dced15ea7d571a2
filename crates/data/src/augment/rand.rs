//! RandAugment: some of fourteen operations, one after the other, all of one magnitude.
//!
//! *Source*: Cubuk, Zoph, Shlens and Le, "RandAugment: practical automated data augmentation with a reduced search space", 2020; the
//! operations and their magnitudes are those of torchvision.

use super::colour::{
    Factor, autocontrast, brightness, contrast, equalize, posterize, saturation, sharpness, solarize,
};
use super::planes::Planes;
use super::range::WHITE;
use super::scratch::Scratch;
use super::warp::{Axis, Canvas, Warp};
use super::words::RAND;
use dtrain_types::Key;

/// How many operations, and how strong they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandAugment {
    /// Operations on one picture.
    pub operations: u32,
    /// Their magnitude, from 0 to [`RandAugment::STRONGEST`].
    pub magnitude: u32,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self { operations: 2, magnitude: 9 }
    }
}

/// What is done to a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Colour,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

/// All of them, in the order in which they are drawn: it decides bits.
const OPERATIONS: [Operation; 14] = [
    Operation::Identity,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
    Operation::Rotate,
    Operation::Brightness,
    Operation::Colour,
    Operation::Contrast,
    Operation::Sharpness,
    Operation::Posterize,
    Operation::Solarize,
    Operation::AutoContrast,
    Operation::Equalize,
];

/// How strong an operation is: from -1 to 1 where it has two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Strength(f64);

/// The picture that is changed.
pub(super) struct Picture<'a> {
    pub levels: &'a mut [f32],
    pub planes: Planes,
    /// The level of what comes in from outside.
    pub outside: f32,
}

impl RandAugment {
    /// The largest magnitude.
    pub const STRONGEST: u32 = 30;
    /// The most operations.
    pub const MOST: u32 = 16;

    /// Changes a picture as the key draws.
    pub(super) fn change(&self, picture: &mut Picture<'_>, key: &Key, scratch: &mut Scratch) {
        for word in (0..self.operations).map(|at| RAND + 2 * at) {
            let operation = OPERATIONS[key.below(word, OPERATIONS.len() as u32) as usize];
            let side = if key.below(word + 1, 2) == 1 { -1.0 } else { 1.0 };
            let strength = Strength(side * f64::from(self.magnitude) / f64::from(Self::STRONGEST));
            picture.change(operation, strength, scratch);
        }
    }
}

impl Picture<'_> {
    fn change(&mut self, operation: Operation, Strength(signed): Strength, scratch: &mut Scratch) {
        let Planes { channels, height, width, .. } = self.planes;
        let factor = Factor((1.0 + 0.9 * signed) as f32);
        let share = signed.abs();
        // As far as the paper moves pictures of 331 pixels.
        let pixels = |side: usize| (150.0 / 331.0 * side as f64 * signed).trunc();
        match operation {
            Operation::Identity => {}
            Operation::ShearX => self.warp(Warp::shear(Axis::Across, 0.3 * signed), scratch),
            Operation::ShearY => self.warp(Warp::shear(Axis::Down, 0.3 * signed), scratch),
            Operation::TranslateX => self.warp(Warp::shift(Axis::Across, pixels(width)), scratch),
            Operation::TranslateY => self.warp(Warp::shift(Axis::Down, pixels(height)), scratch),
            Operation::Rotate => self.warp(Warp::turn([height, width], 30.0 * signed), scratch),
            Operation::Brightness => brightness(self.levels, factor),
            Operation::Colour => saturation(self.levels, channels, factor),
            Operation::Contrast => contrast(self.levels, channels, factor),
            Operation::Sharpness => {
                self.planes().for_each(|plane| sharpness(plane, width, factor, &mut scratch.plane));
            }
            Operation::Posterize => posterize(self.levels, 8 - (4.0 * share).round() as u32),
            Operation::Solarize => solarize(self.levels, WHITE - (255.0 * share) as f32),
            Operation::AutoContrast => self.channels().for_each(autocontrast),
            Operation::Equalize => self.channels().for_each(equalize),
        }
    }

    fn planes(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.levels.chunks_exact_mut(self.planes.plane())
    }

    fn channels(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.levels.chunks_exact_mut(self.planes.channel())
    }

    fn warp(&mut self, warp: Warp, scratch: &mut Scratch) {
        let sides = [self.planes.height, self.planes.width];
        let mut canvas = Canvas { sides, outside: self.outside, before: &mut scratch.plane };
        self.planes().for_each(|plane| warp.apply(plane, &mut canvas));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{MicroBatch, Seed, Site, Step};

    const PLANES: Planes = Planes { channels: 3, frames: 2, height: 20, width: 18 };

    fn picture() -> Vec<f32> {
        (0..3 * 2 * 20 * 18).map(|at| ((at * 37) % 256) as f32).collect()
    }

    fn done(operation: Operation, strength: f64) -> Vec<f32> {
        let mut levels = picture();
        let mut picture = Picture { levels: &mut levels, planes: PLANES, outside: 0.0 };
        picture.change(operation, Strength(strength), &mut Scratch::default());
        levels
    }

    #[test]
    fn every_operation_changes_a_picture_and_none_leaves_the_levels() {
        for operation in OPERATIONS {
            for strength in [-1.0, -0.3, 0.0, 0.3, 1.0] {
                let levels = done(operation, strength);
                assert!(levels.iter().all(|level| (0.0..=WHITE).contains(level)), "{operation:?} {strength}");
                let is_same = levels == picture();
                let of_levels = matches!(operation, Operation::AutoContrast | Operation::Equalize);
                let is_still = operation == Operation::Identity || strength == 0.0 && !of_levels;
                // Levels from 0 to 255 have all the contrast that there is.
                let is_weak = strength.abs() < 1.0 || operation == Operation::AutoContrast;
                let still_solar = operation == Operation::Solarize && strength == 0.0;
                assert!(is_same == is_still || is_weak || still_solar, "{operation:?} {strength}");
            }
        }
        // 150/331 of 18 columns are 8, and of 20 rows 9.
        let (before, right) = (picture(), done(Operation::TranslateX, 1.0));
        assert_eq!((&right[..8], &right[8..18]), (&[0.0; 8][..], &before[..10]));
        let up = done(Operation::TranslateY, -1.0);
        assert_eq!((&up[..11 * 18], &up[11 * 18..360]), (&before[9 * 18..360], &[0.0; 9 * 18][..]));
        let dark = done(Operation::Brightness, -1.0);
        assert!(dark.iter().zip(&before).all(|(dark, own)| (dark - 0.1 * own).abs() < 1e-3));
        assert!(done(Operation::Posterize, 1.0).iter().all(|level| (*level as u32).is_multiple_of(16)));
        let negative = done(Operation::Solarize, 1.0);
        assert!(negative.iter().zip(&before).all(|(negative, own)| *negative == WHITE - own));
    }

    #[test]
    fn all_operations_are_drawn_on_both_sides() {
        let rand = RandAugment { operations: 1, magnitude: 30 };
        let mut seen = std::collections::BTreeSet::new();
        for row in 0..500 {
            let mut levels = picture();
            let mut picture = Picture { levels: &mut levels, planes: PLANES, outside: 0.0 };
            let key = Key::new(Seed(1), Step(1), MicroBatch(0), Site(row));
            rand.change(&mut picture, &key, &mut Scratch::default());
            seen.insert(levels.iter().map(|level| level.to_bits()).collect::<Vec<_>>());
        }
        // Five warps and four factors have two sides.
        assert!(seen.len() >= 14 + 9 - 1, "{}", seen.len());
    }
}
