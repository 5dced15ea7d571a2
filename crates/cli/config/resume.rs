//! What may change when a run goes on: keys marked `free` may, keys marked `bits` make another run.

use super::Config;
use super::batch::Batch;
use super::choice::ModelKind;
use super::error::{ConfigError, Problem};
use super::value::{Length, Value};

/// How many token ids there are.
const VOCABULARY: &str = "data.vocabulary";

/// A configuration that goes on with an older one.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The new one, with what it takes over from the old one.
    pub config: Config,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
    /// Whether the run is made longer than its schedule was made for.
    pub longer: bool,
}

impl Config {
    /// The keys marked `bits` in which `new` differs.
    ///
    /// The length of the run is among them only where the schedule stretches over it: a constant learning rate
    /// gives the same steps however many follow.
    #[must_use]
    pub fn changed_bits(&self, new: &Self) -> Vec<&'static str> {
        let stretched = self.schedule.depends_on_length() || new.schedule.depends_on_length();
        let mut changed = self.resolved.changed_bits(&new.resolved);
        if self.model.kind() == ModelKind::Torch && self.world.threads != new.world.threads {
            changed.push("threads");
        }
        changed.into_iter().filter(|key| stretched || !is_length(key)).collect()
    }

    /// Lets `new` go on with a run that this configuration started.
    ///
    /// *Errors*: a changed key that makes another run.
    pub fn resumed_by(&self, new: &Self) -> Result<Resumed, ConfigError> {
        let (mut config, mut notes) = (new.clone(), Vec::new());
        if new.batch.derived && new.batch != self.batch {
            notes.push(format!(
                "batch_size would give global_batch {} of micro-batches of {}; the run keeps {} of {}, so that its bits \
                 stay the same",
                new.batch.global, new.batch.micro, self.batch.global, self.batch.micro
            ));
            let Batch { global, micro, .. } = self.batch;
            config = new.with(
                [("global_batch", global), ("micro_batch", micro)]
                    .map(|(key, rows)| (key, Value::Int(rows.into()))),
            );
        }
        // What was counted when the run began is not counted anew.
        if let (Some(Value::Int(vocabulary)), Some(Value::Word("auto"))) =
            (self.resolved.get(VOCABULARY), config.resolved.get(VOCABULARY))
        {
            config = config.with([(VOCABULARY, Value::Int(*vocabulary))]);
        }
        let changed = |key: &'static str| -> Problem {
            let value =
                |config: &Self| config.resolved.get(key).map_or("unset".to_owned(), ToString::to_string);
            let message =
                format!("it was {} when the run started, and is {} now", value(self), value(&config));
            config.problem(key, message).hint(
                "it changes the bits of the result: keep it, or start a new run from this state with --fork",
            )
        };
        let longer = self.is_shorter_than(&config);
        let mut keys = self.changed_bits(&config);
        let stretched = keys.len();
        keys.retain(|key| !(longer && is_length(key)));
        let longer = keys.len() < stretched;
        ConfigError::check(keys.into_iter().map(changed).collect())?;
        Ok(Resumed { config, notes, longer })
    }

    /// Whether `new` goes on for longer, in the same unit.
    fn is_shorter_than(&self, new: &Self) -> bool {
        match (self.length, new.length) {
            (Length::Epochs(old), Length::Epochs(new)) => old < new,
            (Length::Steps(old), Length::Steps(new)) => old < new,
            (Length::Epochs(_), Length::Steps(_)) | (Length::Steps(_), Length::Epochs(_)) => false,
        }
    }
}

fn is_length(key: &str) -> bool {
    matches!(key, "epochs" | "steps")
}
