//! What tests can ask for that hurts, each in a process of its own, because variables are read once.

use crate::caller::{Caller, LIBRARY, OK, addresses};
use crate::operands::{Case, Operand};
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status, cudaDataType as Type};
use dtrain_fake_common::trial::in_a_process;
use std::sync::LazyLock;

/// The bits of D, of products one after another, of numbers that are the same each time.
fn computed(case: Case, times: usize) -> Vec<Result<Vec<[u8; 4]>, Status>> {
    let mut operands = case.operands();
    let caller = Caller::new(&case, &mut operands);
    let algorithm = caller.found(1).expect("an algorithm")[0].algo;
    let compute = |_| match caller.multiply(addresses(&mut operands), Some(&algorithm), &mut [], 0) {
        OK => Ok(operands.d.bits()),
        status => Err(status),
    };
    (0..times).map(compute).collect()
}

fn version() -> usize {
    LazyLock::force(&LIBRARY);
    // SAFETY: the library is open.
    unsafe { sys::cublasLtGetVersion() }
}

#[test]
fn an_older_version() {
    assert!([130_100, 120_103].contains(&version()));
    let variables = [("FAKE_CUBLASLT_VERSION", "120103")];
    in_a_process("knobs::an_older_version", &variables, || assert_eq!(version(), 120_103));
}

#[test]
fn heuristics_that_find_nothing() {
    in_a_process("knobs::heuristics_that_find_nothing", &[("FAKE_CUBLASLT_NONE", "1")], || {
        let case = Case::f32([16, 16, 16]);
        let caller = Caller::new(&case, &mut case.operands());
        assert_eq!(caller.found(3).err(), Some(Status::CUBLAS_STATUS_NOT_SUPPORTED));
    });
}

#[test]
fn a_product_that_fails() {
    in_a_process("knobs::a_product_that_fails", &[("FAKE_CUBLASLT_FAIL_AT", "2")], || {
        let all = computed(Case::f32([16, 16, 16]), 3);
        assert_eq!(all[1], Err(Status::CUBLAS_STATUS_EXECUTION_FAILED));
        assert!(all[0].is_ok() && all[0] == all[2]);
    });
}

/// Where a product of so many rows is not what it should be, which is 8 everywhere.
fn differences(rows: usize, numbers: Type) -> Vec<(usize, f32)> {
    let case = Case { read: numbers, written: numbers, ..Case::f32([rows, 16, 16]) };
    let mut operands = case.operands();
    operands.a = Operand::holding(numbers, [rows, 16], rows, 0.5);
    operands.b = Operand::holding(numbers, [16, 16], 16, 1.0);
    let caller = Caller::new(&case, &mut operands);
    let algorithm = caller.found(1).expect("an algorithm")[0].algo;
    assert_eq!(caller.multiply(addresses(&mut operands), Some(&algorithm), &mut [], 0), OK);
    let places = (0..rows * 16).map(|at| (at, operands.d.get(at % rows, at / rows)));
    places.filter(|(_, value)| *value != 8.0).collect()
}

#[test]
fn great_products_that_are_wrong() {
    in_a_process("knobs::great_products_that_are_wrong", &[("FAKE_CUBLASLT_WRONG", "1")], || {
        assert_eq!(differences(63, Type::CUDA_R_32F), []);
        assert_eq!(differences(64, Type::CUDA_R_32F), [(0, 25.0)]);
        assert_eq!(differences(64, Type::CUDA_R_16BF), [(0, 25.0)]);
    });
}

#[test]
fn great_products_that_are_off_by_a_bit() {
    in_a_process("knobs::great_products_that_are_off_by_a_bit", &[("FAKE_CUBLASLT_WRONG", "bit")], || {
        assert_eq!(differences(56, Type::CUDA_R_16F), []);
        assert_eq!(differences(64, Type::CUDA_R_32F), [(0, 8.0f32.next_up())]);
        assert_eq!(differences(64, Type::CUDA_R_16BF), [(0, 8.0625)]);
    });
}

#[test]
fn the_same_product_with_other_bits() {
    in_a_process("knobs::the_same_product_with_other_bits", &[("FAKE_CUBLASLT_UNSTEADY", "1")], || {
        let all = computed(Case::f32([32, 32, 200]), 4);
        for (one, other) in (0..4).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert!(all[one].is_ok() && all[one] != all[other], "the products {one} and {other}");
        }
    });
}
