//! Whether the GPUs of this host, and NCCL between them, compute what they should: found out by a short test, once for each kind of
//! GPU, driver and libraries, and kept in the user's cache.
//!
//! The test is run in a child (`conformance.rs`), so that a driver that crashes or hangs ends the child alone. Only what
//! a test has judged is kept: a child that could not judge (no room, no answer) is asked again next time. It does not know what
//! follows from a verdict.

use super::brought::child;
use super::judged::{Judged, TestVerdict};
use super::open::Tools;
use crate::arguments::GpuProbe;
use crate::config::CudaList;
use dtrain_cuda::driver::Context;
use dtrain_nccl::NcclLibrary;
use dtrain_runtime::host_name;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A test that takes longer gives no verdict, and is asked again: compiling all kernels takes a minute on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// What was tested: another one is another verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// Of what: `gpu`, or `nccl`.
    pub test: String,
    /// The model of GPU.
    pub gpu: String,
    /// What its kernels are compiled for.
    pub architecture: String,
    /// The driver: the CUDA that it serves, and the file.
    pub driver: String,
    /// The compiler of kernels.
    pub nvrtc: String,
    /// NCCL, where it was tested.
    pub nccl: Option<String>,
    /// dtrain's kernels.
    pub kernels: u32,
}

/// Whether a test may be run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// If there is no verdict, a test is run.
    Tests,
    /// Only what was judged before counts.
    Remembers,
}

/// A file of the cache.
#[derive(Serialize, Deserialize)]
struct Kept {
    subject: Subject,
    verdict: TestVerdict,
}

fn folder() -> PathBuf {
    cache_folder().join("verdicts")
}

/// The user's cache.
pub(super) fn cache_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("dtrain")
}

impl Subject {
    fn file(&self, folder: &Path) -> PathBuf {
        // Two subjects of one name would take turns: each file says whose it is.
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        folder.join(format!("{}-{:016x}.json", self.test, hasher.finish()))
    }

    /// What is kept of it; nothing if that is damaged.
    fn remembered(&self, folder: &Path) -> Option<TestVerdict> {
        let text = std::fs::read_to_string(self.file(folder)).ok()?;
        let kept: Kept = serde_json::from_str(&text).ok()?;
        (kept.subject == *self).then_some(kept.verdict)
    }

    fn keep(&self, folder: &Path, verdict: &TestVerdict) -> Result<PathBuf, String> {
        let file = self.file(folder);
        let draft = file.with_extension(format!("{}.draft", std::process::id()));
        let kept = Kept { subject: self.clone(), verdict: verdict.clone() };
        let text = serde_json::to_string_pretty(&kept).expect("a verdict is plain text");
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&draft, text))
            .and_then(|()| std::fs::rename(&draft, &file));
        if written.is_err() {
            let _may_not_be_there = std::fs::remove_file(&draft);
        }
        written.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(file)
    }

    /// The verdict that is kept, or the one that a test comes to now.
    fn judged(&self, folder: &Path, asking: Asking, test: impl FnOnce() -> TestVerdict) -> Judged {
        if let Some(verdict) = self.remembered(folder) {
            return Judged { verdict, kept: Ok(self.file(folder)) };
        }
        let verdict = match asking {
            Asking::Tests => test(),
            Asking::Remembers => TestVerdict::Unknown("it was not tested yet".to_owned()),
        };
        let kept = match &verdict {
            TestVerdict::Unknown(why) => Err(why.clone()),
            TestVerdict::Passed | TestVerdict::Failed(_) => self.keep(folder, &verdict),
        };
        Judged { verdict, kept }
    }
}

/// What the GPUs of a list are, each kind once, with the first of its kind.
fn kinds(list: &CudaList) -> Result<Vec<(u32, Subject)>, String> {
    let mut kinds = BTreeMap::new();
    for (number, subject) in list.numbers().iter().zip(subjects(list.numbers(), None)?) {
        kinds.entry((subject.gpu.clone(), subject.architecture.clone())).or_insert((*number, subject));
    }
    Ok(kinds.into_values().collect())
}

/// What each of these GPUs is, and what it is driven with.
fn subjects(numbers: &[u32], nccl: Option<&NcclLibrary>) -> Result<Vec<Subject>, String> {
    let tools = Tools::find()?;
    let real = std::fs::canonicalize(&tools.driver_path).unwrap_or_else(|_| tools.driver_path.clone());
    let file = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let subject = |number: &u32| {
        let about = Context::look(&tools.driver, *number as usize);
        let about = about.map_err(|error| format!("cuda:{number}: {error}"))?;
        let (major, minor) = tools.nvrtc.version();
        Ok(Subject {
            test: if nccl.is_some() { "nccl" } else { "gpu" }.to_owned(),
            architecture: about.architecture(),
            gpu: about.name,
            driver: format!("{} {file}", tools.driver.version()),
            nvrtc: format!("{major}.{minor}"),
            nccl: nccl.map(|library| library.version().to_string()),
            kernels: dtrain_cuda::kernels::revision(),
        })
    };
    numbers.iter().map(subject).collect()
}

/// The verdict on every kind of GPU of a list: the first that is not passed, with the GPU that it is about.
///
/// *Blocks*: where a kind was not tested before, and may be now, seconds; the first time, while kernels are compiled, a minute.
pub fn of_gpus(list: &CudaList, asking: Asking) -> Judged {
    let kinds = match kinds(list) {
        Ok(kinds) => kinds,
        Err(why) => return unknown(why),
    };
    let mut passed = unknown("there is no GPU".to_owned());
    for (number, subject) in kinds {
        let probe = GpuProbe { gpus: vec![number], nccl: None, judge: None, pins: None };
        let judged = subject.judged(&folder(), asking, || ask(&probe));
        let about = |words: String| format!("cuda:{number} ({}): {words}", subject.gpu);
        match judged.verdict {
            TestVerdict::Passed => passed = judged,
            TestVerdict::Failed(words) => {
                return Judged { verdict: TestVerdict::Failed(about(words)), ..judged };
            }
            TestVerdict::Unknown(words) => {
                return Judged { verdict: TestVerdict::Unknown(about(words)), ..judged };
            }
        }
    }
    passed
}

/// The verdict on a library of NCCL between the first two GPUs of a list. *Blocks* as `of_gpus`.
pub fn of_nccl(library: &NcclLibrary, list: &CudaList, asking: Asking) -> Judged {
    let gpus: Vec<u32> = list.numbers().iter().copied().take(2).collect();
    let subjects = match subjects(&gpus, Some(library)) {
        Ok(subjects) => subjects,
        Err(why) => return unknown(why),
    };
    let Some(first) = subjects.first() else { return unknown("there is no GPU".to_owned()) };
    // What is tested is the way between these two, on this host.
    let names: Vec<&str> = subjects.iter().map(|subject| subject.gpu.as_str()).collect();
    let subject = Subject { gpu: format!("{} of {}", names.join(" and "), host_name()), ..first.clone() };
    let probe = GpuProbe { gpus, nccl: Some(library.path().to_owned()), judge: None, pins: None };
    subject.judged(&folder(), asking, || ask(&probe))
}

fn unknown(why: String) -> Judged {
    Judged { verdict: TestVerdict::Unknown(why.clone()), kept: Err(why) }
}

/// As `of_gpus` or, with a library, [`of_nccl`], in a child: for a process that opens no foreign library itself.
pub fn of_child(list: &CudaList, nccl: Option<&Path>, asking: Asking) -> Judged {
    let judge = match asking {
        Asking::Tests => "tests",
        Asking::Remembers => "remembers",
    };
    let nccl = nccl.map(Path::to_owned);
    let judge = Some(judge.to_owned());
    let probe = GpuProbe { gpus: list.numbers().to_vec(), nccl, judge, pins: None };
    // The child waits for one of its own.
    answer_of(&probe, PATIENCE * 2).unwrap_or_else(unknown)
}

/// Has a child run a test.
fn ask(probe: &GpuProbe) -> TestVerdict {
    answer_of(probe, PATIENCE).unwrap_or_else(TestVerdict::Unknown)
}

/// What a child says in its last line. *Errors*: it said nothing, for this reason.
fn answer_of<T: DeserializeOwned>(probe: &GpuProbe, patience: Duration) -> Result<T, String> {
    answer_to(probe, None, patience)
}

/// The same of a child that reads a question, all of it, before it does anything.
pub(super) fn answer_to<T: DeserializeOwned>(
    probe: &GpuProbe,
    question: Option<String>,
    patience: Duration,
) -> Result<T, String> {
    let started = child("gpu-probe").and_then(|mut child| {
        child.args(probe.words());
        child.stdin(if question.is_some() { Stdio::piped() } else { Stdio::null() });
        child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    });
    let mut child = started.map_err(|error| format!("a child that tests them cannot be started: {error}"))?;
    if let (Some(mut input), Some(question)) = (child.stdin.take(), question) {
        // One that has died says so by its end.
        let _ = input.write_all(question.as_bytes());
    }
    let mut output = child.stdout.take().expect("it was piped");
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.read_to_string(&mut text).map(|_| text);
        // Nobody may be waiting any more.
        let _ = sender.send(read);
    });
    let text = receiver.recv_timeout(patience);
    if text.is_err() {
        // It hangs; one that has ended meanwhile need not be killed.
        let _ = child.kill();
    }
    let status = child.wait();
    let _joined = reader.join();
    let text = text.map_err(|_| format!("the test gave no answer in {} s", patience.as_secs()))?;
    let text = text.unwrap_or_default();
    let said = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    said.ok_or_else(|| {
        let end = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("the test ended with {end}")
    })
}

/// Words for people, without their hint.
pub(super) fn one_line(words: impl ToString) -> String {
    let words = words.to_string();
    words.split("\nhint:").next().unwrap_or(&words).replace('\n', " ")
}

impl GpuProbe {
    /// As a command line.
    fn words(&self) -> Vec<String> {
        let numbers: Vec<String> = self.gpus.iter().map(u32::to_string).collect();
        let mut words = vec!["--gpus".to_owned(), numbers.join(",")];
        if let Some(path) = &self.nccl {
            words.extend(["--nccl".to_owned(), path.to_string_lossy().into_owned()]);
        }
        if let Some(judge) = &self.judge {
            words.extend(["--judge".to_owned(), judge.clone()]);
        }
        if let Some(what) = &self.pins {
            words.extend(["--pins".to_owned(), what.clone()]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn subject(driver: &str) -> Subject {
        Subject {
            test: "gpu".into(),
            gpu: "Made-up".into(),
            architecture: "sm_90a".into(),
            driver: driver.into(),
            nvrtc: "13.0".into(),
            nccl: None,
            kernels: 7,
        }
    }

    #[test]
    fn a_verdict_is_asked_for_once_and_again_where_anything_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("below");
        let asked = std::cell::Cell::new(0);
        let test = |verdict: TestVerdict| {
            asked.set(asked.get() + 1);
            verdict
        };
        let old = subject("13.0 libcuda.so.580");
        assert_eq!(
            old.judged(&at, Asking::Remembers, || panic!("not now")).verdict,
            TestVerdict::Unknown("it was not tested yet".into())
        );
        for _ in 0..2 {
            let judged = old.judged(&at, Asking::Tests, || test(TestVerdict::Passed));
            assert_eq!((judged.verdict, judged.kept), (TestVerdict::Passed, Ok(old.file(&at))));
        }
        assert_eq!(asked.get(), 1);
        let new = subject("13.0 libcuda.so.590");
        for _ in 0..2 {
            let judged = new.judged(&at, Asking::Tests, || test(TestVerdict::Failed("off".into())));
            assert_eq!(judged.verdict, TestVerdict::Failed("off".into()));
        }
        assert_eq!((asked.get(), old.remembered(&at)), (2, Some(TestVerdict::Passed)));
        // What was not judged is not kept.
        for kernels in [8, 8] {
            let other = Subject { kernels, ..old.clone() };
            other.judged(&at, Asking::Tests, || test(TestVerdict::Unknown("it hangs".into())));
        }
        assert_eq!(asked.get(), 4);
        // A file that is damaged, or that says something of another subject, is none.
        std::fs::write(old.file(&at), "{\"subject\"").unwrap();
        assert_eq!(old.remembered(&at), None);
        std::fs::copy(new.file(&at), old.file(&at)).unwrap();
        assert_eq!(old.remembered(&at), None);
    }

    #[test]
    fn a_cache_that_cannot_be_written_costs_a_test_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let judged = subject("1").judged(&folder.path().join("file"), Asking::Tests, || TestVerdict::Passed);
        assert_eq!(judged.verdict, TestVerdict::Passed);
        assert!(judged.kept.unwrap_err().contains("file: "));
    }

    #[test]
    fn a_child_is_told_what_it_is_to_test() {
        #[derive(Parser)]
        struct Words {
            #[command(flatten)]
            probe: GpuProbe,
        }
        let probe = GpuProbe {
            gpus: vec![3, 0],
            nccl: Some("/a b/libnccl.so.2".into()),
            judge: Some("tests".into()),
            pins: Some("convolutions".into()),
        };
        let words = [vec!["gpu-probe".to_owned()], probe.words()].concat();
        let read = Words::parse_from(words).probe;
        assert_eq!((read.gpus, read.nccl, read.judge), (probe.gpus, probe.nccl, probe.judge));
        assert_eq!(read.pins, probe.pins);
    }
}
