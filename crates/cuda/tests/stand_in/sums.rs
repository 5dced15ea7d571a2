//! Checks of sums over columns and lists.

use super::{Buffer, Extent, StandIn, cpu, numbers, orders};
use dtrain_cuda::operations;
use dtrain_engine::device::{Device, Rows};

pub fn column_sums(q: &StandIn, extent: Extent) {
    let shapes = [(0, 5), (1, 1), (3, 64), (1025, 33), (700, 10), (255, 31), (257, 65), (9, 520), (600, 7)];
    for &(rows, width) in extent.of(1, &shapes) {
        sums_of_columns(q, Rows { rows, width });
    }
}

/// So many runs of rows that each sum has several lanes.
pub fn column_sums_of_many_rows(q: &StandIn, _: Extent) {
    sums_of_columns(q, Rows { rows: 8450, width: 35 });
}

fn sums_of_columns(q: &StandIn, shape: Rows) {
    let (x, width) = (numbers(1, shape.rows * shape.width), shape.width);
    let (x_, sums) = (Buffer::of(q, "x", &x), Buffer::empty(q, "sums", width));
    let scratch = Buffer::empty(q, "scratch", operations::column_sums_scratch(shape));
    operations::column_sums(q, shape, x_.read(), sums.write(), scratch.write());
    let mut wanted = vec![0.0; width];
    cpu().column_sums(shape, &x, &mut wanted);
    sums.is_near(&format!("column_sums of {shape:?}"), &wanted);
    sums.has_bits(&format!("column_sums of {shape:?}"), &orders::column_sums(shape, &x));
}

/// The CPU's bits: the norm decides a step on every device.
pub fn sum_of_squares(q: &StandIn, extent: Extent) {
    squares_of(q, extent.of(1, &[0, 1, 7, 4095, 4096, 4097, 9000]));
}

/// More blocks of elements than a block has threads.
pub fn sum_of_many_squares(q: &StandIn, _: Extent) {
    squares_of(q, &[1_200_001]);
}

fn squares_of(q: &StandIn, lengths: &[usize]) {
    for &len in lengths {
        for bad in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)] {
            let mut g = numbers(1, len);
            match (bad, g.get_mut(len / 2)) {
                (Some(bad), Some(place)) if len < 10_000 => *place = bad,
                (Some(_), _) => continue,
                (None, _) => {}
            }
            let g_ = Buffer::of(q, "g", &g);
            let sum = Buffer::<f64>::empty(q, "sum", 1);
            let scratch = Buffer::<f64>::empty(q, "scratch", operations::sum_of_squares_scratch(len));
            operations::sum_of_squares(q, g_.read(), 0.3, sum.write(), scratch.write());
            let wanted = cpu().sum_of_squares(&g, 0.3);
            match (bad, len) {
                // The sum of nothing may have either sign.
                (_, 0) if sum.now()[0] == 0.0 => {}
                (None, _) => sum.has_bits("sum_of_squares", &[wanted]),
                (Some(bad), _) if sum.now()[0].is_finite() => {
                    q.wrong(format!("the sum with {bad} is finite"))
                }
                (Some(_), _) => {}
            }
        }
    }
}

pub fn all_finite(q: &StandIn, extent: Extent) {
    for &len in extent.of(1, &[0, 1, 255, 16_384, 16_385, 40_000]) {
        let places: &[usize] = &[0, 1, len / 2, len.saturating_sub(1)];
        let cases = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0];
        for (&bad, &place) in cases.iter().flat_map(|bad| places.iter().map(move |place| (bad, place))) {
            let mut x = numbers(1, len);
            if let Some(at) = x.get_mut(place) {
                *at = bad;
            }
            let x_ = Buffer::of(q, "x", &x);
            let all = Buffer::<u32>::empty(q, "all", 1);
            let scratch = Buffer::<u32>::empty(q, "scratch", operations::all_finite_scratch(len));
            operations::all_finite(q, x_.read(), all.write(), scratch.write());
            all.has_bits(
                &format!("all_finite with {bad} at {place} of {len}"),
                &[cpu().all_finite(&x).into()],
            );
        }
    }
}
