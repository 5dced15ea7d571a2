//! Random erasing: one rectangle of some pictures becomes 0.
//!
//! *Source*: Zhong, Zheng, Kang, Li and Yang, "Random erasing data augmentation", 2020; areas and aspects are those of torchvision.

use super::planes::Planes;
use super::rectangle::{Drawn, Rectangle};
use super::words::{ERASE, ERASED};
use dtrain_types::Key;

/// One picture of so many.
const ONE_OF: u32 = 4;
/// From 2 to 33 % of the area.
const AREA: [f64; 2] = [0.02, 0.33];
/// ln(1 / 3.3) and ln(1 / 0.3): heights from 0.3 to 3.3 widths.
const LOG_ASPECT: [f64; 2] = [-1.193_922_468_472_434_6, 1.203_972_804_325_936];

/// What is erased of a picture with these sides; none if the key draws nothing.
fn erased(sides @ [height, width]: [usize; 2], key: &Key) -> Option<Rectangle> {
    let drawn = Drawn { area: AREA, log_aspect: LOG_ASPECT, most: [height - 1, width - 1], word: ERASED };
    (key.below(ERASE, ONE_OF) == 0).then(|| Rectangle::draw(key, sides, &drawn))?
}

/// Puts `zero` into the rectangle that the key draws, if it draws one.
pub(super) fn erase(values: &mut [f32], planes: Planes, zero: f32, key: &Key) {
    let Some(part) = erased([planes.height, planes.width], key) else { return };
    for plane in values.chunks_exact_mut(planes.plane()) {
        for row in plane.chunks_exact_mut(planes.width).skip(part.top).take(part.height) {
            row[part.left..part.left + part.width].fill(zero);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{MicroBatch, Seed, Site, Step};

    #[test]
    fn a_quarter_of_the_pictures_lose_one_rectangle_in_all_planes() {
        let planes = Planes { channels: 2, frames: 2, height: 20, width: 30 };
        let mut count = 0;
        for row in 0..2000 {
            let key = Key::new(Seed(2), Step(1), MicroBatch(0), Site(row));
            let mut values = vec![1.0; 4 * 600];
            erase(&mut values, planes, 0.0, &key);
            let Some(part) = erased([20, 30], &key) else {
                assert!(values.iter().all(|value| *value == 1.0));
                continue;
            };
            count += 1;
            let area = part.height * part.width;
            assert!((600 * 2 / 100 - 3..=600 * 33 / 100 + 20).contains(&area), "{part:?}");
            for plane in values.chunks(600) {
                assert_eq!(plane.iter().filter(|value| **value == 0.0).count(), area);
                assert_eq!(
                    (plane[part.top * 30 + part.left], plane[0] == 0.0),
                    (0.0, (part.top, part.left) == (0, 0))
                );
            }
        }
        assert!((420..580).contains(&count), "{count}");
    }

    #[test]
    fn a_picture_of_one_pixel_stays() {
        let planes = Planes { channels: 1, frames: 1, height: 1, width: 1 };
        for row in 0..50 {
            let mut values = [1.0];
            erase(&mut values, planes, 0.0, &Key::new(Seed(2), Step(1), MicroBatch(0), Site(row)));
            assert_eq!(values, [1.0]);
        }
    }
}
