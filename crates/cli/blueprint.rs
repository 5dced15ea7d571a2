//! How the model of a configuration is made for samples of a kind: its stages, its loss, its input.
//!
//! It needs no data, so that a trained model can be used where its training data are not.

use crate::config::{ClassWeights, Config, Gpt, Loss, Model, Over, Pool, Precision, Problem, StemKind};
use crate::error::CliError;
use crate::own::Own;
use dtrain_cuda::CudaDevice;
use dtrain_data::{IGNORED, InputSpec, Mix, SampleSpec, TargetSpec};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Device;
use dtrain_engine::models::{
    CnnOptions, EncoderOptions, GptOptions, LlamaOptions, MlpOptions, PoolPlace, RecurrentOptions,
    ResNetOptions, Stem, cnn, cnn1d, cnn3d, gpt, gpt2, llama, mlp, recurrent, resnet, transformer, vit,
};
use dtrain_engine::stage::KvCache;
use dtrain_engine::stages::Chain;
use dtrain_engine::{EngineError, LossScaling, stage};

/// Below so many pixels on a side the stem of a residual network is small.
const SMALL: usize = 64;

/// How the blocks of a model are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Once: what the backward pass needs is kept.
    Once,
    /// Once more in the backward pass: only their outputs are kept.
    Twice,
}

impl Blocks {
    /// A model whose blocks are computed so.
    #[must_use]
    pub fn of<D: Device>(self, chain: Chain<D>) -> Chain<D> {
        match self {
            Self::Once => chain,
            Self::Twice => chain.recomputed(),
        }
    }
}

/// A configuration, and what its samples are.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// What the samples look like.
    pub spec: &'a SampleSpec,
    /// How many training samples each class has, where that is known.
    pub class_counts: &'a [u64],
    /// What the program brings, if it is not the binary.
    pub own: Option<Own>,
    /// How training samples are mixed.
    pub mix: Mix,
}

impl Blueprint<'_> {
    /// The model on a CPU, for micro-batches of so many rows, and of which it takes so many at once.
    ///
    /// *Errors*: a model that does not fit the samples.
    pub fn model(
        &self,
        device: &Cpu,
        (rows, group): (u32, u32),
        blocks: Blocks,
    ) -> Result<dtrain_engine::Model<Cpu>, CliError> {
        let chain = || match (&self.config.model, self.own) {
            (Model::Own, Some(own)) => Ok(blocks.of((own.model)(self.spec))),
            _ => self.chain(blocks),
        };
        let input = self.input_shape(rows);
        let model = dtrain_engine::Model::in_groups(device, chain, input, self.loss()?, group);
        let completed = model.and_then(|model| self.completed(model));
        Ok(completed.map_err(|error| misfit(self.config, &error))?)
    }

    /// The model on a CPU for whoever goes on with texts, at most so many tokens at once; nothing where it needs all of a text each time.
    ///
    /// *Errors*: a model that does not fit the samples.
    pub fn decoding_model(
        &self,
        device: &Cpu,
        tokens: usize,
        kv_cache: KvCache,
    ) -> Result<Option<dtrain_engine::Model<Cpu>>, CliError> {
        let (chain, loss) = (self.chain(Blocks::Once), self.loss()?);
        let model = chain.and_then(|chain| {
            let model = dtrain_engine::Model::decoding(device, chain, tokens, kv_cache, loss)?;
            model.map(|model| self.completed(model)).transpose()
        });
        Ok(model.map_err(|error| misfit(self.config, &error))?)
    }

    /// The model as a GPU has it, for micro-batches of so many rows.
    ///
    /// *Errors*: a model that does not fit the samples.
    pub fn gpu_model(
        &self,
        device: &CudaDevice,
        rows: u32,
        blocks: Blocks,
        loss: &dtrain_engine::Loss,
    ) -> Result<dtrain_engine::Model<CudaDevice>, EngineError> {
        let chain = match (&self.config.model, self.own.and_then(|own| own.gpu_model)) {
            (Model::Own, Some(model)) => blocks.of(model(self.spec)),
            _ => self.chain(blocks)?,
        };
        let model = dtrain_engine::Model::new(device, chain, self.input_shape(rows), loss.clone())?;
        self.completed(model)
    }

    /// The model with its groups of parameters, for targets as they are trained on, and with a loss that is scaled where small
    /// gradients would be lost otherwise.
    ///
    /// *Errors*: a group that has no parameter; a micro-batch or targets that cannot be mixed.
    pub fn completed<D: Device>(
        &self,
        model: dtrain_engine::Model<D>,
    ) -> Result<dtrain_engine::Model<D>, EngineError> {
        let model = match self.config.precision {
            Precision::F16 => model.scaling_loss(LossScaling::default()),
            Precision::F32 | Precision::Tf32 | Precision::Bf16 => model,
        };
        let model = if self.mix.is_none() { model } else { model.mixing_targets()? };
        model.grouped(&self.config.optimizer.grouping)
    }

    /// What goes in for so many rows.
    #[must_use]
    pub fn input_shape(&self, rows: u32) -> stage::Shape {
        let rows = rows as usize;
        match &self.spec.input {
            InputSpec::Values { shape } => {
                let sample = self.config.model.over().and_then(|over| over.sample(shape));
                stage::Shape::values(rows, sample.as_ref().unwrap_or(shape))
            }
            InputSpec::Tokens { length, .. } => stage::Shape::Tokens { rows, time: *length },
        }
    }

    /// Height and width of images; nothing where samples are something else.
    fn sides(&self) -> Option<[usize; 2]> {
        match &self.spec.input {
            InputSpec::Values { shape } => match shape[..] {
                [_, height, width] => Some([height, width]),
                _ => None,
            },
            InputSpec::Tokens { .. } => None,
        }
    }

    fn shortest_side(&self) -> usize {
        self.sides().map_or(0, |[height, width]| height.min(width))
    }

    /// The side of patches: the greatest up to 16 that cuts an image into whole ones, of which there are 7 x 7 or more.
    fn patch(&self) -> usize {
        let Some([height, width]) = self.sides() else { return 1 };
        let most = (height.min(width) / 7).clamp(1, 16);
        let fits = |side: &usize| height.is_multiple_of(*side) && width.is_multiple_of(*side);
        (1..=most).rev().find(fits).unwrap_or(1)
    }

    /// How many token ids there are.
    fn vocabulary(&self) -> usize {
        match self.spec.input {
            InputSpec::Tokens { vocabulary, .. } => vocabulary as usize,
            InputSpec::Values { .. } => 0,
        }
    }

    /// How many numbers come out for a sample, or for a token.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match self.spec.target {
            TargetSpec::Class { classes } | TargetSpec::ClassPerToken { classes } => classes as usize,
            TargetSpec::Values { width } => width,
        }
    }

    /// The stages of a built-in model, with its blocks computed in this way. *Panics* for a program's own.
    pub fn chain<D: Device>(&self, blocks: Blocks) -> Result<Chain<D>, EngineError> {
        let chain = match &self.config.model {
            Model::Mlp { hidden, batch_norm, dropout, .. } => {
                let (hidden, dropout) = (hidden.clone(), *dropout as f32);
                mlp(&MlpOptions { hidden, dropout, batch_norm: *batch_norm }, self.outputs())
            }
            Model::Cnn { over, channels, kernel, padding, pool, hidden, batch_norm, dropout, .. } => {
                let options = CnnOptions {
                    channels: channels.clone(),
                    kernel: *kernel,
                    padding: *padding,
                    pool: match pool {
                        Pool::Each => PoolPlace::Each,
                        Pool::Last => PoolPlace::Last,
                    },
                    hidden: hidden.clone(),
                    batch_norm: *batch_norm,
                    dropout: *dropout as f32,
                };
                match over {
                    Over::Sequences => cnn1d(&options, self.outputs()),
                    Over::Images => cnn(&options, self.outputs()),
                    Over::Volumes => cnn3d(&options, self.outputs()),
                }
            }
            Model::ResNet { depth, width, stem, .. } => {
                let stem = match stem {
                    StemKind::Large => Stem::Large,
                    StemKind::Small => Stem::Small,
                    StemKind::Auto if self.shortest_side() < SMALL => Stem::Small,
                    StemKind::Auto => Stem::Large,
                };
                resnet(&ResNetOptions { depth: *depth, width: *width, stem }, self.outputs())
            }
            Model::Encoder { over, patch, layers, width, heads, dropout, .. } => {
                let (layers, width, heads) = (*layers, *width, *heads);
                let options = EncoderOptions { layers, width, heads, dropout: *dropout as f32 };
                match over {
                    Over::Images => vit(&options, patch.unwrap_or_else(|| self.patch()), self.outputs()),
                    Over::Sequences | Over::Volumes => transformer(&options, self.outputs()),
                }
            }
            Model::Recurrent { cell, layers, width, dropout, .. } => {
                let (cell, layers, width) = (*cell, *layers, *width);
                let options = RecurrentOptions { cell, layers, width, dropout: *dropout as f32 };
                recurrent(&options, self.outputs())
            }
            Model::Llama(options) => llama(&LlamaOptions { vocabulary: self.vocabulary(), ..*options }),
            Model::Own | Model::Torch => {
                panic!("own data was opened by its program, which has the model")
            }
            Model::Gpt { like, layers, width, heads, dropout, .. } => {
                let options = GptOptions {
                    vocabulary: self.vocabulary(),
                    context: self.spec.input_width(),
                    layers: *layers,
                    width: *width,
                    heads: *heads,
                    dropout: *dropout as f32,
                };
                match like {
                    Gpt::Small => gpt(&options),
                    Gpt::Gpt2 => gpt2(&options),
                }
            }
        };
        Ok(blocks.of(chain?))
    }

    /// What is made small.
    ///
    /// *Errors*: balanced weights of a class without a sample.
    pub fn loss(&self) -> Result<dtrain_engine::Loss, CliError> {
        let Loss::CrossEntropy { label_smoothing, class_weights, ignore_index } = &self.config.loss else {
            // That of a program is its own.
            return Ok(dtrain_engine::Loss::MeanSquaredError);
        };
        let class_weights = match class_weights {
            ClassWeights::None => Vec::new(),
            ClassWeights::Given(weights) => weights.clone(),
            ClassWeights::Balanced => self.balanced()?,
        };
        // A negative label is no class of any data set here: nothing has it, so nothing is ignored but what data of tokens leave out.
        let ignore_index = ignore_index.and_then(|index| u32::try_from(index).ok());
        let leaves_out = matches!(self.spec.target, TargetSpec::ClassPerToken { .. });
        let ignore_index = ignore_index.or(leaves_out.then_some(IGNORED));
        Ok(dtrain_engine::Loss::CrossEntropy {
            label_smoothing: *label_smoothing as f32,
            class_weights,
            ignore_index,
        })
    }

    /// `samples / (classes * count)`, as scikit-learn weighs classes.
    fn balanced(&self) -> Result<Vec<f32>, CliError> {
        let counts = self.class_counts;
        if let Some(absent) = counts.iter().position(|count| *count == 0) {
            let problem =
                self.config.problem("loss.class_weights", format!("class {absent} has no training sample"));
            return Err(problem.hint("give one weight a class, or none").into());
        }
        let (total, count) = (counts.iter().sum::<u64>() as f64, counts.len() as f64);
        Ok(counts.iter().map(|n| (total / (count * *n as f64)) as f32).collect())
    }
}

/// The engine's complaint under the key that it names.
pub fn misfit(config: &Config, error: &EngineError) -> Problem {
    let text = error.to_string();
    match error {
        EngineError::Option { key, reason } => config.problem(key, reason.clone()).hint("change this key"),
        EngineError::Loss(_) => config.problem("loss.kind", text).hint("loss and targets must fit"),
        _ => config.problem("model.kind", text).hint("a smaller model, other data, or another model.kind"),
    }
}
