//! Calls the supervisor until it answers, and holds the link that comes of it.
//!
//! It does not know what a node does with the link.

use crate::clock::time_of_day;
use crate::gateway::tuning;
use crate::link::{self, LinkReceiver, LinkSender};
use crate::recipe::host_name;
use dtrain_protocol::{BootId, ClockOffset, Message as Word, NodeReport, Number, RankSetup, Timeouts};
use dtrain_transport::quic::{Connection, Endpoint, Identity, LinkError, Refusal};
use dtrain_types::{Generation, NodeId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The first pause after an attempt that failed; it doubles up to [`LONGEST_PAUSE`].
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(800);

/// Whom a host calls.
#[derive(Clone, Debug)]
pub struct Callee {
    /// The name of its host, and its port, and of those that may take its place: looked up before each call, since who comes there
    /// may have another address.
    pub names: Vec<(String, u16)>,
    /// Where another supervisor of the run is said to listen.
    pub elsewhere: Option<SocketAddr>,
    /// Where it was when its name was last known; the first that answers is it.
    pub masters: Vec<SocketAddr>,
    /// The address of this host to call from; the system's choice if none.
    pub from: Option<IpAddr>,
    /// What proves that this host may join.
    pub identity: Identity,
    /// Which node this is.
    pub node: NodeId,
}

/// Why a host cannot join, or not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UplinkError {
    /// The supervisor does not trust this host, or this host not it.
    #[error("{0}")]
    Untrusted(LinkError),
    /// It has no place for this node.
    #[error("{why}")]
    NotWanted {
        /// Why.
        why: String,
    },
    /// It was not reached.
    #[error("no supervisor answered at {} within {waited:?}: {last}", list(.masters))]
    Unreachable {
        /// Where.
        masters: Vec<SocketAddr>,
        /// For how long it was tried.
        waited: Duration,
        /// What the last attempt came to.
        last: String,
    },
    /// The system refuses what is needed.
    #[error("cannot {what}: {error}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        error: String,
    },
}

fn list(masters: &[SocketAddr]) -> String {
    masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A link to the supervisor.
pub(super) struct HostLink {
    pub(super) sender: LinkSender,
    pub(super) words: LinkReceiver,
    pub(super) connection: Connection,
    /// How far the supervisor's time of day is ahead, as of the first words.
    pub(super) clock: Option<ClockOffset>,
    endpoint: Endpoint,
}

impl HostLink {
    /// Ends it so that the supervisor hears of it.
    pub(super) async fn close(self, patience: Duration) {
        self.connection.close();
        let dialler = self.endpoint.dialler();
        dialler.close();
        let _ = timeout(patience, dialler.closed()).await;
    }
}

/// Makes links.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) callee: Callee,
    pub(super) boot: BootId,
    pub(super) timeouts: Timeouts,
}

/// Why one attempt failed.
pub(super) enum CallError {
    /// Another attempt would end the same way.
    Final(UplinkError),
    /// It may pass.
    Passing(String),
}

impl Caller {
    /// Calls until somebody answers, for at most `patience`.
    pub(super) async fn call_until(&self, patience: Duration) -> Result<(HostLink, RankSetup), UplinkError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let last = match self.call().await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Final(error)) => return Err(error),
                Err(CallError::Passing(what)) => what,
            };
            if begun.elapsed() + pause >= patience {
                let masters = self.callee.masters.clone();
                return Err(UplinkError::Unreachable { masters, waited: begun.elapsed(), last });
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One attempt at every address.
    pub(super) async fn call(&self) -> Result<(HostLink, RankSetup), CallError> {
        let mut last = "there is no address".to_owned();
        for master in self.addresses().await {
            match self.call_at(master).await {
                Err(CallError::Passing(what)) => last = what,
                done => return done,
            }
        }
        Err(CallError::Passing(last))
    }

    /// Where the supervisor is by its names now; where nobody knows, where it was.
    async fn addresses(&self) -> Vec<SocketAddr> {
        let mut found: Vec<SocketAddr> = Vec::new();
        for (host, port) in &self.callee.names {
            if let Ok(addresses) = tokio::net::lookup_host((host.as_str(), *port)).await {
                found.extend(addresses);
            }
        }
        if found.is_empty() {
            found.clone_from(&self.callee.masters);
        }
        found.splice(0..0, self.callee.elsewhere);
        found
    }

    async fn call_at(&self, master: SocketAddr) -> Result<(HostLink, RankSetup), CallError> {
        let passing = |error: LinkError| CallError::Passing(error.to_string());
        let tuning = tuning(&self.timeouts);
        // A socket of its own for each attempt: addresses of a host may come and go with its interfaces.
        let from = SocketAddr::new(self.callee.from.unwrap_or(unspecified(master)), 0);
        let endpoint = Endpoint::bind(from, &self.callee.identity, tuning).map_err(passing)?;
        let connection = match endpoint.connect(master).await {
            Ok(connection) => connection,
            Err(error @ (LinkError::Untrusted { .. } | LinkError::Refused { .. })) if is_for_good(&error) => {
                return Err(CallError::Final(UplinkError::Untrusted(error)));
            }
            Err(error) => return Err(passing(error)),
        };
        let (send, recv) = connection.open_control().await.map_err(passing)?;
        let (sender, mut words, _writer) = link::open_host(recv, send);
        let asked = time_of_day();
        sender.send(&Word::NodeReport(Box::new(self.question())));
        // Another node of this rank may have to be found dead first.
        let patience = tuning.handshake_timeout + self.timeouts.detect;
        let (mut clock, mut first) = (None, timeout(patience, words.next()).await);
        if let Ok(Ok(Some(Word::Clock(reading)))) = first {
            clock = ClockOffset::estimate(asked, reading, time_of_day());
            tracing::info!(%master, ?clock, "how far the supervisor's clock is ahead");
            first = timeout(patience, words.next()).await;
        }
        match first {
            Ok(Ok(Some(Word::RankSetup(setup)))) => {
                Ok((HostLink { sender, words, connection, clock, endpoint }, setup))
            }
            Ok(Ok(Some(Word::Goodbye(goodbye)))) => {
                connection.close();
                let _ = timeout(self.timeouts.detect, endpoint.dialler().closed()).await;
                Err(CallError::Final(UplinkError::NotWanted { why: goodbye.why }))
            }
            Ok(Ok(Some(_))) => Err(CallError::Passing(format!("{master} is no supervisor"))),
            Ok(Ok(None)) => Err(CallError::Passing(format!("{master} closed the link"))),
            Ok(Err(error)) => Err(CallError::Passing(error.to_string())),
            Err(_) => Err(CallError::Passing(format!("{master} did not answer within {patience:?}"))),
        }
    }

    /// The first word on every link: who is here. It offers no ranks: the node says how many there are.
    fn question(&self) -> NodeReport {
        NodeReport {
            instance: None,
            generation: Generation(0),
            node: self.callee.node,
            boot: self.boot,
            number: Number(0),
            seen: Number(0),
            host: host_name(),
            ranks: 0,
            lives: Vec::new(),
            leaving: false,
        }
    }
}

/// Whether a refusal stays one: a crowd at the gate passes.
pub(crate) fn is_for_good(error: &LinkError) -> bool {
    let (LinkError::Untrusted { why, .. } | LinkError::Refused { why, .. }) = error else { return false };
    !matches!(why, Refusal::Crowded | Refusal::TooSlow | Refusal::Broken)
}

pub(crate) fn unspecified(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The next word; none when the link has ended. Waits for ever where there is no link.
pub(super) async fn next_word(link: &mut Option<HostLink>) -> Option<Word> {
    let Some(link) = link else { return std::future::pending().await };
    match link.words.next().await {
        Ok(word) => word,
        Err(error) => {
            tracing::info!(%error, "the link to the supervisor ended");
            None
        }
    }
}
