//! Checks of rotary positions: the CPU's bits.

use super::stored::both;
use super::{Buffer, Extent, Kind, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Device, RopeScaling, RotaryShape, RotarySpeeds};

/// Sequences, positions, the place of the first, heads of queries and of keys, and the width of one: the least, groups of one and of
/// several, the widest head, none at all, and places so far that a quarter turn has to be known beyond f64. Scaled ones have slow planes,
/// fast ones, and some between.
const SHAPES: [([usize; 6], f64, RopeScaling); 8] = [
    ([1, 1, 0, 1, 1, 2], 1e4, RopeScaling::None),
    ([2, 9, 100, 4, 4, 32], 5e5, LLAMA3),
    ([1, 3, 100_000, 2, 1, 512], 1e6, RopeScaling::None),
    ([0, 5, 0, 2, 1, 4], 1e4, RopeScaling::None),
    ([3, 130, 4000, 1, 1, 6], 1.0, RopeScaling::Linear { factor: 3.0 }),
    ([3, 33, 5, 6, 2, 22], 1e4, RopeScaling::None),
    ([1, 5, 2_000_000_000, 6, 2, 10], 5e5, RopeScaling::None),
    ([2, 7, 11, 12, 3, 20], 1e4, LLAMA3),
];
const LLAMA3: RopeScaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 512.0 };

fn shapes(extent: Extent) -> impl Iterator<Item = RotaryShape> {
    extent.of(2, &SHAPES).iter().map(|&([batch, time, first, heads, kv_heads, head], theta, scaling)| {
        RotaryShape {
            batch,
            time,
            first,
            heads,
            kv_heads,
            head,
            speeds: RotarySpeeds::new(theta, head, scaling),
        }
    })
}

fn lengths(shape: &RotaryShape) -> [usize; 2] {
    [shape.rows() * shape.packed(), shape.rows() * shape.spread()]
}

pub fn rotary(q: &StandIn, extent: Extent) {
    for shape in shapes(extent) {
        let [packed, spread] = lengths(&shape);
        let x = numbers(1, packed);
        let (x_, y_) = (Buffer::of(q, "x", &x), Buffer::<f32>::empty(q, "y", spread));
        operations::rotary(q, &shape, x_.read(), y_.write());
        let mut y = vec![f32::NAN; spread];
        cpu().rotary(&shape, &x, &mut y);
        y_.has_bits(&format!("rotary of {shape:?}"), &y);
    }
}

pub fn rotary_gradient(q: &StandIn, extent: Extent) {
    for shape in shapes(extent) {
        let [packed, spread] = lengths(&shape);
        let dy = numbers(2, spread);
        let (dy_, dx_) = (Buffer::of(q, "dy", &dy), Buffer::<f32>::empty(q, "dx", packed));
        operations::rotary_gradient(q, &shape, dy_.read(), dx_.write());
        let mut dx = vec![f32::NAN; packed];
        cpu().rotary_gradient(&shape, &dy, &mut dx);
        dx_.has_bits(&format!("rotary_gradient of {shape:?}"), &dx);
    }
}

/// In halves they are those of f32, rounded once.
pub fn of_halves<K: Kind>(q: &StandIn, extent: Extent) {
    for shape in shapes(extent) {
        let [packed, spread] = lengths(&shape);
        both::<K, 1, 1>(q, "rotary", [packed], [spread], |[x], [y]| {
            operations::rotary(q, &shape, x, y);
            Vec::new()
        });
        both::<K, 1, 1>(q, "rotary_gradient", [spread], [packed], |[dy], [dx]| {
            operations::rotary_gradient(q, &shape, dy, dx);
            Vec::new()
        });
    }
}
