//! Readers of real data sets, and the loader that keeps a rank fed.
//!
//! A [`Dataset`] gives samples by number. The batch plan of `dtrain-types` says which samples a micro-batch holds;
//! this crate reads them into recycled [`Batch`]es, inline or by worker threads, with the same bits either way.
//!
//! It does not know what a model, a rank, a device or a configuration file is.

mod batch;
mod dataset;
mod error;
mod evaluation;
mod feed;
mod loader;

pub use batch::{Batch, Elements};
pub use dataset::{Dataset, IGNORED, InputSpec, SampleSlot, SampleSpec, TargetSpec};
pub use error::DataError;
pub use evaluation::EvaluationPlan;
pub use feed::{Feed, augment_site};
pub use loader::{Loader, LoanedBatch, QUEUE_PER_WORKER, Share};
