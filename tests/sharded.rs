//! A state of which each rank holds some shards: the bits are those of one rank, whoever dies, and wherever it is gone on with.

use crate::harness::hosts::Hosts;
use crate::harness::network::{Network, Weather};
use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, GPT, GPT2, MLP, Rng, Running, Signal, WIDE, audit_is_clean, checkpoints, folder, is_whole, ranks_of,
    refused, seed, signal, train, try_signal_to, whole_digest,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SHARDED: &str = "state=sharded threads=1";
const GRADIENTS: &str = "shard=gradients";
const PARAMETERS: &str = "shard=parameters";

#[test]
fn shards_on_any_number_of_ranks_give_the_digest_of_one_rank_that_has_the_whole_state() {
    let folder = folder();
    for (model, ways) in [
        (format!("{MLP} steps=40"), &["ranks=1", "ranks=2", "ranks=3", "ranks=5", "ranks=8"][..]),
        (format!("{CNN} steps=20 verify=5"), &["ranks=2", "ranks=4 redundancy=3", "ranks=7 redundancy=1"]),
        (format!("{GPT} steps=20 ema=0.9"), &["ranks=2", "ranks=3 isolation=thread", "ranks=6 recompute=on"]),
        (format!("{WIDE} steps=20 optimizer.kind=sgd"), &["ranks=3 optimizer.kind=sgd"]),
        (format!("{MLP} steps=20 wire=bf16"), &["ranks=3"]),
    ] {
        let whole = whole_digest(&model);
        for way in ways {
            let run = train(folder.path(), &format!("{model} {SHARDED} {way}"));
            assert_eq!(run.digest(), whole, "{model} {way}\n{}", run.stderr);
        }
    }
}

#[test]
fn gradients_and_parameters_in_windows_have_the_bits_of_whole_ones_on_any_number_of_ranks() {
    let folder = folder();
    // Every day the first one; the others take turns.
    let models = [
        (format!("{WIDE} steps=30"), &["ranks=1", "ranks=3"][..]),
        (format!("{WIDE} steps=30"), &["ranks=2", "ranks=5", "ranks=8"]),
        (format!("{CNN} steps=40 verify=5"), &["ranks=2", "ranks=4 redundancy=3", "ranks=7 redundancy=1"]),
        // A table that two stages share, and parameters that nobody trains.
        (
            format!("{GPT2} steps=20 ema=0.9 model.width=64"),
            &["ranks=2", "ranks=3 isolation=thread", "ranks=6 recompute=on"],
        ),
        (format!("{WIDE} steps=20 model.freeze=[\"0.*\"] optimizer.kind=sgd"), &["ranks=3"]),
        (format!("{MLP} steps=20 wire=bf16"), &["ranks=3"]),
        // Of a validation ranks have unlike numbers of micro-batches.
        (format!("{MLP} steps=2 global_batch=8 micro_batch=2"), &["ranks=2 redundancy=1", "ranks=4"]),
    ];
    for (number, (model, ways)) in models.into_iter().enumerate() {
        if number > 0 && !has_turn(4 * number - 1) {
            continue;
        }
        let whole = whole_digest(&model);
        for way in ways.iter().flat_map(|way| [GRADIENTS, PARAMETERS].map(|level| format!("{level} {way}"))) {
            let run = train(folder.path(), &format!("{model} {SHARDED} {way}"));
            assert_eq!(run.digest(), whole, "{model} {way}\n{}", run.stderr);
        }
    }
}

/// The files of the newest checkpoint, tensor by tensor: names and bytes.
fn tensors(run: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let newest = checkpoints(run).pop().expect("a checkpoint");
    let files = fs::read_dir(newest).unwrap().map(|entry| entry.unwrap().path());
    let shards = files.filter(|path| path.extension().is_some_and(|it| it == "safetensors"));
    let mut all = BTreeSet::new();
    for shard in shards {
        let bytes = fs::read(shard).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let about: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        for (name, tensor) in about.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
            let at = |n: usize| 8 + header + tensor["data_offsets"][n].as_u64().unwrap() as usize;
            all.insert((name.clone(), bytes[at(0)..at(1)].to_vec()));
        }
    }
    all
}

#[test]
fn a_checkpoint_of_shards_is_that_of_a_whole_state_and_each_goes_on_as_the_other_on_any_world() {
    if !has_turn(2) {
        return;
    }
    let folder = folder();
    let model = format!("{CNN} checkpoint.every=10~steps threads=1");
    let whole = whole_digest(&format!("{CNN} steps=40"));
    let begun = |name: &str, how: &str| {
        train(folder.path(), &format!("{model} steps=20 name={name} {how}")).succeeded();
        tensors(&folder.path().join("runs").join(name))
    };
    let plain = begun("plain", "ranks=2");
    assert!(plain.iter().any(|(name, _)| name.starts_with("optimizer.v.")) && plain.len() > 20);
    assert!(begun("cut", "ranks=3 state=sharded") == plain, "the checkpoints differ");
    assert!(begun("windows", "ranks=3 state=sharded shard=parameters ema=0.9 verify=7").len() > plain.len());
    for (name, how) in [("cut", "ranks=2"), ("plain", "ranks=5 state=sharded shard=parameters")] {
        let run = train(folder.path(), &format!("{model} steps=40 name={name} {how} --resume"));
        assert_eq!(run.digest(), whole, "{name} {how}\n{}", run.stderr);
        assert_eq!(run.steps(), (21..=40).collect::<Vec<u64>>());
        audit_is_clean(folder.path(), name);
    }
    // A fork that keeps the optimizer's state has it in shards, too.
    let fork = |name: &str, how: &str| {
        let words = format!(
            "{model} steps=30 name={name} {how} --resume plain --fork --keep-optimizer optimizer.lr=0.02"
        );
        let run = train(folder.path(), &words);
        run.succeeded();
        run.digest()
    };
    assert_eq!(fork("whole-fork", "ranks=2"), fork("cut-fork", "ranks=4 state=sharded shard=parameters"));
    let verified = crate::harness::said(folder.path(), "checkpoint verify runs/cut");
    assert!(verified.contains("s000040"), "{verified}");
}

#[test]
fn a_run_in_shards_begins_with_the_parameters_of_a_file_as_any_other() {
    let folder = folder();
    train(folder.path(), &format!("{CNN} steps=3 name=first")).succeeded();
    crate::harness::said(folder.path(), "export runs/first --to safetensors -o first.safetensors");
    let from = |how: &str| {
        let run =
            train(folder.path(), &format!("{CNN} steps=5 threads=1 model.init_from=first.safetensors {how}"));
        run.succeeded();
        run.digest()
    };
    for how in ["", GRADIENTS, PARAMETERS] {
        assert_eq!(from(&format!("ranks=3 state=sharded {how}")), from("ranks=1"), "{how}");
    }
}

#[test]
fn whichever_rank_is_killed_at_whatever_moment_no_step_is_lost_and_its_shards_have_two_holders_again() {
    if has_turn(15) {
        kills_cost_nothing("");
    }
}

#[test]
fn kills_while_windows_of_gradients_travel_cost_no_step_and_no_bit() {
    if has_turn(22) {
        kills_cost_nothing(GRADIENTS);
    }
}

#[test]
fn kills_while_windows_of_parameters_travel_cost_no_step_and_no_bit() {
    if has_turn(7) {
        kills_cost_nothing(PARAMETERS);
    }
}

#[test]
fn kills_after_which_mirrors_are_copied_when_the_ranks_are_back_cost_no_step_and_no_bit() {
    if has_turn(19) {
        kills_cost_nothing("remirror=lazy");
    }
}

fn kills_cost_nothing(how: &str) {
    let (seed, kills) = (seed(), 8);
    println!("DTRAIN_TEST_SEED={seed} repeats this");
    let mut rng = Rng(seed);
    let model = format!("{WIDE} steps=900 checkpoint.every=none");
    let folder = folder();
    let mut run = Running::start(
        folder.path(),
        &format!("{model} {SHARDED} {how} ranks=4 name=hurt max_restarts=1000"),
    );
    run.wait_for_step(10);
    for kill in 0..kills {
        let ranks = run.rank_pids();
        let moment = std::time::Instant::now() + Duration::from_micros(rng.below(20_000));
        run.wait_for(|_| std::time::Instant::now() >= moment);
        try_signal_to(Signal::KILL, ranks[rng.below(ranks.len() as u64) as usize]);
        // One at a time: whoever comes back holds its shards before the next one goes.
        let back = run.wait_for(|line| line["event"] == "recovery");
        assert!(back.is_some(), "seed {seed}, kill {kill}: {}", run.story());
        run.wait_for_world(4);
    }
    let run = run.finish();
    run.succeeded();
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    is_whole(folder.path(), "hurt", &whole_digest(&model), 900);
}

#[test]
fn a_rank_that_is_slow_is_named_whatever_is_in_shards() {
    if !has_turn(1) {
        return;
    }
    let folder = folder();
    for level in ["shard=optimizer", GRADIENTS, PARAMETERS] {
        let settings =
            format!("{WIDE} global_batch=64 micro_batch=16 checkpoint.every=none {SHARDED} {level}");
        let mut run = Running::start(folder.path(), &format!("{settings} steps=1000000 ranks=2"));
        run.wait_for_step(5);
        let pid = run.rank_pids()[1];
        let is_told = AtomicBool::new(false);
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_told.load(Ordering::Relaxed) {
                    signal(Signal::STOP, pid);
                    std::thread::sleep(Duration::from_millis(20));
                    signal(Signal::CONT, pid);
                    std::thread::sleep(Duration::from_millis(4));
                }
            });
            let told =
                run.wait_for(|line| line["event"] == "straggler" || line["step"].as_u64() > Some(2_000));
            is_told.store(true, Ordering::Relaxed);
            told
        });
        let told = told.expect("it goes on");
        assert_eq!((&told["event"], &told["rank"]), (&"straggler".into(), &1.into()), "{level}");
        signal(Signal::INT, run.pid());
        run.finish();
    }
}

#[test]
fn hosts_of_which_one_alone_sees_the_checkpoint_go_on_with_it_in_shards() {
    if !has_turn(16) {
        return;
    }
    for level in ["", GRADIENTS, PARAMETERS] {
        let model = format!("{MLP} threads=1 state=sharded {level}");
        let hosts = Hosts::on_loopback("2");
        for (steps, more) in [(20, ""), (40, "--resume")] {
            let other = hosts.start(1, "ranks=2");
            let run = hosts.start(0, &format!("{model} steps={steps} ranks=1 name=hosts {more}")).finish();
            other.finish().succeeded();
            let whole = whole_digest(&format!("{MLP} steps={steps}"));
            assert_eq!(run.digest(), whole, "{level} {}", run.stderr);
        }
    }
}

#[test]
fn hosts_of_which_one_is_lost_with_all_its_ranks_go_on_with_what_their_mirrors_hold() {
    if !has_turn(13) {
        return;
    }
    lost_hosts_cost_nothing("");
}

#[test]
fn a_lost_host_whose_ranks_held_windows_of_gradients_costs_nothing_either() {
    if has_turn(0) {
        lost_hosts_cost_nothing(GRADIENTS);
    }
}

#[test]
fn a_lost_host_whose_ranks_held_the_only_copies_but_one_of_parameters_costs_nothing_either() {
    if has_turn(8) {
        lost_hosts_cost_nothing(PARAMETERS);
    }
}

fn lost_hosts_cost_nothing(how: &str) {
    let weather = Weather { delay: Duration::from_micros(200), one_in: u64::MAX, seed: 1 };
    let network = match Network::build(3, weather) {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: network namespaces cannot be had here ({why})"),
    };
    // Each step meets often there.
    let steps = if how == PARAMETERS { 200 } else { 300 };
    let model = format!("{WIDE} steps={steps} checkpoint.every=none");
    let hosts = Hosts::at(&format!("{}:29400", Network::address(0)), "3");
    let start =
        |host: u32, words: &str| Running::of(network.command(host as usize, &hosts.node(host, words)));
    let mut others = [1, 2].map(|host| Some(start(host, "ranks=2 threads=1")));
    let mut first = start(0, &format!("{model} {SHARDED} {how} ranks=2 name=hosts"));
    first.wait_for_step(50);
    for host in [1, 2] {
        // Both of its ranks at once, and the node with them: each of their shards has its other holder elsewhere.
        let lost: Running = others[host as usize - 1].take().expect("it was started");
        lost.kill_everything();
        drop(lost);
        assert!(first.wait_for(|line| line["event"] == "recovery").is_some(), "{}", first.story());
        others[host as usize - 1] = Some(start(host, "ranks=2 threads=1"));
        first.wait_for_world(6);
        first.wait_for_step(first.last_step() + 20);
    }
    // And one rank of the first host.
    signal(Signal::KILL, ranks_of(first.pid())[1]);
    let run = first.finish();
    run.succeeded();
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    is_whole(&hosts.folder(0), "hosts", &whole_digest(&model), steps);
    for other in others.into_iter().flatten() {
        other.finish().succeeded();
    }
}

/// As a scheduler does that takes back all machines but one: each keeps a shard that none but another one of them has.
#[test]
fn hosts_that_leave_in_one_moment_take_nothing_with_them() {
    let model = format!("{MLP} steps=3000 checkpoint.every=none {SHARDED}");
    let hosts = Hosts::on_loopback("4");
    let mut first = hosts.start(0, &format!("{model} ranks=1 name=hosts"));
    let others = [1, 2, 3].map(|host| hosts.start(host, "ranks=1"));
    first.wait_for_world(4);
    first.wait_for_step(first.last_step() + 50);
    others.iter().for_each(|host| signal(Signal::TERM, host.pid()));
    let run = first.finish();
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    assert_eq!((run.events("fault").count(), &run.summary()["ranks"]), (0, &1.into()), "{}", run.stderr);
    assert_eq!(run.digest(), whole_digest(&model), "{}", run.stderr);
    audit_is_clean(&hosts.folder(0), "hosts");
    for host in others {
        host.finish().ended_with(130);
    }
}

#[test]
fn a_shard_whose_holders_are_all_lost_is_that_of_the_newest_checkpoint_and_the_report_says_why() {
    if !has_turn(15) {
        return;
    }
    let model = format!("{WIDE} steps=400 checkpoint.every=50~steps");
    let folder = folder();
    let words = format!("{model} {SHARDED} ranks=3 redundancy=1 name=risky");
    let mut run = Running::start(folder.path(), &words);
    run.wait_for_checkpoint();
    signal(Signal::KILL, run.rank_pids()[1]);
    let run = run.finish();
    run.succeeded();
    run.said("holds a part of the state, and the ranks that held the rest are lost");
    run.said("redundancy=1");
    assert!(run.summary()["lost_steps"].as_u64().unwrap() < 150, "{}", run.stderr);
    assert_eq!(run.digest(), whole_digest(&model));
    audit_is_clean(folder.path(), "risky");
}

#[test]
fn the_plan_says_what_a_rank_needs_of_a_state_in_shards() {
    let folder = folder();
    let memory = |how: &str| {
        crate::harness::json(folder.path(), &format!("plan --json {WIDE} ranks=4 {how}"))["memory_bytes"]
            .clone()
    };
    let (whole, cut) = (memory(""), memory("state=sharded"));
    let of = |table: &serde_json::Value, row: &str| {
        table[row].as_u64().unwrap_or_else(|| panic!("{row}: {table}"))
    };
    // Half, but for the lines that a shard is cut at.
    let (part, all) = ("optimizer state of shards", "optimizer state");
    assert!(of(&cut, part).abs_diff(of(&whole, all) / 2) < 512, "{part}: {cut} of {whole}");
    // The update reads the sum where it is.
    assert!(cut["gradient of shards"].is_null(), "{cut}");
    assert_eq!(of(&cut, "parameters"), of(&whole, "parameters"));
    // Each level takes less, where there are more layers than windows. The longest window is a hidden layer: of a gradient one is computed, one
    // travels, and a slot has a third; of the parameters one is read and one is coming.
    let (window, deep) = (4 * (512 * 512 + 512), "model.hidden=[512,512,512,512,512,512]");
    let [whole, gradients, parameters] =
        ["", "state=sharded shard=gradients", "state=sharded shard=parameters"]
            .map(|how| memory(&format!("{deep} {how}")));
    assert_eq!(of(&gradients, "windows of a gradient"), 3 * window);
    assert!(of(&gradients, "windows of a gradient") < of(&whole, "one gradient buffer"));
    assert!(of(&parameters, "parameters of shards").abs_diff(of(&whole, "parameters") / 2) < 512);
    assert_eq!(of(&parameters, "windows of parameters"), 2 * window);
}

#[test]
fn what_cannot_be_held_in_shards_is_refused_in_a_sentence() {
    let folder = folder();
    for (how, words) in [
        ("redundancy=3 ranks=2", &["redundancy 3 is more than ranks 2", "hint: "][..]),
        ("reduce=ring", &["state", "ring", "reduce=exact"]),
        ("optimizer.kind=muon", &["state", "optimizer", "hint: "]),
        ("redundancy=0", &["redundancy", "hint: "]),
        ("state=shared", &["state", "sharded"]),
        ("shard=all", &["shard", "optimizer | gradients | parameters", "hint: "]),
    ] {
        refused(folder.path(), &format!("train {MLP} steps=2 state=sharded {how}"), words);
    }
    refused(folder.path(), &format!("train {MLP} steps=2 shard=gradients"), &["shard", "state=sharded"]);
    assert!(!folder.path().join("runs").exists());
}
