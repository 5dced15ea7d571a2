//! Checks of matrices that are turned: each number where it belongs, bit by bit, and what is done to it on the way.

use super::{Buffer, Extent, StandIn, numbers};
use dtrain_cuda::operations::{self, MatrixBatch, Turned};
use dtrain_engine::device::{Activation, Write};

/// Rows, columns and how many: less than a tile, tiles of each form, and edges of both kinds.
const SHAPES: [(usize, usize, usize); 9] = [
    (1, 0, 5),
    (1, 1, 1),
    (3, 1, 300),
    (2, 3, 700),
    (2, 700, 3),
    (1, 40, 130),
    (1, 257, 20),
    (1, 512, 16),
    (2, 67, 129),
];

fn wanted(matrices: MatrixBatch, from: &[f32]) -> Vec<f32> {
    let MatrixBatch { count, rows, columns } = matrices;
    let one = |i: usize| {
        let (row, column, matrix) = (i % rows, i / rows % columns, i / rows / columns);
        from[(matrix * rows + row) * columns + column]
    };
    (0..count * rows * columns).map(one).collect()
}

pub fn turn(q: &StandIn, extent: Extent) {
    for &(count, rows, columns) in extent.of(1, &SHAPES) {
        let matrices = MatrixBatch { count, rows, columns };
        let mut from = numbers(1, count * rows * columns);
        // Its bits stay, whatever they mean.
        if let Some(first) = from.first_mut() {
            *first = f32::from_bits(0x7f80_0001);
        }
        let (from_, to) = (Buffer::of(q, "from", &from), Buffer::empty(q, "to", from.len()));
        operations::turn(q, matrices, from_.read(), Turned::PLAIN, to.write());
        to.has_bits("turn", &wanted(matrices, &from));
    }
}

pub fn turn_on_the_way(q: &StandIn, extent: Extent) {
    for &(count, rows, columns) in extent.of(1, &SHAPES) {
        let matrices = MatrixBatch { count, rows, columns };
        let (from, there) = (numbers(1, count * rows * columns), numbers(2, count * rows * columns));
        let (bias, x) = (numbers(3, columns), numbers(4, count * rows * columns));
        let (from_, bias_) = (Buffer::of(q, "from", &from), Buffer::of(q, "bias", &bias));
        let x_ = Buffer::of(q, "x", &x);
        for (has_bias, write, activation, has_x) in [
            (true, Write::Set, Activation::None, false),
            (true, Write::Set, Activation::Relu, false),
            (false, Write::Set, Activation::Relu, false),
            (false, Write::Add, Activation::None, false),
            (true, Write::Add, Activation::Relu, false),
            (false, Write::Set, Activation::None, true),
        ] {
            let to = Buffer::of(q, "to", &there);
            let (bias_, x_) = (has_bias.then(|| bias_.read()), has_x.then(|| x_.read().into()));
            let way = Turned { bias: bias_, write, activation, x: x_ };
            operations::turn(q, matrices, from_.read(), way, to.write());
            let all = wanted(matrices, &from).into_iter().enumerate().map(|(i, turned)| {
                let sum = if has_bias { turned + bias[i / rows % columns] } else { turned };
                let sum = if write == Write::Add { there[i] + sum } else { sum };
                let sum = if activation == Activation::Relu && sum <= 0.0 { 0.0 } else { sum };
                if has_x && x[i] <= 0.0 { 0.0 } else { sum }
            });
            to.has_bits("turn on the way", &all.collect::<Vec<_>>());
        }
    }
}
