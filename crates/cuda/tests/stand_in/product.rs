//! Checks of matrix products: the CPU's bits.

use super::{Buffer, Extent, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Activation, Device, Gelu, LinearShape, Operands, Product, Rows, Strides, Write};

/// Rows, columns and K.
type Size = (usize, usize, usize);

pub fn product(q: &StandIn, extent: Extent) {
    // The last but one has so few results and so long a K that it is cut.
    let sizes = [
        (1, 1, 1),
        (1, 33, 7),
        (33, 1, 513),
        (64, 64, 16),
        (65, 63, 1030),
        (130, 70, 17),
        (66, 5, 2100),
        (50, 70, 40),
    ];
    for &size in extent.of(2, &sizes) {
        each_layout(q, size);
    }
}

/// Tiles of 32 x 64, of 64 x 64 and of 128 x 128, none of them whole.
pub fn product_in_tiles(q: &StandIn, _: Extent) {
    each_layout(q, (31, 61, 20));
    each_layout(q, (63, 61, 20));
    each_layout(q, (250, 250, 17));
}

/// The same of large ones, with a K of several blocks.
pub fn large_and_long(q: &StandIn, _: Extent) {
    with_layout(q, (250, 250, 530), [false, true]);
}

fn each_layout(q: &StandIn, size: Size) {
    for turned in [[false, false], [false, true], [true, false], [true, true]] {
        with_layout(q, size, turned);
    }
}

fn with_layout(q: &StandIn, (m, n, k): Size, [a_turned, b_turned]: [bool; 2]) {
    for write in [Write::Set, Write::Add] {
        let a = if a_turned { Strides::transposed(m + 1) } else { Strides::rows(k + 2) };
        let b = if b_turned { Strides::transposed(k + 3) } else { Strides::rows(n + 1) };
        let shape = Product { m, n, k, a, b, c_row: n + 3, write };
        let (x, y) = (numbers(1, (m + 1) * (k + 2)), numbers(2, (n + 1) * (k + 3)));
        let mut wanted = numbers(3, m * (n + 3));
        let (x_, y_, c) = (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y), Buffer::of(q, "c", &wanted));
        let scratch = Buffer::empty(q, "scratch", operations::product_scratch(&shape));
        operations::product(q, &shape, x_.read(), y_.read(), c.write(), scratch.write());
        cpu().product(&shape, &x, &y, &mut wanted);
        // The CPU adds each block of K to C, a kernel adds their sum: more than one block may differ.
        if write == Write::Add && k > 512 {
            c.is_near(&format!("{shape:?}"), &wanted);
        } else {
            c.has_bits(&format!("{shape:?}"), &wanted);
        }
    }
}

pub fn strided_product(q: &StandIn, _: Extent) {
    let (a, b) = (Strides { row: 40, col: 3 }, Strides { row: 2, col: 30 });
    let shape = Product { m: 9, n: 11, k: 13, a, b, c_row: 11, write: Write::Set };
    let (x, y) = (numbers(1, 400), numbers(2, 400));
    let (x_, y_, c) = (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y), Buffer::empty(q, "c", 99));
    let none = Buffer::empty(q, "scratch", 0);
    operations::product(q, &shape, x_.read(), y_.read(), c.write(), none.write());
    let mut wanted = vec![0.0; 99];
    cpu().product(&shape, &x, &y, &mut wanted);
    c.has_bits("a product with strides in both directions", &wanted);
}

pub fn linear(q: &StandIn, extent: Extent) {
    for &(rows, inputs, width) in
        extent.of(2, &[(1, 3, 5), (65, 600, 10), (7, 513, 70), (64, 64, 64), (67, 2100, 3), (5, 20, 7)])
    {
        for activation in [Activation::None, Activation::Relu] {
            for with_bias in [false, true] {
                let (x, w, bias) = (numbers(1, rows * inputs), numbers(2, width * inputs), numbers(3, width));
                let [x_, w_, bias_] =
                    [("x", &x), ("w", &w), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
                let (y, shape) = (Buffer::empty(q, "y", rows * width), Rows { rows, width });
                let given = with_bias.then(|| bias_.read());
                let layer = LinearShape::new(shape, inputs);
                let scratch = Buffer::empty(q, "scratch", operations::linear_scratch(layer));
                operations::linear(
                    q,
                    layer,
                    Operands { x: x_.read(), w: w_.read(), bias: given },
                    activation,
                    y.write(),
                    scratch.write(),
                );
                let mut wanted = vec![0.0; rows * width];
                let given = with_bias.then_some(&bias[..]);
                cpu().linear(
                    LinearShape::new(shape, inputs),
                    Operands { x: &x, w: &w, bias: given },
                    activation,
                    &mut wanted,
                );
                y.has_bits(&format!("linear of {shape:?} with {inputs} inputs"), &wanted);
            }
        }
    }
}

/// The CPU's bits, which are those of the two operations one behind the other.
pub fn linear_gelu(q: &StandIn, extent: Extent) {
    gelu_of(q, extent.of(1, &[(5, 20, 7), (1, 3, 5), (65, 600, 10), (7, 513, 70), (64, 64, 64)]));
}

/// The same in tiles as above.
pub fn linear_gelu_in_tiles(q: &StandIn, _: Extent) {
    gelu_of(q, &[(31, 20, 61), (63, 20, 61), (250, 17, 250)]);
}

fn gelu_of(q: &StandIn, sizes: &[Size]) {
    for &(rows, inputs, width) in sizes {
        for (form, with_bias) in [(Gelu::Exact, true), (Gelu::Tanh, true), (Gelu::Tanh, false)] {
            let (x, w, bias) = (numbers(1, rows * inputs), numbers(2, width * inputs), numbers(3, width));
            let [x_, w_, bias_] =
                [("x", &x), ("w", &w), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
            let shape = Rows { rows, width };
            let [z, y] = ["z", "y"].map(|name| Buffer::empty(q, name, rows * width));
            let given = with_bias.then(|| bias_.read());
            operations::linear_gelu(
                q,
                LinearShape::new(shape, inputs),
                Operands { x: x_.read(), w: w_.read(), bias: given },
                form,
                z.write(),
                y.write(),
            );
            let (mut wanted_z, mut wanted_y) = (vec![0.0; rows * width], vec![0.0; rows * width]);
            let given = with_bias.then_some(&bias[..]);
            cpu().linear(
                LinearShape::new(shape, inputs),
                Operands { x: &x, w: &w, bias: given },
                Activation::None,
                &mut wanted_z,
            );
            cpu().gelu(form, &wanted_z, &mut wanted_y);
            z.has_bits(&format!("what goes into {form:?} of {shape:?} with {inputs} inputs"), &wanted_z);
            y.has_bits(&format!("{form:?} of {shape:?} with {inputs} inputs"), &wanted_y);
        }
    }
}
