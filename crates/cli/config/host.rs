//! The configuration of one host of several: that of the run, with what is the host's own laid over it.
//!
//! It does not know hosts, only which keys each may set for itself.

use super::choice::ModelKind;
use super::error::{ConfigError, Problem};
use super::load::read_file;
use super::origin::Source;
use super::resolve::{self, Layer};
use super::tree::parse_yaml;
use super::value::Value;
use super::{Config, Machine, keys};
use std::path::Path;
use std::sync::Arc;

/// What each host decides for itself.
const OWN: &[&str] = &["ranks", "threads", "workers", "isolation", "isa", "devices", "join_timeout"];
/// What only the host of the supervisor reads; another may be started with the same file, which may hold them.
const OF_THE_FIRST: &[&str] = &[
    "name",
    "run_dir",
    "resume",
    "trusted_network",
    "min_ranks",
    "max_restarts",
    "profile",
    "track",
    "mlflow.uri",
    "mlflow.experiment",
    "wandb.project",
    "wandb.entity",
    "metrics.listen",
];
/// Where each host has its copy of the same files.
const PLACES: &[&str] = &[
    "data.images",
    "data.labels",
    "data.val_images",
    "data.val_labels",
    "data.inputs",
    "data.targets",
    "data.val_inputs",
    "data.val_targets",
    "data.path",
    "data.val_path",
    "model.init_from",
    "model.lora_from",
];

impl Config {
    /// Lays what a host was started with over the configuration of its run.
    ///
    /// *Errors*: mistakes in what it was started with; keys that have to be the same on all hosts and are not.
    pub fn of_host<S: AsRef<str>>(
        run: Source,
        file: Option<&Path>,
        arguments: &[S],
        machine: Machine,
    ) -> Result<Self, ConfigError> {
        let without = |layer: Layer, keys: &[&str]| -> Layer {
            layer.into_iter().filter(|entry| !keys.contains(&entry.key.as_str())).collect()
        };
        let base = resolve::file_layer(parse_yaml(&Arc::new(run))?)?;
        let whole = Self::of_layers(vec![base.clone()], machine)?;
        // Another host may have more cores, or fewer.
        let own: &[&str] = match whole.model.kind() {
            // Its bits depend on its threads.
            ModelKind::Torch => &["ranks"],
            _ => &["ranks", "threads"],
        };
        let mut layers = vec![without(base, own)];
        if let Some(path) = file {
            let source = Source { path: path.to_owned(), text: read_file(path)? };
            layers.push(without(resolve::file_layer(parse_yaml(&Arc::new(source))?)?, OF_THE_FIRST));
        }
        layers.push(without(resolve::argument_layer(arguments)?, OF_THE_FIRST));
        let host = Self::of_layers(layers, machine)?;
        ConfigError::check(whole.disagreements(&host))?;
        Ok(host)
    }

    fn disagreements(&self, host: &Self) -> Vec<Problem> {
        let value = |config: &Self, key| config.resolved.get(key).cloned();
        let is_place = |key: &str| {
            let given = |config: &Self| matches!(config.resolved.get(key), Some(Value::Text(_)));
            PLACES.contains(&key) && given(self) && given(host)
        };
        let shared = |key: &&str| !OWN.contains(key) && !OF_THE_FIRST.contains(key) && !is_place(key);
        let differing = keys::names().filter(shared).filter(|key| value(self, key) != value(host, key));
        differing
            .map(|key| {
                let shown =
                    |config: &Self| value(config, key).map_or("unset".to_owned(), |value| value.to_string());
                let message = format!("it is {} in the run, and {} here", shown(self), shown(host));
                host.problem(key, message)
                    .hint("it has to be the same on all hosts: leave it to the first one")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { cores: 3, gpus: |_, _| 0 };

    fn run(arguments: &[&str]) -> Source {
        let config = Config::parse(None, arguments, Machine { cores: 8, gpus: |_, _| 0 }).unwrap();
        Source { path: "config.yaml".into(), text: config.stored("one").to_yaml() }
    }

    fn host(arguments: &[&str]) -> Result<Config, ConfigError> {
        let given = ["data.kind=text", "data.path=/first/text", "steps=9", "detect=2s", "ranks=5"];
        Config::of_host(run(&given), None, arguments, MACHINE)
    }

    #[test]
    fn a_host_without_settings_takes_the_run_and_its_own_number_of_ranks() {
        let config = host(&[]).unwrap();
        assert_eq!((config.world.ranks, config.world.threads), (3, 1));
        assert_eq!(config.world.detect.as_secs(), 2);
        assert_eq!(config.length, super::super::Length::Steps(9));
    }

    #[test]
    fn ranks_workers_and_the_places_of_files_are_a_hosts_own() {
        let config = host(&["ranks=2", "workers=0", "data.path=/second/text", "name=x", "steps=9"]).unwrap();
        assert_eq!((config.world.ranks, config.workers), (2, 0));
        assert!(config.to_yaml().contains("/second/text"));
    }

    #[test]
    fn what_all_hosts_must_share_is_refused_by_its_key() {
        for (argument, key) in [
            ("seed=8", "seed"),
            ("steps=10", "steps"),
            ("optimizer.lr=1", "optimizer.lr"),
            ("detect=3s", "detect"),
            ("checkpoint.every=2 steps", "checkpoint.every"),
            ("data.val_split=0.5", "data.val_split"),
        ] {
            let error = host(&[argument]).unwrap_err();
            assert!(
                error.problems.iter().any(|problem| problem.key.as_deref() == Some(key)),
                "{argument}: {error}"
            );
            assert!(error.to_string().contains("in the run"), "{error}");
        }
    }
}
