//! What a supervisor that died has written down, so that the one that takes its place goes on behind it: no line is missing, none
//! is there twice.
//!
//! The files are written one after the other, so one may know a step more than the next; each goes on behind its own last line. This
//! file does not know why the supervisor died.

use crate::ending_file::read_ending;
use crate::hosts_file::read_hosts;
use crate::patience::{Patience, Standing};
use crate::ranges_file::{Ranges, read_ranges};
use dtrain_protocol::{Ending, Schedule};
use dtrain_telemetry::{EpochMetrics, Metric, Stamped};
use dtrain_types::{NodeId, Step};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// So much of the end of a file is read: many checkpoints' worth of lines. *Units*: bytes.
const TAIL: u64 = 8 << 20;

/// The newest lines of a run's files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The newest step of `events.jsonl`.
    pub events: Step,
    /// The newest step of `metrics.jsonl`.
    pub metrics: Step,
    /// The epochs and validations at the end of `metrics.jsonl`, by step.
    pub epochs: BTreeMap<Step, EpochMetrics>,
    /// Who computed which micro-batches in the newest generations.
    pub ranges: Ranges,
    /// Which hosts were let in.
    pub hosts: BTreeSet<NodeId>,
    /// What the run ended with, where it had ended.
    pub ending: Option<Ending>,
}

impl Found {
    /// Reads the ends of the files of a run.
    ///
    /// *Blocks* on the disk. *Errors*: of the system.
    pub fn read(run_dir: &Path) -> io::Result<Self> {
        let (hosts, ranges, ending) = (read_hosts(run_dir), read_ranges(run_dir), read_ending(run_dir));
        let mut found = Self { hosts, ranges, ending, ..Self::default() };
        for line in tail::<Value>(&run_dir.join("events.jsonl"))? {
            if line.get("event").and_then(Value::as_str) == Some("step") {
                found.events = found.events.max(Step(line.get("step").and_then(Value::as_u64).unwrap_or(0)));
            }
        }
        for line in tail::<Stamped<Metric>>(&run_dir.join("metrics.jsonl"))? {
            match line.event {
                Metric::Step(of) => found.metrics = found.metrics.max(of.step),
                Metric::Epoch(of) | Metric::Validation(of) => drop(found.epochs.insert(of.step, of)),
                Metric::Gpu(_) => {}
            }
        }
        Ok(found)
    }

    /// The newest validation after a step up to this one.
    #[must_use]
    pub fn newest_validation(&self, schedule: &Schedule, upto: Step) -> Option<(Step, &EpochMetrics)> {
        let mut newest = self.epochs.range(..=upto).rev().map(|(step, seen)| (*step, seen));
        newest.find(|(step, _)| schedule.validates(*step))
    }

    /// What was known of early stopping after each validation behind the step `from`, before which `standing` was.
    #[must_use]
    pub fn standings(
        &self,
        patience: &Patience,
        standing: Option<&Standing>,
        from: Step,
        schedule: &Schedule,
    ) -> BTreeMap<Step, Standing> {
        let mut before = standing.cloned();
        let mut all = BTreeMap::new();
        for (step, seen) in self.epochs.range(from.next()..).filter(|(step, _)| schedule.validates(**step)) {
            before = patience.after(before.as_ref(), seen);
            all.extend(before.clone().map(|standing| (*step, standing)));
        }
        all
    }
}

/// The whole lines at the end of a file, which may not be there.
fn tail<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // What was cut at the front, or torn at the end, is no line.
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::Epoch;

    #[test]
    fn the_newest_whole_lines_are_found_and_a_torn_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "events.jsonl",
            "{\"event\":\"step\",\"step\":7}\n{\"event\":\"notice\"}\n{\"event\":\"step\",\"step\":8",
        );
        write(
            "metrics.jsonl",
            "{\"time\":1.0,\"kind\":\"step\",\"step\":6}\n{\"time\":1.0,\"kind\":\"epoch\",\"epoch\":1,\"step\":6,\"train_loss\":0.5,\
             \"val_loss\":0.25,\"val_top5\":0.75}\n",
        );
        let found = Found::read(folder.path()).unwrap();
        assert_eq!((found.events, found.metrics), (Step(7), Step(6)));
        let seen = &found.epochs[&Step(6)];
        assert_eq!((seen.epoch, seen.val_loss, seen.others["val_top5"]), (Epoch(1), Some(0.25), 0.75));
        assert_eq!(Found::read(&folder.path().join("nowhere")).unwrap(), Found::default());
    }
}
