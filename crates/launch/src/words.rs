//! What people read of a group. It decides nothing.

use crate::Launch;
use crate::cause::{Asked, Death, first_cause};
use crate::launch::host;
use crate::life::Ended;
use crate::rank::{NOT_STARTED, NOT_STARTED_CODE};
use console::style;
use dtrain_protocol::ExitCause;
use rustix::process::Signal;
use std::fmt::Write;

/// Ranks that a list names before it counts the rest.
const MOST_NAMED: usize = 8;

/// What is started.
pub fn beginning(launch: &Launch) -> String {
    let program: Vec<_> = launch.program.iter().map(|word| word.to_string_lossy()).collect();
    let mut text = format!("dtrain run: {} of {}", processes(launch.processes), program.join(" "));
    if launch.hosts.count > 1 {
        let last = launch.rank(launch.processes - 1);
        let _ = write!(text, ", ranks {} to {last} of {}", launch.rank(0), launch.world());
    }
    match launch.restarts {
        0 => {}
        times => drop(write!(text, ", started again up to {times} times")),
    }
    text += "\n  nothing that it starts outlives it, however it ends (but kill -9 of both its processes in one instant)";
    if launch.limits_threads() {
        text +=
            "\n  OMP_NUM_THREADS=1 for each process, so that they do not crowd each other; set it to choose";
    }
    text
}

/// Where the other hosts are waited for.
pub fn waiting(launch: &Launch) -> String {
    let (address, port) = (&launch.master.address, launch.master.port.unwrap_or(0));
    match launch.hosts.this {
        0 => format!(
            "dtrain run: {} hosts start together: the others call {address} at UDP port {port}",
            launch.hosts.count
        ),
        this => {
            format!("dtrain run: host {this} of {}, calling {address} at UDP port {port}", launch.hosts.count)
        }
    }
}

/// The first host is not heard.
pub fn cut(launch: &Launch, what: &str) -> String {
    format!(
        "dtrain run: host 0 ({}) is not heard any more: the ranks here are ended, and it is called again ({what})",
        launch.master.address
    )
}

/// The name of a signal by which people end a program.
pub fn signal(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::HUP => "SIGHUP",
        Signal::QUIT => "SIGQUIT",
        _ => "a signal",
    }
}

fn processes(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// Who failed first, how, with its last lines; then what that did to the others.
pub fn failure(launch: &Launch, ended: &Ended, first: &Death, oom_kills: u64) -> String {
    let mut text = format!("{} {}", style("first cause:").for_stderr().red().bold(), named(launch, first));
    // Writing to a string cannot fail.
    let _ = writeln!(text, ", {:.1} s after its start", first.at.duration_since(ended.started).as_secs_f64());
    if first.end == ExitCause::Signal(9) && oom_kills > 0 {
        text += "  the kernel killed for want of memory meanwhile\n";
    }
    let tail = ended.tails.get(first.local as usize);
    let mut lines = tail.into_iter().flat_map(|tail| tail.lines()).peekable();
    match lines.peek() {
        None => text += "  it had said nothing\n",
        Some(_) => text += "  its last lines:\n",
    }
    for line in lines {
        let _ = writeln!(text, "    {line}");
    }
    let (mut own, mut stopped) = (Vec::new(), Vec::new());
    for death in ended.deaths.iter().filter(|death| death.local != first.local && !death.is_success()) {
        if death.is_own() { own.push(named(launch, death)) } else { stopped.push(death) }
    }
    if !own.is_empty() {
        let _ = writeln!(text, "  after that: {}", list(&own));
    }
    if !stopped.is_empty() {
        let killed = stopped.iter().filter(|death| death.asked == Asked::Kill).count();
        let names: Vec<String> =
            stopped.iter().map(|death| format!("rank {}", launch.rank(death.local))).collect();
        let _ = write!(text, "  stopped because of it: {}", list(&names));
        match killed {
            0 => text.push('\n'),
            _ => drop(writeln!(text, " ({killed} by SIGKILL after {} s)", launch.grace.as_secs())),
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn named(launch: &Launch, death: &Death) -> String {
    format!("rank {} (pid {} on {}): {}", launch.rank(death.local), death.pid, host(), death.end)
}

fn list(items: &[String]) -> String {
    match items.len().saturating_sub(MOST_NAMED) {
        0 => items.join(", "),
        more => format!("{} and {more} more", items[..MOST_NAMED].join(", ")),
    }
}

/// What a rank said that could not become the program.
pub fn not_started(ended: &Ended) -> Option<&str> {
    let first = first_cause(&ended.deaths).filter(|first| first.end == ExitCause::Code(NOT_STARTED_CODE))?;
    let last = ended.tails.get(first.local as usize)?.lines().last()?;
    last.strip_prefix(NOT_STARTED)
}

/// What a person can do about a first cause.
pub fn hint(launch: &Launch, first: &Death, oom_kills: u64) -> String {
    match (&first.end, launch.restarts) {
        (ExitCause::Signal(9), _) if oom_kills > 0 => {
            "the machine ran out of memory: fewer processes or smaller batches need less".to_owned()
        }
        (ExitCause::Signal(9), 0) => {
            "somebody killed it, or the kernel did for want of memory (see `dmesg`); --max-restarts N starts all \
             ranks again"
                .to_owned()
        }
        (_, 0) if launch.hosts.count == 1 => "--max-restarts N starts all ranks again when one fails".to_owned(),
        (_, 0) => "--max-restarts N starts all ranks of all hosts again when one fails; hosts need a token for it".to_owned(),
        (_, times) => format!("all {times} restarts are used up; --max-restarts allows more"),
    }
}
