//! What the ranks of a host train on, once that is chosen, and what follows from it: whether there is room, who reads the GPUs.
//!
//! It does not know how it was chosen.

use super::judged::{Judged, TestVerdict};
use crate::config::{Config, CudaList, Precision, Problem};
use crate::external::is_external;
use crate::report::bytes;
use dtrain_telemetry::{GPU_INTERVAL, Gpu, GpuWatch, Gpus};
use dtrain_types::Bytes;
use std::path::PathBuf;
use std::sync::Arc;

/// What the ranks of this host train on.
#[derive(Clone, Debug, PartialEq)]
pub enum Chosen {
    /// The CPU, and why, where the user left it to dtrain.
    Cpu {
        /// For people; nothing where the user asked for the CPU.
        why: Option<String>,
    },
    /// These GPUs.
    Gpus {
        /// In the order of ranks.
        list: CudaList,
        /// What NVML told of them, in the same order; nothing where there is no NVML.
        gpus: Vec<Gpu>,
        /// Where NVML is.
        nvml: Option<PathBuf>,
        /// For people; nothing where the user named them.
        why: Option<String>,
    },
}

/// What `devices: auto` may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// GPUs, if a test of them has passed.
    ByTest,
    /// The CPU alone, for this reason.
    Cpu(&'static str),
}

/// Why GPUs are refused, and a hint.
pub type Refused = (String, String);

/// `2 GPUs are here`.
pub(super) fn are_here(count: usize) -> String {
    match count {
        1 => "one GPU is here".to_owned(),
        some => format!("{some} GPUs are here"),
    }
}

impl Chosen {
    /// These GPUs, which nobody named, and why no test is needed.
    pub(super) fn untested(self, words: &str) -> Self {
        match self {
            Self::Gpus { list, gpus, nvml, .. } => {
                let why = Some(format!("auto: {}, and {words}", are_here(gpus.len())));
                Self::Gpus { list, gpus, nvml, why }
            }
            cpu @ Self::Cpu { .. } => cpu,
        }
    }

    /// These GPUs, if a test of them has passed; else the CPU, and why.
    pub(super) fn judged(self, verdict: impl FnOnce(&CudaList) -> Judged) -> Self {
        let Self::Gpus { list, gpus, nvml, .. } = self else { return self };
        let Judged { verdict, kept } = verdict(&list);
        let (is, [they, them]) =
            (are_here(gpus.len()), if gpus.len() == 1 { ["it", "it"] } else { ["they", "them"] });
        let why = match (&verdict, kept) {
            (TestVerdict::Passed, Ok(file)) => {
                let why = Some(format!("auto: {is}, and the test of {them} has passed ({})", file.display()));
                return Self::Gpus { list, gpus, nvml, why };
            }
            (TestVerdict::Passed, Err(why)) => {
                let why =
                    Some(format!("auto: {is}, and the test of {them} has passed; that is not kept: {why}"));
                return Self::Gpus { list, gpus, nvml, why };
            }
            (TestVerdict::Failed(words), _) => format!("the test of {them} has failed: {words}"),
            (TestVerdict::Unknown(words), _) => format!("{they} cannot be tested: {words}"),
        };
        Self::Cpu { why: Some(format!("auto: {is}, and {why}; devices=all trains there all the same")) }
    }

    /// The same for a configuration whose model `auto` cannot train there; it has to suit the precision too.
    ///
    /// *Errors*: a precision that only GPUs have.
    pub fn unless(self, lacking: Result<(), Problem>, config: &Config) -> Result<Self, Problem> {
        match (&self, lacking) {
            (Self::Gpus { why: Some(_), .. }, Err(problem)) => {
                let why = Some(format!("auto: {}", problem.message));
                Self::Cpu { why }.suits(config)
            }
            _ => Ok(self),
        }
    }

    /// Itself, if it has the precision that is asked for.
    ///
    /// *Errors*: a precision that only GPUs have.
    pub(super) fn suits(self, config: &Config) -> Result<Self, Problem> {
        match (&self, config.precision) {
            // A program of its own rounds to halves by itself.
            (_, Precision::F32 | Precision::Bf16 | Precision::F16) if is_external(config) => Ok(self),
            (Self::Cpu { why }, asked @ (Precision::Tf32 | Precision::F16)) => {
                let why = why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                let words = format!("{} is for GPUs, and this host trains on its CPU{why}", asked.name());
                let problem = config.problem("precision", words);
                let hint =
                    "devices=cuda:0 or devices=all trains on GPUs; precision=f32 or bf16 is what a CPU has";
                Err(problem.hint(hint))
            }
            _ => Ok(self),
        }
    }

    /// The GPUs, if it is some.
    #[must_use]
    pub fn cuda(&self) -> Option<CudaList> {
        match self {
            Self::Cpu { .. } => None,
            Self::Gpus { list, .. } => Some(list.clone()),
        }
    }

    /// Begins to read the GPUs that were chosen, if there are some and they can be read.
    #[must_use]
    pub fn watch(&self) -> Option<Arc<GpuWatch>> {
        let Self::Gpus { gpus, nvml: Some(library), .. } = self else { return None };
        let numbers = gpus.iter().map(|gpu| gpu.index).collect();
        let all = Gpus::open(library).map_err(|error| error.to_string());
        let watch = all
            .and_then(|all| GpuWatch::start(all, numbers, GPU_INTERVAL).map_err(|error| error.to_string()));
        // A run goes on without readings.
        watch.map(Arc::new).inspect_err(|error| tracing::warn!(%error, "the GPUs are not read")).ok()
    }

    /// Which of the GPUs others compute on too: that is allowed, and slow.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let Self::Gpus { list, gpus, .. } = self else { return None };
        let both = list.numbers().iter().zip(gpus);
        let taken = both.filter(|(_, gpu)| gpu.processes.as_ref().is_some_and(|pids| !pids.is_empty()));
        let taken: Vec<String> = taken.map(|(number, _)| format!("cuda:{number}")).collect();
        (!taken.is_empty())
            .then(|| format!("others compute on {} too; `dtrain doctor` shows who", taken.join(" and ")))
    }

    /// Whether the GPUs have room for their ranks, as far as NVML tells.
    ///
    /// *Errors*: the first one that has not, and who else uses it.
    pub fn has_room(&self, config: &Config, a_rank: Bytes) -> Result<(), Problem> {
        let Self::Gpus { list, gpus, .. } = self else { return Ok(()) };
        let ranks = config.world.ranks;
        for (number, gpu) in list.numbers().iter().zip(gpus) {
            let here = (0..ranks).filter(|place| list.of_rank(*place, ranks) == *number).count() as u64;
            let (Some(all), Some(used)) = (gpu.memory, gpu.now.memory_used) else { continue };
            let (free, needed) = (all.0.saturating_sub(used.0), a_rank.0.saturating_mul(here));
            if needed <= free {
                continue;
            }
            let message = format!(
                "cuda:{number} has {} free of {}, and {} {}",
                bytes(free),
                bytes(all.0),
                if here == 1 { "1 rank needs".to_owned() } else { format!("{here} ranks need") },
                bytes(needed)
            );
            let others = gpu.processes.as_deref().unwrap_or_default();
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            let hint = match others.is_empty() {
                true => "a smaller micro_batch or fewer ranks need less; `dtrain plan` shows what takes it"
                    .to_owned(),
                false => format!("process {} uses it: end it, or name another GPU", others.join(", ")),
            };
            return Err(config.problem("devices", message).hint(hint));
        }
        Ok(())
    }
}
