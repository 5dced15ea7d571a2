//! Products on streams of the fake driver: behind what is there, and no sooner than somebody waits where a stream is lazy.

use crate::caller::{Caller, OK, addresses};
use crate::operands::{Case, Operand, Operands};
use cudarc::cublaslt::sys::cublasStatus_t as Status;
use dtrain_fake_common::trial::{Streams, beside, in_a_process};

#[test]
fn a_product_is_done_in_the_order_of_its_stream() {
    let path = beside("libfake_cuda.so");
    let driver = path.to_str().expect("a path of this machine");
    let variables = [("FAKE_CUBLASLT_DRIVER", driver), ("FAKE_CUDA_LAZY", "1")];
    in_a_process("streams::a_product_is_done_in_the_order_of_its_stream", &variables, || {
        let driver = Streams::of(&path);
        let stream = driver.stream();
        let case = Case::f32([16, 16, 16]);
        let mut operands = case.operands();
        let caller = Caller::new(&case, &mut operands);
        let algorithm = caller.found(1).expect("an algorithm")[0].algo;
        let at @ [a, b, c, d] = addresses(&mut operands);
        // What is no stream is refused.
        let refused = caller.multiply(at, Some(&algorithm), &mut [], 77);
        assert_eq!(refused, Status::CUBLAS_STATUS_EXECUTION_FAILED);
        // D = A B, then E = D B: the second reads what the first wrote.
        let mut last = Operand::holding(case.written, [16, 16], 16, f32::NAN);
        let e = last.address();
        assert_eq!(caller.multiply([a, b, c, d], Some(&algorithm), &mut [], stream), OK);
        assert_eq!(caller.multiply([d, b, c, e], Some(&algorithm), &mut [], stream), OK);
        // What was given does not need the caller's descriptors any more.
        drop(caller);
        assert!(operands.d.get(0, 0).is_nan() && last.get(15, 15).is_nan(), "nobody has waited");
        driver.wait(stream);
        case.judge(&operands);
        case.judge(&Operands { a: operands.d.clone(), d: last, ..operands });
    });
}
