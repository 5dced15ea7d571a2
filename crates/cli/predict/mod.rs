//! Predictions of many samples: read, prepared, computed and written side by side, in the order of the input.
//!
//! `inputs.rs` cuts what is to be predicted into pieces, `pipeline.rs` gives them to workers and puts what they make in
//! order, `outputs.rs` writes it. A worker has a replica of its own, and the bits of a sample's prediction depend on that
//! sample alone.

mod format;
mod inputs;
mod next_token;
mod outputs;
mod pipeline;
mod progress;
mod shares;
mod worker;

pub use format::Format;
pub use inputs::{Input, Piece};
pub use next_token::NextToken;
pub use outputs::{OutputLines, Writer};
pub use pipeline::ordered;
pub use progress::{Unit, progress};
pub use shares::{greatest, probabilities};
pub use worker::{Predicted, Worker, at_once, unless_it_fails};
