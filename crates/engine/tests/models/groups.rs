//! Several micro-batches in one pass: the same bits as one after the other, whatever is in the model.

use crate::{compute, cpu, cpu_with};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Cell;
use dtrain_engine::models::{
    CnnOptions, EncoderOptions, GptOptions, MlpOptions, PoolPlace, RecurrentOptions, ResNetOptions, Stem,
    cnn, gpt, mlp, peer, recurrent, resnet, vit,
};
use dtrain_engine::stage::Shape;
use dtrain_engine::stages::{AvgPool, BatchNorm, Chain, Flatten, Gelu, LayerNorm, Linear, Relu, Residual};
use dtrain_engine::{
    BatchFigures, BatchView, EngineError, Gradient, Inputs, Loss, LrSchedule, MicroBatchGroup, Model,
    ModelReplica, Optimizer, Replica, Rule, Targets, micro_batch,
};
use dtrain_types::{Merger, MicroBatch, MicroRange, Seed, Step, Wire, to_bf16};
use std::ops::Range;

const ROWS: usize = 5;
const MOST: u32 = 8;

/// A model to be, with its input for micro-batches of [`ROWS`], its loss, and how many classes it tells apart.
struct Case {
    name: &'static str,
    stages: fn() -> Result<Chain<Cpu>, EngineError>,
    input: Shape,
    loss: fn() -> Loss,
}

fn cases() -> Vec<Case> {
    let cross_entropy: fn() -> Loss = Loss::cross_entropy;
    let image = Shape::values(ROWS, &[2, 9, 8]);
    let text = Shape::Tokens { rows: ROWS, time: 12 };
    vec![
        Case {
            name: "mlp with batch norm and dropout",
            stages: || mlp(&MlpOptions { hidden: vec![70, 33], dropout: 0.3, batch_norm: true }, 7),
            input: image.clone(),
            loss: cross_entropy,
        },
        Case {
            name: "plain mlp of regression, one output",
            stages: || mlp(&MlpOptions { hidden: vec![40], ..MlpOptions::default() }, 1),
            input: Shape::values(ROWS, &[1]),
            loss: || Loss::MeanSquaredError,
        },
        Case {
            name: "cnn with batch norm and dropout",
            stages: || {
                cnn(&CnnOptions { channels: vec![4, 6], hidden: vec![16], ..CnnOptions::default() }, 7)
            },
            input: image.clone(),
            loss: || Loss::CrossEntropy {
                label_smoothing: 0.1,
                class_weights: (1..=7).map(|i| i as f32 * 0.3).collect(),
                ignore_index: Some(3),
            },
        },
        Case {
            name: "plain cnn",
            stages: || {
                let options = CnnOptions {
                    pool: PoolPlace::Last,
                    batch_norm: false,
                    dropout: 0.0,
                    ..CnnOptions::default()
                };
                cnn(&CnnOptions { channels: vec![3, 5], hidden: vec![8], ..options }, 7)
            },
            input: image.clone(),
            loss: cross_entropy,
        },
        Case {
            name: "gpt with dropout",
            stages: || {
                gpt(&GptOptions { vocabulary: 9, context: 12, layers: 2, width: 24, heads: 3, dropout: 0.2 })
            },
            input: text.clone(),
            loss: cross_entropy,
        },
        Case {
            name: "plain gpt",
            stages: || {
                gpt(&GptOptions { vocabulary: 9, context: 12, layers: 1, width: 8, heads: 2, dropout: 0.0 })
            },
            input: text,
            loss: cross_entropy,
        },
        Case {
            name: "resnet",
            stages: || resnet(&ResNetOptions { depth: 18, width: 3, stem: Stem::Small }, 7),
            input: image.clone(),
            loss: cross_entropy,
        },
        Case {
            name: "vit with dropout",
            stages: || vit(&EncoderOptions { layers: 2, width: 12, heads: 3, dropout: 0.2 }, 2, 7),
            input: Shape::values(ROWS, &[2, 8, 6]),
            loss: cross_entropy,
        },
        Case {
            name: "two layers of lstm, with dropout",
            stages: || {
                recurrent(&RecurrentOptions { cell: Cell::Lstm, layers: 2, width: 9, dropout: 0.2 }, 7)
            },
            input: Shape::values(ROWS, &[3, 11]),
            loss: cross_entropy,
        },
        Case {
            name: "gru",
            stages: || recurrent(&RecurrentOptions { cell: Cell::Gru, layers: 1, width: 9, dropout: 0.0 }, 7),
            input: Shape::values(ROWS, &[3, 11]),
            loss: cross_entropy,
        },
        Case {
            // Stages in place at the ends, views, statistics inside residuals, and nothing to learn in front.
            name: "everything else",
            stages: || {
                let inner = Chain::new().then(Linear::new(12)).then(BatchNorm::new()).then(Gelu::Exact);
                let spoils = Chain::new().then(LayerNorm::new()).then(Linear::new(12).relu());
                Ok(Chain::new()
                    .then(Relu)
                    .then(AvgPool::new(2))
                    .then(Flatten)
                    .then(Linear::new(12).without_bias())
                    .then(Residual::new(inner))
                    .then(Residual::new(Chain::new().then(Residual::new(spoils)).then(Relu)))
                    .then(Linear::new(7))
                    .then(Gelu::Exact))
            },
            input: image,
            loss: cross_entropy,
        },
    ]
}

impl Case {
    fn replica(&self, threads: usize, most: u32) -> ModelReplica<Cpu> {
        let schedule = LrSchedule::constant(1e-2);
        let optimizer = Optimizer::new(Rule::adamw(), schedule);
        let model =
            Model::in_groups(&cpu(), self.stages, self.input.clone(), (self.loss)(), most).expect("it fits");
        ModelReplica::new(cpu_with(threads), model, optimizer, Seed(3)).expect("the options make sense")
    }
}

/// The samples of a step, in rows as the case has them.
struct Data {
    values: Vec<f32>,
    tokens: Vec<u32>,
    classes: Vec<u32>,
    targets: Vec<f32>,
}

impl Data {
    fn new(case: &Case) -> Self {
        let samples = 2 * MOST as usize * ROWS;
        Self {
            values: peer::uniform(1, samples * case.input.per_row(), 1.0),
            tokens: peer::integers(2, samples * case.input.per_row(), 9),
            classes: peer::integers(3, samples * 12, 7),
            targets: peer::uniform(4, samples, 1.0),
        }
    }

    /// Micro-batch `m` of a step of `samples`; the last may be short.
    fn batch(&self, case: &Case, m: u32, samples: usize) -> BatchView<'_> {
        let from = m as usize * ROWS;
        let rows = ROWS.min(samples - from);
        let of = |width: usize| from * width..(from + rows) * width;
        let width = case.input.per_row();
        let (inputs, per_sample) = match case.input {
            Shape::Values { .. } => (Inputs::Values(&self.values[of(width)]), 1),
            Shape::Tokens { time, .. } => (Inputs::Tokens(&self.tokens[of(width)]), time),
        };
        let targets = match (case.loss)() {
            Loss::MeanSquaredError => Targets::Values(&self.targets[of(1)]),
            Loss::CrossEntropy { .. } => Targets::Classes(&self.classes[of(per_sample)]),
        };
        BatchView { rows, inputs, targets }
    }
}

/// The sum over a root of the tree and what each micro-batch said, computed in groups as large as the replica takes.
fn root(
    replica: &mut ModelReplica<Cpu>,
    case: &Case,
    data: &Data,
    [lo, hi]: [u32; 2],
    samples: usize,
    wire: Wire,
) -> (Vec<f32>, Vec<BatchFigures>) {
    let mut buffers = vec![vec![f32::NAN; replica.about().gradient_len()]; Merger::buffers(hi - lo)];
    let mut all = vec![BatchFigures::default(); (hi - lo) as usize];
    let mut merger = Merger::default();
    for first in (lo..hi).step_by(replica.about().group as usize) {
        let count = replica.about().group.min(hi - first);
        let figures = &mut all[(first - lo) as usize..][..count as usize];
        let gradient = &mut buffers[merger.next_buffer()];
        if replica.about().group == 1 {
            let batch = data.batch(case, first, samples);
            figures[0] = micro_batch(replica, Step(1), MicroBatch(first), &batch, gradient).expect("it fits");
            rounded(wire, gradient);
        } else {
            let group = MicroBatchGroup {
                step: Step(1),
                micro_batches: MicroRange { lo: first, hi: first + count },
                wire,
            };
            compute(replica, &group, |m| data.batch(case, m, samples), gradient, figures);
        }
        merger.push_subtree(count, |l, r| add(replica, &mut buffers, [l, r], wire));
    }
    merger.finish(|l, r| add(replica, &mut buffers, [l, r], wire));
    (buffers.swap_remove(0), all)
}

fn add(replica: &ModelReplica<Cpu>, buffers: &mut [Vec<f32>], [left, right]: [usize; 2], wire: Wire) {
    let (before, from) = buffers.split_at_mut(right);
    let mut at_once = before[left].clone();
    replica.add(wire, &from[0], &mut at_once);
    replica.add(Wire::F32, &from[0], &mut before[left]);
    rounded(wire, &mut before[left]);
    assert!(bits(&at_once) == bits(&before[left]), "{wire:?}");
}

/// One number after the other.
fn rounded(wire: Wire, gradient: &mut [f32]) {
    if wire == Wire::Bf16 {
        gradient.iter_mut().for_each(|x| *x = to_bf16(*x));
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn micro_batches_in_groups_have_the_bits_of_one_after_the_other() {
    for case in cases() {
        let data = Data::new(&case);
        let mut alone = case.replica(1, 1);
        assert_eq!(alone.about().group, 1);
        for (threads, most) in [(1, MOST), (3, MOST), (1, 4), (1, 2)] {
            let mut grouped = case.replica(threads, most);
            assert_eq!(grouped.about().group, most, "{}", case.name);
            for len in 1..=11 {
                // Once with a short micro-batch at the end, of fewer rows but enough for batch norm.
                for (lo, samples) in [(0, len as usize * ROWS), (3, (3 + len) as usize * ROWS - 2)] {
                    let [plain, halves] = [Wire::F32, Wire::Bf16].map(|wire| {
                        let wanted = root(&mut alone, &case, &data, [lo, lo + len], samples, wire);
                        let got = root(&mut grouped, &case, &data, [lo, lo + len], samples, wire);
                        let what = format!("{}, {len} from {lo} on, groups of {most}, {wire:?}", case.name);
                        assert_eq!(got.1, wanted.1, "{what}");
                        assert!(bits(&got.0) == bits(&wanted.0), "{what}, {threads} threads");
                        bits(&got.0)
                    });
                    assert!(halves.iter().all(|bits| bits & 0xffff == 0) && halves != plain);
                }
            }
        }
    }
}

/// Keeps what is settled as it is at that moment.
struct Settling {
    slot: Vec<f32>,
    settled: Vec<f32>,
    open: usize,
    calls: usize,
}

impl Settling {
    fn new(len: usize) -> Self {
        Self { slot: vec![f32::NAN; len], settled: vec![f32::NAN; len], open: len, calls: 0 }
    }
}

impl Gradient for Settling {
    fn elements(&self) -> usize {
        self.slot.len()
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        assert!(part.end <= self.open, "{part:?} is touched after {} is final", self.open);
        &mut self.slot[part]
    }

    fn settle(&mut self, from: usize) {
        self.settled[from..self.open].copy_from_slice(&self.slot[from..self.open]);
        // Whoever reads it later finds that it is gone.
        self.slot[from..self.open].fill(f32::NAN);
        (self.open, self.calls) = (from, self.calls + 1);
    }
}

#[test]
fn each_part_of_a_gradient_is_whole_when_it_is_settled_and_not_touched_again() {
    for case in cases() {
        let data = Data::new(&case);
        let (mut alone, mut grouped) = (case.replica(1, 1), case.replica(1, MOST));
        let stages = alone.about().layout.stages.len();
        let check = |got: &Settling, wanted: &[f32], what: &str| {
            assert!(bits(&got.settled) == bits(wanted), "{}, {what}", case.name);
            assert_eq!(got.open, 0, "{}, {what}", case.name);
            assert!(got.calls >= stages.min(2), "{}, {what}: {} pieces", case.name, got.calls);
        };
        for wire in [Wire::F32, Wire::Bf16] {
            for count in [1, 3] {
                let samples = count as usize * ROWS;
                let (wanted, _) = root(&mut alone, &case, &data, [0, count], samples, wire);
                let mut got = Settling::new(wanted.len());
                let mut figures = vec![BatchFigures::default(); count as usize];
                let micro_batches = MicroRange { lo: 0, hi: count };
                let group = MicroBatchGroup { step: Step(1), micro_batches, wire };
                compute(&mut grouped, &group, |m| data.batch(&case, m, samples), &mut got, &mut figures);
                check(&got, &wanted, &format!("{count} at once, {wire:?}"));
            }
        }
        let (wanted, _) = root(&mut alone, &case, &data, [0, 1], ROWS, Wire::F32);
        let mut got = Settling::new(wanted.len());
        let one = MicroBatchGroup::of_one(Step(1), MicroBatch(0));
        let figures = &mut [BatchFigures::default()];
        alone.compute(&one, &data.batch(&case, 0, ROWS), &mut got, figures).expect("it fits");
        check(&got, &wanted, "one");
    }
}

#[test]
fn a_replica_that_takes_groups_also_takes_one_and_evaluates_the_same() {
    for case in cases() {
        let data = Data::new(&case);
        let (mut alone, mut grouped) = (case.replica(1, 1), case.replica(1, MOST));
        let batch = data.batch(&case, 2, 64);
        let mut gradients = [0, 1].map(|_| vec![f32::NAN; alone.about().gradient_len()]);
        for (replica, gradient) in [&mut alone, &mut grouped].into_iter().zip(&mut gradients) {
            micro_batch(replica, Step(1), MicroBatch(2), &batch, gradient).expect("it fits");
            replica.update(Step(1), gradient, 3.0, 5).expect("the gradient is finite");
        }
        assert!(bits(&gradients[0]) == bits(&gradients[1]), "{}", case.name);
        assert_eq!(alone.state().state_digest(), grouped.state().state_digest(), "{}", case.name);
        let outputs = [&mut alone, &mut grouped].map(|replica| {
            let outputs = ROWS * replica.about().outputs * replica.model().loss_rows(1).rows;
            let mut outputs = vec![f32::NAN; outputs];
            replica.predict(ROWS, batch.inputs, &mut outputs).expect("the inputs fit");
            bits(&outputs)
        });
        assert!(outputs[0] == outputs[1], "{}", case.name);
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused_when_it_is_laid() {
    let case = &cases()[0];
    let data = Data::new(case);
    let mut replica = case.replica(1, MOST);
    let good = data.batch(case, 0, 64);
    let group =
        MicroBatchGroup { step: Step(1), micro_batches: MicroRange { lo: 0, hi: 2 }, wire: Wire::F32 };
    let mut lay = |batch: &BatchView<'_>| replica.prefetch(&group, MicroBatch(1), batch);
    let error = lay(&BatchView { rows: ROWS + 1, ..good }).expect_err("too many rows");
    assert_eq!(error, EngineError::Rows { rows: ROWS + 1, planned: ROWS });
    let error = lay(&BatchView { inputs: Inputs::Tokens(&[1]), ..good }).expect_err("token ids");
    assert!(matches!(error, EngineError::Kind { .. }));
}

#[test]
fn a_group_is_as_large_as_memory_and_use_allow() {
    let group = |rows: usize, dims: &[usize], width: usize, most: u32| {
        let stages = || mlp(&MlpOptions { hidden: vec![width], ..MlpOptions::default() }, 10);
        let input = Shape::values(rows, dims);
        let model =
            Model::in_groups(&cpu(), stages, input.clone(), Loss::cross_entropy(), most).expect("it fits");
        assert_eq!(*model.input(), input, "a micro-batch is as large as ever");
        assert_eq!(model.output().rows(), rows);
        model.group()
    };
    assert_eq!(group(16, &[64], 64, 5), 5, "all there are");
    assert_eq!(group(16, &[64], 64, 1), 1);
    assert_eq!(group(100, &[64], 64, 500), 8, "a power of two with at most 1024 rows");
    assert_eq!(group(2000, &[64], 64, 8), 1, "so many rows gain nothing");
    // 16 rows of 100 000 inputs and as many hidden values take some 20 MiB: six fit into 128 MiB, so four.
    assert_eq!(group(16, &[100_000], 100_000, 8), 4, "what fits into 128 MiB");
}
