//! Losses, optimizers and norms of the CPU device against a plain float64 reference.

mod kernels_support;

use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::*;
use dtrain_engine::host_device::HostDevice;
use kernels_support::*;
use std::sync::atomic::{AtomicU64, Ordering};

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
        let best = (0..width).rev().max_by(|&a, &b| x[a].total_cmp(&x[b])).expect("a row has an element");
        sums.correct += u64::from(best == target as usize);
        let mass: f64 = goal.iter().sum();
        for c in 0..width {
            d[row * width + c] = x[c].exp() / total * mass - goal[c];
        }
    }
    (sums, d)
}

const SCALE: f32 = 65_536.0;

/// The very bits of a product with a power of two.
#[track_caller]
fn assert_scaled(scaled: &[f32], plain: &[f32]) {
    assert!(scaled.iter().zip(plain).all(|(scaled, d)| scaled.to_bits() == (d * SCALE).to_bits()));
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
                let o = CrossEntropy { label_smoothing, class_weights, ignore_index, scale: 1.0 };
                let (wanted, wanted_d) = reference_cross_entropy(&o, width, &x, &targets);
                let (mut d, shape) = (x.clone(), Rows { rows, width });
                let sums = cpu.cross_entropy(shape, &o, Outputs::Replaced(&mut d), &targets);
                assert_near("gradient of cross entropy", &d, &wanted_d);
                assert!(
                    (sums.loss - wanted.loss).abs() <= 1e-6 * wanted.loss.abs(),
                    "{sums:?} for {wanted:?}"
                );
                assert!((sums.weight - wanted.weight).abs() <= 1e-6 * wanted.weight);
                assert_eq!((sums.counted, sums.correct), (wanted.counted, wanted.correct));
                let kept = cpu.cross_entropy(shape, &o, Outputs::Kept(&x), &targets);
                assert_eq!(kept, sums, "without a gradient");
                let (o, mut scaled) = (CrossEntropy { scale: SCALE, ..o }, x.clone());
                assert_eq!(cpu.cross_entropy(shape, &o, Outputs::Replaced(&mut scaled), &targets), sums);
                assert_scaled(&scaled, &d);
            }
        }
    }
}

/// A mixed target costs what its two targets cost, each by its share.
#[test]
fn cross_entropy_of_mixed_targets_is_that_of_both_by_their_shares_on_every_device() {
    for (rows, width) in [(1, 2), (40, 10), (9, 257)] {
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v * 8.0).collect();
        let (own, other) = (ids(2, rows, width as u32), ids(5, rows, width as u32));
        let weights: Vec<f32> = numbers(3, width).iter().map(|v| v + 1.5).collect();
        for (label_smoothing, class_weights) in [(0.0, &[][..]), (0.1, &[]), (0.3, &weights)] {
            let o = CrossEntropy { label_smoothing, class_weights, ignore_index: None, scale: 1.0 };
            for share in [0.0, 0.25, 0.7, 1.0f32] {
                let share_of_other = f64::from(1.0 - share);
                let targets = || own.iter().zip(&other);
                let words: Vec<u32> = targets().flat_map(|(a, b)| [*a, *b, share.to_bits()]).collect();
                let [(first, d_first), (second, d_second)] =
                    [&own, &other].map(|targets| reference_cross_entropy(&o, width, &x, targets));
                let mix = |a: f64, b: f64| f64::from(share) * a + share_of_other * b;
                let wanted: Vec<f64> = d_first.iter().zip(&d_second).map(|(a, b)| mix(*a, *b)).collect();
                let mut told = Vec::new();
                for cpu in devices() {
                    let (mut d, shape) = (x.clone(), Rows { rows, width });
                    let sums = cpu.mixed_cross_entropy(shape, &o, Outputs::Replaced(&mut d), &words);
                    // What is spread does not depend on targets, so the whole is linear in them. Terms of a size of 2.5 may cancel.
                    let off = d.iter().zip(&wanted).map(|(d, wanted)| (f64::from(*d) - wanted).abs());
                    assert!(off.fold(0.0, f64::max) < 2e-6, "{label_smoothing} {share}");
                    let loss = mix(first.loss, second.loss);
                    assert!(
                        (sums.loss - loss).abs() <= 1e-6 * (loss.abs() + rows as f64),
                        "{sums:?} for {loss}"
                    );
                    assert!((sums.weight - mix(first.weight, second.weight)).abs() <= 1e-5 * sums.weight);
                    let correct = if share < 0.5 { second.correct } else { first.correct };
                    assert_eq!((sums.counted, sums.correct), (rows as u64, correct));
                    told.push((sums, d.iter().map(|d| d.to_bits()).collect::<Vec<_>>()));
                }
                assert!(told.iter().all(|other| *other == told[0]));
            }
        }
    }
}

/// Bits of sums and gradients of both losses, with all options, in one number.
fn bits_of_losses(cpu: &Cpu) -> String {
    let mut hash = blake3::Hasher::new();
    let mut note = |sums: LossSums, d: &[f32]| {
        let LossSums { loss, weight, counted, correct } = sums;
        for n in [loss.to_bits(), weight.to_bits(), counted, correct] {
            hash.update(&n.to_le_bytes());
        }
        for d in d {
            hash.update(&d.to_bits().to_le_bytes());
        }
    };
    for (rows, width) in [(1, 2), (20, 10), (5, 257), (3, 1000)] {
        let shape = Rows { rows, width };
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v * 8.0).collect();
        let (t, targets) = (numbers(4, rows * width), ids(2, rows, width as u32));
        let weights: Vec<f32> = numbers(3, width).iter().map(|v| v + 1.5).collect();
        for label_smoothing in [0.0, 0.2] {
            for class_weights in [&[][..], &weights] {
                for ignore_index in [None, Some(targets[0])] {
                    let o = CrossEntropy { label_smoothing, class_weights, ignore_index, scale: 1.0 };
                    let mut d = x.clone();
                    let sums = cpu.cross_entropy(shape, &o, Outputs::Replaced(&mut d), &targets);
                    note(sums, &d);
                }
            }
        }
        let mut d = x.clone();
        let sums = cpu.squared_error(shape, 1.0, Outputs::Replaced(&mut d), &t);
        note(sums, &d);
    }
    hash.finalize().to_string()
}

#[test]
fn losses_have_the_bits_that_they_had_with_the_gradient_in_memory_of_its_own() {
    let wanted = "4ca9226be85e8db84ac4fcbac4fa24c3ce2618437591fd56b034233e336a783e";
    for cpu in devices() {
        assert_eq!(bits_of_losses(&cpu), wanted, "{} with {} threads", cpu.isa(), cpu.threads());
    }
}

#[test]
fn a_loss_of_broken_outputs_is_not_a_number() {
    let options = CrossEntropy { label_smoothing: 0.0, class_weights: &[], ignore_index: None, scale: 1.0 };
    let bad = [f32::NAN, f32::INFINITY].into_iter();
    // A GPU's NaN, that with a sign, and one that signals.
    let bad = bad.chain([0x7fff_ffff, 0xffff_ffff, 0x7f80_0001].map(f32::from_bits));
    for (bad, cpu) in bad.flat_map(|bad| devices().into_iter().map(move |cpu| (bad, cpu))) {
        let mut x = numbers(1, 20);
        x[13] = bad;
        let shape = Rows { rows: 2, width: 10 };
        let kept = cpu.cross_entropy(shape, &options, Outputs::Kept(&x), &[1, 2]);
        let replaced = cpu.cross_entropy(shape, &options, Outputs::Replaced(&mut x), &[1, 2]);
        assert!(!kept.loss.is_finite() && !replaced.loss.is_finite(), "{kept:?}, {replaced:?}");
        assert!(x[10..].iter().all(|d| d.is_nan()), "a gradient with {:#010x} is {x:?}", bad.to_bits());
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
        let (mut d, shape) = (x.clone(), Rows { rows, width });
        let sums = cpu().squared_error(shape, 1.0, Outputs::Replaced(&mut d), &t);
        assert_eq!(cpu().squared_error(shape, 1.0, Outputs::Kept(&x), &t), sums, "without a gradient");
        let difference: Vec<f64> = wide(&x).iter().zip(wide(&t)).map(|(x, t)| x - t).collect();
        let loss = difference.iter().map(|d| d * d).sum::<f64>() / width as f64;
        assert!((sums.loss - loss).abs() <= 1e-6 * loss);
        assert_eq!((sums.weight, sums.counted, sums.correct), (rows as f64, rows as u64, 0));
        assert_near("gradient", &d, &difference.iter().map(|d| 2.0 * d / width as f64).collect::<Vec<_>>());
        let mut scaled = x.clone();
        assert_eq!(cpu().squared_error(shape, SCALE, Outputs::Replaced(&mut scaled), &t), sums);
        assert_scaled(&scaled, &d);
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
        // Whoever looks at some of the blocks has of each what goes into the sum.
        let sums: Vec<_> = g.chunks(NORM_BLOCK).map(|_| AtomicU64::new(0)).collect();
        for blocks in [5..sums.len(), 0..5] {
            let part = blocks.start * NORM_BLOCK..g.len().min(blocks.end * NORM_BLOCK);
            cpu.squares(&g[part], 0.3, &sums[blocks]);
        }
        for (sum, block) in sums.iter().zip(g.chunks(NORM_BLOCK)) {
            assert_eq!(sum.load(Ordering::Relaxed), norm_in_order(block, 0.3).to_bits(), "device {device}");
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
