//! Checks of operations that do the same to every element: the CPU's bits.

use super::halves::as_f64;
use super::{Buffer, Extent, Kind, NANS, StandIn, cpu, nearest, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Activation, Device, Gelu};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};

const LENGTHS: [usize; 7] = [0, 1, 3, 256, 257, 4999, 2017];

/// More than one round of the largest grid, 16 bytes a thread.
pub fn long_list(q: &StandIn, _: Extent) {
    let x = numbers(1, 4096 * 256 * 8 + 77);
    let (x_, y) = (Buffer::of(q, "x", &x), Buffer::empty(q, "y", x.len()));
    operations::copy(q, x_.read(), y.write());
    y.has_bits("copy", &x);
}

/// Numbers with those that are easily forgotten among them.
fn odd_numbers(site: u32, len: usize) -> Vec<f32> {
    let odd = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::MAX, -6.5, 90.0];
    let odd: Vec<f32> = odd.into_iter().chain(NANS).collect();
    let plain = numbers(site, len);
    plain
        .iter()
        .enumerate()
        .map(|(i, v)| if i % 31 == 7 { odd[i / 31 % odd.len()] } else { v * 4.0 })
        .collect()
}

/// How what an operation leaves, `name`, is held against what it should.
type Comparison = fn(&Buffer<'_, f32>, &'static str, &[f32]);

/// An operation of arithmetic on one list.
fn one(
    q: &StandIn,
    extent: Extent,
    name: &'static str,
    run: impl Fn(operations::Floats<'_>, operations::FloatsMut<'_>),
    wanted: impl Fn(&[f32], &mut [f32]),
) {
    of_one(q, extent, name, run, wanted, |y, name, wanted| y.has_numbers(name, wanted));
}

/// An operation of one list.
fn of_one(
    q: &StandIn,
    extent: Extent,
    name: &'static str,
    run: impl Fn(operations::Floats<'_>, operations::FloatsMut<'_>),
    wanted: impl Fn(&[f32], &mut [f32]),
    compare: Comparison,
) {
    for &len in extent.of(1, &LENGTHS) {
        let x = odd_numbers(1, len);
        let (from, to) = (Buffer::of(q, "x", &x), Buffer::of(q, "y", &numbers(2, len)));
        run(from.read(), to.write());
        let mut y = numbers(2, len);
        wanted(&x, &mut y);
        compare(&to, name, &y);
    }
}

pub fn fill(q: &StandIn, extent: Extent) {
    let run = |_: operations::Floats<'_>, y: operations::FloatsMut<'_>| operations::fill(q, y, -1.5);
    of_one(q, extent, "fill", run, |_, y| y.fill(-1.5), |y, name, wanted| y.has_bits(name, wanted));
}

pub fn copy(q: &StandIn, extent: Extent) {
    of_one(
        q,
        extent,
        "copy",
        |x, y| operations::copy(q, x, y),
        |x, y| y.copy_from_slice(x),
        |y, name, wanted| y.has_bits(name, wanted),
    );
}

pub fn add_to(q: &StandIn, extent: Extent) {
    one(q, extent, "add_to", |x, y| operations::add_to(q, x, y), |x, y| cpu().add_to(x, y));
}

pub fn add(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        let (a, b) = (odd_numbers(1, len), numbers(2, len));
        let (a_, b_, y) = (Buffer::of(q, "a", &a), Buffer::of(q, "b", &b), Buffer::empty(q, "y", len));
        operations::add(q, a_.read(), b_.read(), y.write());
        let mut wanted = vec![0.0; len];
        cpu().add(&a, &b, &mut wanted);
        y.has_numbers("add", &wanted);
    }
}

pub fn relu(q: &StandIn, extent: Extent) {
    one(q, extent, "relu", |x, y| operations::relu(q, x, y), |x, y| cpu().relu(x, y));
}

pub fn relu_gradient(q: &StandIn, extent: Extent) {
    one(
        q,
        extent,
        "relu_gradient",
        |x, d| operations::relu_gradient(q, x, d),
        |x, d| cpu().relu_gradient(x, d),
    );
}

pub fn gelu(q: &StandIn, extent: Extent) {
    gelu_of(q, extent, "gelu", Gelu::Exact);
}

pub fn gelu_tanh(q: &StandIn, extent: Extent) {
    gelu_of(q, extent, "gelu_tanh", Gelu::Tanh);
}

pub fn sigmoid(q: &StandIn, extent: Extent) {
    one(q, extent, "sigmoid", |x, y| operations::sigmoid(q, x, y), |x, y| cpu().sigmoid(x, y));
}

pub fn sigmoid_gradient(q: &StandIn, extent: Extent) {
    let run = |y: operations::Floats<'_>, d: operations::FloatsMut<'_>| operations::sigmoid_gradient(q, y, d);
    one(q, extent, "sigmoid_gradient", run, |y, d| cpu().sigmoid_gradient(y, d));
}

fn gelu_of(q: &StandIn, extent: Extent, what: &'static str, form: Gelu) {
    one(q, extent, what, |x, y| operations::gelu(q, form, x, y), |x, y| cpu().gelu(form, x, y));
}

pub fn gelu_gradient(q: &StandIn, extent: Extent) {
    gelu_gradient_of(q, extent, "gelu_gradient", Gelu::Exact);
}

pub fn gelu_tanh_gradient(q: &StandIn, extent: Extent) {
    gelu_gradient_of(q, extent, "gelu_tanh_gradient", Gelu::Tanh);
}

fn gelu_gradient_of(q: &StandIn, extent: Extent, what: &'static str, form: Gelu) {
    one(
        q,
        extent,
        what,
        |x, d| operations::gelu_gradient(q, form, x, d),
        |x, d| cpu().gelu_gradient(form, x, d),
    );
}

pub fn unit(q: &StandIn, extent: Extent) {
    // The last has more than a block of squares; one norm is below the least, and one is none.
    for &(len, size) in extent.of(1, &[(0, 1.0), (3, 1e-9), (257, f32::NAN), (2017, 0.5), (9001, 2.0)]) {
        let x: Vec<f32> = numbers(1, len).iter().map(|v| v * size).collect();
        let (x_, y_) = (Buffer::of(q, "x", &x), Buffer::<f32>::empty(q, "y", len));
        let scratch = Buffer::<f64>::empty(q, "scratch", operations::unit_scratch(len));
        operations::unit(q, 1e-7, x_.read(), y_.write(), scratch.write());
        let mut y = vec![f32::NAN; len];
        cpu().unit(f64::from(1e-7f32), &x, &mut y);
        y_.has_numbers("unit", &y);
    }
}

/// What is not to be read is no number.
pub fn combine(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        for by in [[-4.775, 2.0315], [3.4445, 0.0]] {
            let x = odd_numbers(1, len);
            let mut y = if by[1] == 0.0 { vec![f32::NAN; len] } else { odd_numbers(2, len) };
            let (x_, y_) = (Buffer::of(q, "x", &x), Buffer::of(q, "y", &y));
            operations::combine(q, by, x_.read(), y_.write());
            cpu().combine(by, &x, &mut y);
            y_.has_numbers("combine", &y);
        }
    }
}

pub fn bias_activation(q: &StandIn, extent: Extent) {
    for &(repeats, channels, area) in extent.of(1, &[(1, 1, 1), (5, 7, 1), (1, 300, 1), (2, 3, 25)]) {
        for activation in [Activation::None, Activation::Relu] {
            for with_bias in [false, true] {
                let (sums, bias) = (numbers(1, repeats * channels * area), numbers(2, channels));
                let (bias_, y) = (Buffer::of(q, "bias", &bias), Buffer::of(q, "y", &sums));
                let area_of = if with_bias { area } else { channels * area };
                operations::bias_activation(
                    q,
                    with_bias.then(|| bias_.read()),
                    area_of,
                    activation,
                    y.write(),
                );
                let wanted = sums.iter().enumerate().map(|(i, &sum)| {
                    let sum = if with_bias { sum + bias[i / area % channels] } else { sum };
                    if activation == Activation::Relu && sum <= 0.0 { 0.0 } else { sum }
                });
                y.has_bits("bias_activation", &wanted.collect::<Vec<_>>());
            }
        }
    }
}

/// Lists that do not lie on 16 bytes, or of which one does not, have the numbers of those that do; what is before them is left.
pub fn askew(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &[5, 2 * 16 * 77]) {
        let (a, b) = (odd_numbers(1, len + 1), odd_numbers(2, len + 1));
        let bias = Buffer::of(q, "bias", &numbers(3, len / 11));
        type Run<'a> = dyn Fn(operations::Floats<'_>, operations::FloatsMut<'_>) + 'a;
        let check = |what: &'static str, run: &Run<'_>| {
            let (even, straight) = (Buffer::of(q, "x", &a[1..]), Buffer::of(q, "y", &b[1..]));
            run(even.read(), straight.write());
            let wanted = straight.now();
            let (odd, askew) = (Buffer::of(q, "x", &a), Buffer::of(q, "y", &b));
            run(odd.read().part(1..len + 1), askew.write().part(1..len + 1));
            askew.has_bits(what, &[&b[..1], &wanted].concat());
            let (odd, straight) = (Buffer::of(q, "x", &a), Buffer::of(q, "y", &b[1..]));
            run(odd.read().part(1..len + 1), straight.write());
            straight.has_bits(what, &wanted);
        };
        check("copy", &|x, y| operations::copy(q, x, y));
        check("relu_gradient", &|x, y| operations::relu_gradient(q, x, y));
        check("gelu", &|x, y| operations::gelu(q, Gelu::Exact, x, y));
        check("dropout", &|x, y| {
            let key = Key::new(Seed(5), Step(7), MicroBatch(2), Site(3));
            operations::dropout(q, key, 0.5, x, y);
        });
        if len > 11 {
            check("bias_activation", &|_, y| {
                operations::bias_activation(q, Some(bias.read()), 11, Activation::Relu, y);
            });
        }
    }
}

pub fn dropout(q: &StandIn, extent: Extent) {
    let key = Key::new(Seed(5 << 40 | 9), Step(1 << 33 | 77), MicroBatch(2), Site(3));
    for &len in extent.of(1, &LENGTHS) {
        // The last is the very number of an element, which is then kept.
        for rate in [0.0, 0.1, 0.5, 0.9, key.unit_f32(10)] {
            let x = numbers(1, len);
            let (x_, y) = (Buffer::of(q, "x", &x), Buffer::empty(q, "y", len));
            operations::dropout(q, key, rate, x_.read(), y.write());
            let mut wanted = vec![f32::NAN; len];
            cpu().dropout(key, rate, &x, &mut wanted);
            y.has_bits("dropout", &wanted);
        }
    }
}

/// Numbers of all sizes too, and numbers exactly between two halves, of which each is even at times.
pub fn halves<K: Kind>(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        let mut x = odd_numbers(1, len);
        for (i, v) in x.iter_mut().enumerate().filter(|(_, v)| v.is_finite()) {
            let here = nearest(K::HALF, f64::from(*v));
            let [here, next] = [here, here + 1].map(|bits| as_f64(K::HALF, bits));
            match i % 5 {
                0 if next.is_finite() => *v = ((here + next) / 2.0) as f32,
                1 => *v *= 2f32.powi(i as i32 % 60 - 40),
                _ => {}
            }
        }
        let (x_, y, z) =
            (Buffer::of(q, "x", &x), Buffer::<u16>::empty(q, "y", len), Buffer::<f32>::empty(q, "z", len));
        operations::to_half(q, K::HALF, x_.read(), y.write());
        let wanted: Vec<u16> = x.iter().map(|&x| nearest(K::HALF, x.into())).collect();
        y.has_bits(&format!("to {:?}", K::HALF), &wanted);
        operations::from_half(q, K::HALF, y.read(), z.write());
        let back: Vec<f32> = wanted.iter().map(|&bits| as_f64(K::HALF, bits) as f32).collect();
        z.has_numbers(&format!("from {:?}", K::HALF), &back);
    }
}
