//! TensorBoard itself reads what is written, where it is installed (`DTRAIN_PYTHON` names a Python that has it).

use dtrain_telemetry::{EpochMetrics, Metrics, StepMetrics, UnixTime};
use dtrain_types::{Epoch, Step};
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tensorboard_reads.py");
const NOT_INSTALLED: i32 = 3;

/// What TensorBoard sees in a folder; `None`, with a line, where it is not installed.
fn seen_by_tensorboard(folder: &Path) -> Option<serde_json::Value> {
    let python = std::env::var("DTRAIN_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = match Command::new(&python).arg(SCRIPT).arg(folder).output() {
        Ok(output) if output.status.code() != Some(NOT_INSTALLED) => output,
        Ok(_) => {
            println!("skipped: {python} has no tensorboard; set DTRAIN_PYTHON to one that has");
            return None;
        }
        Err(error) => {
            println!("skipped: {python} does not run: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("DataLossError") && !errors.contains("truncated"), "{errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn open(run: &Path, now: UnixTime, resume: Option<Step>) -> Metrics {
    Metrics::open(run, now).unwrap().for_tensorboard(run, now, resume).unwrap()
}

fn steps(metrics: &mut Metrics, steps: std::ops::RangeInclusive<u64>, loss_at: impl Fn(u64) -> f64) {
    for step in steps {
        let now = UnixTime(1_763_600_000.0 + step as f64);
        let learning_rate = (step % 2 == 0).then_some(0.125);
        let metric =
            StepMetrics { step: Step(step), loss: loss_at(step), learning_rate, ..StepMetrics::default() };
        metrics.step(now, &metric).unwrap();
    }
}

#[test]
fn tensorboard_reads_every_point() {
    let run = tempfile::tempdir().unwrap();
    let mut metrics = open(run.path(), UnixTime(1_763_600_000.0), None);
    steps(&mut metrics, 1..=300, |step| 1.0 / step as f64);
    let epoch = EpochMetrics {
        epoch: Epoch(0),
        step: Step(300),
        train_loss: 0.5,
        val_accuracy: Some(0.75),
        ..EpochMetrics::default()
    };
    metrics.epoch(UnixTime(1_763_600_301.0), &epoch).unwrap();
    drop(metrics);
    let Some(seen) = seen_by_tensorboard(&run.path().join("tb")) else { return };
    let loss = seen["train/loss"].as_array().unwrap();
    assert_eq!(loss.len(), 300);
    for (point, step) in loss.iter().zip(1u64..) {
        assert_eq!(point[0], step);
        assert_eq!(point[1].as_f64().unwrap() as f32, (1.0 / step as f64) as f32);
        assert_eq!(point[2].as_f64().unwrap(), 1_763_600_000.0 + step as f64);
    }
    assert_eq!(seen["train/learning_rate"].as_array().unwrap().len(), 150);
    assert_eq!(seen["epoch/val_accuracy"][0][1], 0.75);
    assert_eq!(seen["epoch/train_loss"][0][0], 300);
    assert!(seen.get("epoch/val_loss").is_none(), "what is not known is not drawn");
}

#[test]
fn after_a_resume_tensorboard_shows_the_steps_that_count() {
    let run = tempfile::tempdir().unwrap();
    let mut first = open(run.path(), UnixTime(1_763_600_000.0), None);
    steps(&mut first, 1..=10, |_| 1.0);
    drop(first);
    // The checkpoint holds 6 updates; steps 7 to 10 are computed again.
    let mut second = open(run.path(), UnixTime(1_763_600_001.0), Some(Step(6)));
    steps(&mut second, 7..=8, |_| 2.0);
    drop(second);
    let Some(seen) = seen_by_tensorboard(&run.path().join("tb")) else { return };
    let loss = seen["train/loss"].as_array().unwrap();
    let points: Vec<_> = loss.iter().map(|p| (p[0].as_u64().unwrap(), p[1].as_f64().unwrap())).collect();
    let expected: Vec<_> = (1..=6).map(|step| (step, 1.0)).chain([(7, 2.0), (8, 2.0)]).collect();
    assert_eq!(points, expected);
}
