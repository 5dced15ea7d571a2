//! Every operation of the CPU device against a plain float64 reference, outputs poisoned with NaN first.

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
                cpu.linear(Rows { rows, width }, inputs, &x, &w, given, activation, &mut y);
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
    let phi = |x: f64| 0.5 * (1.0 + erf(x / 2f64.sqrt()));
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    y.fill(f32::NAN);
    cpu.gelu(&a, &mut y);
    assert_near("gelu", &y, &wide(&a).iter().map(|&x| x * phi(x)).collect::<Vec<_>>());
    let mut d = b.clone();
    cpu.gelu_gradient(&a, &mut d);
    let slope = wide(&a).into_iter().map(|x| phi(x) + x * density(x));
    assert_near("gradient of gelu", &d, &slope.zip(&b).map(|(s, &b)| s * f64::from(b)).collect::<Vec<_>>());
    let u = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    let share = |x: f64| 0.5 * (1.0 + u(x).tanh());
    let slope = |x: f64| {
        let u_slope = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
        share(x) + 0.5 * x * (1.0 - u(x).tanh().powi(2)) * u_slope
    };
    y.fill(f32::NAN);
    cpu.gelu_tanh(&a, &mut y);
    assert_near("gelu by tanh", &y, &wide(&a).iter().map(|&x| x * share(x)).collect::<Vec<_>>());
    let mut d = b.clone();
    cpu.gelu_tanh_gradient(&a, &mut d);
    let slopes = wide(&a).into_iter().map(slope).zip(&b);
    assert_near("gradient of gelu by tanh", &d, &slopes.map(|(s, &b)| s * f64::from(b)).collect::<Vec<_>>());
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
        let shape = Rows { rows, width };
        let (mut out, mut saved) = (poison(rows * width), poison(rows * 2));
        cpu.layer_norm(shape, &x, &gain, &bias, &mut out, &mut saved);
        assert_near("layer norm", &out, &y);
        let (mut out, mut out_gain, mut out_bias) = (poison(rows * width), poison(width), poison(width));
        let mut scratch = poison(cpu.layer_norm_scratch(shape));
        let wants =
            |out: Option<&mut [f32]>, out_gain: &mut [f32], out_bias: &mut [f32], scratch: &mut [f32]| {
                cpu.layer_norm_gradient(shape, &x, &gain, &saved, &dy, out, out_gain, out_bias, scratch);
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
        cpu.batch_norm(shape, &x, &gain, &bias, &mut out, &mut saved, &mut sums);
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
        cpu.batch_norm_gradient(shape, &x, &gain, &saved, &dy, Some(&mut d), &mut d_gain, &mut d_bias);
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

/// Output and `dqkv` of causal attention in f64.
fn reference_attention(shape: &Attention, qkv: &[f32], dy: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let Attention { batch, time, heads, head } = *shape;
    let scale = 1.0 / (head as f64).sqrt();
    let at = |b: usize, t: usize, part: usize, h: usize| (((b * time + t) * 3 + part) * heads + h) * head;
    let out_at = |b: usize, t: usize, h: usize| ((b * time + t) * heads + h) * head;
    let (mut y, mut d) = (vec![0.0; batch * time * heads * head], vec![0.0; qkv.len()]);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for t in 0..time {
            let q = &qkv[at(b, t, 0, h)..][..head];
            let p: Vec<f64> =
                (0..=t).map(|s| (scale * dot(q, &qkv[at(b, s, 1, h)..][..head])).exp()).collect();
            let total: f64 = p.iter().sum();
            let dy = &dy[out_at(b, t, h)..][..head];
            let dp: Vec<f64> = (0..=t).map(|s| dot(dy, &qkv[at(b, s, 2, h)..][..head])).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, d)| p / total * d).sum();
            for s in 0..=t {
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
    for (batch, time, heads, head) in
        [(2, 128, 2, 32), (1, 1, 1, 1), (2, 37, 3, 5), (1, 70, 2, 48), (1, 600, 1, 16)]
    {
        let shape = Attention { batch, time, heads, head };
        let out = batch * time * heads * head;
        let qkv: Vec<f32> = numbers(1, 3 * out).iter().map(|v| v * 2.0).collect();
        let dy = numbers(2, out);
        let (y, d) = reference_attention(&shape, &qkv, &dy);
        let (mut out_y, mut saved) = (poison(out), poison(cpu.attention_saved(&shape)));
        let mut scratch = poison(cpu.attention_scratch(&shape));
        cpu.attention(&shape, &qkv, &mut out_y, &mut saved, &mut scratch);
        assert_near(&format!("y of {shape:?}"), &out_y, &y);
        let mut out_d = poison(3 * out);
        cpu.attention_gradient(&shape, &qkv, &out_y, &saved, &dy, &mut out_d, &mut scratch);
        assert_near(&format!("dqkv of {shape:?}"), &out_d, &d);
    }
}

/// Loss sums and gradient of cross entropy in f64, from the definition in PyTorch's documentation.
fn reference_cross_entropy(
    o: &CrossEntropy<'_>,
    width: usize,
    x: &[f32],
    targets: &[u32],
) -> (LossSums, Vec<f64>) {
    let (mut sums, mut d) = (LossSums::default(), vec![0.0; x.len()]);
    let weight = |c: usize| o.class_weights.get(c).map_or(1.0, |&w| f64::from(w));
    let smoothing = f64::from(o.label_smoothing);
    for (row, &target) in targets.iter().enumerate().filter(|(_, target)| Some(**target) != o.ignore_index) {
        let x = wide(&x[row * width..][..width]);
        let total: f64 = x.iter().map(|v| v.exp()).sum();
        let log_p = |c: usize| x[c] - total.ln();
        let goal: Vec<f64> = (0..width)
            .map(|c| {
                weight(c)
                    * (smoothing / width as f64 + if c == target as usize { 1.0 - smoothing } else { 0.0 })
            })
            .collect();
        sums.loss -= (0..width).map(|c| goal[c] * log_p(c)).sum::<f64>();
        sums.weight += weight(target as usize);
        sums.counted += 1;
        let best = (0..width).rev().max_by(|&a, &b| x[a].total_cmp(&x[b])).unwrap();
        sums.correct += u64::from(best == target as usize);
        let mass: f64 = goal.iter().sum();
        for c in 0..width {
            d[row * width + c] = x[c].exp() / total * mass - goal[c];
        }
    }
    (sums, d)
}

#[test]
fn cross_entropy_and_its_gradient_are_right_with_every_option() {
    let cpu = cpu();
    for (rows, width) in [(1, 2), (40, 10), (33, 257), (7, 16)] {
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v * 8.0).collect();
        let targets = ids(2, rows, width as u32);
        let weights: Vec<f32> = numbers(3, width).iter().map(|v| v + 1.5).collect();
        for (label_smoothing, class_weights) in [(0.0, &[][..]), (0.1, &[]), (0.0, &weights), (0.3, &weights)]
        {
            for ignore_index in [None, Some(targets[0])] {
                let o = CrossEntropy { label_smoothing, class_weights, ignore_index };
                let (wanted, wanted_d) = reference_cross_entropy(&o, width, &x, &targets);
                let mut d = poison(rows * width);
                let shape = Rows { rows, width };
                let sums = cpu.cross_entropy(shape, &o, &x, &targets, Some(&mut d));
                assert_near("gradient of cross entropy", &d, &wanted_d);
                assert!(
                    (sums.loss - wanted.loss).abs() <= 1e-6 * wanted.loss.abs(),
                    "{sums:?} for {wanted:?}"
                );
                assert!((sums.weight - wanted.weight).abs() <= 1e-6 * wanted.weight);
                assert_eq!((sums.counted, sums.correct), (wanted.counted, wanted.correct));
                assert_eq!(cpu.cross_entropy(shape, &o, &x, &targets, None), sums, "without a gradient");
            }
        }
    }
}

#[test]
fn a_loss_of_broken_outputs_is_not_a_number() {
    let options = CrossEntropy { label_smoothing: 0.0, class_weights: &[], ignore_index: None };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = numbers(1, 20);
        x[13] = bad;
        let sums = cpu().cross_entropy(Rows { rows: 2, width: 10 }, &options, &x, &[1, 2], None);
        assert!(!sums.loss.is_finite(), "{sums:?}");
    }
}

#[test]
fn the_first_of_the_greatest_is_found() {
    let x = [1.0, 3.0, 3.0, 2.0, -5.0, -7.0, -5.0, -9.0];
    let mut best = [9; 2];
    cpu().arg_max(Rows { rows: 2, width: 4 }, &x, &mut best);
    assert_eq!(best, [1, 0]);
}

#[test]
fn squared_error_and_its_gradient_are_right() {
    for (rows, width) in [(3, 1), (40, 17)] {
        let (x, t) = (numbers(1, rows * width), numbers(2, rows * width));
        let mut d = poison(rows * width);
        let sums = cpu().squared_error(Rows { rows, width }, &x, &t, Some(&mut d));
        let difference: Vec<f64> = wide(&x).iter().zip(wide(&t)).map(|(x, t)| x - t).collect();
        let loss = difference.iter().map(|d| d * d).sum::<f64>() / width as f64;
        assert!((sums.loss - loss).abs() <= 1e-6 * loss);
        assert_eq!((sums.weight, sums.counted, sums.correct), (rows as f64, rows as u64, 0));
        assert_near("gradient", &d, &difference.iter().map(|d| 2.0 * d / width as f64).collect::<Vec<_>>());
    }
}

#[test]
fn optimizer_updates_are_right() {
    let (cpu, len) = (cpu(), 40_003);
    let (g, p, m) = (numbers(1, len), numbers(2, len), numbers(3, len));
    let v: Vec<f32> = numbers(4, len).iter().map(|v| v.abs()).collect();
    let o = AdamW {
        scale: 0.25,
        step_size: 0.01,
        root_correction: 1.5,
        decay: 0.999,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
    };
    let (mut p2, mut m2, mut v2) = (p.clone(), m.clone(), v.clone());
    cpu.adamw(&o, &g, &mut p2, &mut m2, &mut v2);
    let wide_g: Vec<f64> = g.iter().map(|&g| f64::from(g) * 0.25).collect();
    let blend =
        |beta: f32, old: f32, new: f64| f64::from(beta) * f64::from(old) + (1.0 - f64::from(beta)) * new;
    let wanted_m: Vec<f64> = (0..len).map(|i| blend(o.beta1, m[i], wide_g[i])).collect();
    let wanted_v: Vec<f64> = (0..len).map(|i| blend(o.beta2, v[i], wide_g[i].powi(2))).collect();
    let wanted_p: Vec<f64> = (0..len)
        .map(|i| {
            f64::from(p[i]) * f64::from(o.decay) - 0.01 * wanted_m[i] / (wanted_v[i].sqrt() * 1.5 + 1e-8)
        })
        .collect();
    assert_near("first moment", &m2, &wanted_m);
    assert_near("second moment", &v2, &wanted_v);
    assert_near("parameters", &p2, &wanted_p);

    for (momentum, nesterov, first) in
        [(0.0, false, false), (0.9, false, true), (0.9, false, false), (0.9, true, false)]
    {
        let o = Sgd { scale: 0.5, lr: 0.1, weight_decay: 0.01, momentum, nesterov, first };
        let (mut p2, mut m2) = (p.clone(), if first { poison(len) } else { m.clone() });
        let wanted: Vec<f64> = (0..len)
            .map(|i| {
                let g = f64::from(g[i]) * 0.5 + 0.01 * f64::from(p[i]);
                let kept = if first { g } else { f64::from(momentum) * f64::from(m[i]) + g };
                f64::from(p[i]) - 0.1 * if nesterov { g + f64::from(momentum) * kept } else { kept }
            })
            .collect();
        cpu.sgd(&o, &g, &mut p2, if momentum == 0.0 { &mut [] } else { &mut m2 });
        assert_near(&format!("{o:?}"), &p2, &wanted);
    }
}

/// As it is defined: blocks of 4096, eight lanes each, all in order.
fn norm_in_order(g: &[f32], scale: f32) -> f64 {
    let of_block = |block: &[f32]| {
        let mut lanes = [0.0f64; 8];
        for (at, g) in block.iter().enumerate() {
            lanes[at % 8] += f64::from(g * scale) * f64::from(g * scale);
        }
        lanes.into_iter().sum::<f64>()
    };
    g.chunks(4096).map(of_block).sum()
}

#[test]
fn the_norm_is_added_up_in_one_order_on_any_number_of_threads() {
    let g = numbers(3, 1_100_000);
    for (device, cpu) in devices().into_iter().enumerate() {
        for len in [1, 4095, 4096, 4097, 4 * 4096, 30_000, 256 * 4096 + 5, g.len()] {
            let (found, wanted) = (cpu.sum_of_squares(&g[..len], 0.3), norm_in_order(&g[..len], 0.3));
            assert_eq!(found.to_bits(), wanted.to_bits(), "{len} elements on device {device}");
        }
    }
}

#[test]
fn the_norm_the_blend_and_the_check_are_right() {
    let cpu = cpu();
    for len in [0, 1, 4096, 4097, 30_000] {
        let g = numbers(1, len);
        let wanted: f64 = g.iter().map(|&g| f64::from(g * 0.3).powi(2)).sum();
        assert!((cpu.sum_of_squares(&g, 0.3) - wanted).abs() <= 1e-12 * wanted);
        assert!(cpu.all_finite(&g));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            if len > 0 {
                let mut g = g.clone();
                g[len / 2] = bad;
                assert!(!cpu.all_finite(&g) && !cpu.sum_of_squares(&g, 1.0).is_finite());
            }
        }
    }
    let (sums, old) = (numbers(1, 100), numbers(2, 100));
    let mut running = old.clone();
    cpu.blend(0.1, 0.25, &sums, &mut running);
    let wanted: Vec<f64> =
        wide(&old).iter().zip(wide(&sums)).map(|(old, sum)| 0.9 * old + 0.1 * sum * 0.25).collect();
    assert_near("running statistics", &running, &wanted);
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
    refuses(|cpu| cpu.linear(rows, 8, &x, &x, Some(&x[..7]), Activation::None, &mut [0.0; 64]));
    refuses(|cpu| cpu.column_sums(rows, &x, &mut [0.0; 7]));
    refuses(|cpu| cpu.add(&x, &x[1..], &mut [0.0; 64]));
    refuses(|cpu| cpu.layer_norm(rows, &x, &x[..8], &x[..8], &mut [0.0; 64], &mut [0.0; 15]));
    refuses(|cpu| cpu.embedding(rows, &ids, &x[..60], None, &mut [0.0; 64]));
    refuses(|cpu| cpu.embedding(rows, &[9; 8], &x, None, &mut [0.0; 64]));
    refuses(|cpu| {
        let options = CrossEntropy { label_smoothing: 0.0, class_weights: &[], ignore_index: None };
        cpu.cross_entropy(rows, &options, &x, &[8; 8], None);
    });
    let conv = Conv2d {
        images: 1,
        channels: 1,
        size: [8, 8],
        outputs: 1,
        kernel: [9, 9],
        stride: [1, 1],
        padding: [0, 0],
    };
    refuses(|cpu| cpu.conv(&conv.into(), &x, &[0.0; 81], None, Activation::None, &mut [], &mut []));
    let pool = Pool2d { planes: 1, size: [8, 8], window: [2, 2], stride: [2, 2] };
    refuses(|cpu| cpu.max_pool(&pool, &x, &mut [0.0; 15], &mut [0.0; 16]));
}
