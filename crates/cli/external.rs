//! Data and a model that another program brings into this process: a script of Python, with PyTorch.
//!
//! The process that starts a run makes the model too, to know its tensors; what it found goes to the ranks, each of which holds it
//! against what it made itself. This file does not know the program.

use crate::config::{Config, Precision};
use crate::own::Own;
use dtrain_data::Opened;
use dtrain_engine::{ExternalModel, ExternalTensor, OwnMetric, ProgramOnDevice};
use dtrain_runtime::Program;
use dtrain_types::{Fingerprint, Seed};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file in the folder of a run in which such a program tells what a checkpoint does not hold.
pub const PROGRAM: &str = "program.json";

/// What a program brings, where it is not the binary.
#[derive(Clone, Copy)]
pub enum Brought {
    /// Data, and a model made of stages.
    Stages(Own),
    /// Data and a model whose passes it makes itself.
    External(&'static dyn ExternalProgram),
}

/// Another program in this process. All ranks must find it alike: they are processes of their own, in which it is started again.
pub trait ExternalProgram: Sync {
    /// What its data are called: the name of its runs.
    fn name(&self) -> String;

    /// Its samples. The inputs of a sample are for the program itself: they are passed on to its model.
    ///
    /// *Errors*: a data set that cannot be trained on, in the program's own words.
    fn data(&self) -> Result<Opened, String>;

    /// Its metrics by their names, beside loss and accuracy.
    fn metrics(&self) -> Vec<(String, OwnMetric)>;

    /// Makes its model, and tells all of it.
    ///
    /// *Blocks* for as long as that takes. *Errors*: in the program's own words.
    fn build(&self, setup: &ExternalSetup) -> Result<ExternalParts, String>;

    /// The passes of the model that was built, for a state in the host's memory.
    fn passes(&self) -> Box<dyn ExternalModel>;

    /// The passes of the model that was built for [`StatePlace::Gpu`].
    fn passes_on_gpu(&self) -> Box<dyn ProgramOnDevice>;

    /// Hears, in the process that starts a run, in which folder that lies: before its first step, and when it goes on.
    ///
    /// *Errors*: what belongs there cannot be written.
    fn begun(&self, folder: &Path) -> Result<(), String>;

    /// What a rank process runs.
    fn rank_program(&self) -> Program;

    /// What a process runs that needs nothing of the program, such as the one that holds the ranks: it calls
    /// [`crate::serving::serve_alone`] with the words behind these arguments.
    fn dtrain_alone(&self) -> Program;

    /// Whose GPUs it computes on. No GPU is asked.
    fn built_for(&self) -> BuiltFor;

    /// Whether it can compute on the GPUs of this host. Nothing is left there.
    ///
    /// *Errors*: why not, in words that go on behind those for the GPUs.
    fn reaches_gpus(&self) -> Result<(), String>;
}

/// Whose GPUs a program computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltFor {
    /// Nobody's: on CPUs alone.
    Cpus,
    /// NVIDIA's.
    Nvidia,
    /// AMD's.
    Amd,
}

/// For what a model is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To know its tensors: nothing is computed.
    Shapes,
    /// To train as a rank: what it computes is tried first.
    Training,
}

/// Who makes the updates of an external model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// The engine.
    Engine,
    /// The program.
    Program,
}

/// Where the state of a model lies, its gradients with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePlace {
    /// In the host's memory.
    Host,
    /// On the GPU that computes, whose work is put on this stream: a `CUstream` of the GPU's primary context.
    Gpu {
        /// Its handle.
        stream: u64,
    },
}

/// How a model is made.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalSetup {
    /// For what.
    pub purpose: Purpose,
    /// From which all its random numbers follow.
    pub seed: Seed,
    /// Compute threads.
    pub threads: u32,
    /// The GPU that it computes on; none: the CPU.
    pub gpu: Option<u32>,
    /// Where its state lies.
    pub state: StatePlace,
    /// What products round their operands to, if the program leaves that to dtrain.
    pub precision: Precision,
    /// Rows of a micro-batch, at most.
    pub micro_batch: u32,
    /// Samples of a step.
    pub global_batch: u32,
    /// Processes that read samples for it; 0: it reads them itself.
    pub workers: usize,
    /// Who makes the updates.
    pub updates: Updates,
}

/// A model that was made.
pub struct ExternalParts {
    /// Its tensors: parameters, then running statistics, then what its optimizer keeps.
    pub tensors: Vec<ExternalTensor>,
    /// The first values of its parameters.
    pub parameters: Vec<f32>,
    /// Those of its running statistics.
    pub stats: Vec<f32>,
    /// By which ranks find out whether they compute alike.
    pub fingerprint: Fingerprint,
    /// What it computes on, for people.
    pub device: String,
    /// What has to be the same in all processes of a run.
    pub agreement: Agreement,
}

/// What has to be the same in all processes of a run: what it is, and its value, in an order that all have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement(pub Vec<(String, String)>);

impl Agreement {
    /// Holds what a rank found against what the process found that started the run.
    ///
    /// *Errors*: the first difference, in a sentence.
    pub fn check(&self, found: &Self) -> Result<(), String> {
        let hint = "\nhint: model() and the data must come out alike in every process: no random numbers but those that the seed \
                    gives, no time, no process id, the same files";
        let (ours, theirs) = (&found.0, &self.0);
        for ((what, value), (expected_what, expected)) in ours.iter().zip(theirs) {
            if what != expected_what {
                return Err(format!("this rank has {what} where the run has {expected_what}{hint}"));
            }
            if value != expected {
                return Err(format!("{what} is {value} in this rank, and {expected} in the run{hint}"));
            }
        }
        let more = |list: &[(String, String)], than: usize| list.get(than).map(|(what, _)| what.clone());
        match (more(ours, theirs.len()), more(theirs, ours.len())) {
            (Some(what), _) => Err(format!("this rank has {what}, and the run has not{hint}")),
            (None, Some(what)) => Err(format!("the run has {what}, and this rank has not{hint}")),
            (None, None) => Ok(()),
        }
    }
}

/// Whether the passes of this configuration are another program's.
#[must_use]
pub fn is_external(config: &Config) -> bool {
    config.data_kind() == "torch"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(pairs: &[(&str, &str)]) -> Agreement {
        Agreement(pairs.iter().map(|(what, value)| ((*what).into(), (*value).into())).collect())
    }

    #[test]
    fn the_first_difference_is_named() {
        let run = agreement(&[("the number of training samples", "10"), ("parameter 0.weight", "[2, 3] 1f")]);
        assert_eq!(run.check(&run.clone()), Ok(()));
        let refused = |found: &[(&str, &str)]| run.check(&agreement(found)).unwrap_err();
        let samples =
            refused(&[("the number of training samples", "9"), ("parameter 0.weight", "[2, 3] 1f")]);
        assert!(
            samples.starts_with("the number of training samples is 9 in this rank, and 10 in the run\nhint:")
        );
        let other = refused(&[("the number of training samples", "10"), ("parameter 0.bias", "[2] 1f")]);
        assert!(
            other.starts_with("this rank has parameter 0.bias where the run has parameter 0.weight"),
            "{other}"
        );
        let fewer = refused(&[("the number of training samples", "10")]);
        assert!(fewer.starts_with("the run has parameter 0.weight, and this rank has not"), "{fewer}");
    }
}
