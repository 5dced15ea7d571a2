//! What a drill tells: progress for people, one JSON object a fault for programs, and a table at the end.
//!
//! It does not judge; see [`crate::commands::drill`].

use super::{InjectedFault, Promise, Setup};
use crate::arguments::Output;
use crate::commands::print_json;
use crate::report::{Voice, amount, grouped};
use dtrain_types::counted;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells of a drill while it goes on.
#[derive(Debug)]
pub struct Reporter {
    voice: Voice,
    json: bool,
    kind: &'static str,
    times: u64,
    told: u64,
}

impl Reporter {
    /// One that has told nothing yet.
    #[must_use]
    pub fn new(output: Output, kind: &'static str) -> Self {
        Self { voice: Voice::of(output), json: output.json, kind, times: 0, told: 0 }
    }

    /// What is going to be done.
    pub fn begin(&mut self, setup: &Setup) {
        (self.times, self.told) = (setup.times, 0);
        let ranks = counted(setup.ranks, "rank");
        let times = if setup.times == 1 { "once".to_owned() } else { format!("{} times", setup.times) };
        let steps = amount(setup.steps, "step");
        self.say(&format!("drill {}: {steps} on {ranks}, disturbed {times}", self.kind));
        setup.notes.iter().for_each(|note| self.say(&format!("  note: {note}")));
    }

    /// A line for people.
    pub fn say(&self, text: &str) {
        self.voice.say(text);
    }

    /// A fault that is over.
    pub fn fault(&mut self, fault: &InjectedFault) {
        self.told += 1;
        let took = fault.recovery.map_or("the run ended first".to_owned(), seconds);
        let (number, step) = (self.told, grouped(fault.step));
        let words = format!("{} {} at step {step}: {took}", fault.what, fault.moment);
        self.say(&format!("  {number} of {}: {words}", self.times));
        self.line(json!({
            "event": "drill",
            "kind": self.kind,
            "number": number,
            "what": fault.what,
            "moment": fault.moment,
            "step": fault.step,
            "at_seconds": fault.at.as_secs_f64(),
            "members": fault.victims.iter().map(|victim| victim.member).collect::<Vec<_>>(),
            "pids": fault.victims.iter().map(|victim| victim.pid).collect::<Vec<_>>(),
            "cause": fault.cause,
            "news_seconds": fault.news.map(|time| time.as_secs_f64()),
            "recovery_seconds": fault.recovery.map(|time| time.as_secs_f64()),
            "returned_seconds": fault.returned.map(|time| time.as_secs_f64()),
            "survivors": fault.survivors,
            "survivors_kept": fault.not_kept.is_empty(),
        }));
    }

    /// The last line for programs, and the table for people.
    pub fn end(&self, fields: Value, table: &str) {
        let mut line = json!({"event": "summary", "kind": self.kind});
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        self.line(line);
        match self.json {
            true => self.say(table),
            // A reader that went away is no reason to fail: the exit code says how it went.
            false => drop(crate::commands::print(table)),
        }
    }

    fn line(&self, mut line: Value) {
        if self.json {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            line["time"] = now.as_secs_f64().into();
            let _ = print_json(&line);
        }
    }
}

/// What was done and what came of it.
#[must_use]
pub fn table(faults: &[InjectedFault], promises: &[Promise]) -> String {
    let mut text = String::new();
    // Only some faults end by themselves.
    let with_return = faults.iter().any(|fault| fault.returned.is_some());
    let last = |words: String| if with_return { format!(" {words:>10}") } else { String::new() };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:>3}  {:<30} {:<20} {:>10} {:>10} {:>10}{}",
        "#",
        "what",
        "when",
        "step",
        "noticed",
        "recovered",
        last("back".to_owned())
    );
    for (number, fault) in faults.iter().enumerate() {
        let time = |time: Option<Duration>| time.map_or("-".to_owned(), seconds);
        let _ = writeln!(
            text,
            "{:>3}  {:<30} {:<20} {:>10} {:>10} {:>10}{}",
            number + 1,
            fault.what,
            fault.moment,
            grouped(fault.step),
            time(fault.news),
            time(fault.recovery),
            last(time(fault.returned))
        );
    }
    let _ = writeln!(text);
    for promise in promises {
        let word = if promise.held { "held" } else { "BROKEN" };
        let _ = writeln!(text, "  {word:<7} {}: {}", promise.what, promise.detail);
    }
    text
}

/// `0.21 s`.
#[must_use]
pub fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
