//! From what a user wrote to a checked configuration: layers over each other, what follows from them, checks.

use super::error::{ConfigError, Problem};
use super::origin::Source;
use super::resolve::{self, Layer, Resolved};
use super::{Config, Machine, batch, check, tree};
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
        let source = match file {
            None => None,
            Some(path) => Some(Source { path: path.to_owned(), text: read_file(path)? }),
        };
        Self::parse(source, arguments, machine)
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

    pub(super) fn of_layers(layers: Vec<Layer>, machine: Machine) -> Result<Self, ConfigError> {
        let mut resolved = Resolved::new(layers)?;
        let derived = batch::settle(&mut resolved, machine)?;
        check::resolved(&resolved)?;
        let config = Self::typed(resolved, derived);
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
