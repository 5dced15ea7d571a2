//! The families of models beyond mlp, cnn and gpt: the same bits for any number of ranks and after a kill, predictions from files, and
//! a trained model that begins another one.

use crate::harness::files::npy;
use crate::harness::turn::has_turn;
use crate::harness::{
    Running, audit_is_clean, folder, json, output, refused, said, train, try_kill, write_table,
};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const TABLE: &str = "data.kind=csv data.path=table.csv data.shape=[2,16]";

/// Name, settings, and what it must reach.
const FAMILIES: [(&str, &str, f64); 5] = [
    (
        "resnet",
        "model.kind=resnet model.width=6 data.augment=none optimizer.lr=0.01 global_batch=96 micro_batch=32 epochs=6",
        0.8,
    ),
    (
        "vit",
        "model.kind=vit model.layers=2 model.width=24 model.heads=3 model.patch=2 data.augment=none optimizer.lr=0.01 schedule.kind=one_cycle epochs=12",
        0.75,
    ),
    (
        "lstm",
        "TABLE model.kind=lstm model.layers=2 model.width=24 model.dropout=0.1 optimizer.lr=0.01 epochs=12",
        0.6,
    ),
    ("gru", "TABLE model.kind=gru model.width=24 optimizer.kind=lion optimizer.lr=0.002 epochs=12", 0.6),
    (
        "transformer",
        "TABLE model.kind=transformer model.layers=1 model.width=16 schedule.kind=one_cycle optimizer.lr=0.01 epochs=12",
        0.6,
    ),
];

#[test]
fn each_family_learns_with_the_same_bits_on_any_ranks_and_after_a_kill() {
    if !has_turn(17) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    write_table(&path.join("table.csv"), 400);
    for (name, settings, least) in FAMILIES {
        let settings = settings.replace("TABLE", TABLE);
        let one = train(path, &format!("{settings} ranks=1 threads=1 name={name}"));
        one.succeeded();
        let accuracy = one.summary()["val_accuracy"].as_f64().expect("classes have one");
        assert!(accuracy >= least, "{name}: {accuracy}");
        let threads =
            train(path, &format!("{settings} ranks=3 threads=2 isolation=thread name={name}-threads"));
        assert_eq!(threads.digest(), one.digest(), "{name}");
        let mut hurt = Running::start(path, &format!("{settings} ranks=2 threads=1 name={name}-hurt"));
        hurt.wait_for_step(5);
        try_kill(hurt.rank_pids()[1]);
        assert_eq!(hurt.finish().digest(), one.digest(), "{name}");
        audit_is_clean(path, &format!("{name}-hurt"));
        // That of the best checkpoint.
        let told = json(path, &format!("eval {name} --json"))["accuracy"].as_f64();
        assert!(told >= Some(accuracy), "{name}: {told:?}, {accuracy} at the end");
    }
    // A sequence of one channel may be plain columns, and samples come in as they did in training.
    let table = fs::read_to_string(path.join("table.csv")).expect("it was written");
    fs::write(path.join("new.csv"), table.lines().take(7).collect::<Vec<_>>().join("\n")).expect("a table");
    let told = said(path, "predict lstm new.csv");
    assert_eq!(told.lines().count(), 8, "{told}");
    assert_eq!(said(path, "predict lstm new.csv --ranks 3 --batch 1"), told);
}

/// The tensors of an exported model, as bytes.
fn exported(path: &Path, run: &str) -> BTreeMap<String, Vec<u8>> {
    said(path, &format!("export {run} --to safetensors -o {run}.safetensors"));
    let bytes = fs::read(path.join(format!("{run}.safetensors"))).expect("it was exported");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    file.tensors().into_iter().map(|(name, tensor)| (name, tensor.data().to_vec())).collect()
}

#[test]
fn a_trained_model_begins_one_with_other_classes_whose_body_is_frozen() {
    if !has_turn(24) {
        return;
    }
    let folder = folder();
    let path = folder.path();
    let small = "model.kind=resnet model.width=4 global_batch=32 micro_batch=8";
    train(path, &format!("{small} epochs=3 name=ten")).succeeded();
    let ten = exported(path, "ten");
    // Bright or dark: images of the same shape, with two classes.
    let images: Vec<u8> = (0..96 * 64).map(|at| ((at * 7919) % 97 + (at / 64 % 2) * 120) as u8).collect();
    fs::write(path.join("x.npy"), npy("|u1", &[96, 1, 8, 8], &images)).expect("an array");
    fs::write(path.join("y.npy"), npy("|u1", &[96], &(0..96).map(|row| row % 2).collect::<Vec<u8>>()))
        .expect("an array");
    let two = format!(
        "data.kind=npy data.inputs=x.npy data.targets=y.npy {small} epochs=12 optimizer.lr=0.05 model.init_from=ten.safetensors"
    );
    refused(path, &format!("train {two}"), &["ten.safetensors does not fit the model", "fc.weight"]);
    let tuned = format!("{two} model.init_except=[\"fc.*\"] model.freeze=[\"conv1*\",\"bn1*\",\"layer*\"]");
    let one = train(path, &format!("{tuned} ranks=1 name=two"));
    one.succeeded();
    assert!(one.summary()["val_accuracy"].as_f64().expect("classes have one") > 0.7);
    assert_eq!(train(path, &format!("{tuned} ranks=3 isolation=thread name=again")).digest(), one.digest());
    let two = exported(path, "two");
    for (name, values) in two.iter().filter(|(name, _)| name.starts_with("model.")) {
        let same = ten.get(name) == Some(values);
        assert_eq!(same, !name.starts_with("model.fc."), "{name}");
    }

    for (settings, words) in [
        ("model.init_except=[\"fc.*\"]", "model.init_except: without model.init_from everything begins anew"),
        ("model.freeze=[\"head*\"]", "model.freeze: no parameter is called head*"),
        ("model.freeze=[\"*\"]", "model.freeze: leaves nothing to train"),
        (
            "model.init_from=ten.safetensors model.init_except=[\"head*\"]",
            "model.init_except: no tensor is called head*",
        ),
    ] {
        refused(path, &format!("train {small} name=never {settings}"), &[words]);
    }
    assert!(!path.join("runs/never").exists());
}

#[test]
fn samples_and_options_that_do_not_suit_a_family_are_refused_in_a_sentence() {
    let folder = folder();
    let path = folder.path();
    write_table(&path.join("table.csv"), 40);
    for (settings, words) in [
        (
            "data.kind=csv data.path=table.csv model.kind=resnet",
            "resnet needs images [channels, height, width]",
        ),
        (
            "data.kind=csv data.path=table.csv data.shape=[2,4,4] model.kind=lstm",
            "lstm needs sequences [channels, length]",
        ),
        ("model.kind=vit model.width=50", "3 heads do not divide the width 50"),
        ("model.kind=vit model.patch=9", "a kernel of [9, 9] is larger than its input 8 x 8"),
        ("model.kind=resnet model.depth=19", "model.depth: must be 18, 34 or 50"),
        ("data.kind=text data.path=text.txt model.kind=gru", "gru cannot read tokens"),
        ("schedule.kind=one_cycle schedule.warmup=none", "schedule.warmup"),
        ("optimizer.kind=lion optimizer.eps=1", "optimizer.eps"),
    ] {
        let (run, _) = output(path, &format!("train {settings} name=never"));
        run.ended_with(2);
        run.said(words);
        run.said("hint:");
    }
    assert!(!path.join("runs").exists());
}
