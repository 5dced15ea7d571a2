//! What the first host of a group decides for all of them: when all start, when all are stopped, which failure was the first one, and when
//! it is over. Pure: it reads what was heard and the time, and says what is to be said.
//!
//! One start after the other, and nothing between them: all start when all are here, and the next start waits until no process of the last
//! one is left on any host that is heard. A host that is not heard any more has lost its ranks, since they end with their launcher, and
//! a launcher that does not hear the first host ends them.

use crate::message::{Down, End, Failure, GroupShape, Hello, How, Up, Weight};
use std::time::{Duration, Instant};

/// What stays the same.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What every host has to be asked for.
    pub shape: GroupShape,
    /// How long hosts are waited for.
    pub patience: Duration,
    /// Where rank 0 listens.
    pub port: u16,
    /// The name of the run.
    pub run_id: String,
}

/// Something to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// To which host.
    pub to: u32,
    /// What.
    pub what: Down,
}

/// Why a host gets no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In words.
    pub why: String,
    /// Whether it may get one soon.
    pub passes: bool,
}

#[derive(Clone, Debug, Default)]
struct Seat {
    /// Its name, while it is here.
    name: Option<String>,
    /// The name that it had last, for people.
    known: String,
    /// Whether none of its processes is left of this start.
    ended: bool,
    /// Whether they all exited with 0.
    well: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Hosts are waited for.
    Gathering { since: Instant },
    /// Ranks run, on some host at least.
    Running,
    /// All were told to end them.
    Stopping,
    /// All was said.
    Over,
}

/// The hosts of a group, as the first one knows them.
#[derive(Debug)]
pub struct Assembly {
    rules: Rules,
    seats: Vec<Seat>,
    phase: Phase,
    attempt: Option<u32>,
    /// Hosts in the order in which it was noticed that something failed there, and what it was as soon as it is known.
    failures: Vec<(u32, Option<Failure>)>,
    interrupted: Option<String>,
    /// Why all start again: whoever was not here hears it when it comes.
    told: Option<String>,
}

impl Assembly {
    /// Nobody is here yet.
    #[must_use]
    pub fn new(rules: Rules, now: Instant) -> Self {
        let seats = vec![Seat::default(); rules.shape.hosts as usize];
        let phase = Phase::Gathering { since: now };
        Self { rules, seats, phase, attempt: None, failures: Vec::new(), interrupted: None, told: None }
    }

    /// Whether all was said.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// When it wants to be asked again, if nothing is heard before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Gathering { since } => Some(since + self.rules.patience),
            Phase::Running | Phase::Stopping | Phase::Over => None,
        }
    }

    /// A host comes.
    ///
    /// *Errors*: it has no place here.
    pub fn join(&mut self, hello: Hello) -> Result<Vec<Order>, Refusal> {
        let never = |why: String| Err(Refusal { why, passes: false });
        let Hello { host, name, shape, newest } = hello;
        let rules = self.rules.shape;
        for (what, here, there) in [
            ("--nodes", rules.hosts, shape.hosts),
            ("--nproc", rules.processes, shape.processes),
            ("--max-restarts", rules.restarts, shape.restarts),
        ] {
            if here != there {
                return never(format!("{what} is {there} on host {host} ({name}), and {here} on host 0"));
            }
        }
        let Some(seat) = self.seats.get_mut(host as usize) else {
            return never(format!("there is no host {host}: they count from 0 to {}", rules.hosts - 1));
        };
        if let Some(other) = &seat.name {
            // Another launcher of this host may be dead, and not yet be missed.
            return Err(Refusal { why: format!("host {host} is here already, as {other}"), passes: true });
        }
        seat.known.clone_from(&name);
        seat.name = Some(name);
        self.attempt = self.attempt.max(newest);
        let told = self.told.clone().map(|words| Order { to: host, what: Down::Tell(words) });
        Ok(told.into_iter().chain(self.start_if_all_are_here()).collect())
    }

    /// A host is not heard any more.
    pub fn lose(&mut self, host: u32, now: Instant) -> Vec<Order> {
        let seat = &mut self.seats[host as usize];
        seat.name = None;
        if !matches!(self.phase, Phase::Running | Phase::Stopping) || seat.ended {
            return Vec::new();
        }
        seat.ended = true;
        let report = format!(
            "host {host} ({}): its launcher is not heard any more, and its ranks end with it",
            seat.known
        );
        let hint = "start `dtrain run` there again, while the others wait for it".to_owned();
        self.failed(host, Some(Failure { report, hint, weight: Weight::Killed }));
        let mut orders = self.stop();
        orders.extend(self.conclude_if_all_ended(now));
        orders
    }

    /// A host says something.
    pub fn hear(&mut self, host: u32, up: Up, now: Instant) -> Vec<Order> {
        match up {
            Up::Failing { attempt } if self.runs(attempt) => {
                self.failed(host, None);
                self.stop()
            }
            Up::Interrupted { words } => {
                self.interrupted.get_or_insert(words);
                match self.phase {
                    Phase::Gathering { .. } => self.conclude(now),
                    _ => self.stop(),
                }
            }
            Up::Ended { attempt, how } if self.runs(attempt) && !self.seats[host as usize].ended => {
                let seat = &mut self.seats[host as usize];
                (seat.ended, seat.well) = (true, how == How::Well);
                let mut orders = Vec::new();
                if let How::Failed(failure) = how {
                    self.failed(host, Some(failure));
                    orders = self.stop();
                }
                orders.extend(self.conclude_if_all_ended(now));
                orders
            }
            Up::Here(_) | Up::Failing { .. } | Up::Ended { .. } => Vec::new(),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Vec<Order> {
        let Phase::Gathering { since } = self.phase else { return Vec::new() };
        if now < since + self.rules.patience {
            return Vec::new();
        }
        let absent: Vec<String> = (0..)
            .zip(&self.seats)
            .filter(|(_, seat)| seat.name.is_none())
            .map(|(host, _): (u32, _)| host.to_string())
            .collect();
        let (hosts, came) = (
            if absent.len() == 1 { "host" } else { "hosts" },
            if self.attempt.is_some() { "come back" } else { "come" },
        );
        let waited = self.rules.patience.as_secs();
        let report =
            format!("{hosts} {} of {} did not {came} within {waited} s", absent.join(", "), self.seats.len());
        let hint = "is `dtrain run` started there, does --master-addr lead here, and does a firewall let UDP through to its port? \
                    --join-timeout waits longer";
        self.finish(End::Failed { report, hint: hint.to_owned() })
    }

    /// Whether ranks of this start may be there.
    fn runs(&self, attempt: u32) -> bool {
        self.attempt == Some(attempt) && matches!(self.phase, Phase::Running | Phase::Stopping)
    }

    fn failed(&mut self, host: u32, failure: Option<Failure>) {
        match self.failures.iter_mut().find(|(other, _)| *other == host) {
            Some((_, known)) => *known = failure.or(known.take()),
            None => self.failures.push((host, failure)),
        }
    }

    fn all(&self, what: &Down) -> Vec<Order> {
        let here = (0..).zip(&self.seats).filter(|(_, seat)| seat.name.is_some());
        here.map(|(to, _)| Order { to, what: what.clone() }).collect()
    }

    /// To whoever still has ranks, once.
    fn stop(&mut self) -> Vec<Order> {
        if self.phase != Phase::Running {
            return Vec::new();
        }
        self.phase = Phase::Stopping;
        let mut orders = self.all(&Down::Stop);
        orders.retain(|order| !self.seats[order.to as usize].ended);
        orders
    }

    fn start_if_all_are_here(&mut self) -> Vec<Order> {
        let all_are_here = self.seats.iter().all(|seat| seat.name.is_some());
        if !matches!(self.phase, Phase::Gathering { .. }) || !all_are_here {
            return Vec::new();
        }
        let attempt = self.attempt.map_or(0, |last| last + 1);
        let restarts = self.rules.shape.restarts;
        if attempt > restarts {
            let report = format!("all {restarts} restarts are used up, the last by host 0, which was lost");
            return self.finish(End::Failed { report, hint: "--max-restarts allows more".to_owned() });
        }
        self.attempt = Some(attempt);
        self.phase = Phase::Running;
        self.failures.clear();
        self.seats.iter_mut().for_each(|seat| (seat.ended, seat.well) = (false, false));
        self.all(&Down::Start { attempt, port: self.rules.port, run_id: self.rules.run_id.clone() })
    }

    fn conclude_if_all_ended(&mut self, now: Instant) -> Vec<Order> {
        if self.seats.iter().all(|seat| seat.ended) { self.conclude(now) } else { Vec::new() }
    }

    /// No process of this start is left: what follows.
    fn conclude(&mut self, now: Instant) -> Vec<Order> {
        if let Some(words) = self.interrupted.take() {
            return self.finish(End::Interrupted { words });
        }
        let Some(first) = first_cause(&self.failures) else {
            debug_assert!(
                self.seats.iter().all(|seat| seat.well),
                "who was stopped was stopped because of a failure"
            );
            return self.finish(End::Well);
        };
        let attempt = self.attempt.unwrap_or(0);
        let GroupShape { hosts, processes, restarts } = self.rules.shape;
        if attempt >= restarts {
            return self.finish(End::Failed { report: first.report.clone(), hint: first.hint.clone() });
        }
        let absent = self.seats.iter().filter(|seat| seat.name.is_none()).count();
        let waits = match absent {
            0 => String::new(),
            1 => format!("; 1 host is waited for, {} s at most", self.rules.patience.as_secs()),
            absent => format!("; {absent} hosts are waited for, {} s at most", self.rules.patience.as_secs()),
        };
        let report = format!(
            "dtrain run: {}\ndtrain run: restart {} of {restarts}: all {} ranks on {hosts} hosts{waits}",
            first.report,
            attempt + 1,
            hosts * processes
        );
        self.phase = Phase::Gathering { since: now };
        self.told = Some(report.clone());
        let mut orders = self.all(&Down::Tell(report));
        orders.extend(self.start_if_all_are_here());
        orders
    }

    fn finish(&mut self, end: End) -> Vec<Order> {
        self.phase = Phase::Over;
        self.all(&Down::Finish(end))
    }
}

/// The failure that the others followed from: the weightiest, and of those the one that was noticed first.
fn first_cause(failures: &[(u32, Option<Failure>)]) -> Option<&Failure> {
    let known = || failures.iter().filter_map(|(_, failure)| failure.as_ref());
    let weight = known().map(|failure| failure.weight).max()?;
    known().find(|failure| failure.weight == weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: GroupShape = GroupShape { hosts: 2, processes: 4, restarts: 1 };

    fn assembly(now: Instant) -> Assembly {
        let rules =
            Rules { shape: SHAPE, patience: Duration::from_secs(60), port: 29_500, run_id: "night".into() };
        Assembly::new(rules, now)
    }

    fn hello(host: u32) -> Hello {
        Hello { host, name: format!("h{host}"), shape: SHAPE, newest: None }
    }

    fn start(attempt: u32) -> Vec<Order> {
        let what = Down::Start { attempt, port: 29_500, run_id: "night".into() };
        [0, 1].map(|to| Order { to, what: what.clone() }).into()
    }

    fn running(now: Instant) -> Assembly {
        let mut assembly = assembly(now);
        assert_eq!(assembly.join(hello(1)), Ok(vec![]));
        assert_eq!(assembly.join(hello(0)), Ok(start(0)));
        assembly
    }

    fn failed(weight: Weight) -> How {
        How::Failed(Failure { report: format!("{weight:?}"), hint: String::new(), weight })
    }

    fn ended(attempt: u32, how: How) -> Up {
        Up::Ended { attempt, how }
    }

    #[test]
    fn all_start_when_all_are_here_and_it_is_over_when_all_ended_well() {
        let now = Instant::now();
        let mut assembly = running(now);
        assert_eq!(assembly.hear(0, ended(0, How::Well), now), vec![]);
        let orders = assembly.hear(1, ended(0, How::Well), now);
        assert_eq!(orders, [0, 1].map(|to| Order { to, what: Down::Finish(End::Well) }));
        assert!(assembly.is_over());
    }

    #[test]
    fn one_that_fails_stops_the_others_and_all_start_again_until_the_budget_is_used_up() {
        let now = Instant::now();
        let mut assembly = running(now);
        assert_eq!(
            assembly.hear(1, Up::Failing { attempt: 0 }, now),
            [0, 1].map(|to| Order { to, what: Down::Stop })
        );
        assert_eq!(assembly.hear(0, Up::Failing { attempt: 0 }, now), vec![], "they were told");
        assert_eq!(assembly.hear(0, ended(0, failed(Weight::BlamesPeer)), now), vec![]);
        let orders = assembly.hear(1, ended(0, failed(Weight::Own)), now);
        assert!(
            matches!(&orders[0].what, Down::Tell(words) if words.contains("Own") && words.contains("restart 1 of 1: all 8 ranks on 2 hosts"))
        );
        assert_eq!(orders[2..], start(1));
        // What comes late of the start before changes nothing.
        assert_eq!(assembly.hear(0, ended(0, failed(Weight::Own)), now), vec![]);
        assembly.hear(0, ended(1, How::Well), now);
        let orders = assembly.hear(1, ended(1, failed(Weight::Own)), now);
        assert!(
            matches!(&orders[0].what, Down::Finish(End::Failed { report, .. }) if report == "Own"),
            "{orders:?}"
        );
    }

    #[test]
    fn a_host_that_is_lost_is_the_cause_and_is_waited_for() {
        let now = Instant::now();
        let mut assembly = running(now);
        // Its peer fails for want of it, and is noticed first.
        assembly.hear(0, Up::Failing { attempt: 0 }, now);
        assembly.hear(0, ended(0, failed(Weight::Own)), now);
        let orders = assembly.lose(1, now);
        let [Order { to: 0, what: Down::Tell(words) }] = orders.as_slice() else { panic!("{orders:?}") };
        assert!(
            words.contains("host 1 (h1)") && words.contains("1 host is waited for, 60 s at most"),
            "{words}"
        );
        assert_eq!(assembly.tick(now + Duration::from_secs(59)), vec![]);
        let orders = assembly.join(Hello { newest: Some(0), ..hello(1) }).expect("a seat");
        assert_eq!(orders[0], Order { to: 1, what: Down::Tell(words.clone()) }, "it did not hear why");
        assert_eq!(orders[1..], start(1));
        assembly.lose(1, now);
        let orders = assembly.hear(0, ended(1, How::Stopped), now);
        assert!(matches!(&orders[0].what, Down::Finish(End::Failed { .. })), "{orders:?}");
    }

    #[test]
    fn a_host_that_does_not_come_ends_the_run_and_is_named() {
        let now = Instant::now();
        let mut assembly = assembly(now);
        assembly.join(hello(0)).expect("a seat");
        let orders = assembly.tick(now + Duration::from_secs(60));
        let [Order { to: 0, what: Down::Finish(End::Failed { report, .. }) }] = orders.as_slice() else {
            panic!("{orders:?}")
        };
        assert_eq!(report, "host 1 of 2 did not come within 60 s");
    }

    #[test]
    fn hosts_that_do_not_fit_are_refused_by_what_differs() {
        let now = Instant::now();
        let mut assembly = assembly(now);
        assembly.join(hello(0)).expect("a seat");
        let other = Hello { shape: GroupShape { processes: 8, ..SHAPE }, ..hello(1) };
        let refused = assembly.join(other).expect_err("it differs");
        assert_eq!(
            (refused.why.as_str(), refused.passes),
            ("--nproc is 8 on host 1 (h1), and 4 on host 0", false)
        );
        assert!(assembly.join(hello(0)).expect_err("taken").passes);
        assert!(!assembly.join(hello(2)).expect_err("none").passes);
    }

    #[test]
    fn a_new_first_host_counts_on_from_what_the_others_have_seen() {
        let now = Instant::now();
        let mut assembly = assembly(now);
        assembly.join(Hello { newest: Some(0), ..hello(1) }).expect("a seat");
        assert_eq!(assembly.join(hello(0)), Ok(start(1)));
        let mut assembly = self::assembly(now);
        assembly.join(Hello { newest: Some(1), ..hello(1) }).expect("a seat");
        let orders = assembly.join(hello(0)).expect("a seat");
        assert!(
            matches!(&orders[0].what, Down::Finish(End::Failed { report, .. }) if report.contains("used up")),
            "{orders:?}"
        );
    }

    #[test]
    fn who_interrupts_one_host_ends_the_run_on_all() {
        let now = Instant::now();
        let mut assembly = running(now);
        let words = "SIGTERM on h1".to_owned();
        assert_eq!(assembly.hear(1, Up::Interrupted { words: words.clone() }, now).len(), 2);
        assembly.hear(0, ended(0, How::Stopped), now);
        let orders = assembly.hear(1, ended(0, How::Stopped), now);
        assert_eq!(orders[0].what, Down::Finish(End::Interrupted { words }));
    }
}
