//! Checks of operations over numbers that lie in memory as halves.
//!
//! A kernel is written once for f32 and for halves, which it reads as f32 and rounds when it writes. So the halves that it gives are
//! those of the f32 results on the same numbers, bit for bit; and the f32 kernels are held against the CPU elsewhere. Where
//! exponentials are a GPU's own, they are rounded from numbers next to the f32 results. What falls back to f32 is held near the CPU's.
//! Products, attention and convolutions on tensor cores have files of their own.

use super::halves::as_f64;
use super::memory::Wide;
use super::{
    Buffer, Extent, Kind, StandIn, attention_half, cpu, halves, ids, nearest, numbers, product_half,
};
use dtrain_cuda::operations::{
    self, CrossEntropy, HalfResult, LossRows, LossTotals, MatrixBatch, TableGradient, Turned,
};
use dtrain_cuda::{SliceMut, Values, ValuesMut};
use dtrain_engine::device::{
    Activation, AdamW, Affine, Along, Attended, AttentionShape, BatchNormOutputs, ChannelNorm, Curve, Device,
    Gelu, LinearShape, Lion, Mask, NormGradients, NormInputs, Operands, Outputs, Pool2d, Product, RowNorm,
    Rows, Sgd, Strides, Write,
};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};

/// What rounding operands may cost: to bf16, which is the coarser.
const NEAR: f64 = 1e-2;

pub(super) fn wide<K: Kind>(x: &[u16]) -> Vec<f32> {
    x.iter().map(|v| as_f64(K::HALF, *v) as f32).collect()
}

fn rounded<K: Kind>(x: &[f32]) -> Vec<u16> {
    x.iter().map(|v| nearest(K::HALF, f64::from(*v))).collect()
}

pub(super) fn of<'a, K: Kind>(x: &'a Buffer<'_, u16>) -> Values<'a> {
    Values::halves_of(x.read(), K::HALF)
}

pub(super) fn to<'a, K: Kind>(x: &'a Buffer<'_, u16>) -> ValuesMut<'a> {
    ValuesMut::halves_of(x.write(), K::HALF)
}

/// What an operation gives beside numbers between layers: f32.
pub(super) type Beside = Vec<Vec<f32>>;

/// How near halves are to f32 results.
#[derive(Clone, Copy)]
pub(super) enum Nearness {
    /// They are those, rounded.
    Rounded,
    /// They are rounded from what is off by 2^-20 of itself and of this number at most: what the instructions of quick.cuh may
    /// make of terms of this size.
    Quick(f32),
}

impl Nearness {
    /// Tells the stand-in of halves that are not.
    fn hold<K: Kind>(self, q: &StandIn, what: &str, halves: &Buffer<'_, u16>, f32s: &[f32]) {
        let what = format!("{what} of {:?}", K::HALF);
        let Self::Quick(terms) = self else {
            return halves.has_bits(&what, &rounded::<K>(f32s));
        };
        let now = halves.now();
        assert_eq!(now.len(), f32s.len(), "{what}: lengths");
        for (i, (&now, &f32)) in now.iter().zip(f32s).enumerate() {
            let (exact, off) = (f64::from(f32), (f64::from(f32.abs()) + f64::from(terms)) * 2f64.powi(-20));
            let [low, now, high] = [nearest(K::HALF, exact - off), now, nearest(K::HALF, exact + off)]
                .map(|bits| as_f64(K::HALF, bits));
            if !(low <= now && now <= high) {
                return q.wrong(format!("{what}: {i} is {now}, not from {low} to {high}"));
            }
        }
    }
}

/// Runs an operation twice, over f32 and over halves that are the same numbers, and compares what it gives: `lengths` numbers to
/// read, `outputs` to write, which hold numbers too.
pub(super) fn both<K: Kind, const N: usize, const M: usize>(
    q: &StandIn,
    what: &str,
    lengths: [usize; N],
    outputs: [usize; M],
    run: impl Fn([Values<'_>; N], [ValuesMut<'_>; M]) -> Beside,
) {
    let [beside, beside16] = each::<K, N, M>(q, what, (lengths, outputs), Nearness::Rounded, run);
    for (i, (beside16, beside)) in beside16.iter().zip(&beside).enumerate() {
        if beside16.iter().map(|v| v.to_bits()).ne(beside.iter().map(|v| v.to_bits())) {
            q.wrong(format!("{what} of {:?}: f32 results {i} are {beside16:?}, not {beside:?}", K::HALF));
        }
    }
}

/// The same, which leaves it to the caller to compare what is beside.
pub(super) fn each<K: Kind, const N: usize, const M: usize>(
    q: &StandIn,
    what: &str,
    (lengths, outputs): ([usize; N], [usize; M]),
    nearness: Nearness,
    run: impl Fn([Values<'_>; N], [ValuesMut<'_>; M]) -> Beside,
) -> [Beside; 2] {
    let read: [Vec<u16>; N] = std::array::from_fn(|i| halves::<K>(i as u32 + 1, lengths[i], 4.0));
    let written: [Vec<u16>; M] = std::array::from_fn(|i| halves::<K>(i as u32 + 11, outputs[i], 4.0));
    let f32s = (read.each_ref().map(|x| wide::<K>(x)), written.each_ref().map(|x| wide::<K>(x)));
    let x = f32s.0.each_ref().map(|x| Buffer::of(q, "x", x));
    let y = f32s.1.each_ref().map(|y| Buffer::of(q, "y", y));
    let beside = run(x.each_ref().map(|x| x.read().into()), y.each_ref().map(|y| y.write().into()));
    let x16 = read.each_ref().map(|x| Buffer::of(q, "x", x));
    let y16 = written.each_ref().map(|y| Buffer::of(q, "y", y));
    let beside16 = run(x16.each_ref().map(of::<K>), y16.each_ref().map(to::<K>));
    for (y16, y) in y16.iter().zip(&y) {
        nearness.hold::<K>(q, what, y16, &y.now());
    }
    [beside, beside16]
}

const LENGTHS: [usize; 4] = [1, 3, 2017, 257];

pub fn point_wise<K: Kind>(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &LENGTHS) {
        both::<K, 0, 1>(q, "fill", [], [len], |[], [y]| {
            operations::fill(q, y, -1.2345);
            Vec::new()
        });
        both::<K, 1, 1>(q, "copy", [len], [len], |[x], [y]| {
            operations::copy(q, x, y);
            Vec::new()
        });
        both::<K, 2, 1>(q, "add", [len; 2], [len], |[a, b], [y]| {
            operations::add(q, a, b, y);
            Vec::new()
        });
        both::<K, 1, 1>(q, "add_to", [len], [len], |[x], [y]| {
            operations::add_to(q, x, y);
            Vec::new()
        });
        both::<K, 1, 1>(q, "relu", [len], [len], |[x], [y]| {
            operations::relu(q, x, y);
            Vec::new()
        });
        both::<K, 1, 1>(q, "relu_gradient", [len], [len], |[y], [d]| {
            operations::relu_gradient(q, y, d);
            Vec::new()
        });
        each::<K, 1, 1>(q, "sigmoid", ([len], [len]), Nearness::Quick(1.0), |[x], [y]| {
            operations::sigmoid(q, x, y);
            Vec::new()
        });
        both::<K, 1, 1>(q, "sigmoid_gradient", [len], [len], |[y], [d]| {
            operations::sigmoid_gradient(q, y, d);
            Vec::new()
        });
        for by in [[-4.775, 2.0315], [3.4445, 0.0]] {
            both::<K, 1, 1>(q, "combine", [len], [len], |[x], [y]| {
                operations::combine(q, by, x, y);
                Vec::new()
            });
        }
        both::<K, 0, 1>(q, "unit", [], [len], |[], [y]| {
            let (x, room) = (numbers(3, len), operations::unit_scratch(len));
            let (x, room) = (Buffer::of(q, "x", &x), Buffer::<f64>::empty(q, "scratch", room));
            operations::unit(q, 1e-7, x.read(), y, room.write());
            Vec::new()
        });
        let bias = Buffer::of(q, "bias", &numbers(3, 5));
        for activation in [Activation::None, Activation::Relu] {
            both::<K, 0, 1>(q, "bias_activation", [], [15 * len], |[], [y]| {
                operations::bias_activation(q, Some(bias.read()), 3, activation, y);
                Vec::new()
            });
        }
        let all =
            Turned { bias: Some(bias.read()), write: Write::Add, activation: Activation::Relu, x: None };
        for way in [Turned::PLAIN, all] {
            both::<K, 1, 1>(q, "turn", [10 * len], [10 * len], |[x], [y]| {
                operations::turn(q, MatrixBatch { count: 2, rows: len, columns: 5 }, x, way, y);
                Vec::new()
            });
        }
        both::<K, 2, 1>(q, "turn to a gradient", [10 * len; 2], [10 * len], |[d, x], [y]| {
            let way = Turned { x: Some(x), ..Turned::PLAIN };
            operations::turn(q, MatrixBatch { count: 2, rows: len, columns: 5 }, d, way, y);
            Vec::new()
        });
        let key = Key::new(Seed(7), Step(3), MicroBatch(1), Site(2));
        both::<K, 1, 1>(q, "dropout", [len], [len], |[x], [y]| {
            operations::dropout(q, key, 0.3, x, y);
            Vec::new()
        });
        for form in [Gelu::Exact, Gelu::Tanh] {
            // Numbers are from -4 to 4.
            each::<K, 1, 1>(q, "gelu", ([len], [len]), Nearness::Quick(4.0), |[x], [y]| {
                operations::gelu(q, form, x, y);
                Vec::new()
            });
            each::<K, 1, 1>(q, "gelu_gradient", ([len], [len]), Nearness::Quick(4.0), |[x], [d]| {
                operations::gelu_gradient(q, form, x, d);
                Vec::new()
            });
        }
    }
}

/// An update of parameters and of what an optimizer keeps of them.
type Update<'a> = dyn Fn(ValuesMut<'_>, SliceMut<'_, f32>, SliceMut<'_, f32>) + 'a;

/// The parameters' copy is what they are rounded to, and they are what they are without it.
pub fn updates<K: Kind>(q: &StandIn, extent: Extent) {
    let adamw = AdamW {
        scale: 0.25,
        step_size: 0.01,
        root_correction: 1.5,
        decay: 0.999,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
    };
    let lion = Lion { scale: 0.5, lr: 0.1, decay: 0.99, beta1: 0.9, beta2: 0.98 };
    let sgd =
        |momentum| Sgd { scale: 0.5, lr: 0.1, weight_decay: 0.01, momentum, nesterov: false, first: false };
    for &len in extent.of(1, &LENGTHS) {
        let (g, m, v) = (numbers(1, len), numbers(3, len), numbers(4, len));
        let v: Vec<f32> = v.iter().map(|v| v.abs()).collect();
        let g_ = Buffer::of(q, "g", &g);
        let check = |what: &str, run: &Update<'_>| {
            let update = |copy: Option<&Buffer<'_, u16>>| {
                let [p_, m_, v_] =
                    [("p", &numbers(2, len)), ("m", &m), ("v", &v)].map(|(name, x)| Buffer::of(q, name, x));
                let p = match copy {
                    Some(copy) => ValuesMut::with_copy(p_.write(), copy.write()),
                    None => p_.write().into(),
                };
                run(p, m_.write(), v_.write());
                p_.now()
            };
            let copy = Buffer::<u16>::empty(q, "copy", len);
            let (plain, with_copy) = (update(None), update(Some(&copy)));
            if plain != with_copy {
                q.wrong(format!("{what}: a copy changes the parameters"));
            }
            copy.has_bits(&format!("{what}, its copy"), &rounded::<K>(&plain));
        };
        let half = Some(K::HALF);
        check("adamw", &|p, m, v| operations::adamw(q, &adamw, g_.read(), p, m, v, half));
        check("lion", &|p, m, _| operations::lion(q, &lion, g_.read(), p, m, half));
        let nothing = Buffer::<f32>::empty(q, "m", 0);
        check("sgd", &|p, _, _| operations::sgd(q, &sgd(0.0), g_.read(), p, nothing.write(), half));
        check("sgd with momentum", &|p, m, _| operations::sgd(q, &sgd(0.9), g_.read(), p, m, half));
        check("blend", &|p, _, _| operations::blend(q, 0.1, 0.25, g_.read(), p, half));
        // The way is of the copy's kind where there is one.
        let ways = halves::<K>(6, len, 2.0);
        let (way16, way) = (Buffer::of(q, "way", &ways), Buffer::of(q, "way", &wide::<K>(&ways)));
        let o = Along { scale: 0.5, decay: 0.99, step: 0.3 };
        let along = |copy: Option<&Buffer<'_, u16>>| {
            let p = Buffer::of(q, "p", &numbers(2, len));
            match copy {
                Some(copy) => {
                    let p = ValuesMut::with_copy(p.write(), copy.write());
                    operations::along(q, &o, of::<K>(&way16), p, half);
                }
                None => operations::along(q, &o, way.read(), p.write(), half),
            }
            p.now()
        };
        let copy = Buffer::<u16>::empty(q, "copy", len);
        let (plain, with_copy) = (along(None), along(Some(&copy)));
        if plain != with_copy {
            q.wrong("along: halves of the same numbers change the parameters".into());
        }
        copy.has_bits("along, its copy", &rounded::<K>(&plain));
    }
}

pub fn sums<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(1, 1), (257, 40), (300, 3), (9, 264), (600, 33)]) {
        let shape = Rows { rows, width };
        let room = || Buffer::<f32>::empty(q, "scratch", operations::column_sums_scratch(shape));
        both::<K, 1, 0>(q, "column_sums", [rows * width], [], |[x], []| {
            let (sums, scratch) = (Buffer::empty(q, "sums", width), room());
            operations::column_sums(q, shape, x, sums.write(), scratch.write());
            vec![sums.now()]
        });
    }
}

/// The bits of the gradient of an activation and of column sums behind it, of f32 and of halves.
pub fn gradient_and_sums<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(1, 1), (257, 40), (300, 3), (9, 264), (5, 521), (520, 33)]) {
        let shape = Rows { rows, width };
        for curve in [Curve::Relu, Curve::Gelu(Gelu::Exact), Curve::Gelu(Gelu::Tanh)] {
            let what = format!("{curve:?} of {shape:?}");
            let (saved, d) = (halves::<K>(1, rows * width, 4.0), halves::<K>(2, rows * width, 4.0));
            let (saved16, apart16, fused16) =
                (Buffer::of(q, "saved", &saved), Buffer::of(q, "d", &d), Buffer::of(q, "d", &d));
            let (saved, d) = (wide::<K>(&saved), wide::<K>(&d));
            let (saved, apart, fused) =
                (Buffer::of(q, "saved", &saved), Buffer::of(q, "d", &d), Buffer::of(q, "d", &d));
            let room = Buffer::<f32>::empty(q, "scratch", operations::column_sums_scratch(shape));
            let gradient = |saved: Values<'_>, d: ValuesMut<'_>| match curve {
                Curve::Relu => operations::relu_gradient(q, saved, d),
                Curve::Gelu(form) => operations::gelu_gradient(q, form, saved, d),
            };
            let column_sums = |d: Values<'_>| {
                let sums = Buffer::<f32>::empty(q, "sums", width);
                operations::column_sums(q, shape, d, sums.write(), room.write());
                sums.now()
            };
            let at_once = |saved: Values<'_>, d: ValuesMut<'_>, wanted: &[f32]| {
                let sums = Buffer::<f32>::empty(q, "sums", width);
                operations::curve_gradient_and_sums(q, shape, curve, saved, d, sums.write(), room.write());
                sums.has_bits(&what, wanted);
            };
            gradient(saved.read().into(), apart.write().into());
            at_once(saved.read().into(), fused.write().into(), &column_sums(apart.read().into()));
            fused.has_bits(&what, &apart.now());
            gradient(of::<K>(&saved16), to::<K>(&apart16));
            at_once(of::<K>(&saved16), to::<K>(&fused16), &column_sums(of::<K>(&apart16)));
            fused16.has_bits(&format!("{what} in {:?}", K::HALF), &apart16.now());
        }
    }
}

/// With and without a gradient around it, which may be any number.
pub fn layer_norm<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(1, 1), (9, 33), (70, 768), (3, 1033), (2, 1296), (130, 40)]) {
        let (shape, len) = (Rows { rows, width }, rows * width);
        let (norm, rms) = (RowNorm::layer(shape, 1e-5), RowNorm::rms(shape, 1e-5));
        let (gain, bias) = (numbers(21, width), numbers(22, width));
        let (gain, bias) = (Buffer::of(q, "gain", &gain), Buffer::of(q, "bias", &bias));
        for (norm, bias) in [(norm, Some(&bias)), (rms, None)] {
            both::<K, 1, 1>(q, "layer_norm", [len], [len], |[x], [y]| {
                let (saved, bias) = (Buffer::empty(q, "saved", 2 * rows), bias.map(Buffer::read));
                operations::layer_norm(q, norm, x, gain.read(), bias, y, saved.write());
                vec![saved.now()]
            });
        }
        let saved: Vec<f32> = numbers(23, 2 * rows).iter().map(|v| v + 1.5).collect();
        let saved = Buffer::of(q, "saved", &saved);
        for (norm, wants_dx, has_outer) in
            [(norm, true, false), (norm, true, true), (norm, false, false), (rms, true, true)]
        {
            both::<K, 3, 1>(q, "layer_norm_gradient", [len; 3], [len], |[x, dy, outer], [mut dx]| {
                let (dgain, dbias) = (Buffer::empty(q, "dgain", width), Buffer::empty(q, "dbias", width));
                let scratch = Buffer::empty(q, "scratch", operations::layer_norm_scratch(shape));
                operations::layer_norm_gradient(
                    q,
                    norm,
                    NormInputs { x, gain: gain.read().into(), saved: saved.read().into(), dy },
                    has_outer.then_some(outer),
                    NormGradients {
                        dx: wants_dx.then(|| dx.part(0..len)),
                        dgain: dgain.write().into(),
                        dbias: Some(dbias.write().into()),
                    },
                    scratch.write(),
                );
                vec![dgain.now(), dbias.now()]
            });
        }
    }
}

pub fn batch_norm<K: Kind>(q: &StandIn, extent: Extent) {
    for &(images, channels, area) in extent.of(1, &[(4, 3, 25), (2, 2, 2049), (9, 5, 13)]) {
        let shape = ChannelNorm { images, channels, area, epsilon: 1e-5 };
        let len = images * channels * area;
        let [gain, bias, running] =
            [(21, channels), (22, channels), (23, 2 * channels)].map(|(site, len)| numbers(site, len));
        let running: Vec<f32> = running.iter().map(|v| v.abs() + 0.5).collect();
        let [gain, bias, running] = [&gain, &bias, &running].map(|x| Buffer::of(q, "of a channel", x));
        let room = || Buffer::<f64>::empty(q, "scratch", operations::batch_norm_scratch(shape));
        both::<K, 1, 1>(q, "batch_norm", [len], [len], |[x], [y]| {
            let [saved, sums] = [(); 2].map(|()| Buffer::<f32>::empty(q, "of a channel", 2 * channels));
            let affine = Affine { gain: gain.read(), bias: bias.read() };
            let outputs = BatchNormOutputs { y, saved: saved.write().into(), sums: sums.write().into() };
            operations::batch_norm(q, shape, x, affine, outputs, room().write());
            vec![saved.now(), sums.now()]
        });
        both::<K, 1, 1>(q, "batch_norm_by", [len], [len], |[x], [y]| {
            operations::batch_norm_by(q, shape, x, gain.read(), bias.read(), running.read(), y);
            Vec::new()
        });
        both::<K, 2, 1>(q, "batch_norm_gradient", [len; 2], [len], |[x, dy], [dx]| {
            let [dgain, dbias] = [(); 2].map(|()| Buffer::<f32>::empty(q, "of a channel", channels));
            let saved = running.read().into();
            operations::batch_norm_gradient(
                q,
                shape,
                NormInputs { x, gain: gain.read().into(), saved, dy },
                NormGradients {
                    dx: Some(dx),
                    dgain: dgain.write().into(),
                    dbias: Some(dbias.write().into()),
                },
                room().write(),
            );
            vec![dgain.now(), dbias.now()]
        });
    }
}

pub fn losses<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(1, 2), (5, 257), (2, 1000), (2, 8200), (9, 40)]) {
        let (shape, targets) = (Rows { rows, width }, ids(2, rows, width as u32));
        let targets_ = Buffer::of(q, "targets", &targets);
        // What the sums come to, in halves of f64 that f32 holds.
        let run = |loss: &dyn Fn(LossRows<'_>, LossTotals<'_>)| {
            let (values, counts) =
                (Buffer::<f64>::empty(q, "values", 2 * rows), Buffer::<u32>::empty(q, "counts", rows));
            let (sums, totals) = (Buffer::<f64>::empty(q, "sums", 2), Buffer::<u32>::empty(q, "totals", 2));
            loss(
                LossRows { values: values.write(), counts: counts.write() },
                LossTotals { sums: sums.write(), counts: totals.write() },
            );
            let words = sums.now().into_iter().map(f64::to_bits);
            let words = words.flat_map(|bits| [bits as u32, (bits >> 32) as u32]).chain(totals.now());
            vec![words.map(f32::from_bits).collect()]
        };
        for label_smoothing in [0.0, 0.2] {
            let options = CrossEntropy {
                label_smoothing,
                class_weights: None,
                ignore_index: Some(targets[0]),
                scale: 8.0,
            };
            let terms = Nearness::Quick(options.scale);
            let found = each::<K, 0, 1>(q, "cross_entropy", ([], [rows * width]), terms, |[], [x]| {
                let x = std::cell::Cell::new(Some(x));
                run(&|rows, totals| {
                    let x = Outputs::<Values<'_>, _>::Replaced(x.take().expect("once"));
                    operations::cross_entropy(q, shape, &options, x, targets_.read(), rows, totals);
                })
            });
            // Two words of the loss, two of the weight, then how many counted and how many were right.
            let [(loss, rest), (loss16, rest16)] = found.map(|beside| {
                let words: Vec<u32> = beside[0].iter().map(|word| word.to_bits()).collect();
                (f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32), words[2..].to_vec())
            });
            let is_near = (loss - loss16).abs() <= 2f64.powi(-20) * loss.abs();
            if !is_near || rest != rest16 {
                q.wrong(format!(
                    "cross_entropy of {:?}: {loss16} and {rest16:?}, not {loss} and {rest:?}",
                    K::HALF
                ));
            }
        }
        let mixed = Buffer::of(q, "targets", &super::losses::mixtures(rows, width));
        let options =
            CrossEntropy { label_smoothing: 0.1, class_weights: None, ignore_index: None, scale: 8.0 };
        let terms = Nearness::Quick(options.scale);
        each::<K, 0, 1>(q, "mixed_cross_entropy", ([], [rows * width]), terms, |[], [x]| {
            let x = std::cell::Cell::new(Some(x));
            run(&|rows, totals| {
                let x = Outputs::<Values<'_>, _>::Replaced(x.take().expect("once"));
                operations::mixed_cross_entropy(q, shape, &options, x, mixed.read(), rows, totals);
            })
        });
        let t = Buffer::of(q, "t", &numbers(5, rows * width));
        both::<K, 0, 1>(q, "squared_error", [], [rows * width], |[], [x]| {
            let x = std::cell::Cell::new(Some(x));
            run(&|rows, totals| {
                let x = Outputs::<Values<'_>, _>::Replaced(x.take().expect("once"));
                operations::squared_error(q, shape, 2.0, x, t.read(), rows, totals);
            })
        });
        both::<K, 1, 0>(q, "arg_max", [rows * width], [], |[x], []| {
            let best = Buffer::<u32>::empty(q, "best", rows);
            operations::arg_max(q, shape, x, best.write());
            vec![best.now().into_iter().map(|place| place as f32).collect()]
        });
    }
}

/// Rows that lie further apart than they are long have the bits of those that do not, and what is between them is not touched.
pub fn rows_apart<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width, pitch) in extent.of(1, &[(1, 3, 8), (300, 9, 16), (2, 4111, 4160), (5, 257, 320)]) {
        let shape = Rows { rows, width };
        let close = halves::<K>(1, rows * width, 4.0);
        let mut apart = vec![nearest(K::HALF, f64::NAN); rows * pitch];
        close
            .chunks(width)
            .zip(apart.chunks_mut(pitch))
            .for_each(|(row, to)| to[..width].copy_from_slice(row));
        let inside = |x: &[u16]| x.chunks(pitch).flat_map(|row| row[..width].to_vec()).collect::<Vec<_>>();
        let (targets, t) = (ids(2, rows, width as u32), numbers(5, rows * width));
        let (targets, t) = (Buffer::of(q, "targets", &targets), Buffer::of(q, "t", &t));
        let of_rows = |x: &[u16]| {
            let (loss, error) = (Buffer::of(q, "logits", x), Buffer::of(q, "outputs", x));
            let kept = Buffer::of(q, "x", x);
            let options =
                CrossEntropy { label_smoothing: 0.1, class_weights: None, ignore_index: None, scale: 1.0 };
            let mut sums = Vec::new();
            for is_error in [false, true] {
                let (values, counts) =
                    (Buffer::<f64>::empty(q, "values", 2 * rows), Buffer::<u32>::empty(q, "counts", rows));
                let (all, right) = (Buffer::<f64>::empty(q, "sums", 2), Buffer::<u32>::empty(q, "totals", 2));
                let rows = LossRows { values: values.write(), counts: counts.write() };
                let totals = LossTotals { sums: all.write(), counts: right.write() };
                if is_error {
                    let x = Outputs::<Values<'_>, _>::Replaced(to::<K>(&error));
                    operations::squared_error(q, shape, 2.0, x, t.read(), rows, totals);
                } else {
                    let x = Outputs::<Values<'_>, _>::Replaced(to::<K>(&loss));
                    operations::cross_entropy(q, shape, &options, x, targets.read(), rows, totals);
                }
                sums.extend(all.now().into_iter().map(f64::to_bits));
            }
            let best = Buffer::<u32>::empty(q, "best", rows);
            operations::arg_max(q, shape, of::<K>(&kept), best.write());
            let columns = Buffer::<f32>::empty(q, "sums", width);
            let room = Buffer::<f32>::empty(q, "scratch", operations::column_sums_scratch(shape));
            operations::column_sums(q, shape, of::<K>(&kept), columns.write(), room.write());
            sums.extend(best.now().into_iter().map(u64::from));
            sums.extend(columns.now().into_iter().map(|v| u64::from(v.to_bits())));
            (sums, loss.now(), error.now())
        };
        let ((sums, loss, error), (sums_apart, loss_apart, error_apart)) = (of_rows(&close), of_rows(&apart));
        if sums != sums_apart || loss != inside(&loss_apart) || error != inside(&error_apart) {
            q.wrong(format!("{shape:?} {pitch} apart has other bits"));
        }
        let between = |x: &[u16]| x.chunks(pitch).flat_map(|row| row[width..].to_vec()).collect::<Vec<_>>();
        if [&loss_apart, &error_apart].iter().any(|x| between(x) != between(&apart)) {
            q.wrong(format!("something between rows of {shape:?} {pitch} apart was written"));
        }
        let (x, w) = (halves::<K>(3, rows * 24, 1.0), halves::<K>(4, width * 24, 1.0));
        let (x, w) = (Buffer::of(q, "x", &x), Buffer::of(q, "w", &w));
        let [y, y_apart] = [width, pitch].map(|pitch| {
            let y = Buffer::of(q, "y", &vec![0x3c00; rows * pitch]);
            let operands = Operands { x: x.read(), w: w.read(), bias: None };
            let (layer, to) = (LinearShape { rows, inputs: 24, outputs: width }, HalfResult::Half(y.write()));
            let room = product_half::scratch::<K>(q, layer);
            operations::linear_half(q, K::HALF, layer, operands, (Activation::None, None), to, room.write());
            y.now()
        });
        if y != inside(&y_apart) || between(&y_apart).iter().any(|v| *v != 0x3c00) {
            q.wrong(format!("outputs of {shape:?} {pitch} apart have other bits, or more was written"));
        }
    }
}

pub fn pooling<K: Kind>(q: &StandIn, extent: Extent) {
    for &(planes, size, window, stride) in
        extent.of(1, &[(1, [2, 2], [2, 2], [2, 2]), (5, [7, 9], [3, 2], [2, 2]), (3, [6, 5], [2, 2], [1, 2])])
    {
        let shape = Pool2d { planes, size, window, stride, padding: [0; 2] };
        let (len, out) = (planes * size[0] * size[1], planes * shape.output_size().iter().product::<usize>());
        let places = Buffer::<u32>::empty(q, "places", out);
        both::<K, 1, 1>(q, "max_pool", [len], [out], |[x], [y]| {
            operations::max_pool(q, &shape, x, y, places.write());
            vec![places.now().into_iter().map(|place| place as f32).collect()]
        });
        both::<K, 1, 1>(q, "max_pool_gradient", [out], [len], |[dy], [dx]| {
            operations::max_pool_gradient(q, &shape, places.read(), dy, dx);
            Vec::new()
        });
        both::<K, 1, 1>(q, "avg_pool", [len], [out], |[x], [y]| {
            operations::avg_pool(q, &shape, x, y);
            Vec::new()
        });
        both::<K, 1, 1>(q, "avg_pool_gradient", [out], [len], |[dy], [dx]| {
            operations::avg_pool_gradient(q, &shape, dy, dx);
            Vec::new()
        });
    }
}

pub fn embedding<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, width, entries) in extent.of(1, &[(1, 1, 1), (40, 33, 7), (12, 5, 4)]) {
        let shape = Rows { rows, width };
        let tokens = Buffer::of(q, "ids", &ids(3, rows, entries as u32));
        let time = rows.div_ceil(2);
        let (table, places) = (numbers(4, entries * width), numbers(5, time * width));
        let (table, places) = (Buffer::of(q, "table", &table), Buffer::of(q, "places", &places));
        both::<K, 0, 1>(q, "embedding", [], [rows * width], |[], [y]| {
            operations::embedding(q, shape, tokens.read(), table.read(), Some((places.read(), time)), y);
            Vec::new()
        });
        both::<K, 1, 0>(q, "embedding_gradient", [rows * width], [], |[dy], []| {
            let (dtable, dplaces) =
                (Buffer::empty(q, "dtable", entries * width), Buffer::empty(q, "dplaces", time * width));
            let order = Buffer::<u32>::empty(q, "order", rows);
            operations::embedding_gradient(
                q,
                shape,
                tokens.read(),
                dy,
                TableGradient { write: Write::Set, dtable: dtable.write() },
                Some((dplaces.write(), time)),
                order.write(),
            );
            vec![dtable.now(), dplaces.now()]
        });
    }
}

/// Of a shape without a kernel, columns by columns, near f64: alone, and added to rows that lie apart, between which nothing changes.
pub fn product_without_a_kernel<K: Kind>(q: &StandIn, extent: Extent) {
    for &[m, n, k] in extent.of(1, &[[1, 1, 1], [65, 17, 100], [50, 69, 45]]) {
        let (a, b) = (Strides::transposed(m), Strides::transposed(k));
        let (x, y) = (halves::<K>(1, m * k, 1.0), halves::<K>(2, n * k, 1.0));
        let (x_, y_) = (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y));
        for (write, c_row) in [(Write::Set, n), (Write::Set, n + 2), (Write::Add, n + 2)] {
            let shape = Product { m, n, k, a, b, c_row, write };
            let before = halves::<K>(3, (m - 1) * c_row + n, 1.0);
            let c = Buffer::of(q, "c", &before);
            let parts =
                operations::product_exact_scratch(&shape).map(|len| Buffer::<f32>::empty(q, "scratch", len));
            let (operands, result) = ([x_.read(), y_.read()], HalfResult::Half(c.write()));
            let lent = parts.each_ref().map(Buffer::write);
            operations::product_exact(q, K::HALF, &shape, operands, result, lent);
            let [x, y] = [&x, &y].map(|x| super::halves::values::<K>(x));
            let wanted = product_half::wanted(&shape, &x, &y, &wide::<K>(&before));
            c.is_within_half::<K>(&format!("{shape:?} by f32"), &wanted, K::ROUNDING);
            let between = |x: &[u16]| {
                x.chunks(c_row).flat_map(|row| row[n.min(row.len())..].to_vec()).collect::<Vec<_>>()
            };
            if between(&c.now()) != between(&before) {
                q.wrong(format!("something between rows of {shape:?} was written"));
            }
        }
    }
}

/// Of heads without a kernel, near f64: forward, and the gradient of what that left.
pub fn attention_without_a_kernel<K: Kind>(q: &StandIn, extent: Extent) {
    for &(batch, time, heads, head) in extent.of(1, &[(2, 65, 2, 12), (1, 20, 1, 20)]) {
        // Each of the two kernels of f32 once with a mask and once without.
        let mask = if head == 12 { Mask::Causal } else { Mask::None };
        let shape = AttentionShape { batch, time, heads, head, mask };
        let out = batch * time * heads * head;
        let (qkv, dy) = (halves::<K>(1, 3 * out, 2.0), halves::<K>(2, out, 1.0));
        let [wanted_y, wanted_saved, wanted_d] =
            attention_half::whole(&shape, &wide::<K>(&qkv), &wide::<K>(&dy));
        let (qkv_, dy_) = (Buffer::of(q, "qkv", &qkv), Buffer::of(q, "dy", &dy));
        let (y, d) = (Buffer::<u16>::empty(q, "y", out), Buffer::<u16>::empty(q, "dqkv", 3 * out));
        let saved = Buffer::<f32>::empty(q, "saved", operations::attention_saved(&shape));
        let deltas = Buffer::<f32>::empty(q, "deltas", operations::attention_scratch(&shape));
        let parts =
            operations::attention_exact_scratch(&shape).map(|len| Buffer::<f32>::empty(q, "scratch", len));
        let lent = parts.each_ref().map(Buffer::write);
        operations::attention_exact(q, K::HALF, &shape, qkv_.read(), y.write(), saved.write(), lent);
        let parts = operations::attention_exact_gradient_scratch(&shape)
            .map(|len| Buffer::<f32>::empty(q, "scratch", len));
        operations::attention_exact_gradient(
            q,
            K::HALF,
            &shape,
            Attended { qkv: qkv_.read(), y: y.read(), saved: saved.read(), dy: dy_.read() },
            d.write(),
            deltas.write(),
            parts.each_ref().map(Buffer::write),
        );
        y.is_within_half::<K>(&format!("y of {shape:?}"), &wanted_y, NEAR);
        saved.is_within(&format!("saved of {shape:?}"), &wanted_saved, NEAR);
        d.is_within_half::<K>(&format!("dqkv of {shape:?}"), &wanted_d, NEAR);
    }
}
