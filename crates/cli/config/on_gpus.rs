//! Whom this build trains on GPUs for.

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
