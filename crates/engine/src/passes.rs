//! What every replica does with a model, wherever its memory lies: a training pass, a pass for evaluation, an update.
//!
//! This file owns no memory and does not know how numbers come to a device or leave it.

use crate::device::{Device, LossSums, Rows};
use crate::error::EngineError;
use crate::model::Model;
use crate::optimizer::{Buffers, Optimizer};
use crate::replica::{UpdateInfo, Watch};
use crate::stage::{Backward, Forward, Input, Mode, Pass, Stage};
use crate::stages::{BatchNorm, Gradients};
use dtrain_types::{MicroBatch, Seed, Step, Wire};
use std::ops::Range;

/// What a pass reads and where it works: memory of the device.
pub(crate) struct Room<'a, D: Device> {
    /// All parameters.
    pub params: D::Ref<'a>,
    /// All running statistics.
    pub stats: D::Ref<'a>,
    /// What stages keep; full planned length.
    pub saved: D::Mut<'a>,
    /// Scratch; full planned length.
    pub scratch: D::Mut<'a>,
    /// The outputs; at least as long as those of this pass.
    pub outputs: D::Mut<'a>,
}

/// What a training pass has beside an evaluation: where its gradients go, and who watches.
pub(crate) struct Training<'a, 'b, D: Device> {
    /// Gradients of the outputs; at least as long as those of this pass.
    pub outputs: D::Mut<'a>,
    /// Gradients of the parameters, then the sums of the statistics.
    pub all: &'b mut dyn Gradients<D>,
    /// Is told when the backward pass begins.
    pub watch: Option<&'b mut (dyn Watch + 'static)>,
}

fn whole<'a, D: Device>(memory: &'a mut D::Mut<'_>) -> D::Mut<'a> {
    let len = D::len_mut(memory);
    D::part_mut(memory, 0..len)
}

fn shorter<'b, 'a: 'b, D: Device>(memory: D::Ref<'a>) -> D::Ref<'b> {
    D::part(memory, 0..D::len(memory))
}

/// Which pass of a replica this is.
pub(crate) fn pass<'a, D: Device>(
    device: &'a D,
    mode: Mode,
    seed: Seed,
    place: (Step, MicroBatch),
    rows: usize,
) -> Pass<'a, D> {
    Pass { device, mode, seed, step: place.0, micro_batch: place.1, rows, each: rows, wire: Wire::F32 }
}

/// Forward, loss, backward: over one micro-batch, or over all that the pass has. `losses` has a place for each.
pub(crate) fn train<D: Device>(
    model: &Model<D>,
    pass: &Pass<'_, D>,
    mut room: Room<'_, D>,
    x: Input<'_, D>,
    targets: Input<'_, D>,
    to: Training<'_, '_, D>,
    losses: &mut [LossSums],
) {
    assert!(pass.micro_batches() == losses.len() && losses.len() <= model.group(), "{} losses", losses.len());
    let shape = model.loss_rows(pass.rows);
    let length = shape.rows * shape.width;
    let (mut d, all) = (to.outputs, to.all);
    let layout = model.layout();
    forward(model, pass, &mut room, x.shorter(), Some(all.part(layout.parameters..layout.gradient_len())));
    all.settle(layout.parameters);
    let (mut last, places) = (None, losses.len());
    for (place, sums) in losses.iter_mut().enumerate() {
        let (_, rows) = pass.alone(place);
        let (before, own) = (model.loss_rows(rows.start).rows, model.loss_rows(rows.len()));
        let flat = before * own.width..(before + own.rows) * own.width;
        let targets = match targets {
            Input::Ids(_) => targets.part(before..before + own.rows),
            Input::Values(_) => targets.part(flat.clone()),
        };
        let gradient = Some(D::part_mut(&mut d, flat.clone()));
        let y = D::part(D::read(&room.outputs), flat);
        let found = model.loss.of(pass.device, own, y, targets, gradient);
        // A device that works for itself goes on with the backward pass, and is not asked before.
        match place + 1 == places {
            true => last = Some(found),
            false => *sums = pass.device.sums(found),
        }
    }
    if let Some(watch) = to.watch {
        watch.backward_begins();
    }
    let io = Backward {
        params: shorter::<D>(room.params),
        x: x.shorter(),
        y: D::part(D::read(&room.outputs), 0..length),
        saved: whole::<D>(&mut room.saved),
        dy: D::part_mut(&mut d, 0..length),
        dx: None,
        grads: all,
        scratch: whole::<D>(&mut room.scratch),
    };
    model.chain.walk_back(pass, io);
    if let (Some(found), Some(sums)) = (last, losses.last_mut()) {
        *sums = pass.device.sums(found);
    }
}

/// Forward alone; the outputs then lie in the room.
pub(crate) fn forward<D: Device>(
    model: &Model<D>,
    pass: &Pass<'_, D>,
    room: &mut Room<'_, D>,
    x: Input<'_, D>,
    stat_sums: Option<D::Mut<'_>>,
) -> Rows {
    let shape = model.loss_rows(pass.rows);
    let mut sums = stat_sums;
    let io = Forward {
        params: shorter::<D>(room.params),
        stats: shorter::<D>(room.stats),
        stat_sums: sums.as_mut().map(whole::<D>),
        x: x.shorter(),
        y: D::part_mut(&mut room.outputs, 0..shape.rows * shape.width),
        saved: whole::<D>(&mut room.saved),
        scratch: whole::<D>(&mut room.scratch),
    };
    model.chain.forward(pass, io);
    shape
}

/// A reduced gradient and what it is divided by.
pub(crate) struct Reduced<'a, D: Device> {
    /// Of the parameters, then the sums of the statistics.
    pub gradient: D::Ref<'a>,
    /// The reduced normaliser.
    pub weight: f64,
    /// Rows of the whole step.
    pub samples: u64,
}

/// Applies update number `step`.
///
/// *Errors*: [`EngineError::NonFinite`], before anything is changed.
pub(crate) fn update<D: Device>(
    device: &D,
    model: &Model<D>,
    (optimizer, runs): (&Optimizer, &[(Range<usize>, bool)]),
    step: Step,
    reduced: &Reduced<'_, D>,
    [parameters, stats, first, second]: [D::Mut<'_>; 4],
) -> Result<UpdateInfo, EngineError> {
    let parameters_len = model.layout().parameters;
    let grads = D::part(reduced.gradient, 0..parameters_len);
    let sums = D::part(reduced.gradient, parameters_len..D::len(reduced.gradient));
    let mean = if reduced.weight == 0.0 { 0.0 } else { (1.0 / reduced.weight) as f32 };
    // Settled before anything is touched: one read of the gradient that also gives its norm.
    let norm = device.sum_of_squares(grads, mean).sqrt();
    if !norm.is_finite() || !(D::len(sums) == 0 || device.all_finite(sums)) {
        return Err(EngineError::NonFinite { step });
    }
    let scale = optimizer.scale(reduced.weight, norm);
    optimizer.apply(device, step, scale, runs, grads, Buffers::<D> { parameters, first, second });
    if reduced.samples > 0 && D::len_mut(&stats) > 0 {
        device.blend(BatchNorm::MOMENTUM, (1.0 / reduced.samples as f64) as f32, sums, stats);
    }
    Ok(UpdateInfo { lr: optimizer.schedule.lr(step), gradient_norm: norm })
}
