//! The state that a run begins with, from a file: a model of any origin, or all that a fork keeps.
//!
//! It knows the names that tensors have in such files. It does not know who wrote them.

use super::Plan;
use crate::config::{Model, ModelKind};
use crate::error::CliError;
use crate::frozen_parameters::FrozenParameters;
use crate::gpt2_names::Gpt2Names;
use crate::llama_names::{ADAPTERS, LlamaNames, PeftNames};
use dtrain_checkpoint::{
    FROZEN, Given, InitError, Names, OwnNames, PARAMETERS, STATS, SectionMut, TensorSpec, frozen_digest,
};
use dtrain_engine::models::{LlamaOptions, Lora};
use dtrain_engine::{Frozen, Layout, LossScale, Replica, Section, State, fits};
use dtrain_runtime::{frozen_specs, specs};
use dtrain_types::Digest;
use std::path::Path;

impl Plan {
    /// Gives a replica the state in a file: parameters and running statistics, or where the optimizer goes on the whole of it.
    ///
    /// *Blocks* on the disk. *Errors*: the file does not fit.
    pub(super) fn begin_from(&self, replica: &mut dyn Replica, file: &Path) -> Result<(), CliError> {
        let except = &self.config.beginning.except;
        for pattern in except {
            let Layout { tensors, frozen, .. } = &replica.about().layout;
            if !tensors.iter().chain(frozen).any(|tensor| fits(pattern, &tensor.name)) {
                let problem =
                    self.config.problem("model.init_except", format!("no tensor is called {pattern}"));
                return Err(problem.hint("`dtrain plan` lists the names").into());
            }
        }
        let mut frozen = self.kept_frozen(&replica.about().layout)?;
        let mut new = match &frozen {
            Some(_) => None,
            None => Some(
                replica
                    .about()
                    .layout
                    .first_frozen(self.config.seed, |name| except.iter().any(|pattern| fits(pattern, name))),
            ),
        };
        let mut state = State::zeros(self.optimizer().first_state(&replica.about().layout));
        // What is no part of a model, no file has.
        let blank = replica.bring_state().map_err(|error| self.misfit(&error))?;
        for section in [Section::Parameters, Section::Stats] {
            state.section_mut(section).copy_from_slice(blank.section(section));
        }
        let (filled, hint) = match self.config.optimizer.updates_before {
            0 => (
                self.fill_model(replica, file, &mut state, new.as_deref_mut()),
                "a safetensors file with the names and shapes that `dtrain plan` lists",
            ),
            _ => (
                fill_all(replica, file, &mut state, new.as_deref_mut()),
                "only a fork with --keep-optimizer writes such a file; without the optimizer's state: optimizer.updates_before=0",
            ),
        };
        filled.map_err(|error| self.config.problem("model.init_from", error.to_string()).hint(hint))?;
        if let Some(adapters) = &self.config.beginning.adapters {
            let hint = "PEFT writes such a folder, and `dtrain export --to peft`; model.lora_rank, lora_targets and lora_also have to suit it";
            fill_adapters(replica, adapters, &mut state)
                .map_err(|error| self.config.problem("model.lora_from", error.to_string()).hint(hint))?;
        }
        replica.swap_state(&mut state).map_err(|error| self.misfit(&error))?;
        frozen = frozen.or(new.map(Frozen::from));
        self.set_frozen(replica, frozen.unwrap_or_default())
    }

    /// Fills parameters and running statistics from a file; adapters that it lacks begin anew.
    fn fill_model(
        &self,
        replica: &dyn Replica,
        file: &Path,
        state: &mut State,
        mut frozen: Option<&mut [f32]>,
    ) -> Result<(), InitError> {
        let (kind, except) = (self.config.model.kind(), &self.config.beginning.except[..]);
        let filled = fill_model(replica, file, (kind, except), state, frozen.as_deref_mut());
        match (&filled, &self.config.model) {
            (Err(InitError::Misfit { .. }), Model::Llama(LlamaOptions { lora: Some(_), .. })) => {
                let adapters = Lora::PARAMETERS.map(str::to_owned);
                fill_model(replica, file, (kind, &[except, &adapters].concat()), state, frozen)
            }
            _ => filled,
        }
    }

    /// Gives a replica that begins with random numbers those of its parameters that lie apart.
    ///
    /// *Blocks* on the disk. *Errors*: the run has others.
    pub(super) fn begin_without(&self, replica: &mut dyn Replica) -> Result<(), CliError> {
        let layout = &replica.about().layout;
        let frozen = match self.kept_frozen(layout)? {
            Some(kept) => kept,
            None => layout.first_frozen(self.config.seed, |_| true).into(),
        };
        self.set_frozen(replica, frozen)
    }

    /// What the folder of the run has of the parameters that lie apart, if it is there already.
    fn kept_frozen(&self, layout: &Layout) -> Result<Option<Frozen>, CliError> {
        let Some(run) = self.frozen.run.as_ref().filter(|_| layout.frozen_len() > 0) else { return Ok(None) };
        let kept = FrozenParameters::read(run)?;
        self.check_frozen(|| kept.digest)?;
        kept.of(layout).map(Some)
    }

    fn set_frozen(&self, replica: &mut dyn Replica, values: Frozen) -> Result<(), CliError> {
        if self.frozen.run.is_none() && !values.is_empty() {
            self.check_frozen(|| frozen_digest(&values))?;
        }
        Ok(replica.set_frozen(values).map_err(|error| self.misfit(&error))?)
    }

    /// Holds parameters that lie apart against what they must be.
    fn check_frozen(&self, got: impl Fn() -> Digest) -> Result<(), CliError> {
        match self.frozen.digest {
            Some(wanted) if got() != wanted => {
                let message = "the parameters that stay as they are are not those that the run began with";
                let hint =
                    "model.init_from has to be the same file on all hosts, and as it was when the run began";
                Err(self.config.problem("model.init_from", message).hint(hint).into())
            }
            _ => Ok(()),
        }
    }
}

/// Fills parameters and running statistics, by any names that a file may have, but for what begins anew; a moving average begins with the
/// parameters.
fn fill_model(
    replica: &dyn Replica,
    file: &Path,
    (kind, except): (ModelKind, &[String]),
    state: &mut State,
    mut frozen: Option<&mut [f32]>,
) -> Result<(), InitError> {
    let plain = tensor_specs(replica, ["", ""], except);
    // Files that dtrain exported name tensors as its checkpoints do.
    let exported = tensor_specs(replica, [EXPORTED_PARAMETERS, EXPORTED_STATS], except);
    let mut fill = |names: &dyn Names, specs: &[TensorSpec]| {
        let names = &Without { names, except };
        let [parameters, stats, ..] = state.sections_mut();
        let mut sections =
            vec![SectionMut { name: PARAMETERS, data: parameters }, SectionMut { name: STATS, data: stats }];
        sections.extend(frozen.as_deref_mut().map(|data| SectionMut { name: FROZEN, data }));
        dtrain_checkpoint::init_from(file, names, specs, &mut sections)
    };
    let mut filled = fill(&ModelNames, &plain);
    if matches!(filled, Err(InitError::Misfit { .. })) {
        filled = filled.or_else(|error| fill(&ModelNames, &exported).map_err(|other| nearer(error, other)));
    }
    if kind == ModelKind::Vit {
        filled =
            filled.or_else(|error| fill(&TorchvisionNames, &plain).map_err(|other| nearer(error, other)));
    }
    if kind == ModelKind::Gpt2 {
        for names in Gpt2Names::ALL {
            filled = filled.or_else(|error| fill(&names, &plain).map_err(|other| nearer(error, other)));
        }
    }
    if kind == ModelKind::Llama {
        filled = filled.or_else(|error| fill(&LlamaNames, &plain).map_err(|other| nearer(error, other)));
    }
    filled?;
    state.begin_average();
    Ok(())
}

/// Fills all sections, by the names that they have in checkpoints; a moving average that the file lacks begins with the parameters.
fn fill_all(
    replica: &dyn Replica,
    file: &Path,
    state: &mut State,
    mut frozen: Option<&mut [f32]>,
) -> Result<(), InitError> {
    let is_kept = |spec: &TensorSpec| !spec.name.ends_with(LossScale::NAME);
    let specs = specs(replica).into_iter().filter(is_kept);
    let specs: Vec<_> = specs.chain(frozen_specs(&replica.about().layout)).collect();
    let mut fill = |sections: &[Section]| {
        let all = Section::ALL.into_iter().zip(state.sections_mut());
        let wanted = all.filter(|(section, data)| sections.contains(section) && !data.is_empty());
        let mut wanted: Vec<_> =
            wanted.map(|(section, data)| SectionMut { name: section.name(), data }).collect();
        wanted.extend(frozen.as_deref_mut().map(|data| SectionMut { name: FROZEN, data }));
        dtrain_checkpoint::init_from(file, &StateNames, &specs, &mut wanted)
    };
    if let Err(error) = fill(&Section::ALL) {
        let [always @ .., _] = &Section::ALL;
        fill(always).map_err(|_| error)?;
        state.begin_average();
    }
    Ok(())
}

/// Fills what is trained beside the layers of a model from a folder of adapters, or their file; a moving average begins with it.
fn fill_adapters(replica: &dyn Replica, adapters: &Path, state: &mut State) -> Result<(), InitError> {
    let file = if adapters.is_dir() { adapters.join(ADAPTERS) } else { adapters.to_owned() };
    let tensors = replica.about().layout.tensors.iter();
    let specs: Vec<_> = tensors
        .filter(|tensor| tensor.section == Section::Parameters && !tensor.frozen)
        .map(|tensor| TensorSpec::new(&tensor.name, &tensor.shape, PARAMETERS, tensor.offset))
        .collect();
    let [parameters, ..] = state.sections_mut();
    let mut sections = [SectionMut { name: PARAMETERS, data: parameters }];
    dtrain_checkpoint::init_from(&file, &PeftNames, &specs, &mut sections)?;
    state.begin_average();
    Ok(())
}

/// Of two ways in which a file does not fit, the one in which it nearly does.
fn nearer(one: InitError, other: InitError) -> InitError {
    match (&one, &other) {
        (InitError::Misfit { problems, .. }, InitError::Misfit { problems: fewer, .. })
            if fewer.len() < problems.len() =>
        {
            other
        }
        _ => one,
    }
}

/// The names in a file of which some tensors are passed over.
struct Without<'a> {
    names: &'a dyn Names,
    except: &'a [String],
}

impl Names for Without<'_> {
    fn of(&self, tensor: &str) -> Given {
        self.names.of(tensor)
    }

    fn is_no_parameter(&self, name: &str) -> bool {
        let prefixes = [EXPORTED_PARAMETERS, EXPORTED_STATS];
        let bare = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        self.names.is_no_parameter(name) || self.except.iter().any(|pattern| fits(pattern, bare))
    }
}

/// What the prefix of parameters is where dtrain exported them.
const EXPORTED_PARAMETERS: &str = "model.";
/// What the prefix of running statistics is there.
const EXPORTED_STATS: &str = "stats.";

/// The names of a model. The scale of a loss is nothing that another run begins with.
struct ModelNames;

impl Names for ModelNames {
    fn of(&self, tensor: &str) -> Given {
        OwnNames.of(tensor)
    }

    fn is_no_parameter(&self, name: &str) -> bool {
        // PyTorch's batch norms count their batches, which nothing here depends on.
        name.strip_prefix(EXPORTED_STATS).unwrap_or(name) == LossScale::NAME
            || name.ends_with("num_batches_tracked")
    }
}

/// The names of a model as torchvision has them: PyTorch's attention keeps the weights of queries, keys and values itself.
struct TorchvisionNames;

impl Names for TorchvisionNames {
    fn of(&self, tensor: &str) -> Given {
        OwnNames.of(&tensor.replace(".in_proj.", ".in_proj_"))
    }

    fn is_no_parameter(&self, name: &str) -> bool {
        ModelNames.is_no_parameter(name)
    }
}

/// The names of a whole state. What this run's optimizer does not keep is passed over.
struct StateNames;

impl Names for StateNames {
    fn of(&self, tensor: &str) -> Given {
        OwnNames.of(tensor)
    }

    fn is_no_parameter(&self, name: &str) -> bool {
        ModelNames.is_no_parameter(name)
            || ["optimizer.", "average."].iter().any(|kept| name.starts_with(kept))
    }
}

/// The model's tensors by the names in a file, but for what begins anew.
fn tensor_specs(replica: &dyn Replica, [parameters, stats]: [&str; 2], except: &[String]) -> Vec<TensorSpec> {
    let named = |tensor: &dtrain_engine::Tensor| {
        let prefix = if tensor.section == Section::Stats { stats } else { parameters };
        let name = format!("{prefix}{}", tensor.name);
        TensorSpec::new(name, &tensor.shape, tensor.section.name(), tensor.offset)
    };
    let anew = |name: &str| name == LossScale::NAME || except.iter().any(|pattern| fits(pattern, name));
    let Layout { tensors, frozen, .. } = &replica.about().layout;
    tensors.iter().chain(frozen).filter(|tensor| !anew(&tensor.name)).map(named).collect()
}
