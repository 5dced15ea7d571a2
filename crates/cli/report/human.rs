//! Shows a run to a person while it happens.

use super::Voice;
use super::numbers::{bytes, duration, loss, measure, own_name, percent, rate};
use console::style;
use dtrain_protocol::Event;
use dtrain_runtime::{Observer, StepSeen};
use dtrain_telemetry::{EpochMetrics, GpuSample, GpuWatch};
use dtrain_types::{Epoch, MemberId, NodeId, Step, counted};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where there is no terminal, a line about steps at most this often.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// How much the newest step counts in the smoothed speed.
const SMOOTHING: f64 = 0.1;

/// Writes what a run does to standard error.
pub struct Human {
    voice: Voice,
    bar: ProgressBar,
    last_step: Step,
    epochs: u64,
    epochs_begun: BTreeMap<Epoch, Progress>,
    speed: Option<f64>,
    line_at: Instant,
    gpus: Option<Arc<GpuWatch>>,
    /// Results that are shown although most runs do not show them.
    shown: BTreeSet<String>,
}

/// What has been seen of an epoch that is not validated yet; a fast model may have begun the next one.
#[derive(Clone, Copy, Default)]
struct Progress {
    samples: u64,
    /// Of its steps, as the ranks measured them.
    seconds: f64,
}

impl Human {
    /// A reporter for a run of `last` steps in `epochs` epochs.
    #[must_use]
    pub fn new(voice: Voice, last: Step, epochs: u64) -> Self {
        let bar = match voice {
            Voice::Terminal => {
                ProgressBar::with_draw_target(Some(last.0), ProgressDrawTarget::stderr_with_hz(10))
            }
            Voice::Log | Voice::Quiet => ProgressBar::hidden(),
        };
        let shape = "  {bar:28.cyan/dim} {pos}/{len} steps  {msg}  eta {eta}";
        bar.set_style(ProgressStyle::with_template(shape).expect("the template is well formed"));
        let epochs_begun = BTreeMap::new();
        Self {
            voice,
            bar,
            last_step: last,
            epochs,
            epochs_begun,
            speed: None,
            line_at: Instant::now(),
            gpus: None,
            shown: BTreeSet::new(),
        }
    }

    /// Shows these results beside those that all runs show: the program's own, and what somebody has named.
    #[must_use]
    pub fn showing(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.shown.extend(names);
        self
    }

    /// Shows the newest readings of these GPUs beside the speed.
    #[must_use]
    pub fn watching(mut self, gpus: Option<Arc<GpuWatch>>) -> Self {
        self.gpus = gpus;
        self
    }

    fn say(&self, text: &str) {
        // The bar is taken away for a moment, so that a line never lands in it.
        self.bar.suspend(|| self.voice.say(text));
    }

    fn running(&mut self, from: Step) {
        self.bar.set_position(from.0.saturating_sub(1));
        self.bar.reset_eta();
        self.epochs_begun.clear();
    }

    fn eta(&self, seen: &StepSeen) -> String {
        let left = self.last_step.0.saturating_sub(seen.step.0) as f64 * seen.seconds;
        if left.is_finite() {
            format!("  eta {}", duration(Duration::from_secs_f64(left.min(1e9))))
        } else {
            String::new()
        }
    }

    fn results(&self, place: &str, seen: &EpochMetrics, made: Progress) {
        let Progress { samples, seconds } = made;
        let took = duration(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)));
        self.say(&format!("{}  {took}  {}", results_line(place, seen, &self.shown), rate(samples, seconds)));
    }

    fn warn(&self, text: &str) {
        self.say(&format!("{} {text}", style("warning:").for_stderr().yellow().bold()));
    }
}

/// `  2 GPUs 86 %, 41.2 GiB, 61 C`: the mean load, the fullest, the warmest; nothing of what is not told.
fn gpu_words(sample: &GpuSample) -> String {
    let all = || sample.gpus.iter().map(|(_, now)| now);
    let loads: Vec<u32> = all().filter_map(|now| now.utilisation).collect();
    let mean = (!loads.is_empty()).then(|| loads.iter().sum::<u32>() / loads.len() as u32);
    let mut words: Vec<String> = mean.map(|mean| format!("{mean} %")).into_iter().collect();
    words.extend(all().filter_map(|now| now.memory_used).max().map(|used| bytes(used.0)));
    words.extend(all().filter_map(|now| now.temperature).max().map(|degrees| format!("{degrees} C")));
    match (sample.gpus.len(), words.is_empty()) {
        (0, _) | (_, true) => String::new(),
        (1, _) => format!("  GPU {}", words.join(", ")),
        (count, _) => format!("  {count} GPUs {}", words.join(", ")),
    }
}

/// `epoch  3/20`, as wide for each of them.
fn place(what: &str, number: u64, total: u64) -> String {
    let total = total.to_string();
    format!("{what} {number:>width$}/{total}", width = total.len())
}

/// `epoch  3/20  train 0.1234  val 0.0987  accuracy 97.2 %  F1 0.9713`
fn results_line(place: &str, seen: &EpochMetrics, shown: &BTreeSet<String>) -> String {
    let mut line = format!("  {place}  train {}", loss(seen.train_loss));
    if let Some(val) = seen.val_loss {
        line += &format!("  val {}", loss(val));
    }
    if let Some(share) = seen.val_accuracy {
        line += &format!("  accuracy {}", percent(share));
    }
    if let Some(f1) = seen.val_f1 {
        line += &format!("  F1 {f1:.4}");
    }
    if let Some(rmse) = seen.val_rmse {
        line += &format!("  RMSE {}", measure(rmse));
    }
    if let Some(mae) = seen.others.get("val_mae") {
        line += &format!("  MAE {}", measure(*mae));
    }
    if let Some(r2) = seen.val_r2 {
        line += &format!("  R2 {r2:.4}");
    }
    if let Some(perplexity) = seen.others.get("val_perplexity") {
        line += &format!("  perplexity {perplexity:.2}");
    }
    let is_there = ["val_mae", "val_perplexity"];
    for (name, number) in seen.others.iter().filter(|(name, _)| !is_there.contains(&name.as_str())) {
        // A class is named because somebody asked for it.
        if !name.ends_with(']') && !shown.contains(name) {
            continue;
        }
        let name = if name.ends_with(']') { name } else { own_name(name) };
        line += &format!("  {name} {number:.4}");
    }
    line
}

impl Observer for Human {
    fn step(&mut self, seen: &StepSeen) {
        let progress = self.epochs_begun.entry(seen.epoch).or_default();
        progress.samples += seen.samples;
        progress.seconds += seen.seconds;
        if seen.seconds > 0.0 {
            let now = seen.samples as f64 / seen.seconds;
            self.speed = Some(self.speed.map_or(now, |speed| speed + SMOOTHING * (now - speed)));
        }
        self.bar.set_position(seen.step.0);
        let speed = self.speed.unwrap_or(0.0);
        let accuracy = seen.accuracy.map_or(String::new(), |share| format!("  accuracy {}", percent(share)));
        let gpus = self.gpus.as_ref().map_or(String::new(), |watch| gpu_words(&watch.newest()));
        let numbers =
            format!("loss {}{accuracy}  {}{gpus}", loss(seen.loss), rate(speed.round() as u64, 1.0));
        if self.voice == Voice::Log && self.line_at.elapsed() >= LINE_EVERY {
            self.line_at = Instant::now();
            let of = format!("step {}/{}  epoch {}", seen.step, self.last_step, seen.epoch.0 + 1);
            self.voice.say(&format!("  {of}  {numbers}{}", self.eta(seen)));
        } else {
            self.bar.set_message(numbers);
        }
    }

    fn epoch(&mut self, seen: &EpochMetrics) {
        let made = self.epochs_begun.remove(&seen.epoch).unwrap_or_default();
        self.results(&place("epoch", u64::from(seen.epoch.0) + 1, self.epochs), seen, made);
    }

    fn validation(&mut self, seen: &EpochMetrics) {
        let made = self.epochs_begun.get(&seen.epoch).copied().unwrap_or_default();
        self.results(&place("step", seen.step.0, self.last_step.0), seen, made);
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Running { from_step, .. } => self.running(*from_step),
            Event::CheckpointGivenUp { id, reason, .. } => {
                self.warn(&format!(
                    "checkpoint g{}-s{:06} was not written: {reason}; training goes on",
                    id.generation, id.step.0
                ));
            }
            Event::Draining => {
                self.say("  stopping after this step, with a checkpoint; once more to stop at once")
            }
            Event::LeftOut { member } => {
                self.warn(&format!("member {member} did not come in time; the run begins without it"));
            }
            Event::HostsMissing { there, wanted } => self.warn(&format!(
                "{there} of {} came within join_timeout; the run begins, and lets the others in when they come",
                counted(*wanted, "host")
            )),
            Event::Fault(cause) | Event::Refused(cause) => {
                self.say(&format!("{} {cause}", style("fault:").for_stderr().red().bold()));
            }
            Event::Recovered { seconds, step, .. } => {
                self.say(&format!(
                    "  {} step {step} {} after the fault",
                    style("recovered:").for_stderr().green(),
                    duration(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))
                ));
            }
            Event::Resumed { from, lost } => {
                self.warn(&format!(
                    "nobody holds the state any more: the run goes on from step {from}, {} made again",
                    match lost { 1 => "1 step is".to_owned(), _ => format!("{lost} steps are") }
                ));
            }
            Event::GivenUp { member, restarts } => {
                let often = match restarts {
                    0 => "was lost and may not be started again".to_owned(),
                    n => format!("was lost again after {} in a minute", counted(*n, "restart")),
                };
                self.warn(&format!("member {member} {often}: it stays away; the others go on"));
            }
            Event::Reforming { reason } => tracing::info!(%reason, "a new generation"),
            Event::Straggler { rank, ratio, slow: true, .. } => {
                self.warn(&format!("rank {rank} takes {ratio:.1} times as long as the others"));
            }
            Event::Straggler { rank, slow: false, .. } => {
                self.say(&format!("  rank {rank} has caught up"));
            }
            // The banner told of this host.
            Event::NodeJoined { node: NodeId(0), .. } => {}
            Event::NodeJoined { node, host, ranks } => {
                self.say(&format!("  node {node} ({host}) is here with {}", counted(*ranks, "rank")));
            }
            Event::StoodStill { length } => self.warn(&format!(
                "the supervisor stood still for {:.1} s (paused?); no rank is blamed for it",
                length.as_secs_f64()
            )),
            Event::TookOver { members, step } => {
                self.say(&format!("  {} went on without a supervisor, to step {step}", counted(*members, "rank")));
            }
            Event::PassedOver { from, to } => self.warn(&format!(
                "the logs lack steps {from} to {to}, of which nobody can tell any more; the ledger has them"
            )),
            Event::HadEnded { step } => {
                self.say(&format!("  the run had ended with step {step} when its supervisor died"));
            }
            Event::NodeAway { node } => self.warn(&format!("node {node} cannot be reached")),
            // The banner told of the ranks, and checkpoints that succeed are no news.
            Event::RankStarted { .. }
            | Event::CheckpointWritten { .. }
            | Event::Joined { .. }
            | Event::Formed { .. }
            | Event::Restarting { .. } => {}
        }
    }

    fn rank_output(&mut self, member: MemberId, line: &str) {
        self.say(&format!("  [member {member}] {line}"));
    }

    fn warning(&mut self, text: &str) {
        self.warn(text);
    }
}

impl Drop for Human {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_one_line_with_what_is_known() {
        let seen = EpochMetrics {
            epoch: Epoch(2),
            step: Step(69),
            train_loss: 0.123_44,
            val_loss: Some(0.0987),
            val_accuracy: Some(0.9722),
            val_f1: Some(0.97134),
            val_rmse: None,
            val_r2: None,
            others: BTreeMap::from([
                ("val_auc".to_owned(), 0.75),
                ("val_f1[cat]".to_owned(), 0.25),
                ("val_recall".to_owned(), 0.5),
            ]),
        };
        let all = "  epoch  3/20  train 0.1234  val 0.0987  accuracy 97.2 %  F1 0.9713  val_f1[cat] 0.2500";
        let line = |place: &str, seen, names: &[&str]| {
            results_line(place, seen, &names.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(line(&place("epoch", 3, 20), &seen, &[]), all);
        let asked = all.replace("val_f1", "auc 0.7500  val_f1");
        assert_eq!(line(&place("epoch", 3, 20), &seen, &["val_auc", "val_loss"]), asked);
        let inside = all.replace("epoch  3/20", "step  69/460");
        assert_eq!(line(&place("step", 69, 460), &seen, &[]), inside);
        let blind = EpochMetrics {
            val_loss: None,
            val_accuracy: None,
            val_f1: None,
            others: BTreeMap::new(),
            ..seen
        };
        assert_eq!(line(&place("epoch", 3, 5), &blind, &[]), "  epoch 3/5  train 0.1234");
    }

    #[test]
    fn gpus_are_a_few_words_beside_the_speed() {
        use dtrain_telemetry::GpuReadings;
        use dtrain_types::Bytes;
        let gpu = |utilisation, gib: u64, temperature| {
            let memory_used = Some(Bytes(gib << 30));
            (0, GpuReadings { utilisation: Some(utilisation), memory_used, temperature, power: None })
        };
        let words = |gpus| gpu_words(&GpuSample { round: 1, gpus });
        assert_eq!(words(vec![gpu(87, 41, Some(61))]), "  GPU 87 %, 41.0 GiB, 61 C");
        assert_eq!(words(vec![gpu(90, 41, None), gpu(80, 44, Some(55))]), "  2 GPUs 85 %, 44.0 GiB, 55 C");
        assert_eq!(words(vec![(0, GpuReadings::default())]) + &words(Vec::new()), "");
    }
}
