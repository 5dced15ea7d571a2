//! The replica of a device of its own, on the CPU as if its memory were out of the host's reach.

use super::on_cpu::{AHEAD, ASKED, FETCHED, SCALE, SENT, TAKEN, added_up, optimizer};
use super::*;
use crate::batch::Targets;
use crate::cpu::{Cpu, CpuOptions};
use crate::keeping::StepOutcome;
use crate::loss::Loss;
use crate::loss_scale::LossScaling;
use crate::model_replica::ModelReplica;
use crate::models::{CnnOptions, GptOptions, cnn, gpt, peer};
use crate::replica::micro_batch;
use crate::stage::Shape;
use crate::stages::{Chain, Flatten, Linear};

pub(super) const ROWS: usize = 4;

pub(super) fn device() -> Cpu {
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

/// The numbers of a micro-batch of any of the models.
struct Numbers {
    values: Vec<f32>,
    tokens: Vec<u32>,
    classes: Vec<u32>,
}

impl Numbers {
    fn of(stream: u64, targets: usize) -> Self {
        Self {
            values: peer::uniform(stream, ROWS * 64, 1.0),
            tokens: peer::integers(stream + 10, ROWS * 6, 10),
            classes: peer::integers(stream + 20, targets, 10),
        }
    }

    fn batch(&self, input: &Shape) -> BatchView<'_> {
        let inputs = match input {
            Shape::Values { .. } => Inputs::Values(&self.values),
            Shape::Tokens { .. } => Inputs::Tokens(&self.tokens),
        };
        BatchView { rows: ROWS, inputs, targets: Targets::Classes(&self.classes) }
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
    for (at, (chain, input, targets)) in models().into_iter().enumerate() {
        // Also where parameters lie apart.
        let frozen = [&["conv1*", "norm1*"][..], &["tokens", "places", "blocks.0*"], &[]][at];
        let frozen =
            Grouping { frozen: frozen.iter().map(|it| (*it).into()).collect(), ..Grouping::default() };
        let model = || Model::new(&device(), chain(), input.clone(), Loss::cross_entropy()).expect("it fits");
        let grouped = || model().grouped(&frozen).expect("there are such parameters");
        assert_eq!(grouped().layout().frozen_len() > 0, at < 2);
        for (mut host, mut far) in [pair_of(model), pair_of(grouped)] {
            assert_eq!(state_digest(&mut far), host.state().state_digest(), "the same start");
            let numbers = Numbers::of(1, targets);
            let batch = numbers.batch(&input);
            let mut sums =
                [vec![f32::NAN; host.about().gradient_len()], vec![f32::NAN; host.about().gradient_len()]];
            for step in 1..=3 {
                let mut figures = Vec::new();
                for (replica, sum) in [&mut host as &mut dyn Replica, &mut far].into_iter().zip(&mut sums) {
                    let mut second = vec![f32::NAN; sum.len()];
                    for (m, to) in [&mut *sum, &mut second].into_iter().enumerate() {
                        let micro = MicroBatch(m as u32);
                        figures.push(micro_batch(replica, Step(step), micro, &batch, to).expect("it fits"));
                    }
                    replica.add(Wire::F32, &second, sum);
                    replica.update(Step(step), sum, 2.0 * targets as f64, 8).expect("it is finite");
                }
                assert_eq!(figures[..2], figures[2..]);
                assert!(sums[0].iter().zip(&sums[1]).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            assert_eq!((far.applied(), state_digest(&mut far)), (Step(3), host.state().state_digest()));
            let counts = || EvaluationCounts::new(10).with_ranking();
            let (mut ours, mut theirs) = (counts(), counts());
            assert_eq!(far.evaluate(&batch, &mut ours), host.evaluate(&batch, &mut theirs));
            assert_eq!(ours, theirs);
            assert!(ours.ranking.is_some_and(|ranking| ranking.means().is_some()));
            let mut outputs = [vec![0.0; targets * 10], vec![1.0; targets * 10]];
            far.predict(ROWS, batch.inputs, &mut outputs[0]).expect("it fits");
            host.predict(ROWS, batch.inputs, &mut outputs[1]).expect("it fits");
            assert_eq!(outputs[0], outputs[1]);
        }
    }
}

#[test]
fn errors_of_values_are_added_up_as_in_the_host_s_memory() {
    let chain = || Chain::new().then(Flatten).then(Linear::new(2));
    let input = Shape::values(ROWS, &[1, 8, 8]);
    let model = || Model::new(&device(), chain(), input.clone(), Loss::MeanSquaredError).expect("it fits");
    let (mut host, mut far) = pair_of(model);
    let (values, targets) = (peer::uniform(1, ROWS * 64, 1.0), peer::uniform(2, ROWS * 2, 1.0));
    let mut outputs = vec![0.0; ROWS * 2];
    host.predict(ROWS, Inputs::Values(&values), &mut outputs).expect("it fits");
    let plain: f64 =
        outputs.iter().zip(&targets).map(|(output, target)| f64::from((output - target).abs())).sum();
    let (mut ours, mut theirs) = (EvaluationCounts::new(0), EvaluationCounts::new(0));
    // A short batch too: outputs of the one before lie behind its own.
    for rows in [ROWS, ROWS - 1] {
        let (inputs, targets) = (Inputs::Values(&values[..rows * 64]), Targets::Values(&targets[..rows * 2]));
        let batch = BatchView { rows, inputs, targets };
        assert_eq!(far.evaluate(&batch, &mut ours), host.evaluate(&batch, &mut theirs));
        assert_eq!(ours, theirs);
        if rows == ROWS {
            assert!((ours.absolute_errors.value() - plain).abs() < 1e-12 * plain && plain > 0.1);
        }
    }
}

#[test]
fn a_gradient_and_a_sum_are_rounded_as_the_group_says_on_either_side() {
    let (chain, input, targets) = models()[0].clone();
    let (mut host, mut far) = pair(chain, &input);
    let numbers = Numbers::of(1, targets);
    let batch = numbers.batch(&input);
    let plain = MicroBatchGroup::of_one(Step(1), MicroBatch(0));
    let of = |replica: &mut dyn Replica, wire: Wire| {
        let mut gradient = vec![f32::NAN; replica.about().gradient_len()];
        let figures = &mut [BatchFigures::default()];
        replica.compute(&MicroBatchGroup { wire, ..plain }, &batch, &mut gradient, figures).expect("it fits");
        let mut sum = gradient.clone();
        replica.add(wire, &gradient, &mut sum);
        [gradient, sum]
    };
    for replica in [&mut host as &mut dyn Replica, &mut far] {
        let [mut gradient, _] = of(replica, Wire::F32);
        Wire::Bf16.round(&mut gradient);
        let mut sum: Vec<f32> = gradient.iter().map(|x| x + x).collect();
        Wire::Bf16.round(&mut sum);
        assert_eq!(of(replica, Wire::Bf16), [gradient, sum]);
    }
}

#[test]
fn gradients_that_are_kept_have_the_same_bits_and_stay_where_they_are() {
    for (chain, input, targets) in models() {
        let (mut host, mut far) = pair(chain, &input);
        let started = state_digest(&mut far);
        far.rehearse().expect("the host's memory");
        far.is_home = false;
        assert_eq!(state_digest(&mut far), started, "a rehearsal changes nothing");
        assert!(host.keeping().is_none() && far.keep(2));
        let numbers = Numbers::of(1, targets);
        let batch = numbers.batch(&input);
        let elements = host.about().gradient_len();
        let mut sums = [vec![f32::NAN; elements], vec![f32::NAN; elements]];
        for step in [1, 2, 3].map(Step) {
            let before = FETCHED.get();
            for (m, sum) in sums.iter_mut().enumerate() {
                let micro = MicroBatch(m as u32);
                let figures = kept(&mut far, (step, micro), &batch, Kept::alone(m));
                assert_eq!(micro_batch(&mut host, step, micro, &batch, sum), Ok(figures));
            }
            let [sum, second] = &mut sums;
            host.add(Wire::F32, second, sum);
            far.add_kept(1, 0);
            assert_eq!(FETCHED.get(), before, "nothing came to the host");
            let mut brought = vec![f32::NAN; elements];
            far.bring(0, &mut brought).expect("the host's memory");
            assert!(brought.iter().zip(&*sum).all(|(a, b)| a.to_bits() == b.to_bits()));
            let weight = 2.0 * targets as f64;
            let info = host.update(step, sum, weight, 8).expect("it is finite");
            assert_eq!(far.update_kept(step, weight, 8), Ok(info));
        }
        assert_eq!(state_digest(&mut far), host.state().state_digest());
    }
}

fn state_digest(far: &mut DeviceReplica<Cpu>) -> [u8; 32] {
    far.bring_state().expect("memory of the host").state_digest()
}

/// Computes a micro-batch into a gradient that is kept.
fn kept(
    far: &mut DeviceReplica<Cpu>,
    (step, micro): (Step, MicroBatch),
    batch: &BatchView<'_>,
    to: Kept<'_>,
) -> BatchFigures {
    far.begin(step, micro, batch, to).expect("it fits");
    far.figures()
}

#[test]
fn what_waits_for_the_last_gradient_is_added_part_by_part_to_the_same_bits() {
    for (chain, input, targets) in models() {
        let (_, mut far) = pair(chain, &input);
        assert!(far.keep(3));
        let numbers = Numbers::of(1, targets);
        let batch = numbers.batch(&input);
        let elements = far.about().gradient_len();
        let sum = |far: &mut DeviceReplica<Cpu>, at_once: bool| {
            for m in 0..2 {
                kept(far, (Step(1), MicroBatch(m as u32)), &batch, Kept::alone(m));
            }
            let mut settled = Vec::new();
            let note = &mut |from| settled.push(from);
            let last = Kept { number: 2, merges: &[[1, 2], [0, 1]], settled: Some(note) };
            let to = if at_once { Kept::alone(2) } else { last };
            kept(far, (Step(1), MicroBatch(2)), &batch, to);
            if at_once {
                far.add_kept(2, 1);
                far.add_kept(1, 0);
            }
            let mut brought = vec![f32::NAN; elements];
            far.bring(0, &mut brought).expect("the host's memory");
            (brought.into_iter().map(f32::to_bits).collect::<Vec<_>>(), settled)
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
        let numbers = [4, 5].map(|stream| Numbers::of(stream, targets));
        let [first, second] = numbers.each_ref().map(|numbers| numbers.batch(&input));
        let step = Step(1);
        let want = kept(&mut far, (step, MicroBatch(1)), &second, Kept::alone(0));
        let begin = |far: &mut DeviceReplica<Cpu>, m: u32, batch| {
            far.begin(step, MicroBatch(m), batch, Kept::alone(0)).expect("it fits");
        };
        let group = MicroBatchGroup::of_one(step, MicroBatch(1));
        begin(&mut far, 0, &first);
        far.prefetch(&group, MicroBatch(1), &second).expect("it fits");
        let alone = far.figures();
        assert_ne!(alone, want);
        let sent = (SENT.get(), AHEAD.get());
        begin(&mut far, 1, &second);
        assert_eq!(far.figures(), want);
        assert_eq!((SENT.get(), AHEAD.get()), sent, "it was there");
        // What came ahead of another one is not taken for it, and not kept for later.
        far.prefetch(&group, MicroBatch(1), &second).expect("it fits");
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
    assert_eq!(state_digest(&mut far), host.state().state_digest());
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
    let numbers = Numbers::of(1, targets);
    let batch = numbers.batch(&input);
    let mut gradients = [(); 2].map(|()| vec![f32::NAN; host.about().gradient_len()]);
    let mut step = |number: u64, replicas: [&mut dyn Replica; 2], broken: bool| {
        let infos = replicas.into_iter().zip(&mut gradients).map(|(replica, gradient)| {
            // Two devices of this thread have one place for the scale.
            let state = replica.bring_state().expect("memory of the host").section(Section::Stats);
            SCALE.set(state[state.len() - 2]);
            micro_batch(replica, Step(number), MicroBatch(0), &batch, gradient).expect("it fits");
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
    assert_eq!(state_digest(&mut far), state_digest(&mut late));
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
fn a_state_that_the_device_changed_is_brought_before_it_is_shown_and_once() {
    let (chain, input, _) = models()[0].clone();
    let (_, mut far) = pair(chain, &input);
    let started = state_digest(&mut far);
    let gradient = vec![0.5; far.about().gradient_len()];
    far.update(Step(1), &gradient, 1.0, 4).expect("it is finite");
    let before = FETCHED.get();
    assert_ne!(state_digest(&mut far), started);
    let elements: usize = far.about().state.lengths().iter().sum();
    assert_eq!(FETCHED.get() - before, elements);
    far.bring_state().expect("memory of the host");
    assert_eq!(FETCHED.get() - before, elements, "it is there");
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let (chain, input, _) = models()[0].clone();
    let (_, mut far) = pair(chain, &input);
    let mut gradient = vec![0.5; far.about().gradient_len()];
    gradient[7] = f32::NAN;
    let before = state_digest(&mut far);
    assert_eq!(far.update(Step(1), &gradient, 1.0, 4), Err(EngineError::NonFinite { step: Step(1) }));
    assert_eq!(state_digest(&mut far), before);
}

/// Steps of two micro-batches, given ahead; gives what each came to.
fn ahead(far: &mut DeviceReplica<Cpu>, step: u64, batches: [&BatchView<'_>; 2]) -> u64 {
    let mut samples = 0;
    for (m, batch) in batches.into_iter().enumerate() {
        far.begin(Step(step), MicroBatch(m as u32), batch, Kept::alone(m)).expect("it fits");
        samples += far.figures_later().samples;
    }
    far.add_kept(1, 0);
    far.update_ahead(Step(step), samples).expect("the host's memory");
    samples
}

#[test]
fn steps_that_are_given_ahead_come_to_the_same_and_nobody_asks_within_one() {
    for (chain, input, targets) in models() {
        let (mut plain, mut far) = (pair(chain, &input).1, pair(chain, &input).1);
        assert!(plain.keep(2) && far.keep(2) && far.work_ahead(2));
        let numbers = Numbers::of(1, targets);
        let batch = numbers.batch(&input);
        let mut wanted = Vec::new();
        for step in [1, 2, 3].map(Step) {
            let leaves =
                [0, 1].map(|m| kept(&mut plain, (step, MicroBatch(m)), &batch, Kept::alone(m as usize)));
            plain.add_kept(1, 0);
            let (sums, non_finite) = added_up(&leaves.map(|figures| figures.sums));
            let update = Some(plain.update_kept(step, sums.weight, 8).expect("it is finite"));
            wanted.push(StepOutcome { step, sums, non_finite, update });
        }
        let mut told = Vec::new();
        for step in 1..=3 {
            let before = ASKED.get();
            assert_eq!(ahead(&mut far, step, [&batch, &batch]), 8);
            assert_eq!(ASKED.get(), before, "nobody asks while a step is given");
            if step > 1 {
                told.extend(far.outcome().expect("the host's memory"));
            }
        }
        told.extend(far.outcome().expect("the host's memory"));
        assert_eq!(told, wanted);
        assert_eq!(far.outcome(), Ok(None));
        assert_eq!(state_digest(&mut far), state_digest(&mut plain));
    }
}

#[test]
fn a_step_that_is_not_finite_leaves_no_trace_nor_does_the_one_behind_it() {
    let (chain, input, targets) = models()[0].clone();
    let (_, mut far) = pair(chain, &input);
    assert!(far.keep(2) && far.work_ahead(2));
    let [good, mut bad] = [(); 2].map(|()| Numbers::of(1, targets));
    bad.values[5] = f32::NAN;
    let (good, bad) = (good.batch(&input), bad.batch(&input));
    ahead(&mut far, 1, [&good, &good]);
    assert!(far.outcome().expect("the host's memory").is_some_and(|told| told.update.is_some()));
    let before = state_digest(&mut far);
    ahead(&mut far, 2, [&good, &bad]);
    ahead(&mut far, 3, [&good, &good]);
    let told = far.outcome().expect("the host's memory").expect("it was given");
    assert_eq!((told.step, told.non_finite, told.update), (Step(2), Some(1), None));
    assert_eq!(far.outcome(), Ok(None), "what was given behind it is forgotten");
    assert_eq!((far.applied(), state_digest(&mut far)), (Step(1), before));
    // It goes on from there.
    ahead(&mut far, 2, [&good, &good]);
    assert!(far.outcome().expect("the host's memory").is_some_and(|told| told.update.is_some()));
}
