//! What is said of a session that has ended: its result, or its first cause and what a person can do about it.

use crate::error::{CliError, Kind};
use crate::report::{self, Reader, Voice};
use crate::way_on::{hint_for, way_on};
use dtrain_checkpoint::{FileStore, Store};
use dtrain_protocol::{Outcome, What};
use dtrain_runtime::Conclusion;
use dtrain_telemetry::Summary;
use std::path::Path;

/// Says how a session ended; its error is the exit code.
///
/// *Errors*: the run did not come to its end.
pub fn conclude(
    conclusion: &Conclusion,
    summary: Summary,
    voice: Voice,
    reader: Reader,
) -> Result<Summary, CliError> {
    match &conclusion.outcome {
        Outcome::Finished(_) => {
            voice.show(reader, |stream| report::end(&summary, stream));
            Ok(summary)
        }
        Outcome::Interrupted(ending) => {
            let written = ending.and_then(|ending| ending.checkpoint);
            let newest =
                FileStore::new(Path::new(&summary.run)).ids().ok().and_then(|ids| ids.first().copied());
            let what = match (written, newest) {
                (Some(id), _) => format!("checkpoint {id} is saved"),
                (None, Some(id)) => format!("the newest checkpoint, {id}, is of step {}", id.step),
                (None, None) => "nothing is saved".to_owned(),
            };
            let error =
                CliError::new(Kind::Interrupted, format!("interrupted after step {}: {what}", summary.steps));
            Err(error.hint(way_on(&summary.run)))
        }
        Outcome::NotEnough { joined, min_ranks, missing, causes } => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let are = if *joined == 1 { "rank is" } else { "ranks are" };
            let members = if missing.len() == 1 { "member" } else { "members" };
            let mut what = format!(
                "{joined} {are} there, {min_ranks} needed; missing: {members} {}",
                missing.join(", ")
            );
            let mut hint = "lower min_ranks, or raise max_restarts or join_timeout".to_owned();
            if let [first, others @ ..] = causes.as_slice() {
                what = format!("{what}\n{}", report::fault_report(first, others, &conclusion.last_lines));
                hint = format!("{hint}; {}", hint_for(first, &summary.run));
            }
            Err(CliError::new(Kind::NotEnoughRanks, what.trim_end().to_owned()).hint(hint))
        }
        Outcome::Failed { first, others } => {
            let text = report::fault_report(first, others, &conclusion.last_lines);
            let error = CliError::failed(text.trim_end().to_owned());
            let relapsed = others.iter().any(|other| matches!(other.what, What::Relapsed { .. }));
            let sooner = if relapsed {
                "if ranks die before a checkpoint is due, a smaller checkpoint.every keeps what they make; "
            } else {
                ""
            };
            Err(error.hint(format!("{sooner}{}", hint_for(first, &summary.run))))
        }
    }
}
