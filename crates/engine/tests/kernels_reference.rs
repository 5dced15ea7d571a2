//! Every operation of the CPU device, but for losses, updates and those of `kernels_llama.rs`, against a plain float64 reference, outputs
//! poisoned with NaN first.

mod kernels_support;

use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::*;
use kernels_support::*;

fn reference_product(shape: &Product, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f64> {
    let mut out = vec![0.0; shape.m * shape.n];
    for r in 0..shape.m {
        for col in 0..shape.n {
            let mut total = if shape.write == Write::Add { f64::from(c[r * shape.c_row + col]) } else { 0.0 };
            for k in 0..shape.k {
                let a = a[r * shape.a.row + k * shape.a.col];
                total += f64::from(a) * f64::from(b[k * shape.b.row + col * shape.b.col]);
            }
            out[r * shape.n + col] = total;
        }
    }
    out
}

#[test]
fn a_product_of_any_layout_and_size_is_right_and_touches_nothing_else() {
    let cpu = cpu();
    for (m, n, k) in
        [(1, 1, 1), (1, 33, 7), (33, 1, 513), (5, 10, 100), (16, 16, 16), (50, 70, 600), (130, 97, 65)]
    {
        for (a_turned, b_turned) in [(false, false), (false, true), (true, false), (true, true)] {
            for write in [Write::Set, Write::Add] {
                let a = if a_turned { Strides::transposed(m + 1) } else { Strides::rows(k + 2) };
                let b = if b_turned { Strides::transposed(k + 3) } else { Strides::rows(n + 1) };
                let shape = Product { m, n, k, a, b, c_row: n + 3, write };
                let (x, y) = (numbers(1, (m + 1) * (k + 2)), numbers(2, (n + 1) * (k + 3)));
                let mut c = if write == Write::Set { poison(m * (n + 3)) } else { numbers(3, m * (n + 3)) };
                let before = c.clone();
                let wanted = reference_product(&shape, &x, &y, &c);
                cpu.product(&shape, &x, &y, &mut c);
                let inside: Vec<f32> = c.chunks(n + 3).flat_map(|row| row[..n].to_vec()).collect();
                assert_near(&format!("{shape:?}"), &inside, &wanted);
                for (row, before) in c.chunks(n + 3).zip(before.chunks(n + 3)) {
                    assert_eq!(bits(&row[n..]), bits(&before[n..]), "columns beyond the product: {shape:?}");
                }
            }
        }
    }
}

#[test]
fn a_product_with_strides_in_both_directions_is_right() {
    let cpu = cpu();
    let (m, n, k) = (9, 11, 13);
    let shape = Product {
        m,
        n,
        k,
        a: Strides { row: 40, col: 3 },
        b: Strides { row: 2, col: 30 },
        c_row: n,
        write: Write::Set,
    };
    let (x, y) = (numbers(1, 400), numbers(2, 400));
    let mut c = poison(m * n);
    cpu.product(&shape, &x, &y, &mut c);
    assert_near("strided", &c, &reference_product(&shape, &x, &y, &[]));
}

#[test]
fn linear_adds_the_bias_and_activates() {
    let cpu = cpu();
    for (rows, inputs, width) in [(1, 3, 5), (128, 1024, 10), (7, 600, 40), (64, 64, 96)] {
        for activation in [Activation::None, Activation::Relu] {
            for with_bias in [false, true] {
                let (x, w, bias) = (numbers(1, rows * inputs), numbers(2, width * inputs), numbers(3, width));
                let mut y = poison(rows * width);
                let given = with_bias.then_some(&bias[..]);
                cpu.linear(
                    LinearShape::new(Rows { rows, width }, inputs),
                    Operands { x: &x, w: &w, bias: given },
                    activation,
                    &mut y,
                );
                let wanted: Vec<f64> = (0..rows * width)
                    .map(|i| {
                        let (x, w) = (&x[i / width * inputs..], &w[i % width * inputs..]);
                        let sum: f64 = (0..inputs).map(|k| f64::from(x[k]) * f64::from(w[k])).sum();
                        let sum = sum + if with_bias { f64::from(bias[i % width]) } else { 0.0 };
                        if activation == Activation::Relu { sum.max(0.0) } else { sum }
                    })
                    .collect();
                assert_near("linear", &y, &wanted);
            }
        }
    }
}

#[test]
fn column_sums_are_right() {
    for (rows, width) in [(1, 1), (3, 64), (1025, 130), (700, 10)] {
        let x = numbers(1, rows * width);
        let mut sums = poison(width);
        cpu().column_sums(Rows { rows, width }, &x, &mut sums);
        let wanted: Vec<f64> =
            (0..width).map(|j| (0..rows).map(|i| f64::from(x[i * width + j])).sum()).collect();
        assert_near("column sums", &sums, &wanted);
    }
}

/// `erf` by its series, which converges everywhere.
fn erf(x: f64) -> f64 {
    let (mut term, mut total, mut n) = (x, x, 0.0);
    while f64::abs(term) > 1e-17 * f64::abs(total) {
        n += 1.0;
        term *= -x * x / n;
        total += term / (2.0 * n + 1.0);
    }
    total * 2.0 / std::f64::consts::PI.sqrt()
}

/// GELU and its slope.
fn gelu_exact(x: f64) -> [f64; 2] {
    let phi = 0.5 * (1.0 + erf(x / 2f64.sqrt()));
    [x * phi, phi + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()]
}

/// The same by way of tanh.
fn gelu_tanh(x: f64) -> [f64; 2] {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = (root * (x + 0.044_715 * x.powi(3))).tanh();
    let slope = root * (1.0 + 3.0 * 0.044_715 * x * x);
    [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope]
}

#[test]
fn point_wise_operations_are_right() {
    let cpu = cpu();
    let len = 70_001;
    let (a, b): (Vec<f32>, _) = (numbers(1, len).iter().map(|v| v * 4.0).collect(), numbers(2, len));
    let mut y = poison(len);
    cpu.relu(&a, &mut y);
    assert_near("relu", &y, &a.iter().map(|&v| f64::from(v).max(0.0)).collect::<Vec<_>>());
    let mut d = b.clone();
    cpu.relu_gradient(&y, &mut d);
    let wanted: Vec<f64> =
        a.iter().zip(&b).map(|(&a, &b)| if a > 0.0 { f64::from(b) } else { 0.0 }).collect();
    assert_near("gradient of relu", &d, &wanted);
    for (form, wanted) in [(Gelu::Exact, gelu_exact as fn(f64) -> [f64; 2]), (Gelu::Tanh, gelu_tanh)] {
        let [values, slopes] = [0, 1].map(|i| wide(&a).into_iter().map(move |x| wanted(x)[i]));
        y.fill(f32::NAN);
        cpu.gelu(form, &a, &mut y);
        assert_near("gelu", &y, &values.collect::<Vec<_>>());
        let mut d = b.clone();
        cpu.gelu_gradient(form, &a, &mut d);
        assert_near(
            "gradient of gelu",
            &d,
            &slopes.zip(&b).map(|(s, &b)| s * f64::from(b)).collect::<Vec<_>>(),
        );
    }
    y.fill(f32::NAN);
    cpu.add(&a, &b, &mut y);
    let both: Vec<f64> = wide(&a).iter().zip(wide(&b)).map(|(a, b)| a + b).collect();
    assert_near("add", &y, &both);
    let mut sum = a.clone();
    cpu.add_to(&b, &mut sum);
    assert_eq!(bits(&sum), bits(&y));
    cpu.fill(&mut y, 3.0);
    assert!(y.iter().all(|&v| v == 3.0));
    cpu.copy(&a, &mut y);
    assert_eq!(bits(&y), bits(&a));
}

#[test]
fn dropout_drops_by_the_number_of_each_element_and_keeps_the_mean() {
    let cpu = cpu();
    let key = dtrain_types::Key::new(
        dtrain_types::Seed(5),
        dtrain_types::Step(1),
        dtrain_types::MicroBatch(2),
        dtrain_types::Site(3),
    );
    for rate in [0.0, 0.1, 0.5, 0.9] {
        let x = numbers(1, 70_003);
        let mut y = poison(x.len());
        cpu.dropout(key, rate, &x, &mut y);
        let keep = 1.0 / (1.0 - f64::from(rate));
        let kept = |i: usize| key.unit_f32(i as u32) >= rate;
        let wanted: Vec<f64> =
            x.iter().enumerate().map(|(i, &v)| if kept(i) { f64::from(v) * keep } else { 0.0 }).collect();
        assert_near("dropout", &y, &wanted);
        for (i, &v) in y.iter().enumerate() {
            assert_eq!(v != 0.0, kept(i) && x[i] != 0.0, "element {i} at rate {rate}");
        }
    }
}

#[test]
fn layer_norm_and_its_gradients_are_right() {
    let cpu = cpu();
    for (rows, width) in [(1, 3), (130, 256), (70, 33), (5, 1000)] {
        let (x, gain, bias) = (numbers(1, rows * width), numbers(2, width), numbers(3, width));
        let dy = numbers(4, rows * width);
        let (mut y, mut dx) = (vec![0.0; rows * width], vec![0.0; rows * width]);
        let (mut dgain, mut dbias) = (vec![0.0; width], vec![0.0; width]);
        for row in 0..rows {
            let at = row * width..(row + 1) * width;
            let v = wide(&x[at.clone()]);
            let mean = v.iter().sum::<f64>() / width as f64;
            let variance = v.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
            let hat: Vec<f64> = v.iter().map(|v| (v - mean) / (variance + 1e-5).sqrt()).collect();
            let d: Vec<f64> = (0..width).map(|i| f64::from(dy[at.start + i]) * f64::from(gain[i])).collect();
            let along = d.iter().sum::<f64>() / width as f64;
            let across = d.iter().zip(&hat).map(|(d, h)| d * h).sum::<f64>() / width as f64;
            for i in 0..width {
                y[at.start + i] = hat[i] * f64::from(gain[i]) + f64::from(bias[i]);
                dx[at.start + i] = (d[i] - along - hat[i] * across) / (variance + 1e-5).sqrt();
                dgain[i] += f64::from(dy[at.start + i]) * hat[i];
                dbias[i] += f64::from(dy[at.start + i]);
            }
        }
        let norm = RowNorm::layer(Rows { rows, width }, 1e-5);
        let (mut out, mut saved) = (poison(rows * width), poison(rows * 2));
        cpu.layer_norm(norm, &x, &gain, Some(&bias), &mut out, &mut saved);
        assert_near("layer norm", &out, &y);
        let (mut out, mut out_gain, mut out_bias) = (poison(rows * width), poison(width), poison(width));
        let mut scratch = poison(cpu.layer_norm_scratch(norm.rows));
        let wants =
            |out: Option<&mut [f32]>, out_gain: &mut [f32], out_bias: &mut [f32], scratch: &mut [f32]| {
                cpu.layer_norm_gradient(
                    norm,
                    NormInputs { x: &x, gain: &gain, saved: &saved, dy: &dy },
                    NormGradients { dx: out, dgain: out_gain, dbias: Some(out_bias) },
                    scratch,
                );
            };
        wants(Some(&mut out), &mut out_gain, &mut out_bias, &mut scratch);
        assert_near("dx of layer norm", &out, &dx);
        assert_near("dgain", &out_gain, &dgain);
        assert_near("dbias", &out_bias, &dbias);
        let (first, mut scratch) = (bits(&out_gain), poison(scratch.len()));
        wants(None, &mut out_gain, &mut out_bias, &mut scratch);
        assert_eq!(bits(&out_gain), first, "gradients of parameters without dx");
    }
}

#[test]
fn batch_norm_and_its_gradients_are_right() {
    let cpu = cpu();
    for (images, channels, area, shift) in
        [(4, 3, 25, 0.0), (2, 17, 1, 0.0), (9, 5, 100, 1000.0), (1, 2, 37, -3.0)]
    {
        let shape = ChannelNorm { images, channels, area, epsilon: 1e-5 };
        let len = images * channels * area;
        let x: Vec<f32> = numbers(1, len).iter().map(|v| v + shift).collect();
        let (gain, bias, dy) = (numbers(2, channels), numbers(3, channels), numbers(4, len));
        let count = (images * area) as f64;
        let channel_of = |i: usize| i / area % channels;
        let total = |f: &dyn Fn(usize) -> f64| {
            let mut sums = vec![0.0; channels];
            (0..len).for_each(|i| sums[channel_of(i)] += f(i));
            sums
        };
        let mean: Vec<f64> = total(&|i| f64::from(x[i])).iter().map(|s| s / count).collect();
        let squares = total(&|i| (f64::from(x[i]) - mean[channel_of(i)]).powi(2));
        let factor: Vec<f64> = squares.iter().map(|s| 1.0 / (s / count + 1e-5).sqrt()).collect();
        let hat = |i: usize| (f64::from(x[i]) - mean[channel_of(i)]) * factor[channel_of(i)];
        let y: Vec<f64> = (0..len)
            .map(|i| hat(i) * f64::from(gain[channel_of(i)]) + f64::from(bias[channel_of(i)]))
            .collect();
        let (dbias, dgain) = (total(&|i| f64::from(dy[i])), total(&|i| f64::from(dy[i]) * hat(i)));
        let dx: Vec<f64> = (0..len)
            .map(|i| {
                let c = channel_of(i);
                let d = f64::from(dy[i]) - dbias[c] / count - hat(i) * dgain[c] / count;
                d * factor[c] * f64::from(gain[c])
            })
            .collect();
        let (mut out, mut saved, mut sums) = (poison(len), poison(2 * channels), poison(2 * channels));
        cpu.batch_norm(
            shape,
            &x,
            Affine { gain: &gain, bias: &bias },
            BatchNormOutputs { y: &mut out, saved: &mut saved, sums: &mut sums },
        );
        // With a mean a thousand deviations away, the inputs themselves carry only so many digits.
        let near = |what: &str, out: &[f32], wanted: &[f64]| {
            if shift < 100.0 {
                assert_near(what, out, wanted);
            } else {
                let scale = wanted.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                for (o, w) in out.iter().zip(wanted) {
                    assert!((f64::from(*o) - w).abs() <= 2e-4 * scale, "{what}: {o} for {w}");
                }
            }
        };
        near("batch norm", &out, &y);
        let means: Vec<f64> = mean.iter().map(|m| m * images as f64).collect();
        let variances: Vec<f64> = squares.iter().map(|s| s / (count - 1.0) * images as f64).collect();
        assert_near("means", &sums[..channels], &means);
        near("variances", &sums[channels..], &variances);
        let (mut d, mut d_gain, mut d_bias) = (poison(len), poison(channels), poison(channels));
        cpu.batch_norm_gradient(
            shape,
            NormInputs { x: &x, gain: &gain, saved: &saved, dy: &dy },
            NormGradients { dx: Some(&mut d), dgain: &mut d_gain, dbias: Some(&mut d_bias) },
        );
        near("dx of batch norm", &d, &dx);
        near("dgain of batch norm", &d_gain, &dgain);
        assert_near("dbias of batch norm", &d_bias, &dbias);
        let running: Vec<f32> =
            mean.iter().map(|&m| m as f32).chain(numbers(5, channels).iter().map(|v| v + 2.0)).collect();
        out.fill(f32::NAN);
        cpu.batch_norm_by(shape, &x, &gain, &bias, &running, &mut out);
        let by: Vec<f64> = (0..len)
            .map(|i| {
                let c = channel_of(i);
                let deviation = (f64::from(running[channels + c]) + f64::from(shape.epsilon)).sqrt();
                let hat = (f64::from(x[i]) - f64::from(running[c])) / deviation;
                hat * f64::from(gain[c]) + f64::from(bias[c])
            })
            .collect();
        near("batch norm by running statistics", &out, &by);
    }
}

#[test]
fn an_embedding_and_its_gradients_are_right() {
    let cpu = cpu();
    let (rows, width, entries, time) = (37, 20, 11, 5);
    let (table, places) = (numbers(1, entries * width), numbers(2, time * width));
    let (tokens, dy) = (ids(3, rows, entries as u32), numbers(4, rows * width));
    let shape = Rows { rows, width };
    for with_places in [false, true] {
        let (mut y, mut dtable, mut dplaces) =
            (vec![0.0; rows * width], vec![0.0; table.len()], vec![0.0; places.len()]);
        for i in 0..rows * width {
            let (row, column) = (i / width, i % width);
            let (entry, place) = (tokens[row] as usize * width + column, row % time * width + column);
            y[i] = f64::from(table[entry]) + if with_places { f64::from(places[place]) } else { 0.0 };
            dtable[entry] += f64::from(dy[i]);
            dplaces[place] += f64::from(dy[i]);
        }
        let mut out = poison(rows * width);
        cpu.embedding(shape, &tokens, &table, with_places.then_some((&places[..], time)), &mut out);
        assert_near("embedding", &out, &y);
        let (mut out, mut out_places) = (poison(table.len()), poison(places.len()));
        let given = with_places.then_some((&mut out_places[..], time));
        cpu.embedding_gradient(shape, &tokens, &dy, Write::Set, &mut out, given);
        assert_near("gradient of the table", &out, &dtable);
        cpu.embedding_gradient(shape, &tokens, &dy, Write::Add, &mut out, None);
        let twice: Vec<f64> = dtable.iter().map(|d| 2.0 * d).collect();
        assert_near("gradient of the table, added", &out, &twice);
        if with_places {
            assert_near("gradient of the places", &out_places, &dplaces);
        }
    }
}

/// Output and `dqkv` of attention in f64.
fn reference_attention(shape: &AttentionShape, qkv: &[f32], dy: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let AttentionShape { batch, time, heads, head, mask } = *shape;
    let scale = 1.0 / (head as f64).sqrt();
    let at = |b: usize, t: usize, part: usize, h: usize| (((b * time + t) * 3 + part) * heads + h) * head;
    let out_at = |b: usize, t: usize, h: usize| ((b * time + t) * heads + h) * head;
    let (mut y, mut d) = (vec![0.0; batch * time * heads * head], vec![0.0; qkv.len()]);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for t in 0..time {
            let seen = if mask == Mask::Causal { t + 1 } else { time };
            let q = &qkv[at(b, t, 0, h)..][..head];
            let p: Vec<f64> =
                (0..seen).map(|s| (scale * dot(q, &qkv[at(b, s, 1, h)..][..head])).exp()).collect();
            let total: f64 = p.iter().sum();
            let dy = &dy[out_at(b, t, h)..][..head];
            let dp: Vec<f64> = (0..seen).map(|s| dot(dy, &qkv[at(b, s, 2, h)..][..head])).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, d)| p / total * d).sum();
            for s in 0..seen {
                let ds = p[s] / total * (dp[s] - mean) * scale;
                for i in 0..head {
                    y[out_at(b, t, h) + i] += p[s] / total * f64::from(qkv[at(b, s, 2, h) + i]);
                    d[at(b, t, 0, h) + i] += ds * f64::from(qkv[at(b, s, 1, h) + i]);
                    d[at(b, s, 1, h) + i] += ds * f64::from(q[i]);
                    d[at(b, s, 2, h) + i] += p[s] / total * f64::from(dy[i]);
                }
            }
        }
    }
    (y, d)
}

#[test]
fn attention_and_its_gradient_are_right() {
    let cpu = cpu();
    let sizes = [(2, 128, 2, 32), (1, 1, 1, 1), (2, 37, 3, 5), (1, 70, 2, 48), (1, 600, 1, 16)];
    for ((batch, time, heads, head), mask) in
        sizes.into_iter().flat_map(|size| [(size, Mask::Causal), (size, Mask::None)])
    {
        let shape = AttentionShape { batch, time, heads, head, mask };
        let out = batch * time * heads * head;
        let qkv: Vec<f32> = numbers(1, 3 * out).iter().map(|v| v * 2.0).collect();
        let dy = numbers(2, out);
        let (y, d) = reference_attention(&shape, &qkv, &dy);
        let (mut out_y, mut saved) = (poison(out), poison(cpu.attention_saved(&shape)));
        let mut scratch = poison(cpu.attention_scratch(&shape));
        cpu.attention(&shape, &qkv, &mut out_y, &mut saved, &mut scratch);
        assert_near(&format!("y of {shape:?}"), &out_y, &y);
        let mut out_d = poison(3 * out);
        cpu.attention_gradient(
            &shape,
            Attended { qkv: &qkv, y: &out_y, saved: &saved, dy: &dy },
            &mut out_d,
            &mut scratch,
        );
        assert_near(&format!("dqkv of {shape:?}"), &out_d, &d);
    }
}

/// Asserts that an operation panics.
#[track_caller]
fn refuses(operation: impl FnOnce(&Cpu)) {
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| operation(&cpu())));
    assert!(run.is_err(), "a wrong length was accepted");
}

#[test]
fn slices_of_a_wrong_length_are_refused() {
    let product =
        |m, n, k| Product { m, n, k, a: Strides::rows(k), b: Strides::rows(n), c_row: n, write: Write::Set };
    let (x, ids) = (vec![1.0; 64], vec![0; 8]);
    let rows = Rows { rows: 8, width: 8 };
    refuses(|cpu| cpu.product(&product(8, 8, 8), &x[1..], &x, &mut [0.0; 64]));
    refuses(|cpu| cpu.product(&product(8, 8, 8), &x, &x[1..], &mut [0.0; 64]));
    refuses(|cpu| cpu.product(&product(8, 8, 8), &x, &x, &mut [0.0; 63]));
    refuses(|cpu| cpu.product(&Product { c_row: 7, ..product(8, 8, 8) }, &x, &x, &mut [0.0; 64]));
    refuses(|cpu| {
        cpu.linear(
            LinearShape::new(rows, 8),
            Operands { x: &x, w: &x, bias: Some(&x[..7]) },
            Activation::None,
            &mut [0.0; 64],
        )
    });
    refuses(|cpu| cpu.column_sums(rows, &x, &mut [0.0; 7]));
    refuses(|cpu| cpu.add(&x, &x[1..], &mut [0.0; 64]));
    refuses(|cpu| {
        let norm = RowNorm::layer(rows, 1e-5);
        cpu.layer_norm(norm, &x, &x[..8], Some(&x[..8]), &mut [0.0; 64], &mut [0.0; 15])
    });
    refuses(|cpu| cpu.swiglu(rows, &x, &mut [0.0; 64]));
    let speeds = RotarySpeeds::new(100.0, 4, RopeScaling::None);
    let shape = RotaryShape { batch: 2, time: 2, first: 0, heads: 2, kv_heads: 1, head: 4, speeds };
    refuses(|cpu| cpu.rotary(&shape, &x, &mut [0.0; 95]));
    refuses(|cpu| cpu.rotary(&RotaryShape { kv_heads: 3, ..shape }, &[1.0; 128], &mut [0.0; 96]));
    refuses(|cpu| cpu.rotary(&RotaryShape { head: 3, ..shape }, &x[..48], &mut [0.0; 72]));
    refuses(|cpu| cpu.embedding(rows, &ids, &x[..60], None, &mut [0.0; 64]));
    refuses(|cpu| cpu.embedding(rows, &[9; 8], &x, None, &mut [0.0; 64]));
    refuses(|cpu| {
        let options =
            CrossEntropy { label_smoothing: 0.0, class_weights: &[], ignore_index: None, scale: 1.0 };
        cpu.cross_entropy(rows, &options, Outputs::Kept(&x), &[8; 8]);
    });
    refuses(|cpu| {
        cpu.squared_error(rows, 1.0, Outputs::Replaced(&mut [0.0; 63]), &x);
    });
    let conv = Conv2dShape {
        images: 1,
        channels: 1,
        size: [8, 8],
        outputs: 1,
        kernel: [9, 9],
        stride: [1, 1],
        padding: [0, 0],
    };
    refuses(|cpu| {
        cpu.conv(
            &conv.into(),
            Operands { x: &x, w: &[0.0; 81], bias: None },
            Activation::None,
            &mut [],
            &mut [],
        )
    });
    let pool = Pool2d { planes: 1, size: [8, 8], window: [2, 2], stride: [2, 2], padding: [0; 2] };
    refuses(|cpu| cpu.max_pool(&pool, &x, &mut [0.0; 15], &mut [0.0; 16]));
}
