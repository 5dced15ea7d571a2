//! Picks the parts: the data set, the model, the loss, the optimizer and the schedules that a configuration asks for.
//!
//! This is the only file that names implementations. A build without a part changes this file and no other.

mod first_state;
mod keeping;
mod of_program;
mod on_gpu;
mod on_paper;

pub use on_paper::paper_gpu;

use crate::bench_data;
use crate::blueprint::{Blocks, Blueprint, misfit};
use crate::config::{
    Backend, ClassWeights, Config, DataFacts, DataKind, Length, Loss, Model, NamedMetrics, Offload, Oom,
    Precision, Problem, Recompute, Rule, Schedule, Shape,
};
use crate::error::CliError;
use crate::external::{Agreement, Brought, Purpose, is_external};
use crate::frozen_parameters::FrozenSource;
use crate::gpus::Chosen;
use dtrain_data::{
    ClassDistribution, Dataset, EvaluationPlan, Feed, InputSpec, Opened, Preparation, SampleSpec, Source,
    TargetSpec,
};
use dtrain_engine::cpu::{Cpu, CpuOptions, CpuPrecision, Isa};
use dtrain_engine::{
    About, Decay, DecayGroup, EngineError, Frozen, ModelReplica, Optimizer, OwnMetric, Replica, Span,
};
use dtrain_protocol::Every;
use dtrain_runtime::{Measured, Predicts, ValidationSet};
use dtrain_types::{BatchPlan, Fingerprint, Seed, Step};
use std::sync::Arc;

pub use of_program::ExternalBuilt;

/// A configuration with its data opened and all that follows from the two.
pub struct Plan {
    /// The configuration.
    pub config: Config,
    /// The data set.
    pub opened: Opened,
    /// What is validated on: what it holds out, or a part of that.
    validated: Option<Arc<dyn Dataset>>,
    /// What its samples look like.
    pub spec: SampleSpec,
    /// Which samples each step holds.
    pub batches: BatchPlan,
    /// How often each class occurs in the training part, where there are classes.
    pub classes: Option<ClassDistribution>,
    /// What the program brings, if it is not the binary.
    pub brought: Option<Brought>,
    /// What carries the gradients, where that was left to dtrain.
    carried: Option<Backend>,
    /// Where the state of a program's model lies on GPUs, where that was left to dtrain.
    offload: Offload,
    /// Where the parameters that stay as they are come from.
    frozen: FrozenSource,
}

/// A replica to be asked for shapes; ranks make their own.
pub struct Prototype {
    /// The replica.
    pub replica: Box<dyn Replica>,
    /// Its parameters that stay as they are, and lie apart.
    pub frozen: Frozen,
    /// What it computes with, and what all processes have to agree on, where another program makes the passes.
    pub external: Option<(Fingerprint, Agreement)>,
}

/// With first parameters or without.
type MakeReplica =
    fn(Cpu, dtrain_engine::Model<Cpu>, Optimizer, Seed) -> Result<ModelReplica<Cpu>, EngineError>;

impl Plan {
    /// Opens the data and holds it against the configuration. Writes nothing.
    ///
    /// *Errors*: missing or damaged data, a configuration that does not fit it. *Blocks* on the disk.
    pub fn open(config: &Config, brought: Option<Brought>) -> Result<Self, CliError> {
        let brought = brought.or_else(|| bench_data::named(config.data_name()?).map(Brought::Stages));
        let has_model = matches!(brought, Some(Brought::Stages(_)));
        if config.model == Model::Own && config.data_kind() != DataKind::Own.name() && !has_model {
            let problem = config.problem("model.kind", "own is the model of a program of one's own");
            return Err(problem.hint("see examples/own_model.rs, or choose mlp, cnn or gpt").into());
        }
        let opened = match (&config.data, brought) {
            (Some(source), _) => dtrain_data::open(source)?,
            (None, Some(Brought::Stages(own))) => (own.data)()?,
            (None, Some(Brought::External(program))) => program.data().map_err(CliError::usage)?,
            (None, None) if is_external(config) => {
                let problem = config.problem("data.kind", "torch is the data of a Python program");
                return Err(problem.hint("run that program: `python train.py`").into());
            }
            (None, None) => {
                let problem = config.problem("data.kind", "own is the data of a program of one's own");
                return Err(problem.hint("run that program; examples/own_model.rs shows one").into());
            }
        };
        let spec = opened.train.spec();
        let counted = match (&config.data, &spec.input) {
            // Whatever lies beside the ids from now on, or on another host.
            (Some(Source::Tokens(ids)), InputSpec::Tokens { vocabulary, .. }) if ids.vocabulary.is_none() => {
                Some(config.with_vocabulary(*vocabulary))
            }
            _ => None,
        };
        let config = counted.as_ref().unwrap_or(config);
        config.check_data(&facts(&opened, &spec))?;
        config.check_examples(opened.examples.as_ref())?;
        let (samples, batch) = (opened.train.len(), config.batch);
        let batches = BatchPlan::new(config.seed, samples, batch.global, batch.micro)
            .map_err(|error| config.problem("global_batch", error.to_string()))?;
        let named = |classes: ClassDistribution| classes.named(&opened.class_names);
        // One class a token means reading the whole text: only where its weights need it.
        let per_token = matches!(spec.target, TargetSpec::ClassPerToken { .. });
        let balanced =
            matches!(config.loss, Loss::CrossEntropy { class_weights: ClassWeights::Balanced, .. });
        let classes = match per_token && !balanced {
            true => None,
            false => dtrain_data::class_distribution(opened.train.as_ref())?.map(named),
        };
        let validated = match (opened.val.clone(), config.validation.samples) {
            (Some(val), Some(samples)) => Some(dtrain_data::scattered_samples(val, samples)),
            (val, _) => val,
        };
        let plan = Self {
            config: config.clone(),
            spec,
            batches,
            classes,
            opened,
            validated,
            brought,
            carried: None,
            offload: config.offload,
            frozen: FrozenSource::default(),
        };
        plan.metrics()?;
        Ok(plan)
    }

    /// The same with another micro-batch.
    ///
    /// *Errors*: one that does not suit the batches.
    pub fn with_micro_batch(self, rows: u32) -> Result<Self, CliError> {
        let config = self.config.with_micro_batch(rows);
        let batches = BatchPlan::new(config.seed, self.batches.samples(), config.batch.global, rows)
            .map_err(|error| config.problem("micro_batch", error.to_string()))?;
        Ok(Self { config, batches, ..self })
    }

    /// What the data set is called in messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.config.data_kind()
    }

    /// The instruction set that `isa` comes to on this CPU.
    #[must_use]
    pub fn isa_in_use(&self) -> String {
        let word = self.config.isa.as_str();
        Isa::parse(word).map_or_else(|_| word.to_owned(), |isa| self.used(isa).to_string())
    }

    /// What is used of an instruction set: AMX multiplies bf16 alone.
    fn used(&self, isa: Isa) -> Isa {
        if self.cpu_precision() == CpuPrecision::F32 { isa.min(Isa::Avx512) } else { isa }
    }

    /// What a CPU rounds operands to. A program of its own rounds by itself.
    fn cpu_precision(&self) -> CpuPrecision {
        match self.config.precision {
            Precision::Bf16 if self.external().is_none() => CpuPrecision::Bf16,
            _ => CpuPrecision::F32,
        }
    }

    /// Whether ranks on this CPU compute in a precision that takes longer than f32 there.
    #[must_use]
    pub fn is_slowed_by_precision(&self) -> bool {
        let isa = Isa::parse(&self.config.isa);
        self.cpu_precision() == CpuPrecision::Bf16 && isa.is_ok_and(|isa| isa < Isa::Amx)
    }

    /// The training samples, step by step.
    ///
    /// *Errors*: none that opening did not find.
    pub fn feed(&self) -> Result<Feed, CliError> {
        Ok(Feed::new(self.opened.train.clone(), self.batches, self.config.seed)?)
    }

    /// The samples that are validated on, if there are any.
    #[must_use]
    pub fn validation(&self) -> Option<ValidationSet> {
        let dataset = self.validated.clone()?;
        let plan = EvaluationPlan::new(dataset.len(), self.config.batch.micro);
        Some(ValidationSet { dataset, plan })
    }

    /// What turns a sample as people have it into what the model is trained on: part of every checkpoint. Data of a program's
    /// own are as they are.
    #[must_use]
    pub fn preparation(&self) -> Preparation {
        let mut preparation = match &self.opened.preparation {
            Some(preparation) => preparation.clone(),
            None => Preparation::plain(&self.spec, self.opened.class_names.clone()),
        };
        preparation.class_counts =
            self.classes.as_ref().map_or_else(Vec::new, |classes| classes.counts().to_vec());
        preparation
    }

    /// What the model predicts, and in which unit.
    #[must_use]
    pub fn predicts(&self) -> Predicts {
        if self.external().is_some() {
            return Predicts::Counted;
        }
        if let Some(classes) = self.spec.classes() {
            let per_token = matches!(self.spec.target, TargetSpec::ClassPerToken { .. });
            return if per_token { Predicts::Tokens } else { Predicts::Classes(classes as usize) };
        }
        let one = self.spec.target_width() == 1;
        let Some(val) = self.validated.as_deref().filter(|_| one) else { return Predicts::Values };
        let scale = self.opened.preparation.as_ref().and_then(|preparation| preparation.targets.as_ref());
        let unit = scale.map_or(1.0, |scale| scale.deviation[0]);
        // What cannot be read stops the run where it is read.
        let variance = dtrain_data::target_variance(val).unwrap_or(0.0);
        Predicts::Value { unit, variance }
    }

    /// The metrics of the program's own, by the names of their results, if another program makes the passes.
    #[must_use]
    pub fn own_metrics(&self) -> Vec<(String, OwnMetric)> {
        let of_program = self.external().map(|program| program.metrics()).unwrap_or_default();
        of_program.into_iter().map(|(name, metric)| (format!("val_{name}"), metric)).collect()
    }

    /// Results that are shown of this run beside those that all runs show: the program's own, and what a key names.
    #[must_use]
    pub fn shown_results(&self) -> Vec<String> {
        let own = self.own_metrics().into_iter().map(|(name, _)| name);
        own.chain(self.config.named_metrics().map(|name| name.trim_start_matches('-').to_owned())).collect()
    }

    /// The metrics that the configuration names.
    ///
    /// *Errors*: the run does not measure one of them.
    pub fn metrics(&self) -> Result<NamedMetrics, CliError> {
        let classes = self.spec.classes().map_or(0, |classes| classes as usize);
        let class_names = self.opened.class_names.as_slice();
        let held_out = self.opened.val.as_ref().map_or(0, |val| val.len());
        let own: Vec<String> = self.own_metrics().into_iter().map(|(name, _)| name).collect();
        let measured = Measured { predicts: self.predicts(), class_names, classes, own: &own };
        Ok(self.config.metrics(&measured, held_out)?)
    }

    /// The classes that held-out samples have and no training sample, each with how many of them it has. Nobody counts where
    /// labels are only known by reading all samples.
    #[must_use]
    pub fn only_held_out(&self) -> Vec<(String, u64)> {
        let held_out = self.opened.val.as_ref().filter(|val| !val.is_empty() && val.label(0).is_some());
        let (Some(train), Some(val)) = (&self.classes, held_out) else { return Vec::new() };
        // A label that cannot be read stops the run where it is read.
        let Ok(Some(val)) = dtrain_data::class_distribution(val.as_ref()) else { return Vec::new() };
        let count = |class: u32| val.counts()[class as usize];
        train
            .absent()
            .filter(|class| count(*class) > 0)
            .map(|class| (train.name(class), count(class)))
            .collect()
    }

    /// How its model is made.
    #[must_use]
    pub fn blueprint(&self) -> Blueprint<'_> {
        let class_counts = self.classes.as_ref().map_or(&[][..], |classes| classes.counts());
        let own = match self.brought {
            Some(Brought::Stages(own)) => Some(own),
            Some(Brought::External(_)) | None => None,
        };
        let mix = self.opened.train.mix();
        Blueprint { config: &self.config, spec: &self.spec, class_counts, own, mix }
    }

    /// The number of the last step.
    #[must_use]
    pub fn last_step(&self) -> Step {
        Step(self.steps(self.config.length))
    }

    fn steps(&self, length: Length) -> u64 {
        length.in_steps(self.batches.steps_per_epoch())
    }

    /// Whether a checkpoint before the end holds a state that is validated; if there are none, or nothing is ever validated, so it is.
    #[must_use]
    pub fn marks_the_best(&self) -> bool {
        let (schedule, every) = (self.schedule(), self.config.checkpoint.every);
        let saves = every.map(|every| self.steps(every)).filter(|steps| *steps < schedule.last.0);
        let Some(saves) = saves.filter(|_| schedule.validation_micro_batches > 0) else { return true };
        let mut saved = (saves..schedule.last.0).step_by(usize::try_from(saves).unwrap_or(usize::MAX));
        saved.any(|step| schedule.validates(Step(step)))
    }

    /// What is due after which step.
    #[must_use]
    pub fn schedule(&self) -> dtrain_protocol::Schedule {
        dtrain_protocol::Schedule {
            last: self.last_step(),
            steps_per_epoch: self.batches.steps_per_epoch(),
            checkpoint: every(self.config.checkpoint.every),
            validation: every(self.config.validation.every),
            validation_micro_batches: self.validation().map_or(0, |set| set.plan.micro_batches()),
            verify: self.config.world.verify.into(),
        }
    }

    /// A replica with its first parameters on a CPU of its own, which takes several micro-batches at once.
    ///
    /// *Errors*: a model that does not fit the data, an instruction set that this CPU lacks, a file of parameters
    /// that does not fit the model.
    pub fn replica(&self) -> Result<ModelReplica<Cpu>, CliError> {
        self.replica_in_groups(self.most_at_once(), self.blocks()[0], ModelReplica::begun)
    }

    /// The same to be asked for shapes, without its first parameters, and with the memory that a rank on these devices takes: GPUs
    /// take one micro-batch at a time, and may have room only for one whose blocks are computed twice.
    ///
    /// *Errors*: as [`Plan::replica`]; not enough memory.
    pub fn prototype(&self, chosen: &Chosen) -> Result<Prototype, CliError> {
        if let Some(program) = self.external() {
            let built = self.external_replica(program, Purpose::Shapes, None)?;
            let ExternalBuilt { replica, fingerprint, agreement, .. } = built;
            let (replica, frozen) = (Box::new(replica), Frozen::default());
            return Ok(Prototype { replica, frozen, external: Some((fingerprint, agreement)) });
        }
        let replica = self.stages_as_on(chosen)?;
        Ok(Prototype { frozen: replica.frozen().clone(), replica: Box::new(replica), external: None })
    }

    fn stages_as_on(&self, chosen: &Chosen) -> Result<ModelReplica<Cpu>, CliError> {
        if let Chosen::Cpu { .. } = chosen {
            return self.replica_in_groups(self.most_at_once(), self.blocks()[0], ModelReplica::blank);
        }
        let replica = self.replica_in_groups(1, self.blocks()[0], ModelReplica::blank)?;
        match chosen.has_room(&self.config, self.memory(&replica, chosen).total()) {
            Ok(()) => Ok(replica),
            // It will be tried on the GPUs themselves, with less.
            Err(_) if self.config.oom == Oom::Shrink || self.shares_out_elsewhere() => Ok(replica),
            Err(problem) => Err(problem.into()),
        }
    }

    /// How many micro-batches a rank on cores computes at once, at most: one, where the next is another rank's.
    fn most_at_once(&self) -> u32 {
        if self.in_rounds() { 1 } else { self.batches.micro_batches() }
    }

    /// The ways in which the blocks of the model may be computed, from the one that is tried first.
    fn blocks(&self) -> &'static [Blocks] {
        match self.config.recompute {
            Recompute::Auto => &[Blocks::Once, Blocks::Twice],
            Recompute::On => &[Blocks::Twice],
            Recompute::Off => &[Blocks::Once],
        }
    }

    /// What a rank on cores would be, without the memory for it.
    ///
    /// *Errors*: as [`Plan::replica`].
    pub fn planned_on_cores(&self) -> Result<About, CliError> {
        let (_, model) = self.model_in_groups(self.most_at_once(), self.blocks()[0])?;
        let about = ModelReplica::planned(&model, &self.optimizer());
        self.check_rows(&about)?;
        Ok(about)
    }

    fn model_in_groups(
        &self,
        most: u32,
        blocks: Blocks,
    ) -> Result<(Cpu, dtrain_engine::Model<Cpu>), CliError> {
        let device = self.cpu()?;
        let model = self.blueprint().model(&device, (self.config.batch.micro, most), blocks)?;
        Ok((device, model))
    }

    /// The CPU as a rank has it.
    ///
    /// *Errors*: an instruction set that this CPU lacks.
    pub fn cpu(&self) -> Result<Cpu, CliError> {
        let config = &self.config;
        let isa = Isa::parse(&config.isa)
            .map_err(|error| config.problem("isa", error.to_string()).hint("write isa=auto"))?;
        let options = CpuOptions { isa: self.used(isa), threads: config.world.threads as usize };
        let cpu = Cpu::new(options).map_err(|error| config.problem("threads", error.to_string()))?;
        Ok(cpu.with_precision(self.cpu_precision()))
    }

    fn replica_in_groups(
        &self,
        most: u32,
        blocks: Blocks,
        make: MakeReplica,
    ) -> Result<ModelReplica<Cpu>, CliError> {
        let (device, model) = self.model_in_groups(most, blocks)?;
        let replica = make(device, model, self.optimizer(), self.config.seed);
        let mut replica = replica.map_err(|error| self.misfit(&error))?;
        self.complete(&mut replica)?;
        Ok(replica)
    }

    /// The same plan of a run whose parameters that stay as they are come from there.
    #[must_use]
    pub fn with_frozen(self, frozen: FrozenSource) -> Self {
        Self { frozen, ..self }
    }

    /// Gives a replica the parameters that it is to start from, and holds it against the batches.
    pub fn complete(&self, replica: &mut dyn Replica) -> Result<(), CliError> {
        match (&self.config.beginning.file, self.config.optimizer.updates_before) {
            (Some(file), _) => self.begin_from(replica, file)?,
            (None, 0) => self.begin_without(replica)?,
            (None, _) => {
                let message = "there is no file with the optimizer's state";
                let error = self.config.problem("optimizer.updates_before", message);
                return Err(error
                    .hint("`dtrain train --resume RUN --fork --keep-optimizer` writes one")
                    .into());
            }
        }
        self.check_rows(replica.about())
    }

    /// How parameters move.
    #[must_use]
    pub fn optimizer(&self) -> Optimizer {
        let optimizer = &self.config.optimizer;
        Optimizer {
            rule: match optimizer.rule {
                Rule::AdamW { beta1, beta2, eps, weight_decay } => dtrain_engine::Rule::AdamW {
                    betas: [beta1 as f32, beta2 as f32],
                    epsilon: eps as f32,
                    weight_decay: weight_decay as f32,
                },
                Rule::Lion { beta1, beta2, weight_decay } => dtrain_engine::Rule::Lion {
                    betas: [beta1 as f32, beta2 as f32],
                    weight_decay: weight_decay as f32,
                },
                Rule::Muon(muon) => dtrain_engine::Rule::Muon(muon),
                Rule::Sgd { momentum, nesterov, weight_decay } => dtrain_engine::Rule::Sgd {
                    momentum: momentum as f32,
                    nesterov,
                    weight_decay: weight_decay as f32,
                },
                Rule::Torch => dtrain_engine::Rule::External,
            },
            decays: if optimizer.decays_all { DecayGroup::All } else { DecayGroup::Matrices },
            clip_norm: optimizer.clip_norm,
            ema: self.config.ema,
            updates_before: optimizer.updates_before,
            keeps: self.config.world.keeps(),
            schedule: self.learning_rate(&self.config),
        }
    }

    /// The learning rate of each step by a configuration of this data and these batches.
    #[must_use]
    pub fn learning_rate(&self, config: &Config) -> dtrain_engine::LrSchedule {
        let Schedule { warmup, shape } = config.schedule;
        let optimizer = &config.optimizer;
        let per_epoch = self.batches.steps_per_epoch();
        let span = |length| match length {
            Length::Epochs(epochs) => Span::Epochs(epochs.into()),
            Length::Steps(steps) => Span::Steps(steps),
        };
        dtrain_engine::LrSchedule {
            base: optimizer.lr * optimizer.lr_scaling.factor(config.batch.global, optimizer.lr_base_batch),
            warmup: warmup.map_or(0, |length| span(length).steps(per_epoch)),
            total: self.steps(config.length),
            decay: match shape {
                Shape::Constant => Decay::Constant,
                Shape::Linear { min_factor } => Decay::Linear { last: min_factor },
                Shape::Cosine { min_factor } => Decay::Cosine { last: min_factor },
                Shape::OneCycle { peak, first_factor, min_factor } => {
                    Decay::OneCycle { peak, first: first_factor, last: min_factor }
                }
                Shape::Step { every, factor } => Decay::Step { every: span(every).steps(per_epoch), factor },
            },
        }
    }

    /// Batch norm needs more rows than one in every micro-batch, also in the last one of an epoch.
    fn check_rows(&self, about: &About) -> Result<(), CliError> {
        let (samples, batch) = (self.batches.samples(), self.config.batch);
        let remainder = |n: u64, of: u64| if n.is_multiple_of(of) { of.min(n) } else { n % of };
        let (global, micro) = (u64::from(batch.global), u64::from(batch.micro));
        let full_step = remainder(global.min(samples), micro);
        let last_step = remainder(remainder(samples, global), micro);
        let least = full_step.min(last_step);
        let needed = about.min_rows as u64;
        if least >= needed {
            return Ok(());
        }
        let message = format!(
            "a micro-batch of {least} sample occurs ({samples} samples, global_batch {global}, micro_batch {micro}), and \
             batch norm needs at least {needed}"
        );
        let hint = "choose another global_batch or micro_batch, or model.batch_norm=false";
        Err(self.config.problem("model.batch_norm", message).hint(hint).into())
    }

    /// The engine's complaint under the key that it names.
    pub fn misfit(&self, error: &EngineError) -> Problem {
        misfit(&self.config, error)
    }
}

fn every(length: Option<Length>) -> Every {
    match length {
        None => Every::End,
        Some(Length::Epochs(epochs)) => Every::Epochs(epochs.into()),
        Some(Length::Steps(steps)) => Every::Steps(steps),
    }
}

fn facts(opened: &Opened, spec: &SampleSpec) -> DataFacts {
    DataFacts {
        samples: opened.train.len(),
        val_samples: opened.val.as_ref().map_or(0, |val| val.len()),
        input: match &spec.input {
            InputSpec::Values { shape } => shape.clone(),
            InputSpec::Tokens { length, .. } => vec![*length],
        },
        classes: spec.classes().map(|classes| classes as usize),
        tokens: matches!(spec.input, InputSpec::Tokens { .. }),
    }
}
