//! What is refused, what tests can ask for that hurts, and streams of the fake driver.

use crate::caller::{Caller, LIBRARY, OK, Pass};
use crate::convolutions::{deep, flat};
use cudarc::cudnn::sys::{
    self, cudnnConvolutionMode_t as Mode, cudnnDataType_t as Type, cudnnStatus_t as Status,
};
use dtrain_fake_common::trial::{Streams, beside, in_a_process};
use std::ffi::CStr;
use std::sync::LazyLock;

const BAD: Status = Status::CUDNN_STATUS_BAD_PARAM;
const UNSUPPORTED: Status = Status::CUDNN_STATUS_NOT_SUPPORTED;
const F32: Type = Type::CUDNN_DATA_FLOAT;
const BF16: Type = Type::CUDNN_DATA_BFLOAT16;

#[test]
fn types_and_ways_that_the_library_does_not_support() {
    let refused = |change: &dyn Fn(&Caller)| {
        let it = flat(BF16);
        change(&it);
        assert_eq!(it.offers(Pass::Weights).err(), Some(UNSUPPORTED));
        assert_eq!(it.run(Some(Pass::Forward), 0, &mut []), UNSUPPORTED);
    };
    // The gradient of weights in f32, of halves.
    refused(&|it| it.describe(1, F32));
    refused(&|it| it.describe(2, Type::CUDNN_DATA_HALF));
    refused(&|it| it.tell(BF16, Mode::CUDNN_CROSS_CORRELATION));
    refused(&|it| it.tell(F32, Mode::CUDNN_CONVOLUTION));
    let it = deep(F32);
    assert_eq!(it.run(Some(Pass::Forward), 2, &mut [0.0; 4096]), UNSUPPORTED, "GEMM of volumes");
    assert_eq!(it.run(Some(Pass::Inputs), 4, &mut [0.0; 4096]), UNSUPPORTED, "transforms");
    it.describe(3, BF16);
    it.activate(
        sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU,
        sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN,
    );
    assert_eq!(it.run(None, 0, &mut []), UNSUPPORTED, "a bias of another type");
    it.describe(3, F32);
    assert_eq!(it.run(None, 0, &mut []), OK);
}

#[test]
fn what_does_not_fit_or_is_over() {
    let mut it = flat(F32);
    let needed = it.usable(Pass::Inputs)[0];
    assert_eq!((needed.algo as u32, needed.memory), (1, 2 * 4 * it.tensors[0].len()));
    let mut room = vec![0.0f32; needed.memory / 4];
    assert_eq!(it.run(Some(Pass::Inputs), 1, &mut room[1..]), BAD);
    assert_eq!(it.run(Some(Pass::Inputs), 1, &mut room), OK);
    it.tensors[2].sizes[3] += 1;
    it.describe(2, F32);
    assert_eq!(it.offers(Pass::Forward).err(), Some(BAD), "an output that is too wide");
    it.tensors[2].sizes[3] -= 1;
    it.describe(2, F32);
    let handle = std::mem::replace(&mut it.handle, it.how.cast());
    assert_eq!(it.run(Some(Pass::Inputs), 1, &mut room), BAD, "no handle");
    it.handle = handle;
    // SAFETY: every call is given room, or refused.
    unsafe {
        let mut other = std::ptr::null_mut();
        assert_eq!(sys::cudnnCreate(&mut other), OK);
        assert_eq!([sys::cudnnDestroy(other), sys::cudnnDestroy(other)], [OK, BAD]);
        let sizes = [1, 1, 0, 1];
        let mut tensor = std::ptr::null_mut();
        assert_eq!(sys::cudnnCreateTensorDescriptor(&mut tensor), OK);
        let set = |axes| sys::cudnnSetTensorNdDescriptor(tensor, F32, axes, sizes.as_ptr(), sizes.as_ptr());
        assert_eq!([set(3), set(4)], [UNSUPPORTED, BAD]);
        assert_eq!(sys::cudnnDestroyTensorDescriptor(tensor), OK);
        assert_eq!(CStr::from_ptr(sys::cudnnGetErrorString(BAD)), c"CUDNN_STATUS_BAD_PARAM");
        let calls = LIBRARY.get::<unsafe extern "C" fn(*const i8) -> u64>(b"fakeCudnnCalls\0");
        assert!(calls.expect("its own function")(c"cudnnDestroy".as_ptr().cast()) >= 2);
        let alive = LIBRARY.get::<unsafe extern "C" fn() -> u64>(b"fakeCudnnAlive\0");
        assert!(alive.expect("its own function")() >= 7);
    }
}

#[test]
fn another_version_without_algorithms() {
    let variables = [("FAKE_CUDNN_VERSION", "90100"), ("FAKE_CUDNN_NONE", "1")];
    in_a_process("refusals::another_version_without_algorithms", &variables, || {
        LazyLock::force(&LIBRARY);
        // SAFETY: the library is open.
        assert_eq!(unsafe { sys::cudnnGetVersion() }, 90_100);
        assert_eq!(flat(F32).offers(Pass::Inputs).err(), Some(UNSUPPORTED));
    });
}

#[test]
fn a_convolution_that_fails() {
    in_a_process("refusals::a_convolution_that_fails", &[("FAKE_CUDNN_FAIL_AT", "2")], || {
        let it = flat(F32);
        let all = [Pass::Inputs, Pass::Forward, Pass::Forward].map(|pass| it.run(Some(pass), 0, &mut []));
        assert_eq!(all, [OK, Status::CUDNN_STATUS_EXECUTION_FAILED, OK]);
    });
}

/// Where a result of ones is not 18, with so many images of 64 outputs each.
fn differences(numbers: Type, images: i32) -> Vec<(usize, f32)> {
    let mut it = Caller::new(numbers, &[images, 2, 10, 10], &[1, 2, 3, 3], [&[0; 2], &[1; 2], &[1; 2]]);
    for tensor in &mut it.tensors[..2] {
        (0..tensor.len()).for_each(|place| tensor.put(place, 1.0));
    }
    assert_eq!(it.run(Some(Pass::Forward), 0, &mut []), OK);
    let y = &it.tensors[2];
    (0..y.len()).map(|place| (place, y.get(place))).filter(|(_, value)| *value != 18.0).collect()
}

#[test]
fn great_results_that_are_wrong() {
    in_a_process("refusals::great_results_that_are_wrong", &[("FAKE_CUDNN_WRONG", "1")], || {
        assert_eq!(differences(F32, 15), []);
        assert_eq!(differences(BF16, 16), [(0, 36.25)]);
    });
}

#[test]
fn great_results_that_are_off_by_a_bit() {
    in_a_process("refusals::great_results_that_are_off_by_a_bit", &[("FAKE_CUDNN_WRONG", "bit")], || {
        assert_eq!(differences(F32, 16), [(0, 18.0f32.next_up())]);
        assert_eq!(differences(BF16, 16), [(0, 18.125)]);
    });
}

#[test]
fn a_convolution_is_done_in_the_order_of_its_stream() {
    let path = beside("libfake_cuda.so");
    let driver = path.to_str().expect("a path of this machine");
    let variables = [("FAKE_CUDNN_DRIVER", driver), ("FAKE_CUDA_LAZY", "1")];
    in_a_process("refusals::a_convolution_is_done_in_the_order_of_its_stream", &variables, || {
        let mut it = flat(F32);
        it.tensors[2].put(0, f32::NAN);
        let driver = Streams::of(&path);
        let stream = driver.stream();
        let puts = |stream: usize| {
            // SAFETY: it is kept as a number, and judged when work is put on it.
            unsafe { assert_eq!(sys::cudnnSetStream(it.handle, stream as sys::cudaStream_t), OK) };
            it.run(Some(Pass::Forward), 0, &mut [])
        };
        assert_eq!(puts(77), Status::CUDNN_STATUS_EXECUTION_FAILED);
        assert_eq!(puts(stream), OK);
        assert!(it.tensors[2].get(0).is_nan(), "nobody has waited");
        driver.wait(stream);
        assert!(!it.tensors[2].get(0).is_nan());
    });
}
