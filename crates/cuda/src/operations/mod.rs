//! Which kernels are launched for an operation of the engine, and over which grid.
//!
//! Each function here is an operation of [`dtrain_engine::device::Device`] or a part of one, with the memory for partial
//! results as an argument; the length of that is a function of the shape. Lengths are asserted as on the CPU. A grid
//! follows from the shape alone.
//!
//! This module does not know what runs the launches.

mod attention;
mod attention_half;
mod conv;
mod elementwise;
mod embedding;
mod losses;
mod norms;
mod pooling;
mod product;
mod product_half;
mod rounded;
mod sums;
mod tree;
mod update;

pub use attention::{attention, attention_gradient, attention_saved, attention_scratch};
pub use attention_half::{attention_half, attention_half_gradient, attention_half_is_there};
pub use conv::{WeightGradients, conv, conv_input_gradient, conv_scratch, conv_weight_gradient};
pub use elementwise::{
    add, add_to, bias_activation, copy, dropout, fill, from_half, gelu, gelu_gradient, relu, relu_gradient,
    to_half,
};
pub use embedding::{TableGradient, embedding, embedding_gradient};
pub use losses::{CrossEntropy, LossRows, LossTotals, arg_max, cross_entropy, squared_error};
pub use norms::{
    batch_norm, batch_norm_by, batch_norm_gradient, batch_norm_scratch, layer_norm, layer_norm_gradient,
    layer_norm_scratch,
};
pub use pooling::{avg_pool, avg_pool_gradient, max_pool, max_pool_gradient};
pub use product::{linear, linear_gelu, product};
pub use product_half::{HalfResult, linear_gelu_half, linear_half, product_half, product_half_is_there};
pub use rounded::{
    attention_rounded, attention_rounded_gradient, attention_rounded_gradient_scratch,
    attention_rounded_scratch, linear_gelu_rounded, linear_rounded, linear_rounded_scratch, product_rounded,
    product_rounded_scratch,
};
pub use sums::{
    all_finite, all_finite_scratch, column_sums, column_sums_scratch, sum_of_squares, sum_of_squares_scratch,
};
pub use tree::{TreeSum, program, sum_tree, table};
pub use update::{adamw, blend, sgd};

dtrain_types::words!(
    /// What products, convolutions and attention make of their operands. Parameters, activations and gradients are f32 in memory
    /// either way.
    Precision {
        /// They are multiplied as they are, and added up in the CPU's order.
        F32 = "f32",
        /// They are rounded to bf16, multiplied on tensor cores and added up in f32. *Order*: K in steps of 16; within 16 terms
        /// the hardware's, so the bits are those of one model of GPU.
        Bf16 = "bf16",
        /// The same of f16. Whoever trains so has to scale the loss, or small gradients are lost.
        F16 = "f16",
    }
);

impl Precision {
    /// What operands are rounded to, if they are.
    #[must_use]
    pub fn half(self) -> Option<Half> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(Half::Bf16),
            Self::F16 => Some(Half::F16),
        }
    }
}

/// A kind of numbers of 16 bits that tensor cores multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Eight significant bits, and the exponent of f32.
    Bf16,
    /// IEEE's: eleven significant bits, of numbers below 65520. Below 2^-14 there are fewer.
    F16,
}

/// Threads of a block of most kernels.
const THREADS: usize = 256;

/// Memory of f32 that is read.
pub type Floats<'a> = crate::Slice<'a, f32>;
/// Memory of f32 that is written.
pub type FloatsMut<'a> = crate::SliceMut<'a, f32>;
/// Memory of halves that is read.
pub type Halves<'a> = crate::Slice<'a, u16>;
/// Memory of halves that is written.
pub type HalvesMut<'a> = crate::SliceMut<'a, u16>;
/// Memory of ids that is read.
pub type Ids<'a> = crate::Slice<'a, u32>;

/// A size as kernels take it.
///
/// *Panics* beyond 32 bits.
#[track_caller]
fn size(n: usize) -> u32 {
    u32::try_from(n).unwrap_or_else(|_| panic!("a size of {n} is more than a kernel can count"))
}

/// Asserts that a slice is as long as the shape says.
#[track_caller]
fn same(what: &str, len: usize, wanted: usize) {
    assert!(len == wanted, "{what} has {len} elements, its shape {wanted}");
}

/// Asserts that there is room for partial results.
#[track_caller]
fn room(what: &str, len: usize, wanted: usize) {
    assert!(len >= wanted, "{what} has {len} elements, {wanted} are needed");
}
