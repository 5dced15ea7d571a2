//! What a CPU rounds the operands of its products to: which of two multiplications an operation is made of.
//!
//! In bf16 those of linear and recurrent layers and of attention are rounded, and summed in f32; all that lies in memory is f32, as are
//! convolutions, norms and everything else. On a CPU with AMX that is several times as fast; elsewhere it is slower than f32, and has the
//! same bits.

/// See the file's comment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuPrecision {
    /// Nothing is rounded.
    #[default]
    F32,
    /// Operands of products and attention have eight significant bits.
    Bf16,
}
