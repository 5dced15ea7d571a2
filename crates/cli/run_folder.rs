//! Where the files of a run lie: how a folder is named, made, found again and listed.
//!
//! It does not know what lies in a run folder except its `config.yaml`.

use crate::error::CliError;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The folder of all runs, in the current one.
pub const RUNS: &str = "runs";
/// What was run, every default written out.
pub const CONFIG: &str = "config.yaml";
/// A run without a name is numbered; nobody has this many.
const MOST_RUNS: u32 = 1_000_000;

/// The folder of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    /// Its path, as messages show it.
    pub path: PathBuf,
    /// The name of the run.
    pub name: String,
}

impl RunFolder {
    /// The folder at `path`, named after its last part.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        let name =
            path.file_name().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned());
        Self { path, name }
    }

    /// Makes a folder that the user named.
    ///
    /// *Errors*: it exists, or cannot be written; then nothing was.
    pub fn create_named(path: PathBuf) -> Result<Self, CliError> {
        match create(&path) {
            Ok(()) => Ok(Self::at(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&path)),
            Err(error) => Err(not_writable(&path, &error)),
        }
    }

    /// Makes the next folder of a run without a name: `runs/digits`, then `runs/digits-2`.
    ///
    /// *Errors*: it cannot be written.
    pub fn create_numbered(base: &str) -> Result<Self, CliError> {
        let first = numbered(Path::new(RUNS), base).last().map_or(1, |(number, _)| number + 1);
        // Another dtrain may take the same number at the same time: mkdir decides, and the loser takes the next.
        for number in first..MOST_RUNS {
            let path = Path::new(RUNS).join(with_number(base, number));
            match create(&path) {
                Ok(()) => return Ok(Self::at(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(not_writable(&path, &error)),
            }
        }
        Err(CliError::usage(format!("all names from {base} to {base}-{MOST_RUNS} are taken in {RUNS}")))
    }

    /// Whether a named folder could be made, without making it.
    ///
    /// *Errors*: it exists.
    pub fn check_free(path: &Path) -> Result<(), CliError> {
        if path.symlink_metadata().is_ok() { Err(exists(path)) } else { Ok(()) }
    }

    /// The newest run of a name: the highest number, or the one folder of that name.
    #[must_use]
    pub fn newest(base: &str) -> Option<Self> {
        let is_run = |path: &PathBuf| path.join(CONFIG).is_file();
        let newest = numbered(Path::new(RUNS), base).into_iter().map(|(_, path)| path).rev().find(is_run);
        newest.map(Self::at)
    }

    /// Finds a run by its folder or its name.
    ///
    /// *Errors*: there is none; the message lists those that are there.
    pub fn find(run: &str) -> Result<Self, CliError> {
        let candidates = [PathBuf::from(run), Path::new(RUNS).join(run)];
        match candidates.into_iter().find(|path| path.join(CONFIG).is_file()) {
            Some(path) => Ok(Self::at(path)),
            None => {
                let message = format!("there is no run {run}");
                Err(CliError::usage(message).hint(runs_hint()))
            }
        }
    }

    /// The text of the run's configuration.
    ///
    /// *Errors*: of the system.
    pub fn config_text(&self) -> Result<String, CliError> {
        let path = self.path.join(CONFIG);
        fs::read_to_string(&path)
            .map_err(|error| CliError::usage(format!("cannot read {}", path.display())).because(&error))
    }

    /// Writes the run's configuration, whole or not at all.
    ///
    /// *Errors*: of the system.
    pub fn write_config(&self, text: &str) -> Result<(), CliError> {
        let path = self.path.join(CONFIG);
        let temporary = self.path.join(format!(".{CONFIG}.tmp"));
        let write = || -> io::Result<()> {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            fs::File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| CliError::usage(format!("cannot write {}", path.display())).because(&error))
    }
}

/// Makes a folder and those above it; the last step is one mkdir, which only one process wins.
fn create(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(|error| match error.kind() {
            // A file in the place of a folder above is not a run folder that exists.
            io::ErrorKind::AlreadyExists => io::ErrorKind::NotADirectory.into(),
            _ => error,
        })?;
    }
    fs::create_dir(path)
}

fn exists(path: &Path) -> CliError {
    CliError::usage(format!("the run folder {} exists already", path.display())).hint(format!(
        "go on with it by --resume {0}, choose another name, or leave the name out to have runs numbered",
        path.display()
    ))
}

fn not_writable(path: &Path, error: &io::Error) -> CliError {
    CliError::usage(format!("cannot make the run folder {}", path.display()))
        .because(error)
        .hint("choose a folder that you may write to with run_dir=PATH")
}

/// All runs in a folder, by name.
#[must_use]
pub fn all_runs(folder: &Path) -> Vec<RunFolder> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut runs: Vec<RunFolder> =
        entries.filter(|path| path.join(CONFIG).is_file()).map(RunFolder::at).collect();
    runs.sort_by(|one, other| one.name.cmp(&other.name));
    runs
}

/// What can be resumed, newest last.
#[must_use]
pub fn runs_hint() -> String {
    let names: Vec<String> = all_runs(Path::new(RUNS)).into_iter().map(|run| run.name).collect();
    match names.as_slice() {
        [] => format!("there are no runs in {RUNS} yet; start one with `dtrain train`"),
        names => format!("runs in {RUNS}: {}", names.join(", ")),
    }
}

/// The folders of a numbered name with their numbers, in order.
fn numbered(runs: &Path, base: &str) -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(runs)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((number_of(entry.file_name().to_str()?, base)?, entry.path())))
        .collect();
    found.sort();
    found
}

fn with_number(base: &str, number: u32) -> String {
    if number == 1 { base.to_owned() } else { format!("{base}-{number}") }
}

fn number_of(name: &str, base: &str) -> Option<u32> {
    let number = match name.strip_prefix(base)? {
        "" => 1,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (with_number(base, number) == name && number < MOST_RUNS).then_some(number)
}

/// The name that a numbered run was numbered under.
#[must_use]
pub fn base_of(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((base, number)) if number.parse::<u32>().is_ok_and(|n| with_number(base, n) == name) => base,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_names_as_they_are_written() {
        for (name, number) in [
            ("digits", Some(1)),
            ("digits-2", Some(2)),
            ("digits-10", Some(10)),
            ("digits-1", None),
            ("digits-02", None),
            ("digits-x", None),
            ("digitsx", None),
            ("other", None),
        ] {
            assert_eq!(number_of(name, "digits"), number, "{name}");
        }
        assert_eq!(base_of("digits-12"), "digits");
        assert_eq!(base_of("my-run"), "my-run");
        assert_eq!(base_of("my-run-1"), "my-run-1", "nobody numbers a first run");
    }

    #[test]
    fn a_folder_that_exists_is_refused_and_one_that_is_free_is_made_with_its_parents() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a/b");
        assert_eq!(RunFolder::create_named(path.clone()).unwrap().name, "b");
        let error = RunFolder::create_named(path.clone()).unwrap_err();
        assert!(error.to_string().contains("exists already"), "{error}");
        assert!(RunFolder::check_free(&path).is_err());
        let folder = RunFolder::at(path.clone());
        folder.write_config("seed: 1\n").unwrap();
        folder.write_config("seed: 2\n").unwrap();
        assert_eq!(folder.config_text().unwrap(), "seed: 2\n");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "no temporary file stays");
        let file = here.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(RunFolder::create_named(file.join("run")).unwrap_err().to_string().contains("cannot make"));
    }
}
