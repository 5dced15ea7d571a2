//! Matrices with their rows and columns the other way round.
//!
//! This file does not know images or channels.

use super::elementwise::code;
use super::{Floats, Values, ValuesMut, alike, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use crate::values::nothing;
use dtrain_engine::device::{Activation, Write};
use std::ops::RangeInclusive;

/// Numbers of a tile, as a power of two: `turn.cu` has it too.
const TILE: u32 = 12;
/// Rows of a tile, likewise.
const ROWS: RangeInclusive<u32> = 4..=8;

/// Matrices one behind another, each row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixBatch {
    /// How many.
    pub count: usize,
    /// Rows of each.
    pub rows: usize,
    /// Numbers of a row.
    pub columns: usize,
}

/// What is done to numbers on their way.
#[derive(Clone, Copy, Debug)]
pub struct Turned<'a> {
    /// One number for each column, which is added to it.
    pub bias: Option<Floats<'a>>,
    /// Whether the result is added to what was there.
    pub write: Write,
    /// What is applied in the end.
    pub activation: Activation,
    /// What a ReLU gave, as the result lies, whose gradient that is: it is zero where these are not above zero.
    pub x: Option<Values<'a>>,
}

impl Turned<'_> {
    /// Nothing: the bits stay.
    pub const PLAIN: Self = Self { bias: None, write: Write::Set, activation: Activation::None, x: None };
}

impl MatrixBatch {
    /// Rows of a tile, as a power of two: as few as the matrix has, or as many as its columns leave room for.
    fn rows_of_a_tile(&self) -> u32 {
        let [rows, columns] = [self.rows, self.columns].map(|n| n.next_power_of_two().ilog2());
        let square = TILE / 2;
        let rows = if rows < square { rows } else { square.max(TILE - columns.min(TILE)) };
        rows.clamp(*ROWS.start(), *ROWS.end())
    }
}

/// `to[matrix][column][row] = from[matrix][row][column]`, with what is done on the way; numbers are rounded where anything is.
///
/// *Panics* unless lengths are those of the matrices.
pub fn turn<'x, 'y>(
    queue: &impl Queue,
    matrices: MatrixBatch,
    from: impl Into<Values<'x>>,
    way: Turned<'_>,
    to: impl Into<ValuesMut<'y>>,
) {
    let (from, mut to) = (from.into(), to.into());
    let MatrixBatch { count, rows, columns } = matrices;
    let len = count * rows * columns;
    same("from", from.len(), len);
    same("to", to.len(), len);
    if let Some(bias) = way.bias {
        same("bias", bias.len(), columns);
    }
    same("x", way.x.map_or(len, |x| x.len()), len);
    if len == 0 {
        return;
    }
    let bits = matrices.rows_of_a_tile();
    let tiles = rows.div_ceil(1 << bits) * columns.div_ceil(1 << (TILE - bits));
    let storage = alike(from.storage(), &[to.storage(), way.x.map_or(to.storage(), |x| x.storage())]);
    let adds = way.write == Write::Add;
    let arguments = [
        from.into(),
        way.bias.into(),
        way.x.map_or(nothing(storage), Into::into),
        (&mut to).into(),
        size(rows).into(),
        size(columns).into(),
        bits.into(),
        code(way.activation).into(),
        u32::from(adds).into(),
    ];
    let kernel = storage.of([&kernels::TURN, &kernels::TURN_BF16, &kernels::TURN_F16]);
    let launch = KernelLaunch::new(kernel, count * tiles, arguments);
    queue.launch(&if adds { launch.and_moves(len * storage.bytes()) } else { launch });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_as_high_as_the_matrix_or_leaves_room_for_its_columns() {
        let high = |rows, columns| 1 << MatrixBatch { count: 1, rows, columns }.rows_of_a_tile();
        assert_eq!([high(32, 576), high(64, 576), high(3, 784), high(512, 196)], [32, 64, 16, 64]);
        assert_eq!(
            [high(576, 64), high(576, 32), high(576, 1), high(9, 9), high(4096, 4096)],
            [64, 128, 256, 16, 64]
        );
    }
}
