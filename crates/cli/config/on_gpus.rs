//! Whom this build trains on GPUs for.

/// Whom this build trains on GPUs for: their device was tried on a stand-in for a driver alone so far.
pub const ON_GPUS: OnGpus = OnGpus::WhoAsks;

/// Whom a build trains on GPUs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnGpus {
    /// For nobody.
    Nobody,
    /// For those who name GPUs, or `all`: `auto` stays on the CPU.
    WhoAsks,
    /// For everybody who has some.
    Everybody,
}
