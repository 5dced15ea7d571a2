//! Losses over rows of outputs, with their gradients.
//!
//! This file does not know batches or means.

use super::{Floats, Ids, Scalar, Storage, Values, ValuesMut, pitch_of, same, size};
use crate::kernels::{self, Kernel};
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::memory::SliceMut;
use crate::values::nowhere;
use dtrain_engine::device::{Outputs, Rows};

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
pub struct CrossEntropy<'a, S = f32> {
    /// Share of the target that is spread evenly over all classes.
    pub label_smoothing: f32,
    /// Weight of each class; ones without.
    pub class_weights: Option<Floats<'a>>,
    /// Rows with this target count for nothing.
    pub ignore_index: Option<u32>,
    /// What the gradient is multiplied by, a power of two.
    pub scale: S,
}

/// Outputs as a kernel takes them.
struct Placed {
    storage: Storage,
    from: Argument,
    to: Argument,
    pitch: Argument,
}

/// Where a kernel reads outputs, and where it writes their gradient: nowhere, or in their place.
///
/// *Panics* if there are not so many.
fn places(shape: Rows, outputs: &mut Outputs<Values<'_>, ValuesMut<'_>>) -> Placed {
    let (len, storage) = match outputs {
        Outputs::Kept(x) => (x.len(), x.storage()),
        Outputs::Replaced(x) => (x.len(), x.storage()),
    };
    let pitch = size(pitch_of("outputs", len, shape.rows, shape.width)).into();
    match outputs {
        Outputs::Kept(x) => Placed { storage, from: (*x).into(), to: nowhere(storage), pitch },
        Outputs::Replaced(x) => Placed { storage, from: x.read().into(), to: x.into(), pitch },
    }
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
    queue.launch(&KernelLaunch::new(&kernels::LOSS_SUMS, 1, arguments));
}

fn stored<'x, 'y>(
    outputs: Outputs<impl Into<Values<'x>>, impl Into<ValuesMut<'y>>>,
) -> Outputs<Values<'x>, ValuesMut<'y>> {
    match outputs {
        Outputs::Kept(x) => Outputs::Kept(x.into()),
        Outputs::Replaced(x) => Outputs::Replaced(x.into()),
    }
}

/// What both kinds of cross entropy are given first, and how their outputs lie.
///
/// *Panics* on lengths that are not those of the shape; of targets there are so many words a row.
fn head_of_cross_entropy<S>(
    shape: Rows,
    options: &CrossEntropy<'_, S>,
    logits: &mut Outputs<Values<'_>, ValuesMut<'_>>,
    (targets, words): (Ids<'_>, usize),
    rows: &mut LossRows<'_>,
) -> (Storage, [Argument; 9]) {
    let Placed { storage, from, to, pitch } = places(shape, logits);
    same("targets", targets.len(), words * shape.rows);
    same("class_weights", options.class_weights.map_or(shape.width, |weights| weights.len()), shape.width);
    same("values", rows.values.len(), 2 * shape.rows);
    same("counts", rows.counts.len(), shape.rows);
    let (values, counts) = ((&mut rows.values).into(), (&mut rows.counts).into());
    let (weights, smoothing) = (options.class_weights.into(), options.label_smoothing.into());
    (storage, [from, targets.into(), weights, to, values, counts, size(shape.width).into(), pitch, smoothing])
}

/// Launches cross entropy: outputs whose place gradients take are read a second time.
fn launch_rows<const N: usize>(
    queue: &impl Queue,
    kernel: &'static Kernel,
    shape: Rows,
    logits: &Outputs<Values<'_>, ValuesMut<'_>>,
    arguments: [Argument; N],
) {
    if shape.rows > 0 {
        let again = match logits {
            Outputs::Kept(_) => 0,
            Outputs::Replaced(x) => shape.rows * shape.width * x.storage().bytes(),
        };
        queue.launch(&KernelLaunch::new(kernel, shape.rows, arguments).and_moves(again));
    }
}

/// Cross entropy of `logits: [rows, width]`.
pub fn cross_entropy<'x, 'y, 's>(
    queue: &impl Queue,
    shape: Rows,
    options: &CrossEntropy<'_, impl Into<Scalar<'s>> + Copy>,
    logits: Outputs<impl Into<Values<'x>>, impl Into<ValuesMut<'y>>>,
    targets: Ids<'_>,
    mut rows: LossRows<'_>,
    to: LossTotals<'_>,
) {
    let mut logits = stored(logits);
    let (storage, [x, t, w, d, values, counts, width, pitch, smoothing]) =
        head_of_cross_entropy(shape, options, &mut logits, (targets, 1), &mut rows);
    let [ignores, ignored] =
        [u32::from(options.ignore_index.is_some()), options.ignore_index.unwrap_or_default()].map(Into::into);
    let [scale, found] = options.scale.into().arguments();
    let kernel =
        storage.of([&kernels::CROSS_ENTROPY, &kernels::CROSS_ENTROPY_BF16, &kernels::CROSS_ENTROPY_F16]);
    let arguments = [x, t, w, d, values, counts, width, pitch, smoothing, ignores, ignored, scale, found];
    launch_rows(queue, kernel, shape, &logits, arguments);
    totals(queue, &rows, to);
}

/// The same of targets that are mixtures of two: of each row a class, the other class, and the share of the first, as the bits of an
/// f32.
///
/// *Panics* where classes are ignored.
pub fn mixed_cross_entropy<'x, 'y, 's>(
    queue: &impl Queue,
    shape: Rows,
    options: &CrossEntropy<'_, impl Into<Scalar<'s>> + Copy>,
    logits: Outputs<impl Into<Values<'x>>, impl Into<ValuesMut<'y>>>,
    targets: Ids<'_>,
    mut rows: LossRows<'_>,
    to: LossTotals<'_>,
) {
    assert!(options.ignore_index.is_none(), "targets that are mixed cannot be ignored");
    let mut logits = stored(logits);
    let (storage, [x, t, w, d, values, counts, width, pitch, smoothing]) =
        head_of_cross_entropy(shape, options, &mut logits, (targets, 3), &mut rows);
    let [scale, found] = options.scale.into().arguments();
    let kernel = storage.of([
        &kernels::MIXED_CROSS_ENTROPY,
        &kernels::MIXED_CROSS_ENTROPY_BF16,
        &kernels::MIXED_CROSS_ENTROPY_F16,
    ]);
    let arguments = [x, t, w, d, values, counts, width, pitch, smoothing, scale, found];
    launch_rows(queue, kernel, shape, &logits, arguments);
    totals(queue, &rows, to);
}

/// Squared error summed over a row and divided by the width, summed over rows (each of weight 1). The gradient is multiplied by
/// `scale`, a power of two.
pub fn squared_error<'x, 'y, 's>(
    queue: &impl Queue,
    shape: Rows,
    scale: impl Into<Scalar<'s>>,
    outputs: Outputs<impl Into<Values<'x>>, impl Into<ValuesMut<'y>>>,
    targets: Floats<'_>,
    mut rows: LossRows<'_>,
    to: LossTotals<'_>,
) {
    let mut outputs = stored(outputs);
    let Placed { storage, from, to: to_gradient, pitch } = places(shape, &mut outputs);
    same("targets", targets.len(), shape.rows * shape.width);
    same("values", rows.values.len(), 2 * shape.rows);
    same("counts", rows.counts.len(), shape.rows);
    if shape.rows > 0 {
        let [scale, found] = scale.into().arguments();
        let arguments = [
            from,
            targets.into(),
            to_gradient,
            (&mut rows.values).into(),
            (&mut rows.counts).into(),
            size(shape.width).into(),
            pitch,
            scale,
            found,
        ];
        let kernel =
            storage.of([&kernels::SQUARED_ERROR, &kernels::SQUARED_ERROR_BF16, &kernels::SQUARED_ERROR_F16]);
        queue.launch(&KernelLaunch::new(kernel, shape.rows, arguments));
    }
    totals(queue, &rows, to);
}

/// The index of the greatest of each row's elements, the first of equals.
pub fn arg_max<'x>(queue: &impl Queue, shape: Rows, x: impl Into<Values<'x>>, mut best: SliceMut<'_, u32>) {
    let x = x.into();
    let pitch = size(pitch_of("x", x.len(), shape.rows, shape.width));
    same("best", best.len(), shape.rows);
    if shape.rows > 0 {
        let arguments = [x.into(), (&mut best).into(), size(shape.width).into(), pitch.into()];
        let kernel = x.storage().of([&kernels::ARG_MAX, &kernels::ARG_MAX_BF16, &kernels::ARG_MAX_F16]);
        queue.launch(&KernelLaunch::new(kernel, shape.rows, arguments));
    }
}
