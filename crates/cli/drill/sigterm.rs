//! The drill that asks a run to stop, as a batch queue does before it takes the machine away, and goes on with it.
//!
//! A recovery is the wall time from the signal to the first step of the next life: the last step in hand, the
//! checkpoint, the end of the process and a start with `--resume`.

use super::report::Reporter;
use super::run::{EndedRun, Run, signal};
use super::seen::is_step;
use super::setup::Setup;
use super::{Chance, Disturbed, InjectedFault, Promise};
use crate::error::CliError;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// A random moment is one within so long.
const SOME_TIME: Duration = Duration::from_millis(200);
/// The exit code of a run that somebody stopped.
const INTERRUPTED: i32 = 130;

/// SIGTERM, and `--resume`, again and again.
///
/// *Errors*: the drill was stopped. *Blocks* to the end of the last life.
pub fn sigterm(
    setup: &Setup,
    mut run: Run,
    dir: &Path,
    reporter: &mut Reporter,
) -> Result<Disturbed, CliError> {
    let mut chance = Chance::new()?;
    let (mut faults, mut lost_steps, mut problems) = (Vec::new(), 0, Vec::new());
    for number in 0..setup.times {
        if !run.wait_for_step(setup.stretch_begins(number))? || !run.pause(chance.time(SOME_TIME))? {
            break;
        }
        let (step, asked) = (run.seen.last_step, Instant::now());
        let at = asked - run.begun;
        signal(run.pid(), Signal::TERM);
        let ended = run.finish()?;
        let stopped = asked.elapsed();
        problems.extend(not_kept(&ended));
        lost_steps += ended.seen.ending.as_ref().map_or(0, |ending| ending.lost_steps);
        let reached = ended.seen.last_step;
        run = Run::start(setup.resume(dir)?, ended.seen.next_life(), &setup.stop)?;
        let again = run.wait_for(|_, line| is_step(line))?;
        let fault = InjectedFault {
            what: "asked to stop".to_owned(),
            moment: "at random",
            step,
            at,
            news: Some(stopped),
            recovery: again.map(|again| again - asked),
            cause: format!("exit code {} after step {reached}", ended.code.unwrap_or(-1)),
            ..InjectedFault::default()
        };
        reporter.fault(&fault);
        faults.push(fault);
    }
    let ended = run.finish()?;
    lost_steps += ended.seen.ending.as_ref().map_or(0, |ending| ending.lost_steps);
    let longest = faults.iter().filter_map(|fault: &InjectedFault| fault.news).max().unwrap_or_default();
    let detail = match problems.as_slice() {
        [] => format!("{} of {0}; the longest stop took {:.2} s", faults.len(), longest.as_secs_f64()),
        problems => problems.join("; "),
    };
    let what = "a run that is asked to stop ends with 130 and a checkpoint of its last step";
    let promises = vec![Promise::new(what, problems.is_empty(), detail)];
    Ok(Disturbed { faults, ended, lost_steps, promises, disk: None })
}

/// What is wrong with the end of a run that was asked to stop.
fn not_kept(ended: &EndedRun) -> Option<String> {
    let (reached, saved) = (ended.seen.last_step, ended.seen.checkpoint);
    match ended.code {
        Some(INTERRUPTED) if saved == Some(reached) => None,
        Some(INTERRUPTED) => {
            let saved = saved.map_or("none".to_owned(), |step| format!("of step {step}"));
            Some(format!("stopped after step {reached}, and the newest checkpoint is {saved}"))
        }
        code => {
            Some(format!("exit code {} after step {reached}: {}", code.unwrap_or(-1), ended.last_words()))
        }
    }
}
