//! The loader gives the same batches in the same order by any number of workers, and always comes to an end.

mod support;

use dtrain_data::{
    Batch, DataError, Dataset, DigitsOptions, EvaluationPlan, Feed, InputSpec, Loader, LoaderPlan,
    SampleSlot, SampleSpec, Source, TargetSpec, open, scattered_samples,
};
use dtrain_types::{BatchPlan, Key, MicroBatch, MicroRange, Seed, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use support::bits;

/// Sample `i` holds `i`; reading can be told to fail.
struct Numbers {
    len: u64,
    fails_at: Option<u64>,
    panics_at: Option<u64>,
}

impl Numbers {
    fn new(len: u64) -> Self {
        Self { len, fails_at: None, panics_at: None }
    }
}

impl Dataset for Numbers {
    fn len(&self) -> u64 {
        self.len
    }
    fn spec(&self) -> SampleSpec {
        SampleSpec {
            input: InputSpec::Values { shape: vec![1] },
            target: TargetSpec::Class { classes: 1 << 20 },
        }
    }
    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        assert_ne!(self.panics_at, Some(index), "told to panic");
        if self.fails_at == Some(index) {
            return Err(DataError::other("told to fail"));
        }
        sample.values()[0] = index as f32;
        sample.set_class(index as u32);
        Ok(())
    }
}

fn feed(dataset: impl Dataset + 'static, global: u32, micro: u32) -> Feed {
    let plan = BatchPlan::new(Seed(7), dataset.len(), global, micro).unwrap();
    Feed::new(Arc::new(dataset), plan, Seed(7)).unwrap()
}

fn share(range: (u32, u32), from: u64, until: u64) -> LoaderPlan {
    LoaderPlan {
        range: MicroRange { lo: range.0, hi: range.1 },
        every: 1,
        from: Step(from),
        until: Some(Step(until)),
    }
}

/// Everything that a batch says of itself.
type Told = (Step, MicroBatch, u64, Vec<u32>, Vec<u32>);

fn told(batch: &Batch) -> Told {
    (batch.step(), batch.micro_batch(), batch.check(), bits(batch.inputs()), bits(batch.targets()))
}

fn drain(loader: &mut Loader) -> Vec<Told> {
    std::iter::from_fn(|| loader.next_batch().unwrap().map(|batch| told(&batch))).collect()
}

#[test]
fn order_and_bits_do_not_depend_on_the_number_of_workers() {
    let options = DigitsOptions { augment: "flip+shift".parse().unwrap(), ..DigitsOptions::default() };
    let train = open(&Source::Digits(options)).unwrap().train;
    let plan = BatchPlan::new(Seed(3), train.len(), 100, 8).unwrap();
    let feed = Feed::new(train, plan, Seed(3)).unwrap();
    // Steps 14 to 17 cross the end of the first epoch, whose last step has 37 samples.
    let share = share((2, 7), 14, 17);
    let inline = drain(&mut Loader::start(feed.clone(), share, 0).unwrap());
    assert_eq!(inline.len(), 5 + 3 + 5 + 5);
    let places: Vec<_> = inline.iter().map(|(step, micro_batch, ..)| (*step, *micro_batch)).collect();
    assert!(places.is_sorted());
    let mut batch = feed.batch();
    for expected in &inline {
        feed.read_micro_batch(expected.0, expected.1, &mut batch).unwrap();
        assert_eq!(&told(&batch), expected, "the loader and a direct read agree");
    }
    for workers in [1, 2, 3, 8] {
        let mut loader = Loader::start(feed.clone(), share, workers).unwrap();
        assert_eq!(drain(&mut loader), inline, "{workers} workers");
        assert!(loader.next_batch().unwrap().is_none(), "the end stays the end");
    }
}

#[test]
fn the_ranks_of_an_epoch_feed_each_sample_once_and_their_checks_add_up() {
    for (world, workers) in [(1, 0), (2, 1), (3, 2), (5, 1)] {
        let feed = feed(Numbers::new(103), 20, 3);
        let steps = feed.plan().steps_per_epoch();
        let mut seen = BTreeMap::<u32, u32>::new();
        let mut checks = vec![0u64; steps as usize];
        for range in dtrain_types::cut_evenly(feed.plan().micro_batches(), world) {
            let share = LoaderPlan { range, every: 1, from: Step(1), until: Some(Step(steps)) };
            let mut loader = Loader::start(feed.clone(), share, workers).unwrap();
            while let Some(batch) = loader.next_batch().unwrap() {
                batch.targets().u32().iter().for_each(|sample| *seen.entry(*sample).or_default() += 1);
                let check = &mut checks[batch.step().0 as usize - 1];
                *check = check.wrapping_add(batch.check());
            }
        }
        assert_eq!(seen.len(), 103);
        assert!(seen.values().all(|times| *times == 1));
        for (index, check) in checks.iter().enumerate() {
            let step = feed.plan().step(Step(index as u64 + 1));
            let samples =
                (0..step.micro_batches).flat_map(|m| feed.plan().micro_batch_samples(&step, MicroBatch(m)));
            let expected =
                samples.fold(0u64, |sum, sample| sum.wrapping_add(feed.plan().check(&step, sample)));
            assert_eq!(*check, expected);
        }
    }
}

#[test]
fn augmentation_depends_on_the_key_alone() {
    let options = DigitsOptions { augment: "flip+shift:2".parse().unwrap(), ..DigitsOptions::default() };
    let read = |seed: u64, step: u64| {
        let train = open(&Source::Digits(options.clone())).unwrap().train;
        // One sample per row of the plan below, so that only the key can differ between seeds of the feed.
        let plan = BatchPlan::new(Seed(1), train.len(), 64, 64).unwrap();
        let feed = Feed::new(train, plan, Seed(seed)).unwrap();
        let mut batch = feed.batch();
        feed.read_micro_batch(Step(step), MicroBatch(0), &mut batch).unwrap();
        told(&batch)
    };
    assert_eq!(read(5, 3), read(5, 3));
    let (one, other) = (read(5, 3), read(6, 3));
    assert_eq!((one.2, &one.4), (other.2, &other.4), "the same samples");
    assert_ne!(one.3, other.3, "varied in another way");
}

#[test]
fn a_loader_that_is_dropped_early_or_never_asked_comes_to_an_end() {
    for workers in [0, 1, 4] {
        let endless = LoaderPlan { range: MicroRange { lo: 0, hi: 2 }, every: 1, from: Step(1), until: None };
        drop(Loader::start(feed(Numbers::new(10), 4, 2), endless, workers).unwrap());
        let mut loader = Loader::start(feed(Numbers::new(10), 4, 2), endless, workers).unwrap();
        let held = loader.next_batch().unwrap().unwrap();
        drop(loader);
        assert_eq!(held.rows(), 2, "a loan outlives its loader");
    }
}

#[test]
fn a_consumer_that_holds_every_buffer_still_gets_the_next_batch() {
    for workers in [0, 1, 3] {
        let mut loader = Loader::start(feed(Numbers::new(50), 4, 2), share((0, 2), 1, 12), workers).unwrap();
        let mut held = Vec::new();
        while let Some(batch) = loader.next_batch().unwrap() {
            held.push(batch);
        }
        let places: Vec<_> = held.iter().map(|batch| (batch.step(), batch.micro_batch())).collect();
        let expected: Vec<_> = (1..=12).flat_map(|s| (0..2).map(move |m| (Step(s), MicroBatch(m)))).collect();
        assert_eq!(places, expected);
        held.into_iter().for_each(dtrain_data::LoanedBatch::recycle);
    }
}

#[test]
fn a_spare_gets_nothing_and_a_short_step_is_passed_over() {
    for workers in [0, 2] {
        let mut spare = Loader::start(feed(Numbers::new(50), 4, 2), share((2, 2), 1, 99), workers).unwrap();
        assert!(spare.next_batch().unwrap().is_none());
        // An epoch of 5 samples: steps of 4 and 1, the second without micro-batch 1.
        let mut loader = Loader::start(feed(Numbers::new(5), 4, 2), share((1, 2), 1, 6), workers).unwrap();
        let steps: Vec<_> = drain(&mut loader).into_iter().map(|(step, ..)| step.0).collect();
        assert_eq!(steps, [1, 3, 5]);
        // The whole epoch is shorter than the rank's range: there is never anything to do, and that is found out.
        let endless = LoaderPlan { range: MicroRange { lo: 2, hi: 4 }, every: 1, from: Step(1), until: None };
        let mut loader = Loader::start(feed(Numbers::new(3), 8, 2), endless, workers).unwrap();
        assert!(loader.next_batch().unwrap().is_none());
    }
}

#[test]
fn an_error_comes_at_its_place_and_then_the_loader_has_stopped() {
    for workers in [0, 1, 4] {
        let order: Vec<u64> = {
            let plan = BatchPlan::new(Seed(7), 40, 4, 2).unwrap();
            (1..=10)
                .flat_map(|s| {
                    (0..2).flat_map(move |m| plan.micro_batch_samples(&plan.step(Step(s)), MicroBatch(m)))
                })
                .collect()
        };
        let failing = Numbers { fails_at: Some(order[12]), ..Numbers::new(40) };
        let mut loader = Loader::start(feed(failing, 4, 2), share((0, 2), 1, 10), workers).unwrap();
        for _ in 0..6 {
            assert_eq!(loader.next_batch().unwrap().unwrap().rows(), 2);
        }
        assert_eq!(loader.next_batch().map(drop).unwrap_err().to_string(), "told to fail");
        assert!(matches!(loader.next_batch(), Err(DataError::LoaderStopped)));
        let panicking = Numbers { panics_at: Some(order[0]), ..Numbers::new(40) };
        let mut loader = Loader::start(feed(panicking, 4, 2), share((0, 2), 1, 10), workers).unwrap();
        let error = loader.next_batch().map(drop).unwrap_err().to_string();
        assert!(error.starts_with("reading micro-batch 0 of step 1 panicked: "), "{error}");
        assert!(error.contains("told to panic"), "{error}");
    }
}

/// Counts reads; the test can wait for them.
struct Counted(Arc<(Mutex<u64>, Condvar)>);

impl Dataset for Counted {
    fn len(&self) -> u64 {
        1000
    }
    fn spec(&self) -> SampleSpec {
        Numbers::new(1000).spec()
    }
    fn read(&self, index: u64, key: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
        Numbers::new(1000).read(index, key, sample)
    }
}

#[test]
fn workers_read_ahead_up_to_the_queue_and_no_further() {
    let reads = Arc::new((Mutex::new(0), Condvar::new()));
    let feed = feed(Counted(Arc::clone(&reads)), 10, 1);
    let workers = 3;
    let depth = (workers * dtrain_data::QUEUE_PER_WORKER) as u64;
    let loader = Loader::start(feed, share((0, 10), 1, 100), workers).unwrap();
    let full = reads.1.wait_while(reads.0.lock().unwrap(), |reads| *reads < depth).unwrap();
    drop(full);
    drop(loader);
    assert_eq!(*reads.0.lock().unwrap(), depth);
}

#[test]
fn a_batch_that_was_read_is_had_without_waiting_and_in_its_order() {
    let start = |dataset, workers| {
        Loader::start(feed(dataset, 4, 2), share((0, 2), 1, 10), workers).expect("threads")
    };
    let all = drain(&mut start(Numbers::new(40), 1));
    assert!(start(Numbers::new(40), 0).ready_batch().is_none(), "nobody reads ahead");
    let mut loader = start(Numbers::new(40), 2);
    let mut got = Vec::new();
    while got.is_empty() {
        got.extend(loader.ready_batch().map(|batch| told(&batch)));
    }
    loop {
        let next = match loader.ready_batch() {
            Some(batch) => Some(batch),
            None => loader.next_batch().expect("numbers that can be read"),
        };
        let Some(batch) = next else { break };
        got.push(told(&batch));
    }
    assert_eq!(got, all);
    assert!(loader.ready_batch().is_none(), "that was all");
    let index = all[0].4[0].into();
    let mut failing = start(Numbers { fails_at: Some(index), ..Numbers::new(40) }, 1);
    assert!(
        failing.ready_batch().is_none() && failing.next_batch().is_err() && failing.ready_batch().is_none()
    );
}

#[test]
fn one_worker_reads_a_whole_group_ahead_and_no_further() {
    let reads = Arc::new((Mutex::new(0), Condvar::new()));
    let feed = feed(Counted(Arc::clone(&reads)), 10, 1);
    let mut loader = Loader::reading_ahead(feed, share((0, 10), 1, 100), 1, 8).unwrap();
    for (wanted, taken) in [(8, 8), (16, 0)] {
        let full = reads.1.wait_while(reads.0.lock().unwrap(), |reads| *reads < wanted).unwrap();
        drop(full);
        // The group is taken at a stretch, each batch given back at once.
        for _ in 0..taken {
            loader.next_batch().unwrap().expect("there are a thousand");
        }
    }
    drop(loader);
    assert_eq!(*reads.0.lock().unwrap(), 16);
}

/// Breaks its own promise in one way.
struct Liar(u8);

impl Dataset for Liar {
    fn len(&self) -> u64 {
        4
    }
    fn spec(&self) -> SampleSpec {
        SampleSpec {
            input: InputSpec::Tokens { length: 2, vocabulary: 5 },
            target: if self.0 == 2 {
                TargetSpec::ClassPerToken { classes: 3 }
            } else {
                TargetSpec::Class { classes: 3 }
            },
        }
    }
    fn read(&self, _: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        match self.0 {
            0 => {}
            1 => sample.set_class(3),
            // Token classes that are not set are ignored, but 3 is out of range.
            2 => sample.token_classes()[1] = 3,
            _ => {
                sample.set_class(0);
                sample.tokens()[1] = 5;
            }
        }
        Ok(())
    }
}

#[test]
fn a_data_set_that_breaks_its_own_spec_is_stopped_at_the_sample() {
    let plan = EvaluationPlan::new(4, 2);
    let expected = [
        "reading sample 2 set no class",
        "sample 2 has class 3, the data set promises classes below 3",
        "sample 2 has class 3, the data set promises classes below 3",
        "sample 2 has token 5, the data set promises tokens below 5",
    ];
    for (lie, expected) in (0..).zip(expected) {
        let mut batch = plan.batch(&Liar(lie));
        let error = plan.read(&Liar(lie), MicroBatch(1), &mut batch).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(batch.rows(), 0, "a batch that failed is empty");
    }
}

#[test]
fn a_recycled_batch_forgets_what_it_held() {
    /// Writes only where the sample is even.
    struct Lazy;
    impl Dataset for Lazy {
        fn len(&self) -> u64 {
            2
        }
        fn spec(&self) -> SampleSpec {
            SampleSpec {
                input: InputSpec::Values { shape: vec![1] },
                target: TargetSpec::Values { width: 1 },
            }
        }
        fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
            if index == 0 {
                sample.values()[0] = 9.0;
                sample.target_values()[0] = 9.0;
            }
            Ok(())
        }
    }
    let plan = EvaluationPlan::new(2, 1);
    let mut batch = plan.batch(&Lazy);
    plan.read(&Lazy, MicroBatch(0), &mut batch).unwrap();
    assert_eq!((batch.inputs().f32(), batch.targets().f32()), (&[9.0][..], &[9.0][..]));
    plan.read(&Lazy, MicroBatch(1), &mut batch).unwrap();
    assert_eq!((batch.inputs().f32(), batch.targets().f32()), (&[0.0][..], &[0.0][..]));
}

#[test]
fn an_evaluation_reads_every_sample_once_in_order_and_the_last_micro_batch_is_shorter() {
    let dataset = Numbers::new(11);
    let plan = EvaluationPlan::new(dataset.len(), 4);
    let mut batch = plan.batch(&dataset);
    let mut seen = Vec::new();
    let mut rows = Vec::new();
    for micro_batch in 0..plan.micro_batches() {
        plan.read(&dataset, MicroBatch(micro_batch), &mut batch).unwrap();
        rows.push(batch.rows());
        seen.extend_from_slice(batch.targets().u32());
        assert_eq!((batch.step(), batch.micro_batch(), batch.check()), (Step(0), MicroBatch(micro_batch), 0));
    }
    assert_eq!(rows, [4, 4, 3]);
    assert_eq!(seen, (0..11).collect::<Vec<_>>());
    assert_eq!(EvaluationPlan::new(0, 4).micro_batches(), 0);
}

#[test]
fn some_samples_are_from_all_over_and_the_same_ones_each_time() {
    let whole = || Arc::new(Numbers::new(1_000)) as Arc<dyn Dataset>;
    let read = |dataset: &dyn Dataset| {
        let plan = EvaluationPlan::new(dataset.len(), 7);
        let mut batch = plan.batch(dataset);
        let mut seen = Vec::new();
        for micro_batch in 0..plan.micro_batches() {
            plan.read(dataset, MicroBatch(micro_batch), &mut batch).unwrap();
            seen.extend_from_slice(batch.targets().u32());
        }
        seen
    };
    let some = scattered_samples(whole(), 100);
    assert_eq!((some.len(), some.spec()), (100, whole().spec()));
    let samples = read(some.as_ref());
    assert!(samples.is_sorted_by(|a, b| a < b), "each once, in their order: {samples:?}");
    assert_eq!(read(scattered_samples(whole(), 100).as_ref()), samples);
    // Whatever repeats in the file does not decide which are chosen: of every ten consecutive ones, and of every last digit, there are some.
    for digit in 0..10 {
        assert!((4..=20).contains(&samples.iter().filter(|sample| *sample % 10 == digit).count()));
        assert!((4..=20).contains(&samples.iter().filter(|sample| *sample / 100 == digit).count()));
    }
    // More of them are the same ones and others.
    let more = read(scattered_samples(whole(), 150).as_ref());
    assert!(samples.iter().all(|sample| more.contains(sample)));
    for all in [1_000, 2_000] {
        assert_eq!(read(scattered_samples(whole(), all).as_ref()).len(), 1_000);
    }
}

#[test]
fn a_plan_for_another_data_set_is_refused() {
    let plan = BatchPlan::new(Seed(0), 9, 4, 2).unwrap();
    let error = Feed::new(Arc::new(Numbers::new(10)), plan, Seed(0)).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the plan is for 9 samples, the data set has 10");
}
