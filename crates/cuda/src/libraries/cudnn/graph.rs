//! Operations between tensors that cuDNN does in one go: its graphs.
//!
//! A graph is told by descriptors: first tensors, then the operations between them, then all of these. Tensors in between are virtual: the
//! library never writes them. Everything that was made stays until the graph goes.
//!
//! *Source*: NVIDIA's documentation of the graph API (`cudnn_graph_v9.h`).
//!
//! It does not know what graphs compute.

use super::super::LibraryError;
use super::super::convolution::Pass;
use super::descriptors::{Made, done};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnDataType_t as DataType, cudnnPointwiseMode_t as Pointwise,
    cudnnReduceTensorOp_t as Reduction,
};
use std::ffi::c_void;
use std::ptr;

/// What tensors begin on multiples of. *Units*: bytes.
const ALIGNED: i64 = 16;

/// A number as the library takes and gives it.
pub(super) trait Told: Copy {
    const TYPE: Type;
}

/// Something finished that was made before.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Raw(pub *mut c_void);

/// What types of Rust values are, as the library is told.
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

pub(super) use told;

told! {
    i64: CUDNN_TYPE_INT64,
    f32: CUDNN_TYPE_FLOAT,
    bool: CUDNN_TYPE_BOOLEAN,
    DataType: CUDNN_TYPE_DATA_TYPE,
    Pointwise: CUDNN_TYPE_POINTWISE_MODE,
    Reduction: CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    sys::cudnnConvolutionMode_t: CUDNN_TYPE_CONVOLUTION_MODE,
    sys::cudnnHandle_t: CUDNN_TYPE_HANDLE,
    Raw: CUDNN_TYPE_BACKEND_DESCRIPTOR,
    #[cfg(test)]
    u8: CUDNN_TYPE_CHAR,
}

/// A descriptor.
pub(super) struct Descriptor(pub Made<sys::cudnnBackendDescriptor_t>);

impl Descriptor {
    pub fn new(kind: Kind) -> Result<Self, LibraryError> {
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call.
        done("cudnnBackendCreateDescriptor", unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut what) })?;
        Ok(Self(Made::taken(what, sys::cudnnBackendDestroyDescriptor)))
    }

    pub fn raw(&self) -> Raw {
        Raw(self.0.what)
    }

    /// Sets an attribute before it is finished.
    pub fn with<T: Told>(self, name: Name, values: &[T]) -> Result<Self, LibraryError> {
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
    pub fn finished(self) -> Result<Self, LibraryError> {
        // SAFETY: the descriptor is alive.
        done("cudnnBackendFinalize", unsafe { sys::cudnnBackendFinalize(self.0.what) }).map(|()| self)
    }

    /// The values of an attribute, at most as many as are given; how many there are comes back.
    pub fn read<T: Told>(&self, name: Name, to: &mut [T]) -> Result<usize, LibraryError> {
        let (mut found, most) = (0, to.len() as i64);
        // SAFETY: the descriptor is alive; there is room for as many values as is told, of the type that is told.
        let status = unsafe {
            let to = to.as_mut_ptr().cast();
            sys::cudnnBackendGetAttribute(self.0.what, name, T::TYPE, most, &mut found, to)
        };
        done("cudnnBackendGetAttribute", status)?;
        Ok(found.clamp(0, most) as usize)
    }

    pub fn number(&self, name: Name) -> Result<i64, LibraryError> {
        let mut number = [0i64];
        self.read(name, &mut number).map(|_| number[0])
    }
}

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
    pub fn tell(&self, draft: Descriptor, by: [Option<Name>; 2]) -> Result<Descriptor, LibraryError> {
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
    tensors: Vec<(Descriptor, Vec<i64>)>,
    /// What operations are told by.
    told: Vec<Descriptor>,
    operations: Vec<Descriptor>,
}

/// How a convolution goes over its images, along each of their axes.
pub(super) struct Windows<'a> {
    pub stride: &'a [i64],
    pub padding: &'a [i64],
}

impl GraphDraft {
    /// Sizes and strides are in elements.
    pub fn tensor(
        &mut self,
        place: Place,
        numbers: DataType,
        sizes: &[i64],
        strides: &[i64],
    ) -> Result<Tensor, LibraryError> {
        let at = self.tensors.len();
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[numbers])?
            .with(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)?
            .with(Name::CUDNN_ATTR_TENSOR_STRIDES, strides)?
            .with(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[name_of(Tensor(at))])?
            .with(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNED])?;
        let draft = match place {
            Place::Memory => draft,
            Place::Virtual => draft.with(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?,
            Place::Host => draft.with(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?,
        };
        self.tensors.push((draft.finished()?, sizes.to_vec()));
        Ok(Tensor(at))
    }

    /// One number of the host.
    pub fn one(&mut self) -> Result<Tensor, LibraryError> {
        self.tensor(Place::Host, DataType::CUDNN_DATA_FLOAT, &[1; 4], &[1; 4])
    }

    /// A virtual tensor, row by row.
    pub fn between(&mut self, numbers: DataType, sizes: &[i64]) -> Result<Tensor, LibraryError> {
        self.tensor(Place::Virtual, numbers, sizes, &by_rows(sizes))
    }

    fn raw(&self, tensor: Tensor) -> Raw {
        self.tensors[tensor.0].0.raw()
    }

    fn operation(
        &mut self,
        mut draft: Descriptor,
        told: Option<(Name, Descriptor)>,
        tensors: &[(Name, Tensor)],
    ) -> Result<(), LibraryError> {
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
        let sizes = self.tensors[like.0].1.clone();
        let y = self.between(numbers, &sizes)?;
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
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        self.operation(draft, told, &tensors)
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
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?;
        self.operation(draft, told, &tensors)
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
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?;
        self.operation(draft, told, &tensors)
    }

    /// `y` has the numbers of `x` in other axes.
    pub fn reshape(&mut self, x: Tensor, y: Tensor) -> Result<(), LibraryError> {
        let tensors =
            [(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x), (Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)];
        let draft = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?;
        self.operation(draft, None, &tensors)
    }

    /// One pass of a convolution over images, with kernels that are not turned; sums are f32.
    pub fn convolution(
        &mut self,
        pass: Pass,
        windows: &Windows<'_>,
        [x, w, y]: [Tensor; 3],
    ) -> Result<(), LibraryError> {
        use sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let Windows { stride, padding } = *windows;
        let told = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[DataType::CUDNN_DATA_FLOAT])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[CUDNN_CROSS_CORRELATION])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[stride.len() as i64])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, stride)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &vec![1i64; stride.len()])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, padding)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, padding)?
            .finished()?;
        let (kind, how, factors, names) = match pass {
            Pass::Forward(_) => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                ],
            ),
            Pass::Inputs => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                ],
            ),
            Pass::Weights => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
                [
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                ],
            ),
        };
        let [alpha, beta] = factors;
        let draft = Descriptor::new(kind)?.with(alpha, &[1.0f32])?.with(beta, &[0.0f32])?;
        let [at_x, at_w, at_y] = names;
        self.operation(draft, Some((how, told)), &[(at_x, x), (at_w, w), (at_y, y)])
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
pub(super) fn name_of(tensor: Tensor) -> i64 {
    tensor.0 as i64 + 1
}

/// Strides of a tensor that lies row by row.
pub(super) fn by_rows(sizes: &[i64]) -> Vec<i64> {
    (0..sizes.len()).map(|axis| sizes[axis + 1..].iter().product()).collect()
}

/// A graph that is told.
pub(super) struct OperationGraph {
    pub graph: Descriptor,
    pub target: Target,
    /// What it was made of.
    _written: GraphDraft,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An H200, as the library asks a driver.
    const HOPPER: &str = r#"{"deviceVer": 900, "driverVer": 13000, "multiProcessorCount": 132,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
        "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
        "warpSize": 32, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000,
        "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "totalGlobalMem": 150000000000, "deviceName": "H200",
        "cudaDeviceId": 0}"#;

    /// A GPU that is told, and is not there. With `libcuda.so.1` found beside it the library compiles for it, and asks the driver for
    /// nothing but to load that.
    pub fn hopper() -> Target {
        Target::Told(Properties::new(HOPPER).expect("properties"))
    }
}
