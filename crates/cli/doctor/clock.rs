//! Whether something keeps this host's clock: hosts whose clocks differ do not trust each other.
//!
//! The clock of another host is not asked for: nothing that it says could be trusted before both hold the token. If each host's
//! clock is kept, they agree; who keeps it is asked here, with programs that may be missing or may hang.

use super::check::{Check, within};
use serde_json::json;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// So far a certificate reaches back: clocks that differ by less are no obstacle. *Units*: seconds.
const TOLERATED: f64 = 86_400.0;
/// More than this is noticed between the lines of two hosts' logs. *Units*: seconds.
const NOTICED: f64 = 1.0;

/// What a keeper of the clock says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    /// It agrees with a server; where it is told, up to so many seconds.
    Yes(Option<f64>),
    /// It does not, or not yet.
    No,
}

pub(super) fn check() -> Check {
    let chrony = || said("chronyc", &["-n", "-c", "tracking"]).and_then(|line| chrony(&line));
    let systemd = || {
        said("timedatectl", &["show", "--property=NTPSynchronized", "--value"])
            .and_then(|word| systemd(&word))
    };
    let keepers: [(&str, &dyn Fn() -> Option<Kept>); 2] = [("chrony", &chrony), ("systemd", &systemd)];
    // A machine with chrony has systemd too, and chrony knows more.
    let told = keepers.into_iter().find_map(|(name, ask)| Some((name, ask()?)));
    let compare = "a host that joins a run says how far its clock is from the first one's; a day is too much, less only mixes up their logs";
    let Some((name, kept)) = told else {
        return Check::ok("clock", "who keeps it cannot be told: neither chronyc nor timedatectl answers")
            .hint(compare)
            .details(json!({"kept_by": null, "synchronised": null, "offset": null}));
    };
    let (synchronised, offset) = match kept {
        Kept::Yes(offset) => (true, offset),
        Kept::No => (false, None),
    };
    let check = match (kept, offset.map(f64::abs)) {
        (Kept::No, _) => {
            Check::warn("clock", format!("{name} says that it agrees with no server")).hint(format!(
                "start it: `timedatectl set-ntp true`, or chrony with a server that can be reached; {compare}"
            ))
        }
        (_, Some(seconds)) if seconds >= NOTICED => {
            let words =
                if seconds >= TOLERATED { "other hosts will refuse it" } else { "logs of several hosts mix" };
            Check::warn("clock", format!("kept by {name}, {seconds:.1} s off"))
                .hint(format!("{words}; `chronyc makestep` sets it at once"))
        }
        (_, Some(seconds)) => Check::ok("clock", format!("kept by {name}, {:.1} ms off", seconds * 1000.0)),
        (_, None) => Check::ok("clock", format!("kept by {name}")),
    };
    check.details(json!({"kept_by": name, "synchronised": synchronised, "offset": offset}))
}

/// The first line of a program's output, if it ends well and in time.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut output = child.stdout.take().expect("it was piped");
    let text = within(PATIENCE, move || {
        let mut text = String::new();
        output.read_to_string(&mut text).is_ok().then_some(text)
    });
    if text.is_none() {
        // An error means that it has ended after all.
        let _ = child.kill();
    }
    let ended = child.wait().is_ok_and(|status| status.success());
    text.flatten().filter(|_| ended)?.lines().next().map(str::to_owned)
}

/// `chronyc -c tracking`: reference, name, stratum, time, offset of the system's clock, ..., leap status.
///
/// *Source*: chronyc(1), tracking.
fn chrony(line: &str) -> Option<Kept> {
    let fields: Vec<&str> = line.split(',').collect();
    let (offset, leap) = (fields.get(4)?.parse::<f64>().ok()?, *fields.last()?);
    Some(if leap == "Not synchronised" { Kept::No } else { Kept::Yes(Some(offset)) })
}

fn systemd(word: &str) -> Option<Kept> {
    match word.trim() {
        "yes" => Some(Kept::Yes(None)),
        "no" => Some(Kept::No),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keepers_say_is_read() {
        let line = "A29FC87B,162.159.200.123,4,1763776861.36,-0.000012345,0.000001,0.00002,-8.1,0.001,0.05,0.01,0.002,64.5,Normal";
        assert_eq!(chrony(line), Some(Kept::Yes(Some(-0.000_012_345))));
        let line = "7F7F0101,,10,0.0,0.000000000,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised";
        assert_eq!(chrony(line), Some(Kept::No));
        assert_eq!(chrony("506 Cannot talk to daemon"), None);
        assert_eq!(
            [systemd("yes"), systemd("no\n"), systemd("")],
            [Some(Kept::Yes(None)), Some(Kept::No), None]
        );
    }
}
