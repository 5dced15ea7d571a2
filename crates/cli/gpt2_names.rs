//! What GPT-2's parameters are called in the files that others share, and how they lie there.
//!
//! OpenAI's layers keep their weights with inputs as rows, so every matrix of a block is turned. The head is the table of
//! tokens. Places that the model does not use are left out, as nanoGPT does.

use dtrain_checkpoint::{Given, Lies, Names};

/// The names of such a file.
#[derive(Clone, Copy, Debug)]
pub struct Gpt2Names {
    /// What stands before all of them.
    prefix: &'static str,
}

impl Gpt2Names {
    /// The files that there are: of the bare model, and of the model with its head.
    pub const ALL: [Self; 2] = [Self { prefix: "" }, Self { prefix: "transformer." }];
}

impl Names for Gpt2Names {
    fn of(&self, tensor: &str) -> Given {
        let (name, lies) = match tensor {
            "tokens" => ("wte.weight".to_owned(), Lies::Same),
            "places" => ("wpe.weight".to_owned(), Lies::Longer),
            _ => match tensor.strip_prefix("blocks.") {
                Some(inside) => of_block(inside),
                None => (tensor.replace("norm.", "ln_f."), Lies::Same),
            },
        };
        Given { name: format!("{}{name}", self.prefix), lies }
    }

    fn is_no_parameter(&self, name: &str) -> bool {
        // The head once more, and the masks of causal attention.
        name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
    }
}

/// `0.qkv.weight` is `h.0.attn.c_attn.weight`, turned.
fn of_block(inside: &str) -> (String, Lies) {
    const LAYERS: [(&str, &str); 6] = [
        ("norm1", "ln_1"),
        ("qkv", "attn.c_attn"),
        ("proj", "attn.c_proj"),
        ("norm2", "ln_2"),
        ("up", "mlp.c_fc"),
        ("down", "mlp.c_proj"),
    ];
    let mut name = format!("h.{inside}");
    let mut turned = false;
    for (ours, theirs) in LAYERS {
        if let Some(at) = name.find(&format!(".{ours}.")) {
            name.replace_range(at + 1..=at + ours.len(), theirs);
            turned = !ours.starts_with("norm") && name.ends_with("weight");
            break;
        }
    }
    (name, if turned { Lies::Turned } else { Lies::Same })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_the_name_that_others_know() {
        let names = |prefix, tensor| {
            let Given { name, lies } = Gpt2Names { prefix }.of(tensor);
            (name, lies)
        };
        for (ours, theirs, lies) in [
            ("tokens", "wte.weight", Lies::Same),
            ("places", "wpe.weight", Lies::Longer),
            ("blocks.0.norm1.weight", "h.0.ln_1.weight", Lies::Same),
            ("blocks.10.qkv.weight", "h.10.attn.c_attn.weight", Lies::Turned),
            ("blocks.10.qkv.bias", "h.10.attn.c_attn.bias", Lies::Same),
            ("blocks.1.proj.weight", "h.1.attn.c_proj.weight", Lies::Turned),
            ("blocks.1.norm2.bias", "h.1.ln_2.bias", Lies::Same),
            ("blocks.1.up.weight", "h.1.mlp.c_fc.weight", Lies::Turned),
            ("blocks.1.down.weight", "h.1.mlp.c_proj.weight", Lies::Turned),
            ("norm.weight", "ln_f.weight", Lies::Same),
        ] {
            assert_eq!(names("", ours), (theirs.to_owned(), lies));
            assert_eq!(names("transformer.", ours), (format!("transformer.{theirs}"), lies));
        }
        assert!(Gpt2Names::ALL[0].is_no_parameter("h.3.attn.bias"));
        assert!(!Gpt2Names::ALL[0].is_no_parameter("h.3.attn.c_attn.bias"));
    }
}
