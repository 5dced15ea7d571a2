//! `dtrain train`: from a command line to a run on this host.
//!
//! Everything that can be wrong with the request is found before the run folder is made.

use super::print;
use crate::arguments::Train;
use crate::config::Machine;
use crate::error::CliError;
use crate::plan::Plan;
use crate::report::{Voice, banner};
use crate::request::{Place, Request, settings};
use crate::run_folder::RunFolder;
use crate::session::{self, Launch};

/// Trains.
///
/// *Errors*: of the request (kind usage, nothing written), or of the training. *Blocks* for the whole run.
pub fn run(arguments: &Train) -> Result<(), CliError> {
    let machine = Machine::here();
    if arguments.print_config && arguments.resume.is_none() {
        return print(&settings(&arguments.settings, machine)?.to_yaml());
    }
    let request = Request::new(arguments, machine)?;
    if arguments.print_config {
        return print(&request.config.to_yaml());
    }
    let plan = Plan::open(&request.config)?;
    let replica = plan.replica()?;
    let voice = Voice::new(arguments.output.quiet);
    let run = make_folder(&request, &plan)?;
    voice.say(&format!("dtrain {}", crate::arguments::VERSION));
    voice.say(&banner(&plan, &replica, Some(&run), machine));
    for note in &request.notes {
        voice.say(&format!("  note: {note}"));
    }
    session::run(Launch { plan, replica, run, start: request.start, voice, json: arguments.output.json })
}

/// The first thing that is written: the folder of the run with its configuration.
fn make_folder(request: &Request, plan: &Plan) -> Result<RunFolder, CliError> {
    let run = match &request.place {
        Place::Named(path) => RunFolder::create_named(path.clone())?,
        Place::Numbered(base) => RunFolder::create_numbered(base)?,
        Place::Existing(run) => run.clone(),
    };
    let text = plan.config.stored(&run.name).to_yaml();
    // What lies there already is left alone when it says the same.
    if run.config_text().ok().as_deref() != Some(text.as_str()) {
        run.write_config(&text)?;
    }
    Ok(run)
}
