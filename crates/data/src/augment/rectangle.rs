//! A rectangle in a picture, of a drawn area and aspect.
//!
//! It does not know what becomes of what is inside.

use super::words::{PER_TRY, TRIES};
use dtrain_types::Key;
use dtrain_types::numbers::exp;

/// Rows `top..top + height` and columns `left..left + width`, none of them empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rectangle {
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
}

/// Which rectangles are drawn.
pub(super) struct Drawn {
    /// The least and the most of the picture's area that one has.
    pub area: [f64; 2],
    /// The logarithms of the least and the most width for a height.
    pub log_aspect: [f64; 2],
    /// The most rows and columns that one has.
    pub most: [usize; 2],
    /// The first word of the key that is drawn.
    pub word: u32,
}

impl Rectangle {
    /// The largest in the middle whose sides are in the ratio of these.
    pub fn middle([height, width]: [usize; 2], [rows, columns]: [usize; 2]) -> Self {
        // `side * part / of`, to the nearest whole number.
        let share = |side: usize, part: usize, of: usize| ((2 * side * part + of) / (2 * of)).max(1);
        match width * rows > height * columns {
            true => Self::centred([height, width], [height, share(height, columns, rows).min(width)]),
            false => Self::centred([height, width], [share(width, rows, columns).min(height), width]),
        }
    }

    /// One of these sides in the middle.
    pub fn centred([height, width]: [usize; 2], [rows, columns]: [usize; 2]) -> Self {
        Self { top: (height - rows) / 2, left: (width - columns) / 2, height: rows, width: columns }
    }

    /// The first of ten that fits into a picture of these sides; none if none does.
    ///
    /// *Source*: `RandomResizedCrop` and `RandomErasing` of torchvision.
    pub fn draw(key: &Key, [height, width]: [usize; 2], drawn: &Drawn) -> Option<Self> {
        let between = |word, [low, high]: [f64; 2]| low + f64::from(key.unit_f32(word)) * (high - low);
        let side = |square: f64| square.sqrt().round_ties_even() as usize;
        (0..TRIES).find_map(|attempt| {
            let word = drawn.word + attempt * PER_TRY;
            let area = (height * width) as f64 * between(word, drawn.area);
            let aspect = exp(between(word + 1, drawn.log_aspect));
            let (rows, columns) = (side(area / aspect), side(area * aspect));
            let fits = (1..=drawn.most[0]).contains(&rows) && (1..=drawn.most[1]).contains(&columns);
            let place = |word, spare: usize| key.below(word, spare as u32 + 1) as usize;
            fits.then(|| Self {
                top: place(word + 2, height - rows),
                left: place(word + 3, width - columns),
                height: rows,
                width: columns,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_largest_of_its_ratio() {
        let middle = |sides, wanted| {
            let Rectangle { top, left, height, width } = Rectangle::middle(sides, wanted);
            [top, left, height, width]
        };
        assert_eq!(middle([8, 8], [3, 3]), [0, 0, 8, 8]);
        assert_eq!(middle([8, 12], [20, 20]), [0, 2, 8, 8]);
        assert_eq!(middle([12, 8], [4, 8]), [4, 0, 4, 8]);
        assert_eq!(middle([5, 8], [7, 1]), [0, 3, 5, 1]);
        assert_eq!(middle([1, 1], [9, 1]), [0, 0, 1, 1]);
    }
}
