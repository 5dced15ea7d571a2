//! What a job of Slurm says of itself: its first host, a port, and a token that its tasks share.
//!
//! `srun dtrain node -c run.yaml` needs no flag. Lists of hosts are read here, since containers lack `scontrol`. The token is drawn by the
//! first host and lies in the home folder, which clusters share, readable by its user alone, for as long as the run lives.

use crate::error::CliError;
use dtrain_transport::quic::Token;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A step of a job, as the environment of its tasks has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmStep {
    job: u32,
    step: u32,
    hosts: String,
    local: u32,
}

/// How many ports above the usual one the jobs of a cluster share: two jobs may have the same first host.
const PORTS: u32 = 1000;
/// How often others look for the token.
const LOOK: Duration = Duration::from_millis(100);
const GIVE_IT: &str =
    "give the token yourself: `dtrain token new -o FILE`, and DTRAIN_TOKEN_FILE=FILE for all tasks";

impl SlurmStep {
    /// The step that this process is a task of, if it is one.
    #[must_use]
    pub fn here() -> Option<Self> {
        let var = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let number = |name: &str| var(name).and_then(|text| text.parse().ok());
        Some(Self {
            job: number("SLURM_JOB_ID")?,
            step: number("SLURM_STEP_ID").unwrap_or(0),
            hosts: var("SLURM_STEP_NODELIST").or_else(|| var("SLURM_JOB_NODELIST"))?,
            local: number("SLURM_LOCALID").unwrap_or(0),
        })
    }

    /// Its first host.
    ///
    /// *Errors*: a list that cannot be read; several tasks on one host.
    pub fn master(&self) -> Result<String, CliError> {
        if self.local > 0 {
            let message =
                format!("this is task {} of its host: one task a host brings all of its ranks", self.local);
            return Err(CliError::usage(message).hint("srun --ntasks-per-node=1 dtrain node ..."));
        }
        first_host(&self.hosts).ok_or_else(|| {
            CliError::usage(format!("the hosts of this job cannot be read: {:?}", self.hosts))
                .hint("--master ADDR on every host: the address of the host of rank 0")
        })
    }

    /// The port for it: that of another job on the same host is another one, most of the time.
    #[must_use]
    pub fn port(&self, usual: u16) -> u16 {
        usual + (self.job % PORTS) as u16
    }

    /// Where the token of this step lies.
    fn token_file(&self, home: &Path) -> PathBuf {
        home.join(".cache/dtrain/slurm").join(format!("{}.{}.token", self.job, self.step))
    }

    /// The token that the tasks of this step share: its first host draws it.
    ///
    /// *Errors*: a home folder that cannot be written.
    pub fn draw_token(&self, home: &Path) -> Result<String, CliError> {
        let path = self.token_file(home);
        write(&path).map_err(|error| {
            CliError::usage(format!("cannot write the token of this job to {}", path.display()))
                .because(&error)
                .hint(GIVE_IT)
        })
    }

    /// The token that the first host has drawn, or will.
    ///
    /// *Blocks* for `patience` at most. *Errors*: it did not come, as where hosts share no home folder.
    pub fn await_token(&self, home: &Path, patience: Duration) -> Result<String, CliError> {
        let path = self.token_file(home);
        let begun = Instant::now();
        loop {
            if let Some(text) = read(&path) {
                return Ok(text);
            }
            if begun.elapsed() >= patience {
                let message = format!("the first host of this job has laid no token at {}", path.display());
                return Err(CliError::usage(message).hint(GIVE_IT));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes the token: the run is over.
    pub fn forget_token(&self, home: &Path) {
        // It is of no use to anyone, and goes with the next clean-up of the folder otherwise.
        let _ = std::fs::remove_file(self.token_file(home));
    }
}

/// Whether this job has run before, and was put back into the queue.
#[must_use]
pub fn was_requeued() -> bool {
    let restarts = std::env::var("SLURM_RESTART_COUNT").ok();
    restarts.and_then(|text| text.parse::<u32>().ok()).is_some_and(|restarts| restarts > 0)
}

/// A new token, whole at once for those who look for it. One of an earlier start of this job, which was requeued, is taken again.
fn write(path: &Path) -> std::io::Result<String> {
    if let Some(text) = read(path) {
        return Ok(text);
    }
    let folder = path.parent().expect("it lies in a folder");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let text = Token::generate().reveal().to_string();
    let part = path.with_extension(format!("part-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    std::fs::rename(&part, path)?;
    Ok(text)
}

/// A token that is there and nobody else could have read.
fn read(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let text = std::fs::read_to_string(path).ok()?;
    (mode & 0o077 == 0 && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The first host of a list as Slurm writes it: `gpu[03-07,12],login1`, also with several brackets in a name.
fn first_host(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list.trim());
    loop {
        let Some(at) = rest.find(['[', ',']) else {
            name.push_str(rest);
            break;
        };
        name.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            break;
        }
        let (numbers, behind) = rest[at + 1..].split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        name.push_str(first);
        rest = behind;
    }
    let is_host = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c));
    is_host.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found_however_it_is_written() {
        for (list, first) in [
            ("gpu7", "gpu7"),
            ("gpu[03-07,12],login1", "gpu03"),
            ("gpu[12,03-07]", "gpu12"),
            ("login1,gpu[03-07]", "login1"),
            ("rack[0-1]node[02-03]", "rack0node02"),
            ("rack[10]-x.cluster,b", "rack10-x.cluster"),
            (" a-b_c.d ", "a-b_c.d"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for wrong in ["", ",a", "gpu[", "gpu[]", "gpu[a-b]", "gpu[-3]", "a b", "$(x)", "a;b"] {
            assert_eq!(first_host(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_token_is_drawn_once_is_for_its_user_alone_and_is_waited_for() {
        let home = tempfile::tempdir().expect("a folder");
        let step = SlurmStep { job: 1_234_567, step: 3, hosts: "a,b".into(), local: 0 };
        assert_eq!(step.port(29_400), 29_400 + 567);
        let none = step.await_token(home.path(), Duration::from_millis(1)).expect_err("nobody has drawn it");
        assert!(none.to_string().contains("has laid no token"), "{none}");
        let waiting = {
            let (step, home) = (step.clone(), home.path().to_owned());
            std::thread::spawn(move || step.await_token(&home, Duration::from_secs(30)).expect("it comes"))
        };
        let drawn = step.draw_token(home.path()).expect("a folder of our own");
        assert_eq!(waiting.join().expect("no panic"), drawn);
        assert_eq!(step.draw_token(home.path()).expect("of a requeued job"), drawn);
        let file = step.token_file(home.path());
        assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
        // What others can read may be known to them.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("our own");
        assert_eq!(read(&file), None);
        step.forget_token(home.path());
        assert!(!file.exists());
    }
}
