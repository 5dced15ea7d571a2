//! Promise P1: the final parameters are the same bits for every world size, in threads and in processes, for any
//! number of compute threads and loader workers, for every instruction set, and after a kill and a resume.

use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, CNN1D, CNN3D, Finished, GPT, MLP, Running, Signal, TOKENS, audit_is_clean, checkpoints, folder,
    signal, train, write_table, write_tokens,
};
use dtrain::engine::cpu::Isa;
use serde_json::Value;
use std::path::Path;

const WORLDS: [u32; 6] = [1, 2, 3, 5, 8, 13];

/// More than an epoch of each, so that the short last step is among them.
const MODELS: [(&str, &str, &str); 3] =
    [("mlp", MLP, "steps=40"), ("cnn", CNN, "steps=32"), ("gpt", GPT, "steps=20")];

/// Everything of a run that must not depend on how it was run.
#[derive(Debug, PartialEq)]
struct Story {
    digest: String,
    /// Step, epoch, loss and samples of every step.
    steps: Vec<[Value; 4]>,
    /// Epoch, losses and scores of every validation.
    epochs: Vec<[Value; 5]>,
}

fn story(run: &Finished) -> Story {
    let steps = run.events("step").map(|e| ["step", "epoch", "loss", "samples"].map(|key| e[key].clone()));
    let keys = ["epoch", "train_loss", "val_loss", "val_accuracy", "val_f1"];
    let epochs = run.events("epoch").map(|e| keys.map(|key| e[key].clone()));
    Story { digest: run.digest(), steps: steps.collect(), epochs: epochs.collect() }
}

/// Runs a model on one rank and in each of `ways`; all must tell the same story.
fn all_agree(name: &str, model: &str, ways: impl IntoIterator<Item = String>) {
    let folder = folder();
    let one = story(&train(folder.path(), &format!("{model} ranks=1 threads=1")));
    assert!(one.steps.len() > 10 && !one.epochs.is_empty(), "{name} has something to compare");
    for how in ways {
        assert_eq!(story(&train(folder.path(), &format!("{model} {how}"))), one, "{name} with {how}");
    }
}

fn every_world_and_place() -> impl Iterator<Item = String> {
    let places = ["process", "thread"];
    let all = WORLDS.into_iter().flat_map(move |ranks| places.map(|place| (ranks, place)));
    all.map(|(ranks, place)| format!("ranks={ranks} threads=1 isolation={place}"))
}

#[test]
fn an_mlp_has_the_same_bits_on_every_world_size() {
    let (name, model, length) = MODELS[0];
    all_agree(name, &format!("{model} {length}"), every_world_and_place());
}

#[test]
fn a_cnn_with_batch_norm_and_dropout_has_the_same_bits_on_every_world_size() {
    let (name, model, length) = MODELS[1];
    all_agree(name, &format!("{model} {length}"), every_world_and_place());
}

#[test]
fn a_gpt_has_the_same_bits_on_every_world_size() {
    let (name, model, length) = MODELS[2];
    all_agree(name, &format!("{model} {length}"), every_world_and_place());
}

#[test]
fn convolutions_over_sequences_and_volumes_have_the_same_bits_however_they_are_run() {
    let folder = folder();
    write_table(&folder.path().join("table.csv"), 200);
    for (name, model) in [("cnn1d", CNN1D), ("cnn3d", CNN3D)] {
        let model = format!("{model} steps=12");
        let one = story(&train(folder.path(), &format!("{model} ranks=1 threads=1")));
        assert!(one.steps.len() == 12 && !one.epochs.is_empty(), "{name} has something to compare");
        for how in ["ranks=2 threads=1", "ranks=3 threads=2 isolation=thread", "ranks=2 threads=1 isa=scalar"]
        {
            assert_eq!(story(&train(folder.path(), &format!("{model} {how}"))), one, "{name} with {how}");
        }
    }
}

#[test]
fn token_files_have_the_same_bits_however_they_are_run_and_every_sample_once() {
    let folder = folder();
    write_tokens(&folder.path().join("ids"), 2_000);
    let model = format!("{TOKENS} steps=14");
    let one = story(&train(folder.path(), &format!("{model} ranks=1 threads=1 name=one")));
    assert!(one.steps.len() == 14 && !one.epochs.is_empty(), "there is something to compare");
    for how in ["ranks=2 threads=1 name=two", "ranks=2 threads=1 isolation=thread workers=0"] {
        assert_eq!(story(&train(folder.path(), &format!("{model} {how}"))), one, "with {how}");
    }
    audit_is_clean(folder.path(), "two");
}

#[test]
fn an_id_beyond_the_vocabulary_in_the_middle_of_a_run_is_named() {
    let folder = folder();
    write_tokens(&folder.path().join("ids"), 2_000);
    // The first sample has smaller ids, so the run begins.
    let run = train(folder.path(), &format!("{TOKENS} data.vocabulary=200 ranks=2 threads=1 steps=14"));
    run.ended_with(1);
    run.said("ids/train.bin position ");
    run.said("is out of range for a vocabulary of 200 (set data.vocabulary");
    run.said("hint: repair what it names");
}

#[test]
fn the_cnn_that_users_get_has_the_same_bits_on_every_world_size() {
    let model = "model.batch_norm=true model.dropout=0.1 global_batch=50 micro_batch=7 steps=8";
    let ways = ["ranks=2", "ranks=3 threads=1", "ranks=5 threads=2", "ranks=2 isolation=thread"];
    let folder = folder();
    let one = train(folder.path(), &format!("{model} ranks=1 threads=1")).digest();
    for how in ways {
        assert_eq!(train(folder.path(), &format!("{model} {how}")).digest(), one, "with {how}");
    }
}

#[test]
fn compute_threads_and_loader_workers_do_not_change_the_bits() {
    if !has_turn(13) {
        return;
    }
    let threads = [1, 2, 4].into_iter().flat_map(|threads| [1, 3].map(|ranks| (ranks, threads)));
    let threads = threads.map(|(ranks, threads)| format!("ranks={ranks} threads={threads}"));
    let workers = (0..=3).map(|workers| format!("ranks=2 threads=1 workers={workers}"));
    let ways: Vec<String> = threads.chain(workers).collect();
    for (name, model, length) in MODELS {
        all_agree(name, &format!("{model} {length}"), ways.clone());
    }
}

/// With and without the matrix unit of this CPU.
#[test]
fn products_in_bf16_have_the_same_bits_however_they_are_run() {
    let sets = instruction_sets();
    let short = "precision=bf16 steps=12 schedule.warmup=none";
    let ways = [
        "ranks=2 threads=1",
        "ranks=3 threads=2 isolation=thread",
        "ranks=5 threads=1",
        "ranks=8 isolation=thread",
    ];
    let by_sets = sets.iter().map(|isa| format!("ranks=2 threads=1 isa={isa}"));
    let ways: Vec<String> = ways.map(str::to_owned).into_iter().chain(by_sets).collect();
    for (name, model) in [("mlp", MLP), ("cnn", CNN), ("gpt", GPT)] {
        all_agree(name, &format!("{model} {short}"), ways.clone());
    }
    let shards = ["", "shard=gradients", "shard=parameters"];
    let shards = shards.map(|shard| format!("ranks=3 threads=1 state=sharded {shard}"));
    all_agree("gpt in shards", &format!("{GPT} {short}"), shards);
    all_agree("gpt by muon", &format!("{GPT} optimizer.kind=muon {short}"), ["ranks=3 threads=1".to_owned()]);
    let folder = folder();
    let of = |precision: &str| {
        train(folder.path(), &format!("{GPT} {short} precision={precision} ranks=1")).digest()
    };
    assert_ne!(of("bf16"), of("f32"));
}

#[test]
fn a_gpt_in_bf16_killed_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    if !has_turn(19) {
        return;
    }
    stopped_and_resumed(&format!("{GPT} precision=bf16 steps=300"), 20, &Stop::Kill);
}

/// The instruction sets of this CPU that a run can ask for.
fn instruction_sets() -> Vec<&'static str> {
    let mut all = vec!["scalar"];
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            all.push("avx2");
        }
        if std::is_x86_feature_detected!("avx512f") {
            all.push("avx512");
        }
    }
    if Isa::Amx.is_here() {
        all.push("amx");
    }
    all
}

#[test]
fn instruction_sets_do_not_change_the_bits() {
    let sets = instruction_sets();
    println!("instruction sets: {sets:?}");
    for (name, model, _) in MODELS {
        let ways = sets.iter().map(|isa| format!("ranks=2 threads=1 isa={isa}"));
        // Scalar kernels are slow. Fewer steps; an epoch is validated at the end of the run too.
        all_agree(name, &format!("{model} schedule.warmup=3~steps steps=11"), ways);
    }
}

#[test]
fn another_seed_gives_other_bits() {
    let folder = folder();
    let model = format!("{MLP} steps=40 ranks=1");
    let one = train(folder.path(), &model).digest();
    assert_ne!(train(folder.path(), &format!("{model} seed=8")).digest(), one);
}

/// How a run is stopped.
enum Stop {
    /// SIGKILL to every process.
    Kill,
    /// SIGTERM to the supervisor.
    Terminate,
}

/// Stops a run on three ranks at a step after its first complete checkpoint, resumes it on five, and compares with the
/// undisturbed run on two.
fn stopped_and_resumed(model: &str, every: u64, stop: &Stop) {
    let folder = folder();
    let run = folder.path().join("runs/hurt");
    let undisturbed = train(folder.path(), &format!("{model} ranks=2 threads=1 name=whole")).digest();
    let how = format!("{model} threads=1 checkpoint.every={every}~steps name=hurt");
    let mut running = Running::start(folder.path(), &format!("{how} ranks=3"));
    let first = running.wait_for_checkpoint();
    running.wait_for_step(first + every + 1);
    assert_eq!(running.rank_pids().len(), 3);
    match stop {
        Stop::Kill => running.kill_everything(),
        Stop::Terminate => signal(Signal::TERM, running.pid()),
    }
    let hurt = running.finish();
    let before = hurt.steps().last().copied().expect("steps were seen");
    match stop {
        Stop::Kill => assert_eq!(hurt.code, None, "killed by a signal"),
        Stop::Terminate => hurt.ended_with(130),
    }
    assert!(!checkpoints(&run).is_empty());
    let resumed = train(folder.path(), &format!("{how} ranks=5 --resume"));
    let goes_on = resumed.steps().first().copied().expect("the resumed run has steps");
    assert!(goes_on > 1, "a resumed run goes on");
    assert!(goes_on + 2 * every > before, "resumed at {goes_on}, was at {before}");
    if matches!(stop, Stop::Terminate) {
        assert_eq!(goes_on, before + 1, "a checkpoint was written first");
    }
    assert_eq!(resumed.digest(), undisturbed, "stopped at step {before}");
    audit_is_clean(folder.path(), "hurt");
}

#[test]
fn an_mlp_killed_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    stopped_and_resumed(&format!("{MLP} steps=2000"), 100, &Stop::Kill);
}

#[test]
fn a_cnn_killed_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    stopped_and_resumed(&format!("{CNN} steps=300"), 20, &Stop::Kill);
}

#[test]
fn a_gpt_killed_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    if !has_turn(22) {
        return;
    }
    stopped_and_resumed(&format!("{GPT} steps=300"), 20, &Stop::Kill);
}

#[test]
fn an_mlp_terminated_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    if !has_turn(2) {
        return;
    }
    stopped_and_resumed(&format!("{MLP} steps=2000"), 100, &Stop::Terminate);
}

#[test]
fn a_cnn_terminated_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    stopped_and_resumed(&format!("{CNN} steps=300"), 20, &Stop::Terminate);
}

#[test]
fn a_gpt_terminated_and_resumed_on_other_ranks_has_the_bits_of_an_undisturbed_run() {
    stopped_and_resumed(&format!("{GPT} steps=300"), 20, &Stop::Terminate);
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

fn manifest(run: &Path) -> Value {
    let newest = checkpoints(run).pop().expect("a run that ended has a checkpoint");
    let text = std::fs::read_to_string(newest.join("manifest.json")).expect("it has a manifest");
    serde_json::from_str(&text).expect("a manifest is JSON")
}

#[test]
fn a_ring_reaches_the_same_loss_and_says_that_its_bits_depend_on_the_world_size() {
    if !has_turn(7) {
        return;
    }
    for (name, model, length) in MODELS {
        let folder = folder();
        let exact = train(folder.path(), &format!("{model} {length} ranks=2 threads=1 name=exact"));
        assert_eq!(manifest(&folder.path().join("runs/exact"))["reduce"], "exact");
        exact.succeeded();
        for ranks in WORLDS {
            let ring = |place: &str| {
                let run = format!("{place}-{ranks}");
                let how = format!("reduce=ring ranks={ranks} threads=1 isolation={place} name={run}");
                let ring = train(folder.path(), &format!("{model} {length} {how}"));
                let digest = ring.digest();
                for key in ["train_loss", "val_loss"] {
                    let [a, b] = [&exact, &ring].map(|run| number(&run.summary()[key]));
                    assert!((a - b).abs() < 1e-4, "{name} with {how}: {key} {b}, exact {a}");
                }
                assert_eq!(ring.steps(), exact.steps());
                ring.said(&format!("ring: the bits depend on the number of ranks ({ranks})"));
                assert_eq!(manifest(&folder.path().join("runs").join(&run))["reduce"], "ring");
                digest
            };
            assert_eq!(ring("process"), ring("thread"), "{name}: {ranks} ranks give the same bits each time");
        }
    }
}

#[test]
fn sums_rounded_to_bf16_have_the_same_bits_on_every_world_size_and_in_every_group() {
    if !has_turn(16) {
        return;
    }
    // Of the MLP more than an epoch, so that its short last step is among them. Micro-batches of so many rows are taken one by
    // one, so that ranks merge them outside of a group.
    let large = format!("{MLP} global_batch=1437 micro_batch=520");
    for (name, model, steps) in [("mlp", MLP, 32), ("large", &large, 11), ("cnn", CNN, 11), ("gpt", GPT, 11)]
    {
        let model = format!("{model} schedule.warmup=3~steps steps={steps} wire=bf16");
        let worlds = [2, 3, 5].map(|ranks| format!("ranks={ranks} threads=1"));
        let others =
            ["ranks=3 threads=1 isolation=thread", "ranks=1 threads=3", "ranks=2 threads=1 isa=scalar"];
        all_agree(name, &model, worlds.into_iter().chain(others.map(String::from)));
    }
}

#[test]
fn sums_rounded_to_bf16_have_other_bits_than_those_that_are_not_and_manifests_say_so() {
    let folder = folder();
    let digest = |wire: &str| {
        let run = train(folder.path(), &format!("{MLP} steps=40 ranks=2 threads=1 wire={wire} name={wire}"));
        let manifest = manifest(&folder.path().join("runs").join(wire));
        assert_eq!((&manifest["bits"]["wire"], &manifest["reduce"]), (&wire.into(), &"exact".into()));
        assert_eq!(run.stderr.contains("half the bytes between hosts"), wire == "bf16", "{}", run.stderr);
        run.digest()
    };
    assert_ne!(digest("f32"), digest("bf16"));
}

#[test]
fn a_ring_in_bf16_reaches_the_same_loss() {
    if !has_turn(7) {
        return;
    }
    let (folder, model) = (folder(), format!("{MLP} steps=60 threads=1 wire=bf16"));
    let exact = train(folder.path(), &format!("{model} ranks=1"));
    for ranks in [2, 3, 5] {
        let ring = |place: &str| {
            let how = format!("reduce=ring ranks={ranks} isolation={place}");
            let ring = train(folder.path(), &format!("{model} {how}"));
            for key in ["train_loss", "val_loss"] {
                let [a, b] = [&exact, &ring].map(|run| number(&run.summary()[key]));
                assert!((a - b).abs() < 2e-2, "{how}: {key} {b}, exact {a}");
            }
            ring.digest()
        };
        assert_eq!(ring("process"), ring("thread"), "{ranks} ranks give the same bits each time");
    }
}

#[test]
fn digits_are_learned_with_sums_in_bf16_as_well_as_in_f32() {
    if !has_turn(19) {
        return;
    }
    let folder = folder();
    // What users get: the CNN, 20 epochs. The bits are the same everywhere, so the accuracy is one number.
    let run = train(folder.path(), "ranks=2 threads=1 wire=bf16");
    let accuracy = number(&run.summary()["val_accuracy"]);
    assert!(accuracy >= 0.97, "{accuracy}");
}
