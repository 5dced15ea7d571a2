//! Folders that somebody else wrote: every one gives an error, none a crash, and none is used (S12).

mod support;

use dtrain_checkpoint::{
    Check, Fault, FileStore, LockError, Manifest, ManifestError, RunLock, Store, StoreError,
};
use dtrain_checkpoint::{Owner, TensorSpec};
use dtrain_types::{Bytes, Instance};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::{State, id};
use tempfile::TempDir;

struct Victim {
    _folder: TempDir,
    store: FileStore,
    folder: PathBuf,
    manifest: Manifest,
}

fn victim() -> Victim {
    let run = tempfile::tempdir().unwrap();
    let store = FileStore::new(run.path());
    let manifest = State::new(1).save(&store, id(1, 1), 3).unwrap();
    let folder = store.folder(id(1, 1));
    Victim { _folder: run, store, folder, manifest }
}

impl Victim {
    fn fault(&self) -> Fault {
        self.store.open(id(1, 1), Check::Digests).expect_err("it must not be used").fault
    }

    /// Replaces the manifest by one with a fitting seal, as a forger would write it.
    fn forge(&self, change: impl FnOnce(&mut Value)) -> Fault {
        let mut value = serde_json::to_value(&self.manifest).unwrap();
        change(&mut value);
        let body = value.to_string();
        let body = body.strip_suffix('}').unwrap();
        let text = format!("{body},\n  \"seal\": \"{}\"\n}}\n", dtrain_checkpoint::hash(body.as_bytes()));
        fs::write(self.folder.join("manifest.json"), text).unwrap();
        self.fault()
    }

    fn manifest_error(&self, change: impl FnOnce(&mut Value)) -> ManifestError {
        match self.forge(change) {
            Fault::Manifest(error) => error,
            other => panic!("{other}"),
        }
    }

    fn shard(&self) -> PathBuf {
        self.folder.join("rank-00001.safetensors")
    }

    /// Replaces a shard and makes the manifest agree with its size and digest.
    fn forge_shard(&self, bytes: &[u8]) -> Fault {
        fs::write(self.shard(), bytes).unwrap();
        self.forge(|manifest| {
            manifest["shards"][1]["bytes"] = json!(bytes.len());
            manifest["shards"][1]["blake3"] = json!(dtrain_checkpoint::hash(bytes));
        })
    }
}

#[test]
fn a_forged_manifest_with_nothing_changed_would_be_read() {
    // Otherwise the tests below would prove nothing.
    let victim = victim();
    let mut value = serde_json::to_value(&victim.manifest).unwrap();
    value["run"] = json!("other");
    let body = value.to_string();
    let body = body.strip_suffix('}').unwrap();
    let text = format!("{body},\n  \"seal\": \"{}\"\n}}\n", dtrain_checkpoint::hash(body.as_bytes()));
    fs::write(victim.folder.join("manifest.json"), text).unwrap();
    assert_eq!(victim.store.open(id(1, 1), Check::Digests).unwrap().manifest().run, "other");
}

#[test]
fn no_shard_name_leads_out_of_the_folder() {
    let victim = victim();
    let outside = victim.folder.parent().unwrap().join("rank-00000.safetensors");
    fs::copy(victim.folder.join("rank-00000.safetensors"), &outside).unwrap();
    for name in [
        "../rank-00000.safetensors",
        outside.to_str().unwrap(),
        "..",
        "",
        "manifest.json",
        "rank-0.safetensors",
    ] {
        let error = victim.manifest_error(|manifest| manifest["shards"][0]["file"] = json!(name));
        assert_eq!(error, ManifestError::ShardName(name.to_owned()));
    }
    assert!(matches!(
        victim.manifest_error(|manifest| manifest["shards"][1]["file"] = json!("rank-00000.safetensors")),
        ManifestError::TwiceShard(_)
    ));
}

#[test]
fn links_pipes_and_folders_are_no_shards() {
    let victim = victim();
    let whole = victim.folder.join("whole");
    fs::rename(victim.shard(), &whole).unwrap();
    assert!(matches!(victim.fault(), Fault::Missing));
    std::os::unix::fs::symlink(&whole, victim.shard()).unwrap();
    assert!(matches!(victim.fault(), Fault::NotAFile));
    fs::remove_file(victim.shard()).unwrap();
    fs::create_dir(victim.shard()).unwrap();
    assert!(matches!(victim.fault(), Fault::NotAFile));
    fs::remove_dir(victim.shard()).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, victim.shard(), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(victim.fault(), Fault::NotAFile), "opening a pipe must not wait for a writer");
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let victim = victim();
    let error = |change: &dyn Fn(&mut Value)| victim.manifest_error(|manifest| change(manifest));
    assert_eq!(error(&|m| m["version"] = json!(2)), ManifestError::Version { got: 2 });
    assert_eq!(
        error(&|m| {
            m["version"] = json!(9);
            m["new"] = json!(1);
        }),
        ManifestError::Version { got: 9 }
    );
    assert!(matches!(error(&|m| m["tensors"][0]["len"] = json!(14)), ManifestError::Extent { len: 14, .. }));
    let huge = |m: &mut Value| {
        m["tensors"][0]["shape"] = json!([u64::MAX, u64::MAX]);
        m["tensors"][0]["len"] = json!(1);
    };
    assert!(matches!(error(&huge), ManifestError::Extent { .. }));
    assert!(matches!(error(&|m| m["tensors"][0]["offset"] = json!(u64::MAX)), ManifestError::Extent { .. }));
    assert!(matches!(error(&|m| m["tensors"][1]["offset"] = json!(14)), ManifestError::Overlap { .. }));
    assert!(matches!(
        error(&|m| m["tensors"][0]["name"] = json!("model.0.bias")),
        ManifestError::TwiceTensor(_)
    ));
    assert!(matches!(
        error(&|m| m["tensors"][0]["name"] = json!("__metadata__")),
        ManifestError::TensorName(_)
    ));
    assert!(
        matches!(victim.forge(|m| m["id"] = json!("g1-s000002")), Fault::OtherCheckpoint(other) if other == id(1, 2))
    );
    assert!(matches!(victim.forge(|m| m["digest"] = json!("00")), Fault::NotAManifest(_)));
    assert!(matches!(victim.forge(|m| m["secret"] = json!(1)), Fault::NotAManifest(_)));
    assert!(matches!(victim.forge(|m| m["bits"] = json!([])), Fault::NotAManifest(_)));
    let renamed = victim.forge(|m| m["tensors"][0]["name"] = json!("model.0.other"));
    assert!(matches!(renamed, Fault::UnexpectedTensor(name) if name == "model.0.weight"));
    let turned = victim.forge(|m| m["tensors"][0]["shape"] = json!([3, 5]));
    assert!(matches!(turned, Fault::Shape { got, .. } if got == [5, 3]));
}

#[test]
fn a_shard_that_lies_is_refused_even_when_its_digest_fits() {
    let victim = victim();
    let sound = fs::read(victim.shard()).unwrap();
    assert!(matches!(victim.forge_shard(b""), Fault::Truncated { .. }));
    assert!(matches!(victim.forge_shard(&sound[..sound.len() - 4]), Fault::Truncated { .. }));
    assert!(matches!(victim.forge_shard(&u64::MAX.to_le_bytes()), Fault::TooLarge { .. }));
    let with = |header: &str, data: usize| {
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
        victim.forge_shard(&bytes)
    };
    assert!(matches!(with("{}", 0), Fault::MissingTensor(_)));
    let other = r#"{"model.9":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert!(matches!(with(other, 4), Fault::UnexpectedTensor(_)));
    let kind = r#"{"model.0.bias":{"dtype":"I32","shape":[3],"data_offsets":[0,12]}}"#;
    assert!(matches!(with(kind, 12), Fault::Kind { got, .. } if got == "I32"));
    let twice = r#"{"model.0.bias":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}"#;
    assert!(matches!(with(twice, 12), Fault::TwiceTensor(_)));
    assert!(matches!(with(twice, 13), Fault::NotSafetensors(_)));
}

#[test]
fn sizes_alone_find_lost_and_cut_files_but_not_a_flipped_bit() {
    let victim = victim();
    let mut bytes = fs::read(victim.shard()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(victim.shard(), &bytes).unwrap();
    assert!(victim.store.open(id(1, 1), Check::Sizes).is_ok());
    let fault = victim.fault();
    assert!(matches!(fault, Fault::Digest { expected, .. } if expected == victim.manifest.shards[1].blake3));
    bytes.push(0);
    fs::write(victim.shard(), &bytes).unwrap();
    let damage = victim.store.open(id(1, 1), Check::Sizes).unwrap_err();
    let Bytes(expected) = victim.manifest.shards[1].bytes;
    let text =
        format!("g1-s000001/rank-00001.safetensors: {} bytes, the manifest says {expected}", expected + 1);
    assert_eq!(damage.to_string(), text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..300), tail in any::<bool>()) {
        let victim = victim();
        let mut bytes = bytes;
        if tail {
            let seal = dtrain_checkpoint::hash(&bytes);
            bytes.extend(format!(",\n  \"seal\": \"{seal}\"\n}}\n").bytes());
        }
        fs::write(victim.folder.join("manifest.json"), bytes).unwrap();
        let fault = victim.fault();
        let refused = matches!(fault, Fault::Seal | Fault::NotAManifest(_));
        prop_assert!(refused, "{}", fault);
    }

    #[test]
    fn a_header_of_random_json_is_an_error(text in r#"[\[\]{}":,a-z0-9F]{0,60}"#, data in 0usize..40) {
        let victim = victim();
        let bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &vec![0; data]].concat();
        victim.forge_shard(&bytes);
    }
}

fn lock_file(run: &Path) -> PathBuf {
    run.join("run.lock")
}

#[test]
fn a_second_supervisor_is_told_who_has_the_run() {
    let run = tempfile::tempdir().unwrap();
    let lock = RunLock::acquire(run.path(), Instance(7)).unwrap();
    lock.confirm().unwrap();
    let error = RunLock::acquire(run.path(), Instance(8)).unwrap_err();
    let pid = std::process::id();
    let text = format!("{} is in use by process {pid} (instance 0000000000000007)", run.path().display());
    assert_eq!(error.to_string(), text);
    lock.confirm().unwrap();
    drop(lock);
    assert_eq!(RunLock::acquire(run.path(), Instance(8)).unwrap().holder().instance, Instance(8));
}

#[test]
fn whoever_lost_the_lock_commits_nothing() {
    let run = tempfile::tempdir().unwrap();
    let store = FileStore::new(run.path());
    let lost = |spoil: &dyn Fn(&Path)| {
        let lock = RunLock::acquire(run.path(), Instance(7)).unwrap();
        let manifest = State::new(1).write(&store, id(1, 1), 2).unwrap();
        spoil(&lock_file(run.path()));
        let error = store.commit(&manifest, &lock).unwrap_err();
        assert!(store.ids().unwrap().is_empty());
        assert!(store.sweep(&lock).is_err(), "nor does it clean up after the new owner");
        match error {
            StoreError::NotOwner(LockError::Lost { found, .. }) => found,
            other => panic!("{other}"),
        }
    };
    assert_eq!(lost(&|file| fs::remove_file(file).unwrap()), "was removed");
    assert_eq!(lost(&|file| fs::write(file, "").unwrap()), "names nobody");
    let theirs = r#"{"instance":9,"pid":42}"#;
    assert_eq!(
        lost(&|file| fs::write(file, theirs).unwrap()),
        "names process 42 (instance 0000000000000009)"
    );
    let replace = |file: &Path| {
        fs::rename(file, file.with_extension("old")).unwrap();
        fs::write(file, fs::read(file.with_extension("old")).unwrap()).unwrap();
    };
    assert_eq!(lost(&replace), "is another file");
    let lock = RunLock::acquire(run.path(), Instance(7)).unwrap();
    State::new(1).save(&store, id(1, 2), 2).unwrap();
    store.sweep(&lock).unwrap();
    assert_eq!(store.ids().unwrap(), [id(1, 2)]);
}

#[test]
fn a_layout_that_overlaps_is_never_committed() {
    let run = tempfile::tempdir().unwrap();
    let store = FileStore::new(run.path());
    let mut manifest = State::new(1).write(&store, id(1, 1), 1).unwrap();
    manifest.tensors.push(TensorSpec::new("model.9", &[2], "parameters", 100));
    let error = store.commit(&manifest, &support::Always).unwrap_err().to_string();
    assert!(
        error.contains("tensors `model.3.weight` and `model.9` overlap in section parameters"),
        "{error}"
    );
}
