//! Reads the events and metrics of a run folder, at first all of them and then what was added.
//!
//! A long run has millions of steps: of a row of them only the last is looked at.

use super::{Leader, Sight};
use crate::run_folder::RunFolder;
use dtrain_checkpoint::held_by;
use dtrain_runtime::host_name;
use dtrain_telemetry::{Metric, Progress, RunEvent, Stamped, UnixTime};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// So much of the end of the metrics is read at first. *Units*: bytes.
const TAIL: u64 = 256 * 1024;

/// Follows a run folder.
pub struct Follower {
    run: RunFolder,
    events: Lines,
    metrics: Lines,
    progress: Progress,
}

impl Follower {
    /// Begins with what is there. *Errors*: of the system; a folder without events has not begun.
    pub fn new(run: RunFolder) -> io::Result<Self> {
        let metrics = run.path.join("metrics.jsonl");
        let begin = std::fs::metadata(&metrics).map_or(0, |data| data.len().saturating_sub(TAIL));
        let mut metrics = Lines { path: metrics, offset: begin };
        if begin > 0 {
            // It begins in the middle of a line.
            metrics.next(|_| {}, 1)?;
        }
        let events = Lines { path: run.path.join("events.jsonl"), offset: 0 };
        Ok(Self { run, events, metrics, progress: Progress::default() })
    }

    /// How the run is now. *Errors*: of the system.
    pub fn look(&mut self) -> io::Result<Sight> {
        // Whoever has let go of the folder has written everything before.
        let holder = held_by(&self.run.path);
        let Self { events, metrics, progress, .. } = self;
        let mut step = Vec::new();
        events.next(
            |line| {
                if is_step(line) {
                    line.clone_into(&mut step);
                    return;
                }
                take_event(progress, &std::mem::take(&mut step));
                take_event(progress, line);
            },
            usize::MAX,
        )?;
        take_event(progress, &step);
        metrics.next(
            |line| {
                if let Ok(Stamped { time, event }) = serde_json::from_slice::<Stamped<Metric>>(line) {
                    progress.metric(time, &event);
                }
            },
            usize::MAX,
        )?;
        let leader = match holder {
            Some(holder) => Leader::Here(holder.pid),
            None if progress.summary.is_none() && is_elsewhere(progress) => Leader::Elsewhere,
            None => Leader::Nobody,
        };
        let place = self.run.path.display().to_string();
        let mut progress = self.progress.clone();
        if leader == Leader::Nobody {
            // Ranks do not outlive who leads them for long.
            progress.alive = 0;
        }
        Ok(Sight { progress, leader, place, now: UnixTime::now() })
    }
}

fn is_elsewhere(progress: &Progress) -> bool {
    !progress.begun.host.is_empty() && progress.begun.host != host_name()
}

fn take_event(progress: &mut Progress, line: &[u8]) {
    // A line of another version may be none of ours.
    if let Ok(Stamped { time, event }) = serde_json::from_slice::<Stamped<RunEvent>>(line) {
        progress.event(time, &event);
    }
}

/// Whether a line is an event of a step; that stands near its beginning.
fn is_step(line: &[u8]) -> bool {
    const STEP: &[u8] = b"\"event\":\"step\"";
    line[..line.len().min(64)].windows(STEP.len()).any(|part| part == STEP)
}

/// The whole lines of a file that grows.
struct Lines {
    path: PathBuf,
    offset: u64,
}

impl Lines {
    /// Gives the next lines, so many at most. *Errors*: of the system.
    fn next(&mut self, mut take: impl FnMut(&[u8]), most: usize) -> io::Result<()> {
        let Some(mut file) = open(&self.path)? else { return Ok(()) };
        file.seek(SeekFrom::Start(self.offset))?;
        let (mut reader, mut line) = (BufReader::with_capacity(64 * 1024, file), Vec::new());
        for _ in 0..most {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            // The end, or a line that is still being written.
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            self.offset += read as u64;
            take(&line);
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_added_is_read_once_and_a_torn_line_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut file = File::create(&path).unwrap();
        let step = |step: u64| {
            format!(
                "{{\"time\":1.0,\"event\":\"step\",\"step\":{step},\"epoch\":0,\"generation\":1,\"loss\":0.5,\"samples\":8}}\n"
            )
        };
        let generation =
            "{\"time\":1.0,\"event\":\"generation\",\"generation\":1,\"ranks\":2,\"step\":0,\"ranges\":[]}\n";
        write!(file, "{generation}{}{}{}", step(1), step(2), &step(3)[..20]).unwrap();
        let mut follower = Follower::new(RunFolder::at(folder.path().to_owned())).unwrap();
        let sight = follower.look().unwrap();
        assert_eq!((sight.progress.at().0, sight.progress.alive, sight.progress.wanted), (2, 0, 2));
        assert_eq!(sight.leader, Leader::Nobody);
        write!(file, "{}", &step(3)[20..]).unwrap();
        // A generation that begins behind what was made.
        let back =
            generation.replace("\"generation\":1,", "\"generation\":2,").replace("\"step\":0", "\"step\":1");
        write!(file, "{back}{}", step(2)).unwrap();
        let progress = follower.look().unwrap().progress;
        assert_eq!((progress.at().0, progress.generation, progress.lost_steps), (2, 2, 2));
    }
}
