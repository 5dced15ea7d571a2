//! Products on streams of the fake driver: behind what is there, and no sooner than somebody waits where a stream is lazy.

use crate::caller::{Caller, OK, addresses, in_a_process};
use crate::operands::{Case, Operand, Operands};
use cudarc::cublaslt::sys::cublasStatus_t as Status;
use libloading::Library;
use std::ffi::c_int;

/// The driver's functions that a stream takes.
struct Driver(Library);

impl Driver {
    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller names the type that cuda.h has.
        unsafe { *self.0.get::<F>(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")) }
    }

    /// A stream of the first device, whose context is current from now on.
    fn stream(&self) -> usize {
        let (mut context, mut stream) = (0usize, 0usize);
        // SAFETY: the types are those of cuda.h.
        unsafe {
            assert_eq!(self.call::<unsafe extern "C" fn(u32) -> u32>("cuInit")(0), 0);
            let retain: unsafe extern "C" fn(*mut usize, c_int) -> u32 =
                self.call("cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&mut context, 0), 0);
            assert_eq!(self.call::<unsafe extern "C" fn(usize) -> u32>("cuCtxSetCurrent")(context), 0);
            let create: unsafe extern "C" fn(*mut usize, u32) -> u32 = self.call("cuStreamCreate");
            assert_eq!(create(&mut stream, 1), 0);
        }
        stream
    }
}

#[test]
fn a_product_is_done_in_the_order_of_its_stream() {
    let path = std::env::current_exe().expect("this binary").with_file_name("libfake_cuda.so");
    let driver = path.to_str().expect("a path of this machine");
    let variables = [("FAKE_CUBLASLT_DRIVER", driver), ("FAKE_CUDA_LAZY", "1")];
    in_a_process("streams::a_product_is_done_in_the_order_of_its_stream", &variables, || {
        // SAFETY: the library of this workspace runs no code when it is opened.
        let driver = Driver(unsafe { Library::new(&path) }.expect("cargo builds it beside this test"));
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
        // SAFETY: the type is that of cuda.h.
        let done =
            unsafe { driver.call::<unsafe extern "C" fn(usize) -> u32>("cuStreamSynchronize")(stream) };
        assert_eq!(done, 0);
        case.judge(&operands);
        case.judge(&Operands { a: operands.d.clone(), d: last, ..operands });
    });
}
