//! Losses over rows of outputs, with their gradients.
//!
//! This file does not know batches or means.

use super::{Floats, FloatsMut, Ids, same, size};
use crate::kernels;
use crate::launch::{Launch, Queue};
use crate::memory::SliceMut;
use dtrain_engine::device::Rows;

/// What each row leaves for the sums.
pub struct LossRows<'a> {
    /// Loss and weight of each row, `[rows, 2]`.
    pub values: SliceMut<'a, f64>,
    /// One word a row.
    pub counts: SliceMut<'a, u32>,
}

/// The sums over rows.
pub struct LossTotals<'a> {
    /// Sum of losses, sum of weights.
    pub sums: SliceMut<'a, f64>,
    /// Rows counted, rows that are right.
    pub counts: SliceMut<'a, u32>,
}

/// Options of [`cross_entropy`]; as [`dtrain_engine::device::CrossEntropy`], with the weights in the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// Share of the target that is spread evenly over all classes.
    pub label_smoothing: f32,
    /// Weight of each class; ones without.
    pub class_weights: Option<Floats<'a>>,
    /// Rows with this target count for nothing.
    pub ignore_index: Option<u32>,
}

fn totals(queue: &impl Queue, rows: &LossRows<'_>, mut totals: LossTotals<'_>) {
    same("sums", totals.sums.len(), 2);
    same("counts", totals.counts.len(), 2);
    let arguments = [
        rows.values.read().into(),
        rows.counts.read().into(),
        (&mut totals.sums).into(),
        (&mut totals.counts).into(),
        size(rows.counts.len()).into(),
    ];
    queue.launch(&Launch::new(&kernels::LOSS_SUMS, 1, arguments));
}

/// Cross entropy of `logits: [rows, width]`; with `d`, also the gradient of the sum of weighted losses.
#[allow(clippy::too_many_arguments)]
pub fn cross_entropy(
    queue: &impl Queue,
    shape: Rows,
    options: &CrossEntropy<'_>,
    logits: Floats<'_>,
    targets: Ids<'_>,
    mut d: Option<FloatsMut<'_>>,
    mut rows: LossRows<'_>,
    to: LossTotals<'_>,
) {
    same("logits", logits.len(), shape.rows * shape.width);
    same("targets", targets.len(), shape.rows);
    same("class_weights", options.class_weights.map_or(shape.width, |weights| weights.len()), shape.width);
    same("d", d.as_ref().map_or(logits.len(), |d| d.len()), logits.len());
    same("values", rows.values.len(), 2 * shape.rows);
    same("counts", rows.counts.len(), shape.rows);
    if shape.rows > 0 {
        let arguments = [
            logits.into(),
            targets.into(),
            options.class_weights.into(),
            (&mut d).into(),
            (&mut rows.values).into(),
            (&mut rows.counts).into(),
            size(shape.width).into(),
            options.label_smoothing.into(),
            u32::from(options.ignore_index.is_some()).into(),
            options.ignore_index.unwrap_or_default().into(),
        ];
        queue.launch(&Launch::new(&kernels::CROSS_ENTROPY, shape.rows, arguments));
    }
    totals(queue, &rows, to);
}

/// Squared error summed over a row and divided by the width, summed over rows (each of weight 1).
pub fn squared_error(
    queue: &impl Queue,
    shape: Rows,
    outputs: Floats<'_>,
    targets: Floats<'_>,
    mut d: Option<FloatsMut<'_>>,
    mut rows: LossRows<'_>,
    to: LossTotals<'_>,
) {
    same("outputs", outputs.len(), shape.rows * shape.width);
    same("targets", targets.len(), outputs.len());
    same("d", d.as_ref().map_or(outputs.len(), |d| d.len()), outputs.len());
    same("values", rows.values.len(), 2 * shape.rows);
    same("counts", rows.counts.len(), shape.rows);
    if shape.rows > 0 {
        let arguments = [
            outputs.into(),
            targets.into(),
            (&mut d).into(),
            (&mut rows.values).into(),
            (&mut rows.counts).into(),
            size(shape.width).into(),
        ];
        queue.launch(&Launch::new(&kernels::SQUARED_ERROR, shape.rows, arguments));
    }
    totals(queue, &rows, to);
}

/// The index of the greatest of each row's elements, the first of equals.
pub fn arg_max(queue: &impl Queue, shape: Rows, x: Floats<'_>, mut best: SliceMut<'_, u32>) {
    same("x", x.len(), shape.rows * shape.width);
    same("best", best.len(), shape.rows);
    if shape.rows > 0 {
        let arguments = [x.into(), (&mut best).into(), size(shape.width).into()];
        queue.launch(&Launch::new(&kernels::ARG_MAX, shape.rows, arguments));
    }
}
