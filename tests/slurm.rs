//! `deploy/slurm.sh` on a real Slurm: three nodes on this machine. Tasks are killed, the job is warned, preempted, requeued, requeued with
//! another configuration and cancelled; what comes out is the digest of a plain run, and every step is in the books once.

use crate::harness::network::Weather;
use crate::harness::slurm::Cluster;
use crate::harness::turn::has_turn;
use crate::harness::{Running, Signal, checkpoints, dtrain, finish, folder, is_whole, signal, train};
use std::time::Duration;

/// Steps take their time by waiting for each other, and leave the cores to others.
const DELAY: Duration = Duration::from_millis(3);
const STEPS: u64 = 1_500;
const CONFIGURATION: &str = "data: {kind: digits}\nmodel: {kind: mlp, hidden: [24]}\nglobal_batch: 50\nmicro_batch: 7\n\
                             threads: 1\nranks: 1\nmax_restarts: 100\ncheckpoint: {every: none}\n";

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
    is_whole(cluster.folder(), "dtrain", &plain, STEPS);
    let left = std::fs::read_dir(cluster.path(".cache/dtrain/slurm")).expect("a folder").count();
    assert_eq!(left, 0, "no token is left");
}

/// The same, on a command line.
const CONFIGURATION_AS_WORDS: &str =
    "data.kind=digits model.kind=mlp model.hidden=[24] global_batch=50 micro_batch=7 threads=1 ranks=1";

/// As Slurm says it to a job that it starts again; without Slurm.
#[test]
fn a_requeued_job_goes_on_with_its_run_unless_it_was_told_otherwise() {
    let folder = folder();
    let line = format!("{CONFIGURATION_AS_WORDS} steps=2000 name=job");
    let mut first = Running::start(folder.path(), &line);
    first.wait_for_step(5);
    signal(Signal::USR1, first.pid());
    first.finish().ended_with(130);
    let again = |restarts: &str, more: &str| {
        let mut command = dtrain(folder.path(), &format!("train --json {line} {more}"));
        command.env("SLURM_RESTART_COUNT", restarts);
        finish(command)
    };
    for told in [again("0", ""), again("1", "resume=never")] {
        told.ended_with(2);
        told.said("runs/job");
    }
    let run = again("1", "");
    run.said("this job was requeued, so it goes on with its run");
    let plain = train(folder.path(), &format!("{CONFIGURATION_AS_WORDS} steps=2000 name=whole"));
    assert_eq!(run.digest(), plain.digest());
}
