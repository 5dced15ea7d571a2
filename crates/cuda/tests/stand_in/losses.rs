//! Checks of losses.

use super::memory::Number;
use super::{Buffer, Extent, NANS, StandIn, cpu, ids, numbers};
use dtrain_cuda::operations::{self, LossRows, LossTotals};
use dtrain_cuda::{Values, ValuesMut};
use dtrain_engine::device::{CrossEntropy, Device, LossSums, Outputs, Rows};

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
    for &(rows, width) in extent
        .of(1, &[(0, 3), (1, 2), (20, 10), (2, 1000), (5, 257), (2, 9001), (1, 8200), (33, 40), (3, 600)])
    {
        let shape = Rows { rows, width };
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v * 8.0).collect();
        let targets = ids(2, rows, width as u32);
        let weights: Vec<f32> = numbers(3, width).iter().map(|v| v + 1.5).collect();
        let (targets_, weights_) = (Buffer::of(q, "targets", &targets), Buffer::of(q, "weights", &weights));
        for (label_smoothing, weighted) in [(0.0, false), (0.1, false), (0.0, true), (0.3, true)] {
            for (ignore_index, scale) in [(None, 1.0), (targets.first().copied(), 1024.0)] {
                let class_weights = if weighted { &weights[..] } else { &[] };
                let mut wanted_d = x.clone();
                let options = CrossEntropy { label_smoothing, class_weights, ignore_index, scale };
                let outputs = Outputs::Replaced(&mut wanted_d[..]);
                let wanted = cpu().cross_entropy(shape, &options, outputs, &targets);
                let class_weights = weighted.then(|| weights_.read());
                let options =
                    operations::CrossEntropy { label_smoothing, class_weights, ignore_index, scale };
                let what = format!("cross entropy of {shape:?} with {options:?}");
                let run = |logits, room: &Room| {
                    let (targets, rows, totals) = (targets_.read(), room.rows(), room.totals());
                    operations::cross_entropy(q, shape, &options, logits, targets, rows, totals);
                    room.is_near(q, &what, wanted);
                };
                let (logits, kept, replaced) =
                    (Buffer::of(q, "logits", &x), Room::new(q, rows), Room::new(q, rows));
                run(Outputs::<_, ValuesMut<'_>>::Kept(Values::from(logits.read())), &kept);
                logits.has_bits("logits that are kept", &x);
                run(Outputs::Replaced(logits.write().into()), &replaced);
                logits.is_near(&what, &wanted_d);
                replaced.sums.has_bits("sums of logits that are replaced", &kept.sums.now());
            }
        }
    }
}

/// A class of each row, another one, and the share of the first: some of all, of none, and of one class twice.
pub fn mixtures(rows: usize, width: usize) -> Vec<u32> {
    let (own, other) = (ids(2, rows, width as u32), ids(4, rows, width as u32));
    let shares = numbers(5, rows).into_iter().map(|v| v * 0.5 + 0.5);
    let rows = own.into_iter().zip(other).zip(shares).enumerate();
    rows.flat_map(|(row, ((own, other), share))| match row % 5 {
        1 => [own, other, 1.0f32.to_bits()],
        2 => [own, own, share.to_bits()],
        3 => [own, other, 0.0f32.to_bits()],
        _ => [own, other, share.to_bits()],
    })
    .collect()
}

pub fn mixed_cross_entropy(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(0, 3), (1, 2), (20, 10), (5, 257), (2, 9001), (33, 40)]) {
        let shape = Rows { rows, width };
        let x: Vec<f32> = numbers(1, rows * width).iter().map(|v| v * 8.0).collect();
        let targets = mixtures(rows, width);
        let weights: Vec<f32> = numbers(3, width).iter().map(|v| v + 1.5).collect();
        let (targets_, weights_) = (Buffer::of(q, "targets", &targets), Buffer::of(q, "weights", &weights));
        for (label_smoothing, weighted, scale) in [(0.0, false, 1.0), (0.1, false, 1024.0), (0.3, true, 1.0)]
        {
            let class_weights = if weighted { &weights[..] } else { &[] };
            let options = CrossEntropy { label_smoothing, class_weights, ignore_index: None, scale };
            let mut wanted_d = x.clone();
            let outputs = Outputs::Replaced(&mut wanted_d[..]);
            let wanted = cpu().mixed_cross_entropy(shape, &options, outputs, &targets);
            let class_weights = weighted.then(|| weights_.read());
            let options =
                operations::CrossEntropy { label_smoothing, class_weights, ignore_index: None, scale };
            let what = format!("mixed cross entropy of {shape:?} with {options:?}");
            let (logits, room) = (Buffer::of(q, "logits", &x), Room::new(q, rows));
            let outputs = Outputs::<Values<'_>, _>::Replaced(logits.write());
            let lent = (room.rows(), room.totals());
            operations::mixed_cross_entropy(q, shape, &options, outputs, targets_.read(), lent.0, lent.1);
            room.is_near(q, &what, wanted);
            logits.is_near(&what, &wanted_d);
        }
    }
    // A class that is none shows in the loss.
    for wrong in [[9, 2, 0], [2, 9, 0]] {
        let (targets, logits) = (Buffer::of(q, "targets", &wrong), Buffer::of(q, "logits", &numbers(1, 3)));
        let room = Room::new(q, 1);
        let plain = operations::CrossEntropy {
            label_smoothing: 0.0,
            class_weights: None,
            ignore_index: None,
            scale: 1.0,
        };
        let outputs = Outputs::<Values<'_>, _>::Replaced(logits.write());
        let (rows, totals) = (room.rows(), room.totals());
        let shape = Rows { rows: 1, width: 3 };
        operations::mixed_cross_entropy(q, shape, &plain, outputs, targets.read(), rows, totals);
        if room.sums.now()[0].is_finite() || logits.now().iter().any(|d| d.is_finite()) {
            q.wrong(format!("a loss with targets {wrong:?} is {:?}", room.sums.now()));
        }
    }
}

/// Broken outputs and wrong targets have to be seen in the loss.
pub fn broken_rows(q: &StandIn, _: Extent) {
    let shape = Rows { rows: 2, width: 10 };
    let plain = operations::CrossEntropy {
        label_smoothing: 0.0,
        class_weights: None,
        ignore_index: None,
        scale: 1.0,
    };
    for (bad, target) in NANS.map(|bad| (bad, 2)).into_iter().chain([(f32::INFINITY, 2), (0.0, 10)]) {
        let mut x = numbers(1, 20);
        x[13] = bad;
        let targets = Buffer::of(q, "targets", &[1, target]);
        let (d, room) = (Buffer::of(q, "logits", &x), Room::new(q, 2));
        let logits = Outputs::<Values<'_>, _>::Replaced(d.write());
        operations::cross_entropy(q, shape, &plain, logits, targets.read(), room.rows(), room.totals());
        if room.sums.now()[0].is_finite() || d.now()[10..].iter().all(|d| d.is_finite()) {
            q.wrong(format!("a loss with {:#x} and target {target} is {:?}", bad.bits(), room.sums.now()));
        }
        if d.now()[..10].iter().any(|d| !d.is_finite()) {
            q.wrong("the other row is broken as well".into());
        }
    }
}

pub fn squared_error(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(0, 3), (1, 1), (300, 3), (2, 513), (40, 17)]) {
        let (shape, x, t) = (Rows { rows, width }, numbers(1, rows * width), numbers(2, rows * width));
        let (outputs, t_) = (Buffer::of(q, "outputs", &x), Buffer::of(q, "t", &t));
        let mut wanted_d = x.clone();
        let wanted = cpu().squared_error(shape, 2048.0, Outputs::Replaced(&mut wanted_d), &t);
        let run = |outputs| {
            let room = Room::new(q, rows);
            operations::squared_error(q, shape, 2048.0, outputs, t_.read(), room.rows(), room.totals());
            room.is_near(q, "squared error", wanted);
        };
        run(Outputs::<_, ValuesMut<'_>>::Kept(Values::from(outputs.read())));
        outputs.has_bits("outputs that are kept", &x);
        run(Outputs::Replaced(outputs.write().into()));
        outputs.has_bits("squared error", &wanted_d);
    }
}

/// The bits of sums and gradients are those that these kernels had when they were written.
pub fn same_bits(q: &StandIn, _: Extent) {
    const ROWS: usize = 5;
    const WIDTH: usize = 700;
    let shape = Rows { rows: ROWS, width: WIDTH };
    let x: Vec<f32> = numbers(1, ROWS * WIDTH).iter().map(|v| v * 8.0).collect();
    let weights: Vec<f32> = numbers(3, WIDTH).iter().map(|v| v + 1.5).collect();
    let (t, targets) = (numbers(4, ROWS * WIDTH), ids(2, ROWS, WIDTH as u32));
    let (t_, targets_) = (Buffer::of(q, "t", &t), Buffer::of(q, "targets", &targets));
    let weights_ = Buffer::of(q, "weights", &weights);
    let mut hash = blake3::Hasher::new();
    let mut note = |d: &Buffer<f32>, room: &Room| {
        let (sums, counts) = (room.sums.now(), room.totals.now());
        let words = sums.iter().map(|n| n.bits()).chain(counts.iter().map(|n| n.bits()));
        words.chain(d.now().iter().map(|d| d.bits())).for_each(|word| {
            hash.update(&word.to_le_bytes());
        });
    };
    for label_smoothing in [0.0, 0.2] {
        for class_weights in [None, Some(weights_.read())] {
            for ignore_index in [None, Some(targets[0])] {
                let options =
                    operations::CrossEntropy { label_smoothing, class_weights, ignore_index, scale: 1.0 };
                let (d, room) = (Buffer::of(q, "logits", &x), Room::new(q, ROWS));
                let logits = Outputs::<Values<'_>, _>::Replaced(d.write());
                operations::cross_entropy(
                    q,
                    shape,
                    &options,
                    logits,
                    targets_.read(),
                    room.rows(),
                    room.totals(),
                );
                note(&d, &room);
            }
        }
    }
    let (d, room) = (Buffer::of(q, "outputs", &x), Room::new(q, ROWS));
    let outputs = Outputs::<Values<'_>, _>::Replaced(d.write());
    operations::squared_error(q, shape, 1.0, outputs, t_.read(), room.rows(), room.totals());
    note(&d, &room);
    let found = hash.finalize().to_string();
    if found != "038640e1310d025a01e17651bfd5a27f243575f628a4d602353623ad43978713" {
        q.wrong(format!("the bits of losses are {found}"));
    }
}

pub fn arg_max(q: &StandIn, extent: Extent) {
    for &(rows, width) in extent.of(1, &[(1, 1), (5, 1000), (3, 257), (20, 10)]) {
        let mut x = numbers(1, rows * width);
        // Equals, rows of NaN alone, rows with some, and rows in which nothing is greater than minus infinity.
        for (row, x) in x.chunks_mut(width).enumerate() {
            match row % 5 {
                1 => x.fill(2.0),
                2 => x.fill(f32::NAN),
                3 => x[..width / 2].fill(f32::NAN),
                4 => {
                    x.fill(f32::NEG_INFINITY);
                    x[0] = f32::NAN;
                }
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
