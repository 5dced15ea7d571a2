//! What a file of a run is to outlive.

/// What a file is to outlive, once others go on behind what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlives {
    /// The process that writes it: the system has it.
    Process,
    /// The power of its host, where ranks of other hosts live on: the disk has it.
    Power,
}
