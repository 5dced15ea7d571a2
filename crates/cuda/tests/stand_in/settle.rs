//! Checks of updates that a device settles by itself: the host's rule and its bits, written out here once more.

use super::{Buffer, Extent, StandIn, numbers};
use dtrain_cuda::operations::{self, FOUND, LOSS, Rule, Scalar, StepLosses};
use dtrain_engine::device::{AdamW, Along, Lion, Sgd};

/// Loss, weight, rows counted, rows right.
type Leaf = (f64, f64, u32, u32);

fn leaves(count: usize) -> Vec<Leaf> {
    let of = |site: u32| numbers(site, count);
    let (loss, weight) = (of(11), of(12));
    let rows = |at: usize| (at as u32 + 3, (at as u32).wrapping_mul(0x4000_0001));
    (0..count).map(|at| (loss[at].into(), f64::from(weight[at]) + 1.5, rows(at).0, rows(at).1)).collect()
}

/// The sum along the reduction tree: the left part has the greatest power of two that is less.
fn tree(leaves: &[f64]) -> f64 {
    match leaves {
        [one] => *one,
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            tree(left) + tree(right)
        }
    }
}

fn laid_out(leaves: &[Leaf], places: usize, first: usize) -> Vec<f64> {
    let mut memory = vec![f64::NAN; places * LOSS];
    for (at, (loss, weight, counted, right)) in leaves.iter().enumerate() {
        let place = &mut memory[(first + at) % places * LOSS..][..LOSS];
        let words = u64::from(*right) << 32 | u64::from(*counted);
        place.copy_from_slice(&[*loss, *weight, f64::from_bits(words)]);
    }
    memory
}

fn words(found: &[f64]) -> Vec<u32> {
    found.iter().flat_map(|pair| [pair.to_bits() as u32, (pair.to_bits() >> 32) as u32]).collect()
}

/// What kernels are given before the first update: the scale of the loss, and whether one has halted.
fn begun(scale: f32, halted: bool) -> Vec<f32> {
    vec![9.0, 9.0, 9.0, scale, 9.0, f32::from_bits(halted.into())]
}

pub fn weigh(q: &StandIn, extent: Extent) {
    for &(count, places, first) in
        extent.of(1, &[(1, 1, 0), (2, 3, 1), (7, 8, 6), (8, 8, 3), (64, 80, 50), (13, 13, 12)])
    {
        for broken in [None, Some(0), Some(count - 1)] {
            let mut step = leaves(count);
            if let Some(at) = broken {
                step[at].0 = f64::NEG_INFINITY;
            }
            let losses = Buffer::of(q, "losses", &laid_out(&step, places, first));
            let (found, given) =
                (Buffer::<f64>::empty(q, "found", FOUND), Buffer::of(q, "numbers", &begun(4.0, false)));
            let step_losses = StepLosses { places: losses.read(), first, count };
            operations::weigh(q, Ok(step_losses), found.write(), given.write());
            let column = |of: fn(&Leaf) -> f64| tree(&step.iter().map(of).collect::<Vec<_>>());
            let (loss, weight) = (column(|leaf| leaf.0), column(|leaf| leaf.1));
            let now = found.now();
            let what = format!("{count} losses from {first} of {places}, {broken:?}");
            if [now[0], now[1]].map(f64::to_bits) != [loss, weight].map(f64::to_bits) {
                q.wrong(format!("{what}: {now:?}, not {loss} and {weight}"));
            }
            let sum = |of: fn(&Leaf) -> u32| step.iter().map(|leaf| u64::from(of(leaf))).sum::<u64>();
            if [now[3], now[4]].map(f64::to_bits) != [sum(|leaf| leaf.2), sum(|leaf| leaf.3)] {
                q.wrong(format!("{what}: other rows"));
            }
            if words(&now)[10] != broken.map_or(0, |at| at as u32 + 1) {
                q.wrong(format!("{what}: broken is {}", words(&now)[10]));
            }
            if given.now()[4].to_bits() != ((1.0 / (weight * 4.0)) as f32).to_bits() {
                q.wrong(format!("{what}: the mean is {}", given.now()[4]));
            }
        }
    }
    for known in [0.0, 3.0, 1e-3] {
        let (found, given) =
            (Buffer::<f64>::empty(q, "found", FOUND), Buffer::of(q, "numbers", &begun(1.0, false)));
        operations::weigh(q, Err(known), found.write(), given.write());
        let mean = if known == 0.0 { 0.0 } else { (1.0 / known) as f32 };
        if found.now()[..2] != [0.0, known] || given.now()[4].to_bits() != mean.to_bits() {
            q.wrong(format!("a weight of {known}: {:?}, {:?}", found.now(), given.now()));
        }
    }
}

/// What was found before an update is settled.
fn found(weight: f64, squares: f64, broken: u32, stats_finite: bool) -> Vec<f64> {
    let pair = |low: u32, high: u32| f64::from_bits(u64::from(high) << 32 | u64::from(low));
    vec![0.5, weight, squares, 0.0, 0.0, pair(broken, 77), pair(stats_finite.into(), 77)]
}

pub fn settle(q: &StandIn, _: Extent) {
    for (weight, squares) in [(4.0, 9.0), (3.0, 0.3), (0.0, 0.0), (7.0, f64::NAN), (7.0, f64::INFINITY)] {
        for (broken, stats_finite, halted) in
            [(0, true, false), (3, true, false), (0, false, false), (0, true, true)]
        {
            for scaled in [
                None,
                Some([1.0, 0.0]),
                Some([8.0, 1.0]),
                Some([8.0, 0.0]),
                Some([18_446_744_073_709_551_616.0, 1.0]),
            ] {
                for clip_norm in [None, Some(1.0), Some(1e9)] {
                    let what = format!(
                        "{weight} {squares} {broken} {stats_finite} {halted} {scaled:?} {clip_norm:?}"
                    );
                    let factor = scaled.map_or(1.0, |[factor, _]| factor);
                    let found = Buffer::of(q, "found", &found(weight, squares, broken, stats_finite));
                    let given = Buffer::of(q, "numbers", &begun(factor, halted));
                    let state = Buffer::of(q, "scale", &scaled.unwrap_or_default());
                    let scale = scaled.map(|_| (state.write(), 2));
                    operations::settle(
                        q,
                        Rule { clip_norm, stats: 0.25, scale },
                        found.write(),
                        given.write(),
                    );
                    let norm = squares.sqrt();
                    let fine = norm.is_finite() && stats_finite;
                    let verdict = match fine {
                        _ if broken > 0 || halted => 2,
                        true => 0,
                        false if factor > 1.0 => 1,
                        false => 2,
                    };
                    let divisor = weight * f64::from(factor);
                    let clip = clip_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
                    let gradient = if divisor == 0.0 { 0.0 } else { (clip / divisor) as f32 };
                    let numbers = if verdict == 0 { [gradient, 0.25, 1.0] } else { [f32::NAN; 3] };
                    let next = match (scaled, verdict) {
                        (None, _) => None,
                        (Some([factor, _]), 1) => Some([factor / 2.0, 0.0]),
                        (Some([factor, 1.0]), 0) => {
                            Some([(factor * 2.0).min(18_446_744_073_709_551_616.0), 0.0])
                        }
                        (Some([factor, finite]), 0) => Some([factor, finite + 1.0]),
                        (unchanged, _) => unchanged,
                    };
                    let now = given.now();
                    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    if !now.iter().zip(numbers).all(|(now, wanted)| same(*now, wanted)) {
                        q.wrong(format!("{what}: {now:?}, not {numbers:?}"));
                    }
                    if words(&found.now())[11] != verdict
                        || words(&found.now())[13] != u32::from(!stats_finite)
                    {
                        q.wrong(format!("{what}: {:?}, not {verdict}", words(&found.now())));
                    }
                    if now[3] != next.map_or(1.0, |[factor, _]| factor)
                        || now[5].to_bits() != u32::from(verdict == 2)
                    {
                        q.wrong(format!("{what}: {now:?}, then {next:?}"));
                    }
                    if next.is_some_and(|next| state.now() != next) {
                        q.wrong(format!("{what}: the state says {:?}, not {next:?}", state.now()));
                    }
                }
            }
        }
    }
}

/// A number that is found is the one that is known; where none is found nothing is changed.
pub fn found_numbers(q: &StandIn, _: Extent) {
    let len = 300;
    for known in [0.25, f32::NAN] {
        let place = Buffer::of(q, "place", &[known]);
        let g = Buffer::of(q, "g", &numbers(1, len));
        type Update<'u> = &'u dyn Fn(Scalar<'_>, &[Buffer<'_, f32>; 3]);
        let adamw: Update<'_> = &|scale, [p, m, v]| {
            let o = AdamW {
                scale,
                step_size: 0.01,
                root_correction: 1.5,
                decay: 0.999,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
            };
            operations::adamw(q, &o, g.read(), p.write(), m.write(), v.write(), None);
        };
        let lion: Update<'_> = &|scale, [p, m, _]| {
            let o = Lion { scale, lr: 0.1, decay: 0.99, beta1: 0.9, beta2: 0.98 };
            operations::lion(q, &o, g.read(), p.write(), m.write(), None);
        };
        let sgd: Update<'_> = &|scale, [p, m, _]| {
            let o = Sgd { scale, lr: 0.1, weight_decay: 0.01, momentum: 0.9, nesterov: true, first: false };
            operations::sgd(q, &o, g.read(), p.write(), m.write(), None);
        };
        let plain_sgd: Update<'_> = &|scale, [p, m, _]| {
            let o = Sgd { scale, lr: 0.1, weight_decay: 0.01, momentum: 0.0, nesterov: false, first: false };
            operations::sgd(q, &o, g.read(), p.write(), m.write(), None);
        };
        let along: Update<'_> = &|scale, [p, _, _]| {
            let o = Along { scale, decay: 0.99, step: 0.3 };
            operations::along(q, &o, g.read(), p.write(), None);
        };
        let blend: Update<'_> =
            &|scale, [p, _, _]| operations::blend(q, 0.1, scale, g.read(), p.write(), None);
        for (name, update) in [
            ("adamw", adamw),
            ("lion", lion),
            ("sgd", sgd),
            ("plain sgd", plain_sgd),
            ("along", along),
            ("blend", blend),
        ] {
            let state = || {
                [2, 3, 4].map(|site| {
                    let values: Vec<f32> = numbers(site, len).iter().map(|value| value.abs()).collect();
                    Buffer::of(q, "state", &values)
                })
            };
            let (found, wanted) = (state(), state());
            update(Scalar::At(place.read()), &found);
            if !known.is_nan() {
                update(Scalar::Known(known), &wanted);
            }
            for (found, wanted) in found.iter().zip(&wanted) {
                found.has_bits(&format!("{name} by {known}"), &wanted.now());
            }
        }
    }
    let (place, g) = (Buffer::of(q, "place", &[0.3]), Buffer::of(q, "g", &numbers(1, 9000)));
    let squares = |scale: Scalar<'_>| {
        let sum = Buffer::<f64>::empty(q, "sum", 1);
        let scratch = Buffer::<f64>::empty(q, "scratch", operations::sum_of_squares_scratch(9000));
        operations::sum_of_squares(q, g.read(), scale, sum.write(), scratch.write());
        sum.now()[0].to_bits()
    };
    if squares(Scalar::At(place.read())) != squares(Scalar::Known(0.3)) {
        q.wrong("squares of a number that is found".into());
    }
}
