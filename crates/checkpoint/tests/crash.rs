//! S6, S7 and S12 on a disk that may crash at any operation, fill up, or break its promises.

#[path = "support/fault_disk.rs"]
mod fault_disk;
mod support;

use dtrain_checkpoint::{CheckpointId, FileStore, Newest, Store, StoreError, reserve_generations};
use dtrain_types::Generation;
use fault_disk::{FaultDisk, Sync};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use support::{Always, State, id};

const RUN: &str = "/runs/digits";
const LUCKS: u64 = 12;

fn store(disk: &FaultDisk) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), Path::new(RUN))
}

/// A disk with the checkpoint of step 1, all of it durable.
fn disk_with_one() -> FaultDisk {
    let disk = FaultDisk::new();
    State::new(1).save(&store(&disk), id(1, 1), 2).unwrap();
    for ancestor in Path::new(RUN).ancestors() {
        dtrain_checkpoint::Disk::sync_dir(&disk, ancestor).unwrap();
    }
    disk
}

fn newest(disk: &FaultDisk) -> Newest {
    store(disk).newest_valid().unwrap()
}

/// The resume point's name; its state must be, to the bit, the one that was saved under that name.
fn sound(newest: &Newest) -> CheckpointId {
    let checkpoint = newest.checkpoint.as_ref().expect("a resume point");
    let id = checkpoint.manifest().id;
    assert_eq!(State::load(checkpoint), State::new(id.step.0));
    assert_eq!(checkpoint.digest().unwrap(), checkpoint.manifest().digest);
    id
}

/// Runs `act` with a crash at every operation, until it finishes without one, and gives each disk after reboot to
/// `judge` with the result of `act`.
fn crash_everywhere<T>(
    prepare: impl Fn() -> FaultDisk,
    act: impl Fn(&FaultDisk) -> Result<T, StoreError>,
    mut judge: impl FnMut(&FaultDisk, &Result<T, StoreError>),
) -> u64 {
    for operations in 0.. {
        let disk = prepare();
        disk.crash_after(operations);
        let result = act(&disk);
        for luck in 0..LUCKS {
            judge(&disk.reboot(luck), &result);
        }
        if !disk.crashed() {
            assert!(result.is_ok());
            return operations;
        }
    }
    unreachable!("an act has an end")
}

#[test]
fn a_crash_at_any_point_leaves_the_old_or_the_new_checkpoint_whole() {
    let (mut olds, mut news) = (0, 0);
    let save = |disk: &FaultDisk| State::new(2).save(&store(disk), id(1, 2), 3);
    let operations = crash_everywhere(disk_with_one, save, |disk, result| {
        let newest = newest(disk);
        // S6: what can be seen under its final name is whole, so nothing had to be passed over.
        assert!(newest.damaged.is_empty(), "{:?}", newest.damaged);
        match sound(&newest) {
            found if found == id(1, 1) => {
                olds += 1;
                assert!(result.is_err(), "a checkpoint was reported as committed and is lost (S7)");
            }
            found => {
                news += 1;
                assert_eq!(found, id(1, 2));
            }
        }
        // And the run goes on from there.
        let store = store(disk);
        store.sweep(&Always).unwrap();
        State::new(3).save(&store, id(2, 3), 1).unwrap();
        assert_eq!(sound(&store.newest_valid().unwrap()), id(2, 3));
    });
    assert!(operations > 20 && olds > 100 && news > LUCKS, "{operations} operations, {olds} old, {news} new");
}

/// Whether some crash after a commit that was reported done loses the checkpoint or shows a damaged one.
fn some_crash_is_seen(ignored: Sync) -> bool {
    let mut seen = false;
    let save = |disk: &FaultDisk| {
        disk.ignore(ignored);
        State::new(2).save(&store(disk), id(1, 2), 3)
    };
    crash_everywhere(disk_with_one, save, |disk, result| {
        let newest = newest(disk);
        // S12 holds even so: what is loaded is whole.
        seen |= (sound(&newest) == id(1, 1) && result.is_ok()) || !newest.damaged.is_empty();
    });
    seen
}

#[test]
fn a_commit_without_its_syncs_would_be_found_by_these_tests() {
    assert!(some_crash_is_seen(Sync::File));
    assert!(some_crash_is_seen(Sync::Dir));
}

#[test]
fn a_full_disk_at_any_byte_keeps_the_old_checkpoint_and_says_so() {
    let mut refused = 0;
    for bytes in (0..).step_by(97) {
        let disk = disk_with_one();
        disk.fill_after(bytes);
        let store = store(&disk);
        match State::new(2).save(&store, id(1, 2), 3) {
            Ok(_) => {
                assert_eq!(sound(&newest(&disk)), id(1, 2));
                break;
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, StoreError::Full { .. }), "{error}");
                assert_eq!(sound(&newest(&disk)), id(1, 1));
                // Once there is room the same checkpoint can be written.
                store.abandon(id(1, 2)).unwrap();
                disk.fill_after(1 << 20);
                State::new(2).save(&store, id(1, 2), 3).unwrap();
                assert_eq!(sound(&newest(&disk)), id(1, 2));
            }
        }
    }
    assert!(refused > 30, "{refused}");
}

#[test]
fn a_crash_while_old_checkpoints_are_removed_shows_no_half_of_one() {
    let prepare = || {
        let disk = disk_with_one();
        for step in 2..=4 {
            State::new(step).save(&store(&disk), id(1, step), 2).unwrap();
        }
        store(&disk).mark_best(id(1, 2)).unwrap();
        disk
    };
    let retain = |disk: &FaultDisk| store(disk).retain(NonZeroUsize::MIN);
    crash_everywhere(prepare, retain, |disk, result| {
        let store = store(disk);
        for found in store.list(dtrain_checkpoint::Check::Digests).unwrap() {
            assert!(found.valid.is_ok(), "{:?}", found.valid);
        }
        assert_eq!(sound(&newest(disk)), id(1, 4));
        assert_eq!(store.best().unwrap(), Some(id(1, 2)));
        store.open(id(1, 2), dtrain_checkpoint::Check::Digests).unwrap();
        if let Ok(removed) = result {
            assert_eq!(*removed, [id(1, 3), id(1, 1)]);
        }
        store.sweep(&Always).unwrap();
        let names = dtrain_checkpoint::Disk::names(disk, &Path::new(RUN).join("checkpoints")).unwrap();
        assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
    });
}

#[test]
fn a_crash_while_best_is_replaced_leaves_the_old_or_the_new_one() {
    let prepare = || {
        let disk = disk_with_one();
        State::new(2).save(&store(&disk), id(1, 2), 2).unwrap();
        store(&disk).mark_best(id(1, 1)).unwrap();
        disk
    };
    let mark = |disk: &FaultDisk| store(disk).mark_best(id(1, 2));
    let (mut olds, mut news) = (0, 0);
    crash_everywhere(prepare, mark, |disk, result| {
        match store(disk).best().unwrap().expect("a best") {
            best if best == id(1, 1) && result.is_err() => olds += 1,
            best => {
                assert_eq!(best, id(1, 2));
                news += 1;
            }
        }
        store(disk).sweep(&Always).unwrap();
        store(disk).mark_best(id(1, 2)).unwrap();
    });
    assert!(olds > 0 && news > 0);
}

#[test]
fn any_byte_that_rots_is_found_and_the_older_checkpoint_taken() {
    let disk = disk_with_one();
    let manifest = State::new(2).save(&store(&disk), id(1, 2), 3).unwrap();
    let folder = Path::new(RUN).join("checkpoints/g1-s000002");
    let files = manifest.shards.iter().map(|shard| shard.file.clone()).chain(["manifest.json".to_owned()]);
    for file in files {
        let mut len = 0;
        disk.rot(&folder.join(&file), |bytes| len = bytes.len());
        for at in (0..len).step_by(13) {
            disk.rot(&folder.join(&file), |bytes| bytes[at] ^= 0x10);
            let newest = newest(&disk);
            assert_eq!(newest.damaged.len(), 1, "byte {at} of {file}");
            assert_eq!((newest.damaged[0].checkpoint, &newest.damaged[0].file), (id(1, 2), &file));
            assert_eq!(sound(&newest), id(1, 1));
            disk.rot(&folder.join(&file), |bytes| bytes[at] ^= 0x10);
        }
        for keep in [0, 1, len / 2, len - 1] {
            let mut whole = Vec::new();
            disk.rot(&folder.join(&file), |bytes| {
                whole.clone_from(bytes);
                bytes.truncate(keep);
            });
            assert_eq!(sound(&newest(&disk)), id(1, 1), "{file} cut to {keep}");
            disk.rot(&folder.join(&file), |bytes| *bytes = whole);
        }
    }
    assert_eq!(sound(&newest(&disk)), id(1, 2));
}

#[test]
fn no_generation_number_is_given_out_twice_over_any_crash() {
    let reserve = |disk: &FaultDisk, floor| {
        reserve_generations(disk, Path::new(RUN), Generation(floor), NonZeroU64::new(10).unwrap())
    };
    let prepare = || {
        let disk = disk_with_one();
        assert_eq!(reserve(&disk, 0).unwrap(), 1..=10);
        disk
    };
    crash_everywhere(
        prepare,
        |disk| reserve(disk, 0),
        |disk, result| {
            let next = reserve(disk, 0).unwrap();
            match result {
                Ok(given) => assert_eq!((given.clone(), next), (11..=20, 21..=30)),
                Err(_) => assert!(next == (11..=20) || next == (21..=30), "{next:?}"),
            }
        },
    );
    let disk = prepare();
    assert_eq!(reserve(&disk, 99).unwrap(), 100..=109, "what the ledger has seen is not used again");
    for junk in ["", "12", "-1\n", "18446744073709551615\n", "one\n"] {
        disk.rot(&Path::new(RUN).join("generations"), |bytes| *bytes = junk.into());
        assert!(matches!(reserve(&disk, 0), Err(StoreError::Io { .. })), "{junk}");
    }
}
