//! What can go wrong with the library or a communicator, with the library's own words in it.

use crate::library::Function;
use crate::version::NcclVersion;
use dtrain_collective::CollectiveError;
use std::path::PathBuf;
use std::time::Duration;

/// Why something of NCCL did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// None of the candidates could be opened.
    #[error(
        "no NCCL library could be opened:{}\nhint: install NCCL (on PyPI: nvidia-nccl-cu12) or name the path of libnccl.so.2",
        tried.iter().map(|(path, why)| format!("\n  {}: {why}", path.display())).collect::<String>()
    )]
    NotFound {
        /// Each candidate, and why it was not the one.
        tried: Vec<(PathBuf, String)>,
    },
    /// The library has no such function.
    #[error(
        "{} has no {function}, which NCCL has since {}; it says that it is {version}\nhint: install a newer NCCL",
        path.display(),
        function.since()
    )]
    Missing {
        /// The library.
        path: PathBuf,
        /// What it lacks.
        function: Function,
        /// What it says that it is.
        version: NcclVersion,
    },
    /// The environment tells the library to block in every call, whatever this crate asks for.
    #[error(
        "NCCL_COMM_BLOCKING=1 makes every call of NCCL block, so nothing could end a wait for a lost rank\nhint: unset it"
    )]
    Blocking,
    /// A call failed, or work that it began.
    #[error("{call} failed: {meaning} (code {code}){}\nhint: {}", quoted(last), hint(*code))]
    Failed {
        /// The function.
        call: &'static str,
        /// The library's code.
        code: u32,
        /// What `ncclGetErrorString` says of it.
        meaning: String,
        /// What `ncclGetLastError` says; empty if it says nothing.
        last: String,
    },
    /// Someone called the aborter.
    #[error("the communicator was aborted: {reason}")]
    Aborted {
        /// What the aborter was told.
        reason: String,
    },
    /// The others did not come in time.
    #[error(
        "{what} was not done after {} ms\nhint: all ranks must take part; look for one that is lost",
        within.as_millis()
    )]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// How long.
        within: Duration,
    },
    /// The library does not come back from an abort. Nothing in this process can end that.
    #[error(
        "the communicator was not aborted after {} ms\nhint: end this process: its device may be stuck",
        within.as_millis()
    )]
    Stuck {
        /// How long it was waited for.
        within: Duration,
    },
    /// The device that is to work with it.
    #[error("the device: {what}")]
    Device {
        /// What it said.
        what: String,
    },
    /// The kernel has no thread to give.
    #[error(
        "there is no thread for the abort of a communicator: {what}\nhint: look at the limit of processes"
    )]
    NoThread {
        /// What the kernel said.
        what: String,
    },
}

fn quoted(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!(": {last}") }
}

/// What to do about a code.
fn hint(code: u32) -> &'static str {
    match code {
        1 => "the CUDA driver or runtime refused: is there a GPU, and does nvidia-smi see it?",
        2 => {
            "the system refused: NCCL_DEBUG=WARN shows which call; often a network interface (NCCL_SOCKET_IFNAME)"
        }
        4 | 5 => "a bug of dtrain, or ranks that differ: NCCL_DEBUG=WARN shows the argument",
        6 => "a peer is gone or the network broke: look for the rank that failed first",
        8 => "a peer did not answer in time: look for the rank that failed first",
        _ => "NCCL_DEBUG=WARN shows more",
    }
}

impl From<NcclError> for CollectiveError {
    fn from(error: NcclError) -> Self {
        match error {
            NcclError::Aborted { reason } => Self::Aborted { reason },
            // One line: it is told inside other sentences.
            other => Self::Device { what: other.to_string().replace("\nhint: ", "; hint: ") },
        }
    }
}
