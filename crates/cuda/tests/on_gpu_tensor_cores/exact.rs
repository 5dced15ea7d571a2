//! Operands whose results no order of sums can change, so that every device has to give the same bits.
//!
//! Products of small whole numbers: each partial sum is a whole number below 2^24. Attention in which each query sees one key
//! alone: its output is that key's value, and the gradient of a value is the sum of small whole numbers.

use crate::stand_in::product_half::into_floats;
use crate::stand_in::{Buffer, Extent, Kind, StandIn, ids, nearest};
use dtrain_cuda::operations::{self, HalfResult};
use dtrain_engine::device::{Attended, AttentionShape, Mask, Product, Strides, Write};

/// `len` whole numbers from -8 to 8.
fn whole_numbers(site: u32, len: usize) -> Vec<i32> {
    ids(site, len, 17).into_iter().map(|v| v as i32 - 8).collect()
}

fn as_halves<K: Kind>(x: &[i32]) -> Vec<u16> {
    x.iter().map(|v| nearest(K::HALF, f64::from(*v))).collect()
}

/// Rows, columns, K. The last is all that the fake GPU does.
const SHAPES: [[usize; 3]; 4] = [[128, 1024, 1024], [1410, 1410, 64], [257, 130, 333], [70, 66, 50]];

fn product<K: Kind>(q: &StandIn, extent: Extent, [a_turned, b_turned]: [bool; 2]) {
    for &[m, n, k] in extent.of(1, &SHAPES) {
        let a = if a_turned { Strides::transposed(m) } else { Strides::rows(k) };
        let b = if b_turned { Strides::transposed(k) } else { Strides::rows(n) };
        let (x, y) = (whole_numbers(1, m * k), whole_numbers(2, k * n));
        let wanted: Vec<f32> = (0..m * n)
            .map(|at| {
                let term = |l| x[at / n * a.row + l * a.col] * y[l * b.row + at % n * b.col];
                (0..k).map(term).sum::<i32>() as f32
            })
            .collect();
        let (x, y) = (Buffer::of(q, "a", &as_halves::<K>(&x)), Buffer::of(q, "b", &as_halves::<K>(&y)));
        let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
        let c = Buffer::<f32>::empty(q, "c", m * n);
        into_floats::<K>(q, &shape, [&x, &y], &c);
        c.has_bits(&format!("whole numbers, {shape:?}"), &wanted);
        let rounded: Vec<u16> = wanted.iter().map(|v| nearest(K::HALF, f64::from(*v))).collect();
        let c = Buffer::<u16>::empty(q, "c", m * n);
        let none = Buffer::<f32>::empty(q, "scratch", 0);
        let to = HalfResult::Half(c.write());
        operations::product_half(q, K::HALF, &shape, [x.read(), y.read()], to, none.write());
        c.has_bits(&format!("whole numbers to halves, {shape:?}"), &rounded);
    }
}

pub fn nt<K: Kind>(q: &StandIn, extent: Extent) {
    product::<K>(q, extent, [false, true]);
}

pub fn nn<K: Kind>(q: &StandIn, extent: Extent) {
    product::<K>(q, extent, [false, false]);
}

pub fn tn<K: Kind>(q: &StandIn, extent: Extent) {
    product::<K>(q, extent, [true, false]);
}

/// The key that a query sees: near ones and far ones, in no order.
fn seen(t: usize) -> usize {
    t * 37 % 257 % (t + 1)
}

/// The code of a key: the bits of its number and their opposites, as -1 and 1. Of two keys it differs in two places or more.
fn code(s: usize, i: usize) -> i32 {
    let bit = (s >> (i / 2 % 8) & 1) as i32 * 2 - 1;
    if i.is_multiple_of(2) { bit } else { -bit }
}

/// Queries are longer than keys by this: the score of a key that is not meant is less by more than 400, whose power is 0. That of
/// the key that is meant is a power of two, so that no factor rounds it: see `query_and_key`.
const LENGTH: i32 = 2048;

/// Element `i` of a head: of a query that sees key `s`, and of key `t`. Behind the greatest power of two of a head queries are all
/// alike, and keys so that they add nothing.
fn query_and_key(head: usize, i: usize, s: usize, t: usize) -> [i32; 2] {
    match i < 1 << head.ilog2() {
        true => [LENGTH * code(s, i), code(t, i)],
        false => [LENGTH, if i.is_multiple_of(2) { 1 } else { -1 }],
    }
}

/// Batch, time, heads, head. The last is all that the fake GPU does.
const HEADS: [[usize; 4]; 6] =
    [[2, 256, 8, 32], [3, 130, 2, 24], [2, 256, 12, 64], [1, 129, 3, 40], [2, 200, 4, 128], [1, 70, 2, 32]];

pub fn attention<K: Kind>(q: &StandIn, extent: Extent) {
    for &[batch, time, heads, head] in extent.of(1, &HEADS) {
        let shape = AttentionShape { batch, time, heads, head, mask: Mask::Causal };
        let (wide, out) = (heads * head, batch * time * heads * head);
        let mut qkv = whole_numbers(1, 3 * out);
        for (row, packed) in qkv.chunks_mut(3 * wide).enumerate() {
            let t = row % time;
            for i in 0..wide {
                [packed[i], packed[wide + i]] = query_and_key(head, i % head, seen(t), t);
            }
        }
        let dy = whole_numbers(2, out);
        let value = |row: usize, i: usize| qkv[(row * 3 + 2) * wide + i];
        let (mut y, mut dv) = (vec![0; out], vec![0; out]);
        for row in 0..batch * time {
            let from = row - row % time + seen(row % time);
            for i in 0..wide {
                y[row * wide + i] = value(from, i);
                dv[from * wide + i] += dy[row * wide + i];
            }
        }
        let (qkv_, dy) =
            (Buffer::of(q, "qkv", &as_halves::<K>(&qkv)), Buffer::of(q, "dy", &as_halves::<K>(&dy)));
        let y_ = Buffer::<u16>::empty(q, "y", out);
        let saved = Buffer::<f32>::empty(q, "saved", operations::attention_saved(&shape));
        operations::attention_half(q, K::HALF, &shape, qkv_.read(), y_.write(), saved.write());
        y_.has_bits(&format!("one key a query, {shape:?}"), &as_halves::<K>(&y));
        let d = Buffer::<u16>::empty(q, "dqkv", 3 * out);
        let scratch = Buffer::<f32>::empty(q, "scratch", operations::attention_scratch(&shape));
        let (y_, saved) = (y_.read(), saved.read());
        operations::attention_half_gradient(
            q,
            K::HALF,
            &shape,
            Attended { qkv: qkv_.read(), y: y_, saved, dy: dy.read() },
            d.write(),
            scratch.write(),
        );
        // Gradients of queries and keys are 0, of either sign; those of values are the sums.
        let (now, dv) = (d.now(), as_halves::<K>(&dv));
        for (at, found) in now.into_iter().enumerate() {
            let (row, which, i) = (at / wide / 3, at / wide % 3, at % wide);
            let right = if which == 2 { found == dv[row * wide + i] } else { found & 0x7fff == 0 };
            if !right {
                let name = ["dq", "dk", "dv"][which];
                return q
                    .wrong(format!("one key a query, {shape:?}: {name} of row {row} [{i}] is {found:#06x}"));
            }
        }
    }
}
