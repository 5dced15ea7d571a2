//! A trained model, ready for use: a checkpoint of a run with its configuration and what prepares samples for it.
//!
//! It needs no training data. It does not know what it is used for.

use crate::blueprint::{Blocks, Blueprint, misfit};
use crate::config::{Config, CudaList, Model, Source};
use crate::error::CliError;
use crate::frozen_parameters::FrozenParameters;
use crate::gpus::{Auto, choose_here, open_gpu, this_machine};
use crate::report::Voice;
use crate::request::{ChosenCheckpoint, checkpoint_argument};
use crate::run_folder::{CONFIG, RunFolder};
use crate::unusable::unusable;
use dtrain_checkpoint::{Check, CheckpointId, Exported, FileStore, Store, TensorSpec};
use dtrain_cuda::CudaDevice;
use dtrain_data::{InputSpec, Mix, Preparation, SampleSpec};
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::stage::KvCache;
use dtrain_engine::{
    DecayGroup, DeviceReplica, EngineError, Layout, LrSchedule, ModelReplica, Optimizer, Replica, Rule,
    Section, State,
};
use dtrain_runtime::specs;
use std::path::{Path, PathBuf};

/// A checkpoint of a run and what goes with it.
pub struct Trained {
    /// The run.
    pub run: RunFolder,
    /// The checkpoint.
    pub id: CheckpointId,
    /// The configuration of the run.
    pub config: Config,
    /// What turns a sample as people have it into what the model takes.
    pub preparation: Preparation,
    /// What the user should know of the choice of the checkpoint, a line each.
    pub notes: Vec<String>,
}

/// The tensors of a checkpoint: the sections of its state, and where which tensor lies in them. Threads share it.
pub struct Whole {
    sections: Vec<Vec<f32>>,
    specs: Vec<TensorSpec>,
    /// The parameters that the run left as they are, if there are such.
    frozen: Option<FrozenParameters>,
}

/// On what a replica computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// So many cores.
    Cores(usize),
    /// The GPU of this number.
    Gpu(u32),
}

impl Trained {
    /// Opens `RUN`, of which it takes the best checkpoint, or else the newest; or `RUN/CHECKPOINT`.
    ///
    /// *Errors*: there is none; it is of a version that wrote nothing of how samples are prepared; a program's own model.
    pub fn open(text: &str) -> Result<Self, CliError> {
        let ChosenCheckpoint { run, id, notes } = best_or_newest(text)?;
        let source = Source { path: run.path.join(CONFIG), text: run.config_text()? };
        let config = Config::parse::<&str>(Some(source), &[], this_machine())?;
        let shown = format!("checkpoint {id} of {}", run.path.display());
        if let Model::Own | Model::Torch = config.model {
            let message = format!("the model of {} is made by a program of one's own", run.path.display());
            let hint = "`dtrain checkpoint export` writes its parameters for that program";
            return Err(CliError::usage(message).hint(hint));
        }
        let opened = FileStore::new(&run.path).open(id, Check::Sizes);
        let manifest = opened.map_err(|damage| unusable(&shown, &damage))?.into_manifest();
        let Some(preparation) = manifest.preparation else {
            let message =
                format!("{shown} does not say how its samples are prepared: an older dtrain wrote it");
            let hint = format!("`dtrain train --resume {}` writes newer ones", run.path.display());
            return Err(CliError::usage(message).hint(hint));
        };
        let preparation = serde_json::from_value(preparation).map_err(|error| {
            let message = format!("what {shown} says of its samples is not understood");
            CliError::failed(message).because(&error).hint("another version of dtrain wrote it: use that one")
        })?;
        Ok(Self { run, id, config, preparation, notes })
    }

    /// Tells the user what there is to know of the checkpoint.
    pub fn say_notes(&self, voice: Voice) {
        self.notes.iter().for_each(|note| voice.say(&format!("note: {note}")));
    }

    /// The GPUs that samples are computed on, where `devices` says so.
    ///
    /// *Errors*: there are no such GPUs, or the precision of the run is none of them. *Blocks* while the driver wakes up and, the first time,
    /// while kernels are compiled, of which `tell` hears.
    pub fn gpus(&self, devices: &str, tell: impl Fn(&str)) -> Result<Option<CudaList>, CliError> {
        if devices == "cpu" {
            return Ok(None);
        }
        // How the run was trained matters not.
        let settings = [format!("devices={devices}"), format!("precision={}", self.config.precision.name())];
        let config = Config::parse(None, &settings.each_ref().map(String::as_str), this_machine())?;
        let chosen = choose_here(&config, Auto::ByTest)?;
        chosen.prepare(&config, tell)?;
        Ok(chosen.cuda())
    }

    /// The model with the parameters of the checkpoint, for up to `rows` samples at once: on one thread of a CPU, or on the GPU of this number.
    ///
    /// *Errors*: a damaged checkpoint; of the GPU, on which there may be no room. *Blocks* on the disk.
    pub fn replica_on(&self, gpu: Option<u32>, rows: u32) -> Result<Box<dyn Replica>, CliError> {
        match gpu {
            None => Ok(Box::new(self.replica(rows)?)),
            Some(number) => Ok(Box::new(self.replica_on_gpu(number, rows)?)),
        }
    }

    fn replica_on_gpu(&self, number: u32, rows: u32) -> Result<DeviceReplica<CudaDevice>, CliError> {
        self.filled(self.blank_on_gpu(&self.preparation.spec(), number, rows)?)
    }

    fn blank_on_gpu(
        &self,
        spec: &SampleSpec,
        number: u32,
        rows: u32,
    ) -> Result<DeviceReplica<CudaDevice>, CliError> {
        let fail = |error: String| CliError::failed(format!("cuda:{number}: {error}"));
        let gpu = open_gpu(number).map_err(fail)?;
        let device = CudaDevice::new(&gpu, self.config.precision).map_err(|error| fail(error.to_string()))?;
        let blueprint = self.blueprint(spec);
        let model = blueprint.gpu_model(&device, rows, Blocks::Once, &blueprint.loss()?);
        let replica =
            model.and_then(|model| DeviceReplica::blank(device, model, self.at_rest(), self.config.seed));
        replica.map_err(|error| match error {
            EngineError::NoRoom(words) => {
                let words = words.split("\nhint: ").next().unwrap_or_default();
                fail(format!("{words}\nhint: --batch takes fewer samples at once than {rows}"))
            }
            EngineError::Device(words) => fail(words),
            error => misfit(&self.config, &error).into(),
        })
    }

    fn blueprint<'a>(&'a self, spec: &'a SampleSpec) -> Blueprint<'a> {
        let class_counts = &self.preparation.class_counts;
        Blueprint { config: &self.config, spec, class_counts, own: None, mix: Mix::default() }
    }

    /// The model with the parameters of the checkpoint, on one thread of a CPU, for up to `rows` samples at once.
    ///
    /// *Errors*: a damaged checkpoint. *Blocks* on the disk.
    pub fn replica(&self, rows: u32) -> Result<ModelReplica<Cpu>, CliError> {
        self.filled(self.blank(&self.preparation.spec(), rows, 1)?)
    }

    fn blank(&self, spec: &SampleSpec, rows: u32, threads: usize) -> Result<ModelReplica<Cpu>, CliError> {
        let device = self.cpu(threads)?;
        let model = self.blueprint(spec).model(&device, (rows, 1), Blocks::Once)?;
        let replica = ModelReplica::blank(device, model, self.at_rest(), self.config.seed);
        Ok(replica.map_err(|error| misfit(&self.config, &error))?)
    }

    fn cpu(&self, threads: usize) -> Result<Cpu, CliError> {
        let isa = Isa::parse(&self.config.isa).unwrap_or_else(|_| Isa::best());
        Cpu::new(CpuOptions { isa, threads }).map_err(|error| CliError::failed(error.to_string()))
    }

    /// All that the checkpoint has of the model.
    ///
    /// *Errors*: it is damaged. *Blocks* on the disk.
    pub fn whole(&self) -> Result<Whole, CliError> {
        let replica = self.blank(&self.preparation.spec(), 1, 1)?;
        let (specs, mut state) = (specs(&replica), State::zeros(replica.about().state));
        let frozen = self.load(&specs, &mut state, &replica.about().layout)?;
        let sections = Section::ALL.map(|section| state.section(section).to_vec());
        Ok(Whole { sections: sections.into(), specs, frozen })
    }

    /// A model of texts for windows of so many tokens, at most as many as it was trained on, and so many texts at once: a place has the
    /// same parameters in a shorter window.
    ///
    /// *Errors*: as [`Trained::replica_on`]. *Panics* if the model has no tokens.
    pub fn replica_for(
        &self,
        window: usize,
        seat: Seat,
        rows: u32,
        whole: &Whole,
    ) -> Result<Box<dyn Replica>, CliError> {
        let spec = self.spec_for(window);
        let mut replica: Box<dyn Replica> = match seat {
            Seat::Cores(threads) => Box::new(self.blank(&spec, rows, threads)?),
            Seat::Gpu(number) => Box::new(self.blank_on_gpu(&spec, number, rows)?),
        };
        self.pour(whole, replica.as_mut())?;
        Ok(replica)
    }

    /// A model of texts on so many threads of a CPU that takes at most so many tokens at once and keeps what it saw of those before, for texts of at most as many places as it
    /// was trained on. Nothing where the model needs all of a text each time.
    ///
    /// *Errors*: as [`Trained::replica_on`]. *Panics* if the model has no tokens.
    pub fn decoder(
        &self,
        tokens: usize,
        kv_cache: KvCache,
        threads: usize,
        whole: &Whole,
    ) -> Result<Option<ModelReplica<Cpu>>, CliError> {
        let (device, spec) = (self.cpu(threads)?, self.spec_for(kv_cache.places));
        let Some(model) = self.blueprint(&spec).decoding_model(&device, tokens, kv_cache)? else {
            return Ok(None);
        };
        let replica = ModelReplica::blank(device, model, self.at_rest(), self.config.seed);
        let mut replica = replica.map_err(|error| misfit(&self.config, &error))?;
        self.pour(whole, &mut replica)?;
        Ok(Some(replica))
    }

    /// What a [decoder](Self::decoder) keeps of a text of so many places; nothing where there is no such decoder. *Units*: bytes.
    ///
    /// *Errors*: a model that does not fit its run. *Panics* if the model has no tokens.
    pub fn kept_of_a_text(&self, places: usize) -> Result<Option<usize>, CliError> {
        let (device, spec) = (self.cpu(1)?, self.spec_for(places));
        let model = self.blueprint(&spec).decoding_model(&device, 1, KvCache { texts: 1, places })?;
        Ok(model.map(|model| model.plan().saved * size_of::<f32>()))
    }

    /// What samples of so many tokens are. *Panics* if the model has none.
    fn spec_for(&self, window: usize) -> SampleSpec {
        let mut spec = self.preparation.spec();
        let InputSpec::Tokens { length, .. } = &mut spec.input else { panic!("a model of texts has tokens") };
        *length = window;
        spec
    }

    /// Gives a replica for a shorter window the state of the checkpoint.
    fn pour(&self, whole: &Whole, replica: &mut dyn Replica) -> Result<(), CliError> {
        let mut state = State::zeros(replica.about().state);
        for part in &specs(replica) {
            let all = whole.specs.iter().find(|all| all.name == part.name).expect("it has the same tensors");
            assert_eq!(all.shape.get(1..), part.shape.get(1..), "{}: only places differ", part.name);
            let place = Section::ALL.into_iter().position(|section| section.name() == part.section);
            let place = place.expect("a section of the state");
            let from = &whole.sections[place][all.offset..all.offset + part.len];
            let to = state.section_mut(Section::ALL[place]);
            to[part.offset..part.offset + part.len].copy_from_slice(from);
        }
        state.applied = self.id.step;
        replica.swap_state(&mut state).map_err(|error| misfit(&self.config, &error))?;
        self.give_frozen(whole.frozen.as_ref(), replica)
    }

    /// Gives a replica the parameters that the run left as they are.
    fn give_frozen(&self, all: Option<&FrozenParameters>, replica: &mut dyn Replica) -> Result<(), CliError> {
        let Some(all) = all else { return Ok(()) };
        let values = all.of(&replica.about().layout)?;
        Ok(replica.set_frozen(values).map_err(|error| misfit(&self.config, &error))?)
    }

    /// A replica with the state of the checkpoint.
    fn filled<R: Replica>(&self, mut replica: R) -> Result<R, CliError> {
        let mut state = State::zeros(replica.about().state);
        let frozen = self.load(&specs(&replica), &mut state, &replica.about().layout)?;
        state.applied = self.id.step;
        replica.swap_state(&mut state).map_err(|error| misfit(&self.config, &error))?;
        self.give_frozen(frozen.as_ref(), &mut replica)?;
        Ok(replica)
    }

    /// An optimizer that keeps nothing but the moving average: what is predicted needs no more.
    fn at_rest(&self) -> Optimizer {
        Optimizer {
            decays: DecayGroup::All,
            ema: self.config.ema,
            ..Optimizer::new(
                Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
                LrSchedule::constant(0.0),
            )
        }
    }

    /// Fills a state from the checkpoint, and gives the parameters that the run left as they are.
    fn load(
        &self,
        specs: &[TensorSpec],
        state: &mut State,
        layout: &Layout,
    ) -> Result<Option<FrozenParameters>, CliError> {
        let shown = format!("checkpoint {} of {}", self.id, self.run.path.display());
        let opened = FileStore::new(&self.run.path).open(self.id, Check::Digests);
        let checkpoint = opened.map_err(|damage| unusable(&shown, &damage))?;
        for section in [Section::Parameters, Section::Stats, Section::Average] {
            if !state.section(section).is_empty() {
                let loaded = checkpoint.load_into(specs, section.name(), state.section_mut(section));
                loaded.map_err(|damage| unusable(&shown, &damage))?;
            }
        }
        if state.digest() != checkpoint.manifest().digest.0 {
            return Err(CliError::failed(format!(
                "{shown} was read whole, but has another digest than it says"
            )));
        }
        if layout.frozen_len() == 0 {
            return Ok(None);
        }
        let frozen = FrozenParameters::read(&self.run.path)?;
        match checkpoint.manifest().frozen {
            Some(wanted) if wanted != frozen.digest => Err(CliError::failed(format!(
                "{shown} belongs to other parameters that stayed as they were than lie in its run's folder"
            ))),
            _ => Ok(Some(frozen)),
        }
    }
}

/// Writes parameters and running statistics of `RUN`, `RUN/best` or `RUN/CHECKPOINT` to one safetensors file, and gives the folder of
/// the run. `RUN` alone and `RUN/best` mean its best checkpoint, or else its newest; `RUN/last` the newest.
///
/// *Blocks* on the disk. *Errors*: there is none; it is damaged; the file cannot be written.
pub fn export_parameters(run: &str, out: &Path) -> Result<PathBuf, CliError> {
    let ChosenCheckpoint { run, id, notes } = match run.trim_end_matches('/').rsplit_once('/') {
        Some((run, "last")) => checkpoint_argument(run),
        Some((run, "best")) => best_or_newest(run),
        _ => best_or_newest(run),
    }?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let shown = format!("checkpoint {id} of {}", run.path.display());
    let opened = FileStore::new(&run.path).open(id, Check::Digests);
    let checkpoint = opened.map_err(|damage| unusable(&shown, &damage))?;
    let written = dtrain_checkpoint::export(&checkpoint, out, Exported::Model);
    written.map_err(|error| CliError::failed(format!("cannot write {}", out.display())).because(&error))?;
    Ok(run.path)
}

/// The checkpoint that is meant: the best of a run, where one is marked.
fn best_or_newest(text: &str) -> Result<ChosenCheckpoint, CliError> {
    if let Ok(run) = RunFolder::find(text)
        && let Ok(Some(id)) = FileStore::new(&run.path).best()
    {
        return Ok(ChosenCheckpoint { run, id, notes: Vec::new() });
    }
    checkpoint_argument(text)
}
