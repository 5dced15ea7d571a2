//! `dtrain runs`: all runs with how far they are, how good they are, and what differs between them.

use super::{print, print_json};
use crate::arguments::Runs;
use crate::config::{Config, Source};
use crate::error::CliError;
use crate::gpus::this_machine;
use crate::report::{age, loss, measure, percent};
use crate::run_folder::{CONFIG, RUNS, RunFolder, all_runs, runs_hint};
use dtrain_checkpoint::{Check, CheckpointId, FileStore, Manifest, Store, held_by};
use dtrain_telemetry::UnixTime;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// One run, as far as its files tell.
struct Found {
    folder: RunFolder,
    /// The keys that decide its bits; none if its configuration cannot be read.
    keys: BTreeMap<&'static str, String>,
    /// The newest checkpoint.
    newest: Option<CheckpointId>,
    /// Results at the best checkpoint, or at the newest if none is marked.
    results: Map<String, Value>,
    /// When the newest checkpoint was written. *Units*: seconds since 1970.
    written: u64,
    /// The process of this host that leads it now.
    leader: Option<u32>,
}

/// Lists them, the newest last unless something else is asked for.
///
/// *Errors*: there is none, or none has what they are to be sorted by. *Blocks* on the disk.
pub fn run(arguments: &Runs) -> Result<(), CliError> {
    let base = arguments.folder.clone().unwrap_or_else(|| RUNS.into());
    let mut found: Vec<Found> = all_runs(&base).into_iter().map(look).collect();
    if found.is_empty() {
        return Err(CliError::usage(format!("there are no runs in {}", base.display())).hint(runs_hint()));
    }
    sort(&mut found, arguments)?;
    let differs = differing(&found);
    let width = found.iter().map(|run| run.folder.name.chars().count()).max().unwrap_or(0);
    for run in &found {
        match arguments.json {
            true => print_json(&as_json(run, &differs))?,
            false => print(&line(run, &differs, width))?,
        }
    }
    Ok(())
}

fn look(folder: RunFolder) -> Found {
    let keys = || {
        let source = Source { path: folder.path.join(CONFIG), text: folder.config_text().ok()? };
        let config = Config::parse::<&str>(Some(source), &[], this_machine()).ok()?;
        Some(config.bits().collect())
    };
    let store = FileStore::new(&folder.path);
    let manifest = |id| store.open(id, Check::Sizes).ok().map(dtrain_checkpoint::Checkpoint::into_manifest);
    let newest = store.ids().ok().and_then(|ids| ids.first().copied());
    let best = store.best().ok().flatten().or(newest).and_then(manifest);
    let written = newest.and_then(manifest).and_then(|manifest| manifest.created.parse().ok()).unwrap_or(0);
    let results = best.map(|manifest: Manifest| manifest.metrics).unwrap_or_default();
    Found {
        keys: keys().unwrap_or_default(),
        newest,
        results,
        written,
        leader: held_by(&folder.path).map(|holder| holder.pid),
        folder,
    }
}

/// By what was asked for, the largest last; what does not have it comes first.
///
/// *Errors*: no run has a result of this name.
fn sort(found: &mut [Found], arguments: &Runs) -> Result<(), CliError> {
    let step = |run: &Found| run.newest.map_or(0, |id| id.step.0);
    match arguments.sort.as_str() {
        "age" => found.sort_by_key(|run| run.written),
        "name" => found.sort_by(|one, other| one.folder.name.cmp(&other.folder.name)),
        "step" => found.sort_by_key(step),
        result => {
            let number = |run: &Found| run.results.get(result).and_then(Value::as_f64);
            if !found.iter().any(|run| number(run).is_some()) {
                let known: BTreeSet<&str> =
                    found.iter().flat_map(|run| run.results.keys().map(String::as_str)).collect();
                let known: Vec<&str> = ["age", "name", "step"].into_iter().chain(known).collect();
                let error = CliError::usage(format!("--sort {result}: no run has such a result"));
                return Err(error.hint(format!("they have {}", known.join(", "))));
            }
            let least = |run: &Found| number(run).unwrap_or(f64::NEG_INFINITY);
            found.sort_by(|one, other| least(one).total_cmp(&least(other)));
        }
    }
    if arguments.reverse {
        found.reverse();
    }
    Ok(())
}

/// The keys that are not the same in all runs, of those that have them.
fn differing(found: &[Found]) -> BTreeSet<&'static str> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for run in found {
        for (key, value) in &run.keys {
            values.entry(key).or_default().insert(value);
        }
    }
    let keys = found.iter().flat_map(|run| run.keys.keys().copied());
    keys.filter(|key| values[key].len() > 1).collect()
}

fn own<'a>(
    run: &'a Found,
    differs: &'a BTreeSet<&'static str>,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    run.keys.iter().filter(|(key, _)| differs.contains(*key)).map(|(key, value)| (*key, value.as_str()))
}

fn line(run: &Found, differs: &BTreeSet<&'static str>, width: usize) -> String {
    let number = |name: &str| run.results.get(name).and_then(Value::as_f64);
    let mut results: Vec<String> = Vec::new();
    results.extend(number("val_accuracy").map(|share| format!("accuracy {}", percent(share))));
    results.extend(number("val_f1").map(|f1| format!("F1 {f1:.4}")));
    results.extend(number("val_rmse").map(|rmse| format!("RMSE {}", measure(rmse))));
    results.extend(number("val_mae").map(|mae| format!("MAE {}", measure(mae))));
    results.extend(number("val_r2").map(|r2| format!("R2 {r2:.4}")));
    results.extend(number("val_perplexity").map(|perplexity| format!("perplexity {perplexity:.2}")));
    let of_classes = run.results.iter().filter(|(name, _)| name.ends_with(']'));
    results.extend(of_classes.filter_map(|(name, value)| Some(format!("{name} {:.4}", value.as_f64()?))));
    if results.is_empty() {
        results.extend(number("val_loss").map(|value| format!("val {}", loss(value))));
    }
    let far = run.newest.map_or("no checkpoint yet".to_owned(), |id| format!("step {}", id.step));
    let when = if run.leader.is_some() {
        "trains now".to_owned()
    } else if run.written > 0 {
        age(run.written, UnixTime::now().0 as u64)
    } else {
        String::new()
    };
    let keys: Vec<String> = own(run, differs).map(|(key, value)| format!("{key}={value}")).collect();
    let name = &run.folder.name;
    let mut text = format!("{name:<width$}  {far:<12}  {:<30}  {when}", results.join("  "));
    if !keys.is_empty() {
        text = format!("{}\n{:width$}  {}", text.trim_end(), "", keys.join(" "));
    }
    text.trim_end().to_owned() + "\n"
}

fn as_json(run: &Found, differs: &BTreeSet<&'static str>) -> Value {
    let keys: Map<String, Value> =
        own(run, differs).map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
    let path: &Path = &run.folder.path;
    json!({
        "run": path, "step": run.newest.map(|id| id.step.0), "results": run.results, "differs": keys,
        "written": run.written, "pid": run.leader,
    })
}
