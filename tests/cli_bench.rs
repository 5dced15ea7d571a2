//! `dtrain bench collectives`, `scaling` and `gpu-plan` from outside: every key, the sums of bandwidths, what cannot be measured, and
//! what a step costs a GPU.

use crate::harness::turn::has_turn;
use crate::harness::{Finished, children, dtrain, finish, folder, lives, output, try_kill, wait_until_gone};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn bench(arguments: &str) -> Finished {
    let folder = folder();
    finish(dtrain(folder.path(), &format!("bench {arguments} --json")))
}

/// The keys of a line, in order.
fn keys(line: &Value) -> Vec<&str> {
    line.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("no {key} in {line}"))
}

const KEYS: [&str; 12] = [
    "op",
    "ranks",
    "backend",
    "mode",
    "wire",
    "bytes",
    "samples",
    "median_us",
    "least_us",
    "most_us",
    "algo_gb_s",
    "bus_gb_s",
];

#[test]
fn one_two_and_three_ranks_give_a_line_for_each_size_with_every_key() {
    for (ranks, factor) in [(1, 0.0), (2, 1.0), (3, 4.0 / 3.0)] {
        let run = bench(&format!("collectives --ranks {ranks} --sizes 4KiB,20B,100004 --samples 3"));
        run.succeeded();
        let sizes: Vec<u64> = run.lines.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [4096, 20, 100_004]);
        for line in &run.lines {
            assert_eq!(keys(line), KEYS);
            assert_eq!((&line["op"], &line["ranks"]), (&"all_reduce".into(), &ranks.into()));
            assert_eq!((&line["backend"], &line["mode"]), (&"shm".into(), &"exact".into()));
            assert_eq!(line["samples"], 3);
            let [least, median, most] = ["least_us", "median_us", "most_us"].map(|key| number(line, key));
            assert!(0.0 < least && least <= median && median <= most, "{line}");
            let algo = number(line, "bytes") / median / 1e3;
            assert!((number(line, "algo_gb_s") - algo).abs() <= 1e-9 * algo, "{line}");
            assert!((number(line, "bus_gb_s") - algo * factor).abs() <= 1e-9 * algo, "{line}");
        }
    }
}

#[test]
fn every_operation_is_measured_in_processes_and_in_threads_along_tree_and_ring() {
    for (how, backend, mode, wire) in [
        ("", "shm", "exact", "f32"),
        ("--mode ring", "shm", "ring", "f32"),
        ("--isolation thread", "shm", "exact", "f32"),
        ("--isolation thread --mode ring", "queues", "ring", "f32"),
        ("--wire bf16", "shm", "exact", "bf16"),
        ("--isolation thread --mode ring --wire bf16", "queues", "ring", "bf16"),
    ] {
        let run = bench(&format!("collectives --ranks 3 --op all --sizes 12KiB --samples 4 {how}"));
        run.succeeded();
        let operations: Vec<&str> = run.lines.iter().map(|line| line["op"].as_str().unwrap()).collect();
        assert_eq!(
            operations,
            ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "copy"]
        );
        for line in &run.lines {
            assert_eq!((&line["backend"], &line["mode"]), (&backend.into(), &mode.into()), "{how}");
            assert_eq!(line["wire"], wire, "{how}");
            let barrier = line["op"] == "barrier";
            assert_eq!((line["bus_gb_s"].is_null(), line["bytes"] == 0), (barrier, barrier), "{line}");
        }
    }
}

#[test]
fn the_limit_of_the_memory_stands_beside_an_all_reduce() {
    let run = bench("collectives --op all --sizes 64KiB --samples 5 --limit");
    run.succeeded();
    for line in &run.lines {
        let limited = keys(line).len() == KEYS.len() + 3;
        assert_eq!(limited, line["op"] == "all_reduce", "{line}");
        if limited {
            let share = number(line, "limit_us") / number(line, "median_us");
            assert!(share > 0.0 && (number(line, "of_limit") - share).abs() < 1e-9, "{line}");
        }
    }
}

#[test]
fn a_table_for_people_has_units_and_a_row_for_each_size() {
    let folder = folder();
    let (run, text) =
        output(folder.path(), "bench collectives --from 4KiB --to 16KiB --factor 2 --samples 2");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("2 processes on ") && lines[0].contains("shared memory, exact"), "{text}");
    assert!(["size", "median us", "bus GB/s"].iter().all(|name| lines[1].contains(name)), "{text}");
    let sizes: Vec<&str> = lines[2..].iter().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(sizes, ["4KiB", "8KiB", "16KiB"]);
    assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "the columns are aligned:\n{text}");
}

#[test]
fn what_cannot_be_measured_is_one_message_with_a_hint_and_exit_code_2() {
    let folder = folder();
    for (arguments, words) in [
        ("collectives --sizes 4kib", "hint: sizes are written as in 4KiB,64KiB,16MiB"),
        ("collectives --sizes 6", "hint: sizes are written as in"),
        ("collectives --op all_redcue", "hint: did you mean all_reduce?"),
        ("collectives --mode rings", "hint: did you mean ring?"),
        ("collectives --wire half", "hint: there are f32, bf16"),
        ("collectives --ranks 0", "hint: give a number from 1 to 256"),
        ("collectives --ranks 200 --sizes 16GiB", "hint: give a smaller --to"),
        ("collectives --from 1MiB --to 4KiB", "hint: give the smaller size first"),
    ] {
        let (run, text) = output(folder.path(), &format!("bench {arguments}"));
        assert_eq!((run.code, text.as_str()), (Some(2), ""), "{arguments}: {}", run.stderr);
        assert!(run.stderr.contains(words), "{arguments}: {}", run.stderr);
        assert_eq!(run.stderr.matches("error: ").count(), 1, "{}", run.stderr);
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_measurement_with_exit_code_1_and_its_number() {
    let folder = folder();
    let mut command = dtrain(folder.path(), "bench collectives --ranks 3 --sizes 4KiB --samples 100000");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut head = String::new();
    // Its first lines are written before a rank is started.
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut head).unwrap();
    let ranks = loop {
        let ranks = children(child.id());
        if ranks.len() == 3 {
            break ranks;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before anybody was killed");
        std::thread::yield_now();
    };
    try_kill(ranks[1]);
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("was cut short by rank 1") && said.contains("hint: "), "{said}");
    wait_until_gone(&ranks);
    assert!(ranks.iter().all(|rank| !lives(*rank)));
}

#[test]
fn a_rank_of_a_benchmark_is_not_for_people() {
    let folder = folder();
    let (run, _) = output(folder.path(), "bench-rank --rank 0 --parent 1 {}");
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("hint: "), "{}", run.stderr);
}

#[test]
fn scaling_trains_on_one_rank_and_on_more_with_the_batch_of_a_rank_or_of_a_step_fixed() {
    if !has_turn(3) {
        return;
    }
    let run = bench("scaling --work mlp --ranks 2 --seconds 1");
    run.succeeded();
    let of = |key: &str| -> Vec<String> { run.lines.iter().map(|line| line[key].to_string()).collect() };
    assert_eq!(of("scaling"), ["\"weak\"", "\"weak\"", "\"strong\"", "\"strong\""]);
    assert_eq!(of("ranks"), ["1", "2", "1", "2"]);
    assert_eq!(of("global_batch"), ["128", "256", "256", "256"]);
    for line in &run.lines {
        assert_eq!(
            keys(line),
            [
                "scaling",
                "work",
                "ranks",
                "threads",
                "cores",
                "micro_batches",
                "global_batch",
                "samples_per_second",
                "speed_up",
                "efficiency",
                "computing",
                "reducing",
                "other",
                "steps",
                "peak_rss_mb",
            ]
        );
        let efficiency = number(line, "speed_up") / number(line, "ranks");
        assert!((number(line, "efficiency") - efficiency).abs() < 1e-9, "{line}");
        let shares = ["computing", "reducing", "other"].map(|key| number(line, key));
        assert!(shares.iter().all(|share| (0.0..=1.5).contains(share)), "{line}");
        assert!(shares[0] > 0.0 && number(line, "samples_per_second") > 1.0, "{line}");
    }
    assert_eq!((number(&run.lines[0], "speed_up"), number(&run.lines[2], "speed_up")), (1.0, 1.0));
}

/// The numbers that hold without a GPU: from 398 GB, 839 launches of which 366 only converted, and 196 ms.
#[test]
fn a_step_of_gpt2_moves_counts_and_waits_no_more_than_it_may() {
    let plan = bench("gpu-plan");
    plan.succeeded();
    let line = &plan.lines[0];
    assert_eq!((line["work"].as_str(), line["precision"].as_str()), (Some("gpt2"), Some("bf16")));
    assert!((60e9..150e9).contains(&number(line, "bytes_outside_products")), "{line}");
    assert_eq!(number(line, "conversion_launches"), 0.0, "{line}");
    assert!((200.0..420.0).contains(&number(line, "launches")), "{line}");
    assert!((70.0..150.0).contains(&number(line, "predicted_ms")), "{line}");
    assert_eq!(number(line, "host_waits"), 0.0, "{line}");
    // Six for each parameter and token, and what attention multiplies of half a square.
    let products = 6.0 * 123.6e6 * 65_536.0;
    assert!((products..products * 1.2).contains(&number(line, "operations")), "{line}");
    assert!((20e9..40e9).contains(&number(line, "peak_bytes")), "{line}");
}

/// A transformer over values is there without a pass of its own: 256 images of ViT-B/16.
#[test]
fn a_step_of_vit_converts_nothing_and_waits_for_nothing() {
    let plan = bench("gpu-plan --work vit --batch 256");
    plan.succeeded();
    let line = &plan.lines[0];
    assert!((30e9..60e9).contains(&number(line, "bytes_outside_products")), "{line}");
    assert_eq!((number(line, "conversion_launches"), number(line, "host_waits")), (0.0, 0.0), "{line}");
    assert!((200.0..450.0).contains(&number(line, "launches")), "{line}");
    assert!((30.0..60.0).contains(&number(line, "predicted_ms")), "{line}");
    // Six for each parameter and place, and what attention multiplies of a whole square.
    let products = 6.0 * 85.8e6 * 256.0 * 197.0;
    assert!((products..products * 1.1).contains(&number(line, "operations")), "{line}");
    assert!((15e9..25e9).contains(&number(line, "peak_bytes")), "{line}");
}

/// Rotary positions and gates are passes of their own, and nothing else is: 32 texts of SmolLM2 135M.
#[test]
fn a_step_of_a_llama_converts_nothing_and_waits_for_nothing() {
    let plan = bench("gpu-plan --work llama --batch 32");
    plan.succeeded();
    let line = &plan.lines[0];
    assert!((120e9..165e9).contains(&number(line, "bytes_outside_products")), "{line}");
    assert_eq!((number(line, "conversion_launches"), number(line, "host_waits")), (0.0, 0.0), "{line}");
    assert!((500.0..900.0).contains(&number(line, "launches")), "{line}");
    assert!((100.0..140.0).contains(&number(line, "predicted_ms")), "{line}");
    // Six for each parameter and token, and what attention multiplies of half a square: 9 parts of width, time and half a time each.
    let attention = 30.0 * 9.0 * 2.0 * 576.0 * 65_536.0 * 1_024.0;
    let products = 6.0 * 134.5e6 * 65_536.0 + attention;
    assert!((products * 0.95..products * 1.1).contains(&number(line, "operations")), "{line}");
    assert!((30e9..60e9).contains(&number(line, "peak_bytes")), "{line}");
}

#[test]
fn a_plan_follows_its_precision_its_batch_and_the_ceilings_of_a_gpu() {
    if !has_turn(3) {
        return;
    }
    let of = |arguments: &str| {
        let plan = bench(&format!("gpu-plan --work mlp {arguments}"));
        plan.succeeded();
        plan.lines[0].clone()
    };
    let plain = of("--batch 128 --precision f32");
    let halves = of("--batch 128 --precision f16");
    assert!(
        number(&halves, "peak_bytes") > number(&plain, "peak_bytes"),
        "a copy of parameters is more than a batch"
    );
    let (large, large_halves) = (of("--batch 65536 --precision f32"), of("--batch 65536 --precision bf16"));
    for key in ["bytes", "peak_bytes"] {
        assert!(number(&large_halves, key) < 0.7 * number(&large, key), "{key}: {large_halves} {large}");
    }
    let slow = of("--batch 65536 --precision bf16 --ceilings 79.8,0.3");
    let (slow, fast) = (number(&slow, "predicted_ms"), number(&large_halves, "predicted_ms"));
    assert!((slow / fast - 10.0).abs() < 1e-6, "{slow} and {fast} ms");
    // In f32 it is ordinary cores that multiply, as often as tensor cores would.
    let operations = number(&large, "operations");
    assert_eq!(operations, number(&large_halves, "operations"));
    let bound = of("--batch 65536 --precision f32 --ceilings 1,1000000,60");
    assert!((number(&bound, "predicted_ms") / (operations / 60e9) - 1.0).abs() < 0.01, "{bound}");
    for (wrong, words) in [
        ("--ceilings 798", "such as 798,3.0"),
        ("--ceilings 0,1", "such as 798,3.0"),
        ("--ceilings 798,3,60,1", "such as 798,3.0"),
        ("--ceilings 798,3,-60", "such as 798,3.0"),
        ("--ceilings 798,NaN", "such as 798,3.0"),
    ] {
        let refused = bench(&format!("gpu-plan {wrong}"));
        refused.ended_with(2);
        refused.said(words);
    }
}
