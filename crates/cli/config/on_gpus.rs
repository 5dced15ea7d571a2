//! Whom this build trains on GPUs for, and what is computed there.

use super::choice::{DataKind, Offload};
use super::parts::choice;
use super::resolve::Resolved;

/// Whom this build trains on GPUs for: their device was tried on a stand-in for a driver alone so far, so each kind of GPU is tested
/// first where nobody asked for it.
pub const ON_GPUS: OnGpus = OnGpus::Tested;

/// Whom a build trains on GPUs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnGpus {
    /// For nobody.
    Nobody,
    /// For those who name GPUs, or `all`: `auto` stays on the CPU.
    WhoAsks,
    /// For those too who leave it to `auto`, if a test of their GPUs has passed.
    Tested,
    /// For everybody who has some.
    Everybody,
}

/// What makes the passes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassesBy {
    /// dtrain's own kernels.
    Kernels,
    /// Another program, whose state lies there if it trains on GPUs, as far as the keys tell.
    Program(Offload),
}

impl PassesBy {
    pub(super) fn of(r: &Resolved) -> Self {
        if r.word("data.kind") != DataKind::Torch.name() {
            return Self::Kernels;
        }
        Self::Program(choice(r, "offload", Offload::from_name))
    }
}
