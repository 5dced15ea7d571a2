//! The first losses of small models against those of PyTorch, from `tests/fixtures/golden.json`.
//!
//! Each case is built here as in `tests/fixtures/make_golden.py`, from the same hash.

use crate::cpu;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{
    CnnOptions, GptOptions, LlamaOptions, MlpOptions, PoolPlace, cnn, cnn1d, cnn3d, gpt, gpt2, llama, mlp,
    peer,
};
use dtrain_engine::stage::Shape;
use dtrain_engine::stages::{Chain, Gelu, LayerNorm, Linear, Residual};
use dtrain_engine::{
    BatchView, Decay, DecayGroup, EvaluationCounts, Inputs, Loss, LrSchedule, Model, ModelReplica, Optimizer,
    Replica, Rule, Section, Targets, micro_batch,
};
use dtrain_types::{MicroBatch, Seed, Step, Wire};
use serde_json::Value;

const STEPS: usize = 4;

enum Data {
    Classes { values: Vec<f32>, classes: Vec<u32> },
    Values { values: Vec<f32>, targets: Vec<f32> },
    Tokens { tokens: Vec<u32>, classes: Vec<u32> },
}

struct Case {
    name: &'static str,
    stages: Chain<Cpu>,
    input: Shape,
    loss: Loss,
    optimizer: Optimizer,
    data: Data,
    /// Samples of a step, and of its micro-batches.
    rows: usize,
    micro: usize,
}

impl Case {
    fn batch(&self, from: usize, rows: usize) -> BatchView<'_> {
        let part = |len: usize| {
            let per_row = len / (STEPS * self.rows);
            from * per_row..(from + rows) * per_row
        };
        let (inputs, targets) = match &self.data {
            Data::Classes { values, classes } => {
                (Inputs::Values(&values[part(values.len())]), Targets::Classes(&classes[part(classes.len())]))
            }
            Data::Values { values, targets } => {
                (Inputs::Values(&values[part(values.len())]), Targets::Values(&targets[part(targets.len())]))
            }
            Data::Tokens { tokens, classes } => {
                (Inputs::Tokens(&tokens[part(tokens.len())]), Targets::Classes(&classes[part(classes.len())]))
            }
        };
        BatchView { rows, inputs, targets }
    }

    fn check(mut self) {
        let text = include_str!("../../../../tests/fixtures/golden.json");
        let golden: Value = serde_json::from_str(text).expect("the fixture is JSON");
        let want = &golden[self.name];
        let stages = std::mem::take(&mut self.stages);
        let model =
            Model::new(&cpu(), stages, self.input.clone(), self.loss.clone()).expect("the model fits");
        let mut replica =
            ModelReplica::new(cpu(), model, self.optimizer, Seed(0)).expect("the options make sense");
        let mut state = replica.state().clone();
        peer::initialise(&replica.about().layout, &mut state);
        replica.swap_state(&mut state).expect("memory of the host");
        let (losses, norms) = self.train(&mut replica);
        close(self.name, "losses", &losses, &numbers(&want["losses"]), 1e-5);
        close(self.name, "norms", &norms, &numbers(&want["norms"]), 1e-4);
        let stats: Vec<f64> = replica.state().section(Section::Stats).iter().map(|x| f64::from(*x)).collect();
        close(self.name, "running statistics", &stats, &numbers(&want["stats"]), 1e-4);
        let after = self.evaluate(&mut replica);
        close(self.name, "loss after", &[after], &numbers(&Value::from(vec![want["after"].clone()])), 1e-5);
    }

    fn train(&self, replica: &mut ModelReplica<Cpu>) -> (Vec<f64>, Vec<f64>) {
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let mut sum = vec![0.0; replica.about().gradient_len()];
            let (mut loss, mut weight) = (0.0, 0.0);
            let number = Step(step as u64 + 1);
            for (m, lo) in (0..self.rows).step_by(self.micro).enumerate() {
                let batch = self.batch(step * self.rows + lo, self.micro.min(self.rows - lo));
                let mut gradient = vec![f32::NAN; sum.len()];
                let figures = micro_batch(replica, number, MicroBatch(m as u32), &batch, &mut gradient)
                    .expect("the batch fits");
                replica.add(Wire::F32, &gradient, &mut sum);
                loss += figures.sums.loss;
                weight += figures.sums.weight;
            }
            let info =
                replica.update(number, &sum, weight, self.rows as u64).expect("the gradient is finite");
            losses.push(loss / weight);
            norms.push(info.gradient_norm);
        }
        (losses, norms)
    }

    fn evaluate(&self, replica: &mut ModelReplica<Cpu>) -> f64 {
        let (mut loss, mut weight) = (0.0, 0.0);
        let mut counts = EvaluationCounts::new(replica.about().outputs);
        for lo in (0..self.rows).step_by(self.micro) {
            let batch = self.batch(lo, self.micro.min(self.rows - lo));
            let sums = replica.evaluate(&batch, &mut counts).expect("the batch fits");
            loss += sums.loss;
            weight += sums.weight;
        }
        loss / weight
    }
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().expect("the fixture has this list");
    list.iter().map(|x| x.as_f64().expect("the list holds numbers")).collect()
}

fn close(case: &str, what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{case}: {what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs() / want.abs().max(1e-2);
        assert!(off <= tolerance, "{case}: {what} {i}: {got}, PyTorch has {want}, off by {off:.1e}");
    }
}

fn adamw() -> Optimizer {
    Optimizer::new(
        Rule::AdamW { betas: [0.9, 0.99], epsilon: 1e-8, weight_decay: 0.1 },
        LrSchedule::constant(0.01),
    )
}

/// A classifier on hashed data with AdamW, in steps of `rows` samples and micro-batches of 4.
fn classifier(name: &'static str, stages: Chain<Cpu>, dims: &[usize], rows: usize) -> Case {
    let values = peer::uniform(1000, STEPS * rows * dims.iter().product::<usize>(), 1.0);
    let data = Data::Classes { values, classes: peer::integers(1001, STEPS * rows, 5) };
    let (loss, optimizer) = (Loss::cross_entropy(), adamw());
    Case { name, stages, input: Shape::values(4, dims), loss, optimizer, data, rows, micro: 4 }
}

fn small_mlp(batch_norm: bool) -> Chain<Cpu> {
    let options = MlpOptions { hidden: vec![16, 16], dropout: 0.0, batch_norm };
    mlp(&options, 5).expect("the options make sense")
}

#[test]
fn an_mlp_learns_as_in_pytorch() {
    classifier("mlp", small_mlp(false), &[12], 10).check();
}

#[test]
fn class_weights_smoothing_clipping_and_nesterov_are_pytorchs() {
    let mut case = classifier("mlp weighted, smoothed, clipped, nesterov", small_mlp(false), &[12], 10);
    case.loss = Loss::CrossEntropy {
        label_smoothing: 0.1,
        class_weights: vec![0.5, 2.0, 1.0, 0.25, 3.0],
        ignore_index: None,
    };
    case.optimizer = Optimizer {
        decays: DecayGroup::All,
        clip_norm: Some(0.3),
        ..Optimizer::new(
            Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
            LrSchedule::constant(0.3),
        )
    };
    case.check();
}

#[test]
fn batch_norm_of_features_is_that_of_pytorch_run_by_micro_batches() {
    classifier("mlp with batch norm", small_mlp(true), &[12], 11).check();
}

#[test]
fn residuals_and_squared_error_are_pytorchs() {
    let chain = Chain::new;
    let stages = chain()
        .then(Linear::new(16))
        .then(Residual::new(chain().then(LayerNorm::new()).then(Linear::new(16).relu())))
        .then(Residual::new(chain().then(Linear::new(8)).then(Gelu::Exact).then(Linear::new(16))))
        .then(Linear::new(3));
    let mut case = classifier("residual, squared error", stages, &[12], 10);
    let values = peer::uniform(1000, STEPS * 10 * 12, 1.0);
    case.data = Data::Values { values, targets: peer::uniform(1001, STEPS * 10 * 3, 1.0) };
    case.loss = Loss::MeanSquaredError;
    case.optimizer.rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    case.optimizer.schedule = LrSchedule::constant(0.1);
    case.check();
}

fn small_cnn(padding: usize, pool: PoolPlace, batch_norm: bool) -> Chain<Cpu> {
    let hidden = vec![16];
    let options =
        CnnOptions { channels: vec![4, 6], kernel: 3, padding, pool, hidden, batch_norm, dropout: 0.0 };
    cnn(&options, 5).expect("the options make sense")
}

#[test]
fn a_cnn_learns_as_in_pytorch() {
    classifier("cnn", small_cnn(0, PoolPlace::Last, false), &[1, 8, 8], 10).check();
}

#[test]
fn batch_norm_of_images_is_that_of_pytorch_run_by_micro_batches() {
    classifier("cnn with batch norm", small_cnn(1, PoolPlace::Each, true), &[2, 8, 8], 11).check();
}

#[test]
fn a_cnn_of_sequences_learns_as_in_pytorch() {
    let options =
        CnnOptions { channels: vec![4, 6], hidden: vec![16], dropout: 0.0, ..CnnOptions::default() };
    let stages = cnn1d(&options, 5).expect("the options make sense");
    classifier("cnn of sequences, with batch norm", stages, &[2, 17], 11).check();
}

#[test]
fn a_cnn_of_volumes_learns_as_in_pytorch() {
    let options =
        CnnOptions { channels: vec![4, 6], hidden: vec![16], dropout: 0.0, ..CnnOptions::default() };
    let options = CnnOptions { batch_norm: false, ..options };
    let stages = cnn3d(&options, 5).expect("the options make sense");
    classifier("cnn of volumes", stages, &[2, 4, 5, 8], 10).check();
}

/// A model of 32 tokens on hashed ones with AdamW, in steps of 5 rows of 12 and micro-batches of 2.
fn of_tokens(name: &'static str, stages: Chain<Cpu>) -> Case {
    let (rows, time) = (5, 12);
    let [tokens, classes] = [1000, 1001].map(|seed| peer::integers(seed, STEPS * rows * time, 32));
    let (input, data) = (Shape::Tokens { rows: 2, time }, Data::Tokens { tokens, classes });
    Case { name, stages, input, loss: Loss::cross_entropy(), optimizer: adamw(), data, rows, micro: 2 }
}

const GPT: GptOptions =
    GptOptions { vocabulary: 32, context: 12, layers: 2, width: 24, heads: 4, dropout: 0.0 };

#[test]
fn gpt2_learns_as_in_pytorch() {
    of_tokens("gpt2", gpt2(&GPT).expect("the options make sense")).check();
}

/// A model of Llama's family as in transformers, of whose options these are the same in both cases.
fn of_transformers(name: &'static str, options: LlamaOptions) {
    let options = LlamaOptions { vocabulary: 32, layers: 2, width: 24, feed_forward: 40, ..options };
    of_tokens(name, llama(&options).expect("the options make sense")).check();
}

#[test]
fn llama_learns_as_in_transformers() {
    of_transformers(
        "llama",
        LlamaOptions { heads: 6, kv_heads: 2, rope_theta: 500.0, ..LlamaOptions::default() },
    );
}

#[test]
fn qwen2_learns_as_in_transformers() {
    let options = LlamaOptions { heads: 4, kv_heads: 4, norm_epsilon: 1e-6, ..LlamaOptions::default() };
    of_transformers("qwen2", LlamaOptions { tied: true, qkv_bias: true, ..options });
}

#[test]
fn qwen3_learns_as_in_transformers() {
    let heads = LlamaOptions { heads: 4, kv_heads: 2, head_width: Some(10), ..LlamaOptions::default() };
    of_transformers("qwen3", LlamaOptions { tied: true, qk_norm: true, norm_epsilon: 1e-6, ..heads });
}

#[test]
fn a_gpt_learns_as_in_pytorch() {
    let decay = Decay::Cosine { last: 0.1 };
    let schedule = LrSchedule { base: 0.01, warmup: 2, total: 6, decay };
    let stages = gpt(&GPT).expect("the options make sense");
    Case {
        loss: Loss::CrossEntropy { label_smoothing: 0.0, class_weights: Vec::new(), ignore_index: Some(7) },
        optimizer: Optimizer { clip_norm: Some(1.0), schedule, ..adamw() },
        ..of_tokens("gpt, ignoring, clipped, warm cosine", stages)
    }
    .check();
}
