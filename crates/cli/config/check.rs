//! Values that fit one by one but not together, and values that this build cannot serve yet.
//!
//! What needs no data is checked when a configuration is read; what needs the data set comes as [`DataFacts`].

use super::choice::{Backend, DataKind, Isolation, Kernels, LossKind};
use super::data::augment_text;
use super::devices::Devices;
use super::error::{ConfigError, Problem};
use super::model::{Model, Over};
use super::parts::{ClassWeights, HostCount, Loss, Redundancy, Rule};
use super::resolve::Resolved;
use super::value::{Length, Value};
use super::{Config, Precision, Wire};
use dtrain_data::{Augment, ExampleCounts, FileGroup, Source};
use dtrain_engine::models::LlamaOptions;
use dtrain_protocol::TimeoutsError;
use dtrain_runtime::{EpochMetric, Measured, NotMeasured, Patience, Quantity};
use dtrain_types::{Reduce, ShardLevel, counted};

/// What the checks need to know about an opened data set.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFacts {
    /// Training samples.
    pub samples: u64,
    /// Held-out samples.
    pub val_samples: u64,
    /// Shape of one input, without the batch.
    pub input: Vec<usize>,
    /// Classes of a classification target; `None` for numbers.
    pub classes: Option<usize>,
    /// Whether inputs are token numbers.
    pub tokens: bool,
}

/// The metrics that a configuration names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedMetrics {
    /// That of the best checkpoint.
    pub best: Option<EpochMetric>,
    /// When the run ends before its length.
    pub patience: Option<Patience>,
}

impl Config {
    /// Checks what holds only where no other host brings ranks.
    ///
    /// *Errors*: more ranks are needed than there are.
    pub fn check_one_host(&self) -> Result<(), ConfigError> {
        let (least, ranks) = (self.world.min_ranks, self.world.ranks);
        if let Some(Redundancy::Of(count)) = self.world.redundancy
            && count > ranks
        {
            let message = format!("redundancy {count} is more than ranks {ranks}");
            let hint = "each shard is kept by so many ranks: write as many as there are, or less";
            return Err(self.problem("redundancy", message).hint(hint).into());
        }
        if least <= ranks {
            return Ok(());
        }
        let problem = self.problem("min_ranks", format!("min_ranks {least} is more than ranks {ranks}"));
        Err(problem.hint("min_ranks is how few may be left, ranks how many start").into())
    }
}

/// Checks that look at resolved values, before they have types.
pub(super) fn resolved(r: &Resolved) -> Result<(), ConfigError> {
    let mut problems = Vec::new();
    if let Err(wrong) = Devices::parse(r.text("devices").unwrap_or_default()) {
        problems.push(r.problem("devices", wrong.message).hint(wrong.hint));
    }
    for (x, y) in [("data.val_images", "data.val_labels"), ("data.val_inputs", "data.val_targets")] {
        let given = |name| matches!(r.get(name), Some(Value::Text(_)));
        let (one, other) = if given(x) { (x, y) } else { (y, x) };
        if given(one) && !given(other) {
            let message = format!("given without {other}");
            problems.push(r.problem(one, message).hint(format!("give {other} too, or neither")));
        }
    }
    if r.get("data.augment").is_some()
        && let Err(error) = augment_text(r.list("data.augment")).parse::<Augment>()
    {
        problems.push(r.problem("data.augment", error.to_string()).hint(error.hint()));
    }
    groups(r, &mut problems);
    labels(r, &mut problems);
    gaps(r, &mut problems);
    let coefficients = "optimizer.ns_coefficients";
    if r.get(coefficients).is_some() && r.list(coefficients).len() != 3 {
        let problem = r.problem(coefficients, "they are three numbers: a, b and c");
        problems.push(problem.hint("leave it out for [3.4445, -4.775, 2.0315]"));
    }
    if let Some(Value::Text(text)) = r.get("data.delimiter")
        && text.chars().count() != 1
    {
        let message = format!("expected one character, got \"{text}\"");
        problems.push(r.problem("data.delimiter", message).hint("write ';' or auto"));
    }
    ConfigError::check(problems)
}

/// What a table of labels beside images needs, and what needs one.
fn labels(r: &Resolved, problems: &mut Vec<Problem>) {
    if r.word("data.kind") != DataKind::Images.name() {
        return;
    }
    let given = |key| matches!(r.get(key), Some(Value::Text(_)));
    if given("data.labels") {
        if given("data.val_path") && !given("data.val_labels") {
            let problem = r.problem("data.val_path", "data.labels is given, and data.val_labels is not");
            problems.push(problem.hint("name the table of the labels for validation with data.val_labels"));
        }
        return;
    }
    // A configuration that was written out has all keys: what stands there as it is anyway says nothing.
    for key in ["data.val_labels", "data.file_column", "data.label"] {
        if !matches!(r.get(key), Some(Value::Word(_) | Value::Int(0)) | None) {
            let problem = r.problem(key, "it is about data.labels, which is none");
            problems.push(problem.hint("name a table of names and labels with data.labels, or leave it out"));
        }
    }
}

/// How recordings are cut.
fn gaps(r: &Resolved, problems: &mut Vec<Problem>) {
    if let (Some(Value::Number(_)), Some(Value::Word("none"))) = (r.get("data.gap"), r.get("data.time")) {
        let problem = r.problem("data.gap", "a gap is one in time, and data.time is none");
        problems.push(problem.hint("name the column of the time with data.time, or leave data.gap out"));
    }
}

/// What is held out together, and which of it.
fn groups(r: &Resolved, problems: &mut Vec<Problem>) {
    let kind = r.word("data.kind");
    let labels = matches!(r.get("data.labels"), Some(Value::Text(_)));
    if let Some(Value::Text(pattern)) =
        r.get("data.group").filter(|_| [DataKind::Images.name(), DataKind::Clips.name()].contains(&kind))
        && FileGroup::pattern(pattern).is_none()
        && !labels
    {
        let message = format!("\"{pattern}\" is no pattern of names with one GROUP");
        problems.push(r.problem("data.group", message).hint("such as \"GROUP_*\", or folder, or none"));
    }
    if let (Some(Value::List(_)), Some(Value::Word("none"))) = (r.get("data.held_out"), r.get("data.group")) {
        let message = "it names groups, and data.group is none";
        problems.push(
            r.problem("data.held_out", message)
                .hint("write scattered or last, or say with data.group what a group is"),
        );
    }
}

/// Checks that need no data.
pub(super) fn config(config: &Config) -> Result<(), ConfigError> {
    let mut problems = Vec::new();
    let batch = config.batch;
    if batch.micro > batch.global {
        let message = format!("micro_batch {} is larger than global_batch {}", batch.micro, batch.global);
        let hint = format!("write micro_batch={} or less, or a larger global_batch", batch.global);
        problems.push(config.problem("micro_batch", message).hint(hint));
    }
    if config.wire == Wire::Bf16 && config.backend == Backend::Nccl {
        let problem = config.problem("wire", "NCCL's sums are not rounded to bf16 yet");
        problems.push(problem.hint("write wire=f32, or backend=host"));
    }
    if config.precision == Precision::Tf32 && config.kernels == Kernels::Own {
        let problem = config.problem(
            "precision",
            "tf32 is what cuBLASLt and cuDNN multiply in, and kernels=own uses neither",
        );
        problems.push(problem.hint("write kernels=auto, or precision=f32"));
    }
    match config.world.timeouts(HostCount::One) {
        Ok(_) => {}
        Err(error @ TimeoutsError::OutOfRange { .. }) => {
            let hint = "heartbeats and all other timeouts follow from it; 1s suits most machines";
            problems.push(config.problem("detect", error.to_string()).hint(hint));
        }
        Err(error @ TimeoutsError::Impatient { .. }) => {
            let hint =
                "write a longer one; ranks of a supervisor that is gone end at once, whatever this says";
            problems.push(config.problem("master_timeout", error.to_string()).hint(hint));
        }
    }
    if let (Some(_), Some(_)) = (&config.name, &config.run_dir) {
        problems.push(
            config
                .problem("run_dir", "given together with name")
                .hint("name is the folder runs/NAME; keep one"),
        );
    }
    if let Some(name) = config.name.as_deref().filter(|name| !is_folder_name(name)) {
        let message = format!("\"{name}\" cannot name a folder");
        problems.push(
            config.problem("name", message).hint("letters, digits, '-', '_' and '.'; a path goes to run_dir"),
        );
    }
    if let (Length::Steps(total), Some(Length::Steps(warmup))) = (config.length, config.schedule.warmup)
        && warmup > total
    {
        problems.push(warmup_too_long(config, warmup, total));
    }
    for key in ["validation.every", "checkpoint.every", "schedule.every"] {
        if matches!(config.resolved.get(key), Some(Value::Length(Length::Epochs(0) | Length::Steps(0)))) {
            problems.push(
                config
                    .problem(key, "expected at least one, got 0")
                    .hint("a length, such as \"1 epoch\" or \"200 steps\""),
            );
        }
    }
    sharded(config, &mut problems);
    model(config, &mut problems);
    beginning(config, &mut problems);
    adapters(config, &mut problems);
    torch(config, &mut problems);
    images(config, &mut problems);
    loss_and_optimizer(config, &mut problems);
    metrics(config, &mut problems);
    ConfigError::check(problems)
}

/// What a state in shards needs.
fn sharded(config: &Config, problems: &mut Vec<Problem>) {
    if config.world.redundancy.is_none() {
        // With whole states it has no effect, as redundancy has none; where nobody said which, somebody expects one.
        if config.state_as_fits() && config.world.shard > ShardLevel::Optimizer {
            let problem =
                config.problem("shard", "only ranks that keep shards of the state share out more of it");
            problems.push(problem.hint("write state=sharded too"));
        }
        return;
    }
    if config.reduce == Reduce::Ring {
        let problem = config.problem(
            "state",
            "the ranks of a ring differ in their last bits, so that none can mirror another one",
        );
        problems.push(problem.hint("write reduce=exact, or state=replicated"));
    }
    let level = config.world.shard;
    if level >= ShardLevel::Gradients && matches!(config.model, Model::Torch) {
        let problem = config.problem("shard", "a program's own passes give a gradient as a whole");
        problems.push(problem.hint("write shard=optimizer"));
    }
    if level >= ShardLevel::Gradients && config.world.balance {
        let words = "ranks go through rounds of one micro-batch each, and none gets fewer than another";
        problems.push(config.problem("balance", words).hint("write balance=off, or shard=optimizer"));
    }
    if !config.optimizer.rule.in_shares() {
        let problem = config
            .problem("state", "this optimizer takes parameters together, and nobody has them all in shards");
        problems.push(problem.hint("write state=replicated, or optimizer.kind=adamw, sgd or lion"));
    }
}

fn model(config: &Config, problems: &mut Vec<Problem>) {
    let data = config.resolved.word("data.kind");
    let token_data = [DataKind::Text, DataKind::Tokens].iter().any(|kind| kind.name() == data);
    match &config.model {
        Model::Gpt { .. } | Model::Llama(_) if !token_data => {
            let message = format!("{} needs tokens, and data.kind is {data}", config.model.kind().name());
            problems.push(
                config.problem("model.kind", message).hint("data.kind=text or tokens, or model.kind=mlp"),
            );
        }
        Model::Gpt { width, heads, .. } => heads_divide(config, *width, *heads, problems),
        // The engine says what does not fit, by the same keys.
        Model::Llama(_) => {}
        Model::Mlp { .. }
        | Model::Cnn { .. }
        | Model::ResNet { .. }
        | Model::Encoder { .. }
        | Model::Recurrent { .. }
            if token_data =>
        {
            let message = format!("{} cannot read tokens", config.model.kind().name());
            problems.push(config.problem("model.kind", message).hint("write model.kind=gpt"));
        }
        Model::Cnn { channels, .. } if channels.is_empty() => {
            let problem = config.problem("model.channels", "a cnn needs at least one block");
            problems.push(problem.hint("write model.channels=[32, 64], or model.kind=mlp"));
        }
        Model::Torch if data != DataKind::Torch.name() => {
            let problem = config.problem("model.kind", "torch is the model of a Python program");
            problems.push(problem.hint("run that program: `python train.py`; or choose mlp, cnn or gpt"));
        }
        Model::Encoder { width, heads, .. } => heads_divide(config, *width, *heads, problems),
        Model::Mlp { .. }
        | Model::Cnn { .. }
        | Model::ResNet { .. }
        | Model::Recurrent { .. }
        | Model::Own
        | Model::Torch => {}
    }
}

/// Adapters are beside something.
fn adapters(config: &Config, problems: &mut Vec<Problem>) {
    let Model::Llama(LlamaOptions { lora, .. }) = &config.model else { return };
    if lora.is_some() && config.beginning.file.is_none() {
        let message =
            "adapters are beside the layers of a model that was trained before, and none is begun with";
        let problem = config.problem("model.lora_rank", message);
        problems.push(problem.hint("model.init_from=FOLDER names it, such as one of Hugging Face's"));
    }
    // A configuration that was written down has them all.
    let says_something = |key: &&&str| match config.resolved.get(key) {
        Some(Value::Number(_)) => true,
        Some(Value::List(words)) => !words.is_empty(),
        Some(Value::Text(_)) => true,
        _ => false,
    };
    if let (None, Some(key)) =
        (lora, ["model.lora_from", "model.lora_alpha", "model.lora_also"].iter().find(says_something))
    {
        let problem = config.problem(key, "without model.lora_rank there are no adapters");
        problems.push(problem.hint("write model.lora_rank=16"));
    }
}

/// What begins anew needs something that does not.
fn beginning(config: &Config, problems: &mut Vec<Problem>) {
    if !config.beginning.except.is_empty() && config.beginning.file.is_none() {
        let problem = config.problem("model.init_except", "without model.init_from everything begins anew");
        problems.push(problem.hint("write model.init_from=FILE.safetensors"));
    }
}

fn heads_divide(config: &Config, width: usize, heads: usize, problems: &mut Vec<Problem>) {
    if !width.is_multiple_of(heads) {
        let message = format!("{heads} heads do not divide the width {width}");
        problems.push(config.problem("model.heads", message).hint("width / heads is the width of one head"));
    }
}

/// What a Python program brings belongs together, and is a process a rank.
fn torch(config: &Config, problems: &mut Vec<Problem>) {
    let word = |key| config.resolved.word(key) == DataKind::Torch.name();
    if !word("data.kind") {
        if word("loss.kind") {
            let problem = config.problem("loss.kind", "torch is the loss of a Python program");
            problems.push(problem.hint("write loss.kind=cross_entropy or mse"));
        }
        return;
    }
    for key in ["model.kind", "loss.kind"].into_iter().filter(|key| !word(key)) {
        let problem = config.problem(key, "the data are a Python program's, and so are model and loss");
        problems.push(problem.hint(format!("leave {key} out")));
    }
    if config.world.isolation == Isolation::Thread {
        let problem = config.problem("isolation", "the ranks of a Python program are processes");
        problems.push(problem.hint("leave it out, or write isolation=process"));
    }
}

fn images(config: &Config, problems: &mut Vec<Problem>) {
    let of_images =
        [DataKind::Images, DataKind::Tar, DataKind::ParquetImages, DataKind::Clips].map(DataKind::name);
    if of_images.contains(&config.resolved.word("data.kind"))
        && matches!(config.resolved.get("data.size"), Some(Value::List(sides)) if sides.len() != 2)
    {
        let problem = config.problem("data.size", "an image has a side, or a height and a width");
        problems.push(problem.hint("write data.size=64, or data.size=[48, 64]"));
    }
}

fn loss_and_optimizer(config: &Config, problems: &mut Vec<Problem>) {
    if let Loss::CrossEntropy { class_weights: ClassWeights::Given(weights), .. } = &config.loss
        && !weights.iter().any(|weight| *weight > 0.0)
    {
        let problem = config.problem("loss.class_weights", "no class has a weight above 0");
        problems.push(problem.hint("one number per class, or balanced, or none"));
    }
    if config.resolved.word("loss.kind") == LossKind::Mse.name() {
        let data = config.resolved.word("data.kind");
        let of_classes = [
            DataKind::Text,
            DataKind::Tokens,
            DataKind::Digits,
            DataKind::Idx,
            DataKind::Images,
            DataKind::Tar,
            DataKind::ParquetImages,
            DataKind::Clips,
        ];
        if of_classes.iter().any(|kind| kind.name() == data) {
            let message = format!("mse needs numbers as targets, and {} has classes", data);
            problems.push(config.problem("loss.kind", message).hint("write loss.kind=cross_entropy"));
        }
    }
    if let Rule::Sgd { momentum: 0.0, nesterov: true, .. } = config.optimizer.rule {
        let problem = config.problem("optimizer.nesterov", "it looks ahead along a momentum of 0");
        problems.push(problem.hint("write optimizer.momentum=0.9, or nesterov=false"));
    }
    if config.optimizer.rule == Rule::Torch {
        of_a_program(config, problems);
    }
}

/// What an optimizer of a Python program needs, and what is its own affair.
fn of_a_program(config: &Config, problems: &mut Vec<Problem>) {
    if config.data_kind() != DataKind::Torch.name() {
        let problem = config.problem("optimizer.kind", "torch is the optimizer of a Python program");
        problems.push(problem.hint("write optimizer.kind=adamw; or `import dtrain` in Python, and optimizer=dtrain.torch_optimizer(...)"));
    }
    let grouping = &config.optimizer.grouping;
    for (key, is_empty) in [
        ("optimizer.lr_factors", grouping.lr_factors.is_empty()),
        ("optimizer.no_decay", grouping.no_decay.is_empty()),
    ] {
        if !is_empty {
            let problem = config.problem(key, "the program's optimizer has groups of its own");
            problems.push(problem.hint("give torch.optim groups of parameters"));
        }
    }
}

/// The keys that name a metric, each with what it names.
fn asked(config: &Config) -> impl Iterator<Item = (&'static str, &str)> {
    let best = config.checkpoint.best.as_deref().map(|name| ("checkpoint.best", name));
    let stop = config.stop.as_ref().map(|stop| ("stop.metric", stop.metric.as_str()));
    best.into_iter().chain(stop)
}

fn metrics(config: &Config, problems: &mut Vec<Problem>) {
    let loss = config.resolved.word("loss.kind");
    if loss == LossKind::Torch.name() {
        // Its program has metrics of its own, which are known where it runs.
        return;
    }
    let values = loss == LossKind::Mse.name();
    for (key, name) in asked(config) {
        let quantity = Quantity::named_in(name);
        let has = quantity.is_some_and(|quantity| match values {
            true => !quantity.is_of_classes(),
            false => !quantity.is_of_values(),
        });
        if !has {
            let message = match quantity {
                Some(_) => format!("{loss} has no {name}"),
                None => format!("there is no metric {name}"),
            };
            let hint = match values {
                true => "write val_loss, val_rmse, val_mae, val_r2 or train_loss",
                false => {
                    "write val_accuracy, val_f1, val_precision, val_recall, val_auc, val_ap, one of these with [CLASS], val_loss, \
                     train_loss or val_perplexity"
                }
            };
            problems.push(config.problem(key, message).hint(hint));
        }
    }
}

fn warmup_too_long(config: &Config, warmup: u64, total: u64) -> Problem {
    let message = format!(
        "a warm-up of {} does not fit into {} of training",
        Length::Steps(warmup),
        Length::Steps(total)
    );
    config.problem("schedule.warmup", message).hint("write a shorter schedule.warmup, or none")
}

fn is_folder_name(name: &str) -> bool {
    !name.starts_with('.') && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
}

impl Config {
    /// The names of the results that keys name, as they stand there.
    pub fn named_metrics(&self) -> impl Iterator<Item = &str> {
        asked(self).map(|(_, name)| name)
    }

    /// Finds the metrics that keys name: that of the best checkpoint, and when to stop.
    ///
    /// *Errors*: the run does not measure one of them, or nothing, because there are no held-out samples.
    pub fn metrics(&self, measured: &Measured<'_>, held_out: u64) -> Result<NamedMetrics, ConfigError> {
        let mut problems = Vec::new();
        for (key, name) in asked(self) {
            if let Err(NotMeasured { has, .. }) = EpochMetric::find(name, measured) {
                let message = format!("this run has no {name}");
                problems.push(self.problem(key, message).hint(format!("it has {}", has.join(", "))));
            }
        }
        if self.stop.is_some() && held_out == 0 {
            let problem = self.problem("stop.patience", "no samples are held out, so nothing is validated");
            problems
                .push(problem.hint("give a data.val_split or held-out files, or write stop.patience=none"));
        }
        ConfigError::check(problems)?;
        let find = |name: &str| EpochMetric::find(name, measured).ok();
        let patience = self.stop.as_ref().and_then(|stop| {
            Some(Patience { metric: find(&stop.metric)?, epochs: stop.patience, least: stop.least })
        });
        Ok(NamedMetrics { best: self.checkpoint.best.as_deref().and_then(find), patience })
    }

    /// Checks what keys say of examples, which token ids have or have not.
    ///
    /// *Errors*: a label is to be ignored, and examples say themselves what is; examples are to be packed, and there are none.
    pub fn check_examples(&self, examples: Option<&ExampleCounts>) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        if examples.is_some() && matches!(self.loss, Loss::CrossEntropy { ignore_index: Some(_), .. }) {
            let problem =
                self.problem("loss.ignore_index", "the mask beside the ids says what is not learnt");
            problems.push(problem.hint("leave it out"));
        }
        if examples.is_none() && matches!(&self.data, Some(Source::Tokens(ids)) if ids.packing) {
            let problem = self.problem(
                "data.packing",
                "the ids have no mask beside them, so nobody knows where an example begins",
            );
            problems.push(problem.hint(
                "`dtrain tokenize --chat` writes both; ids without a mask fill their samples as they are",
            ));
        }
        ConfigError::check(problems)
    }

    /// Checks that need the data set.
    ///
    /// *Errors*: class weights of another count, more classes than weights, samples too few for batch norm, a
    /// warm-up that is longer than the run.
    pub fn check_data(&self, data: &DataFacts) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        if data.samples == 0 {
            let problem = self.problem("data.kind", "the training set is empty");
            problems.push(problem.hint("check the files, and data.val_split"));
        }
        self.check_classes(data, &mut problems);
        self.check_images(data, &mut problems);
        let steps_per_epoch = data.samples.div_ceil(u64::from(self.batch.global)).max(1);
        let steps = |length: Length| length.in_steps(steps_per_epoch);
        let total = steps(self.length);
        // One epoch is the default: a run of a few steps, to try something out, ends inside of it and is no mistake.
        let given = self.schedule.warmup.filter(|warmup| *warmup != Length::Epochs(1));
        if let Some(warmup) = given.map(steps).filter(|warmup| *warmup > total) {
            problems.push(warmup_too_long(self, warmup, total));
        }
        ConfigError::check(problems)
    }

    fn check_images(&self, data: &DataFacts, problems: &mut Vec<Problem>) {
        let Some(over) = self.model.over() else { return };
        if over.sample(&data.input).is_some() {
            return;
        }
        let needed = match over {
            Over::Sequences => "sequences [channels, length]",
            Over::Images => "images [channels, height, width]",
            Over::Volumes => "volumes [channels, depth, height, width]",
        };
        let message =
            format!("{} needs {needed}, and an input is {:?}", self.model.kind().name(), data.input);
        let hint = match data.input.len() {
            2 => "write model.kind=cnn1d, or mlp",
            3 => "write model.kind=cnn, or mlp",
            4 => "write model.kind=cnn3d, or mlp",
            _ if [DataKind::Csv.name(), DataKind::Parquet.name()]
                .contains(&self.resolved.word("data.kind")) =>
            {
                "write model.kind=mlp, or say with data.shape what the columns are"
            }
            _ => "write model.kind=mlp",
        };
        problems.push(self.problem("model.kind", message).hint(hint));
    }

    fn check_classes(&self, data: &DataFacts, problems: &mut Vec<Problem>) {
        match (&self.loss, data.classes) {
            (Loss::CrossEntropy { class_weights: ClassWeights::Given(weights), .. }, Some(classes))
                if weights.len() != classes =>
            {
                let message =
                    format!("{} for {}", counted(weights.len(), "weight"), counted(classes, "class"));
                problems.push(self.problem("loss.class_weights", message).hint("one number per class"));
            }
            (Loss::CrossEntropy { .. }, None) => {
                let message = "cross_entropy needs classes, and the targets are numbers";
                problems.push(self.problem("loss.kind", message).hint("write loss.kind=mse"));
            }
            _ => {}
        }
    }
}
