//! A state of which each rank holds some shards on its GPU, where there is none: on the driver, the compiler and the collectives of `crates/fake-cuda`
//! and `crates/fake-nccl`. The bits are those of whole states, whatever carries the gradients and whoever dies.

use crate::harness::fake_libraries::{FAKE_NVML, Workshop};
use crate::harness::gpus::Host;
use crate::harness::hosts::Hosts;
use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, GPT, GPT2, MLP, Running, Signal, audit_is_clean, dtrain, finish, is_whole, said, signal,
};

/// Over the memory of the host, and over NCCL.
const OVER: [&str; 2] = ["backend=host", "backend=nccl"];

#[test]
fn shards_on_gpus_have_the_bits_of_whole_states_on_any_ranks_whatever_carries_them() {
    if !has_turn(5) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    for (model, ways) in [
        (format!("{MLP} steps=4 verify=2"), &["ranks=2", "ranks=3 redundancy=1", "ranks=4"][..]),
        (format!("{CNN} steps=3 ema=0.9 precision=bf16"), &["ranks=3"]),
        (format!("{MLP} steps=3 precision=f16 optimizer.kind=sgd"), &["ranks=3"]),
    ] {
        let whole = machine.train(&format!("{model} devices=cuda:0 ranks=1"));
        let alone = machine.train(&format!("{model} devices=cuda:0 ranks=1 state=sharded"));
        assert_eq!(alone.digest(), whole.digest(), "{model} alone\n{}", alone.stderr);
        for (way, over) in ways.iter().flat_map(|way| OVER.map(|over| (way, over))) {
            let gpus: u32 = way["ranks=".len()..][..1].parse().unwrap();
            let list: Vec<String> = (0..gpus).map(|gpu| gpu.to_string()).collect();
            let devices = format!("devices=cuda:{} {over} {way}", list.join(","));
            let mut command = machine.command(&format!("{model} state=sharded {devices}"));
            command.env("FAKE_CUDA_DEVICES", gpus.to_string());
            let run = finish(command);
            assert_eq!(run.digest(), whole.digest(), "{model} {devices}\n{}", run.stderr);
            run.said("state");
        }
    }
}

#[test]
fn gradients_and_parameters_that_travel_in_windows_have_the_bits_of_whole_ones_on_gpus() {
    if !has_turn(10) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    for (model, ways) in [
        (format!("{MLP} steps=4 verify=2"), &["ranks=1", "ranks=2", "ranks=3 redundancy=1"][..]),
        (format!("{CNN} steps=3 ema=0.9 precision=bf16"), &["ranks=3"]),
        (format!("{MLP} steps=3 precision=f16 optimizer.kind=sgd"), &["ranks=2"]),
        (format!("{GPT2} steps=2"), &["ranks=2"]),
    ] {
        let whole = machine.train(&format!("{model} devices=cuda:0 ranks=1"));
        let levels = ["gradients", "parameters"];
        let all =
            ways.iter().flat_map(|way| levels.iter().flat_map(move |level| OVER.map(|o| (way, level, o))));
        for (way, level, over) in all {
            let words = format!(
                "{model} state=sharded shard={level} devices=cuda:0,1,2 {way} {over} --log dtrain_runtime=debug"
            );
            let mut command = machine.command(&words);
            command.env("FAKE_CUDA_DEVICES", "3");
            let run = finish(command);
            assert_eq!(run.digest(), whole.digest(), "{words}\n{}", run.stderr);
            let on_device =
                run.stderr.contains("gradients are kept on the devices of those who hold their shards");
            assert_eq!(on_device, over == "backend=nccl", "{words}\n{}", run.stderr);
        }
    }
}

#[test]
fn parameters_of_a_file_are_cut_into_windows_on_gpus_as_first_ones_are() {
    if !has_turn(17) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    machine.train(&format!("{CNN} steps=3 devices=cuda:0,1 name=first")).succeeded();
    said(machine.path(), "export runs/first --to safetensors -o first.safetensors");
    let from = |how: &str| {
        let run = machine.train(&format!(
            "{CNN} steps=5 ema=0.9 devices=cuda:0,1 model.init_from=first.safetensors {how}"
        ));
        run.succeeded();
        run.digest()
    };
    let whole = from("ranks=1");
    for level in ["optimizer", "gradients", "parameters"] {
        assert_eq!(from(&format!("ranks=2 state=sharded shard={level}")), whole, "{level}");
    }
}

#[test]
fn a_text_in_shards_on_gpus_that_is_gone_on_with_whole_has_the_bits_of_an_undisturbed_run() {
    if !has_turn(20) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    let begun = |name: &str, how: &str| {
        machine.train(&format!("{GPT} devices=cuda:0,1 checkpoint.every=2~steps name={name} {how}"))
    };
    let whole = begun("whole", "steps=5 ranks=2 backend=nccl");
    begun("cut", "steps=2 ranks=2 backend=nccl state=sharded").succeeded();
    let run = begun("cut", "steps=4 ranks=3 backend=host state=replicated --resume");
    run.succeeded();
    assert_eq!(run.steps(), [3, 4]);
    let run = begun("cut", "steps=5 ranks=2 backend=nccl state=sharded --resume");
    assert_eq!(run.digest(), whole.digest(), "{}", run.stderr);
    audit_is_clean(machine.path(), "cut");
}

#[test]
fn a_rank_on_a_gpu_that_is_killed_leaves_its_shards_with_a_mirror() {
    if !has_turn(14) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    let settings = format!("{CNN} steps=40 checkpoint.every=none");
    let whole = machine.train(&format!("{settings} devices=cuda:0 ranks=1")).digest();
    let windows = ["gradients", "parameters"].map(|level| format!("backend=nccl shard={level}"));
    for (at, over) in OVER.map(str::to_owned).into_iter().chain(windows).enumerate() {
        let name = &format!("hurt{at}");
        let mut command = machine
            .command(&format!("{settings} state=sharded devices=cuda:0,1,2 {over} ranks=3 name={name}"));
        command.env("FAKE_CUDA_DEVICES", "3");
        let mut running = Running::of(command);
        for kill in [1, 2] {
            running.wait_for_step(if kill == 1 { 2 } else { running.last_step() + 2 });
            signal(Signal::KILL, running.rank_pids()[kill - 1]);
            running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
            running.wait_for_world(3);
        }
        let hurt = running.finish();
        hurt.succeeded();
        assert_eq!(hurt.summary()["lost_steps"], 0, "{}", hurt.stderr);
        is_whole(machine.path(), name, &whole, 40);
    }
}

/// A model whose state counts, in full on any rank or not.
const WIDE: &str = "data.kind=digits model.kind=mlp model.hidden=[512,512,512] global_batch=8 micro_batch=2 steps=2 ranks=4 devices=cuda:0,1 \
                    redundancy=1 backend=host";

#[test]
fn whole_states_that_gpus_have_no_room_for_are_kept_in_shards_where_that_was_left_to_dtrain() {
    if !has_turn(24) {
        return;
    }
    let (Some(host), Some(workshop)) = (Host::new(), Workshop::open()) else { return };
    host.lay("libnvidia-ml.so.1", &workshop.build("libnvidia-ml.so.1", FAKE_NVML));
    let planned = |how: &str| {
        let plan = finish(host.equip(dtrain(host.path(), &format!("plan --json {WIDE} {how}"))));
        plan.succeeded();
        let rows = plan.lines[0]["memory_bytes"].as_object().expect("a table").values();
        rows.map(|bytes| bytes.as_u64().expect("bytes")).sum::<u64>()
    };
    let (whole, cut) = (planned("state=replicated"), planned("state=sharded"));
    assert!(cut < whole);
    // Two ranks a GPU, each of which has 80 GiB less half of one.
    let run = |free: u64, how: &str| {
        let busy = ((81_920 - 512) << 20) - free;
        let mut command = host.command(&format!("{WIDE} {how}"));
        command.env("FAKE_BUSY", (busy >> 20).to_string());
        finish(command)
    };
    let refused = run(whole + cut, "state=replicated");
    refused.ended_with(2);
    refused.said("free of 80.0 GiB, and 2 ranks need");
    let chosen = run(whole + cut, "");
    chosen.succeeded();
    chosen.said("they keep shards of it (state=sharded)");
    // With less, the gradients go too.
    let windows = planned("state=sharded shard=gradients");
    assert!(windows < cut);
    let more = run(cut + windows, "");
    more.succeeded();
    more.said("they keep shards of it and of gradients (state=sharded shard=gradients)");
    assert_eq!(more.digest(), chosen.digest());
    let least = planned("state=sharded shard=parameters");
    assert!(least < windows);
    let all = run(windows + least, "");
    all.said("they keep shards of all of it (state=sharded shard=parameters)");
    assert_eq!(all.digest(), chosen.digest());
    let roomy = host.train(&format!("{WIDE} name=roomy"));
    assert_eq!(chosen.digest(), roomy.digest());
    assert!(!roomy.stderr.contains("state=sharded"), "{}", roomy.stderr);
}

#[test]
fn hosts_with_a_gpu_each_share_out_a_state_and_one_that_is_lost_takes_no_step_with_it() {
    if !has_turn(23) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let model = format!("{CNN} steps=60 checkpoint.every=none state=sharded devices=cuda:0 ranks=1");
    let hosts = Hosts::on_loopback("3");
    let start = |host: u32, words: &str| Running::of(machine.equip(hosts.node(host, words)));
    let mut others = [1, 2].map(|host| Some(start(host, "devices=cuda:0 ranks=1")));
    let mut first = start(0, &format!("{model} name=hosts"));
    first.wait_for_step(5);
    let lost: Running = others[1].take().expect("it was started");
    lost.kill_everything();
    drop(lost);
    assert!(first.wait_for(|line| line["event"] == "recovery").is_some(), "{}", first.story());
    others[1] = Some(start(2, "devices=cuda:0 ranks=1"));
    first.wait_for_world(3);
    let run = first.finish();
    run.succeeded();
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    let whole = machine.train(&format!("{CNN} steps=60 devices=cuda:0 ranks=1")).digest();
    is_whole(&hosts.folder(0), "hosts", &whole, 60);
    for other in others.into_iter().flatten() {
        other.finish().succeeded();
    }
}

#[test]
fn windows_that_travel_between_gpus_are_part_of_what_is_planned() {
    if !has_turn(12) {
        return;
    }
    let Some(machine) = Host::new() else { return };
    let machine = machine.with_nccl();
    let model = "data.kind=digits model.kind=mlp model.hidden=[512,512,512] global_batch=8 micro_batch=1 steps=2 ranks=2 devices=cuda:0,1 backend=nccl";
    for level in ["gradients", "parameters"] {
        let settings = format!("{model} state=sharded redundancy=1 shard={level}");
        let plan = finish(machine.equip(dtrain(machine.path(), &format!("plan --json {settings}"))));
        plan.succeeded();
        let rows = plan.lines[0]["memory_bytes"].as_object().expect("a table");
        assert!(rows.contains_key("windows for NCCL"), "{rows:?}");
        let planned: u64 = rows.values().map(|bytes| bytes.as_u64().expect("bytes")).sum();
        let with = |bytes: u64| {
            let mut command = machine.command(&format!("{settings} --log dtrain_runtime=debug"));
            command.env("FAKE_CUDA_MEMORY", bytes.to_string());
            let run = finish(command);
            let there = run.stderr.contains("gradients are kept on the devices");
            (run, there)
        };
        let (run, there) = with(planned + planned / 50);
        run.succeeded();
        assert!(there, "{level}: {planned} bytes are planned\n{}", run.stderr);
        // And they are not planned for nothing: who has less is told so once, and nobody tries again.
        for less in [planned * 9 / 10, planned * 3 / 4] {
            let (run, _) = with(less);
            run.ended_with(1);
            run.said("the GPU has no");
            run.said("hint: ");
            assert!(run.events("fault").count() <= 2, "{level}: {planned} bytes are planned\n{}", run.stderr);
        }
    }
}
