//! Checks of operations over rows of matrices.

use super::stored::{Nearness, both, each};
use super::{Buffer, Extent, Kind, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Device, Matrices, Rows};

/// Rows, their width, and how far apart they begin there and here: rows that lie on 16 bytes, that do not, and of more than a block.
const APART: [(usize, usize, [usize; 2]); 6] = [
    (1, 1, [1, 1]),
    (3, 8, [16, 24]),
    (5, 7, [9, 7]),
    (2, 2056, [2057, 2056]),
    (2, 4500, [4500, 4504]),
    (4, 24, [40, 32]),
];

/// Sequences, their places, and the width of one: whole pieces of 16 bytes, and others.
const TOKENS: [(usize, usize, usize); 5] = [(1, 0, 3), (1, 3, 1500), (1, 700, 8), (2, 5, 7), (3, 4, 24)];

/// Rows and their width.
const PRODUCTS: [(usize, usize); 7] = [(1, 1), (3, 2), (20, 8), (2, 1030), (777, 1), (9, 33), (11, 144)];

fn end((rows, width, _): (usize, usize, [usize; 2]), pitch: usize) -> usize {
    (rows - 1) * pitch + width
}

pub fn copy_rows(q: &StandIn, extent: Extent) {
    for &shape in extent.of(2, &APART) {
        let (rows, width, [from, to]) = shape;
        let (x, mut y) = (numbers(1, end(shape, from)), numbers(2, end(shape, to)));
        let (x_, y_) = (Buffer::of(q, "x", &x), Buffer::of(q, "y", &y));
        operations::copy_rows(q, Rows { rows, width }, [from, to], x_.read(), y_.write());
        cpu().copy_rows(Rows { rows, width }, [from, to], &x, &mut y);
        y_.has_bits("copy_rows", &y);
    }
}

pub fn class_token(q: &StandIn, extent: Extent) {
    for &(matrices, rows, columns) in extent.of(2, &TOKENS) {
        let (x, token) = (numbers(1, matrices * rows * columns), numbers(2, columns));
        let places = numbers(3, (rows + 1) * columns);
        let [x_, token_, places_] =
            [("x", &x), ("token", &token), ("places", &places)].map(|(name, x)| Buffer::of(q, name, x));
        let mut y = vec![f32::NAN; matrices * (rows + 1) * columns];
        let y_ = Buffer::<f32>::empty(q, "y", y.len());
        let shape = Matrices { matrices, rows, columns };
        operations::class_token(q, shape, x_.read(), [token_.read(), places_.read()], y_.write());
        cpu().class_token(shape, &x, [&token, &places], &mut y);
        y_.has_bits("class_token", &y);
    }
}

pub fn scale_rows(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(3, &PRODUCTS) {
        let (x, by) = (numbers(1, rows * width), numbers(2, rows));
        let (x_, by_) = (Buffer::of(q, "x", &x), Buffer::of(q, "by", &by));
        let (mut y, y_) = (vec![f32::NAN; rows * width], Buffer::<f32>::empty(q, "y", rows * width));
        operations::scale_rows(q, Rows { rows, width }, x_.read(), by_.read(), y_.write());
        cpu().scale_rows(Rows { rows, width }, &x, &by, &mut y);
        y_.has_bits("scale_rows", &y);
    }
}

pub fn dot_rows(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(3, &PRODUCTS) {
        let (a, b) = (numbers(1, rows * width), numbers(2, rows * width));
        let (a_, b_) = (Buffer::of(q, "a", &a), Buffer::of(q, "b", &b));
        let (mut y, y_) = (vec![f32::NAN; rows], Buffer::<f32>::empty(q, "y", rows));
        operations::dot_rows(q, Rows { rows, width }, a_.read(), b_.read(), y_.write());
        cpu().dot_rows(Rows { rows, width }, &a, &b, &mut y);
        match width {
            1 => y_.has_bits("products of lists", &y),
            _ => y_.is_near(&format!("dot_rows of {rows} x {width}"), &y),
        }
    }
}

/// All of them in halves are those of f32, rounded; sums of products from the same products in another order.
pub fn of_halves<K: Kind>(q: &StandIn, extent: Extent) {
    for &shape in extent.of(2, &APART) {
        let (rows, width, [from, to]) = shape;
        both::<K, 1, 1>(q, "copy_rows", [end(shape, from)], [end(shape, to)], |[x], [y]| {
            operations::copy_rows(q, Rows { rows, width }, [from, to], x, y);
            Vec::new()
        });
    }
    for &(matrices, rows, columns) in extent.of(2, &TOKENS) {
        let learned = [("token", 2, columns), ("places", 3, (rows + 1) * columns)]
            .map(|(name, site, len)| Buffer::of(q, name, &numbers(site, len)));
        let [from, to] = [matrices * rows * columns, matrices * (rows + 1) * columns];
        both::<K, 1, 1>(q, "class_token", [from], [to], |[x], [y]| {
            let learned = learned.each_ref().map(Buffer::read);
            operations::class_token(q, Matrices { matrices, rows, columns }, x, learned, y);
            Vec::new()
        });
    }
    for &(rows, width) in extent.of(3, &PRODUCTS) {
        let (shape, len) = (Rows { rows, width }, rows * width);
        both::<K, 2, 1>(q, "scale_rows", [len, rows], [len], |[x, by], [y]| {
            operations::scale_rows(q, shape, x, by, y);
            Vec::new()
        });
        // Numbers are from -4 to 4.
        let terms = Nearness::Quick(16.0 * width as f32);
        each::<K, 2, 1>(q, "dot_rows", ([len; 2], [rows]), terms, |[a, b], [y]| {
            operations::dot_rows(q, shape, a, b, y);
            Vec::new()
        });
    }
}
