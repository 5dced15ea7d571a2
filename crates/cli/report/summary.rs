//! The last lines of a run: what it came to, or which fault came first and what to do.

use super::Stream;
use super::numbers::{amount, bytes, duration, loss, measure, own_name, percent, rate};
use console::style;
use dtrain_protocol::Cause;
use dtrain_telemetry::Summary;
use dtrain_types::MemberId;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// How many of a rank's last lines are shown.
const LAST_LINES: usize = 10;

/// What a finished run came to, as it is shown on `stream`.
#[must_use]
pub fn end(summary: &Summary, stream: Stream) -> String {
    let mut text = String::new();
    let took = duration(Duration::from_secs_f64(summary.seconds.clamp(0.0, 1e12)));
    let mut line = |name: &str, words: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {} {words}", stream.bold(&format!("{name:<8}")));
    };
    let (steps, epochs) = (amount(summary.steps, "step"), amount(summary.epochs, "epoch"));
    // Whoever takes over from a supervisor that died may find that nothing is left to be done.
    line(
        "done",
        match summary.samples {
            0 => format!("{steps}, {epochs}"),
            samples => {
                let speed = rate(samples, summary.seconds);
                format!("{steps}, {epochs}, {} in {took}, {speed}", amount(samples, "sample"))
            }
        },
    );
    let mut result: Vec<String> = Vec::new();
    result.extend(summary.val_accuracy.map(|share| format!("accuracy {}", percent(share))));
    result.extend(summary.val_f1.map(|f1| format!("macro F1 {f1:.4}")));
    result.extend(summary.val_rmse.map(|rmse| format!("RMSE {}", measure(rmse))));
    result.extend(summary.val_mae.map(|mae| format!("MAE {}", measure(mae))));
    result.extend(summary.val_r2.map(|r2| format!("R2 {r2:.4}")));
    result.extend(summary.metrics.iter().map(|(name, number)| format!("{} {number:.4}", own_name(name))));
    result.extend(summary.val_loss.map(|value| format!("loss {}", loss(value))));
    if !result.is_empty() {
        line("held out", result.join(", "));
    }
    if let Some(why) = &summary.stopped {
        line("stopped", why.clone());
    }
    if !summary.recoveries.is_empty() {
        let seconds: Vec<String> = summary.recoveries.iter().map(|s| format!("{s:.2} s")).collect();
        line("recovery", format!("{} (steps lost: {})", seconds.join(", "), summary.lost_steps));
    }
    line("digest", summary.digest.clone());
    let on_gpu = summary.gpu_peak_bytes.map_or(String::new(), |peak| format!(", on its GPU {}", bytes(peak)));
    let own = format!("{:.0} MiB", summary.peak_rss_mb);
    line("run", format!("{}  (peak memory of a rank: {own}{on_gpu})", summary.run));
    text
}

/// Why a run failed: the first cause first, that rank's last words, and only then what followed from it.
#[must_use]
pub fn fault_report(first: &Cause, others: &[Cause], last_lines: &BTreeMap<MemberId, Vec<String>>) -> String {
    let mut text = format!("{} {first}\n", style("first cause:").for_stderr().red().bold());
    let words = first.what.to_string();
    if words.lines().count() > 1 {
        words.lines().for_each(|line| text += &format!("  {line}\n"));
    }
    if let Some(lines) = last_lines.get(&first.member).filter(|lines| !lines.is_empty()) {
        text += "  its last lines:\n";
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            let _ = writeln!(text, "    {line}");
        }
    }
    if !others.is_empty() {
        text += "  after that:\n";
        for cause in others {
            let _ = writeln!(text, "    {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{ExitCause, Failure, Phase, What};
    use dtrain_types::{Incarnation, Rank, Step};

    fn cause(member: u32, what: What) -> Cause {
        let rank = Some(Rank(member));
        let incarnation = Incarnation(1);
        Cause {
            member: MemberId(member),
            incarnation,
            rank,
            host: "here".into(),
            step: Step(5),
            phase: Phase::Run,
            doing: None,
            what,
        }
    }

    #[test]
    fn the_first_cause_stands_first_with_its_own_last_lines() {
        let first = cause(1, What::Exited(ExitCause::Signal(9)));
        let second = cause(0, What::Reported(Failure::Data("peer left".into())));
        let lines = BTreeMap::from([
            (MemberId(0), vec!["innocent".to_owned()]),
            (MemberId(1), (0..20).map(|i| format!("line {i}")).collect()),
        ]);
        let text = fault_report(&first, &[second], &lines);
        let text = console::strip_ansi_codes(&text).into_owned();
        assert!(
            text.starts_with("first cause: rank 1 (member 1) on here: killed by signal 9 (SIGKILL)"),
            "{text}"
        );
        assert!(text.contains("line 10\n") && !text.contains("line 9\n"), "{text}");
        let (own, followed) = (text.find("line 19").unwrap(), text.find("after that").unwrap());
        assert!(own < followed && text[followed..].contains("peer left"), "{text}");
        assert!(!text.contains("innocent"), "{text}");
    }

    #[test]
    fn a_traceback_is_shown_once_and_whole() {
        let words = "Traceback (most recent call last):\n  File \"a.py\", line 3, in loss\nNameError: x";
        let failed = |member| cause(member, What::Reported(Failure::Program(words.into())));
        let text = fault_report(&failed(1), &[failed(0)], &BTreeMap::new());
        let text = console::strip_ansi_codes(&text).into_owned();
        assert!(
            text.starts_with("first cause: rank 1 (member 1) on here: NameError: x [phase run"),
            "{text}"
        );
        assert_eq!(
            (text.matches("Traceback").count(), text.matches("line 3, in loss").count()),
            (1, 1),
            "{text}"
        );
        assert!(text.contains("    rank 0 (member 0) on here: NameError: x"), "{text}");
    }

    #[test]
    fn the_end_leaves_out_what_is_not_known() {
        let summary = Summary { steps: 460, epochs: 20, seconds: 2.0, samples: 28_740, ..Summary::default() };
        let text = console::strip_ansi_codes(&end(&summary, Stream::Error)).into_owned();
        assert!(text.contains("460 steps, 20 epochs, 28 740 samples in 2.0 s, 14 370 samples/s"), "{text}");
        assert!(!text.contains("held out") && !text.contains("recovery"), "{text}");
        let text =
            end(&Summary { val_accuracy: Some(0.98), recoveries: vec![0.5], ..summary }, Stream::Output);
        assert!(text.contains("accuracy 98.0 %") && text.contains("0.50 s"), "{text}");
    }
}
