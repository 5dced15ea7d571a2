//! Rows from the lines of `metrics.jsonl`, which another thread, or process, may be writing.

use super::CurveRow;
use crate::{Metric, Stamped};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Where they are, in the folder of a run.
pub(super) const FILE: &str = "metrics.jsonl";

/// So much of the file is read at a time. *Units*: bytes.
const MOST_READ: u64 = 256 * 1024;
/// So many rows are a batch at most.
const MOST_ROWS: usize = 200;

/// Some rows, and where the next ones begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The rows.
    pub rows: Vec<CurveRow>,
    /// Bytes up to there.
    pub end: u64,
}

/// Whole lines from `offset` on, as far as there are some.
///
/// *Errors*: of the system; the file is shorter than `offset`, so it is not the file that was read before.
pub fn read(run: &Path, offset: u64) -> io::Result<Batch> {
    let mut file = match File::open(run.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && offset == 0 => return Ok(Batch::default()),
        opened => opened?,
    };
    if file.metadata()?.len() < offset {
        return Err(io::Error::other(format!("it has less than the {offset} bytes that were sent")));
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes)?;
    let mut batch = Batch { rows: Vec::new(), end: offset };
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        // The last one is still being written, or is cut here.
        if line.last() != Some(&b'\n') || batch.rows.len() == MOST_ROWS {
            break;
        }
        batch.end += line.len() as u64;
        // A line that is none says nothing; whoever wrote it has been told.
        batch.rows.extend(serde_json::from_slice(line).ok().and_then(row));
    }
    Ok(batch)
}

fn row(line: Stamped<Metric>) -> Option<CurveRow> {
    let (step, numbers) = match &line.event {
        Metric::Step(step) => {
            let known = [
                ("loss", Some(step.loss)),
                ("learning_rate", step.learning_rate),
                ("gradient_norm", step.gradient_norm),
                ("samples_per_second", step.samples_per_second),
            ];
            (step.step, named("train", known.into_iter().filter_map(known_number)))
        }
        Metric::Epoch(epoch) => {
            let train_loss = std::iter::once(("train_loss", epoch.train_loss));
            (epoch.step, named("epoch", train_loss.chain(epoch.results())))
        }
        // The loss of its steps has a curve.
        Metric::Validation(epoch) => (epoch.step, named("epoch", epoch.results())),
        Metric::Gpu(gpu) => {
            let now = gpu.readings;
            let known = [
                ("utilisation", now.utilisation.map(f64::from)),
                ("memory_used", now.memory_used.map(|bytes| bytes.0 as f64)),
                ("temperature", now.temperature.map(f64::from)),
                ("power", now.power),
            ];
            (gpu.step, named(&format!("gpu{}", gpu.gpu), known.into_iter().filter_map(known_number)))
        }
    };
    (!numbers.is_empty()).then_some(CurveRow { time: line.time, step: step.0, numbers })
}

fn known_number((name, number): (&'static str, Option<f64>)) -> Option<(&'static str, f64)> {
    Some((name, number?))
}

fn named<'a>(group: &str, numbers: impl Iterator<Item = (&'a str, f64)>) -> Vec<(String, f64)> {
    numbers.map(|(name, number)| (format!("{group}/{name}"), number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_become_rows_and_a_torn_one_waits_for_its_end() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("metrics.jsonl");
        assert_eq!(read(run.path(), 0).unwrap(), Batch::default());
        let step = "{\"time\":1.5,\"kind\":\"step\",\"step\":1,\"epoch\":0,\"loss\":null,\"samples\":8,\"learning_rate\":0.5}\n";
        let epoch = "{\"time\":2.0,\"kind\":\"epoch\",\"epoch\":0,\"step\":1,\"train_loss\":0.5,\"val_loss\":null,\"val_own\":2.0}\n";
        let inside = epoch.replace("\"epoch\",", "\"validation\",");
        let gpu = "{\"time\":2.0,\"kind\":\"gpu\",\"gpu\":3,\"step\":1,\"memory_used\":7,\"utilisation\":50,\"temperature\":null,\"power\":null}\n";
        let text = format!("{step}no json\n{epoch}{inside}{gpu}");
        std::fs::write(&path, format!("{text}{{\"time\":3")).unwrap();
        let batch = read(run.path(), 0).unwrap();
        assert_eq!(batch.end, text.len() as u64);
        let names = |row: &CurveRow| row.numbers.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&batch.rows[0]), ["train/loss", "train/learning_rate"]);
        assert!(batch.rows[0].numbers[0].1.is_nan() && batch.rows[0].time.0 == 1.5);
        assert_eq!(names(&batch.rows[1]), ["epoch/train_loss", "epoch/val_own"]);
        assert_eq!(names(&batch.rows[2]), ["epoch/val_own"], "the loss of the steps has a curve");
        assert_eq!(names(&batch.rows[3]), ["gpu3/utilisation", "gpu3/memory_used"]);
        assert_eq!(read(run.path(), batch.end).unwrap().rows, []);
        assert!(read(run.path(), 1_000_000).unwrap_err().to_string().contains("less than"));
        let many = step.repeat(MOST_ROWS + 1);
        std::fs::write(&path, &many).unwrap();
        let first = read(run.path(), 0).unwrap();
        assert_eq!((first.rows.len(), read(run.path(), first.end).unwrap().rows.len()), (MOST_ROWS, 1));
    }
}
