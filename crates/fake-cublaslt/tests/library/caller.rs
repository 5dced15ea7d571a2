//! Calls of the library, with descriptors that are given back.

use crate::operands::{Case, Operand, Operands};
use cudarc::cublaslt::sys::{
    self, cublasLtMatmulDescAttributes_t as Of, cublasLtMatmulPreferenceAttributes_t as Preference,
    cublasStatus_t as Status,
};
use dtrain_fake_common::trial::{beside, open};
use libloading::Library;
use std::ffi::c_void;
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::LazyLock;

pub const OK: Status = Status::CUBLAS_STATUS_SUCCESS;

/// The library, which cargo builds beside this test. It stays open, so that its name means this file.
pub static LIBRARY: LazyLock<Library> = LazyLock::new(|| open(&beside("libfake_cublaslt.so")));

/// What is set by address and length.
fn bytes<T>(of: &T) -> (*const c_void, usize) {
    (from_ref(of).cast(), size_of::<T>())
}

/// A handle with the descriptors of a case.
pub struct Caller {
    pub handle: sys::cublasLtHandle_t,
    pub product: sys::cublasLtMatmulDesc_t,
    /// Of A, B, C and D.
    pub layouts: [sys::cublasLtMatrixLayout_t; 4],
    pub preference: sys::cublasLtMatmulPreference_t,
    alpha: f32,
    beta: f32,
}

impl Caller {
    pub fn new(case: &Case, operands: &mut Operands) -> Self {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        Self::computing(case, operands, compute)
    }

    pub fn computing(case: &Case, operands: &mut Operands, compute: sys::cublasComputeType_t) -> Self {
        LazyLock::force(&LIBRARY);
        let (mut handle, mut product, mut preference) = (null_mut(), null_mut(), null_mut());
        let layout = |of: &Operand| {
            let (mut it, pitch) = (null_mut(), of.pitch as i64);
            // SAFETY: it writes the handle.
            let status = unsafe {
                sys::cublasLtMatrixLayoutCreate(&mut it, of.numbers, of.rows as u64, of.columns as u64, pitch)
            };
            assert_eq!(status, OK);
            it
        };
        let layouts = [layout(&operands.a), layout(&operands.b), layout(&operands.c), layout(&operands.d)];
        // SAFETY: they write the handles.
        unsafe {
            assert!(sys::is_culib_present(), "it is not found by its name");
            assert_eq!(sys::cublasLtCreate(&mut handle), OK);
            let factors = sys::cudaDataType::CUDA_R_32F;
            assert_eq!(sys::cublasLtMatmulDescCreate(&mut product, compute, factors), OK);
            assert_eq!(sys::cublasLtMatmulPreferenceCreate(&mut preference), OK);
        }
        let it = Self { handle, product, layouts, preference, alpha: case.alpha, beta: case.beta };
        it.describe(Of::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(case.turned[0]));
        it.describe(Of::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(case.turned[1]));
        it.describe(Of::CUBLASLT_MATMUL_DESC_EPILOGUE, case.epilogue as u32);
        if case.has(4) {
            it.describe(Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias.address());
        }
        it.prefer(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1u64 << 24);
        it
    }

    pub fn describe<T>(&self, attribute: Of, value: T) {
        let (from, size) = bytes(&value);
        // SAFETY: it reads so many bytes.
        let status = unsafe { sys::cublasLtMatmulDescSetAttribute(self.product, attribute, from, size) };
        assert_eq!(status, OK, "{attribute:?}");
    }

    pub fn prefer<T>(&self, attribute: Preference, value: T) {
        let (from, size) = bytes(&value);
        // SAFETY: it reads so many bytes.
        let status =
            unsafe { sys::cublasLtMatmulPreferenceSetAttribute(self.preference, attribute, from, size) };
        assert_eq!(status, OK, "{attribute:?}");
    }

    /// What heuristics find, up to so many.
    pub fn found(&self, most: usize) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, Status> {
        let algo = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        let none = sys::cublasLtMatmulHeuristicResult_t {
            algo,
            workspaceSize: 0,
            state: Status::CUBLAS_STATUS_INTERNAL_ERROR,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut found, mut count) = (vec![none; most], -1);
        let [a, b, c, d] = self.layouts;
        // SAFETY: there is room for as many as are asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.product,
                a,
                b,
                c,
                d,
                self.preference,
                most as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        found.truncate(usize::try_from(count).expect("it was written"));
        assert!(found.iter().all(|one| one.state == OK));
        if status == OK { Ok(found) } else { Err(status) }
    }

    /// The bytes of workspace that an algorithm takes, if it may be used.
    pub fn check(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<usize, Status> {
        let mut result = self.found(1).map_err(|_| Status::CUBLAS_STATUS_INTERNAL_ERROR)?[0];
        let [a, b, c, d] = self.layouts;
        // SAFETY: it writes the result.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(self.handle, self.product, a, b, c, d, algorithm, &mut result)
        };
        if status == OK { Ok(result.workspaceSize) } else { Err(status) }
    }

    /// Computes D of these addresses of A, B, C and D.
    pub fn multiply(
        &self,
        addresses: [usize; 4],
        algorithm: Option<&sys::cublasLtMatmulAlgo_t>,
        workspace: &mut [u128],
        stream: usize,
    ) -> Status {
        let (at, room) = (workspace.as_mut_ptr(), size_of_val(workspace));
        let [a, b, c, d] = addresses;
        // SAFETY: the operands of the case lie there, or it is refused.
        unsafe {
            sys::cublasLtMatmul(
                self.handle,
                self.product,
                from_ref(&self.alpha).cast(),
                a as *const c_void,
                self.layouts[0],
                b as *const c_void,
                self.layouts[1],
                from_ref(&self.beta).cast(),
                c as *const c_void,
                self.layouts[2],
                d as *mut c_void,
                self.layouts[3],
                algorithm.map_or(std::ptr::null(), from_ref),
                at.cast(),
                room,
                stream as sys::cudaStream_t,
            )
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // SAFETY: nobody has them any more.
        unsafe {
            for layout in self.layouts {
                assert_eq!(sys::cublasLtMatrixLayoutDestroy(layout), OK);
            }
            assert_eq!(sys::cublasLtMatmulDescDestroy(self.product), OK);
            assert_eq!(sys::cublasLtMatmulPreferenceDestroy(self.preference), OK);
            assert_eq!(sys::cublasLtDestroy(self.handle), OK);
        }
    }
}

/// An attribute of an algorithm.
pub fn attribute(of: &sys::cublasLtMatmulAlgo_t, which: sys::cublasLtMatmulAlgoConfigAttributes_t) -> u32 {
    let (mut value, mut written) = (0u32, 0);
    // SAFETY: it writes up to four bytes.
    let status = unsafe {
        sys::cublasLtMatmulAlgoConfigGetAttribute(of, which, from_mut(&mut value).cast(), 4, &mut written)
    };
    assert_eq!((status, written), (OK, 4));
    value
}

/// The addresses of A, B, C and D.
pub fn addresses(of: &mut Operands) -> [usize; 4] {
    [of.a.address(), of.b.address(), of.c.address(), of.d.address()]
}
