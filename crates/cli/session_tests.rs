//! A whole run in this process, beside which GPUs are read.

use super::*;
use crate::config::{Config, Machine};
use crate::fake_libraries::{FAKE_NVML, Workshop};
use dtrain_telemetry::{GPU_INTERVAL, Gpus};
use serde_json::Value;

/// Trains three steps on the CPU in a new folder; what the run wrote.
fn trained(gpus: Option<Arc<GpuWatch>>) -> (tempfile::TempDir, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["devices=cpu", "isolation=thread", "ranks=2", "steps=3", "schedule.warmup=none"];
    let config = Config::parse(None, &keys, Machine { cores: 2, gpus: |_, _| 0 }).unwrap();
    let plan = Plan::open(&config, None).unwrap();
    let replica = plan.replica().unwrap();
    let run = RunFolder::create_named(folder.path().join("run")).unwrap();
    run.write_config(&config.to_yaml()).unwrap();
    let (replica, backend, resume) = (Box::new(replica), ChosenBackend::Host, None);
    let session = Session {
        plan,
        replica,
        backend,
        agreement: None,
        frozen: None,
        run,
        resume,
        lock: None,
        predecessor: Predecessor::None,
        lead: None,
        cuda: None,
        by_libraries: Default::default(),
        gpus,
        watchers: Watchers::default(),
        json: false,
    };
    super::run(session, Voice::Quiet).unwrap();
    let text = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (folder, lines)
}

fn of_gpus(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["kind"] == "gpu").collect()
}

#[test]
fn the_readings_of_gpus_stand_in_the_metrics_of_the_run_and_for_tensorboard() {
    let Some(workshop) = Workshop::open() else { return };
    let gpus = Gpus::open(&workshop.build("libnvidia-ml.so.1", FAKE_NVML)).unwrap();
    let watch = Arc::new(GpuWatch::start(gpus, vec![0, 1], GPU_INTERVAL * 1000).unwrap());
    assert_eq!(watch.after(0).round, 1);
    let (folder, lines) = trained(Some(watch));
    let found = of_gpus(&lines);
    assert_eq!(found.len(), 2, "two GPUs, one round: {lines:?}");
    for (index, line) in found.into_iter().enumerate() {
        assert_eq!((&line["gpu"], &line["step"]), (&Value::from(index), &Value::from(1)));
        assert_eq!(line["utilisation"], Value::from(40 + index));
        assert_eq!(line["temperature"], Value::from(50 + index));
        assert!(line["memory_used"].is_u64() && line["power"].is_f64(), "{line}");
    }
    let board = std::fs::read_dir(folder.path().join("run/tb")).unwrap().next().unwrap().unwrap().path();
    let board = std::fs::read(board).unwrap();
    for tag in ["gpu0/utilisation", "gpu1/memory_used", "gpu0/temperature", "gpu1/power"] {
        assert!(board.windows(tag.len()).any(|window| window == tag.as_bytes()), "no {tag}");
    }
}

#[test]
fn a_run_without_gpus_writes_none() {
    let (_folder, lines) = trained(None);
    assert!(of_gpus(&lines).is_empty() && lines.iter().any(|line| line["kind"] == "step"), "{lines:?}");
}
