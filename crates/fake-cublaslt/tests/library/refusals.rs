//! What the library does not take.

use crate::caller::{Caller, LIBRARY, OK, addresses};
use crate::operands::{Case, Operand, Operands};
use cudarc::cublaslt::sys::{
    self, cublasLtEpilogue_t as Epilogue, cublasLtMatmulAlgo_t as Algo,
    cublasLtMatmulAlgoConfigAttributes_t as Config, cublasLtMatmulDescAttributes_t as Of,
    cublasLtMatmulPreferenceAttributes_t as Preference, cublasStatus_t as Status, cudaDataType as Type,
};
use std::ffi::CStr;
use std::ptr::{from_ref, null_mut};

const INVALID: Status = Status::CUBLAS_STATUS_INVALID_VALUE;
const UNSUPPORTED: Status = Status::CUBLAS_STATUS_NOT_SUPPORTED;

/// A case with its caller, its operands, and what heuristics find.
fn begun(case: Case) -> (Caller, Operands, Vec<sys::cublasLtMatmulHeuristicResult_t>) {
    let mut operands = case.operands();
    let caller = Caller::new(&case, &mut operands);
    let found = caller.found(8).expect("some algorithms");
    (caller, operands, found)
}

fn bf16(shape: [usize; 3]) -> Case {
    Case { read: Type::CUDA_R_16BF, written: Type::CUDA_R_16BF, ..Case::f32(shape) }
}

#[test]
fn an_algorithm_that_is_none_or_was_changed() {
    let (caller, mut operands, found) = begun(bf16([16, 16, 16]));
    let at = addresses(&mut operands);
    assert_eq!(caller.multiply(at, None, &mut [], 0), INVALID);
    let mut changed = found[0].algo;
    changed.data[2] ^= 1 << 7;
    for algo in [Algo { data: [0; 8] }, Algo { data: [7; 8] }, changed] {
        assert_eq!(caller.check(&algo), Err(INVALID));
        assert_eq!(caller.multiply(at, Some(&algo), &mut [], 0), INVALID);
    }
    assert!(operands.d.get(0, 0).is_nan(), "something was computed");
}

#[test]
fn an_algorithm_for_other_types_or_alignments() {
    let (_caller, _, found) = begun(bf16([16, 16, 16]));
    let (other, ..) = begun(Case::f32([16, 16, 16]));
    assert_eq!(other.check(&found[0].algo), Err(INVALID));
    // Columns of 40 bytes are not aligned to 16.
    let (other, mut operands, own) = begun(bf16([20, 16, 16]));
    assert_eq!(other.check(&found[0].algo), Err(UNSUPPORTED));
    let at = addresses(&mut operands);
    assert_eq!(other.multiply(at, Some(&found[0].algo), &mut [], 0), UNSUPPORTED);
    assert_eq!(other.multiply(at, Some(&own[0].algo), &mut [], 0), OK);
    bf16([20, 16, 16]).judge(&operands);
}

#[test]
fn operands_that_are_not_aligned_as_was_promised() {
    let (caller, operands, found) = begun(bf16([16, 16, 16]));
    // Room for a matrix that begins a number later.
    let mut shifted = Operand::holding(Type::CUDA_R_16BF, [16, 17], 16, 1.0);
    for which in 0..4 {
        let mut at = addresses(&mut operands.clone());
        at[which] = shifted.address() + 2;
        assert_eq!(caller.multiply(at, Some(&found[0].algo), &mut [], 0), UNSUPPORTED, "{which}");
    }
    let promises = [
        Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    ];
    promises.into_iter().for_each(|promise| caller.prefer(promise, 2u32));
    let less = caller.found(1).expect("an algorithm")[0].algo;
    let mut operands = operands.clone();
    let mut at = addresses(&mut operands);
    at[0] = shifted.address() + 2;
    assert_eq!(caller.multiply(at, Some(&less), &mut [], 0), OK);
    caller.prefer(promises[0], 1u32);
    assert_eq!(caller.found(1).err(), Some(INVALID));
}

#[test]
fn a_workspace_that_is_too_small_or_not_aligned() {
    let (caller, mut operands, found) = begun(Case::f32([16, 16, 64]));
    let one = found.iter().find(|one| one.workspaceSize > 0).expect("one that cuts K among blocks");
    let mut workspace = vec![0u128; one.workspaceSize / 16];
    let at = addresses(&mut operands);
    assert_eq!(caller.multiply(at, Some(&one.algo), &mut workspace[1..], 0), INVALID);
    assert_eq!(caller.multiply(at, Some(&one.algo), &mut [], 0), INVALID);
    assert_eq!(caller.multiply(at, Some(&one.algo), &mut workspace, 0), OK);
    assert!(workspace.iter().all(|word| *word != 0), "the workspace was not used");
}

#[test]
fn a_configuration_that_cannot_be() {
    let (caller, _, found) = begun(Case::f32([16, 16, 64]));
    let mut algo = found[0].algo;
    let mut set = |attribute, value: u32| {
        // SAFETY: it reads four bytes.
        unsafe { sys::cublasLtMatmulAlgoConfigSetAttribute(&mut algo, attribute, from_ref(&value).cast(), 4) }
    };
    assert_eq!(set(Config::CUBLASLT_ALGO_CONFIG_ID, 67), INVALID);
    assert_eq!(set(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 8), OK);
    assert_eq!(caller.check(&algo), Err(UNSUPPORTED), "nothing adds its eight blocks up");
    let scheme = 2u32;
    let attribute = Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
    // SAFETY: it reads four bytes.
    let status = unsafe {
        sys::cublasLtMatmulAlgoConfigSetAttribute(&mut algo, attribute, from_ref(&scheme).cast(), 4)
    };
    assert_eq!(status, OK);
    assert_eq!(caller.check(&algo), Ok(8 * 16 * 16 * 4));
}

#[test]
fn combinations_that_nvidia_does_not_support() {
    let unsupported = |case: Case, change: &dyn Fn(&Caller)| {
        let caller = Caller::new(&case, &mut case.operands());
        change(&caller);
        assert_eq!(caller.found(1).err(), Some(UNSUPPORTED), "{case:?}");
    };
    let bias = Case { epilogue: Epilogue::CUBLASLT_EPILOGUE_BIAS, ..bf16([16, 16, 16]) };
    let kind =
        |kind: Type| move |it: &Caller| it.describe(Of::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, kind as u32);
    unsupported(bias, &kind(Type::CUDA_R_32F));
    unsupported(Case { written: Type::CUDA_R_32F, ..bias }, &kind(Type::CUDA_R_16BF));
    unsupported(Case { written: Type::CUDA_R_16F, ..bf16([16, 16, 16]) }, &|_| ());
    unsupported(Case { written: Type::CUDA_R_16BF, ..Case::f32([16, 16, 16]) }, &|_| ());
    unsupported(Case { epilogue: Epilogue::CUBLASLT_EPILOGUE_GELU, ..bf16([16, 16, 16]) }, &|_| ());
    unsupported(bf16([16, 16, 16]), &|it| it.describe(Of::CUBLASLT_MATMUL_DESC_POINTER_MODE, 1u32));
    // What is set to what it is anyway may be.
    let caller = Caller::new(&bias, &mut bias.operands());
    kind(Type::CUDA_R_16BF)(&caller);
    assert!(caller.found(1).is_ok());
}

#[test]
fn a_bias_that_is_nowhere_and_matrices_that_do_not_fit() {
    let case = Case { epilogue: Epilogue::CUBLASLT_EPILOGUE_BIAS, ..Case::f32([16, 16, 16]) };
    let (caller, mut operands, found) = begun(case);
    caller.describe(Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0usize);
    let at @ [a, b, c, d] = addresses(&mut operands);
    assert_eq!(caller.multiply(at, Some(&found[0].algo), &mut [], 0), INVALID);
    caller.describe(Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias.address());
    for missing in [[0, b, c, d], [a, 0, c, d], [a, b, c, 0]] {
        assert_eq!(caller.multiply(missing, Some(&found[0].algo), &mut [], 0), INVALID);
    }
    // Nothing is read of C.
    assert_eq!(caller.multiply([a, b, 0, d], Some(&found[0].algo), &mut [], 0), OK);
    caller.describe(Of::CUBLASLT_MATMUL_DESC_TRANSA, 1);
    assert!(caller.found(1).is_ok(), "a square stays one");
    let mut narrow = case.operands();
    narrow.a = Operand::new(Type::CUDA_R_32F, [16, 8], 16, 1);
    assert_eq!(Caller::new(&case, &mut narrow).found(1).err(), Some(INVALID));
}

#[test]
fn what_is_over_and_what_is_asked_for_by_a_wrong_length() {
    let (caller, mut operands, found) = begun(Case::f32([16, 16, 16]));
    let at = addresses(&mut operands);
    let mut other = Caller::new(&Case::f32([16, 16, 16]), &mut operands);
    let (layouts, handle) = (other.layouts, other.handle);
    (other.layouts, other.handle) = (caller.layouts, layouts[0].cast());
    assert_eq!(other.found(1).err(), Some(Status::CUBLAS_STATUS_NOT_INITIALIZED), "no handle");
    (other.layouts, other.handle) = ([caller.product.cast(); 4], handle);
    assert_eq!(other.multiply(at, Some(&found[0].algo), &mut [], 0), INVALID, "no layouts");
    other.layouts = layouts;
    let (mut value, mut written) = ([0u8; 8], 0);
    let attribute = Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
    // SAFETY: every call is given the room that it is told of, or is refused.
    unsafe {
        let tell = sys::cublasLtMatmulDescGetAttribute;
        assert_eq!(tell(caller.product, attribute, value.as_mut_ptr().cast(), 4, &mut written), INVALID);
        assert_eq!(tell(caller.product, attribute, null_mut(), 0, &mut written), OK);
        assert_eq!(written, 8);
        let set = sys::cublasLtMatmulDescSetAttribute;
        assert_eq!(set(caller.product, attribute, value.as_ptr().cast(), 4), INVALID);
        assert_eq!(set(null_mut(), attribute, value.as_ptr().cast(), 8), INVALID);
        let name = CStr::from_ptr(sys::cublasLtGetStatusName(INVALID));
        assert_eq!(name, c"CUBLAS_STATUS_INVALID_VALUE");
        assert!(!CStr::from_ptr(sys::cublasLtGetStatusString(INVALID)).is_empty());
        let mut handle = null_mut();
        assert_eq!(sys::cublasLtCreate(&mut handle), OK);
        assert_eq!(sys::cublasLtDestroy(handle), OK);
        assert_eq!(sys::cublasLtDestroy(handle), Status::CUBLAS_STATUS_NOT_INITIALIZED);
        let calls = LIBRARY.get::<unsafe extern "C" fn(*const i8) -> u64>(b"fakeCublasLtCalls\0");
        assert!(calls.expect("its own function")(c"cublasLtDestroy".as_ptr().cast()) >= 2);
        let alive = LIBRARY.get::<unsafe extern "C" fn() -> u64>(b"fakeCublasLtAlive\0");
        assert!(alive.expect("its own function")() >= 7);
    }
}
