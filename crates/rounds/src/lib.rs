//! A step made in rounds, in which nobody has all of a gradient, nor of the parameters if each has but its shards of them.
//!
//! [`Rounds`] goes through a step: what a pass computes and what it reads travels window by window to and from those who hold it
//! ([`Exchange`]), and holders add up what comes along the reduction tree.
//!
//! This crate is pure. It does not know processes, clocks or networks, nor what drives it: the runtime does over a backend, the simulator in
//! virtual time.

#[cfg(test)]
mod ahead_tests;
mod brought_parameters;
mod carries;
mod error;
mod exchange;
mod folding;
mod memory;
mod owned;
mod rounds;
mod trailers;
mod window_parameters;
mod window_sums;
mod windowed_gradient;

pub use carries::{Carriage, Carries, Parcel, ParcelKind};
pub use error::RoundsError;
pub use exchange::Exchange;
pub use folding::{Folding, Fresh, buffers};
pub use memory::Memory;
pub use owned::{GatherPiece, Owned};
pub use rounds::{Computed, Outing, Rounds};
pub use trailers::in_tree_order;
pub use window_sums::{Round, RoundsPlan};
