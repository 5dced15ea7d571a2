//! `dtrain checkpoint ls | verify | export | diff`.

use super::{print, print_json};
use crate::arguments::{CheckpointCommand as Arguments, RunArgument};
use crate::error::CliError;
use crate::report::{Reader, Voice, age, bytes, loss, measure, percent, utc};
use crate::request::{ChosenCheckpoint, checkpoint_argument};
use crate::run_folder::RunFolder;
use crate::unusable::{is_of_another_version, state, unusable};
use dtrain_checkpoint::{
    Change, Check, Checkpoint, CheckpointId, Damage, Digest, Exported, FROZEN_FILE, FileStore,
    FoundCheckpoint, Manifest, Store, StoreError, check_frozen,
};
use dtrain_telemetry::UnixTime;
use dtrain_types::counted;
use serde_json::json;
use std::path::Path;

/// Runs the command.
///
/// *Errors*: no such run or checkpoint (usage); damage that `verify` or `diff` finds (failed).
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    match arguments {
        Arguments::Ls(run) => list(run, Check::Sizes).map(|_| ()),
        Arguments::Verify(run) => verify(run),
        Arguments::Export { from, output } => export(from, output),
        Arguments::Diff { first, second, json } => {
            diff(first, second, if *json { Reader::Program } else { Reader::Person })
        }
    }
}

fn store_error(error: &StoreError) -> CliError {
    CliError::failed("the checkpoints cannot be read").because(error)
}

/// Lists the checkpoints of a run, newest first.
fn list(arguments: &RunArgument, check: Check) -> Result<Listed, CliError> {
    let run = RunFolder::find(&arguments.run)?;
    let store = FileStore::new(&run.path);
    let best = store.best().map_err(|error| store_error(&error))?;
    let found = store.list(check).map_err(|error| store_error(&error))?;
    if found.is_empty() {
        let error = CliError::usage(format!("{} has no checkpoints", run.path.display()));
        return Err(error.hint("checkpoint.every says when they are written"));
    }
    let (mut damaged, mut frozen) = (Vec::new(), None);
    for FoundCheckpoint { id, valid } in found {
        if arguments.json {
            print_json(&as_json(id, &valid, best))?;
        } else {
            print(&line(id, &valid, best))?;
        }
        match valid {
            Ok(manifest) => frozen = frozen.or(manifest.frozen),
            Err(damage) => damaged.push(damage),
        }
    }
    Ok(Listed { run, damaged, frozen })
}

/// What was listed.
struct Listed {
    run: RunFolder,
    /// What is wrong with those that cannot be used.
    damaged: Vec<Damage>,
    /// The digest of the parameters that stay as they are, where there are some.
    frozen: Option<Digest>,
}

fn line(
    id: CheckpointId,
    valid: &Result<Manifest, dtrain_checkpoint::Damage>,
    best: Option<CheckpointId>,
) -> String {
    let manifest = match valid {
        Ok(manifest) => manifest,
        Err(damage) => return format!("{id}  {}\n", state(damage)),
    };
    let size: u64 = manifest.shards.iter().map(|shard| shard.bytes.0).sum();
    let number = |name: &str| manifest.metrics.get(name).and_then(serde_json::Value::as_f64);
    let mut text = format!("{id}  epoch {:>3}  {:>10}", manifest.epoch.0 + 1, bytes(size));
    if let Some(share) = number("val_accuracy") {
        text += &format!("  accuracy {}", percent(share));
    }
    if let Some(rmse) = number("val_rmse") {
        text += &format!("  RMSE {}", measure(rmse));
    }
    if let Some(value) = number("val_loss") {
        text += &format!("  val {}", loss(value));
    }
    let mark = if best == Some(id) { "  best" } else { "" };
    text + &format!("  {}  {}{mark}\n", &manifest.digest.to_string()[..16], created(&manifest.created))
}

/// When a checkpoint was written: the date, and how long ago that was.
fn created(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(then) => format!("{}  {}", utc(then), age(then, UnixTime::now().0 as u64)),
        // Another program's manifest may say it in words of its own.
        Err(_) => text.to_owned(),
    }
}

fn as_json(
    id: CheckpointId,
    valid: &Result<Manifest, dtrain_checkpoint::Damage>,
    best: Option<CheckpointId>,
) -> serde_json::Value {
    match valid {
        Ok(manifest) => json!({
            "checkpoint": id.to_string(),
            "valid": true,
            "best": best == Some(id),
            "step": id.step.0,
            "generation": id.generation.0,
            "epoch": manifest.epoch.0,
            "bytes": manifest.shards.iter().map(|shard| shard.bytes.0).sum::<u64>(),
            "digest": manifest.digest.to_string(),
            "metrics": manifest.metrics,
            "reduce": manifest.reduce,
            "created": manifest.created,
        }),
        Err(damage) => json!({"checkpoint": id.to_string(), "valid": false, "damage": damage.to_string()}),
    }
}

fn verify(arguments: &RunArgument) -> Result<(), CliError> {
    let Listed { run, damaged: unusable, frozen } = list(arguments, Check::Digests)?;
    if let Some(Err(fault)) = frozen.map(|digest| check_frozen(&run.path, digest)) {
        let error = CliError::failed(format!("{} is damaged", run.path.join(FROZEN_FILE).display()));
        return Err(error
            .because(&fault)
            .hint("every checkpoint of the run needs it: put it back from a copy"));
    }
    let others = unusable.iter().filter(|damage| is_of_another_version(damage)).count();
    let message = match (unusable.len() - others, others) {
        (0, 0) => return Ok(()),
        (damaged, 0) => counted(damaged, "damaged checkpoint"),
        (0, others) => format!("{} of another version of dtrain", counted(others, "checkpoint")),
        (damaged, others) => {
            format!("{}, {others} of another version of dtrain", counted(damaged, "damaged checkpoint"))
        }
    };
    Err(CliError::failed(message).hint("a resume passes over them and takes the newest one that is whole"))
}

fn open(text: &str, check: Check) -> Result<Checkpoint, CliError> {
    let ChosenCheckpoint { run, id, notes } = checkpoint_argument(text)?;
    notes.iter().for_each(|note| Voice::here().say(&format!("note: {note}")));
    let shown = format!("checkpoint {id} of {}", run.path.display());
    FileStore::new(&run.path).open(id, check).map_err(|damage| unusable(&shown, &damage))
}

fn export(from: &str, output: &Path) -> Result<(), CliError> {
    let checkpoint = open(from, Check::Digests)?;
    let written = dtrain_checkpoint::export(&checkpoint, output, Exported::Model).map_err(|error| {
        CliError::failed(format!("cannot export to {}", output.display())).because(&error)
    })?;
    print(&format!("{}  {}  blake3 {}\n", output.display(), bytes(written.bytes.0), written.blake3))
}

/// Exit code 0 if the two are the same bits, 1 if they differ, as `diff` does.
fn diff(first: &str, second: &str, reader: Reader) -> Result<(), CliError> {
    let (one, other) = (open(first, Check::Digests)?, open(second, Check::Digests)?);
    let found = dtrain_checkpoint::diff(&one, &other)
        .map_err(|damage| CliError::failed("a checkpoint cannot be read").because(&damage))?;
    let different = found.iter().filter(|tensor| tensor.change != Change::Same).count();
    for tensor in &found {
        if reader == Reader::Program {
            print_json(&json!({"tensor": tensor.name, "change": words(&tensor.change)}))?;
        } else if tensor.change != Change::Same {
            print(&format!("{}: {}\n", tensor.name, words(&tensor.change)))?;
        }
    }
    if different > 0 {
        let differ = if different == 1 { "differs" } else { "differ" };
        return Err(CliError::failed(format!("{different} of {} {differ}", counted(found.len(), "tensor"))));
    }
    match reader {
        Reader::Program => Ok(()),
        Reader::Person => print(&format!("the same bits in all of {}\n", counted(found.len(), "tensor"))),
    }
}

fn words(change: &Change) -> String {
    match change {
        Change::Same => "same".to_owned(),
        Change::Differs { elements, of, max_abs, max_ulp } => {
            format!(
                "{elements} of {} differ, by at most {max_abs:e} ({max_ulp} ulp)",
                counted(*of, "element")
            )
        }
        Change::Shape { first, second } => format!("shape {first:?} against {second:?}"),
        Change::OnlyFirst => "only in the first".to_owned(),
        Change::OnlySecond => "only in the second".to_owned(),
    }
}
