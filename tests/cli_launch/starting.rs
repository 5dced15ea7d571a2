//! What the children of `dtrain run` find: variables, the words of their command line, hosts; and what is refused before any starts.

use super::job::Job;
use crate::harness::dtrain;
use std::collections::BTreeSet;
use std::fs;

#[test]
fn each_rank_finds_the_variables_that_torchrun_sets() {
    let mut job = Job::start("--nproc 3 --max-restarts 2 --run-id night", "env > env.$RANK");
    let words = job.ends_with(0);
    assert_eq!(words.matches("OMP_NUM_THREADS=1").count(), 1, "said once: {words}");
    let mut ports = BTreeSet::new();
    for rank in 0..3 {
        let found = job.variables(&format!("env.{rank}"));
        let rank = rank.to_string();
        for (name, value) in [
            ("RANK", rank.as_str()),
            ("LOCAL_RANK", &rank),
            ("ROLE_RANK", &rank),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("ROLE_WORLD_SIZE", "3"),
            ("GROUP_RANK", "0"),
            ("GROUP_WORLD_SIZE", "1"),
            ("ROLE_NAME", "default"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "2"),
            ("TORCHELASTIC_RUN_ID", "night"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("OMP_NUM_THREADS", "1"),
            ("PYTHONUNBUFFERED", "1"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name} of rank {rank}");
        }
        ports.insert(found["MASTER_PORT"].parse::<u16>().unwrap());
    }
    assert_eq!(ports.len(), 1, "one port for all: {ports:?}");
}

#[test]
fn what_the_user_has_set_stays_and_a_single_process_keeps_its_threads() {
    let mut job = Job::with(
        "--nproc 2 --role trainer --master-port 4242 --master-addr ::1",
        &["sh", "-c", "env > env.$RANK"],
        &[("OMP_NUM_THREADS", "5"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"), ("MINE", "kept")],
    );
    let words = job.ends_with(0);
    assert!(!words.contains("OMP_NUM_THREADS"), "{words}");
    let found = job.variables("env.1");
    for (name, value) in [
        ("OMP_NUM_THREADS", "5"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("MINE", "kept"),
        ("ROLE_NAME", "trainer"),
        ("MASTER_PORT", "4242"),
        ("MASTER_ADDR", "::1"),
    ] {
        assert_eq!(found[name], value, "{name}");
    }
    let mut job = Job::start("", "env > env.$RANK");
    job.ends_with(0);
    assert!(!job.variables("env.0").contains_key("OMP_NUM_THREADS"));
    assert_eq!(job.variables("env.0")["WORLD_SIZE"], "1", "one process is the default");
}

#[test]
fn one_process_a_core_is_started_where_there_is_no_gpu() {
    // One core may be used, however many there are.
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "core=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
         taskset -c $core {} run -q --nproc $1 sh -c 'echo $WORLD_SIZE'",
        env!("CARGO_BIN_EXE_dtrain")
    );
    for kind in ["cpu", "auto"] {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, "sh", kind]).current_dir(&folder).env("CUDA_VISIBLE_DEVICES", "");
        let output = command.output().unwrap();
        assert_eq!(output.stdout, b"1\n", "{kind}: {output:?}");
    }
}

#[test]
fn spellings_and_variables_of_torchrun_are_understood() {
    let spellings = "--nproc_per_node=2 --nnodes=1:1 --standalone --max_restarts 3 --rdzv_backend c10d --rdzv_id job \
                     --rdzv_endpoint localhost:0 --monitor_interval 5 --tee 3";
    let script = "echo $WORLD_SIZE $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID > said.$RANK";
    let mut job = Job::start(spellings, script);
    job.ends_with(0);
    assert_eq!(job.read("said.1"), "2 3 job\n");
    let variables = [("PET_NPROC_PER_NODE", "2"), ("PET_MAX_RESTARTS", "4"), ("PET_NNODES", "1")];
    let mut job = Job::with("-q", &["sh", "-c", script], &variables);
    assert_eq!(job.ends_with(0), "", "quiet is quiet");
    assert!(job.read("said.1").starts_with("2 4 "));
}

#[test]
fn a_first_word_that_ends_in_py_is_run_with_python_and_flags_behind_it_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.py"), "").unwrap();
    let python = folder.path().join("python");
    fs::write(&python, "#!/bin/sh\necho \"$@\" > words.$RANK\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&python, mode).unwrap();
    let variables = [("PYTHON_EXEC", python.to_str().unwrap())];
    let words = ["train.py", "--nproc", "9", "-m", "--", "x"];
    let mut job = Job::within(folder, "--nproc 2", &words, &variables);
    job.ends_with(0);
    assert_eq!(job.read("words.1"), "-u train.py --nproc 9 -m -- x\n");
    let mut job = Job::with("-m", &["package.train", "--lr", "1"], &[("PYTHON_EXEC", "echo")]);
    job.ends_with(0);
    assert_eq!(job.read("stdout"), "-u -m package.train --lr 1\n", "one process needs no prefix");
}

#[test]
fn hosts_that_are_told_of_each_other_make_one_world() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE \
                  $MASTER_ADDR $MASTER_PORT > said.$RANK";
    let mut first =
        Job::start("--nproc 2 --nodes 2 --node-rank 0 --master-addr h0 --master-port 4000", script);
    first.ends_with(0);
    assert_eq!(first.read("said.1"), "1 1 4 2 0 2 h0 4000\n");
    let slurm = [("SLURM_NNODES", "2"), ("SLURM_NODEID", "1"), ("MASTER_ADDR", "h0")];
    let mut second = Job::with("--nproc 2", &["sh", "-c", script], &slurm);
    let words = second.ends_with(0);
    assert!(words.contains("ranks 2 to 3 of 4"), "{words}");
    assert_eq!(second.read("said.3"), "3 1 4 2 1 2 h0 29500\n");
    let mut endpoint = Job::start("--nnodes 2 --node_rank 1 --rdzv_endpoint h1:77", script);
    endpoint.ends_with(0);
    assert_eq!(endpoint.read("said.1"), "1 0 2 1 1 2 h1 77\n");
}

#[test]
fn bad_requests_are_refused_with_a_hint_and_nothing_is_started() {
    let refuses = |flags: &str, words: &[&str], wanted: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("plain"), "touch started").unwrap();
        fs::write(folder.path().join("script"), "#!/no/such/shell\ntouch started").unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path().join("script"), mode).unwrap();
        let mut job = Job::within(folder, flags, words, &[]);
        let text = job.ends_with(2);
        for wanted in wanted {
            assert!(text.contains(wanted), "{flags} {words:?} does not say {wanted:?}: {text}");
        }
        for noise in ["RUST_BACKTRACE", "crates/", "src/"] {
            assert!(!text.contains(noise), "{text}");
        }
        assert!(!job.path("started").exists() && !job.path("logs").exists(), "{flags} {words:?}");
        text
    };
    let touch = ["--", "touch", "started"];
    for (flags, wanted) in [
        ("--nproc 0", &["0", "whole number from 1 to 4096"][..]),
        ("--nproc 4097", &["4097", "from 1 to 4096"]),
        ("--nproc -1", &["-1"]),
        ("--nproc two", &["two", "auto, gpu, cpu"]),
        ("--max-restarts -1", &["-1"]),
    ] {
        refuses(flags, &touch, wanted);
    }
    for (flags, words, wanted) in [
        ("--nproc gpu", &touch[..], &["no visible GPU"][..]),
        ("--nodes 0", &touch, &["--nodes 0: expected a whole number"]),
        ("--nodes 1:4", &touch, &["hosts cannot come and go"]),
        ("--nodes 2 --node-rank 0", &touch, &["does not know the first host's address", "--master-addr"]),
        ("--nodes 2 --master-addr a", &touch, &["which of the 2 hosts is this", "--node-rank"]),
        ("--nodes 2 --master-addr a --node-rank 2", &touch, &["--node-rank 2 is out of range for 2 hosts"]),
        ("--node-rank 1", &touch, &["--node-rank 1 is out of range for 1 hosts"]),
        ("--nodes 2 --standalone", &touch, &["--standalone means one host"]),
        ("--nodes 2 --rdzv-backend c10d --node-rank 0", &touch, &["c10d is not supported", "--node-rank R"]),
        (
            "--nodes 2 --node-rank 0 --master-addr a --max-restarts 1",
            &touch,
            &["hosts need a token that they share", "dtrain token new"],
        ),
        ("--redirects 3", &touch, &["no file would have it", "--log-dir"]),
        ("--nproc 2 --local-ranks-filter 2", &touch, &["names rank 2, and there are 2"]),
        ("--log-dir file/logs", &touch, &["cannot make a folder for logs in file/logs", "--log-dir DIR"]),
        ("--log-dir /proc/nowhere", &touch, &["cannot make a folder for logs in /proc/nowhere"]),
        ("", &["no-such-program"], &["there is no program no-such-program", "no folder of PATH"]),
        ("", &["plain"], &["there is no program plain", "write ./plain"]),
        ("", &["./absent"], &["there is no program ./absent"]),
        ("", &["./plain"], &["./plain is not executable", "chmod +x ./plain"]),
        ("", &["./script"], &["cannot start ./script: No such file", "#!/bin/sh"]),
        ("--max-restarts 9", &["./script"], &["cannot start ./script"]),
        ("", &["/"], &["/ is a folder"]),
        ("", &["absent.py"], &["there is no file absent.py"]),
    ] {
        let text = refuses(flags, words, wanted);
        assert!(text.contains("hint: "), "{flags} {words:?} has no hint: {text}");
    }
    refuses("--nproc 2", &[], &["PROGRAM", "Usage: dtrain run"]);
    refuses("--nprocs 2", &touch, &["--nprocs", "--nproc"]);
    assert!(dtrain(&std::env::temp_dir(), "run --help").output().unwrap().status.success());
}

#[test]
fn more_processes_than_open_files_allow_are_refused_before_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("ulimit -n 100; exec {} run --nproc 50 touch started", env!("CARGO_BIN_EXE_dtrain"));
    let output =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(&folder).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("open files, 100 are allowed") && text.contains("ulimit -n"), "{text}");
    assert!(!folder.path().join("started").exists());
}
