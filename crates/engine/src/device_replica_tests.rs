//! The replica of a device of its own, on the CPU as if its memory were out of the host's reach.

use super::*;
use crate::cpu::{Cpu, CpuOptions};
use crate::flat::Flat;
use crate::loss::Loss;
use crate::loss_scale::LossScaling;
use crate::model_replica::ModelReplica;
use crate::models::{CnnOptions, GptOptions, cnn, gpt, peer};
use crate::optimizer::{DecayGroup, Rule};
use crate::replica::Kept;
use crate::schedule::Schedule;
use crate::stages::{Chain, Flatten, Linear};
use std::cell::Cell;

/// The CPU, as if its memory were out of the host's reach.
impl OwnMemory for Cpu {
    type Floats = Flat;
    type Words = Vec<u32>;

    fn floats(&self, len: usize) -> Result<Flat, EngineError> {
        TAKEN.with(|taken| taken.set(taken.get() + len));
        Ok(Flat::zeros(len))
    }
    fn words(&self, len: usize) -> Result<Vec<u32>, EngineError> {
        TAKEN.with(|taken| taken.set(taken.get() + len));
        Ok(vec![0; len])
    }
    fn slot(_: &DeviceMemory) -> Option<Flat> {
        None
    }
    fn look(memory: &Flat) -> &[f32] {
        memory
    }
    fn take(memory: &mut Flat) -> &mut [f32] {
        memory
    }
    fn ids(memory: &Vec<u32>) -> &[u32] {
        memory
    }
    fn send(&self, from: &[f32], to: &mut Flat) -> Result<(), EngineError> {
        SENT.with(|sent| sent.set(sent.get() + 1));
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn send_ids(&self, from: &[u32], to: &mut Vec<u32>) -> Result<(), EngineError> {
        SENT.with(|sent| sent.set(sent.get() + 1));
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn send_ahead(&self, from: &[f32], to: &mut Flat) -> Result<(), EngineError> {
        AHEAD.with(|ahead| ahead.set(ahead.get() + 1));
        self.send(from, to)
    }
    fn send_ids_ahead(&self, from: &[u32], to: &mut Vec<u32>) -> Result<(), EngineError> {
        AHEAD.with(|ahead| ahead.set(ahead.get() + 1));
        self.send_ids(from, to)
    }
    fn join_ahead(&self) -> Result<(), EngineError> {
        Ok(())
    }
    fn fetch(&self, from: &Flat, to: &mut [f32]) -> Result<(), EngineError> {
        FETCHED.with(|fetched| fetched.set(fetched.get() + to.len()));
        to.copy_from_slice(&from[..to.len()]);
        Ok(())
    }
}

thread_local! {
    /// Elements of memory that was taken.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    /// Elements that came to the host.
    static FETCHED: Cell<usize> = const { Cell::new(0) };
    /// Lists that went to the device, and those of them that went ahead.
    static SENT: Cell<usize> = const { Cell::new(0) };
    static AHEAD: Cell<usize> = const { Cell::new(0) };
}

const ROWS: usize = 4;

fn device() -> Cpu {
    Cpu::new(CpuOptions::default()).expect("the best instruction set is there")
}

/// How a model is made, its input, and how many targets a micro-batch has.
type Made = (fn() -> Chain<Cpu>, Shape, usize);

/// A CNN with batch norm and dropout, and a GPT: values and ids as inputs, one and many targets a row. And a model whose last
/// stage reads its outputs again.
fn models() -> [Made; 3] {
    let images = || {
        let options = CnnOptions { channels: vec![4, 8], hidden: vec![16], ..CnnOptions::default() };
        cnn(&options, 10).expect("options that make sense")
    };
    let text = || {
        let options = GptOptions {
            vocabulary: 10,
            context: 6,
            layers: 2,
            width: 16,
            heads: 2,
            ..GptOptions::default()
        };
        gpt(&options).expect("options that make sense")
    };
    let cut_off = || Chain::new().then(Flatten).then(Linear::new(10).relu());
    [
        (images, Shape::values(ROWS, &[1, 8, 8]), ROWS),
        (text, Shape::Tokens { rows: ROWS, time: 6 }, ROWS * 6),
        (cut_off, Shape::values(ROWS, &[1, 8, 8]), ROWS),
    ]
}

fn optimizer() -> Optimizer {
    Optimizer {
        rule: Rule::adamw(),
        decays: DecayGroup::Matrices,
        clip_norm: Some(1.0),
        schedule: Schedule::constant(1e-2),
    }
}

fn pair(chain: fn() -> Chain<Cpu>, input: &Shape) -> (ModelReplica<Cpu>, DeviceReplica<Cpu>) {
    let model = || Model::new(&device(), chain(), input.clone(), Loss::cross_entropy()).expect("it fits");
    pair_of(model)
}

fn pair_of(model: impl Fn() -> Model<Cpu>) -> (ModelReplica<Cpu>, DeviceReplica<Cpu>) {
    let host = ModelReplica::new(device(), model(), optimizer(), Seed(3)).expect("it makes sense");
    (host, DeviceReplica::new(device(), model(), optimizer(), Seed(3)).expect("there is memory"))
}

#[test]
fn it_takes_the_memory_of_its_table_and_room_for_two_batches() {
    for (chain, input, targets) in models() {
        let before = TAKEN.get();
        let (_, far) = pair(chain, &input);
        let batches = 2 * (ROWS * input.per_row() + targets);
        assert_eq!((TAKEN.get() - before) as u64 * 4, far.about().memory.total().0 + batches as u64 * 4);
    }
}

#[test]
fn it_makes_the_steps_of_a_replica_in_the_host_s_memory_bit_for_bit() {
    for (chain, input, targets) in models() {
        let (mut host, mut far) = pair(chain, &input);
        assert_eq!(far.state().state_digest(), host.state().state_digest(), "the same start");
        let values = peer::uniform(1, ROWS * 64, 1.0);
        let (tokens, classes) = (peer::integers(2, ROWS * 6, 10), peer::integers(3, targets, 10));
        let inputs = match input {
            Shape::Values { .. } => Inputs::Values(&values),
            Shape::Tokens { .. } => Inputs::Tokens(&tokens),
        };
        let batch = Batch { rows: ROWS, inputs, targets: Targets::Classes(&classes) };
        let mut sums =
            [vec![f32::NAN; host.about().gradient_len()], vec![f32::NAN; host.about().gradient_len()]];
        for step in 1..=3 {
            let mut figures = Vec::new();
            for (replica, sum) in [&mut host as &mut dyn Replica, &mut far].into_iter().zip(&mut sums) {
                let mut second = vec![f32::NAN; sum.len()];
                for (m, to) in [&mut *sum, &mut second].into_iter().enumerate() {
                    let micro = MicroBatch(m as u32);
                    figures.push(replica.micro_batch(Step(step), micro, &batch, to).expect("it fits"));
                }
                replica.add(&second, sum);
                replica.update(Step(step), sum, 2.0 * targets as f64, 8).expect("it is finite");
            }
            assert_eq!(figures[..2], figures[2..]);
            assert!(sums[0].iter().zip(&sums[1]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        far.bring_state().expect("the host's memory");
        assert_eq!((far.applied(), far.state().state_digest()), (Step(3), host.state().state_digest()));
        let counts = || ClassCounts::new(10);
        let (mut ours, mut theirs) = (counts(), counts());
        assert_eq!(far.evaluate(&batch, &mut ours), host.evaluate(&batch, &mut theirs));
        assert_eq!(ours, theirs);
        let mut outputs = [vec![0.0; targets * 10], vec![1.0; targets * 10]];
        far.predict(ROWS, inputs, &mut outputs[0]).expect("it fits");
        host.predict(ROWS, inputs, &mut outputs[1]).expect("it fits");
        assert_eq!(outputs[0], outputs[1]);
    }
}

#[test]
fn gradients_that_are_kept_have_the_same_bits_and_stay_where_they_are() {
    for (chain, input, targets) in models() {
        let (mut host, mut far) = pair(chain, &input);
        let started = far.state().state_digest();
        far.rehearse().expect("the host's memory");
        far.is_home = false;
        far.bring_state().expect("the host's memory");
        assert_eq!(far.state().state_digest(), started, "a rehearsal changes nothing");
        assert!(!host.keep(2) && far.keep(2));
        let values = peer::uniform(1, ROWS * 64, 1.0);
        let (tokens, classes) = (peer::integers(2, ROWS * 6, 10), peer::integers(3, targets, 10));
        let inputs = match input {
            Shape::Values { .. } => Inputs::Values(&values),
            Shape::Tokens { .. } => Inputs::Tokens(&tokens),
        };
        let batch = Batch { rows: ROWS, inputs, targets: Targets::Classes(&classes) };
        let elements = host.about().gradient_len();
        let mut sums = [vec![f32::NAN; elements], vec![f32::NAN; elements]];
        for step in [1, 2, 3].map(Step) {
            let before = FETCHED.get();
            for (m, sum) in sums.iter_mut().enumerate() {
                let (kept, micro) = (&mut Kept { number: m, elements }, MicroBatch(m as u32));
                let figures = far.micro_batch(step, micro, &batch, kept).expect("it fits");
                assert_eq!(host.micro_batch(step, micro, &batch, sum), Ok(figures));
            }
            let [sum, second] = &mut sums;
            host.add(second, sum);
            far.add_kept(1, 0);
            assert_eq!(FETCHED.get(), before, "nothing came to the host");
            let mut brought = vec![f32::NAN; elements];
            far.bring(0, &mut brought).expect("the host's memory");
            assert!(brought.iter().zip(&*sum).all(|(a, b)| a.to_bits() == b.to_bits()));
            let weight = 2.0 * targets as f64;
            let info = host.update(step, sum, weight, 8).expect("it is finite");
            assert_eq!(far.update_kept(step, weight, 8), Ok(info));
        }
        far.bring_state().expect("the host's memory");
        assert_eq!(far.state().state_digest(), host.state().state_digest());
    }
}

/// A gradient that is kept, and what waits for it.
struct Last {
    kept: Kept,
    settled: Vec<usize>,
}

impl Gradient for Last {
    fn elements(&self) -> usize {
        self.kept.elements
    }
    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.kept.part(part)
    }
    fn settle(&mut self, from: usize) {
        self.settled.push(from);
    }
    fn kept(&self) -> Option<usize> {
        Some(self.kept.number)
    }
    fn merges(&self) -> &[[usize; 2]] {
        &[[1, 2], [0, 1]]
    }
}

#[test]
fn what_waits_for_the_last_gradient_is_added_part_by_part_to_the_same_bits() {
    for (chain, input, targets) in models() {
        let (_, mut far) = pair(chain, &input);
        assert!(far.keep(3));
        let values = peer::uniform(1, ROWS * 64, 1.0);
        let (tokens, classes) = (peer::integers(2, ROWS * 6, 10), peer::integers(3, targets, 10));
        let inputs = match input {
            Shape::Values { .. } => Inputs::Values(&values),
            Shape::Tokens { .. } => Inputs::Tokens(&tokens),
        };
        let batch = Batch { rows: ROWS, inputs, targets: Targets::Classes(&classes) };
        let elements = far.about().gradient_len();
        let sum = |far: &mut DeviceReplica<Cpu>, at_once: bool| {
            for m in 0..2 {
                let (kept, micro) = (&mut Kept { number: m, elements }, MicroBatch(m as u32));
                far.micro_batch(Step(1), micro, &batch, kept).expect("it fits");
            }
            let mut last = Last { kept: Kept { number: 2, elements }, settled: Vec::new() };
            let to: &mut dyn Gradient = if at_once { &mut last.kept } else { &mut last };
            far.micro_batch(Step(1), MicroBatch(2), &batch, to).expect("it fits");
            if at_once {
                far.add_kept(2, 1);
                far.add_kept(1, 0);
            }
            let mut brought = vec![f32::NAN; elements];
            far.bring(0, &mut brought).expect("the host's memory");
            (brought.into_iter().map(f32::to_bits).collect::<Vec<_>>(), last.settled)
        };
        let (want, _) = sum(&mut far, true);
        let (got, settled) = sum(&mut far, false);
        assert!(got == want, "part by part");
        let stages = far.about().layout.stages.iter().filter(|stage| !stage.parameters.is_empty()).count();
        assert!(settled.len() >= stages && settled.is_sorted_by(|a, b| a > b), "{settled:?}");
        assert_eq!(settled.last(), Some(&0));
    }
}

#[test]
fn a_batch_that_came_ahead_is_used_for_its_micro_batch_alone() {
    for (chain, input, targets) in models() {
        let (_, mut far) = pair(chain, &input);
        assert!(far.keep(1));
        let elements = far.about().gradient_len();
        let lists = [4, 5].map(|stream| {
            let values = peer::uniform(stream, ROWS * 64, 1.0);
            (values, peer::integers(stream + 10, ROWS * 6, 10), peer::integers(stream + 20, targets, 10))
        });
        let [first, second] = lists.each_ref().map(|(values, tokens, classes)| Batch {
            rows: ROWS,
            inputs: match input {
                Shape::Values { .. } => Inputs::Values(values),
                Shape::Tokens { .. } => Inputs::Tokens(tokens),
            },
            targets: Targets::Classes(classes),
        });
        let mut kept = Kept { number: 0, elements };
        let step = Step(1);
        let want = far.micro_batch(step, MicroBatch(1), &second, &mut kept).expect("it fits");
        let mut begin = |far: &mut DeviceReplica<Cpu>, m: u32, batch| {
            let begun = far.begin(step, MicroBatch(m), batch, &mut kept).expect("it fits");
            assert_eq!(begun, Begun::UnderWay);
        };
        begin(&mut far, 0, &first);
        far.take_ahead(step, MicroBatch(1), &second).expect("it fits");
        let alone = far.figures();
        assert_ne!(alone, want);
        let sent = (SENT.get(), AHEAD.get());
        begin(&mut far, 1, &second);
        assert_eq!(far.figures(), want);
        assert_eq!((SENT.get(), AHEAD.get()), sent, "it was there");
        // What came ahead of another one is not taken for it, and not kept for later.
        far.take_ahead(step, MicroBatch(1), &second).expect("it fits");
        for (m, batch, want) in [(0, &first, alone), (1, &second, want)] {
            begin(&mut far, m, batch);
            assert_eq!(far.figures(), want);
        }
        assert_eq!(SENT.get(), sent.0 + 6, "one ahead, two when they were begun");
    }
}

#[test]
fn a_state_that_is_given_is_the_one_it_goes_on_from() {
    let (chain, input, _) = models()[0].clone();
    let (mut host, mut far) = pair(chain, &input);
    let gradient = peer::uniform(4, host.about().gradient_len(), 1.0);
    host.update(Step(1), &gradient, 1.0, 4).expect("it is finite");
    far.swap_state(&mut host.state().clone()).expect("memory of the host");
    for replica in [&mut host as &mut dyn Replica, &mut far] {
        replica.update(Step(2), &gradient, 1.0, 4).expect("it is finite");
        replica.bring_state().expect("memory of the host");
    }
    assert_eq!(far.state().state_digest(), host.state().state_digest());
    assert_eq!(far.about().state, host.about().state);
}

#[test]
fn a_loss_is_scaled_by_what_the_state_says_after_every_update_and_where_a_state_was_given() {
    let (chain, input, targets) = models()[0].clone();
    let model = || {
        let model = Model::new(&device(), chain(), input.clone(), Loss::cross_entropy()).expect("it fits");
        model.scaling_loss(LossScaling { start: 64.0, interval: 2 })
    };
    let ((mut host, mut far), (_, mut late)) = (pair_of(model), pair_of(model));
    let (values, classes) = (peer::uniform(1, ROWS * 64, 1.0), peer::integers(3, targets, 10));
    let batch = Batch { rows: ROWS, inputs: Inputs::Values(&values), targets: Targets::Classes(&classes) };
    let mut gradients = [(); 2].map(|()| vec![f32::NAN; host.about().gradient_len()]);
    let mut step = |number: u64, replicas: [&mut dyn Replica; 2], broken: bool| {
        let infos = replicas.into_iter().zip(&mut gradients).map(|(replica, gradient)| {
            replica.micro_batch(Step(number), MicroBatch(0), &batch, gradient).expect("it fits");
            if broken {
                gradient[3] = f32::INFINITY;
            }
            replica.update(Step(number), gradient, ROWS as f64, ROWS as u64).expect("made or skipped")
        });
        let infos: Vec<_> = infos.collect();
        assert!(gradients[0].iter().zip(&gradients[1]).all(|(a, b)| a.to_bits() == b.to_bits()), "{number}");
        assert_eq!(infos[0], infos[1]);
        infos[0].loss_scale.expect("it is scaled").factor
    };
    assert_eq!(step(1, [&mut host, &mut far], true), 32.0);
    assert_eq!(step(2, [&mut host, &mut far], false), 32.0);
    late.swap_state(&mut host.state().clone()).expect("memory of the host");
    assert_eq!(step(3, [&mut far, &mut late], false), 64.0);
    assert_eq!(step(4, [&mut far, &mut late], false), 64.0);
    for replica in [&mut far, &mut late] {
        replica.bring_state().expect("memory of the host");
    }
    assert_eq!(far.state().state_digest(), late.state().state_digest());
}

#[test]
fn the_fingerprint_of_a_device_is_that_of_its_arithmetic() {
    let of = |threads| {
        let open = || Ok(Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).expect("threads"));
        crate::device_fingerprint(open, format!("{threads} threads"), 1).expect("the host's memory")
    };
    assert!(of(1).agrees_with(&of(2)), "threads are no part of it");
    let open = || Err(EngineError::Device("lost".into()));
    let lost = crate::device_fingerprint::<Cpu>(open, "a GPU".into(), 1);
    assert_eq!(lost.expect_err("no device").to_string(), "the device failed: lost");
}

#[test]
#[should_panic(expected = "was not brought to the host")]
fn a_state_that_is_on_the_device_alone_is_not_shown() {
    let (chain, input, _) = models()[0].clone();
    let (_, mut far) = pair(chain, &input);
    let gradient = vec![0.5; far.about().gradient_len()];
    far.update(Step(1), &gradient, 1.0, 4).expect("it is finite");
    let _ = far.state();
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let (chain, input, _) = models()[0].clone();
    let (_, mut far) = pair(chain, &input);
    let mut gradient = vec![0.5; far.about().gradient_len()];
    gradient[7] = f32::NAN;
    assert!(!far.is_finite(&gradient));
    let before = far.state().state_digest();
    assert_eq!(far.update(Step(1), &gradient, 1.0, 4), Err(EngineError::NonFinite { step: Step(1) }));
    far.bring_state().expect("memory of the host");
    assert_eq!(far.state().state_digest(), before);
}
