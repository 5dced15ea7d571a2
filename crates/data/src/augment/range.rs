//! Between which values pixels lie, so that colours can be changed and never leave it.

/// The lowest and the highest value that a training picture has or could have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange {
    low: f32,
    high: f32,
}

/// The level of the brightest pixel, as in a picture of bytes.
pub(super) const WHITE: f32 = 255.0;

impl ValueRange {
    /// That of bytes.
    pub const BYTES: Self = Self { low: 0.0, high: WHITE };

    /// That of these values; that of bytes if there are none.
    pub fn of(mut values: impl Iterator<Item = f32>) -> Self {
        let Some(first) = values.next() else { return Self::BYTES };
        let one = Self { low: first, high: first };
        values.fold(one, |range, value| Self { low: range.low.min(value), high: range.high.max(value) })
    }

    /// A raw 0, or what is nearest to it.
    pub fn zero(self) -> f32 {
        0.0f32.clamp(self.low, self.high)
    }

    /// Leaves nothing outside: sums of weights may be one digit off.
    pub fn keep(self, values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = value.clamp(self.low, self.high));
    }

    /// The level of a value: 0 the lowest, [`WHITE`] the highest.
    pub fn level(self, value: f32) -> f32 {
        let span = self.high - self.low;
        if span > 0.0 { ((value - self.low) * (WHITE / span)).clamp(0.0, WHITE) } else { 0.0 }
    }

    /// Brings values to their levels. Bytes are levels already.
    pub fn to_levels(self, values: &mut [f32]) {
        if self != Self::BYTES {
            values.iter_mut().for_each(|value| *value = self.level(*value));
        }
    }

    /// Brings levels back to values.
    pub fn back_from_levels(self, values: &mut [f32]) {
        if self != Self::BYTES {
            let step = (self.high - self.low) / WHITE;
            values
                .iter_mut()
                .for_each(|value| *value = (self.low + *value * step).clamp(self.low, self.high));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_go_from_the_lowest_value_to_the_highest_and_back() {
        let range = ValueRange::of([-2.0, 6.0, 1.0].into_iter());
        assert_eq!([-2.0, 2.0, 6.0].map(|value| range.level(value)), [0.0, 127.5, 255.0]);
        let mut values = [-2.0, 2.0, 6.0];
        range.to_levels(&mut values);
        range.back_from_levels(&mut values);
        assert_eq!(values, [-2.0, 2.0, 6.0]);
        assert_eq!((range.zero(), ValueRange::of([3.0, 4.0].into_iter()).zero()), (0.0, 3.0));
        let flat = ValueRange::of([3.0, 3.0].into_iter());
        let mut values = [3.0, 3.0];
        flat.to_levels(&mut values);
        flat.back_from_levels(&mut values);
        assert_eq!(values, [3.0, 3.0], "pictures of one value stay as they are");
        assert_eq!(ValueRange::of(std::iter::empty()), ValueRange::BYTES);
    }
}
