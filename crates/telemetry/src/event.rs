//! The events of a run, as they stand in `events.jsonl` and on standard output with `--json`.
//!
//! The fields are a promise to scripts: adding one is fine, changing or removing one is not. A number that is not
//! finite or not known is `null`.

use crate::not_finite::{null_is_nan, without_nulls};
use crate::profile::ProfileReport;
use crate::{EpochMetrics, UnixTime};
use dtrain_types::{Epoch, Generation, Incarnation, MemberId, Rank, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An event and when it happened: one line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped<E> {
    /// When.
    pub time: UnixTime,
    /// What.
    #[serde(flatten)]
    pub event: E,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEvent {
    /// A process begins to lead the run: its first one, or one that goes on with it.
    Run(RunBegun),
    /// A step was committed; once per step number.
    Step {
        /// Its number.
        step: Step,
        /// The epoch it belongs to.
        epoch: Epoch,
        /// The generation that computed it.
        generation: Generation,
        /// Mean loss over its samples.
        #[serde(deserialize_with = "null_is_nan")]
        loss: f64,
        /// Samples that it fed.
        samples: u64,
    },
    /// An epoch ended, or the run in it, and was validated, if there is validation data.
    Epoch(EpochMetrics),
    /// An epoch was validated inside, where runs do that more often than at its end.
    Validation(EpochMetrics),
    /// The run ends after this epoch, before its length: `stop.patience` was used up.
    Stop {
        /// Which.
        epoch: Epoch,
        /// The last step.
        step: Step,
        /// What has not improved, and for how long.
        why: String,
    },
    /// A rank's process (or thread) has started and joined a generation.
    RankStarted {
        /// The process slot.
        member: MemberId,
        /// Its rank.
        rank: Rank,
        /// Which life of the slot.
        incarnation: Incarnation,
        /// The generation that it joined.
        generation: Generation,
        /// Its process id on its host.
        pid: u32,
        /// Its host.
        host: String,
        /// Its device.
        device: String,
    },
    /// A generation began to run.
    Generation {
        /// Which.
        generation: Generation,
        /// How many ranks it has.
        ranks: u32,
        /// Updates done when it began.
        step: Step,
        /// The micro-batches that each rank computes: from, and before which.
        ranges: Vec<(u32, u32)>,
    },
    /// A rank failed.
    Fault {
        /// The process slot.
        member: MemberId,
        /// Its rank, if it had one.
        rank: Option<Rank>,
        /// Its host.
        host: String,
        /// What the world was doing.
        phase: String,
        /// How it failed: signal, exit code, error, silence.
        cause: String,
        /// The same as one word, to be counted by.
        #[serde(default)]
        kind: String,
        /// Of a rank that hangs: what it was doing, and who waits for it.
        doing: Option<String>,
    },
    /// A rank has become much slower than the others, or is no more.
    Straggler {
        /// The process slot.
        member: MemberId,
        /// Its rank.
        rank: Rank,
        /// Its time for a micro-batch, as a multiple of the median rank's.
        ratio: f64,
        /// Whether it is slow now.
        slow: bool,
    },
    /// A failed rank was replaced, or the others went on without it, and the first step after it was committed.
    Recovery {
        /// The process slot that had failed.
        member: MemberId,
        /// From the fault to that step.
        seconds: f64,
        /// That step.
        step: Step,
    },
    /// A checkpoint is complete.
    Checkpoint {
        /// The generation that wrote it.
        generation: Generation,
        /// Updates in it.
        step: Step,
        /// Its folder's name.
        name: String,
        /// Its size.
        bytes: u64,
        /// From the copy of the state to the rename.
        seconds: f64,
        /// Whether it is the best so far.
        best: bool,
    },
    /// A checkpoint could not be written; the run goes on.
    CheckpointFailed {
        /// The generation that tried.
        generation: Generation,
        /// Updates that it would have held.
        step: Step,
        /// Why.
        cause: String,
    },
    /// Something that a person should know and that is no failure.
    Notice {
        /// In words.
        text: String,
    },
    /// Where the time of the steps went, if that was asked for.
    Profile(ProfileReport),
    /// The run ended; the last line.
    Summary(Summary),
}

/// What is known of a run when a process begins to lead it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunBegun {
    /// Its name.
    pub run: String,
    /// Version and revision of dtrain.
    pub version: String,
    /// The leading process on its host.
    pub pid: u32,
    /// That host.
    pub host: String,
    /// The kind of its data.
    pub data: String,
    /// The kind of its model.
    pub model: String,
    /// What the ranks of that host train on.
    pub device: String,
    /// Ranks that it begins with, of hosts that are known from the start.
    pub ranks: u32,
    /// How many hosts it begins with.
    pub hosts: u32,
    /// The number of its last step, if nothing ends it before.
    pub steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Samples of a full step.
    pub global_batch: u64,
    /// Tokens of a sample, where it has tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_sample: Option<u64>,
    /// Trainable parameters.
    pub parameters: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Digest of parameters and running statistics, in hexadecimal.
    pub digest: String,
    /// Updates done.
    pub steps: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// Samples fed.
    pub samples: u64,
    /// Duration of the training.
    pub seconds: f64,
    /// Samples fed per second.
    #[serde(deserialize_with = "null_is_nan")]
    pub samples_per_second: f64,
    /// Mean training loss of the last epoch.
    pub train_loss: Option<f64>,
    /// Mean validation loss at the end.
    pub val_loss: Option<f64>,
    /// Validation accuracy at the end.
    pub val_accuracy: Option<f64>,
    /// Macro F1 at the end.
    pub val_f1: Option<f64>,
    /// Root of the mean squared error of a regression at the end. *Units*: those of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_rmse: Option<f64>,
    /// Mean absolute error of a regression at the end. *Units*: those of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_mae: Option<f64>,
    /// Coefficient of determination of a regression at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_r2: Option<f64>,
    /// Metrics of a program's own at the end, by name.
    #[serde(default, deserialize_with = "without_nulls", skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Why the run ended before its length, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Ranks of the last generation.
    pub ranks: u32,
    /// How many generations there were.
    pub generations: u64,
    /// Steps that were computed, lost and computed again.
    pub lost_steps: u64,
    /// Seconds of each recovery.
    pub recoveries: Vec<f64>,
    /// Peak memory of the largest rank. *Units*: MiB.
    pub peak_rss_mb: f64,
    /// Peak memory of a GPU that a rank held there, where ranks train on GPUs. *Units*: bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_peak_bytes: Option<u64>,
    /// The run folder.
    pub run: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(event: RunEvent) -> String {
        serde_json::to_string(&Stamped { time: UnixTime(1.5), event }).unwrap()
    }

    #[test]
    fn a_step_is_one_flat_object() {
        let (step, epoch, generation) = (Step(3), Epoch(0), Generation(1));
        let event = RunEvent::Step { step, epoch, generation, loss: 0.25, samples: 64 };
        let text =
            r#"{"time":1.5,"event":"step","step":3,"epoch":0,"generation":1,"loss":0.25,"samples":64}"#;
        assert_eq!(line(event.clone()), text);
        let back: Stamped<RunEvent> = serde_json::from_str(text).unwrap();
        assert_eq!(back, Stamped { time: UnixTime(1.5), event });
    }

    #[test]
    fn what_is_not_finite_or_not_known_is_null_and_reads_back() {
        let text = line(RunEvent::Epoch(EpochMetrics {
            epoch: Epoch(1),
            step: Step(9),
            train_loss: f64::INFINITY,
            val_loss: Some(f64::NAN),
            val_accuracy: None,
            val_f1: Some(0.5),
            val_rmse: None,
            val_r2: None,
            others: BTreeMap::from([("val_own".to_owned(), f64::NAN)]),
        }));
        let fields = r#""train_loss":null,"val_loss":null,"val_accuracy":null,"val_f1":0.5,"val_own":null}"#;
        assert!(text.ends_with(fields), "{text}");
        let back: Stamped<RunEvent> = serde_json::from_str(&text).unwrap();
        let RunEvent::Epoch(EpochMetrics { train_loss, val_loss, others, .. }) = back.event else {
            panic!("{back:?}")
        };
        assert!(train_loss.is_nan() && val_loss.is_none() && others.is_empty());
    }

    #[test]
    fn every_event_has_its_name_and_reads_back() {
        let (step, generation, member) = (Step(9), Generation(2), MemberId(1));
        let text = || "words".to_owned();
        let events = [
            (
                "rank_started",
                RunEvent::RankStarted {
                    member,
                    rank: Rank(0),
                    incarnation: Incarnation(4),
                    generation,
                    pid: 77,
                    host: text(),
                    device: "cpu".into(),
                },
            ),
            ("run", RunEvent::Run(RunBegun { run: text(), steps: 40, ..RunBegun::default() })),
            ("validation", RunEvent::Validation(EpochMetrics { step, ..EpochMetrics::default() })),
            ("generation", RunEvent::Generation { generation, ranks: 1, step, ranges: vec![(0, 4)] }),
            (
                "fault",
                RunEvent::Fault {
                    member,
                    rank: None,
                    host: text(),
                    phase: text(),
                    cause: text(),
                    kind: text(),
                    doing: None,
                },
            ),
            ("straggler", RunEvent::Straggler { member, rank: Rank(1), ratio: 2.5, slow: true }),
            ("recovery", RunEvent::Recovery { member, seconds: 0.5, step }),
            (
                "checkpoint",
                RunEvent::Checkpoint { generation, step, name: text(), bytes: 7, seconds: 0.5, best: true },
            ),
            ("checkpoint_failed", RunEvent::CheckpointFailed { generation, step, cause: text() }),
            ("notice", RunEvent::Notice { text: "a \"quoted\"\nline".into() }),
            (
                "profile",
                RunEvent::Profile(ProfileReport { trace: Some(text()), step_ms: 1.5, ..Default::default() }),
            ),
            ("summary", RunEvent::Summary(Summary { recoveries: vec![0.5], ..Summary::default() })),
        ];
        for (name, event) in events {
            let text = line(event.clone());
            assert!(text.contains(&format!("\"event\":\"{name}\"")) && !text.contains('\n'), "{text}");
            let back: Stamped<RunEvent> = serde_json::from_str(&text).unwrap();
            assert_eq!(back.event, event);
        }
    }

    #[test]
    fn the_summary_has_exactly_the_promised_fields() {
        let value = serde_json::to_value(RunEvent::Summary(Summary::default())).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let promised = "event digest steps epochs samples seconds samples_per_second train_loss val_loss val_accuracy \
                        val_f1 ranks generations lost_steps recoveries peak_rss_mb run";
        assert_eq!(keys, promised.split_whitespace().collect::<Vec<_>>());
    }
}
