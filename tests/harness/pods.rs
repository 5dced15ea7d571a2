//! Pods as a manifest has them: what their containers are given comes from the YAML, and they run in the root folder that the image has, as
//! its user, each with a network, processes and a host name of its own. What a cluster's agent does, `ip netns`, `unshare` and `nsenter` do.

use super::network::{Network, Weather};
use super::{Running, Signal, signal};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where pods run.
pub struct Nodes {
    folder: tempfile::TempDir,
    network: Network,
}

/// A container that runs.
pub struct Pod {
    pub running: Running,
    node: usize,
}

/// The user of the image.
const USER: u32 = 65_532;
/// Its `ENTRYPOINT`.
const PROGRAM: &str = "/usr/local/bin/dtrain";

/// And this is a binary of the dev profile.
const LARGEST_IMAGE: u64 = 100_000_000;

/// Bytes of all files in a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() { size(&entry.path()) } else { entry.metadata().expect("a file").len() }
        })
        .sum()
}

/// The documents of a manifest.
pub fn documents(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).expect("a manifest");
    serde_saphyr::from_multiple(&text).expect("YAML")
}

/// The document of a kind.
pub fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// The template of the pods of a job.
pub fn template(job: &Value) -> &Value {
    let part = &job["spec"]["template"];
    if part["spec"]["containers"].is_array() { part } else { template(part) }
}

impl Nodes {
    /// As many as asked for, with the image on them. *Errors*: what is not allowed.
    pub fn start(count: usize) -> Result<Self, String> {
        // Steps take their time by waiting for each other, and leave the cores to others.
        let weather = Weather { delay: Duration::from_millis(3), one_in: u64::MAX, seed: 1 };
        let network = Network::build(count, weather)?;
        let nodes = Self { folder: super::folder(), network };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/image.sh");
        let made = Command::new(script)
            .arg(env!("CARGO_BIN_EXE_dtrain"))
            .arg(nodes.image())
            .output()
            .expect("it starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let bytes = size(&nodes.image());
        assert!(bytes < LARGEST_IMAGE, "the image has {bytes} bytes");
        // As every container has it.
        let made = Command::new("mknod")
            .args(["-m", "666"])
            .arg(nodes.path("/dev/null"))
            .args(["c", "1", "3"])
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            return Err("there can be no /dev/null".to_owned());
        }
        Ok(nodes)
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// A path of the image, as it is seen from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.image().join(inside.trim_start_matches('/'))
    }

    /// Says under which names which nodes are reached from now on: an empty one has none.
    pub fn name(&self, names: &[impl AsRef<str>]) {
        let line = |(node, name): (usize, &str)| format!("{} {name}\n", Network::address(node));
        let named = names.iter().map(AsRef::as_ref).enumerate().filter(|(_, name)| !name.is_empty());
        fs::write(
            self.path("/etc/hosts"),
            format!("127.0.0.1 localhost\n{}", named.map(line).collect::<String>()),
        )
        .expect("a file");
    }

    /// Puts in place what a template mounts: all pods see the same.
    pub fn mount(&self, documents: &[Value], template: &Value, token: &str) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let spec = &template["spec"];
        for mount in list(&spec["containers"][0]["volumeMounts"]) {
            let place = self.path(mount["mountPath"].as_str().expect("a path"));
            fs::create_dir_all(&place).expect("a folder");
            let volumes = list(&spec["volumes"]);
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == mount["name"])
                .expect("a volume for each mount");
            if volume["secret"].is_object() {
                fs::write(place.join("token"), token).expect("a file");
                chown(place.join("token"), None, Some(USER)).expect("root may");
                fs::set_permissions(place.join("token"), fs::Permissions::from_mode(0o440))
                    .expect("root may");
            } else if volume["configMap"].is_object() {
                for (name, text) in of_kind(documents, "ConfigMap")["data"].as_object().expect("files") {
                    fs::write(place.join(name), text.as_str().expect("a text")).expect("a file");
                }
            } else {
                assert!(
                    volume["emptyDir"].is_object() || volume["persistentVolumeClaim"].is_object(),
                    "{volume}"
                );
                chown(&place, Some(USER), Some(USER)).expect("root may");
            }
        }
    }

    /// Starts the container of a pod on a node: its environment is what the template and `environment` say, and nothing else.
    pub fn run(&self, node: usize, host_name: &str, template: &Value, environment: &[(&str, String)]) -> Pod {
        let container = &template["spec"]["containers"][0];
        let mut command = Command::new("unshare");
        // What people read goes the way of the errors, where the harness waits for words.
        command.args([
            "--uts",
            "sh",
            "-c",
            &format!("hostname {host_name} && exec \"$@\" >&2"),
            "pod",
            "env",
            "-i",
        ]);
        for entry in container["env"].as_array().into_iter().flatten() {
            let text = |key: &str| entry[key].as_str().expect("a text");
            command.arg(format!("{}={}", text("name"), text("value")));
        }
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
        command.args([
            "/usr/bin/unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc=/proc",
            "--wd=/work",
        ]);
        command.arg(format!("--root={}", self.image().display()));
        command.args([format!("--setgid={USER}"), format!("--setuid={USER}")]).args(["--", PROGRAM]);
        command.args(
            container["args"]
                .as_array()
                .expect("arguments")
                .iter()
                .map(|word| word.as_str().expect("a text")),
        );
        Pod { running: Running::of(self.network.command(node, &command)), node }
    }

    /// The first process of a pod, as this machine numbers it.
    pub fn init(&self, pod: &Pod) -> Option<u32> {
        let is_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let parent_is_init = fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| {
                status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
            });
            parent_is_init && line.starts_with(PROGRAM.as_bytes())
        };
        self.network.pids(pod.node).into_iter().find(is_it)
    }

    /// Kills all of a pod, as a node that is lost does.
    pub fn kill(&self, pod: Pod) {
        signal(Signal::KILL, self.init(&pod).expect("it runs"));
        drop(pod);
    }

    /// Runs a command in a pod, as probes and hooks are run; its exit code and what it says on standard error.
    pub fn exec(&self, pod: &Pod, command: &Value) -> (Option<i32>, String) {
        let words = command["exec"]["command"].as_array().expect("a command").iter();
        let Some(init) = self.init(pod) else { return (None, "the pod has ended".into()) };
        let mut inside = Command::new("nsenter");
        inside.args(["--target", &init.to_string(), "--pid", "--net", "--uts", "--mount", "--root", "--wd"]);
        inside.args([format!("--setuid={USER}"), format!("--setgid={USER}")]).arg("--");
        let done =
            inside.args(words.map(|word| word.as_str().expect("a text"))).output().expect("nsenter is there");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    }
}
