//! Metrics per step and epoch: `metrics.jsonl` for programs, `tb/` for TensorBoard.
//!
//! Every step is written. What is spared is the system call: lines leave the buffers at most once a second, when
//! asked, and at the end, so a fast model does not wait for its own log and nothing is lost.

use crate::{
    Board, EpochMetrics, GpuMetrics, GpuWatch, JsonLines, Metric, Stamped, StepMetrics, TelemetryError,
    TensorBoard, UnixTime,
};
use dtrain_types::Step;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// How long lines may stay in the buffers while steps go on. *Units*: seconds.
const FLUSH_AFTER: f64 = 1.0;

/// The metrics of a run.
pub struct Metrics {
    lines: JsonLines<File>,
    curves: Option<TensorBoard>,
    flushed: UnixTime,
    gpus: Option<Arc<GpuWatch>>,
    /// The newest round of readings that was written.
    gpu_round: u64,
    /// Where others see what is written.
    board: Option<Arc<Board>>,
}

impl Metrics {
    /// Goes on with `metrics.jsonl` in a run folder.
    ///
    /// *Errors*: the file cannot be made.
    pub fn open(run: &Path, now: UnixTime) -> Result<Self, TelemetryError> {
        let lines = JsonLines::append(&run.join("metrics.jsonl"))?;
        Ok(Self { lines, curves: None, flushed: now, gpus: None, gpu_round: 0, board: None })
    }

    /// Begins a new file for TensorBoard in the folder `tb` too. `resume` is the number of updates in the checkpoint that the run goes
    /// on from, if it does.
    ///
    /// *Errors*: a file cannot be made or written.
    pub fn for_tensorboard(
        mut self,
        run: &Path,
        now: UnixTime,
        resume: Option<Step>,
    ) -> Result<Self, TelemetryError> {
        self.curves = Some(TensorBoard::create(&run.join("tb"), now, resume)?);
        Ok(self)
    }

    /// Shows on a board what is written.
    #[must_use]
    pub fn shown_on(mut self, board: Arc<Board>) -> Self {
        self.board = Some(board);
        self
    }

    /// Writes the readings of these GPUs too, beside the first step after each round.
    #[must_use]
    pub fn watching(mut self, gpus: Arc<GpuWatch>) -> Self {
        self.gpus = Some(gpus);
        self
    }

    /// Writes the metrics of a step.
    ///
    /// *Errors*: a file does not take them.
    pub fn step(&mut self, now: UnixTime, step: &StepMetrics) -> Result<(), TelemetryError> {
        self.record(now, Metric::Step(*step))?;
        let points = [
            ("train/loss", Some(step.loss)),
            ("train/learning_rate", step.learning_rate),
            ("train/gradient_norm", step.gradient_norm),
            ("train/samples_per_second", step.samples_per_second),
        ];
        self.points(now, step.step, &points)?;
        self.gpus(now, step.step)?;
        // A clock that was set back must not stop the flushing.
        if (now.0 - self.flushed.0).abs() >= FLUSH_AFTER { self.flush(now) } else { Ok(()) }
    }

    /// Writes the metrics of an epoch that has ended, and lets everything be seen at once.
    ///
    /// *Errors*: a file does not take them.
    pub fn epoch(&mut self, now: UnixTime, epoch: &EpochMetrics) -> Result<(), TelemetryError> {
        self.record(now, Metric::Epoch(epoch.clone()))?;
        self.points(now, epoch.step, &[("epoch/train_loss", Some(epoch.train_loss))])?;
        self.results(now, epoch)
    }

    /// The same of one that was validated inside. Its curves are those of whole epochs, but for the loss of the steps, which has one.
    ///
    /// *Errors*: a file does not take them.
    pub fn validation(&mut self, now: UnixTime, epoch: &EpochMetrics) -> Result<(), TelemetryError> {
        self.record(now, Metric::Validation(epoch.clone()))?;
        self.results(now, epoch)
    }

    fn results(&mut self, now: UnixTime, of: &EpochMetrics) -> Result<(), TelemetryError> {
        for (name, number) in of.results() {
            self.points(now, of.step, &[(&format!("epoch/{name}"), Some(number))])?;
        }
        self.flush(now)
    }

    fn gpus(&mut self, now: UnixTime, step: Step) -> Result<(), TelemetryError> {
        let Some(watch) = &self.gpus else { return Ok(()) };
        let sample = watch.newest();
        if sample.round <= self.gpu_round {
            return Ok(());
        }
        self.gpu_round = sample.round;
        for (gpu, readings) in sample.gpus {
            self.record(now, Metric::Gpu(GpuMetrics { gpu, step, readings }))?;
            let points = [
                ("utilisation", readings.utilisation.map(f64::from)),
                ("memory_used", readings.memory_used.map(|bytes| bytes.0 as f64)),
                ("temperature", readings.temperature.map(f64::from)),
                ("power", readings.power),
            ];
            for (name, value) in points {
                if let (Some(value), Some(curves)) = (value, &mut self.curves) {
                    curves.scalar(now, step, &format!("gpu{gpu}/{name}"), value)?;
                }
            }
        }
        Ok(())
    }

    /// Hands everything written so far to the system.
    ///
    /// *Errors*: a file does not take it.
    pub fn flush(&mut self, now: UnixTime) -> Result<(), TelemetryError> {
        self.flushed = now;
        self.lines.flush()?;
        self.curves.as_mut().map_or(Ok(()), TensorBoard::flush)
    }

    /// Waits until the metrics written so far are on the disk; those that are drawn from the same numbers for TensorBoard are with the system.
    ///
    /// *Errors*: a file does not take it. *Blocks* on the disk.
    pub fn sync(&mut self, now: UnixTime) -> Result<(), TelemetryError> {
        self.flush(now)?;
        self.lines.sync()
    }

    fn record(&mut self, now: UnixTime, metric: Metric) -> Result<(), TelemetryError> {
        if let Some(board) = &self.board {
            board.note(|progress| progress.metric(now, &metric));
        }
        self.lines.record(&Stamped { time: now, event: metric })
    }

    fn points(
        &mut self,
        now: UnixTime,
        step: Step,
        points: &[(&str, Option<f64>)],
    ) -> Result<(), TelemetryError> {
        let Some(curves) = &mut self.curves else { return Ok(()) };
        for (tag, value) in points {
            if let Some(value) = value {
                curves.scalar(now, step, tag, *value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(run: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn step(number: u64) -> StepMetrics {
        StepMetrics { step: Step(number), loss: 0.5, samples: 8, ..StepMetrics::default() }
    }

    #[test]
    fn steps_are_flushed_once_a_second_and_none_is_lost_at_the_end() {
        let run = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open(run.path(), UnixTime(100.0)).unwrap();
        metrics.step(UnixTime(100.5), &step(1)).unwrap();
        assert_eq!(lines(run.path()).len(), 0);
        metrics.step(UnixTime(101.0), &step(2)).unwrap();
        assert_eq!(lines(run.path()).len(), 2);
        metrics.step(UnixTime(101.1), &step(3)).unwrap();
        metrics.step(UnixTime(50.0), &step(4)).unwrap();
        assert_eq!(lines(run.path()).len(), 4, "the clock was set back");
        metrics.step(UnixTime(50.1), &step(5)).unwrap();
        drop(metrics);
        let written = lines(run.path());
        assert_eq!(written.len(), 5);
        assert_eq!(written[4]["kind"], "step");
        assert_eq!(written[4]["step"], 5);
        assert!(written[4]["learning_rate"].is_null());
    }

    #[test]
    fn an_epoch_is_seen_at_once() {
        let run = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open(run.path(), UnixTime(0.0)).unwrap();
        let epoch = EpochMetrics {
            step: Step(9),
            train_loss: f64::NAN,
            val_loss: Some(0.5),
            ..EpochMetrics::default()
        };
        metrics.epoch(UnixTime(0.1), &epoch).unwrap();
        let written = lines(run.path());
        assert_eq!(written[0]["kind"], "epoch");
        assert!(written[0]["train_loss"].is_null());
        assert_eq!(written[0]["val_loss"], 0.5);
        metrics.validation(UnixTime(0.2), &epoch).unwrap();
        assert_eq!(lines(run.path())[1]["kind"], "validation");
    }
}
