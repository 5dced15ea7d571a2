//! Checks of the gated half of rows: the CPU's bits.

use super::stored::{Nearness, each};
use super::{Buffer, Extent, Kind, NANS, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Device, Rows};

/// Rows and the width of one: whole pieces of 16 bytes, and others, of which some are of several rows.
const ROWS: [(usize, usize); 8] = [(1, 1), (5, 3), (0, 7), (3, 1030), (40, 2), (2, 2056), (9, 33), (17, 72)];

/// Numbers of all sizes that a gate may have, and those that are easily forgotten.
fn odd_numbers(site: u32, len: usize) -> Vec<f32> {
    let odd = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -95.0, 95.0];
    let odd: Vec<f32> = odd.into_iter().chain(NANS).collect();
    let plain = numbers(site, len);
    let number = |(i, v): (usize, &f32)| if i % 29 == 5 { odd[i / 29 % odd.len()] } else { v * 8.0 };
    plain.iter().enumerate().map(number).collect()
}

pub fn swiglu(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(2, &ROWS) {
        let (x, len) = (odd_numbers(1, 2 * rows * width), rows * width);
        let (x_, y_) = (Buffer::of(q, "x", &x), Buffer::<f32>::empty(q, "y", len));
        operations::swiglu(q, Rows { rows, width }, x_.read(), y_.write());
        let mut y = vec![0.0; len];
        cpu().swiglu(Rows { rows, width }, &x, &mut y);
        y_.has_numbers("swiglu", &y);
    }
}

pub fn swiglu_gradient(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(2, &ROWS) {
        let (x, dy) = (odd_numbers(1, 2 * rows * width), numbers(2, rows * width));
        let (x_, dy_) = (Buffer::of(q, "x", &x), Buffer::of(q, "dy", &dy));
        let (mut dx, dx_) = (vec![0.0; x.len()], Buffer::<f32>::empty(q, "dx", x.len()));
        operations::swiglu_gradient(q, Rows { rows, width }, x_.read(), dy_.read(), dx_.write());
        cpu().swiglu_gradient(Rows { rows, width }, &x, &dy, &mut dx);
        dx_.has_numbers("swiglu_gradient", &dx);
    }
}

/// Lists that do not lie on 16 bytes, or of which one does not, have the numbers of those that do; what is before them is left.
pub fn askew(q: &StandIn, _: Extent) {
    let (shape, len) = (Rows { rows: 3, width: 40 }, 120);
    for [x_off, y_off, d_off] in [[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        let (x, y) = (numbers(1, 2 * len + x_off), numbers(2, len + y_off));
        let d = numbers(3, 2 * len + d_off);
        let [x_, y_, d_] = [("x", &x), ("y", &y), ("dx", &d)].map(|(name, x)| Buffer::of(q, name, x));
        let part = x_.read().part(x_off..2 * len + x_off);
        operations::swiglu(q, shape, part, y_.write().part(y_off..len + y_off));
        let mut wanted = y;
        cpu().swiglu(shape, &x[x_off..], &mut wanted[y_off..]);
        y_.has_bits("swiglu askew", &wanted);
        // The outputs are as good a gradient as any.
        let to = d_off..2 * len + d_off;
        operations::swiglu_gradient(q, shape, part, y_.read().part(y_off..len + y_off), d_.write().part(to));
        let (dy, mut wanted) = (&wanted[y_off..], d);
        cpu().swiglu_gradient(shape, &x[x_off..], dy, &mut wanted[d_off..]);
        d_.has_bits("swiglu_gradient askew", &wanted);
    }
}

/// In halves they are those of f32, rounded, but for what a GPU's own exponentials make of them.
pub fn of_halves<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(2, &ROWS) {
        let (shape, len) = (Rows { rows, width }, rows * width);
        // Numbers are from -4 to 4, and products of three of them are at most 64.
        each::<K, 1, 1>(q, "swiglu", ([2 * len], [len]), Nearness::Quick(16.0), |[x], [y]| {
            operations::swiglu(q, shape, x, y);
            Vec::new()
        });
        let terms = Nearness::Quick(64.0);
        each::<K, 2, 1>(q, "swiglu_gradient", ([2 * len, len], [2 * len]), terms, |[x, dy], [dx]| {
            operations::swiglu_gradient(q, shape, x, dy, dx);
            Vec::new()
        });
    }
}
