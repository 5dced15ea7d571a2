//! `dtrain track`: sends to trackers what they did not take while a run went on, or a run that they never heard of.

use super::print;
use crate::arguments::Track;
use crate::config::{Config, Source};
use crate::error::CliError;
use crate::gpus::this_machine;
use crate::run_folder::{CONFIG, RunFolder};
use crate::status::Follower;
use crate::watch::{tracked, trackers};
use dtrain_checkpoint::held_by;
use dtrain_telemetry::track::{EndStatus, deliver};

/// Sends it.
///
/// *Errors*: there is no such run or no tracker; one does not take it, after the others have been tried. *Blocks* on the network.
pub fn run(arguments: &Track) -> Result<(), CliError> {
    let run = RunFolder::find(&arguments.run)?;
    let source = Source { path: run.path.join(CONFIG), text: run.config_text()? };
    let config = Config::parse(Some(source), &arguments.overrides, this_machine())?;
    if let Some(holder) = held_by(&run.path) {
        let error =
            CliError::usage(format!("{} goes on: process {} leads it", run.path.display(), holder.pid));
        return Err(
            error.hint("a run sends to its trackers by itself; for another one wait until it has ended")
        );
    }
    let trackers = trackers(&config)?;
    if trackers.is_empty() {
        let problem = config.problem("track", "this run has no tracker to be sent to");
        return Err(problem
            .hint("name one: track=mlflow mlflow.uri=http://HOST:5000, or track=wandb")
            .into());
    }
    let status = status(&run);
    let mut failed = Vec::new();
    for tracker in trackers {
        let name = tracker.name();
        match deliver(tracked(&config, &run), tracker, status) {
            Ok(done) => {
                let rows = dtrain_types::counted(done.rows, "row");
                let place = done.place.unwrap_or_default();
                match done.problem {
                    None => print(&format!("{name}: {rows} sent, nothing is left; {place}\n"))?,
                    Some(problem) => failed.push(format!("{name}: {rows} sent, then: {problem}")),
                }
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(CliError::failed(failed.join("\n"))
            .hint("nothing is lost: the same command goes on from there, once that is mended")),
    }
}

/// How the run ended, as far as its files say.
fn status(run: &RunFolder) -> EndStatus {
    let seen = Follower::new(run.clone()).and_then(|mut follower| follower.look());
    match seen.ok().and_then(|sight| Some((sight.progress.summary?, sight.progress.begun.steps))) {
        Some((summary, steps)) if summary.steps >= steps || summary.stopped.is_some() => EndStatus::Finished,
        // A run that failed has no state at its end.
        Some((summary, _)) if summary.digest.is_empty() => EndStatus::Failed,
        Some(_) => EndStatus::Stopped,
        None => EndStatus::Failed,
    }
}
