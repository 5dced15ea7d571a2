//! Models that go on with texts by the keys and values of what they saw: to the bit what a model says that computes all of each text.

use crate::cpu_with;
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::device::Newest;
use dtrain_engine::models::{GptOptions, LlamaOptions, MlpOptions, gpt, gpt2, llama, mlp};
use dtrain_engine::stage::{KvCache, Shape};
use dtrain_engine::stages::{Attention, Chain, Embedding, Linear};
use dtrain_engine::{EngineError, Inputs, Loss, LrSchedule, Model, ModelReplica, Optimizer, Replica, Rule};
use dtrain_types::Seed;

const VOCABULARY: usize = 61;
const CLASSES: Loss =
    Loss::CrossEntropy { label_smoothing: 0.0, class_weights: Vec::new(), ignore_index: None };

fn filled(device: Cpu, model: Model<Cpu>) -> ModelReplica<Cpu> {
    let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let optimizer = Optimizer::new(rule, LrSchedule::constant(0.0));
    ModelReplica::new(device, model, optimizer, Seed(5)).expect("it fits")
}

fn options(context: usize, width: usize) -> GptOptions {
    GptOptions { vocabulary: VOCABULARY, context, layers: 2, width, heads: 4, dropout: 0.1 }
}

/// Tokens of some texts, one after the other.
fn texts(count: usize, places: usize) -> Vec<Vec<u32>> {
    let token = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 7) % VOCABULARY as u32;
    (0..count).map(|text| (0..places).map(|place| token(text * 1_009 + place)).collect()).collect()
}

/// What a model of all places says behind each token.
fn whole(device: Cpu, chain: Chain<Cpu>, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let places = texts[0].len();
    let input = Shape::Tokens { rows: texts.len(), time: places };
    let model = Model::new(&device, chain, input, CLASSES).expect("it fits");
    let mut replica = filled(device, model);
    let mut outputs = vec![0.0; texts.len() * places * VOCABULARY];
    replica.predict(texts.len(), Inputs::Tokens(&texts.concat()), &mut outputs).expect("it fits");
    outputs.chunks(places * VOCABULARY).map(<[f32]>::to_vec).collect()
}

/// The same, of so many tokens a pass, again and again.
fn decoded(
    device: Cpu,
    chain: Chain<Cpu>,
    texts: &[Vec<u32>],
    passes: &[usize],
    room: usize,
) -> Vec<Vec<f32>> {
    let places = texts[0].len();
    let tokens = texts.len() * passes.iter().max().expect("a pass");
    let kv_cache = KvCache { texts: texts.len(), places: room };
    let model = Model::decoding(&device, chain, tokens, kv_cache, CLASSES).expect("it fits");
    let mut replica = filled(device, model.expect("all its stages do"));
    let mut outputs = vec![Vec::new(); texts.len()];
    let (mut seen, mut passes) = (0, passes.iter().cycle());
    while seen < places {
        let count = (*passes.next().expect("it goes on")).min(places - seen);
        let newest: Vec<u32> = texts.iter().flat_map(|text| &text[seen..seen + count]).copied().collect();
        let found = replica.decode(Newest { seen, count }, &newest).expect("it fits");
        for (outputs, found) in outputs.iter_mut().zip(found.chunks(count * VOCABULARY)) {
            outputs.extend_from_slice(found);
        }
        seen += count;
    }
    outputs
}

fn bits(outputs: &[Vec<f32>]) -> Vec<u32> {
    outputs.iter().flatten().map(|output| output.to_bits()).collect()
}

#[test]
fn what_is_said_behind_each_token_has_the_bits_of_a_model_that_computes_all_of_the_text() {
    // More places than a chain of terms has in one block, and heads of an odd width.
    for (places, width) in [(40, 48), (530, 20)] {
        let texts = texts(3, places);
        let small = || gpt(&options(places, width)).expect("it fits");
        let wanted = bits(&whole(cpu_with(1), small(), &texts));
        for (threads, passes) in [(1, &[1][..]), (2, &[7, 1, 1]), (3, &[31])] {
            let found = decoded(cpu_with(threads), small(), &texts, passes, places);
            assert!(bits(&found) == wanted, "{places} places in passes of {passes:?}");
        }
        // A text has the same bits alone, and where there is room for more places of the same beginning.
        let alone = decoded(cpu_with(1), small(), &texts[1..2], &[3], places);
        let each = places * VOCABULARY;
        assert!(bits(&alone) == wanted[each..2 * each], "{places} places alone");
    }
}

#[test]
fn every_instruction_set_has_the_same_bits_and_so_has_gpt2() {
    let texts = texts(2, 70);
    let large = || gpt2(&options(70, 64)).expect("it fits");
    let wanted = bits(&whole(cpu_with(1), large(), &texts));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        let device = Cpu::new(CpuOptions { isa, threads: 2 }).expect("it is there");
        assert!(bits(&decoded(device, large(), &texts, &[5, 1], 70)) == wanted, "{isa}");
    }
}

#[test]
fn llama_has_the_same_bits_too_with_keys_that_heads_share() {
    let (texts, vocabulary) = (texts(3, 70), VOCABULARY);
    let options = LlamaOptions { vocabulary, layers: 2, width: 48, heads: 6, ..LlamaOptions::default() };
    for (kv_heads, tied, qk_norm, head_width) in
        [(6, false, false, None), (2, true, false, None), (2, true, true, Some(12))]
    {
        let options = LlamaOptions { kv_heads, tied, qk_norm, head_width, ..options };
        let model = || llama(&options).expect("it fits");
        let wanted = bits(&whole(cpu_with(1), model(), &texts));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = Cpu::new(CpuOptions { isa, threads: 2 }).expect("it is there");
            assert!(bits(&decoded(device, model(), &texts, &[9, 1, 1], 80)) == wanted, "{isa}, {kv_heads}");
        }
    }
}

/// Attention alone, between a table and a head.
fn with(width: usize, attention: Attention) -> Chain<Cpu> {
    let chain = Chain::new().named("", Embedding::new(VOCABULARY, width));
    let chain = chain.named("qkv", Linear::new(3 * width)).named("attention", attention);
    chain.named("head", Linear::new(VOCABULARY))
}

#[test]
fn a_head_that_is_wider_than_a_chain_of_terms_has_the_same_bits() {
    let (texts, chain) = (texts(2, 19), || with(1_040, Attention::new(2)));
    let wanted = bits(&whole(cpu_with(1), chain(), &texts));
    assert!(bits(&decoded(cpu_with(2), chain(), &texts, &[4], 19)) == wanted);
}

#[test]
fn a_pass_with_nothing_before_it_begins_new_texts() {
    let places = 20;
    let chain = || gpt::<Cpu>(&options(places, 16)).expect("it fits");
    let (first, second) = (texts(4, places), texts(8, places).split_off(5));
    let device = cpu_with(1);
    let kv_cache = KvCache { texts: 4, places };
    let model = Model::decoding(&device, chain(), 4 * places, kv_cache, CLASSES).expect("it fits");
    let mut replica = filled(device, model.expect("all its stages do"));
    let newest = Newest { seen: 0, count: places };
    replica.decode(newest, &first.concat()).expect("it fits");
    // Fewer of them, too.
    let found = replica.decode(newest, &second.concat()).expect("it fits").to_vec();
    assert!(bits(&[found]) == bits(&whole(cpu_with(1), chain(), &second)));
    // What is refused leaves all as it was.
    let unknown = vec![VOCABULARY as u32; 3];
    let refused = replica.decode(Newest { seen: 0, count: 1 }, &unknown).map(<[f32]>::len);
    assert!(matches!(refused, Err(EngineError::Token { place: 0, .. })), "{refused:?}");
    let many = vec![0; 4 * places + 4];
    assert!(
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            replica.decode(Newest { seen: 0, count: places + 1 }, &many).map(<[f32]>::len)
        }))
        .is_err()
    );
}

#[test]
fn models_that_need_all_of_a_text_do_not_decode() {
    let decoding = |chain: Chain<Cpu>| {
        let kv_cache = KvCache { texts: 1, places: 8 };
        Model::decoding(&cpu_with(1), chain, 8, kv_cache, CLASSES).expect("it fits").is_some()
    };
    assert!(decoding(with(12, Attention::new(2))));
    assert!(!decoding(with(12, Attention::new(2).unmasked())), "each place sees those behind it");
    let options = MlpOptions { hidden: vec![8], dropout: 0.0, batch_norm: true };
    assert!(!decoding(mlp(&options, VOCABULARY).expect("it fits")), "norms over a batch");
}
