//! Blocks that make their forward pass twice: the bits of those that keep what they need, in less memory.

use crate::{compute, cpu};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{GptOptions, LlamaOptions, gpt, gpt2, llama, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::stages::{BatchNorm, Chain, LayerNorm, Linear, Residual};
use dtrain_engine::{
    BatchFigures, BatchView, Inputs, Loss, LrSchedule, MicroBatchGroup, Model, ModelReplica, Optimizer,
    Replica, Rule, Targets, micro_batch,
};
use dtrain_types::{Bytes, MicroBatch, MicroRange, Seed, Step, Wire};

const ROWS: usize = 3;
const TIME: usize = 12;

fn replica(stages: impl Fn() -> Chain<Cpu>, input: &Shape, most: u32) -> ModelReplica<Cpu> {
    let model = Model::in_groups(&cpu(), || Ok(stages()), input.clone(), Loss::cross_entropy(), most);
    let schedule = LrSchedule::constant(1e-2);
    let optimizer = Optimizer::new(Rule::adamw(), schedule);
    ModelReplica::new(cpu(), model.expect("it fits"), optimizer, Seed(3)).expect("the options make sense")
}

/// Two steps of two micro-batches, the last one short; the digest of the state and what the micro-batches said.
fn steps(
    mut replica: ModelReplica<Cpu>,
    batch: impl Fn(usize) -> usize,
    of: &Data,
) -> ([u8; 32], Vec<BatchFigures>) {
    let mut said = Vec::new();
    for step in [1, 2].map(Step) {
        let mut sum = vec![f32::NAN; replica.about().gradient_len()];
        let mut figures = [BatchFigures::default(); 2];
        if replica.about().group == 1 {
            let mut other = sum.clone();
            for (m, gradient) in [&mut sum, &mut other].into_iter().enumerate() {
                let of = of.batch(batch(m));
                figures[m] = micro_batch(&mut replica, step, MicroBatch(m as u32), &of, gradient)
                    .expect("the batch fits");
            }
            replica.add(Wire::F32, &other, &mut sum);
        } else {
            let group = MicroBatchGroup { step, micro_batches: MicroRange { lo: 0, hi: 2 }, wire: Wire::F32 };
            compute(&mut replica, &group, |m| of.batch(batch(m as usize)), &mut sum, &mut figures);
        }
        replica.update(step, &sum, 50.0, 5).expect("the gradient is finite");
        said.extend(figures);
    }
    (replica.state().digest(), said)
}

struct Data {
    tokens: Vec<u32>,
    values: Vec<f32>,
    classes: Vec<u32>,
}

impl Data {
    fn new() -> Self {
        Self {
            tokens: peer::integers(1, ROWS * TIME, 9),
            values: peer::uniform(2, ROWS * 12, 1.0),
            classes: peer::integers(3, ROWS * TIME, 3),
        }
    }

    fn batch(&self, rows: usize) -> BatchView<'_> {
        let inputs = Inputs::Tokens(&self.tokens[..rows * TIME]);
        BatchView { rows, inputs, targets: Targets::Classes(&self.classes[..rows * TIME]) }
    }
}

fn activations(replica: &ModelReplica<Cpu>) -> Bytes {
    let rows = &replica.about().memory.rows;
    rows.iter().find(|(name, _)| *name == "activations").expect("the table has it").1
}

#[test]
fn a_block_that_is_computed_twice_gives_the_same_bits_in_less_memory() {
    let options = GptOptions { vocabulary: 9, context: TIME, layers: 4, width: 24, heads: 3, dropout: 0.2 };
    let input = Shape::Tokens { rows: ROWS, time: TIME };
    type Make = fn(&GptOptions) -> Chain<Cpu>;
    let makes: [(&str, Make); 3] = [
        ("gpt", |options| gpt(options).expect("fine")),
        ("gpt2", |options| gpt2(options).expect("fine")),
        ("llama", |options| {
            let GptOptions { vocabulary, layers, width, heads, .. } = *options;
            let (kv_heads, feed_forward) = (1, LlamaOptions::feed_forward_of(width));
            let llama_options = LlamaOptions {
                vocabulary,
                layers,
                width,
                heads,
                kv_heads,
                feed_forward,
                qk_norm: true,
                ..LlamaOptions::default()
            };
            llama(&llama_options).expect("fine")
        }),
    ];
    for (name, make) in makes {
        for most in [1, 2] {
            let plain = replica(|| make(&options), &input, most);
            let again = replica(|| make(&options).recomputed(), &input, most);
            assert_eq!(plain.about().group, again.about().group);
            assert!(
                activations(&again).0 * 3 < activations(&plain).0,
                "{name}: {:?} of {:?}",
                activations(&again),
                activations(&plain)
            );
            let rows = |m| ROWS - m;
            assert_eq!(steps(again, rows, &Data::new()), steps(plain, rows, &Data::new()), "{name}, {most}");
        }
    }
}

#[test]
fn a_block_with_running_statistics_keeps_what_it_has() {
    let stages = || {
        let inner = Chain::new().then(Linear::new(6)).then(BatchNorm::new());
        Chain::new()
            .then(Linear::new(6))
            .named("block", Chain::new().then(Residual::new(inner)))
            .then(Linear::new(4))
    };
    let input = Shape::values(ROWS, &[12]);
    let (plain, again) = (replica(stages, &input, 1), replica(|| stages().recomputed(), &input, 1));
    assert_eq!(activations(&plain), activations(&again));
    let data = Data::new();
    let step = |mut replica: ModelReplica<Cpu>| {
        let batch = BatchView {
            rows: ROWS,
            inputs: Inputs::Values(&data.values),
            targets: Targets::Classes(&data.classes[..ROWS]),
        };
        let mut gradient = vec![f32::NAN; replica.about().gradient_len()];
        micro_batch(&mut replica, Step(1), MicroBatch(0), &batch, &mut gradient).expect("the batch fits");
        gradient
    };
    assert_eq!(step(plain), step(again));
    // One whose input it keeps: what is inside need not know that it is computed twice.
    let stages = || {
        let inner = Chain::new().then(LayerNorm::new()).then(Linear::new(12).relu());
        Chain::new().then(Linear::new(12).relu()).named("block", Chain::new().then(Residual::new(inner)))
    };
    let (plain, again) = (replica(stages, &input, 1), replica(|| stages().recomputed(), &input, 1));
    assert_eq!(step(plain), step(again));
}
