//! Which kernels are launched for an operation of the engine, and over which grid.
//!
//! Each function here is an operation of [`dtrain_engine::device::Device`] or a part of one, with the memory for partial
//! results as an argument; the length of that is a function of the shape. Lengths are asserted as on the CPU. A grid
//! follows from the shape alone, or, where bits do not depend on it, from how many multiprocessors there are.
//!
//! This module does not know what runs the launches.

mod attention;
mod attention_half;
mod conv;
mod elementwise;
mod embedding;
mod fallback;
mod gated;
mod losses;
mod norms;
mod orthogonal;
mod pooling;
mod product;
mod product_half;
mod ranges;
mod recurrent;
mod rotary;
mod rows;
mod settle;
mod sums;
mod tiles;
mod tree;
mod turn;
mod update;

pub use attention::{attention, attention_gradient, attention_saved, attention_scratch};
pub use attention_half::{attention_half, attention_half_gradient, attention_half_is_there};
pub use conv::{
    WeightGradients, conv, conv_bias_gradient, conv_input_gradient, conv_lengths, conv_scratch,
    conv_weight_gradient,
};
pub use elementwise::{
    add, add_to, bias_activation, copy, dropout, fill, from_half, gelu, gelu_gradient, relu, relu_gradient,
    sigmoid, sigmoid_gradient, to_half,
};
pub use embedding::{TableGradient, embedding, embedding_gradient};
pub use fallback::{
    attention_exact, attention_exact_gradient, attention_exact_gradient_scratch, attention_exact_scratch,
    product_exact, product_exact_scratch,
};
pub use gated::{swiglu, swiglu_gradient};
pub use losses::{
    CrossEntropy, LossRows, LossTotals, arg_max, cross_entropy, mixed_cross_entropy, squared_error,
};
pub use norms::{
    NormOperands, NormResults, batch_norm, batch_norm_by, batch_norm_gradient, batch_norm_scratch,
    layer_norm, layer_norm_gradient, layer_norm_scratch,
};
pub use orthogonal::{combine, unit, unit_scratch};
pub use pooling::{avg_pool, avg_pool_gradient, max_pool, max_pool_gradient};
pub(crate) use product::{hold, product_of_linear};
pub use product::{linear, linear_gelu, linear_scratch, product, product_scratch};
pub use product_half::{
    HalfResult, linear_gelu_half, linear_half, linear_half_scratch, product_half, product_half_is_there,
    product_half_scratch,
};
pub use recurrent::{recurrent_cells, recurrent_gradient};
pub use rotary::{rotary, rotary_gradient};
pub use rows::{class_token, copy_rows, dot_rows, scale_rows};
pub use settle::{FOUND, LOSS, NUMBERS, Rule, Scalar, StepLosses, settle, weigh};
pub use sums::{
    all_finite, all_finite_scratch, column_sums, column_sums_scratch, curve_gradient_and_sums, square_parts,
    sum_of_squares, sum_of_squares_scratch,
};
pub use tree::{TreeSum, program, sum_tree, table};
pub use turn::{MatrixBatch, Turned, turn};
pub use update::{adamw, along, blend, lion, sgd};

dtrain_types::words!(
    /// How numbers between layers and their gradients lie in memory, and what products, convolutions and attention multiply.
    /// Parameters, their gradients and statistics are f32 either way.
    Precision {
        /// They are multiplied as they are, and added up in the CPU's order.
        F32 = "f32",
        /// They are f32; a library multiplies large products and convolutions on tensor cores, of operands cut to 10 bits of mantissa
        /// (TF32), and adds up in f32. Everything else is as `F32` does it, and all of it where no library was chosen.
        Tf32 = "tf32",
        /// They are bf16, whoever makes them rounds them once; they are multiplied on tensor cores and added up in f32. Of
        /// parameters there is a copy in bf16. *Order*: K in steps of 16; within 16 terms the hardware's, so the bits are those of
        /// one model of GPU.
        Bf16 = "bf16",
        /// The same of f16. Whoever trains so has to scale the loss, or small gradients are lost.
        F16 = "f16",
    }
);

impl Precision {
    /// How numbers between layers lie.
    #[must_use]
    pub fn storage(self) -> Storage {
        self.half().map_or(Storage::F32, Storage::Half)
    }

    /// The halves that they are, if they are.
    #[must_use]
    pub fn half(self) -> Option<Half> {
        match self {
            Self::F32 | Self::Tf32 => None,
            Self::Bf16 => Some(Half::Bf16),
            Self::F16 => Some(Half::F16),
        }
    }
}

/// Threads of a block of most kernels.
const THREADS: usize = 256;

pub use crate::values::{Half, Storage, Values, ValuesMut};

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

/// From one row to the next, of rows that may lie further apart than they are long.
///
/// *Panics* where the length is no such number of rows.
#[track_caller]
pub(crate) fn pitch_of(what: &str, len: usize, rows: usize, width: usize) -> usize {
    let pitch = len.checked_div(rows).unwrap_or(width);
    assert!(
        len == rows * pitch && pitch >= width,
        "{what} has {len} elements, its shape {rows} rows of {width}"
    );
    pitch
}

/// How numbers lie, if all of them lie alike.
///
/// *Panics* otherwise: no kernel reads one kind and writes another.
#[track_caller]
fn alike(one: Storage, others: &[Storage]) -> Storage {
    assert!(others.iter().all(|other| *other == one), "operands are {one:?} and {others:?}");
    one
}
