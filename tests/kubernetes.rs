//! The manifests of `deploy/kubernetes`: against the published schemas, and what they start, as pods on this machine.
//!
//! Command, environment, volumes, probes and hooks are read from the YAML. Needs root; where namespaces are not allowed the tests say so.

use crate::harness::pods::{Nodes, Pod, documents, of_kind, template};
use crate::harness::turn::has_turn;
use crate::harness::{folder, is_whole, said, train};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn manifest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes").join(name)
}

const MANIFESTS: [&str; 3] = ["indexed-job.yaml", "jobset.yaml", "trainjob.yaml"];

#[test]
fn the_manifests_fit_the_published_schemas_and_one_that_does_not_is_noticed() {
    if !has_turn(6) {
        return;
    }
    let python = std::env::var("DTRAIN_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import kubernetes_validate, jsonschema, yaml"]).output();
    if !has.is_ok_and(|done| done.status.success()) {
        return eprintln!(
            "skipped: {python} has no kubernetes-validate; DTRAIN_TEST_PYTHON names one that has"
        );
    }
    let check = |files: &[PathBuf]| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/check_manifests.py");
        let done = Command::new(&python).arg(script).args(files).output().expect("it starts");
        (
            done.status.success(),
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)),
        )
    };
    let (fits, told) = check(&MANIFESTS.map(manifest));
    assert!(fits && told.contains("12 documents fit"), "{told}");
    let folder = folder();
    let wrong = folder.path().join("wrong.yaml");
    for name in MANIFESTS {
        let text = std::fs::read_to_string(manifest(name)).expect("a manifest");
        std::fs::write(&wrong, text.replace("periodSeconds", "periodInSeconds")).expect("a file");
        let (fits, told) = check(std::slice::from_ref(&wrong));
        assert!(!fits && told.contains("periodInSeconds"), "{name}: {told}");
    }
}

/// The run of a manifest, with settings that are those of this test: its steps take long enough to disturb them.
struct Cluster {
    nodes: Nodes,
    documents: Vec<Value>,
}

impl Cluster {
    fn start(name: &str, steps: u64) -> Option<Self> {
        let nodes = match Nodes::start(4) {
            Ok(nodes) => nodes,
            Err(why) => {
                eprintln!("skipped: pods cannot be had here ({why})");
                return None;
            }
        };
        let mut documents = documents(&manifest(name));
        let map =
            documents.iter_mut().find(|document| document["kind"] == "ConfigMap").expect("there is one");
        let text = map["data"]["run.yaml"]
            .as_str()
            .expect("a text")
            .replace("epochs: 20", &format!("steps: {steps}"));
        // Who leads while a pod is away is told in `succession.rs`; here it is always the first, when it is back.
        map["data"]["run.yaml"] = format!(
            "{text}ranks: 1\nthreads: 1\nmax_restarts: 100\nstandby: off\ncheckpoint: {{every: none}}\n"
        )
        .into();
        Some(Self { nodes, documents })
    }

    fn template(&self, kind: &str) -> &Value {
        match kind {
            "Job" => template(of_kind(&self.documents, kind)),
            // Of a list of jobs the first.
            _ => {
                let spec = &of_kind(&self.documents, kind)["spec"];
                let jobs = if kind == "JobSet" {
                    &spec["replicatedJobs"]
                } else {
                    &spec["template"]["spec"]["replicatedJobs"]
                };
                template(&jobs[0]["template"])
            }
        }
    }

    fn mount(&self, template: &Value) {
        self.nodes.mount(&self.documents, template, &said(Path::new("/"), "token new"));
    }

    /// The digest of the same configuration on one rank.
    fn plain(&self) -> String {
        let folder = folder();
        let text = of_kind(&self.documents, "ConfigMap")["data"]["run.yaml"].as_str().expect("a text");
        std::fs::write(folder.path().join("run.yaml"), text).expect("a file");
        train(folder.path(), "-c run.yaml name=plain").digest()
    }
}

/// Index of a pod, as an Indexed Job gives it.
fn indexed(index: usize) -> Vec<(&'static str, String)> {
    vec![("JOB_COMPLETION_INDEX", index.to_string())]
}

#[test]
fn pods_of_an_indexed_job_die_come_back_under_their_names_and_are_drained_and_the_digest_is_that_of_one_rank()
{
    if !has_turn(9) {
        return;
    }
    let steps = 1_500;
    let Some(cluster) = Cluster::start("indexed-job.yaml", steps) else { return };
    let job = of_kind(&cluster.documents, "Job");
    let (name, template) = (job["metadata"]["name"].as_str().expect("a name"), cluster.template("Job"));
    let subdomain = of_kind(&cluster.documents, "Service")["metadata"]["name"].as_str().expect("a name");
    assert_eq!(template["spec"]["subdomain"], subdomain);
    let completions = job["spec"]["completions"].as_u64().expect("a number");
    assert_eq!(completions, 3);
    cluster.mount(template);
    let nodes = &cluster.nodes;
    let container = &template["spec"]["containers"][0];
    let (probe, hook) = (&container["readinessProbe"], &container["lifecycle"]["preStop"]);
    let dns = |index: usize| format!("{name}-{index}.{subdomain}");
    let start = |node: usize, index: usize| -> Pod {
        nodes.run(node, &format!("{name}-{index}"), template, &indexed(index))
    };
    let nobody = [""];

    // Pods come in any order, and before anybody knows their names. One that waits is not ready, and ends when it is told to.
    nodes.name(&nobody);
    let waits = start(1, 1);
    waits.running.wait_for_words("has no address yet");
    let (code, told) = nodes.exec(&waits, probe);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("has no rank"), "{told}");
    nodes.exec(&waits, hook);
    waits.running.finish().ended_with(130);
    let second = start(1, 1);
    second.running.wait_for_words("has no address yet");
    nodes.name(&[dns(0), dns(1), dns(2)]);
    let (first, third) = (start(0, 0), start(2, 2));
    for pod in [&second, &third] {
        pod.running.wait_for_words("works: 3 ranks");
    }
    let (code, told) = nodes.exec(&first, probe);
    assert_eq!(code, Some(0), "{told}");

    // A pod is killed, and another one comes under its name.
    nodes.kill(third);
    let third = start(2, 2);
    third.running.wait_for_words("works: 3 ranks");

    // The node of the first pod is lost: the one that comes under its name is on another node, with another address.
    nodes.kill(first);
    nodes.name(&["".to_owned(), dns(1), dns(2), dns(0)]);
    let first = start(3, 0);
    first.running.wait_for_words("went on without a supervisor");

    // A node is drained: the pod leaves after the step in hand, and comes back elsewhere.
    third.running.wait_for_words("answers again");
    let (_, told) = nodes.exec(&third, hook);
    let left = third.running.finish();
    left.ended_with(130);
    left.said("leaving after the step in hand");
    assert!(!told.contains("error"), "{told}");
    let third = start(2, 2);
    third.running.wait_for_words("works: 3 ranks");

    // The first one is drained: all stop with a checkpoint, and come back.
    nodes.exec(&first, hook);
    let stopped = [first, second, third].map(|pod| pod.running.finish());
    stopped.iter().for_each(|pod| pod.ended_with(130));
    stopped[0].said("is saved; go on with");
    let pods = [start(3, 0), start(1, 1), start(2, 2)];
    pods.into_iter().for_each(|pod| pod.running.finish().succeeded());
    is_whole(&nodes.path("/work"), "dtrain", &cluster.plain(), steps);
}

#[test]
fn pods_of_a_jobset_and_of_a_trainjob_find_each_other_by_what_these_give_them() {
    if !has_turn(19) {
        return;
    }
    let steps = 60;
    for (file, kind) in [("jobset.yaml", "JobSet"), ("trainjob.yaml", "TrainingRuntime")] {
        let Some(cluster) = Cluster::start(file, steps) else { return };
        let template = cluster.template(kind);
        let spec = &of_kind(&cluster.documents, kind)["spec"];
        let jobs = if kind == "JobSet" {
            &spec["replicatedJobs"]
        } else {
            &spec["template"]["spec"]["replicatedJobs"]
        };
        let whole = if kind == "JobSet" { "JobSet" } else { "TrainJob" };
        let set = of_kind(&cluster.documents, whole)["metadata"]["name"].as_str().expect("a name");
        let host = |index: usize| format!("{set}-{}-0-{index}", jobs[0]["name"].as_str().expect("a name"));
        cluster.mount(template);
        let nodes = &cluster.nodes;
        nodes.name(&[0, 1, 2].map(|index| format!("{}.{set}", host(index))));
        // What the policy `torch` of the trainer adds to the one container.
        let torch = |index: usize| {
            let mut given = indexed(index);
            if kind != "JobSet" {
                assert!(spec["mlPolicy"]["torch"].is_object());
                given.push(("PET_NNODES", spec["mlPolicy"]["numNodes"].to_string()));
                given.push(("PET_NPROC_PER_NODE", "4".to_owned()));
                given.push(("PET_NODE_RANK", index.to_string()));
                given.push(("PET_MASTER_ADDR", format!("{}.{set}", host(0))));
                given.push(("PET_MASTER_PORT", "29500".to_owned()));
            }
            given
        };
        let pods = [2, 1, 0].map(|index| nodes.run(index, &host(index), template, &torch(index)));
        pods.into_iter().for_each(|pod| pod.running.finish().succeeded());
        is_whole(&nodes.path("/work"), "dtrain", &cluster.plain(), steps);
    }
}
