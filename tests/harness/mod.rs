//! Runs the real binary and judges it from outside: by exit code, by its `--json` lines, by pids and by files.

pub mod disk;
pub mod fake_libraries;
pub mod files;
pub mod gpus;
pub mod hosts;
pub mod http;
pub mod nccl;
pub mod network;
pub mod pods;
pub mod slurm;
pub mod turn;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A run that says nothing and does not end for so long hangs: the test fails, with what it said.
const PATIENCE: Duration = Duration::from_secs(120);

/// An MLP on the digits whose steps take well under a millisecond: 8 micro-batches of 7, the last one short, and a short
/// last step of 29 an epoch.
pub const MLP: &str = "data.kind=digits global_batch=50 micro_batch=7 model.kind=mlp model.hidden=[24]";
/// A wider one, whose gradients are long enough to be sent between hosts in many pieces while they are computed.
pub const WIDE: &str = "data.kind=digits global_batch=50 micro_batch=7 model.kind=mlp model.hidden=[512,512] \
                        bucket_bytes=64KiB";
/// A CNN with batch norm and dropout, and augmented digits.
pub const CNN: &str = "data.kind=digits data.augment=shift global_batch=50 micro_batch=7 model.kind=cnn model.channels=[4,8] \
                       model.hidden=[16] model.batch_norm=true model.dropout=0.2";
/// Convolutions over sequences, on a table of [`write_table`].
pub const CNN1D: &str = "data.kind=csv data.path=table.csv data.shape=[2,16] global_batch=50 micro_batch=7 model.kind=cnn1d \
                         model.channels=[4,8] model.hidden=[16] model.dropout=0.2";
/// Convolutions over volumes, on the same table.
pub const CNN3D: &str = "data.kind=csv data.path=table.csv data.shape=[1,2,4,4] global_batch=50 micro_batch=7 model.kind=cnn3d \
                         model.channels=[4,8] model.pool=last model.hidden=[16] model.dropout=0.2";
/// A language model on `text.txt` of [`folder`].
pub const GPT: &str = "data.kind=text data.path=text.txt data.context=8 global_batch=22 micro_batch=3 model.kind=gpt \
                       model.layers=2 model.width=16 model.heads=2 model.dropout=0.1";
/// The same on the token ids of [`write_tokens`].
pub const TOKENS: &str = "data.kind=tokens data.path=ids data.vocabulary=300 data.context=8 global_batch=22 micro_batch=3 \
                          model.kind=gpt model.layers=2 model.width=16 model.heads=2 model.dropout=0.1";

/// The same with its table of tokens as its head.
pub const GPT2: &str = "data.kind=text data.path=text.txt data.context=8 global_batch=22 micro_batch=3 model.kind=gpt2 \
                        model.layers=2 model.width=16 model.heads=2 model.dropout=0.1";

/// One of Llama's family.
pub const LLAMA: &str = "data.kind=text data.path=text.txt data.context=8 global_batch=22 micro_batch=3 model.kind=llama \
                         model.layers=2 model.width=24 model.heads=4";

/// An empty folder to run in, with a text for the language model.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_text(&folder.path().join("text.txt"), 2_000);
    folder
}

/// What a finished run of the binary left behind.
pub struct Finished {
    pub code: Option<i32>,
    pub lines: Vec<Value>,
    pub stderr: String,
    /// When its end was seen.
    pub ended: Instant,
}

impl Finished {
    pub fn summary(&self) -> &Value {
        let last = self.lines.last().unwrap_or_else(|| panic!("no line of --json\n{}", self.stderr));
        assert_eq!(last["event"], "summary", "the last line is the summary\n{}", self.stderr);
        last
    }

    pub fn digest(&self) -> String {
        self.succeeded();
        self.summary()["digest"].as_str().expect("a summary has a digest").to_owned()
    }

    pub fn steps(&self) -> Vec<u64> {
        steps(&self.lines)
    }

    pub fn events<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.lines.iter().filter(move |line| line["event"] == kind)
    }

    #[track_caller]
    pub fn succeeded(&self) {
        self.ended_with(0);
    }

    #[track_caller]
    pub fn ended_with(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }

    #[track_caller]
    pub fn said(&self, words: &str) {
        assert!(self.stderr.contains(words), "not said: {words}\n{}", self.stderr);
    }
}

fn steps(lines: &[Value]) -> Vec<u64> {
    let steps = lines.iter().filter(|line| line["event"] == "step");
    steps.map(|event| event["step"].as_u64().expect("a step has a number")).collect()
}

/// `dtrain` in `folder`, with arguments separated by white space; a `~` stands for a space inside one.
pub fn dtrain(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    let arguments = arguments.split_whitespace().map(|argument| argument.replace('~', " "));
    // A process group of its own: a test may signal all of it.
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).process_group(0);
    command.env("NO_COLOR", "1").env_remove("RUST_LOG").env("RUST_BACKTRACE", "0");
    command
}

/// Runs it to its end.
pub fn finish(command: Command) -> Finished {
    Running::of(command).finish()
}

/// Runs any command of the binary to its end; its standard output as text.
pub fn output(folder: &Path, arguments: &str) -> (Finished, String) {
    let mut running = Running::of(dtrain(folder, arguments));
    let mut text = String::new();
    while let Some(line) = running.line() {
        text += &line;
    }
    (running.finish(), text)
}

/// What a command that succeeds writes to standard output.
#[track_caller]
pub fn said(folder: &Path, arguments: &str) -> String {
    let (finished, text) = output(folder, arguments);
    finished.succeeded();
    text
}

/// The one JSON object that a command writes.
#[track_caller]
pub fn json(folder: &Path, arguments: &str) -> Value {
    let text = said(folder, arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments}: {error}: {text}"))
}

/// A command that is refused in these words.
#[track_caller]
pub fn refused(folder: &Path, arguments: &str, words: &[&str]) -> String {
    let (finished, text) = output(folder, arguments);
    finished.ended_with(2);
    words.iter().for_each(|words| finished.said(words));
    text
}

/// The digest of one rank that nobody disturbs.
pub fn whole_digest(model: &str) -> String {
    let folder = folder();
    train(folder.path(), &format!("{model} ranks=1 name=whole")).digest()
}

/// Trains with `--json` and runs to the end.
pub fn train(folder: &Path, arguments: &str) -> Finished {
    finish(dtrain(folder, &format!("train --json {arguments}")))
}

/// A run that is still going, read line by line. It is killed when it is dropped.
pub struct Running {
    pub lines: Vec<Value>,
    child: Child,
    stdout: Receiver<String>,
    words: Arc<(Mutex<String>, Condvar)>,
    stderr: Option<JoinHandle<()>>,
}

impl Running {
    /// Begins to train with `--json`.
    pub fn start(folder: &Path, arguments: &str) -> Self {
        Self::of(dtrain(folder, &format!("train --json {arguments}")))
    }

    pub fn of(mut command: Command) -> Self {
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("the binary starts");
        let (lines, stdout) = channel();
        let mut reader = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                if lines.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let mut reader = BufReader::new(child.stderr.take().expect("piped"));
        let words = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let said = Arc::clone(&words);
        let stderr = std::thread::spawn(move || {
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                *said.0.lock().unwrap() += &String::from_utf8_lossy(&line);
                said.1.notify_all();
                line.clear();
            }
        });
        Self { lines: Vec::new(), child, stdout, words, stderr: Some(stderr) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of standard output; `None` at its end.
    fn line(&mut self) -> Option<String> {
        match self.stdout.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                panic!("nothing said for {PATIENCE:?}\n{}", self.words.0.lock().unwrap());
            }
        }
    }

    /// Reads until a line satisfies `wanted`; `None` when the output ends first.
    pub fn wait_for(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Option<Value> {
        while let Some(line) = self.line() {
            // A killed run may leave half a line.
            let Ok(value) = serde_json::from_str::<Value>(&line) else {
                assert!(!line.ends_with('\n'), "standard output is one JSON object a line, not: {line}");
                continue;
            };
            self.lines.push(value.clone());
            if wanted(&value) {
                return Some(value);
            }
        }
        None
    }

    /// Reads what was said already.
    pub fn catch_up(&mut self) {
        while let Ok(line) = self.stdout.try_recv() {
            if let Ok(value) = serde_json::from_str::<Value>(&line) {
                self.lines.push(value);
            }
        }
    }

    /// The newest events that are no steps, and what was said, for the message of a failed test.
    pub fn story(&self) -> String {
        let told = self.lines.iter().filter(|line| !matches!(line["event"].as_str(), Some("step" | "epoch")));
        let lines: Vec<String> = told.map(ToString::to_string).collect();
        let newest = lines[lines.len().saturating_sub(30)..].join("\n");
        format!("{newest}\n{}", self.words.0.lock().unwrap())
    }

    /// All of standard error so far.
    pub fn said_so_far(&self) -> String {
        self.words.0.lock().unwrap().clone()
    }

    /// Waits until standard error holds these words.
    #[track_caller]
    pub fn wait_for_words(&self, wanted: &str) {
        let text = self.words.0.lock().unwrap();
        let silent = |text: &mut String| !text.contains(wanted);
        let (text, waited) = self.words.1.wait_timeout_while(text, PATIENCE, silent).unwrap();
        assert!(!waited.timed_out(), "never said: {wanted}\n{text}");
    }

    /// Reads until this step is committed.
    #[track_caller]
    pub fn wait_for_step(&mut self, step: u64) {
        let come = self.wait_for(|line| line["event"] == "step" && line["step"].as_u64() >= Some(step));
        assert!(come.is_some(), "the run ended before step {step}");
    }

    /// Reads until a generation of `ranks` ranks makes a step: the newest one, if that has begun and nobody of it is lost.
    #[track_caller]
    pub fn wait_for_world(&mut self, ranks: usize) {
        let (mut newest, mut world) = (0, 0);
        let mut works = |line: &Value| {
            match line["event"].as_str() {
                Some("rank_started") => {
                    let generation = line["generation"].as_u64().expect("a number");
                    world = if newest == generation { world + 1 } else { 1 };
                    newest = generation;
                }
                Some("fault") => world = 0,
                _ => {}
            }
            line["event"] == "step" && world == ranks
        };
        // Whoever is lost on a bad network may be back in the generation that goes on without it.
        for line in &self.lines {
            works(line);
        }
        assert!(self.wait_for(works).is_some(), "the run ended\n{}", self.story());
    }

    /// Reads until a checkpoint is complete; its step.
    #[track_caller]
    pub fn wait_for_checkpoint(&mut self) -> u64 {
        let come = self.wait_for(|line| line["event"] == "checkpoint");
        come.expect("the run ended before its first checkpoint")["step"].as_u64().expect("a number")
    }

    /// Pids of the newest generation's ranks, by rank.
    pub fn rank_pids(&self) -> Vec<u32> {
        let started = self.lines.iter().filter(|line| line["event"] == "rank_started");
        let newest = started.clone().filter_map(|line| line["generation"].as_u64()).max();
        let of_newest = started.filter(|line| line["generation"].as_u64() == newest);
        let mut pids: Vec<(u64, u64)> =
            of_newest.filter_map(|line| Some((line["rank"].as_u64()?, line["pid"].as_u64()?))).collect();
        pids.sort();
        pids.into_iter().map(|(_, pid)| u32::try_from(pid).expect("a pid")).collect()
    }

    pub fn last_step(&self) -> u64 {
        steps(&self.lines).last().copied().expect("steps were seen")
    }

    /// Kills the supervisor, what holds its ranks and every rank of its host, as a power cut would.
    pub fn kill_everything(&self) {
        let (keepers, ranks) = (keepers_of(self.pid()), ranks_of(self.pid()));
        signal(Signal::KILL, self.pid());
        // Ranks may be gone already: they die with their parent.
        keepers.into_iter().chain(ranks).for_each(try_kill);
    }

    /// Reads what is left and waits for the end.
    pub fn finish(mut self) -> Finished {
        while self.wait_for(|_| false).is_some() {}
        let code = self.wait().code();
        let ended = Instant::now();
        self.stderr.take().expect("it is read once").join().expect("the reader does not panic");
        let stderr = std::mem::take(&mut *self.words.0.lock().unwrap());
        Finished { code, lines: std::mem::take(&mut self.lines), stderr, ended }
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the child can be waited for")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let keepers = keepers_of(self.pid());
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        keepers.into_iter().for_each(try_kill);
    }
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid is not 0")
}

fn try_signal(signal: Signal, pid: u32) -> Result<(), String> {
    kill_process(pid_of(pid), signal).map_err(|error| format!("{signal:?} to {pid}: {error}"))
}

/// Kills a process that may be gone already.
pub fn try_kill(pid: u32) {
    try_signal_to(Signal::KILL, pid);
}

/// Signals a process that may be gone already.
pub fn try_signal_to(signal: Signal, pid: u32) {
    drop(try_signal(signal, pid));
}

#[track_caller]
pub fn signal(signal: Signal, pid: u32) {
    try_signal(signal, pid).expect("the process is there");
}

/// Stops a process and waits until it stands still: on a busy machine its threads run on for a while after SIGSTOP was sent.
#[track_caller]
pub fn stop(pid: u32) {
    signal(Signal::STOP, pid);
    let begun = Instant::now();
    let state =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
    let stands =
        |stat: String| stat.rsplit(") ").next().is_none_or(|rest| !rest.starts_with(['R', 'S', 'D']));
    let all_stand = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
        tasks.flatten().map(state).all(stands)
    };
    while !all_stand() {
        assert!(begun.elapsed() < PATIENCE, "{pid} does not stand still");
        std::thread::yield_now();
    }
}

/// To every process of the group that `leader` leads, as the terminal does.
#[track_caller]
pub fn signal_group(signal: Signal, leader: u32) {
    kill_process_group(pid_of(leader), signal).expect("the group is there");
}

/// Whether a process exists and is no zombie.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("").starts_with('Z'))
}

/// The living children of a process, found as `ps` does.
pub fn children(parent: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = parent.to_string();
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(") ").next().unwrap_or("").split(' ');
        fields.next() != Some("Z") && fields.next() == Some(&parent)
    };
    pids.filter(is_child).collect()
}

/// The living ranks of a host, of which this is the supervisor or the node.
pub fn ranks_of(parent: u32) -> Vec<u32> {
    let near = children(parent);
    let behind: Vec<u32> = near.iter().flat_map(|child| children(*child)).collect();
    near.into_iter().chain(behind).filter(|pid| has_variable(*pid, "DTRAIN_RANK_HANDLES")).collect()
}

/// The processes that hold the ranks of a supervisor's host.
pub fn keepers_of(supervisor: u32) -> Vec<u32> {
    children(supervisor).into_iter().filter(|pid| has_variable(*pid, "DTRAIN_KEEPER")).collect()
}

fn has_variable(pid: u32, name: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let starts =
        |variable: &[u8]| variable.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
    environment.split(|byte| *byte == 0).any(starts)
}

/// Waits until none of them lives; how long it took.
#[track_caller]
pub fn wait_until_gone(pids: &[u32]) -> Duration {
    let begun = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| lives(**pid)) {
        assert!(begun.elapsed() < PATIENCE, "{pid} lives on");
        std::thread::yield_now();
    }
    begun.elapsed()
}

/// The steps that the run's own log tells of, in its order.
pub fn logged_steps(run: &Path) -> Vec<u64> {
    let log = std::fs::read_to_string(run.join("events.jsonl")).expect("a log");
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a whole line"));
    let steps = lines.filter(|line| line["event"] == "step");
    steps.map(|line| line["step"].as_u64().expect("a number")).collect()
}

/// The folders of the complete checkpoints of a run, the newest last.
pub fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.join("manifest.json").exists() && !path.is_symlink())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('g')))
        .collect();
    found.sort_by_key(|path| checkpoint_step(path));
    found
}

/// The step of a checkpoint, from its folder's name.
pub fn checkpoint_step(folder: &Path) -> u64 {
    let name = folder.file_name().expect("a folder has a name").to_string_lossy();
    let (_, step) = name.split_once("-s").expect("gG-sSSSSSS");
    step.parse().expect("a number")
}

/// The events of a kind in the log of a run, over all lives of the supervisor.
pub fn logged(run: &Path, kind: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(run.join("events.jsonl")).expect("a log");
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a whole line"));
    lines.filter(|line| line["event"] == kind).collect()
}

/// The log of a run has every step once, and ends with this digest; the books agree.
#[track_caller]
pub fn is_whole(folder: &Path, run: &str, digest: &str, last: u64) {
    let run_folder = folder.join("runs").join(run);
    let summaries = logged(&run_folder, "summary");
    assert_eq!(summaries.last().expect("a summary")["digest"], digest);
    let number = |line: &Value| line["step"].as_u64().expect("a number");
    let steps: Vec<u64> = logged(&run_folder, "step").iter().map(number).collect();
    assert_eq!(steps, (1..=last).collect::<Vec<u64>>(), "every step once");
    audit_is_clean(folder, run);
}

/// `dtrain audit` of a run is clean.
#[track_caller]
pub fn audit_is_clean(folder: &Path, run: &str) {
    let (audit, _) = output(folder, &format!("audit {run}"));
    audit.succeeded();
}

/// Rows of 32 numbers and one of three classes, whose numbers have a mean each.
pub fn write_table(path: &Path, rows: usize) {
    let mut state = 98765u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    let mut text = String::new();
    for row in 0..rows {
        let class = row * 7 % 3;
        for column in 0..32 {
            let mean = if column % 3 == class { 0.5 } else { 0.0 };
            text.push_str(&format!("{:.4},", number() + mean));
        }
        text.push_str(&format!("{class}\n"));
    }
    std::fs::write(path, text).expect("the table can be written");
}

/// A text of pseudo-words, the same each time, for the language model.
pub fn write_text(path: &Path, bytes: usize) {
    let mut text = String::new();
    let mut state = 12345u64;
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(
            ["the ", "cat ", "sat ", "on ", "a ", "mat. ", "dog ", "ran\n"][(state >> 61) as usize],
        );
    }
    text.truncate(bytes);
    std::fs::write(path, text).expect("the text can be written");
}

/// A folder of token ids below 300, the same each time, for the language model: so many to train on, a tenth to validate.
pub fn write_tokens(folder: &Path, count: usize) {
    std::fs::create_dir(folder).expect("the folder can be made");
    let ids =
        |count: usize| (0..count as u16).flat_map(|place| (place.wrapping_mul(place) % 300).to_le_bytes());
    for (name, count) in [("train.bin", count), ("val.bin", count / 10)] {
        std::fs::write(folder.join(name), ids(count).collect::<Vec<u8>>()).expect("ids can be written");
    }
}

/// A number that differs each time the tests run; print it where it decides what is done.
pub fn seed() -> u64 {
    let given = std::env::var("DTRAIN_TEST_SEED").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.expect("the clock is past 1970").subsec_nanos())
    })
}

/// A generator good enough to choose moments.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
