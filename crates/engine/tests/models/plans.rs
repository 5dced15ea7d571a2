//! What a plan says: names and shapes as PyTorch has them, and a sentence for each model that cannot be.

use crate::cpu;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{CnnOptions, GptOptions, LlamaOptions, MlpOptions, cnn, gpt, gpt2, llama, mlp};
use dtrain_engine::stage::Shape;
use dtrain_engine::stages::{
    Attention, BatchNorm, Chain, Conv1d, Conv2d, Conv3d, Dropout, Embedding, Flatten, Linear, MaxPool,
    MaxPool3d, Residual,
};
use dtrain_engine::{EngineError, Loss, LrSchedule, Model, Optimizer, Rule, Section};

fn plan(stages: Chain<Cpu>, input: Shape) -> Result<Model<Cpu>, EngineError> {
    Model::new(&cpu(), stages, input, Loss::cross_entropy())
}

fn refused(stages: Chain<Cpu>, input: Shape) -> String {
    plan(stages, input).err().expect("the model cannot be").to_string()
}

fn names(model: &Model<Cpu>, section: Section) -> Vec<String> {
    let of = |t: &&dtrain_engine::Tensor| t.section == section;
    model.layout().tensors.iter().filter(of).map(|t| format!("{} {:?}", t.name, t.shape)).collect()
}

#[test]
fn tensors_have_the_names_and_shapes_that_pytorch_gives_them() {
    let options = MlpOptions { hidden: vec![8], dropout: 0.1, batch_norm: true };
    let model = plan(mlp(&options, 3).expect("fine"), Shape::values(4, &[2, 5])).expect("it fits");
    let want = ["0.weight [8, 10]", "1.weight [8]", "1.bias [8]", "4.weight [3, 8]", "4.bias [3]"];
    assert_eq!(names(&model, Section::Parameters), want);
    assert_eq!(names(&model, Section::Stats), ["1.running_mean [8]", "1.running_var [8]"]);

    let options = MlpOptions { hidden: vec![8, 6], dropout: 0.0, batch_norm: false };
    let model = plan(mlp(&options, 3).expect("fine"), Shape::values(4, &[10])).expect("it fits");
    let want =
        ["0.weight [8, 10]", "0.bias [8]", "2.weight [6, 8]", "2.bias [6]", "4.weight [3, 6]", "4.bias [3]"];
    assert_eq!(names(&model, Section::Parameters), want);

    let options = GptOptions { layers: 1, dropout: 0.1, ..GptOptions::default() };
    let model = plan(gpt(&options).expect("fine"), Shape::Tokens { rows: 2, time: 128 }).expect("it fits");
    let got = names(&model, Section::Parameters);
    assert_eq!(
        got[..4],
        [
            "tokens [256, 256]",
            "places [128, 256]",
            "blocks.0.norm1.weight [256]",
            "blocks.0.norm1.bias [256]"
        ]
    );
    assert_eq!(got[4], "blocks.0.qkv.weight [768, 256]");
    assert_eq!(got.last().map(String::as_str), Some("head.weight [256, 256]"));
    assert_eq!(got.len(), 2 + 12 + 3);

    let options =
        LlamaOptions { layers: 1, kv_heads: 2, qkv_bias: true, tied: true, ..LlamaOptions::default() };
    let model = plan(llama(&options).expect("fine"), Shape::Tokens { rows: 2, time: 16 }).expect("it fits");
    let want = [
        "embed_tokens.weight [256, 128]",
        "layers.0.input_layernorm.weight [128]",
        "layers.0.self_attn.q_proj.weight [128, 128]",
        "layers.0.self_attn.k_proj.weight [64, 128]",
        "layers.0.self_attn.v_proj.weight [64, 128]",
        "layers.0.self_attn.q_proj.bias [128]",
        "layers.0.self_attn.k_proj.bias [64]",
        "layers.0.self_attn.v_proj.bias [64]",
        "layers.0.self_attn.o_proj.weight [128, 128]",
        "layers.0.post_attention_layernorm.weight [128]",
        "layers.0.mlp.gate_proj.weight [352, 128]",
        "layers.0.mlp.up_proj.weight [352, 128]",
        "layers.0.mlp.down_proj.weight [128, 352]",
        "norm.weight [128]",
    ];
    assert_eq!(names(&model, Section::Parameters), want);
    let options = LlamaOptions {
        layers: 1,
        kv_heads: 2,
        head_width: Some(48),
        qk_norm: true,
        ..LlamaOptions::default()
    };
    let model = plan(llama(&options).expect("fine"), Shape::Tokens { rows: 2, time: 16 }).expect("it fits");
    let want = [
        "layers.0.self_attn.q_proj.weight [192, 128]",
        "layers.0.self_attn.k_proj.weight [96, 128]",
        "layers.0.self_attn.v_proj.weight [96, 128]",
        "layers.0.self_attn.q_norm.weight [48]",
        "layers.0.self_attn.k_norm.weight [48]",
        "layers.0.self_attn.o_proj.weight [128, 192]",
    ];
    assert_eq!(names(&model, Section::Parameters)[2..8], want);

    let model =
        plan(cnn(&CnnOptions::default(), 10).expect("fine"), Shape::values(2, &[1, 8, 8])).expect("it fits");
    let got = names(&model, Section::Parameters);
    assert_eq!(got[..3], ["conv1.weight [32, 1, 3, 3]", "norm1.weight [32]", "norm1.bias [32]"]);
    assert_eq!(
        got[got.len() - 4..],
        ["fc1.weight [128, 256]", "fc1.bias [128]", "fc2.weight [10, 128]", "fc2.bias [10]"]
    );
}

#[test]
fn offsets_have_no_gaps_and_stages_tile_them() {
    let model = plan(gpt(&GptOptions::default()).expect("fine"), Shape::Tokens { rows: 2, time: 128 })
        .expect("it fits");
    let layout = model.layout();
    let mut next = 0;
    for tensor in &layout.tensors {
        assert_eq!(tensor.offset, next, "{}", tensor.name);
        next += tensor.elements();
    }
    assert_eq!(next, layout.parameters);
    let mut next = 0;
    for stage in &layout.stages {
        assert_eq!(stage.parameters.start, next, "{}", stage.name);
        next = stage.parameters.end;
    }
    assert_eq!(next, layout.parameters);
}

#[test]
fn matrices_decay_and_gains_and_biases_do_not_and_runs_tile_the_parameters() {
    let model = plan(gpt(&GptOptions::default()).expect("fine"), Shape::Tokens { rows: 2, time: 128 })
        .expect("it fits");
    let layout = model.layout();
    for tensor in &layout.tensors {
        assert_eq!(tensor.decays, tensor.shape.len() > 1, "{}", tensor.name);
    }
    let schedule = LrSchedule::constant(0.1);
    let optimizer = Optimizer::new(Rule::adamw(), schedule);
    let runs: Vec<_> = optimizer.runs(layout).iter().collect();
    assert!(runs.windows(2).all(|pair| pair[0].0.end == pair[1].0.start && pair[0].1 != pair[1].1));
    assert_eq!((runs[0].0.start, runs.last().map(|run| run.0.end)), (0, Some(layout.parameters)));
}

#[test]
fn a_model_that_cannot_be_is_refused_in_a_sentence_that_names_the_stage() {
    let chain = Chain::<Cpu>::new;
    let image = || Shape::values(4, &[1, 3, 3]);
    assert_eq!(
        refused(chain().named("conv", Conv2d::new(2, 5)), image()),
        "stage conv (conv2d): a kernel of [5, 5] is larger than its input 3 x 3"
    );
    assert_eq!(
        refused(chain().then(Linear::new(4)).then(MaxPool::new(2)), Shape::values(4, &[3])),
        "stage 1 (max_pool): it takes [channels, height, width], its input is [4]"
    );
    assert_eq!(
        refused(chain().named("pool", MaxPool::new(4)), image()),
        "stage pool (max_pool): a window of [4, 4] is larger than its input 3 x 3"
    );
    assert_eq!(
        refused(chain().named("conv", Conv3d::new(2, 3).padding(1)), image()),
        "stage conv (conv3d): it takes [channels, depth, height, width], its input is [1, 3, 3]"
    );
    assert_eq!(
        refused(chain().named("conv", Conv1d::new(2, 3)), image()),
        "stage conv (conv1d): it takes [channels, length], its input is [1, 3, 3]"
    );
    assert_eq!(
        refused(chain().named("pool", MaxPool3d::new(2)), Shape::values(4, &[1, 1, 4, 4])),
        "stage pool (max_pool3d): a window of [2, 2, 2] is larger than its input 1 x 4 x 4"
    );
    assert_eq!(
        refused(chain().named("fc", Linear::new(4)), Shape::Tokens { rows: 1, time: 5 }),
        "stage fc (linear): it takes values, but its input is token ids: put an embedding first"
    );
    assert_eq!(
        refused(chain().named("e", Embedding::new(4, 4)), image()),
        "stage e (embedding): it takes token ids, but its input is values"
    );
    assert_eq!(
        refused(chain().named("a", Attention::new(4)), Shape::values(1, &[5, 18])),
        "stage a (attention): a width of 6 cannot be shared by 4 heads"
    );
    assert_eq!(
        refused(chain().named("d", Dropout::new(1.0)), image()),
        "stage d (dropout): the rate of dropout must be at least 0 and below 1, got 1"
    );
    assert_eq!(
        refused(
            chain().named("r", Residual::new(chain().named("fc", Linear::new(4)))),
            Shape::values(1, &[5])
        ),
        "stage r (residual): its branch turns [5] into [4], but both are added"
    );
    assert_eq!(
        refused(
            chain().named("r", Residual::new(chain().named("fc", Linear::new(0)))),
            Shape::values(1, &[5])
        ),
        "stage r (residual): fc (linear): it has no output"
    );
    assert_eq!(refused(chain(), image()), "stage model (chain): it has no stage");
    assert!(refused(chain().then(Flatten).then(Linear::new(1)), image()).contains("at least 2 classes"));
}

#[test]
fn a_single_value_per_channel_is_refused_when_planned_and_when_run() {
    let chain = |rows| plan(Chain::new().named("bn", BatchNorm::new()), Shape::values(rows, &[6]));
    let error = chain(1).err().expect("one row has no variance").to_string();
    assert_eq!(
        error,
        "stage bn (batch_norm): a micro-batch of one row gives it a single value per channel, which has no variance"
    );
    let model = chain(2).expect("two rows have a variance");
    assert_eq!(model.plan().min_rows, 2);
    // An image has many values per channel, so one row is enough.
    let model = plan(Chain::new().then(BatchNorm::new()).then(Flatten), Shape::values(1, &[2, 3, 3]))
        .expect("it fits");
    assert_eq!(model.plan().min_rows, 0);
}

#[test]
fn a_tied_head_has_no_parameters_of_its_own_and_must_fit() {
    let options = GptOptions { layers: 1, dropout: 0.0, ..GptOptions::default() };
    let tokens = Shape::Tokens { rows: 2, time: 128 };
    let model = plan(gpt2(&options).expect("fine"), tokens.clone()).expect("it fits");
    let got = names(&model, Section::Parameters);
    assert_eq!((got.len(), got.last().map(String::as_str)), (2 + 12 + 2, Some("norm.bias [256]")));
    // The gradient of what is shared cannot be added up for several micro-batches at once.
    let stages = || gpt2(&options);
    let model = Model::in_groups(&cpu(), stages, tokens.clone(), Loss::cross_entropy(), 8).expect("it fits");
    assert_eq!(model.group(), 1);

    let refused = |chain| refused(chain, tokens.clone());
    let head = || Linear::new(9).without_bias();
    let embedding = || Chain::new().named("in", Embedding::new(9, 6).shared());
    assert_eq!(
        refused(embedding().tied("head", Linear::new(8).without_bias(), "in.tokens")),
        "stage head (linear): its parameters [[8, 6]] cannot be in.tokens [9, 6]"
    );
    assert_eq!(
        refused(embedding().tied("head", Linear::new(9), "in.tokens")),
        "stage head (linear): its parameters [[9, 6], [9]] cannot be in.tokens [9, 6]"
    );
    assert_eq!(
        refused(embedding().tied("head", head(), "tokens")),
        "stage head (linear): there is no tokens before it to be tied to"
    );
    assert_eq!(
        refused(Chain::new().named("in", Embedding::new(9, 6)).tied("head", head(), "in.tokens")),
        "stage head (linear): no stage before it shares in.tokens"
    );
    assert_eq!(
        refused(embedding().named("head", head())),
        "stage in (embedding): one stage behind it must be tied to in.tokens, 0 are"
    );
}

#[test]
fn options_that_make_no_sense_are_refused_under_their_key() {
    let key = |error: EngineError| error.to_string();
    let error = mlp::<Cpu>(&MlpOptions { hidden: vec![8, 0], ..MlpOptions::default() }, 3).err().map(key);
    assert_eq!(error.as_deref(), Some("model.hidden: every width must be at least 1"));
    let error = gpt::<Cpu>(&GptOptions { width: 100, heads: 8, ..GptOptions::default() }).err().map(key);
    assert_eq!(error.as_deref(), Some("model.width: must be a multiple of model.heads"));
    let error = cnn::<Cpu>(&CnnOptions { channels: vec![], ..CnnOptions::default() }, 3).err().map(key);
    assert_eq!(error.as_deref(), Some("model.channels: a cnn needs at least one convolution"));
    let error = cnn::<Cpu>(&CnnOptions { dropout: 1.5, ..CnnOptions::default() }, 3).err().map(key);
    assert_eq!(error.as_deref(), Some("model.dropout: must be at least 0 and below 1"));
    let refused = |options: LlamaOptions| llama::<Cpu>(&options).err().map(key).expect("it makes no sense");
    let fine = LlamaOptions::default();
    assert_eq!(refused(LlamaOptions { kv_heads: 3, ..fine }), "model.kv_heads: must divide model.heads");
    for options in [
        LlamaOptions { heads: 3, kv_heads: 3, ..fine },
        LlamaOptions { width: 20, ..fine },
        LlamaOptions { width: 4 * 514, ..fine },
    ] {
        let wanted = "model.width: must be model.heads times an even number of at most 512";
        assert_eq!(refused(options), wanted);
    }
    for head in [0, 7, 514] {
        let told = refused(LlamaOptions { head_width: Some(head), ..fine });
        assert_eq!(told, "model.head_width: must be an even number of at most 512");
    }
    assert_eq!(refused(LlamaOptions { rope_theta: 0.5, ..fine }), "model.rope_theta: must be at least 1");
    assert_eq!(refused(LlamaOptions { norm_epsilon: 0.0, ..fine }), "model.norm_eps: must be above 0");
}
