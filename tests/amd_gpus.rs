//! A machine with AMD's GPUs, made up: the files of their driver are laid over `/sys/class`, where nobody but the program sees them.

use crate::harness::{MLP, dtrain, folder};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs the words behind it where `/sys/class` is the folder that is named first.
const OVER: &str = "mount --bind \"$0\" /sys/class && exec \"$@\"";

/// A folder to run in, and the files of two GPUs.
struct Host {
    folder: TempDir,
    class: TempDir,
}

impl Host {
    /// `None`, and a word, where a test may not mount anything.
    fn new() -> Option<Self> {
        let host = Self { folder: folder(), class: tempfile::tempdir().unwrap() };
        if !host.within(&Command::new("true")).output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this process may mount nothing over /sys/class");
            return None;
        }
        host.lay("kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n");
        for (node, minor, id) in [(1, 128, 0xa1), (2, 129, 0xb2)] {
            let about = format!(
                "simd_count 1216\nvendor_id 4098\ngfx_target_version 90402\ndrm_render_minor {minor}\nunique_id {id}\n"
            );
            host.lay(&format!("kfd/kfd/topology/nodes/{node}/properties"), &about);
            let bank = format!("heap_type 1\nsize_in_bytes {}\n", 192_u64 << 30);
            host.lay(&format!("kfd/kfd/topology/nodes/{node}/mem_banks/0/properties"), &bank);
        }
        host.lay("drm/renderD128/device/product_name", "AMD Instinct MI300X OAM\n");
        Some(host)
    }

    fn lay(&self, path: &str, text: &str) {
        let file = self.class.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// The same command on this machine, whose libraries are none.
    fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("unshare");
        within.args(["--mount", "--propagation", "private", "sh", "-c", OVER]).arg(self.class.path());
        within.arg(command.get_program()).args(command.get_args()).current_dir(self.folder.path());
        within.env("NO_COLOR", "1").env("DTRAIN_LIBRARY_PATH", "/nowhere").env("DTRAIN_LIBRARY_ONLY", "1");
        for name in ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] {
            within.env_remove(name);
        }
        within
    }

    fn run(&self, arguments: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = self.within(&dtrain(self.folder.path(), arguments));
        command.envs(variables.iter().copied()).output().unwrap()
    }
}

fn words(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// `dtrain run` starts processes in a process of its own, which follows its parent: what is mounted stays visible.
#[test]
fn a_process_is_started_for_each_gpu_that_programs_see() {
    let Some(host) = Host::new() else { return };
    let rocr = "ROCR_VISIBLE_DEVICES";
    let hip = "HIP_VISIBLE_DEVICES";
    for (variables, count) in [
        (&[][..], 2),
        (&[(rocr, "GPU-00000000000000b2")], 1),
        (&[(rocr, "1,0"), (hip, "1")], 1),
        (&[("CUDA_VISIBLE_DEVICES", "1")], 1),
    ] {
        for asked in ["auto", "gpu"] {
            let output = host.run(&format!("run --nproc {asked} -- printenv WORLD_SIZE"), variables);
            let (stdout, stderr) = words(&output);
            assert_eq!(stdout.lines().count(), count, "{variables:?}: {stdout}{stderr}");
            assert!(stdout.lines().all(|line| line.ends_with(&count.to_string())), "{stdout}");
        }
    }
    let output = host.run("run --nproc gpu -- true", &[(hip, "")]);
    let (_, stderr) = words(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("look at HIP_VISIBLE_DEVICES"), "{stderr}");
}

#[test]
fn doctor_lists_them_with_what_they_are_for() {
    let Some(host) = Host::new() else { return };
    let (stdout, _) = words(&host.run("doctor --json", &[("ROCR_VISIBLE_DEVICES", "1")]));
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let checks = |name: &str| lines.iter().filter(|line| line["check"] == name).collect::<Vec<_>>();
    let [all] = checks("amd_gpus")[..] else { panic!("{stdout}") };
    assert_eq!((&all["details"]["count"], &all["details"]["visible"]), (&2.into(), &serde_json::json!([1])));
    assert!(
        all["found"].as_str().unwrap().starts_with("2 AMD GPUs, ROCR_VISIBLE_DEVICES=1 leaves 1"),
        "{all}"
    );
    let found: Vec<&str> = checks("amd_gpu").iter().map(|line| line["found"].as_str().unwrap()).collect();
    assert_eq!(
        found,
        [
            "0: AMD Instinct MI300X OAM, gfx942, 192.0 GiB, hidden from programs",
            "1: of unknown model, gfx942, 192.0 GiB, cuda:0 to programs",
        ]
    );
    let (stdout, _) = words(&host.run("doctor", &[]));
    assert!(stdout.contains("AMD GPUs"), "{stdout}");
}

#[test]
fn models_of_dtrains_own_are_not_for_them() {
    let Some(host) = Host::new() else { return };
    for devices in ["all", "cuda:0"] {
        let output = host.run(&format!("train {MLP} devices={devices}"), &[]);
        let (_, stderr) = words(&output);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("2 AMD GPUs are here, and dtrain's own kernels are NVIDIA's"), "{stderr}");
        assert!(stderr.contains("hint: a PyTorch program trains on them"), "{stderr}");
        assert!(!host.folder.path().join("runs").exists(), "something was written");
    }
    let output = host.run(&format!("train {MLP} steps=1"), &[]);
    let (_, stderr) = words(&output);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("auto: 2 AMD GPUs are here, and dtrain's own kernels are NVIDIA's"), "{stderr}");
}
