//! `dtrain status`: how a run is, once or again and again, from its folder or from the process that leads it.

use super::{print, print_json};
use crate::arguments::{Node, Status};
use crate::error::CliError;
use crate::hosts::{identity, masters, resolve_all};
use crate::run_folder::{CONFIG, RUNS, RunFolder, all_runs};
use crate::status::{Follower, Leader, Sight, as_json, table};
use console::{Term, truncate_str};
use dtrain_runtime::{UplinkError, visit};
use dtrain_telemetry::UnixTime;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// How long the first host of a run is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shows it.
///
/// *Errors*: there is no such run, or nobody answers. *Blocks*, where it is watched, until the run ends.
pub fn run(arguments: &Status) -> Result<(), CliError> {
    let mut look = Look::new(arguments)?;
    let terminal = Term::stdout();
    let again = arguments.watch || (terminal.is_term() && !arguments.once && !arguments.json);
    let mut shown = 0;
    loop {
        let sight = look.now()?;
        let is_live = again && sight.is_live();
        match arguments.json {
            true => print_json(&as_json(&sight))?,
            false => {
                let text = table(&sight);
                if terminal.is_term() {
                    // What does not fit could not be taken away again.
                    let (rows, columns) = terminal.size();
                    let text = if is_live { fitting(&text, rows, columns) } else { text };
                    // A terminal that went away ends the loop when it is written to.
                    let _ = terminal.clear_last_lines(shown);
                    shown = text.lines().count();
                    print(&text)?;
                } else {
                    print(&text)?;
                }
            }
        }
        if !is_live {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(arguments.every.into()));
    }
}

/// As much of a text as a terminal shows at a time, without a line that it would break.
fn fitting(text: &str, rows: u16, columns: u16) -> String {
    let cut = |line| format!("{}\n", truncate_str(line, columns.into(), ""));
    text.lines().take(usize::from(rows).saturating_sub(1)).map(cut).collect()
}

/// Where to look.
enum Look {
    Folder(Box<Follower>),
    Host { masters: Vec<SocketAddr>, shown: String, identity: dtrain_transport::quic::Identity },
}

impl Look {
    fn new(arguments: &Status) -> Result<Self, CliError> {
        if let Some(text) = &arguments.master {
            let names = masters(&Node { master: Some(text.clone()), ..Node::default() })?;
            return Ok(Self::Host {
                masters: resolve_all(&names)?,
                shown: text.clone(),
                identity: identity()?,
            });
        }
        let run = match &arguments.run {
            Some(run) => RunFolder::find(run)?,
            None => newest()?,
        };
        let shown = run.path.display().to_string();
        let follower = Follower::new(run).map_err(|error| unreadable(&shown, &error))?;
        Ok(Self::Folder(Box::new(follower)))
    }

    fn now(&mut self) -> Result<Sight, CliError> {
        match self {
            Self::Folder(follower) => follower.look().map_err(|error| unreadable("the run", &error)),
            Self::Host { masters, shown, identity } => {
                let progress =
                    visit(masters, identity, PATIENCE).map_err(|error| no_answer(shown, &error))?;
                let (leader, place) = (Leader::Answered, progress.begun.run.clone());
                Ok(Sight { progress, leader, place, now: UnixTime::now() })
            }
        }
    }
}

/// The run that something was last heard of.
fn newest() -> Result<RunFolder, CliError> {
    let changed = |run: &RunFolder| {
        let of = |name: &str| std::fs::metadata(run.path.join(name)).and_then(|data| data.modified()).ok();
        of("events.jsonl").or_else(|| of(CONFIG))
    };
    let newest = all_runs(Path::new(RUNS)).into_iter().max_by_key(changed);
    newest.ok_or_else(|| {
        CliError::usage(format!("there are no runs in {RUNS}"))
            .hint("start one with `dtrain train`, or name a run by its folder")
    })
}

fn unreadable(what: &str, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot read {what}")).because(error)
}

fn no_answer(shown: &str, error: &UplinkError) -> CliError {
    let message = error.to_string();
    let (what, _) = message.split_once("\nhint:").unwrap_or((&message, ""));
    let (error, hint) = match error {
        UplinkError::Untrusted(_) => (
            CliError::usage(what.to_owned()),
            "the token must be that of the run's hosts: DTRAIN_TOKEN_FILE names it".to_owned(),
        ),
        _ => (
            CliError::failed(what.to_owned()),
            format!(
                "is `dtrain node --rank 0` running, and does {shown} lead to it? a run of one host has no address: \
                 look at its folder there"
            ),
        ),
    };
    error.hint(hint)
}
