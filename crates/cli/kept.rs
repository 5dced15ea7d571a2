//! The file in a run's folder that names the keeper of its ranks: by it the next life of a supervisor finds them.
//!
//! It is there while a supervisor works, and stays when one is killed. Whether a keeper of that name still lives is another question.

use crate::arguments::VERSION;
use dtrain_runtime::{KeptName, NAMED_IN, Outlives};
use std::path::Path;

/// A keeper that a supervisor which died has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftKeeper {
    /// How it is called.
    pub name: KeptName,
    /// It speaks as this program does.
    pub is_ours: bool,
}

impl LeftKeeper {
    /// The keeper of this run, if the supervisor before left one and it lives.
    #[must_use]
    pub fn of(run_dir: &Path) -> Option<Self> {
        let text = NAMED_IN.read(run_dir)?;
        let (name, version) = text.trim_end().split_once('\n')?;
        let name = KeptName::new(name.to_owned());
        name.is_there().then(|| Self { name, is_ours: version == VERSION })
    }
}

/// Draws a name for a keeper and writes it down.
///
/// *Errors*: of the system.
pub fn name_keeper(run_dir: &Path) -> std::io::Result<KeptName> {
    let name = format!("{:016x}{:016x}", crate::random::u64()?, crate::random::u64()?);
    NAMED_IN.write(run_dir, &format!("{name}\n{VERSION}\n"), Outlives::Process)?;
    Ok(KeptName::new(name))
}

/// The run is over, and its keeper gone.
pub fn forget_keeper(run_dir: &Path) {
    // What stays names nobody.
    NAMED_IN.forget(run_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_answers_to_is_no_keeper() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(LeftKeeper::of(folder.path()), None, "there is no file");
        let (one, two) = (name_keeper(folder.path()).unwrap(), name_keeper(folder.path()).unwrap());
        assert_ne!(one, two);
        assert_eq!(LeftKeeper::of(folder.path()), None, "nobody listens");
        std::fs::write(NAMED_IN.path(folder.path()), "half a file").unwrap();
        assert_eq!(LeftKeeper::of(folder.path()), None);
    }
}
