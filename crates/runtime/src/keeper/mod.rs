//! The node of the supervisor's own host as a process of its own, the *keeper*: it holds the ranks, so that they outlive a
//! supervisor that is killed, and the next one finds them where they are.
//!
//! The supervisor starts it (`held.rs`) and talks to it over the socket pair that is its standard input; the next life of the
//! supervisor calls it by a name that stands in the run's folder. The keeper's side is `process.rs`. Neither knows what a rank
//! does, nor what the words between node and supervisor mean.

mod held;
mod process;

pub use held::{Hold, KeeperPlan, KeptName, MakeMemory};
pub use process::keep_if_asked;

use crate::folder_note::FolderNote;
use crate::rank_host::Program;
use dtrain_checkpoint::RunLock;
use dtrain_protocol::{RankSetup, Timeouts, TimeoutsError};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file in the folder of a run whose first line names its keeper, while that is needed.
pub const NAMED_IN: FolderNote = FolderNote(".keeper");

/// What a keeper finds in the folder of its run when its supervisor is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nobody leads, or nothing can be seen: another life may come and call.
    Vacant,
    /// Somebody leads, who has not called.
    Led,
    /// Nobody leads, and nobody will find this keeper: another host has led since, and has ended the run or died.
    Forgotten,
}

/// What a keeper is told first, and once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeeperSetup {
    /// The name that it answers to.
    name: String,
    /// How many ranks its host has.
    ranks: u32,
    /// What they run.
    program: PackedProgram,
    /// What they are made of.
    setup: RankSetup,
    detect: Duration,
    master: Duration,
    /// The folder of the run, where a supervisor of another host may lead it, too.
    shared: Option<Vec<u8>>,
}

impl KeeperSetup {
    /// What the keeper called `name` is told: how many ranks, the program that each is, and what it is made of.
    #[must_use]
    pub fn new(
        name: &KeptName,
        ranks: u32,
        program: &Program,
        setup: RankSetup,
        timeouts: &Timeouts,
    ) -> Self {
        let program = PackedProgram::of(program);
        let (detect, master) = (timeouts.detect, timeouts.master);
        Self { name: name.as_str().to_owned(), ranks, program, setup, detect, master, shared: None }
    }

    /// The same for a run in this folder that other hosts may lead.
    #[must_use]
    pub fn in_shared(self, run_dir: &Path) -> Self {
        Self { shared: Some(run_dir.as_os_str().as_bytes().to_vec()), ..self }
    }

    /// What the folder of the run says, where a supervisor of another host may lead it.
    fn outlook(&self) -> Outlook {
        let Some(bytes) = &self.shared else { return Outlook::Vacant };
        let run_dir = PathBuf::from(OsString::from_vec(bytes.clone()));
        if RunLock::is_held(&run_dir) {
            return Outlook::Led;
        }
        let text = NAMED_IN.read(&run_dir).unwrap_or_default();
        let is_named = text.lines().next() == Some(self.name.as_str());
        // A folder that cannot be seen for a while says nothing.
        if RunLock::is_free(&run_dir) && !is_named { Outlook::Forgotten } else { Outlook::Vacant }
    }

    /// *Errors*: no supervisor wrote them.
    fn timeouts(&self) -> Result<Timeouts, TimeoutsError> {
        Timeouts::derive(self.detect)?.with_master(self.master)
    }
}

/// What the next life of a supervisor says first: whom it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    name: String,
}

/// A [`Program`] in bytes that any words of the system fit into.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PackedProgram {
    path: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    stacks: Option<i32>,
}

impl PackedProgram {
    fn of(program: &Program) -> Self {
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        Self {
            path: program.path.as_os_str().as_bytes().to_vec(),
            arguments: program.arguments.iter().map(bytes).collect(),
            environment: program
                .environment
                .iter()
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            stacks: program.stacks.map(Signal::as_raw),
        }
    }

    fn unpack(&self) -> Program {
        let text = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
        Program {
            path: PathBuf::from(text(&self.path)),
            arguments: self.arguments.iter().map(text).collect(),
            environment: self.environment.iter().map(|(name, value)| (text(name), text(value))).collect(),
            stacks: self.stacks.and_then(Signal::from_named_raw),
        }
    }
}

/// Names in no folder: nothing stays behind, and no file system has to allow sockets. Processes of other users are told apart by the
/// kernel's word for who they are.
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("dtrain-keeper-{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outlives::Outlives;
    use dtrain_types::Instance;

    #[test]
    fn a_keeper_is_forgotten_where_nobody_leads_and_the_folder_names_another_and_not_where_nothing_can_be_seen()
     {
        let (folder, name) = (tempfile::tempdir().unwrap(), KeptName::new("ours".to_owned()));
        let run_dir = folder.path().join("run");
        let program = Program { path: "a".into(), arguments: vec![], environment: vec![], stacks: None };
        let timeouts = Timeouts::derive(Duration::from_secs(1)).unwrap();
        let setup = KeeperSetup::new(&name, 1, &program, RankSetup::of(&()), &timeouts).in_shared(&run_dir);
        assert_eq!(setup.outlook(), Outlook::Vacant, "there is no folder");
        std::fs::create_dir(&run_dir).unwrap();
        let named = |text: &str| NAMED_IN.write(&run_dir, text, Outlives::Process).unwrap();
        named("ours\n1\n");
        let lock = RunLock::acquire(&run_dir, Instance(1)).unwrap();
        assert_eq!(setup.outlook(), Outlook::Led);
        drop(lock);
        assert_eq!(setup.outlook(), Outlook::Vacant, "another life may come and call");
        named("another\n1\n");
        assert_eq!(setup.outlook(), Outlook::Forgotten);
        NAMED_IN.forget(&run_dir);
        assert_eq!(setup.outlook(), Outlook::Forgotten);
        std::fs::rename(&run_dir, folder.path().join("elsewhere")).unwrap();
        assert_eq!(setup.outlook(), Outlook::Vacant, "it cannot be seen for a while");
    }

    #[test]
    fn a_program_survives_its_journey_in_whatever_bytes_it_is_written() {
        let odd = OsString::from_vec(b"a \xff\nb".to_vec());
        let program = Program {
            path: PathBuf::from(&odd),
            arguments: vec![odd.clone(), "two".into()],
            environment: vec![("NAME".into(), odd)],
            stacks: Some(Signal::USR1),
        };
        let packed = RankSetup::of(&PackedProgram::of(&program)).read::<PackedProgram>().expect("reads");
        assert_eq!(format!("{:?}", packed.unpack()), format!("{program:?}"));
    }
}
