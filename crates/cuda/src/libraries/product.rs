//! Matrix products in the words of a library: what a choice is made for.
//!
//! This file does not know a library's functions.

use super::layouts::Layouts;
use super::{LibraryError, Numbers};
use dtrain_engine::device::{Product, Write};
use serde::{Deserialize, Serialize};

/// The only library that is asked.
const NAME: &str = "cuBLASLt";

/// What a choice is made for. Two ranks with the same key may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProductKey {
    /// The operands.
    pub layouts: Layouts,
    /// What they hold.
    pub numbers: Numbers,
    /// Whether the sum is added to what is there.
    pub adds: bool,
    /// What happens to a sum before it is rounded.
    pub finish: Finish,
    /// Bytes that the addresses of all operands are multiples of.
    pub alignment: u32,
}

/// What happens to a sum before it is rounded, in this order: `plus`, which lies as the result does, and the bias, which has the
/// result's type; then the activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// Nothing.
    #[default]
    None,
    /// `+ bias`.
    Bias,
    /// `max(+ bias, 0)`.
    BiasRelu,
    /// `+ plus`.
    Plus,
    /// `+ plus + bias`.
    PlusBias,
    /// `gelu(+ bias)`, by the hyperbolic tangent; what it is of is kept, and lies as the result does.
    BiasGelu,
}

impl Finish {
    /// Whether there is a bias.
    #[must_use]
    pub fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::BiasRelu | Self::PlusBias | Self::BiasGelu)
    }

    /// Whether something is added that lies as the result does.
    #[must_use]
    pub fn has_plus(self) -> bool {
        matches!(self, Self::Plus | Self::PlusBias)
    }

    /// Whether the sum is kept beside what its activation makes of it.
    #[must_use]
    pub fn keeps(self) -> bool {
        self == Self::BiasGelu
    }
}

impl ProductKey {
    /// *Errors*: [`LibraryError::Shape`] where the strides cannot be said by columns, or where it is empty.
    pub fn of(
        shape: &Product,
        numbers: Numbers,
        finish: Finish,
        alignment: u32,
    ) -> Result<Self, LibraryError> {
        let layouts = Layouts::of(shape).ok_or_else(|| LibraryError::Shape {
            library: NAME,
            shape: format!("{shape:?}"),
            why: "it is empty, or neither rows nor columns of an operand are contiguous",
        })?;
        Ok(Self { layouts, numbers, adds: shape.write == Write::Add, finish, alignment })
    }

    /// Multiplications and additions.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let Layouts { left, out, .. } = &self.layouts;
        2 * out.rows * out.columns * if left.turned { left.rows } else { left.columns }
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::device::Strides;

    fn key(write: Write) -> ProductKey {
        let (a, b) = (Strides::rows(512), Strides::transposed(512));
        let shape = Product { m: 64, n: 128, k: 512, a, b, c_row: 128, write };
        ProductKey::of(&shape, Numbers::Bf16ToF32, Finish::None, 16).expect("rows are contiguous")
    }

    #[test]
    fn two_shapes_share_a_choice_only_if_they_are_the_same() {
        assert_eq!(key(Write::Set), key(Write::Set));
        assert_ne!(key(Write::Set), key(Write::Add));
        let other = ProductKey { alignment: 8, ..key(Write::Set) };
        assert_ne!(key(Write::Set), other);
        assert_ne!(key(Write::Set), ProductKey { finish: Finish::Bias, ..key(Write::Set) });
        assert_eq!(key(Write::Set).operations(), 2 * 64 * 128 * 512);
    }

    #[test]
    fn strides_that_cannot_be_told_are_a_typed_error() {
        let (a, b) = (Strides { row: 40, col: 3 }, Strides::rows(4));
        let shape = Product { m: 2, n: 4, k: 3, a, b, c_row: 4, write: Write::Set };
        let error = ProductKey::of(&shape, Numbers::F32, Finish::None, 16).expect_err("no contiguous rows");
        assert!(
            matches!(error, LibraryError::Shape { .. }) && error.to_string().contains("col: 3"),
            "{error}"
        );
    }
}
