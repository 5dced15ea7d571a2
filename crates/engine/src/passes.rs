//! What every replica does with a model, wherever its memory lies: a training pass, a pass for evaluation, an update.
//!
//! This file owns no memory and does not know how numbers come to a device or leave it.

use crate::device::{Device, LossSums, Rows};
use crate::error::EngineError;
use crate::groups::Runs;
use crate::layout::Section;
use crate::loss_scale::LossScale;
use crate::model::Model;
use crate::optimizer::{Buffers, Factors, Optimizer};
use crate::stage::{Backward, Forward, Input, Mode, Pass};
use crate::stages::{Gradients, Outer, Parameters};
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::{MicroBatch, Seed, Step, Wire};
use std::ops::Range;

/// What a pass reads and where it works: memory of the device.
pub(crate) struct Room<'a, D: Device> {
    /// The parameters.
    pub params: &'a mut dyn Parameters<D>,
    /// Those that lie apart.
    pub frozen: D::Ref<'a>,
    /// All running statistics.
    pub stats: D::Ref<'a>,
    /// What stages keep; full planned length.
    pub saved: D::Mut<'a>,
    /// Scratch; full planned length.
    pub scratch: D::Mut<'a>,
    /// The outputs: memory for those of this pass or more. In training their gradient takes their place, if it can.
    pub outputs: D::Mut<'a>,
}

/// What a training pass has beside an evaluation.
pub(crate) struct Training<'a, 'b, D: Device> {
    /// Memory for the gradient of the outputs where it cannot take their place ([`Model::reads_outputs`]).
    pub beside: Option<D::Mut<'a>>,
    /// Gradients of the parameters, then the sums of the statistics.
    pub all: &'b mut dyn Gradients<D>,
    /// What the gradient of the loss is multiplied by.
    pub scale: D::Scalar,
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
    let (step, micro_batch) = place;
    Pass { device, mode, seed, step, micro_batch, rows, each: rows, wire: Wire::F32, newest: None }
}

/// Forward, loss, backward: over one micro-batch, or over all that the pass has. `losses` has a place for each but the last, whose
/// loss is given as the device has it: it is asked for when there is nothing left to do.
pub(crate) fn train<D: Device>(
    model: &Model<D>,
    pass: &Pass<'_, D>,
    mut room: Room<'_, D>,
    x: Input<'_, D>,
    targets: Input<'_, D>,
    to: Training<'_, '_, D>,
    losses: &mut [LossSums],
) -> D::Sums {
    let places = losses.len() + 1;
    assert!(pass.micro_batches() == places && places <= model.group(), "{places} losses");
    let length = model.outputs_len(pass.rows);
    let Training { mut beside, all, scale } = to;
    assert_eq!(beside.is_some(), model.reads_outputs(), "room beside the outputs where they are read");
    let layout = model.layout();
    let end = layout.parameters + model.stats_of_stages();
    if end < layout.gradient_len() {
        // The sums of ranks have nothing to say of the loss scale.
        pass.device.fill(all.part(end..layout.gradient_len()), 0.0);
    }
    forward(model, pass, &mut room, x.shorter(), Some(all.part(layout.parameters..end)));
    all.settle(layout.parameters);
    // The outputs, if the backward pass reads them, and what becomes their gradient.
    let (y, mut d) = match &mut beside {
        None => (D::part(room.stats, 0..0), pass.device.activations_mut(&mut room.outputs, length)),
        Some(beside) => {
            let y = pass.device.activations(D::read(&room.outputs), length);
            let mut d = pass.device.activations_mut(beside, length);
            pass.device.copy(shorter::<D>(y), D::part_mut(&mut d, 0..length));
            (y, d)
        }
    };
    let mut loss = |place: usize| {
        let (_, rows) = pass.alone(place);
        let (before, own) = (model.loss_rows(rows.start).rows, model.loss_rows(rows.len()));
        let flat = before * own.width..(before + own.rows) * own.width;
        let targets = match targets {
            Input::Ids(_) => {
                let words = model.class_words();
                targets.part(before * words..(before + own.rows) * words)
            }
            Input::Values(_) => targets.part(flat),
        };
        let flat = model.outputs_len(rows.start)..model.outputs_len(rows.end);
        model.training_loss(pass.device, own, D::part_mut(&mut d, flat), targets, scale)
    };
    for (place, sums) in losses.iter_mut().enumerate() {
        *sums = pass.device.sums(loss(place));
    }
    // A device that works for itself goes on with the backward pass.
    let last = loss(places - 1);
    all.backward_begins();
    let frozen = &model.frozen[..];
    let mut trained = Trained { device: pass.device, frozen, all, open: layout.parameters };
    let io = Backward {
        params: &mut *room.params as &mut dyn Parameters<D>,
        frozen: shorter::<D>(room.frozen),
        x: x.shorter(),
        y: shorter::<D>(y),
        saved: whole::<D>(&mut room.saved),
        dy: whole::<D>(&mut d),
        dx: None,
        grads: &mut trained as &mut dyn Gradients<D>,
        scratch: whole::<D>(&mut room.scratch),
    };
    model.chain.walk_back(pass, io, Outer::Apart);
    // What is in front of it is frozen, and no stage wrote it.
    for stage in layout.stages.iter().rev() {
        if stage.parameters.start < trained.open {
            trained.settle(stage.parameters.start);
        }
    }
    last
}

/// Gradients of which those of frozen parameters are zero.
struct Trained<'a, 'b, D: Device> {
    device: &'a D,
    frozen: &'a [Range<usize>],
    all: &'b mut dyn Gradients<D>,
    /// From here on all are final.
    open: usize,
}

impl<D: Device> Gradients<D> for Trained<'_, '_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Mut<'_> {
        self.all.part(part)
    }

    fn settle(&mut self, from: usize) {
        for frozen in self.frozen {
            let fresh = frozen.start.max(from)..frozen.end.min(self.open);
            if !fresh.is_empty() {
                self.device.fill(self.all.part(fresh), 0.0);
            }
        }
        self.open = from;
        self.all.settle(from);
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
    let mut sums = stat_sums;
    let io = Forward {
        params: &mut *room.params as &mut dyn Parameters<D>,
        frozen: shorter::<D>(room.frozen),
        stats: shorter::<D>(room.stats),
        stat_sums: sums.as_mut().map(whole::<D>),
        x: x.shorter(),
        y: pass.device.activations_mut(&mut room.outputs, model.outputs_len(pass.rows)),
        saved: whole::<D>(&mut room.saved),
        scratch: whole::<D>(&mut room.scratch),
    };
    model.chain.walk(pass, io, None);
    model.loss_rows(pass.rows)
}

/// A reduced gradient and what it is divided by.
pub(crate) struct Reduced<'a, D: Device> {
    /// Of the parameters, then the sums of the statistics.
    pub gradient: D::Ref<'a>,
    /// Rows of the whole step.
    pub samples: u64,
    pub divisor: Divisor,
}

/// What a reduced gradient is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Divisor {
    /// The reduced normaliser.
    pub weight: f64,
    /// What the loss was scaled by, if it was.
    pub scale: Option<LossScale>,
}

impl Divisor {
    /// Both in one: the scale is a power of two, so that to divide by it as well changes no bit.
    fn whole(&self) -> f64 {
        self.weight * self.scale.map_or(1.0, |scale| f64::from(scale.factor))
    }

    /// What each element is multiplied by to become the mean's.
    pub fn mean(&self) -> f32 {
        let weight = self.whole();
        if weight == 0.0 { 0.0 } else { (1.0 / weight) as f32 }
    }
}

/// What a look at a reduced gradient found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Sum of the squares of the mean gradient.
    pub squares: f64,
    /// Whether the sums of the statistics are finite.
    pub stats_finite: bool,
}

/// What a reduced gradient comes to, before anything is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub info: UpdateInfo,
    /// What a gradient is multiplied by; none if the update is skipped.
    pub scale: Option<f32>,
}

/// Looks at a reduced gradient: one read of it.
pub(crate) fn look<D: Device>(device: &D, facts: &UpdateFacts, reduced: &Reduced<'_, D>) -> Seen {
    let (grads, sums) = reduced.parts(facts);
    let squares = device.sum_of_squares(grads, reduced.divisor.mean());
    Seen { squares, stats_finite: D::len(sums) == 0 || device.all_finite(sums) }
}

/// Says what a reduced gradient comes to.
///
/// *Errors*: [`EngineError::NonFinite`], of a loss that is not scaled.
pub(crate) fn settle(
    facts: &UpdateFacts,
    optimizer: &Optimizer,
    step: Step,
    divisor: Divisor,
    seen: Seen,
) -> Result<Settled, EngineError> {
    let norm = seen.squares.sqrt();
    let finite = norm.is_finite() && seen.stats_finite;
    let scaled = facts.scaling.zip(divisor.scale);
    let loss_scale = scaled.and_then(|(scaling, scale)| match finite {
        true => Some(scaling.grown(scale)),
        false => scaling.halved(scale),
    });
    if !finite && loss_scale.is_none() {
        return Err(EngineError::NonFinite { step });
    }
    let gradient_norm = if finite { norm } else { f64::INFINITY };
    let info = UpdateInfo { lr: optimizer.schedule.lr(step), gradient_norm, loss_scale };
    Ok(Settled { info, scale: finite.then(|| optimizer.scale(divisor.whole(), norm)) })
}

/// Gradients of the parameters, and the sums of the statistics.
pub(crate) fn parts<'b, 'a: 'b, D: Device>(
    facts: &UpdateFacts,
    gradient: D::Ref<'a>,
) -> (D::Ref<'b>, D::Ref<'b>) {
    let UpdateFacts { parameters, stats, .. } = *facts;
    (D::part(gradient, 0..parameters), D::part(gradient, parameters..parameters + stats))
}

impl<'a, D: Device> Reduced<'a, D> {
    /// Gradients of the parameters, and the sums of the statistics.
    pub fn parts(&self, facts: &UpdateFacts) -> (D::Ref<'a>, D::Ref<'a>) {
        parts::<D>(facts, self.gradient)
    }

    /// Brings the statistics up to date, and the scale of the loss behind them.
    pub fn blend(&self, device: &D, facts: &UpdateFacts, settled: &Settled, mut stats: D::Mut<'_>) {
        let len = facts.stats;
        if let Some(next) = settled.info.loss_scale {
            for (at, element) in (len..).zip(next.elements()) {
                device.fill(D::part_mut(&mut stats, at..at + 1), element);
            }
        }
        if settled.scale.is_some() && self.samples > 0 && len > 0 {
            let (_, sums) = self.parts(facts);
            let stats = D::part_mut(&mut stats, 0..len);
            device.blend(facts.momentum, ((1.0 / self.samples as f64) as f32).into(), sums, stats);
        }
    }
}

/// Applies update number `step`, or skips it where the gradient of a scaled loss is not finite.
///
/// *Errors*: [`EngineError::NonFinite`], before anything is changed.
pub(crate) fn update<D: Device>(
    device: &D,
    facts: &UpdateFacts,
    (optimizer, runs): (&Optimizer, &Runs),
    step: Step,
    reduced: &Reduced<'_, D>,
    [parameters, stats, first, second, average]: [D::Mut<'_>; Section::COUNT],
) -> Result<UpdateInfo, EngineError> {
    let settled = settle(facts, optimizer, step, reduced.divisor, look(device, facts, reduced))?;
    if let Some(scale) = settled.scale {
        let (grads, _) = reduced.parts(facts);
        optimizer.apply(
            device,
            step,
            Factors::known(scale),
            runs,
            grads,
            Buffers::<D> { parameters, first, second, average },
        );
    }
    reduced.blend(device, facts, &settled, stats);
    Ok(settled.info)
}
