//! What the `config.json` beside first parameters says of a model: a layer of the configuration below all that a user writes.
//!
//! JSON is YAML, so that each value keeps its place in the file. It knows Hugging Face's words for the families that are built in, and what
//! of them is not there; it does not know tensors.

use super::choice::{DataKind, ModelKind};
use super::error::{ConfigError, Problem};
use super::origin::{Origin, Source};
use super::resolve::Layer;
use super::tree::{self, Entry, Tree, YamlNode};
use std::path::Path;
use std::sync::Arc;

/// Their words for the sizes of a model, and ours.
type Words = &'static [(&'static str, &'static str)];

const LLAMA: Words = &[
    ("num_hidden_layers", "model.layers"),
    ("hidden_size", "model.width"),
    ("num_attention_heads", "model.heads"),
    ("num_key_value_heads", "model.kv_heads"),
    ("head_dim", "model.head_width"),
    ("intermediate_size", "model.feed_forward"),
    ("rms_norm_eps", "model.norm_eps"),
    ("tie_word_embeddings", "model.tied"),
];
const GPT2: Words = &[("n_layer", "model.layers"), ("n_embd", "model.width"), ("n_head", "model.heads")];

/// The folder in which a model's file lies, or which is the model.
///
/// *Blocks* on the disk.
#[must_use]
pub fn folder_of(model: &Path) -> &Path {
    if model.is_dir() {
        return model;
    }
    model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The layer that belongs below these; none where no `config.json` of a family that is built in lies beside `model.init_from`, or another
/// `model.kind` is written.
///
/// *Blocks* on the disk. *Errors*: a model of such a family with something that is not there.
pub(super) fn layer(layers: &[Layer]) -> Result<Option<Layer>, ConfigError> {
    let Some(path) = last(layers, "model.init_from").and_then(text) else { return Ok(None) };
    let Some(document) = read(&folder_of(Path::new(path)).join("config.json")) else { return Ok(None) };
    let Tree::Map(entries) = &document.tree else { return Ok(None) };
    let told = OfJson { entries };
    let family = told.text("model_type").unwrap_or_default();
    let (kind, words) = match family {
        "gpt2" => (ModelKind::Gpt2, GPT2),
        "llama" | "mistral" | "qwen2" | "qwen3" => (ModelKind::Llama, LLAMA),
        _ => return Ok(None),
    };
    if last(layers, "model.kind").and_then(text).is_some_and(|written| written != kind.name()) {
        return Ok(None);
    }
    ConfigError::check(told.missing_here(family))?;
    let place = &document.origin;
    let mut layer = vec![written("model.kind", kind.name(), place)];
    layer.extend(words.iter().filter_map(|(theirs, ours)| told.entry(theirs, ours)));
    if kind == ModelKind::Llama {
        if told.node("rms_norm_eps").is_none() {
            layer.push(written("model.norm_eps", "0.000001", place));
        }
        let rope = told.inside("rope_parameters").and_then(|inside| inside.entry("rope_theta", ROPE_THETA));
        layer.extend(rope.or_else(|| told.entry("rope_theta", ROPE_THETA)));
        let scaling =
            SCALING_OF.iter().find_map(|key| Some((told.inside(key)?, told.inside(key)?.rope_type()?)));
        if let Some((inside, kind @ ("linear" | "llama3"))) = scaling {
            layer.push(written("model.rope_scaling", kind, place));
            let words = if kind == "linear" { &SCALING[..1] } else { SCALING };
            layer.extend(words.iter().filter_map(|(theirs, ours)| inside.entry(theirs, ours)));
        }
        match family {
            "qwen2" => layer.push(written("model.qkv_bias", "true", place)),
            "qwen3" => {
                layer.push(written("model.qk_norm", "true", place));
                if told.node("head_dim").is_none() {
                    layer.push(written("model.head_width", "128", place));
                }
            }
            _ => {}
        }
    }
    if last(layers, "data.kind").and_then(text) == Some(DataKind::Tokens.name()) {
        layer.extend(told.entry("vocab_size", "data.vocabulary"));
    }
    Ok(Some(layer))
}

/// What a file of JSON says. Something else may be called so: what is no such text says nothing.
///
/// *Blocks* on the disk.
pub(super) fn read(file: &Path) -> Option<YamlNode> {
    let text = std::fs::read_to_string(file).ok()?;
    tree::parse_yaml(&Arc::new(Source { path: file.to_owned(), text })).ok()
}

/// Where they say how positions are scaled: newer ones, and older ones.
const SCALING_OF: [&str; 2] = ["rope_parameters", "rope_scaling"];
const SCALING: Words = &[
    ("factor", "model.rope_factor"),
    ("low_freq_factor", "model.rope_low_freq_factor"),
    ("high_freq_factor", "model.rope_high_freq_factor"),
    ("original_max_position_embeddings", "model.rope_context"),
];
const ROPE_THETA: &str = "model.rope_theta";

/// What was written last for a key.
pub(super) fn last<'a>(layers: &'a [Layer], key: &str) -> Option<&'a YamlNode> {
    layers
        .iter()
        .rev()
        .find_map(|layer| layer.iter().rev().find(|entry| entry.key == key))
        .map(|entry| &entry.node)
}

/// A scalar that says something.
pub(super) fn text(node: &YamlNode) -> Option<&str> {
    match &node.tree {
        Tree::Scalar { text, .. } if !node.is_empty() && text != "null" => Some(text),
        _ => None,
    }
}

pub(super) fn written(key: &str, value: &str, place: &Origin) -> Entry {
    let (key, origin) = (key.to_owned(), place.clone());
    Entry { key, node: YamlNode::plain(value, origin.clone()), origin }
}

/// What a mapping says.
#[derive(Clone, Copy)]
pub(super) struct OfJson<'a> {
    pub(super) entries: &'a [Entry],
}

impl<'a> OfJson<'a> {
    /// A value that is not null.
    pub(super) fn node(&self, key: &str) -> Option<&'a YamlNode> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let says = !matches!(entry.node.tree, Tree::Scalar { .. }) || text(&entry.node).is_some();
        says.then_some(&entry.node)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.node(key).and_then(text)
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.text(key)?.parse().ok()
    }

    pub(super) fn inside(&self, key: &str) -> Option<Self> {
        match &self.node(key)?.tree {
            Tree::Map(entries) => Some(OfJson { entries }),
            _ => None,
        }
    }

    fn rope_type(&self) -> Option<&'a str> {
        self.text("rope_type").or(self.text("type"))
    }

    /// Their value under our name.
    pub(super) fn entry(&self, theirs: &str, ours: &str) -> Option<Entry> {
        let node = self.node(theirs)?;
        Some(Entry { key: ours.to_owned(), origin: node.origin.clone(), node: node.clone() })
    }

    /// What a model of a family has that is not there.
    fn missing_here(&self, family: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut refuse = |key: &str, what: &str| {
            let place = self.node(key).map_or(Origin::Default, |node| node.origin.clone());
            let problem =
                Problem::new(format!("{key} of this {family}: {what}")).key("model.init_from").at(place);
            problems.push(
                problem.hint("as a PyTorch program it trains here too: see examples/hugging_face_lm.py"),
            );
        };
        let is_other = |key: &str, known: &[&str]| self.text(key).is_some_and(|word| !known.contains(&word));
        let is_on = |key: &str| self.text(key) == Some("true");
        let differs = |key: &str, wanted: Option<f64>| {
            self.number(key).zip(wanted).is_some_and(|(found, wanted)| found != wanted)
        };
        if family == "gpt2" {
            if is_other("activation_function", &["gelu_new", "gelu_pytorch_tanh"]) {
                refuse("activation_function", "the one that is built in has gelu_new");
            }
            if differs("layer_norm_epsilon", Some(1e-5)) {
                refuse("layer_norm_epsilon", "the one that is built in adds 1e-5");
            }
            if is_on("scale_attn_by_inverse_layer_idx") {
                refuse(
                    "scale_attn_by_inverse_layer_idx",
                    "attention of the one that is built in is scaled alike in all layers",
                );
            }
            if differs("n_inner", self.number("n_embd").map(|width| 4.0 * width)) {
                refuse("n_inner", "the one that is built in has 4 n_embd");
            }
            return problems;
        }
        if is_other("hidden_act", &["silu", "swish"]) {
            refuse("hidden_act", "the one that is built in has silu");
        }
        for key in ["attention_bias", "mlp_bias"] {
            if is_on(key) {
                refuse(key, "the one that is built in has no biases but those of Qwen 2");
            }
        }
        let windows = match family {
            "qwen2" | "qwen3" => is_on("use_sliding_window"),
            _ => self.node("sliding_window").is_some(),
        };
        if windows {
            refuse("sliding_window", "each token of the one that is built in sees all before it");
        }
        for key in SCALING_OF {
            let kind = self.inside(key).and_then(|inside| inside.rope_type());
            if kind.is_some_and(|kind| !["default", "linear", "llama3"].contains(&kind)) {
                refuse(key, "positions of the one that is built in are scaled as by linear or llama3");
            }
        }
        problems
    }
}
