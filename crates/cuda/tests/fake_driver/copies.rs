//! Lists of any length on their way to a device and back, in pieces, by one thread and by several.

use crate::support::{Fake, device, gpu};
use dtrain_cuda::driver::Buffer;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::OwnMemory;
use dtrain_engine::cpu::Pool;
use half::{bf16, f16};
use std::sync::Arc;

/// Elements of a piece of four-byte elements.
const PIECE: usize = 1 << 18;

fn there_and_back(device: &CudaDevice, len: usize, first: u32) {
    let list: Vec<u32> = (first..).take(len).collect();
    let mut there = Buffer::<u32>::new(device.gpu().context(), len).expect("memory");
    device.upload(&list, there.write()).expect("a device that works");
    let mut back = vec![0; len];
    device.download(there.read(), &mut back).expect("a device that works");
    assert!(back == list, "{len} elements from {first}");
}

#[test]
fn lists_of_any_length_come_there_and_back() {
    let fake = Fake::new();
    let Some(eager) = device() else { return };
    let lazy = fake.lazy();
    let devices = [eager, device().expect("as above"), by_threads(Precision::F32)];
    drop(lazy);
    for device in devices {
        let lengths = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7, 4 * PIECE, 5];
        for (i, len) in lengths.into_iter().enumerate() {
            there_and_back(&device, len, 1000 * i as u32);
        }
    }
    assert_eq!(fake.wrong(), "");
}

/// A device to which three threads bring lists.
fn by_threads(precision: Precision) -> Arc<CudaDevice> {
    let device = CudaDevice::new(&gpu().expect("the fake"), precision).expect("a stream");
    Arc::new(device.with_threads(Pool::new(3).expect("threads")))
}

#[test]
fn activations_are_rounded_on_their_way_whoever_brings_them() {
    let Some(gpu) = gpu() else { return };
    // Two pieces of halves and a part of one, of many tasks each.
    let list: Vec<f32> = (0..5 * PIECE + 77).map(|i| (i as f32 * 0.618_034).fract() * 4.0 - 2.0).collect();
    for (precision, round) in [
        (Precision::Bf16, (|x| bf16::from_f32(x).to_f32()) as fn(f32) -> f32),
        (Precision::F16, |x| f16::from_f32(x).to_f32()),
    ] {
        let wanted: Vec<f32> = list.iter().map(|x| round(*x)).collect();
        let alone = Arc::new(CudaDevice::new(&gpu, precision).expect("a stream"));
        for device in [alone, by_threads(precision)] {
            let [mut now, mut ahead] = [0; 2].map(|_| device.floats(list.len()).expect("memory"));
            device.send_activations(&list, &mut now).expect("a device that works");
            device.send_activations_ahead(&list, &mut ahead).expect("a device that works");
            device.join_ahead().expect("a device that works");
            for there in [now, ahead] {
                let mut found = vec![0.0; list.len()];
                device.fetch_activations(&there, &mut found).expect("a device that works");
                assert!(found == wanted, "{}", precision.name());
            }
        }
    }
}
