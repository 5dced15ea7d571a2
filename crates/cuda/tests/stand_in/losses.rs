//! Checks of losses.

use super::memory::Number;
use super::{Buffer, Extent, StandIn, cpu, ids, numbers};
use dtrain_cuda::operations::{self, LossRows, LossTotals};
use dtrain_engine::device::{CrossEntropy, Device, LossSums, Rows};

/// What a loss needs beside its operands.
struct Room<'q> {
    values: Buffer<'q, f64>,
    counts: Buffer<'q, u32>,
    sums: Buffer<'q, f64>,
    totals: Buffer<'q, u32>,
}

impl<'q> Room<'q> {
    fn new(q: &'q StandIn<'q>, rows: usize) -> Self {
        Self {
            values: Buffer::empty(q, "values", 2 * rows),
            counts: Buffer::empty(q, "counts", rows),
            sums: Buffer::empty(q, "sums", 2),
            totals: Buffer::empty(q, "totals", 2),
        }
    }

    fn rows(&self) -> LossRows<'_> {
        LossRows { values: self.values.write(), counts: self.counts.write() }
    }

    fn totals(&self) -> LossTotals<'_> {
        LossTotals { sums: self.sums.write(), counts: self.totals.write() }
    }

    fn is_near(&self, q: &StandIn, what: &str, wanted: LossSums) {
        let (sums, counts) = (self.sums.now(), self.totals.now());
        let near = |a: f64, b: f64| (a - b).abs() <= 2e-6 * b.abs();
        if !near(sums[0], wanted.loss) || !near(sums[1], wanted.weight) {
            q.wrong(format!("{what}: loss and weight {sums:?}, not {wanted:?}"));
        }
        if counts.iter().map(|n| n.bits()).ne([wanted.counted, wanted.correct]) {
            q.wrong(format!("{what}: counts {counts:?}, not {wanted:?}"));
        }
    }
}

pub fn cross_entropy(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(0, 3), (1, 2), (20, 10), (2, 1000), (5, 257), (33, 40)]) {
        let shape = Rows { rows, width };
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v * 8.0).collect();
        let targets = ids(2, rows, width as u32);
        let weights: Vec<f32> = numbers(3, width).iter().map(|v| v + 1.5).collect();
        let (x_, targets_, weights_) =
            (Buffer::of(q, "x", &x), Buffer::of(q, "targets", &targets), Buffer::of(q, "weights", &weights));
        for (label_smoothing, weighted) in [(0.0, false), (0.1, false), (0.0, true), (0.3, true)] {
            for ignore_index in [None, targets.first().copied()] {
                let class_weights = if weighted { &weights[..] } else { &[] };
                let mut wanted_d = vec![0.0; x.len()];
                let options = CrossEntropy { label_smoothing, class_weights, ignore_index };
                let wanted = cpu().cross_entropy(shape, &options, &x, &targets, Some(&mut wanted_d));
                let class_weights = weighted.then(|| weights_.read());
                let options = operations::CrossEntropy { label_smoothing, class_weights, ignore_index };
                for with_d in [true, false] {
                    let (d, room) = (Buffer::empty(q, "d", x.len()), Room::new(q, rows));
                    operations::cross_entropy(
                        q,
                        shape,
                        &options,
                        x_.read(),
                        targets_.read(),
                        with_d.then(|| d.write()),
                        room.rows(),
                        room.totals(),
                    );
                    let what = format!("cross entropy of {shape:?} with {options:?}");
                    if with_d {
                        d.is_near(&what, &wanted_d);
                    }
                    room.is_near(q, &what, wanted);
                }
            }
        }
    }
}

/// Broken outputs and wrong targets have to be seen in the loss.
pub fn broken_rows(q: &StandIn, _: Extent) {
    let shape = Rows { rows: 2, width: 10 };
    let options = operations::CrossEntropy { label_smoothing: 0.0, class_weights: None, ignore_index: None };
    for (bad, target) in [(f32::NAN, 2), (f32::INFINITY, 2), (0.0, 10)] {
        let mut x = numbers(1, 20);
        x[13] = bad;
        let (x_, targets) = (Buffer::of(q, "x", &x), Buffer::of(q, "targets", &[1, target]));
        let (d, room) = (Buffer::empty(q, "d", 20), Room::new(q, 2));
        operations::cross_entropy(
            q,
            shape,
            &options,
            x_.read(),
            targets.read(),
            Some(d.write()),
            room.rows(),
            room.totals(),
        );
        if room.sums.now()[0].is_finite() || d.now()[10..].iter().all(|d| d.is_finite()) {
            q.wrong(format!("a loss with {bad} and target {target} is {:?}", room.sums.now()));
        }
        if d.now()[..10].iter().any(|d| !d.is_finite()) {
            q.wrong("the other row is broken as well".into());
        }
    }
}

pub fn squared_error(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(0, 3), (1, 1), (300, 3), (2, 513), (40, 17)]) {
        let (shape, x, t) = (Rows { rows, width }, numbers(1, rows * width), numbers(2, rows * width));
        let (x_, t_) = (Buffer::of(q, "x", &x), Buffer::of(q, "t", &t));
        let mut wanted_d = vec![0.0; x.len()];
        let wanted = cpu().squared_error(shape, &x, &t, Some(&mut wanted_d));
        for with_d in [true, false] {
            let (d, room) = (Buffer::empty(q, "d", x.len()), Room::new(q, rows));
            let to = with_d.then(|| d.write());
            operations::squared_error(q, shape, x_.read(), t_.read(), to, room.rows(), room.totals());
            if with_d {
                d.has_bits("squared error", &wanted_d);
            }
            room.is_near(q, "squared error", wanted);
        }
    }
}

pub fn arg_max(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(1, 1), (5, 1000), (3, 257), (20, 10)]) {
        let mut x = numbers(1, rows * width);
        // Equals, rows of NaN alone and rows with some.
        for (row, x) in x.chunks_mut(width).enumerate() {
            match row % 4 {
                1 => x.fill(2.0),
                2 => x.fill(f32::NAN),
                3 => x[..width / 2].fill(f32::NAN),
                _ => {}
            }
        }
        let (x_, best) = (Buffer::of(q, "x", &x), Buffer::<u32>::empty(q, "best", rows));
        operations::arg_max(q, Rows { rows, width }, x_.read(), best.write());
        let mut wanted = vec![0; rows];
        cpu().arg_max(Rows { rows, width }, &x, &mut wanted);
        best.has_bits("arg_max", &wanted);
    }
}
