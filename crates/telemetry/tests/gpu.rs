//! Readings of GPUs against a made-up NVML: a real shared object with the real names and signatures.

#[path = "../../../tests/harness/fake_libraries.rs"]
#[allow(dead_code)]
mod fake_libraries;

use dtrain_telemetry::{
    GPU_INTERVAL, GpuReadings, GpuWatch, Gpus, Metrics, Pair, Route, StepMetrics, UnixTime,
};
use dtrain_types::{Bytes, Step};
use fake_libraries::{FAKE_NVML, Workshop};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn every_gpu_is_read_with_all_that_it_tells() {
    let Some(workshop) = Workshop::open() else { return };
    let gpus = Gpus::open(&workshop.build("libnvidia-ml.so.1", FAKE_NVML)).unwrap();
    assert_eq!(gpus.count(), 2);
    let gpu = gpus.gpu(1).unwrap();
    assert_eq!(
        (gpu.index, gpu.name.as_deref(), gpu.memory),
        (1, Some("Made-up GPU"), Some(Bytes(81_920 * MIB)))
    );
    assert!(gpu.uuid.unwrap().starts_with("GPU-10000001-"));
    assert_eq!(gpu.capability, Some((9, 0)));
    assert_eq!(gpu.processes, Some(Vec::new()));
    let now = GpuReadings {
        memory_used: Some(Bytes(512 * MIB)),
        utilisation: Some(41),
        temperature: Some(51),
        power: Some(123.456),
    };
    assert_eq!((gpu.now, gpus.read(1).unwrap()), (now, now));
    let pair = Pair { first: 0, second: 1, peers: Some(true), route: Some(Route::Nvlink) };
    assert_eq!(gpus.pairs().unwrap(), [pair]);
    let error = gpus.gpu(2).unwrap_err();
    assert_eq!(error.what, "GPU 2");
}

#[test]
fn a_function_that_an_older_driver_lacks_is_a_reading_that_is_not_there() {
    let Some(workshop) = Workshop::open() else { return };
    let source = "int nvmlInit_v2(void) { return 0; } int nvmlShutdown(void) { return 0; }\n\
                  int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }\n\
                  int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = d; return i > 1 ? 2 : 0; }\n\
                  int nvmlDeviceGetTemperature(void *d, int s, unsigned *t) { *t = 30; return 0; }\n\
                  int nvmlDeviceGetPowerUsage(void *d, unsigned *p) { return 3; }";
    let gpus = Gpus::open(&workshop.build("libnvidia-ml.so.1", source)).unwrap();
    let gpu = gpus.gpu(0).unwrap();
    assert_eq!((gpu.name, gpu.uuid, gpu.memory, gpu.processes), (None, None, None, None));
    assert_eq!(gpu.capability, None);
    assert_eq!(gpu.now, GpuReadings { temperature: Some(30), ..GpuReadings::default() });
    assert_eq!(gpus.pairs().unwrap(), [Pair { first: 0, second: 1, peers: None, route: None }]);
}

#[test]
fn a_library_that_does_not_start_says_why() {
    let Some(workshop) = Workshop::open() else { return };
    let path = workshop.build("libnvidia-ml.so.1", "int nvmlInit_v2(void) { return 9; }");
    let error = Gpus::open(&path).err().expect("it does not start").to_string();
    assert!(error.starts_with(&format!("cannot start {}: ", path.display())), "{error}");
    assert!(error.contains("driver"), "{error}");
    assert!(Gpus::open(Path::new("/nowhere/libnvidia-ml.so.1")).is_err());
}

#[test]
fn gpus_are_read_again_and_again_off_the_path_of_the_steps_until_nobody_watches() {
    let Some(workshop) = Workshop::open() else { return };
    let end = workshop.root().join("ended");
    let shutdown = "int nvmlShutdown(void) { return 0; }";
    let telling = format!("int nvmlShutdown(void) {{ fclose(fopen({end:?}, \"w\")); return 0; }}");
    assert!(FAKE_NVML.contains(shutdown));
    let source = FAKE_NVML.replace(shutdown, &telling);
    let gpus = Gpus::open(&workshop.build("libnvidia-ml.so.1", &source)).unwrap();
    // There is no GPU 7: it is left out, and the others are read.
    let watch = GpuWatch::start(gpus, vec![1, 7, 0], Duration::from_millis(1)).unwrap();
    let first = watch.after(0);
    assert_eq!(
        first.gpus.iter().map(|(gpu, now)| (*gpu, now.utilisation)).collect::<Vec<_>>(),
        [(1, Some(41)), (0, Some(40))]
    );
    assert!(watch.after(first.round + 1).round > first.round + 1);
    assert!(!end.exists());
    drop(watch);
    assert!(end.exists(), "the thread has ended, and NVML with it");
}

#[test]
fn readings_stand_beside_the_first_step_after_each_round_and_for_tensorboard() {
    let Some(workshop) = Workshop::open() else { return };
    let gpus = Gpus::open(&workshop.build("libnvidia-ml.so.1", FAKE_NVML)).unwrap();
    let watch = Arc::new(GpuWatch::start(gpus, vec![0, 1], GPU_INTERVAL * 1000).unwrap());
    let run = tempfile::tempdir().unwrap();
    assert_eq!(watch.after(0).round, 1);
    let metrics = Metrics::open(run.path(), UnixTime(1.0)).unwrap().watching(watch);
    let mut metrics = metrics.for_tensorboard(run.path(), UnixTime(1.0), None).unwrap();
    for step in [1, 2, 3] {
        metrics.step(UnixTime(1.0), &StepMetrics { step: Step(step), ..StepMetrics::default() }).unwrap();
    }
    drop(metrics);
    let text = std::fs::read_to_string(run.path().join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["step", "gpu", "gpu", "step", "step"], "one round, written once");
    let wanted = serde_json::json!({"time": 1.0, "kind": "gpu", "gpu": 1, "step": 1, "memory_used": 512 * MIB,
        "utilisation": 41, "temperature": 51, "power": 123.456});
    assert_eq!(lines[2], wanted);
    let board = std::fs::read_dir(run.path().join("tb")).unwrap().next().unwrap().unwrap().path();
    let board = std::fs::read(board).unwrap();
    for tag in ["gpu0/utilisation", "gpu1/memory_used", "gpu1/temperature", "gpu0/power"] {
        assert!(board.windows(tag.len()).any(|window| window == tag.as_bytes()), "no {tag}");
    }
}
