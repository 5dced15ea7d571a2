//! The same bits again: a second time, and while another stream of the same GPU is busy.

use crate::operations::{Results, all};
use crate::rig::Rig;
use crate::stand_in::numbers;
use crate::support::{device, extent};
use crate::training::train;
use crate::{real_sizes, stand_in::Extent};
use dtrain_cuda::CudaDevice;
use dtrain_engine::device::{Activation, Device, LinearShape, Operands, Rows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bits of everything, by name.
fn bits(results: Results) -> Vec<(&'static str, Vec<u32>)> {
    let of = |(name, values): (_, Vec<f32>)| (name, values.iter().map(|v| v.to_bits()).collect());
    results.into_iter().map(of).collect()
}

fn everything(gpu: &Arc<CudaDevice>) -> Vec<(&'static str, Vec<u32>)> {
    let mut results = all(gpu);
    results.extend(real_sizes::all(gpu));
    bits(results)
}

/// Ends the other stream's work, whatever happens.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives products to a stream of its own, until it is told to stop.
fn keep_busy(other: &Arc<CudaDevice>, started: &std::sync::Barrier, stop: &AtomicBool) {
    let n = if extent() == Extent::Whole { 1024 } else { 64 };
    let (x, mut y) = (other.put(&numbers(1, n * n)), other.empty(n * n));
    started.wait();
    loop {
        for _ in 0..8 {
            let rows = Rows { rows: n, width: n };
            other.linear(
                LinearShape::new(rows, n),
                Operands { x: other.r(&x), w: other.r(&x), bias: None },
                Activation::None,
                other.w(&mut y),
            );
        }
        other.finish().expect("a device that works");
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Runs `work` while a second stream of the GPU works.
fn beside_a_busy_stream<R>(work: impl FnOnce() -> R) -> R {
    let other = device().expect("there was one before");
    let (started, stop) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends_it = Stop(&stop);
        scope.spawn(|| keep_busy(&other, &started, &stop));
        started.wait();
        work()
    })
}

fn assert_same(when: &str, got: &[(&'static str, Vec<u32>)], wanted: &[(&'static str, Vec<u32>)]) {
    assert_eq!(got.len(), wanted.len());
    for ((what, got), (_, wanted)) in got.iter().zip(wanted) {
        let differ = got.iter().zip(wanted).filter(|(got, wanted)| got != wanted).count();
        assert!(got.len() == wanted.len() && differ == 0, "{what} {when}: {differ} of {} differ", got.len());
    }
}

#[test]
fn every_operation_gives_the_same_bits_again_and_beside_a_busy_stream() {
    let Some(gpu) = device() else { return };
    let wanted = everything(&gpu);
    assert_same("again", &everything(&gpu), &wanted);
    let other = device().expect("as above");
    assert_same("on another stream", &everything(&other), &wanted);
    assert_same("beside a busy stream", &beside_a_busy_stream(|| everything(&gpu)), &wanted);
}

#[test]
fn a_model_learns_the_same_bits_beside_a_busy_stream() {
    let Some(gpu) = device() else { return };
    let wanted = train(&gpu, |_| ());
    assert_eq!(train(&gpu, |_| ()), wanted);
    assert_eq!(beside_a_busy_stream(|| train(&gpu, |_| ())), wanted);
}
