//! The CPU as a device: the operations of [`Device`](crate::device::Device) on host memory, by kernels of our own.
//!
//! Bits depend on operands and shape alone: every kernel is written once in a fixed order and compiled for each
//! instruction set (`isa`), and threads only ever take whole tasks whose cut does not change a sum (`pool`).
//!
//! This file knows how a device is made and how work is cut; `operations` checks lengths and calls kernels.

mod attention;
mod conv;
mod decode;
mod elementwise;
mod embedding;
mod isa;
mod loss;
mod math;
#[cfg(target_arch = "x86_64")]
mod matrix_unit;
mod norm;
mod operations;
mod pool;
mod pooling;
mod precision;
mod product;
mod recurrent;
mod rotary;
mod update;

use crate::device::{Attended, AttentionShape, ChannelNorm, Conv3dShape, Leaf, NORM_BLOCK, Pool2d, Product};
use crate::host_device::HostDevice;

pub use isa::{Isa, IsaError};
pub(crate) use math::exp;
use pool::{CHUNK, Cut};
pub use pool::{Pool, PoolError};
pub use precision::CpuPrecision;
use product::{InBf16, InF32};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Counts the changes of the kernels that changed the bits of a result. Part of the fingerprint.
pub const KERNEL_REVISION: u32 = 1;

/// Elements that one task takes when rows or planes must stay whole.
const GROUP: usize = 1 << 14;

/// What a CPU device is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// The instruction set of its kernels.
    pub isa: Isa,
    /// Its compute threads, the caller's included; 0 counts as 1.
    pub threads: usize,
}

impl Default for CpuOptions {
    /// The best instruction set, one thread.
    fn default() -> Self {
        Self { isa: Isa::best(), threads: 1 }
    }
}

/// Why a CPU device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The instruction set is not there.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The system gives no more threads.
    #[error(transparent)]
    Threads(#[from] PoolError),
}

/// The CPU.
///
/// *Order*: see [`Device`](crate::device::Device); results are the same bits on every instruction set and for every number of threads.
pub struct Cpu {
    isa: isa::Have,
    pool: Pool,
    precision: CpuPrecision,
}

impl Cpu {
    /// A device with its own threads, in f32.
    ///
    /// *Errors*: an instruction set that this CPU lacks; too many threads.
    pub fn new(options: CpuOptions) -> Result<Self, CpuError> {
        let isa = options.isa.check()?;
        Ok(Self { isa, pool: Pool::new(options.threads)?, precision: CpuPrecision::F32 })
    }

    /// The instruction set of its kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa.isa()
    }

    /// Its compute threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs a point-wise kernel over chunks of `y`; the kernel gets the range of its chunk.
    fn each(&self, y: &mut [f32], kernel: impl Fn(Range<usize>, &mut [f32]) + Sync) {
        let tasks = y.len().div_ceil(CHUNK);
        self.pool.run(y.len(), tasks, [Cut::new(y, CHUNK)], |task, [y], _| {
            kernel(task * CHUNK..task * CHUNK + y.len(), y)
        });
    }
}

/// Asserts that a slice is as long as the shape says.
#[track_caller]
fn same(what: &str, len: usize, wanted: usize) {
    assert!(len == wanted, "{what} has {len} elements, its shape {wanted}");
}

/// Rows (or planes) of `width` elements that one task takes.
fn group(width: usize) -> usize {
    (GROUP / width.max(1)).max(1)
}

impl HostDevice for Cpu {
    fn squares(&self, g: &[f32], scale: f32, blocks: &[AtomicU64]) {
        same("blocks", blocks.len(), g.len().div_ceil(NORM_BLOCK));
        update::squares(self.isa, &self.pool, scale, g, blocks);
    }
}

impl Cpu {
    /// Runs a kernel over each plane of `y`, with its channel and where it lies.
    fn each_plane(
        &self,
        shape: ChannelNorm,
        y: &mut [f32],
        kernel: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
    ) {
        let (area, planes) = (shape.area, group(shape.area));
        let tasks = (shape.images * shape.channels).div_ceil(planes);
        self.pool.run(y.len(), tasks, [Cut::new(y, planes * area)], |task, [y], _| {
            for (i, y) in y.chunks_exact_mut(area).enumerate() {
                let plane = task * planes + i;
                kernel(plane % shape.channels, plane * area..(plane + 1) * area, y);
            }
        });
    }

    /// `y = (x - mean) * factor * gain + bias`, mean and factor by channel.
    fn scale_planes(
        &self,
        shape: ChannelNorm,
        x: &[f32],
        y: &mut [f32],
        statistics: impl Fn(usize) -> [f32; 2] + Sync,
        gain: &[f32],
        bias: &[f32],
    ) {
        self.each_plane(shape, y, |channel, at, y| {
            let [mean, factor] = statistics(channel);
            norm::scale_plane(self.isa, mean, factor, gain[channel], bias[channel], &x[at], y);
        });
    }
}

/// Elements of input, weights and output of a convolution.
fn conv_lengths(shape: &Conv3dShape) -> [usize; 3] {
    for d in 0..3 {
        let fits = shape.stride[d] > 0
            && shape.kernel[d] > 0
            && shape.size[d] + 2 * shape.padding[d] >= shape.kernel[d];
        assert!(fits, "a kernel larger than the image: {shape:?}");
    }
    let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
    [
        shape.images * shape.channels * volume(shape.size),
        shape.outputs * shape.channels * volume(shape.kernel),
        shape.images * shape.outputs * volume(shape.output_size()),
    ]
}

/// Elements of an input and of an output plane of pooling.
fn pool_areas(shape: &Pool2d) -> [usize; 2] {
    for d in [0, 1] {
        let fits = shape.stride[d] > 0 && shape.window[d] > 0 && shape.size[d] >= shape.window[d];
        assert!(fits, "a window larger than the plane: {shape:?}");
    }
    let [out_height, out_width] = shape.output_size();
    [shape.size[0] * shape.size[1], out_height * out_width]
}

/// Which of two multiplications an operation is made of.
impl Cpu {
    /// The same with another precision.
    #[must_use]
    pub fn with_precision(self, precision: CpuPrecision) -> Self {
        Self { precision, ..self }
    }

    /// What it rounds operands to.
    #[must_use]
    pub fn precision(&self) -> CpuPrecision {
        self.precision
    }

    fn multiply(&self, shape: &Product, a: &[f32], b: &[f32], c: &mut [f32], finish: product::Finish<'_>) {
        match self.precision {
            CpuPrecision::F32 => product::product(self.isa, &self.pool, shape, a, b, c, finish),
            CpuPrecision::Bf16 => product::bf16::product(self.isa, &self.pool, shape, a, b, c, finish),
        }
    }

    fn multiply_leaves(&self, shape: &Product, leaf: Leaf, a: &[f32], b: &[f32], c: &mut [f32]) {
        let of_leaves = match self.precision {
            CpuPrecision::F32 => product::leaves::product_of_leaves,
            CpuPrecision::Bf16 => product::bf16::product_of_leaves,
        };
        of_leaves(self.isa, &self.pool, shape, leaf, a, b, c);
    }

    fn attend(&self, shape: &AttentionShape, qkv: &[f32], y: &mut [f32], saved: &mut [f32]) {
        let forward = match self.precision {
            CpuPrecision::F32 => attention::forward::<InF32>,
            CpuPrecision::Bf16 => attention::forward::<InBf16>,
        };
        forward(self.isa, &self.pool, shape, qkv, y, saved);
    }

    fn attend_gradient(&self, shape: &AttentionShape, inputs: Attended<&[f32]>, dqkv: &mut [f32]) {
        let gradient = match self.precision {
            CpuPrecision::F32 => attention::gradient::<InF32>,
            CpuPrecision::Bf16 => attention::gradient::<InBf16>,
        };
        gradient(self.isa, &self.pool, shape, inputs, dqkv);
    }
}
