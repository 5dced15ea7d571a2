//! The life of a run as a user leads it: train, list, verify, compare, export, audit, resume, fork.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with runs in it, and the real binary.
struct Shell {
    folder: TempDir,
}

/// Few steps of a small model on the embedded digits.
const SMALL: [&str; 4] = ["model=mlp", "model.hidden=[16]", "epochs=2", "schedule.kind=constant"];

impl Shell {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_dtrain"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env("NO_COLOR", "1")
            .output()
            .unwrap()
    }

    /// Runs a command that must end with this exit code; gives both outputs.
    fn ends(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
        assert!(!err.contains("panicked"), "{arguments:?}: {err}");
        (out, err)
    }

    fn train(&self, more: &[&str]) -> serde_json::Value {
        let arguments: Vec<&str> =
            ["train", "--json", "--quiet"].into_iter().chain(more.iter().copied()).collect();
        let (out, err) = self.ends(0, &arguments);
        assert!(err.is_empty(), "--quiet says nothing: {err}");
        serde_json::from_str(out.lines().last().expect("a summary")).unwrap()
    }
}

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn a_run_can_be_listed_verified_exported_compared_and_audited() {
    let shell = Shell::new();
    let summary = shell.train(&small(&["name=a"]));
    assert_eq!((summary["steps"].as_u64(), summary["run"].as_str()), (Some(46), Some("runs/a")));
    let (list, _) = shell.ends(0, &["checkpoint", "ls", "a"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.starts_with("g1-s000046") && list.contains("best") && list.contains("accuracy"), "{list}");
    assert_eq!(list.matches(" UTC  ").count(), 2, "when each was written: {list}");
    assert_eq!(list.matches("ago").count() + list.matches("just now").count(), 2, "how long ago: {list}");
    shell.ends(0, &["checkpoint", "verify", "runs/a"]);
    shell.ends(0, &["checkpoint", "export", "a/best", "-o", "best.safetensors"]);
    assert!(shell.path("best.safetensors").is_file());
    let (same, _) = shell.ends(0, &["checkpoint", "diff", "a", "a/g1-s000046"]);
    assert!(same.contains("the same bits in all"), "{same}");
    let (differ, _) = shell.ends(1, &["checkpoint", "diff", "a/g1-s000023", "a"]);
    assert!(differ.contains("elements differ"), "{differ}");
    let (audit, _) = shell.ends(0, &["audit", "a"]);
    assert!(audit.contains("46 steps") && audit.contains("2 whole epochs"), "{audit}");
}

#[test]
fn an_audit_fails_when_a_line_is_deleted_doubled_or_edited() {
    let shell = Shell::new();
    shell.train(&small(&["name=a"]));
    let ledger = shell.path("runs/a/ledger.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let join = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    for at in 0..lines.len() {
        let deleted = [&lines[..at], &lines[at + 1..]].concat();
        let doubled = [&lines[..=at], &lines[at..]].concat();
        let edited = lines[at].replacen(|c: char| c.is_ascii_digit(), "9", 1);
        let other = [&lines[..at], &[edited.as_str()], &lines[at + 1..]].concat();
        for (what, changed) in [("deleted", deleted), ("doubled", doubled), ("edited", other)] {
            if changed == lines {
                continue;
            }
            fs::write(&ledger, join(&changed)).unwrap();
            let (_, err) = shell.ends(1, &["audit", "a"]);
            assert!(err.contains("does not add up") && err.contains("caused by"), "line {at} {what}: {err}");
        }
    }
    fs::write(&ledger, text).unwrap();
    shell.ends(0, &["audit", "a"]);
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    let shell = Shell::new();
    shell.train(&small(&["name=a"]));
    let shard = shell.path("runs/a/checkpoints/g1-s000046/rank-00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let (list, err) = shell.ends(1, &["checkpoint", "verify", "a"]);
    assert!(list.contains("g1-s000046  damaged") && err.contains("1 damaged"), "{list}{err}");
    let (_, err) = shell.ends(0, &["train", "--resume", "a", "ranks=3"]);
    assert!(err.contains("passed over a damaged checkpoint: g1-s000046"), "{err}");
    shell.ends(0, &["audit", "a"]);
}

#[test]
fn runs_without_a_name_are_numbered_and_the_newest_is_resumed() {
    let shell = Shell::new();
    let whole = shell.train(&SMALL);
    assert_eq!(whole["run"], "runs/digits");
    assert_eq!(shell.train(&small(&["seed=9"]))["run"], "runs/digits-2");
    // A constant learning rate gives the same steps however many follow, so a run may be made longer.
    let longer = shell.train(&["--resume", "epochs=3", "ranks=1"]);
    assert_eq!((longer["run"].as_str(), longer["steps"].as_u64()), (Some("runs/digits-2"), Some(69)));
    let (result, told) = shell.ends(0, &["train", "--resume", "epochs=4"]);
    assert!(told.contains("resume   after step 69 of 92, from checkpoint g"), "{told}");
    assert!(result.contains("92 steps, 4 epochs"), "{result}");
    let straight = shell.train(&small(&["seed=9", "epochs=3", "name=straight"]));
    assert_eq!(longer["digest"], straight["digest"], "the same bits as a run that never stopped");
}

#[test]
fn a_resume_says_after_which_step_it_goes_on_and_a_fresh_run_says_nothing_of_it() {
    let shell = Shell::new();
    let train: Vec<&str> = ["train", "name=a"].into_iter().chain(SMALL).collect();
    let (_, fresh) = shell.ends(0, &train);
    assert!(!fresh.contains("resume   after"), "{fresh}");
    let (_, told) = shell.ends(0, &["train", "--resume", "a", "epochs=3"]);
    assert!(told.contains("resume   after step 46 of 69, from checkpoint g1-s000046"), "{told}");
}

#[test]
fn a_resume_keeps_the_bits_and_a_fork_starts_a_run_of_its_own() {
    let shell = Shell::new();
    shell.train(&small(&["name=a"]));
    let (_, err) = shell.ends(2, &["train", "--resume", "a", "optimizer.lr=1", "epochs=3"]);
    assert!(err.contains("optimizer.lr: it was 0.002 when the run started, and is 1.0 now"), "{err}");
    assert!(err.contains("--fork"), "{err}");
    let fork = shell.train(&["--resume", "a", "--fork", "optimizer.lr=1e-3", "epochs=1"]);
    assert_eq!((fork["run"].as_str(), fork["steps"].as_u64()), (Some("runs/a-2"), Some(23)));
    let accuracy = fork["val_accuracy"].as_f64().unwrap();
    let cold = shell.train(&small(&["optimizer.lr=1e-3", "epochs=1", "name=cold"]));
    assert!(accuracy > cold["val_accuracy"].as_f64().unwrap(), "a fork begins with what its source learned");
    let (_, told) = shell.ends(0, &["train", "--resume", "a", "--fork", "epochs=1", "name=b"]);
    assert!(
        told.contains("fork     parameters of checkpoint g1-s000046 of runs/a; steps begin anew"),
        "{told}"
    );
    shell.ends(0, &["audit", "a-2"]);
    let (_, err) = shell.ends(2, &["train", "--resume", "a", "--fork", "model.hidden=[17]"]);
    assert!(err.contains("model.init_from"), "{err}");
    assert!(!Path::new(&shell.path("runs/a-3")).exists(), "a fork that cannot be leaves nothing");
}

#[test]
fn without_a_checkpoint_a_resume_is_refused_and_auto_starts_again() {
    let shell = Shell::new();
    let first = shell.train(&small(&["name=a", "resume=auto"]));
    for entry in fs::read_dir(shell.path("runs/a/checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        let removed = if path.is_symlink() { fs::remove_file(&path) } else { fs::remove_dir_all(&path) };
        removed.unwrap();
    }
    let (_, err) = shell.ends(2, &["train", "--resume", "a"]);
    assert!(err.contains("no valid checkpoint"), "{err}");
    let again = shell.train(&small(&["name=a", "resume=auto"]));
    assert_eq!(again["digest"], first["digest"]);
    shell.ends(0, &["audit", "a"]);
}

#[test]
fn each_epoch_has_its_own_loss_and_each_checkpoint_its_own_validation() {
    let shell = Shell::new();
    // So small that steps, validations and files overtake one another.
    shell.train(&["model=mlp", "model.hidden=[4]", "epochs=40", "checkpoint.keep=99", "name=fast"]);
    let parse = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let events = parse(&fs::read_to_string(shell.path("runs/fast/events.jsonl")).unwrap());
    let of = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    assert_eq!(of("epoch").count(), 40);
    for epoch in of("epoch") {
        let steps: Vec<_> = of("step").filter(|step| step["epoch"] == epoch["epoch"]).collect();
        let samples: f64 = steps.iter().map(|step| number(&step["samples"])).sum();
        let loss: f64 = steps.iter().map(|step| number(&step["loss"]) * number(&step["samples"])).sum();
        let (mean, told) = (loss / samples, number(&epoch["train_loss"]));
        assert!((mean - told).abs() < 1e-9 * mean, "{epoch}: its steps have {mean}");
    }
    let list = parse(&shell.ends(0, &["checkpoint", "ls", "fast", "--json"]).0);
    assert_eq!(list.len(), 40);
    let best = of("epoch").map(|epoch| number(&epoch["val_accuracy"])).fold(0.0, f64::max);
    for checkpoint in list {
        let epoch = of("epoch").find(|epoch| epoch["epoch"] == checkpoint["epoch"]).unwrap();
        assert_eq!(checkpoint["metrics"]["val_accuracy"], epoch["val_accuracy"], "{checkpoint}");
        assert!(checkpoint["best"] == false || number(&epoch["val_accuracy"]) == best, "{checkpoint}");
    }
}

#[test]
fn a_run_that_is_in_use_is_refused_and_left_alone() {
    let shell = Shell::new();
    shell.train(&small(&["name=a"]));
    let before = fs::read_to_string(shell.path("runs/a/config.yaml")).unwrap();
    let other =
        dtrain_checkpoint::RunLock::acquire(&shell.path("runs/a"), dtrain_types::Instance(1)).unwrap();
    let (_, err) = shell.ends(2, &["train", "--resume", "a", "epochs=3", "ranks=1"]);
    let pid = std::process::id().to_string();
    assert!(err.contains("runs/a is in use by process") && err.contains(&pid), "{err}");
    assert_eq!(fs::read_to_string(shell.path("runs/a/config.yaml")).unwrap(), before);
    drop(other);
    shell.ends(0, &["train", "--resume", "a", "epochs=3", "ranks=1"]);
    assert_ne!(fs::read_to_string(shell.path("runs/a/config.yaml")).unwrap(), before);
}
