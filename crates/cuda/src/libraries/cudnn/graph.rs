//! Operations between tensors that cuDNN does in one go: its graphs, the engines that it has for one, and plans.
//!
//! A graph is told by descriptors: first tensors, then the operations between them, then all of these. Tensors in between are virtual: the
//! library never writes them. Everything that was made stays until the graph goes.
//!
//! *Source*: NVIDIA's documentation of the graph API (`cudnn_graph_v9.h`).
//!
//! It does not know what graphs compute.

use super::super::LibraryError;
use super::descriptors::{Made, done};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnDataType_t as DataType, cudnnPointwiseMode_t as Pointwise,
    cudnnReduceTensorOp_t as Reduction,
};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::ptr;

/// Engines that are offered for a graph and read.
const OFFERS: usize = 16;
/// Settings of an engine that are read.
const KNOBS: usize = 64;
/// Notes on an engine that are read.
const NOTES: usize = 32;
/// What tensors begin on multiples of. *Units*: bytes.
const ALIGNED: i64 = 16;

/// A number as the library takes and gives it.
trait Told: Copy {
    const TYPE: Type;
}

/// Something finished that was made before.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Raw(*mut c_void);

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

macro_rules! told {
    ($($(#[$when:meta])? $of:ty: $what:ident,)*) => {
        $(
            $(#[$when])?
            impl Told for $of {
                const TYPE: Type = Type::$what;
            }
        )*
    };
}

told! {
    i64: CUDNN_TYPE_INT64,
    bool: CUDNN_TYPE_BOOLEAN,
    DataType: CUDNN_TYPE_DATA_TYPE,
    Pointwise: CUDNN_TYPE_POINTWISE_MODE,
    Reduction: CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
    sys::cudnnHandle_t: CUDNN_TYPE_HANDLE,
    Raw: CUDNN_TYPE_BACKEND_DESCRIPTOR,
    Address: CUDNN_TYPE_VOID_PTR,
    KnobType: CUDNN_TYPE_KNOB_TYPE,
    Note: CUDNN_TYPE_NUMERICAL_NOTE,
    #[cfg(test)]
    u8: CUDNN_TYPE_CHAR,
}

/// A descriptor.
struct Descriptor(Made<sys::cudnnBackendDescriptor_t>);

impl Descriptor {
    fn new(kind: Kind) -> Result<Self, LibraryError> {
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call.
        done("cudnnBackendCreateDescriptor", unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut what) })?;
        Ok(Self(Made::taken(what, sys::cudnnBackendDestroyDescriptor)))
    }

    fn raw(&self) -> Raw {
        Raw(self.0.what)
    }

    /// Sets an attribute before it is finished.
    fn with<T: Told>(self, name: Name, values: &[T]) -> Result<Self, LibraryError> {
        let count = values.len() as i64;
        // SAFETY: the descriptor is alive; there are as many values as is told, of the type that is told.
        let status = unsafe {
            sys::cudnnBackendSetAttribute(self.0.what, name, T::TYPE, count, values.as_ptr().cast())
        };
        match done("cudnnBackendSetAttribute", status) {
            Err(LibraryError::Call { call, status }) => {
                Err(LibraryError::Call { call, status: format!("{status} for {name:?}") })
            }
            set => set.map(|()| self),
        }
    }

    /// From now on nothing of it changes.
    fn finished(self) -> Result<Self, LibraryError> {
        // SAFETY: the descriptor is alive.
        done("cudnnBackendFinalize", unsafe { sys::cudnnBackendFinalize(self.0.what) }).map(|()| self)
    }

    /// The values of an attribute, at most as many as are given; how many there are comes back.
    fn read<T: Told>(&self, name: Name, to: &mut [T]) -> Result<usize, LibraryError> {
        let (mut found, most) = (0, to.len() as i64);
        // SAFETY: the descriptor is alive; there is room for as many values as is told, of the type that is told.
        let status = unsafe {
            let to = to.as_mut_ptr().cast();
            sys::cudnnBackendGetAttribute(self.0.what, name, T::TYPE, most, &mut found, to)
        };
        done("cudnnBackendGetAttribute", status)?;
        Ok(found.clamp(0, most) as usize)
    }

    fn number(&self, name: Name) -> Result<i64, LibraryError> {
        let mut number = [0i64];
        self.read(name, &mut number).map(|_| number[0])
    }
}

/// Four sizes or strides, in elements.
pub(super) type Four = [i64; 4];

/// A tensor of a graph that is being written: its place among them.
#[derive(Clone, Copy)]
pub(super) struct Tensor(usize);

/// Which GPU a graph is for.
pub(super) enum Target {
    /// That of a handle.
    Of(sys::cudnnHandle_t),
    /// One that is told, and is not there: nothing is run.
    #[cfg(test)]
    Told(Properties),
}

/// What a GPU is.
#[cfg(test)]
pub(super) struct Properties(Descriptor);

#[cfg(test)]
impl Properties {
    /// From cuDNN 9.8 on.
    pub fn new(json: &str) -> Result<Self, LibraryError> {
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        draft.with(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?.finished().map(Self)
    }
}

impl Target {
    /// Tells a descriptor, by the first name of a handle and by the second of what is told.
    fn tell(&self, draft: Descriptor, by: [Option<Name>; 2]) -> Result<Descriptor, LibraryError> {
        match (self, by) {
            (Self::Of(handle), [Some(name), _]) => draft.with(name, &[*handle]),
            #[cfg(test)]
            (Self::Told(Properties(it)), [_, Some(name)]) => draft.with(name, &[it.raw()]),
            _ => Ok(draft),
        }
    }
}

/// Where the numbers of a tensor are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory of the device, whose address is told when it is run.
    Memory,
    /// Nowhere.
    Virtual,
    /// It is one number of the host, told when it is run.
    Host,
}

/// A graph that is being written.
#[derive(Default)]
pub(super) struct GraphDraft {
    tensors: Vec<(Descriptor, Four)>,
    /// What operations are told by.
    told: Vec<Descriptor>,
    operations: Vec<Descriptor>,
}

impl GraphDraft {
    pub fn tensor(
        &mut self,
        place: Place,
        numbers: DataType,
        sizes: Four,
        strides: Four,
    ) -> Result<Tensor, LibraryError> {
        let at = self.tensors.len();
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[numbers])?
            .with(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &sizes)?
            .with(Name::CUDNN_ATTR_TENSOR_STRIDES, &strides)?
            .with(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[name_of(Tensor(at))])?
            .with(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNED])?;
        let draft = match place {
            Place::Memory => draft,
            Place::Virtual => draft.with(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?,
            Place::Host => draft.with(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?,
        };
        self.tensors.push((draft.finished()?, sizes));
        Ok(Tensor(at))
    }

    /// One number of the host.
    pub fn one(&mut self) -> Result<Tensor, LibraryError> {
        self.tensor(Place::Host, DataType::CUDNN_DATA_FLOAT, [1; 4], [1; 4])
    }

    /// A virtual tensor, row by row.
    pub fn between(&mut self, numbers: DataType, sizes: Four) -> Result<Tensor, LibraryError> {
        self.tensor(Place::Virtual, numbers, sizes, by_rows(sizes))
    }

    fn raw(&self, tensor: Tensor) -> Raw {
        self.tensors[tensor.0].0.raw()
    }

    fn operation(
        &mut self,
        kind: Kind,
        told: Option<(Name, Descriptor)>,
        tensors: &[(Name, Tensor)],
    ) -> Result<(), LibraryError> {
        let mut draft = Descriptor::new(kind)?;
        if let Some((name, told)) = told {
            draft = draft.with(name, &[told.raw()])?;
            self.told.push(told);
        }
        for (name, tensor) in tensors {
            draft = draft.with(*name, &[self.raw(*tensor)])?;
        }
        self.operations.push(draft.finished()?);
        Ok(())
    }

    /// `y` of one to three tensors, number by number: the third of a selection says where the first is taken.
    pub fn pointwise(
        &mut self,
        mode: Pointwise,
        computed: DataType,
        operands: &[Tensor],
        y: Tensor,
    ) -> Result<(), LibraryError> {
        let told = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_POINTWISE_MODE, &[mode])?
            .with(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[computed])?;
        self.pointwise_by(told, operands, y)
    }

    /// Each number's index along an axis of `like`.
    pub fn index(&mut self, axis: i64, like: Tensor) -> Result<Tensor, LibraryError> {
        let numbers = DataType::CUDNN_DATA_INT32;
        let y = self.between(numbers, self.tensors[like.0].1)?;
        let told = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_POINTWISE_MODE, &[Pointwise::CUDNN_POINTWISE_GEN_INDEX])?
            .with(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[numbers])?
            .with(Name::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
        self.pointwise_by(told, &[like], y).map(|()| y)
    }

    fn pointwise_by(&mut self, told: Descriptor, operands: &[Tensor], y: Tensor) -> Result<(), LibraryError> {
        const OPERANDS: [Name; 3] = [
            Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let mut tensors: Vec<_> = OPERANDS.into_iter().zip(operands.iter().copied()).collect();
        tensors.push((Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
        let told = Some((Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, told.finished()?));
        self.operation(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, told, &tensors)
    }

    /// `c = a b` of matrices, which the last two axes are; sums are f32.
    pub fn product(&mut self, a: Tensor, b: Tensor, c: Tensor) -> Result<(), LibraryError> {
        let told = Descriptor::new(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, &[DataType::CUDNN_DATA_FLOAT])?;
        let told = Some((Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, told.finished()?));
        let tensors = [
            (Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, b),
            (Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, c),
        ];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, told, &tensors)
    }

    /// What the rows of `x` come to, in f32.
    pub fn reduction(&mut self, by: Reduction, x: Tensor, y: Tensor) -> Result<(), LibraryError> {
        let told = Descriptor::new(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_REDUCTION_OPERATOR, &[by])?
            .with(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, &[DataType::CUDNN_DATA_FLOAT])?;
        let told = Some((Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, told.finished()?));
        let tensors = [
            (Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x),
            (Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y),
        ];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, told, &tensors)
    }

    /// `y` has the numbers of `x` in other axes.
    pub fn reshape(&mut self, x: Tensor, y: Tensor) -> Result<(), LibraryError> {
        let tensors =
            [(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x), (Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)];
        self.operation(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, None, &tensors)
    }

    /// The graph, as the library understands it.
    ///
    /// *Errors*: [`LibraryError::Call`] where the library has no such graphs.
    pub fn finished(self, target: Target) -> Result<OperationGraph, LibraryError> {
        let operations: Vec<Raw> = self.operations.iter().map(Descriptor::raw).collect();
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
        let graph = target.tell(draft, [Some(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE), None])?.finished()?;
        Ok(OperationGraph { graph, target, _written: self })
    }
}

/// The library's name of a tensor.
fn name_of(tensor: Tensor) -> i64 {
    tensor.0 as i64 + 1
}

/// Strides of a tensor that lies row by row.
pub(super) fn by_rows(sizes: Four) -> Four {
    let [_, b, c, d] = sizes;
    [b * c * d, c * d, d, 1]
}

/// A graph that is told.
pub(super) struct OperationGraph {
    graph: Descriptor,
    target: Target,
    /// What it was made of.
    _written: GraphDraft,
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
    /// What the library offers, the one that it thinks fastest first: engines that give the same bits each time. None if it has none.
    pub fn offers(&self) -> Result<Vec<EngineChoice>, LibraryError> {
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

    /// What a configuration of the library says, if it gives the same bits each time.
    fn choice_of(&self, configuration: &Descriptor) -> Result<Option<EngineChoice>, LibraryError> {
        let engine = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        configuration.read(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &mut [engine.raw()])?;
        if !is_steady(&engine)? {
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

    /// The graph as an engine does it; nothing where that gives other bits each time. *Blocks* while the library prepares it.
    ///
    /// *Errors*: [`LibraryError::Call`] if the library has no such engine for it.
    pub fn plan(self, choice: &EngineChoice) -> Result<Option<Plan>, LibraryError> {
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_ENGINE_OPERATION_GRAPH, &[self.graph.raw()])?
            .with(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &[choice.engine])?;
        let engine = self.target.tell(draft, [None, Some(Name::CUDNN_ATTR_ENGINE_DEVICEPROP)])?.finished()?;
        if !is_steady(&engine)? {
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

/// Whether an engine gives the same bits each time.
fn is_steady(engine: &Descriptor) -> Result<bool, LibraryError> {
    let mut notes = [Note(0); NOTES];
    let found = engine.read(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &mut notes)?;
    let other = sys::cudnnBackendNumericalNote_t::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC as u32;
    Ok(notes[..found].iter().all(|note| note.0 != other))
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
