//! The host that leads is lost, and another one leads: several hosts that see one run folder, judged from outside.

use crate::harness::hosts::Hosts;
use crate::harness::network::{Network, Weather};
use crate::harness::turn::has_turn;
use crate::harness::{
    MLP, Running, Signal, audit_is_clean, children, folder, keepers_of, lives, logged_steps, ranks_of,
    signal, train, wait_until_gone,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Hosts with folders of their own, but for that of the run.
struct Cluster {
    hosts: Hosts,
    shared: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        Self { hosts: Hosts::on_loopback("3"), shared: folder() }
    }

    /// One whose three hosts make steps, with a rank each: the first of them, and the others.
    fn at_work(model: &str) -> (Self, Running, [Running; 2]) {
        let cluster = Self::new();
        let others = [1, 2].map(|host| cluster.hosts.start(host, "--json ranks=1"));
        let mut first = cluster.hosts.start(0, &format!("{} ranks=1", cluster.words(model)));
        first.wait_for_step(50);
        (cluster, first, others)
    }

    fn words(&self, model: &str) -> String {
        format!("{model} run_dir={} resume=auto", self.run().display())
    }

    fn run(&self) -> PathBuf {
        self.shared.path().join("runs/a")
    }

    /// The last step that is written down.
    fn recorded(&self) -> u64 {
        let ledger = std::fs::read_to_string(self.run().join("ledger.jsonl")).unwrap_or_default();
        let lines =
            ledger.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter_map(|line| line["to"].as_u64()).next().unwrap_or(0)
    }

    fn log(&self) -> Vec<serde_json::Value> {
        let log = std::fs::read_to_string(self.run().join("events.jsonl")).expect("a log");
        log.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
    }

    /// Waits until this step is written down.
    #[track_caller]
    fn wait_for(&self, step: u64) {
        let begun = Instant::now();
        while self.recorded() < step {
            assert!(begun.elapsed() < Duration::from_secs(60), "at step {}, not at {step}", self.recorded());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn is_whole(&self, model: &str, steps: u64) {
        let whole = train(self.shared.path(), &format!("{model} ranks=1 name=whole"));
        let lines = self.log();
        let summary = lines.iter().rfind(|line| line["event"] == "summary").expect("a summary");
        assert_eq!(summary["digest"], whole.digest());
        assert_eq!(summary["lost_steps"], 0);
        assert_eq!(logged_steps(&self.run()), (1..=steps).collect::<Vec<u64>>());
        audit_is_clean(self.shared.path(), "a");
        for gone in [".supervisor", ".keeper", ".seen-by-hosts", ".ending", ".hosts", ".ranges"] {
            assert!(!self.run().join(gone).exists(), "{gone} is left behind");
        }
    }
}

/// The supervisor that a host has started.
#[track_caller]
fn successor_of(host: &Running) -> u32 {
    let begun = Instant::now();
    loop {
        let ranks = ranks_of(host.pid());
        if let Some(pid) = children(host.pid()).into_iter().find(|pid| !ranks.contains(pid)) {
            return pid;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it leads nothing\n{}", host.story());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_host_that_leads_may_be_lost_again_and_again_and_comes_back_as_one_of_the_others() {
    if !has_turn(16) {
        return;
    }
    let model = format!("{MLP} steps=12000 threads=1 checkpoint.every=1000~steps");
    let cluster = Cluster::new();
    let words = cluster.words(&model);
    let others = [1, 2].map(|host| cluster.hosts.start(host, "--json ranks=1"));
    let mut first = cluster.hosts.start(0, &format!("{words} ranks=2"));
    first.wait_for_step(50);
    let held: Vec<Vec<u32>> = others.iter().map(|other| ranks_of(other.pid())).collect();
    let kept = || others.iter().map(|other| ranks_of(other.pid())).collect::<Vec<_>>();
    first.kill_everything();
    drop(first);
    cluster.wait_for(cluster.recorded() + 50);
    assert_eq!(kept(), held, "the ranks of the other hosts go on");
    // It comes back, finds that another host leads, and joins.
    let again = cluster.hosts.start(0, &format!("{words} ranks=1"));
    again.wait_for_words("host 1 leads");
    again.wait_for_words("1 of them here");
    // So does any other that is started again: where `--master` says nobody listens.
    let [second, third] = others;
    drop(third);
    let third = cluster.hosts.start(2, &format!("{words} ranks=1"));
    third.wait_for_words("host 1 leads");
    third.wait_for_words("1 of them here");
    let others = [second, third];
    let held: Vec<Vec<u32>> = others.iter().map(|other| ranks_of(other.pid())).collect();
    let kept = || others.iter().map(|other| ranks_of(other.pid())).collect::<Vec<_>>();
    // Then the supervisor there is killed, but not its host.
    signal(Signal::KILL, successor_of(&others[0]));
    cluster.wait_for(cluster.recorded() + 50);
    assert_eq!(kept(), held);
    for host in others.into_iter().chain([again]) {
        host.finish().succeeded();
    }
    cluster.is_whole(&model, 12000);
}

#[test]
fn a_supervisor_that_is_killed_alone_is_followed_elsewhere_and_nothing_of_it_stays() {
    if !has_turn(14) {
        return;
    }
    let model = format!("{MLP} steps=20000 threads=1 checkpoint.every=none");
    let (cluster, first, others) = Cluster::at_work(&model);
    let left = [keepers_of(first.pid()), ranks_of(first.pid())].concat();
    signal(Signal::KILL, first.pid());
    cluster.wait_for(cluster.recorded() + 50);
    wait_until_gone(&left);
    // Longer than a link lives over which nothing comes: it is found where it listens, and not where the first one did.
    let leads = successor_of(&others[0]);
    signal(Signal::STOP, leads);
    std::thread::sleep(Duration::from_secs(4));
    signal(Signal::CONT, leads);
    cluster.wait_for(cluster.recorded() + 50);
    signal(Signal::INT, leads);
    for host in others {
        host.finish().ended_with(130);
    }
}

/// Sooner than they would find that another host leads.
#[test]
fn ranks_whose_supervisor_alone_was_killed_end_with_a_run_that_ends_elsewhere() {
    if !has_turn(15) {
        return;
    }
    let model = format!("{MLP} steps=1000000 threads=1 checkpoint.every=none");
    let (cluster, first, others) = Cluster::at_work(&model);
    let left = [keepers_of(first.pid()), ranks_of(first.pid())].concat();
    signal(Signal::KILL, first.pid());
    let leads = successor_of(&others[0]);
    cluster.wait_for(cluster.recorded() + 1);
    signal(Signal::INT, leads);
    for host in others {
        host.finish().ended_with(130);
    }
    wait_until_gone(&left);
}

/// It stands still with its ranks while the others make the last steps, or are interrupted, and nobody is there any more when it wakes.
#[test]
fn a_host_that_slept_through_the_end_of_the_run_reads_it_in_the_folder_and_waits_for_nobody() {
    if !has_turn(19) {
        return;
    }
    for (words, signals, code) in [("steps=4000", false, 0), ("steps=1000000", true, 130)] {
        let model = format!("{MLP} {words} threads=1 checkpoint.every=none");
        let cluster = Cluster::new();
        let others = [1, 2].map(|host| cluster.hosts.start(host, "ranks=1"));
        let mut first = cluster.hosts.start(0, &format!("{} ranks=1", cluster.words(&model)));
        first.wait_for_world(3);
        first.wait_for_step(50);
        let [second, third] = others;
        let asleep = [vec![third.pid()], ranks_of(third.pid())].concat();
        asleep.iter().for_each(|pid| signal(Signal::STOP, *pid));
        first.wait_for_world(2);
        if signals {
            signal(Signal::INT, first.pid());
        }
        first.finish().ended_with(code);
        second.finish().ended_with(code);
        let woken = Instant::now();
        asleep.iter().for_each(|pid| signal(Signal::CONT, *pid));
        let third = third.finish();
        third.ended_with(code);
        assert!(woken.elapsed() < Duration::from_secs(30), "it waited {:?}", woken.elapsed());
        wait_until_gone(&asleep);
    }
}

#[test]
fn a_supervisor_that_only_stands_still_is_not_followed() {
    if !has_turn(16) {
        return;
    }
    let model = format!("{MLP} steps=3000 threads=1 detect=500ms");
    let (cluster, first, others) = Cluster::at_work(&model);
    signal(Signal::STOP, first.pid());
    std::thread::sleep(Duration::from_secs(3));
    signal(Signal::CONT, first.pid());
    let run = first.finish();
    assert_eq!(run.events("generation").count(), 1, "{}", run.stderr);
    for host in others {
        let host = host.finish();
        host.succeeded();
        assert!(!host.stderr.contains("nobody leads the run"), "{}", host.stderr);
    }
    cluster.is_whole(&model, 3000);
}

#[test]
fn where_nobody_is_to_follow_the_hosts_wait_for_the_first() {
    if !has_turn(23) {
        return;
    }
    let model = format!("{MLP} steps=8000 threads=1 checkpoint.every=500~steps standby=off");
    let (cluster, first, others) = Cluster::at_work(&model);
    let words = cluster.words(&model);
    first.kill_everything();
    drop(first);
    others[0].wait_for_words("wait for another one");
    let at = cluster.recorded();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.recorded(), at, "somebody leads");
    let first = cluster.hosts.start(0, &format!("{words} ranks=1"));
    // A second first host finds that there is one.
    others[1].wait_for_words("answers again");
    let twin = cluster.hosts.start(0, &format!("{words} ranks=1")).finish();
    twin.ended_with(2);
    twin.said("hint: ");
    assert!(lives(first.pid()));
    first.finish().succeeded();
    for host in others {
        host.finish().succeeded();
    }
    cluster.is_whole(&model, 8000);
}

/// Both sides live. Whoever has the folder's lock leads; the others wait for it, and come back.
#[test]
fn a_host_that_leads_and_is_cut_off_leads_on_and_nothing_is_doubled() {
    if !has_turn(18) {
        return;
    }
    let weather = Weather { delay: Duration::from_millis(1), one_in: u64::MAX, seed: 1 };
    let network = match Network::build(3, weather) {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: network namespaces cannot be had here ({why})"),
    };
    let model = format!("{MLP} steps=1000000 threads=1 detect=500ms checkpoint.every=none");
    let hosts = Hosts::at(&format!("{}:29400", Network::address(0)), "3");
    let cluster = Cluster { hosts, shared: folder() };
    let start = |host: u32, words: &str| {
        Running::of(network.command(host as usize, &cluster.hosts.node(host, words)))
    };
    let others = [start(1, "--json ranks=1"), start(2, "--json ranks=1")];
    let mut first = start(0, &format!("{} ranks=1", cluster.words(&model)));
    first.wait_for_step(50);
    let world =
        |size: u64| move |line: &serde_json::Value| line["event"] == "generation" && line["ranks"] == size;
    network.set_link(0, "down");
    assert!(first.wait_for(world(1)).is_some(), "{}", first.story());
    // Longer than anybody needs to find that nobody is heard.
    std::thread::sleep(Duration::from_secs(2));
    network.set_link(0, "up");
    assert!(first.wait_for(world(3)).is_some(), "{}", first.story());
    first.wait_for_step(first.last_step() + 20);
    signal(Signal::INT, first.pid());
    first.finish().ended_with(130);
    for host in others {
        let host = host.finish();
        host.ended_with(130);
        assert!(!host.stderr.contains("nobody leads the run"), "{}", host.stderr);
    }
    let made = logged_steps(&cluster.run());
    assert_eq!(made, (1..=made.len() as u64).collect::<Vec<u64>>());
    audit_is_clean(cluster.shared.path(), "a");
}
