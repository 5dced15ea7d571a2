//! Order between streams: what waits for an event sees what was done before it, and what does not wait does not.
//!
//! Streams of these tests are lazy: they work only when somebody waits for them. So each test runs twice, with the wait and
//! without it, and without it the numbers have to be wrong. Each test has a process for itself: a device that frees memory
//! works off all its streams first, and other tests free memory.

use crate::support::{Fake, child, gpu, is_child};
use dtrain_cuda::driver::{Buffer, Event, Gpu, Pinned, Stream};
use dtrain_cuda::operations;
use std::sync::Arc;

const LEN: usize = 1000;
const BYTES: usize = LEN * 4;

/// What a test does, with its waits or without them.
#[derive(Clone, Copy, PartialEq)]
enum Waits {
    All,
    None,
}

/// Streams for computation, communication and copies, that are lazy.
fn streams(gpu: &Arc<Gpu>) -> [Stream; 3] {
    let fake = Fake::new();
    let _lazy = fake.lazy();
    [(); 3].map(|()| Stream::new(gpu).expect("a stream"))
}

/// Three streams hand a list on: copied to the device, doubled, copied back.
fn hand_on(gpu: &Arc<Gpu>, waits: Waits) -> Vec<f32> {
    let context = gpu.context();
    let [compute, _, copies] = streams(gpu);
    let (mut from, to) = (Pinned::new(context, LEN).unwrap(), Pinned::<f32>::new(context, LEN).unwrap());
    let (x, mut y) = (Buffer::<f32>::new(context, LEN).unwrap(), Buffer::<f32>::new(context, LEN).unwrap());
    let [arrived, doubled] = [(); 2].map(|()| Event::new(context).unwrap());
    from.write().iter_mut().enumerate().for_each(|(i, v)| *v = i as f32);
    // SAFETY: all of it lives until the streams are done, below.
    unsafe { copies.copy(from.address(), x.address(), BYTES).unwrap() };
    copies.record(&arrived).unwrap();
    if waits == Waits::All {
        compute.wait_for(&arrived).unwrap();
    }
    operations::add(&compute, x.read(), x.read(), y.write());
    compute.record(&doubled).unwrap();
    // Somebody waits for the compute stream alone: without the wait above it adds what is not there yet.
    doubled.wait().unwrap();
    // SAFETY: as above.
    unsafe { copies.copy(y.address(), to.address(), BYTES).unwrap() };
    copies.finish().unwrap();
    to.read().to_vec()
}

#[test]
fn what_waits_for_an_event_sees_what_was_done_before_it() {
    if !is_child() {
        return drop(child("streams::what_waits_for_an_event_sees_what_was_done_before_it", &[]));
    }
    let Some(gpu) = gpu() else { return };
    let wanted: Vec<f32> = (0..LEN).map(|i| 2.0 * i as f32).collect();
    assert_eq!(hand_on(&gpu, Waits::All), wanted);
    assert_ne!(hand_on(&gpu, Waits::None), wanted, "the fake driver hides a wait that is missing");
}

/// A list is read on one stream while another one writes it again.
fn write_again(gpu: &Arc<Gpu>, waits: Waits) -> f32 {
    let context = gpu.context();
    let [compute, communication, _] = streams(gpu);
    let (mut x, kept) =
        (Buffer::<f32>::new(context, LEN).unwrap(), Pinned::<f32>::new(context, LEN).unwrap());
    let read = Event::new(context).unwrap();
    operations::fill(&compute, x.write(), 1.0);
    compute.finish().unwrap();
    // SAFETY: all of it lives until the streams are done, below.
    unsafe { communication.copy(x.address(), kept.address(), BYTES).unwrap() };
    communication.record(&read).unwrap();
    if waits == Waits::All {
        compute.wait_for(&read).unwrap();
    }
    operations::fill(&compute, x.write(), 2.0);
    compute.finish().unwrap();
    communication.finish().unwrap();
    kept.read()[LEN - 1]
}

#[test]
fn what_is_still_read_elsewhere_is_not_written_before_its_event() {
    if !is_child() {
        return drop(child("streams::what_is_still_read_elsewhere_is_not_written_before_its_event", &[]));
    }
    let Some(gpu) = gpu() else { return };
    assert_eq!(write_again(&gpu, Waits::All), 1.0);
    assert_eq!(write_again(&gpu, Waits::None), 2.0, "the fake driver hides a wait that is missing");
}

#[test]
fn an_event_has_happened_when_its_stream_has_passed_it_and_before_it_is_recorded() {
    let Some(gpu) = gpu() else { return };
    let [compute, ..] = streams(&gpu);
    let (event, mut x) =
        (Event::new(gpu.context()).unwrap(), Buffer::<f32>::new(gpu.context(), LEN).unwrap());
    assert!(event.has_happened().unwrap());
    operations::fill(&compute, x.write(), 1.0);
    compute.record(&event).unwrap();
    // Whoever asks makes a lazy stream work; it gets there.
    while !event.has_happened().unwrap() {
        std::thread::yield_now();
    }
}

#[test]
fn a_device_is_used_from_any_thread() {
    let Some(gpu) = gpu() else { return };
    let stream = Stream::new(&gpu).unwrap();
    let mut x = Buffer::<f32>::new(gpu.context(), LEN).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| operations::fill(&stream, x.write(), 3.0)).join().expect("no panic");
        scope.spawn(|| stream.finish().unwrap()).join().expect("no panic");
    });
    gpu.context().check().unwrap();
}
