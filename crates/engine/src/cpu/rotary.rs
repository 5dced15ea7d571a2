//! Rotary positions of packed queries, keys and values, and keys and values for each head of their group.
//!
//! The angle of a plane is the product of its place and its speed in f64, whose cosine and sine are taken row by row: one for each plane of
//! a head, for all heads. Sums over the heads of a group run in their order.
//!
//! This file does not know attention.

use super::isa::on_every_isa;
use super::math::cos_sin;
use crate::device::{RotaryShape, RotarySpeeds};

/// How far each plane of a head turns a place.
#[inline(always)]
fn all(speeds: RotarySpeeds) -> [f64; RotaryShape::MOST_HEAD / 2] {
    std::array::from_fn(|plane| speeds.of(plane))
}

/// Cosines of a place, then sines.
#[inline(always)]
fn angles(place: usize, speeds: &[f64], table: &mut [f32]) {
    let (cosines, sines) = table.split_at_mut(table.len() / 2);
    for ((cosine, sine), speed) in cosines.iter_mut().zip(sines).zip(speeds) {
        [*cosine, *sine] = cos_sin(place as f64 * speed);
    }
}

/// A head, turned by the angles of a table.
#[inline(always)]
fn turn(table: &[f32], x: &[f32], y: &mut [f32]) {
    let half = table.len() / 2;
    let ((cosines, sines), (a, b), (first, second)) =
        (table.split_at(half), x.split_at(half), y.split_at_mut(half));
    for i in 0..half {
        first[i] = a[i].mul_add(cosines[i], -(b[i] * sines[i]));
        second[i] = b[i].mul_add(cosines[i], a[i] * sines[i]);
    }
}

/// A head turned back, where it lies.
#[inline(always)]
fn turn_back(table: &[f32], x: &mut [f32]) {
    let half = table.len() / 2;
    let ((cosines, sines), (a, b)) = (table.split_at(half), x.split_at_mut(half));
    for i in 0..half {
        let point = [a[i], b[i]];
        a[i] = point[0].mul_add(cosines[i], point[1] * sines[i]);
        b[i] = point[1].mul_add(cosines[i], -(point[0] * sines[i]));
    }
}

on_every_isa! {
    /// Some rows from `row` on; `table` has room for the angles of a place.
    pub(super) fn forward(shape: RotaryShape, row: usize, x: &[f32], y: &mut [f32], table: &mut [f32]) {
        let RotaryShape { heads, kv_heads, head, .. } = shape;
        let (wide, narrow, group) = (heads * head, kv_heads * head, heads / kv_heads);
        let speeds = all(shape.speeds);
        for (i, (x, y)) in x.chunks_exact(shape.packed()).zip(y.chunks_exact_mut(shape.spread())).enumerate() {
            angles(shape.first + (row + i) % shape.time, &speeds, table);
            let (queries, others) = y.split_at_mut(wide);
            let (keys, values) = others.split_at_mut(wide);
            for (x, y) in x.chunks_exact(head).zip(queries.chunks_exact_mut(head)) {
                turn(table, x, y);
            }
            let (x_keys, x_values) = x[wide..].split_at(narrow);
            for (x, y) in x_keys.chunks_exact(head).zip(keys.chunks_exact_mut(group * head)) {
                let (first, others) = y.split_at_mut(head);
                turn(table, x, first);
                others.chunks_exact_mut(head).for_each(|other| other.copy_from_slice(first));
            }
            for (x, y) in x_values.chunks_exact(head).zip(values.chunks_exact_mut(group * head)) {
                y.chunks_exact_mut(head).for_each(|y| y.copy_from_slice(x));
            }
        }
    }
}

on_every_isa! {
    /// The gradients of some rows from `row` on.
    pub(super) fn gradient(shape: RotaryShape, row: usize, dy: &[f32], dx: &mut [f32], table: &mut [f32]) {
        let RotaryShape { heads, kv_heads, head, .. } = shape;
        let (wide, narrow, group) = (heads * head, kv_heads * head, heads / kv_heads);
        let speeds = all(shape.speeds);
        for (i, (dy, dx)) in dy.chunks_exact(shape.spread()).zip(dx.chunks_exact_mut(shape.packed())).enumerate() {
            angles(shape.first + (row + i) % shape.time, &speeds, table);
            let (queries, others) = dx.split_at_mut(wide);
            queries.copy_from_slice(&dy[..wide]);
            let (keys, values) = others.split_at_mut(narrow);
            for (sums, dy) in [(&mut *keys, &dy[wide..2 * wide]), (values, &dy[2 * wide..])] {
                for (sum, dy) in sums.chunks_exact_mut(head).zip(dy.chunks_exact(group * head)) {
                    let (first, others) = dy.split_at(head);
                    sum.copy_from_slice(first);
                    for other in others.chunks_exact(head) {
                        sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
                    }
                }
            }
            for turned in queries.chunks_exact_mut(head).chain(keys.chunks_exact_mut(head)) {
                turn_back(table, turned);
            }
        }
    }
}
