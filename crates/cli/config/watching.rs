//! Who is told of a run besides its own folder: trackers, and whoever reads its metrics over HTTP.
//!
//! None of it can change the bits of a run.

use super::choice::TrackerKind;
use super::resolve::Resolved;
use super::value::Value;

/// The keys of watching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchKeys {
    /// Where the curves go.
    pub trackers: Vec<TrackerKind>,
    /// The tracking server of MLflow.
    pub mlflow_uri: Option<String>,
    /// The experiment there.
    pub mlflow_experiment: Option<String>,
    /// The project of Weights & Biases.
    pub wandb_project: Option<String>,
    /// The user or team there.
    pub wandb_entity: Option<String>,
    /// Where metrics can be read.
    pub listen: Option<String>,
}

impl WatchKeys {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        let text = |key| r.text(key).map(str::to_owned);
        let tracker = |value: &Value| match value {
            Value::Word(word) => TrackerKind::from_name(word),
            _ => None,
        };
        Self {
            trackers: r.list("track").iter().filter_map(tracker).collect(),
            mlflow_uri: text("mlflow.uri"),
            mlflow_experiment: text("mlflow.experiment"),
            wandb_project: text("wandb.project"),
            wandb_entity: text("wandb.entity"),
            listen: text("metrics.listen"),
        }
    }

    /// Whether the curves go to this tracker too.
    #[must_use]
    pub fn tracks(&self, tracker: TrackerKind) -> bool {
        self.trackers.contains(&tracker)
    }
}
