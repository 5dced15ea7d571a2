//! Training on GPUs, where there is none: on the driver and the compiler of `crates/fake-cuda`, which this test lays where a
//! user's libraries would be found. Judged from outside: digests, pids, events, exit codes.
//!
//! The kernels run on the CPU, one thread of a block after the other: so the models are small and the runs short.

use crate::harness::files::npy;
use crate::harness::gpus::Host;
use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, CNN1D, CNN3D, Finished, GPT, GPT2, LLAMA, MLP, Running, Signal, checkpoints, dtrain, finish, folder,
    lives, output, signal, write_table,
};
use dtrain::Own;
use dtrain::config::{Config, Machine};
use dtrain::data::{DigitsOptions, Source};
use dtrain::engine::stages::{Chain, Linear};
use dtrain::plan::Plan;
use std::collections::BTreeSet;

fn devices(run: &Finished) -> BTreeSet<String> {
    run.events("rank_started").map(|event| event["device"].as_str().unwrap().to_owned()).collect()
}

fn losses(run: &Finished) -> Vec<f64> {
    run.events("step").map(|event| event["loss"].as_f64().expect("a loss")).collect()
}

#[test]
fn every_world_on_one_gpu_and_on_two_has_the_same_bits() {
    let Some(machine) = Host::new() else { return };
    let every: &[&str] = &[
        "devices=cuda:0 ranks=2",
        "devices=cuda:0 ranks=3 isolation=thread",
        "devices=cuda:0,1",
        "devices=cuda:1,0 ranks=5",
    ];
    // The fake driver takes seconds for a run of the others.
    for (model, worlds) in [(MLP, every), (CNN, &every[2..3]), (GPT2, &every[..1])] {
        let one = machine.train(&format!("{model} steps=3 devices=cuda:0 ranks=1"));
        assert_eq!(devices(&one).len(), 1);
        for how in worlds {
            let run = machine.train(&format!("{model} steps=3 {how}"));
            assert_eq!(run.digest(), one.digest(), "{model} {how}");
            assert_eq!(run.steps(), [1, 2, 3]);
            let gpus = if how.contains(',') { 2 } else { 1 };
            assert_eq!(devices(&run).len(), gpus, "{how}");
        }
        let cpu = machine.train(&format!("{model} steps=3 devices=cpu"));
        assert_eq!(devices(&cpu), BTreeSet::from(["cpu".to_owned()]));
    }
}

#[test]
fn convolutions_over_sequences_and_volumes_are_those_of_the_cpu_on_a_gpu_of_any_number_of_ranks() {
    if !has_turn(4) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    write_table(&machine.path().join("table.csv"), 100);
    for model in [CNN1D, CNN3D] {
        let model = format!("{model} steps=3");
        let one = machine.train(&format!("{model} devices=cuda:0 ranks=1"));
        let two = machine.train(&format!("{model} devices=cuda:0 ranks=2"));
        assert_eq!(one.digest(), two.digest(), "{model}");
        let cpu = machine.train(&format!("{model} devices=cpu ranks=1"));
        for (on_gpu, on_cpu) in losses(&one).iter().zip(losses(&cpu)) {
            let off = (on_gpu - on_cpu).abs();
            assert!(off <= 1e-4 * on_cpu, "{model}: {on_gpu} on a GPU, {on_cpu} on the CPU");
        }
        assert_eq!(losses(&one).len(), 3);
    }
}

#[test]
fn a_llama_is_that_of_the_cpu_on_a_gpu_of_any_number_of_ranks_in_halves_too() {
    if !has_turn(14) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let model = format!(
        "{LLAMA} model.kv_heads=2 model.head_width=8 model.qk_norm=true model.rope_scaling=llama3 model.rope_context=4"
    );
    let run = |how: &str| machine.train(&format!("{model} steps=3 {how}"));
    let [one, two, cpu] = ["devices=cuda:0 ranks=1", "devices=cuda:0,1", "devices=cpu ranks=1"].map(run);
    assert_eq!(one.digest(), two.digest());
    for (on_gpu, on_cpu) in losses(&one).iter().zip(losses(&cpu)) {
        assert!((on_gpu - on_cpu).abs() <= 1e-4 * on_cpu, "{on_gpu} on a GPU, {on_cpu} on the CPU");
    }
    has_the_same_bits_in_every_world(&machine, (&model, "bf16", 3));
}

#[test]
fn a_rank_on_a_gpu_that_is_killed_costs_no_step_and_no_bit() {
    let Some(machine) = Host::new() else { return };
    let whole = machine.train(&format!("{CNN} steps=12 devices=cuda:0,1 ranks=3"));
    let mut running = Running::of(machine.command(&format!("{CNN} steps=12 devices=cuda:0,1 ranks=3")));
    running.wait_for_step(2);
    let pids = running.rank_pids();
    signal(Signal::KILL, pids[1]);
    running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    assert!(lives(pids[0]) && lives(pids[2]), "the others go on");
    let hurt = running.finish();
    assert_eq!(hurt.steps(), (1..=12).collect::<Vec<_>>());
    assert_eq!(hurt.digest(), whole.digest());
}

/// Steps in halves of one kind have one digest whatever the ranks, and another than f32's; gives it, and how many steps
/// were skipped.
fn has_the_same_bits_in_every_world(
    machine: &Host,
    (model, halves, steps): (&str, &str, usize),
) -> (String, usize) {
    let run = |how: &str| machine.train(&format!("{model} steps={steps} precision={halves} {how}"));
    let one = run("devices=cuda:0 ranks=1 --log dtrain_runtime=info");
    let skipped = one.stderr.matches("the step is skipped").count();
    one.said(&format!("precision {halves}"));
    let several = run("devices=cuda:0,1 ranks=3 isolation=thread");
    assert_eq!(several.digest(), one.digest(), "{model} in {halves}");
    let plain = machine.train(&format!("{model} steps={steps} devices=cuda:0 ranks=1"));
    plain.said("precision f32");
    assert_ne!(plain.digest(), one.digest(), "{model} in {halves}");
    // In f16 the scale of the loss has to be found, which may cost steps.
    let compared = if halves == "f16" { 1 } else { 3 };
    for (rounded, plain) in losses(&one).iter().zip(losses(&plain)).take(compared) {
        assert!((rounded - plain).abs() <= 1e-2 * plain, "{rounded} in {halves}, {plain} in f32");
    }
    (one.digest(), skipped)
}

#[test]
fn halves_have_the_same_bits_in_every_world_and_others_than_f32() {
    if !has_turn(11) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let [(bf16, none), (f16, few), (_, some)] = [(MLP, "bf16", 3), (MLP, "f16", 3), (GPT, "f16", 6)]
        .map(|run| has_the_same_bits_in_every_world(&machine, run));
    assert_ne!(bf16, f16);
    // The gradients of the GPT are too large for the first scale.
    assert!(none == 0 && few < 3 && (1..6).contains(&some), "{none} and {few} of 3 steps, {some} of 6");
    println!("{none}, {few}, {some} steps were skipped");
}

#[test]
fn a_rank_in_halves_that_is_killed_costs_no_step_and_no_bit() {
    if !has_turn(22) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    for (model, halves) in [(CNN, "bf16"), (MLP, "f16")] {
        let settings = format!("{model} steps=12 precision={halves} devices=cuda:0,1 ranks=2");
        let whole = machine.train(&settings);
        let mut running = Running::of(machine.command(&settings));
        running.wait_for_step(2);
        signal(Signal::KILL, running.rank_pids()[1]);
        running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
        let hurt = running.finish();
        assert_eq!(hurt.steps(), (1..=12).collect::<Vec<_>>(), "{halves}");
        assert_eq!(hurt.digest(), whole.digest(), "{halves}");
    }
}

#[test]
fn halves_are_planned_for_gpus_and_those_that_no_cpu_has_are_refused_before_anything_is_written() {
    let Some(machine) = Host::new() else { return };
    for halves in ["bf16", "f16"] {
        let plan = dtrain(machine.path(), &format!("plan --json {MLP} precision={halves} devices=cuda:0"));
        let planned = finish(machine.equip(plan));
        planned.succeeded();
        assert_eq!(planned.lines[0]["precision"], halves);
        // A CPU has bf16, too.
        for devices in ["cpu", "auto"].into_iter().filter(|_| halves == "f16") {
            let refused = machine.train(&format!("{MLP} steps=3 precision={halves} devices={devices}"));
            refused.ended_with(2);
            refused.said(&format!("precision: {halves} is for GPUs, and this host trains on its CPU"));
            refused.said("hint: devices=cuda:0 or devices=all trains on GPUs");
        }
    }
    assert!(!machine.path().join("runs").exists(), "nothing is written");
}

/// Where the host hears of a step behind it, as where it waits for it.
#[test]
fn a_step_that_is_not_finite_ends_a_run_by_its_name_whatever_the_ranks_and_leaves_those_before_it() {
    if !has_turn(13) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    let broken = |how: &str| {
        let settings =
            "optimizer.kind=sgd optimizer.lr=3e18 schedule.kind=constant schedule.warmup=none steps=9";
        let run = machine.train(&format!("{MLP} {settings} checkpoint.every=1 {how}"));
        run.ended_with(1);
        let words =
            run.stderr.lines().find(|line| line.contains("not finite")).expect("it is told").to_owned();
        let cause = words.split("in step").nth(1).expect("it names the step").to_owned();
        (cause, run.steps())
    };
    let (cause, steps) = broken("devices=cuda:0 ranks=1");
    assert!(steps.len() < 9 && cause.contains("micro-batch"), "{cause} behind {steps:?}");
    let windows = "devices=cuda:0,1 ranks=2 backend=nccl state=sharded redundancy=1";
    for how in [
        "devices=cuda:0,1 ranks=2 isolation=thread",
        "devices=cpu ranks=1",
        &format!("{windows} shard=gradients"),
        &format!("{windows} shard=parameters"),
    ] {
        assert_eq!(broken(how), (cause.clone(), steps.clone()), "{how}");
    }
}

#[test]
fn the_memory_that_a_rank_had_on_its_gpu_is_what_was_planned() {
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    let several = "devices=cuda:0,1 ranks=2";
    let all = [
        format!("{MLP} devices=cuda:0 ranks=1"),
        format!("{CNN} devices=cuda:0 ranks=1 precision=bf16"),
        format!("{GPT} {several} precision=f16 backend=host"),
        format!("{MLP} {several} backend=nccl"),
        format!("{MLP} {several} backend=nccl state=sharded"),
        format!("{CNN} {several} backend=host precision=bf16 state=sharded redundancy=1"),
        format!("{CNN} {several} precision=bf16 state=sharded shard=gradients"),
        format!("{CNN} {several} backend=host precision=bf16 state=sharded shard=parameters"),
        format!("{CNN} {several} precision=bf16 state=sharded shard=parameters"),
    ];
    // Each is a run of an epoch, and has a turn of its own.
    let in_turn = all.iter().enumerate().filter(|(place, _)| has_turn(2 * place + 3));
    for (_, settings) in in_turn {
        let plan = finish(machine.equip(dtrain(machine.path(), &format!("plan --json {settings}"))));
        plan.succeeded();
        let rows = plan.lines[0]["memory_bytes"].as_object().expect("a table").values();
        let planned: u64 = rows.map(|bytes| bytes.as_u64().expect("bytes")).sum();
        let run = machine.train(&format!("{settings} epochs=1"));
        let peak = run.summary()["gpu_peak_bytes"].as_u64().expect("bytes");
        // Where no gradient is kept beside another, several ranks want up to two of the driver's smallest pieces more than is counted.
        let more = if settings.contains("shard=") { 512 } else { 0 };
        assert!((planned..=planned + more).contains(&peak), "{peak}, planned {planned}: {settings}");
        run.said(", on its GPU ");
    }
}

#[test]
fn residual_networks_train_on_a_gpu() {
    if !has_turn(9) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let settings = "model.kind=resnet model.width=4 data.augment=none micro_batch=32 steps=3 devices=cuda:0";
    let [one, two] = [1, 2].map(|ranks| machine.train(&format!("{settings} ranks={ranks} name=on-{ranks}")));
    assert_eq!(one.digest(), two.digest());
}

/// What a model says on a GPU: near the CPU, and the same bits by one rank and by several.
fn trains_as_on_the_cpu(machine: &Host, model: &str) {
    let run = |how: &str| {
        let run = machine.train(&format!("{model} micro_batch=8 global_batch=32 steps=3 {how}"));
        run.succeeded();
        run
    };
    let on_cpu = losses(&run("devices=cpu ranks=1"));
    for (precision, near) in [("f32", 1e-4), ("bf16", 2e-2)] {
        let one = run(&format!("devices=cuda:0 ranks=1 precision={precision}"));
        let several = run(&format!("devices=cuda:0,1 ranks=3 isolation=thread precision={precision}"));
        assert_eq!(several.digest(), one.digest(), "{model} in {precision}");
        for (on_gpu, on_cpu) in losses(&one).iter().zip(&on_cpu) {
            let off = (on_gpu - on_cpu).abs();
            assert!(off <= near * on_cpu, "{model}: {on_gpu} in {precision} on a GPU, {on_cpu} on the CPU");
        }
        assert_eq!(losses(&one).len(), 3);
    }
}

#[test]
fn transformers_recurrent_models_mixed_samples_and_muon_train_on_a_gpu_as_on_the_cpu() {
    if !has_turn(16) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let sequences = machine.sequences();
    let blocks = "model.layers=2 model.width=16 model.heads=2";
    for model in [
        format!("model.kind=lstm {sequences} model.layers=2 model.width=12"),
        format!("model.kind=gru {sequences} model.layers=1 model.width=12 model.dropout=0.2"),
        format!("model.kind=transformer {sequences} {blocks} model.dropout=0.2"),
        format!("model.kind=vit {blocks} model.patch=4 data.augment=none"),
        "model.kind=mlp model.hidden=[24] data.augment=[mixup,cutmix] loss.label_smoothing=0.1".to_owned(),
        format!("model.kind=vit {blocks} model.patch=4 data.augment=none optimizer.kind=muon ema=0.9"),
    ] {
        trains_as_on_the_cpu(&machine, &model);
    }
}

/// What a trained model says of new samples: on a GPU in f32 what it says on the cores, whoever computes.
#[test]
fn a_trained_model_is_used_on_gpus_and_what_they_fail_in_is_told() {
    if !has_turn(6) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    machine.train(&format!("{MLP} steps=6 name=mlp devices=cpu")).succeeded();
    let samples: Vec<u8> = (0..70 * 64).map(|i| (i * 37 % 17) as u8).collect();
    std::fs::write(machine.path().join("new.npy"), npy("|u1", &[70, 1, 8, 8], &samples)).expect("an array");
    let run = |words: &str| finish(machine.equip(dtrain(machine.path(), words)));
    let said = |devices: &str| {
        let [_, measured] = ["predict mlp new.npy -o said.csv", "eval mlp --json"].map(|words| {
            let run = run(&format!("{words} --batch 16 {devices}"));
            run.succeeded();
            run.lines
        });
        let told = std::fs::read_to_string(machine.path().join("said.csv")).expect("a table");
        assert_eq!(told.lines().count(), 71);
        (told, measured)
    };
    let cores = said("--ranks 2");
    for devices in ["--devices cuda:0", "--devices cuda:1,0", "--devices cuda:0 --ranks 3"] {
        assert_eq!(said(devices), cores, "{devices}");
    }
    for (wrong, code, words) in [
        ("--devices cuda:7", 2, "there is no GPU 7"),
        ("--devices gpu", 2, "expected auto | cpu | cuda:0,1 | all"),
    ] {
        let refused = run(&format!("predict mlp new.npy -o told.csv {wrong}"));
        refused.ended_with(code);
        refused.said(words);
        refused.said("hint:");
    }
    for (name, value, words) in [
        ("FAKE_CUDA_FAIL", "kernel:2:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("FAKE_CUDA_MEMORY", "20000", "--batch takes fewer samples at once than 16"),
    ] {
        let mut command = machine
            .equip(dtrain(machine.path(), "predict mlp new.npy -o told.csv --batch 16 --devices cuda:0"));
        command.env(name, value);
        let failed = finish(command);
        failed.ended_with(1);
        failed.said(words);
        assert!(!failed.stderr.contains("panicked"), "{}", failed.stderr);
    }
    assert!(!machine.path().join("told.csv").exists(), "nothing is half-written");
}

#[test]
fn the_scale_of_a_loss_is_in_checkpoints_and_stays_behind_where_a_run_is_forked() {
    if !has_turn(11) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let settings = format!("{MLP} checkpoint.every=4~steps devices=cuda:0 steps=8 precision=f16");
    let whole = machine.train(&format!("{settings} name=half"));
    let mut all = checkpoints(&machine.path().join("runs/half")).into_iter();
    let last = all.find(|path| path.to_string_lossy().ends_with("s000008"));
    std::fs::remove_dir_all(last.expect("the checkpoint of the end")).expect("a folder of ours");
    let resumed = machine.train("--resume runs/half");
    assert_eq!(resumed.steps(), [5, 6, 7, 8], "{}", resumed.stderr);
    assert_eq!(resumed.digest(), whole.digest());
    for (from, to, precision) in
        [("half", "plain", "f32"), ("half", "again", "f16"), ("plain", "back", "f16")]
    {
        let forked = format!("--resume runs/{from} --fork precision={precision} steps=2 name={to}");
        let forked = machine.train(&forked);
        assert_eq!(forked.steps(), [1, 2], "from {from} to {precision}: {}", forked.stderr);
    }
}

#[test]
fn whoever_trains_in_f32_on_a_gpu_is_told_that_its_tensor_cores_are_unused() {
    let Some(machine) = Host::new() else { return };
    let told = |settings: &str| {
        let mut plan = machine.equip(dtrain(machine.path(), &format!("plan {MLP} {settings}")));
        let plan = plan.output().expect("it starts");
        let banner = String::from_utf8_lossy(&plan.stderr).into_owned();
        assert!(plan.status.success(), "{banner}");
        banner.lines().find(|line| line.contains("unused")).map(str::to_owned)
    };
    let words = told("devices=cuda:0 ranks=1 threads=1").expect("something is unused");
    assert!(words.contains("tensor cores; precision=bf16 would use them"), "{words}");
    // Neither tensor cores, nor cores of the host.
    assert_eq!(told("devices=cuda:0 ranks=1 threads=1 precision=bf16"), None);
    assert_eq!(told("devices=cuda:0 ranks=1 threads=1 precision=tf32"), None);
}

#[test]
fn a_checkpoint_of_a_gpu_is_gone_on_with_on_a_gpu_to_the_bit_and_on_a_cpu_with_a_word() {
    if !has_turn(17) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let half = format!("{MLP} checkpoint.every=4~steps devices=cuda:0");
    let whole = machine.train(&format!("{half} steps=8 name=whole"));
    machine.train(&format!("{half} steps=8 name=again")).succeeded();
    let lose_the_last = || {
        let mut all = checkpoints(&machine.path().join("runs/again")).into_iter();
        let last = all.find(|path| path.to_string_lossy().ends_with("s000008")).unwrap();
        std::fs::remove_dir_all(last).unwrap();
    };
    lose_the_last();
    let resumed = machine.train(&format!("{half} steps=8 name=again ranks=2 --resume"));
    assert_eq!(resumed.steps(), [5, 6, 7, 8], "{}", resumed.stderr);
    assert_eq!(resumed.digest(), whole.digest());
    assert!(!resumed.stderr.contains("the bits of the result will differ"), "{}", resumed.stderr);
    lose_the_last();
    let elsewhere = format!("{MLP} checkpoint.every=4~steps devices=cpu steps=8 name=again --resume");
    let elsewhere = machine.train(&elsewhere);
    elsewhere.succeeded();
    elsewhere.said("the bits of the result will differ");
}

#[test]
fn what_a_gpu_can_fail_in_is_told_in_the_driver_s_words_and_nothing_hangs() {
    let Some(machine) = Host::new() else { return };
    for (variable, value, words) in [
        ("FAKE_CUDA_FAIL", "kernel:40:700", ["code 700", "rank "]),
        ("FAKE_CUDA_FAIL", "cuModuleLoadData:1:209", ["code 209", "hint: "]),
        ("FAKE_CUDA_MEMORY", "60000", ["bytes left", "hint: "]),
        ("FAKE_CUDA_DEVICES", "0", ["no GPU", "hint: "]),
    ] {
        let settings = format!("{MLP} steps=3 devices=cuda:0 ranks=2 max_restarts=1 detect=300ms");
        let failed = machine.hurt(variable, value, &settings);
        assert!(
            matches!(failed.code, Some(1..=3)),
            "{variable}={value}: {:?}\n{}",
            failed.code,
            failed.stderr
        );
        for words in words {
            failed.said(words);
        }
        assert!(!failed.stderr.contains("RUST_BACKTRACE"), "{}", failed.stderr);
    }
    // A compiler of CUDA 13 and a driver of CUDA 12: there is no other compiler, so it is told and tried.
    let newer = machine.hurt("FAKE_CUDA_VERSION", "12040", &format!("{MLP} steps=1 devices=cuda:0"));
    newer.succeeded();
    newer.said("is newer than the driver");
    let old = machine.hurt("FAKE_CUDA_VERSION", "11040", &format!("{MLP} steps=3 devices=cuda:0"));
    old.ended_with(2);
    old.said("too old");
}

#[test]
fn what_only_the_cpu_has_is_refused_for_a_gpu_and_the_rest_is_not() {
    let data = || dtrain::data::open(&Source::Digits(DigitsOptions::default()));
    let own = Own::new("own", data, |_| Chain::new().then(Linear::new(10)));
    let config =
        |settings: &[&str]| Config::parse(None, settings, Machine { cores: 2, gpus: |_, _| 0 }).unwrap();
    let mine = config(&["data.kind=own", "model.kind=own"]);
    let refused = Plan::open(&mine, Some(dtrain::Brought::Stages(own)))
        .unwrap()
        .check_device()
        .unwrap_err()
        .to_string();
    assert!(refused.contains("made for the CPU"), "{refused}");
    let own = own.on_gpus(|_| Chain::new().then(Linear::new(10)));
    Plan::open(&mine, Some(dtrain::Brought::Stages(own)))
        .unwrap()
        .check_device()
        .expect("it has one for GPUs");
    Plan::open(&config(&[]), None).unwrap().check_device().unwrap();
    Plan::open(&config(&["data.augment=[mixup]"]), None).unwrap().check_device().unwrap();
    Plan::open(&config(&["optimizer.kind=muon"]), None).unwrap().check_device().unwrap();
    let folder = folder();
    let table = folder.path().join("table.csv");
    write_table(&table, 50);
    let path = format!("data.path={}", table.display());
    let volumes = config(&["data.kind=csv", &path, "data.shape=[1,2,4,4]", "model=cnn3d"]);
    let volumes = Plan::open(&volumes, None).expect("a table that is there");
    volumes.check_device().expect("convolutions over volumes");
}

/// `examples/own_network.rs`: a program of its own whose model is made for any device.
#[test]
fn a_model_of_ones_own_trains_on_gpus_and_on_data_that_dtrain_reads() {
    if !has_turn(23) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let beside = std::env::current_exe().expect("this test is a file");
    let program = beside.ancestors().nth(2).expect("a folder of a build").join("examples/own_network");
    if !program.is_file() {
        eprintln!("skipped: `cargo build --examples` makes {}", program.display());
        return;
    }
    let pictures: Vec<u8> = (0..40 * 3 * 64).map(|i| (i * 37 % 251) as u8).collect();
    let classes: Vec<u8> = (0..40).map(|i| i % 4).collect();
    for (name, bytes) in
        [("x.npy", npy("|u1", &[40, 3, 8, 8], &pictures)), ("y.npy", npy("|u1", &[40], &classes))]
    {
        std::fs::write(machine.path().join(name), bytes).expect("a file");
    }
    let train = |settings: &str| {
        let mut command = std::process::Command::new(&program);
        command.current_dir(machine.path()).args(["--json", "global_batch=16", "micro_batch=4", "steps=2"]);
        finish(machine.equip({
            command.args(settings.split(' '));
            command
        }))
    };
    for data in ["data.kind=own", "data.kind=npy data.inputs=x.npy data.targets=y.npy data.val_split=0"] {
        let one = train(&format!("{data} ranks=1 devices=cuda:0"));
        one.succeeded();
        let two = train(&format!("{data} ranks=2 devices=cuda:0,1"));
        assert_eq!((two.digest(), devices(&two).len()), (one.digest(), 2), "{data}");
        let cores = train(&format!("{data} ranks=2 devices=cpu"));
        assert_eq!(cores.digest(), train(&format!("{data} ranks=1 devices=cpu")).digest(), "{data}");
    }
    let table = train("data.kind=csv data.path=none.csv");
    table.ended_with(2);
    table.said("none.csv");
}

#[test]
fn a_machine_without_gpus_refuses_them_before_anything_is_written_and_plans_for_its_cores() {
    let folder = folder();
    let mut command = dtrain(folder.path(), &format!("train --json {MLP} steps=3 devices=cuda:0"));
    command.env("DTRAIN_LIBRARY_ONLY", "1").env("DTRAIN_LIBRARY_PATH", folder.path());
    let refused = finish(command);
    refused.ended_with(2);
    refused.said("hint: ");
    assert!(!folder.path().join("runs").exists(), "nothing is written");
    let (plan, _) = output(folder.path(), &format!("plan {MLP} devices=auto"));
    plan.succeeded();
}

/// Many blocks, which keep most of what a pass needs.
const DEEP: &str = "data.kind=text data.path=text.txt data.context=32 global_batch=16 micro_batch=8 model.kind=gpt model.layers=6 \
                    model.width=16 model.heads=2 model.dropout=0.1 steps=2 ranks=1 devices=cuda:0";
/// `dtrain plan` names 2.6 MiB with blocks that are computed once, and 1.2 with those that are computed twice; a rank takes some more
/// beside, for batches and for what operations want.
const SHORT: usize = 2_500_000;

#[test]
fn a_micro_batch_without_room_is_made_smaller_where_that_was_asked_for() {
    if !has_turn(14) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let hurt = |bytes: usize, more: &str| {
        machine.hurt(
            "FAKE_CUDA_MEMORY",
            &bytes.to_string(),
            &format!("{DEEP} max_restarts=0 oom=shrink {more}"),
        )
    };
    let has = |run: &Finished, note: &str| run.stderr.matches(note).count();
    let asked = machine.train(&format!("{DEEP} name=asked"));
    // Enough with blocks that are computed twice: nothing is changed.
    let run = hurt(SHORT, "");
    run.succeeded();
    assert_eq!((run.digest(), has(&run, "oom: shrink")), (asked.digest(), 0), "{}", run.stderr);
    let run = hurt(SHORT, "recompute=off name=smaller");
    run.succeeded();
    let note =
        "oom: shrink: cuda:0 has no room for micro_batch=8; it is 4 now, with other bits than those of 8";
    assert_eq!(has(&run, note), 1, "{}", run.stderr);
    let four = machine.train(&format!("{DEEP} micro_batch=4"));
    assert!(run.digest() == four.digest() && run.digest() != asked.digest());
    let stored =
        std::fs::read_to_string(machine.path().join("runs/smaller/config.yaml")).expect("its config");
    assert!(stored.contains("micro_batch: 4") && stored.contains("oom: shrink"), "{stored}");
    // Two ranks on a GPU need twice as much.
    let run = hurt(SHORT, "recompute=off ranks=2");
    run.succeeded();
    run.said("it is 2 now");
    // A run that has begun keeps its bits.
    let resumed = machine.hurt("FAKE_CUDA_MEMORY", "750000", "--resume runs/asked oom=shrink");
    resumed.ended_with(2);
    resumed.said("cuda:0 has room for 2, and this run has begun with 8");
    resumed.said("hint: its bits would change: --fork micro_batch=2");
    let none = hurt(400_000, "");
    none.ended_with(2);
    none.said("cuda:0 has no room for a single sample");
    // What the CPU has is not asked.
    machine.train(&DEEP.replace("devices=cuda:0", "devices=cpu oom=shrink")).succeeded();
}

#[test]
fn a_model_that_has_no_room_is_computed_in_less_and_then_told_what_has_room() {
    if !has_turn(3) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let roomy = machine.train(DEEP);
    let hurt = |bytes: usize, more: &str| {
        machine.hurt("FAKE_CUDA_MEMORY", &bytes.to_string(), &format!("{DEEP} max_restarts=0 {more}"))
    };
    let on = |run: &Finished| devices(run).into_iter().next().expect("one rank");
    assert!(!on(&roomy).contains("twice"), "{}", on(&roomy));
    let short = hurt(SHORT, "");
    short.succeeded();
    assert!(on(&short).contains("blocks computed twice"), "{}", on(&short));
    assert_eq!(short.digest(), roomy.digest(), "less memory changes no bit");
    let always = machine.train(&format!("{DEEP} recompute=on"));
    assert!(on(&always).contains("blocks computed twice"), "{}", on(&always));
    assert_eq!(always.digest(), roomy.digest());
    let never = hurt(SHORT, "recompute=off");
    assert!(matches!(never.code, Some(1..=3)), "{:?}\n{}", never.code, never.stderr);
    never.said("hint: there is room for micro_batch=4");
    hurt(SHORT, "recompute=off micro_batch=4").succeeded();
    // Whatever there is, it is enough and changes nothing, or the error says what it is enough for: never a step that fails.
    for bytes in [1_250_000, 2_250_000, 3_500_000] {
        let run = hurt(bytes, "");
        match run.code {
            Some(0) => assert_eq!(run.digest(), roomy.digest(), "{bytes} bytes"),
            _ => run.said("hint: there is room for micro_batch="),
        }
    }
}
