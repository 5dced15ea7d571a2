//! Rows of matrices: copied from one pitch to another, with a vector in front, and multiplied.
//!
//! This file does not know what the rows are.

use super::{Floats, THREADS, Values, ValuesMut, alike, room, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::{Matrices, Rows};

/// Bytes that a thread has.
const WIDE: usize = 16;

/// Blocks for so many rows, each of so many elements of so many bytes.
fn blocks(rows: usize, width: usize, bytes: usize) -> usize {
    rows * (width * bytes).div_ceil(THREADS * WIDE)
}

/// Where the last of some rows ends, of rows that begin so far apart.
fn end(shape: Rows, pitch: usize) -> usize {
    if shape.rows == 0 { 0 } else { (shape.rows - 1) * pitch + shape.width }
}

/// `y[r, i] = x[r, i]`, of rows that begin `from` apart and come to begin `to` apart. What is between them is nobody's.
///
/// *Panics* where rows would overlap, or there is no room for them.
pub fn copy_rows<'x, 'y>(
    queue: &impl Queue,
    shape: Rows,
    [from, to]: [usize; 2],
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (x, mut y, width) = (x.into(), y.into(), shape.width);
    assert!(from.min(to) >= width, "rows of {width} that begin {from} and {to} apart");
    room("x", x.len(), end(shape, from));
    room("y", y.len(), end(shape, to));
    if shape.rows * width == 0 {
        return;
    }
    let storage = alike(x.storage(), &[y.storage()]);
    let kernel = storage.of([&kernels::COPY_ROWS, &kernels::COPY_ROWS_BF16, &kernels::COPY_ROWS_F16]);
    let [width_, from, to] = [width, from, to].map(|n| size(n).into());
    let arguments = [x.into(), (&mut y).into(), width_, from, to];
    let launch = KernelLaunch::new(kernel, blocks(shape.rows, width, storage.bytes()), arguments);
    queue.launch(&launch.moves(2 * shape.rows * width * storage.bytes()));
}

/// Of each matrix `y: [1 + rows, columns]`: `token` and then `x: [rows, columns]`, to all of which `places: [1 + rows, columns]` is
/// added.
pub fn class_token<'x, 'y>(
    queue: &impl Queue,
    shape: Matrices,
    x: impl Into<Values<'x>>,
    [token, places]: [Floats<'_>; 2],
    y: impl Into<ValuesMut<'y>>,
) {
    let Matrices { matrices, rows, columns } = shape;
    let (x, mut y, len) = (x.into(), y.into(), (rows + 1) * columns);
    same("x", x.len(), matrices * rows * columns);
    same("token", token.len(), columns);
    same("places", places.len(), len);
    same("y", y.len(), matrices * len);
    if y.len() == 0 {
        return;
    }
    let storage = alike(x.storage(), &[y.storage()]);
    let kernel = storage.of([&kernels::CLASS_TOKEN, &kernels::CLASS_TOKEN_BF16, &kernels::CLASS_TOKEN_F16]);
    size(len);
    let [rows, columns] = [rows, columns].map(|n| size(n).into());
    let arguments = [x.into(), token.into(), places.into(), (&mut y).into(), rows, columns];
    queue.launch(&KernelLaunch::new(kernel, blocks(matrices, len, storage.bytes()), arguments));
}

/// `y[r, i] = x[r, i] by[r]`.
pub fn scale_rows<'x, 'y>(
    queue: &impl Queue,
    shape: Rows,
    x: impl Into<Values<'x>>,
    by: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (x, by, mut y, len) = (x.into(), by.into(), y.into(), shape.rows * shape.width);
    same("x", x.len(), len);
    same("by", by.len(), shape.rows);
    same("y", y.len(), len);
    if len == 0 {
        return;
    }
    let storage = alike(x.storage(), &[by.storage(), y.storage()]);
    let kernel = storage.of([&kernels::SCALE_ROWS, &kernels::SCALE_ROWS_BF16, &kernels::SCALE_ROWS_F16]);
    let [rows, width] = [shape.rows, shape.width].map(|n| size(n).into());
    let arguments = [x.into(), by.into(), (&mut y).into(), (len as u64).into(), rows, width];
    queue.launch(&KernelLaunch::over_wide(kernel, len, storage.bytes(), arguments));
}

/// `y[r] = sum over i of a[r, i] b[r, i]`. *Order*: 16 bytes to each lane of a warp in turn, then the lanes.
pub fn dot_rows<'x, 'y>(
    queue: &impl Queue,
    shape: Rows,
    a: impl Into<Values<'x>>,
    b: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (a, b, mut y, len) = (a.into(), b.into(), y.into(), shape.rows * shape.width);
    same("a", a.len(), len);
    same("b", b.len(), len);
    same("y", y.len(), shape.rows);
    if shape.rows == 0 {
        return;
    }
    let storage = alike(a.storage(), &[b.storage(), y.storage()]);
    let kernel = storage.of([&kernels::DOT_ROWS, &kernels::DOT_ROWS_BF16, &kernels::DOT_ROWS_F16]);
    let [rows, width] = [shape.rows, shape.width].map(|n| size(n).into());
    let arguments = [a.into(), b.into(), (&mut y).into(), rows, width];
    queue.launch(&match shape.width {
        1 => KernelLaunch::over_wide(kernel, shape.rows, storage.bytes(), arguments),
        _ => KernelLaunch::new(kernel, shape.rows.div_ceil(THREADS / 32), arguments),
    });
}
