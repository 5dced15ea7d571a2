//! A disk that is really full: a tmpfs of 64 KiB in a mount namespace of its own, where the system allows one.

mod support;

use dtrain_checkpoint::{FileStore, Store, StoreError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use support::{State, id};

const DISK: &str = "DTRAIN_TEST_SMALL_DISK";

#[test]
fn a_full_disk_is_named_and_the_checkpoint_before_survives() {
    if let Some(disk) = env::var_os(DISK) {
        return fill(&PathBuf::from(disk));
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
        unshare.arg(format!("mount -t tmpfs -o size=64k none \"${DISK}\"; {command}")).arg("sh");
        unshare.env(DISK, folder.path());
        unshare
    };
    if !mounted("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("not shown: this system mounts no tmpfs for an ordinary user");
        return;
    }
    let mut again = mounted("exec \"$@\"");
    again
        .arg(env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_is_named_and_the_checkpoint_before_survives"]);
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Saves until nothing more fits.
fn fill(disk: &Path) {
    let store = FileStore::new(disk);
    let saved = (1..).map(|step| (step, State::new(step).save(&store, id(1, step), 2)));
    let (full, error) = saved.filter_map(|(step, result)| Some((step, result.err()?))).next().unwrap();
    assert!(full > 1, "not even one fits: {error}");
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    let sound = |expected: u64| {
        let newest = store.newest_valid().unwrap();
        let checkpoint = newest.checkpoint.unwrap();
        assert!(newest.damaged.is_empty());
        assert_eq!(checkpoint.manifest().id, id(1, expected));
        assert_eq!(State::load(&checkpoint), State::new(expected));
    };
    sound(full - 1);
    // Room is made by throwing away the attempt and the oldest; then the same checkpoint fits.
    store.abandon(id(1, full)).unwrap();
    store.remove(id(1, 1)).unwrap();
    State::new(full).save(&store, id(1, full), 2).unwrap();
    sound(full);
    assert!(fs::read_dir(disk.join("checkpoints")).unwrap().count() as u64 == full - 1);
}
