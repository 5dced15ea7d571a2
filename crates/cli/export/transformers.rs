//! A model of tokens as a folder of Hugging Face's transformers: `config.json` and `model.safetensors`, which `from_pretrained` reads, and so
//! does whoever reads what that writes.
//!
//! It knows the families whose stages are those of a class there: `llama` (Llama, Qwen 2 where queries have biases, Qwen 3 where their heads have norms), `gpt2`, and `gpt`,
//! which is a GPT-2 with another GELU and a head of its own.

use super::network::{Network, Parameter};
use crate::config::{Gpt, Model};
use crate::error::CliError;
use crate::gpt2_names::Gpt2Names;
use crate::llama_names::LlamaNames;
use dtrain_checkpoint::{Given, Lies, Names};
use dtrain_data::InputSpec;
use dtrain_engine::device::RopeScaling;
use dtrain_engine::models::LlamaOptions;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The files of the folder.
#[derive(Debug)]
pub struct OfTransformers {
    /// `config.json`.
    pub config: String,
    /// What `model.safetensors` holds.
    pub tensors: BTreeMap<String, Parameter>,
}

/// Writes a network down, whose texts end with this token.
///
/// *Errors*: a model that no class of transformers is.
pub fn transformers(network: &Network, model: &Model, end: Option<u32>) -> Result<OfTransformers, CliError> {
    let (InputSpec::Tokens { length, vocabulary }, Some(Class { name: class, sizes, names })) =
        (&network.preparation.input, Class::of(model))
    else {
        let what = match model {
            Model::Llama(_) => "a llama with both biases and norms of queries and keys".to_owned(),
            model => format!("a model of the kind {}", model.kind().name()),
        };
        let error = CliError::usage(format!("transformers has no class for {what}"));
        return Err(error.hint("it has for llama, gpt and gpt2; --to torch writes any model"));
    };
    let mut config = Map::new();
    config.insert("architectures".into(), json!([class]));
    config.insert("vocab_size".into(), json!(vocabulary));
    config.insert("max_position_embeddings".into(), json!(length));
    config.insert("eos_token_id".into(), json!(end));
    config.insert("bos_token_id".into(), Value::Null);
    config.insert("dtype".into(), json!("float32"));
    config.extend(sizes);
    if class == "GPT2LMHeadModel" {
        config.insert("n_positions".into(), json!(length));
        config.remove("max_position_embeddings");
    }
    let tensors = network.parameters.iter().map(|(name, parameter)| {
        let Given { name, lies } = match name.as_str() {
            HEAD => Given { name: "lm_head.weight".into(), lies: Lies::Same },
            name => names.of(name),
        };
        (name, if lies == Lies::Turned { turned(parameter) } else { parameter.clone() })
    });
    let config = serde_json::to_string_pretty(&config).unwrap_or_default() + "\n";
    Ok(OfTransformers { config, tensors: tensors.collect() })
}

/// The head of `gpt`.
const HEAD: &str = "head.weight";

/// A class.
struct Class {
    name: &'static str,
    /// What its configuration says of the model.
    sizes: Map<String, Value>,
    /// What it calls tensors.
    names: Box<dyn Names>,
}

impl Class {
    /// That of a model, if there is one.
    fn of(model: &Model) -> Option<Self> {
        let (name, sizes, names): (_, _, Box<dyn Names>) = match *model {
            Model::Llama(LlamaOptions {
                layers,
                width,
                heads,
                kv_heads,
                head_width,
                feed_forward,
                rope_theta,
                rope_scaling,
                norm_epsilon,
                qkv_bias,
                qk_norm,
                tied,
                lora: _,
                vocabulary: _,
            }) => {
                let (class, kind) = match (qkv_bias, qk_norm) {
                    (false, false) => ("LlamaForCausalLM", "llama"),
                    (true, false) => ("Qwen2ForCausalLM", "qwen2"),
                    (false, true) => ("Qwen3ForCausalLM", "qwen3"),
                    (true, true) => return None,
                };
                let mut sizes = json!({
                    "model_type": kind,
                    "hidden_size": width,
                    "intermediate_size": feed_forward,
                    "num_hidden_layers": layers,
                    "num_attention_heads": heads,
                    "num_key_value_heads": kv_heads,
                    "head_dim": head_width.unwrap_or(width / heads),
                    "hidden_act": "silu",
                    "rms_norm_eps": norm_epsilon,
                    // Older ones read the first two, newer ones the third.
                    "rope_theta": rope_theta,
                    "rope_scaling": if rope_scaling == RopeScaling::None { Value::Null } else { scaled(rope_scaling) },
                    "rope_parameters": rope_parameters(rope_theta, rope_scaling),
                    "tie_word_embeddings": tied,
                });
                let without: &[&str] = match kind {
                    "llama" => &["attention_bias", "mlp_bias"],
                    "qwen2" => &["use_sliding_window"],
                    _ => &["attention_bias", "use_sliding_window"],
                };
                without.iter().for_each(|key| sizes[*key] = json!(false));
                (class, sizes, Box::new(LlamaNames))
            }
            Model::Gpt { like, layers, width, heads, dropout } => {
                let sizes = json!({
                    "model_type": "gpt2",
                    "n_embd": width,
                    "n_layer": layers,
                    "n_head": heads,
                    "activation_function": if like == Gpt::Gpt2 { "gelu_new" } else { "gelu" },
                    "layer_norm_epsilon": 1e-5,
                    "embd_pdrop": dropout,
                    "resid_pdrop": dropout,
                    "attn_pdrop": 0.0,
                    "tie_word_embeddings": like == Gpt::Gpt2,
                });
                let [_, headed] = Gpt2Names::ALL;
                ("GPT2LMHeadModel", sizes, Box::new(headed))
            }
            _ => return None,
        };
        let Value::Object(sizes) = sizes else { return None };
        Some(Self { name, sizes, names })
    }
}

/// How positions are scaled, in their words.
fn scaled(scaling: RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => json!({ "rope_type": "default" }),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low, high, context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": context as u64,
        }),
    }
}

fn rope_parameters(theta: f64, scaling: RopeScaling) -> Value {
    let mut parameters = scaled(scaling);
    parameters["rope_theta"] = json!(theta);
    parameters
}

/// A matrix with rows for columns.
fn turned(parameter: &Parameter) -> Parameter {
    let &[rows, columns] = &parameter.shape[..] else { return parameter.clone() };
    let at = |i: usize| parameter.values[i % rows * columns + i / rows];
    Parameter { shape: vec![columns, rows], values: (0..rows * columns).map(at).collect() }
}
