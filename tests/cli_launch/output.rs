//! What the ranks of `dtrain run` print: in files, on the console, to a reader that goes away.

use super::job::Job;
use std::collections::BTreeSet;

#[test]
fn each_rank_and_attempt_has_its_log_files_and_no_run_writes_over_another() {
    let script =
        "printf 'out %s\\r\\nhalf' $RANK; echo err $TORCHELASTIC_RESTART_COUNT >&2; touch wrote.$RANK
        while [ ! -e wrote.$((1 - RANK)) ]; do sleep 0.01; done
        [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 4";
    let mut job = Job::start("--nproc 2 --max-restarts 1 --log-dir logs/deep", script);
    let words = job.ends_with(0);
    assert!(words.contains("logs/deep/run-1/attempt-N/rank-N.out"), "{words}");
    for attempt in 0..2 {
        for rank in 0..2 {
            let base = format!("logs/deep/run-1/attempt-{attempt}/rank-{rank}");
            assert_eq!(job.read(&format!("{base}.out")), format!("out {rank}\r\nhalf"), "byte for byte");
        }
    }
    assert_eq!(job.read("logs/deep/run-1/attempt-1/rank-1.err"), "err 1\n");
    let shown = job.read("stdout");
    for line in ["[rank 0]: out 0\n", "[rank 1]: out 1\n", "[rank 1]: half\n"] {
        assert!(shown.contains(line), "{shown:?}");
    }
    assert!(words.contains("[rank 1]: err 1\n"), "{words}");
    let folder = std::mem::replace(&mut job.folder, tempfile::tempdir().unwrap());
    let mut again = Job::within(folder, "--nproc 2 --log-dir logs/deep", &["sh", "-c", script], &[]);
    again.ends_with(1);
    assert_eq!(again.read("logs/deep/run-2/attempt-0/rank-0.err"), "err 0\n");
    assert_eq!(again.read("logs/deep/run-1/attempt-1/rank-1.err"), "err 1\n");
}

#[test]
fn the_console_shows_what_was_asked_for() {
    let script = "echo out $RANK; echo err $RANK >&2";
    let mut job = Job::start("-q --nproc 2 --redirects 2 --log-dir logs --local-ranks-filter 1", script);
    assert_eq!(job.ends_with(0), "", "standard error is in the files only");
    assert_eq!(job.read("stdout"), "[rank 1]: out 1\n");
    assert_eq!(job.read("logs/run-1/attempt-0/rank-0.err"), "err 0\n");
    let template = "--log-line-prefix-template ${role_name}-${local_rank}/${rank}>";
    let mut job = Job::start(&format!("-q --nproc 2 --role a {template}"), script);
    job.ends_with(0);
    let shown: BTreeSet<String> = job.read("stdout").lines().map(str::to_owned).collect();
    assert_eq!(shown, BTreeSet::from(["a-0/0>out 0".to_owned(), "a-1/1>out 1".to_owned()]));
}

#[test]
fn a_reader_that_goes_away_stops_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i + 1)); done; touch well";
    let script = format!("{} run -q sh -c '{run}' | head -n 1", env!("CARGO_BIN_EXE_dtrain"));
    let output = std::process::Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {script}")])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.stdout, b"line 0\n");
    assert!(folder.path().join("well").exists(), "the rank came to its end");
}

#[test]
fn lines_of_many_ranks_never_mix_and_none_is_lost() {
    let script =
        "i=0; while [ $i -lt 500 ]; do echo \"$RANK $i abcdefghijklmnopqrstuvwxyz\"; i=$((i + 1)); done";
    let mut job = Job::start("-q --nproc 8", script);
    job.ends_with(0);
    let mut next = [0; 8];
    for line in job.read("stdout").lines() {
        let (prefix, rest) = line.split_once(": ").expect("a prefix");
        let mut fields = rest.split(' ');
        let rank: usize = fields.next().unwrap().parse().unwrap();
        assert_eq!(prefix, format!("[rank {rank}]"));
        assert_eq!(fields.next().unwrap().parse::<i32>().unwrap(), next[rank], "in order: {line}");
        assert_eq!(fields.next(), Some("abcdefghijklmnopqrstuvwxyz"));
        next[rank] += 1;
    }
    assert_eq!(next, [500; 8]);
}
