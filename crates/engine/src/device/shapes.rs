//! What operations are over: the shapes of products, poolings, norms and attention, and what they read and write.
//!
//! It does not know who computes them; convolutions and recurrent layers have files of their own.

use dtrain_types::Wire;
use serde::{Deserialize, Serialize};

/// A matrix in a flat buffer, from its first element: element `(r, c)` lies at `r * row + c * col`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Elements from one row to the next.
    pub row: usize,
    /// Elements from one column to the next.
    pub col: usize,
}

impl Strides {
    /// Rows one after another, `width` elements each.
    #[must_use]
    pub fn rows(width: usize) -> Self {
        Self { row: width, col: 1 }
    }

    /// The transpose of a row-major matrix with rows of `width` elements.
    #[must_use]
    pub fn transposed(width: usize) -> Self {
        Self { row: 1, col: width }
    }
}

/// The leaves of a sum: what one micro-batch adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Terms of each; the last may have fewer.
    pub terms: usize,
    /// What leaves and sums of leaves are rounded to.
    pub wire: Wire,
}

/// The full shape of a product `C[m, n] = A[m, k] B[k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of `A` and `C`.
    pub m: usize,
    /// Columns of `B` and `C`.
    pub n: usize,
    /// Columns of `A`, rows of `B`: summed in fixed blocks of at most 512, each in order by fused multiply-add.
    pub k: usize,
    /// How `A` lies.
    pub a: Strides,
    /// How `B` lies.
    pub b: Strides,
    /// Elements from one row of `C` to the next; its columns are contiguous.
    pub c_row: usize,
    /// What happens to an element of `C` after the sum.
    pub write: Write,
}

/// The newest tokens of texts that are as long, of which a pass takes no others. Its rows are those of the first text, then those of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Tokens of each text in the passes before.
    pub seen: usize,
    /// Tokens of each text in this one.
    pub count: usize,
}

/// How a product's result reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `C = sum`.
    Set,
    /// `C = C + sum`.
    Add,
}

/// Point-wise functions that can be fused behind a product with a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `y = x`.
    None,
    /// `y = max(x, 0)`; its derivative at 0 is 0.
    Relu,
}

/// An activation whose gradient is made of what was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// ReLU: its outputs are kept.
    Relu,
    /// GELU: its inputs are kept.
    Gelu(Gelu),
}

/// A form of GELU, which is a stage too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// `x Phi(x)`, Phi the exact normal distribution (f32 accuracy).
    Exact,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, which models of the GPT-2 family have for it.
    Tanh,
}

/// A pooling window over `x: [planes, H, W]`, `y: [planes, OH, OW]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2d {
    /// Images times channels.
    pub planes: usize,
    /// Input height and width.
    pub size: [usize; 2],
    /// Window height and width.
    pub window: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Places around the plane that no maximum is taken from; at most half a window. Of averages 0.
    pub padding: [usize; 2],
}

impl Pool2d {
    /// Output height and width.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        [0, 1].map(|d| (self.size[d] + 2 * self.padding[d] - self.window[d]) / self.stride[d] + 1)
    }
}

/// What a position of self-attention sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// Itself and those before it.
    #[default]
    Causal,
    /// All of its sequence.
    None,
}

/// Self-attention over packed `qkv: [B, T, 3, heads, head]`, output `[B, T, heads, head]`; the scale is
/// `1 / sqrt(head)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Positions of a sequence.
    pub time: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head: usize,
    /// What each position sees.
    pub mask: Mask,
}

/// `x: [rows, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

/// What a norm over rows takes off each element before it divides by the root of the mean of squares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// The mean of the row: layer norm.
    Mean,
    /// Nothing: RMS norm.
    Zero,
}

/// A norm over rows: layer norm, or RMS norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNorm {
    /// The rows.
    pub rows: Rows,
    /// What each element is taken from.
    pub centre: Centre,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl RowNorm {
    /// Layer norm.
    #[must_use]
    pub fn layer(rows: Rows, epsilon: f32) -> Self {
        Self { rows, centre: Centre::Mean, epsilon }
    }

    /// RMS norm.
    #[must_use]
    pub fn rms(rows: Rows, epsilon: f32) -> Self {
        Self { rows, centre: Centre::Zero, epsilon }
    }
}

/// Rotary positions of packed queries, keys and values `x: [B, T, heads + 2 kv_heads, head]`: queries and keys are turned by the angles of
/// their places, and keys and values come to be there for each head of their group, `y: [B, T, 3, heads, head]`. Group `g` is the heads
/// from `g heads / kv_heads` on.
///
/// The elements `i` and `i + head / 2` of a head are a point in a plane, which is turned by its place times its speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryShape {
    /// Sequences.
    pub batch: usize,
    /// Positions of a sequence.
    pub time: usize,
    /// The place of the first of them.
    pub first: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys, and of values; they divide `heads`.
    pub kv_heads: usize,
    /// Width of a head, which is even and at most [`RotaryShape::MOST_HEAD`].
    pub head: usize,
    /// How fast planes turn.
    pub speeds: RotarySpeeds,
}

/// How far the planes of a head turn a place: `f (slowed + s (1 - slowed))`, of `f = rate^plane` and `s = slope f + shift`, which is no
/// less than 0 and no more than 1. In f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotarySpeeds {
    /// How much slower each plane turns than the one before.
    pub rate: f64,
    /// What slow planes are slowed down to; 1 leaves all as they are.
    pub slowed: f64,
    /// How much less of that a faster plane has.
    pub slope: f64,
    /// Where that begins.
    pub shift: f64,
}

/// How positions are scaled, so that a model sees more of them than it was first trained on. *Source*: `rope_parameters` of Hugging Face's
/// transformers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Places are so many times nearer to one another.
    Linear {
        /// How many times.
        factor: f64,
    },
    /// So they are for planes that turn less than `low` times in a context of so many places; those that turn more than `high` times in it
    /// stay as they are, and between them it changes evenly.
    Llama3 {
        /// How many times nearer.
        factor: f64,
        /// Turns below which a plane is slow.
        low: f64,
        /// Turns above which a plane is fast.
        high: f64,
        /// Places of the first training.
        context: f64,
    },
}

impl RotarySpeeds {
    /// Those of a head of this width, whose last plane turns by nearly `1 / theta` a place. The rate is a root that is the same everywhere,
    /// which no library's root promises.
    #[must_use]
    pub fn new(theta: f64, head: usize, scaling: RopeScaling) -> Self {
        let plain = Self { rate: Self::root(theta, (head / 2).max(1)), slowed: 1.0, slope: 0.0, shift: 0.0 };
        match scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => Self { slowed: 1.0 / factor, ..plain },
            RopeScaling::Llama3 { factor, low, high, context } => Self {
                slowed: 1.0 / factor,
                slope: context / (2.0 * std::f64::consts::PI * (high - low)),
                shift: -low / (high - low),
                ..plain
            },
        }
    }

    /// How far a plane turns a place.
    #[must_use]
    #[inline(always)]
    pub fn of(&self, plane: usize) -> f64 {
        let (mut speed, mut square) = (1.0f64, self.rate);
        for bit in 0..(RotaryShape::MOST_HEAD / 2).ilog2() {
            speed = if plane >> bit & 1 == 0 { speed } else { speed * square };
            square *= square;
        }
        let fast = (self.slope * speed + self.shift).clamp(0.0, 1.0);
        speed * (self.slowed + fast * (1.0 - self.slowed))
    }

    /// The root of `1 / theta`, which is above 0 and at most 1.
    fn root(theta: f64, power: usize) -> f64 {
        let goal = 1.0 / theta;
        let mut rate = 1.0f64;
        // Newton's steps come from above, first by a share of themselves, at the end by halves of the digits.
        for _ in 0..100 * power {
            let below = (1..power).fold(1.0, |product, _| product * rate);
            let next = rate - (below * rate - goal) / (power as f64 * below);
            if next >= rate {
                break;
            }
            rate = next;
        }
        rate
    }
}

impl RotaryShape {
    /// The widest head.
    pub const MOST_HEAD: usize = 512;

    /// Whether heads fit.
    ///
    /// *Panics* if they do not.
    #[track_caller]
    pub fn check(&self) {
        let Self { heads, kv_heads, head, .. } = *self;
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads of queries, {kv_heads} of keys"
        );
        let fits = head > 0 && head.is_multiple_of(2) && head <= Self::MOST_HEAD;
        assert!(fits, "heads of {head} elements");
    }

    /// Rows of `x` and of `y`.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.batch * self.time
    }

    /// Elements of a row of `x`.
    #[must_use]
    pub fn packed(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head
    }

    /// Elements of a row of `y`.
    #[must_use]
    pub fn spread(&self) -> usize {
        3 * self.heads * self.head
    }
}

/// A linear layer: `x: [rows, inputs]`, `w: [outputs, inputs]`, `y: [rows, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row of `x`.
    pub inputs: usize,
    /// Elements of a row of `y`.
    pub outputs: usize,
}

impl LinearShape {
    /// The layer that makes `y` of rows with so many inputs.
    #[must_use]
    pub fn new(y: Rows, inputs: usize) -> Self {
        Self { rows: y.rows, inputs, outputs: y.width }
    }
}

/// What a linear layer or a convolution reads.
#[derive(Clone, Copy, Debug)]
pub struct Operands<X, B = X> {
    /// The inputs.
    pub x: X,
    /// The weights.
    pub w: X,
    /// One element for each output, added to the sum.
    pub bias: Option<B>,
}

/// What a norm multiplies and adds, an element for each channel.
#[derive(Clone, Copy, Debug)]
pub struct Affine<R> {
    /// The factors.
    pub gain: R,
    /// What is added.
    pub bias: R,
}

/// What batch norm writes.
#[derive(Debug)]
pub struct BatchNormOutputs<M> {
    /// The outputs.
    pub y: M,
    /// `[channels, 2]`: mean and reciprocal deviation, for the gradient.
    pub saved: M,
    /// `[2, channels]`: images x mean, then images x unbiased variance, for the running statistics.
    pub sums: M,
}

/// What the gradient of a norm reads.
#[derive(Clone, Copy, Debug)]
pub struct NormInputs<R> {
    /// The inputs of the forward pass.
    pub x: R,
    /// The factors.
    pub gain: R,
    /// What the forward pass saved.
    pub saved: R,
    /// The gradient of the outputs.
    pub dy: R,
}

/// What the gradient of a norm writes.
#[derive(Debug)]
pub struct NormGradients<M> {
    /// Of the inputs, if anybody asks.
    pub dx: Option<M>,
    /// Of the factors.
    pub dgain: M,
    /// Of what is added, if anything is.
    pub dbias: Option<M>,
}

/// What the gradient of attention reads.
#[derive(Clone, Copy, Debug)]
pub struct Attended<R, F = R> {
    /// Queries, keys and values of the forward pass.
    pub qkv: R,
    /// Its outputs.
    pub y: R,
    /// What it saved.
    pub saved: F,
    /// The gradient of the outputs.
    pub dy: R,
}

/// Batch norm over `x: [images, channels, area]`, per channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelNorm {
    /// Images in the micro-batch.
    pub images: usize,
    /// Channels.
    pub channels: usize,
    /// Values of a channel in one image.
    pub area: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Matrices one behind the other, `x: [matrices, rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// How many.
    pub matrices: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub columns: usize,
}
