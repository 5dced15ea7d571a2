//! The fingerprint of a device that the host reaches by copies alone: two training steps of small models.
//!
//! The CPU's fingerprint runs each operation by itself, on lists of the host. Here the models that are built in stand for the
//! operations: together they use all of them, forwards, backwards and in both updates.

use crate::batch::{BatchView, Inputs, Targets};
use crate::device::{Cell, Device};
use crate::device_replica::DeviceReplica;
use crate::error::EngineError;
use crate::loss::Loss;
use crate::model::Model;
use crate::models::{
    CnnOptions, EncoderOptions, GptOptions, LlamaOptions, MlpOptions, PoolPlace, cnn, cnn3d, gpt, gpt2,
    llama, mlp, peer, vit,
};
use crate::muon::Muon;
use crate::optimizer::{Optimizer, Rule};
use crate::own_memory::OwnMemory;
use crate::replica::{Replica, micro_batch};
use crate::schedule::LrSchedule;
use crate::stage::Shape;
use crate::stages::{Chain, Expr, Linear, Recurrent, Take, Traced, Turn};
use dtrain_types::{Digest, Fingerprint, MicroBatch, Seed, Step};

pub(crate) const SEED: Seed = Seed(0x5e1f);
const ROWS: usize = 3;
const CLASSES: usize = 5;
const TIME: usize = 9;

/// A small model, and what it learns from.
pub(crate) struct Trial<D: Device> {
    pub stages: Chain<D>,
    pub input: Shape,
    pub loss: Loss,
    pub rule: Rule,
}

/// All of them.
pub(crate) fn trials<D: Device>() -> Result<[Trial<D>; 8], EngineError> {
    let cross_entropy =
        Loss::CrossEntropy { label_smoothing: 0.1, class_weights: Vec::new(), ignore_index: None };
    let images = CnnOptions {
        channels: vec![3, 4],
        pool: PoolPlace::Last,
        hidden: vec![8],
        dropout: 0.2,
        ..CnnOptions::default()
    };
    let text =
        GptOptions { vocabulary: CLASSES, context: TIME, layers: 1, width: 16, heads: 2, dropout: 0.1 };
    // Two heads of queries share one of keys and values.
    let family = LlamaOptions {
        vocabulary: CLASSES,
        layers: 1,
        width: 16,
        heads: 4,
        kv_heads: 2,
        feed_forward: 24,
        tied: true,
        ..LlamaOptions::default()
    };
    let patches = EncoderOptions { layers: 1, width: 16, heads: 2, dropout: 0.1 };
    // Recurrent layers of both kinds, and behind them a block that multiplies: each value by a number, and by what one decides of all.
    let sequences = Chain::new()
        .then(Turn::new())
        .then(Recurrent::new(Cell::Lstm, 7))
        .then(Recurrent::new(Cell::Gru, 6).layer(1))
        .then(Traced::new(|x: Expr<D>| {
            let doors = x.through("last", Take::last()).through("doors", Linear::new(TIME)).sigmoid();
            (x.clone() * x) * doors
        }))
        .then(Take::last())
        .then(Linear::new(CLASSES));
    let momentum = Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    Ok([
        Trial {
            stages: mlp(&MlpOptions { hidden: vec![17], ..MlpOptions::default() }, CLASSES)?,
            // Longer than a block of K.
            input: Shape::values(ROWS, &[520]),
            loss: Loss::MeanSquaredError,
            rule: momentum,
        },
        Trial {
            stages: cnn(&images, CLASSES)?,
            input: Shape::values(ROWS, &[2, 8, 8]),
            loss: cross_entropy.clone(),
            rule: Rule::adamw(),
        },
        Trial {
            stages: cnn3d(&images, CLASSES)?,
            input: Shape::values(ROWS, &[2, 3, 4, 5]),
            loss: cross_entropy.clone(),
            rule: Rule::adamw(),
        },
        Trial {
            stages: gpt(&text)?,
            input: Shape::Tokens { rows: ROWS, time: TIME },
            loss: cross_entropy.clone(),
            rule: Rule::adamw(),
        },
        Trial {
            stages: gpt2(&text)?,
            input: Shape::Tokens { rows: ROWS, time: TIME },
            loss: cross_entropy.clone(),
            rule: Rule::adamw(),
        },
        Trial {
            stages: vit(&patches, 4, CLASSES)?,
            input: Shape::values(ROWS, &[2, 8, 8]),
            loss: cross_entropy.clone(),
            rule: Rule::Muon(Muon::default()),
        },
        Trial {
            stages: sequences,
            input: Shape::values(ROWS, &[2, TIME]),
            loss: cross_entropy.clone(),
            rule: Rule::adamw(),
        },
        Trial {
            stages: llama(&family)?,
            input: Shape::Tokens { rows: ROWS, time: TIME },
            loss: cross_entropy,
            rule: Rule::adamw(),
        },
    ])
}

/// Runs the self-test on devices that `open` gives; `name` is for people, `kernels` the revision of the kernels.
///
/// *Blocks*. *Errors*: of the device.
pub fn device_fingerprint<D: OwnMemory>(
    open: impl Fn() -> Result<D, EngineError>,
    name: String,
    kernels: u32,
) -> Result<Fingerprint, EngineError> {
    let mut hash = blake3::Hasher::new();
    for trial in trials()? {
        let device = open()?;
        let model = Model::new(&device, trial.stages, trial.input.clone(), trial.loss.clone())?;
        let optimizer =
            Optimizer { clip_norm: Some(1.0), ..Optimizer::new(trial.rule, LrSchedule::constant(1e-2)) };
        let mut replica = DeviceReplica::new(device, model, optimizer, SEED)?;
        learn(&mut replica, &trial.input, &trial.loss, &mut hash)?;
    }
    Ok(Fingerprint { isa: name, self_test: Digest(*hash.finalize().as_bytes()), kernel_revision: kernels })
}

/// What a model of a trial learns from.
pub(crate) struct Lesson {
    takes_values: bool,
    has_classes: bool,
    values: Vec<f32>,
    tokens: Vec<u32>,
    wanted: Vec<f32>,
    classes: Vec<u32>,
}

impl Lesson {
    pub fn new(input: &Shape, loss: &Loss) -> Self {
        let takes_values = matches!(input, Shape::Values { .. });
        let places = if takes_values { ROWS } else { ROWS * TIME };
        Self {
            takes_values,
            has_classes: matches!(loss, Loss::CrossEntropy { .. }),
            values: peer::uniform(1, ROWS * input.per_row(), 1.0),
            tokens: peer::integers(2, ROWS * TIME, CLASSES as u32),
            wanted: peer::uniform(3, places * CLASSES, 1.0),
            classes: peer::integers(4, places, CLASSES as u32),
        }
    }

    /// The one batch.
    pub fn batch(&self) -> BatchView<'_> {
        let inputs =
            if self.takes_values { Inputs::Values(&self.values) } else { Inputs::Tokens(&self.tokens) };
        let targets =
            if self.has_classes { Targets::Classes(&self.classes) } else { Targets::Values(&self.wanted) };
        BatchView { rows: ROWS, inputs, targets }
    }
}

/// Two steps, whose losses and states are hashed.
fn learn(
    replica: &mut dyn Replica,
    input: &Shape,
    loss: &Loss,
    hash: &mut blake3::Hasher,
) -> Result<(), EngineError> {
    let lesson = Lesson::new(input, loss);
    let mut gradient = vec![0.0; replica.about().gradient_len()];
    for step in [Step(1), Step(2)] {
        let figures = micro_batch(replica, step, MicroBatch(0), &lesson.batch(), &mut gradient)?;
        hash.update(&figures.sums.loss.to_bits().to_le_bytes());
        replica.update(step, &gradient, figures.sums.weight, figures.samples)?;
    }
    hash.update(&replica.bring_state()?.state_digest());
    Ok(())
}
