//! The configuration as a user meets it: files, overrides, defaults, and what every mistake is answered with.

use dtrain::config::{
    ClassWeights, Config, ConfigError, DataFacts, HostCount, KEYS, Length, LrScaling, Machine, Mark, Model,
    ModelKind, Optimizer, Resume, Source,
};

const TWO_CORES: Machine = Machine { cores: 2, gpus: |_, _| 0 };

pub fn arguments(arguments: &[&str]) -> Result<Config, ConfigError> {
    Config::parse(None, arguments, TWO_CORES)
}

pub fn file(text: &str, arguments: &[&str]) -> Result<Config, ConfigError> {
    Config::parse(Some(Source { path: "run.yaml".into(), text: text.to_owned() }), arguments, TWO_CORES)
}

/// The message and the hints of a mistake, which must all be in one line each and name no internals.
fn mistake(result: Result<Config, ConfigError>) -> (String, String) {
    let Err(error) = result else { panic!("taken for right") };
    (error.to_string(), error.hints().join("\n"))
}

#[test]
fn without_any_argument_it_is_the_digits_on_two_ranks() {
    let config = arguments(&[]).unwrap();
    assert!(matches!(config.data, Some(dtrain_data::Source::Digits(_))));
    assert!(matches!(config.model, Model::Cnn { batch_norm: true, .. }));
    assert_eq!((config.world.ranks, config.world.threads), (2, 1));
    assert_eq!((config.batch.global, config.batch.micro, config.length), (64, 16, Length::Epochs(20)));
    assert_eq!((config.base_name(), config.name.as_deref()), ("digits", None));
    assert_eq!(config.batch.sentence(config.world.ranks), "16 x 2 x 2 = 64");
}

#[test]
fn a_machine_with_gpus_gets_a_rank_for_each_unless_it_is_told_otherwise() {
    let four = Machine { cores: 2, gpus: |_, _| 4 };
    let unasked = Machine { cores: 2, gpus: |_, _| panic!("the driver was woken for nothing") };
    for (machine, arguments, ranks) in [
        (four, &["devices=all"][..], 4),
        (four, &["devices=all", "micro_batch=32"], 4),
        // What `auto` comes to is the machine's to say: those whose test has passed.
        (four, &[], 4),
        (four, &["devices=auto"], 4),
        (TWO_CORES, &["devices=auto"], 2),
        (four, &["model.kind=vit", "optimizer.kind=muon"], 4),
        (unasked, &["devices=cpu"], 2),
        (unasked, &["devices=cuda:0,2,3"], 3),
        (unasked, &["ranks=3"], 3),
        (TWO_CORES, &["devices=all"], 2),
        (TWO_CORES, &["micro_batch=64"], 1),
    ] {
        let config = Config::parse(None, arguments, machine).unwrap();
        assert_eq!(config.world.ranks, ranks, "{arguments:?}");
    }
    let derived = Config::parse(None, &["batch_size=16", "devices=all"], four).unwrap();
    assert_eq!((derived.batch.global, derived.world.ranks), (64, 4));
}

#[test]
fn the_keys_of_the_contract_are_read_as_it_writes_them() {
    let text = "
name: digits
seed: 7
devices: auto
ranks: 2
threads: 1
isolation: process
global_batch: 64
micro_batch: 16
epochs: 20
precision: f32
reduce: exact
wire: f32
isa: auto
resume: never
workers: 1
data: {kind: digits, augment: shift}
model: {kind: cnn, batch_norm: true}
loss: {kind: cross_entropy}
optimizer: {kind: adamw, lr: 2.0e-3, weight_decay: 0.01, clip_norm: none, lr_scaling: none}
schedule: {kind: cosine, warmup: 1 epoch}
checkpoint: {every: 1 epoch, keep: 3, best: val_accuracy}
min_ranks: 1
max_restarts: 10
join_timeout: 60s
detect: 1s
master_timeout: auto
verify: 0
balance: off
trusted_network: false
bucket_bytes: 4MiB
";
    let contract = file(text, &[]).unwrap();
    assert_eq!(
        contract.to_yaml(),
        arguments(&["name=digits"]).unwrap().to_yaml(),
        "the contract shows the defaults"
    );
}

#[test]
fn a_silent_supervisor_is_waited_for_longer_where_there_are_several_hosts() {
    let master =
        |given: &[&str], hosts| arguments(given).unwrap().world.timeouts(hosts).unwrap().master.as_secs();
    let both = |given: &[&str]| (master(given, HostCount::One), master(given, HostCount::Several));
    assert_eq!(both(&[]), (60, 600));
    assert_eq!(both(&["master_timeout=90s"]), (90, 90));
    assert_eq!(both(&["detect=5m"]), (750, 750), "nobody gives it up before it can know that it stood still");
}

#[test]
fn arguments_win_over_the_file_and_the_file_over_defaults() {
    let config =
        file("seed: 1\noptimizer:\n  lr: 0.5\n  clip_norm: 1\n", &["optimizer.lr=3e-4", "ranks=5"]).unwrap();
    assert_eq!((config.seed.0, config.optimizer.lr, config.optimizer.clip_norm), (1, 3e-4, Some(1.0)));
    assert_eq!((config.world.ranks, config.world.threads), (5, 1));
    assert_eq!(arguments(&["seed=1", "seed=2"]).unwrap().seed.0, 2, "the last argument counts");
}

#[test]
fn the_length_asked_for_last_counts() {
    assert_eq!(file("epochs: 3", &["steps=100"]).unwrap().length, Length::Steps(100));
    assert_eq!(file("steps: 100", &["epochs=3"]).unwrap().length, Length::Epochs(3));
    assert_eq!(arguments(&["steps=100"]).unwrap().length, Length::Steps(100));
    let (message, _) = mistake(arguments(&["steps=100", "epochs=3"]));
    assert_eq!(message, "argument `steps=100`: steps: given together with epochs");
    assert!(mistake(arguments(&["epochs=none"])).0.contains("neither epochs nor steps"));
}

#[test]
fn a_batch_size_per_rank_becomes_a_global_batch() {
    let config = arguments(&["batch_size=32", "ranks=4", "accumulation_steps=2"]).unwrap();
    assert_eq!((config.batch.global, config.batch.micro, config.batch.derived), (256, 32, true));
    assert_eq!(config.batch.sentence(4), "32 x 4 x 2 = 256");
    let config = arguments(&["batch_size=32", "micro_batch=8"]).unwrap();
    assert_eq!((config.batch.global, config.batch.micro), (64, 8));
    // What was asked for more strongly counts.
    assert_eq!(file("global_batch: 100", &["batch_size=32"]).unwrap().batch.global, 64);
    assert_eq!(file("batch_size: 32", &["global_batch=100"]).unwrap().batch.global, 100);
    assert!(
        mistake(arguments(&["batch_size=8", "global_batch=64"]))
            .0
            .contains("given together with global_batch")
    );
    assert!(mistake(arguments(&["accumulation_steps=2"])).0.contains("only together with batch_size"));
    assert!(
        mistake(arguments(&["batch_size=4000000000", "ranks=9"])).0.contains("more than 4294967295 samples")
    );
}

#[test]
fn an_unknown_key_names_its_place_and_the_nearest_key() {
    for (argument, hint) in [
        ("optimiser.lr=1", "did you mean optimizer.lr?"),
        ("lr=1", "did you mean optimizer.lr?"),
        ("epoch=1", "did you mean epochs?"),
        ("micro-batch=1", "did you mean micro_batch?"),
        ("world_size=2", "write ranks=N"),
        ("learning_rate=1", "write optimizer.lr=X"),
        ("comm_dtype=bf16", "write wire=f32 or wire=bf16"),
        ("gradient_checkpointing=on", "write recompute=auto, on or off"),
        ("activation_checkpointing=on", "write recompute=auto, on or off"),
        ("mixed_precision=bf16", "write precision=bf16 or precision=f16, on GPUs"),
        ("optimizer.foo_bar_baz=1", "the keys of optimizer are kind, lr, beta1"),
        ("zzzzzz=1", "--print-config"),
    ] {
        let (message, hints) = mistake(arguments(&[argument]));
        let key = argument.split('=').next().unwrap();
        assert_eq!(message, format!("argument `{argument}`: {key}: there is no such key"));
        assert!(hints.contains(hint), "{argument}: {hints}");
    }
    let (message, hints) = mistake(file("seed: 1\noptimizer:\n  learning_rat: 3\n", &[]));
    assert_eq!(message, "run.yaml:3:3: optimizer.learning_rat: there is no such key");
    assert!(hints.contains("the keys of optimizer are"), "{hints}");
}

#[test]
fn a_wrong_value_says_what_was_expected_and_what_was_found() {
    for (argument, words) in [
        ("ranks=0", "ranks: expected auto, or a whole number from 1 to 4096, got \"0\""),
        ("threads=0", "threads: expected auto, or a whole number from 1 to 1024, got \"0\""),
        ("ranks=two", "got \"two\""),
        ("ranks=-1", "got \"-1\""),
        ("global_batch=0", "global_batch: expected a whole number of at least 1, got \"0\""),
        ("micro_batch=0", "micro_batch: expected a whole number of at least 1"),
        ("epochs=0", "epochs: expected none, or a whole number of at least 1"),
        ("seed=-1", "seed: expected a whole number of at least 0"),
        ("optimizer.lr=fast", "optimizer.lr: expected a number above 0, got \"fast\""),
        ("optimizer.lr=0", "expected a number above 0"),
        ("optimizer.lr=", "optimizer.lr: expected a number above 0, got nothing"),
        ("optimizer.lr=nan", "expected a number above 0"),
        ("loss.label_smoothing=1.5", "expected a number from 0 to below 1"),
        ("model.dropout=1", "expected a number from 0 to below 1"),
        ("schedule.min_factor=-0.1", "expected a number from 0 to 1"),
        ("reduce=tree", "reduce: expected exact | ring, got \"tree\""),
        ("wire=f16", "wire: expected f32 | bf16, got \"f16\""),
        ("detect=5", "detect: expected a time with its unit, such as 500ms or 2s, got \"5\""),
        ("bucket_bytes=4mb", "bucket_bytes: expected none, or a size, such as 4MiB"),
        ("schedule.warmup=soon", "schedule.warmup: expected none, or a length"),
        (
            "model.channels=[16, x]",
            "model.channels: expected a list, each a whole number of at least 1, got \"x\"",
        ),
        ("model.batch_norm=maybe", "expected true or false"),
        (
            "data={kind: tokens, path: x, vocabulary: 20000000}",
            "expected auto, or a whole number from 2 to 16777216",
        ),
        ("trusted_network=[true]", "got a list of 1"),
        (
            "data={kind: [a]}",
            "data.kind: expected digits | idx | images | tar | parquet_images | clips | csv | parquet | windows | npy | text | tokens | own | torch, got a list of 1",
        ),
    ] {
        let (message, hints) = mistake(arguments(&[argument]));
        assert!(message.contains(words), "{argument}: {message}");
        assert!(!hints.is_empty(), "{argument} has no hint");
    }
    let (message, hints) = mistake(file("reduce: exat\n", &[]));
    assert!(message.starts_with("run.yaml:1:9: reduce:"), "{message}");
    assert_eq!(hints, "did you mean exact?");
    assert_eq!(mistake(file("ranks: \"2\"\n", &[])).1, "remove the quotes");
    assert!(mistake(arguments(&["train"])).0.contains("expected key=value"));
}

#[test]
fn all_mistakes_are_told_at_once() {
    let error = file("rankz: 2\nseed: x\noptimizer: {lr: 0}\n", &["epochs=-1"]).unwrap_err();
    assert_eq!(error.problems.len(), 4, "{error}");
}

#[test]
fn values_that_do_not_fit_together_are_refused() {
    for (given, words) in [
        (&["micro_batch=65"][..], "micro_batch: micro_batch 65 is larger than global_batch 64"),
        (&["detect=10ms"], "detect: detect is 10ms, not between 20ms and 600s"),
        (&["master_timeout=1s"], "master_timeout: master_timeout is 1s, less than 2.5s"),
        (&["name=a", "run_dir=b"], "run_dir: given together with name"),
        (&["name=a/b"], "\"a/b\" cannot name a folder"),
        (&["name=.."], "cannot name a folder"),
        (&["steps=10", "schedule.warmup=11"], "a warm-up of 11 steps does not fit into 10 steps"),
        (&["checkpoint.every=0 steps"], "checkpoint.every: expected at least one, got 0"),
        (&["data.kind=text", "data.path=x", "model.heads=3"], "3 heads do not divide the width 128"),
        (&["model=gpt"], "gpt needs tokens, and data.kind is digits"),
        (&["data.kind=text", "data.path=x", "model.kind=mlp"], "mlp cannot read tokens"),
        (&["data.kind=tokens", "data.path=x", "model.kind=cnn"], "cnn cannot read tokens"),
        (&["data.kind=tokens", "data.path=x", "loss=mse"], "mse needs numbers as targets, and tokens has"),
        (&["model.channels=[]"], "a cnn needs at least one block"),
        (&["loss.class_weights=[0, 0]"], "no class has a weight above 0"),
        (&["loss=mse"], "mse needs numbers as targets, and digits has classes"),
        (&["shard=gradients"], "shard: only ranks that keep shards of the state share out more of it"),
        (
            &["state=sharded", "shard=gradients", "balance=on"],
            "balance: ranks go through rounds of one micro-batch",
        ),
        (&["kernels=fast"], "kernels: expected auto | own"),
        (&["optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"], "a momentum of 0"),
        (&["data.augment=[shift, spin]"], "unknown augmentation \"spin\""),
        (&["data.augment=[\"jitter:1,2\"]"], "augmentation \"jitter:1,2\" is no jitter:B,C,S"),
        (&["data.augment=[shift, \"resized-crop:8\"]"], "shift and resized-crop both say"),
        (&["data.kind=csv", "data.path=x", "data.delimiter=ab"], "expected one character"),
        (
            &["data.kind=idx", "data.images=a", "data.labels=b", "data.val_images=c"],
            "given without data.val_labels",
        ),
    ] {
        let (message, hints) = mistake(arguments(given));
        assert!(message.contains(words), "{given:?}: {message}");
        assert!(!hints.is_empty(), "{given:?} has no hint");
    }
}

#[test]
fn on_one_host_there_are_no_more_ranks_than_its_own() {
    let config = arguments(&["ranks=2", "min_ranks=3"]).unwrap();
    let (message, hints) = mistake(config.check_one_host().map(|()| config.clone()));
    assert!(message.contains("min_ranks 3 is more than ranks 2"), "{message}");
    assert!(!hints.is_empty());
}

#[test]
fn what_this_build_cannot_do_is_an_error_and_never_ignored() {
    for (argument, words) in [
        ("devices=cuda", "expected auto | cpu | cuda:0,1 | all, got \"cuda\""),
        ("devices=cuda:1,1", "GPU 1 is named twice"),
        ("devices=tpu", "expected auto | cpu | cuda:0,1 | all, got \"tpu\""),
        ("nodes=2", "there is no such key"),
    ] {
        let (message, hints) = mistake(arguments(&[argument]));
        assert!(message.contains(words), "{argument}: {message}");
        assert!(!hints.is_empty(), "{argument} has no hint");
    }
}

#[test]
fn a_key_of_another_kind_is_told_apart_from_an_unknown_one() {
    let (message, hints) = mistake(arguments(&["optimizer.momentum=0.9"]));
    assert!(
        message.contains("this key belongs to optimizer.kind: sgd | muon, but optimizer.kind is adamw"),
        "{message}"
    );
    assert_eq!(hints, "remove optimizer.momentum, or write optimizer.kind=sgd");
    let (message, _) = mistake(arguments(&["data.kind=idx"]));
    assert!(message.contains("data.images: needed for data.kind: idx"), "{message}");
    assert!(message.contains("data.labels: needed"), "{message}");
}

#[test]
fn another_kind_starts_a_section_afresh() {
    let text = "model: {kind: cnn, channels: [8], dropout: 0.5}\n";
    let config = file(text, &["model.kind=mlp"]).unwrap();
    let Model::Mlp { dropout, .. } = config.model else { panic!("not an mlp") };
    assert!(dropout == 0.0, "what was below the old kind is gone");
    let Model::Cnn { channels, .. } = file(text, &["model.kind=cnn"]).unwrap().model else {
        panic!("not a cnn")
    };
    assert_eq!(channels, [8], "the same kind again changes nothing");
    assert_eq!(arguments(&["model=mlp"]).unwrap().model.kind(), ModelKind::Mlp, "model=KIND is short for it");
}

#[test]
fn lists_and_units_are_read() {
    let config = arguments(&[
        "model.channels=[8, 16]",
        "model.hidden=32",
        "loss.class_weights=[1, 0.5, 2e0]",
        "checkpoint.every=200 steps",
        "schedule.warmup=none",
        "bucket_bytes=512KiB",
        "detect=250ms",
        "data.augment=[shift, flip]",
        "loss.ignore_index=-100",
        "resume=runs/a",
    ])
    .unwrap();
    let Model::Cnn { channels, hidden, .. } = &config.model else { panic!("not a cnn") };
    assert_eq!((channels.as_slice(), hidden.as_slice()), (&[8, 16][..], &[32][..]));
    let dtrain::config::Loss::CrossEntropy { class_weights, ignore_index, .. } = &config.loss else {
        panic!()
    };
    assert_eq!((class_weights, ignore_index), (&ClassWeights::Given(vec![1.0, 0.5, 2.0]), &Some(-100)));
    assert_eq!(config.checkpoint.every, Some(Length::Steps(200)));
    assert_eq!(config.schedule.warmup, None);
    assert_eq!((config.world.bucket_bytes, config.world.detect.as_millis()), (Some(512 << 10), 250));
    assert_eq!(config.resume, Resume::Run("runs/a".into()));
}

#[test]
fn the_learning_rate_follows_the_batch_only_when_told_to() {
    let lr = |scaling: &str| {
        let scaling = format!("optimizer.lr_scaling={scaling}");
        let config = arguments(&["optimizer.lr=0.1", "optimizer.lr_base_batch=16", &scaling]).unwrap();
        let Optimizer { lr, lr_scaling, lr_base_batch, .. } = config.optimizer;
        lr * lr_scaling.factor(config.batch.global, lr_base_batch)
    };
    assert_eq!((lr("none"), lr("linear"), lr("sqrt")), (0.1, 0.4, 0.2));
    assert_eq!(arguments(&[]).unwrap().optimizer.lr_scaling, LrScaling::None);
}

/// One configuration of every kind, so that every row of the table is read, typed and written at least once.
const KINDS: [&[&str]; 21] = [
    &[],
    &["data.kind=torch"],
    &["state=sharded"],
    &[
        "data.kind=idx",
        "data.images=/d/a b",
        "data.labels=l",
        "data.val_images=x",
        "data.val_labels=y",
        "model=mlp",
    ],
    &[
        "data.kind=csv",
        "data.path=a.csv",
        "data.label=\"3\"",
        "data.shape=[1, 2]",
        "data.delimiter=\";\"",
        "data.normalize=0.5",
        "loss=mse",
        "optimizer=sgd",
    ],
    &[
        "data.kind=npy",
        "data.inputs=x.npy",
        "data.targets=y.npy",
        "schedule.kind=step",
        "epochs=none",
        "steps=9",
    ],
    &["data.kind=text", "data.path=a.txt", "schedule.kind=constant", "name=none-of-it"],
    &["data.kind=tokens", "data.path=ids", "data.val_path=val.bin", "data.vocabulary=65"],
    &[
        "data.kind=images",
        "data.path=photos",
        "data.size=[48, 64]",
        "data.colors=gray",
        "data.cache=none",
        "data.group=GROUP_*",
        "data.held_out=[7, s1]",
    ],
    &[
        "data.kind=windows",
        "data.path=bodies",
        "data.time=when",
        "data.gap=0.5",
        "data.stride=64",
        "data.group=subject",
    ],
    &["data.kind=tar", "data.path=shards", "data.val_path=val.tar", "data.size=32", "data.classes=10"],
    &["data.kind=parquet_images", "data.path=cifar100", "data.label=fine_label", "data.size=[32, 32]"],
    &["data.kind=clips", "data.path=clips", "data.frames=17", "data.frame_stride=2", "data.augment=[flip]"],
    &["data.augment=[flip, \"resized-crop:6x8\", \"rand-augment:3,12\", \"jitter:0.4,0,0.25\", erase]"],
    &["data.kind=parquet", "data.path=a.parquet", "data.label=y", "data.columns=[-id]", "data.held_out=last"],
    &["data.kind=own", "data.name=ring"],
    &[
        "model.kind=resnet",
        "model.depth=34",
        "model.stem=small",
        "model.freeze=[conv1.*]",
        "schedule.kind=one_cycle",
    ],
    &["model.kind=vit", "model.patch=2", "optimizer.kind=lion"],
    &[
        "data.kind=text",
        "data.path=t",
        "model.kind=llama",
        "model.kv_heads=2",
        "model.rope_theta=500000",
        "model.norm_eps=1e-6",
        "model.rope_scaling=llama3",
    ],
    &["optimizer.kind=muon", "optimizer.matrices=[0.*]", "optimizer.ns_coefficients=[3, -3.25, 1.25]"],
    &["run_dir=/tmp/none", "schedule.kind=linear", "optimizer.eps=1e-12", "seed=18446744073709551615"],
];

#[test]
fn what_is_printed_is_read_back_to_the_same() {
    let mut seen = std::collections::BTreeSet::new();
    for kind in KINDS {
        let config = arguments(kind).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let yaml = config.to_yaml();
        let again = file(&yaml, &[]).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        assert_eq!(again.to_yaml(), yaml);
        assert!(config.changed_bits(&again).is_empty() && again.changed_bits(&config).is_empty());
        seen.extend(
            KEYS.iter()
                .filter(|key| {
                    let name = key.name.rsplit('.').next().unwrap();
                    yaml.lines().any(|line| {
                        line.trim_start().starts_with(&format!("{name}: ")) && line.contains(key.help)
                    })
                })
                .map(|key| key.name),
        );
    }
    let unseen: Vec<_> = KEYS.iter().map(|key| key.name).filter(|name| !seen.contains(name)).collect();
    assert!(unseen.is_empty(), "no configuration of this test writes {unseen:?}");
}

#[test]
fn the_table_is_well_formed() {
    for key in KEYS {
        assert!(!key.help.is_empty() && !key.help.ends_with('.'), "{}", key.name);
        let Some((other, words)) = key.when else { continue };
        let above = KEYS.iter().position(|row| row.name == other).expect("a condition names a key");
        assert!(
            above < KEYS.iter().position(|row| row.name == key.name).unwrap(),
            "{} stands above {other}",
            key.name
        );
        for word in words {
            assert!(KEYS[above].accepts.expected().contains(word), "{}: {other} is never {word}", key.name);
        }
    }
    for (free, name) in [
        (true, "ranks"),
        (true, "threads"),
        (true, "isolation"),
        (true, "workers"),
        (true, "detect"),
        (true, "checkpoint.every"),
        (false, "seed"),
        (false, "global_batch"),
        (false, "micro_batch"),
        (false, "reduce"),
        (false, "wire"),
        (false, "precision"),
        (false, "data.kind"),
        (false, "model.kind"),
        (false, "loss.kind"),
    ] {
        let key = KEYS.iter().find(|key| key.name == name).unwrap();
        assert_eq!(key.mark == Mark::Free, free, "{name}");
    }
    for key in KEYS {
        assert!(Config::reference().contains(&format!("| `{}` |", key.name)));
    }
}

#[test]
fn sums_in_bf16_over_nccl_are_refused_with_what_to_write_instead() {
    let (message, hints) = mistake(arguments(&["backend=nccl", "wire=bf16"]));
    assert!(message.ends_with("wire: NCCL's sums are not rounded to bf16 yet"), "{message}");
    assert_eq!(hints, "write wire=f32, or backend=host");
    assert!(arguments(&["wire=bf16"]).is_ok());
}

#[test]
fn a_data_set_is_held_against_the_configuration() {
    let digits =
        DataFacts { samples: 1400, val_samples: 300, input: vec![1, 8, 8], classes: Some(10), tokens: false };
    arguments(&[]).unwrap().check_data(&digits).unwrap();
    // The default warm-up of an epoch is no reason to refuse a run of a few steps.
    arguments(&["steps=3"]).unwrap().check_data(&digits).unwrap();
    for (given, facts, words) in [
        (&["loss.class_weights=[1, 2]"][..], digits.clone(), "2 weights for 10 classes"),
        (&[], DataFacts { samples: 0, ..digits.clone() }, "the training set is empty"),
        (&[], DataFacts { input: vec![64], ..digits.clone() }, "cnn needs images"),
        (&["model=cnn1d"], DataFacts { input: vec![3, 8, 8], ..digits.clone() }, "cnn1d needs sequences"),
        (&["model=cnn3d"], digits.clone(), "cnn3d needs volumes [channels, depth, height, width]"),
        (&[], DataFacts { classes: None, ..digits.clone() }, "cross_entropy needs classes"),
        (
            &["epochs=2", "schedule.warmup=3 epochs"],
            digits.clone(),
            "a warm-up of 66 steps does not fit into 44",
        ),
    ] {
        let error = arguments(given).unwrap().check_data(&facts).unwrap_err();
        assert!(error.to_string().contains(words), "{given:?}: {error}");
        assert!(!error.hints().is_empty());
    }
}

#[test]
fn convolutions_take_samples_of_their_dimensions() {
    let facts = |input: &[usize]| DataFacts {
        samples: 1400,
        val_samples: 300,
        input: input.to_vec(),
        classes: Some(10),
        tokens: false,
    };
    for (model, input) in [
        ("model=cnn", &[3, 8, 8][..]),
        ("model=cnn1d", &[64]),
        ("model=cnn1d", &[2, 64]),
        // An array [samples, 2, 64] in a file is read as images of one channel.
        ("model=cnn1d", &[1, 2, 64]),
        ("model=cnn3d", &[1, 8, 8, 8]),
    ] {
        arguments(&[model]).unwrap().check_data(&facts(input)).unwrap();
    }
    let Model::Cnn { channels, .. } = arguments(&["model=cnn3d"]).unwrap().model else { panic!("not a cnn") };
    assert_eq!(channels, [16, 32]);
    let error = arguments(&["model=mlp", "model.kernel=3"]).unwrap_err().to_string();
    assert!(error.contains("model.kernel"), "{error}");
    let error = arguments(&["model=cnn"]).unwrap().check_data(&facts(&[2, 8, 8, 8])).unwrap_err();
    assert_eq!(error.hints(), ["write model.kind=cnn3d, or mlp"]);
}

#[test]
fn a_file_that_is_missing_or_no_yaml_is_a_plain_error() {
    let missing = Config::load(Some("does/not/exist.yaml".as_ref()), &["seed=1"], TWO_CORES).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read does/not/exist.yaml: "), "{missing}");
    for (text, words) in [
        ("- a\n- b\n", "run.yaml:1:1: a configuration is a mapping"),
        ("just a text", "a configuration is a mapping"),
        ("a: [1\n", "this is not YAML"),
        ("seed: 1\nseed: 2\n", "run.yaml:2:1: seed: given twice"),
        ("optimizer.lr: 1\noptimizer: {lr: 2}\n", "optimizer.lr: given twice"),
        ("optimizer:\n\tlr: 1\n", "run.yaml:2"),
    ] {
        let (message, _) = mistake(file(text, &[]));
        assert!(message.contains(words), "{text:?}: {message}");
    }
    for text in ["", "# nothing\n", "model:\noptimizer:\n"] {
        assert_eq!(file(text, &[]).unwrap().to_yaml(), arguments(&[]).unwrap().to_yaml());
    }
}
