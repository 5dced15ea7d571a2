//! Trackers: places outside of the run folder that keep the curves of many runs.
//!
//! A tracker is sent what `metrics.jsonl` holds, by a thread of its own ([`Courier`]) that remembers how far it is in the run folder. So a
//! tracker that is slow, down or wrong costs the training nothing, and what it did not take is sent later. A tracker implements [`Tracker`].

mod courier;
mod cursor;
mod leveldb;
mod mlflow;
mod rows;
mod wandb;

pub use courier::{Courier, Delivered, News, deliver};
pub use cursor::{CursorError, EndStatus};
pub use mlflow::{Mlflow, MlflowAddress, WrongAddress};
pub use wandb::{Wandb, WandbNames};

use crate::UnixTime;
use cursor::Cursor;
use std::path::PathBuf;

/// What a tracker is told of a run once.
#[derive(Clone, Debug, Default)]
pub struct TrackedRun {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Every key of its configuration, with its value.
    pub params: Vec<(String, String)>,
    /// Version and revision of dtrain.
    pub version: String,
    /// The host that leads it.
    pub host: String,
}

/// Numbers of one step, as a line of `metrics.jsonl` has them.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveRow {
    /// When it was written.
    pub time: UnixTime,
    /// The step.
    pub step: u64,
    /// The numbers, named as TensorBoard's tags are.
    pub numbers: Vec<(String, f64)>,
}

/// Why a tracker does not take something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrackError {
    /// It may pass: it is tried again.
    #[error("{0}")]
    Passing(String),
    /// Trying again would end the same way.
    #[error("{0}")]
    Final(String),
}

/// A place that keeps curves. It is called by one thread, and may take its time.
pub trait Tracker: Send {
    /// Its name, as the configuration has it.
    fn name(&self) -> &'static str;

    /// Makes the run known, or finds it again; what it has to remember goes to the cursor.
    ///
    /// *Errors*: see [`TrackError`]. *Blocks* on the network or the disk.
    fn begin(&mut self, run: &TrackedRun, cursor: &mut Cursor) -> Result<(), TrackError>;

    /// Takes rows, the first of which has the number `cursor.rows`. The same rows may come again after a failure.
    ///
    /// *Errors*, *Blocks*: as above.
    fn send(&mut self, rows: &[CurveRow], cursor: &Cursor) -> Result<(), TrackError>;

    /// Is told how the run ended.
    ///
    /// *Errors*, *Blocks*: as above.
    fn end(&mut self, status: EndStatus, cursor: &Cursor) -> Result<(), TrackError>;

    /// Where a person finds the run there.
    fn place(&self, cursor: &Cursor) -> String;
}
