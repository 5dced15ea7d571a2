//! `bench/gpu.sh` on made-up machines: whatever its parts do, it ends in time with a whole table.
//!
//! The parts are stubs, shell scripts in the places of the real programs, and so are `nvidia-smi` and the Python with PyTorch.

use crate::harness::turn::has_turn;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Answers as NVIDIA's does on a machine with one GPU of compute capability 9.0.
const SMI: &str = r#"case $1 in -L) echo "GPU 0: Made-up (UUID: GPU-1)";; *) echo "Made-up GPU, 9.0, 580.65.06, 345 MHz";; esac"#;
/// What doctor tells, for people and for programs.
const DTRAIN: &str = r#"case "$*" in
    "doctor") echo "  ok  things"; echo "training on GPUs works here";;
    "doctor --json")
        echo '{"event":"check","check":"nvrtc","verdict":"ok","found":"13.0 at /opt/my cuda/libnvrtc.so.13 (CUDA_HOME)","details":{}}'
        echo '{"event":"check","check":"nccl","verdict":"ok","found":"2.30.4 at /opt/libnccl.so.2 (Python)","details":{"path":"/no"}}';;
    "train --json "*"devices=cuda:0 backend=host ranks="[124]" run_dir="*) echo '{"event":"summary","digest":"abc123","steps":20}';;
    "train --json "*" precision=tf32 ranks="[12]" run_dir="*) echo '{"event":"summary","digest":"fed321","steps":40}';;
    *) exit 2;;
esac"#;
const KERNELS: &str = r#"echo "compiled $2 with $1""#;
/// Ignores every signal that it can, and so does its child.
const HANGS: &str = r#"trap '' TERM INT HUP
(trap '' TERM INT HUP; echo $BASHPID >>"$PIDS"; while :; do sleep 1000; done) &
echo $$ >>"$PIDS"
echo "the last word of it"
while :; do wait; done"#;
/// Both sides print a rate a line; PyTorch loses one precision, one whole run, and hangs once in the middle.
const STEP: &str = r#"work= p= batch= shares= curve=
while [ $# -gt 0 ]; do
    case $1 in --work) work=$2;; --precision) p=$2;; --batch) batch=$2;; --shares) shares=1;; --curve) curve=$2;; esac
    shift
done
[ "$p" = tf32 ] && { echo "error: there is no tf32"; exit 1; }
if [ "$curve" ]; then
    [ -s "$curve" ] || exit 7
    for i in {1..60}; do echo "loss $i $((100 - i)).5"; done; exit
fi
[ "$work-$batch" = cnn3d-512 ] && { echo "lost cnn3d bf16 dtrain no room: batch 512: no 7 bytes left"; exit 1; }
[ "$work" = gpt2 ] && echo "model FLOP utilisation 41.5 % of 989 TFLOP/s of a stub"
echo "rate $work $p dtrain 4000.5 samples/s batch ${batch:-64}"
[ "$shares" ] || exit 0
echo "shares: 3 launches of 2 kernels take 2.500 ms of a step of 3.000 ms"
echo "share 80.0 2.000 1 product"; echo "share 20.0 0.500 2 fill""#;
const PYTHON: &str = r#"[ "$1" = -c ] && { echo "PyTorch 9.9"; exit 0; }
case $1 in *gpu_turns.py)
    echo "turn dtrain 30.5 [29.0-31.0] samples/s batch 128"; echo "turn eager 20.0 [19.5-20.5] samples/s batch 128"
    [[ "$*" == *" --work mlp "*"--peers=--device cuda "* ]] && { echo "lost compiled no | triton"; echo "1.53 [1.41-1.59] x eager, SM 1700-1980 MHz"; exit; }
    [[ "$*" == *" --work gpt2 "*" --batch 32" ]] || { echo "no batch of gpt2"; exit 3; }
    echo "turn compiled 10.0 [9.0-11.0] tokens/s batch 32"; echo "3.05 [2.64-3.44] x compiled"; exit;;
esac
shift; work= mode=eager device= batch= curve= fill=
while [ $# -gt 0 ]; do
    case $1 in
        --work) work=$2;; --mode) mode=$2;; --device) device=$2;; --batch) batch=$2;; --curve) curve=$2;; --fill) fill=$2;;
        --warm) exit 0;;
    esac
    shift
done
[ "$device" = cuda ] || exit 9
if [ "$curve" ]; then for i in {1..60}; do echo "loss $i $((100 - i)).6"; done; exit; fi
case $work-$mode in
    gpt2-compiled) echo "rate gpt2 bf16 $mode 8 tokens/s batch 32 without graphs"; exit 0;;
    gpt2-*) echo "rate gpt2 bf16 $mode $((7 + ${batch:-64})) tokens/s batch ${batch:-64}"; exit 0;;
    mlp-compiled) echo "rate mlp f32 compiled 1000.0 samples/s batch 128"; echo "lost mlp tf32 compiled no | triton"; exit 1;;
    gpt-eager) echo "RuntimeError: CUDA error" >&2; exit 1;;
    cnn-compiled) echo "rate cnn f32 compiled 5 samples/s batch 128"; while :; do sleep 1000; done;;
esac
for p in f32 tf32 bf16; do echo "rate $work $p $mode 2000.0 samples/s batch 128"; done
case $fill in
    4096) echo "lost cnn bf16 eager no room: batch 4096: CUDA out of memory"; exit 1;;
    ?*) echo "rate $work bf16 eager 8001.0 samples/s batch $fill, 1.0 GiB";;
esac"#;

/// A folder with a pack, a `nvidia-smi` and a Python.
pub struct Bench {
    folder: tempfile::TempDir,
}

/// The table: the cells of each row by its first one.
type Table = BTreeMap<String, Vec<String>>;

impl Bench {
    pub fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.stub("bin/nvidia-smi", SMI);
        bench.stub("bin/python", PYTHON);
        bench.stub("pack/dtrain", DTRAIN);
        bench.stub("pack/kernels", KERNELS);
        bench
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// What was written there.
    #[track_caller]
    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub fn stub(&self, path: &str, script: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Where programs are looked for: the stubs are found first.
    pub fn search_path(&self) -> String {
        format!("{}:{}", self.at("bin").display(), std::env::var("PATH").expect("a PATH"))
    }

    pub fn script(&self, limits: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/gpu.sh"));
        command.arg("--from").arg(self.at("pack")).arg("--python").arg(self.at("bin/python")).args(limits);
        command.env("PATH", self.search_path());
        command.env("OUT", self.at("out")).env("PIDS", self.at("pids"));
        command
    }

    /// Runs the script to its end.
    fn run(&self, limits: &[&str]) -> Table {
        self.table(&self.script(limits).output().unwrap())
    }

    /// The table that it printed, which is the one that it wrote.
    fn table(&self, output: &Output) -> Table {
        let stdout = String::from_utf8(output.stdout.clone()).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
        assert_eq!(self.text("out/table.md"), stdout, "{stderr}");
        // Behind the table there may be others, of kernels.
        let rows = stdout.split("\n\n").nth(1).unwrap_or_default().lines();
        let mut rows = rows.map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 7, "{line}");
            (cells[0].to_owned(), cells[1..].iter().map(|cell| (*cell).to_owned()).collect())
        });
        assert!(rows.next().is_some_and(|(first, _)| first == "part"), "{stdout}\n{stderr}");
        rows.collect()
    }

    /// Whether a stub that wrote its number down still runs.
    fn left_over(&self) -> Vec<String> {
        let pids = self.text("pids");
        assert!(pids.lines().count() >= 2, "the stub that hangs was not started");
        let runs = |pid: &&str| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            // One that was killed may wait for somebody to ask how it ended.
            status
                .lines()
                .any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
        };
        pids.lines().filter(runs).map(str::to_owned).collect()
    }
}

#[track_caller]
fn row(table: &Table, name: &str, state: &str, word: &str) {
    let cells = table.get(name).unwrap_or_else(|| panic!("no row {name}: {table:#?}"));
    assert_eq!(cells[0], state, "{name}: {cells:?}");
    assert!(cells[5].contains(word), "{name}: {cells:?}");
}

/// The rates in a row: ours, PyTorch's eager, PyTorch's compiled.
#[track_caller]
fn rates(table: &Table, name: &str, wanted: [&str; 3]) {
    let cells = table.get(name).unwrap_or_else(|| panic!("no row {name}: {table:#?}"));
    assert_eq!(cells[2..5], wanted, "{name}");
}

#[test]
fn a_part_that_hangs_or_fails_costs_only_itself_and_is_named_with_its_last_line() {
    if !has_turn(10) {
        return;
    }
    let bench = Bench::new();
    bench.stub("pack/conformance/1-good", r#"echo "61 operations agree, kernels in $XDG_CACHE_HOME""#);
    bench.stub("pack/conformance/2-hangs", HANGS);
    bench.stub(
        "pack/conformance/3-fails",
        "echo something; echo 'product differs | by 3 ulp' >&2; echo; exit 3",
    );
    bench.stub("pack/conformance/4-lacks", r#"echo "skipped: no cuDNN"; echo "nvrtc $DTRAIN_NVRTC""#);
    bench.stub(
        "pack/digests/nccl",
        r#"[ "$NCCL_MULTI_RANK_GPU_ENABLE $DTRAIN_NCCL" = "1 /opt/libnccl.so.2" ] && [ "$1" -le 2 ] && echo digest def456"#,
    );
    bench.stub(
        "pack/nccl/modes",
        r#"[ "$NCCL_MULTI_RANK_GPU_ENABLE $1" = "1 2" ] && echo "worst 1.031 at 4 MiB""#,
    );
    bench.stub("pack/train/step", STEP);
    fs::write(bench.at("pack/conformance/README"), "no program").unwrap();
    let table = bench.run(&["--part-limit", "5", "--limit", "300"]);

    row(&table, "GPUs", "ok", "GPU 0: Made-up");
    row(&table, "clocks before", "ok", "345 MHz");
    row(&table, "clocks after", "ok", "345 MHz");
    row(&table, "dtrain doctor", "ok", "training on GPUs works here");
    row(&table, "NCCL, by dtrain's own search", "ok", "2.30.4 at /opt/libnccl.so.2 (Python)");
    row(&table, "kernels by NVRTC for sm_90a", "ok", "compiled sm_90a with /opt/my cuda/libnvrtc.so.13");
    row(&table, "conformance: 1-good", "ok", "out/cache");
    row(&table, "conformance: 2-hangs", "timed out after 5 s", "the last word of it");
    row(&table, "conformance: 3-fails", "failed (exit code 3)", "product differs / by 3 ulp");
    row(&table, "conformance: 4-lacks", "ok, 1 skipped", "skipped: no cuDNN");
    assert_eq!(table.keys().filter(|name| name.starts_with("conformance")).count(), 4);
    for ranks in [1, 2, 4] {
        row(&table, &format!("digest: host, ranks {ranks}"), "ok", "abc123");
    }
    for ranks in [1, 2] {
        row(&table, &format!("digest: nccl, ranks {ranks}"), "ok", "def456");
    }
    for ranks in [1, 2] {
        row(&table, &format!("digest: tf32, ranks {ranks}"), "ok", "fed321");
    }
    row(&table, "digests agree", "ok", "18 runs");

    let (ours, theirs) = ("4000.5 samples/s", "2000.0 samples/s");
    rates(&table, "train: mlp f32", [ours, theirs, "1000.0 samples/s"]);
    rates(&table, "train: mlp tf32", ["failed (exit code 1)", theirs, "failed (exit code 1)"]);
    rates(&table, "train: gpt bf16", [ours, "failed (exit code 1)", theirs]);
    rates(&table, "train: cnn f32", [ours, theirs, "5 samples/s"]);
    rates(&table, "train: cnn bf16", [ours, theirs, "timed out after 5 s"]);
    rates(&table, "train: cnn3d f32", [ours, theirs, theirs]);
    // Everybody has the batch that fits all of them.
    rates(&table, "train: gpt2 bf16", [ours, "39 tokens/s", "8 tokens/s without graphs"]);
    let word = "102.58 x eager, 500.06 x compiled; batch 32, fit dtrain 64 eager 64 compiled 32; model FLOP utilisation 41.5 %";
    assert_eq!(table["train: gpt2 bf16"][5], word);
    rates(&table, "train: mlp bf16, batch 16384", [ours, "8001.0 samples/s", ""]);
    row(&table, "train: mlp bf16, batch 16384", "", "0.50 x eager");
    rates(&table, "train: cnn bf16, batch 4096", [ours, "no room", ""]);
    rates(&table, "train: gpt bf16, batch 256", [ours, "failed (exit code 1)", ""]);
    rates(&table, "train: cnn3d bf16, batch 512", ["no room", "8001.0 samples/s", ""]);
    row(
        &table,
        "dtrain: cnn3d bf16, batch 512",
        "failed (exit code 1)",
        "no room: batch 512: no 7 bytes left",
    );
    let spread = "30.5 [29.0-31.0] samples/s";
    rates(&table, "in turn: gpt2 bf16", [spread, "20.0 [19.5-20.5] samples/s", "10.0 [9.0-11.0] tokens/s"]);
    row(&table, "in turn: gpt2 bf16", "ok", "3.05 [2.64-3.44] x compiled");
    rates(&table, "in turn: mlp bf16", [spread, "20.0 [19.5-20.5] samples/s", "lost"]);
    row(&table, "in turn: mlp bf16", "ok", "1.53 [1.41-1.59] x eager, SM 1700-1980 MHz");
    row(&table, "in turn: cnn bf16", "failed (exit code 3)", "no batch of gpt2");
    row(&table, "exact against ncclAllReduce, ranks 2", "ok", "worst 1.031 at 4 MiB");
    row(&table, "loss curve: gpt2 bf16", "ok", "60 steps from 99.500; at most 0.25 % apart (step 60)");
    row(&table, "loss curve: gpt2 f32", "failed (they differ)", "last ten 45.0000 and 45.1000: 0.22 %");
    let whole = bench.text("out/table.md");
    for name in
        ["gpt2 bf16, batch 32", "mlp bf16, batch 16384", "gpt bf16, batch 256", "cnn bf16, batch 4096"]
    {
        let told =
            format!("\nA step of {name}: 3 launches of 2 kernels take 2.500 ms of a step of 3.000 ms\n");
        assert!(whole.contains(&told), "{name}: {whole}");
    }
    assert_eq!(
        whole.matches("\n| product | 80.0 % | 2.000 | 1 |\n| fill | 20.0 % | 0.500 | 2 |\n").count(),
        4
    );
    row(&table, "PyTorch: mlp compiled", "failed (exit code 1)", "lost mlp tf32 compiled no / triton");
    row(&table, "PyTorch: gpt eager", "failed (exit code 1)", "RuntimeError: CUDA error");
    row(&table, "dtrain: cnn tf32", "failed (exit code 1)", "error: there is no tf32");

    assert_eq!(bench.left_over(), Vec::<String>::new(), "the part that hung was not ended whole");
    let log = bench.text("out/conformance-3-fails.log");
    assert!(log.contains("something\n"), "{log}");
}

/// Sides that write down when they were asked for a window; the compiled one ends in its second.
const TURNS_OF_DTRAIN: &str = r#"[ "$*" = "--work gpt --seconds 0.5 --turns 3 --batch 8 --precision bf16 --library 1" ] || exit 9
echo "some word"; echo "ready samples/s batch 8"
for rate in 30.0 33.0 27.0; do read -r; echo dtrain >>"$ASKED"; echo "window $rate"; done"#;
const TURNS_OF_PYTORCH: &str = r#"mode=${*: -2:1}
echo "PyTorch 9.9"; echo "ready samples/s batch 8"
while read -r; do
    echo "$mode" >>"$ASKED"
    [ "$mode$((++n))" = compiled2 ] && { echo "lost gpt bf16 compiled no room: batch 8: CUDA out of memory"; exit 1; }
    echo "window 20.0"
done"#;

#[test]
fn sides_are_asked_in_turn_and_one_that_is_lost_costs_only_itself() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let bench = Bench::new();
    bench.stub("pack/train/step", TURNS_OF_DTRAIN);
    bench.stub("bin/python", TURNS_OF_PYTORCH);
    // It takes its time, as the driver does: what is measured waits for its first word.
    bench.stub(
        "bin/nvidia-smi",
        "sleep 0.3; while :; do echo '1980, 2619, 600.10, 55'; echo '1755, 2619, [N/A], 61'; sleep 0.02; done",
    );
    let turns = |step: &str| {
        let mut command = Command::new("python3");
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/gpu_turns.py"))
            .arg("--step")
            .arg(bench.at(step));
        command
            .args("--work gpt --batch 8 --rounds 3 --seconds 0.5 --peers=--device=cpu".split(' '))
            .arg("--ours=--library 1");
        command.arg("--python").arg(bench.at("bin/python")).env("ASKED", bench.at("asked"));
        command.env("PATH", bench.search_path()).output().unwrap()
    };
    let run = turns("pack/train/step");
    let (words, log) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.status.code(), Some(0), "{words}\n{log}");
    let clocks = "SM 1980-1980 MHz, memory 2619-2619 MHz, 600-600 W, 55-55 C";
    let want = format!(
        "turn dtrain 30.0 [27.0-33.0] samples/s batch 8\nturn eager 20.0 [20.0-20.0] samples/s batch 8\n\
         turn compiled 20.0 samples/s batch 8\nlost compiled no room: batch 8: CUDA out of memory\n\
         ratio eager 1.500 [1.350-1.650]\nratio compiled 1.500\nclocks {clocks}\n\
         1.50 [1.35-1.65] x eager, 1.50 x compiled, \
         compiled was lost: no room: batch 8: CUDA out of memory, {clocks}\n"
    );
    assert_eq!(words, want, "{log}");
    let round = ["dtrain", "eager", "compiled"];
    let asked = bench.text("asked");
    assert_eq!(asked.lines().collect::<Vec<_>>(), [&round[..], &round, &round[..2]].concat());
    // Without its own side there is nothing to compare.
    let run = turns("pack/nothing");
    assert_eq!(run.status.code(), Some(1));
    let words = String::from_utf8(run.stdout).unwrap();
    assert!(words.starts_with("lost dtrain ") && words.contains("pack/nothing: No such file"), "{words}");
}

#[test]
fn digests_that_differ_are_a_failure() {
    if !has_turn(19) {
        return;
    }
    let bench = Bench::new();
    let dtrain = r#"[ "$1" = train ] && echo "{\"event\":\"summary\",\"digest\":\"abc${8#ranks=}\"}""#;
    bench.stub("pack/dtrain", dtrain);
    let table = bench.run(&["--limit", "300", "--part-limit", "5"]);
    row(&table, "digest: host, ranks 4", "ok", "abc4");
    row(&table, "digests agree", "failed (4 digests)", "");
    row(&table, "digest: nccl", "skipped", "not yet");
    row(&table, "conformance", "skipped", "there is nothing in");
    rates(&table, "train: gpt2 bf16", ["not yet", "39 tokens/s", "8 tokens/s without graphs"]);
    row(&table, "loss curve: gpt2 bf16", "skipped", "not yet");
    row(&table, "exact against ncclAllReduce", "skipped", "not yet");
}

#[test]
fn when_the_time_is_over_the_rest_is_skipped_and_the_table_is_whole() {
    if !has_turn(18) {
        return;
    }
    let bench = Bench::new();
    for stub in ["bin/python", "pack/dtrain", "pack/kernels", "pack/conformance/all"] {
        bench.stub(stub, HANGS);
    }
    let table = bench.run(&["--limit", "16"]);
    assert!(table["dtrain doctor"][0].starts_with("timed out after "), "{table:#?}");
    row(&table, "conformance: all", "skipped", "no time was left");
    row(&table, "digest: host, ranks 1", "skipped", "no time was left");
    row(&table, "PyTorch", "skipped", "no time was left");
    row(&table, "clocks after", "skipped", "no time was left");
    assert!(table.contains_key("train: gpt2 bf16"));
    assert_eq!(bench.left_over(), Vec::<String>::new());
}

#[test]
fn a_run_that_is_interrupted_still_tells_what_it_saw() {
    let bench = Bench::new();
    let pipe = bench.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    bench.stub(
        "pack/conformance/all",
        &format!("echo 12 of 61 operations; echo here >{}; exec sleep 1000", pipe.display()),
    );
    let script = bench.script(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Until the part runs there is nothing to read.
    assert_eq!(fs::read_to_string(&pipe).unwrap(), "here\n");
    assert!(Command::new("kill").arg(script.id().to_string()).status().unwrap().success());
    let table = bench.table(&script.wait_with_output().unwrap());
    row(&table, "dtrain doctor", "ok", "training on GPUs works here");
    row(&table, "conformance-all", "interrupted", "12 of 61 operations");
    assert!(!table.contains_key("train: mlp f32"), "{table:#?}");
}

#[test]
fn tools_that_watch_memory_are_given_the_operations_alone() {
    if !has_turn(3) {
        return;
    }
    let bench = Bench::new();
    bench.stub("pack/conformance/operations", "echo wrong");
    bench.stub("pack/train/step", STEP);
    let tool =
        r#"tool=$2; shift 6; echo "$tool of $(basename "$1") ${*:2}"; [ $tool != racecheck ] || exit 9"#;
    bench.stub("bin/compute-sanitizer", tool);
    let asked = ["--works", "", "--sanitize", "memcheck racecheck"];
    let table = bench.run(&asked);
    let arguments = "of operations --skip real_sizes --skip models --test-threads 1";
    row(&table, "memcheck: operations", "ok", &format!("memcheck {arguments}"));
    row(&table, "racecheck: operations", "failed (exit code 9)", &format!("racecheck {arguments}"));
    assert!(!table.keys().any(|name| name.starts_with("train: ")), "no workload was asked for");
    fs::remove_file(bench.at("bin/compute-sanitizer")).expect("the stub");
    row(&bench.run(&asked), "racecheck", "skipped", "there is no compute-sanitizer");
}

/// Nsight Compute's words: of the program, its own, and a table, in which numbers may have commas.
const NCU: &str = r#"echo "$*" >>"$PIDS"
echo "rate gpt2 bf16 dtrain 1.0 tokens/s batch 8"; echo '==PROF== Disconnected'
echo '"ID","Kernel Name","Device","gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"'
echo '"","","","%","ns","%"'
echo '"0","product","0","40.0","3,000","80.0"'
echo '"1","product","0","20.0","1,000","40.0"'
echo '"2","fill","0","90.5","500","10.25"'"#;

#[test]
fn what_limits_the_largest_kernels_is_looked_at_when_it_is_asked_for() {
    let bench = Bench::new();
    bench.stub("pack/train/step", STEP);
    bench.stub("bin/ncu", NCU);
    let table = bench.run(&["--ncu", "--works", "gpt2"]);
    row(&table, "ncu", "ok", "");
    let asked = bench.text("pids");
    assert!(
        asked.contains(" --kernel-name regex:^(product|fill)$ --launch-skip 6 --launch-count 3 "),
        "{asked}"
    );
    assert!(asked.contains("/pack/train/step --work gpt2 --precision bf16 --batch 8 "), "{asked}");
    let whole = bench.text("out/table.md");
    assert!(whole.contains("\n| product | 70.0 | 35.0 | 2 |\n"), "{whole}");
    assert!(whole.contains("\n| fill | 10.2 | 90.5 | 1 |\n"), "{whole}");
}

#[test]
fn a_workload_that_is_measured_where_it_is_named_has_one_batch_and_its_kernels_are_listed() {
    for (work, batch) in [("vit", 256), ("llama", 32)] {
        let bench = Bench::new();
        bench.stub("pack/train/step", STEP);
        bench.stub("bin/python", PYTHON);
        let table = bench.run(&["--works", work]);
        let theirs = "2000.0 samples/s";
        let name = format!("train: {work} bf16");
        rates(&table, &name, ["4000.5 samples/s", theirs, theirs]);
        let rows: Vec<&String> = table.keys().filter(|name| name.starts_with("train: ")).collect();
        assert_eq!(rows, [&name], "in no other precision and with no other batch");
        row(&table, &format!("in turn: {work} bf16"), "failed (exit code 3)", "no batch of gpt2");
        let whole = bench.text("out/table.md");
        assert!(whole.contains(&format!("\nA step of {work} bf16, batch {batch}: 3 launches")), "{whole}");
    }
}

#[test]
fn without_a_gpu_nothing_is_run_that_needs_one() {
    let bench = Bench::new();
    bench.stub("bin/nvidia-smi", "echo 'it cannot communicate with the driver'; exit 9");
    for stub in ["bin/python", "pack/kernels", "pack/conformance/all", "pack/train/step", "pack/nccl/modes"] {
        bench.stub(stub, "echo ran >>\"$PIDS\"");
    }
    let table = bench.run(&[]);
    row(&table, "GPUs", "failed (exit code 9)", "it cannot communicate with the driver");
    row(&table, "dtrain doctor", "ok", "training on GPUs works here");
    for part in [
        "kernels by NVRTC",
        "PyTorch",
        "conformance: all",
        "digest: host",
        "loss curve: gpt2 bf16",
        "exact against ncclAllReduce",
    ] {
        row(&table, part, "skipped", "no GPU");
    }
    rates(&table, "train: mlp f32", ["skipped", "skipped", "skipped"]);
    assert!(!bench.at("pids").exists(), "something ran");
}

#[test]
fn an_argument_that_is_not_there_is_refused() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/gpu.sh");
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["--form", "pack"][..], &["--from"]] {
        let output = Command::new(&script).args(arguments).env("OUT", folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{output:?}");
    }
}
