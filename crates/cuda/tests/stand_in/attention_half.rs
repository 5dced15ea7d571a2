//! Checks of attention on tensor cores, against the same in f64 on the same halves.
//!
//! One rounding to bf16 is off by at most 2^-8 of a number, to f16 by 2^-11; of many numbers, in the norm, by less than half
//! of that. An output has two in a row: of the probabilities and of itself. A gradient has, beside its own, those of the
//! probabilities' gradients, and those of `y` in the sums of `y dy`.

use super::halves::{as_f64, values};
use super::memory::Wide;
use super::{Buffer, Extent, Kind, StandIn, halves, nearest};
use dtrain_cuda::operations;
use dtrain_engine::device::{Attended, AttentionShape, Mask};

/// In the most that one rounding is off by.
const OUTPUT: f64 = 1.0;
const GRADIENT: f64 = 2.0;
/// Of the logarithm of a sum: the scores are f32, and so is the sum.
const LOGS: f64 = 1e-5;

/// Shapes of heads of up to `width` elements: one query, tiles that are full, short and missing, one head and several.
fn shapes(width: usize, extent: Extent) -> Vec<AttentionShape> {
    let all: &[(usize, usize, usize, usize)] = match width {
        32 => &[(1, 1, 1, 8), (1, 64, 1, 32), (2, 131, 1, 24), (1, 150, 2, 32), (1, 71, 1, 32)],
        64 => &[(1, 1, 1, 64), (1, 129, 1, 64), (2, 65, 2, 40), (1, 70, 1, 64)],
        _ => &[(1, 1, 2, 128), (2, 37, 1, 72), (1, 97, 1, 128), (1, 67, 1, 128)],
    };
    let shape = |&(batch, time, heads, head): &_| {
        [Mask::Causal, Mask::None].map(|mask| AttentionShape { batch, time, heads, head, mask })
    };
    extent.of(1, all).iter().flat_map(shape).collect()
}

/// Attention of one head of one sequence in f64: rows of `head`.
struct Reference {
    y: Vec<f64>,
    logs: Vec<f64>,
    gradients: [Vec<f64>; 3],
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], weight: f64, row: &[f64]) {
    to.iter_mut().zip(row).for_each(|(to, v)| *to += weight * v);
}

fn reference(shape: &AttentionShape, [q, k, v]: [&[f64]; 3], dy: &[f64]) -> Reference {
    let AttentionShape { time, head, mask, .. } = *shape;
    let scale = 1.0 / (head as f64).sqrt();
    let row = |x: &[f64], t: usize| x[t * head..][..head].to_vec();
    let mut y = vec![0.0; time * head];
    let mut gradients = [(); 3].map(|()| vec![0.0; time * head]);
    let mut logs = vec![0.0; time];
    for t in 0..time {
        let seen = if mask == Mask::Causal { t + 1 } else { time };
        let scores: Vec<f64> = (0..seen).map(|s| dot(&row(q, t), &row(k, s)) * scale).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs[t] = top + scores.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
        let weights: Vec<f64> = scores.iter().map(|s| (s - logs[t]).exp()).collect();
        let mine = &mut y[t * head..][..head];
        weights.iter().enumerate().for_each(|(s, p)| add(mine, *p, &row(v, s)));
        let delta = dot(mine, &row(dy, t));
        for (s, p) in weights.iter().enumerate() {
            let change = p * (dot(&row(dy, t), &row(v, s)) - delta) * scale;
            add(&mut gradients[0][t * head..][..head], change, &row(k, s));
            add(&mut gradients[1][s * head..][..head], change, &row(q, t));
            add(&mut gradients[2][s * head..][..head], *p, &row(dy, t));
        }
    }
    Reference { y, logs, gradients }
}

/// The same of all heads and sequences, packed as the kernels have it: `y`, `logs`, `dqkv`.
pub fn whole<T: Wide>(shape: &AttentionShape, qkv: &[T], dy: &[T]) -> [Vec<f64>; 3] {
    let AttentionShape { batch, time, heads, head, .. } = *shape;
    let out = batch * time * heads * head;
    let [mut y, mut logs, mut dqkv] = [vec![0.0; out], Vec::new(), vec![0.0; 3 * out]];
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let packed = |t: usize, which: usize| (((b * time + t) * 3 + which) * heads + h) * head;
        let plain = |t: usize| ((b * time + t) * heads + h) * head;
        let rows = |x: &[T], at: &dyn Fn(usize) -> usize| -> Vec<f64> {
            (0..time).flat_map(|t| x[at(t)..][..head].iter().map(|v| v.wide()).collect::<Vec<_>>()).collect()
        };
        let [q, k, v] = [0, 1, 2].map(|which| rows(qkv, &|t| packed(t, which)));
        let one = reference(shape, [&q, &k, &v], &rows(dy, &plain));
        logs.extend(one.logs);
        for t in 0..time {
            y[plain(t)..][..head].copy_from_slice(&one.y[t * head..][..head]);
            for which in 0..3 {
                dqkv[packed(t, which)..][..head].copy_from_slice(&one.gradients[which][t * head..][..head]);
            }
        }
    }
    [y, logs, dqkv]
}

fn elements(shape: &AttentionShape) -> usize {
    shape.batch * shape.time * shape.heads * shape.head
}

fn forward<K: Kind>(q: &StandIn, extent: Extent, width: usize) {
    for shape in shapes(width, extent) {
        let out = elements(&shape);
        let mut qkv = halves::<K>(1, 3 * out, 2.0);
        // The last key is so long that a query before it, were it to see it, would lose all the others.
        let wide = shape.heads * shape.head;
        for sequence in qkv.chunks_mut(shape.time * 3 * wide).filter(|_| shape.time > 1) {
            let at = (shape.time - 1) * 3 * wide + wide;
            sequence[at..at + wide]
                .iter_mut()
                .for_each(|v| *v = nearest(K::HALF, as_f64(K::HALF, *v) * 400.0));
        }
        let [y2, logs2, _] = whole(&shape, &values::<K>(&qkv), &vec![0.0; out]);
        let (qkv, y) = (Buffer::of(q, "qkv", &qkv), Buffer::empty(q, "y", out));
        let saved = Buffer::empty(q, "saved", operations::attention_saved(&shape));
        operations::attention_half(q, K::HALF, &shape, qkv.read(), y.write(), saved.write());
        y.is_within_half::<K>(&format!("y of {shape:?}"), &y2, OUTPUT * K::ROUNDING);
        saved.is_within(&format!("saved of {shape:?}"), &logs2, LOGS);
    }
}

fn gradient<K: Kind>(q: &StandIn, extent: Extent, width: usize) {
    for shape in shapes(width, extent) {
        let out = elements(&shape);
        let (qkv, dy) = (halves::<K>(1, 3 * out, 2.0), halves::<K>(2, out, 1.0));
        let [y, logs, wanted] = whole(&shape, &values::<K>(&qkv), &values::<K>(&dy));
        let y: Vec<u16> = y.into_iter().map(|v| nearest(K::HALF, v)).collect();
        let logs: Vec<f32> = logs.into_iter().map(|v| v as f32).collect();
        let [qkv, y, dy] = [("qkv", &qkv), ("y", &y), ("dy", &dy)].map(|(name, x)| Buffer::of(q, name, x));
        let (saved, d) = (Buffer::of(q, "saved", &logs), Buffer::empty(q, "dqkv", 3 * out));
        let scratch = Buffer::<f32>::empty(q, "scratch", operations::attention_scratch(&shape));
        operations::attention_half_gradient(
            q,
            K::HALF,
            &shape,
            Attended { qkv: qkv.read(), y: y.read(), saved: saved.read(), dy: dy.read() },
            d.write(),
            scratch.write(),
        );
        // Each of the three is judged alone: they may differ in size.
        let wide = shape.heads * shape.head;
        for (which, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
            let of = |i: &usize| i / wide % 3 == which;
            let now = values::<K>(&d.now());
            let mine = (0..3 * out).filter(of).map(|i| now[i]);
            let wanted: Vec<f64> = (0..3 * out).filter(of).map(|i| wanted[i]).collect();
            match super::memory::distance(mine, &wanted) {
                Some(off) if off <= GRADIENT * K::ROUNDING || wanted.iter().all(|v| v.abs() < 1e-12) => {}
                off => q.wrong(format!("{name} of {shape:?} is off by {off:?}")),
            }
        }
    }
}

pub fn forward_32<K: Kind>(q: &StandIn, extent: Extent) {
    forward::<K>(q, extent, 32);
}

pub fn gradient_32<K: Kind>(q: &StandIn, extent: Extent) {
    gradient::<K>(q, extent, 32);
}

pub fn forward_64<K: Kind>(q: &StandIn, extent: Extent) {
    forward::<K>(q, extent, 64);
}

pub fn gradient_64<K: Kind>(q: &StandIn, extent: Extent) {
    gradient::<K>(q, extent, 64);
}

pub fn forward_128<K: Kind>(q: &StandIn, extent: Extent) {
    forward::<K>(q, extent, 128);
}

pub fn gradient_128<K: Kind>(q: &StandIn, extent: Extent) {
    gradient::<K>(q, extent, 128);
}
