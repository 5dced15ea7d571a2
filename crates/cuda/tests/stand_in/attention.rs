//! Checks of attention.

use super::{Buffer, Extent, NANS, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Attended, AttentionShape, Device, Mask};

/// Shapes of heads of up to `width` elements. For narrow ones a sequence of more than one block of queries.
fn shapes(width: usize, extent: Extent) -> Vec<AttentionShape> {
    let all: &[(usize, usize, usize, usize)] = match width {
        32 => &[(1, 1, 1, 1), (2, 37, 3, 5), (1, 150, 2, 32), (1, 21, 1, 20)],
        64 => &[(1, 70, 2, 48), (2, 65, 1, 64), (1, 19, 1, 33)],
        128 => &[(1, 33, 2, 100), (1, 40, 1, 128), (1, 18, 1, 65)],
        _ => &[(1, 17, 2, 129), (1, 35, 1, 256), (1, 17, 1, 200)],
    };
    let shape = |&(batch, time, heads, head): &_| {
        [Mask::Causal, Mask::None].map(|mask| AttentionShape { batch, time, heads, head, mask })
    };
    extent.of(1, all).iter().flat_map(shape).collect()
}

fn operands(shape: &AttentionShape) -> (Vec<f32>, Vec<f32>, usize) {
    let out = shape.batch * shape.time * shape.heads * shape.head;
    (numbers(1, 3 * out).iter().map(|v| v * 2.0).collect(), numbers(2, out), out)
}

fn forward(q: &StandIn, extent: Extent, width: usize) {
    for shape in shapes(width, extent) {
        let (mut qkv, _, out) = operands(&shape);
        // The last key is so long that a query before it, were it to see it, would lose all the others.
        let width = shape.heads * shape.head;
        for sequence in qkv.chunks_mut(shape.time * 3 * width).filter(|_| shape.time > 1) {
            let at = (shape.time - 1) * 3 * width + width;
            sequence[at..at + width].iter_mut().for_each(|v| *v *= 400.0);
        }
        let saved_len = operations::attention_saved(&shape);
        let (qkv_, y, saved) =
            (Buffer::of(q, "qkv", &qkv), Buffer::empty(q, "y", out), Buffer::empty(q, "saved", saved_len));
        operations::attention(q, &shape, qkv_.read(), y.write(), saved.write());
        let (mut y2, mut saved2) = (vec![0.0; out], vec![0.0; saved_len]);
        cpu().attention(&shape, &qkv, &mut y2, &mut saved2, &mut []);
        y.is_near(&format!("y of {shape:?}"), &y2);
        saved.is_near(&format!("saved of {shape:?}"), &saved2);
    }
}

fn gradient(q: &StandIn, extent: Extent, width: usize) {
    for shape in shapes(width, extent) {
        let (qkv, dy, out) = operands(&shape);
        let (mut y, mut saved) = (vec![0.0; out], vec![0.0; cpu().attention_saved(&shape)]);
        cpu().attention(&shape, &qkv, &mut y, &mut saved, &mut []);
        let mut wanted = vec![0.0; 3 * out];
        cpu().attention_gradient(
            &shape,
            Attended { qkv: &qkv, y: &y, saved: &saved, dy: &dy },
            &mut wanted,
            &mut [],
        );
        let [qkv_, y_, saved_, dy_] = [("qkv", &qkv), ("y", &y), ("saved", &saved), ("dy", &dy)]
            .map(|(name, x)| Buffer::of(q, name, x));
        let d = Buffer::empty(q, "dqkv", 3 * out);
        let scratch = Buffer::empty(q, "scratch", operations::attention_scratch(&shape));
        operations::attention_gradient(
            q,
            &shape,
            Attended { qkv: qkv_.read(), y: y_.read(), saved: saved_.read(), dy: dy_.read() },
            d.write(),
            scratch.write(),
        );
        d.is_near(&format!("dqkv of {shape:?}"), &wanted);
    }
}

/// A broken key has to be seen by all who look at it.
pub fn broken_key(q: &StandIn, _: Extent) {
    const BROKEN: usize = 5;
    let shape = AttentionShape { batch: 1, time: 21, heads: 1, head: 20, mask: Mask::Causal };
    for bad in NANS {
        let (mut qkv, _, out) = operands(&shape);
        qkv[(3 * BROKEN + 1) * shape.head] = bad;
        let (qkv_, y) = (Buffer::of(q, "qkv", &qkv), Buffer::empty(q, "y", out));
        let saved = Buffer::empty(q, "saved", operations::attention_saved(&shape));
        operations::attention(q, &shape, qkv_.read(), y.write(), saved.write());
        let (y, saved) = (y.now(), saved.now());
        for (i, (row, saved)) in y.chunks(shape.head).zip(saved).enumerate() {
            let is_broken = !saved.is_finite() && row.iter().all(|v| v.is_nan());
            let is_whole = saved.is_finite() && row.iter().all(|v| v.is_finite());
            if if i < BROKEN { !is_whole } else { !is_broken } {
                q.wrong(format!("with a key of {:#x} row {i} is {row:?}, saved {saved}", bad.to_bits()));
            }
        }
    }
}

pub fn forward_32(q: &StandIn, extent: Extent) {
    forward(q, extent, 32);
}

pub fn gradient_32(q: &StandIn, extent: Extent) {
    gradient(q, extent, 32);
}

pub fn forward_64(q: &StandIn, extent: Extent) {
    forward(q, extent, 64);
}

pub fn gradient_64(q: &StandIn, extent: Extent) {
    gradient(q, extent, 64);
}

pub fn forward_128(q: &StandIn, extent: Extent) {
    forward(q, extent, 128);
}

pub fn gradient_128(q: &StandIn, extent: Extent) {
    gradient(q, extent, 128);
}

pub fn forward_256(q: &StandIn, extent: Extent) {
    forward(q, extent, 256);
}

pub fn gradient_256(q: &StandIn, extent: Extent) {
    gradient(q, extent, 256);
}
