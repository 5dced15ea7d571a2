//! The progress of a run as Prometheus reads it: OpenMetrics 1.0, or the older text format where only that is understood.
//!
//! Every family is a row of [`families`], with its type, unit and help: what is exposed, and what a board may ask for, is read there. It
//! does not know sockets; `scrape` serves it.
//!
//! *Source*: OpenMetrics 1.0.0 (prometheus/OpenMetrics), text format 0.0.4 (prometheus/docs).

use crate::{Progress, RunState};
use std::fmt::Write;

/// A format of the exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FamilyType {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
    /// Words in labels.
    Info,
    /// One of several words holds.
    StateSet,
}

/// Metrics of one name.
struct Family {
    name: &'static str,
    is: FamilyType,
    /// Its base unit, with which the name ends.
    unit: &'static str,
    help: &'static str,
    samples: Vec<Sample>,
}

struct Sample {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

impl Exposition {
    /// The best that a scraper accepts, by its `Accept` header.
    #[must_use]
    pub fn accepted_by(header: Option<&str>) -> Self {
        let Some(header) = header else { return Self::Text };
        let weight = |wanted: &[&str]| {
            let of_type = header.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next().unwrap_or_default().to_ascii_lowercase();
                let q = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
                wanted.contains(&name.as_str()).then_some(q.unwrap_or(1.0))
            });
            of_type.fold(0.0, f64::max)
        };
        let open = weight(&["application/openmetrics-text"]);
        if open > 0.0 && open >= weight(&["text/plain"]) { Self::OpenMetrics } else { Self::Text }
    }

    /// The content type of an answer.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Everything that is known of a run.
    #[must_use]
    pub fn write(self, progress: &Progress) -> String {
        let mut text = String::with_capacity(16 * 1024);
        let run = escaped(&progress.begun.run);
        for family in families(progress) {
            self.family(&mut text, &family, &run);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn family(self, text: &mut String, family: &Family, run: &str) {
        let open = self == Self::OpenMetrics;
        let suffix = match family.is {
            FamilyType::Counter => "_total",
            FamilyType::Info => "_info",
            FamilyType::Gauge | FamilyType::StateSet => "",
        };
        // The older format names what stands in the lines, and knows neither words nor states.
        let (name, is) = match (open, family.is) {
            (true, FamilyType::Counter) => (family.name.to_owned(), "counter"),
            (true, FamilyType::Info) => (family.name.to_owned(), "info"),
            (true, FamilyType::StateSet) => (family.name.to_owned(), "stateset"),
            (false, FamilyType::Counter) => (format!("{}{suffix}", family.name), "counter"),
            (_, FamilyType::Gauge | FamilyType::StateSet) => (family.name.to_owned(), "gauge"),
            (false, FamilyType::Info) => (format!("{}{suffix}", family.name), "gauge"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE {name} {is}");
        if open && !family.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {}", family.unit);
        }
        let _ = writeln!(text, "# HELP {name} {}", family.help);
        for Sample { labels, value } in &family.samples {
            let _ = write!(text, "{}{suffix}{{run=\"{run}\"", family.name);
            for (label, word) in labels {
                let _ = write!(text, ",{label}=\"{}\"", escaped(word));
            }
            let _ = writeln!(text, "}} {}", Number(*value));
        }
    }
}

/// The names of all families as a query has them.
#[must_use]
pub fn exposed_names() -> Vec<String> {
    let name = |family: Family| match family.is {
        FamilyType::Counter => format!("{}_total", family.name),
        FamilyType::Info => format!("{}_info", family.name),
        FamilyType::Gauge | FamilyType::StateSet => family.name.to_owned(),
    };
    families(&Progress::default()).into_iter().map(name).collect()
}

/// Every family; one of which nothing is known has no sample.
#[rustfmt::skip] // a table: one row a family
fn families(p: &Progress) -> Vec<Family> {
    use FamilyType::{Counter, Gauge, Info, StateSet};
    let one = |value: f64| vec![Sample { labels: Vec::new(), value }];
    let known = |value: Option<f64>| value.map(one).unwrap_or_default();
    let count = |value: u64| one(value as f64);
    let family = |name, is, unit, help, samples| Family { name, is, unit, help, samples };
    let tokens = p.begun.tokens_per_sample.map(|tokens| tokens as f64);
    let made = (p.steps > 0).then_some(());
    let labelled = |label: &'static str, word: &str, value: f64| Sample {
        labels: vec![(label, word.to_owned())],
        value,
    };
    let states = RunState::ALL
        .map(|(state, word)| labelled("dtrain_run_state", word, f64::from(u8::from(state == p.state))));
    let results = p.results.iter().map(|(name, value)| labelled("result", name, *value)).collect();
    let faults = p.faults.iter().map(|(kind, count)| labelled("kind", kind, *count as f64)).collect();
    vec![
        family("dtrain_run", Info, "", "What is trained, and by which process.", info(p)),
        family("dtrain_run_state", StateSet, "", "How the run does.", states.into()),
        family("dtrain_run_start_timestamp_seconds", Gauge, "seconds", "When this process began to lead the run.", known(p.begun_at.map(|time| time.0))),
        family("dtrain_step", Gauge, "", "The newest committed step.", count(p.at().0)),
        family("dtrain_target_steps", Gauge, "", "The last step of the run, if nothing ends it before.", count(p.begun.steps)),
        family("dtrain_epochs", Gauge, "", "Epochs that have ended.", count(p.epoch.map_or(0, |epoch| u64::from(epoch.0) + 1))),
        family("dtrain_generation", Gauge, "", "The generation at work.", count(p.generation)),
        family("dtrain_steps", Counter, "", "Steps committed by this process.", count(p.steps)),
        family("dtrain_samples", Counter, "", "Samples fed by this process.", count(p.samples)),
        family("dtrain_tokens", Counter, "", "Tokens fed by this process, where samples have tokens.", known(tokens.map(|tokens| tokens * p.samples as f64))),
        family("dtrain_samples_per_second", Gauge, "", "Samples a second of late.", known(p.speed)),
        family("dtrain_tokens_per_second", Gauge, "", "Tokens a second of late, where samples have tokens.", known(tokens.zip(p.speed).map(|(tokens, speed)| tokens * speed))),
        family("dtrain_remaining_seconds", Gauge, "seconds", "Time left at the speed of late.", known(p.seconds_left())),
        family("dtrain_loss", Gauge, "", "Mean training loss of the newest step.", known(made.map(|()| p.newest.loss))),
        family("dtrain_learning_rate", Gauge, "", "Learning rate of the newest step.", known(p.newest.learning_rate)),
        family("dtrain_gradient_norm", Gauge, "", "Norm of the newest gradient, before it is clipped.", known(p.newest.gradient_norm)),
        family("dtrain_result", Gauge, "", "What the newest epoch or validation came to, by the name of the result.", results),
        family("dtrain_step_seconds", Counter, "seconds", "Time of steps, as a rank measured it.", one(p.step_seconds)),
        family("dtrain_communication_wait_seconds", Counter, "seconds", "Time of steps in which that rank waited for the others.", one(p.waiting_seconds)),
        family("dtrain_ranks", Gauge, "", "Ranks at work.", count(p.alive.into())),
        family("dtrain_target_ranks", Gauge, "", "Ranks that the run is to have: the most that it had.", count(p.wanted.into())),
        family("dtrain_rank_up", Gauge, "", "Whether a process slot has a rank at work.", each_rank(p, |rank| Some(f64::from(u8::from(!rank.is_lost))))),
        family("dtrain_rank_restarts", Counter, "", "Processes started for a slot after its first.", each_rank(p, |rank| Some(rank.restarts as f64))),
        family("dtrain_rank_slowness_ratio", Gauge, "ratio", "Of a rank that is slow: its time for a micro-batch, by that of the median rank.", each_rank(p, |rank| rank.slow)),
        family("dtrain_faults", Counter, "", "Faults by kind.", faults),
        family("dtrain_restarts", Counter, "", "Processes of ranks that were started in the place of others.", count(p.restarts)),
        family("dtrain_recoveries", Counter, "", "Faults after which steps were made again.", count(p.recoveries)),
        family("dtrain_recovery_seconds", Counter, "seconds", "Time from faults to the next steps.", one(p.recovery_seconds)),
        family("dtrain_lost_steps", Counter, "", "Steps that were lost with all who held them, and are made again.", count(p.lost_steps)),
        family("dtrain_checkpoints", Counter, "", "Checkpoints that are complete.", count(p.checkpoints)),
        family("dtrain_failed_checkpoints", Counter, "", "Checkpoints that could not be written.", count(p.failed_checkpoints)),
        family("dtrain_checkpoint_step", Gauge, "", "The step of the newest checkpoint.", known(p.checkpoint.as_ref().map(|_| p.checkpoint_step as f64))),
        family("dtrain_gpu_utilisation_ratio", Gauge, "ratio", "Share of the last moments in which a GPU of this host worked.", each_gpu(p, |now| now.utilisation.map(|share| f64::from(share) / 100.0))),
        family("dtrain_gpu_memory_used_bytes", Gauge, "bytes", "Memory in use of a GPU of this host, by anybody.", each_gpu(p, |now| now.memory_used.map(|bytes| bytes.0 as f64))),
        family("dtrain_gpu_temperature_celsius", Gauge, "celsius", "Temperature of a GPU of this host.", each_gpu(p, |now| now.temperature.map(f64::from))),
        family("dtrain_gpu_power_watts", Gauge, "watts", "Power that a GPU of this host draws.", each_gpu(p, |now| now.power)),
    ]
}

fn info(p: &Progress) -> Vec<Sample> {
    let b = &p.begun;
    let labels = vec![
        ("version", b.version.clone()),
        ("host", b.host.clone()),
        ("pid", b.pid.to_string()),
        ("data", b.data.clone()),
        ("model", b.model.clone()),
        ("device", b.device.clone()),
        ("global_batch", b.global_batch.to_string()),
        ("parameters", b.parameters.to_string()),
    ];
    vec![Sample { labels, value: 1.0 }]
}

fn each_rank(p: &Progress, value: impl Fn(&crate::RankStanding) -> Option<f64>) -> Vec<Sample> {
    let sample = |(member, rank): (&dtrain_types::MemberId, &crate::RankStanding)| {
        let labels = vec![
            ("member", member.to_string()),
            ("host", rank.host.clone()),
            ("device", rank.device.clone()),
        ];
        Some(Sample { labels, value: value(rank)? })
    };
    p.ranks.iter().filter_map(sample).collect()
}

fn each_gpu(p: &Progress, value: impl Fn(&crate::GpuReadings) -> Option<f64>) -> Vec<Sample> {
    let sample = |(gpu, now): (&u32, &crate::GpuReadings)| {
        Some(Sample { labels: vec![("gpu", gpu.to_string())], value: value(now)? })
    };
    p.gpus.iter().filter_map(sample).collect()
}

/// A label's value: names of hosts and runs are anybody's.
fn escaped(word: &str) -> String {
    word.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A number as both formats write it.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            x if x.is_nan() => f.write_str("NaN"),
            x if x == f64::INFINITY => f.write_str("+Inf"),
            x if x == f64::NEG_INFINITY => f.write_str("-Inf"),
            x => write!(f, "{x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metric, RunBegun, RunEvent, StepMetrics, UnixTime};
    use dtrain_types::Step;

    fn run() -> Progress {
        let mut run = Progress::default();
        let begun = RunBegun { run: "a \"run\"\\\n".into(), steps: 9, ..RunBegun::default() };
        run.event(UnixTime(12.5), &RunEvent::Run(begun));
        let step = StepMetrics {
            step: Step(3),
            loss: f64::NAN,
            samples: 50,
            seconds: Some(0.5),
            ..StepMetrics::default()
        };
        run.state = RunState::Training;
        run.metric(UnixTime(13.0), &Metric::Step(step));
        run
    }

    #[test]
    fn both_formats_name_their_families_as_they_are_specified() {
        let open = Exposition::OpenMetrics.write(&run());
        let counter = "# TYPE dtrain_step_seconds counter\n# UNIT dtrain_step_seconds seconds\n# HELP dtrain_step_seconds Time of \
                       steps, as a rank measured it.\ndtrain_step_seconds_total{run=\"a \\\"run\\\"\\\\\\n\"} 0.5\n";
        assert!(open.contains(counter), "{open}");
        assert!(open.contains("# TYPE dtrain_run info\n") && open.ends_with("\n# EOF\n"), "{open}");
        assert!(
            open.contains("dtrain_run_state{run=\"a \\\"run\\\"\\\\\\n\",dtrain_run_state=\"training\"} 1\n"),
            "{open}"
        );
        assert!(open.contains("} NaN\n"), "a loss that is not finite is one: {open}");
        let text = Exposition::Text.write(&run());
        assert!(
            text.contains("# TYPE dtrain_step_seconds_total counter\n# HELP dtrain_step_seconds_total Time"),
            "{text}"
        );
        assert!(text.contains("# TYPE dtrain_run_info gauge\n"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT") && !text.contains("stateset"), "{text}");
    }

    #[test]
    fn a_unit_ends_the_name_of_its_family_and_every_family_is_there_once() {
        let all = families(&Progress::default());
        for family in &all {
            assert!(
                family.unit.is_empty() || family.name.ends_with(&format!("_{}", family.unit)),
                "{}",
                family.name
            );
            assert!(family.help.ends_with('.'), "{}", family.name);
        }
        let mut names: Vec<&str> = all.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(exposed_names().contains(&"dtrain_steps_total".to_owned()));
    }

    #[test]
    fn the_format_follows_from_what_a_scraper_accepts() {
        use Exposition::{OpenMetrics, Text};
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (header, format) in [
            (None, Text),
            (Some("*/*"), Text),
            (Some("text/plain"), Text),
            (Some(prometheus), OpenMetrics),
            (Some("Application/OpenMetrics-Text"), OpenMetrics),
            (Some("text/plain, application/openmetrics-text;q=0.5"), Text),
            (Some("application/openmetrics-text;q=0"), Text),
            (Some(";;,=,q=,"), Text),
        ] {
            assert_eq!(Exposition::accepted_by(header), format, "{header:?}");
        }
    }
}
