//! What the backend over NCCL needs of a device: a GPU gives it, held against plain code.

use crate::support::{Fake, gpu};
use dtrain_collective::{Arena, BLOCK, Geometry, HostArena, SumOrder, sum_block};
use dtrain_cuda::collectives::{GpuSlots, NcclDevice};
use dtrain_cuda::driver::{Buffer, Gpu, Stream};
use dtrain_cuda::{CudaDevice, DeviceFloats, Precision};
use dtrain_engine::OwnMemory;
use dtrain_engine::device::Device as _;
use dtrain_engine::models::peer::uniform;
use dtrain_nccl::{Address, Device, DeviceArena, MemoryPlace};
use dtrain_types::{MicroRange, Wire, cut_evenly, roots};
use std::sync::Arc;

const LEN: usize = 1_333;
const COUNT: u32 = 13;

/// *Blocks* until the stream has passed everything.
fn wait(device: &NcclDevice) {
    let mark = device.event().expect("a mark");
    assert_eq!(device.has_happened(&mark), Ok(true), "a mark that was put nowhere counts as reached");
    device.record(&mark).expect("a stream that works");
    while !device.has_happened(&mark).expect("a stream that works") {
        std::thread::yield_now();
    }
}

/// The roots of a step, a leaf of its sum each.
fn leaves() -> Vec<MicroRange> {
    cut_evenly(COUNT, 3).into_iter().flat_map(|range| roots(range, COUNT)).collect()
}

/// What [`use_all`] gives, in plain code.
fn wanted() -> Vec<u32> {
    let all = leaves();
    let mut values: Vec<Vec<f32>> = (0..all.len() as u64).map(|slot| uniform(slot, LEN, 1.0)).collect();
    let mut last = vec![-0.0; LEN];
    last[7..107].fill(3.25);
    *values.last_mut().expect("there are roots") = last;
    let order = SumOrder::tree(&all, COUNT);
    let (mut stack, mut sum) = (vec![0.0; order.depth() * BLOCK], Vec::new());
    for start in (0..LEN).step_by(BLOCK) {
        let n = BLOCK.min(LEN - start);
        sum_block(&order, Wire::F32, n, &mut stack, |leaf| &values[leaf][start..]);
        sum.extend_from_slice(&stack[..n]);
    }
    let shifted = std::iter::once(&-0.0).chain(&sum[..LEN - 1]);
    shifted.chain(&sum).map(|x| x.to_bits()).collect()
}

/// Uses everything that a backend uses; gives what the host sees of it.
fn use_all(device: &NcclDevice, arena: &mut GpuSlots) -> Vec<u32> {
    let (host, there) =
        (device.allocate(MemoryPlace::Host, LEN * 4), device.allocate(MemoryPlace::Device, LEN * 4));
    let (host, there) = (host.expect("memory"), there.expect("memory"));
    let (here, on_device) = (device.address(&host), device.address(&there));
    assert!([here, on_device].iter().all(|address| (address.0 as usize).is_multiple_of(64)));
    let all = leaves();
    let mut leaves: Vec<Address> = (0..all.len() - 1).map(|slot| DeviceArena::address(arena, slot)).collect();
    leaves.push(on_device);
    for slot in 0..all.len() - 1 {
        arena.lease(slot).copy_from_slice(&uniform(slot as u64, LEN, 1.0));
    }
    DeviceArena::settle(arena).expect("a stream that works");
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
fn a_gpu_does_for_the_backend_what_plain_code_does() {
    let Some(gpu) = gpu() else { return };
    let geometry = Geometry { len: LEN, root_slots: 8, scratch_slots: 1 };
    let fake = Fake::new();
    let lazy = fake.lazy();
    let device = NcclDevice::new(&gpu).expect("a stream");
    drop(lazy);
    let mut slots = GpuSlots::new(device.communication(), geometry).expect("memory");
    assert_eq!(use_all(&device, &mut slots), wanted());
    assert_eq!(device.describe(), "GPU 0 (Fake CUDA device)");
    assert!(!device.stream().0.is_null());
    assert_eq!(fake.wrong(), "");
}

/// A slot as a replica on the device takes it.
fn part(slots: &mut GpuSlots, slot: usize) -> DeviceFloats {
    CudaDevice::slot(&slots.on_device(slot).expect("it lies on the device")).expect("a slot of a GPU")
}

/// Two floats of a slot, as the stream of the collectives sees them behind a start.
fn seen(device: &NcclDevice, slots: &mut GpuSlots, slot: usize) -> [f32; 2] {
    DeviceArena::settle(slots).expect("a stream that works");
    let host = device.allocate(MemoryPlace::Host, 8).expect("memory");
    let from = DeviceArena::address(slots, slot);
    // SAFETY: two floats of a slot and of host memory, which is waited for.
    unsafe { device.copy(from, device.address(&host), 8).expect("a stream that works") };
    wait(device);
    // SAFETY: they were written just now.
    unsafe { *device.address(&host).0.cast::<[f32; 2]>() }
}

#[test]
fn kernels_reach_a_slot_where_it_lies_and_see_what_was_leased() {
    let Some(gpu) = gpu() else { return };
    let stream = Arc::new(Stream::new(&gpu).expect("a stream"));
    let geometry = Geometry { len: 100, root_slots: 1, scratch_slots: 1 };
    let mut slots = GpuSlots::new(&stream, geometry).expect("memory");
    assert!(slots.lease(0).iter().all(|x| x.to_bits() == 0));
    slots.lease(0).fill(1.5);
    slots.lease(1).fill(2.0);
    let [mut own, other] = [0, 1].map(|slot| part(&mut slots, slot));
    dtrain_cuda::operations::add_to(&*stream, other.read(), own.write());
    let (sum, kept) = slots.lease_pair(0, 1);
    assert!(sum.iter().all(|x| *x == 3.5) && kept.iter().all(|x| *x == 2.0));
    assert!(HostArena::new(geometry).on_device(0).is_none());
}

/// Two streams that are as late as may be, and slots that the first one fills and the other one sends.
fn filled(gpu: &Arc<Gpu>, fake: &Fake, geometry: Geometry) -> (CudaDevice, NcclDevice, GpuSlots) {
    let _lazy = fake.lazy();
    let computes = CudaDevice::new(gpu, Precision::F32).expect("a stream");
    let device = NcclDevice::new(gpu).expect("a stream");
    let slots = GpuSlots::new(device.communication(), geometry).expect("memory");
    let slots = slots.filled_on(computes.stream()).expect("a mark");
    (computes, device, slots)
}

#[test]
fn slots_that_another_stream_fills_are_full_when_they_are_reduced_or_leased() {
    let Some(gpu) = gpu() else { return };
    let fake = Fake::new();
    let (computes, device, mut slots) =
        filled(&gpu, &fake, Geometry { len: 1_000, root_slots: 1, scratch_slots: 1 });
    let [mut first, mut second] = [0, 1].map(|slot| part(&mut slots, slot));
    let mut ones = Buffer::<f32>::new(gpu.context(), 1_000).expect("memory");
    computes.upload(&[1.0; 1_000], ones.write()).expect("a device that works");
    computes.copy(ones.read().into(), first.write());
    computes.copy(ones.read().into(), second.write());
    computes.add_to(second.read(), first.write());
    assert_eq!(seen(&device, &mut slots, 0), [2.0, 2.0], "behind what fills it");
    computes.add_to(second.read(), first.write());
    assert_eq!(slots.lease(0)[..2], [3.0, 3.0], "a lease too");
    slots.lease(0)[1] = 10.0;
    let mut first = part(&mut slots, 0);
    computes.add_to(second.read(), first.write());
    assert_eq!(seen(&device, &mut slots, 0), [4.0, 11.0], "what was leased is there for the device");
    // A lease that nobody gave back is no longer the slot once the device was handed it.
    assert_eq!(slots.lease(0)[..2], [4.0, 11.0]);
    let foreign = dtrain_types::DeviceMemory::new(0u8);
    assert!(CudaDevice::slot(&foreign).is_none());
    assert_eq!(fake.wrong(), "");
}

#[test]
fn what_is_done_on_slots_comes_behind_what_fills_them_and_in_front_of_what_follows() {
    let Some(gpu) = gpu() else { return };
    let fake = Fake::new();
    let (computes, device, mut slots) =
        filled(&gpu, &fake, Geometry { len: 1_000, root_slots: 1, scratch_slots: 0 });
    let shared = device.share(500).expect("memory");
    let mut floats = CudaDevice::slot(&shared).expect("memory of this device");
    let (address, len) = device.reach(&shared).expect("memory of this device");
    assert_eq!(len, 500);
    let mut ones = Buffer::<f32>::new(gpu.context(), 500).expect("memory");
    computes.upload(&[1.0; 500], ones.write()).expect("a device that works");
    computes.copy(ones.read().into(), floats.write());
    computes.add_to(ones.read().into(), floats.write());
    DeviceArena::settle(&mut slots).expect("a stream that works");
    let slot = DeviceArena::address(&slots, 0);
    // SAFETY: memory of the device that lives as long as both streams, 500 floats each, which do not overlap.
    unsafe {
        device.copy(address, slot, 2_000).expect("a stream that works");
        device.add_to(address, slot, 500).expect("a stream that works");
        device.copy(slot, address, 2_000).expect("a stream that works");
    }
    DeviceArena::hand_over(&mut slots).expect("a stream that works");
    computes.add_to(ones.read().into(), floats.write());
    let mut seen = [0.0; 500];
    computes.fetch(&floats, &mut seen).expect("a device that works");
    assert_eq!(seen, [5.0; 500]);
    let foreign = dtrain_types::DeviceMemory::new(0u8);
    assert!(device.reach(&foreign).is_none());
    assert_eq!(fake.wrong(), "");
}

#[test]
fn a_part_that_is_leased_is_fetched_and_put_back_alone() {
    let Some(gpu) = gpu() else { return };
    let device = NcclDevice::new(&gpu).expect("a stream");
    let geometry = Geometry { len: 100, root_slots: 1, scratch_slots: 0 };
    let mut slots = GpuSlots::new(device.communication(), geometry).expect("memory");
    let counted: Vec<f32> = (0..100u8).map(f32::from).collect();
    slots.lease(0).copy_from_slice(&counted);
    DeviceArena::settle(&mut slots).expect("a stream that works");
    slots.lease_part(0, 40..50).fill(-1.0);
    assert_eq!(slots.lease_part(0, 20..22), [20.0, 21.0], "in front of it, with what lies between");
    slots.lease_part(0, 20..21)[0] = -2.0;
    assert_eq!(slots.lease_part(0, 45..55), [-1.0, -1.0, -1.0, -1.0, -1.0, 50.0, 51.0, 52.0, 53.0, 54.0]);
    DeviceArena::settle(&mut slots).expect("a stream that works");
    let mut wanted = counted;
    wanted[40..50].fill(-1.0);
    wanted[20] = -2.0;
    // What the copy holds besides is older than the slot: it is fetched anew.
    let slot = DeviceArena::address(&slots, 0);
    // SAFETY: ten floats of the slot, which nobody else works on.
    unsafe { device.fill(slot.float(60), 10, 7.0).expect("a stream that works") };
    wanted[60..70].fill(7.0);
    assert_eq!(slots.lease(0), wanted);
}
