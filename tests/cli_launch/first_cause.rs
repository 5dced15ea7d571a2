//! Which rank `dtrain run` names as the first cause, however late it looks.

use super::job::{ENDS_WHEN_TOLD, Job};
use crate::harness::{Signal, children, signal, stop, wait_until_gone};
use std::fs;

/// Stops the supervisor, ends ranks one after the other while it cannot look, and lets it go on.
fn end_unseen(job: &Job, ends: &[(u32, Option<Signal>)]) {
    for (rank, _) in ends {
        job.number(&format!("pid.{rank}"));
    }
    stop(job.supervisor());
    for (rank, by) in ends {
        let pid = job.number(&format!("pid.{rank}"));
        match by {
            Some(by) => signal(*by, pid),
            None => fs::write(job.path(&format!("end.{rank}")), "").unwrap(),
        }
        wait_until_gone(&[pid]);
    }
    signal(Signal::CONT, job.supervisor());
}

#[test]
fn after_the_budget_the_first_cause_is_named_with_its_last_lines_before_the_others() {
    let script =
        "echo \"line of $RANK\"; [ $RANK = 2 ] && { echo the reason >&2; kill -SEGV $$; }; exec sleep 1000";
    let mut job = Job::start("--nproc 4 --max-restarts 1", script);
    let words = job.ends_with(1);
    let last = &words[words.rfind("error: first cause: rank 2 (pid ").expect(&words)..];
    assert!(last.contains("killed by signal 11 (SIGSEGV)"), "{last}");
    let own = last.find("    the reason").expect(last);
    let others = last.find("stopped because of it: rank ").expect(last);
    assert!(own < others && !last.contains("line of 1"), "its own lines, and before the others: {last}");
    assert!(last.contains("hint: all 1 restarts are used up"), "{last}");
}

#[test]
fn the_rank_that_died_first_is_named_however_late_the_supervisor_looks() {
    for order in [[3, 0, 2], [0, 2, 3], [2, 3, 0]] {
        let mut job = Job::start("--nproc 4", ENDS_WHEN_TOLD);
        end_unseen(&job, &order.map(|rank| (rank, None)));
        job.ends_with(1);
        let cause = job.first_causes().remove(0);
        assert!(cause.starts_with(&format!("rank {} (pid ", order[0])), "{order:?}: {cause}");
    }
}

#[test]
fn a_kill_that_the_same_look_sees_is_the_cause_of_an_exit() {
    for by in [Signal::KILL, Signal::SEGV] {
        let mut job = Job::start("--nproc 3", ENDS_WHEN_TOLD);
        end_unseen(&job, &[(0, None), (2, Some(by))]);
        let words = job.ends_with(1);
        assert!(job.first_causes()[0].starts_with("rank 2 (pid "), "{words}");
        assert!(words.contains("after that: rank 0 (pid "), "{words}");
    }
}

#[test]
fn of_two_tracebacks_the_first_is_the_cause_also_when_its_rank_ends_last() {
    let script = "trap '' TERM
        if [ $RANK = 1 ]; then
            echo 'Traceback (most recent call last):' >&2; echo 'ValueError: the reason' >&2
            while [ ! -e over ]; do sleep 0.01; done; exit 1
        fi
        while [ ! -e told ]; do sleep 0.01; done
        echo '[rank0]: Traceback (most recent call last):' >&2; echo 'RuntimeError: peer left' >&2
        exit 1";
    let mut job = Job::start("--nproc 2", script);
    // A line counts from when it is read: the second traceback begins when the first was.
    job.wait_for_words("[rank 1]: ValueError: the reason");
    fs::write(job.path("told"), "").unwrap();
    job.wait_for_words("[rank 0]: RuntimeError: peer left");
    // Rank 0 has ended when rank 1, that shows no sign of it, is asked to end and does.
    job.wait_for("the end of rank 0", || (children(job.supervisor()).len() == 1).then_some(()));
    fs::write(job.path("over"), "").unwrap();
    let words = job.ends_with(1);
    assert!(job.first_causes()[0].starts_with("rank 1 (pid "), "{words}");
    assert!(words.contains("    ValueError: the reason"), "{words}");
}

#[test]
fn a_rank_that_says_it_lost_its_peer_gives_way_to_the_peer_that_ends_after_it() {
    let script = "echo $$ > part.$RANK; mv part.$RANK pid.$RANK
        while [ ! -e pid.0 ] || [ ! -e pid.1 ]; do sleep 0.01; done
        if [ $RANK = 0 ]; then
            echo 'Traceback (most recent call last):' >&2
            echo 'RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:9' >&2
            exit 1
        fi
        while kill -0 $(cat pid.0) 2> /dev/null; do :; done; exit 3";
    let mut job = Job::start("--nproc 2", script);
    let words = job.ends_with(1);
    assert!(job.first_causes()[0].starts_with("rank 1 (pid "), "{words}");
    assert!(words.contains("exited with code 3") && words.contains("after that: rank 0 (pid "), "{words}");
}
