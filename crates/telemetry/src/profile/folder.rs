//! The folder `profile` of a run: parts come in, one trace and a table go out.
//!
//! A part that is missing or torn is told and costs nothing else. It does not know when a run is over: who calls does.

use super::figures::{LostPart, ProfileReport};
use super::part::Part;
use super::{trace, waits};
use crate::TelemetryError;
use dtrain_types::{Incarnation, MemberId, Rank};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

const FOLDER: &str = "profile";
const TRACE: &str = "trace.json";
/// What the name of a part begins with.
const PART: &str = "part-";

/// A life of a member that made steps: its part is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The process slot.
    pub member: MemberId,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its rank when it began.
    pub rank: Rank,
    /// Its host.
    pub host: String,
    /// Whether it sees the folder of the run: else it cannot leave a part there.
    pub sees_run_folder: bool,
}

/// Makes the folder, and takes away what an earlier profile left in it.
///
/// *Errors*: of the system. *Blocks* on the disk.
pub fn prepare(run_dir: &Path) -> Result<(), TelemetryError> {
    let folder = run_dir.join(FOLDER);
    let make = || {
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(PART) || name.starts_with(TRACE) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    };
    make().map_err(|source| TelemetryError::Open { path: folder.clone(), source })
}

/// Writes the part of a life; an older one of the same life is replaced, in one moment.
///
/// *Errors*: the folder is not there, the disk is full. *Blocks* on the disk.
pub fn write_part(run_dir: &Path, part: &Part) -> Result<(), TelemetryError> {
    let path = part_file(run_dir, part.member, part.incarnation);
    replace(&path, |out| Ok(serde_json::to_writer(out, part)?))
}

/// Puts the parts of these lives together: the trace is written, the parts go away.
///
/// What is wrong with a part is told in the report. *Errors*: the trace cannot be written; the report says the rest.
/// *Blocks* on the disk.
pub fn collect(run_dir: &Path, lives: &[Life]) -> (ProfileReport, Result<(), TelemetryError>) {
    let (mut parts, mut lost) = (Vec::new(), Vec::new());
    for life in lives {
        match read(run_dir, life) {
            Ok(part) => parts.push(part),
            Err(why) => lost.push(LostPart {
                member: life.member,
                rank: life.rank,
                incarnation: life.incarnation,
                host: life.host.clone(),
                why,
            }),
        }
    }
    let waits_unknown = waits::split(&mut parts);
    let path = run_dir.join(FOLDER).join(TRACE);
    let written = replace(&path, |out| trace::write(&parts, out));
    let shown = written.is_ok().then(|| path.display().to_string());
    for life in lives {
        // A part that stays does no harm: the next profile of this run takes it away.
        let _ = fs::remove_file(part_file(run_dir, life.member, life.incarnation));
    }
    (ProfileReport { trace: shown, waits_unknown, lost, ..ProfileReport::of(&parts) }, written)
}

fn read(run_dir: &Path, life: &Life) -> Result<Part, String> {
    let path = part_file(run_dir, life.member, life.incarnation);
    match File::open(path) {
        Ok(file) => serde_json::from_reader(BufReader::new(file))
            .map_err(|error| format!("its part cannot be read: {error}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !life.sees_run_folder => {
            Err("its host does not see the folder of the run".into())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("it ended before it could write its part".into())
        }
        Err(error) => Err(format!("its part cannot be read: {error}")),
    }
}

fn part_file(run_dir: &Path, member: MemberId, incarnation: Incarnation) -> PathBuf {
    run_dir.join(FOLDER).join(format!("{PART}{member}-{incarnation}.json"))
}

/// Writes a file under another name and gives it its own when it is whole.
fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), TelemetryError> {
    let beside = path.with_extension("json.tmp");
    let file =
        File::create(&beside).map_err(|source| TelemetryError::Open { path: beside.clone(), source })?;
    let mut out = BufWriter::new(file);
    let done = write(&mut out).and_then(|()| out.flush()).and_then(|()| fs::rename(&beside, path));
    done.map_err(|source| {
        // What is half written is of no use; that it stays is no worse than the error that is told.
        let _ = fs::remove_file(&beside);
        TelemetryError::Write { to: path.display().to_string(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(member: u32, sees_run_folder: bool) -> Life {
        let (member, rank) = (MemberId(member), Rank(member));
        Life { member, incarnation: Incarnation(member.0 + 1), rank, host: "here".into(), sees_run_folder }
    }

    fn part(life: &Life) -> Part {
        Part {
            member: life.member,
            incarnation: life.incarnation,
            host: life.host.clone(),
            pid: 7,
            clock: "one".into(),
            to_unix: 0,
            steps: Vec::new(),
        }
    }

    #[test]
    fn every_part_that_is_not_there_is_told_with_its_reason() {
        let run = tempfile::tempdir().unwrap();
        prepare(run.path()).unwrap();
        let lives = [life(0, true), life(1, true), life(2, false), life(3, true)];
        write_part(run.path(), &part(&lives[0])).unwrap();
        fs::write(part_file(run.path(), lives[3].member, lives[3].incarnation), "{\"member\":").unwrap();
        let (report, written) = collect(run.path(), &lives);
        written.unwrap();
        let lost: Vec<(u32, &str)> =
            report.lost.iter().map(|lost| (lost.member.0, lost.why.as_str())).collect();
        assert_eq!(lost[0], (1, "it ended before it could write its part"));
        assert_eq!(lost[1], (2, "its host does not see the folder of the run"));
        assert!(lost[2].0 == 3 && lost[2].1.starts_with("its part cannot be read"), "{lost:?}");
        let left: Vec<_> =
            fs::read_dir(run.path().join(FOLDER)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [TRACE]);
    }

    #[test]
    fn a_second_profile_finds_nothing_of_the_first() {
        let run = tempfile::tempdir().unwrap();
        prepare(run.path()).unwrap();
        write_part(run.path(), &part(&life(0, true))).unwrap();
        collect(run.path(), &[]).1.unwrap();
        prepare(run.path()).unwrap();
        assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_went_away_is_an_error_and_the_table_is_there_all_the_same() {
        let run = tempfile::tempdir().unwrap();
        let life = life(0, true);
        assert!(write_part(run.path(), &part(&life)).is_err());
        let (report, written) = collect(run.path(), &[life]);
        assert!(written.is_err() && report.trace.is_none() && report.lost.len() == 1);
    }
}
