//! Parameters that stay as they are lie apart, and cost neither a gradient nor a moment: the others have the bits that they have without it.

use crate::{compute, cpu};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Cell;
use dtrain_engine::models::{
    CnnOptions, EncoderOptions, GptOptions, LlamaOptions, Lora, RecurrentOptions, ResNetOptions, Stem, cnn,
    gpt, llama, peer, recurrent, resnet, vit,
};
use dtrain_engine::stage::Shape;
use dtrain_engine::stages::{Chain, Flatten, Linear, Traced};
use dtrain_engine::{
    BatchFigures, BatchView, EvaluationCounts, Frozen, Grouping, Inputs, Loss, LrSchedule, MicroBatchGroup,
    Model, ModelReplica, Optimizer, Replica, Rule, Section, Targets, fits,
};
use dtrain_types::{MicroRange, Seed, Step, Wire};

const CLASSES: u32 = 5;
const ROWS: usize = 2;
const GROUP: u32 = 2;

/// A kind of model, what goes in for a sample, and patterns of what may stay as it is.
type Case = (&'static str, fn() -> Chain<Cpu>, Shape, &'static [&'static [&'static str]]);

fn images() -> Shape {
    Shape::values(ROWS, &[3, 16, 16])
}

fn tokens() -> Shape {
    Shape::Tokens { rows: ROWS, time: 6 }
}

/// A small model of words with everything that a Llama may have.
fn words(tied: bool) -> Chain<Cpu> {
    llama(&words_options(tied)).expect("it makes sense")
}

fn words_options(tied: bool) -> LlamaOptions {
    LlamaOptions {
        vocabulary: CLASSES as usize,
        layers: 2,
        width: 16,
        heads: 2,
        kv_heads: 1,
        head_width: Some(6),
        feed_forward: 20,
        qkv_bias: true,
        qk_norm: true,
        tied,
        ..LlamaOptions::default()
    }
}

fn cases() -> Vec<Case> {
    vec![
        (
            "cnn",
            || {
                let options = CnnOptions { channels: vec![4, 6], hidden: vec![8], ..CnnOptions::default() };
                cnn(&options, CLASSES as usize).expect("it makes sense")
            },
            images(),
            &[&["conv1*"], &["conv1*", "norm1*"], &["*.weight"], &["norm2*"], &["conv*", "norm*"]],
        ),
        (
            "resnet",
            || {
                let options = ResNetOptions { depth: 18, width: 4, stem: Stem::Small };
                resnet(&options, CLASSES as usize).expect("it makes sense")
            },
            images(),
            &[
                &["conv1.*", "bn1.*", "layer1*", "layer2*", "layer3*"],
                &["*downsample*"],
                &["layer4*"],
                &["layer2.0.conv1.weight"],
            ],
        ),
        (
            "vit",
            || {
                let options = EncoderOptions { layers: 2, width: 12, heads: 2, dropout: 0.1 };
                vit(&options, 8, CLASSES as usize).expect("it makes sense")
            },
            images(),
            &[
                &["conv_proj*", "*encoder_layer_0*"],
                &["*mlp*"],
                &["*ln*"],
                &["class_token", "*pos_embedding"],
            ],
        ),
        (
            "lstm",
            || {
                let options = RecurrentOptions { cell: Cell::Lstm, layers: 1, width: 7, dropout: 0.0 };
                recurrent(&options, CLASSES as usize).expect("it makes sense")
            },
            Shape::values(ROWS, &[6, 3]),
            &[&["lstm*"], &["fc*"]],
        ),
        (
            "gpt",
            || {
                let options = GptOptions {
                    vocabulary: CLASSES as usize,
                    context: 6,
                    layers: 2,
                    width: 16,
                    heads: 2,
                    dropout: 0.1,
                };
                gpt(&options).expect("it makes sense")
            },
            tokens(),
            &[&["tokens", "places"], &["tokens"], &["blocks.0*"], &["*qkv*", "head*"]],
        ),
        (
            "llama",
            || words(false),
            tokens(),
            &[
                &["embed_tokens*", "layers.0*"],
                &["*_proj*"],
                &["*norm*"],
                &["lm_head*"],
                &["layers.1*", "norm*", "lm_head*"],
            ],
        ),
        (
            "tied llama",
            || words(true),
            tokens(),
            &[&["embed_tokens*"], &["layers.0*"], &["embed*", "norm*", "*mlp*"]],
        ),
        (
            "traced",
            || {
                let block = Traced::new(|x| {
                    let a = x.through("a", Linear::new(8)).gelu();
                    a.through("b", Linear::new(8)).sigmoid() * a.clone() + a.through("c", Linear::new(8))
                });
                Chain::new()
                    .named("flat", Flatten)
                    .named("in", Linear::new(8).relu())
                    .named("block", block)
                    .named("out", Linear::new(CLASSES as usize))
            },
            images(),
            &[&["block.a*"], &["in*", "block*"], &["block.b*", "out*"]],
        ),
    ]
}

/// What a pass over a group of micro-batches comes to: losses, and the gradient by the names of tensors.
fn gradients(replica: &mut ModelReplica<Cpu>) -> (Vec<BatchFigures>, Vec<(String, Vec<f32>)>) {
    let (values, ids) = (peer::uniform(1, 4 * 768, 1.0), peer::integers(2, 4 * 6, CLASSES));
    let per_sample = replica.model().input().per_row();
    let takes_ids = matches!(replica.model().input(), Shape::Tokens { .. });
    let targets_per_sample = if takes_ids { 6 } else { 1 };
    let classes = peer::integers(3, 4 * targets_per_sample, CLASSES);
    let batch = |m: u32| {
        let at = m as usize * ROWS;
        BatchView {
            rows: ROWS,
            inputs: match takes_ids {
                true => Inputs::Tokens(&ids[at * 6..(at + ROWS) * 6]),
                false => Inputs::Values(&values[at * per_sample..(at + ROWS) * per_sample]),
            },
            targets: Targets::Classes(&classes[at * targets_per_sample..(at + ROWS) * targets_per_sample]),
        }
    };
    let at_once = replica.about().group;
    let mut sum = vec![f32::NAN; replica.about().gradient_len()];
    let mut figures = vec![BatchFigures::default(); at_once as usize];
    let group =
        MicroBatchGroup { step: Step(1), micro_batches: MicroRange { lo: 0, hi: at_once }, wire: Wire::F32 };
    compute(replica, &group, batch, &mut &mut sum[..], &mut figures);
    let mut counts = EvaluationCounts::new(CLASSES as usize);
    let of = replica.evaluate(&batch(0), &mut counts).expect("it fits");
    figures.push(BatchFigures { sums: of, samples: 0 });
    let tensors = &replica.about().layout.tensors;
    let mut named: Vec<_> = tensors
        .iter()
        .filter(|tensor| tensor.section == Section::Parameters)
        .map(|tensor| (tensor.name.clone(), sum[tensor.range()].to_vec()))
        .collect();
    let parameters = replica.about().layout.parameters;
    named.push(("statistics".into(), sum[parameters..].to_vec()));
    (figures, named)
}

#[test]
fn what_lies_apart_has_no_gradient_and_the_others_have_the_bits_that_they_have_without() {
    for (name, stages, input, frozen) in cases() {
        for recompute in [false, true] {
            let made = |patterns: &[&str]| {
                let stages = || Ok(if recompute { stages().recomputed() } else { stages() });
                let loss = Loss::cross_entropy();
                let model = Model::in_groups(&cpu(), stages, input.clone(), loss, GROUP).expect("it fits");
                let frozen = patterns.iter().map(|it| (*it).into()).collect();
                let model =
                    model.grouped(&Grouping { frozen, ..Grouping::default() }).expect("there are such");
                let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(0.1));
                ModelReplica::new(cpu(), model, optimizer, Seed(4)).expect("it makes sense")
            };
            let mut whole = made(&[]);
            assert_eq!(whole.about().layout.frozen_len(), 0);
            let (losses, all) = gradients(&mut whole);
            let first = whole.state().clone();
            for patterns in frozen {
                let mut some = made(patterns);
                let said = format!("{name} with {patterns:?} as they are, recompute {recompute}");
                let (others, got) = gradients(&mut some);
                assert_eq!(others, losses, "{said}");
                let layout = some.about().layout.clone();
                assert_eq!(
                    layout.parameters + layout.frozen_len(),
                    whole.about().layout.parameters,
                    "{said}"
                );
                assert!(
                    layout.frozen.iter().all(|tensor| tensor.frozen && tensor.section == Section::Frozen)
                );
                let lies_apart = |name: &str| layout.frozen.iter().any(|tensor| tensor.name == name);
                for (tensor, wanted) in &all {
                    let is_frozen = patterns.iter().any(|pattern| fits(pattern, tensor));
                    let found = got.iter().find(|(other, _)| other == tensor).map(|(_, values)| values);
                    match (is_frozen, found) {
                        (false, found) => assert_eq!(found, Some(wanted), "{tensor} of {said}"),
                        (true, None) => assert!(lies_apart(tensor), "{tensor} of {said}"),
                        (true, Some(zeros)) => assert!(zeros.iter().all(|x| *x == 0.0), "{tensor} of {said}"),
                    }
                }
                let begun = layout.first_frozen(Seed(4), |_| true);
                for tensor in &layout.frozen {
                    let before = whole.about().layout.tensor(&tensor.name).expect("it is there").range();
                    let before = &first.section(Section::Parameters)[before];
                    assert_eq!(&begun[tensor.range()], before, "{} of {said}", tensor.name);
                }
            }
        }
    }
}

/// A model of words with adapters beside some of its layers.
fn adapted(targets: [bool; Lora::TARGETS.len()]) -> Chain<Cpu> {
    let lora = Some(Lora { rank: 3, alpha: 6.0, targets });
    llama(&LlamaOptions { lora, ..words_options(true) }).expect("it makes sense")
}

#[test]
fn adapters_say_nothing_at_first_and_alone_are_trained() {
    let every = [true; Lora::TARGETS.len()];
    let mut some = [false; Lora::TARGETS.len()];
    (some[1], some[3], some[5]) = (true, true, true);
    for layers in [every, some] {
        let made = |trained: &[&str]| {
            let stages = || Ok(adapted(layers));
            let model =
                Model::in_groups(&cpu(), stages, tokens(), Loss::cross_entropy(), GROUP).expect("it fits");
            let trained = trained.iter().map(|it| (*it).into()).collect();
            let model = model.grouped(&Grouping { trained, ..Grouping::default() }).expect("there are such");
            let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(0.1));
            ModelReplica::new(cpu(), model, optimizer, Seed(4)).expect("it makes sense")
        };
        let (mut all, mut alone) = (made(&[]), made(&Lora::PARAMETERS));
        let layout = alone.about().layout.clone();
        let count = layers.iter().filter(|has| **has).count();
        assert_eq!(layout.tensors.len(), 2 * 2 * count, "of two blocks");
        assert!(layout.tensors.iter().all(|tensor| tensor.name.contains("lora_")));
        assert!(layout.frozen.iter().all(|tensor| !tensor.name.contains("lora_")));
        assert_eq!(layout.parameters + layout.frozen_len(), all.about().layout.parameters);
        let plain = Model::new(&cpu(), words(true), tokens(), Loss::cross_entropy()).expect("it fits");
        let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(0.1));
        let mut plain = ModelReplica::new(cpu(), plain, optimizer, Seed(4)).expect("it makes sense");
        // The same numbers in the layers.
        let mut state = plain.state().clone();
        for tensor in plain.about().layout.tensors.iter() {
            let from = all.about().layout.tensor(&tensor.name).expect("it has the same layers").range();
            let from = &all.state().section(Section::Parameters)[from];
            state.section_mut(Section::Parameters)[tensor.range()].copy_from_slice(from);
        }
        plain.swap_state(&mut state).expect("it fits");
        for step in 1..=3 {
            let ((losses, whole), (others, got)) = (gradients(&mut all), gradients(&mut alone));
            if step == 1 {
                assert_eq!(gradients(&mut plain).0, losses, "nothing is added at first");
            }
            assert_eq!(others, losses);
            for (name, values) in got.iter().filter(|(name, _)| name != "statistics") {
                let (_, wanted) = whole.iter().find(|(other, _)| other == name).expect("it is there");
                assert_eq!(values, wanted, "{name}");
                let is_zero = values.iter().all(|x| *x == 0.0);
                assert_eq!(is_zero, step == 1 && name.contains("lora_A"), "{name} in step {step}");
            }
            // The adapters go on, in both.
            let mut of_alone = vec![0.0; alone.about().gradient_len()];
            for (name, values) in got.iter().filter(|(name, _)| name != "statistics") {
                let at = layout.tensor(name).expect("it is there").range();
                of_alone[at].copy_from_slice(values);
            }
            let mut next = all.state().clone();
            alone.update(Step(step), &of_alone, 4.0, 4).expect("it is finite");
            for tensor in &layout.tensors {
                let to = all.about().layout.tensor(&tensor.name).expect("it is there").range();
                let from = &alone.state().section(Section::Parameters)[tensor.range()];
                next.section_mut(Section::Parameters)[to].copy_from_slice(from);
            }
            all.swap_state(&mut next).expect("it fits");
        }
    }
}

#[test]
fn a_replica_computes_with_what_it_is_given() {
    let made = |frozen: Option<Frozen>| {
        let grouping = Grouping { frozen: vec!["embed*".into(), "layers.0*".into()], ..Grouping::default() };
        let model = Model::new(&cpu(), words(true), tokens(), Loss::cross_entropy()).expect("it fits");
        let model = model.grouped(&grouping).expect("there are such");
        let optimizer = Optimizer::new(Rule::adamw(), LrSchedule::constant(0.1));
        let Some(frozen) = frozen else {
            return ModelReplica::new(cpu(), model, optimizer, Seed(4)).expect("it makes sense");
        };
        let mut made = ModelReplica::begun(cpu(), model, optimizer, Seed(4)).expect("it makes sense");
        made.set_frozen(frozen).expect("the host has it");
        made
    };
    let mut own = made(None);
    let layout = own.about().layout.clone();
    let (first, _) = gradients(&mut own);
    let given = Frozen::from(layout.first_frozen(Seed(4), |_| true));
    assert_eq!(gradients(&mut made(Some(given.clone()))).0, first);
    let other: Vec<f32> = given.iter().map(|x| x * 1.5).collect();
    let other = Frozen::new(other);
    let (second, _) = gradients(&mut made(Some(other.clone())));
    assert_ne!(second, first);
    own.set_frozen(other).expect("the host has it");
    assert_eq!(gradients(&mut own).0, second);
}

#[test]
fn what_alone_is_trained_leaves_all_others_apart() {
    let model = || Model::new(&cpu(), words(false), tokens(), Loss::cross_entropy()).expect("it fits");
    let grouping = |trained: &[&str]| Grouping {
        trained: trained.iter().map(|it| (*it).into()).collect(),
        ..Grouping::default()
    };
    let model_of = |trained: &[&str]| model().grouped(&grouping(trained)).expect("there are such");
    let head = model_of(&["lm_head*"]);
    assert_eq!(head.layout().parameters, 5 * 16);
    assert_eq!(head.layout().tensors.len(), 1);
    let refused = model().grouped(&grouping(&["nobody*"])).err().expect("there is none").to_string();
    assert!(refused.contains("no parameter is called nobody*"), "{refused}");
}
