//! Models of Llama's family: the same bits however they are run, and a start from the folders that others share, whose `config.json` says what
//! they are.

use crate::harness::files::{read_tensors, write_tensors};
use crate::harness::{LLAMA, audit_is_clean, dtrain, finish, folder, json, output, refused, said, train};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

#[test]
fn heads_that_share_keys_have_the_same_bits_however_they_are_run() {
    let folder = folder();
    let digest = |how: &str| train(folder.path(), &format!("{LLAMA} steps=20 {how}")).digest();
    let mut digests = Vec::new();
    for model in [
        "model.kv_heads=2",
        "model.kv_heads=1 model.tied=true model.qkv_bias=true",
        "model.kv_heads=2 model.head_width=10 model.qk_norm=true",
    ] {
        let one = digest(&format!("{model} ranks=1 threads=1"));
        for how in [
            "ranks=2 threads=1",
            "ranks=3 threads=1 isolation=thread",
            "ranks=5 threads=1 recompute=on",
            "ranks=8 threads=1 isolation=thread",
            "ranks=2 threads=2 isa=scalar workers=0",
            "ranks=3 threads=1 state=sharded shard=gradients",
            "ranks=3 threads=1 state=sharded shard=parameters",
        ] {
            assert_eq!(digest(&format!("{model} {how}")), one, "{model} {how}");
        }
        digests.push(one);
    }
    audit_is_clean(folder.path(), "text");
    for other in ["", "model.kv_heads=2 model.rope_theta=50", "model.kv_heads=2 model.norm_eps=0.1"] {
        let other = digest(&format!("{other} ranks=1"));
        assert!(!digests.contains(&other), "it is another model");
        digests.push(other);
    }
}

/// What others write of the model in [`LLAMA`] with two heads of keys.
fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "head_dim": 6,
        "hidden_act": "silu",
        "hidden_size": 24,
        "intermediate_size": 64,
        "max_position_embeddings": 2048,
        "mlp_bias": false,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": null,
        "rope_theta": 5000.0,
        "tie_word_embeddings": false,
        "vocab_size": 256,
    })
}

fn write_config(folder: &Path, change: &[(&str, Value)]) {
    let mut config = config();
    for (key, value) in change {
        config[*key] = value.clone();
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// The keys of the model of a run.
fn model_of(folder: &Path, run: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join("runs").join(run).join("config.yaml")).unwrap();
    let section = text.split_once("\nmodel:\n").expect("a model").1;
    let keys = section.lines().take_while(|line| line.starts_with("  "));
    keys.map(|line| line.split('#').next().unwrap_or(line).trim().to_owned()).collect()
}

#[test]
fn a_folder_of_others_says_what_the_model_is_and_the_run_has_the_bits_of_its_own_file() {
    let folder = folder();
    let path = folder.path();
    let keys = "model.kv_heads=2 model.feed_forward=64 model.rope_theta=5000 model.norm_eps=0.000001";
    train(path, &format!("{LLAMA} {keys} steps=3 ranks=1 name=first")).succeeded();
    said(path, "checkpoint export first -o own.safetensors");
    let start = |how: &str, name: &str| train(path, &format!("{how} steps=2 ranks=1 name={name}"));
    let wanted = start(&format!("{LLAMA} {keys} model.init_from=own.safetensors"), "wanted").digest();

    let hub = path.join("hub");
    fs::create_dir(&hub).unwrap();
    let mut tensors = read_tensors(&path.join("own.safetensors"));
    // An export says `model.` of each: the head has no such prefix elsewhere.
    for (name, ..) in &mut tensors {
        *name = name.replace("model.lm_head", "lm_head");
    }
    tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), vec![3], vec![1.0, 0.1, 0.01]));
    let data = "data.kind=text data.path=text.txt data.context=8 global_batch=22 micro_batch=3";
    // In one file.
    write_tensors(&hub.join("model.safetensors"), &tensors);
    write_config(&hub, &[]);
    assert_eq!(start(&format!("{data} model.init_from=hub"), "folder").digest(), wanted);
    let keys_of_folder = model_of(path, "folder");
    for key in [
        "kind: llama",
        "layers: 2",
        "width: 24",
        "heads: 4",
        "kv_heads: 2",
        "feed_forward: 64",
        "tied: false",
    ] {
        assert!(keys_of_folder.iter().any(|line| line == key), "{key}: {keys_of_folder:?}");
    }
    assert_eq!(start(&format!("{data} model.init_from=hub/model.safetensors"), "file").digest(), wanted);
    // In several, as an index says.
    let (first, second) = tensors.split_at(7);
    let mut map = serde_json::Map::new();
    for (file, tensors) in [("model-1.safetensors", first), ("model-2.safetensors", second)] {
        write_tensors(&hub.join(file), tensors);
        map.extend(tensors.iter().map(|(name, ..)| (name.clone(), json!(file))));
    }
    fs::remove_file(hub.join("model.safetensors")).unwrap();
    let index = hub.join("model.safetensors.index.json");
    fs::write(&index, json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
    assert_eq!(start(&format!("{data} model.init_from=hub"), "several").digest(), wanted);

    // What is written goes before what the folder says, and what it does not say is as ever.
    let other = start(&format!("{data} model.init_from=hub model.rope_theta=77"), "other").digest();
    assert_ne!(other, wanted);
    let again = finish(dtrain(path, "train --json --resume runs/folder steps=4"));
    again.succeeded();

    // Newer ones have it elsewhere.
    write_config(
        &hub,
        &[
            ("rope_theta", json!(null)),
            ("rope_parameters", json!({"rope_type": "default", "rope_theta": 5000.0})),
        ],
    );
    assert_eq!(start(&format!("{data} model.init_from=hub"), "newer").digest(), wanted);

    // Scaled positions, as older ones and newer ones have them.
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4});
    write_config(&hub, &[("rope_scaling", llama3.clone())]);
    let scaled = start(&format!("{data} model.init_from=hub"), "scaled").digest();
    let keys = model_of(path, "scaled");
    for key in ["rope_scaling: llama3", "rope_factor: 8.0", "rope_high_freq_factor: 4.0", "rope_context: 4"] {
        assert!(keys.iter().any(|line| line == key), "{key}: {keys:?}");
    }
    let mut parameters = llama3;
    parameters["rope_theta"] = json!(5000.0);
    write_config(&hub, &[("rope_theta", json!(null)), ("rope_parameters", parameters)]);
    assert_eq!(start(&format!("{data} model.init_from=hub"), "scaled-too").digest(), scaled);
    write_config(&hub, &[("rope_scaling", json!({"type": "linear", "factor": 2.0}))]);
    let linear = start(&format!("{data} model.init_from=hub"), "linear").digest();
    assert!(linear != scaled && scaled != wanted && linear != wanted);

    // What is missing is said as it is called there.
    fs::remove_file(hub.join("model-2.safetensors")).unwrap();
    refused(path, &format!("train {data} model.init_from=hub"), &["model-2.safetensors", "hint:"]);
    fs::write(&index, json!({ "weight_map": {"model.norm.weight": "../own.safetensors"} }).to_string())
        .unwrap();
    refused(path, &format!("train {data} model.init_from=hub"), &["is no file beside it"]);
    fs::write(&index, "{").unwrap();
    refused(path, &format!("train {data} model.init_from=hub"), &["model.safetensors.index.json"]);
    fs::remove_file(&index).unwrap();
    refused(path, &format!("train {data} model.init_from=hub"), &["hub/model.safetensors", "hint:"]);
}

#[test]
fn what_a_model_of_others_has_and_this_one_has_not_is_refused_at_its_place() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("model.safetensors"), "none").unwrap();
    let data = "data.kind=text data.path=text.txt data.context=8 model.init_from=model.safetensors";
    for (key, value, words) in [
        ("hidden_act", json!("gelu"), "hidden_act of this llama: the one that is built in has silu"),
        ("attention_bias", json!(true), "attention_bias of this llama"),
        ("mlp_bias", json!(true), "mlp_bias of this llama"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 8.0}), "rope_scaling of this llama"),
        ("rope_scaling", json!({"type": "dynamic", "factor": 8.0}), "rope_scaling of this llama"),
    ] {
        write_config(path, &[(key, value)]);
        refused(path, &format!("train {data}"), &[words, "config.json:1:", "hint:"]);
    }
    write_config(path, &[("model_type", json!("mistral")), ("sliding_window", json!(4096))]);
    refused(path, &format!("train {data}"), &["sliding_window of this mistral"]);
    for family in ["qwen2", "qwen3"] {
        write_config(path, &[("model_type", json!(family)), ("use_sliding_window", json!(true))]);
        refused(path, &format!("train {data}"), &[&format!("sliding_window of this {family}")]);
    }
    write_config(path, &[("model_type", json!("gpt2")), ("activation_function", json!("relu"))]);
    refused(path, &format!("train {data}"), &["activation_function of this gpt2"]);
    write_config(path, &[("model_type", json!("gpt2")), ("layer_norm_epsilon", json!(1e-6))]);
    refused(path, &format!("train {data}"), &["layer_norm_epsilon of this gpt2"]);
    // A model of another kind, or of none that is known here, is what the user says.
    write_config(path, &[("rope_scaling", json!({"type": "yarn"}))]);
    refused(path, &format!("train {data} model.kind=gpt"), &["model.init_from: model.safetensors:"]);
    write_config(path, &[("model_type", json!("rwkv"))]);
    refused(path, &format!("train {data} model.kind=llama"), &["model.init_from: model.safetensors:"]);
    fs::write(path.join("config.json"), "[1,").unwrap();
    refused(path, &format!("train {data} model.kind=llama"), &["model.init_from: model.safetensors:"]);
    fs::remove_file(path.join("config.json")).unwrap();

    // And what makes no sense.
    let base = "data.kind=text data.path=text.txt data.context=8 model.kind=llama";
    for (keys, words) in [
        ("model.kv_heads=3", "model.kv_heads: must divide model.heads"),
        ("model.width=30", "model.width: must be model.heads times an even number"),
        ("model.head_width=5", "model.head_width: must be an even number of at most 512"),
        ("model.rope_theta=0.5", "model.rope_theta: must be at least 1"),
        ("model.rope_scaling=linear model.rope_factor=0.5", "model.rope_factor: must be at least 1"),
        (
            "model.rope_scaling=llama3 model.rope_low_freq_factor=4",
            "model.rope_high_freq_factor: must be above",
        ),
        ("model.rope_factor=4", "this key belongs to model.rope_scaling: linear | llama3"),
        ("model.norm_eps=0", "model.norm_eps: expected a number above 0"),
        ("model.dropout=0.1", "this key belongs to model.kind"),
    ] {
        refused(path, &format!("train {base} {keys}"), &[words, "hint:"]);
    }
    refused(path, "train model.kind=llama", &["llama needs tokens, and data.kind is digits", "hint:"]);
}

#[test]
fn it_is_taken_to_transformers_and_comes_back_with_its_bits() {
    let folder = folder();
    let path = folder.path();
    let small = "model.layers=2 model.width=16 model.heads=2";
    for (name, model, turned) in [
        ("llama", "model.kind=llama model.kv_heads=1 model.rope_scaling=llama3 model.rope_context=4", None),
        ("qwen2", "model.kind=llama model.qkv_bias=true model.tied=true", None),
        ("qwen3", "model.kind=llama model.kv_heads=1 model.qk_norm=true model.head_width=6", None),
        ("gpt2", "model.kind=gpt2", Some("transformer.h.0.attn.c_attn.weight")),
    ] {
        let data = "data.kind=text data.path=text.txt data.context=8 global_batch=22";
        train(path, &format!("{data} {model} {small} steps=5 ranks=1 name={name}")).succeeded();
        said(path, &format!("export {name} --to transformers"));
        let out = path.join(format!("{name}-transformers"));
        let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["model_type"], &config["vocab_size"]), (&json!(name), &json!(256)));
        if let Some(turned) = turned {
            let tensors = read_tensors(&out.join("model.safetensors"));
            let (_, shape, _) = tensors.iter().find(|(name, ..)| name == turned).expect("it is there");
            assert_eq!(shape, &[16, 48]);
        }
        let begun = |from: &str, model: &str| {
            train(path, &format!("{data} {model} model.init_from={from} steps=2 ranks=1")).digest()
        };
        said(path, &format!("checkpoint export {name} -o own.safetensors"));
        assert_eq!(
            begun(&format!("{name}-transformers"), ""),
            begun("own.safetensors", &format!("{model} {small}"))
        );
        fs::remove_file(path.join("own.safetensors")).unwrap();
        let (again, _) = output(path, &format!("export {name} --to transformers"));
        again.ended_with(2);
        again.said("is there already");
    }
    train(path, "steps=3 model.channels=[2] name=cnn").succeeded();
    refused(path, "export cnn --to transformers", &["no class for a model of the kind cnn", "hint:"]);
    let both = "model.kind=llama model.qkv_bias=true model.qk_norm=true";
    train(
        path,
        &format!("data.kind=text data.path=text.txt data.context=8 {both} {small} steps=1 name=both"),
    )
    .succeeded();
    refused(path, "export both --to transformers", &["no class for a llama with", "hint:"]);
    assert!(!path.join("cnn-transformers").exists());
    let figures = json(path, "eval llama --json");
    assert!(figures["loss"].as_f64().is_some_and(f64::is_finite), "{figures}");
}

#[test]
fn ids_by_another_tokenizer_than_that_of_the_model_are_warned_of() {
    let folder = folder();
    let path = folder.path();
    said(path, "tokenize text.txt --vocabulary 300 -o own");
    said(path, "tokenize text.txt --vocabulary 270 -o other");
    let data = "data.kind=tokens data.context=8 global_batch=8 micro_batch=8 steps=2";
    let small = "model.kind=llama model.layers=1 model.width=16 model.heads=2";
    train(path, &format!("{data} data.path=own {small} name=first")).succeeded();
    said(path, "export first --to transformers");
    let warning = "another tokenizer than that of the model in first-transformers";
    let begun = |ids: &str| {
        train(path, &format!("{data} data.path={ids} model.init_from=first-transformers name=on-{ids}"))
    };
    let [own, other] = ["own", "other"].map(begun);
    own.succeeded();
    assert!(!own.stderr.contains(warning), "{}", own.stderr);
    other.succeeded();
    other.said(warning);
    let inside = &path.join("first-transformers");
    let beside = train(inside, &format!("{data} data.path=../other model.init_from=model.safetensors"));
    beside.said("another tokenizer than that of the model in .; `dtrain tokenize -t .`");
    // The model has as many tokens as it had.
    assert!(model_of(path, "on-other").iter().any(|line| line == "kind: llama"));
    let vocabulary = |run: &str| {
        let config = fs::read_to_string(path.join("runs").join(run).join("config.yaml")).unwrap();
        let line = config.lines().find(|line| line.trim().starts_with("vocabulary: ")).expect("it is there");
        line.split('#').next().map(|line| line.trim().to_owned())
    };
    assert_eq!(vocabulary("on-other"), vocabulary("first"));
    assert_ne!(vocabulary("first").as_deref(), Some("vocabulary: 270"));
}
