//! Adapters of low rank beside a model that was trained before: they alone are in the state, the layers lie in the run's folder once, and nobody's
//! bits depend on who computes.

use crate::harness::files::{NamedTensor, read_tensors};
use crate::harness::gpus::Host;
use crate::harness::hosts::Hosts;
use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, LLAMA, Running, audit_is_clean, checkpoints, finish, folder, is_whole, json, output, refused,
    said, signal, train,
};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What a base is trained with, and what has adapters beside it.
const MODEL: &str = "model.kv_heads=2 model.qk_norm=true";
const LORA: &str = "model.init_from=base.safetensors model.lora_rank=3 model.lora_alpha=12 optimizer.lr=0.01";

/// A folder with a base that was trained.
fn begun() -> tempfile::TempDir {
    let folder = folder();
    base(folder.path());
    folder
}

fn base(path: &Path) {
    train(path, &format!("{LLAMA} {MODEL} steps=4 ranks=1 devices=cpu name=base")).succeeded();
    said(path, "checkpoint export base -o base.safetensors");
}

fn adapted(path: &Path, how: &str) -> Finished {
    train(path, &format!("{LLAMA} {MODEL} {LORA} {how}"))
}

fn by_name(tensors: Vec<NamedTensor>) -> BTreeMap<String, Vec<f32>> {
    tensors.into_iter().map(|(name, _, values)| (name, values)).collect()
}

#[test]
fn adapters_have_the_same_bits_however_they_are_run_and_checkpoints_hold_them_alone() {
    let folder = begun();
    let path = folder.path();
    let one = adapted(path, "steps=20 ranks=1 threads=1 name=one");
    one.succeeded();
    for how in [
        "ranks=2 threads=1",
        "ranks=3 threads=1 isolation=thread",
        "ranks=5 threads=1 recompute=on",
        "ranks=8 threads=1 isolation=thread",
        "ranks=2 threads=2 isa=scalar workers=0",
        "ranks=3 threads=1 state=sharded",
        "ranks=3 threads=1 state=sharded shard=parameters",
    ] {
        assert_eq!(adapted(path, &format!("steps=20 {how}")).digest(), one.digest(), "{how}");
    }
    audit_is_clean(path, "one");
    let other = adapted(path, "steps=20 ranks=1 model.lora_targets=[q_proj,v_proj] name=some");
    assert_ne!(other.digest(), one.digest());

    let run = path.join("runs/one");
    let newest = checkpoints(&run).pop().expect("a checkpoint");
    let shards = fs::read_dir(&newest).unwrap().map(|entry| entry.unwrap().path());
    let shards: Vec<_> = shards.filter(|it| it.extension().is_some_and(|it| it == "safetensors")).collect();
    let saved: Vec<_> = shards.iter().flat_map(|shard| read_tensors(shard)).collect();
    assert!(saved.len() >= 2 * 2 * 7 && saved.iter().all(|(name, ..)| name.contains(".lora_")), "{saved:?}");
    // The layers lie beside, as the base has them.
    let frozen = by_name(read_tensors(&run.join("frozen.safetensors")));
    let base = by_name(read_tensors(&path.join("base.safetensors")));
    assert_eq!(frozen, base);
    // An export of the model has both.
    said(path, "checkpoint export one -o all.safetensors");
    let all = by_name(read_tensors(&path.join("all.safetensors")));
    assert_eq!(all.len(), base.len() + 2 * 2 * 7);
    assert!(base.iter().all(|(name, values)| all.get(name) == Some(values)));
    // And is a beginning for another run, with its adapters, or without.
    let again = train(
        path,
        &format!(
            "{LLAMA} {MODEL} model.lora_rank=3 model.lora_alpha=12 model.init_from=all.safetensors steps=1 optimizer.lr=1e-30 ranks=2 schedule.warmup=none"
        ),
    );
    let (was, is) = (json(path, "eval one --json"), &again.summary()["val_loss"]);
    assert!((was["loss"].as_f64().unwrap() - is.as_f64().unwrap()).abs() < 1e-6, "{was} {is}");
}

#[test]
fn ranks_that_are_killed_cost_no_step_and_a_run_goes_on_from_its_adapters() {
    let folder = begun();
    let path = folder.path();
    let wanted = adapted(path, "steps=60 ranks=1 name=whole").digest();
    let line = format!("{LLAMA} {MODEL} {LORA} steps=60 ranks=3 name=hurt checkpoint.every=10~steps");
    let mut running = Running::start(path, &line);
    running.wait_for_step(5);
    signal(Signal::KILL, running.rank_pids()[1]);
    running.wait_for(|event| event["event"] == "recovery").expect("it comes back");
    assert_eq!(running.finish().digest(), wanted);
    is_whole(path, "hurt", &wanted, 60);

    // All die; the layers are made anew where their file is gone, and are the same.
    let line = line.replace("name=hurt", "name=gone");
    let mut running = Running::start(path, &line);
    running.wait_for_checkpoint();
    running.kill_everything();
    drop(running);
    let frozen = path.join("runs/gone/frozen.safetensors");
    let before = fs::read(&frozen).unwrap();
    fs::remove_file(&frozen).unwrap();
    let resumed = train(path, "--resume gone ranks=2");
    assert_eq!(resumed.digest(), wanted);
    assert_eq!(fs::read(&frozen).unwrap(), before);
}

#[test]
fn layers_that_are_not_those_that_the_run_began_with_are_refused() {
    let folder = begun();
    let path = folder.path();
    adapted(path, "steps=3 ranks=2 name=it").succeeded();
    said(path, "checkpoint verify it");
    let frozen = path.join("runs/it/frozen.safetensors");
    let whole = fs::read(&frozen).unwrap();
    let hint = "hint: it holds the parameters that the run leaves as they are";
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for (bytes, words) in
        [(&damaged[..], "blake3"), (&whole[..whole.len() - 5], "cut short"), (b"no", "cut short")]
    {
        fs::write(&frozen, bytes).unwrap();
        let (verified, _) = output(path, "checkpoint verify it");
        verified.ended_with(1);
        verified.said("frozen.safetensors is damaged");
        for command in ["train --resume it steps=9", "eval it", "export it --to transformers -o never"] {
            let (ended, _) = output(path, command);
            ended.ended_with(1);
            ["frozen.safetensors", words, hint].into_iter().for_each(|words| ended.said(words));
        }
        let (exported, _) = output(path, "checkpoint export it -o never.safetensors");
        exported.ended_with(1);
        exported.said("frozen.safetensors");
        assert!(!path.join("never").exists() && !path.join("never.safetensors").exists());
    }
    // Of another base.
    fs::remove_file(&frozen).unwrap();
    let (ended, _) = output(path, "eval it");
    ended.ended_with(1);
    ended.said("the file is missing");
    train(path, &format!("{LLAMA} {MODEL} steps=9 ranks=1 name=other")).succeeded();
    said(path, "checkpoint export other -o base.safetensors");
    refused(
        path,
        "train --resume it steps=9",
        &["are not those that the run began with", "hint: model.init_from"],
    );
    assert!(!frozen.exists());
    fs::write(&frozen, &whole).unwrap();
    train(path, "--resume it steps=9").succeeded();
}

#[test]
fn adapters_are_taken_into_the_layers_for_other_programs() {
    let folder = begun();
    let path = folder.path();
    adapted(path, "steps=30 ranks=1 name=it").succeeded();
    said(path, "export it --to transformers -o whole");
    let whole = fs::read_to_string(path.join("whole/config.json")).unwrap();
    assert!(whole.contains("Qwen3ForCausalLM"));
    // The model that has them taken in says the same.
    let data = "data.kind=text data.path=text.txt data.context=8 global_batch=22 micro_batch=3";
    let still = "steps=1 optimizer.lr=1e-30 optimizer.weight_decay=0 schedule.warmup=none ranks=1";
    let merged = train(path, &format!("{data} model.init_from=whole {still} name=merged"));
    let (of_it, of_base) = (json(path, "eval it --json"), json(path, "eval base --json"));
    let [of_it, of_base] = [of_it, of_base].map(|it| it["loss"].as_f64().expect("a loss"));
    let of_merged = merged.summary()["val_loss"].as_f64().expect("a loss");
    assert!((of_merged - of_it).abs() < 1e-5, "{of_merged} {of_it}");
    assert!((of_base - of_it).abs() > 1e-3, "{of_base} {of_it}");

    said(path, "export it --to peft -o peft");
    let config = fs::read_to_string(path.join("peft/adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(
        (&config["r"], &config["lora_alpha"], &config["peft_type"]),
        (&3.into(), &12.0.into(), &"LORA".into())
    );
    let adapters = read_tensors(&path.join("peft/adapter_model.safetensors"));
    assert_eq!(adapters.len(), 2 * 2 * 7);
    let is_named =
        |name: &str| name.starts_with("base_model.model.model.layers.") && name.contains("_proj.lora_");
    assert!(adapters.iter().all(|(name, ..)| is_named(name)));
    refused(path, "export base --to peft", &["has no adapters", "hint:"]);
    let biased = "model.qkv_bias=true model.qk_norm=false";
    train(path, &format!("{LLAMA} model.kv_heads=2 {biased} steps=1 ranks=1 name=biased")).succeeded();
    said(path, "checkpoint export biased -o biased.safetensors");
    let lora = LORA.replace("base.safetensors", "biased.safetensors");
    let also =
        format!("{LLAMA} model.kv_heads=2 {biased} {lora} steps=2 model.lora_also=[\"*bias\"] name=biases");
    let ranks = |ranks: &str| train(path, &format!("{also}-{ranks} ranks={ranks}")).digest();
    assert_eq!(ranks("1"), ranks("3"), "biases are trained, and the matrices in front of them are not");
    refused(path, "export biases-1 --to peft", &["PEFT has no place for", "q_proj.bias"]);
    said(path, "export biases-1 --to transformers -o with-biases");
    // Another run begins with them: the folder says what they are.
    let keys =
        format!("{LLAMA} {MODEL} model.init_from=base.safetensors model.lora_from=peft {still} name=again");
    let again = train(path, &keys);
    assert!((again.summary()["val_loss"].as_f64().expect("a loss") - of_it).abs() < 1e-6, "{}", again.stderr);
    let written = fs::read_to_string(path.join("runs/again/config.yaml")).unwrap();
    assert!(written.contains("lora_rank: 3 ") && written.contains("lora_alpha: 12"), "{written}");
    let keys = keys.replace("name=again", "name=never");
    // A fork has its own.
    adapted(path, "steps=9 ranks=1 name=more model.lora_from=peft").succeeded();
    let fork = train(path, &format!("--resume more --fork {still} name=fork"));
    let (of_more, of_fork) = (json(path, "eval more --json"), &fork.summary()["val_loss"]);
    assert!((of_more["loss"].as_f64().unwrap() - of_fork.as_f64().expect("a loss")).abs() < 1e-6);
    for (change, words) in
        [("use_dora", "use_dora of these adapters"), ("use_rslora", "use_rslora of these adapters")]
    {
        let mut config = config.clone();
        config[change] = true.into();
        fs::write(path.join("peft/adapter_config.json"), config.to_string()).unwrap();
        refused(path, &format!("train {keys}"), &[words, "adapter_config.json", "hint:"]);
    }
    let mut other = config.clone();
    other["target_modules"] = serde_json::json!(["q_proj", "lm_head"]);
    fs::write(path.join("peft/adapter_config.json"), other.to_string()).unwrap();
    refused(path, &format!("train {keys}"), &["target_modules of these adapters"]);
    fs::write(path.join("peft/adapter_config.json"), config.to_string()).unwrap();
    refused(
        path,
        &format!("train {keys} model.lora_rank=4"),
        &["model.lora_from: peft", "the model needs [4"],
    );
    refused(
        path,
        &format!("train {keys} model.lora_from=nowhere model.lora_rank=3"),
        &["model.lora_from: nowhere"],
    );
    // Texts are written by it, whole windows and token by token.
    said(path, "generate it --prompt 1 --tokens 12 --seed 3 --json");
}

#[test]
fn adapters_that_make_no_sense_are_refused_in_a_sentence() {
    let folder = begun();
    let path = folder.path();
    let model = format!("{LLAMA} {MODEL} name=never");
    for (keys, words) in [
        ("model.lora_rank=4", &["model.lora_rank: adapters are beside", "hint: model.init_from"][..]),
        ("model.lora_also=[norm.weight]", &["model.lora_also: without model.lora_rank"]),
        ("model.lora_alpha=3", &["model.lora_alpha: without model.lora_rank"]),
        ("model.lora_from=peft", &["model.lora_from: without model.lora_rank"]),
        ("model.lora_rank=0", &["model.lora_rank"]),
        ("model.lora_rank=900 model.init_from=base.safetensors", &["model.lora_rank: must be at least 1"]),
        (
            "model.lora_rank=4 model.lora_targets=[] model.init_from=base.safetensors",
            &["model.lora_targets: must name a layer"],
        ),
        (
            "model.lora_rank=4 model.lora_targets=[c_attn] model.init_from=base.safetensors",
            &["model.lora_targets", "c_attn"],
        ),
        (
            "model.lora_rank=4 model.lora_also=[head*] model.init_from=base.safetensors",
            &["model.lora_also: no parameter is called head*"],
        ),
        ("model.lora_rank=4 model.lora_alpha=0 model.init_from=base.safetensors", &["model.lora_alpha"]),
        ("model.lora_rank=4 model.init_from=gone.safetensors", &["gone.safetensors"]),
    ] {
        refused(path, &format!("train {model} {keys}"), words);
    }
    refused(
        path,
        &format!("train {LLAMA} name=never model.kind=gpt model.lora_rank=4"),
        &["model.lora_rank"],
    );
    assert!(!path.join("runs/never").exists());
}

#[test]
fn hosts_bring_the_same_layers_each_its_own_file() {
    if !has_turn(9) {
        return;
    }
    let one = begun();
    let wanted = adapted(one.path(), "steps=20 ranks=1 name=one").digest();
    let run = |other: &str| {
        let hosts = Hosts::on_loopback("2");
        let keys = format!("{LLAMA} {MODEL} {LORA} steps=20 ranks=2 devices=cpu");
        for rank in 0..2 {
            base(&hosts.folder(rank));
        }
        let path = hosts.folder(1);
        if other == "other" {
            train(&path, &format!("{LLAMA} {MODEL} steps=9 ranks=1 name=other")).succeeded();
            said(&path, "checkpoint export other -o base.safetensors");
        }
        let first = hosts.start(0, &keys);
        let second = finish(hosts.node(1, "ranks=2"));
        (hosts, first, second)
    };
    let (_hosts, first, second) = run("same");
    second.succeeded();
    assert_eq!(first.finish().digest(), wanted);
    let (_hosts, first, second) = run("other");
    assert_ne!(second.code, Some(0));
    assert!(second.stderr.contains("are not those that the run began with"), "{}", second.stderr);
    first.kill_everything();
}

#[test]
fn adapters_on_gpus_have_one_digest_in_halves_too() {
    if !has_turn(15) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    base(machine.path());
    for precision in ["f32", "bf16"] {
        let run =
            |how: &str| machine.train(&format!("{LLAMA} {MODEL} {LORA} steps=3 precision={precision} {how}"));
        let one = run("devices=cuda:0 ranks=1");
        assert_eq!(run("devices=cuda:0,1 ranks=2").digest(), one.digest(), "{precision}");
        assert_eq!(run("devices=cuda:0 ranks=3 isolation=thread").digest(), one.digest(), "{precision}");
        if precision == "f32" {
            let losses = |run: &Finished| -> Vec<f64> {
                run.events("step").map(|event| event["loss"].as_f64().expect("a number")).collect()
            };
            let cpu = run("devices=cpu ranks=1");
            for (on_gpu, on_cpu) in losses(&one).iter().zip(losses(&cpu)) {
                assert!((on_gpu - on_cpu).abs() <= 1e-4 * on_cpu, "{on_gpu} on a GPU, {on_cpu} on the CPU");
            }
            assert_eq!(losses(&one).len(), 3);
        }
    }
}
