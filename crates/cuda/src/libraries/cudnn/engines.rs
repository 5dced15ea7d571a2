//! The engines that cuDNN has for a graph: which it offers, one of them as data, and a plan of it that can be run.
//!
//! It does not know what graphs compute, nor how one is told.

use super::super::LibraryError;
use super::descriptors::done;
use super::graph::{Descriptor, OperationGraph, Raw, Tensor, Told, name_of, told};
use super::handle::CANDIDATES;
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind,
};
use serde::{Deserialize, Serialize};

/// Engines that are offered for a graph and read.
const OFFERS: usize = 16;
/// Settings of an engine that are read.
const KNOBS: usize = 64;
/// Notes on an engine that are read.
const NOTES: usize = 32;

/// Where a tensor lies.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Address(u64);

/// Which setting of an engine: a number, so that one which is newer than the bindings is none.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct KnobType(u32);

/// A note on an engine, as a number.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Note(u32);

told! {
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
    Address: CUDNN_TYPE_VOID_PTR,
    KnobType: CUDNN_TYPE_KNOB_TYPE,
    Note: CUDNN_TYPE_NUMERICAL_NOTE,
}

/// How an engine does a graph, written down: the library's numbers of it and of its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineChoice {
    /// Which of the engines.
    pub engine: i64,
    /// Settings, each with its value, in their order.
    pub knobs: Vec<(u32, i64)>,
}

impl OperationGraph {
    /// What the library offers, the one that it thinks fastest first: engines that keep the rules ([`keeps_the_rules`]). None if it has
    /// none.
    fn offers(&self) -> Result<Vec<EngineChoice>, LibraryError> {
        use sys::cudnnBackendHeurMode_t::{CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
        let mut all = Vec::new();
        for mode in [CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK] {
            let draft = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
                .with(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[self.graph.raw()])?
                .with(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
            let asked = self.target.tell(draft, [None, Some(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)])?;
            let asked = match asked.finished() {
                Err(LibraryError::Call { .. }) => continue,
                asked => asked?,
            };
            let blank = || Descriptor::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
            let configurations: Vec<_> = (0..OFFERS).map(|_| blank()).collect::<Result<_, _>>()?;
            let mut raw: Vec<Raw> = configurations.iter().map(Descriptor::raw).collect();
            let found = asked.read(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, &mut raw)?;
            for configuration in &configurations[..found] {
                let choice = self.choice_of(configuration)?;
                if let Some(choice) = choice.filter(|choice| !all.contains(choice)) {
                    all.push(choice);
                }
            }
        }
        Ok(all)
    }

    /// What a configuration of the library says, if it keeps the rules.
    fn choice_of(&self, configuration: &Descriptor) -> Result<Option<EngineChoice>, LibraryError> {
        let engine = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        configuration.read(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &mut [engine.raw()])?;
        if !keeps_the_rules(&engine)? {
            return Ok(None);
        }
        let blank = || Descriptor::new(Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        let choices: Vec<_> = (0..KNOBS).map(|_| blank()).collect::<Result<_, _>>()?;
        let mut raw: Vec<Raw> = choices.iter().map(Descriptor::raw).collect();
        let found = configuration.read(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &mut raw)?;
        let knob = |choice: &Descriptor| {
            let mut which = [KnobType(0)];
            choice.read(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &mut which)?;
            Ok((which[0].0, choice.number(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)?))
        };
        let mut knobs: Vec<_> = choices[..found].iter().map(knob).collect::<Result<_, LibraryError>>()?;
        knobs.sort_unstable();
        Ok(Some(EngineChoice { engine: engine.number(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?, knobs }))
    }

    /// The graph as an engine does it; nothing where that keeps no rules. *Blocks* while the library prepares it.
    ///
    /// *Errors*: [`LibraryError::Call`] if the library has no such engine for it.
    fn plan(self, choice: &EngineChoice) -> Result<Option<Plan>, LibraryError> {
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_ENGINE_OPERATION_GRAPH, &[self.graph.raw()])?
            .with(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &[choice.engine])?;
        let engine = self.target.tell(draft, [None, Some(Name::CUDNN_ATTR_ENGINE_DEVICEPROP)])?.finished()?;
        if !keeps_the_rules(&engine)? {
            return Ok(None);
        }
        let knob = |(which, value): &(u32, i64)| {
            Descriptor::new(Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)?
                .with(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &[KnobType(*which)])?
                .with(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &[*value])?
                .finished()
        };
        let knobs: Vec<_> = choice.knobs.iter().map(knob).collect::<Result<_, _>>()?;
        let raw: Vec<Raw> = knobs.iter().map(Descriptor::raw).collect();
        let configuration = Descriptor::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &[engine.raw()])?
            .with(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &raw)?
            .finished()?;
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration.raw()])?;
        let by =
            [Some(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE), Some(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)];
        let plan = self.target.tell(draft, by)?.finished()?;
        let workspace = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        Ok(Some(Plan { plan, workspace: workspace.max(0) as u64, _of: (self, engine, configuration, knobs) }))
    }
}

/// Whether an engine multiplies what it is given, adds up in f32, and gives the same bits each time, as far as the library notes it. What is
/// newer than these notes is not known to keep the rules.
fn keeps_the_rules(engine: &Descriptor) -> Result<bool, LibraryError> {
    use sys::cudnnBackendNumericalNote_t as Of;
    let harmless =
        [Of::CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32, Of::CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP as u32];
    let mut notes = [Note(0); NOTES];
    let found = engine.read(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &mut notes)?;
    Ok(notes[..found].iter().all(|note| harmless.contains(&note.0)))
}

/// An engine that was prepared for a graph, and that graph's tensors.
pub(super) struct Prepared<T> {
    pub choice: EngineChoice,
    pub plan: Plan,
    pub tensors: T,
}

/// Engines for a graph that are offered and not refused when they are prepared, the one that the library thinks fastest first: at most
/// [`CANDIDATES`], of those that need no more workspace than `most`. *Blocks* while the library prepares them.
///
/// None if it has none, or takes no such graphs.
pub(super) fn prepared<T>(
    graph: impl Fn() -> Result<(OperationGraph, T), LibraryError>,
    most: u64,
) -> Result<Vec<Prepared<T>>, LibraryError> {
    let offers = match graph().and_then(|(graph, _)| graph.offers()) {
        Err(LibraryError::Call { call, status }) => {
            tracing::debug!(call, status, "cuDNN takes no such graph");
            Vec::new()
        }
        offers => offers?,
    };
    let mut all = Vec::new();
    for choice in offers {
        if all.len() == CANDIDATES {
            break;
        }
        let (graph, tensors) = graph()?;
        match graph.plan(&choice) {
            Err(LibraryError::Call { .. }) | Ok(None) => {}
            Ok(Some(plan)) if plan.workspace <= most => all.push(Prepared { choice, plan, tensors }),
            Ok(Some(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// A graph by an engine that was pinned, with so much workspace. *Blocks* while the library prepares it.
///
/// *Errors*: why it cannot be used; [`LibraryError`] where the library fails otherwise.
pub(super) fn accepted(
    graph: OperationGraph,
    choice: &EngineChoice,
    workspace: u64,
) -> Result<Result<Plan, String>, LibraryError> {
    let engine = choice.engine;
    let plan = match graph.plan(choice) {
        Err(LibraryError::Call { call, status }) => {
            return Ok(Err(format!("engine {engine} is not there for it: {call} returned {status}")));
        }
        plan => plan?,
    };
    Ok(match plan {
        None => Err(format!("engine {engine} gives other bits each time, or transforms what it multiplies")),
        Some(plan) if plan.workspace > workspace => {
            Err(format!("it needs {} bytes of workspace, not {workspace}", plan.workspace))
        }
        Some(plan) => Ok(plan),
    })
}

/// A graph with the engine that does it.
pub(super) struct Plan {
    plan: Descriptor,
    /// Bytes of workspace.
    pub workspace: u64,
    /// What it was made of.
    _of: (OperationGraph, Descriptor, Descriptor, Vec<Descriptor>),
}

impl Plan {
    /// Puts it on the handle's stream.
    ///
    /// *Errors*: [`LibraryError::Call`].
    ///
    /// # Safety
    /// The tensors of the graph that are no virtual ones lie at these addresses, until the stream is through, or until the call returns where it
    /// is a number of the host; nobody else uses what is written and the workspace until then. The handle is of the context that is current.
    pub unsafe fn run<const N: usize>(
        &self,
        handle: sys::cudnnHandle_t,
        tensors: [(Tensor, u64); N],
        workspace: u64,
    ) -> Result<(), LibraryError> {
        let (names, at) = (tensors.map(|(tensor, _)| name_of(tensor)), tensors.map(|(_, at)| Address(at)));
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &names)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &at)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(workspace)])?
            .finished()?;
        // SAFETY: both are alive; the rest is the caller's promise.
        done("cudnnBackendExecute", unsafe {
            sys::cudnnBackendExecute(handle, self.plan.0.what, pack.0.what)
        })
    }
}
