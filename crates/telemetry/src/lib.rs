//! What a run tells about itself: the event log, the ledger, metrics, TensorBoard files, profiles, readings of processes; and to whom:
//! scrapers and trackers.
//!
//! Everything here is written for somebody to read later, a person or a program; nothing here decides anything. It
//! does not know actors, messages or configuration, and it prints nothing.

mod clock;
mod error;
mod event;
mod exposition;
mod figures;
mod gpu;
mod gpu_watch;
mod json_lines;
pub mod ledger;
mod metric;
mod metrics;
mod not_finite;
mod process;
pub mod profile;
mod progress;
mod scrape;
mod tensorboard;
pub mod track;
mod whole_lines;

pub use clock::{CivilTime, UnixTime};
pub use error::TelemetryError;
pub use event::{RunBegun, RunEvent, Stamped, Summary};
pub use exposition::{Exposition, exposed_names};
pub use figures::{ClassCount, ClassScores, ClassTable};
pub use gpu::{Gpu, GpuError, GpuReadings, Gpus, Pair, Route};
pub use gpu_watch::{GPU_INTERVAL, GpuSample, GpuWatch};
pub use json_lines::{EventLog, Flush, JsonLines};
pub use metric::{EpochMetrics, GpuMetrics, Metric, StepMetrics};
pub use metrics::Metrics;
pub use process::{hostname, peak_rss};
pub use progress::{Board, Progress, RankStanding, RunState};
pub use scrape::{ScrapeServer, ScrapeSocket, reached_here};
pub use tensorboard::TensorBoard;
