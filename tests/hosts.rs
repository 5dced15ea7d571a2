//! Several hosts, judged from outside: each is a process with a folder of its own, and only the first sees the run's.
//!
//! Whatever is killed, the digest is that of one host that nobody disturbed, and no step is lost.

use crate::harness::hosts::{Hosts, free_port};
use crate::harness::turn::has_turn;
use crate::harness::{
    CNN, Finished, GPT, GPT2, MLP, Running, Signal, WIDE, audit_is_clean, checkpoints, folder, keepers_of,
    lives, logged_steps, ranks_of, signal, train, try_signal_to, wait_until_gone, whole_digest,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// One step event for every step, and the digest, and the books.
#[track_caller]
pub fn is_undisturbed(run: &Finished, folder: &Path, digest: &str, steps: u64) {
    assert_eq!(run.digest(), digest, "{}", run.stderr);
    assert_eq!(run.steps(), (1..=steps).collect::<Vec<u64>>(), "{}", run.stderr);
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    audit_is_clean(folder, "hosts");
}

/// Kills a rank, and waits until all `ranks` work again and have made a few more steps.
#[track_caller]
fn lose_a_rank(first: &mut Running, victim: u32, ranks: usize) {
    signal(Signal::KILL, victim);
    assert!(first.wait_for(|line| line["event"] == "recovery").is_some(), "{}", first.story());
    first.wait_for_world(ranks);
    first.wait_for_step(first.last_step() + 20);
}

#[test]
fn hosts_without_a_shared_folder_give_the_digest_of_one() {
    if !has_turn(15) {
        return;
    }
    for (model, steps, ranks) in [
        (MLP, 120, &[2, 2][..]),
        (CNN, 20, &[1, 3][..]),
        (GPT, 30, &[1, 2, 1][..]),
        (GPT2, 30, &[1, 1][..]),
        (MLP, 60, &[3, 1, 9]),
    ] {
        let model = format!("{model} steps={steps} threads=1 checkpoint.every=10~steps");
        let hosts = Hosts::on_loopback(&ranks.len().to_string());
        let others: Vec<Running> = (1..ranks.len() as u32)
            .map(|rank| hosts.start(rank, &format!("ranks={}", ranks[rank as usize])))
            .collect();
        let run = hosts.start(0, &format!("{model} ranks={} name=hosts", ranks[0])).finish();
        is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), steps);
        assert_eq!(run.summary()["ranks"], ranks.iter().sum::<i32>(), "{}", run.stderr);
        for (rank, other) in (1..).zip(others) {
            let other = other.finish();
            other.succeeded();
            other.said("the run is finished");
            other.said("  clock    ");
            assert!(
                !hosts.folder(rank).join("runs").exists(),
                "a host that does not see the folder made one"
            );
        }
    }
}

#[test]
fn hosts_whose_sums_travel_in_bf16_give_the_digest_of_one_rank_that_rounds_as_they_do() {
    for (model, steps, ranks) in [(MLP, 60, [2, 1]), (CNN, 12, [1, 2])] {
        let model = format!("{model} steps={steps} threads=1 wire=bf16");
        let hosts = Hosts::on_loopback("2");
        let second = hosts.start(1, &format!("ranks={}", ranks[1]));
        let run = hosts.start(0, &format!("{model} ranks={} name=hosts", ranks[0])).finish();
        is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), steps);
        second.finish().succeeded();
    }
}

#[test]
fn what_hosts_send_while_they_compute_makes_the_digest_of_one_host() {
    if !has_turn(13) {
        return;
    }
    for (wire, ranks) in [("f32", [1, 1]), ("f32", [2, 2]), ("bf16", [1, 3])] {
        let model = format!("{WIDE} steps=60 threads=1 wire={wire}");
        let hosts = Hosts::on_loopback("2");
        let second = hosts.start(1, &format!("ranks={}", ranks[1]));
        let run = hosts.start(0, &format!("{model} ranks={} name=hosts --profile", ranks[0])).finish();
        is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 60);
        let profile = run.events("profile").next().expect("a profile");
        assert!(profile["hidden_ms"].as_f64().expect("a number") > 0.0, "{ranks:?}: {profile}");
        second.finish().succeeded();
    }
}

/// The UDP ports that a process holds, as the system lists them.
fn udp_ports(pid: u32) -> Vec<u16> {
    let held = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let held: Vec<String> = held
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok())
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/udp")).expect("a table");
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let socket = format!("socket:[{}]", fields.get(9)?);
        let port = u16::from_str_radix(fields.get(1)?.split_once(':')?.1, 16).ok()?;
        held.contains(&socket).then_some(port)
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[test]
fn ranks_of_hosts_meet_at_the_ports_that_were_given_and_say_so_where_none_is_free() {
    let model = format!("{MLP} epochs=10000 threads=1");
    let hosts = Hosts::on_loopback("2");
    // Twenty in a row, of which some may be somebody else's.
    let from = free_port().min(65_000);
    let range = format!("--ports {from}-{}", from + 19);
    let second = hosts.start(1, &format!("ranks=2 {range}"));
    let mut first = hosts.start(0, &format!("{model} ranks=2 name=hosts {range}"));
    first.wait_for_step(3);
    let mut seen = Vec::new();
    for node in [first.pid(), second.pid()] {
        for rank in ranks_of(node) {
            let ports = udp_ports(rank);
            assert!(!ports.is_empty(), "rank {rank} has no port");
            assert!(ports.iter().all(|port| (from..from + 20).contains(port)), "{ports:?} is not in {range}");
            seen.extend(ports);
        }
    }
    seen.sort_unstable();
    assert!(seen.len() >= 4 && seen.windows(2).all(|two| two[0] != two[1]), "{seen:?}");
    signal(Signal::INT, first.pid());
    first.finish().ended_with(130);
    second.finish();

    // One port for two ranks, before anything is written.
    let hosts = Hosts::on_loopback("2");
    let one = free_port();
    let first = hosts.start(0, &format!("{model} ranks=2 name=hosts --ports {one}")).finish();
    first.ended_with(2);
    first.said(&format!("1 UDP port of {one}-{one} can be had at 127.0.0.1, and this host has 2 ranks"));
    first.said("hint: give more of them: --ports");
    assert!(!hosts.folder(0).join("runs").exists(), "nothing is written");
}

/// Where faults of ranks are counted, nobody is given up for being silent while a busy machine lets others go first.
const PATIENT: &str = "detect=10s";

#[test]
fn a_rank_killed_while_part_of_its_sum_is_on_its_way_costs_no_step_and_no_bit() {
    if !has_turn(2) {
        return;
    }
    let model = format!("{WIDE} {PATIENT} steps=600 threads=1 checkpoint.every=150~steps");
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{model} ranks=2 max_restarts=1000 name=hosts"));
    first.wait_for_step(10);
    for (kill, of) in [second.pid(), first.pid()].into_iter().enumerate() {
        lose_a_rank(&mut first, ranks_of(of)[kill], 4);
    }
    let run = first.finish();
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 600);
    assert_eq!(run.events("fault").count(), 2, "{}", run.stderr);
    second.finish().succeeded();
}

#[test]
fn a_run_whose_hosts_do_not_all_come_begins_without_them_and_says_so() {
    let model = format!("{MLP} steps=200 threads=1");
    let hosts = Hosts::on_loopback("2");
    let run = hosts.start(0, &format!("{model} ranks=2 join_timeout=2s detect=300ms name=hosts")).finish();
    run.said("1 of 2 hosts came within join_timeout");
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 200);
}

#[test]
fn a_rank_killed_on_each_host_costs_no_step_and_no_bit() {
    let model = format!("{MLP} {PATIENT} steps=1500 threads=1 checkpoint.every=100~steps");
    let hosts = Hosts::on_loopback("3");
    let others = [hosts.start(1, "ranks=2"), hosts.start(2, "ranks=2")];
    let mut first = hosts.start(0, &format!("{model} ranks=2 max_restarts=1000 name=hosts"));
    first.wait_for_step(20);
    for victim in [ranks_of(others[1].pid())[0], ranks_of(others[0].pid())[1], ranks_of(first.pid())[0]] {
        lose_a_rank(&mut first, victim, 6);
    }
    let run = first.finish();
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 1500);
    assert_eq!(run.events("fault").count(), 3, "{}", run.stderr);
    others.into_iter().for_each(|other| other.finish().succeeded());
}

#[test]
fn the_report_of_a_failed_run_has_the_last_lines_of_a_rank_of_another_host() {
    let model = format!("{MLP} {PATIENT} steps=1000000 threads=1 max_restarts=0");
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=1 --log debug");
    let mut first = hosts.start(0, &format!("{model} ranks=1 min_ranks=2 name=hosts"));
    first.wait_for_step(20);
    signal(Signal::KILL, ranks_of(second.pid())[0]);
    let run = first.finish();
    run.ended_with(3);
    let lines: Vec<&str> = run.stderr.lines().skip_while(|line| !line.contains("first cause: ")).collect();
    assert!(lines.len() > 2 && lines[0].contains("rank 1 (member 1)"), "{}", run.stderr);
    assert!(lines[1].contains("its last lines"), "{lines:?}");
    assert!(lines[2..].iter().any(|line| line.contains("DEBUG")), "{lines:?}");
}

#[test]
fn a_host_that_is_killed_comes_back_when_it_is_started_again() {
    if !has_turn(9) {
        return;
    }
    let model = format!("{MLP} steps=4000 threads=1 checkpoint.every=200~steps");
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{model} ranks=2 name=hosts"));
    first.wait_for_step(20);
    let ranks = ranks_of(second.pid());
    signal(Signal::KILL, second.pid());
    wait_until_gone(&ranks);
    // At once: the first host cannot know yet that the process before it is dead.
    let again = hosts.start(1, "ranks=3");
    first.wait_for_world(2);
    first.wait_for_world(5);
    let run = first.finish();
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 4000);
    drop(second);
    again.finish().succeeded();
}

#[test]
fn a_host_that_is_asked_to_leave_goes_at_a_step_boundary_and_may_come_again() {
    if !has_turn(4) {
        return;
    }
    let model = format!("{MLP} {PATIENT} steps=3000 threads=1");
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{model} ranks=1 name=hosts"));
    first.wait_for_step(20);
    signal(Signal::TERM, second.pid());
    first.wait_for_world(1);
    let left = second.finish();
    left.ended_with(130);
    left.said("this host has left the run");
    let again = hosts.start(1, "ranks=1");
    first.wait_for_world(2);
    // A warning, twice, and the request to end behind it: it leaves as well, and is not hurried.
    [Signal::USR1, Signal::USR1, Signal::TERM].into_iter().for_each(|name| signal(name, again.pid()));
    first.wait_for_world(1);
    again.finish().ended_with(130);
    let again = hosts.start(1, "ranks=1");
    first.wait_for_world(2);
    let run = first.finish();
    assert_eq!(run.events("fault").count(), 0, "{}", run.stderr);
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 3000);
    again.finish().succeeded();
}

#[test]
fn a_third_host_joins_a_run_that_is_under_way() {
    if !has_turn(12) {
        return;
    }
    let model = format!("{MLP} steps=2500 threads=1");
    let hosts = Hosts::on_loopback("1..2");
    let mut first = hosts.start(0, &format!("{model} ranks=1 name=hosts"));
    first.wait_for_step(20);
    let second = hosts.start(1, "ranks=2");
    first.wait_for_world(3);
    is_undisturbed(&first.finish(), &hosts.folder(0), &whole_digest(&model), 2500);
    second.finish().succeeded();
}

#[test]
fn when_the_supervisor_is_killed_the_others_wait_as_long_as_they_were_told_and_say_so() {
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let words = "steps=1000000 threads=1 ranks=2 name=hosts detect=500ms master_timeout=6s";
    let mut first = hosts.start(0, &format!("{MLP} {words}"));
    first.wait_for_step(20);
    let ranks = ranks_of(second.pid());
    signal(Signal::KILL, first.pid());
    let killed = Instant::now();
    second.wait_for_words("the ranks here keep their state");
    assert_eq!(ranks_of(second.pid()), ranks);
    let second = second.finish();
    // The promise itself, not a guess at how fast this machine is.
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}\n{}", killed.elapsed(), second.stderr);
    second.ended_with(1);
    second.said("its process is gone");
    second.said("--resume");
    wait_until_gone(&ranks);
}

#[test]
fn the_first_host_may_be_killed_and_started_again_and_no_step_is_lost_or_doubled() {
    if !has_turn(5) {
        return;
    }
    // Where there is a checkpoint, and before there is one; by --resume, and by the same words as at first; where the others are there from the
    // beginning, and where they have joined: the first host alone takes seconds for all steps.
    let large = "data=digits global_batch=512 micro_batch=16";
    for (nodes, model, steps, again) in [
        ("3", format!("{MLP} checkpoint.every=40~steps"), 1200, "--resume name=hosts ranks=2"),
        ("1..3", format!("{large} checkpoint.every=none"), 700, ""),
    ] {
        let model = format!("{model} steps={steps} threads=1");
        let words = format!("{model} ranks=2 name=hosts resume=auto");
        let hosts = Hosts::on_loopback(nodes);
        let others = [hosts.start(1, "ranks=2"), hosts.start(2, "ranks=1")];
        let mut first = hosts.start(0, &words);
        first.wait_for_world(5);
        first.wait_for_step(20);
        let held: Vec<Vec<u32>> = others.iter().map(|other| ranks_of(other.pid())).collect();
        for life in 1..4 {
            first.wait_for_step(20 + life * 150);
            let ranks = ranks_of(first.pid());
            first.kill_everything();
            wait_until_gone(&ranks);
            let dead =
                std::mem::replace(&mut first, hosts.start(0, if again.is_empty() { &words } else { again }));
            drop(dead);
            first.wait_for_world(5);
            let now: Vec<Vec<u32>> = others.iter().map(|other| ranks_of(other.pid())).collect();
            assert_eq!(now, held, "life {life}: the processes of the other hosts go on\n{}", first.story());
        }
        let run = first.finish();
        assert_eq!(run.digest(), whole_digest(&model), "{}", run.stderr);
        assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
        let folder = hosts.folder(0).join("runs/hosts");
        assert_eq!(logged_steps(&folder), (1..=steps).collect::<Vec<u64>>(), "{}", run.stderr);
        audit_is_clean(&hosts.folder(0), "hosts");
        for other in others {
            let other = other.finish();
            other.succeeded();
            other.said("answers again");
        }
    }
}

/// Ranks that have left take the state with them. Whoever comes next has to know that this was the end, where no checkpoint has that state
/// by what was written of it, and else by the checkpoint, too: the supervisor may have died a moment before.
#[test]
fn a_supervisor_that_is_killed_while_all_leave_is_followed_by_one_that_knows_the_end() {
    if !has_turn(9) {
        return;
    }
    let model = format!("{MLP} steps=3000 threads=1 checkpoint.every=none");
    let alone = folder();
    let whole = train(alone.path(), &format!("{model} ranks=1 name=whole"));
    let mut caught = 0;
    for (frozen, saved) in [(true, false), (false, false), (true, true)] {
        let hosts = Hosts::on_loopback("2");
        let words = format!("{model} ranks=2 name=hosts resume=auto");
        let (other, mut first) = (hosts.start(1, "ranks=2"), hosts.start(0, &words));
        first.wait_for_step(1);
        let folder_of_run = hosts.folder(0).join("runs/hosts");
        let taken = folder_of_run.join("checkpoints/.tmp-g1-s003000");
        if !saved {
            // No checkpoint of the last step can be written here.
            std::fs::create_dir_all(folder_of_run.join("checkpoints")).expect("a folder");
            std::fs::write(&taken, "").expect("a file in its place");
        }
        let all = [ranks_of(first.pid()), keepers_of(first.pid()), ranks_of(other.pid())].concat();
        // It is there for some milliseconds.
        let begun = Instant::now();
        while !folder_of_run.join(".ending").exists() && lives(first.pid()) {
            assert!(begun.elapsed() < Duration::from_secs(300), "the run does not end");
            std::thread::sleep(Duration::from_micros(100));
        }
        if frozen {
            try_signal_to(Signal::STOP, other.pid());
        }
        try_signal_to(Signal::KILL, first.pid());
        // It may have been faster: then everybody has heard it.
        let killed = first.finish().code.is_none();
        std::fs::remove_file(if saved { folder_of_run.join(".ending") } else { taken })
            .unwrap_or_else(|_| assert!(!killed));
        assert_eq!(checkpoints(&folder_of_run).len(), usize::from(saved));
        if killed {
            caught += 1;
            let again = hosts.start(0, &words);
            again.wait_for_words("waiting for 2 in all");
            try_signal_to(Signal::CONT, other.pid());
            let run = again.finish();
            for told in ["digest", "steps", "epochs", "train_loss", "val_loss", "val_accuracy"] {
                assert_eq!(run.summary()[told], whole.summary()[told], "{told}\n{}", run.stderr);
            }
            run.said("the run had ended with step 3000 when its supervisor died");
            assert!(!run.stderr.contains("starts again"), "{}", run.stderr);
            assert_eq!(run.events("generation").count(), 0, "{}", run.stderr);
        }
        try_signal_to(Signal::CONT, other.pid());
        other.finish().succeeded();
        wait_until_gone(&all);
        assert_eq!(logged_steps(&folder_of_run), (1..=3000).collect::<Vec<u64>>());
        audit_is_clean(&hosts.folder(0), "hosts");
        assert!(!folder_of_run.join(".ending").exists());
    }
    assert!(caught > 0, "the supervisor was faster each time");
}

#[test]
fn a_host_that_was_told_to_stop_and_not_why_does_not_say_that_all_is_done() {
    if !has_turn(15) {
        return;
    }
    let hosts = Hosts::on_loopback("2");
    let other = hosts.start(1, "ranks=1");
    let mut first = hosts.start(0, &format!("{MLP} detect=3s steps=1000000 threads=1 ranks=2 name=hosts"));
    first.wait_for_step(20);
    // The supervisor waits for this one, and for no step: it is told twice.
    signal(Signal::STOP, ranks_of(first.pid())[0]);
    signal(Signal::TERM, first.pid());
    first.wait_for_words("once more");
    signal(Signal::TERM, first.pid());
    wait_until_gone(&ranks_of(other.pid()));
    signal(Signal::KILL, first.pid());
    let other = other.finish();
    other.ended_with(1);
    other.said("ended the run before its last step, and is lost: it did not say why");
    other.said("--resume");
}

#[test]
fn a_run_of_two_hosts_goes_on_from_its_checkpoint_when_it_is_started_again() {
    if !has_turn(15) {
        return;
    }
    let model = format!("{MLP} steps=900 threads=1 checkpoint.every=100~steps");
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{model} ranks=1 name=hosts"));
    let step = first.wait_for_checkpoint();
    signal(Signal::TERM, first.pid());
    let stopped = first.finish();
    stopped.ended_with(130);
    second.finish().ended_with(130);
    let second = hosts.start(1, "ranks=1");
    let run = hosts.start(0, "--resume ranks=2 name=hosts").finish();
    assert_eq!(run.digest(), whole_digest(&model), "{}", run.stderr);
    let first_step = *run.steps().first().expect("steps");
    assert!(first_step > step, "it began at step {first_step}, after a checkpoint of step {step}");
    second.finish().succeeded();
}

/// A supervisor that stands still is soon given up.
const IMPATIENT: &str = "detect=500ms master_timeout=2500ms";

#[test]
fn a_host_whose_supervisor_is_silent_ends_its_ranks_and_waits_as_long_as_it_was_told() {
    if !has_turn(6) {
        return;
    }
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2 join_timeout=3s");
    let mut first = hosts
        .start(0, &format!("{MLP} steps=1000000 threads=1 ranks=1 name=hosts {IMPATIENT} join_timeout=20s"));
    first.wait_for_step(20);
    let ranks = ranks_of(second.pid());
    // Its process is there, and says nothing.
    signal(Signal::STOP, first.pid());
    second.wait_for_words("the ranks of this host are ended");
    wait_until_gone(&ranks);
    let second = second.finish();
    second.ended_with(1);
    second.said("it was silent for");
    // Awake again it goes on alone.
    signal(Signal::CONT, first.pid());
    first.wait_for_world(1);
}

#[test]
fn a_host_that_was_forgotten_is_taken_back_when_the_supervisor_wakes() {
    if !has_turn(24) {
        return;
    }
    let model = format!("{MLP} steps=6000 threads=1 {IMPATIENT}");
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{model} ranks=1 name=hosts"));
    first.wait_for_step(20);
    signal(Signal::STOP, first.pid());
    second.wait_for_words("the ranks of this host are ended");
    signal(Signal::CONT, first.pid());
    first.wait_for_world(3);
    let run = first.finish();
    assert_eq!(run.digest(), whole_digest(&model), "{}", run.stderr);
    second.finish().succeeded();
}

#[test]
fn a_second_signal_ends_a_host_at_once_and_its_ranks_with_it() {
    let hosts = Hosts::on_loopback("2");
    let second = hosts.start(1, "ranks=2");
    let mut first = hosts.start(0, &format!("{MLP} steps=1000000 threads=1 ranks=1 name=hosts"));
    first.wait_for_step(20);
    let ranks = ranks_of(second.pid());
    // Nobody lets it go while the first host stands still.
    signal(Signal::STOP, first.pid());
    signal(Signal::TERM, second.pid());
    second.wait_for_words("leaving after the step in hand");
    signal(Signal::TERM, second.pid());
    second.finish().ended_with(130);
    wait_until_gone(&ranks);
    try_signal_to(Signal::CONT, first.pid());
    first.wait_for_world(1);
}
