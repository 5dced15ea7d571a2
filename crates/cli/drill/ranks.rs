//! The drills that lose ranks: `kill -9`, and `kill -STOP` for one that hangs.
//!
//! A recovery is the wall time from the signal to the first step that is made without the lost. Moments are chosen so that
//! every kind of them is met, victims at random.

use super::report::Reporter;
use super::run::{Heard, Run, lives, signal};
use super::seen::{is_join, is_step, is_step_after};
use super::setup::Setup;
use super::{Chance, Disturbed, InjectedFault, Promise, Victim};
use crate::error::CliError;
use dtrain_types::counted;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A random moment is one within so long.
const SOME_TIME: Duration = Duration::from_millis(300);
/// Every so many kills two ranks are killed at once.
const TWO_AT_ONCE: u64 = 3;
/// A rank that hangs is named and replaced in so many times `detect`.
const DETECTS: u32 = 3;

/// When a rank is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    AtRandom,
    AfterAStep,
    InACheckpoint,
    InAValidation,
    /// While the state is copied to a rank that comes back from the fault before.
    InAStateCopy,
}

impl Moment {
    fn words(self) -> &'static str {
        match self {
            Self::AtRandom => "at random",
            Self::AfterAStep => "after a step",
            Self::InACheckpoint => "in a checkpoint",
            Self::InAValidation => "in a validation",
            Self::InAStateCopy => "in a state copy",
        }
    }
}

/// What is done to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kill,
    Stop,
}

/// `kill -9` of random ranks.
///
/// *Errors*: the drill was stopped. *Blocks* to the end of the run.
pub fn kill(setup: &Setup, run: Run, reporter: &mut Reporter) -> Result<Disturbed, CliError> {
    let mut disturbed = disturb_ranks(Way::Kill, setup, run, reporter)?;
    disturbed.promises.push(survivors_kept(setup, &disturbed.faults));
    Ok(disturbed)
}

/// `kill -STOP` of random ranks, and `kill -CONT` when they are given up.
///
/// *Errors*: the drill was stopped. *Blocks* to the end of the run.
pub fn hang(setup: &Setup, run: Run, reporter: &mut Reporter) -> Result<Disturbed, CliError> {
    let mut disturbed = disturb_ranks(Way::Stop, setup, run, reporter)?;
    let promise = setup.detect * DETECTS;
    let in_time = |fault: &&InjectedFault| fault.recovery.is_some_and(|took| took <= promise);
    let held = disturbed.faults.iter().filter(in_time).count();
    let named = disturbed.faults.iter().filter_map(|fault| fault.news).max().unwrap_or_default();
    let detail = format!(
        "{held} of {} within {:.1} s; named after {:.2} s at the latest",
        disturbed.faults.len(),
        promise.as_secs_f64(),
        named.as_secs_f64()
    );
    let all = held == disturbed.faults.len();
    disturbed.promises.push(Promise::new(
        "a rank that hangs is named and replaced within 3 x detect",
        all,
        detail,
    ));
    disturbed.promises.push(survivors_kept(setup, &disturbed.faults));
    Ok(disturbed)
}

fn survivors_kept(setup: &Setup, faults: &[InjectedFault]) -> Promise {
    let what = "survivors keep their processes";
    if setup.ranks == 1 {
        return Promise::new(what, true, "with one rank there are none");
    }
    let (all, lost) = faults
        .iter()
        .fold((0, 0), |(all, lost), fault| (all + fault.survivors.len(), lost + fault.not_kept.len()));
    Promise::new(what, lost == 0, format!("{} of {}", all - lost, counted(all, "time")))
}

fn disturb_ranks(
    way: Way,
    setup: &Setup,
    mut run: Run,
    reporter: &mut Reporter,
) -> Result<Disturbed, CliError> {
    let mut chance = Chance::new()?;
    let mut faults = Vec::new();
    let mut left = Vec::new();
    for number in 0..setup.times {
        if left.is_empty() {
            left = moments(way, setup);
        }
        let mut moment = left.swap_remove(chance.below(left.len()));
        // A state is copied to one that was disturbed just before.
        if moment == Moment::InAStateCopy && faults.is_empty() {
            moment = Moment::AtRandom;
        }
        let Some(moment) = wait_for(&mut run, setup, number, moment, &mut chance)? else { break };
        let two = way == Way::Kill && number % TWO_AT_ONCE == TWO_AT_ONCE - 1;
        let fault = inject_now(way, &mut run, if two { 2 } else { 1 }, moment, &mut chance)?;
        reporter.fault(&fault);
        faults.push(fault);
    }
    let ended = run.finish()?;
    let lost_steps = ended.seen.ending.as_ref().map_or(0, |ending| ending.lost_steps);
    Ok(Disturbed { faults, ended, lost_steps, promises: Vec::new(), disk: None })
}

/// The moments that this run has.
fn moments(way: Way, setup: &Setup) -> Vec<Moment> {
    let mut all = vec![Moment::AtRandom, Moment::AfterAStep];
    let stretch = setup.stretch_begins(1) - setup.stretch_begins(0);
    all.extend(setup.checkpoint_every.filter(|every| *every <= stretch).map(|_| Moment::InACheckpoint));
    all.extend(setup.validation_every.filter(|every| *every <= stretch).map(|_| Moment::InAValidation));
    // One survivor holds the state while another rank comes back.
    all.extend((way == Way::Kill && setup.ranks > 2).then_some(Moment::InAStateCopy));
    all
}

/// Reads up to the moment, in the stretch of this fault; a moment that does not come is given up for any other. None when
/// the run ended first.
fn wait_for(
    run: &mut Run,
    setup: &Setup,
    number: u64,
    moment: Moment,
    chance: &mut Chance,
) -> Result<Option<Moment>, CliError> {
    let mut moment = moment;
    if moment == Moment::InAStateCopy {
        let latest = setup.stretch_begins(number + 1);
        let come = run.wait_for(|seen, line| is_join(line) || seen.last_step >= latest)?;
        // One rank must be left that holds the state.
        match come {
            None => return Ok(None),
            Some(_) if run.seen.last_step < latest && run.seen.ranks.len() > 1 => return Ok(Some(moment)),
            Some(_) => moment = Moment::AtRandom,
        }
    }
    // All are there, so that the fault before is over.
    let begins = setup.stretch_begins(number);
    let whole = |run: &Run| run.seen.ranks.len() >= setup.ranks && run.seen.last_step >= begins;
    while !whole(run) {
        if matches!(run.hear(None)?, Heard::End) {
            return Ok(None);
        }
    }
    let every = match moment {
        Moment::AtRandom => return Ok(run.pause(chance.time(SOME_TIME))?.then_some(moment)),
        Moment::InACheckpoint => setup.checkpoint_every.unwrap_or(1),
        Moment::InAValidation => setup.validation_every.unwrap_or(1),
        Moment::AfterAStep | Moment::InAStateCopy => 1,
    };
    // What is due after a step begins when the step is made.
    let come = run.wait_for(|seen, line| is_step(line) && seen.last_step % every == 0)?;
    Ok(come.map(|_| moment))
}

/// Disturbs so many ranks, but never the last one of several, and reads on until the run makes steps again.
fn inject_now(
    way: Way,
    run: &mut Run,
    count: usize,
    moment: Moment,
    chance: &mut Chance,
) -> Result<InjectedFault, CliError> {
    let before = run.seen.ranks.clone();
    let mut rest: Vec<Victim> =
        before.iter().map(|(member, pid)| Victim { member: *member, pid: *pid }).collect();
    let mut victims = Vec::new();
    while victims.is_empty() || (victims.len() < count && rest.len() > 1) {
        victims.push(rest.swap_remove(chance.below(rest.len())));
    }
    let (told, step, generation) = (run.seen.faults.len(), run.seen.last_step, run.seen.generation);
    let moment_of_it = Instant::now();
    let at = moment_of_it - run.begun;
    let how = match way {
        Way::Kill => Signal::KILL,
        Way::Stop => Signal::STOP,
    };
    victims.iter().for_each(|victim| signal(victim.pid, how));
    let news = run.wait_for(|seen, _| {
        victims.iter().all(|victim| seen.faults[told..].iter().any(|fault| fault.member == victim.member))
    })?;
    if way == Way::Stop {
        // It wakes up just as it is given up, if it is still there.
        victims.iter().for_each(|victim| signal(victim.pid, Signal::CONT));
    }
    let again = if news.is_some() { run.wait_for(|_, line| is_step_after(line, generation))? } else { None };
    let not_kept = |survivor: &&Victim| {
        again.is_some()
            && (!lives(survivor.pid)
                || run.seen.ranks.get(&survivor.member).is_some_and(|pid| *pid != survivor.pid))
    };
    Ok(InjectedFault {
        what: words(way, &victims),
        moment: moment.words(),
        step,
        at,
        news: news.map(|news| news - moment_of_it),
        recovery: again.map(|again| again - moment_of_it),
        survivors: rest.iter().map(|survivor| survivor.pid).collect(),
        not_kept: rest.iter().filter(not_kept).map(|survivor| survivor.pid).collect(),
        cause: run.seen.faults.get(told).map(|fault| fault.cause.clone()).unwrap_or_default(),
        returned: None,
        victims,
    })
}

fn words(way: Way, victims: &[Victim]) -> String {
    let members: Vec<String> = victims.iter().map(|victim| victim.member.to_string()).collect();
    let done = match way {
        Way::Kill => "killed",
        Way::Stop => "stopped",
    };
    match members.as_slice() {
        [one] => format!("rank {one} {done}"),
        several => format!("ranks {} {done} at once", several.join(" and ")),
    }
}
