//! The model whose head is its table of tokens: the same bits however it is run, and a start from the files that others share.

use crate::harness::files::{NamedTensor, read_tensors, write_tensors};
use crate::harness::{GPT2, audit_is_clean, folder, output, train};

#[test]
fn a_head_that_is_the_table_of_tokens_has_the_same_bits_however_it_is_run() {
    let folder = folder();
    let digest = |how: &str| train(folder.path(), &format!("{GPT2} steps=20 {how}")).digest();
    let one = digest("ranks=1 threads=1");
    for how in [
        "ranks=2 threads=1",
        "ranks=3 threads=1 isolation=thread",
        "ranks=5 threads=1",
        "ranks=8 threads=1 isolation=thread",
        "ranks=2 threads=2 isa=scalar workers=0",
    ] {
        assert_eq!(digest(how), one, "{how}");
    }
    let untied = train(folder.path(), &format!("{GPT2} steps=20 model.kind=gpt ranks=1"));
    assert_ne!(untied.digest(), one, "it is another model");
    audit_is_clean(folder.path(), "text");
}

/// As OpenAI's files call a tensor and turn it.
fn as_elsewhere((name, shape, values): &NamedTensor) -> NamedTensor {
    let name = name.strip_prefix("model.").expect("an export names parameters so");
    let mut theirs = name.to_owned();
    for (ours, other) in [
        ("tokens", "wte.weight"),
        ("places", "wpe.weight"),
        ("blocks.", "h."),
        (".norm1.", ".ln_1."),
        (".norm2.", ".ln_2."),
        (".qkv.", ".attn.c_attn."),
        (".proj.", ".attn.c_proj."),
        (".up.", ".mlp.c_fc."),
        (".down.", ".mlp.c_proj."),
    ] {
        theirs = theirs.replace(ours, other);
    }
    if let Some(last) = theirs.strip_prefix("norm.") {
        theirs = format!("ln_f.{last}");
    }
    let inside = name.starts_with("blocks.") && shape.len() == 2;
    let (shape, values) = match (inside, &shape[..]) {
        (true, &[outputs, inputs]) => {
            let turned = (0..inputs * outputs).map(|i| values[i % outputs * inputs + i / outputs]).collect();
            (vec![inputs, outputs], turned)
        }
        _ => (shape.clone(), values.clone()),
    };
    (theirs, shape, values)
}

#[test]
fn it_starts_from_the_files_of_others_with_the_bits_of_its_own() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    train(folder.path(), &format!("{GPT2} steps=3 ranks=1 name=first"));
    output(folder.path(), "checkpoint export first -o own.safetensors").0.succeeded();
    let own = read_tensors(&path("own.safetensors"));
    let start =
        |file: &str| train(folder.path(), &format!("{GPT2} steps=2 ranks=1 model.init_from={file}")).digest();
    let wanted = start("own.safetensors");
    assert_ne!(wanted, train(folder.path(), &format!("{GPT2} steps=2 ranks=1")).digest());

    // The bare model, with more places than are used and the masks that such files have.
    let mut tensors: Vec<_> = own.iter().map(as_elsewhere).collect();
    for (name, shape, values) in &mut tensors {
        if name == "wpe.weight" {
            values.resize((shape[0] + 3) * shape[1], 7.0);
            shape[0] += 3;
        }
    }
    tensors.push(("h.0.attn.bias".to_owned(), vec![1, 1, 2, 2], vec![1.0, 0.0, 1.0, 1.0]));
    write_tensors(&path("bare.safetensors"), &tensors);
    assert_eq!(start("bare.safetensors"), wanted);

    // The model with its head.
    for (name, ..) in &mut tensors {
        *name = format!("transformer.{name}");
    }
    let table =
        tensors.iter().find(|(name, ..)| name == "transformer.wte.weight").expect("it is there").clone();
    tensors.push(("lm_head.weight".to_owned(), table.1, table.2));
    write_tensors(&path("headed.safetensors"), &tensors);
    assert_eq!(start("headed.safetensors"), wanted);

    // What does not fit is named as the file has it.
    tensors.retain(|(name, ..)| name != "transformer.h.1.mlp.c_fc.weight");
    write_tensors(&path("short.safetensors"), &tensors);
    let (refused, _) =
        output(folder.path(), &format!("train {GPT2} steps=2 model.init_from=short.safetensors"));
    refused.ended_with(2);
    refused.said("tensor `transformer.h.1.mlp.c_fc.weight` is missing");
    assert!(!refused.stderr.contains("blocks."), "{}", refused.stderr);
}
