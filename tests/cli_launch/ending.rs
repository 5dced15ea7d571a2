//! Restarts, signals and deaths: who is asked to end, who is killed, and that nothing lives on.

use super::job::{ENDS_WHEN_TOLD, FAMILY, Job};
use crate::harness::{Signal, dtrain, lives, signal, signal_group, stop, wait_until_gone};
use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

#[test]
fn all_start_again_on_another_port_until_all_exit_with_0() {
    let script = "n=$TORCHELASTIC_RESTART_COUNT; echo $MASTER_PORT > port.$n.$RANK; echo $$ > pid.$n.$RANK
        [ $n = 2 ] && exit 0; [ $RANK = 1 ] && exit 7; exec sleep 1000";
    let mut job = Job::start("--nproc 3 --max-restarts 5", script);
    let words = job.ends_with(0);
    assert!(words.contains("restart 2 of 5") && !words.contains("restart 3 of 5"), "{words}");
    let causes = job.first_causes();
    assert_eq!(causes.len(), 2, "{words}");
    for (attempt, cause) in causes.iter().enumerate() {
        let named = format!("rank 1 (pid {} on ", job.number(&format!("pid.{attempt}.1")));
        assert!(cause.starts_with(&named) && cause.contains("exited with code 7"), "{cause}");
    }
    let ports: BTreeSet<String> = (0..3).map(|attempt| job.read(&format!("port.{attempt}.0"))).collect();
    assert_eq!(ports.len(), 3, "the port of a dead launch is not taken again: {ports:?}");
    assert_eq!(job.read("port.2.0"), job.read("port.2.2"));
}

#[test]
fn a_signal_is_passed_on_once_and_all_may_end_well() {
    for (by, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::HUP, "HUP")] {
        let script = format!(
            "trap 'echo {name} >> got.$RANK; exit 0' {name}; echo $$ > pid.$RANK
             while :; do sleep 0.01; done"
        );
        let mut job = Job::start("--nproc 2 --max-restarts 3", &script);
        let pids = [job.number("pid.0"), job.number("pid.1")];
        // As a terminal does it: to the whole group of the command.
        signal_group(by, job.guard());
        let words = job.ends_with(130);
        assert!(words.contains(&format!("interrupted by SIG{name}: 2 of 2 ranks exited with 0")), "{words}");
        assert!(!words.contains("restart 1"), "{words}");
        assert_eq!(job.read("got.0") + &job.read("got.1"), format!("{name}\n{name}\n"), "once each");
        wait_until_gone(&pids);
    }
}

#[test]
fn a_second_signal_kills_what_does_not_listen() {
    let mut job = Job::start(
        "--nproc 2",
        &format!("trap 'touch heard.$RANK' INT; {FAMILY} while :; do sleep 0.01; done"),
    );
    let family = job.family(2);
    signal(Signal::INT, job.guard());
    job.wait_for("both have heard", || {
        (job.path("heard.0").exists() && job.path("heard.1").exists()).then_some(())
    });
    assert!(family.iter().all(|pid| lives(*pid)) || !lives(job.number("child.0")), "nobody is killed yet");
    assert!(lives(job.number("pid.0")) && lives(job.number("pid.1")));
    signal(Signal::INT, job.guard());
    job.ends_with(130);
    wait_until_gone(&family);
}

#[test]
fn who_does_not_end_in_time_is_killed_before_the_next_start() {
    let script =
        "echo $$ > pid.$TORCHELASTIC_RESTART_COUNT.$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
        [ $RANK = 1 ] && { while [ ! -e deaf ]; do sleep 0.01; done; exit 1; }
        trap 'touch asked' TERM; touch deaf; while :; do sleep 0.01; done";
    let mut job = Job::start("--nproc 2 --max-restarts 1 --shutdown-timeout 1", script);
    let words = job.ends_with(0);
    assert!(job.path("asked").exists(), "it is asked first");
    assert!(words.contains("stopped because of it: rank 0 (1 by SIGKILL after 1 s)"), "{words}");
    wait_until_gone(&[job.number("pid.0.0")]);
}

#[test]
fn a_stopped_rank_is_ended_like_the_others() {
    let mut job = Job::start("--nproc 2", ENDS_WHEN_TOLD);
    let stopped = job.number("pid.0");
    job.number("pid.1");
    stop(stopped);
    fs::write(job.path("end.1"), "").unwrap();
    let words = job.ends_with(1);
    assert!(job.first_causes()[0].starts_with("rank 1 ") && !words.contains("SIGKILL"), "{words}");
    wait_until_gone(&[stopped]);
}

#[test]
fn signals_with_a_meaning_of_the_programs_own_reach_it_and_end_nothing() {
    let script = "trap 'touch usr1.$RANK' USR1; trap 'touch usr2.$RANK' USR2; echo $$ > pid.$RANK
        while [ ! -e usr1.$RANK ] || [ ! -e usr2.$RANK ]; do sleep 0.01; done";
    let mut job = Job::start("--nproc 2", script);
    job.number("pid.0");
    job.number("pid.1");
    signal(Signal::USR1, job.guard());
    signal(Signal::USR2, job.guard());
    job.ends_with(0);
}

#[test]
fn when_the_command_is_killed_nothing_that_it_started_lives_on() {
    let mut job = Job::start("--nproc 3", &format!("{FAMILY} trap '' TERM HUP; wait"));
    let family = job.family(3);
    assert!(family.iter().all(|pid| lives(*pid)));
    signal(Signal::KILL, job.guard());
    job.code();
    wait_until_gone(&family);
}

#[test]
fn when_the_group_of_the_command_is_killed_nothing_lives_on() {
    let mut job = Job::start("--nproc 2", &format!("{FAMILY} wait"));
    let family = job.family(2);
    signal_group(Signal::KILL, job.guard());
    job.code();
    wait_until_gone(&family);
}

#[test]
fn when_the_supervisor_is_killed_nothing_lives_on_and_the_command_says_so() {
    let mut job = Job::start("--nproc 2 --max-restarts 3", &format!("{FAMILY} wait"));
    let family = job.family(2);
    let supervisor = job.supervisor();
    signal(Signal::KILL, supervisor);
    let words = job.ends_with(1);
    let wanted =
        format!("the process that watched the ranks (pid {supervisor}) was killed by signal 9 (SIGKILL)");
    assert!(words.contains(&wanted) && words.contains("hint: "), "{words}");
    wait_until_gone(&family);
}

#[test]
fn ranks_die_even_when_both_processes_over_them_are_killed_in_one_instant() {
    let mut job = Job::start("--nproc 2", &format!("{FAMILY} trap '' TERM HUP; wait"));
    let family = job.family(2);
    let ranks = [job.number("pid.0"), job.number("pid.1")];
    // One that is stopped sees nothing between the two kills.
    stop(job.supervisor());
    signal(Signal::KILL, job.guard());
    job.code();
    signal(Signal::KILL, *family.last().unwrap());
    wait_until_gone(&ranks);
    // What they had started is beyond what is promised.
    for pid in family {
        let _ =
            std::process::Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_console_that_nobody_reads_holds_up_neither_a_second_signal_nor_a_kill() {
    for by in [Signal::INT, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("{FAMILY} yes");
        let mut command = dtrain(folder.path(), "run --nproc 2 -- sh -c");
        command.arg(script).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut job = Job { folder, child: command.spawn().unwrap() };
        let family = job.family(2);
        signal(by, job.guard());
        if by == Signal::INT {
            wait_until_gone(&family[..family.len() - 1]);
            signal(by, job.guard());
            assert_eq!(job.code(), Some(130));
        }
        wait_until_gone(&family);
    }
}

#[test]
fn what_ranks_leave_behind_is_gone_before_the_next_start_and_after_the_end() {
    let script = format!(
        "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then
            for pid in $(cat far.* child.*); do kill -0 $pid 2> /dev/null && echo $pid >> lived_on; done
            rm far.$RANK child.$RANK pid.$RANK
        fi
        {FAMILY} exit $((1 - TORCHELASTIC_RESTART_COUNT))"
    );
    let mut job = Job::start("--nproc 1 --max-restarts 1", &script);
    let words = job.ends_with(0);
    assert_eq!(job.read("lived_on"), "", "the first start's are gone when the second begins");
    assert_eq!(words.matches("2 processes that the ranks had left behind: killed").count(), 2, "{words}");
    wait_until_gone(&[job.number("far.0"), job.number("child.0")]);
}

#[test]
fn strangers_that_end_under_a_running_gang_are_taken_in() {
    let script = "for i in 1 2 3 4 5 6 7 8; do (setsid true &); done; echo $$ > pid.0
        while [ ! -e end ]; do sleep 0.01; done";
    let mut job = Job::start("", script);
    job.number("pid.0");
    let supervisor = job.supervisor().to_string();
    // A zombie of the supervisor would stay until its end.
    let zombies = || {
        let stats = fs::read_dir("/proc").unwrap().flatten();
        let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        let rest = stats.filter_map(|stat| Some(stat.rsplit_once(") ")?.1.to_owned()));
        rest.filter(|rest| rest.starts_with(&format!("Z {supervisor} "))).count()
    };
    job.wait_for("no zombie", || (zombies() == 0).then_some(()));
    fs::write(job.path("end"), "").unwrap();
    job.ends_with(0);
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $$ > pid.0; while [ ! -e end ]; do sleep 0.01; done; touch well";
    let mut command = std::process::Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_dtrain")).args(["run", "sh", "-c", script]).current_dir(folder.path());
    let null = || Stdio::null();
    let child = command.stdin(null()).stdout(null()).stderr(null()).spawn().unwrap();
    let mut job = Job { folder, child };
    job.number("pid.0");
    signal(Signal::HUP, job.guard());
    signal(Signal::HUP, job.number("pid.0"));
    fs::write(job.path("end"), "").unwrap();
    assert_eq!(job.code(), Some(0));
    assert!(job.path("well").exists());
}
