//! The table of `--profile`: where the time of a step goes.

use super::Stream;
use super::numbers::amount;
use dtrain_telemetry::profile::{LostPart, ProfileReport, Row};
use dtrain_types::counted;
use std::fmt::Write;

/// Where the time of the steps went, as it is shown on `stream`; the rows add up to the step.
#[must_use]
pub fn profile(report: &ProfileReport, stream: Stream) -> String {
    let mut text = format!("  {} where the time of a step goes", stream.bold("profile "));
    match report.ranks.iter().map(|rank| rank.steps).max() {
        None => text += ": no rank has written down a step\n",
        Some(steps) => {
            let ranks = counted(report.ranks.len(), "rank");
            let _ = writeln!(text, ", mean of {ranks} and up to {} each", amount(steps, "step"));
            table(&mut text, report);
        }
    }
    for lost in &report.lost {
        let LostPart { member, rank, incarnation, host, why } = lost;
        let _ = writeln!(
            text,
            "           without rank {rank} (member {member}, life {incarnation}) on {host}: {why}"
        );
    }
    if let Some(trace) = &report.trace {
        let _ = writeln!(text, "           {trace}: open it in https://ui.perfetto.dev or chrome://tracing");
    }
    text
}

fn table(text: &mut String, report: &ProfileReport) {
    let _ = writeln!(
        text,
        "           {:<14}{:>11}{:>9}{:>11}{:>11}  most on",
        "", "ms a step", "share", "least", "most"
    );
    for Row { part, ms, share, min_ms, max_ms, most } in &report.parts {
        let _ = writeln!(
            text,
            "           {part:<14}{ms:>11.3}{:>7.1} %{min_ms:>11.3}{max_ms:>11.3}  rank {most}",
            share * 100.0
        );
    }
    let _ = writeln!(text, "           {:<14}{:>11.3}{:>7.1} %", "step", report.step_ms, 100.0);
    let communication = report.row("communication").map_or(0.0, |row| row.ms);
    let _ = writeln!(text, "           {}", hidden(report.hidden_ms, communication));
    if report.waits_unknown > 0 {
        let _ = writeln!(
            text,
            "           the wait for others is in the communication of {}: not all of their ranks are here on one clock",
            amount(report.waits_unknown, "step")
        );
    }
}

/// How much of the communication cost no time.
fn hidden(hidden_ms: f64, communication_ms: f64) -> String {
    if communication_ms == 0.0 {
        return "no communication".to_owned();
    }
    if hidden_ms == 0.0 {
        return "communication hidden behind computing: none; the all-reduce began after the last backward pass".to_owned();
    }
    let share = hidden_ms / (hidden_ms + communication_ms) * 100.0;
    format!("communication hidden behind computing: {hidden_ms:.3} ms a step, {share:.1} % of all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_telemetry::profile::RankTimes;
    use dtrain_types::{Incarnation, MemberId, Rank};
    use std::collections::BTreeMap;

    fn report() -> ProfileReport {
        let row = |part: &str, ms: f64| Row {
            part: part.into(),
            ms,
            share: ms / 4.0,
            min_ms: ms,
            max_ms: ms,
            most: Rank(1),
        };
        let rank = RankTimes {
            member: MemberId(1),
            rank: Rank(1),
            incarnation: Incarnation(2),
            host: "here".into(),
            steps: 23,
            step_ms: 4.0,
            parts: BTreeMap::new(),
            hidden_ms: 0.0,
        };
        let parts = vec![row("forward", 2.5), row("communication", 1.0), row("other", 0.5)];
        ProfileReport { step_ms: 4.0, parts, ranks: vec![rank], ..ProfileReport::default() }
    }

    fn plain(report: &ProfileReport) -> String {
        console::strip_ansi_codes(&profile(report, Stream::Error)).into_owned()
    }

    #[test]
    fn the_table_has_a_line_a_part_and_says_how_much_is_hidden() {
        let text = plain(&report());
        assert!(text.contains("mean of 1 rank and up to 23 steps each"), "{text}");
        assert!(text.contains("forward             2.500   62.5 %"), "{text}");
        assert!(text.contains("step                4.000  100.0 %"), "{text}");
        assert!(text.contains("hidden behind computing: none;"), "{text}");
        let text = plain(&ProfileReport { hidden_ms: 0.25, ..report() });
        assert!(text.contains("hidden behind computing: 0.250 ms a step, 20.0 % of all"), "{text}");
    }

    #[test]
    fn who_is_missing_is_named_also_where_nobody_is_left() {
        let lost = LostPart {
            member: MemberId(0),
            rank: Rank(0),
            incarnation: Incarnation(1),
            host: "there".into(),
            why: "it ended".into(),
        };
        let text = plain(&ProfileReport { lost: vec![lost], ..ProfileReport::default() });
        assert!(text.contains("no rank has written down a step"), "{text}");
        assert!(text.contains("without rank 0 (member 0, life 1) on there: it ended"), "{text}");
    }
}
