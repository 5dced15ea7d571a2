//! The adapters of a model as a folder of Hugging Face's PEFT: `adapter_config.json` and `adapter_model.safetensors`, which `PeftModel.from_pretrained`
//! puts beside the layers of the model that the run was begun with.

use super::network::Parameter;
use crate::config::Model;
use crate::error::CliError;
use crate::llama_names::{PeftNames, of_transformers};
use crate::trained::Trained;
use dtrain_checkpoint::Names;
use dtrain_engine::models::{LlamaOptions, Lora};
use dtrain_engine::{Layout, Replica, Section, Tensor, fits};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// The files of the folder.
#[derive(Debug)]
pub struct OfPeft {
    /// `adapter_config.json`.
    pub config: String,
    /// What `adapter_model.safetensors` holds.
    pub tensors: BTreeMap<String, Parameter>,
}

/// Writes down what a run trained beside the layers of its model.
///
/// *Errors*: a run without adapters; a damaged checkpoint. *Blocks* on the disk.
pub fn peft(trained: &Trained) -> Result<OfPeft, CliError> {
    let Model::Llama(LlamaOptions { lora: Some(lora), .. }) = trained.config.model else {
        let message = format!("{} has no adapters: its whole model was trained", trained.run.path.display());
        return Err(CliError::usage(message)
            .hint("model.lora_rank trains some; --to transformers writes whole models"));
    };
    let replica = trained.replica(1)?;
    let Layout { tensors, .. } = &replica.about().layout;
    let is_adapter = |name: &str| Lora::PARAMETERS.iter().any(|pattern| fits(pattern, name));
    let (mut also, mut files) = (BTreeSet::new(), BTreeMap::new());
    let is_trained = |tensor: &&Tensor| tensor.section == Section::Parameters && !tensor.frozen;
    for tensor in tensors.iter().filter(is_trained) {
        let name = of_transformers(&tensor.name);
        if !is_adapter(&tensor.name)
            && let Some((module, _)) = name.rsplit_once('.')
        {
            let last = module.rsplit('.').next().unwrap_or(module);
            if Lora::TARGETS.iter().zip(lora.targets).any(|(target, has)| has && *target == last) {
                let message =
                    format!("PEFT has no place for {}, which is trained beside an adapter", tensor.name);
                return Err(CliError::usage(message).hint("--to transformers writes the whole model"));
            }
            also.insert(module.to_owned());
        }
        let values = replica.state().averaged()[tensor.range()].to_vec();
        files.insert(PeftNames.of(&tensor.name).name, Parameter { shape: tensor.shape.clone(), values });
    }
    let targets: Vec<&str> =
        Lora::TARGETS.into_iter().zip(lora.targets).filter_map(|(name, has)| has.then_some(name)).collect();
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": trained.config.beginning.file,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "modules_to_save": if also.is_empty() { json!(null) } else { json!(also) },
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
    });
    let config = serde_json::to_string_pretty(&config).unwrap_or_default() + "\n";
    Ok(OfPeft { config, tensors: files })
}
