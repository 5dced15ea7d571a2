//! The drill that cuts the link between two hosts and mends it again.
//!
//! The hosts are `dtrain node` processes in networks of their own on this machine; they share the ranks of the
//! configuration, and the folder of the run. The second one is cut off for longer than `detect`, so that its ranks are
//! lost to the others, and for less than it goes on calling. A recovery is the wall time from the cut to the first
//! step after the news of the loss; a return is that from the mended link to the generation in which all ranks take
//! part again.

use super::cut::shares;
use super::network::VirtualNetwork;
use super::report::Reporter;
use super::run::{Heard, Run, lives, parent, this_program};
use super::seen::{Seen, is_step_after};
use super::setup::Setup;
use super::{Chance, Disturbed, InjectedFault, Promise, Victim};
use crate::error::CliError;
use dtrain_types::counted;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A random moment is one within so long.
const SOME_TIME: Duration = Duration::from_millis(300);
/// Between two cuts all ranks make so many steps together.
const CALM: u64 = 6;
/// A host ends this long after the first one, at the latest.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Two hosts, ready to train.
#[derive(Debug)]
pub struct TwoHosts {
    network: VirtualNetwork,
    token: PathBuf,
}

impl TwoHosts {
    /// Connects them and makes their token in `folder`.
    ///
    /// *Errors*: of kind usage when the machine does not allow it.
    pub fn new(folder: &Path) -> Result<Self, CliError> {
        let network = VirtualNetwork::build()?;
        let token = folder.join("token");
        let words: [OsString; 4] = ["token".into(), "new".into(), "-o".into(), token.clone().into()];
        let made = this_program(&[], &words)?
            .output()
            .map_err(|error| CliError::failed("a token cannot be made").because(&error))?;
        match made.status.success() {
            true => Ok(Self { network, token }),
            false => {
                let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
                Err(CliError::failed("a token cannot be made").cause(said))
            }
        }
    }

    /// Starts a run on both; the first host tells of it.
    ///
    /// *Errors*: it cannot be started.
    pub fn start(&self, setup: &Setup, dir: &Path) -> Result<[Run; 2], CliError> {
        let start = |host: usize| {
            let mut command = setup.node(host, VirtualNetwork::master(), dir, &self.network.around(host))?;
            command.env("DTRAIN_TOKEN_FILE", &self.token);
            Run::start(command, Seen::default(), &setup.stop)
        };
        Ok([start(0)?, start(1)?])
    }
}

/// Cuts the link of the second host and mends it, again and again.
///
/// *Errors*: the drill was stopped. *Blocks* to the end of the run.
pub fn partition(
    setup: &Setup,
    hosts: &TwoHosts,
    dir: &Path,
    reporter: &mut Reporter,
) -> Result<Disturbed, CliError> {
    let mut chance = Chance::new()?;
    let [mut first, second] = hosts.start(setup, dir)?;
    let mut faults = Vec::new();
    for _ in 0..setup.times {
        let whole = first.seen.ranks.len() >= setup.ranks
            || first.wait_for(|seen, _| seen.ranks.len() >= setup.ranks)?.is_some();
        let calm = first.seen.last_step + CALM;
        if !whole || !first.wait_for_step(calm)? || !first.pause(chance.time(SOME_TIME))? {
            break;
        }
        let fault = cut_off(setup, &hosts.network, &mut first, &second)?;
        reporter.fault(&fault);
        faults.push(fault);
    }
    let ended = first.finish()?;
    let promises =
        vec![went_on(setup, &faults), survivors_kept(&faults), came_back(&faults), second_ended(second)?];
    let lost_steps = ended.seen.ending.as_ref().map_or(0, |ending| ending.lost_steps);
    Ok(Disturbed { faults, ended, lost_steps, promises, disk: None })
}

/// What comes of a cut, as the lines of the first host tell it.
struct Watch {
    victims: Vec<Victim>,
    /// How many losses and which generation were told before it.
    told: usize,
    generation: u64,
    news: Option<Instant>,
    again: Option<Instant>,
    whole: Option<Instant>,
}

impl Watch {
    fn take(&mut self, at: Instant, line: &Value, seen: &Seen, ranks: usize) {
        let faults = &seen.faults[self.told..];
        let lost = |victim: &Victim| faults.iter().any(|fault| fault.member == victim.member);
        let anew = seen.generation > self.generation;
        if self.news.is_none() && (anew || self.victims.iter().all(lost)) {
            self.news = Some(at);
        }
        if self.news.is_some() && self.again.is_none() && is_step_after(line, self.generation) {
            self.again = Some(at);
        }
        if anew && self.whole.is_none() && seen.ranks.len() >= ranks {
            self.whole = Some(at);
        }
    }

    /// Reads up to a moment, or until all that is waited for has come. False when the run ended.
    fn read(
        &mut self,
        run: &mut Run,
        ranks: usize,
        until: Instant,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<bool, CliError> {
        while !enough(self) && Instant::now() < until {
            match run.hear(Some(until))? {
                Heard::Line(at, line) => self.take(at, &line, &run.seen, ranks),
                Heard::Silence => break,
                Heard::End => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// One cut, from the calm before it until all ranks are there again.
fn cut_off(
    setup: &Setup,
    network: &VirtualNetwork,
    first: &mut Run,
    second: &Run,
) -> Result<InjectedFault, CliError> {
    let all = first.seen.ranks.iter().map(|(member, pid)| Victim { member: *member, pid: *pid });
    let (victims, survivors): (Vec<_>, Vec<_>) = all.partition(|rank| parent(rank.pid) == Some(second.pid()));
    let step = first.seen.last_step;
    let mut watch = Watch {
        victims: victims.clone(),
        told: first.seen.faults.len(),
        generation: first.seen.generation,
        news: None,
        again: None,
        whole: None,
    };
    let cut = Instant::now();
    setup.stop.unless_stopped(network.cut())?;
    let goes_on = watch.read(first, setup.ranks, cut + setup.cut, |_| false)?;
    let mended = Instant::now();
    setup.stop.unless_stopped(network.mend())?;
    if goes_on {
        let patience = mended + setup.join_timeout;
        watch.read(first, setup.ranks, patience, |watch| watch.whole.is_some() && watch.again.is_some())?;
    }
    let not_kept = |rank: &&Victim| {
        watch.whole.is_some() && (!lives(rank.pid) || first.seen.ranks.get(&rank.member) != Some(&rank.pid))
    };
    Ok(InjectedFault {
        what: format!("host 1 cut off for {:.1} s", setup.cut.as_secs_f64()),
        moment: "at random",
        step,
        at: cut - first.begun,
        news: watch.news.map(|news| news - cut),
        recovery: watch.again.map(|again| again - cut),
        returned: watch.whole.map(|whole| whole.saturating_duration_since(mended)),
        not_kept: survivors.iter().filter(not_kept).map(|rank| rank.pid).collect(),
        survivors: survivors.iter().map(|rank| rank.pid).collect(),
        cause: first.seen.faults.get(watch.told).map(|fault| fault.cause.clone()).unwrap_or_default(),
        victims,
    })
}

fn went_on(setup: &Setup, faults: &[InjectedFault]) -> Promise {
    let what = "the other host goes on while one is cut off";
    if setup.min_ranks > shares(setup.ranks)[0] {
        let detail = format!("with min_ranks={} the run waits for it, as it was told to", setup.min_ranks);
        return Promise::new(what, true, detail);
    }
    let times = faults.iter().filter(|fault| fault.recovery.is_some_and(|took| took < setup.cut)).count();
    Promise::new(what, times == faults.len(), format!("{times} of {}", counted(faults.len(), "time")))
}

fn survivors_kept(faults: &[InjectedFault]) -> Promise {
    let all: usize = faults.iter().map(|fault| fault.survivors.len()).sum();
    let lost: usize = faults.iter().map(|fault| fault.not_kept.len()).sum();
    Promise::new(
        "survivors keep their processes",
        lost == 0,
        format!("{} of {}", all - lost, counted(all, "time")),
    )
}

fn came_back(faults: &[InjectedFault]) -> Promise {
    let mut times: Vec<Duration> = faults.iter().filter_map(|fault| fault.returned).collect();
    times.sort();
    let mut detail = format!("{} of {}", times.len(), faults.len());
    if let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) {
        let (median, worst) = (median.as_secs_f64(), worst.as_secs_f64());
        detail += &format!(", median {median:.2} s, worst {worst:.2} s after the link is back");
    }
    Promise::new("the ranks of a host that is back take part again", times.len() == faults.len(), detail)
}

/// The second host ends with the run, and is the same process all the time.
fn second_ended(mut second: Run) -> Result<Promise, CliError> {
    let what = "the host that was cut off ends with the run";
    if second.pause(LAST_WORDS)? {
        return Ok(Promise::new(what, false, format!("it was there {} s later", LAST_WORDS.as_secs())));
    }
    let ended = second.finish()?;
    let code = ended.code.unwrap_or(-1);
    let words = if code == 0 { String::new() } else { format!(": {}", ended.last_words()) };
    Ok(Promise::new(what, code == 0, format!("exit code {code}{words}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(lines: &[Value]) -> (Watch, [bool; 3]) {
        let mut seen = Seen::default();
        seen.take(&json!({"event": "rank_started", "generation": 1, "member": 0, "pid": 10}));
        seen.take(&json!({"event": "rank_started", "generation": 1, "member": 1, "pid": 11}));
        let victims = vec![Victim { member: 1, pid: 11 }];
        let mut watch = Watch { victims, told: 0, generation: 1, news: None, again: None, whole: None };
        for line in lines {
            seen.take(line);
            watch.take(Instant::now(), line, &seen, 2);
        }
        let come = [watch.news, watch.again, watch.whole].map(|moment| moment.is_some());
        (watch, come)
    }

    #[test]
    fn steps_before_the_news_of_a_loss_are_no_recovery() {
        let started = |generation: u64, member: u64| json!({"event": "rank_started", "generation": generation, "member": member, "pid": 10 + member});
        let step =
            |step: u64, generation: u64| json!({"event": "step", "step": step, "generation": generation});
        let fault = json!({"event": "fault", "member": 1, "cause": "silent"});
        assert_eq!(told(&[step(1, 1), step(2, 1)]).1, [false; 3]);
        assert_eq!(told(&[step(1, 1), fault.clone()]).1, [true, false, false]);
        assert_eq!(told(&[fault.clone(), step(1, 1)]).1, [true, false, false], "it was made before");
        assert_eq!(told(&[fault.clone(), started(2, 0), step(1, 2)]).1, [true, true, false]);
        let all = [fault, started(2, 0), step(1, 2), started(3, 0), started(3, 1)];
        let (watch, come) = told(&all);
        assert_eq!(come, [true; 3]);
        assert!(watch.whole > watch.again && watch.again > watch.news);
    }
}
