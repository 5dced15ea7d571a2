//! Every stage's backward pass against finite differences of its forward pass: the check that programs have too, and a check of it.

use dtrain_engine::check_gradients;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Cell;
use dtrain_engine::gradient_check::{Check, GradientError, Wanted};
use dtrain_engine::models::{LlamaOptions, llama};
use dtrain_engine::stage::{ArenaPlan, Backward, Forward, Pass, Shape, Stage};
use dtrain_engine::stages::{
    Adapted, Attention, AvgPool, BatchNorm, Chain, ClassToken, Conv1d, Conv2d, Conv3d, Dropout, Embedding,
    Expr, Flatten, Gelu, HeadNorm, LayerNorm, Linear, LowRank, MaxPool, MaxPool1d, MaxPool3d, Projected,
    Recurrent, Relu, Residual, Rotary, Sigmoid, SwiGlu, Take, Traced, Turn,
};

fn probe(chain: Chain<Cpu>, input: &Shape, rows: usize) -> Check {
    Check::new(chain, input, rows).expect("the stage fits its input")
}

/// Compares all gradients of what was made ready.
trait Checked {
    fn check(&self, name: &str, tolerance: f64);
}

impl Checked for Check {
    fn check(&self, name: &str, tolerance: f64) {
        self.run(tolerance).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Checks a stage alone, for a full and for a short micro-batch.
fn check(name: &str, stage: impl Fn() -> Chain<Cpu>, dims: &[usize]) {
    for rows in [4, 3] {
        probe(stage(), &Shape::values(4, dims), rows).check(name, 1e-3);
    }
}

fn one(stage: impl Stage<Cpu> + 'static) -> Chain<Cpu> {
    Chain::new().then(stage)
}

#[test]
fn linear() {
    check("linear", || one(Linear::new(5)), &[7]);
    check("linear without bias", || one(Linear::new(5).without_bias()), &[7]);
    check("linear over places", || one(Linear::new(5)), &[3, 7]);
    check("linear with gelu", || one(Linear::new(5).gelu(Gelu::Exact)), &[7]);
    check("linear with gelu by tanh", || one(Linear::new(5).without_bias().gelu(Gelu::Tanh)), &[3, 7]);
}

#[test]
fn adapters() {
    let low = LowRank { rank: 2, scale: 1.7 };
    check("an adapter", || one(Adapted::new(Linear::new(5), low, &[""])), &[7]);
    let parts = [("q", 5), ("k", 3), ("v", 4)];
    let side_by_side =
        |names: &[&'static str]| one(Adapted::new(Linear::side_by_side(&parts).without_bias(), low, names));
    check("one of three", || side_by_side(&["k"]), &[3, 7]);
    check("two of three", || side_by_side(&["q", "v"]), &[3, 7]);
    check("three of three", || side_by_side(&["q", "k", "v"]), &[7]);
    let branch = || Chain::new().then(LayerNorm::rms()).then(Adapted::new(Linear::new(6), low, &[""]));
    check("in a residual", || one(Residual::new(branch())), &[3, 6]);
}

#[test]
fn a_fused_gelu_has_the_bits_of_the_stage() {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for form in [Gelu::Exact, Gelu::Tanh] {
        let [apart, fused] = [
            Chain::new().then(Linear::new(9)).then(form).then(Linear::new(4)),
            Chain::new().then(Linear::new(9).gelu(form)).then(Linear::new(4)),
        ]
        .map(|chain| {
            let probe = probe(chain, &Shape::values(4, &[3, 7]), 3);
            let [y, ..] = probe.forward(&probe.params, &probe.values).expect("it is finite");
            let (grads, dx) = probe.gradients(&probe.values, Wanted::Both).expect("they are finite");
            ([y, grads, dx].map(|x| bits(&x)), *probe.plan())
        });
        assert_eq!(fused, apart, "{form:?}: results, and memory");
    }
}

#[test]
fn convolution() {
    check("conv", || one(Conv2d::new(3, 3)), &[2, 6, 5]);
    check("conv with padding and stride", || one(Conv2d::new(3, 3).padding(1).stride(2)), &[2, 7, 6]);
    check("conv without bias", || one(Conv2d::new(3, 2).without_bias()), &[2, 4, 4]);
    check("conv of a sequence", || one(Conv1d::new(3, 3).padding(1).stride(2)), &[2, 11]);
    check("conv of a volume", || one(Conv3d::new(2, 3).padding(1)), &[2, 3, 4, 5]);
    check("conv of a volume with stride", || one(Conv3d::new(3, 3).padding(1).stride(2)), &[2, 4, 5, 6]);
}

#[test]
fn a_fused_relu_away_from_its_kink() {
    // Biases of +-20 put every value far from 0, about half of them on each side.
    for (name, stage, dims) in [
        ("linear relu", one(Linear::new(6).relu()), &[7][..]),
        ("conv relu", one(Conv2d::new(6, 3).padding(1).relu()), &[2, 5, 5][..]),
    ] {
        let mut probe = probe(stage, &Shape::values(4, dims), 3);
        let biases = probe.params.len() - 6;
        probe.params[biases..]
            .iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = if i % 2 == 0 { 20.0 } else { -20.0 });
        probe.check(name, 1e-3);
    }
}

/// Hands on what it gets, in memory of its own.
struct HandsOn;

impl Stage<Cpu> for HandsOn {
    fn kind(&self) -> &'static str {
        "hands_on"
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &Cpu, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        Ok(input.clone())
    }

    fn forward(&self, _: &Pass<'_, Cpu>, io: Forward<'_, Cpu>) {
        io.y.copy_from_slice(io.x.values());
    }

    fn backward(&self, _: &Pass<'_, Cpu>, io: Backward<'_, Cpu>) {
        if let Some(dx) = io.dx {
            dx.copy_from_slice(io.dy);
        }
    }
}

#[test]
fn a_relu_that_the_stage_behind_it_undoes_has_the_bits_of_one_that_does_it_itself() {
    /// Puts nothing, or something, behind a ReLU.
    type Between<'a> = &'a dyn Fn(Chain<Cpu>) -> Chain<Cpu>;
    type Stages = (&'static str, fn(Between<'_>) -> Chain<Cpu>, &'static [usize]);
    let cases: [Stages; 9] = [
        ("of a convolution", |b| b(one(Conv2d::new(4, 3).relu())).then(MaxPool::new(2)), &[2, 9, 8]),
        (
            "apart, windows that overlap",
            |b| b(one(Conv2d::new(4, 3)).then(Relu)).then(MaxPool::new(3).stride(2).padding(1)),
            &[2, 9, 8],
        ),
        ("in front of all", |b| b(one(Relu)).then(MaxPool1d::new(2)), &[3, 10]),
        ("of a volume", |b| b(one(Conv3d::new(3, 2).relu())).then(MaxPool3d::new(2)), &[2, 5, 5, 6]),
        (
            "inside of a model",
            |b| {
                let front = one(Conv1d::new(4, 3)).then(BatchNorm::new()).then(Relu);
                let all = b(front).then(MaxPool1d::new(2)).then(Flatten).then(Linear::new(3));
                one(Conv1d::new(3, 1)).then(all)
            },
            &[2, 12],
        ),
        (
            "between convolutions",
            |b| b(one(Conv2d::new(4, 3).relu())).then(Conv2d::new(3, 3).padding(1)),
            &[2, 9, 8],
        ),
        (
            "apart, between convolutions of volumes",
            |b| {
                let front = one(Conv3d::new(3, 2)).then(BatchNorm::new()).then(Relu);
                b(front).then(Conv3d::new(2, 3).stride(2).padding(1))
            },
            &[2, 5, 5, 6],
        ),
        ("in front of a convolution and of all", |b| b(one(Relu)).then(Conv1d::new(3, 2)), &[3, 10]),
        (
            "of three in a row",
            |b| {
                let front = b(one(Conv1d::new(4, 3).relu())).then(Conv1d::new(3, 2).relu());
                front.then(Conv1d::new(2, 2).relu()).then(Flatten).then(Linear::new(3))
            },
            &[2, 12],
        ),
    ];
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (name, stages, dims) in cases {
        let nothing: Between<'_> = &|chain| chain;
        let something: Between<'_> = &|chain| chain.named("between", HandsOn);
        let [undone, apart] = [nothing, something].map(|between| {
            let probe = probe(stages(between), &Shape::values(4, dims), 3);
            let [y, ..] = probe.forward(&probe.params, &probe.values).expect("it is finite");
            let (grads, dx) = probe.gradients(&probe.values, Wanted::Both).expect("they are finite");
            [y, grads, dx].map(|x| bits(&x))
        });
        assert_eq!(undone, apart, "{name}");
    }
}

#[test]
fn relu_and_its_kin() {
    let mut probe = probe(one(Relu), &Shape::values(4, &[9]), 3);
    probe.values.iter_mut().for_each(|x| *x += x.signum());
    probe.check("relu", 1e-3);
    check("gelu", || one(Gelu::Exact), &[9]);
    check("gelu by tanh", || one(Gelu::Tanh), &[9]);
    check("flatten", || one(Flatten), &[3, 2, 2]);
    check("dropout", || one(Dropout::new(0.4)), &[30]);
}

#[test]
fn pooling_away_from_ties() {
    for (name, stage) in [("max pool", one(MaxPool::new(2))), ("overlapping", one(MaxPool::new(3).stride(1)))]
    {
        let mut probe = probe(stage, &Shape::values(4, &[2, 5, 6]), 3);
        // All values of an image are at least 0.2 apart, in a shuffled order.
        probe.values.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 77) % 180) as f32 * 0.2 - 15.0);
        probe.check(name, 1e-3);
    }
    for (name, stage, dims) in [
        ("max pool of a sequence", one(MaxPool1d::new(3).stride(2)), &[3, 20][..]),
        ("max pool of a volume", one(MaxPool3d::new(2)), &[2, 4, 3, 5]),
        ("overlapping in a volume", one(MaxPool3d::new(2).stride(1)), &[1, 4, 3, 5]),
    ] {
        let mut probe = probe(stage, &Shape::values(4, dims), 3);
        probe.values.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 77) % 360) as f32 * 0.2 - 30.0);
        probe.check(name, 1e-3);
    }
    let mut probe = probe(one(MaxPool::new(3).stride(2).padding(1)), &Shape::values(4, &[2, 5, 6]), 3);
    probe.values.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 77) % 180) as f32 * 0.2 - 15.0);
    probe.check("max pool with padding", 1e-3);
    check("average of all", || one(AvgPool::whole()), &[2, 5, 6]);
    check("average pool", || one(AvgPool::new(2)), &[2, 5, 6]);
    check("average pool with stride", || one(AvgPool::new(3).stride(2)), &[2, 7, 6]);
}

#[test]
fn norms() {
    check("layer norm", || one(LayerNorm::new()), &[9]);
    check("layer norm over places", || one(LayerNorm::new()), &[3, 9]);
    check("rms norm", || one(LayerNorm::rms()), &[9]);
    check("rms norm over places", || one(LayerNorm::rms().epsilon(1e-2)), &[3, 9]);
    check("batch norm of images", || one(BatchNorm::new()), &[3, 4, 5]);
    for rows in [12, 7] {
        probe(one(BatchNorm::new()), &Shape::values(12, &[6]), rows).check("batch norm of features", 2e-3);
    }
}

#[test]
fn embedding() {
    for rows in [4, 3] {
        let input = Shape::Tokens { rows: 4, time: 5 };
        probe(one(Embedding::new(6, 7)), &input, rows).check("embedding", 1e-3);
        probe(one(Embedding::new(6, 7).without_places()), &input, rows).check("embedding alone", 1e-3);
    }
}

#[test]
fn rotary_positions() {
    check("rotary", || one(Rotary::new(2, 2, 10_000.0)), &[5, 24]);
    check("rotary with shared keys", || one(Rotary::new(6, 2, 30.0)), &[5, 40]);
    check("rotary with one head of keys", || one(Rotary::new(3, 1, 1.0)), &[7, 10]);
}

#[test]
fn gates() {
    check("swiglu", || one(SwiGlu::new()), &[10]);
    check("swiglu over places", || one(SwiGlu::new()), &[3, 34]);
    let sides = || Linear::side_by_side(&[("gate_proj", 6), ("up_proj", 6)]);
    check("swiglu of layers side by side", || one(sides()).then(SwiGlu::new()), &[7]);
    check("the same without bias", || one(sides().without_bias()).then(SwiGlu::new()), &[3, 7]);
}

#[test]
fn attention() {
    check("attention", || one(Attention::new(2)), &[6, 24]);
    check("one head", || one(Attention::new(1)), &[5, 9]);
    check("attention to all", || one(Attention::new(2).unmasked()), &[6, 24]);
    check("to all, in more than one block", || one(Attention::new(1).unmasked()), &[37, 9]);
}

#[test]
fn turns_and_tokens() {
    check("turn", || one(Turn::new()), &[3, 4, 5]);
    check("class token", || one(ClassToken::new()), &[3, 5]);
    check("first", || one(Take::first()), &[3, 5]);
    check("last", || one(Take::last()), &[3, 5]);
}

#[test]
fn recurrent_layers() {
    for cell in [Cell::Lstm, Cell::Gru] {
        check(cell.name(), || one(Recurrent::new(cell, 4)), &[6, 3]);
        check("of one place", || one(Recurrent::new(cell, 3)), &[1, 2]);
        check(
            "two layers and their last place",
            || one(Recurrent::new(cell, 4)).then(Recurrent::new(cell, 3).layer(1)).then(Take::last()),
            &[5, 3],
        );
    }
}

#[test]
fn blocks_that_are_written_forward_only() {
    type E = Expr<Cpu>;
    check("sigmoid", || one(Sigmoid), &[3, 4]);
    check("a stage", || one(Traced::new(|x: E| x.through("fc", Linear::new(5)))), &[7]);
    check("in place alone", || one(Traced::new(|x: E| x.gelu().sigmoid())), &[7]);
    check("a value twice", || one(Traced::new(|x: E| x.clone() * x.clone() + x)), &[3, 2]);
    check(
        "a square of a value",
        || {
            one(Traced::new(|x: E| {
                let y = x.through("", Linear::new(4));
                y.clone() * y
            }))
        },
        &[3],
    );
    check(
        "a residual block with a squeeze",
        || {
            Chain::new().then(Conv2d::new(4, 1)).then(Traced::new(|x: E| {
                let y =
                    x.through("conv1", Conv2d::new(4, 3).padding(1)).through("bn1", BatchNorm::new()).gelu();
                let y = y.through("conv2", Conv2d::new(4, 3).padding(1)).through("bn2", BatchNorm::new());
                let squeezed = y.through("", AvgPool::whole()).through("", Flatten);
                let gate = squeezed.through("squeeze", Linear::new(2).gelu(Gelu::Exact));
                let gate = gate.through("excite", Linear::new(4)).sigmoid();
                y * gate + x
            }))
        },
        &[2, 4, 5],
    );
    check(
        "stages that drop, attend and need their output",
        || {
            one(Traced::new(|x: E| {
                let y = x
                    .through("ln", LayerNorm::new())
                    .through("qkv", Linear::new(24))
                    .through("", Attention::new(2));
                x + y.through("proj", Linear::new(8)).through("", Dropout::new(0.3))
            }))
        },
        &[5, 8],
    );
    let refused = |stage: Traced<Cpu>, dims: &[usize]| {
        let found = Check::new(one(stage), &Shape::values(4, dims), 4);
        found.err().expect("it makes no sense").to_string()
    };
    let unused = Traced::new(|x: E| {
        let _ = x.relu();
        x.gelu()
    });
    assert_eq!(refused(unused, &[3]), "0 (traced): a value of it is used by nobody");
    let nothing = Traced::new(|x: E| x);
    assert_eq!(refused(nothing, &[3]), "0 (traced): its output is not the last value that it makes");
    let unlike = Traced::new(|x: E| x.through("", Linear::new(2)) + x);
    assert_eq!(refused(unlike, &[3]), "0 (traced): a sum of [2] and [3]");
    let inner = Traced::new(|x: E| x.through("pool", AvgPool::new(9)));
    assert_eq!(
        refused(inner, &[1, 3, 3]),
        "0 (traced): pool (avg_pool): a window of [9, 9] is larger than its input 3 x 3"
    );
}

#[test]
fn two_branches_that_spoil_work_in_place_or_need_their_output() {
    let two = |branch: Chain<Cpu>, shortcut: Chain<Cpu>| one(Projected::new(branch, "shortcut", shortcut));
    check("linear layers", || two(one(Linear::new(5)), one(Linear::new(5))), &[7]);
    check("gelu last", || two(one(Linear::new(5)).then(Gelu::Exact), one(Linear::new(5))), &[7]);
    check("gelu last in the other", || two(one(Linear::new(5)), one(Linear::new(5)).then(Gelu::Exact)), &[7]);
    check("in place alone", || two(one(Gelu::Exact), one(Linear::new(7))), &[7]);
    check("in place both", || two(one(Gelu::Exact), one(Gelu::Tanh)), &[7]);
    check(
        "outputs that are needed",
        || two(one(Linear::new(24)).then(Attention::new(2)), one(Recurrent::new(Cell::Lstm, 8))),
        &[5, 8],
    );
    check(
        "norms with statistics",
        || {
            let conv = |stride| one(Conv2d::new(3, 3).padding(1).stride(stride)).then(BatchNorm::new());
            two(conv(2), conv(2))
        },
        &[2, 6, 5],
    );
    check(
        "behind other stages",
        || {
            one(Linear::new(6))
                .then(Projected::new(one(Linear::new(4)), "s", one(Linear::new(4))))
                .then(Gelu::Exact)
        },
        &[3],
    );
}

#[test]
fn residual_around_stages_that_spoil_work_in_place_or_need_their_output() {
    let residual = |inner: Chain<Cpu>| one(Residual::new(inner));
    check("around a linear layer", || residual(one(Linear::new(7))), &[7]);
    check("around one with gelu", || residual(one(Linear::new(7).gelu(Gelu::Exact))), &[7]);
    check("around gelu alone", || residual(one(Gelu::Exact)), &[7]);
    check("around attention", || residual(one(Linear::new(24)).then(Attention::new(2))), &[5, 8]);
    check("gelu last", || residual(one(Linear::new(7)).then(Gelu::Exact)), &[7]);
    check("gelu first", || residual(one(Gelu::Exact).then(Linear::new(7))), &[7]);
    check(
        "nested",
        || residual(one(Residual::new(one(Gelu::Exact).then(Linear::new(7)))).then(Gelu::Exact)),
        &[7],
    );
    let mut probe = probe(residual(one(Linear::new(7).relu())), &Shape::values(4, &[7]), 4);
    probe.params[49..].iter_mut().enumerate().for_each(|(i, b)| *b = if i % 2 == 0 { 20.0 } else { -20.0 });
    probe.check("a fused relu last", 1e-3);
}

#[test]
fn chains_with_views_and_in_place_stages_everywhere() {
    let chain = || Chain::<Cpu>::new();
    check("views at both ends", || chain().then(Flatten).then(Linear::new(6)).then(Flatten), &[2, 3]);
    check("only in place", || chain().then(Gelu::Exact).then(Flatten).then(Gelu::Exact), &[2, 3]);
    check("only views", || chain().then(Flatten).then(Flatten), &[2, 3]);
    check(
        "in place first",
        || chain().then(Gelu::Exact).then(Flatten).then(Linear::new(4)).then(Gelu::Exact),
        &[2, 3],
    );
    check(
        "a long one",
        || {
            chain()
                .then(Linear::new(9))
                .then(Gelu::Exact)
                .then(Dropout::new(0.3))
                .then(LayerNorm::new())
                .then(Residual::new(chain().then(Linear::new(4)).then(Gelu::Exact).then(Linear::new(9))))
                .then(Linear::new(2))
        },
        &[5],
    );
    check(
        "a small convolutional net",
        || {
            chain()
                .then(Conv2d::new(3, 3).padding(1))
                .then(BatchNorm::new())
                .then(Gelu::Exact)
                .then(AvgPool::new(2))
                .then(Flatten)
                .then(Linear::new(4))
        },
        &[2, 4, 4],
    );
}

#[test]
fn a_whole_transformer_block() {
    let options = dtrain_engine::models::GptOptions {
        vocabulary: 6,
        context: 5,
        layers: 2,
        width: 8,
        heads: 2,
        dropout: 0.1,
    };
    for rows in [3, 2] {
        let chain = dtrain_engine::models::gpt(&options).expect("the options make sense");
        probe(chain, &Shape::Tokens { rows: 3, time: 5 }, rows).check("gpt", 3e-3);
        let chain = dtrain_engine::models::gpt2(&options).expect("the options make sense");
        probe(chain, &Shape::Tokens { rows: 3, time: 5 }, rows).check("gpt2", 3e-3);
    }
}

#[test]
fn a_whole_llama() {
    let (vocabulary, norm_epsilon) = (6, 0.1);
    let options = LlamaOptions {
        vocabulary,
        layers: 2,
        width: 8,
        feed_forward: 12,
        norm_epsilon,
        ..LlamaOptions::default()
    };
    let of_qwen3 = LlamaOptions { kv_heads: 2, head_width: Some(4), qk_norm: true, ..options };
    let of_others = [(4, false, true), (2, true, false), (1, true, true)]
        .map(|(kv_heads, tied, qkv_bias)| LlamaOptions { kv_heads, tied, qkv_bias, ..options });
    for options in of_others.into_iter().chain([of_qwen3]) {
        for rows in [3, 2] {
            let chain = llama(&options).expect("the options make sense");
            let mut probe = probe(chain, &Shape::Tokens { rows: 3, time: 5 }, rows);
            // Weights up to 1 make what is multiplied four times in a block bend too much for differences.
            probe.params.iter_mut().for_each(|weight| *weight *= 0.5);
            probe.check(&format!("{options:?}"), 3e-3);
        }
    }
}

#[test]
fn norms_of_heads() {
    for rows in [3, 2] {
        let mut probe = probe(one(HeadNorm::new(4, 2, 0.01)), &Shape::values(3, &[5, 8 * 6]), rows);
        // Gains of one would hide whose they are.
        probe.params.iter_mut().enumerate().for_each(|(at, gain)| *gain = 0.5 + at as f32 / 8.0);
        probe.check("norms of heads", 3e-3);
    }
}

#[test]
fn values_pass_norms_of_heads_and_each_head_is_a_row_of_its_own() {
    let (heads, kv_heads, head) = (3, 1, 2);
    let packed = (heads + 2 * kv_heads) * head;
    let probe = probe(one(HeadNorm::new(heads, kv_heads, 0.0)), &Shape::values(2, &[2, packed]), 2);
    let params = [1.0, 2.0, 3.0, 4.0];
    let [y, ..] = probe.forward(&params, &probe.values).expect("it is finite");
    for (x, y) in probe.values.chunks_exact(packed).zip(y.chunks_exact(packed)) {
        for at in 0..heads + kv_heads {
            let x = &x[at * head..][..head];
            let root = (x.iter().map(|x| x * x).sum::<f32>() / head as f32).sqrt();
            let gain = if at < heads { &params[..head] } else { &params[head..] };
            for ((x, y), gain) in x.iter().zip(&y[at * head..]).zip(gain) {
                assert!((x / root * gain - y).abs() < 1e-5, "{x} {y}");
            }
        }
        assert_eq!(x[(heads + kv_heads) * head..], y[(heads + kv_heads) * head..]);
    }
}

#[test]
fn a_wrong_gradient_is_found() {
    // The checker itself: a stage whose gradient is 1 % off.
    struct Off;
    impl Stage<Cpu> for Off {
        fn kind(&self) -> &'static str {
            "off"
        }
        fn plan(&mut self, _: &Cpu, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
            Ok(input.clone())
        }
        fn forward(&self, _: &Pass<'_, Cpu>, io: Forward<'_, Cpu>) {
            io.y.iter_mut().zip(io.x.values()).for_each(|(y, x)| *y = x * x);
        }
        fn backward(&self, _: &Pass<'_, Cpu>, io: Backward<'_, Cpu>) {
            let dx = io.dx.into_iter().flatten();
            dx.zip(io.dy).zip(io.x.values()).for_each(|((dx, dy), x)| *dx = 2.02 * x * *dy);
        }
    }
    let found = check_gradients(|| Off, &Shape::values(4, &[50]), 1e-3);
    assert!(matches!(found, Err(GradientError::Wrong { of: "input", .. })), "{found:?}");
}
