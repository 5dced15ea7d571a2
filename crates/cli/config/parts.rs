//! The sections of a configuration as types, so that a wrong combination cannot be written.
//!
//! Read from resolved values only. What reads data has its options in the data crate (`data.rs`), Muon and groups of parameters
//! in the engine; all other types are our own, and `plan.rs` joins them with the parts that they ask for.

use super::LrScaling;
use super::choice::{Isolation, LossKind, OptimizerKind, ScheduleKind};
use super::devices::Devices;
use super::resolve::Resolved;
use super::value::{Length, Value};
use dtrain_engine::models::Lora;
use dtrain_engine::{Adam, AdjustLr, Grouping, Keeps, Muon, NewtonSchulz};
use dtrain_protocol::{Timeouts, TimeoutsError};
use dtrain_types::{Remirror, ShardLevel};
use std::path::PathBuf;
use std::time::Duration;

pub(super) fn choice<T>(r: &Resolved, name: &str, from_name: fn(&str) -> Option<T>) -> T {
    let word = r.word(name);
    from_name(word).unwrap_or_else(|| panic!("the table lets {name} be {word}"))
}

pub(super) fn path(r: &Resolved, name: &str) -> Option<PathBuf> {
    r.text(name).map(PathBuf::from)
}

/// Whether to start a run or to go on with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Start.
    Never,
    /// Go on where the run of this name stopped; start if there is none.
    Auto,
    /// Go on with the run in this folder.
    Run(PathBuf),
}

impl Resume {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        match r.get("resume") {
            Some(Value::Word("auto")) => Self::Auto,
            Some(Value::Text(path)) => Self::Run(PathBuf::from(path)),
            _ => Self::Never,
        }
    }
}

/// How classes count in the loss.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// All the same.
    None,
    /// In inverse proportion to their counts in the training data.
    Balanced,
    /// As given.
    Given(Vec<f32>),
}

/// What is made small.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// Softmax and negative log likelihood.
    CrossEntropy {
        /// Share of a target spread over all classes.
        label_smoothing: f64,
        /// How classes count.
        class_weights: ClassWeights,
        /// The label that counts nowhere.
        ignore_index: Option<i64>,
    },
    /// Mean squared error.
    Mse,
    /// What a Python program says.
    Torch,
}

impl Loss {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        match choice(r, "loss.kind", LossKind::from_name) {
            LossKind::Mse => Self::Mse,
            LossKind::Torch => Self::Torch,
            LossKind::CrossEntropy => Self::CrossEntropy {
                label_smoothing: r.number("loss.label_smoothing").expect("smoothing is a number"),
                class_weights: match r.get("loss.class_weights") {
                    Some(Value::Word("balanced")) => ClassWeights::Balanced,
                    Some(Value::List(weights)) => ClassWeights::Given(weights.iter().map(weight).collect()),
                    _ => ClassWeights::None,
                },
                ignore_index: r.int("loss.ignore_index"),
            },
        }
    }
}

fn weight(value: &Value) -> f32 {
    match value {
        Value::Number(weight) => *weight as f32,
        other => panic!("no number: {other:?}"),
    }
}

/// How parameters move.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule of one update.
    pub rule: Rule,
    /// Whether biases, norms and other vectors decay too.
    pub decays_all: bool,
    /// The peak learning rate as the user gave it.
    pub lr: f64,
    /// Largest norm of the whole gradient.
    pub clip_norm: Option<f64>,
    /// Updates that its state has seen where the run begins.
    pub updates_before: u64,
    /// Which parameters are updated otherwise than the others.
    pub grouping: Grouping,
    /// How the learning rate follows the global batch.
    pub lr_scaling: LrScaling,
    /// The global batch that `lr` was chosen for.
    pub lr_base_batch: u32,
}

/// The rule of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Adam with decoupled weight decay.
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Decoupled decay of matrices.
        weight_decay: f64,
    },
    /// The sign of a momentum.
    Lion {
        /// Share of the momentum in the direction.
        beta1: f64,
        /// Decay of the momentum.
        beta2: f64,
        /// Decoupled decay of matrices.
        weight_decay: f64,
    },
    /// A momentum made orthogonal, for matrices of hidden layers; AdamW for the rest.
    Muon(Muon),
    /// Gradient descent.
    Sgd {
        /// Share of the last update kept.
        momentum: f64,
        /// Whether to look ahead along it.
        nesterov: bool,
        /// Added to the gradient of matrices.
        weight_decay: f64,
    },
    /// Whatever the optimizer of a Python program does.
    Torch,
}

impl Rule {
    /// Whether the ranks of a host can make shares of an update: not where it takes parameters together.
    #[must_use]
    pub fn in_shares(&self) -> bool {
        !matches!(self, Self::Muon(_) | Self::Torch)
    }
}

impl Optimizer {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        let number = |name| r.number(name).expect("the table makes it a number");
        let rule = match choice(r, "optimizer.kind", OptimizerKind::from_name) {
            OptimizerKind::AdamW => Rule::AdamW {
                beta1: number("optimizer.beta1"),
                beta2: number("optimizer.beta2"),
                eps: number("optimizer.eps"),
                weight_decay: number("optimizer.weight_decay"),
            },
            OptimizerKind::Lion => Rule::Lion {
                beta1: number("optimizer.beta1"),
                beta2: number("optimizer.beta2"),
                weight_decay: number("optimizer.weight_decay"),
            },
            OptimizerKind::Muon => Rule::Muon(muon(r)),
            OptimizerKind::Sgd => Rule::Sgd {
                momentum: number("optimizer.momentum"),
                nesterov: r.flag("optimizer.nesterov"),
                weight_decay: number("optimizer.weight_decay"),
            },
            OptimizerKind::Torch => Rule::Torch,
        };
        Self {
            rule,
            decays_all: r.word("optimizer.decays") == "all",
            lr: number("optimizer.lr"),
            clip_norm: r.number("optimizer.clip_norm"),
            updates_before: r.count("optimizer.updates_before"),
            grouping: grouping(r),
            lr_scaling: choice(r, "optimizer.lr_scaling", LrScaling::from_name),
            lr_base_batch: r.count("optimizer.lr_base_batch"),
        }
    }
}

/// The options of Muon.
fn muon(r: &Resolved) -> Muon {
    let number = |name| r.number(name).expect("the table makes it a number");
    let single = |name| number(name) as f32;
    let coefficients = [0, 1, 2].map(|i| match r.list("optimizer.ns_coefficients")[i] {
        Value::Number(number) => number as f32,
        _ => panic!("the table makes it a number"),
    });
    let weight_decay = single("optimizer.weight_decay");
    Muon {
        momentum: single("optimizer.momentum"),
        nesterov: r.flag("optimizer.nesterov"),
        weight_decay,
        newton_schulz: NewtonSchulz {
            steps: r.count("optimizer.ns_steps"),
            coefficients,
            epsilon: single("optimizer.ns_eps"),
        },
        adjust_lr: choice(r, "optimizer.adjust_lr_fn", AdjustLr::from_name),
        adam: Adam {
            betas: [single("optimizer.beta1"), single("optimizer.beta2")],
            epsilon: single("optimizer.eps"),
            weight_decay,
        },
        adam_lr_factor: number("optimizer.adamw_lr_factor"),
    }
}

/// Groups of parameters. What is no factor is told as one that is no number, by whoever knows the parameters.
fn grouping(r: &Resolved) -> Grouping {
    let words = |key| patterns(r, key);
    let factor = |word: String| match word.rsplit_once('=') {
        Some((pattern, factor)) => (pattern.trim().to_owned(), factor.trim().parse().unwrap_or(f64::NAN)),
        None => (word, f64::NAN),
    };
    // Beside adapters nothing is trained but what is named.
    let adapters: &[&str] = match r.get("model.lora_rank") {
        Some(Value::Int(_)) => &Lora::PARAMETERS,
        _ => &[],
    };
    let also = if adapters.is_empty() { Vec::new() } else { words("model.lora_also") };
    Grouping {
        trained: adapters.iter().map(|it| (*it).to_owned()).chain(also).collect(),
        lr_factors: words("optimizer.lr_factors").into_iter().map(factor).collect(),
        no_decay: words("optimizer.no_decay"),
        frozen: words("model.freeze"),
        hidden: words("optimizer.matrices"),
    }
}

/// The words of a list.
pub(super) fn patterns(r: &Resolved, key: &str) -> Vec<String> {
    fn word(value: &Value) -> String {
        match value {
            Value::Text(text) => text.clone(),
            other => other.to_string(),
        }
    }
    match r.get(key) {
        Some(Value::List(words)) => words.iter().map(word).collect(),
        _ => Vec::new(),
    }
}

/// The learning rate over time, as a share of its peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The climb at the start.
    pub warmup: Option<Length>,
    /// What follows.
    pub shape: Shape,
}

/// The course of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Flat.
    Constant,
    /// A straight line down to this share.
    Linear {
        /// Share of the peak at the end.
        min_factor: f64,
    },
    /// Half a cosine down to this share.
    Cosine {
        /// Share of the peak at the end.
        min_factor: f64,
    },
    /// Up along half a cosine, and down along another.
    OneCycle {
        /// Share of all steps after which the peak is reached.
        peak: f64,
        /// Share of the peak at the beginning.
        first_factor: f64,
        /// Share of the peak at the end.
        min_factor: f64,
    },
    /// Drops at fixed places.
    Step {
        /// How often.
        every: Length,
        /// To which share.
        factor: f64,
    },
}

impl Schedule {
    /// Whether an earlier part of the run would differ had the run been planned longer.
    #[must_use]
    pub fn depends_on_length(&self) -> bool {
        matches!(self.shape, Shape::Linear { .. } | Shape::Cosine { .. } | Shape::OneCycle { .. })
    }

    pub(super) fn from_resolved(r: &Resolved) -> Self {
        let number = |name| r.number(name).expect("the table makes it a number");
        let shape = match choice(r, "schedule.kind", ScheduleKind::from_name) {
            ScheduleKind::Constant => Shape::Constant,
            ScheduleKind::Linear => Shape::Linear { min_factor: number("schedule.min_factor") },
            ScheduleKind::Cosine => Shape::Cosine { min_factor: number("schedule.min_factor") },
            ScheduleKind::OneCycle => Shape::OneCycle {
                peak: number("schedule.peak"),
                first_factor: number("schedule.first_factor"),
                min_factor: number("schedule.min_factor"),
            },
            ScheduleKind::Step => Shape::Step {
                every: r.length("schedule.every").expect("the table makes it a length"),
                factor: number("schedule.factor"),
            },
        };
        // That of one cycle is its own.
        let warmup = r.get("schedule.warmup").and_then(|_| r.length("schedule.warmup"));
        Self { warmup, shape }
    }
}

/// When to validate, and on how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validation {
    /// How often; `None` is at the end only.
    pub every: Option<Length>,
    /// On how many of the samples that are held out; `None` is on all.
    pub samples: Option<u64>,
}

impl Validation {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        Self { every: r.length("validation.every"), samples: r.int("validation.samples") }
    }
}

/// When to save, and what to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// How often; `None` is at the end only.
    pub every: Option<Length>,
    /// How many of the newest stay.
    pub keep: usize,
    /// Which result marks the best, if any does.
    pub best: Option<String>,
}

impl Checkpoint {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        Self {
            every: r.length("checkpoint.every"),
            keep: r.count("checkpoint.keep"),
            best: r.text("checkpoint.best").map(str::to_owned),
        }
    }
}

/// When a run ends before its length.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStop {
    /// After so many validations without an improvement.
    pub patience: u32,
    /// Of this.
    pub metric: String,
    /// By more than this.
    pub least: f64,
}

impl EarlyStop {
    pub(super) fn from_resolved(r: &Resolved) -> Option<Self> {
        let own = match r.get("stop.metric") {
            Some(Value::Text(name)) => Some(name.as_str()),
            _ => None,
        };
        let metric = own.or_else(|| r.text("checkpoint.best")).unwrap_or("val_loss");
        Some(Self {
            patience: r.int("stop.patience")?,
            metric: metric.to_owned(),
            least: r.number("stop.min_delta").unwrap_or(0.0),
        })
    }
}

/// Whether other hosts may take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCount {
    /// There is this one alone.
    One,
    /// There may be others.
    Several,
}

/// How many ranks keep each shard of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// Two, where there are as many ranks.
    Auto,
    /// So many.
    Of(u32),
}

impl Redundancy {
    /// How many, if there are enough ranks.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Self::Auto => 2,
            Self::Of(count) => count,
        }
    }
}

/// The ranks, and how they are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// What the ranks of a host train on.
    pub devices: Devices,
    /// Replicas.
    pub ranks: u32,
    /// Compute threads of each.
    pub threads: u32,
    /// What separates them.
    pub isolation: Isolation,
    /// With fewer the run stops.
    pub min_ranks: u32,
    /// Of one member in 60 s.
    pub max_restarts: u32,
    /// Wait this long for all ranks.
    pub join_timeout: Duration,
    /// A silent rank is given up after this.
    pub detect: Duration,
    /// How long everybody waits for a silent supervisor; none is as long as suits the number of hosts.
    pub master_timeout: Option<Duration>,
    /// Whether another host leads where the first is lost.
    pub standby: bool,
    /// How many ranks keep each shard of the state, where they share it out.
    pub redundancy: Option<Redundancy>,
    /// When shards have as many again of which one was lost.
    pub remirror: Remirror,
    /// What else they share out, then.
    pub shard: ShardLevel,
    /// Compare digests every so many steps; 0 is at copies and checkpoints only.
    pub verify: u32,
    /// Whether ranges follow the speed of the ranks.
    pub balance: bool,
    /// Whether plain traffic between hosts is allowed.
    pub trusted_network: bool,
    /// How much of a gradient is sent at once while the rest is computed, if it is. *Units*: bytes.
    pub bucket_bytes: Option<u64>,
}

impl World {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        Self {
            devices: Devices::parse(r.text("devices").unwrap_or_default()).expect("it was checked"),
            ranks: r.count("ranks"),
            threads: r.count("threads"),
            isolation: choice(r, "isolation", Isolation::from_name),
            min_ranks: r.count("min_ranks"),
            max_restarts: r.count("max_restarts"),
            join_timeout: r.time("join_timeout"),
            detect: r.time("detect"),
            master_timeout: match r.get("master_timeout") {
                Some(Value::Time(time)) => Some(*time),
                _ => None,
            },
            standby: r.word("standby") == "on",
            redundancy: (r.word("state") == "sharded").then(|| match r.get("redundancy") {
                Some(Value::Int(count)) => Redundancy::Of(*count as u32),
                _ => Redundancy::Auto,
            }),
            remirror: choice(r, "remirror", Remirror::from_name),
            shard: choice(r, "shard", ShardLevel::from_name),
            verify: r.count("verify"),
            balance: r.word("balance") == "on",
            trusted_network: r.flag("trusted_network"),
            bucket_bytes: r.size("bucket_bytes"),
        }
    }
}

/// How long a silent supervisor is waited for where nobody said otherwise: on one host only its process can have stopped; between
/// hosts somebody may have to mend a network.
const ON_ONE_HOST: Duration = Duration::from_secs(60);
const ON_SEVERAL: Duration = Duration::from_secs(600);

impl World {
    /// What a rank keeps of the state.
    #[must_use]
    pub fn keeps(&self) -> Keeps {
        match self.redundancy {
            Some(_) => Keeps::Shards(self.shard),
            None => Keeps::All,
        }
    }

    /// The timeouts of a run on so many hosts.
    ///
    /// *Errors*: see [`TimeoutsError`].
    pub fn timeouts(&self, hosts: HostCount) -> Result<Timeouts, TimeoutsError> {
        let times = Timeouts::derive(self.detect)?;
        let usual = match hosts {
            HostCount::One => ON_ONE_HOST,
            HostCount::Several => ON_SEVERAL,
        };
        times.with_master(self.master_timeout.unwrap_or(usual.max(times.back)))
    }
}
