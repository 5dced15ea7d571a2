//! From what a user wrote to a checked configuration: layers over each other, what follows from them, checks.

use super::error::{ConfigError, Problem};
use super::origin::Source;
use super::resolve::{self, Layer, Resolved};
use super::{Config, Machine, batch, check, hugging_face, peft, tree};
use std::path::Path;
use std::sync::Arc;

impl Config {
    /// Reads a configuration: defaults, then the file, then the arguments (`key=value`).
    ///
    /// *Errors*: a file that cannot be read, unknown keys, values that do not fit or contradict each other.
    pub fn load<S: AsRef<str>>(
        file: Option<&Path>,
        arguments: &[S],
        machine: Machine,
    ) -> Result<Self, ConfigError> {
        Self::load_over(&[], file, arguments, machine)
    }

    /// The same with what a program of its own says (`key=value`) between the defaults and the file.
    ///
    /// *Errors*: as [`Config::load`].
    pub fn load_over<S: AsRef<str>>(
        base: &[String],
        file: Option<&Path>,
        arguments: &[S],
        machine: Machine,
    ) -> Result<Self, ConfigError> {
        let mut layers = vec![resolve::argument_layer(base)?];
        if let Some(path) = file {
            let source = Source { path: path.to_owned(), text: read_file(path)? };
            layers.push(resolve::file_layer(tree::parse_yaml(&Arc::new(source))?)?);
        }
        layers.push(resolve::argument_layer(arguments)?);
        Self::of_layers(layers, machine)
    }

    /// What a program of its own says, with `key=value`, and this configuration has otherwise: a sentence each.
    ///
    /// *Errors*: of what it says.
    pub fn unlike<S: AsRef<str>>(&self, said: &[S], machine: Machine) -> Result<Vec<String>, ConfigError> {
        let other = Self::of_layers(vec![resolve::argument_layer(said)?], machine)?;
        let keys = said.iter().filter_map(|word| word.as_ref().split_once('=')).map(|(key, _)| key);
        let differs = keys.filter_map(|key| {
            let (here, there) = (self.resolved.get(key), other.resolved.get(key)?);
            let shown = here.map_or("unset".to_owned(), ToString::to_string);
            (here != Some(there))
                .then(|| format!("the program says {key}={there}; the run goes on with {shown}"))
        });
        Ok(differs.collect())
    }

    /// Reads a configuration from text that is in memory already.
    ///
    /// *Errors*: as [`Config::load`].
    pub fn parse<S: AsRef<str>>(
        source: Option<Source>,
        arguments: &[S],
        machine: Machine,
    ) -> Result<Self, ConfigError> {
        let mut layers = Vec::new();
        if let Some(source) = source {
            layers.push(resolve::file_layer(tree::parse_yaml(&Arc::new(source))?)?);
        }
        layers.push(resolve::argument_layer(arguments)?);
        Self::of_layers(layers, machine)
    }

    pub(super) fn of_layers(mut layers: Vec<Layer>, machine: Machine) -> Result<Self, ConfigError> {
        let beside = [hugging_face::layer(&layers)?, peft::layer(&layers)?];
        layers.splice(0..0, beside.into_iter().flatten());
        let mut resolved = Resolved::new(layers)?;
        let derived = batch::settle(&mut resolved, machine)?;
        check::resolved(&resolved)?;
        let mut config = Self::typed(resolved);
        config.batch.derived = derived;
        check::config(&config)?;
        Ok(config)
    }
}

/// Reads a configuration file.
pub(super) fn read_file(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| {
        let problem = Problem::new(format!("cannot read {}: {error}", path.display()));
        problem.hint("-c FILE is a YAML file; `dtrain train --print-config > FILE` makes one").into()
    })
}
