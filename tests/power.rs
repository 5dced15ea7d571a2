//! The power of a host fails: all its processes are gone, and whatever its disk had not synced.

use crate::harness::disk::Disk;
use crate::harness::hosts::Hosts;
use crate::harness::turn::has_turn;
use crate::harness::{
    MLP, Running, Signal, audit_is_clean, folder, keepers_of, logged_steps, ranks_of, signal, train, try_kill,
};
use std::path::Path;

/// Cuts it off with all that runs on its host, and gives the power back. What stands still can write nothing more.
fn lose_power(host: Running, disk: &Disk) {
    let there = [vec![host.pid()], keepers_of(host.pid()), ranks_of(host.pid())].concat();
    there.iter().for_each(|pid| signal(Signal::STOP, *pid));
    disk.cut();
    there.into_iter().for_each(try_kill);
    drop(host);
    disk.again();
}

/// A disk for the runs of a host, where one can be had.
fn disk(of: &Path) -> Option<Disk> {
    let built = Disk::build(&of.join("runs"));
    built.inspect_err(|why| eprintln!("skipped: a disk of its own cannot be had here ({why})")).ok()
}

#[test]
fn the_host_that_leads_may_lose_its_power_and_no_step_is_lost_that_others_have_made() {
    if !has_turn(17) {
        return;
    }
    let model = format!("{MLP} steps=6000 threads=1 checkpoint.every=none");
    for nodes in ["3", "1..3"] {
        let hosts = Hosts::on_loopback(nodes);
        let Some(disk) = disk(&hosts.folder(0)) else { return };
        let others = [1, 2].map(|host| hosts.start(host, "--json ranks=1"));
        let words = format!("{model} ranks=1 name=a resume=auto");
        let mut first = hosts.start(0, &words);
        first.wait_for_world(3);
        first.wait_for_step(first.last_step() + 300);
        let held: Vec<Vec<u32>> = others.iter().map(|other| ranks_of(other.pid())).collect();
        lose_power(first, &disk);
        let mut first = hosts.start(0, &words);
        first.wait_for_world(3);
        assert_eq!(others.iter().map(|other| ranks_of(other.pid())).collect::<Vec<_>>(), held);
        // Once more, when the others have called again.
        first.wait_for_step(first.last_step() + 300);
        lose_power(first, &disk);
        let first = hosts.start(0, &words).finish();
        assert_eq!(first.summary()["lost_steps"], 0, "{}", first.stderr);
        for host in others {
            host.finish().succeeded();
        }
        let whole = train(&hosts.folder(1), &format!("{model} ranks=1 name=whole"));
        assert_eq!(first.digest(), whole.digest());
        assert_eq!(logged_steps(&hosts.folder(0).join("runs/a")), (1..=6000).collect::<Vec<u64>>());
        audit_is_clean(&hosts.folder(0), "a");
    }
}

#[test]
fn a_host_that_loses_its_power_goes_on_from_its_newest_checkpoint_and_its_logs_lack_nothing_before() {
    if !has_turn(18) {
        return;
    }
    let folder = folder();
    let Some(disk) = disk(folder.path()) else { return };
    let model = format!("{MLP} steps=3000 threads=1 checkpoint.every=300~steps");
    let words = format!("{model} ranks=2 name=a resume=auto");
    for _ in 0..3 {
        let mut run = Running::start(folder.path(), &words);
        run.wait_for_checkpoint();
        let newest = run.wait_for_checkpoint();
        run.wait_for_step(newest + 50);
        lose_power(run, &disk);
        let steps = logged_steps(&folder.path().join("runs/a"));
        let lacks = (1..=newest).find(|step| !steps.contains(step));
        assert_eq!(lacks, None, "the log has no step {lacks:?}, and a checkpoint of {newest}");
    }
    let run = Running::start(folder.path(), &words).finish();
    let whole = train(folder.path(), &format!("{model} ranks=1 name=whole"));
    assert_eq!(run.digest(), whole.digest(), "{}", run.stderr);
    audit_is_clean(folder.path(), "a");
}

/// Ranks hear that their steps are written down although the disk takes none: training does not stop for it. Where the supervisor ends before there
/// is room again, nobody knows them.
#[test]
fn a_supervisor_that_dies_while_the_disk_is_full_is_followed_by_one_that_goes_on() {
    let folder = folder();
    let Some(disk) = disk(folder.path()) else { return };
    let model = format!("{MLP} steps=4000 threads=1 checkpoint.every=500~steps");
    let words = format!("{model} ranks=2 name=a resume=auto");
    let mut run = Running::start(folder.path(), &words);
    for at in [700, 1_700] {
        run.wait_for_step(at);
        let ballast = disk.fill();
        // Hundreds of steps are told to the ranks as written down, and are not.
        run.wait_for_step(run.last_step() + 400);
        signal(Signal::KILL, run.pid());
        assert_eq!(run.finish().code, None);
        std::fs::remove_file(ballast).expect("it was written");
        run = Running::start(folder.path(), &words);
    }
    let run = run.finish();
    let whole = train(folder.path(), &format!("{model} ranks=1 name=whole"));
    assert_eq!(run.digest(), whole.digest(), "{}", run.stderr);
    audit_is_clean(folder.path(), "a");
    let events = std::fs::read_to_string(folder.path().join("runs/a/events.jsonl")).expect("there is a log");
    assert!(!events.contains("no_progress"), "nobody hangs: {}", run.stderr);
}
