//! Products of few results and a long K, which would keep a GPU's few blocks busy for long: K is cut into ranges, each has a matrix of
//! sums in scratch, and these are added and finished by a kernel of their own.
//!
//! In how many is a function of the shape alone; where bits depend on it, not of the number of rows. This file does not know what
//! multiplies.

use super::elementwise::code;
use super::{Floats, Values, ValuesMut, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use crate::values::nothing;
use dtrain_engine::device::{Activation, Product};

/// Blocks that a product is cut for: some for each multiprocessor.
pub(super) const BLOCKS: usize = 512;
/// Terms that a range has at least; of f32 the blocks in which the CPU adds up, so that the bits are the CPU's.
pub(super) const RANGE: usize = 512;
/// A shorter K is not worth another launch.
const LONG: usize = 4 * RANGE;
/// The same of f32, which takes longer: a range of a tile some 25 µs.
const LONG_IN_F32: usize = 2 * RANGE;
/// Tiles from which on a GPU is busy enough: about one for each multiprocessor.
const ENOUGH: usize = 128;
/// Matrices of tiles that the sums of all ranges take at most, where all of them are needed.
const MOST: usize = 4096;
/// Results of a row up to which a product is cut that has many rows, too: so that a row has the same bits among others.
const NARROW: usize = 128;
/// Terms of a range for each result of a row: writing and reading its sums is then a quarter of what reading a row takes.
const EACH: usize = 16;

/// Whether there are enough tiles of 128 x 128, and each is more than half full: else smaller ones keep more of a GPU busy. The bits
/// are the same.
pub(super) fn are_enough(rows: usize, columns: usize) -> bool {
    rows.min(columns) > 64 && rows.div_ceil(128) * columns.div_ceil(128) >= ENOUGH
}

/// Of rows of so many results, with ranges of any length.
pub(super) fn ranges(width: usize, k: usize) -> usize {
    if k < LONG || width > NARROW { 1 } else { k.div_ceil(RANGE.max(EACH * width)) }
}

/// Of a product of so many tiles whose ranges have [`RANGE`] terms each.
pub(super) fn whole_ranges(tiles: usize, k: usize) -> usize {
    let ranges = k.div_ceil(RANGE);
    if k < LONG_IN_F32 || tiles >= ENOUGH || tiles * ranges > MOST { 1 } else { ranges }
}

/// Of a product of so many tiles that is to have so many blocks, with ranges of [`RANGE`] terms at least.
pub(super) fn filling(blocks: usize, tiles: usize, k: usize) -> usize {
    (blocks / tiles.max(1)).min(k.div_ceil(RANGE)).max(1)
}

/// Elements of scratch for the sums of ranges.
pub(super) fn room_for(ranges: usize, shape: &Product) -> usize {
    if ranges > 1 { ranges * shape.m * shape.n } else { 0 }
}

/// What is done to a complete sum.
#[derive(Clone, Copy)]
pub(super) struct Ending<'a> {
    pub(super) bias: Option<Floats<'a>>,
    pub(super) activation: Activation,
    /// Added to the activation; lies as the result does.
    pub(super) plus: Option<Values<'a>>,
}

impl Ending<'_> {
    /// Nothing.
    pub(super) const PLAIN: Self = Self { bias: None, activation: Activation::None, plus: None };
}

/// `y = act(parts[0] + parts[1] + ... + bias) + plus`, as the kernel's file says, of the sums of all ranges of a product.
pub(super) fn finish(
    queue: &impl Queue,
    shape: &Product,
    parts: Floats<'_>,
    with: Ending<'_>,
    mut y: ValuesMut<'_>,
) {
    let (width, len) = (shape.n, shape.m * shape.n);
    let count = parts.len() / len;
    same("parts", parts.len(), count * len);
    same("bias", with.bias.map_or(width, |bias| bias.len()), width);
    same("plus", with.plus.map_or(y.len(), |plus| plus.len()), y.len());
    let storage = y.storage();
    let arguments = [
        parts.into(),
        with.bias.into(),
        with.plus.map_or(nothing(storage), Into::into),
        (&mut y).into(),
        (len as u64).into(),
        size(count).into(),
        size(width).into(),
        size(shape.c_row).into(),
        code(with.activation).into(),
    ];
    let kernel = storage.of([&kernels::FINISH, &kernels::FINISH_BF16, &kernels::FINISH_F16]);
    queue.launch(&KernelLaunch::over(kernel, len, arguments));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tiles_are_for_products_that_fill_them_and_a_gpu() {
        for ((rows, columns), enough) in [
            ((1410, 1410), true),
            ((1409, 1280), false),
            ((65, 16_384), true),
            ((10, 32_768), false),
            ((16_384, 64), false),
        ] {
            assert_eq!(are_enough(rows, columns), enough, "{rows} x {columns}");
        }
    }

    #[test]
    fn a_long_sum_of_few_results_is_cut_and_no_other() {
        // The heads of `cnn3d` and `cnn`, what is short, and what is wide.
        assert_eq!(
            [ranges(10, 32_768), ranges(128, 9_216), ranges(10, 2_047), ranges(129, 32_768)],
            [64, 5, 1, 1]
        );
        // Of f32 one tile and four; what is short, has tiles enough, or would take too much room.
        assert_eq!([whole_ranges(1, 32_768), whole_ranges(4, 9_216), whole_ranges(16, 1_024)], [64, 18, 2]);
        assert_eq!([whole_ranges(1, 1_000), whole_ranges(128, 32_768), whole_ranges(127, 32_768)], [1, 1, 1]);
    }
}
