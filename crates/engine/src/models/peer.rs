//! The workloads that dtrain and PyTorch are compared on: the same model, the same start, the same data.
//!
//! Numbers come from a hash of (stream, index), so that any program can make them without a file. Every tensor that
//! does not start as a constant has a stream of its own, numbered from 1 in layout order; inputs are stream 1000,
//! targets 1001.

mod large;

pub use large::{Large, gpt2_options};

use super::{CnnOptions, GptOptions, MlpOptions, cnn, gpt, mlp};
use crate::batch::{BatchView, Inputs, Targets};
use crate::device::Device;
use crate::error::EngineError;
use crate::layout::Layout;
use crate::loss::Loss;
use crate::model::Model;
use crate::optimizer::{DecayGroup, Optimizer, Rule};
use crate::param_layout::Init;
use crate::schedule::LrSchedule;
use crate::stage::Shape;
use crate::stages::{Chain, Conv3d, Flatten, Linear};
use crate::state::State;
use dtrain_types::Step;

/// One of the compared workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// 784-1024-1024-10 with ReLU, batches of 128.
    Mlp,
    /// 4 blocks of width 256, 8 heads, context 128, bytes; batches of 8.
    Gpt,
    /// Two convolutions, one pooling, two linear layers on 28 x 28 images; batches of 128.
    Cnn,
    /// Two convolutions over 8 frames of 32 x 32, the second with stride 2, one linear layer; batches of 16.
    Cnn3d,
}

impl Work {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mlp, Self::Gpt, Self::Cnn, Self::Cnn3d];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Gpt => "gpt",
            Self::Cnn => "cnn",
            Self::Cnn3d => "cnn3d",
        }
    }

    /// Samples in a batch, which is one micro-batch.
    #[must_use]
    pub fn batch(self) -> usize {
        match self {
            Self::Mlp | Self::Cnn => 128,
            Self::Gpt => 8,
            Self::Cnn3d => 16,
        }
    }

    /// The model, planned for a batch.
    ///
    /// *Errors*: none that is known; those of [`Model::new`].
    pub fn model<D: Device>(self, device: &D) -> Result<Model<D>, EngineError> {
        self.model_for(device, self.batch())
    }

    /// The same, planned for a batch of `rows` samples: one that fills a GPU.
    ///
    /// *Errors*: as [`Work::model`].
    pub fn model_for<D: Device>(self, device: &D, rows: usize) -> Result<Model<D>, EngineError> {
        let (stages, input) = self.stages(rows)?;
        Model::new(device, stages, input, Loss::cross_entropy())
    }

    /// The model, planned for passes over as many micro-batches of `rows` samples as are of use, at most `most`.
    ///
    /// *Errors*: as [`Work::model`].
    pub fn model_in_groups<D: Device>(
        self,
        device: &D,
        rows: usize,
        most: u32,
    ) -> Result<Model<D>, EngineError> {
        let (_, input) = self.stages::<D>(rows)?;
        let stages = || Ok(self.stages(rows)?.0);
        Model::in_groups(device, stages, input, Loss::cross_entropy(), most)
    }

    /// Its stages, and its input for micro-batches of `rows` samples.
    ///
    /// *Errors*: none that is known.
    pub fn stages<D: Device>(self, rows: usize) -> Result<(Chain<D>, Shape), EngineError> {
        let (stages, input) = match self {
            Self::Mlp => {
                let options = MlpOptions { hidden: vec![1024, 1024], ..MlpOptions::default() };
                (mlp(&options, 10)?, Shape::values(rows, &[784]))
            }
            Self::Gpt => {
                let options = GptOptions::default();
                (gpt(&options)?, Shape::Tokens { rows, time: options.context })
            }
            Self::Cnn => (cnn(&CnnOptions::benchmark(), 10)?, Shape::values(rows, &[1, 28, 28])),
            Self::Cnn3d => (frames(), Shape::values(rows, &[1, 8, 32, 32])),
        };
        Ok((stages, input))
    }

    /// AdamW with learning rate 1e-3 and decay 0.01 on every parameter, as `torch.optim.AdamW` has it.
    #[must_use]
    pub fn optimizer(self) -> Optimizer {
        Optimizer { decays: DecayGroup::All, ..Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-3)) }
    }

    /// The one batch that is fed again and again.
    #[must_use]
    pub fn data(self) -> PeerData {
        self.data_for(self.batch())
    }

    /// The same with `rows` samples; the first ones are those of a smaller batch.
    #[must_use]
    pub fn data_for(self, rows: usize) -> PeerData {
        let of_values = |width: usize| PeerData {
            rows,
            values: uniform(1000, rows * width, 1.0),
            tokens: Vec::new(),
            classes: integers(1001, rows, 10),
        };
        match self {
            Self::Mlp | Self::Cnn => of_values(784),
            Self::Cnn3d => of_values(8 * 32 * 32),
            Self::Gpt => PeerData {
                rows,
                values: Vec::new(),
                tokens: integers(1000, rows * 128, 256),
                classes: integers(1001, rows * 128, 256),
            },
        }
    }
}

/// The stages of [`Work::Cnn3d`].
fn frames<D: Device>() -> Chain<D> {
    Chain::new()
        .named("conv1", Conv3d::new(16, 3).padding(1).relu())
        .named("conv2", Conv3d::new(32, 3).padding(1).stride(2).relu())
        .named("flatten", Flatten)
        .named("fc", Linear::new(10))
}

/// A batch that owns its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerData {
    rows: usize,
    values: Vec<f32>,
    tokens: Vec<u32>,
    classes: Vec<u32>,
}

impl PeerData {
    /// The batch, lent.
    #[must_use]
    pub fn batch(&self) -> BatchView<'_> {
        let inputs = match self.tokens.is_empty() {
            true => Inputs::Values(&self.values),
            false => Inputs::Tokens(&self.tokens),
        };
        BatchView { rows: self.rows, inputs, targets: Targets::Classes(&self.classes) }
    }
}

/// Starts a state from the hash: bounds and deviations are those of the layout, distributions all uniform.
pub fn initialise(layout: &Layout, state: &mut State) {
    let mut stream = 0;
    for tensor in &layout.tensors {
        let to = &mut state.section_mut(tensor.section)[tensor.range()];
        match tensor.init {
            Init::Constant(value) => to.fill(value),
            Init::First(value) => {
                to.fill(0.0);
                to[0] = value;
            }
            Init::Uniform(scale) | Init::Normal(scale) => {
                stream += 1;
                to.iter_mut().enumerate().for_each(|(i, x)| *x = centred(stream, i, scale));
            }
        }
    }
    state.applied = Step(0);
}

/// A number in `[0, 1)`: splitmix64 of `(stream, index)`, the top 24 bits.
#[must_use]
pub fn hash01(stream: u64, index: usize) -> f32 {
    let step = (index as u64).wrapping_mul(0xD1B5_4A32_D192_ED03);
    let mut z = stream.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(step).wrapping_add(0x0123_4567);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 40) as f32 / (1u32 << 24) as f32
}

/// `n` numbers in `[-scale, scale)`.
#[must_use]
pub fn uniform(stream: u64, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| centred(stream, i, scale)).collect()
}

/// `n` integers below `upper`.
#[must_use]
pub fn integers(stream: u64, n: usize, upper: u32) -> Vec<u32> {
    (0..n).map(|i| ((hash01(stream, i) * upper as f32) as u32).min(upper - 1)).collect()
}

fn centred(stream: u64, index: usize, scale: f32) -> f32 {
    (hash01(stream, index) * 2.0 - 1.0) * scale
}
