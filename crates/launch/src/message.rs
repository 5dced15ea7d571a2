//! What the hosts of a group say to each other: each to the first one, which decides for all, and the first one to each.

use serde::{Deserialize, Serialize};

/// A host, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Which of the hosts it is.
    pub host: u32,
    /// Its name, for people.
    pub name: String,
    /// What it was asked for.
    pub shape: GroupShape,
    /// The newest start that it has seen: where the first host was lost, another one in its place learns it from the others.
    pub newest: Option<u32>,
}

/// What has to be the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupShape {
    /// Hosts.
    pub hosts: u32,
    /// Processes on each.
    pub processes: u32,
    /// How often all are started again.
    pub restarts: u32,
}

/// To the first host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// The first word on every link.
    Here(Hello),
    /// A rank has failed, and the others of this host are asked to end.
    Failing {
        /// At which start.
        attempt: u32,
    },
    /// Somebody ends the run here.
    Interrupted {
        /// By which signal, and where.
        words: String,
    },
    /// No process of the group is left here.
    Ended {
        /// At which start.
        attempt: u32,
        /// How they ended.
        how: How,
    },
}

/// How the ranks of one host ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// Each with 0.
    Well,
    /// They were told to.
    Stopped,
    /// One failed by itself.
    Failed(Failure),
}

/// A failure on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What people read of it.
    pub report: String,
    /// What they can do about it.
    pub hint: String,
    /// Whether it can be what another failure led to.
    pub weight: Weight,
}

/// How likely a failure is the first cause; of equal ones the first that was noticed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Weight {
    /// Its last words are that it lost a peer.
    BlamesPeer,
    /// It says nothing of others.
    Own,
    /// Somebody else killed it, or its host is lost: nothing that a missing peer does looks like it.
    Killed,
}

/// From the first host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// This host has no place.
    Refused {
        /// Why.
        why: String,
        /// Whether it may have one soon.
        passes: bool,
    },
    /// All start their ranks.
    Start {
        /// Restarts so far.
        attempt: u32,
        /// Where rank 0 will listen.
        port: u16,
        /// The name of the run.
        run_id: String,
    },
    /// All end their ranks.
    Stop,
    /// The first host is not heard any more: the ranks are ended, and it is called again. No host says this; the link does.
    Cut {
        /// What was seen of it.
        what: String,
    },
    /// Words for people.
    Tell(String),
    /// The run is over.
    Finish(End),
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// All ranks exited with 0.
    Well,
    /// It failed.
    Failed {
        /// What people read of it.
        report: String,
        /// What they can do about it.
        hint: String,
    },
    /// Somebody ended it.
    Interrupted {
        /// By which signal, and where.
        words: String,
    },
}
