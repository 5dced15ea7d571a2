//! Products against f64, by every algorithm, and what tells algorithms apart.

use crate::caller::{Caller, OK, addresses, attribute};
use crate::operands::Case;
use cudarc::cublaslt::sys::{
    self, cublasLtEpilogue_t as Epilogue, cublasLtMatmulAlgoConfigAttributes_t as Config,
    cublasLtMatmulDescAttributes_t as Of, cublasLtMatmulPreferenceAttributes_t as Preference,
    cudaDataType as Type,
};

const F32: Type = Type::CUDA_R_32F;
const F16: Type = Type::CUDA_R_16F;
const BF16: Type = Type::CUDA_R_16BF;

/// The bits of D by each algorithm that is found.
fn by_each(case: Case) -> Vec<Vec<[u8; 4]>> {
    let fresh = case.operands();
    let mut described = fresh.clone();
    let caller = Caller::new(&case, &mut described);
    let found = caller.found(8).unwrap_or_else(|status| panic!("{case:?}: {status:?}"));
    let by = found.iter().map(|one| {
        let mut operands = fresh.clone();
        assert_eq!(caller.check(&one.algo), Ok(one.workspaceSize));
        let mut workspace = vec![u128::MAX; one.workspaceSize.div_ceil(16)];
        // The bias is that of the descriptor, which has the same numbers.
        let status = caller.multiply(addresses(&mut operands), Some(&one.algo), &mut workspace, 0);
        assert_eq!(status, OK, "{case:?}");
        case.judge(&operands);
        operands.d.bits()
    });
    by.collect()
}

#[test]
fn every_case_is_the_product_by_f64() {
    let all = [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F16, F32)];
    let epilogues = [
        Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::CUBLASLT_EPILOGUE_RELU,
        Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
    ];
    for (read, written) in all {
        for (epilogue, turned) in
            epilogues.into_iter().zip([[false, false], [false, true], [true, false], [true, true]])
        {
            // All transposes and epilogues, not all pairs: the next shape begins with another one.
            for (shape, apart, alpha, beta) in
                [([17, 9, 31], 0, 1.0, 0.0), ([24, 40, 64], 8, -0.75, 0.5), ([5, 3, 4], 3, 2.0, 1.0)]
            {
                by_each(Case { shape, turned, read, written, apart, alpha, beta, epilogue });
                let turned = [!turned[0], turned[1]];
                by_each(Case { shape, turned, read, written, apart, alpha, beta, epilogue });
            }
        }
    }
}

#[test]
fn algorithms_give_other_bits_and_each_gives_its_own_again() {
    let case = Case::f32([32, 32, 256]);
    let bits = by_each(case);
    assert_eq!(bits.len(), 5);
    for (one, other) in (0..5).flat_map(|one| (0..one).map(move |other| (one, other))) {
        assert!(bits[one] != bits[other], "the algorithms {one} and {other} are the same");
    }
    assert!(bits == by_each(case));
}

#[test]
fn what_is_preferred_leaves_algorithms_out() {
    let case = Case::f32([32, 32, 256]);
    let caller = Caller::new(&case, &mut case.operands());
    let cuts = |most| -> Vec<u32> {
        let found = caller.found(most).expect("some algorithms");
        found.iter().map(|one| attribute(&one.algo, Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)).collect()
    };
    assert_eq!(cuts(8), [1, 1, 2, 1, 4]);
    assert_eq!(cuts(2), [1, 1]);
    caller.prefer(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 2 * 32 * 32 * 4u64);
    assert_eq!(cuts(8), [1, 1, 2, 1]);
    caller.prefer(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 0u32);
    assert_eq!(cuts(8), [1, 1, 1]);
}

#[test]
fn c_may_be_d() {
    let case = Case { beta: 1.0, ..Case::f32([16, 16, 16]) };
    let mut operands = case.operands();
    let caller = Caller::new(&case, &mut operands);
    let algorithm = caller.found(1).expect("an algorithm")[0].algo;
    operands.d = operands.c.clone();
    let [a, b, _, d] = addresses(&mut operands);
    assert_eq!(caller.multiply([a, b, d, d], Some(&algorithm), &mut [], 0), OK);
    case.judge(&operands);
}

#[test]
fn tf32_is_for_f32_alone() {
    let tf32 = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32;
    for (read, written, takes) in [(F32, F32, true), (BF16, F32, false), (F16, F16, false)] {
        let case = Case { read, written, ..Case::f32([16, 16, 16]) };
        let caller = Caller::computing(&case, &mut case.operands(), tf32);
        assert_eq!(caller.found(1).is_ok(), takes, "{read:?}");
    }
}

#[test]
fn gelu_keeps_what_it_is_of() {
    let kept = Case { epilogue: Epilogue::CUBLASLT_EPILOGUE_BIAS, ..Case::f32([16, 5, 12]) };
    let gelu = Case { epilogue: Epilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS, ..kept };
    let run = |case: Case, change: &dyn Fn(&Caller)| {
        let mut operands = case.operands();
        let caller = Caller::new(&case, &mut operands);
        change(&caller);
        let algorithm = caller.found(1).map(|found| found[0].algo)?;
        let status = caller.multiply(addresses(&mut operands), Some(&algorithm), &mut [], 0);
        if status == OK { Ok(operands.d) } else { Err(status) }
    };
    let wanted = run(kept, &|_| ()).expect("a product");
    // Columns lie further apart than they are long.
    let mut memory = [f32::NAN; 5 * 24];
    let at = memory.as_mut_ptr() as usize;
    let with = |at: usize, pitch: i64| {
        move |caller: &Caller| {
            caller.describe(Of::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at);
            caller.describe(Of::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, pitch);
        }
    };
    let found = run(gelu, &with(at, 24)).expect("a product");
    for (row, column) in (0..5).flat_map(|column| (0..16).map(move |row| (row, column))) {
        // SAFETY: the library has written it, through an address that the compiler does not follow.
        let x = unsafe { std::ptr::read_volatile(&memory[column * 24 + row]) };
        assert_eq!(x.to_bits(), wanted.get(row, column).to_bits());
        let x = f64::from(x);
        let gelu =
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
        assert!((f64::from(found.get(row, column)) - gelu).abs() <= 1e-6 * (1.0 + x.abs()), "gelu of {x}");
    }
    for (at, pitch) in [(0, 24), (at, 20), (at, 8)] {
        assert!(run(gelu, &with(at, pitch)).is_err(), "{pitch} apart");
    }
}
