//! A stage: one block of a model, one contiguous slice of the flat buffers.
//!
//! The engine walks the stages forwards and backwards; a stage never sees another's parameters. What it needs to
//! keep for the backward pass and as scratch it plans once, as lengths; nothing is allocated in a step.
//!
//! A stage does not know the optimizer, the rank, the reduction or the files.

use crate::describe::Description;
use crate::device::{Device, Newest};
use crate::param_layout::{ParamLayout, Parameter};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step, Wire};
use std::ops::Range;

/// The shape of what flows between stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// f32 values `[rows, dims...]`.
    Values {
        /// Samples of the greatest micro-batch.
        rows: usize,
        /// The shape of a sample: `[features]`, `[channels, height, width]`, `[time, width]`.
        dims: Vec<usize>,
    },
    /// Token ids `[rows, time]`.
    Tokens {
        /// Samples of the greatest micro-batch.
        rows: usize,
        /// Tokens of a sample.
        time: usize,
    },
}

impl Shape {
    /// f32 values `[rows, dims...]`.
    #[must_use]
    pub fn values(rows: usize, dims: &[usize]) -> Self {
        Self::Values { rows, dims: dims.to_vec() }
    }

    /// Samples of the greatest micro-batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Values { rows, .. } | Self::Tokens { rows, .. } => *rows,
        }
    }

    /// The same for another number of samples.
    #[must_use]
    pub(crate) fn with_rows(&self, rows: usize) -> Self {
        match self {
            Self::Values { dims, .. } => Self::Values { rows, dims: dims.clone() },
            Self::Tokens { time, .. } => Self::Tokens { rows, time: *time },
        }
    }

    /// Elements of one sample.
    #[must_use]
    pub fn per_row(&self) -> usize {
        match self {
            Self::Values { dims, .. } => dims.iter().product(),
            Self::Tokens { time, .. } => *time,
        }
    }

    /// The shape of a sample of values.
    ///
    /// *Errors*: token ids, as a sentence for people.
    pub fn dims(&self) -> Result<&[usize], String> {
        match self {
            Self::Values { dims, .. } if dims.iter().all(|d| *d > 0) => Ok(dims),
            Self::Values { dims, .. } => Err(format!("its input has the empty shape {dims:?}")),
            Self::Tokens { .. } => {
                Err("it takes values, but its input is token ids: put an embedding first".into())
            }
        }
    }

    /// The last dimension of a sample of values: what linear layers and layer norms work on.
    ///
    /// *Errors*: token ids or a sample without dimensions.
    pub fn width(&self) -> Result<usize, String> {
        self.dims()?.last().copied().ok_or_else(|| "its input has no dimension".into())
    }

    /// A sample of values as `[channels, height, width]`.
    ///
    /// *Errors*: any other number of dimensions.
    pub fn image(&self) -> Result<[usize; 3], String> {
        let (channels, [_, height, width]) = self.image_of(2)?;
        Ok([channels, height, width])
    }

    /// A sample of values as channels and one to three sides behind them: depth, height and width, where what is missing is 1.
    ///
    /// *Errors*: any other number of dimensions. *Panics*: more than three sides.
    pub fn image_of(&self, sides: usize) -> Result<(usize, [usize; 3]), String> {
        let (dims, names) = (self.dims()?, ["depth", "height", "width"]);
        if dims.len() != sides + 1 {
            let names = if sides == 1 { "length".into() } else { names[3 - sides..].join(", ") };
            return Err(format!("it takes [channels, {names}], its input is {dims:?}"));
        }
        let mut size = [1; 3];
        size[3 - sides..].copy_from_slice(&dims[1..]);
        Ok((dims[0], size))
    }
}

/// Room for the keys and values of texts that a model goes on with: of all their tokens, so that each is computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCache {
    /// Texts at once.
    pub texts: usize,
    /// The most tokens of each.
    pub places: usize,
}

/// What a stage needs during a pass, in elements of f32, and of its micro-batch. For activations it takes
/// [`Device::activation_len`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// Kept from the forward to the backward pass.
    pub saved: usize,
    /// Free for anyone between two stages.
    pub scratch: usize,
    /// The least number of rows that training needs, 0 if it does not matter.
    pub min_rows: usize,
    /// Micro-batches of the greatest pass.
    pub(crate) group: usize,
    /// Where passes take the newest tokens of texts, each as a sample of one place.
    pub(crate) kv_cache: Option<KvCache>,
    sites: u32,
}

impl Default for ArenaPlan {
    /// An empty plan for passes over one micro-batch.
    fn default() -> Self {
        Self { saved: 0, scratch: 0, min_rows: 0, group: 1, kv_cache: None, sites: 0 }
    }
}

impl ArenaPlan {
    /// Call sites of stages are numbered from here; those below belong to initialisation and to the data.
    pub const FIRST_SITE: u32 = 1 << 16;

    /// A call site of its own, for [`Pass::key`].
    pub fn site(&mut self) -> Site {
        self.sites += 1;
        Site(Self::FIRST_SITE + self.sites - 1)
    }

    /// An empty plan for a stage inside this one; call sites go on.
    #[must_use]
    pub fn inner(&self) -> Self {
        Self { sites: self.sites, group: self.group, kv_cache: self.kv_cache, ..Self::default() }
    }

    /// Takes over an inner stage's call sites and its demand on rows.
    pub fn absorb(&mut self, inner: &Self) {
        self.sites = inner.sites;
        self.min_rows = self.min_rows.max(inner.min_rows);
    }
}

/// Whether statistics and gradients are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forward and backward.
    Train,
    /// Forward only: running statistics, no dropout.
    Evaluate,
}

/// One pass over one micro-batch, or over several that follow one another.
pub struct Pass<'a, D: Device> {
    /// The hardware.
    pub device: &'a D,
    /// Train or evaluate.
    pub mode: Mode,
    /// The run's seed.
    pub seed: Seed,
    /// The step, and
    pub step: Step,
    /// the micro-batch, that key the randomness; of several the first.
    pub micro_batch: MicroBatch,
    /// Samples of this pass; at most those planned for.
    pub rows: usize,
    /// Samples of each of its micro-batches; the last may have fewer. Only a stage that [stacks](Stage::stacks) ever
    /// sees more than one.
    pub each: usize,
    /// What each micro-batch's gradient and each sum of them is rounded to, where it has more than one. Of one alone nobody
    /// here rounds anything.
    pub wire: Wire,
    /// Which tokens its rows are, where stages were planned with a [`KvCache`]; then it is an evaluation.
    pub newest: Option<Newest>,
}

impl<D: Device> Pass<'_, D> {
    /// The stream of random numbers of one call site.
    #[must_use]
    pub fn key(&self, site: Site) -> Key {
        Key::new(self.seed, self.step, self.micro_batch, site)
    }

    /// How many micro-batches it is over.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.rows.div_ceil(self.each)
    }

    /// The micro-batch at `place` as a pass of its own, and the rows that are its.
    pub(crate) fn alone(&self, place: usize) -> (Self, Range<usize>) {
        let rows = place * self.each..((place + 1) * self.each).min(self.rows);
        let micro_batch = MicroBatch(self.micro_batch.0 + place as u32);
        (Self { micro_batch, rows: rows.len(), wire: Wire::F32, ..*self }, rows)
    }
}

/// The input of a stage.
pub enum Input<'a, D: Device> {
    /// f32 values.
    Values(D::Ref<'a>),
    /// Token ids.
    Ids(D::Ids<'a>),
}

// Derived implementations would ask that the device itself be `Copy`.
impl<D: Device> Clone for Input<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Input<'_, D> {}

impl<'a, D: Device> Input<'a, D> {
    /// The values. *Panics* on token ids: the plan refuses such a model.
    #[must_use]
    pub fn values(self) -> D::Ref<'a> {
        match self {
            Self::Values(x) => x,
            Self::Ids(_) => panic!("a stage that takes values was planned behind token ids"),
        }
    }

    /// The token ids. *Panics* on values: the plan refuses such a model.
    #[must_use]
    pub fn ids(self) -> D::Ids<'a> {
        match self {
            Self::Ids(ids) => ids,
            Self::Values(_) => panic!("a stage that takes token ids was planned behind values"),
        }
    }

    /// The same input, borrowed for less long.
    #[must_use]
    pub fn shorter<'b>(self) -> Input<'b, D>
    where
        'a: 'b,
    {
        self.part(0..self.len())
    }

    /// Elements of it.
    pub(crate) fn len(&self) -> usize {
        match *self {
            Self::Values(x) => D::len(x),
            Self::Ids(ids) => D::ids_len(ids),
        }
    }

    /// Some elements of it.
    pub(crate) fn part<'b>(self, range: Range<usize>) -> Input<'b, D>
    where
        'a: 'b,
    {
        match self {
            Self::Values(x) => Input::Values(D::part(x, range)),
            Self::Ids(ids) => Input::Ids(D::ids_part(ids, range)),
        }
    }
}

/// What a stage reads and writes in the forward pass. Slices are cut to the rows of this pass.
pub struct Forward<'a, D: Device, P = <D as Device>::Ref<'a>> {
    /// Its parameters.
    pub params: P,
    /// Those of stages inside of it that stay as they are.
    pub frozen: D::Ref<'a>,
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
pub struct Backward<'a, D: Device, G = <D as Device>::Mut<'a>, P = <D as Device>::Ref<'a>> {
    /// Its parameters.
    pub params: P,
    /// Those of stages inside of it that stay as they are.
    pub frozen: D::Ref<'a>,
    /// Its input in the forward pass.
    pub x: Input<'a, D>,
    /// Its output in the forward pass; anything if it does not need it ([`Needs::output`]).
    pub y: D::Ref<'a>,
    /// What it kept.
    pub saved: D::Mut<'a>,
    /// The gradient of its output; see [`Needs::gradient`] for what may become of it.
    pub dy: D::Mut<'a>,
    /// The gradient of its input, overwritten; none for the first stage, and for [`GradientUse::InPlace`].
    pub dx: Option<D::Mut<'a>>,
    /// The gradient of its parameters, overwritten; of no element where they stay as they are ([`Stage::leaves_out_gradients`]).
    pub grads: G,
    /// Scratch; full planned length.
    pub scratch: D::Mut<'a>,
}

/// What a stage does with the gradient of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientUse {
    /// Reads `dy`, writes `dx`.
    Reads,
    /// Writes `dx` and may overwrite `dy`.
    Spoils,
    /// Turns `dy` into the gradient of its input where it lies: input and output have the same length, and there
    /// are no parameters.
    InPlace,
}

/// What a stage relies on, so that the engine can save copies and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Whether the backward pass reads `y`.
    pub output: bool,
    /// What becomes of `dy`.
    pub gradient: GradientUse,
    /// Whether the output is the input under another shape, so that neither pass needs to run.
    pub view: bool,
}

impl Needs {
    /// Nothing is promised: always right.
    pub const ANY: Self = Self { output: true, gradient: GradientUse::Spoils, view: false };
    /// Reads `dy`, writes `dx`, does without `y`.
    pub const PLAIN: Self = Self { output: false, gradient: GradientUse::Reads, view: false };
}

/// One block of a model. See the file's comment.
pub trait Stage<D: Device>: Send + Sync {
    /// What it is: `linear`, `residual`.
    fn kind(&self) -> &'static str;

    /// Names, shapes, offsets, starts; known after [`Stage::plan`].
    fn layout(&self) -> &ParamLayout {
        static NOTHING: ParamLayout = ParamLayout::NOTHING;
        &NOTHING
    }

    /// What it relies on.
    fn needs(&self) -> Needs {
        Needs::ANY
    }

    /// Whether it takes several micro-batches in one pass: what it says of them is then what it would say of each
    /// alone, one behind the other, and the gradients of its parameters (and its statistics) are sums in the order of
    /// the reduction tree. Where it does not, the engine hands it one micro-batch after the other and adds up.
    ///
    /// *Order*: it must not change a bit.
    fn stacks(&self) -> bool {
        false
    }

    /// Whether it is a block of stages, which may be computed again to save memory: see
    /// [`Chain::recomputed`](crate::stages::Chain::recomputed).
    fn is_block(&self) -> bool {
        false
    }

    /// The parameter that a stage behind it may use too, if there is one: the gradient of this one is added to what is
    /// there, because the other one wrote first. See [`Chain::tied`](crate::stages::Chain::tied).
    fn shares(&self) -> Option<&str> {
        None
    }

    /// Whether it can be planned with a [`KvCache`]: what it says of a token follows from that one, or from it and what the stage keeps of the tokens before it.
    ///
    /// *Order*: it must not change a bit.
    fn decodes(&self) -> bool {
        false
    }

    /// How many token ids it knows, if it takes any: greater ones are refused before the pass.
    fn vocabulary(&self) -> Option<usize> {
        None
    }

    /// Learns the shape of its input, says that of its output, and adds what it needs to `space`. Called once,
    /// before everything else.
    ///
    /// *Errors*: an input that does not fit is a sentence for people.
    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String>;

    /// What it is, with what it learned when it was planned; by default one that no other program knows.
    fn describe(&self) -> Description {
        Description::Own(self.kind())
    }

    /// Whether each of its outputs is the greatest of some of its inputs, and the gradient goes to that one alone. What a ReLU in front of
    /// it does to gradients can then be done to those of the outputs, of which there are fewer.
    fn takes_greatest(&self) -> bool {
        false
    }

    /// Takes on what the ReLU that the stage in front of it may end in does to gradients; says whether it does. From then on the gradient of
    /// its input comes out with that done.
    fn take_on_relu(&mut self, _before: &mut dyn Stage<D>) -> bool {
        false
    }

    /// Leaves what its ReLU does to gradients to who comes behind it, if it ends in one; says whether it does. From then on the gradient
    /// of its output comes with that done; one that works in place has nothing left to do, and its backward pass is not called.
    fn leave_relu(&mut self) -> bool {
        false
    }

    /// Whether the rows of its output may lie further apart than they are long: it finds out how far in their length.
    fn pads(&self) -> bool {
        false
    }

    /// Whether [`Stage::forward_plus`] is there: something that is added to the output costs no pass over memory of its own.
    fn adds(&self) -> bool {
        false
    }

    /// Whether [`Stage::backward_plus`] is there.
    fn adds_back(&self) -> bool {
        false
    }

    /// Whether its backward pass does without the gradients of all its parameters, and of what they cost, where `grads` has no element.
    /// One that says so may have its parameters among those that stay as they are; `params` has them then as ever.
    fn leaves_out_gradients(&self) -> bool {
        false
    }

    /// Of a stage that has others inside, which it plans itself: puts the parameters of each that [leaves out gradients](Stage::leaves_out_gradients), and of
    /// which all are to stay as they are, apart from the others ([`ParamLayout::frozen`]). `named` says which these are, by the names that they have with `prefix` in front. Called
    /// once, after [`Stage::plan`].
    fn freeze(&mut self, _prefix: &str, _named: &dyn Fn(&str) -> bool) {}

    /// Computes `y`.
    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>);

    /// Computes `y` and adds `plus` to it. *Panics* where [`Stage::adds`] says no.
    fn forward_plus(&self, _pass: &Pass<'_, D>, _io: Forward<'_, D>, _plus: D::Ref<'_>) {
        panic!("{} adds nothing to its output", self.kind());
    }

    /// Computes the gradients of parameters and input.
    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>);

    /// The same, with `outer` added to the gradient of the input, which is wanted. *Panics* where [`Stage::adds_back`] says no.
    fn backward_plus(&self, _pass: &Pass<'_, D>, _io: Backward<'_, D>, _outer: D::Ref<'_>) {
        panic!("{} adds nothing to the gradient of its input", self.kind());
    }
}

impl<D: Device> dyn Stage<D> {
    /// [Freezes](Stage::freeze) what is inside of it; says whether all of its own is to lie apart.
    pub(crate) fn freeze_inside(&mut self, prefix: &str, named: &dyn Fn(&str) -> bool) -> bool {
        self.freeze(prefix, named);
        let tensors = &self.layout().parameters;
        let is_named = |tensor: &Parameter| named(&format!("{prefix}{}", tensor.name));
        self.leaves_out_gradients() && !tensors.is_empty() && tensors.iter().all(is_named)
    }
}
