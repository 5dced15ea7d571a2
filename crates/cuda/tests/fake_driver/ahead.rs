//! Batches that come to the device while it works on the one before: the same bits, also on streams that do nothing before somebody
//! waits for them.

use crate::digest::run::{batch, replica, samples, state_digest};
use crate::stand_in::build::compiler;
use crate::support::{Fake, child, gpu, is_child};
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::device::Device;
use dtrain_engine::{DeviceReplica, Keeping, Kept, MicroBatchGroup, OwnMemory, Replica};
use dtrain_types::{MicroBatch, Step};

/// Micro-batches of a step, and steps.
const COUNT: u32 = 3;
const STEPS: u64 = 4;

/// Trains; gives the losses and the digest of the state in the end.
fn train(mut replica: DeviceReplica<CudaDevice>, ahead: bool) -> (Vec<f64>, String) {
    assert!(replica.keep(2));
    let all: Vec<(Step, u32)> =
        (1..=STEPS).flat_map(|step| (0..COUNT).map(move |m| (Step(step), m))).collect();
    let (mut losses, mut weight) = (Vec::new(), 0.0);
    for (place, &(step, m)) in all.iter().enumerate() {
        let own = samples(step, m);
        let to = Kept::alone(m.min(1) as usize);
        replica.begin(step, MicroBatch(m), &batch(&own), to).expect("a device that works");
        if let Some(&(step, m)) = all.get(place + 1).filter(|_| ahead) {
            let next = samples(step, m);
            let group = MicroBatchGroup::of_one(step, MicroBatch(m));
            replica.prefetch(&group, MicroBatch(m), &batch(&next)).expect("a device that works");
        }
        let figures = replica.figures();
        losses.push(figures.sums.loss);
        weight += figures.sums.weight;
        if m > 0 {
            replica.add_kept(1, 0);
        }
        if m + 1 == COUNT {
            replica.update_kept(step, weight, 12).expect("finite");
            weight = 0.0;
        }
    }
    (losses, state_digest(&mut replica))
}

/// What comes ahead is written behind the work before it, however slow that is, and read by the work behind it.
fn overtakes_nothing(device: &CudaDevice) {
    let [mut feed, mut seen] = [0, 1].map(|_| device.floats(1_000).expect("memory"));
    device.send(&[1.0; 1_000], &mut feed).expect("a device that works");
    for next in [2.0, 3.0] {
        device.join_ahead().expect("a device that works");
        device.add_to(CudaDevice::look(&feed), CudaDevice::take(&mut seen));
        device.join_ahead().expect("a device that works");
        device.send_ahead(&[next; 1_000], &mut feed).expect("a device that works");
    }
    let mut sum = [0.0; 1_000];
    device.fetch(&seen, &mut sum).expect("a device that works");
    assert_eq!(sum, [1.0 + 2.0; 1_000]);
}

#[test]
fn batches_that_come_ahead_change_no_bit() {
    if compiler().is_some() {
        let said = child("ahead::train_with_batches_ahead", &[]);
        assert!(said.contains("the same bits"), "{said}");
    }
}

/// What the child of the test above does: alone in its process, as in `digest.rs`.
#[test]
fn train_with_batches_ahead() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let wanted = train(replica(&gpu), false);
        assert_eq!(train(replica(&gpu), true), wanted);
        let fake = Fake::new();
        let lazy = fake.lazy();
        assert_eq!(train(replica(&gpu), true), wanted, "on lazy streams");
        let works = CudaDevice::new(&gpu, Precision::F32).expect("a stream");
        drop(lazy);
        overtakes_nothing(&works);
        assert_eq!(fake.wrong(), "");
        println!("\nthe same bits");
    }
}
