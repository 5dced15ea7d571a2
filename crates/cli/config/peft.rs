//! What the `adapter_config.json` of adapters of Hugging Face's PEFT says of them: a layer of the configuration below all that a user writes.
//!
//! It knows PEFT's words, and what of them is not there; it does not know tensors.

use super::error::{ConfigError, Problem};
use super::hugging_face::{OfJson, last, read, text, written};
use super::origin::Origin;
use super::resolve::Layer;
use super::tree::{Entry, Tree, YamlNode};
use dtrain_engine::models::Lora;
use std::path::Path;

/// The file in a folder of adapters that says what they are.
const CONFIG: &str = "adapter_config.json";

/// The layer that belongs below these; none where `model.lora_from` names nothing that says what it is.
///
/// *Blocks* on the disk. *Errors*: adapters with something that is not there.
pub(super) fn layer(layers: &[Layer]) -> Result<Option<Layer>, ConfigError> {
    let Some(path) = last(layers, "model.lora_from").and_then(text) else { return Ok(None) };
    let Some(document) = read(&super::folder_of(Path::new(path)).join(CONFIG)) else { return Ok(None) };
    let Tree::Map(entries) = &document.tree else { return Ok(None) };
    let told = OfJson { entries };
    ConfigError::check(missing_here(told))?;
    let mut layer: Layer = [("r", "model.lora_rank"), ("lora_alpha", "model.lora_alpha")]
        .into_iter()
        .filter_map(|(theirs, ours)| told.entry(theirs, ours))
        .collect();
    layer.extend(list(told, "target_modules", ("model.lora_targets", str::to_owned)));
    let of_module = |name: &str| format!("{}.*", name.strip_prefix("model.").unwrap_or(name));
    layer.extend(list(told, "modules_to_save", ("model.lora_also", of_module)));
    Ok(Some(layer))
}

/// A list of theirs under our name, each word as we write it. A word alone is none.
fn list(told: OfJson<'_>, theirs: &str, (ours, word): (&str, impl Fn(&str) -> String)) -> Option<Entry> {
    let node = told.node(theirs)?;
    let Tree::List(words) = &node.tree else { return None };
    let words = words.iter().filter_map(|it| Some(YamlNode::plain(word(text(it)?), it.origin.clone())));
    let mut entry = written(ours, "", &node.origin);
    entry.node.tree = Tree::List(words.collect());
    Some(entry)
}

/// What adapters have that is not there.
fn missing_here(told: OfJson<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |key: &str, what: &str| {
        let place = told.node(key).map_or(Origin::Default, |node| node.origin.clone());
        let problem =
            Problem::new(format!("{key} of these adapters: {what}")).key("model.lora_from").at(place);
        problems.push(problem.hint(
            "PEFT's merge_and_unload() takes them into their model, which model.init_from begins with",
        ));
    };
    if told.text("peft_type").is_some_and(|kind| kind != "LORA") {
        refuse("peft_type", "those that are built in are LORA");
    }
    for key in ["use_dora", "use_rslora", "fan_in_fan_out", "lora_bias"] {
        if told.text(key) == Some("true") {
            refuse(key, "those that are built in have none of it");
        }
    }
    if told.text("bias").is_some_and(|bias| bias != "none") {
        refuse("bias", "biases stay as they are");
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        if told.inside(key).is_some_and(|inside| !inside.entries.is_empty()) {
            refuse(key, "all that are built in have one rank and one factor");
        }
    }
    if told.node("layers_to_transform").is_some() {
        refuse("layers_to_transform", "those that are built in are in all blocks");
    }
    match told.node("target_modules").map(|node| &node.tree) {
        Some(Tree::List(modules))
            if !modules.iter().all(|it| text(it).is_some_and(|it| Lora::TARGETS.contains(&it))) =>
        {
            refuse("target_modules", "those that are built in are beside the layers of model.lora_targets");
        }
        Some(Tree::Scalar { .. }) if told.text("target_modules") != Some("all-linear") => {
            refuse("target_modules", "names alone are known, no pattern");
        }
        _ => {}
    }
    problems
}
