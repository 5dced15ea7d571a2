//! Whether a device that the host reaches by copies alone computes what the CPU does: the models of its fingerprint, trained twice
//! there and once here.
//!
//! The same bits twice, because that is what a run rests on; near the CPU's, because two wrong results may be the same. It does not
//! know which device it is, nor what its verdict is for.

use crate::cpu::{Cpu, CpuOptions};
use crate::device::Device;
use crate::device_fingerprint::{Lesson, SEED, trials};
use crate::device_replica::DeviceReplica;
use crate::error::EngineError;
use crate::layout::Section;
use crate::loss_scale::LossScaling;
use crate::model::Model;
use crate::model_replica::ModelReplica;
use crate::optimizer::{Optimizer, Rule};
use crate::own_memory::OwnMemory;
use crate::replica::{Replica, micro_batch};
use crate::schedule::LrSchedule;
use dtrain_types::{MicroBatch, Step};

/// Steps of each model.
const STEPS: u64 = 2;

/// What a model came to.
struct Results {
    /// Of each step.
    losses: Vec<f64>,
    /// Of the first step.
    gradient: Vec<f32>,
    /// What the updates did to the parameters.
    update: Vec<f32>,
}

impl Results {
    /// Whether both have the same bits: equal numbers may have others, and what is no number is equal to nothing.
    fn has_bits_of(&self, other: &Self) -> bool {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        let losses = |of: &Self| of.losses.iter().map(|loss| loss.to_bits()).collect::<Vec<u64>>();
        losses(self) == losses(other)
            && bits(&self.gradient) == bits(&other.gradient)
            && bits(&self.update) == bits(&other.update)
    }
}

/// How far a device may be from the CPU: the norm of a difference, as a part of the norm of what the CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Of losses.
    pub losses: f64,
    /// Of gradients.
    pub gradient: f64,
    /// Of what two updates did to the parameters: an element whose gradient is near zero may go either way.
    pub update: f64,
    /// Whether the loss is scaled.
    pub scaling: Option<LossScaling>,
}

fn optimizer(rule: Rule) -> Optimizer {
    Optimizer { clip_norm: Some(1.0), ..Optimizer::new(rule, LrSchedule::constant(1e-3)) }
}

/// Trains every model on a device.
fn results<D: Device, R: Replica>(
    scaling: Option<LossScaling>,
    mut make: impl FnMut(&dyn Fn(&D) -> Result<Model<D>, EngineError>, Optimizer) -> Result<R, EngineError>,
) -> Result<Vec<Results>, EngineError> {
    let count = trials::<D>()?.len();
    let mut all = Vec::new();
    for number in 0..count {
        let (input, loss, rule) = {
            let trial = &trials::<D>()?[number];
            (trial.input.clone(), trial.loss.clone(), trial.rule)
        };
        let model = |device: &D| {
            let trial = trials::<D>()?.into_iter().nth(number).expect("it was counted");
            let model = Model::new(device, trial.stages, trial.input, trial.loss)?;
            Ok(match scaling {
                Some(scaling) => model.scaling_loss(scaling),
                None => model,
            })
        };
        let mut replica = make(&model, optimizer(rule))?;
        let lesson = Lesson::new(&input, &loss);
        let mut gradient = vec![0.0; replica.about().gradient_len()];
        let before = replica.bring_state()?.section(Section::Parameters).to_vec();
        let (mut losses, mut first) = (Vec::new(), Vec::new());
        for step in (1..=STEPS).map(Step) {
            let figures = micro_batch(&mut replica, step, MicroBatch(0), &lesson.batch(), &mut gradient)?;
            losses.push(figures.sums.loss);
            if first.is_empty() {
                first.clone_from(&gradient);
            }
            replica.update(step, &gradient, figures.sums.weight, figures.samples)?;
        }
        let after = replica.bring_state()?.section(Section::Parameters);
        let update = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        all.push(Results { losses, gradient: first, update });
    }
    Ok(all)
}

/// The norm of the difference, as a part of the norm of what is wanted; not a number where one is not finite.
fn distance(found: &[f32], wanted: &[f32]) -> f64 {
    let (mut error, mut norm) = (0.0, 1e-30);
    for (found, wanted) in found.iter().zip(wanted) {
        error += (f64::from(*found) - f64::from(*wanted)).powi(2);
        norm += f64::from(*wanted).powi(2);
    }
    (error / norm).sqrt()
}

/// Whether devices that `open` gives conform, or what does not.
///
/// *Blocks*: for tenths of a second, on a fast device. *Errors*: of the device.
pub fn device_conforms<D: OwnMemory>(
    open: impl Fn() -> Result<D, EngineError>,
    tolerance: Tolerance,
) -> Result<Result<(), String>, EngineError> {
    let Tolerance { losses: of_losses, gradient, update, scaling } = tolerance;
    let there = || {
        results::<D, DeviceReplica<D>>(scaling, |model, optimizer| {
            let device = open()?;
            let model = model(&device)?;
            DeviceReplica::new(device, model, optimizer, SEED)
        })
    };
    let here = results::<Cpu, ModelReplica<Cpu>>(scaling, |model, optimizer| {
        let device =
            Cpu::new(CpuOptions::default()).map_err(|error| EngineError::Device(error.to_string()))?;
        let model = model(&device)?;
        ModelReplica::new(device, model, optimizer, SEED)
    })?;
    let (found, again) = match (there(), there()) {
        // No error of the device, but what it computes.
        (Err(EngineError::NonFinite { step }), _) | (_, Err(EngineError::NonFinite { step })) => {
            return Ok(Err(format!("what step {step} of the test comes to is not finite")));
        }
        (found, again) => (found?, again?),
    };
    for (number, (found, again)) in found.iter().zip(&again).enumerate() {
        if !found.has_bits_of(again) {
            return Ok(Err(format!("model {number} of the test has other bits the second time")));
        }
    }
    for (number, (found, wanted)) in found.iter().zip(&here).enumerate() {
        let losses = found.losses.iter().zip(&wanted.losses);
        let off = losses.map(|(found, wanted)| (found - wanted).abs() / wanted.abs());
        let off = off
            .fold(0.0, |most: f64, off| if off.is_nan() || most.is_nan() { f64::NAN } else { most.max(off) });
        let far = [
            ("losses", off, of_losses),
            ("gradient", distance(&found.gradient, &wanted.gradient), gradient),
            ("updates", distance(&found.update, &wanted.update), update),
        ];
        // What is not a number is not near either.
        if let Some((what, off, most)) = far.into_iter().find(|(_, off, most)| off.is_nan() || off > most) {
            return Ok(Err(format!(
                "the {what} of model {number} of the test are off by {off:.1e}, {most:.0e} is allowed"
            )));
        }
    }
    Ok(Ok(()))
}
