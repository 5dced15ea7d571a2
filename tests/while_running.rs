//! What can go wrong while a run goes on, and that it costs as little as it may: a full disk, a damaged checkpoint, a
//! loss that is not finite, a second supervisor, a folder that is taken away.

use crate::harness::turn::has_turn;
use crate::harness::{
    Finished, MLP, Running, Signal, audit_is_clean, checkpoint_step, checkpoints, dtrain, folder, output,
    signal, train,
};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether this process may mount a file system of its own, seen by nobody else.
fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// A small file system that only the processes of one run see, held open from outside.
struct SmallDisk(File);

impl SmallDisk {
    /// Begins a run on it; `room` is its size as `mount` reads it. The disk lives as long as the handle.
    fn run(folder: &Path, room: &str, arguments: &str) -> (Running, Self) {
        let path = folder.join("disk");
        fs::create_dir(&path).unwrap();
        let trained = dtrain(folder, &format!("train --json {arguments} run_dir=disk/run"));
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o size={room} tmpfs disk && exec \"$0\" \"$@\"");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.arg(trained.get_program()).args(trained.get_args()).current_dir(folder);
        command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
        let mut running = Running::of(command);
        running.wait_for_checkpoint();
        let seen = PathBuf::from(format!("/proc/{}/root", running.pid()));
        let handle = File::open(seen.join(path.strip_prefix("/").unwrap())).unwrap();
        (running, Self(handle))
    }

    /// Where every process finds it.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

/// Writes until nothing more fits.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    while file.write_all(&[1]).is_ok() {}
    path
}

#[test]
fn a_disk_that_is_full_at_a_checkpoint_is_told_and_training_goes_on() {
    if !has_turn(10) {
        return;
    }
    if !may_mount() {
        println!("passed over: a mount of one's own needs root");
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=2000 threads=1 ranks=2 checkpoint.every=50~steps checkpoint.keep=1");
    let (mut running, disk) = SmallDisk::run(folder.path(), "4m", &model);
    let filler = fill(&disk.path());
    let failed = running.wait_for(|line| line["event"] == "checkpoint_failed").expect("no room");
    assert!(failed["cause"].as_str().unwrap().contains("disk is full"), "{failed}");
    let failed_at = failed["step"].as_u64().unwrap();
    // It goes on without room; the checkpoint that was there is there, and whole.
    running.wait_for_step(failed_at + 200);
    let run_path = disk.path().join("run");
    let kept = checkpoints(&run_path);
    let newest = checkpoint_step(kept.last().expect("the old checkpoint stays"));
    assert!(newest < failed_at && newest + 100 >= failed_at, "{kept:?}, failed at {failed_at}");
    let (verified, _) = output(folder.path(), &format!("checkpoint verify {}", run_path.display()));
    verified.succeeded();
    fs::remove_file(filler).unwrap();
    assert!(running.wait_for_checkpoint() > failed_at, "with room there are checkpoints again");
    let run = running.finish();
    let whole = train(folder.path(), &format!("{MLP} steps=2000 ranks=1 name=whole"));
    assert_eq!(run.digest(), whole.digest());
    assert_eq!(run.steps(), whole.steps(), "standard output has every step");
    run.said(&format!("s{failed_at:06} was not written: the disk is full"));
    run.said("training goes on");
    for file in ["events.jsonl", "metrics.jsonl"] {
        let told = run.stderr.matches(&format!("{file}: No space left")).count();
        assert!(told <= 1, "{file} was complained of {told} times\n{}", run.stderr);
    }
    let newest = checkpoints(&run_path).pop().expect("the last one is there");
    assert_eq!(checkpoint_step(&newest), 2000);
    audit_is_clean(folder.path(), run_path.to_str().unwrap());
}

#[test]
fn a_disk_that_is_full_to_the_end_leaves_the_old_checkpoint_to_go_on_from() {
    if !may_mount() {
        println!("passed over: a mount of one's own needs root");
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=600 threads=1 ranks=2 checkpoint.every=200~steps");
    let (running, disk) = SmallDisk::run(folder.path(), "2m", &model);
    let filler = fill(&disk.path());
    let run = running.finish();
    run.said("s000600 was not written");
    let whole = train(folder.path(), &format!("{MLP} steps=600 ranks=1 name=whole"));
    assert_eq!(run.digest(), whole.digest());
    fs::remove_file(filler).unwrap();
    let run_path = disk.path().join("run");
    let newest = checkpoint_step(&checkpoints(&run_path).pop().expect("an old one stays"));
    let resumed = train(folder.path(), &format!("--resume {} ranks=3", run_path.display()));
    assert_eq!(resumed.steps().first(), Some(&(newest + 1)));
    assert_eq!(resumed.digest(), whole.digest());
    audit_is_clean(folder.path(), run_path.to_str().unwrap());
}

/// A run of 60 steps with checkpoints of the steps 20, 40 and 60.
fn finished_run(folder: &Path) -> Finished {
    let run = train(folder, &format!("{MLP} steps=60 threads=1 ranks=2 checkpoint.every=20~steps name=a"));
    run.succeeded();
    run
}

/// Every byte of a checkpoint counts: a flipped one is found, named, and the checkpoint before it is used.
#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    if !has_turn(9) {
        return;
    }
    let folder = folder();
    let whole = finished_run(folder.path());
    let run = folder.path().join("runs/a");
    for (what, damage) in DAMAGES {
        let newest = checkpoints(&run).pop().unwrap();
        assert_eq!(checkpoint_step(&newest), 60);
        damage(&newest);
        let resumed = train(folder.path(), "--resume a ranks=3");
        resumed.said("passed over a damaged checkpoint");
        resumed.said(newest.file_name().unwrap().to_str().unwrap());
        assert_eq!(resumed.steps().first(), Some(&41), "{what}");
        assert_eq!(resumed.digest(), whole.digest(), "{what}");
        // The new one of step 60 lies beside the damaged one, in a later generation.
        fs::remove_dir_all(newest).unwrap();
        audit_is_clean(folder.path(), "a");
    }
}

type Damage = fn(&Path);

const DAMAGES: [(&str, Damage); 6] = [
    ("a flipped bit in the middle of a shard", |folder| flip(&folder.join("rank-00000.safetensors"), 0.5)),
    ("a flipped bit in its first byte", |folder| flip(&folder.join("rank-00001.safetensors"), 0.0)),
    ("a flipped bit in the manifest", |folder| flip(&folder.join("manifest.json"), 0.5)),
    ("a shard that is cut off", |folder| {
        let file = OpenOptions::new().write(true).open(folder.join("rank-00000.safetensors")).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    }),
    ("a shard that is gone", |folder| fs::remove_file(folder.join("rank-00001.safetensors")).unwrap()),
    ("an empty manifest", |folder| fs::write(folder.join("manifest.json"), "").unwrap()),
];

fn flip(path: &Path, place: f64) {
    let mut bytes = fs::read(path).unwrap();
    let at = (bytes.len() as f64 * place) as usize;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn with_every_checkpoint_damaged_each_is_named_and_the_resume_is_refused() {
    let folder = folder();
    finished_run(folder.path());
    let run = folder.path().join("runs/a");
    let all = checkpoints(&run);
    assert_eq!(all.len(), 3);
    all.iter().for_each(|checkpoint| flip(&checkpoint.join("rank-00000.safetensors"), 0.9));
    let refused = train(folder.path(), "--resume a");
    refused.ended_with(2);
    refused.said("no valid checkpoint");
    for checkpoint in all {
        refused.said(checkpoint.file_name().unwrap().to_str().unwrap());
    }
}

/// 200 rows of four numbers; row 77 overflows the model.
fn write_table(path: &Path, bad: &str) {
    let mut text = String::new();
    let mut state = 1u64;
    for row in 0..200 {
        let mut numbers = [0.0; 4];
        for number in &mut numbers {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *number = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
        }
        let label = u32::from(numbers.iter().sum::<f64>() > 0.0);
        let numbers = numbers.map(|n| if row == 77 { bad.to_owned() } else { format!("{n:.4}") });
        text += &format!("{},{label}\n", numbers.join(","));
    }
    fs::write(path, text).unwrap();
}

/// A loss that is not finite, and a gradient that is not while its loss is: in one step and one micro-batch of a run.
#[test]
fn what_is_not_finite_is_named_by_step_and_micro_batch_and_nobody_commits_it() {
    if !has_turn(1) {
        return;
    }
    let folder = folder();
    let table = "data.kind=csv data.path=table.csv data.normalize=none data.val_split=0 checkpoint.best=none \
                 model.kind=mlp model.hidden=[64] global_batch=10 micro_batch=3 epochs=3 checkpoint.every=1~steps \
                 threads=1";
    let mut places = Vec::new();
    for (bad, loss) in [("3.4e38", "cross_entropy"), ("1e20", "mse")] {
        write_table(&folder.path().join("table.csv"), bad);
        for how in [
            "ranks=1",
            "ranks=2",
            "ranks=3",
            "ranks=5",
            "ranks=2 isolation=thread",
            "ranks=3 state=sharded shard=gradients",
            "ranks=3 state=sharded shard=parameters",
        ] {
            let name = format!("{loss}-{}", how.replace([' ', '='], "-"));
            let run = train(folder.path(), &format!("{table} loss.kind={loss} {how} name={name}"));
            run.ended_with(1);
            let committed = run.steps();
            let step = committed.last().expect("the row does not come first") + 1;
            let words = format!("is not finite in step {step}, micro-batch ");
            let report = &run.stderr[run.stderr.find("error: first cause: ").expect("a report")..];
            let first = report.lines().next().unwrap();
            let micro_batch: u32 = first
                .split(&words)
                .nth(1)
                .unwrap_or_else(|| panic!("{first}"))
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            places.push((step, micro_batch));
            run.said("optimizer.lr");
            assert_eq!(run.summary()["steps"].as_u64(), Some(step - 1));
            // The newest checkpoint is good: it goes on to the same step, and no further.
            let path = folder.path().join("runs").join(&name);
            let newest = checkpoint_step(&checkpoints(&path).pop().expect("good checkpoints stay"));
            assert!(newest < step && newest + 3 >= step, "{newest}, not finite in {step}");
            let again = train(folder.path(), &format!("--resume {name} ranks=2 isolation=process"));
            again.ended_with(1);
            again.said(&words);
            assert_eq!(again.steps(), (newest + 1..step).collect::<Vec<_>>());
            audit_is_clean(folder.path(), &name);
        }
    }
    places.dedup();
    assert_eq!(places.len(), 1, "the same row everywhere: {places:?}");
}

#[test]
fn a_learning_rate_that_blows_up_ends_the_run_and_names_the_owner_of_the_micro_batch() {
    let folder = folder();
    let model = format!("{MLP} steps=40 threads=1 optimizer.kind=sgd optimizer.lr=1e30 schedule.warmup=none");
    for how in ["ranks=1", "ranks=3", "ranks=3 isolation=thread", "ranks=3 reduce=ring"] {
        let run = train(folder.path(), &format!("{model} {how}"));
        run.ended_with(1);
        // A ring commits what all ranks have told, and the others may be stopped before they tell of the first step.
        let told = if how.contains("ring") { 0..=1 } else { 1..=1 };
        assert!(told.contains(&run.steps().len()), "{how}: {:?}", run.steps());
        assert_ne!(run.steps().last(), Some(&2), "{how}");
        run.said("error: first cause: rank 0 (member 0) on ");
        run.said("is not finite in step 2, micro-batch 0 [phase run, step 2]");
        assert_eq!(run.events("fault").count(), 1, "{}", run.stderr);
    }
}

/// Two supervisors in one folder would tear each other's files.
#[test]
fn a_second_supervisor_in_the_folder_of_a_run_is_refused_and_changes_nothing() {
    let folder = folder();
    let model = format!("{MLP} steps=1000000 threads=1 ranks=2 checkpoint.every=50~steps name=a");
    let mut running = Running::start(folder.path(), &model);
    running.wait_for_checkpoint();
    let config = fs::read(folder.path().join("runs/a/config.yaml")).unwrap();
    for how in ["--resume a ranks=5", "name=a resume=auto ranks=3 workers=0", "--resume a"] {
        let arguments = if how.starts_with("--") { how.to_owned() } else { format!("{model} {how}") };
        let second = train(folder.path(), &arguments);
        second.ended_with(2);
        second.said("in use by process");
        second.said(&running.pid().to_string());
        second.said("hint:");
        assert!(second.lines.is_empty(), "nothing was begun");
        assert_eq!(fs::read(folder.path().join("runs/a/config.yaml")).unwrap(), config, "{how}");
    }
    // Its name is taken too.
    let named = train(folder.path(), &model);
    named.ended_with(2);
    named.said("exists already");
    signal(Signal::TERM, running.pid());
    let first = running.finish();
    first.ended_with(130);
    assert_eq!(first.events("fault").count(), 0, "{}", first.stderr);
    audit_is_clean(folder.path(), "a");
    // And now it is free.
    let mut third = Running::start(folder.path(), "--resume a ranks=3");
    third.wait_for_step(first.steps().last().unwrap() + 1);
}

/// The files of a run are its memory. Without them it still trains, and says that it can write no checkpoint.
#[test]
fn a_run_whose_folder_is_taken_away_says_so_and_trains_on() {
    if !has_turn(20) {
        return;
    }
    let folder = folder();
    let model = format!("{MLP} steps=3000 threads=1");
    let run = folder.path().join("runs/a");
    let mut running =
        Running::start(folder.path(), &format!("{model} ranks=2 checkpoint.every=100~steps name=a"));
    running.wait_for_checkpoint();
    let aside = folder.path().join("aside");
    fs::rename(&run, &aside).unwrap();
    let failed = running.wait_for(|line| line["event"] == "checkpoint_failed");
    assert!(failed.is_some(), "a checkpoint cannot be written");
    let ended = running.finish();
    let whole = train(folder.path(), &format!("{model} ranks=1 name=whole"));
    assert_eq!(ended.digest(), whole.digest());
    ended.said("was not written");
    assert!(!run.exists() || checkpoints(&run).is_empty(), "nothing that could be taken for a checkpoint");
    // Put back, it goes on from what it had.
    if run.exists() {
        fs::remove_dir_all(&run).unwrap();
    }
    fs::rename(&aside, &run).unwrap();
    let resumed = train(folder.path(), "--resume a ranks=3");
    assert!(resumed.steps()[0] > 1);
    assert_eq!(resumed.digest(), whole.digest());
    audit_is_clean(folder.path(), "a");
}
