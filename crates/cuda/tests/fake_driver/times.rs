//! What kernels take: names and numbers of launches, and shares of the whole.

use crate::stand_in::build::compiler;
use crate::support::{Fake, child, gpu, is_child};
use crate::training::train;
use dtrain_cuda::driver::{Buffer, KernelTime, Stream};
use dtrain_cuda::{CudaDevice, Precision, operations};
use std::sync::Arc;
use std::time::Duration;

fn launches(times: &[KernelTime]) -> Vec<(&'static str, u64)> {
    let mut launches: Vec<_> = times.iter().map(|one| (one.kernel, one.launches)).collect();
    launches.sort_unstable();
    launches
}

/// What the child of the next test does: alone in its process, because calls are counted.
#[test]
fn time_kernels() {
    if !is_child() {
        return;
    }
    let Some(gpu) = gpu() else { return };
    let fake = Fake::new();
    let plain = CudaDevice::one_by_one(&gpu, Precision::F32).expect("a stream");
    let wanted = train(&Arc::new(plain), |_| ());
    let lazy = fake.lazy();
    let stream = Stream::timing(&gpu).expect("a stream");
    drop(lazy);
    let mut x = Buffer::<f32>::new(gpu.context(), 100_000).expect("memory");
    let mut y = Buffer::<f32>::new(gpu.context(), 100_000).expect("memory");
    for round in 1..=3 {
        operations::fill(&stream, x.write(), round as f32);
        operations::copy(&stream, x.read(), y.write());
        operations::fill(&stream, x.write(), 0.0);
    }
    let times = stream.take_times().expect("a device that works");
    assert_eq!(launches(&times), [("copy_f32", 3), ("fill_f32", 6)]);
    assert!(times.iter().all(|one| one.time > Duration::ZERO), "{times:?}");
    assert!(times.is_sorted_by(|a, b| a.time >= b.time), "{times:?}");
    assert!((times.iter().map(|one| one.share).sum::<f64>() - 1.0).abs() < 1e-9, "{times:?}");
    assert_eq!(stream.take_times().expect("a device that works"), [], "each launch is told once");

    // A whole run has the bits that it has without a clock.
    let untimed = fake.calls("cuEventElapsedTime");
    assert_eq!(untimed, 9, "nothing but what was launched on a clock is timed");
    let device = Arc::new(CudaDevice::timing(&gpu, Precision::F32).expect("a stream"));
    assert_eq!(train(&device, |_| ()), wanted);
    let times = device.stream().take_times().expect("a device that works");
    let all: u64 = times.iter().map(|one| one.launches).sum();
    assert_eq!(all, fake.calls("cuEventElapsedTime") - untimed, "{times:?}");
    assert!(times.iter().any(|one| one.kernel == "cross_entropy_f32"), "{times:?}");
    assert_eq!(fake.wrong(), "");
    println!("\nwell");
}

#[test]
fn every_launch_on_a_clock_is_timed_and_shares_add_up_to_one() {
    if compiler().is_some() {
        assert!(child("times::time_kernels", &[]).contains("well"));
    }
}
