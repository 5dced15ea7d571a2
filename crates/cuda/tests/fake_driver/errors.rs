//! What goes wrong with a driver or a device, as a user and a caller see it. Each in a process of its own.

use crate::stand_in::build::compiler;
use crate::support::{Fake, cache, child, device, driver, is_child, library_path, nvrtc};
use dtrain_cuda::driver::{Buffer, Context, Driver, DriverError, Event, Gpu, Pinned, Stream};
use dtrain_cuda::operations;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::device::Device;
use std::path::Path;

#[test]
fn no_driver_is_an_error_with_a_hint() {
    let error = Driver::open(Some(Path::new("/nowhere/libcuda.so.1"))).unwrap_err();
    assert!(matches!(error, DriverError::NoDriver { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("/nowhere") && said.contains("\nhint: install NVIDIA's driver"), "{said}");
    // A library, but no driver.
    let error = Driver::open(Some(Path::new("libc.so.6"))).unwrap_err();
    assert!(matches!(error, DriverError::Lacks { function: "cuInit" }), "{error:?}");
}

#[test]
fn another_driver_than_the_one_that_is_open_is_refused() {
    driver();
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("libcuda.so.1");
    std::fs::copy(library_path(), &other).expect("a copy");
    let error = Driver::open(Some(&other)).unwrap_err();
    assert_eq!(error, DriverError::AnotherDriver { path: other });
}

#[test]
fn a_driver_that_lacks_a_function_is_refused_by_its_name() {
    // A copy in whose table of symbols a function has another name.
    let mut bytes = std::fs::read(library_path()).expect("the fake driver");
    let name = b"\0cuMemsetD32Async\0";
    let places = bytes.windows(name.len()).enumerate().filter(|(_, found)| found == name);
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[at + 1] = b'x');
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("libcuda.so.1");
    std::fs::write(&path, bytes).expect("a temporary file");
    let path = path.to_str().expect("a plain path");
    let said = child("errors::open_the_driver", &[("DTRAIN_TEST_DRIVER", path)]);
    assert!(said.contains("refused: the CUDA driver has no function cuMemsetD32Async hint: "), "{said}");
}

/// What the children of the next tests do.
#[test]
fn open_the_driver() {
    if is_child() {
        let path = std::env::var_os("DTRAIN_TEST_DRIVER").map_or_else(library_path, Into::into);
        let opened = Driver::open(Some(&path)).and_then(|driver| Context::open(&driver, 1));
        match opened {
            Ok(context) => println!("\nopened {:?} for {}", context.about(), context.about().architecture()),
            Err(error) => println!("\nrefused: {}", error.to_string().replace('\n', " ")),
        }
    }
}

#[test]
fn drivers_that_are_old_or_have_no_device_are_refused_in_words() {
    for (variable, value, wanted) in [
        ("FAKE_CUDA_VERSION", "11040", "refused: the CUDA driver serves CUDA 11.4, at least 12.0"),
        ("FAKE_CUDA_DEVICES", "0", "refused: cuInit failed: no CUDA-capable device is detected"),
        (
            "FAKE_CUDA_DEVICES",
            "1",
            "refused: there is no GPU 1: 1 are visible hint: look at CUDA_VISIBLE_DEVICES",
        ),
        ("FAKE_CUDA_FAIL", "cuInit:1:803", "hint: driver and libcuda do not belong together"),
        (
            "FAKE_CUDA_FAIL",
            "cuDevicePrimaryCtxRetain:1:46",
            "hint: another process may have this GPU for itself",
        ),
        ("FAKE_CUDA_CAPABILITY", "80", "for sm_80"),
        ("FAKE_CUDA_CAPABILITY", "90", "for sm_90a"),
        ("FAKE_CUDA_MEMORY", "12345", "memory: 12345"),
    ] {
        let said = child("errors::open_the_driver", &[(variable, value)]);
        assert!(said.contains(wanted), "{variable}={value}: {said}");
    }
}

/// What the child of the next test does.
#[test]
fn ask_for_too_much() {
    if is_child() {
        let context = Context::open(&driver(), 0).expect("a device");
        let first = Buffer::<f32>::new(&context, 1000).expect("there is so much");
        let error = Buffer::<f32>::new(&context, 1_000_000).expect_err("there is not so much");
        assert_eq!(error, DriverError::OutOfMemory { wanted: 4_000_000, free: 996_000, total: 1_000_000 });
        // It does not stick, and what is given back can be had again.
        drop(first);
        Buffer::<f32>::new(&context, 249_000).expect("there is so much");
        drop(context);
        assert_eq!((Fake::new().alive(), Fake::new().wrong().as_str()), (0, ""));
        println!("\nwell");
    }
}

#[test]
fn too_little_memory_is_told_in_numbers_and_does_not_stick() {
    let said = child("errors::ask_for_too_much", &[("FAKE_CUDA_MEMORY", "1000000")]);
    assert!(said.contains("well"), "{said}");
}

/// What the child of the next test does: a kernel touches what it may not, and nobody waits for it at once.
#[test]
fn go_on_after_a_kernel_that_failed() {
    if !is_child() {
        return;
    }
    let Some(device) = device() else { return };
    let (fake, context) = (Fake::new(), device.gpu().context().clone());
    let mut x = Buffer::<f32>::new(&context, 1000).expect("memory");
    let (event, pinned) =
        (Event::new(&context).expect("an event"), Pinned::<f32>::new(&context, 8).expect("memory"));
    for _ in 0..4 {
        device.fill(x.write().into(), 1.0);
    }
    let error = device.finish().expect_err("the third kernel fails");
    assert!(matches!(error, DriverError::Call { code: 700, .. }), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && said.contains("\nhint: a bug of dtrain"),
        "{said}"
    );
    // From now on everything says so, and the driver is not asked again.
    let before = fake.calls("cuLaunchKernel");
    device.fill(x.write().into(), 2.0);
    assert_eq!(fake.calls("cuLaunchKernel"), before);
    assert_eq!(device.check(), Err(error.clone()));
    assert_eq!(device.finish(), Err(error.clone()));
    assert_eq!(event.has_happened(), Err(error.clone()));
    assert_eq!(Stream::new(device.gpu()).expect_err("no more"), error);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.wait()));
    let text = panicked.expect_err("there is no other way to say so");
    assert!(text.downcast_ref::<String>().is_some_and(|text| text.contains("ILLEGAL_ADDRESS")));
    // Nothing of it is given back to a device that may not answer.
    let freed = fake.calls("cuMemFree_v2") + fake.calls("cuStreamDestroy_v2");
    drop((device, x, event, pinned));
    assert_eq!(fake.calls("cuMemFree_v2") + fake.calls("cuStreamDestroy_v2"), freed);
    println!("\nwell");
}

#[test]
fn a_failure_sticks_and_is_told_to_everybody_and_nothing_waits_for_a_failed_device() {
    if compiler().is_some() {
        let said = child("errors::go_on_after_a_kernel_that_failed", &[("FAKE_CUDA_FAIL", "kernel:3:700")]);
        assert!(said.contains("well"), "{said}");
    }
}

/// What the child of the next test does.
#[test]
fn launch_what_the_driver_refuses() {
    if is_child()
        && let Some(device) = device()
    {
        let mut x = Buffer::<f32>::new(device.gpu().context(), 1000).expect("memory");
        device.fill(x.write().into(), 1.0);
        device.fill(x.write().into(), 2.0);
        let error = device.finish().expect_err("a launch was refused");
        assert!(matches!(error, DriverError::Call { call: "cuLaunchKernel", code: 701, .. }), "{error:?}");
        println!("\nwell");
    }
}

#[test]
fn a_launch_that_is_refused_is_told_at_the_next_wait() {
    if compiler().is_some() {
        let fail = [("FAKE_CUDA_FAIL", "cuLaunchKernel:2:701")];
        assert!(child("errors::launch_what_the_driver_refuses", &fail).contains("well"));
    }
}

/// What the child of the next test does.
#[test]
fn leave_nothing_behind() {
    if is_child() && compiler().is_some() {
        let fake = Fake::new();
        let (gpu, _) = Gpu::open(&driver(), 0, &nvrtc(), &cache()).expect("a device");
        let device = CudaDevice::new(&gpu, Precision::F32).expect("a stream");
        let mut x = Buffer::<f32>::new(gpu.context(), 1000).expect("memory");
        device.fill(x.write().into(), 1.0);
        assert_eq!(device.sum_of_squares(x.read().into(), 1.0), 1000.0);
        assert!(fake.alive() > 20, "{}", fake.alive());
        drop((x, device, gpu));
        assert_eq!((fake.alive(), fake.wrong().as_str()), (0, ""));
        println!("\nwell");
    }
}

#[test]
fn everything_is_given_back() {
    if compiler().is_some() {
        assert!(child("errors::leave_nothing_behind", &[]).contains("well"));
    }
}

/// What the child of the next test does: what no test of ours does on purpose, so that the fake is known to see it.
#[test]
fn do_what_is_wrong() {
    if is_child()
        && let Some(device) = device()
    {
        let fake = Fake::new();
        let x = Buffer::<f32>::new(device.gpu().context(), 1000).expect("memory");
        // SAFETY: it is not: two elements more than there are. They lie in the guard words of the fake driver.
        let long = unsafe { dtrain_cuda::SliceMut::<f32>::new(x.address(), 1002) };
        operations::fill(device.stream(), long, 1.0);
        device.finish().expect("nothing was noticed yet");
        let freed = x.address();
        drop(x);
        assert!(
            fake.wrong().contains("behind a block of 4000 bytes something was written, at 4000"),
            "{}",
            fake.wrong()
        );
        // SAFETY: it is not: the memory is gone.
        operations::fill(device.stream(), unsafe { dtrain_cuda::SliceMut::new(freed, 10) }, 1.0);
        assert!(matches!(device.finish(), Err(DriverError::Call { code: 700, .. })));
        assert!(fake.wrong().contains("which is no memory of its device"), "{}", fake.wrong());
        println!("\nwell");
    }
}

#[test]
fn the_fake_driver_sees_what_is_written_behind_the_end_and_after_the_end() {
    if compiler().is_some() {
        assert!(child("errors::do_what_is_wrong", &[]).contains("well"));
    }
}
