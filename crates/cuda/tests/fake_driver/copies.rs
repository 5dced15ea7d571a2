//! Lists of any length on their way to a device and back, in pieces.

use crate::support::{Fake, device};
use dtrain_cuda::CudaDevice;
use dtrain_cuda::driver::Buffer;

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
    let devices = [eager, device().expect("as above")];
    drop(lazy);
    for device in devices {
        let lengths = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7, 4 * PIECE, 5];
        for (i, len) in lengths.into_iter().enumerate() {
            there_and_back(&device, len, 1000 * i as u32);
        }
    }
    assert_eq!(fake.wrong(), "");
}
