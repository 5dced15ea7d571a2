//! Matrix products by cuBLASLt, each by an algorithm that is written down.
//!
//! One rank asks the library once for a shape ([`CublasLt::choose`]), with no reduction between blocks allowed. The answer is
//! plain data ([`PinnedAlgorithm`]) which all ranks, that one included, hand back ([`CublasLt::accept`]): the library is asked
//! whether the algorithm is one for this machine before it is used. A bias and an activation are left to
//! [`crate::operations::bias_activation`], whose bits are known.
//!
//! This file does not know streams beyond their handle, nor who owns memory: a workspace for each stream is the caller's.

use super::layouts::{Layout, Layouts};
use super::{LibraryError, Numbers};
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use dtrain_engine::device::{Product, Write};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::ptr;

const NAME: &str = "cuBLASLt";

/// Bytes of the workspace that each stream should have: what NVIDIA recommends for Hopper. It is a part of the choice: with less
/// another algorithm would be best.
pub const WORKSPACE: u64 = 32 << 20;

/// What a choice is made for. Two ranks with the same key may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProductKey {
    /// The operands.
    pub layouts: Layouts,
    /// What they hold.
    pub numbers: Numbers,
    /// Whether the sum is added to what is there.
    pub adds: bool,
    /// Bytes that the addresses of all operands are multiples of.
    pub alignment: u32,
}

impl ProductKey {
    /// *Errors*: [`LibraryError::Shape`] where the strides cannot be said by columns, or where it is empty.
    pub fn of(shape: &Product, numbers: Numbers, alignment: u32) -> Result<Self, LibraryError> {
        let layouts = Layouts::of(shape).ok_or_else(|| LibraryError::Shape {
            library: NAME,
            shape: format!("{shape:?}"),
            why: "it is empty, or neither rows nor columns of an operand are contiguous",
        })?;
        Ok(Self { layouts, numbers, adds: shape.write == Write::Add, alignment })
    }

    fn types(&self) -> (sys::cublasComputeType_t, sys::cudaDataType, sys::cudaDataType) {
        use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
        use sys::cudaDataType::{CUDA_R_16BF, CUDA_R_32F};
        match self.numbers {
            Numbers::F32 => (CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F),
            Numbers::Tf32 => (CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F),
            Numbers::Bf16 => (CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF),
            Numbers::Bf16ToF32 => (CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F),
        }
    }

    fn shown(&self) -> String {
        format!("{self:?}")
    }
}

/// A choice, written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedAlgorithm {
    /// What it is for.
    pub key: ProductKey,
    /// The library's own 64 bytes.
    pub algorithm: [u64; 8],
    /// Bytes of workspace that it needs.
    pub workspace: u64,
    /// The version of the library that chose.
    pub version: u64,
}

/// The library's version, as `cublasLtGetVersion` has it. No GPU is needed.
///
/// *Errors*: [`LibraryError::Missing`].
pub fn version() -> Result<u64, LibraryError> {
    // SAFETY: the library's initialisers touch nothing of ours; the function is asked for only if it is there.
    unsafe {
        if !sys::is_culib_present() {
            return Err(LibraryError::Missing { library: NAME });
        }
        Ok(sys::cublasLtGetVersion() as u64)
    }
}

fn done(call: &'static str, status: Status) -> Result<(), LibraryError> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(LibraryError::Call { call, status: format!("{status:?}") }),
    }
}

/// Something that the library made and wants back.
struct Made<T: Copy> {
    what: T,
    end: unsafe fn(T) -> Status,
}

impl<T: Copy> Drop for Made<T> {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, for this end, and nobody has it any more.
        let _ = unsafe { (self.end)(self.what) };
    }
}

/// A function that sets an attribute of what the library made.
type Set<D, A> = unsafe fn(D, A, *const c_void, usize) -> Status;

/// Sets an attribute, of four or eight bytes, to a value of its type.
fn set<D, A, T: Copy>(
    (call, function): (&'static str, Set<D, A>),
    of: D,
    attribute: A,
    value: T,
) -> Result<(), LibraryError> {
    // SAFETY: what is set is alive, and the library copies as many bytes as it is told to.
    done(call, unsafe { function(of, attribute, ptr::from_ref(&value).cast(), size_of::<T>()) })
}

/// What the library has to be told of a product.
struct Descriptors {
    product: Made<sys::cublasLtMatmulDesc_t>,
    left: Made<sys::cublasLtMatrixLayout_t>,
    right: Made<sys::cublasLtMatrixLayout_t>,
    out: Made<sys::cublasLtMatrixLayout_t>,
}

fn described(
    layout: &Layout,
    numbers: sys::cudaDataType,
) -> Result<Made<sys::cublasLtMatrixLayout_t>, LibraryError> {
    let mut what = ptr::null_mut();
    // SAFETY: the pointer lives for the call.
    let status = unsafe {
        let pitch = layout.pitch as i64;
        sys::cublasLtMatrixLayoutCreate(&mut what, numbers, layout.rows, layout.columns, pitch)
    };
    done("cublasLtMatrixLayoutCreate", status)?;
    Ok(Made { what, end: sys::cublasLtMatrixLayoutDestroy })
}

impl Descriptors {
    fn of(key: &ProductKey) -> Result<Self, LibraryError> {
        let (compute, read, written) = key.types();
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call. Factors are f32.
        let status =
            unsafe { sys::cublasLtMatmulDescCreate(&mut what, compute, sys::cudaDataType::CUDA_R_32F) };
        done("cublasLtMatmulDescCreate", status)?;
        let product = Made { what, end: sys::cublasLtMatmulDescDestroy };
        use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
        for (attribute, layout) in [
            (CUBLASLT_MATMUL_DESC_TRANSA, &key.layouts.left),
            (CUBLASLT_MATMUL_DESC_TRANSB, &key.layouts.right),
        ] {
            // cublasOperation_t: 0 is as it is, 1 the transpose.
            let how = ("cublasLtMatmulDescSetAttribute", sys::cublasLtMatmulDescSetAttribute as Set<_, _>);
            set(how, product.what, attribute, i32::from(layout.turned))?;
        }
        Ok(Self {
            product,
            left: described(&key.layouts.left, read)?,
            right: described(&key.layouts.right, read)?,
            out: described(&key.layouts.out, written)?,
        })
    }
}

/// The library, in the context that was current when it was made.
pub struct CublasLt {
    handle: Made<sys::cublasLtHandle_t>,
    version: u64,
}

impl CublasLt {
    /// *Errors*: [`LibraryError::Missing`]; [`LibraryError::Call`] without a GPU.
    pub fn new() -> Result<Self, LibraryError> {
        let version = version()?;
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call; the library is there.
        done("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut what) })?;
        Ok(Self { handle: Made { what, end: sys::cublasLtDestroy }, version })
    }

    /// The best algorithm that adds up within a block, by the library's heuristics. For one rank to ask, once a shape.
    ///
    /// *Errors*: [`LibraryError::NoAlgorithm`], [`LibraryError::Call`].
    pub fn choose(&self, key: &ProductKey) -> Result<PinnedAlgorithm, LibraryError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let descriptors = Descriptors::of(key)?;
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call.
        done("cublasLtMatmulPreferenceCreate", unsafe { sys::cublasLtMatmulPreferenceCreate(&mut what) })?;
        let wish = Made { what, end: sys::cublasLtMatmulPreferenceDestroy };
        let how =
            ("cublasLtMatmulPreferenceSetAttribute", sys::cublasLtMatmulPreferenceSetAttribute as Set<_, _>);
        let none = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
        for (attribute, value) in [
            (Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, none),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment),
        ] {
            set(how, wish.what, attribute, value)?;
        }
        let most = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        set(how, wish.what, most, WORKSPACE)?;
        let (mut found, mut count) = (nothing(), 0);
        let Descriptors { product, left, right, out } = &descriptors;
        // SAFETY: all descriptors are alive; there is room for the one result that is asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle.what,
                product.what,
                left.what,
                right.what,
                out.what,
                out.what,
                wish.what,
                1,
                &mut found,
                &mut count,
            )
        };
        let no_algorithm = || LibraryError::NoAlgorithm { library: NAME, shape: key.shown() };
        match status {
            Status::CUBLAS_STATUS_NOT_SUPPORTED => return Err(no_algorithm()),
            status => done("cublasLtMatmulAlgoGetHeuristic", status)?,
        }
        if count == 0 || found.state != Status::CUBLAS_STATUS_SUCCESS || reduces(&found.algo)? {
            return Err(no_algorithm());
        }
        let workspace = found.workspaceSize as u64;
        Ok(PinnedAlgorithm { key: *key, algorithm: found.algo.data, workspace, version: self.version })
    }

    /// A product by an algorithm that was pinned, here or elsewhere.
    ///
    /// *Errors*: [`LibraryError::Unfit`] if another version chose it, if the library does not take it, or if it reduces
    /// between blocks.
    pub fn accept(&self, pinned: &PinnedAlgorithm) -> Result<PlannedProduct<'_>, LibraryError> {
        let unfit = |why| LibraryError::Unfit { shape: pinned.key.shown(), why };
        if pinned.version != self.version {
            let why = format!("cuBLASLt {} chose it, and here is {}", pinned.version, self.version);
            return Err(unfit(why));
        }
        let descriptors = Descriptors::of(&pinned.key)?;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: pinned.algorithm };
        let mut result = nothing();
        let Descriptors { product, left, right, out } = &descriptors;
        // SAFETY: all descriptors are alive; the library reads 64 bytes, which it judges.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle.what,
                product.what,
                left.what,
                right.what,
                out.what,
                out.what,
                &algorithm,
                &mut result,
            )
        };
        done("cublasLtMatmulAlgoCheck", status).map_err(|error| unfit(error.to_string()))?;
        let needed = result.workspaceSize as u64;
        if needed > pinned.workspace || needed > WORKSPACE {
            return Err(unfit(format!("it needs {needed} bytes of workspace, not {}", pinned.workspace)));
        }
        if reduces(&algorithm)? {
            return Err(unfit("it adds up between blocks".to_owned()));
        }
        Ok(PlannedProduct { library: self, descriptors, algorithm, key: pinned.key, workspace: needed })
    }
}

fn nothing() -> sys::cublasLtMatmulHeuristicResult_t {
    sys::cublasLtMatmulHeuristicResult_t {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: Status::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

/// Whether an algorithm cuts K among blocks and adds up after that.
fn reduces(algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<bool, LibraryError> {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Config;
    let read = |attribute| {
        let (mut value, mut written) = (0u32, 0usize);
        // SAFETY: the algorithm is one of the library's, or was judged by it; there is room for the four bytes.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                algorithm,
                attribute,
                ptr::from_mut(&mut value).cast(),
                size_of::<u32>(),
                &mut written,
            )
        };
        done("cublasLtMatmulAlgoConfigGetAttribute", status).map(|()| value)
    };
    let cuts = read(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?;
    // A negative number, a great one here, would leave that to the library.
    Ok(cuts > 1 || read(Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)? != 0)
}

/// A product that can be run.
pub struct PlannedProduct<'l> {
    library: &'l CublasLt,
    descriptors: Descriptors,
    algorithm: sys::cublasLtMatmulAlgo_t,
    key: ProductKey,
    workspace: u64,
}

/// Addresses on the device.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// The engine's `A`.
    pub a: u64,
    /// The engine's `B`.
    pub b: u64,
    /// The engine's `C`.
    pub c: u64,
}

/// Memory of a stream that its products may write over.
#[derive(Clone, Copy, Debug)]
pub struct ProductWorkspace {
    /// Its address on the device, aligned to 256 bytes.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

impl PlannedProduct<'_> {
    /// Gives the product to a stream.
    ///
    /// *Errors*: [`LibraryError::Call`]. *Panics* on a workspace that is too small and on operands that are not aligned as the
    /// key says.
    ///
    /// # Safety
    /// The matrices of the key lie at these addresses of the device whose context is current, until the stream is through.
    /// Nothing else uses `c` and the workspace until then. The stream is alive.
    pub unsafe fn run(
        &self,
        operands: Matrices,
        workspace: ProductWorkspace,
        stream: *mut c_void,
    ) -> Result<(), LibraryError> {
        let Matrices { a, b, c } = operands;
        let alignment = u64::from(self.key.alignment);
        assert!([a, b, c].iter().all(|at| at.is_multiple_of(alignment)), "{operands:?} by {alignment}");
        assert!(workspace.bytes >= self.workspace, "{workspace:?}, and {} bytes are needed", self.workspace);
        let (one, before) = (1.0f32, if self.key.adds { 1.0f32 } else { 0.0 });
        let Descriptors { product, left, right, out } = &self.descriptors;
        // SAFETY: the caller's promise; factors are f32, as the descriptor says, and live for the call.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.library.handle.what,
                product.what,
                ptr::from_ref(&one).cast(),
                b as *const c_void,
                left.what,
                a as *const c_void,
                right.what,
                ptr::from_ref(&before).cast(),
                c as *const c_void,
                out.what,
                c as *mut c_void,
                out.what,
                &self.algorithm,
                workspace.address as *mut c_void,
                self.workspace as usize,
                stream.cast(),
            )
        };
        done("cublasLtMatmul", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::device::Strides;

    fn key(write: Write) -> ProductKey {
        let (a, b) = (Strides::rows(512), Strides::transposed(512));
        let shape = Product { m: 64, n: 128, k: 512, a, b, c_row: 128, write };
        ProductKey::of(&shape, Numbers::Bf16ToF32, 16).expect("rows are contiguous")
    }

    #[test]
    fn a_choice_comes_back_from_a_manifest_as_it_was() {
        let algorithm = [1, u64::MAX, 0x8000_0000_0000_0001, 0, 5, 6, 7, 1 << 53 | 1];
        let pinned =
            PinnedAlgorithm { key: key(Write::Add), algorithm, workspace: 1 << 20, version: 130_500 };
        let text = serde_json::to_string(&pinned).expect("plain data");
        assert_eq!(serde_json::from_str::<PinnedAlgorithm>(&text).expect("what was written"), pinned);
        assert!(text.contains("\"bf16_to_f32\"") && text.contains("18446744073709551615"), "{text}");
        assert_eq!(size_of::<sys::cublasLtMatmulAlgo_t>(), 64);
    }

    #[test]
    fn two_shapes_share_a_choice_only_if_they_are_the_same() {
        assert_eq!(key(Write::Set), key(Write::Set));
        assert_ne!(key(Write::Set), key(Write::Add));
        let other = ProductKey { alignment: 8, ..key(Write::Set) };
        assert_ne!(key(Write::Set), other);
    }

    #[test]
    fn tf32_is_used_only_where_it_is_asked_for() {
        let name = |numbers| format!("{:?}", ProductKey { numbers, ..key(Write::Set) }.types());
        assert!(name(Numbers::Tf32).contains("TF32"), "{}", name(Numbers::Tf32));
        for numbers in [Numbers::F32, Numbers::Bf16, Numbers::Bf16ToF32] {
            assert!(name(numbers).starts_with("(CUBLAS_COMPUTE_32F,"), "{}", name(numbers));
        }
    }

    #[test]
    fn strides_that_cannot_be_told_are_a_typed_error() {
        let (a, b) = (Strides { row: 40, col: 3 }, Strides::rows(4));
        let shape = Product { m: 2, n: 4, k: 3, a, b, c_row: 4, write: Write::Set };
        let error = ProductKey::of(&shape, Numbers::F32, 16).expect_err("no contiguous rows");
        assert!(
            matches!(error, LibraryError::Shape { .. }) && error.to_string().contains("col: 3"),
            "{error}"
        );
    }
}
