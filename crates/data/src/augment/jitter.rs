//! Random brightness, contrast and saturation, in a random order.
//!
//! *Source*: `ColorJitter` of torchvision, without its hue.

use super::colour::{Factor, brightness, contrast, saturation};
use super::words::JITTER;
use dtrain_types::Key;

/// How far the factors go from 1, on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Of the brightness.
    pub brightness: f32,
    /// Of the contrast.
    pub contrast: f32,
    /// Of the saturation.
    pub saturation: f32,
}

impl Default for Jitter {
    fn default() -> Self {
        Self { brightness: 0.4, contrast: 0.4, saturation: 0.4 }
    }
}

/// What one of the three numbers may be: more would make any picture black and white.
const MOST: f32 = 10.0;

/// The orders of three things.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl Jitter {
    /// `B,C,S`; none if that is no three numbers that it can have.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse().ok().filter(|number| (0.0..=MOST).contains(number));
        let numbers: Vec<f32> = text.split(',').map(number).collect::<Option<_>>()?;
        let [brightness, contrast, saturation] = numbers[..] else { return None };
        Some(Self { brightness, contrast, saturation })
    }

    /// Changes the levels of a picture as the key draws.
    pub(super) fn change(&self, levels: &mut [f32], channels: usize, key: &Key) {
        let spans = [self.brightness, self.contrast, self.saturation];
        for which in ORDERS[key.below(JITTER, ORDERS.len() as u32) as usize] {
            let (low, high) = ((1.0 - spans[which]).max(0.0), 1.0 + spans[which]);
            let factor = Factor(low + key.unit_f32(JITTER + 1 + which as u32) * (high - low));
            match which {
                0 => brightness(levels, factor),
                1 => contrast(levels, channels, factor),
                _ => saturation(levels, channels, factor),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{MicroBatch, Seed, Site, Step};

    #[test]
    fn each_number_is_about_one_thing_and_goes_to_both_sides() {
        let nothing = Jitter { brightness: 0.0, contrast: 0.0, saturation: 0.0 };
        let picture = [100.0, 50.0, 20.0, 60.0, 40.0, 30.0];
        let seen = |jitter: Jitter| {
            let change = |row| {
                let mut levels = picture;
                jitter.change(&mut levels, 3, &Key::new(Seed(1), Step(1), MicroBatch(0), Site(row)));
                levels
            };
            (0..200).map(change).collect::<Vec<_>>()
        };
        assert!(seen(nothing).iter().all(|levels| *levels == picture));
        let bright = seen(Jitter { brightness: 0.5, ..nothing });
        let factors = || bright.iter().map(|levels| levels[0] / picture[0]);
        assert!(factors().all(|factor| (0.5..=1.5).contains(&factor)));
        assert!(factors().any(|factor| factor < 0.6) && factors().any(|factor| factor > 1.4));
        for levels in &bright {
            let factor = levels[0] / picture[0];
            assert!(levels.iter().zip(picture).all(|(level, own)| (level - own * factor).abs() < 1e-3));
        }
        for jitter in [Jitter { contrast: 0.5, ..nothing }, Jitter { saturation: 0.5, ..nothing }] {
            let spreads: Vec<f32> = seen(jitter).iter().map(|levels| levels[0] - levels[4]).collect();
            let own = picture[0] - picture[4];
            assert!(spreads.iter().any(|spread| *spread < 0.8 * own), "{jitter:?}");
            assert!(spreads.iter().any(|spread| *spread > 1.2 * own), "{jitter:?}");
        }
    }

    #[test]
    fn all_orders_are_drawn() {
        let orders: std::collections::BTreeSet<u32> = (0..200)
            .map(|row| {
                Key::new(Seed(1), Step(1), MicroBatch(0), Site(row)).below(JITTER, ORDERS.len() as u32)
            })
            .collect();
        assert_eq!(orders.len(), ORDERS.len());
    }
}
