//! The operations that Llama's family adds, against a plain float64 reference, outputs poisoned with NaN first.

mod kernels_support;

use dtrain_engine::device::*;
use kernels_support::*;

#[test]
fn rms_norm_and_its_gradients_are_right() {
    let cpu = cpu();
    for (rows, width) in [(1, 3), (130, 256), (70, 33), (5, 1000)] {
        let (x, gain) = (numbers(1, rows * width), numbers(2, width));
        let dy = numbers(4, rows * width);
        let (mut y, mut dx, mut dgain) = (Vec::new(), Vec::new(), vec![0.0; width]);
        for (x, dy) in x.chunks(width).zip(dy.chunks(width)) {
            let (x, dy, gain) = (wide(x), wide(dy), wide(&gain));
            let root = (x.iter().map(|v| v * v).sum::<f64>() / width as f64 + 1e-2).sqrt();
            let across = (0..width).map(|i| dy[i] * gain[i] * x[i] / root).sum::<f64>() / width as f64;
            for i in 0..width {
                y.push(x[i] / root * gain[i]);
                dx.push((dy[i] * gain[i] - x[i] / root * across) / root);
                dgain[i] += dy[i] * x[i] / root;
            }
        }
        let norm = RowNorm::rms(Rows { rows, width }, 1e-2);
        let (mut out, mut saved) = (poison(rows * width), poison(rows * 2));
        cpu.layer_norm(norm, &x, &gain, None, &mut out, &mut saved);
        assert_near("rms norm", &out, &y);
        let (mut out, mut out_gain) = (poison(rows * width), poison(width));
        let mut scratch = poison(cpu.layer_norm_scratch(norm.rows));
        let inputs = NormInputs { x: &x[..], gain: &gain, saved: &saved, dy: &dy };
        let gradients = NormGradients { dx: Some(&mut out[..]), dgain: &mut out_gain[..], dbias: None };
        cpu.layer_norm_gradient(norm, inputs, gradients, &mut scratch);
        assert_near("dx of rms norm", &out, &dx);
        assert_near("dgain of rms norm", &out_gain, &dgain);
    }
}

#[test]
fn a_gated_half_and_its_gradients_are_right() {
    let cpu = cpu();
    for (rows, width) in [(1, 1), (3, 17), (70, 400)] {
        let x: Vec<f32> = numbers(1, 2 * rows * width).iter().map(|x| x * 12.0).collect();
        let dy = numbers(2, rows * width);
        let (mut y, mut dx) = (Vec::new(), Vec::new());
        for (x, dy) in x.chunks(2 * width).zip(dy.chunks(width)) {
            let (x, dy) = (wide(x), wide(dy));
            let share = |i: usize| 1.0 / (1.0 + (-x[i]).exp());
            y.extend((0..width).map(|i| x[i] * share(i) * x[width + i]));
            dx.extend((0..width).map(|i| {
                let s = share(i);
                dy[i] * x[width + i] * s * (1.0 + x[i] * (1.0 - s))
            }));
            dx.extend((0..width).map(|i| dy[i] * x[i] * share(i)));
        }
        let (mut out, mut out_dx) = (poison(rows * width), poison(2 * rows * width));
        let shape = Rows { rows, width };
        cpu.swiglu(shape, &x, &mut out);
        assert_near("swiglu", &out, &y);
        cpu.swiglu_gradient(shape, &x, &dy, &mut out_dx);
        assert_near("dx of swiglu", &out_dx, &dx);
    }
}

#[test]
fn rotary_positions_and_their_gradients_are_right() {
    let cpu = cpu();
    let none = RopeScaling::None;
    let llama3 = RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, context: 8_192.0 };
    for (theta, scaling, first, [batch, time, heads, kv_heads, head]) in [
        (10_000.0, none, 0, [1, 1, 1, 1, 2]),
        (10_000.0, none, 0, [3, 50, 4, 4, 64]),
        (500_000.0, none, 8_000, [2, 7, 6, 2, 20]),
        (500_000.0, llama3, 8_000, [2, 7, 6, 2, 64]),
        (10_000.0, RopeScaling::Linear { factor: 4.0 }, 900, [2, 7, 6, 2, 64]),
        (1_000_000.0, none, 131_000, [1, 30, 8, 1, 512]),
    ] {
        let speeds = RotarySpeeds::new(theta, head, scaling);
        let exact = f64::powf(theta, -2.0 / head as f64);
        assert!((speeds.rate - exact).abs() <= 1e-15, "{theta} of {head}: {:e}, {exact:e}", speeds.rate);
        let shape = RotaryShape { batch, time, first, heads, kv_heads, head, speeds };
        // As transformers has it.
        let speed = |plane: usize| {
            let plain = theta.powf(-2.0 * plane as f64 / head as f64);
            match scaling {
                RopeScaling::None => plain,
                RopeScaling::Linear { factor } => plain / factor,
                RopeScaling::Llama3 { factor, low, high, context } => {
                    let wave = 2.0 * std::f64::consts::PI / plain;
                    let smooth = (context / wave - low) / (high - low);
                    match wave {
                        _ if wave < context / high => plain,
                        _ if wave > context / low => plain / factor,
                        _ => (1.0 - smooth) * plain / factor + smooth * plain,
                    }
                }
            }
        };
        let (packed, spread) = (shape.packed(), shape.spread());
        let (x, dy) = (numbers(1, shape.rows() * packed), numbers(2, shape.rows() * spread));
        let (mut y, mut dx) = (vec![0.0; shape.rows() * spread], vec![0.0; shape.rows() * packed]);
        for row in 0..shape.rows() {
            let place = (first + row % time) as f64;
            for (to, from, turns) in (0..heads)
                .map(|h| (h, h, true))
                .chain((0..heads).map(|h| (heads + h, heads + h * kv_heads / heads, true)))
                .chain((0..heads).map(|h| (2 * heads + h, heads + kv_heads + h * kv_heads / heads, false)))
            {
                let (to, from) = (row * spread + to * head, row * packed + from * head);
                for i in 0..head / 2 {
                    let angle = if turns { place * speed(i) } else { 0.0 };
                    let (sine, cosine) = angle.sin_cos();
                    let j = i + head / 2;
                    let [a, b] = [i, j].map(|i| f64::from(x[from + i]));
                    y[to + i] = a * cosine - b * sine;
                    y[to + j] = b * cosine + a * sine;
                    let [a, b] = [i, j].map(|i| f64::from(dy[to + i]));
                    dx[from + i] += a * cosine + b * sine;
                    dx[from + j] += b * cosine - a * sine;
                }
            }
        }
        let (mut out, mut out_dx) = (poison(y.len()), poison(dx.len()));
        cpu.rotary(&shape, &x, &mut out);
        assert_near("rotary", &out, &y);
        cpu.rotary_gradient(&shape, &dy, &mut out_dx);
        assert_near("dx of rotary", &out_dx, &dx);
    }
}
