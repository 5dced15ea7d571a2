//! What a planned model is made of, for those who write it down for another program.
//!
//! Parameters are found by their names in the layout. It does not know any format.

use crate::device::{Cell, Gelu, Mask, RopeScaling};

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub enum Description {
    /// `y = x w^T + b` on the last dimension; `weight` is `[outputs, inputs]`.
    Linear {
        /// Width of its input.
        inputs: usize,
        /// Width of its output.
        outputs: usize,
        /// Whether it has a `bias`.
        bias: bool,
        /// The layers that it is side by side, each with its own `weight` and `bias` under this name, and how many outputs it has; none
        /// where it is one.
        parts: Vec<(&'static str, usize)>,
        /// What is behind it.
        behind: Behind,
    },
    /// A convolution; `weight` is `[outputs, channels, kernel...]`. One entry for each dimension.
    Conv {
        /// Channels of its input.
        channels: usize,
        /// Channels of its output.
        outputs: usize,
        /// Sides of the kernel.
        kernel: Vec<usize>,
        /// Steps between windows.
        stride: Vec<usize>,
        /// Zeros on either side.
        padding: Vec<usize>,
        /// Whether it has a `bias`.
        bias: bool,
        /// What is behind it.
        behind: Behind,
    },
    /// Max-pooling.
    MaxPool {
        /// Over how many dimensions.
        dimensions: usize,
        /// Side of a window.
        window: usize,
        /// Steps between windows.
        stride: usize,
        /// Places on either side that no maximum is taken from.
        padding: usize,
    },
    /// Average pooling of images without padding.
    AvgPool {
        /// Sides of a window.
        window: [usize; 2],
        /// Steps between windows.
        stride: [usize; 2],
    },
    /// Batch norm per channel by `running_mean` and `running_var`, then `weight` and `bias`.
    BatchNorm {
        /// How many.
        channels: usize,
        /// Whether a channel has more than one value a sample: then it has so many dimensions.
        dimensions: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Layer norm of the last dimension, then `weight` and `bias`.
    LayerNorm {
        /// Its width.
        width: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// RMS norm of the last dimension, then `weight`.
    RmsNorm {
        /// Its width.
        width: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// RMS norms of the heads of queries and of keys, then `q_norm.weight` and `k_norm.weight`, before those of values.
    HeadNorm {
        /// Heads of queries.
        heads: usize,
        /// Heads of keys, and of values.
        kv_heads: usize,
        /// Width of one.
        head: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// What is the same for each element.
    Pointwise(Behind),
    /// The dimensions of a sample as one.
    Flatten,
    /// Nothing, but in training.
    Dropout {
        /// What share is dropped.
        rate: f32,
    },
    /// `tokens[id] + places[t]`.
    Embedding {
        /// Rows of `tokens`.
        vocabulary: usize,
        /// Rows of `places`.
        time: usize,
        /// Columns of both.
        width: usize,
    },
    /// `weight[id]`.
    Lookup {
        /// Rows of `weight`.
        vocabulary: usize,
        /// Columns.
        width: usize,
    },
    /// Rotary positions: heads of queries, then those of keys and of values, to as many heads of each.
    Rotary {
        /// Heads of queries.
        heads: usize,
        /// Heads of keys, and of values.
        kv_heads: usize,
        /// Width of one.
        head: usize,
        /// How many positions.
        time: usize,
        /// What the last plane of a head turns by is nearly the reciprocal of.
        theta: f64,
        /// How positions are scaled.
        scaling: RopeScaling,
    },
    /// `a sigmoid(a) b` of the halves of the last dimension.
    SwiGlu {
        /// Of its output.
        width: usize,
    },
    /// Self-attention over packed queries, keys and values, of heads side by side.
    Attention {
        /// How many heads.
        heads: usize,
        /// Width of one.
        head: usize,
        /// How many positions.
        time: usize,
        /// What each sees.
        mask: Mask,
    },
    /// One after the other.
    Chain(Vec<Part>),
    /// `x + f(x)`.
    Residual(Box<Description>),
    /// `f(x) + g(x)`.
    Projected {
        /// `f`.
        branch: Box<Description>,
        /// What the names of the parameters of `g` begin with.
        name: String,
        /// `g`.
        shortcut: Box<Description>,
    },
    /// `[channels, places...]` as `[places, channels]`.
    Turn,
    /// A learned vector in front of all places, `class_token`, and one added to each, `pos_embedding`.
    ClassToken {
        /// How many places there are then.
        time: usize,
        /// Their width.
        width: usize,
    },
    /// One of the places.
    Take(Taken),
    /// A recurrent layer over `[time, inputs]`, with PyTorch's names.
    Recurrent {
        /// Which cells.
        cell: Cell,
        /// Width of its input.
        inputs: usize,
        /// Width of its output.
        hidden: usize,
        /// Its number, which ends its names.
        layer: usize,
    },
    /// A stage of a program's own, by its kind.
    Own(&'static str),
}

/// Which of the places is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The first.
    First,
    /// The last.
    Last,
}

/// What is the same for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing.
    Nothing,
    /// `max(x, 0)`.
    Relu,
    /// GELU.
    Gelu(Gelu),
}

/// A stage in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What its parameters' names begin with; empty for nothing.
    pub name: String,
    /// The parameter of the chain that it uses as its `weight`, in place of one of its own.
    pub tied: Option<String>,
    /// What it is.
    pub stage: Description,
}
