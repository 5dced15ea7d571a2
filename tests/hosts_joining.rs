//! How hosts find one another and are let in, and what is refused before or when they call: from outside, each host a process with a folder of its own.

use crate::harness::hosts::{Hosts, free_port};
use crate::harness::turn::has_turn;
use crate::harness::{self, MLP, Running, finish, folder, whole_digest};
use crate::hosts::is_undisturbed;
use std::net::UdpSocket;

#[test]
fn whoever_lacks_the_token_is_refused_and_training_is_undisturbed() {
    if !has_turn(15) {
        return;
    }
    let model = format!("{MLP} steps=3000 threads=1");
    let hosts = Hosts::on_loopback("1..3");
    let mut first = hosts.start(0, &format!("{model} ranks=2 name=hosts"));
    first.wait_for_step(20);

    let mut wrong = hosts.node(1, "ranks=1");
    let (_, token) = harness::output(&hosts.folder(1), "token new");
    wrong.env_remove("DTRAIN_TOKEN_FILE").env("DTRAIN_TOKEN", token.trim());
    let wrong = finish(wrong);
    wrong.ended_with(2);
    wrong.said("another token");

    let garbage = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    for length in [1, 20, 1_200, 9_000] {
        for byte in [0x00, 0x40, 0xc0, 0xff] {
            garbage.send_to(&vec![byte; length], &hosts.master).unwrap();
        }
    }

    // Another process of the same rank, and one that this run has no place for.
    let second = hosts.start(1, "ranks=1");
    first.wait_for_world(3);
    let twin = hosts.start(1, "ranks=1").finish();
    twin.ended_with(2);
    twin.said("another process is the node of rank 1");
    let mut fourth = hosts.node(0, "ranks=1");
    fourth = {
        let mut command = harness::dtrain(
            &hosts.folder(7),
            &format!("node --rank 7 --master {} --nodes 9 ranks=1", hosts.master),
        );
        command.envs(fourth.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let fourth = finish(fourth);
    fourth.ended_with(2);
    fourth.said("no place for a node of rank 7");

    let run = first.finish();
    assert_eq!(run.events("fault").count(), 0, "{}", run.stderr);
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 3000);
    second.finish().succeeded();
}

#[test]
fn a_host_that_disagrees_about_the_run_is_told_which_key() {
    let hosts = Hosts::on_loopback("1..2");
    let mut first = hosts.start(0, &format!("{MLP} steps=1000000 threads=1 ranks=1 name=hosts"));
    first.wait_for_step(20);
    let second = hosts.start(1, "ranks=1 seed=8 optimizer.lr=1").finish();
    second.ended_with(2);
    second.said("seed: it is 7 in the run, and 8 here");
    second.said("optimizer.lr: it is");
    first.wait_for_step(first.last_step() + 20);
}

#[test]
fn the_environment_of_a_batch_job_stands_in_for_flags_over_ipv6_too() {
    let model = format!("{MLP} steps=60 threads=1 ranks=1");
    let hosts = Hosts::on_loopback("2");
    let port = free_port().to_string();
    if UdpSocket::bind(("::1", 0)).is_err() {
        return eprintln!("skipped: this machine has no IPv6 loopback");
    }
    let start = |rank: u32, names: [&str; 2], arguments: &str| {
        let mut command = harness::dtrain(&hosts.folder(rank), &format!("node {arguments}"));
        let token = hosts
            .node(rank, "")
            .get_envs()
            .find_map(|(name, value)| (name == "DTRAIN_TOKEN_FILE").then_some(value?.to_owned()));
        command.env("DTRAIN_TOKEN_FILE", token.expect("a token"));
        command.env(names[0], rank.to_string()).env(names[1], "2");
        // Each batch system has its own.
        let [address, of_port] = match names[0] {
            "PET_NODE_RANK" => ["PET_MASTER_ADDR", "PET_MASTER_PORT"],
            _ => ["MASTER_ADDR", "MASTER_PORT"],
        };
        command.env(address, "::1").env(of_port, &port);
        Running::of(command)
    };
    let second = start(1, ["SLURM_NODEID", "SLURM_NNODES"], "ranks=1");
    let run = start(0, ["PET_NODE_RANK", "PET_NNODES"], &format!("--json {model} name=hosts")).finish();
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 60);
    second.finish().succeeded();
}

/// A task of a job of Slurm as `srun dtrain node` starts it: no flag, no token.
fn slurm_task(hosts: &Hosts, node: u32, local: u32, arguments: &str) -> std::process::Command {
    let mut command = harness::dtrain(&hosts.folder(node), &format!("node {arguments}"));
    for name in ["DTRAIN_TOKEN", "DTRAIN_TOKEN_FILE", "MASTER_ADDR", "PET_MASTER_ADDR", "SLURM_STEP_NODELIST"]
    {
        command.env_remove(name);
    }
    // Two jobs on one first host have other ports.
    let job = std::process::id() % 900 + 1000;
    command.env("HOME", hosts.folder(9)).env("SLURM_JOB_ID", job.to_string()).env("SLURM_STEP_ID", "0");
    command
        .env("SLURM_NODEID", node.to_string())
        .env("SLURM_NNODES", "3")
        .env("SLURM_LOCALID", local.to_string());
    command.env("SLURM_JOB_NODELIST", "localhost,gpu[07-08]");
    command
}

#[test]
fn the_tasks_of_a_slurm_job_find_each_other_and_share_a_token_without_a_flag() {
    let model = format!("{MLP} steps=60 threads=1");
    let hosts = Hosts::on_loopback("3");
    let tokens = hosts.folder(9).join(".cache/dtrain/slurm");
    let others: Vec<Running> =
        [1, 2].map(|node| Running::of(slurm_task(&hosts, node, 0, "ranks=1"))).into_iter().collect();
    let line = format!("--json {model} ranks=1 name=hosts");
    let mut first = Running::of(slurm_task(&hosts, 0, 0, &line));
    first.wait_for_step(1);
    let laid: Vec<_> = std::fs::read_dir(&tokens).expect("a folder").map(|entry| entry.unwrap()).collect();
    assert_eq!(laid.len(), 1, "{laid:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&laid[0].metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    let run = first.finish();
    is_undisturbed(&run, &hosts.folder(0), &whole_digest(&model), 60);
    others.into_iter().for_each(|other| other.finish().succeeded());
    assert_eq!(std::fs::read_dir(&tokens).expect("a folder").count(), 0, "nothing is left of the token");

    let second_task = finish(slurm_task(&hosts, 0, 1, &model));
    second_task.ended_with(2);
    second_task.said("this is task 1 of its host");
    second_task.said("hint: srun --ntasks-per-node=1");
}

/// Mistakes on the command line, each with exit code 2 and a hint.
#[test]
fn mistakes_are_told_before_anybody_is_called() {
    let folder = folder();
    let (_, token) = harness::output(folder.path(), "token new");
    let busy = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let busy = busy.local_addr().unwrap();
    for (arguments, words) in [
        ("--nodes 0", "--nodes 0: expected a whole number"),
        ("--nodes 3..2 --rank 0 --master a", "--nodes 3..2: expected"),
        ("--nodes 2 --rank 2 --master 127.0.0.1", "--rank 2 is out of range for 2 hosts"),
        ("--nodes 2 --master 127.0.0.1", "which of the 2 hosts is this"),
        ("--nodes 2 --rank 1", "where is the first host"),
        (
            "--nodes 2 --rank 1 --master nowhere.invalid join_timeout=1s",
            "cannot find the address of nowhere.invalid",
        ),
        ("--nodes 2 --rank 1 --master 127.0.0.1:x", "\"x\" is no port"),
        ("--nodes 2 --rank 1 --master 127.0.0.1 --resume", "are for the host of rank 0"),
        ("--nodes 2 --rank 0 --master 192.0.2.1", "cannot listen on 192.0.2.1:29400"),
        (
            "--nodes 2 --rank 0 --master 127.0.0.1 isolation=thread",
            "the ranks of several hosts are processes",
        ),
        ("--nodes 2 --rank 0 --master 127.0.0.1 batch_size=8", "batch_size"),
        (&format!("--nodes 2 --rank 0 --master {busy}"), "is in use"),
    ] {
        let mut command = harness::dtrain(folder.path(), &format!("node {arguments}"));
        command.env("DTRAIN_TOKEN", token.trim());
        let told = finish(command);
        told.ended_with(2);
        told.said(words);
        told.said("hint:");
    }
    for (token, words) in [(None, "there is none"), (Some("abc"), "this text has 3 characters")] {
        let mut command = harness::dtrain(folder.path(), "node --nodes 2 --rank 1 --master 127.0.0.1");
        command.env_remove("DTRAIN_TOKEN_FILE").env_remove("DTRAIN_TOKEN");
        command.envs(token.map(|token| ("DTRAIN_TOKEN", token)));
        let told = finish(command);
        told.ended_with(2);
        told.said(words);
        told.said("dtrain token new");
    }
    assert!(!folder.path().join("runs").exists(), "a refused run leaves nothing");
}

#[test]
fn a_master_that_does_not_answer_is_waited_for_as_long_as_was_said() {
    let hosts = Hosts::at(&format!("127.0.0.1:{}", free_port()), "2");
    let told = hosts.start(1, "join_timeout=1s").finish();
    told.ended_with(1);
    told.said("no supervisor answered");
    told.said("join_timeout");
}

#[test]
fn a_new_token_is_for_its_owner_alone_and_never_written_over() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let (made, text) = harness::output(folder.path(), "token new -o token");
    made.succeeded();
    assert_eq!(text, "");
    let path = folder.path().join("token");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let before = std::fs::read_to_string(&path).unwrap();
    assert_eq!(before.trim().len(), 64);
    let (again, _) = harness::output(folder.path(), "token new -o token");
    again.ended_with(2);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}
