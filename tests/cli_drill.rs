//! Drills: a run that is hurt on purpose by the binary itself, and what it tells people and programs of it.

use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, MLP, Running, Signal, children, dtrain, finish, folder, lives, output, signal, wait_until_gone,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// A drill with `--json` in a folder of the user.
fn drill(folder: &Path, arguments: &str) -> Finished {
    finish(dtrain(folder, &format!("drill --json {arguments}")))
}

/// The promises that did not hold, and everything, for the message of a failed test.
#[track_caller]
fn all_held(drill: &Finished) {
    assert_eq!(drill.summary()["held"], true, "{}", drill.stderr);
    drill.ended_with(0);
    let promises = drill.summary()["promises"].as_array().expect("a list");
    assert!(promises.len() >= 5 && promises.iter().all(|promise| promise["held"] == true), "{promises:?}");
    let [digest, expected] = ["digest", "undisturbed_digest"].map(|key| drill.summary()[key].to_string());
    assert!(digest == expected && digest.len() == 66, "{digest} and {expected}");
}

fn seconds(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("no {key} in {line}"))
}

/// The promise whose words begin so.
fn promise<'a>(drill: &'a Finished, words: &str) -> &'a Value {
    let promises = drill.summary()["promises"].as_array().expect("a list");
    let found =
        promises.iter().find(|promise| promise["promise"].as_str().is_some_and(|p| p.starts_with(words)));
    found.unwrap_or_else(|| panic!("no promise {words:?} in {promises:?}"))
}

#[test]
fn killed_ranks_cost_nothing_and_the_folder_of_the_user_is_as_it_was() {
    if !has_turn(22) {
        return;
    }
    let folder = folder();
    let rows: String = (0..60).map(|i| format!("{},{},{}\n", i % 7, i % 5, i % 3)).collect();
    fs::write(folder.path().join("table.csv"), rows).unwrap();
    // A relative path of data and a name, as a user has them; neither is in the way.
    let yaml = "name: mine\ndata: {kind: csv, path: table.csv}\nmodel: {kind: mlp, hidden: [16]}\nglobal_batch: 16\n\
                micro_batch: 2\nthreads: 1\nmax_restarts: 0\n";
    fs::write(folder.path().join("run.yaml"), yaml).unwrap();
    // A stretch of the run is many times longer than a rank takes to come back, also where the machine is busy.
    let run = drill(folder.path(), "kill -c run.yaml ranks=3 steps=15000 --times 3");
    all_held(&run);
    let hurts: Vec<&Value> = run.events("drill").collect();
    assert_eq!(hurts.len(), 3, "{}", run.stderr);
    for (number, hurt) in hurts.iter().enumerate() {
        assert_eq!(hurt["number"], number + 1);
        let victims = hurt["pids"].as_array().unwrap().len();
        // Two at once now and then, where that leaves one: while a rank comes back there are only two others.
        let two = number == 2 && hurt["moment"] != "in a state copy";
        assert_eq!(victims, if two { 2 } else { 1 }, "{hurt}");
        assert!(seconds(hurt, "recovery_seconds") >= seconds(hurt, "news_seconds"), "{hurt}");
        assert!(hurt["cause"].as_str().unwrap().contains("signal 9"), "{hurt}");
        assert_eq!(hurt["survivors_kept"], true);
        let survivors = hurt["survivors"].as_array().unwrap();
        assert!(!survivors.is_empty(), "{hurt}");
        assert!(!survivors.iter().any(|pid| lives(pid.as_u64().unwrap() as u32)), "all are gone at the end");
    }
    assert_eq!(
        (&run.summary()["steps"], &run.summary()["lost_steps"]),
        (&Value::from(15_000), &Value::from(0))
    );
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["run.yaml", "table.csv", "text.txt"]);
}

#[test]
fn without_a_length_one_is_chosen_that_has_room_for_every_hurt() {
    if !has_turn(11) {
        return;
    }
    let folder = folder();
    let (run, text) = output(folder.path(), &format!("drill kill {MLP} ranks=2 threads=1 --times 1"));
    assert_eq!(run.code, Some(0), "{text}");
    run.said("how long a step takes is measured first");
    run.said("1 of 1: rank ");
    for words in ["recovered", "held    no step is lost, repeated or out of order", "all promises held"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("BROKEN"), "{text}");
}

#[test]
fn ranks_that_hang_are_named_and_replaced_in_time() {
    let folder = folder();
    let run = drill(folder.path(), &format!("hang {MLP} ranks=3 threads=1 steps=1500 --times 1"));
    all_held(&run);
    let hurt = run.events("drill").next().expect("one");
    assert!(hurt["cause"].as_str().unwrap().contains("silent for"), "{hurt}");
    promise(&run, "a rank that hangs is named and replaced within 3 x detect");
}

#[test]
fn a_run_that_is_asked_to_stop_goes_on_where_it_was() {
    if !has_turn(17) {
        return;
    }
    let folder = folder();
    let run = drill(folder.path(), &format!("sigterm {MLP} ranks=2 threads=1 steps=5000 --times 2"));
    all_held(&run);
    assert_eq!(run.events("drill").count(), 2);
    for hurt in run.events("drill") {
        assert!(hurt["cause"].as_str().unwrap().starts_with("exit code 130 after step"), "{hurt}");
    }
    assert_eq!(run.summary()["steps"], 5000);
}

/// Whether this process may mount a file system of its own, as root or in a namespace of its own.
fn may_mount() -> bool {
    [&["--mount"][..], &["--mount", "--map-root-user"]].iter().any(|how| {
        let tried =
            Command::new("unshare").args(*how).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
        tried.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn a_full_disk_is_told_and_costs_nothing_or_the_machine_is_said_not_to_allow_it() {
    // Without a length: one that is over while what a full disk left is verified, on a busy machine, is tried again longer.
    let folder = folder();
    let run = drill(folder.path(), &format!("disk-full {MLP} ranks=2 threads=1 --times 2"));
    if !may_mount() {
        run.ended_with(1);
        run.said("this machine does not allow one");
        run.said("hint: run it as root");
        return;
    }
    all_held(&run);
    let hurts: Vec<&Value> = run.events("drill").collect();
    for hurt in hurts.last_chunk::<2>().expect("two of the last try") {
        assert!(hurt["cause"].as_str().unwrap().contains("disk is full"), "{hurt}");
    }
}

/// Nobody is left that holds the state: the run goes on from its checkpoint, and the drill says what that costs.
#[test]
fn with_one_rank_there_are_no_survivors_and_the_drill_says_so() {
    if !has_turn(17) {
        return;
    }
    let folder = folder();
    let run = drill(folder.path(), &format!("kill {MLP} ranks=1 threads=1 steps=4000 --times 1"));
    all_held(&run);
    assert_eq!(run.events("drill").next().expect("one")["survivors"], Value::Array(vec![]));
    assert_eq!(promise(&run, "survivors")["detail"], "with one rank there are none");
    let steps = promise(&run, "no step is lost");
    assert!(steps["detail"].as_str().unwrap().contains("nobody else holds the state"), "{steps}");
}

/// A promise that does not hold is told as such: this run may not lose a rank.
#[test]
fn a_promise_that_does_not_hold_is_named_and_the_exit_code_is_1() {
    let folder = folder();
    let how = format!(
        "kill {MLP} ranks=2 min_ranks=2 max_restarts=0 join_timeout=5s threads=1 steps=4000 --times 1"
    );
    let run = drill(folder.path(), &how);
    run.ended_with(1);
    assert_eq!(run.summary()["held"], false);
    let end = promise(&run, "the run comes to its end");
    assert_eq!(end["held"], false);
    assert!(end["detail"].as_str().unwrap().starts_with("exit code 3"), "{end}");
    run.said("BROKEN  the run comes to its end");
}

#[test]
fn what_cannot_be_drilled_is_refused_with_a_hint_before_anything_runs() {
    let folder = folder();
    for (arguments, words) in [
        ("flood", "possible values: kill, hang, partition, disk-full, sigterm"),
        ("", "dtrain drill"),
        ("kill --times 0", "--times"),
        ("kill isolation=thread", "hint: write isolation=process for the drill"),
        ("hang isolation=thread", "cannot be lost one by one"),
        ("kill steps=9 --times 5", "9 steps leave no room for 5 faults"),
        ("kill optimizer.lr=fast", "optimizer.lr: expected a number above 0"),
        ("kill -c missing.yaml", "cannot read missing.yaml"),
        ("kill data.kind=csv data.path=missing.csv", "missing.csv does not exist"),
        ("kill devices=cuda:0", "hint:"),
        ("kill --seconds 3", "--seconds says nothing about the drill kill"),
        ("partition ranks=1", "1 rank cannot be divided between two hosts"),
        ("partition ranks=2 isolation=thread", "the ranks of several hosts are processes"),
        ("partition ranks=2 batch_size=8", "batch_size: it is per rank"),
        ("partition ranks=2 --seconds 0.9", "a cut lasts from 1.5 to 58 seconds"),
        ("partition ranks=2 --seconds 59", "a cut lasts from 1.5 to 58 seconds"),
        ("partition ranks=2 --seconds -1", "a cut lasts from 1.5 to 58 seconds"),
        ("partition ranks=2 --seconds NaN", "a cut lasts from 1.5 to 58 seconds"),
        ("partition ranks=2 join_timeout=2s", "2s is too short for a cut with detect 1s"),
        ("partition ranks=2 steps=7", "7 steps leave no room for 2 faults"),
    ] {
        let refused = finish(dtrain(folder.path(), &format!("drill {arguments}")));
        refused.ended_with(2);
        refused.said(words);
    }
}

#[test]
fn a_drill_that_is_stopped_leaves_no_process_and_no_folder() {
    let (folder, temporary) = (folder(), folder());
    let mut command =
        dtrain(folder.path(), &format!("drill --json kill {MLP} ranks=2 threads=1 steps=1000000 --times 2"));
    command.env("TMPDIR", temporary.path());
    let running = Running::of(command);
    running.wait_for_words("1 000 000 steps on 2 ranks");
    signal(Signal::TERM, running.pid());
    let run = running.finish();
    run.ended_with(130);
    run.said("the drill was stopped");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["text.txt"]);
}

/// Whether this process may have two networks with a cable between them, as root or in a namespace of its own.
fn may_have_networks() -> bool {
    [&["--net"][..], &["--map-root-user", "--net"]].iter().any(|how| {
        let link = ["ip", "link", "add", "one", "type", "veth", "peer", "name", "other"];
        let tried = Command::new("unshare").args(*how).args(link).output();
        tried.is_ok_and(|output| output.status.success())
    })
}

/// True where the drill partition can be done; says so where it cannot.
fn can_partition() -> bool {
    let can = may_have_networks();
    if !can {
        eprintln!("skipped: network namespaces with a veth pair cannot be had here");
    }
    can
}

/// The number of the network that a process is in.
fn network_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|network| network.ino())
}

fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").expect("there is /proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The two networks of a drill, and a process in each.
struct TwoHosts(BTreeMap<u64, u32>);

impl TwoHosts {
    /// Those of a drill that has told of its beginning.
    fn of(drill: u32) -> Self {
        let ours = network_of(std::process::id()).expect("we are there");
        let mut hosts = BTreeMap::new();
        for pid in children(drill) {
            if let Some(network) = network_of(pid).filter(|network| *network != ours) {
                hosts.entry(network).or_insert(pid);
            }
        }
        assert_eq!(hosts.len(), 2, "{hosts:?}");
        Self(hosts)
    }

    /// Whether one of the two hosts has no way to the other.
    fn is_cut(&self) -> bool {
        let has_no_way = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/net/route")).is_ok_and(|text| !text.contains("cable"))
        };
        self.0.values().any(has_no_way)
    }

    fn wait_until_cut(&self, drill: u32) {
        while !self.is_cut() {
            assert!(lives(drill), "the drill ended before a cut");
            std::thread::yield_now();
        }
    }

    /// The processes on the two hosts.
    fn processes(&self) -> Vec<u32> {
        let here = |pid: &u32| network_of(*pid).is_some_and(|network| self.0.contains_key(&network));
        pids().filter(here).collect()
    }

    /// Nothing holds the networks any more: no process is in them, and none has a name. A network that nothing holds
    /// is gone, and so is the cable in it.
    #[track_caller]
    fn are_gone(&self, processes: &[u32]) {
        wait_until_gone(processes);
        assert_eq!(self.processes(), Vec::<u32>::new());
        let named = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let named: Vec<_> = named
            .filter(|name| name.metadata().is_ok_and(|network| self.0.contains_key(&network.ino())))
            .collect();
        assert!(named.is_empty(), "{named:?}");
        assert!(!Path::new("/sys/class/net/cable").exists(), "the cable was never outside the two hosts");
    }
}

#[test]
fn a_host_that_is_cut_off_costs_nothing_and_comes_back() {
    if !has_turn(20) {
        return;
    }
    if !can_partition() {
        return;
    }
    let (folder, temporary) = (folder(), folder());
    let yaml = "name: mine\ndata: {kind: text, path: text.txt, context: 8}\nmodel: {kind: gpt, layers: 2, width: 16, heads: 2}\n\
                global_batch: 22\nmicro_batch: 3\nthreads: 1\ndetect: 700ms\n";
    fs::write(folder.path().join("run.yaml"), yaml).unwrap();
    let mut command =
        dtrain(folder.path(), "drill --json partition -c run.yaml ranks=3 --times 2 --seconds 1.9");
    command.env("TMPDIR", temporary.path());
    let running = Running::of(command);
    running.wait_for_words("two hosts with 2 and 1 of the ranks; a cut lasts 1.9 s");
    let hosts = TwoHosts::of(running.pid());
    hosts.wait_until_cut(running.pid());
    let processes = hosts.processes();
    // A keeper each, a node each, two ranks on the first host, and perhaps one that is not yet given up.
    assert!(processes.len() >= 6, "{processes:?}");
    let run = running.finish();
    all_held(&run);
    hosts.are_gone(&processes);
    let hurts: Vec<&Value> = run.events("drill").collect();
    // A run that was too short is made longer and hurt again.
    assert!(hurts.len() >= 2, "{}", run.stderr);
    for hurt in &hurts[hurts.len() - 2..] {
        assert_eq!(
            hurt["members"].as_array().unwrap().len(),
            1,
            "one rank is on the host that is cut off: {hurt}"
        );
        assert_eq!(hurt["survivors"].as_array().unwrap().len(), 2, "{hurt}");
        assert_eq!(hurt["survivors_kept"], true);
        assert!(hurt["cause"].as_str().unwrap().contains("silent for"), "{hurt}");
        let [news, recovery, _] =
            ["news", "recovery", "returned"].map(|key| seconds(hurt, &format!("{key}_seconds")));
        assert!(recovery >= news && recovery < 1.9, "steps were made while the link was cut: {hurt}");
    }
    assert_eq!(run.summary()["lost_steps"], 0);
    let came_back = &promise(&run, "the ranks of a host that is back")["detail"];
    assert!(came_back.as_str().unwrap().starts_with("2 of 2"), "{came_back}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["text.txt"]);
    assert!(!folder.path().join("runs").exists(), "no run of the user");
}

/// Six calm steps come before a cut, so nine have no room for two.
#[test]
fn a_run_that_ends_while_a_host_is_cut_off_has_proved_nothing() {
    if !has_turn(20) {
        return;
    }
    if !can_partition() {
        return;
    }
    let folder = folder();
    let run =
        drill(folder.path(), &format!("partition {MLP} ranks=2 threads=1 steps=9 --times 2 --seconds 1.5"));
    run.ended_with(1);
    assert_eq!(run.summary()["held"], false);
    assert_eq!(promise(&run, "the run goes on after every fault")["held"], false);
    assert_eq!(promise(&run, "the bits are those of an undisturbed run")["held"], true);
    run.said("give it more steps=");
}

/// Asked to stop, as by Ctrl-C, and killed, when it can do nothing any more.
#[test]
fn of_a_partition_that_ends_in_the_middle_of_a_cut_nothing_is_left() {
    if !has_turn(5) {
        return;
    }
    if !can_partition() {
        return;
    }
    for how in [Signal::INT, Signal::KILL] {
        let (folder, temporary) = (folder(), folder());
        let line = format!("drill --json partition {MLP} ranks=2 threads=1 steps=3000 --seconds 30");
        let mut command = dtrain(folder.path(), &line);
        command.env("TMPDIR", temporary.path());
        let running = Running::of(command);
        running.wait_for_words("undisturbed: digest");
        let hosts = TwoHosts::of(running.pid());
        hosts.wait_until_cut(running.pid());
        let processes = hosts.processes();
        assert!(processes.len() >= 5, "{processes:?}");
        signal(how, running.pid());
        let run = running.finish();
        hosts.are_gone(&processes);
        if how == Signal::INT {
            run.ended_with(130);
            run.said("the drill was stopped");
            let left: Vec<_> =
                fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left, ["text.txt"]);
        }
    }
}

#[test]
fn where_two_networks_cannot_be_had_nothing_is_started_or_written() {
    let words = format!("drill partition {MLP} ranks=2");
    let refused = |wrap: Option<&str>, path: Option<&str>| {
        let (folder, temporary) = (folder(), folder());
        let plain = dtrain(folder.path(), &words);
        let mut command = match wrap {
            None => plain,
            Some(script) => {
                let mut inside = Command::new("unshare");
                inside.args(["--map-root-user", "sh", "-c", script, "sh"]).arg(plain.get_program());
                inside.args(plain.get_args()).current_dir(folder.path()).env("NO_COLOR", "1");
                inside
            }
        };
        command.env("TMPDIR", temporary.path());
        path.map(|path| command.env("PATH", path));
        let told = finish(command);
        told.ended_with(2);
        told.said("needs two network namespaces with a veth pair");
        told.said("hint: run it as root");
        assert_eq!(told.stderr.matches("error:").count(), 1, "{}", told.stderr);
        assert!(!told.stderr.contains("how long a step takes"), "{}", told.stderr);
        for folder in [&folder, &temporary] {
            let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left, ["text.txt"]);
        }
        told
    };
    // Without the tools.
    refused(None, Some("/nonexistent")).said("No such file or directory");
    // Without the right: a root of nothing, that may not make itself another one.
    let powerless = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all \"$@\"";
    let allowed =
        Command::new("unshare").args(["--map-root-user", "sh", "-c", powerless, "sh", "true"]).output();
    if allowed.is_ok_and(|output| output.status.success()) {
        refused(Some(powerless), None).said("Operation not permitted");
    } else if !may_have_networks() {
        refused(None, None);
    } else {
        eprintln!("skipped: the right cannot be given up here");
    }
}
