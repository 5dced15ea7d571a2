//! What the backend over NCCL needs of a device: a GPU gives it as the host does.

use crate::plain::gradient;
use crate::support::{Fake, gpu};
use dtrain_collective::{Arena, Geometry, SumOrder};
use dtrain_cuda::collectives::{GpuSlots, NcclDevice};
use dtrain_nccl::{Address, Device, DeviceArena, HostDevice, HostSlots, Place};
use dtrain_types::{MicroRange, cut_evenly, roots};

const LEN: usize = 1_333;
const COUNT: u32 = 13;

/// *Blocks* until the stream has passed everything.
fn wait<D: Device>(device: &D) {
    let mark = device.event().expect("a mark");
    assert_eq!(device.has_happened(&mark), Ok(true), "a mark that was put nowhere counts as reached");
    device.record(&mark).expect("a stream that works");
    while !device.has_happened(&mark).expect("a stream that works") {
        std::thread::yield_now();
    }
}

/// Uses everything that a backend uses; gives what the host sees of it.
fn use_all<D: Device>(device: &D, arena: &mut D::Arena) -> Vec<u32> {
    let (host, there) = (device.allocate(Place::Host, LEN * 4), device.allocate(Place::Device, LEN * 4));
    let (host, there) = (host.expect("memory"), there.expect("memory"));
    let (here, on_device) = (device.address(&host), device.address(&there));
    assert!([here, on_device].iter().all(|address| (address.0 as usize).is_multiple_of(64)));
    let all: Vec<MicroRange> =
        cut_evenly(COUNT, 3).into_iter().flat_map(|range| roots(range, COUNT)).collect();
    let mut leaves: Vec<Address> = (0..all.len() - 1).map(|slot| arena.address(slot)).collect();
    leaves.push(on_device);
    for slot in 0..all.len() - 1 {
        arena.lease(slot).iter_mut().enumerate().for_each(|(i, x)| *x = gradient(slot as u32, i));
    }
    arena.settle().expect("a stream that works");
    let sum = device.plan_sum(&SumOrder::tree(&all, COUNT), &leaves, leaves[0], LEN).expect("a plan");
    // SAFETY: all of it is memory of the device, `LEN` floats each, and is waited for before it is dropped.
    unsafe {
        device.fill(on_device, LEN, -0.0).expect("a stream that works");
        device.fill(on_device.float(7), 100, 3.25).expect("a stream that works");
        device.add(&sum).expect("a stream that works");
        device.copy(leaves[0], on_device.float(1), (LEN - 1) * 4).expect("a stream that works");
        device.copy(on_device, here, LEN * 4).expect("a stream that works");
    }
    wait(device);
    // SAFETY: it is host memory of `LEN` floats, and the stream is done with it.
    let seen = unsafe { std::slice::from_raw_parts(here.0.cast::<f32>(), LEN) };
    seen.iter().chain(arena.lease(0).iter()).map(|x| x.to_bits()).collect()
}

#[test]
fn a_gpu_does_for_the_backend_what_the_host_does() {
    let Some(gpu) = gpu() else { return };
    let geometry = Geometry { len: LEN, root_slots: 8, scratch_slots: 1 };
    let host = HostDevice::new().expect("a thread for the stream");
    let wanted = use_all(&host, &mut HostSlots::new(geometry));
    let fake = Fake::new();
    let lazy = fake.lazy();
    let device = NcclDevice::new(&gpu).expect("a stream");
    drop(lazy);
    let mut slots = GpuSlots::new(device.communication(), geometry).expect("memory");
    assert_eq!(use_all(&device, &mut slots), wanted);
    assert_eq!(device.describe(), "GPU 0 (Fake CUDA device)");
    assert!(!device.stream().0.is_null());
    assert_eq!(fake.wrong(), "");
}
