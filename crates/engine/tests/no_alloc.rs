//! A training step allocates nothing after the third: counted by the allocator itself, on all threads. (On one thread
//! nothing after the first; a kernel thread may still be starting while the first steps are made.)

#[path = "../../../tests/harness/counting.rs"]
mod counting;

use counting::Counting;
use dtrain_engine::cpu::{Cpu, CpuOptions, CpuPrecision};
use dtrain_engine::device::Cell;
use dtrain_engine::models::{
    CnnOptions, EncoderOptions, GptOptions, LlamaOptions, Lora, MlpOptions, RecurrentOptions, ResNetOptions,
    Stem, cnn, gpt, gpt2, llama, mlp, peer, recurrent, resnet, vit,
};
use dtrain_engine::stage::Shape;
use dtrain_engine::stages::Chain;
use dtrain_engine::{
    BatchFigures, BatchView, EvaluationCounts, Grouping, Inputs, Loss, LrSchedule, MicroBatchGroup, Model,
    ModelReplica, Muon, Optimizer, Replica, Rule, Targets, micro_batch,
};
use dtrain_types::{MicroBatch, MicroRange, Seed, Step, Wire};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting(|| {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
});

const ROWS: usize = 6;

fn device(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).expect("the best instruction set is there")
}

/// Allocations of each of so many steps of two micro-batches (the second one short), an addition, the same two again as a
/// group where the model takes them so, an update and an evaluation.
fn allocations(
    stages: &dyn Fn() -> Chain<Cpu>,
    input: Shape,
    [threads, steps]: [usize; 2],
    rule: Rule,
) -> Vec<u64> {
    allocations_in(CpuPrecision::F32, stages, input, [threads, steps], rule)
}

/// The same in this precision.
fn allocations_in(
    precision: CpuPrecision,
    stages: &dyn Fn() -> Chain<Cpu>,
    input: Shape,
    [threads, steps]: [usize; 2],
    rule: Rule,
) -> Vec<u64> {
    let schedule = LrSchedule::constant(1e-3);
    let optimizer = Optimizer { clip_norm: Some(1.0), ..Optimizer::new(rule, schedule) };
    let cpu = device(threads).with_precision(precision);
    let model = Model::in_groups(&cpu, || Ok(stages()), input.clone(), Loss::cross_entropy(), 2);
    let model = model.expect("the model fits");
    // Where there are adapters, they alone are trained.
    let has_adapters = model.layout().tensors.iter().any(|tensor| tensor.name.contains("lora_"));
    let trained = if has_adapters { Lora::PARAMETERS.map(str::to_owned).into() } else { Vec::new() };
    let model = model.grouped(&Grouping { trained, ..Grouping::default() }).expect("it has them");
    assert_eq!(model.layout().frozen_len() > 0, has_adapters);
    let targets = model.loss_rows(ROWS).rows / ROWS;
    let mut replica = ModelReplica::new(cpu, model, optimizer, Seed(1)).expect("the options make sense");
    let values = peer::uniform(1, ROWS * input.per_row(), 1.0);
    let tokens = peer::integers(2, ROWS * input.per_row(), 16);
    let classes = peer::integers(3, ROWS * targets, 10);
    let batch = |rows: usize| {
        let inputs = match input {
            Shape::Values { .. } => Inputs::Values(&values[..rows * input.per_row()]),
            Shape::Tokens { .. } => Inputs::Tokens(&tokens[..rows * input.per_row()]),
        };
        BatchView { rows, inputs, targets: Targets::Classes(&classes[..rows * targets]) }
    };
    let mut gradients =
        [vec![0.0; replica.about().gradient_len()], vec![0.0; replica.about().gradient_len()]];
    let mut figures = [BatchFigures::default(); 2];
    let mut counts = EvaluationCounts::new(replica.about().outputs);
    let mut seen = Vec::with_capacity(steps);
    for step in 1..=steps as u64 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let mut weight = 0.0;
        for (m, gradient) in gradients.iter_mut().enumerate() {
            let of = batch(ROWS - 2 * m);
            let figures = micro_batch(&mut replica, Step(step), MicroBatch(m as u32), &of, gradient);
            weight += figures.expect("the batch fits").sums.weight;
        }
        let [sum, other] = &mut gradients;
        replica.add(Wire::F32, other, sum);
        if replica.about().group > 1 {
            let micro_batches = MicroRange { lo: 0, hi: 2 };
            let group = MicroBatchGroup { step: Step(step), micro_batches, wire: Wire::F32 };
            replica.prefetch(&group, MicroBatch(0), &batch(ROWS)).expect("the batch fits");
            replica.compute(&group, &batch(ROWS - 2), other, &mut figures).expect("both fit");
            assert!(sum == other, "a group is the sum of its micro-batches");
        }
        replica.update(Step(step), sum, weight, 2 * ROWS as u64 - 2).expect("the gradient is finite");
        replica.evaluate(&batch(ROWS), &mut counts).expect("the batch fits");
        seen.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    seen
}

#[test]
fn no_step_after_the_third_allocates_on_any_thread() {
    let sgd = Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 };
    for [threads, steps] in [[1, 5], [2, 60]] {
        let options = MlpOptions { hidden: vec![300, 200], dropout: 0.1, batch_norm: true };
        let perceptron = move || mlp(&options, 10).expect("the options make sense");
        let image = || cnn(&CnnOptions::default(), 10).expect("the options make sense");
        let plain = || cnn(&CnnOptions::benchmark(), 10).expect("the options make sense");
        let options =
            GptOptions { vocabulary: 16, context: 24, layers: 2, width: 64, heads: 4, dropout: 0.1 };
        let language = || gpt(&options).expect("the options make sense");
        let tied = || gpt2(&options).expect("the options make sense");
        let of_llama =
            LlamaOptions { vocabulary: 16, width: 64, kv_heads: 2, qk_norm: true, ..LlamaOptions::default() };
        let grouped = || llama(&of_llama).expect("the options make sense");
        let lora = Some(Lora { rank: 4, alpha: 8.0, targets: [true; 7] });
        let of_adapters = LlamaOptions { lora, ..of_llama };
        let adapted = move || llama(&of_adapters).expect("the options make sense");
        let text = Shape::Tokens { rows: ROWS, time: 24 };
        let lion = Rule::Lion { betas: [0.9, 0.99], weight_decay: 0.1 };
        let options = ResNetOptions { depth: 18, width: 8, stem: Stem::Small };
        let residual = move || resnet(&options, 10).expect("the options make sense");
        let options = EncoderOptions { layers: 1, width: 24, heads: 3, dropout: 0.1 };
        let patches = move || vit(&options, 2, 10).expect("the options make sense");
        let of = |cell| RecurrentOptions { cell, layers: 2, width: 24, dropout: 0.1 };
        let layers = || recurrent(&of(Cell::Lstm), 10).expect("the options make sense");
        let units = || recurrent(&of(Cell::Gru), 10).expect("the options make sense");
        let runs = [
            ("mlp", allocations(&perceptron, Shape::values(ROWS, &[400]), [threads, steps], sgd)),
            ("cnn", allocations(&image, Shape::values(ROWS, &[1, 28, 28]), [threads, steps], Rule::adamw())),
            (
                "plain cnn",
                allocations(&plain, Shape::values(ROWS, &[1, 28, 28]), [threads, steps], Rule::adamw()),
            ),
            ("gpt", allocations(&language, text.clone(), [threads, steps], Rule::adamw())),
            ("gpt2", allocations(&tied, text.clone(), [threads, steps], Rule::Muon(Muon::default()))),
            ("llama", allocations(&grouped, text.clone(), [threads, steps], Rule::adamw())),
            (
                "gpt in bf16",
                allocations_in(CpuPrecision::Bf16, &language, text.clone(), [threads, steps], Rule::adamw()),
            ),
            ("adapters", allocations(&adapted, text, [threads, steps], Rule::adamw())),
            // Of one thread: products of these are so small that another's workspace may be used for the first time at any step.
            ("resnet", allocations(&residual, Shape::values(ROWS, &[3, 8, 8]), [1, 5], lion)),
            ("vit", allocations(&patches, Shape::values(ROWS, &[3, 8, 8]), [1, 5], Rule::adamw())),
            ("lstm", allocations(&layers, Shape::values(ROWS, &[3, 12]), [1, 5], Rule::adamw())),
            ("gru", allocations(&units, Shape::values(ROWS, &[3, 12]), [1, 5], Rule::adamw())),
        ];
        for (name, seen) in runs {
            assert_eq!(
                seen[if threads == 1 { 1 } else { 3 }..].iter().sum::<u64>(),
                0,
                "{name} on {threads} threads: {seen:?}"
            );
        }
    }
}
