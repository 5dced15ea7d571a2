//! A stage: one block of a model, one contiguous slice of the flat buffers.
//!
//! The engine walks the stages forwards and backwards; a stage never sees another's parameters. What it needs to
//! keep for the backward pass and as scratch it plans once, as lengths; nothing is allocated in a step.
//!
//! A stage does not know the optimizer, the rank, the reduction or the files.

use crate::device::Device;
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};

/// The shape of what flows between stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// f32 values `[rows, dims...]`; `rows` is that of the micro-batch, or batch x time inside a sequence model.
    Values {
        /// Rows of the greatest micro-batch.
        rows: usize,
        /// The shape of a row.
        dims: Vec<usize>,
    },
    /// Token ids `[rows, time]`.
    Tokens {
        /// Rows of the greatest micro-batch.
        rows: usize,
        /// Tokens of a row.
        time: usize,
    },
}

/// One parameter tensor in its stage's slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name within the stage, as PyTorch would call it: `weight`, `qkv.bias`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Offset in the stage's slice, in elements.
    pub offset: usize,
    /// Whether weight decay applies (matrices yes, biases and gains no, as nanoGPT has it).
    pub decays: bool,
    /// How it starts.
    pub init: Init,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f32),
    /// Uniform in `[-bound, bound)`.
    Uniform(f32),
    /// Normal with this deviation.
    Normal(f32),
}

/// What a stage keeps over the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParamLayout {
    /// The parameters, in order of offset, without gaps.
    pub parameters: Vec<Parameter>,
    /// Running statistics, in order of offset, without gaps; they start as `init` says and do not decay.
    pub stats: Vec<Parameter>,
}

/// What a stage needs during a pass, in elements of f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaPlan {
    /// Kept from the forward to the backward pass.
    pub saved: usize,
    /// Free for anyone between two stages.
    pub scratch: usize,
}

/// Whether statistics and gradients are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forward and backward.
    Train,
    /// Forward only: running statistics, no dropout.
    Evaluate,
}

/// One pass over one micro-batch.
#[derive(Clone, Copy)]
pub struct Pass<'a, D: Device> {
    /// The hardware.
    pub device: &'a D,
    /// Train or evaluate.
    pub mode: Mode,
    /// The run's seed.
    pub seed: Seed,
    /// The step, and
    pub step: Step,
    /// the micro-batch, that key the randomness.
    pub micro_batch: MicroBatch,
    /// Rows of this micro-batch; at most those planned for.
    pub rows: usize,
}

impl<D: Device> Pass<'_, D> {
    /// The stream of random numbers of one call site.
    #[must_use]
    pub fn key(&self, site: Site) -> Key {
        Key::new(self.seed, self.step, self.micro_batch, site)
    }
}

/// The input of a stage.
#[derive(Clone, Copy)]
pub enum Input<'a, D: Device> {
    /// f32 values.
    Values(D::Ref<'a>),
    /// Token ids.
    Ids(D::Ids<'a>),
}

/// What a stage reads and writes in the forward pass. Slices are cut to the rows of this pass.
pub struct Forward<'a, D: Device> {
    /// Its parameters.
    pub params: D::Ref<'a>,
    /// Its running statistics.
    pub stats: D::Ref<'a>,
    /// Where the micro-batch's statistics (times rows) go, when training; as long as `stats`.
    pub stat_sums: Option<D::Mut<'a>>,
    /// Its input.
    pub x: Input<'a, D>,
    /// Its output, overwritten.
    pub y: D::Mut<'a>,
    /// What it keeps for the backward pass; full planned length.
    pub saved: D::Mut<'a>,
    /// Scratch; full planned length.
    pub scratch: D::Mut<'a>,
}

/// What a stage reads and writes in the backward pass.
pub struct Backward<'a, D: Device> {
    /// Its parameters.
    pub params: D::Ref<'a>,
    /// Its input in the forward pass.
    pub x: Input<'a, D>,
    /// Its output in the forward pass.
    pub y: D::Ref<'a>,
    /// What it kept.
    pub saved: D::Mut<'a>,
    /// The gradient of its output; it may be overwritten.
    pub dy: D::Mut<'a>,
    /// The gradient of its input, overwritten; none for the first stage.
    pub dx: Option<D::Mut<'a>>,
    /// The gradient of its parameters, overwritten.
    pub grads: D::Mut<'a>,
    /// Scratch; full planned length.
    pub scratch: D::Mut<'a>,
}

/// One block of a model. See the file's comment.
pub trait Stage<D: Device>: Send + Sync {
    /// Its name in a list of layers: `linear`, `block`.
    fn kind(&self) -> &'static str;
    /// Names, shapes, offsets, starts.
    fn layout(&self) -> &ParamLayout;
    /// Its output for this input, after adding what it needs to `space`.
    ///
    /// *Errors*: an input that does not fit is a sentence for people.
    fn plan(&self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String>;
    /// Computes `y`.
    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>);
    /// Computes the gradients of parameters and input.
    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>);
}
