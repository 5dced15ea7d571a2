//! Runs the real binary and judges it from outside: by exit code, by its `--json` lines, by pids and by files.

#![allow(dead_code, reason = "each test file uses its own part of the harness")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a finished run of the binary left behind.
pub struct Finished {
    pub code: Option<i32>,
    pub lines: Vec<Value>,
    pub stderr: String,
}

impl Finished {
    pub fn summary(&self) -> &Value {
        let last = self.lines.last().unwrap_or_else(|| panic!("no line of --json\n{}", self.stderr));
        assert_eq!(last["event"], "summary", "the last line is the summary\n{}", self.stderr);
        last
    }

    pub fn digest(&self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.summary()["digest"].as_str().expect("a summary has a digest").to_owned()
    }

    pub fn steps(&self) -> Vec<u64> {
        self.events("step").map(|event| event["step"].as_u64().expect("a step has a number")).collect()
    }

    pub fn events<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.lines.iter().filter(move |line| line["event"] == kind)
    }
}

/// `dtrain` in `folder`, with arguments separated by white space; a `~` stands for a space inside one.
pub fn dtrain(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    let arguments = arguments.split_whitespace().map(|argument| argument.replace('~', " "));
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn finish(mut command: Command) -> Finished {
    let output = command.output().expect("the binary starts");
    let stdout = String::from_utf8(output.stdout).expect("standard output is text");
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    Finished {
        code: output.status.code(),
        lines,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Trains with `--json` and runs to the end.
pub fn train(folder: &Path, arguments: &str) -> Finished {
    finish(dtrain(folder, &format!("train --json {arguments}")))
}

/// A run that is still going, read line by line.
pub struct Running {
    pub child: Child,
    pub lines: Vec<Value>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub fn start(folder: &Path, arguments: &str) -> Self {
        let mut command = dtrain(folder, &format!("train --json {arguments}"));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines: Vec::new(), stdout }
    }

    /// Reads until a line satisfies `wanted`; `None` when the output ends first.
    pub fn wait_for(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).expect("standard output is text") == 0 {
                return None;
            }
            // A killed run may leave half a line.
            let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
            self.lines.push(value.clone());
            if wanted(&value) {
                return Some(value);
            }
        }
    }

    /// Pids of the ranks started so far.
    pub fn rank_pids(&self) -> Vec<u32> {
        let started = self.lines.iter().filter(|line| line["event"] == "rank_started");
        started.map(|line| u32::try_from(line["pid"].as_u64().expect("a pid")).expect("a pid")).collect()
    }

    /// Reads what is left and waits for the end.
    pub fn finish(mut self) -> Finished {
        while self.wait_for(|_| false).is_some() {}
        let mut stderr = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("standard error is text");
        let code = self.child.wait().expect("the child ends").code();
        Finished { code, lines: self.lines, stderr }
    }
}

/// Sends a signal by its name, as a person would.
pub fn signal(name: &str, pid: u32) {
    let status =
        Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().expect("kill exists");
    assert!(status.success(), "kill -{name} {pid}");
}

/// Whether a process exists and is no zombie.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("").starts_with('Z'))
}

/// The folder of the newest complete checkpoint of a run.
pub fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.join("manifest.json").exists() && !path.is_symlink())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('g')))
        .collect();
    found.sort();
    found
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
