//! What a drill has to know of a run before it begins: asked of a program of its own by its words, or seen here.

use super::run::program;
use crate::config::{Config, Source};
use crate::error::CliError;
use crate::gpus::this_machine;
use crate::plan::Plan;
use dtrain_engine::Replica;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use std::process::Stdio;

/// What a drill has to know of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its configuration, as YAML.
    pub config: String,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Its last step.
    pub last_step: u64,
    /// Samples held out.
    pub held_out: u64,
    /// Parameters of the model.
    pub parameters: u64,
}

impl Described {
    /// What is known of a run here.
    pub fn of(plan: &Plan, replica: &dyn Replica) -> Result<Self, CliError> {
        Ok(Self {
            config: plan.config.to_yaml(),
            steps_per_epoch: plan.batches.steps_per_epoch(),
            last_step: plan.last_step().0,
            held_out: plan.validation().map_or(0, |set| set.dataset.len()),
            parameters: replica.about().layout.parameters as u64,
        })
    }

    /// As one object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("texts and numbers")
    }

    /// Asks a program. *Blocks* until it has answered.
    ///
    /// *Errors*: it cannot be started, or does not answer, in its own words.
    pub fn ask(words: &[OsString], settings: &[OsString]) -> Result<Self, CliError> {
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let shown = shown.join(" ");
        let mut command = program(words, &[], &[&["--describe".into()], settings].concat())?;
        let output = command.stderr(Stdio::piped()).output();
        let output =
            output.map_err(|error| CliError::failed(format!("cannot start {shown}")).because(&error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim_end().trim_start_matches("error: ").to_owned();
            let said = if said.is_empty() { format!("`{shown}` ended in {}", output.status) } else { said };
            return Err(CliError::usage(said));
        }
        let told = String::from_utf8_lossy(&output.stdout);
        let last = told.lines().next_back().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| {
            let error = CliError::usage(format!("`{shown} --describe` does not say what it would train"));
            error.hint("behind -- stands a program that ends in dtrain.train, or in train_own")
        })
    }

    /// Its configuration.
    ///
    /// *Errors*: of another version.
    pub fn config(&self) -> Result<Config, CliError> {
        let source = Source { path: "the program's configuration".into(), text: self.config.clone() };
        Ok(Config::parse::<&str>(Some(source), &[], this_machine())?)
    }
}
