//! Training on GPUs whose gradients go over NCCL from the memory in which they were computed. Judged from outside: the bits are
//! those of a run whose gradients go through the host, a rank that dies inside of an all-reduce costs nothing, and what there is no
//! room for is said.
//!
//! The driver is that of `crates/fake-cuda`, the library that of `crates/fake-nccl`, which puts its work on the driver's streams.

use crate::harness::gpus::Host;
use crate::harness::nccl::Stand;
use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, Finished, GPT, GPT2, MLP, Running, Signal, audit_is_clean, checkpoints, dtrain, finish, lives,
    signal, write_table,
};
use std::collections::BTreeSet;
use std::process::Command;

/// Two groups of a barrier, then three a step, of which the second carries the gradients: those of the eighth step.
const INSIDE: u32 = 2 + 3 * 7 + 2;
/// Gradients of small models that travel in several parts, while the rest of them is computed.
const CUT: &str = "bucket_bytes=1KiB";

fn machine() -> Option<Host> {
    Host::new().map(Host::with_nccl)
}

#[track_caller]
fn is_undisturbed(machine: &Host, run: &Finished, digest: &str, steps: u64) {
    assert_eq!(run.digest(), digest, "{}", run.stderr);
    assert_eq!(run.steps(), (1..=steps).collect::<Vec<u64>>(), "{}", run.stderr);
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    audit_is_clean(machine.path(), "hurt");
}

#[test]
fn every_world_has_the_bits_of_gradients_that_go_through_the_host() {
    if !has_turn(19) {
        return;
    }
    let Some(machine) = machine() else { return };
    for (model, worlds) in [
        (MLP, &[(1, ""), (2, ""), (5, CUT), (9, ""), (3, "isolation=thread")][..]),
        (CNN, &[(3, CUT)]),
        (GPT, &[(3, CUT)]),
        (GPT2, &[(2, "recompute=on bucket_bytes=1KiB")]),
    ] {
        let model = format!("{model} steps=3");
        let want = machine.train(&format!("{model} devices=cuda:0 ranks=2")).digest();
        for (gpus, how) in worlds {
            let log = "--log dtrain_runtime=debug";
            let run = finish(machine.on_gpus(*gpus, &format!("{model} {how} {log}")));
            assert_eq!(run.digest(), want, "{model} on {gpus} {how}\n{}", run.stderr);
            if how.contains(CUT) && !model.contains("model.kind=mlp") {
                run.said("gradients are kept in slots on the device, and travel while the rest is computed");
            }
            run.said("gradients go over NCCL 2.32.3");
        }
    }
}

#[test]
fn a_ring_and_bf16_and_a_validation_work_too() {
    if !has_turn(18) {
        return;
    }
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} steps=8");
    let tree = finish(machine.on_gpus(3, &model)).digest();
    let ring = || finish(machine.on_gpus(3, &format!("{model} reduce=ring"))).digest();
    let sum = ring();
    assert_eq!(sum, ring(), "the library adds in one order");
    assert_ne!(sum, tree, "and not along the tree");
    let rounded = format!("{MLP} steps=4 precision=bf16");
    let want = machine.train(&format!("{rounded} devices=cuda:0 ranks=1")).digest();
    assert_eq!(finish(machine.on_gpus(2, &rounded)).digest(), want);
    let epochs = format!("{MLP} epochs=1");
    let want = machine.train(&format!("{epochs} devices=cuda:0 ranks=1"));
    let over_nccl = finish(machine.on_gpus(2, &epochs));
    assert_eq!(over_nccl.digest(), want.digest());
    for key in ["val_loss", "val_accuracy", "train_loss"] {
        assert_eq!(over_nccl.summary()[key], want.summary()[key], "{key}");
    }
}

#[test]
fn a_rank_killed_inside_an_all_reduce_costs_no_step_and_no_bit() {
    if !has_turn(23) {
        return;
    }
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} steps=24 name=hurt");
    let want = machine.train(&format!("{MLP} steps=24 devices=cuda:0 ranks=1 name=whole")).digest();
    let mut command = machine.on_gpus(3, &model);
    let stand = Stand::new(&mut command, machine.path(), 1, INSIDE);
    let mut running = Running::of(command);
    running.wait_for_step(2);
    let pids = running.rank_pids();
    let victim = stand.wait(&running);
    assert_eq!(victim, pids[1]);
    signal(Signal::KILL, victim);
    running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    assert!(lives(pids[0]) && lives(pids[2]), "the others go on");
    let run = running.finish();
    is_undisturbed(&machine, &run, &want, 24);
    assert_eq!(run.events("fault").count(), 1, "{}", run.stderr);
}

#[test]
fn two_kills_one_after_the_other_cost_no_step_either() {
    if !has_turn(16) {
        return;
    }
    let Some(machine) = machine() else { return };
    let want = machine.train(&format!("{MLP} steps=48 devices=cuda:0 ranks=1 name=whole")).digest();
    let mut command = machine.on_gpus(3, &format!("{MLP} steps=48 name=hurt"));
    let stand = Stand::new(&mut command, machine.path(), 1, INSIDE);
    let mut running = Running::of(command);
    running.wait_for_step(2);
    let survivor = running.rank_pids()[0];
    let first = stand.wait(&running);
    // Whoever is rank 1 in a later generation stands there too.
    let again = stand.again();
    signal(Signal::KILL, first);
    let second = again.wait(&running);
    assert_ne!(first, second);
    signal(Signal::KILL, second);
    running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    assert!(lives(survivor), "rank 0 was never hurt");
    let run = running.finish();
    is_undisturbed(&machine, &run, &want, 48);
    assert_eq!(run.events("fault").count(), 2, "{}", run.stderr);
}

#[test]
fn a_lost_rank_zero_makes_way_for_another_that_makes_the_next_id() {
    if !has_turn(7) {
        return;
    }
    let Some(machine) = machine() else { return };
    let want = machine.train(&format!("{MLP} steps=24 devices=cuda:0 ranks=1 name=whole")).digest();
    let mut command = machine.on_gpus(3, &format!("{MLP} steps=24 name=hurt"));
    let stand = Stand::new(&mut command, machine.path(), 0, INSIDE);
    let mut running = Running::of(command);
    running.wait_for_step(2);
    let pids = running.rank_pids();
    signal(Signal::KILL, stand.wait(&running));
    running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    assert!(lives(pids[1]) && lives(pids[2]), "the others go on");
    is_undisturbed(&machine, &running.finish(), &want, 24);
}

#[test]
fn a_rank_killed_while_parts_of_its_gradient_travel_costs_nothing_either() {
    if !has_turn(7) {
        return;
    }
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} model.hidden=[24,24] steps=24");
    let want = machine.train(&format!("{model} devices=cuda:0 ranks=1 name=whole")).digest();
    let mut command = machine.on_gpus(3, &format!("{model} name=hurt {CUT}"));
    // Two groups of a barrier. A step has two for each part, of which this model has two, and one for the records: this is the
    // first of the eighth step, while the rank computes.
    let stand = Stand::new(&mut command, machine.path(), 1, 2 + 5 * 7 + 1);
    let mut running = Running::of(command);
    running.wait_for_step(2);
    let victim = stand.wait(&running);
    signal(Signal::KILL, victim);
    running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    is_undisturbed(&machine, &running.finish(), &want, 24);
}

#[test]
fn a_rank_killed_anywhere_and_a_resumed_run_have_the_same_bits() {
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} checkpoint.every=8~steps");
    let want = machine.train(&format!("{model} steps=40 devices=cuda:0 ranks=1 name=whole")).digest();
    // Of three, one has the state while another one is lost and the third comes back.
    let mut running = Running::of(machine.on_gpus(3, &format!("{model} steps=40 name=hurt")));
    for (rank, step) in [(1, 5), (0, 15)] {
        running.wait_for_step(step);
        let pids = running.rank_pids();
        signal(Signal::KILL, pids[rank]);
        running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    }
    is_undisturbed(&machine, &running.finish(), &want, 40);
    let folder = machine.path().join("runs/hurt");
    let last = checkpoints(&folder).into_iter().find(|path| path.to_string_lossy().ends_with("s000040"));
    std::fs::remove_dir_all(last.expect("the last checkpoint")).expect("a folder of this test");
    let resumed = finish(machine.on_gpus(2, &format!("{model} steps=40 name=hurt --resume")));
    assert_eq!(resumed.digest(), want, "{}", resumed.stderr);
    assert_eq!(resumed.steps(), (33..=40).collect::<Vec<u64>>());
}

#[test]
fn a_rank_that_is_stopped_inside_an_all_reduce_is_replaced() {
    if !has_turn(24) {
        return;
    }
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} steps=24 detect=1s");
    let want = machine.train(&format!("{model} devices=cuda:0 ranks=1 name=whole")).digest();
    let mut command = machine.on_gpus(2, &format!("{model} name=hurt"));
    let stand = Stand::new(&mut command, machine.path(), 1, INSIDE);
    let mut running = Running::of(command);
    running.wait_for_step(2);
    let survivor = running.rank_pids()[0];
    signal(Signal::STOP, stand.wait(&running));
    let fault = running.wait_for(|line| line["event"] == "fault").expect("it is named");
    assert_eq!(fault["rank"], 1, "{fault}");
    running.wait_for(|line| line["event"] == "recovery").expect("it comes back");
    assert!(lives(survivor), "the communicator of the other one was aborted, and its process goes on");
    is_undisturbed(&machine, &running.finish(), &want, 24);
}

#[test]
fn a_library_that_does_not_come_back_from_an_abort_ends_its_rank_and_not_the_run() {
    if !has_turn(21) {
        return;
    }
    let Some(machine) = machine() else { return };
    let model = format!("{MLP} steps=24 detect=500ms checkpoint.every=4~steps");
    let want = machine.train(&format!("{model} devices=cuda:0 ranks=1 name=whole")).digest();
    let mut command = machine.on_gpus(2, &format!("{model} name=hurt"));
    command.env("FAKE_NCCL_STUCK_ABORT", "1");
    let stand = Stand::new(&mut command, machine.path(), 1, INSIDE);
    let mut running = Running::of(command);
    running.wait_for_step(2);
    signal(Signal::KILL, stand.wait(&running));
    let run = running.finish();
    assert_eq!(run.digest(), want, "{}", run.stderr);
    let words: Vec<String> = run.events("fault").map(ToString::to_string).collect();
    assert!(words.iter().any(|fault| fault.contains("was not aborted after")), "{words:?}");
    let pids: BTreeSet<u64> = run
        .events("rank_started")
        .filter(|line| line["member"] == 0)
        .map(|line| line["pid"].as_u64().expect("a pid"))
        .collect();
    assert_eq!(pids.len(), 2, "the survivor was replaced");
}

#[test]
fn several_ranks_on_one_gpu_are_refused_unless_the_library_was_told_to_take_them() {
    if !has_turn(20) {
        return;
    }
    let Some(machine) = machine() else { return };
    let settings = format!("{MLP} steps=3 devices=cuda:0,1 ranks=3 backend=nccl");
    let refused = machine.train(&settings);
    refused.ended_with(2);
    refused.said("backend: NCCL takes one rank on a GPU, and there are 3 for 2");
    refused.said("hint: write ranks=2, or backend=host, which takes several");
    assert!(!machine.path().join("runs").exists(), "nothing is written");
    let told = machine.hurt("NCCL_MULTI_RANK_GPU_ENABLE", "1", &settings);
    assert_eq!(told.digest(), machine.train(&format!("{MLP} steps=3 devices=cuda:0 ranks=1")).digest());
}

#[test]
fn the_slots_are_part_of_what_a_model_needs_on_a_gpu() {
    if !has_turn(24) {
        return;
    }
    let Some(machine) = machine() else { return };
    // A table has few rows to be validated on, one by one.
    write_table(&machine.path().join("table.csv"), 60);
    let model = "data.kind=csv data.path=table.csv data.shape=[32] global_batch=4 micro_batch=1 model.kind=mlp \
                 model.hidden=[288,256] max_restarts=0 steps=1";
    let with = |bytes: u64, mut command: Command| {
        command.env("FAKE_CUDA_MEMORY", bytes.to_string());
        finish(command)
    };
    let through_host = || machine.command(&format!("{model} devices=cuda:0,1 ranks=2 backend=host"));
    let over_nccl = || machine.on_gpus(2, model);
    let plenty = with(1 << 30, over_nccl()).digest();
    // One gradient has 84 259 elements: 337 kB. A rank has two of four micro-batches, so two slots, and room for
    // its half of its peer's root, of which there is but one bucket.
    let least = |command: &dyn Fn() -> Command| {
        let (mut short, mut enough) = (1_000_000, 4_200_000);
        while enough - short > 100_000 {
            let middle = (short + enough) / 2;
            let has_room = with(middle, command()).code == Some(0);
            *(if has_room { &mut enough } else { &mut short }) = middle;
        }
        enough
    };
    let (host, nccl) = (least(&through_host), least(&over_nccl));
    assert!((850_000..1_250_000).contains(&(nccl - host)), "{host} bytes through the host, {nccl} over NCCL");
    assert_eq!(with(nccl, over_nccl()).digest(), plenty);
    let short = with(host, over_nccl());
    assert!(matches!(short.code, Some(1..=3)), "{:?}", short.code);
    short.said("hint: ");
    let planned = |backend: &str| {
        let arguments = format!("plan --json {model} devices=cuda:0,1 ranks=2 backend={backend}");
        let run = finish(machine.equip(dtrain(machine.path(), &arguments)));
        run.succeeded();
        run.lines[0]["memory_bytes"].clone()
    };
    let (beside, floats) =
        (planned("nccl")["gradients for NCCL"].as_u64().expect("bytes"), 4 * (2 * 84_259 + 42_131));
    assert!(
        (floats..floats + 8_192).contains(&beside),
        "{beside} bytes: two slots, a half that is cut at a line, and a little"
    );
    assert!(planned("host").get("gradients for NCCL").is_none());
}
