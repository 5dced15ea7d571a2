//! `deploy/slurm.sh` on a real Slurm: three nodes on this machine. Tasks are killed, the job is warned, preempted, requeued, requeued with
//! another configuration and cancelled; what comes out is the digest of a plain run, and every step is in the books once.

use crate::harness::network::Weather;
use crate::harness::slurm::Cluster;
use crate::harness::turn::has_turn;
use crate::harness::{Signal, audit_is_clean, checkpoints, folder, signal, train};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Steps take their time by waiting for each other, and leave the cores to others.
const DELAY: Duration = Duration::from_millis(3);
const STEPS: u64 = 600;
const CONFIGURATION: &str = "data: {kind: digits}\nmodel: {kind: mlp, hidden: [24]}\nglobal_batch: 50\nmicro_batch: 7\n\
                             threads: 1\nranks: 1\nmax_restarts: 100\ncheckpoint: {every: none}\n";

fn events(run: &Path, kind: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(run.join("events.jsonl")).expect("a log");
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a whole line"));
    lines.filter(|line| line["event"] == kind).collect()
}

#[test]
fn a_job_of_slurm_loses_tasks_is_warned_preempted_and_requeued_and_ends_with_the_digest_of_a_plain_run() {
    if !has_turn(1) {
        return;
    }
    let weather = Weather { delay: DELAY, one_in: u64::MAX, seed: 1 };
    let cluster = match Cluster::start(3, weather) {
        Ok(cluster) => cluster,
        Err(why) => return eprintln!("skipped: a cluster of Slurm cannot be had here ({why})"),
    };
    let write = |text: &str| std::fs::write(cluster.path("run.yaml"), text).expect("a file");
    let whole = format!("{CONFIGURATION}steps: {STEPS}\n");
    write(&whole);
    let batch_file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm.sh");
    let submit = || cluster.submit(&format!("--nodes=3 --time=10 {batch_file} run.yaml"));
    let run = cluster.path("runs/dtrain");
    let works = |job, times| cluster.wait_for_words(job, "works: 3 ranks", times);

    // No flag, and three hosts find each other.
    let job = submit();
    works(job, 2);

    // A task is killed, and then that of the first host: each comes back.
    signal(Signal::KILL, cluster.task(3));
    cluster.wait_for_words(job, "host 2: dtrain ended with exit code 137, and is started again", 1);
    works(job, 4);
    signal(Signal::KILL, cluster.task(1));
    cluster.wait_for_words(job, "went on without a supervisor", 1);
    works(job, 6);
    assert_eq!(checkpoints(&run).len(), 0, "nothing was saved until now");

    // The time of the job is nearly over.
    cluster.said(&format!("scancel --signal=USR1 {job}"));
    cluster.wait_for_words(job, "is saved; go on with", 1);
    cluster.wait_for_state(job, &["PENDING"]);
    assert_eq!(cluster.about(job, "Restarts"), "1");
    works(job, 8);

    // A job that is more important comes.
    let other = cluster.submit("--partition=high --nodes=3 --output=/dev/null --wrap true");
    cluster.wait_for_state(other, &["COMPLETED"]);
    cluster.wait_for_words(job, "is saved; go on with", 2);
    assert_eq!(cluster.about(job, "Restarts"), "2");

    // Somebody changes the configuration while the job is in the queue.
    let saved = checkpoints(&run);
    write(&whole.replace("[24]", "[25]"));
    cluster.wait_for_words(job, "model.hidden: it was [24] when the run started, and is [25] now", 1);
    cluster.said(&format!("scancel {job}"));
    cluster.wait_for_state(job, &["CANCELLED"]);
    assert_eq!(checkpoints(&run), saved, "nothing is lost");
    write(&whole);

    // Another job of the same name goes on; cancelled, it stays so.
    let second = submit();
    works(second, 2);
    cluster.said(&format!("scancel {second}"));
    cluster.wait_for_words(second, "is saved; go on with", 1);
    cluster.wait_for_state(second, &["CANCELLED"]);
    assert_eq!(cluster.about(second, "Restarts"), "0");
    assert!(checkpoints(&run).len() > saved.len(), "{}", cluster.log(second));

    let third = submit();
    cluster.wait_for_state(third, &["COMPLETED"]);
    let line = CONFIGURATION_AS_WORDS;
    let plain = train(folder().path(), &format!("{line} steps={STEPS} name=whole")).digest();
    let summaries = events(&run, "summary");
    let summary = summaries.last().expect("a summary");
    assert_eq!(summary["digest"], plain, "{}", cluster.log(third));
    let steps: Vec<u64> =
        events(&run, "step").iter().map(|line| line["step"].as_u64().expect("a number")).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<u64>>(), "every step once\n{}", cluster.log(job));
    audit_is_clean(cluster.folder(), "dtrain");
    let left = std::fs::read_dir(cluster.path(".cache/dtrain/slurm")).expect("a folder").count();
    assert_eq!(left, 0, "no token is left");
}

/// The same, on a command line.
const CONFIGURATION_AS_WORDS: &str =
    "data.kind=digits model.kind=mlp model.hidden=[24] global_batch=50 micro_batch=7 threads=1 ranks=1";
