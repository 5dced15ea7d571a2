//! The file store on the disk of this machine.

mod support;

use dtrain_checkpoint::{
    Change, Check, Damage, Exported, Fault, FileStore, Given, InitError, Lies, Names, OwnNames, PARAMETERS,
    STATS, SectionMut, Store, StoreError, TensorData, TensorSpec, diff, export, init_from,
};
use dtrain_types::Rank;
use safetensors::SafeTensors;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use support::{Always, State, id};
use tempfile::TempDir;

fn run() -> (TempDir, FileStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(folder.path());
    (folder, store)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_any_world_saved_comes_back_bit_for_bit() {
    let (_folder, store) = run();
    for world in [1, 2, 3, 5, 8, 13, 40] {
        let state = State::new(u64::from(world));
        let manifest = state.save(&store, id(1, world.into()), world).unwrap();
        assert!(manifest.shards.len() <= world.min(20) as usize);
        let newest = store.newest_valid().unwrap();
        let checkpoint = newest.checkpoint.unwrap();
        assert!(newest.damaged.is_empty());
        assert_eq!(*checkpoint.manifest(), manifest, "the manifest is read back as it was written");
        assert_eq!(State::load(&checkpoint), state);
        assert_eq!(checkpoint.digest().unwrap(), state.digest());
    }
}

#[test]
fn a_layout_with_another_alignment_loads_and_gaps_are_left_alone() {
    let (_folder, store) = run();
    let state = State::new(3);
    state.save(&store, id(1, 3), 4).unwrap();
    let checkpoint = store.open(id(1, 3), Check::Digests).unwrap();
    let mut specs = state.specs.clone();
    specs.iter_mut().for_each(|spec| spec.offset *= 2);
    let mut out = vec![f32::NAN; 200];
    checkpoint.load_into(&specs, STATS, &mut out).unwrap();
    let weight = state.specs.iter().find(|spec| spec.name == "stats.3.weight").unwrap();
    assert_eq!(out[48..48 + 77], state.buffers[1][weight.offset..weight.end()]);
    assert_eq!(out.iter().filter(|value| value.is_nan()).count(), 200 - 96);
}

#[test]
fn a_layout_that_is_not_the_saved_one_is_an_error_that_names_the_tensor() {
    let (_folder, store) = run();
    let state = State::new(1);
    state.save(&store, id(1, 1), 2).unwrap();
    let checkpoint = store.open(id(1, 1), Check::Digests).unwrap();
    let load = |specs: &[TensorSpec], len: usize| {
        checkpoint.load_into(specs, PARAMETERS, &mut vec![0.0; len]).unwrap_err().fault
    };
    let missing: Vec<_> = state.specs.iter().filter(|spec| spec.name != "model.0.bias").cloned().collect();
    assert!(matches!(load(&missing, 101), Fault::UnexpectedTensor(name) if name == "model.0.bias"));
    let mut more = state.specs.clone();
    more.push(TensorSpec::new("model.4.bias", &[1], PARAMETERS, 0));
    assert!(matches!(load(&more, 101), Fault::MissingTensor(name) if name == "model.4.bias"));
    let mut turned = state.specs.clone();
    turned[0].shape.reverse();
    assert!(matches!(load(&turned, 101), Fault::Shape { expected, .. } if expected == [3, 5]));
    assert!(matches!(load(&state.specs, 100), Fault::OutOfBuffer { end: 101, len: 100, .. }));
}

#[test]
fn the_newest_is_the_greatest_generation_then_step() {
    let (_folder, store) = run();
    for (generation, step) in [(1, 9), (2, 3), (10, 1), (2, 5)] {
        State::new(step).save(&store, id(generation, step), 1).unwrap();
    }
    assert_eq!(store.ids().unwrap(), [id(10, 1), id(2, 5), id(2, 3), id(1, 9)]);
    assert_eq!(store.newest_valid().unwrap().checkpoint.unwrap().manifest().id, id(10, 1));
}

#[test]
fn an_empty_run_has_no_resume_point() {
    let (_folder, store) = run();
    assert!(store.newest_valid().unwrap().checkpoint.is_none());
    assert!(store.list(Check::Sizes).unwrap().is_empty());
    assert_eq!(store.best().unwrap(), None);
    store.sweep(&Always).unwrap();
}

#[test]
fn a_name_is_used_once() {
    let (_folder, store) = run();
    let late = State::new(2).write(&store, id(1, 1), 1).unwrap();
    // Two that began before either had committed: the second rename finds the name taken.
    let temporary = _folder.path().join("checkpoints/.tmp-g1-s000001");
    fs::rename(&temporary, _folder.path().join("aside")).unwrap();
    State::new(1).save(&store, id(1, 1), 1).unwrap();
    fs::rename(_folder.path().join("aside"), &temporary).unwrap();
    assert!(matches!(store.commit(&late, &Always), Err(StoreError::Exists(_))));
    assert!(matches!(store.begin(id(1, 1)), Err(StoreError::Exists(_))));
    assert_eq!(State::load(&store.open(id(1, 1), Check::Digests).unwrap()), State::new(1));
}

#[test]
fn a_commit_without_every_shard_or_with_a_stray_file_is_refused() {
    let (_folder, store) = run();
    let state = State::new(1);
    let attempt = |change: &dyn Fn(&mut dtrain_checkpoint::Manifest, &Path)| {
        let mut manifest = state.write(&store, id(1, 1), 3).unwrap();
        change(&mut manifest, &_folder.path().join("checkpoints/.tmp-g1-s000001"));
        let error = store.commit(&manifest, &Always).unwrap_err();
        assert!(store.ids().unwrap().is_empty());
        error
    };
    let lost = attempt(&|_, folder| fs::remove_file(folder.join("rank-00001.safetensors")).unwrap());
    assert!(matches!(&lost, StoreError::Damaged(Damage { fault: Fault::Missing, .. })), "{lost}");
    let unnamed = attempt(&|manifest, _| drop(manifest.shards.pop()));
    assert!(
        matches!(&unnamed, StoreError::Damaged(Damage { fault: Fault::MissingTensor(_), .. })),
        "{unnamed}"
    );
    let short = attempt(&|_, folder| {
        let file = fs::OpenOptions::new().write(true).open(folder.join("rank-00000.safetensors")).unwrap();
        file.set_len(100).unwrap();
    });
    assert!(
        matches!(&short, StoreError::Damaged(Damage { fault: Fault::Size { got: 100, .. }, .. })),
        "{short}"
    );
    let stray = attempt(&|_, folder| fs::write(folder.join("rank-00007.safetensors"), b"").unwrap());
    assert!(matches!(&stray, StoreError::Stray { file, .. } if file == "rank-00007.safetensors"), "{stray}");
    let twice = attempt(&|manifest, _| manifest.shards.push(manifest.shards[0].clone()));
    assert!(matches!(twice, StoreError::Manifest { .. }));
}

#[test]
fn two_writers_never_share_a_shard() {
    let (_folder, store) = run();
    store.begin(id(1, 1)).unwrap();
    let tensor = [TensorData { name: "a", shape: &[1], data: &[&[1.0]] }];
    store.write_shard(id(1, 1), Rank(0), &tensor).unwrap().sync().unwrap();
    assert!(matches!(store.write_shard(id(1, 1), Rank(0), &tensor), Err(StoreError::Io { .. })));
    assert!(store.write_shard(id(1, 2), Rank(0), &tensor).is_err(), "it was never begun");
}

#[test]
fn retention_keeps_the_newest_the_best_and_whatever_it_promised() {
    let (folder, store) = run();
    for step in 1..=6 {
        State::new(step).save(&store, id(1, step), 2).unwrap();
    }
    store.mark_best(id(1, 2)).unwrap();
    // A damaged newest one does not count: the resume point is 5, and 5 and 4 are kept.
    let victim = store.folder(id(1, 6)).join("manifest.json");
    fs::write(&victim, &fs::read(&victim).unwrap()[..40]).unwrap();
    let removed = store.retain(NonZeroUsize::new(2).unwrap()).unwrap();
    assert_eq!(removed, [id(1, 3), id(1, 1)]);
    let kept = ["best", "g1-s000002", "g1-s000004", "g1-s000005", "g1-s000006"];
    assert_eq!(names(&folder.path().join("checkpoints")), kept);
    assert_eq!(store.newest_valid().unwrap().checkpoint.unwrap().manifest().id, id(1, 5));
    // Once enough newer sound ones exist the damaged one goes too.
    State::new(7).save(&store, id(2, 7), 1).unwrap();
    assert_eq!(store.retain(NonZeroUsize::MIN).unwrap(), [id(1, 6), id(1, 5), id(1, 4)]);
    assert!(store.retain(NonZeroUsize::MIN).unwrap().is_empty());
}

#[test]
fn best_is_a_relative_link_and_can_be_replaced() {
    let (folder, store) = run();
    State::new(1).save(&store, id(1, 1), 1).unwrap();
    State::new(2).save(&store, id(1, 2), 1).unwrap();
    store.mark_best(id(1, 1)).unwrap();
    store.mark_best(id(1, 2)).unwrap();
    assert_eq!(fs::read_link(folder.path().join("checkpoints/best")).unwrap(), Path::new("g1-s000002"));
    assert!(folder.path().join("checkpoints/best/manifest.json").is_file());
    assert!(matches!(store.mark_best(id(9, 9)), Err(StoreError::NoSuch(_))));
    assert_eq!(store.best().unwrap(), Some(id(1, 2)));
}

#[test]
fn an_export_holds_the_model_alone_and_replaces_in_one_step() {
    let (folder, store) = run();
    let state = State::new(4);
    state.save(&store, id(1, 4), 3).unwrap();
    let out = folder.path().join("model.safetensors");
    fs::write(&out, "old").unwrap();
    let info = export(&store.open(id(1, 4), Check::Digests).unwrap(), &out, Exported::Model).unwrap();
    let bytes = fs::read(&out).unwrap();
    assert_eq!((info.bytes.0, info.blake3), (bytes.len() as u64, dtrain_checkpoint::hash(&bytes)));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), 10);
    let first: Vec<u8> = state.buffers[0][..15].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(file.tensor("model.0.weight").unwrap().data(), first);
    assert_eq!(names(folder.path()), ["checkpoints", "model.safetensors"], "no temporary file is left");
    // A damaged shard leaves the file of before.
    let checkpoint = store.open(id(1, 4), Check::Digests).unwrap();
    fs::write(store.folder(id(1, 4)).join("rank-00000.safetensors"), "torn").unwrap();
    assert!(matches!(export(&checkpoint, &out, Exported::Model), Err(StoreError::Damaged(_))));
    assert_eq!(fs::read(&out).unwrap(), bytes);
    assert_eq!(names(folder.path()), ["checkpoints", "model.safetensors"]);
}

#[test]
fn a_model_starts_from_an_export() {
    let (folder, store) = run();
    let state = State::new(4);
    state.save(&store, id(1, 4), 3).unwrap();
    let out = folder.path().join("model.safetensors");
    export(&store.open(id(1, 4), Check::Digests).unwrap(), &out, Exported::Model).unwrap();
    let (mut parameters, mut stats) = (vec![0.0; 101], vec![0.0; 101]);
    let mut sections = [
        SectionMut { name: PARAMETERS, data: &mut parameters },
        SectionMut { name: STATS, data: &mut stats },
    ];
    assert_eq!(init_from(&out, &OwnNames, &state.specs, &mut sections).unwrap(), 10);
    assert_eq!([parameters, stats], state.buffers[..2]);
    // Statistics that the caller does not ask for are passed over, as is any optimizer section.
    let mut parameters = vec![0.0; 101];
    let mut sections = [SectionMut { name: PARAMETERS, data: &mut parameters }];
    assert_eq!(init_from(&out, &OwnNames, &state.specs, &mut sections).unwrap(), 5);
}

fn half_file(path: &Path, kind: &str, bits: &[u16]) {
    let header = format!(
        r#"{{"w":{{"dtype":"{kind}","shape":[{}],"data_offsets":[0,{}]}}}}"#,
        bits.len(),
        bits.len() * 2
    );
    let data: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn half_precision_is_widened_and_other_kinds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.safetensors");
    let specs = [TensorSpec::new("w", &[3], PARAMETERS, 1)];
    let load = |kind: &str, bits: [u16; 3]| {
        half_file(&path, kind, &bits);
        let mut data = [9.0f32; 4];
        init_from(&path, &OwnNames, &specs, &mut [SectionMut { name: PARAMETERS, data: &mut data }])
            .map(|_| data)
    };
    assert_eq!(load("F16", [0x3c00, 0xc000, 0x0001]).unwrap(), [9.0, 1.0, -2.0, 2f32.powi(-24)]);
    assert_eq!(load("BF16", [0x3f80, 0xc000, 0x4049]).unwrap(), [9.0, 1.0, -2.0, 3.140625]);
    let error = load("I16", [0, 0, 0]).unwrap_err().to_string();
    assert!(error.ends_with("tensor `w` is I16, which is not one of F32, BF16, F16"), "{error}");
}

/// Names of somebody whose matrices are turned and longer.
struct Others;

impl Names for Others {
    fn of(&self, tensor: &str) -> Given {
        let lies = if tensor == "turned" { Lies::Turned } else { Lies::Longer };
        Given { name: "w".to_owned(), lies }
    }
}

#[test]
fn what_others_have_turned_is_turned_back_and_what_is_longer_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.safetensors");
    let header = r#"{"w":{"dtype":"BF16","shape":[3,2],"data_offsets":[0,12]}}"#;
    let data: Vec<u8> =
        [0x3f80u16, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0].iter().flat_map(|v| v.to_le_bytes()).collect();
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()).unwrap();
    let load = |name: &str, shape: &[usize]| {
        let mut values = [9.0f32; 6];
        let specs = [TensorSpec::new(name, shape, PARAMETERS, 0)];
        init_from(&path, &Others, &specs, &mut [SectionMut { name: PARAMETERS, data: &mut values }])
            .map(|_| values)
    };
    assert_eq!(load("turned", &[2, 3]).unwrap(), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    assert_eq!(load("longer", &[2, 2]).unwrap(), [1.0, 2.0, 3.0, 4.0, 9.0, 9.0]);
    for (name, shape, needed) in [("turned", [3, 2], "[2, 3]"), ("longer", [4, 2], "[4, 2]")] {
        let error = load(name, &shape).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("tensor `w` has shape [3, 2], the model needs {needed}")),
            "{error}"
        );
    }
}

#[test]
fn everything_that_does_not_fit_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    half_file(&path, "F16", &[0, 0, 0]);
    let specs = [TensorSpec::new("w", &[4], PARAMETERS, 0), TensorSpec::new("b", &[1], PARAMETERS, 4)];
    let mut data = [9.0f32; 5];
    let mut load = |specs: &[TensorSpec]| {
        init_from(&path, &OwnNames, specs, &mut [SectionMut { name: PARAMETERS, data: &mut data }])
    };
    let Err(InitError::Misfit { problems, .. }) = load(&specs) else { panic!("it does not fit") };
    assert_eq!(problems, ["tensor `w` has shape [3], the model needs [4]", "tensor `b` is missing"]);
    let Err(InitError::Misfit { problems, .. }) = load(&specs[1..]) else { panic!("it does not fit") };
    assert_eq!(problems, ["tensor `b` is missing", "tensor `w` is not one of the model's"]);
    assert_eq!(data, [9.0; 5], "nothing was written");
    let missing = init_from(&folder.path().join("none"), &OwnNames, &specs, &mut []);
    assert!(matches!(missing, Err(InitError::File { fault: Fault::Missing, .. })));
}

#[test]
fn a_diff_tells_bits_distance_and_shape() {
    let (_folder, store) = run();
    let state = State::new(1);
    state.save(&store, id(1, 1), 2).unwrap();
    let mut other = state.clone();
    other.buffers[0][2] = other.buffers[0][2].next_up();
    other.buffers[1][30] += 2.0;
    other.buffers[1][31] = f32::NAN;
    other.specs[1].name = "model.0.gain".to_owned();
    other.specs[4].shape = vec![77];
    other.save(&store, id(1, 2), 3).unwrap();
    let open = |step| store.open(id(1, step), Check::Sizes).unwrap();
    let diffs = diff(&open(1), &open(2)).unwrap();
    let of = |name: &str| &diffs.iter().find(|diff| diff.name == name).unwrap().change;
    let Change::Differs { elements: 1, of: 15, max_abs, max_ulp: 1 } = of("model.0.weight") else {
        panic!("{diffs:?}")
    };
    assert!(*max_abs > 0.0 && *max_abs < 1e-3);
    assert!(matches!(of("stats.3.weight"), Change::Differs { elements: 2, max_abs: f64::INFINITY, .. }));
    assert_eq!((of("model.0.bias"), of("model.0.gain")), (&Change::OnlyFirst, &Change::OnlySecond));
    assert_eq!(*of("model.3.weight"), Change::Shape { first: vec![7, 11], second: vec![77] });
    assert_eq!(diffs.iter().filter(|diff| diff.change == Change::Same).count(), 16);
    assert!(diff(&open(1), &open(1)).unwrap().iter().all(|diff| diff.change == Change::Same));
}
