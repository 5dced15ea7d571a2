//! What a device computes, in a few bytes: two devices with the same fingerprint give the same bits.
//!
//! A self-test runs every operation on fixed inputs and hashes the outputs. The shapes are small (it runs at each start of a
//! rank) but reach each path: several blocks of `k`, both places for an operand, edges of tiles, phases of a stride.
//!
//! This file does not know who compares fingerprints.

use crate::cpu::{Cpu, KERNEL_REVISION};
use crate::device::{
    Activation, AdamW, Affine, Attended, AttentionShape, BatchNormOutputs, Cell, CellGradients, CellStep,
    CellsKept, ChannelNorm, Conv2dShape, Conv3dShape, CrossEntropy, Device, GATES, Gelu, LinearShape,
    LossSums, Mask, NormGradients, NormInputs, Operands, Outputs, Pool2d, Product, RopeScaling, RotaryShape,
    RotarySpeeds, RowNorm, Rows, Sgd, Strides, Write,
};
use dtrain_types::{Digest, Fingerprint, Key, MicroBatch, Seed, Site, Step};

/// Runs the self-test on a device.
///
/// *Blocks* for some milliseconds.
#[must_use]
pub fn fingerprint(cpu: &Cpu) -> Fingerprint {
    let mut test = SelfTest { cpu, hash: blake3::Hasher::new(), site: 0 };
    test.products();
    test.convolutions();
    test.pools();
    test.point_wise();
    test.norms();
    test.sequences();
    test.losses();
    test.updates();
    test.llama();
    Fingerprint {
        isa: cpu.isa().to_string(),
        self_test: Digest(*test.hash.finalize().as_bytes()),
        kernel_revision: KERNEL_REVISION,
    }
}

struct SelfTest<'a> {
    cpu: &'a Cpu,
    hash: blake3::Hasher,
    /// Another stream of numbers for each input.
    site: u32,
}

impl SelfTest<'_> {
    /// Fixed numbers in `[-2, 2)`.
    fn numbers(&mut self, len: usize) -> Vec<f32> {
        self.site += 1;
        let key = Key::new(Seed(0x5e1f), Step(0), MicroBatch(0), Site(self.site));
        let blocks = (0..len.div_ceil(4) as u32).flat_map(|i| key.block(i));
        blocks.take(len).map(|word| (word >> 8) as f32 * (4.0 / (1u32 << 24) as f32) - 2.0).collect()
    }

    fn ids(&mut self, len: usize, bound: u32) -> Vec<u32> {
        self.numbers(len).iter().map(|v| ((v + 2.0) * 0.25 * bound as f32) as u32 % bound).collect()
    }

    /// Runs an operation on an output of `len` elements and hashes what it wrote.
    fn output(&mut self, len: usize, operation: impl FnOnce(&Cpu, &mut [f32])) -> Vec<f32> {
        let mut out = vec![f32::NAN; len];
        operation(self.cpu, &mut out);
        self.take(&out);
        out
    }

    fn take(&mut self, out: &[f32]) {
        let bytes: Vec<u8> = out.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
        self.hash.update(&bytes);
    }

    fn take_f64(&mut self, out: f64) {
        self.hash.update(&out.to_bits().to_le_bytes());
    }

    fn products(&mut self) {
        for (m, n, k) in [(3, 5, 7), (30, 45, 513), (17, 70, 64)] {
            for (a, b) in [
                (Strides::rows(k), Strides::rows(n)),
                (Strides::rows(k), Strides::transposed(k)),
                (Strides::transposed(m), Strides::rows(n)),
                (Strides::transposed(m), Strides::transposed(k)),
            ] {
                let (x, y) = (self.numbers(m * k), self.numbers(k * n));
                let mut c = self.output(m * n, |cpu, c| {
                    cpu.product(&Product { m, n, k, a, b, c_row: n, write: Write::Set }, &x, &y, c);
                });
                self.cpu.product(&Product { m, n, k, a, b, c_row: n, write: Write::Add }, &x, &y, &mut c);
                self.take(&c);
            }
        }
        let (rows, width, inputs) = (33, 10, 600);
        let (x, w, bias) = (self.numbers(rows * inputs), self.numbers(width * inputs), self.numbers(width));
        self.output(rows * width, |cpu, y| {
            cpu.linear(
                LinearShape::new(Rows { rows, width }, inputs),
                Operands { x: &x, w: &w, bias: Some(&bias) },
                Activation::Relu,
                y,
            );
        });
        self.output(inputs, |cpu, sums| cpu.column_sums(Rows { rows, width: inputs }, &x, sums));
    }

    fn convolutions(&mut self) {
        let flat = |stride, padding| {
            let (size, kernel) = ([9, 10], [3, 3]);
            Conv2dShape { images: 2, channels: 3, size, outputs: 18, kernel, stride, padding }.into()
        };
        let deep = |channels, size, stride, padding| {
            let (outputs, kernel) = (20, [3; 3]);
            Conv3dShape { images: 1, channels, size, outputs, kernel, stride, padding }
        };
        let (size, kernel) = ([6, 7], [3, 3]);
        let in_tiles = Conv2dShape {
            images: 3,
            channels: 32,
            size,
            outputs: 48,
            kernel,
            stride: [1, 1],
            padding: [1, 1],
        };
        for shape in [
            in_tiles.into(),
            flat([1, 1], [1, 0]),
            flat([2, 1], [0, 1]),
            deep(2, [3, 5, 4], [1; 3], [1; 3]),
            // More outputs times places than a block has terms.
            deep(3, [4, 5, 7], [2; 3], [1, 0, 1]),
        ] {
            self.convolution(&shape);
        }
    }

    fn convolution(&mut self, shape: &Conv3dShape) {
        let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
        let x = self.numbers(shape.images * shape.channels * volume(shape.size));
        let w = self.numbers(shape.outputs * shape.channels * volume(shape.kernel));
        let bias = self.numbers(shape.outputs);
        let dy = self.numbers(shape.images * shape.outputs * volume(shape.output_size()));
        let mut scratch = vec![f32::NAN; self.cpu.conv_scratch(shape).expect("the CPU has them")];
        self.output(dy.len(), |cpu, y| {
            cpu.conv(shape, Operands { x: &x, w: &w, bias: Some(&bias) }, Activation::None, y, &mut scratch);
        });
        self.output(x.len(), |cpu, dx| cpu.conv_input_gradient(shape, &w, &dy, dx, &mut scratch));
        self.output(w.len() + bias.len(), |cpu, d| {
            let (dw, db) = d.split_at_mut(w.len());
            cpu.conv_weight_gradient(shape, &x, &dy, dw, Some(db), &mut scratch);
        });
    }

    fn pools(&mut self) {
        let shape = Pool2d { planes: 3, size: [7, 9], window: [2, 3], stride: [2, 2], padding: [0; 2] };
        let [height, width] = shape.output_size();
        let out = 3 * height * width;
        let (x, dy) = (self.numbers(3 * 63), self.numbers(out));
        let both = self.output(2 * out, |cpu, both| {
            let (y, places) = both.split_at_mut(out);
            cpu.max_pool(&shape, &x, y, places);
        });
        self.output(x.len(), |cpu, dx| cpu.max_pool_gradient(&shape, &both[out..], &dy, dx));
        self.output(out, |cpu, y| cpu.avg_pool(&shape, &x, y));
        self.output(x.len(), |cpu, dx| cpu.avg_pool_gradient(&shape, &dy, dx));
    }

    fn point_wise(&mut self) {
        let (a, b) = (self.numbers(5000), self.numbers(5000));
        let key = Key::new(Seed(3), Step(1), MicroBatch(4), Site(1));
        self.output(5000, |cpu, y| cpu.relu(&a, y));
        self.output(5000, |cpu, y| cpu.gelu(Gelu::Exact, &a, y));
        self.output(5000, |cpu, y| cpu.gelu(Gelu::Tanh, &a, y));
        self.output(5000, |cpu, y| cpu.dropout(key, 0.3, &a, y));
        self.output(5000, |cpu, y| cpu.add(&a, &b, y));
        self.output(5000, |cpu, d| {
            d.copy_from_slice(&b);
            cpu.relu_gradient(&a, d);
            cpu.gelu_gradient(Gelu::Exact, &a, d);
            cpu.gelu_gradient(Gelu::Tanh, &a, d);
            cpu.add_to(&a, d);
            cpu.blend(0.1, 0.5, &b, d);
        });
    }

    fn norms(&mut self) {
        let (rows, width) = (70, 37);
        let norm = RowNorm::layer(Rows { rows, width }, 1e-5);
        let (x, dy) = (self.numbers(rows * width), self.numbers(rows * width));
        let (gain, bias) = (self.numbers(width), self.numbers(width));
        let mut saved = vec![0.0; 2 * rows];
        self.output(x.len(), |cpu, y| cpu.layer_norm(norm, &x, &gain, Some(&bias), y, &mut saved));
        let mut scratch = vec![f32::NAN; self.cpu.layer_norm_scratch(norm.rows)];
        let (mut dgain, mut dbias) = (vec![0.0; width], vec![0.0; width]);
        self.output(x.len(), |cpu, dx| {
            let dx = Some(dx);
            cpu.layer_norm_gradient(
                norm,
                NormInputs { x: &x, gain: &gain, saved: &saved, dy: &dy },
                NormGradients { dx, dgain: &mut dgain, dbias: Some(&mut dbias) },
                &mut scratch,
            );
        });
        [&saved, &dgain, &dbias].into_iter().for_each(|out| self.take(out));

        let shape = ChannelNorm { images: 7, channels: 10, area: 37, epsilon: 1e-5 };
        let (gain, bias) = (&gain[..10], &bias[..10]);
        let (mut saved, mut sums) = (vec![0.0; 20], vec![0.0; 20]);
        self.output(x.len(), |cpu, y| {
            cpu.batch_norm(
                shape,
                &x,
                Affine { gain, bias },
                BatchNormOutputs { y, saved: &mut saved, sums: &mut sums },
            )
        });
        let (mut dgain, mut dbias) = (vec![0.0; 10], vec![0.0; 10]);
        self.output(x.len(), |cpu, dx| {
            cpu.batch_norm_gradient(
                shape,
                NormInputs { x: &x, gain, saved: &saved, dy: &dy },
                NormGradients { dx: Some(dx), dgain: &mut dgain, dbias: Some(&mut dbias) },
            );
        });
        let running: Vec<f32> = sums.iter().map(|v| v.abs()).collect();
        self.output(x.len(), |cpu, y| cpu.batch_norm_by(shape, &x, gain, bias, &running, y));
        [&saved, &sums, &dgain, &dbias].into_iter().for_each(|out| self.take(out));
    }

    fn sequences(&mut self) {
        let shape = Rows { rows: 30, width: 19 };
        let (ids, table, places) = (self.ids(30, 12), self.numbers(12 * 19), self.numbers(5 * 19));
        let dy = self.numbers(30 * 19);
        self.output(dy.len(), |cpu, y| cpu.embedding(shape, &ids, &table, Some((&places, 5)), y));
        self.output(table.len() + places.len(), |cpu, d| {
            let (dtable, dplaces) = d.split_at_mut(table.len());
            cpu.embedding_gradient(shape, &ids, &dy, Write::Set, dtable, Some((dplaces, 5)));
            cpu.embedding_gradient(shape, &ids, &dy, Write::Add, dtable, None);
        });

        let shape = AttentionShape { batch: 1, time: 70, heads: 2, head: 20, mask: Mask::Causal };
        let out = 70 * 40;
        let (qkv, dy) = (self.numbers(3 * out), self.numbers(out));
        let mut saved = vec![f32::NAN; self.cpu.attention_saved(&shape)];
        let mut scratch = vec![f32::NAN; self.cpu.attention_scratch(&shape)];
        let y = self.output(out, |cpu, y| cpu.attention(&shape, &qkv, y, &mut saved, &mut scratch));
        self.output(3 * out, |cpu, dqkv| {
            cpu.attention_gradient(
                &shape,
                Attended { qkv: &qkv, y: &y, saved: &saved, dy: &dy },
                dqkv,
                &mut scratch,
            );
        });
        self.take(&saved);
        self.recurrent();
    }

    fn recurrent(&mut self) {
        for cell in [Cell::Lstm, Cell::Gru] {
            let step = CellStep { cell, rows: 3, time: 1, at: 0, hidden: 19 };
            let out = 3 * 19;
            let states = if cell == Cell::Lstm { out } else { 0 };
            let (sums, bias, dy) =
                (self.numbers(GATES * out), self.numbers(cell.gates() * 19), self.numbers(out));
            let (mut gates, mut kept) = (sums, vec![0.0; states]);
            let y = self.output(out, |cpu, y| {
                cpu.recurrent_cells(&step, [&bias, &bias], &mut gates, &mut kept, y);
            });
            let (mut d_outputs, mut dstates) = (dy, vec![0.0; out]);
            self.output(GATES * out, |cpu, dgates| {
                dgates.fill(0.0);
                let kept = CellsKept { gates: &gates[..], states: &kept, y: &y[..] };
                let gradients = CellGradients { dy: &mut d_outputs[..], dstates: &mut dstates[..], dgates };
                cpu.recurrent_gradient(&step, kept, gradients);
            });
            self.take(&dstates);
        }
    }

    /// What only models of Llama's family use.
    fn llama(&mut self) {
        let norm = RowNorm::rms(Rows { rows: 70, width: 37 }, 1e-5);
        let (x, dy, gain) = (self.numbers(70 * 37), self.numbers(70 * 37), self.numbers(37));
        let mut saved = vec![0.0; 140];
        self.output(x.len(), |cpu, y| cpu.layer_norm(norm, &x, &gain, None, y, &mut saved));
        let mut scratch = vec![f32::NAN; self.cpu.layer_norm_scratch(norm.rows)];
        let mut dgain = vec![0.0; 37];
        self.output(x.len(), |cpu, dx| {
            let inputs = NormInputs { x: &x[..], gain: &gain, saved: &saved, dy: &dy };
            let gradients = NormGradients { dx: Some(dx), dgain: &mut dgain[..], dbias: None };
            cpu.layer_norm_gradient(norm, inputs, gradients, &mut scratch);
        });
        [&saved, &dgain].into_iter().for_each(|out| self.take(out));

        let shape = Rows { rows: 70, width: 18 };
        self.output(70 * 18, |cpu, y| cpu.swiglu(shape, &x[..70 * 36], y));
        self.output(70 * 36, |cpu, dx| cpu.swiglu_gradient(shape, &x[..70 * 36], &dy[..70 * 18], dx));

        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 64.0 };
        let speeds = RotarySpeeds::new(10_000.0, 6, scaling);
        let shape = RotaryShape { batch: 2, time: 5, first: 1_000, heads: 6, kv_heads: 2, head: 6, speeds };
        let (packed, spread) = (shape.rows() * shape.packed(), shape.rows() * shape.spread());
        self.output(spread, |cpu, y| cpu.rotary(&shape, &x[..packed], y));
        self.output(packed, |cpu, dx| cpu.rotary_gradient(&shape, &dy[..spread], dx));
    }

    fn losses(&mut self) {
        let shape = Rows { rows: 20, width: 21 };
        let (x, t, weights) = (self.numbers(420), self.numbers(420), self.numbers(21));
        let targets = self.ids(20, 21);
        let weights: Vec<f32> = weights.iter().map(|w| w + 2.5).collect();
        for (label_smoothing, class_weights) in [(0.0, &[][..]), (0.1, &weights)] {
            let options =
                CrossEntropy { label_smoothing, class_weights, ignore_index: Some(targets[0]), scale: 1.0 };
            let mut sums = LossSums::default();
            self.output(420, |cpu, d| {
                d.copy_from_slice(&x);
                sums = cpu.cross_entropy(shape, &options, Outputs::Replaced(d), &targets);
            });
            self.take_f64(sums.loss);
            self.take_f64(sums.weight);
        }
        let options =
            CrossEntropy { label_smoothing: 0.1, class_weights: &weights, ignore_index: None, scale: 1.0 };
        let mixed: Vec<u32> = targets.iter().flat_map(|t| [*t, 20 - *t, 0.3f32.to_bits()]).collect();
        let mut sums = LossSums::default();
        self.output(420, |cpu, d| {
            d.copy_from_slice(&x);
            sums = cpu.mixed_cross_entropy(shape, &options, Outputs::Replaced(d), &mixed);
        });
        self.take_f64(sums.loss);
        let mut sums = LossSums::default();
        self.output(420, |cpu, d| {
            d.copy_from_slice(&x);
            sums = cpu.squared_error(shape, 1.0, Outputs::Replaced(d), &t);
        });
        self.take_f64(sums.loss);
        let mut best = [0; 20];
        self.cpu.arg_max(shape, &x, &mut best);
        best.into_iter().for_each(|place| self.take_f64(f64::from(place)));
    }

    fn updates(&mut self) {
        let len = 5000;
        let (g, p, m, v) = (self.numbers(len), self.numbers(len), self.numbers(len), self.numbers(len));
        let (mut m, mut v): (Vec<f32>, Vec<f32>) = (m, v.iter().map(|v| v.abs()).collect());
        let o = AdamW {
            scale: 0.3,
            step_size: 0.01,
            root_correction: 1.4,
            decay: 0.999,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        };
        self.output(len, |cpu, out| {
            out.copy_from_slice(&p);
            cpu.adamw(&o, &g, out, &mut m, &mut v);
        });
        for momentum in [0.0, 0.9] {
            let o = Sgd { scale: 0.5, lr: 0.1, weight_decay: 0.01, momentum, nesterov: true, first: false };
            self.output(len, |cpu, out| {
                out.copy_from_slice(&p);
                cpu.sgd(&o, &g, out, if momentum == 0.0 { &mut [] } else { &mut m });
            });
        }
        self.take(&m);
        self.take(&v);
        let squares = self.cpu.sum_of_squares(&g, 0.7);
        self.take_f64(squares);
    }
}
