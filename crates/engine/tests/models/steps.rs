//! Whole steps of a replica: under any cut of the micro-batches, for any number of threads, with bad numbers and
//! bad batches.

use crate::{cpu, cpu_with};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{CnnOptions, cnn, cnn1d, cnn3d, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchView, EngineError, EvaluationCounts, Inputs, Loss, LrSchedule, Model, ModelReplica, Optimizer,
    Replica, Rule, Section, State, Targets, is_at_fault, micro_batch,
};
use dtrain_types::{Fold, Merger, MicroBatch, MicroRange, Seed, Step, Wire, cut_evenly, roots};

const ROWS: usize = 4;
const PIXELS: usize = 64;
const SEQUENCE: &[usize] = &[2, 32];
const IMAGE: &[usize] = &[1, 8, 8];
const VOLUME: &[usize] = &[1, 4, 4, 4];

fn optimizer() -> Optimizer {
    Optimizer { clip_norm: Some(1.0), ..Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-2)) }
}

/// A CNN with batch norm and dropout: everything that could depend on where a micro-batch is computed. Over sequences,
/// images or volumes, as the sample is; each has as many values.
fn planned(sample: &[usize]) -> Model<Cpu> {
    let options = CnnOptions { channels: vec![4, 8], hidden: vec![16], ..CnnOptions::default() };
    let stages = match sample.len() {
        2 => cnn1d(&options, 10),
        3 => cnn(&options, 10),
        _ => cnn3d(&options, 10),
    };
    let stages = stages.expect("the options make sense");
    Model::new(&cpu(), stages, Shape::values(ROWS, sample), Loss::cross_entropy()).expect("the model fits")
}

fn replica_of(sample: &[usize], threads: usize) -> ModelReplica<Cpu> {
    ModelReplica::new(cpu_with(threads), planned(sample), optimizer(), Seed(3))
        .expect("the options make sense")
}

fn replica(threads: usize) -> ModelReplica<Cpu> {
    replica_of(IMAGE, threads)
}

struct Data {
    values: Vec<f32>,
    classes: Vec<u32>,
}

impl Data {
    fn new() -> Self {
        Self { values: peer::uniform(1, 64 * PIXELS, 1.0), classes: peer::integers(2, 64, 10) }
    }

    /// Micro-batch `m` of a step of `samples`; the last may be short.
    fn batch(&self, m: u32, samples: usize) -> BatchView<'_> {
        let from = m as usize * ROWS;
        let rows = ROWS.min(samples - from);
        BatchView {
            rows,
            inputs: Inputs::Values(&self.values[from * PIXELS..(from + rows) * PIXELS]),
            targets: Targets::Classes(&self.classes[from..from + rows]),
        }
    }
}

/// One step computed by `replicas`, each with its range, as ranks would: own roots merged, then folded.
fn step(replicas: &mut [ModelReplica<Cpu>], ranges: &[MicroRange], data: &Data, number: u64, samples: usize) {
    let count = samples.div_ceil(ROWS) as u32;
    let len = replicas[0].about().gradient_len();
    let (mut all_roots, mut sums, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (replica, range) in replicas.iter_mut().zip(ranges) {
        for root in roots(*range, count) {
            let mut buffers = vec![vec![f32::NAN; len]; Merger::buffers(root.len())];
            let mut merger = Merger::default();
            let mut trailers: Vec<f64> = vec![0.0; buffers.len()];
            for m in root.lo..root.hi {
                let at = merger.next_buffer();
                let figures = micro_batch(
                    replica,
                    Step(number),
                    MicroBatch(m),
                    &data.batch(m, samples),
                    &mut buffers[at],
                )
                .expect("the batch fits");
                trailers[at] = figures.sums.weight;
                merger.push(|left, right| merge(replica, &mut buffers, &mut trailers, left, right));
            }
            merger.finish(|left, right| merge(replica, &mut buffers, &mut trailers, left, right));
            all_roots.push(root);
            sums.push(buffers.swap_remove(0));
            weights.push(trailers[0]);
        }
    }
    let fold = Fold::new(&all_roots, count);
    let sum = fold.run(&sums, |a, b| {
        let mut sum = a.clone();
        replicas[0].add(Wire::F32, b, &mut sum);
        sum
    });
    let weight = fold.run(&weights, |a, b| a + b);
    for replica in replicas {
        replica.update(Step(number), &sum, weight, samples as u64).expect("the gradient is finite");
    }
}

fn merge(
    replica: &ModelReplica<Cpu>,
    buffers: &mut [Vec<f32>],
    weights: &mut [f64],
    left: usize,
    right: usize,
) {
    let (before, after) = buffers.split_at_mut(right);
    replica.add(Wire::F32, &after[0], &mut before[left]);
    weights[left] += weights[right];
}

fn digest_after_three_steps(sample: &[usize], world: usize, threads: usize, samples: usize) -> [u8; 32] {
    let data = Data::new();
    let mut replicas: Vec<_> = (0..world).map(|_| replica_of(sample, threads)).collect();
    let ranges = cut_evenly(64u32.div_ceil(ROWS as u32), world as u32);
    for number in 1..=3 {
        step(&mut replicas, &ranges, &data, number, samples);
    }
    let digest = replicas[0].state().state_digest();
    for other in &replicas {
        assert_eq!(other.state().state_digest(), digest, "ranks of one world agree");
    }
    digest
}

#[test]
fn any_world_size_and_any_number_of_threads_end_in_the_same_state() {
    for samples in [64, 62, 6] {
        let alone = digest_after_three_steps(IMAGE, 1, 1, samples);
        for (world, threads) in [(1, 2), (1, 4), (2, 1), (3, 2), (5, 1), (8, 1), (13, 1), (17, 1)] {
            assert_eq!(
                digest_after_three_steps(IMAGE, world, threads, samples),
                alone,
                "{world} ranks of {threads} threads"
            );
        }
    }
}

#[test]
fn sequences_and_volumes_end_in_the_same_state_too() {
    for sample in [SEQUENCE, VOLUME] {
        let alone = digest_after_three_steps(sample, 1, 1, 62);
        for (world, threads) in [(1, 3), (2, 1), (5, 2), (13, 1)] {
            let found = digest_after_three_steps(sample, world, threads, 62);
            assert_eq!(found, alone, "{sample:?} on {world} ranks of {threads} threads");
        }
    }
}

#[test]
fn convolutions_over_any_number_of_dimensions_learn() {
    // Each class has a pattern of its own under the noise.
    let mut data = Data::new();
    let patterns = peer::uniform(5, 10 * PIXELS, 1.0);
    for (values, class) in data.values.chunks_exact_mut(PIXELS).zip(&data.classes) {
        let pattern = &patterns[*class as usize * PIXELS..][..PIXELS];
        values.iter_mut().zip(pattern).for_each(|(value, pattern)| *value = 0.3 * *value + pattern);
    }
    for sample in [SEQUENCE, IMAGE, VOLUME] {
        let mut replicas = [replica_of(sample, 1)];
        let loss = |replica: &mut ModelReplica<Cpu>| {
            let mut counts = EvaluationCounts::new(10);
            let mut sums = [0.0; 2];
            for m in 0..16 {
                let of = replica.evaluate(&data.batch(m, 64), &mut counts).expect("the batch fits");
                sums = [sums[0] + of.loss, sums[1] + of.weight];
            }
            sums[0] / sums[1]
        };
        let before = loss(&mut replicas[0]);
        (1..=120).for_each(|number| step(&mut replicas, &cut_evenly(16, 1), &data, number, 64));
        let after = loss(&mut replicas[0]);
        assert!(before > 2.0 && after < 0.3, "{sample:?}: a loss of {before}, then {after}");
    }
}

#[test]
fn the_seed_is_seen_in_the_start_and_in_what_is_dropped() {
    let data = Data::new();
    let model = |seed| {
        let mut replica = replica(1);
        replica = ModelReplica::new(cpu(), planned(IMAGE), optimizer(), Seed(seed)).unwrap_or(replica);
        replica
    };
    let (mut a, mut b) = (model(1), model(2));
    assert_ne!(a.state().digest(), b.state().digest());
    // The same parameters, but another seed: only dropout can differ.
    let mut state = a.state().clone();
    b.swap_state(&mut state).expect("memory of the host");
    let gradient = |replica: &mut ModelReplica<Cpu>, step: u64, m: u32| {
        let mut gradient = vec![0.0; replica.about().gradient_len()];
        micro_batch(replica, Step(step), MicroBatch(m), &data.batch(0, 64), &mut gradient)
            .expect("the batch fits");
        gradient
    };
    let base = gradient(&mut a, 1, 0);
    assert_eq!(base, gradient(&mut a, 1, 0), "a micro-batch computed again has the same bits");
    assert_ne!(base, gradient(&mut b, 1, 0));
    assert_ne!(base, gradient(&mut a, 2, 0));
    assert_ne!(base, gradient(&mut a, 1, 1));
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_its_micro_batch_is_found() {
    let mut data = Data::new();
    let mut replica = replica(1);
    let mut gradient = vec![0.0; replica.about().gradient_len()];
    data.values[ROWS * PIXELS + 5] = f32::INFINITY;
    for (m, at_fault) in [(0, false), (1, true), (2, false)] {
        let batch = data.batch(m, 64);
        let found =
            is_at_fault(&mut replica, Step(1), MicroBatch(m), &batch, &mut gradient).expect("the batch fits");
        assert_eq!(found, at_fault, "micro-batch {m}");
    }
    let before = replica.state().state_digest();
    let len = gradient.len();
    for place in [0, len / 2, len - 1] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            gradient.fill(0.25);
            gradient[place] = bad;
            let error = replica.update(Step(1), &gradient, 4.0, 4).expect_err("the gradient is not finite");
            assert_eq!(error, EngineError::NonFinite { step: Step(1) });
            assert_eq!(replica.state().state_digest(), before);
        }
    }
    gradient.fill(0.25);
    replica.update(Step(1), &gradient, 4.0, 4).expect("the gradient is finite");
    assert_ne!(replica.state().state_digest(), before);
    assert_eq!(replica.state().applied, Step(1));
}

#[test]
fn a_step_of_zero_weight_has_a_zero_gradient() {
    let mut replica = replica(1);
    let gradient = vec![3.0; replica.about().gradient_len()];
    let info = replica.update(Step(1), &gradient, 0.0, 4).expect("zero is finite");
    assert_eq!(info.gradient_norm, 0.0);
    assert!(replica.state().section(Section::First).iter().all(|m| *m == 0.0));
    assert!(replica.state().section(Section::Parameters).iter().all(|p| p.is_finite()));
}

#[test]
#[should_panic(expected = "updates come in order")]
fn an_update_out_of_order_is_a_bug() {
    let mut replica = replica(1);
    let gradient = vec![0.0; replica.about().gradient_len()];
    let _ = replica.update(Step(2), &gradient, 1.0, 1);
}

#[test]
fn batches_that_do_not_fit_are_refused_with_their_numbers() {
    let mut replica = replica(1);
    let data = Data::new();
    let good = data.batch(0, 64);
    let mut gradient = vec![0.0; replica.about().gradient_len()];
    let mut refused = |batch: BatchView<'_>| {
        let error = micro_batch(&mut replica, Step(1), MicroBatch(0), &batch, &mut gradient)
            .expect_err("it does not fit");
        let same = replica.evaluate(&batch, &mut EvaluationCounts::new(10)).expect_err("it does not fit");
        assert_eq!(error, same);
        error.to_string()
    };
    assert_eq!(refused(BatchView { rows: 5, ..good }), "a micro-batch of 5 rows, planned for 1 to 4");
    assert_eq!(refused(BatchView { rows: 3, ..good }), "inputs: expected 192 values, got 256");
    let tokens = Inputs::Tokens(&[1, 2]);
    assert_eq!(
        refused(BatchView { inputs: tokens, ..good }),
        "the model takes values as inputs, got token ids"
    );
    let far = Targets::Classes(&[0, 1, 10, 3]);
    assert_eq!(
        refused(BatchView { targets: far, ..good }),
        "target 10 in row 2, but the model has 10 outputs"
    );
    let values = Targets::Values(&[0.0; 40]);
    assert_eq!(
        refused(BatchView { targets: values, ..good }),
        "the model takes class ids as targets, got values"
    );
}

#[test]
fn evaluation_counts_what_prediction_says_and_changes_nothing() {
    let mut replica = replica(1);
    let data = Data::new();
    let before = replica.state().state_digest();
    let (mut counts, mut by_hand) = (EvaluationCounts::new(10), EvaluationCounts::new(10));
    for m in 0..4 {
        let batch = data.batch(m, 14);
        let sums = replica.evaluate(&batch, &mut counts).expect("the batch fits");
        let mut outputs = vec![f32::NAN; batch.rows * replica.about().outputs];
        replica.predict(batch.rows, batch.inputs, &mut outputs).expect("the inputs fit");
        let Targets::Classes(classes) = batch.targets else { panic!("the data are classes") };
        let mut right = 0;
        for (row, target) in outputs.chunks(10).zip(classes) {
            let best = (0..10).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("there are ten");
            by_hand.note(*target, best as u32);
            right += u64::from(best as u32 == *target);
        }
        assert_eq!((sums.counted, sums.correct), (batch.rows as u64, right));
    }
    assert_eq!(counts, by_hand);
    assert_eq!(replica.state().state_digest(), before);
}

#[test]
fn a_state_swapped_in_is_the_state_that_was_copied_out() {
    let data = Data::new();
    let mut trained = [replica(1)];
    step(&mut trained, &[MicroRange { lo: 0, hi: 16 }], &data, 1, 64);
    let mut fresh = replica(1);
    let mut copy = State::zeros(fresh.about().state);
    for section in Section::ALL {
        copy.section_mut(section).copy_from_slice(trained[0].state().section(section));
    }
    copy.applied = trained[0].state().applied;
    fresh.swap_state(&mut copy).expect("memory of the host");
    let mut both = [fresh, trained.into_iter().next().expect("there is one")];
    assert_eq!(both[0].state().state_digest(), both[1].state().state_digest());
    let ranges = [MicroRange { lo: 0, hi: 9 }, MicroRange { lo: 9, hi: 16 }];
    step(&mut both, &ranges, &data, 2, 64);
    assert_eq!(both[0].state().state_digest(), both[1].state().state_digest());
}

#[test]
fn the_memory_table_adds_up() {
    let replica = replica(1);
    let layout = &replica.about().layout;
    let table = &replica.about().memory;
    let of =
        |name: &str| table.rows.iter().find(|(n, _)| *n == name).map(|(_, b)| b.0).expect("the row is there");
    assert_eq!(of("parameters"), layout.parameters as u64 * 4);
    assert_eq!(of("optimizer state"), layout.parameters as u64 * 8);
    assert_eq!(of("one gradient buffer"), (layout.parameters + layout.stats) as u64 * 4);
    assert_eq!(table.total().0, table.rows.iter().map(|(_, bytes)| bytes.0).sum::<u64>());
}
