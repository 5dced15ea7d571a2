//! Products, convolutions and attention by NVIDIA's libraries on GPUs: chosen once and kept in the cache and with the run, told to all ranks, the same bits in every world
//! and across kills; and what is said and done where the library is missing, wrong, or another one than before.
//!
//! On the driver of `crates/fake-cuda` and the libraries of `crates/fake-cublaslt` and `crates/fake-cudnn`, each of whose algorithms adds up in
//! another order. What these tests compute is small: a variable says from which size on a library is asked.

use crate::harness::gpus::Host;
use crate::harness::turn::has_turn;
use crate::harness::{CNN, Finished, GPT, MLP, Running, Signal, dtrain, finish, signal};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A machine with the library, and a cache of its own for choices; compiled kernels are those of all tests.
struct Machine {
    host: Host,
    cache: tempfile::TempDir,
}

impl Machine {
    fn new() -> Option<Self> {
        let machine = Self::without_library()?;
        let fake = std::env::current_exe().expect("a temporary place").with_file_name("libfake_cublaslt.so");
        machine.host.lay("libcublasLt.so.13", &fake);
        Some(machine)
    }

    /// The same with cuDNN.
    fn with_both() -> Option<Self> {
        let machine = Self::new()?;
        let fake = std::env::current_exe().expect("a temporary place").with_file_name("libfake_cudnn.so");
        machine.host.lay("libcudnn.so.9", &fake);
        Some(machine)
    }

    fn without_library() -> Option<Self> {
        let host = Host::new()?;
        let cache = tempfile::tempdir().expect("a temporary place");
        let kernels = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda/dtrain/kernels");
        std::fs::create_dir_all(&kernels).expect("a folder");
        std::fs::create_dir(cache.path().join("dtrain")).expect("a folder");
        std::os::unix::fs::symlink(kernels, cache.path().join("dtrain/kernels")).expect("a link");
        Some(Self { host, cache })
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = self.host.equip(dtrain(self.host.path(), arguments));
        command.env("XDG_CACHE_HOME", self.cache.path());
        command.env("FAKE_CUBLASLT_DRIVER", self.host.driver()).env("FAKE_CUDNN_DRIVER", self.host.driver());
        command.env("DTRAIN_TEST_LIBRARIES_FROM", "1000");
        command
    }

    fn train(&self, settings: &str) -> Finished {
        self.train_where(&[], settings)
    }

    fn train_where(&self, variables: &[(&str, &str)], settings: &str) -> Finished {
        let mut command = self.command(&format!("train --json {settings}"));
        command.envs(variables.iter().copied());
        finish(command)
    }

    /// The files of choices in the cache.
    fn kept(&self) -> Vec<PathBuf> {
        let files =
            std::fs::read_dir(self.cache.path().join("dtrain/algorithms")).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect()
    }
}

fn choices(file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).expect("a file of choices");
    serde_json::from_str(&text).expect("JSON")
}

/// The algorithms that a file of choices has, as text.
fn algorithms(file: &Path) -> String {
    let pins = choices(file);
    let pins = pins.get("products").unwrap_or(&pins);
    let products = pins["chosen"].as_array().expect("a list");
    assert!(!products.is_empty());
    products.iter().map(|pin| format!("{} {}\n", pin["key"], pin["algorithm"])).collect()
}

fn bf16(model: &str) -> String {
    format!("{model} steps=3 precision=bf16")
}

#[test]
fn every_world_has_the_same_bits_with_products_of_the_library_and_others_than_without() {
    if !has_turn(1) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let model = bf16(MLP);
    let one = machine.train(&format!("{model} devices=cuda:0 ranks=1 run_dir=one"));
    one.said("large products by cuBLASLt");
    let chosen = algorithms(&machine.host.path().join("one/libraries.json"));
    let [kept] = &machine.kept()[..] else { panic!("{:?}", machine.kept()) };
    assert_eq!(algorithms(kept), chosen);
    let before = std::fs::metadata(kept).unwrap().modified().unwrap();
    for how in [
        "cuda:0 ranks=2",
        "cuda:0 ranks=3 isolation=thread",
        "cuda:0,1 ranks=3 state=sharded shard=parameters",
    ] {
        let run = machine.train(&format!("{model} devices={how}"));
        assert_eq!(run.digest(), one.digest(), "{how}");
    }
    assert_eq!(std::fs::metadata(kept).unwrap().modified().unwrap(), before, "nothing is chosen twice");
    let own = machine.train(&format!("{model} devices=cuda:0 ranks=1 kernels=own run_dir=own"));
    own.succeeded();
    assert_ne!(own.digest(), one.digest());
    assert!(!machine.host.path().join("own/libraries.json").exists());
    // Another model has other shapes: they come beside the first ones.
    machine.train(&format!("{} devices=cuda:0 ranks=1", bf16(GPT))).said("large products by cuBLASLt");
    assert!(algorithms(kept).len() > chosen.len() && machine.kept().len() == 1);
}

/// What goes back from one place of a sequence to the one before is added to halves; so are Muon's products.
#[test]
fn the_library_adds_to_halves_what_recurrent_models_and_muon_add_there() {
    if !has_turn(8) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let sequences = machine.host.sequences();
    let lstm = format!("model.kind=lstm {sequences} model.layers=2 model.width=16");
    let muon = "model.kind=mlp model.hidden=[48,48] optimizer.kind=muon";
    for (name, model) in [("lstm", lstm.as_str()), ("muon", muon)] {
        let model = format!("{} global_batch=40 micro_batch=8", bf16(model));
        let one = machine.train(&format!("{model} devices=cuda:0 ranks=1 run_dir={name}"));
        let chosen = algorithms(&machine.host.path().join(name).join("libraries.json"));
        let adds = |line: &&str| line.contains("\"adds\":true") && line.contains("\"numbers\":\"bf16\"");
        let by_it = chosen.lines().filter(adds).filter(|line| !line.ends_with("null"));
        assert!(by_it.count() > 0, "{name}\n{chosen}");
        for how in ["cuda:0 ranks=2", "cuda:0,1 ranks=3"] {
            assert_eq!(
                machine.train(&format!("{model} devices={how}")).digest(),
                one.digest(),
                "{name} on {how}"
            );
        }
    }
}

#[test]
fn a_rank_that_is_killed_and_a_run_that_goes_on_multiply_as_before_though_the_cache_says_otherwise() {
    if !has_turn(21) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let long = format!("{MLP} steps=12 precision=bf16 devices=cuda:0,1 ranks=3");
    let whole = machine.train(&format!("{long} run_dir=whole"));
    let mut running = Running::of(machine.command(&format!("train --json {long} run_dir=hurt")));
    running.wait_for_step(2);
    signal(Signal::KILL, running.rank_pids()[1]);
    let hurt = running.finish();
    assert_eq!((hurt.digest(), hurt.steps()), (whole.digest(), (1..=12).collect::<Vec<_>>()));

    let half = format!("{long} checkpoint.every=4~steps run_dir=half");
    let mut running = Running::of(machine.command(&format!("train --json {half}")));
    running.wait_for_step(6);
    signal(Signal::KILL, running.pid());
    running.finish();
    // In the cache lies another algorithm for each product now, as from another day.
    let [kept] = &machine.kept()[..] else { panic!("{:?}", machine.kept()) };
    std::fs::remove_file(kept).unwrap();
    let half = machine.host.path().join("half/libraries.json");
    let before = algorithms(&half);
    let resumed = finish(machine.command("train --json --resume half ranks=2"));
    assert_eq!(resumed.digest(), whole.digest());
    assert_eq!(algorithms(&half), before);
}

#[test]
fn a_run_goes_on_with_the_kernels_that_it_was_begun_with() {
    if !has_turn(14) {
        return;
    }
    let Some(machine) = Machine::without_library() else { return };
    let first = format!("{} devices=cuda:0 ranks=1 run_dir=run", bf16(MLP));
    machine.train(&first).said("large products by dtrain's own kernels: cuBLASLt is not here");
    // The library is installed, and the run is asked for more.
    let fake = std::env::current_exe().expect("a temporary place").with_file_name("libfake_cublaslt.so");
    machine.host.lay("libcublasLt.so.13", &fake);
    let longer = machine.train("--resume run --fork steps=4 run_dir=longer");
    longer.said("large products by cuBLASLt");
    let again = machine.train("--resume run steps=6");
    again.said("by dtrain's own kernels, as this run was begun");
    // Nor does it leave a library without a word.
    let own = machine.train("--resume longer steps=8 kernels=own");
    own.said("none of them is for a library any more: the bits will differ");
}

#[test]
fn another_version_of_the_library_is_said_and_chosen_for_anew() {
    if !has_turn(11) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    machine.train(&format!("{} devices=cuda:0 ranks=1 run_dir=run", bf16(MLP))).succeeded();
    let newer = machine.train_where(&[("FAKE_CUBLASLT_VERSION", "130200")], "--resume run steps=6");
    newer.succeeded();
    newer.said("algorithms for large products were chosen on");
    newer.said("the bits will differ from those of a run that never stopped");
    assert_eq!(machine.kept().len(), 2, "one for each version");
    // What the run keeps is held against the library, and against reason.
    let kept = machine.host.path().join("run/libraries.json");
    let text = std::fs::read_to_string(&kept).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&text).unwrap();
    other["products"]["chosen"][0]["algorithm"]["algorithm"][1] = 7.into();
    std::fs::write(&kept, other.to_string()).unwrap();
    let newest = [("FAKE_CUBLASLT_VERSION", "130200")];
    let unfit = machine.train_where(&newest, "--resume run steps=8");
    unfit.ended_with(1);
    unfit.said("the algorithm that was pinned for");
    unfit.said("kernels=own does without the library");
    std::fs::write(&kept, &text[..text.len() / 2]).unwrap();
    let damaged = machine.train_where(&newest, "--resume run steps=8");
    damaged.ended_with(1);
    damaged.said("cannot read");
    damaged.said("libraries.json");
    std::fs::write(&kept, text).unwrap();
    machine.train_where(&newest, "--resume run steps=8").succeeded();
}

#[test]
fn a_library_that_offers_nothing_or_fails_costs_no_run_before_it_begins() {
    if !has_turn(10) {
        return;
    }
    let Some(machine) = Machine::new() else { return };
    let run = format!("{} devices=cuda:0 ranks=1", bf16(MLP));
    let none = machine.train_where(&[("FAKE_CUBLASLT_NONE", "1")], &run);
    none.succeeded();
    none.said("0 shapes");
    let own = machine.train(&format!("{run} kernels=own"));
    assert_eq!(none.digest(), own.digest());
    // One that fails when it is chosen is passed over, one that fails in a run ends that with a word.
    let fresh = Machine::new().expect("as before");
    let failed = fresh.train_where(&[("FAKE_CUBLASLT_FAIL_AT", "1")], &run);
    failed.ended_with(1);
    failed.said("cublasLtMatmul returned CUBLAS_STATUS_EXECUTION_FAILED");
    failed.said("kernels=own");
    // What is kept and damaged is chosen anew.
    let damaged = Machine::new().expect("as before");
    let first = damaged.train(&run);
    let [kept] = &damaged.kept()[..] else { panic!("{:?}", damaged.kept()) };
    std::fs::write(kept, "{\"gpu\":").unwrap();
    damaged.train(&run).said("large products by cuBLASLt");
    assert!(!algorithms(kept).is_empty() && !first.digest().is_empty());
}

#[test]
fn convolutions_have_the_same_bits_in_every_world_and_a_run_keeps_its_algorithms() {
    if !has_turn(13) {
        return;
    }
    let Some(machine) = Machine::with_both() else { return };
    let model = format!("{CNN} steps=4 precision=bf16");
    let one = machine.train(&format!("{model} devices=cuda:0 ranks=1 run_dir=one"));
    one.said("convolutions by cuDNN");
    one.said("large products by cuBLASLt");
    let kept = std::fs::read_to_string(machine.host.path().join("one/libraries.json")).unwrap();
    let pins: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert!(!pins["convolutions"]["chosen"].as_array().expect("a list").is_empty(), "{kept}");
    assert_eq!(machine.kept().len(), 2, "a file for each library");
    for how in ["cuda:0 ranks=3 isolation=thread", "cuda:0,1 ranks=2 state=sharded shard=parameters"] {
        let run = machine.train(&format!("{model} devices={how}"));
        assert_eq!(run.digest(), one.digest(), "{how}");
    }
    let own = machine.train(&format!("{model} devices=cuda:0 ranks=1 kernels=own"));
    assert_ne!(own.digest(), one.digest());
    // A library that offers nothing leaves convolutions to dtrain; a run that was begun with it says so.
    let fresh = machine.train_where(
        &[("FAKE_CUDNN_VERSION", "91800"), ("FAKE_CUDNN_NONE", "1")],
        &format!("{model} devices=cuda:0 ranks=1"),
    );
    fresh.said("convolutions by cuDNN");
    fresh.said("0 shapes");
    let resumed = machine.train_where(&[("FAKE_CUDNN_VERSION", "91800")], "--resume one steps=6");
    resumed.succeeded();
    resumed.said("algorithms for convolutions were chosen on");
    // What fails in a run ends that with a word.
    let failed =
        machine.train_where(&[("FAKE_CUDNN_FAIL_AT", "1")], &format!("{model} devices=cuda:0 ranks=1"));
    failed.ended_with(1);
    failed.said("kernels=own");
}

#[test]
fn convolutions_over_channels_that_lie_last_have_the_same_bits_in_every_world_whoever_dies() {
    if !has_turn(4) {
        return;
    }
    let Some(machine) = Machine::with_both() else { return };
    // Of a library that has nothing but engines, which are tried before they are taken.
    let train = |settings: &str| machine.train_where(&[("FAKE_CUDNN_NONE", "listed")], settings);
    let model = format!("{CNN} steps=6 precision=bf16");
    let one = train(&format!("{model} devices=cuda:0 ranks=1 run_dir=one"));
    one.said("convolutions by cuDNN");
    let kept = machine.host.path().join("one/libraries.json");
    let pins = choices(&kept);
    let chosen = pins["convolutions"]["chosen"].as_array().expect("a list");
    for pass in ["forward", "inputs", "weights"] {
        let of_pass = chosen.iter().filter(|pin| pin["key"]["pass"].to_string().contains(pass));
        let by_engine = of_pass.filter(|pin| pin["algorithm"]["engine"]["engine"].is_number());
        assert!(by_engine.count() > 0, "no engine for {pass}: {pins}");
    }
    for how in [
        "cuda:0,1 ranks=2",
        "cuda:0 ranks=3 isolation=thread",
        "cuda:0,1 ranks=2 state=sharded shard=parameters",
    ] {
        let run = train(&format!("{model} devices={how}"));
        assert_eq!(run.digest(), one.digest(), "{how}");
    }
    let mut command = machine.command(&format!("train --json {model} devices=cuda:0,1 ranks=3"));
    command.env("FAKE_CUDNN_NONE", "listed");
    let mut hurt = Running::of(command);
    hurt.wait_for_step(2);
    signal(Signal::KILL, hurt.rank_pids()[1]);
    let hurt = hurt.finish();
    assert_eq!((hurt.digest(), hurt.steps()), (one.digest(), (1..=6).collect::<Vec<_>>()));
    let own = train(&format!("{model} devices=cuda:0 ranks=1 kernels=own"));
    assert_ne!(own.digest(), one.digest());
    // An engine that the library does not have is none.
    let mut other = pins.clone();
    let pins = other["convolutions"]["chosen"].as_array_mut().expect("a list");
    let pin = pins.iter_mut().find(|pin| pin["algorithm"].is_object()).expect("one by the library");
    pin["algorithm"]["engine"]["engine"] = 7.into();
    std::fs::write(&kept, other.to_string()).expect("the file of before");
    let unfit = train("--resume one steps=8");
    unfit.ended_with(1);
    unfit.said("engine 7 is not there for it");
    unfit.said("kernels=own does without the library");
}

#[test]
fn attention_has_the_same_bits_in_every_world_whoever_dies_and_a_run_keeps_its_engines() {
    if !has_turn(21) {
        return;
    }
    let Some(machine) = Machine::with_both() else { return };
    let model = format!("{GPT} steps=6 precision=bf16");
    let one = machine.train(&format!("{model} devices=cuda:0 ranks=1 run_dir=one"));
    one.said("attention by cuDNN");
    let kept = machine.host.path().join("one/libraries.json");
    let pins = choices(&kept);
    let chosen = pins["attention"]["chosen"].as_array().expect("a list");
    for pass in ["forward", "gradient"] {
        let of_pass = chosen.iter().filter(|pin| pin["key"]["pass"] == pass);
        assert!(
            of_pass.clone().count() > 0 && of_pass.clone().any(|pin| pin["algorithm"].is_object()),
            "{pins}"
        );
    }
    for how in [
        "cuda:0,1 ranks=2",
        "cuda:0 ranks=3 isolation=thread",
        "cuda:0,1 ranks=2 state=sharded shard=parameters",
    ] {
        let run = machine.train(&format!("{model} devices={how}"));
        assert_eq!(run.digest(), one.digest(), "{how}");
    }
    let mut hurt = Running::of(machine.command(&format!("train --json {model} devices=cuda:0,1 ranks=3")));
    hurt.wait_for_step(2);
    signal(Signal::KILL, hurt.rank_pids()[1]);
    let hurt = hurt.finish();
    assert_eq!((hurt.digest(), hurt.steps()), (one.digest(), (1..=6).collect::<Vec<_>>()));
    // Without it attention is dtrain's own, with other bits; so is one that is begun with another version.
    let none = [("FAKE_CUDNN_VERSION", "91800"), ("FAKE_CUDNN_NONE", "1")];
    let own = machine.train_where(&none, &format!("{model} devices=cuda:0 ranks=1"));
    own.said("attention by cuDNN");
    own.said("0 shapes");
    assert_ne!(own.digest(), one.digest());
    let resumed = machine.train_where(&[("FAKE_CUDNN_VERSION", "91700")], "--resume one steps=8");
    resumed.succeeded();
    resumed.said("algorithms for attention were chosen on");
    // An engine that the library does not have is none.
    let mut other = choices(&kept);
    let pins = other["attention"]["chosen"].as_array_mut().expect("a list");
    let pin = pins.iter_mut().find(|pin| pin["algorithm"].is_object()).expect("one by the library");
    pin["algorithm"]["choice"]["engine"] = 7.into();
    std::fs::write(&kept, other.to_string()).expect("the file of before");
    let unfit = machine.train_where(&[("FAKE_CUDNN_VERSION", "91700")], "--resume one steps=10");
    unfit.ended_with(1);
    unfit.said("engine 7 is not there for it");
    unfit.said("kernels=own does without the library");
    // A library that comes later changes nothing of a run.
    let later = Machine::new().expect("as before");
    let model = format!("{GPT} precision=bf16 devices=cuda:0 ranks=1");
    later
        .train(&format!("{model} steps=2 run_dir=run"))
        .said("attention by dtrain's own kernels: cuDNN is not here");
    let fake = std::env::current_exe().expect("a temporary place").with_file_name("libfake_cudnn.so");
    later.host.lay("libcudnn.so.9", &fake);
    let resumed = later.train("--resume run steps=4");
    resumed.said("attention by dtrain's own kernels, as this run was begun");
    resumed.said("large products by cuBLASLt");
    // Nor does a dtrain that would ask for more.
    let kept = later.host.path().join("run/libraries.json");
    let mut fewer = choices(&kept);
    fewer["products"]["chosen"].as_array_mut().expect("a list").remove(0);
    std::fs::write(&kept, fewer.to_string()).expect("the file of before");
    later
        .train("--resume run steps=6")
        .said("1 shape of large products by dtrain's own kernels, as this run was begun");
}

#[test]
fn tf32_is_f32_whose_large_products_and_convolutions_a_library_multiplies_the_same_in_every_world() {
    if !has_turn(21) {
        return;
    }
    let Some(machine) = Machine::with_both() else { return };
    let model = format!("{CNN} steps=4");
    let one = machine.train(&format!("{model} precision=tf32 devices=cuda:0 ranks=1 run_dir=one"));
    one.said("convolutions by cuDNN");
    one.said("large products by cuBLASLt");
    let kept = std::fs::read_to_string(machine.host.path().join("one/libraries.json"));
    let kept = kept.expect("what was chosen is kept with the run");
    assert!(kept.contains("\"tf32\"") && !kept.contains("f16"), "{kept}");
    for how in [
        "cuda:0,1 ranks=2",
        "cuda:0 ranks=3 isolation=thread",
        "cuda:0,1 ranks=2 state=sharded shard=parameters",
    ] {
        let run = machine.train(&format!("{model} precision=tf32 devices={how}"));
        assert_eq!(run.digest(), one.digest(), "{how}");
    }
    // By kernels of dtrain's it would be f32.
    let plain = machine.train(&format!("{model} precision=f32 devices=cuda:0 ranks=1"));
    plain.succeeded();
    assert_ne!(plain.digest(), one.digest());
    let text = format!("{GPT} steps=3 precision=tf32");
    let first = machine.train(&format!("{text} devices=cuda:0 ranks=1"));
    assert_eq!(machine.train(&format!("{text} devices=cuda:0,1 ranks=2")).digest(), first.digest());
    let without = Machine::without_library().expect("as before");
    let exact = without.train(&format!("{model} precision=tf32 devices=cuda:0 ranks=1"));
    exact.said("large products by dtrain's own kernels: cuBLASLt is not here");
    assert_eq!(exact.digest(), plain.digest());

    for (settings, words) in [
        (
            "precision=tf32 devices=cuda:0 kernels=own",
            "tf32 is what cuBLASLt and cuDNN multiply in, and kernels=own uses neither",
        ),
        ("precision=tf32 devices=cpu", "tf32 is for GPUs"),
    ] {
        let refused = machine.train(&format!("{model} ranks=1 {settings}"));
        refused.ended_with(2);
        refused.said(words);
        refused.said("precision=f32");
    }
}
