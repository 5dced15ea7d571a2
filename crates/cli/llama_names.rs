//! What the parameters of Llama's family are called in the files that others share: as here, but for one prefix.

use dtrain_checkpoint::{Given, Lies, Names};

/// The names of such a file.
#[derive(Clone, Copy, Debug)]
pub struct LlamaNames;

/// The names of adapters' parameters, as PEFT has them.
#[derive(Clone, Copy, Debug)]
pub struct PeftNames;

/// What PEFT calls the file of adapters in its folder.
pub const ADAPTERS: &str = "adapter_model.safetensors";

impl Names for PeftNames {
    fn of(&self, tensor: &str) -> Given {
        Given { name: format!("base_model.model.{}", of_transformers(tensor)), lies: Lies::Same }
    }
}

/// The one that has no prefix.
const HEAD: &str = "lm_head.weight";

/// What a tensor is called there.
#[must_use]
pub fn of_transformers(tensor: &str) -> String {
    if tensor == HEAD { HEAD.to_owned() } else { format!("model.{tensor}") }
}

impl Names for LlamaNames {
    fn of(&self, tensor: &str) -> Given {
        Given { name: of_transformers(tensor), lies: Lies::Same }
    }

    fn is_no_parameter(&self, name: &str) -> bool {
        // The head once more, where it is the table of tokens, and what older files keep of rotary positions.
        name == HEAD || name.ends_with(".rotary_emb.inv_freq")
    }
}
