//! Several hosts that start again together: what fails on one ends and starts all, and whoever is lost is waited for. Each host is a
//! process of its own, over the loopback or in a network namespace; they share a folder, where their scripts write.

use super::job::FAMILY;
use crate::harness::hosts::free_port;
use crate::harness::network::{Network, Weather};
use crate::harness::turn::has_turn;
use crate::harness::{Signal, children, dtrain, said, signal, stop, wait_until_gone};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What does not happen for so long never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// A group over several hosts.
struct Group {
    folder: TempDir,
    token: String,
    /// `--nodes` and the rest that is the same everywhere.
    flags: String,
    script: String,
    network: Option<Network>,
}

/// `dtrain run` on one of them. It is killed with all that it started when it is dropped.
struct Host {
    child: Child,
    stderr: PathBuf,
}

impl Group {
    fn on_loopback(flags: &str, script: &str) -> Self {
        let flags = format!("--master-addr 127.0.0.1 --master-port {} {flags}", free_port());
        let token = said(std::path::Path::new("/"), "token new");
        Self { folder: tempfile::tempdir().unwrap(), token, flags, script: script.into(), network: None }
    }

    fn start(&self, host: u32) -> Host {
        self.start_with(host, "", &self.token)
    }

    fn start_with(&self, host: u32, more: &str, token: &str) -> Host {
        let mut command =
            dtrain(self.folder.path(), &format!("run --node-rank {host} {} {more} -- sh -c", self.flags));
        command.arg(&self.script);
        let mut command = match &self.network {
            Some(network) => {
                // A host name of its own.
                let mut named = Command::new("unshare");
                named.args(["--uts", "sh", "-c", &format!("hostname box{host} && exec \"$@\""), "sh"]);
                named.arg(command.get_program()).args(command.get_args()).current_dir(self.folder.path());
                network.command(host as usize, &named)
            }
            None => command,
        };
        for name in ["DTRAIN_TOKEN_FILE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"] {
            command.env_remove(name);
        }
        command.env("NO_COLOR", "1").env("DTRAIN_TOKEN", token.trim());
        let number = (0..).find(|number| !self.path(&format!("stderr.{host}.{number}")).exists());
        let stderr = self.path(&format!("stderr.{host}.{}", number.expect("there is a number")));
        let file = |path: &PathBuf| Stdio::from(fs::File::create(path).unwrap());
        command.stdout(file(&self.path("stdout"))).stderr(file(&stderr)).stdin(Stdio::null());
        Host { child: command.spawn().unwrap(), stderr }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    #[track_caller]
    fn number(&self, name: &str) -> u32 {
        wait_for(|| self.read(name).trim().parse().ok(), || name.to_owned())
    }
}

#[track_caller]
fn wait_for<T>(mut condition: impl FnMut() -> Option<T>, what: impl Fn() -> String) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never came: {}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Host {
    fn words(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    #[track_caller]
    fn says(&self, words: &str) {
        wait_for(|| self.words().contains(words).then_some(()), || format!("{words}\n{}", self.words()));
    }

    /// The exit code of this host, and what it said.
    #[track_caller]
    fn ends_with(mut self, code: i32) -> String {
        let stderr = self.stderr.clone();
        let words = || format!("the end\n{}", fs::read_to_string(&stderr).unwrap_or_default());
        let status = wait_for(|| self.child.try_wait().unwrap(), words);
        assert_eq!(status.code(), Some(code), "{}", self.words());
        assert!(!self.words().contains("panicked"), "{}", self.words());
        self.words()
    }

    /// Kills the launcher; the process above it ends what it had started, and itself.
    fn kill(self) {
        let launcher = wait_for(|| children(self.child.id()).first().copied(), || "the launcher".into());
        signal(Signal::KILL, launcher);
        self.ends_with(1);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The launcher ends with it, and the ranks with that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_rank_that_fails_on_one_host_starts_all_of_all_hosts_again_with_what_torchrun_tells_them() {
    let script = "n=$TORCHELASTIC_RESTART_COUNT
        echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_MAX_RESTARTS > said.$n.$RANK
        echo $TORCHELASTIC_RUN_ID >> ids; echo $$ > pid.$n.$RANK
        [ $n = 2 ] && exit 0; [ $RANK != 3 ] && exec sleep 1000
        while [ ! -e pid.$n.0 ] || [ ! -e pid.$n.1 ] || [ ! -e pid.$n.2 ]; do sleep 0.01; done; exit 7";
    let group = Group::on_loopback("--nodes 2 --nproc 2 --max-restarts 5", script);
    let (first, second) = (group.start(0), group.start(1));
    for words in [first.ends_with(0), second.ends_with(0)] {
        assert_eq!(
            words.matches("exited with code 7").count(),
            2,
            "each host names the first cause: {words}"
        );
        assert!(words.contains("first cause: rank 3 (pid "), "{words}");
        assert!(words.contains("restart 2 of 5: all 4 ranks on 2 hosts"), "{words}");
    }
    let port = group.flags.split(' ').nth(3).unwrap();
    for n in 0..3 {
        for rank in 0..4 {
            let wanted = format!("{rank} {} 4 {} 127.0.0.1 {port} 5\n", rank % 2, rank / 2);
            assert_eq!(group.read(&format!("said.{n}.{rank}")), wanted);
        }
    }
    let ids = group.read("ids");
    assert!(ids.lines().count() == 12 && ids.lines().all(|id| Some(id) == ids.lines().next()), "{ids}");
    let left: Vec<u32> = (0..4).map(|rank| group.number(&format!("pid.1.{rank}"))).collect();
    wait_until_gone(&left);
}

/// The launcher stands still while all are told to start and then to stop: it reads both at once.
#[test]
fn a_word_to_stop_that_comes_with_the_word_to_start_is_heard() {
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
        [ $RANK = 0 ] && { while [ ! -e pid.2 ]; do sleep 0.01; done; touch died; kill -9 $$; }; echo $$ > pid.$RANK; exec sleep 1000";
    let group = Group::on_loopback("--nodes 3 --max-restarts 1", script);
    let (first, second) = (group.start(0), group.start(1));
    // Its link is there when what it sends has been answered.
    let launcher = wait_for(|| children(second.child.id()).first().copied(), || "the launcher".into());
    std::thread::sleep(Duration::from_secs(1));
    stop(launcher);
    let third = group.start(2);
    wait_for(|| group.path("died").exists().then_some(()), || "the first rank".into());
    // The third host was told to stop, and so was the second.
    wait_until_gone(&[group.number("pid.2")]);
    signal(Signal::CONT, launcher);
    for host in [first, second, third] {
        let words = host.ends_with(0);
        assert!(words.contains("restart 1 of 1") && !words.contains("is not heard any more"), "{words}");
    }
}

#[test]
fn a_used_up_budget_ends_all_hosts_with_the_first_cause_and_nothing_lives_on() {
    let script = format!(
        "[ $RANK = 1 ] && {{ while [ ! -e pid.0 ]; do sleep 0.01; done; echo broken >&2; exit 3; }}; {FAMILY} wait"
    );
    let group = Group::on_loopback("--nodes 2 --max-restarts 0", &script);
    let (first, second) = (group.start(0), group.start(1));
    for words in [first.ends_with(1), second.ends_with(1)] {
        assert!(
            words.contains("rank 1 (pid") && words.contains("broken") && words.contains("hint: "),
            "{words}"
        );
    }
    wait_until_gone(&["pid.0", "child.0", "far.0"].map(|name| group.number(name)));
}

#[test]
fn ranks_launchers_and_hosts_that_are_killed_are_waited_for_and_all_start_again() {
    if !has_turn(21) {
        return;
    }
    let network = match Network::build(3, Weather { delay: Duration::ZERO, one_in: u64::MAX, seed: 1 }) {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: network namespaces cannot be had here ({why})"),
    };
    network.name_hosts(&["box0", "box1", "box2"]);
    let script = format!(
        "n=$TORCHELASTIC_RESTART_COUNT; [ $n = 4 ] && exit 0; [ $n = 3 ] && [ $RANK = 0 ] && touch third
         rm -f far.$RANK; {FAMILY} cp pid.$RANK life.$n.$RANK.part; mv life.$n.$RANK.part life.$n.$RANK; wait"
    );
    let group = Group {
        network: Some(network),
        flags: "--nodes 3 --max-restarts 4 --master-addr box0 --master-port 29511".into(),
        ..Group::on_loopback("", &script)
    };
    let life = |n: u32| (0..3).map(|rank| group.number(&format!("life.{n}.{rank}"))).collect::<Vec<u32>>();
    let (mut first, mut second, third) = (group.start(0), group.start(1), group.start(2));

    // A rank on one host.
    let ranks = life(0);
    signal(Signal::KILL, ranks[2]);
    for host in [&first, &second, &third] {
        host.says(&format!("first cause: rank 2 (pid {} on box2): killed by signal 9", ranks[2]));
    }
    wait_until_gone(&ranks);

    // The launcher of a host, with the one above it.
    let ranks = life(1);
    second.kill();
    first.says("host 1 (box1): its launcher is not heard any more");
    first.says("1 host is waited for, 600 s at most");
    wait_until_gone(&ranks);
    second = group.start(1);

    // That of the first host: the others end their ranks and call for it.
    let ranks = life(2);
    first.kill();
    third.says("host 0 (box0) is not heard any more: the ranks here are ended, and it is called again");
    wait_until_gone(&ranks);
    first = group.start(0);

    // A host that is cut off, and comes back.
    let ranks = life(3);
    group.network.as_ref().expect("there is one").set_link(2, "down");
    first.says("host 2 (box2): its launcher is not heard any more");
    wait_until_gone(&ranks);
    group.network.as_ref().expect("there is one").set_link(2, "up");
    for host in [first, second, third] {
        let words = host.ends_with(0);
        assert!(words.contains("restart 4 of 4: all 3 ranks on 3 hosts"), "{words}");
    }
}

#[test]
fn who_has_another_token_or_asks_for_something_else_is_refused_and_the_others_go_on() {
    let script = "echo $$ > pid.$RANK; while [ ! -e end ]; do sleep 0.01; done";
    let group = Group::on_loopback("--nodes 2 --max-restarts 1", script);
    let first = group.start(0);
    let stranger = group.start_with(1, "", &said(std::path::Path::new("/"), "token new"));
    let words = stranger.ends_with(2);
    assert!(words.contains("not trusted") || words.contains("refused this process"), "{words}");
    let other = group.start_with(1, "--nproc 2", &group.token);
    let words = other.ends_with(2);
    assert!(words.contains("--nproc is 2 on host 1") && words.contains("and 1 on host 0"), "{words}");
    let second = group.start(1);
    let ranks = [group.number("pid.0"), group.number("pid.1")];
    fs::write(group.path("end"), "").unwrap();
    for host in [first, second] {
        let words = host.ends_with(0);
        assert!(!words.contains("restart 1"), "{words}");
    }
    wait_until_gone(&ranks);
}

#[test]
fn a_host_that_never_comes_ends_the_run_in_time_and_is_named() {
    if !has_turn(4) {
        return;
    }
    let group = Group::on_loopback("--nodes 3 --max-restarts 1 --join-timeout 2", "touch started");
    let (first, third) = (group.start(0), group.start(2));
    for host in [first, third] {
        let words = host.ends_with(1);
        assert!(words.contains("host 1 of 3 did not come within 2 s") && words.contains("hint: "), "{words}");
    }
    let alone = group.start(1);
    let words = alone.ends_with(1);
    assert!(words.contains("host 0 at 127.0.0.1") && words.contains("was not reached within 2 s"), "{words}");
    assert!(!group.path("started").exists());
}

#[test]
fn who_interrupts_one_host_ends_all_of_them() {
    let group = Group::on_loopback("--nodes 2 --max-restarts 3", "echo $$ > pid.$RANK; exec sleep 1000");
    let (first, second) = (group.start(0), group.start(1));
    let ranks = [group.number("pid.0"), group.number("pid.1")];
    signal(Signal::TERM, second.child.id());
    for host in [first, second] {
        let words = host.ends_with(130);
        assert!(words.contains("interrupted by SIGTERM on ") && !words.contains("restart 1"), "{words}");
    }
    wait_until_gone(&ranks);
    // Before all are here, too.
    let first = group.start(0);
    first.says("2 hosts start together");
    signal(Signal::INT, first.child.id());
    first.ends_with(130);
}
