//! What `bench/gpu.sh` packs here for a machine with a GPU, and unpacks there, of targets that are made up.

use crate::gpu_script::Bench;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Knows some targets, and says of each that it was built as `true`, which is small and there.
const CARGO: &str = r#"target() { echo "{\"name\":\"$1\",\"kind\":[\"$2\"]}"; }
if [ "$1" = metadata ]; then
    echo "{\"packages\":[
        {\"name\":\"dtrain\",\"targets\":[$(target gpu_script test),$(target train_step example),$(target own_model example)]},
        {\"name\":\"dtrain-cuda\",\"targets\":[$(target on_gpu_operations test),$(target on_gpu_x example),$(target digest_nccl example),$(target nccl_modes example)]},
        {\"name\":\"dtrain-fake-nccl\",\"targets\":[$(target on_gpu_fake test)]}]}"
else
    echo "built $*" >>"$PIDS"
    echo '{"reason":"compiler-artifact","executable":null}'
    echo "{\"reason\":\"compiler-artifact\",\"executable\":\"$(type -P true)\"}"
    echo '{"reason":"build-finished","success":true}'
fi"#;

/// Runs the script to pack into a folder; none without the tools for it.
fn pack(bench: &Bench) -> Option<Output> {
    for tool in ["python3", "strip"] {
        if !Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success()) {
            println!("skipped: there is no {tool}");
            return None;
        }
    }
    bench.stub("bin/cargo", CARGO);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/gpu.sh");
    let mut command = Command::new(script);
    command
        .arg("--pack")
        .arg(bench.at("pack"))
        .env("PATH", bench.search_path())
        .env("PIDS", bench.at("built"));
    Some(command.output().expect("the script runs"))
}

#[test]
fn what_is_packed_follows_from_the_names_of_targets() {
    let bench = Bench::new();
    // What an earlier packing left is not for this one.
    bench.stub("pack/conformance/old", "exit 1");
    let Some(output) = pack(&bench) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(bench.at("pack")).unwrap().count(), 1, "one file is carried");
    let unpacked = unpack(&bench);
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let mut packed = Vec::new();
    for folder in ["", "conformance", "digests", "train", "nccl"] {
        let entries = fs::read_dir(bench.at("pack").join(folder)).unwrap().map(|entry| entry.unwrap().path());
        packed.extend(entries.filter(|path| path.is_file()));
    }
    let names = packed.iter().map(|path| path.strip_prefix(bench.at("pack")).unwrap().to_str().unwrap());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "REVISION",
            "conformance/operations",
            "digests/nccl",
            "dtrain",
            "kernels",
            "nccl/modes",
            "programs.tar.gz",
            "train/step"
        ]
    );
    let built = bench.text("built");
    assert!(built.contains("-p dtrain-cuda --test on_gpu_operations\n"), "{built}");
    assert_eq!(built.matches("--profile release").count(), 7, "{built}");
    for file in ["_native.abi3.so", "__init__.py", "_train.py"] {
        assert!(bench.at("pack/python/dtrain").join(file).is_file(), "{file} is not packed");
    }
}

/// Unpacks there what was packed here.
fn unpack(bench: &Bench) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/gpu_unpack.sh");
    Command::new(script).arg(bench.at("pack")).output().expect("the script runs")
}

#[test]
fn a_pack_that_was_cut_off_on_its_way_is_refused_before_anything_runs() {
    let bench = Bench::new();
    fs::write(bench.at("pack/programs.tar.gz"), b"half of it").expect("a file");
    for output in [unpack(&bench), bench.script(&[]).output().expect("the script runs")] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("programs.tar.gz cannot be unpacked\nhint: "), "{said}");
    }
    assert!(!bench.at("out").exists(), "nothing was begun");
}

#[test]
fn a_pack_that_is_too_large_to_carry_is_refused_with_its_largest_files() {
    let bench = Bench::new();
    let large = fs::File::create(bench.at("pack/weights.bin")).expect("a file");
    large.set_len(65 << 20).expect("a file with a hole");
    let Some(output) = pack(&bench) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("bytes, and at most 67108864 can be carried\nhint: "), "{said}");
    assert!(said.contains("    68157440  weights.bin\n"), "{said}");
    fs::remove_file(bench.at("pack/weights.bin")).expect("the file");
    let output = pack(&bench).expect("the tools were there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What the scripts run of a pack, and what it is made of.
const RUN: [(&str, &str); 7] = [
    ("REVISION", "bench/gpu_pack.sh"),
    ("conformance", "crates/cuda/tests/on_gpu_operations/main.rs"),
    ("digests/nccl", "crates/cuda/examples/digest_nccl.rs"),
    ("dtrain", "crates/cli/main.rs"),
    ("kernels", "crates/cuda/examples/compile_kernels.rs"),
    ("nccl/modes", "crates/cuda/examples/nccl_modes.rs"),
    ("train/step", "crates/cuda/examples/train_step/main.rs"),
];

#[test]
fn what_the_scripts_run_is_packed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = BTreeSet::new();
    for script in ["gpu.sh", "gpu_parts.sh", "gpu_speed.sh"] {
        let text = fs::read_to_string(root.join("bench").join(script)).expect("a script");
        let ends = |letter: char| !(letter.is_ascii_alphanumeric() || "_/".contains(letter));
        let places = text.split("$pack/").skip(1).filter_map(|rest| rest.split(ends).next());
        named.extend(places.filter(|place| !place.is_empty()).map(str::to_owned));
    }
    assert_eq!(Vec::from_iter(&named), RUN.map(|(place, _)| place));
    for (place, source) in RUN {
        assert!(root.join(source).exists(), "{place} is made of {source}, which is not there");
    }
}
