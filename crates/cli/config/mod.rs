//! The configuration of a run: what the user wrote, read by type and checked, with every default filled in.
//!
//! `Config::load` lays defaults, a YAML file and `key=value` arguments over each other (`tree`, `resolve`), reads
//! each value by the table of keys (`keys`, `value`), settles what follows from other keys, and checks what can be
//! checked without data (`check`). Nothing here opens a data set, starts a rank or prints.

mod batch;
mod check;
mod choice;
mod data;
mod devices;
mod error;
mod host;
mod hugging_face;
mod keys;
mod load;
mod model;
mod nearest;
mod on_gpus;
mod origin;
mod parts;
mod peft;
mod resolve;
mod resume;
mod samples;
mod tree;
mod value;
mod watching;
mod write;

pub use batch::{Batch, Machine};
pub use check::{DataFacts, NamedMetrics};
pub use choice::{
    Backend, DataKind, Isolation, Kernels, LossKind, ModelKind, Offload, Oom, OptimizerKind, Recompute,
    ScheduleKind, StemKind, TrackerKind,
};
pub use devices::{CudaList, Devices, WrongDevices};
pub use dtrain_cuda::Precision;
pub use dtrain_engine::LrScaling;
pub use dtrain_types::{Reduce, Wire};
pub use error::{ConfigError, Problem};
pub use hugging_face::folder_of;
pub use keys::{KEYS, Key, Mark};
pub use model::{Beginning, Gpt, Model, Over, Pool};
pub use on_gpus::{ON_GPUS, OnGpus, PassesBy};
pub use origin::{Origin, Source};
pub use parts::{
    Checkpoint, ClassWeights, EarlyStop, HostCount, Loss, Optimizer, Redundancy, Resume, Rule, Schedule,
    Shape, Validation, World,
};
pub use resume::Resumed;
pub use value::{Length, Value};
pub use watching::WatchKeys;

pub(crate) use nearest::nearest;
pub(crate) use value::size;

use dtrain_types::{Seed, ShardLevel};
use resolve::Resolved;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// Everything that a run needs to know from its user.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name that the user gave, if any.
    pub name: Option<String>,
    /// The run folder that the user gave, if any.
    pub run_dir: Option<PathBuf>,
    /// Whether to start or to go on.
    pub resume: Resume,
    /// The one number from which all randomness follows.
    pub seed: Seed,
    /// The global batch and its parts.
    pub batch: Batch,
    /// How long to train.
    pub length: Length,
    /// To what operands are rounded before they are multiplied; what is kept is f32.
    pub precision: Precision,
    /// What computes large products of halves on GPUs.
    pub kernels: Kernels,
    /// Where the state of a Python program that trains on GPUs lies.
    pub offload: Offload,
    /// Whether blocks of the model are computed twice to save memory.
    pub recompute: Recompute,
    /// What is done about a micro-batch that a GPU has no room for.
    pub oom: Oom,
    /// The order of the gradient sum.
    pub reduce: Reduce,
    /// What gradients and their sums are rounded to.
    pub wire: Wire,
    /// What carries the gradients.
    pub backend: Backend,
    /// How much of the moving average of the parameters a step leaves, if one is kept.
    pub ema: Option<f64>,
    /// The instruction set of the kernels.
    pub isa: String,
    /// Loader threads of a rank.
    pub workers: usize,
    /// Of how many of its newest steps each rank writes down where the time went.
    pub profile: Option<NonZeroU32>,
    /// Where the samples come from.
    pub data: Option<dtrain_data::Source>,
    /// The model.
    pub model: Model,
    /// What its parameters begin with.
    pub beginning: Beginning,
    /// The loss.
    pub loss: Loss,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning rate over time.
    pub schedule: Schedule,
    /// When to validate, and on how much.
    pub validation: Validation,
    /// When to save.
    pub checkpoint: Checkpoint,
    /// When to end before the length, if ever.
    pub stop: Option<EarlyStop>,
    /// The ranks, and how they are watched.
    pub world: World,
    /// Who else is told of the run.
    pub watching: WatchKeys,
    resolved: Resolved,
}

impl Config {
    /// The types of a resolved tree, whose batch counts as given.
    fn typed(resolved: Resolved) -> Self {
        let r = &resolved;
        Self {
            name: r.text("name").map(str::to_owned),
            run_dir: r.text("run_dir").map(PathBuf::from),
            resume: Resume::from_resolved(r),
            seed: Seed(r.count("seed")),
            batch: Batch { global: r.count("global_batch"), micro: r.count("micro_batch"), derived: false },
            length: batch::length(r),
            precision: parts::choice(r, "precision", Precision::from_name),
            kernels: parts::choice(r, "kernels", Kernels::from_name),
            offload: r
                .get("offload")
                .map_or(Offload::Auto, |_| parts::choice(r, "offload", Offload::from_name)),
            recompute: parts::choice(r, "recompute", Recompute::from_name),
            oom: parts::choice(r, "oom", Oom::from_name),
            reduce: parts::choice(r, "reduce", Reduce::from_name),
            wire: parts::choice(r, "wire", Wire::from_name),
            backend: parts::choice(r, "backend", Backend::from_name),
            ema: r.number("ema"),
            isa: r.word("isa").to_owned(),
            workers: r.count("workers"),
            profile: r.int("profile").and_then(NonZeroU32::new),
            data: data::data(r),
            model: Model::from_resolved(r),
            beginning: Beginning::from_resolved(r),
            loss: Loss::from_resolved(r),
            optimizer: Optimizer::from_resolved(r),
            schedule: Schedule::from_resolved(r),
            validation: Validation::from_resolved(r),
            checkpoint: Checkpoint::from_resolved(r),
            stop: EarlyStop::from_resolved(r),
            world: World::from_resolved(r),
            watching: WatchKeys::from_resolved(r),
            resolved,
        }
    }

    /// The kind of the data set.
    #[must_use]
    pub fn data_kind(&self) -> &'static str {
        self.resolved.word("data.kind")
    }

    /// What makes the passes of the model, and where its state is to lie then.
    #[must_use]
    pub fn passes_by(&self) -> PassesBy {
        PassesBy::of(&self.resolved)
    }

    /// What a program calls the data that it brings, where it does.
    #[must_use]
    pub fn data_name(&self) -> Option<&str> {
        let kind = self.data_kind();
        ["own", "torch"].contains(&kind).then(|| self.resolved.text("data.name").unwrap_or(kind))
    }

    /// Whether the model is a cnn because the samples look like images, and nobody asked for one.
    #[must_use]
    pub fn model_suits_samples(&self) -> bool {
        let told_by_shape = ["csv", "parquet", "npy"].contains(&self.data_kind());
        told_by_shape && self.resolved.strength("model.kind") == 0 && matches!(self.model, Model::Cnn { .. })
    }

    /// The file with the labels of held-out samples, if it is one of its own.
    #[must_use]
    pub fn held_out_file(&self) -> Option<&str> {
        let keys = ["data.val_path", "data.val_labels", "data.val_targets"];
        keys.into_iter().find_map(|key| self.resolved.get(key).and_then(|_| self.resolved.text(key)))
    }

    /// The name that a run without a name is numbered under.
    #[must_use]
    pub fn base_name(&self) -> &str {
        self.name.as_deref().or(self.data_name()).unwrap_or_else(|| self.data_kind())
    }

    /// Every key with its value, as YAML that [`Config::load`] reads back to the same configuration.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        write::yaml(&self.resolved)
    }

    /// This configuration as it is written to the folder of a run: under its name, and asking for nothing.
    #[must_use]
    pub fn stored(&self, name: &str) -> Self {
        self.told(name).with([("profile", Value::Word("none"))])
    }

    /// This configuration as ranks and other hosts are told it: under the name of the run, however it was asked for.
    #[must_use]
    pub fn told(&self, name: &str) -> Self {
        let named = self.run_dir.is_none().then(|| ("name", Value::Text(name.to_owned())));
        self.with(named.into_iter().chain([("resume", Value::Word("never"))]))
    }

    /// This configuration with the first parameters taken from a file, and the optimizer's state after so many updates.
    #[must_use]
    pub fn starting_from(&self, file: &Path, updates: u64) -> Self {
        // Its adapters are in that file, too.
        let adapters = self.beginning.adapters.is_some().then_some(("model.lora_from", Value::Word("none")));
        let keys = [
            ("model.init_from", Value::Text(file.to_string_lossy().into_owned())),
            ("optimizer.updates_before", Value::Int(updates.into())),
        ];
        self.with(keys.into_iter().chain(adapters))
    }

    /// This configuration with what `backend` came to.
    #[must_use]
    pub fn carried_by(&self, backend: Backend) -> Self {
        self.with([("backend", Value::Word(backend.name()))])
    }

    /// The same, with the state of a Python program there.
    #[must_use]
    pub fn offloading(&self, offload: Offload) -> Self {
        self.with([("offload", Value::Word(offload.name()))])
    }

    /// Whether ranks keep whole states, or shards where these alone fit.
    #[must_use]
    pub fn state_as_fits(&self) -> bool {
        self.resolved.word("state") == "auto"
    }

    /// This configuration with a state in shards, of which so much is shared out.
    #[must_use]
    pub fn with_state_in_shards(&self, level: ShardLevel) -> Self {
        self.with([("state", Value::Word("sharded")), ("shard", Value::Word(level.name()))])
    }

    /// This configuration with another micro-batch.
    #[must_use]
    pub fn with_micro_batch(&self, rows: u32) -> Self {
        self.with([("micro_batch", Value::Int(rows.into()))])
    }

    /// This configuration with so many token ids.
    #[must_use]
    pub fn with_vocabulary(&self, vocabulary: u32) -> Self {
        self.with([("data.vocabulary", Value::Int(vocabulary.into()))])
    }

    /// This configuration without a name and a folder.
    #[must_use]
    pub fn unnamed(&self) -> Self {
        self.with(["name", "run_dir"].map(|key| (key, Value::Word("none"))))
    }

    /// This configuration with other values of some keys, and all types read from them anew.
    fn with(&self, values: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let mut resolved = self.resolved.clone();
        for (key, value) in values {
            resolved.set(key, value);
        }
        let mut config = Self::typed(resolved);
        config.batch.derived = self.batch.derived;
        config
    }

    /// Whether a name or a folder was given as an argument.
    #[must_use]
    pub fn was_named_by_argument(&self) -> bool {
        let by_argument = |key| matches!(self.resolved.origin(key), Origin::Argument(_));
        by_argument("name") || by_argument("run_dir")
    }

    /// Whether somebody has written `resume`, whatever it says.
    #[must_use]
    pub fn says_whether_to_resume(&self) -> bool {
        !matches!(self.resolved.origin("resume"), Origin::Default)
    }

    /// The keys that decide the bits with their values, as a checkpoint keeps them.
    pub fn bits(&self) -> impl Iterator<Item = (&'static str, String)> {
        let bits = self.resolved.iter().filter(|(key, _)| key.mark == Mark::Bits);
        bits.map(|(key, value)| (key.name, value.to_string()))
    }

    /// Every key that holds, with its value.
    pub fn values(&self) -> impl Iterator<Item = (String, String)> {
        self.resolved.iter().map(|(key, value)| (key.name.to_owned(), value.to_string()))
    }

    /// The hint of the table for a key, as messages show it.
    #[must_use]
    pub fn help(key: &str) -> Option<&'static str> {
        KEYS.iter().find(|row| row.name == key).map(|row| row.help)
    }

    /// The key that the user may have meant.
    #[must_use]
    pub fn nearest_key(word: &str) -> Option<&'static str> {
        nearest::nearest(word, keys::names())
    }

    /// A problem with the value of a key, at the place where the user wrote it.
    #[must_use]
    pub fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        self.resolved.problem(key, message)
    }

    /// Whether a key has this name, or a section.
    #[must_use]
    pub fn explains(name: &str) -> bool {
        keys::names().any(|key| write::is_or_below(key, name))
    }

    /// The key of this name, or all of a section, for people.
    #[must_use]
    pub fn explanation(name: &str) -> String {
        write::explanation(name)
    }

    /// All keys as a page of the documentation.
    #[must_use]
    pub fn reference() -> String {
        write::reference()
    }
}
