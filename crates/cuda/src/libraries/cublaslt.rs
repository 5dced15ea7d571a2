//! Matrix products by cuBLASLt, each by an algorithm that is written down.
//!
//! Somebody asks the library once for a shape ([`CublasLt::candidates`]). What it answers is plain data ([`PinnedAlgorithm`]), which
//! all ranks hand back ([`CublasLt::accept`]): the library is asked whether the algorithm is one for this machine before it is used.
//!
//! K may be cut among blocks where their sums lie apart and are added in one order, by a launch of its own; blocks that take turns
//! at one place are refused. So the bits of an algorithm follow from its operands.
//!
//! This file does not know streams beyond their handle, nor who owns memory: a workspace for each stream is the caller's.

use super::layouts::Layout;
use super::product::{Finish, ProductKey};
use super::{LibraryError, Numbers};
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use libloading::Library;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

const NAME: &str = "cuBLASLt";

/// Bytes of the workspace that each stream should have: what NVIDIA recommends for Hopper. It is a part of the choice: with less
/// another algorithm would be best.
pub const WORKSPACE: u64 = 32 << 20;

/// Algorithms that the library is asked for.
pub const CANDIDATES: usize = 8;

/// How the sums of blocks may be added up: not at all, or in f32 from places of their own, by a launch behind.
const IN_ORDER: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;

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

/// How the library sums, reads and writes such numbers.
fn types(numbers: Numbers) -> (sys::cublasComputeType_t, sys::cudaDataType, sys::cudaDataType) {
    use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
    use sys::cudaDataType::{CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
    match numbers {
        Numbers::F32 => (CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F),
        Numbers::Tf32 => (CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F),
        Numbers::Bf16 => (CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF),
        Numbers::Bf16ToF32 => (CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F),
        Numbers::F16 => (CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F),
        Numbers::F16ToF32 => (CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_32F),
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
        let (compute, read, written) = types(key.numbers);
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
        let epilogue = match key.finish {
            Finish::None | Finish::Plus => None,
            Finish::Bias | Finish::PlusBias => Some(sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS),
            Finish::BiasRelu => Some(sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS),
            Finish::BiasGelu => Some(sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS),
        };
        if let Some(epilogue) = epilogue {
            use sys::cublasLtMatmulDescAttributes_t as Attribute;
            let how = ("cublasLtMatmulDescSetAttribute", sys::cublasLtMatmulDescSetAttribute as Set<_, _>);
            set(how, product.what, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32)?;
            set(how, product.what, Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, written as i32)?;
            if key.finish.keeps() {
                // In numbers of the result.
                let pitch = key.layouts.out.pitch as i64;
                set(how, product.what, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, pitch)?;
            }
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

// SAFETY: NVIDIA says that a handle may be used by several threads, as long as nobody destroys it: it is destroyed once, when nobody
// has it any more.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CublasLt").field("version", &self.version).finish_non_exhaustive()
    }
}

impl CublasLt {
    /// This file, unless the process has another one of that name: then that one, whose version tells.
    ///
    /// *Errors*: as [`CublasLt::new`].
    pub fn open(path: &Path) -> Result<Self, LibraryError> {
        Self::version_of(path)?;
        Self::new()
    }

    /// The version of the library that [`CublasLt::open`] would open. No GPU is needed.
    ///
    /// *Errors*: [`LibraryError::Missing`].
    pub fn version_of(path: &Path) -> Result<u64, LibraryError> {
        // SAFETY: the library's initialisers touch nothing of ours.
        if let Ok(library) = unsafe { Library::new(path) } {
            // It stays open, so that its bare name means this file.
            std::mem::forget(library);
        }
        version()
    }

    /// *Errors*: [`LibraryError::Missing`]; [`LibraryError::Call`] without a GPU.
    pub fn new() -> Result<Self, LibraryError> {
        let version = version()?;
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call; the library is there.
        done("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut what) })?;
        Ok(Self { handle: Made { what, end: sys::cublasLtDestroy }, version })
    }

    /// Its version, as [`version`] has it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The algorithms for a shape that add up in one order, the one that the library thinks fastest first: at most [`CANDIDATES`].
    ///
    /// *Errors*: [`LibraryError::NoAlgorithm`], [`LibraryError::Call`].
    pub fn candidates(&self, key: &ProductKey) -> Result<Vec<PinnedAlgorithm>, LibraryError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let descriptors = Descriptors::of(key)?;
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call.
        done("cublasLtMatmulPreferenceCreate", unsafe { sys::cublasLtMatmulPreferenceCreate(&mut what) })?;
        let wish = Made { what, end: sys::cublasLtMatmulPreferenceDestroy };
        let how =
            ("cublasLtMatmulPreferenceSetAttribute", sys::cublasLtMatmulPreferenceSetAttribute as Set<_, _>);
        for (attribute, value) in [
            (Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, IN_ORDER),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment),
        ] {
            set(how, wish.what, attribute, value)?;
        }
        let most = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        set(how, wish.what, most, WORKSPACE)?;
        let (mut found, mut count) = ([const { nothing() }; CANDIDATES], 0);
        let Descriptors { product, left, right, out } = &descriptors;
        // SAFETY: all descriptors are alive; there is room for as many results as are asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle.what,
                product.what,
                left.what,
                right.what,
                out.what,
                out.what,
                wish.what,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        let no_algorithm = || LibraryError::NoAlgorithm { library: NAME, shape: key.shown() };
        match status {
            Status::CUBLAS_STATUS_NOT_SUPPORTED => return Err(no_algorithm()),
            status => done("cublasLtMatmulAlgoGetHeuristic", status)?,
        }
        let mut all = Vec::new();
        for one in &found[..count.clamp(0, CANDIDATES as i32) as usize] {
            if one.state == Status::CUBLAS_STATUS_SUCCESS && adds_in_order(&one.algo)? {
                let (algorithm, workspace) = (one.algo.data, one.workspaceSize as u64);
                all.push(PinnedAlgorithm { key: *key, algorithm, workspace, version: self.version });
            }
        }
        if all.is_empty() { Err(no_algorithm()) } else { Ok(all) }
    }

    /// A product by an algorithm that was pinned, here or elsewhere.
    ///
    /// *Errors*: [`LibraryError::Unfit`] if another version chose it, if the library does not take it, or if blocks take turns at one
    /// place.
    pub fn accept(self: &Arc<Self>, pinned: &PinnedAlgorithm) -> Result<PlannedProduct, LibraryError> {
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
        if !adds_in_order(&algorithm)? {
            return Err(unfit("its blocks take turns at one place".to_owned()));
        }
        let (library, key, workspace) = (self.clone(), pinned.key, pinned.workspace);
        Ok(PlannedProduct { library, descriptors, algorithm, key, workspace })
    }
}

const fn nothing() -> sys::cublasLtMatmulHeuristicResult_t {
    sys::cublasLtMatmulHeuristicResult_t {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: Status::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

/// Whether an algorithm leaves K whole, or adds up what blocks have come to in one order.
fn adds_in_order(algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<bool, LibraryError> {
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
    let (cuts, scheme) = (
        read(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?,
        read(Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?,
    );
    // A negative number, a great one here, would leave that to the library.
    let cuts_are_told = cuts <= i32::MAX as u32;
    Ok(cuts_are_told
        && (if cuts > 1 { scheme != 0 && scheme & !IN_ORDER == 0 } else { scheme & !IN_ORDER == 0 }))
}

/// A product that can be run.
pub struct PlannedProduct {
    library: Arc<CublasLt>,
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
    /// What is added and lies as `C` does; 0 where nothing is.
    pub plus: u64,
    /// The bias; 0 where there is none.
    pub bias: u64,
    /// Where the sum is kept; 0 where it is not.
    pub kept: u64,
}

/// Memory of a stream that its products may write over.
#[derive(Clone, Copy, Debug)]
pub struct ProductWorkspace {
    /// Its address on the device, aligned to 256 bytes.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

// SAFETY: descriptors are the library's own plain memory; whoever changes one (a bias, and what is kept, are set for each run) has it
// alone, by `&mut`.
unsafe impl Send for PlannedProduct {}

impl fmt::Debug for PlannedProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedProduct").field("key", &self.key).finish_non_exhaustive()
    }
}

impl PlannedProduct {
    /// Bytes of workspace that it needs.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// Gives the product to a stream.
    ///
    /// *Errors*: [`LibraryError::Call`]. *Panics* on a workspace that is too small and on operands that are not aligned as the
    /// key says.
    ///
    /// # Safety
    /// The matrices of the key lie at these addresses of the device whose context is current, until the stream is through.
    /// Nothing else uses `c`, what is kept and the workspace until then. The stream is alive.
    pub unsafe fn run(
        &mut self,
        operands: Matrices,
        workspace: ProductWorkspace,
        stream: *mut c_void,
    ) -> Result<(), LibraryError> {
        let Matrices { a, b, c, plus, bias, kept } = operands;
        let alignment = u64::from(self.key.alignment);
        assert!(
            [a, b, c, plus, kept].iter().all(|at| at.is_multiple_of(alignment)),
            "{operands:?} by {alignment}"
        );
        assert!(workspace.bytes >= self.workspace, "{workspace:?}, and {} bytes are needed", self.workspace);
        let finish = self.key.finish;
        assert!(
            [finish.has_plus(), finish.has_bias(), finish.keeps()] == [plus, bias, kept].map(|at| at != 0),
            "{operands:?} for {finish:?}"
        );
        if finish.has_bias() {
            let at = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            let how = ("cublasLtMatmulDescSetAttribute", sys::cublasLtMatmulDescSetAttribute as Set<_, _>);
            set(how, self.descriptors.product.what, at, bias)?;
        }
        if finish.keeps() {
            let at = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
            let how = ("cublasLtMatmulDescSetAttribute", sys::cublasLtMatmulDescSetAttribute as Set<_, _>);
            set(how, self.descriptors.product.what, at, kept)?;
        }
        let before = if finish.has_plus() { plus } else { c };
        let (one, share) = (1.0f32, if self.key.adds || finish.has_plus() { 1.0f32 } else { 0.0 });
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
                ptr::from_ref(&share).cast(),
                before as *const c_void,
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
    use dtrain_engine::device::{Product, Strides, Write};

    #[test]
    fn a_choice_comes_back_from_a_manifest_as_it_was() {
        let (a, b) = (Strides::rows(512), Strides::transposed(512));
        let shape = Product { m: 64, n: 128, k: 512, a, b, c_row: 128, write: Write::Add };
        let key = ProductKey::of(&shape, Numbers::Bf16ToF32, Finish::None, 16).expect("rows are contiguous");
        let algorithm = [1, u64::MAX, 0x8000_0000_0000_0001, 0, 5, 6, 7, 1 << 53 | 1];
        let pinned = PinnedAlgorithm { key, algorithm, workspace: 1 << 20, version: 130_500 };
        let text = serde_json::to_string(&pinned).expect("plain data");
        assert_eq!(serde_json::from_str::<PinnedAlgorithm>(&text).expect("what was written"), pinned);
        assert!(text.contains("\"bf16_to_f32\"") && text.contains("18446744073709551615"), "{text}");
        assert_eq!(size_of::<sys::cublasLtMatmulAlgo_t>(), 64);
    }

    #[test]
    fn tf32_is_used_only_where_it_is_asked_for() {
        let name = |numbers| format!("{:?}", types(numbers));
        assert!(name(Numbers::Tf32).contains("TF32"), "{}", name(Numbers::Tf32));
        for numbers in [Numbers::F32, Numbers::Bf16, Numbers::Bf16ToF32] {
            assert!(name(numbers).starts_with("(CUBLAS_COMPUTE_32F,"), "{}", name(numbers));
        }
    }
}
