//! The binary as a user meets it: bad input gets one clear error with a hint, exit code 2, and nothing is written.

use crate::harness::files::npy;
use dtrain::config::KEYS;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs the real binary in an empty folder.
struct Shell {
    folder: TempDir,
}

impl Shell {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        fs::write(self.folder.path().join(name), bytes).unwrap();
        self
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_dtrain"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env("NO_COLOR", "1")
            .output()
            .unwrap()
    }

    /// What lies in the folder, so that a test can tell that nothing was written.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Expects exit code 2, an error with `words`, a hint, no trace of Rust, and nothing written.
    fn refuses(&self, arguments: &[&str], words: &[&str]) -> String {
        let before = self.names();
        let output = self.run(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{arguments:?} does not say {word:?}: {text}");
        }
        assert!(text.contains("hint: "), "{arguments:?} has no hint: {text}");
        text.lines().filter(|line| line.starts_with("hint: ")).for_each(names_keys_that_exist);
        for noise in ["panicked", "RUST_BACKTRACE", "src/", "crates/", "stack backtrace", "\u{1b}["] {
            assert!(!text.contains(noise), "{arguments:?} shows {noise:?}: {text}");
        }
        assert!(output.stdout.is_empty(), "an error goes to standard error only");
        assert_eq!(self.names(), before, "{arguments:?} wrote something");
        text
    }
}

/// What a hint tells a user to write must be a key that there is.
fn names_keys_that_exist(hint: &str) {
    let words = hint.split(|c: char| !(c.is_alphanumeric() || "._=-".contains(c)));
    for (key, _) in words.filter_map(|word| word.split_once('=')) {
        let is_a_variable = key.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        assert!(is_a_variable || KEYS.iter().any(|known| known.name == key), "there is no key {key}: {hint}");
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// An IDX file: magic, big-endian dimensions, bytes.
fn idx(dimensions: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|side| file.extend(side.to_be_bytes()));
    file.extend(bytes);
    file
}

#[test]
fn mistakes_in_settings_are_answered_with_the_place_and_a_hint() {
    let shell = Shell::new();
    for (arguments, words) in [
        (&["train", "epocs=3"][..], &["epocs: there is no such key", "did you mean epochs?"][..]),
        (&["train", "lr=3"], &["lr: there is no such key", "did you mean optimizer.lr?"]),
        (&["train", "optimizer.lr=fast"], &["optimizer.lr: expected a number above 0, got \"fast\""]),
        (&["train", "ranks=0"], &["ranks: expected auto, or a whole number from 1 to 4096, got \"0\""]),
        (
            &["train", "model.kind=own"],
            &["model.kind: own is the model of a program of one's own", "examples/own_model.rs"],
        ),
        (
            &["train", "data.kind=own", "model.kind=own"],
            &["data.kind: own is the data of a program of one's own"],
        ),
        (&["train", "micro_batch=128"], &["micro_batch 128 is larger than global_batch 64"]),
        (
            &["train", "precision=f16", "devices=cpu"],
            &["precision: f16 is for GPUs, and this host trains on its CPU", "devices=all", "precision=f32"],
        ),
        (
            &["train", "devices=cuda"],
            &["devices: expected auto | cpu | cuda:0,1 | all, got \"cuda\"", "devices=all"],
        ),
        (&["train", "epochs"], &["expected key=value"]),
        (&["plan", "ranks=x"], &["ranks: expected"]),
        (&["train", "-c", "missing.yaml"], &["cannot read missing.yaml"]),
        (&["train", "--resume"], &["there is no run digits to resume", "no runs in runs yet"]),
        (&["train", "--resume", "nowhere"], &["there is no run nowhere"]),
        (&["train", "loss.class_weights=[1, 2]"], &["2 weights for 10 classes"]),
        (&["train", "isa=mmx"], &["isa: expected auto | scalar | avx2 | avx512 | amx"]),
        (&["train", "model.channels=[4, 4, 4, 4]"], &["model.kind"]),
        (&["train", "model.init_from=none.safetensors"], &["model.init_from", "none.safetensors"]),
        (&["audit", "nowhere"], &["there is no run nowhere"]),
        (&["checkpoint", "ls", "nowhere"], &["there is no run nowhere"]),
        (&["checkpoint", "verify", "nowhere"], &["there is no run nowhere"]),
        (&["checkpoint", "diff", "nowhere", "nothing"], &["there is no run nowhere"]),
        (&["checkpoint", "export", "nowhere", "-o", "x"], &["there is no run nowhere"]),
    ] {
        shell.refuses(arguments, words);
    }
    assert!(shell.names().is_empty());
}

#[test]
fn a_mistake_in_a_file_is_shown_in_its_line() {
    let shell = Shell::new();
    shell.write("run.yaml", "seed: 1\noptimizer:\n  lr: 0.1\n  momentun: 0.9\n");
    let text = shell.refuses(&["train", "-c", "run.yaml"], &["optimizer.momentun: there is no such key"]);
    assert!(text.contains("run.yaml:4:3") && text.contains("  momentun: 0.9"), "{text}");
    assert!(text.contains("did you mean optimizer.momentum?"), "{text}");
}

#[test]
fn data_that_is_missing_or_damaged_is_refused_before_anything_is_written() {
    let shell = Shell::new();
    shell
        .write("images", idx(&[4, 8, 8], &[7; 256]))
        .write("labels", idx(&[4], &[0, 1, 2, 3]))
        .write("short", idx(&[4, 8, 8], &[7; 100]))
        .write("three", idx(&[3], &[0, 1, 2]))
        .write("magic", b"not an idx file at all")
        .write("empty", idx(&[0, 8, 8], &[]))
        .write("no_labels", idx(&[0], &[]))
        .write("words.csv", "a,b,label\n1,2,0\n3,x,1\n")
        .write("ragged.csv", "1,2,0\n3,1\n")
        .write("labels.csv", "1,2,0\n3,4,7\n")
        .write("nothing.csv", "")
        .write("short.txt", "too short")
        .write("odd.bin", "odd bytes")
        .write("short.bin", "ten bytes!")
        .write("wide.bin", [255; 100])
        .write("ids.bin.gz", [0x1f, 0x8b, 8, 0]);
    let pair = |images, labels| [format!("data.images={images}"), format!("data.labels={labels}")];
    for (images, labels, words) in [
        ("absent", "labels", "absent does not exist"),
        ("short", "labels", "short holds"),
        ("magic", "labels", "magic begins with"),
        ("labels", "images", "begins with"),
        ("images", "three", "images has 4 samples but"),
        ("empty", "no_labels", "holds no sample"),
    ] {
        let [images, labels] = pair(images, labels);
        shell.refuses(&["train", "data.kind=idx", &images, &labels], &[words]);
    }
    let classes = ["train", "data.kind=idx", "data.images=images", "data.labels=labels", "data.classes=2"];
    shell.refuses(&classes, &["label 2 is out of range for 2 classes"]);
    for (path, words) in [
        ("absent.csv", "absent.csv does not exist"),
        ("words.csv", "line 3, column 2 (b): \"x\" is not a number"),
        ("ragged.csv", "ragged.csv line 2: 2 columns, expected 3"),
        ("nothing.csv", "nothing.csv"),
    ] {
        shell.refuses(&["train", "data.kind=csv", &format!("data.path={path}")], &[words]);
    }
    let few = ["train", "data.kind=csv", "data.path=labels.csv", "data.classes=3", "data.val_split=0"];
    shell.refuses(&few, &["label 7 is out of range for 3 classes"]);
    shell.refuses(&["train", "data.kind=text", "data.path=short.txt"], &["fewer than context + 1"]);
    shell.refuses(&["train", "data.kind=text"], &["data.path: needed for data.kind: csv | text | tokens"]);
    for (path, words) in [
        ("absent.bin", "absent.bin does not exist"),
        (".", "./train.bin does not exist"),
        ("odd.bin", "odd.bin holds 9 bytes, no multiple of the 2 of a token id"),
        ("short.bin", "short.bin has 5 tokens, fewer than context + 1 = 9"),
        ("wide.bin", "wide.bin position 0: token id 65535 is out of range for a vocabulary of 50257"),
        ("ids.bin.gz", "ids.bin.gz is compressed"),
    ] {
        let path = format!("data.path={path}");
        let all = ["train", "data.kind=tokens", "data.context=8", "data.val_split=0", &path];
        shell.refuses(&all, &[words]);
    }
}

#[test]
fn what_a_table_cannot_be_used_for_is_said_with_its_columns_and_the_keys_to_write() {
    let shell = Shell::new();
    shell
        .write("cities.csv", "size,city,kind\n0.5,Bern,0\nmuch,Rome,1\n")
        .write("years.csv", "size,2024,kind\n0.5,3,0\n0.7,1,1\n")
        .write("prices.csv", "a,b,price\n1,2,3.5\n1,2,4.25\n");
    for (path, words) in [
        (
            "cities.csv",
            &["line 3, column 1 (size): \"much\" is not a number", "data.columns=[size:category] or [-size]"]
                [..],
        ),
        ("years.csv", &["line 1, column 1: \"size\"", "data.header=true", "data.skip=N"]),
        ("prices.csv", &["label \"3.5\" is not a whole number", "write loss.kind=mse"]),
    ] {
        shell.refuses(&["train", "data=csv", &format!("data.path={path}")], words);
    }
    shell.write("gaps.csv", "size,age,kind\n0.5,3,0\n0.7,,1\n");
    let words = &["line 3, column 2 (age)", "data.missing=fill"];
    shell.refuses(&["train", "data=csv", "data.path=gaps.csv", "data.missing=refuse"], words);
}

#[test]
fn a_class_that_only_held_out_samples_have_is_said_with_its_file_and_the_run_goes_on() {
    let shell = Shell::new();
    shell
        .write("train.csv", "a,kind\n1,cat\n2,dog\n3,cat\n")
        .write("held.csv", "a,kind\n1,cat\n2,zebra\n")
        .write("numbered.csv", "a,kind\n1,0\n2,1\n3,0\n")
        .write("numbers.csv", "a,kind\n1,0\n2,2\n3,3\n");
    let plan = |train: &str, held: &str| {
        let paths = [format!("data.path={train}"), format!("data.val_path={held}")];
        let output = shell.run(&["plan", "data=csv", &paths[0], &paths[1], "batch_size=2", "ranks=1"]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let words = plan("train.csv", "held.csv");
    assert!(words.contains("no training sample is of class \"zebra\", and held.csv has 1 of it"), "{words}");
    assert!(words.contains("hint: give the training part samples of it"), "{words}");
    let numbers = plan("numbered.csv", "numbers.csv");
    assert!(numbers.contains("of class \"2\" (and of 1 more), and numbers.csv has 1 of it"), "{numbers}");
    assert!(!plan("train.csv", "train.csv").contains("warning"));
}

#[test]
fn a_bare_number_of_devices_is_answered_with_all_that_it_may_mean() {
    let shell = Shell::new();
    shell.refuses(
        &["train", "devices=2"],
        &[
            "devices: expected auto | cpu | cuda:0,1 | all, got \"2\"",
            "for 2 GPUs write devices=cuda:0,1, for 2 ranks ranks=2",
        ],
    );
}

#[test]
fn arrays_of_images_get_a_cnn_and_the_user_is_told() {
    let shell = Shell::new();
    shell
        .write("images.npy", npy("|u1", &[12, 8, 8], &[7; 768]))
        .write("rows.npy", npy("|u1", &[12, 64], &[7; 768]))
        .write("thin.npy", npy("|u1", &[12, 3, 8], &[7; 288]))
        .write("labels.npy", npy("|u1", &[12], &[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]));
    let plan = |inputs: &str, more: &str| {
        let inputs = format!("data.inputs={inputs}");
        let words =
            ["plan", "data=npy", &inputs, "data.targets=labels.npy", "global_batch=4", "micro_batch=4"];
        let output = shell.run(&words.into_iter().chain(more.split_whitespace()).collect::<Vec<_>>());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let images = plan("images.npy", "");
    assert!(images.contains("model    cnn: "), "{images}");
    assert!(
        images.contains("cnn because of the shape of a sample; model.kind=mlp takes it as one row"),
        "{images}"
    );
    for (inputs, asked) in [("images.npy", "model=mlp"), ("rows.npy", ""), ("thin.npy", "")] {
        let told = plan(inputs, asked);
        assert!(told.contains("model    mlp: ") && !told.contains("because of the shape"), "{told}");
    }
    // What is printed is the same configuration, also where the array does not lie.
    let words = ["train", "data=npy", "data.inputs=images.npy", "data.targets=labels.npy", "--print-config"];
    assert!(stdout(&shell.run(&words)).contains("kind: cnn"), "{}", stdout(&shell.run(&words)));
}

#[test]
fn a_run_folder_that_exists_or_cannot_be_made_is_refused() {
    let shell = Shell::new();
    fs::create_dir_all(shell.folder.path().join("runs/first")).unwrap();
    shell.write("file", "");
    shell.refuses(
        &["train", "name=first"],
        &["the run folder runs/first exists already", "--resume runs/first"],
    );
    shell.refuses(&["train", "run_dir=file"], &["file exists already"]);
    shell.refuses(&["train", "run_dir=file/run"], &["cannot make the run folder file/run"]);
    shell.refuses(&["train", "run_dir=/proc/nobody/run"], &["cannot make the run folder /proc/nobody/run"]);
    assert_eq!(fs::read_dir(shell.folder.path().join("runs/first")).unwrap().count(), 0);
}

#[test]
fn the_printed_configuration_is_a_configuration() {
    let shell = Shell::new();
    let first = shell.run(&["train", "--print-config", "ranks=3", "optimizer.lr=1e-8", "name=a"]);
    assert!(first.status.success() && first.stderr.is_empty(), "{}", stderr(&first));
    let yaml = stdout(&first);
    for words in ["ranks: 3", "name: a", "  lr: 1.0e-8", "kind: digits", "# "] {
        assert!(yaml.contains(words), "{yaml}");
    }
    shell.write("again.yaml", &yaml);
    assert_eq!(stdout(&shell.run(&["train", "--print-config", "-c", "again.yaml"])), yaml);
    assert_eq!(shell.names(), ["again.yaml"], "printing makes no run");
}

#[test]
fn a_plan_shows_tensors_memory_and_shares_and_writes_nothing() {
    let shell = Shell::new();
    let output = shell.run(&["plan", "ranks=3"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for words in ["conv1.weight", "bytes a parameter", "micro-batches of a full step"] {
        assert!(stdout(&output).contains(words), "{}", stdout(&output));
    }
    for words in ["4 micro-batches of 16, 1 to 2 a rank = 64", "10 classes", "E. Alpaydin"] {
        let text = stderr(&output);
        assert!(text.contains(words) || words == "E. Alpaydin", "{text}");
    }
    let output = shell.run(&["plan", "--json", "ranks=2"]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["ranges"], serde_json::json!([[0, 2], [2, 4]]));
    assert_eq!(plan["micro_batches"], 4);
    assert!(plan["parameters"].as_u64().unwrap() > 1000 && plan["steps"].as_u64().unwrap() > 20);
    assert!(shell.names().is_empty());
}

#[test]
fn help_and_version_are_no_errors_and_a_wrong_command_is() {
    let shell = Shell::new();
    let version = shell.run(&["--version"]);
    assert!(version.status.success());
    assert!(
        stdout(&version).starts_with(&format!("dtrain {} (", env!("CARGO_PKG_VERSION"))),
        "{}",
        stdout(&version)
    );
    let help = shell.run(&["train", "--help"]);
    assert!(help.status.success());
    for words in ["Examples:", "--resume", "--print-config", "Exit codes:"] {
        assert!(stdout(&help).contains(words), "{}", stdout(&help));
    }
    assert_eq!(shell.run(&["tain"]).status.code(), Some(2));
    assert_eq!(shell.run(&[]).status.code(), Some(2));
    let flag = shell.run(&["train", "--ranks", "3"]);
    assert_eq!(flag.status.code(), Some(2));
    assert!(stderr(&flag).contains("ranks=VALUE"), "{}", stderr(&flag));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let shell = Shell::new();
    let script = format!("{} train --print-config | head -n 1", env!("CARGO_BIN_EXE_dtrain"));
    let output = Command::new("sh").args(["-c", &script]).current_dir(shell.folder.path()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn a_setting_of_the_newest_run_is_not_needed_to_find_it() {
    // The keys of the command line belong to the run's own file, here one of another model.
    let shell = Shell::new();
    let run = shell.folder.path().join("runs/digits-3");
    fs::create_dir_all(&run).unwrap();
    let yaml = stdout(&shell.run(&["train", "--print-config", "model=mlp", "optimizer=sgd"]));
    fs::write(run.join("config.yaml"), yaml).unwrap();
    for arguments in [&["train", "--resume", "optimizer.momentum=0.9"][..], &["train", "resume=digits-3"]] {
        shell.refuses(arguments, &["runs/digits-3 has no valid checkpoint to resume from"]);
    }
    assert!(Path::new(&run).join("config.yaml").exists());
}
