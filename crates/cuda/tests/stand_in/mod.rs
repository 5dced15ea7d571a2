//! A GPU for tests: kernels built by a C++ compiler over `tests/shim/shim.h`, and memory that notices what it should not
//! be used for.

// Each test binary uses its part.
#![allow(dead_code, unused_imports)]

pub mod accesses;
pub mod attention;
pub mod attention_half;
pub mod build;
#[path = "../shim/compiled.rs"]
pub mod compiled;
pub mod conv;
pub mod conv_half;
pub mod device_trait;
pub mod elementwise;
pub mod embedding;
pub mod gated;
pub mod halves;
pub mod losses;
pub mod memory;
pub mod norms;
pub mod orders;
pub mod pooling;
pub mod product;
pub mod product_half;
pub mod recurrent;
pub mod rotary;
pub mod rows;
pub mod settle;
pub mod stacking;
pub mod stored;
pub mod sums;
pub mod tree;
pub mod turning;
pub mod update;

pub use build::{Mutation, StandIn};
pub use halves::{Bf16, F16, Kind, halves, nearest};
pub use memory::Buffer;

use dtrain_engine::cpu::{Cpu, CpuOptions};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};

/// How much of a check is run: all of its shapes, or the least that still shows a kernel that is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Edges, primes, and sizes that are no multiple of anything.
    Whole,
    /// A shape or two.
    Small,
}

impl Extent {
    /// The shapes to run: all, or the last `few`.
    pub fn of<T>(self, few: usize, shapes: &[T]) -> &[T] {
        match self {
            Self::Whole => shapes,
            Self::Small => &shapes[shapes.len() - few..],
        }
    }
}

/// NaNs: the CPU's own, a GPU's own, that with a sign, and one that signals. Bits that are added to those of the first vanish more
/// easily than they do in the others.
pub const NANS: [f32; 4] =
    [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff), f32::from_bits(0x7f80_0001)];

/// A check of an operation: it runs it on the stand-in, which keeps what was wrong.
pub type Check = fn(&StandIn, Extent);

/// `len` numbers in `[-1, 1)`, another list for each `site`.
pub fn numbers(site: u32, len: usize) -> Vec<f32> {
    let key = Key::new(Seed(1), Step(0), MicroBatch(0), Site(site));
    (0..len as u32).map(|i| key.unit_f32(i) * 2.0 - 1.0).collect()
}

/// `len` ids below `bound`.
pub fn ids(site: u32, len: usize, bound: u32) -> Vec<u32> {
    let key = Key::new(Seed(2), Step(0), MicroBatch(0), Site(site));
    (0..len as u32).map(|i| key.below(i, bound)).collect()
}

/// The device that results are compared with; its own tests compare it with float64.
pub fn cpu() -> Cpu {
    Cpu::new(CpuOptions::default()).expect("the best instruction set is there")
}
