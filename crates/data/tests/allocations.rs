//! A loader in steady state allocates nothing, neither in its workers nor in its consumer.
//!
//! This file has one test, because the count is of the whole process.

#[path = "../../../tests/harness/counting.rs"]
mod counting;

use counting::Counting;
use dtrain_data::{
    BEGINS, DataError, Dataset, DigitsOptions, Feed, LEARNT, Loader, LoaderPlan, SampleSlot, SampleSpec,
    Source, TokensOptions, mask_of, open,
};
use dtrain_types::{BatchPlan, Key, MicroRange, Seed, Step};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting(|| {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
});

/// Holds every worker in its first read until all of them have started: a thread's start does allocate.
struct Gathered {
    inner: Arc<dyn Dataset>,
    workers: usize,
    arrived: AtomicUsize,
    all_here: Barrier,
}

impl Dataset for Gathered {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn spec(&self) -> SampleSpec {
        self.inner.spec()
    }
    fn read(&self, index: u64, augment: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        if self.arrived.fetch_add(1, Ordering::Relaxed) < self.workers {
            self.all_here.wait();
        }
        self.inner.read(index, augment, sample)
    }
}

#[test]
fn a_loader_in_steady_state_allocates_nothing() {
    for augment in ["flip+shift", "flip+resized-crop:12x6+rand-augment+jitter+erase"] {
        let options = DigitsOptions { augment: augment.parse().unwrap(), ..DigitsOptions::default() };
        nothing_is_allocated_for(&Source::Digits(options));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.bin");
    std::fs::write(&path, [7; 20_000]).unwrap();
    let tokens = TokensOptions { context: 8, ..TokensOptions::new(&path) };
    nothing_is_allocated_for(&Source::Tokens(tokens.clone()));
    let mask: Vec<u8> = (0..10_000).map(|place| if place % 5 == 0 { BEGINS } else { LEARNT }).collect();
    std::fs::write(mask_of(&path), mask).unwrap();
    nothing_is_allocated_for(&Source::Tokens(TokensOptions { packing: true, ..tokens }));
}

fn nothing_is_allocated_for(source: &Source) {
    let train = open(source).unwrap().train;
    let plan = BatchPlan::new(Seed(3), train.len(), 128, 16).unwrap();
    for workers in [0, 1, 3] {
        let (inner, all_here) = (Arc::clone(&train), Barrier::new(workers));
        let train = Arc::new(Gathered { inner, workers, arrived: AtomicUsize::new(0), all_here });
        let feed = Feed::new(train, plan, Seed(3)).unwrap();
        let share = LoaderPlan { range: MicroRange { lo: 0, hi: 8 }, every: 1, from: Step(1), until: None };
        let mut loader = Loader::start(feed, share, workers).unwrap();
        // The first batches start the threads.
        for _ in 0..100 {
            assert!(loader.next_batch().unwrap().is_some(), "the share is endless");
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..500 {
            drop(loader.next_batch().unwrap());
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{source:?}, {workers} workers");
    }
}
