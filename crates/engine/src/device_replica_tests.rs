//! The replica of a device of its own, on the CPU as if its memory were out of the host's reach.

use super::*;
use crate::cpu::{Cpu, CpuOptions};
use crate::flat::Flat;
use crate::loss::Loss;
use crate::model_replica::ModelReplica;
use crate::models::{CnnOptions, GptOptions, cnn, gpt, peer};
use crate::optimizer::{DecayGroup, Rule};
use crate::replica::Kept;
use crate::schedule::Schedule;
use crate::stages::Chain;
use std::cell::Cell;

/// The CPU, as if its memory were out of the host's reach.
impl OwnMemory for Cpu {
    type Floats = Flat;
    type Words = Vec<u32>;

    fn floats(&self, len: usize) -> Result<Flat, EngineError> {
        Ok(Flat::zeros(len))
    }
    fn words(&self, len: usize) -> Result<Vec<u32>, EngineError> {
        Ok(vec![0; len])
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
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn send_ids(&self, from: &[u32], to: &mut Vec<u32>) -> Result<(), EngineError> {
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn fetch(&self, from: &Flat, to: &mut [f32]) -> Result<(), EngineError> {
        FETCHED.with(|fetched| fetched.set(fetched.get() + to.len()));
        to.copy_from_slice(&from[..to.len()]);
        Ok(())
    }
}

thread_local! {
    /// Elements that came to the host.
    static FETCHED: Cell<usize> = const { Cell::new(0) };
}

const ROWS: usize = 4;

fn device() -> Cpu {
    Cpu::new(CpuOptions::default()).expect("the best instruction set is there")
}

/// How a model is made, its input, and how many targets a micro-batch has.
type Made = (fn() -> Chain<Cpu>, Shape, usize);

/// A CNN with batch norm and dropout, and a GPT: values and ids as inputs, one and many targets a row.
fn models() -> [Made; 2] {
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
    [(images, Shape::values(ROWS, &[1, 8, 8]), ROWS), (text, Shape::Tokens { rows: ROWS, time: 6 }, ROWS * 6)]
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
    let host = ModelReplica::new(device(), model(), optimizer(), Seed(3)).expect("it makes sense");
    (host, DeviceReplica::new(device(), model(), optimizer(), Seed(3)).expect("there is memory"))
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
        let mut sums = [vec![f32::NAN; host.gradient_len()], vec![f32::NAN; host.gradient_len()]];
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
        let elements = host.gradient_len();
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

#[test]
fn a_state_that_is_given_is_the_one_it_goes_on_from() {
    let (chain, input, _) = models()[0].clone();
    let (mut host, mut far) = pair(chain, &input);
    let gradient = peer::uniform(4, host.gradient_len(), 1.0);
    host.update(Step(1), &gradient, 1.0, 4).expect("it is finite");
    far.swap_state(&mut host.state().clone()).expect("memory of the host");
    for replica in [&mut host as &mut dyn Replica, &mut far] {
        replica.update(Step(2), &gradient, 1.0, 4).expect("it is finite");
        replica.bring_state().expect("memory of the host");
    }
    assert_eq!(far.state().state_digest(), host.state().state_digest());
    assert_eq!(far.state_shape(), host.state_shape());
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
    let gradient = vec![0.5; far.gradient_len()];
    far.update(Step(1), &gradient, 1.0, 4).expect("it is finite");
    let _ = far.state();
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let (chain, input, _) = models()[0].clone();
    let (_, mut far) = pair(chain, &input);
    let mut gradient = vec![0.5; far.gradient_len()];
    gradient[7] = f32::NAN;
    assert!(!far.is_finite(&gradient));
    let before = far.state().state_digest();
    assert_eq!(far.update(Step(1), &gradient, 1.0, 4), Err(EngineError::NonFinite { step: Step(1) }));
    far.bring_state().expect("memory of the host");
    assert_eq!(far.state().state_digest(), before);
}
