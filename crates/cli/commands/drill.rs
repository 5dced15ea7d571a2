//! `dtrain drill`: disturbs a run of the user's own configuration on purpose, and says whether every promise held.
//!
//! First an undisturbed run gives the digest, then one is disturbed, then its books are audited. The runs lie in a temporary
//! folder; no run of the user is touched.

use crate::arguments::{Drill as Arguments, DrillKind};
use crate::drill::{
    Disturbed, Pace, Promise, Reporter, Run, Seen, Setup, SmallDisk, Stop, TwoHosts, disk_full, hang, kill,
    partition, sigterm, table, this_program,
};
use crate::error::CliError;
use crate::report::amount;
use serde_json::json;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A step is timed over so long, and over so many of them.
const MEASURED: Duration = Duration::from_millis(500);
const MEASURED_STEPS: u64 = 4;
/// A length that was guessed wrong is mended so often.
const MOST_TRIES: u32 = 3;
/// The folder of the run that is disturbed.
const DISTURBED: &str = "disturbed";
/// The exit code of a drill in which a promise did not hold.
const BROKEN: u8 = 1;

/// Does the drill. The exit code says whether every promise held.
///
/// *Errors*: of the configuration (kind usage, nothing started); a machine that does not allow it (partition: usage,
/// disk-full: failed), a run that fails without being disturbed (failed); somebody stopped it. *Blocks* for several runs.
pub fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let stop = Stop::new()?;
    let folder = tempfile::Builder::new()
        .prefix("dtrain-drill-")
        .tempdir()
        .map_err(|error| CliError::failed("cannot make a temporary folder").because(&error))?;
    let mut setup = Setup::new(arguments, folder.path(), stop)?;
    // What a machine does not allow is said before anything is trained.
    let hosts = match setup.kind {
        DrillKind::Partition => Some(setup.stop.unless_stopped(TwoHosts::new(folder.path()))?),
        _ => None,
    };
    if setup.kind == DrillKind::DiskFull {
        SmallDisk::around(&setup.run_dir("disk"), 1 << 20)?;
    }
    let mut reporter = Reporter::new(arguments.output, arguments.kind.name());
    if setup.needs_step_time() {
        reporter
            .say("how long a step takes is measured first; steps=N or epochs=N says how long the runs are");
        let pace = pace(&setup, hosts.as_ref())?;
        setup.fit(pace)?;
    }
    let mut tries = 1;
    let (expected, disturbed) = loop {
        reporter.begin(&setup);
        let expected = undisturbed(&setup)?;
        reporter.say(&format!("  undisturbed: digest {}", short(&expected)));
        let disturbed = disturb(&setup, hosts.as_ref(), &mut reporter)?;
        if tries == MOST_TRIES || !setup.was_too_short(&disturbed, &expected) {
            break (expected, disturbed);
        }
        tries += 1;
        reporter
            .say("  the run ended before everybody was back, so it proves nothing: again, with more steps");
        setup.lengthen()?;
    };
    let dir = disturbed.disk.as_ref().map_or(setup.run_dir(DISTURBED), |disk| disk.path().join("run"));
    let promises = judge(&setup, &disturbed, &expected, audit(&dir)?);
    Ok(report(&reporter, &disturbed, &promises, &expected))
}

/// The run that is disturbed.
fn disturb(setup: &Setup, hosts: Option<&TwoHosts>, reporter: &mut Reporter) -> Result<Disturbed, CliError> {
    let dir = setup.run_dir(DISTURBED);
    let run = || Run::start(setup.train(&dir, &[])?, Seen::default(), &setup.stop);
    match setup.kind {
        DrillKind::Kill => kill(setup, run()?, reporter),
        DrillKind::Hang => hang(setup, run()?, reporter),
        DrillKind::Sigterm => sigterm(setup, run()?, &dir, reporter),
        DrillKind::DiskFull => disk_full(setup, reporter),
        DrillKind::Partition => partition(setup, hosts.expect("they were made"), &dir, reporter),
    }
}

/// Times steps of the configuration as it is.
fn pace(setup: &Setup, hosts: Option<&TwoHosts>) -> Result<Pace, CliError> {
    let mut train = setup.train(&setup.run_dir("timed"), &[])?;
    let Some(hosts) = hosts else {
        let whole = step_time(Run::start(train, Seen::default(), &setup.stop)?)?;
        return Ok(Pace { whole, rest: whole });
    };
    train.args(setup.part(0));
    let rest = step_time(Run::start(train, Seen::default(), &setup.stop)?)?;
    let [first, _second] = hosts.start(setup, &setup.run_dir("timed-hosts"))?;
    Ok(Pace { whole: step_time(first)?, rest })
}

fn step_time(mut run: Run) -> Result<Duration, CliError> {
    if !run.wait_for_step(1)? {
        return Err(failed("timed", &run.finish()?));
    }
    let (first, begun) = (run.seen.last_step, Instant::now());
    let newest =
        run.wait_for(|seen, _| begun.elapsed() >= MEASURED && seen.last_step >= first + MEASURED_STEPS)?;
    let time = newest.map_or_else(|| begun.elapsed(), |newest| newest.saturating_duration_since(begun));
    let steps = (run.seen.last_step - first).max(1);
    Ok(time.div_f64(steps as f64))
}

/// The digest of a run that nothing happens to.
fn undisturbed(setup: &Setup) -> Result<String, CliError> {
    let run = Run::start(setup.train(&setup.run_dir("undisturbed"), &[])?, Seen::default(), &setup.stop)?;
    let ended = run.finish()?;
    match &ended.seen.ending {
        Some(ending) if ended.code == Some(0) && !ending.digest.is_empty() => Ok(ending.digest.clone()),
        _ => Err(failed("undisturbed", &ended)),
    }
}

fn failed(which: &str, ended: &crate::drill::EndedRun) -> CliError {
    let message = format!("the {which} run failed with exit code {}", ended.code.unwrap_or(-1));
    CliError::failed(message)
        .cause(ended.last_words())
        .hint("`dtrain train` with the same arguments shows more")
}

/// What `dtrain audit` says of a run: nothing bad, or what.
fn audit(dir: &Path) -> Result<Result<String, String>, CliError> {
    let words: [OsString; 2] = ["audit".into(), dir.into()];
    let output = this_program(&[], &words)?
        .output()
        .map_err(|error| CliError::failed("the audit cannot be started").because(&error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Ok(match output.status.success() {
        // Its first line begins with the name of the run.
        true => {
            let said = text(&output.stdout);
            let first = said.lines().next().unwrap_or_default();
            Ok(first.split_once(": ").map_or(first, |(_, rest)| rest).to_owned())
        }
        false => Err(text(&output.stderr)),
    })
}

/// Which promises held.
fn judge(
    setup: &Setup,
    disturbed: &Disturbed,
    expected: &str,
    audit: Result<String, String>,
) -> Vec<Promise> {
    let mut promises = vec![recovered(setup, disturbed), steps_kept(setup, disturbed)];
    promises.extend(disturbed.promises.iter().cloned());
    let ended = &disturbed.ended;
    let code = ended.code.unwrap_or(-1);
    let words = if code == 0 { String::new() } else { format!(": {}", ended.last_words()) };
    promises.push(Promise::new("the run comes to its end", code == 0, format!("exit code {code}{words}")));
    let digest = ended.seen.ending.as_ref().map_or("", |ending| &ending.digest);
    promises.push(if setup.kind.loses_ranks() && !setup.exact {
        let detail = "not compared: with reduce=ring they depend on the number of ranks";
        Promise::new("the bits are those of an undisturbed run", true, detail)
    } else {
        let same = digest == expected;
        let detail = if same { short(digest) } else { format!("{}, not {}", short(digest), short(expected)) };
        Promise::new("the bits are those of an undisturbed run", same, detail)
    });
    let (clean, detail) = match audit {
        Ok(said) => (true, said),
        Err(said) => (false, said),
    };
    promises.push(Promise::new("every sample was used once an epoch", clean, detail));
    promises
}

fn recovered(setup: &Setup, disturbed: &Disturbed) -> Promise {
    let mut times: Vec<Duration> = disturbed.faults.iter().filter_map(|fault| fault.recovery).collect();
    times.sort();
    let mut detail = format!("{} of {}", times.len(), setup.times);
    if let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) {
        detail += &format!(", median {:.2} s, worst {:.2} s", median.as_secs_f64(), worst.as_secs_f64());
    }
    let missing = (times.len() as u64) < setup.times;
    if missing && disturbed.ended.seen.last_step == setup.steps {
        detail += "; the run ended first, so give it more steps=";
    }
    Promise::new("the run goes on after every fault", times.len() as u64 == setup.times, detail)
}

/// With one rank nobody is left that holds the state, and the run goes on from its newest checkpoint: that steps are
/// computed again then is no broken promise.
fn steps_kept(setup: &Setup, disturbed: &Disturbed) -> Promise {
    let what = "no step is lost, repeated or out of order";
    let (seen, lost) = (&disturbed.ended.seen, disturbed.lost_steps);
    let alone = setup.ranks == 1 && matches!(setup.kind, DrillKind::Kill | DrillKind::Hang);
    let steps = amount(seen.last_step, "step");
    let detail = match &seen.disorder {
        Some(disorder) => disorder.clone(),
        None if alone => {
            format!("{steps}, {lost} computed again: with one rank nobody else holds the state")
        }
        None => format!("{steps}, {lost} lost"),
    };
    let all = seen.last_step == setup.steps;
    Promise::new(what, seen.disorder.is_none() && all && (alone || lost == 0), detail)
}

fn report(reporter: &Reporter, disturbed: &Disturbed, promises: &[Promise], expected: &str) -> ExitCode {
    let held = promises.iter().all(|promise| promise.held);
    let listed: Vec<_> = promises
        .iter()
        .map(|promise| json!({"promise": promise.what, "held": promise.held, "detail": promise.detail}))
        .collect();
    let recoveries: Vec<f64> =
        disturbed.faults.iter().filter_map(|fault| fault.recovery).map(|time| time.as_secs_f64()).collect();
    let digest = disturbed.ended.seen.ending.as_ref().map_or("", |ending| &ending.digest);
    let fields = json!({
        "held": held,
        "hurts": disturbed.faults.len(),
        "recoveries": recoveries,
        "steps": disturbed.ended.seen.last_step,
        "lost_steps": disturbed.lost_steps,
        "digest": digest,
        "undisturbed_digest": expected,
        "promises": listed,
    });
    if !held {
        let story = disturbed.ended.seen.notices.iter();
        let story: Vec<String> = story.map(|(step, text)| format!("  after step {step}: {text}")).collect();
        reporter.say(&format!("what the run told of itself:\n{}", story.join("\n")));
    }
    let last = if held { "all promises held" } else { "a promise did not hold" };
    reporter.end(fields, &format!("{}\n{last}\n", table(&disturbed.faults, promises)));
    if held { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) }
}

fn short(digest: &str) -> String {
    digest.chars().take(16).collect()
}
