//! What can go wrong with a link, in words that tell a wrong token from a dead host.

use quinn::{ConnectionError, ReadError, WriteError};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The application's codes on closed connections and streams.
pub(super) mod code {
    use quinn::VarInt;

    /// The end of a run; nothing is wrong.
    pub const DONE: VarInt = VarInt::from_u32(0);
    /// The stream begins with what nobody here reads.
    pub const UNKNOWN: VarInt = VarInt::from_u32(2);
    /// The stream is of a generation that is over.
    pub const STALE: VarInt = VarInt::from_u32(3);
    /// The sender gave the generation up.
    pub const ABANDONED: VarInt = VarInt::from_u32(4);
    /// More is waiting than is kept.
    pub const CROWDED: VarInt = VarInt::from_u32(5);
}

/// Why a handshake came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// A certificate of another authority: the tokens differ.
    ForeignToken,
    /// No certificate at all.
    NoCertificate,
    /// A certificate that is not valid now: it has expired, or the clocks differ.
    OutOfDate,
    /// Another protocol, or another version of this one.
    OtherProtocol,
    /// Too many handshakes at once, in all or from one address.
    Crowded,
    /// The handshake did not finish in time.
    TooSlow,
    /// Something else that ended the handshake.
    Broken,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ForeignToken,
        Self::NoCertificate,
        Self::OutOfDate,
        Self::OtherProtocol,
        Self::Crowded,
        Self::TooSlow,
        Self::Broken,
    ];

    /// Reads the TLS alert that either side ended the handshake with.
    fn of_alert(code: u64) -> Option<Self> {
        // RFC 9001, section 4.8: an alert is 0x100 more. RFC 8446, section 6: their numbers.
        Some(match code.checked_sub(0x100)? {
            // unknown_ca, decrypt_error, bad_certificate, certificate_unknown
            48 | 51 | 42 | 46 => Self::ForeignToken,
            116 => Self::NoCertificate,
            45 => Self::OutOfDate,
            // no_application_protocol, protocol_version, handshake_failure
            120 | 70 | 40 => Self::OtherProtocol,
            0..256 => Self::Broken,
            _ => return None,
        })
    }

    /// What ended a connection in its handshake.
    pub(super) fn of(error: &ConnectionError) -> Self {
        let alert = match error {
            ConnectionError::TransportError(error) => Self::of_alert(error.code.into()),
            ConnectionError::ConnectionClosed(frame) => Self::of_alert(frame.error_code.into()),
            ConnectionError::TimedOut => Some(Self::TooSlow),
            ConnectionError::VersionMismatch => Some(Self::OtherProtocol),
            _ => None,
        };
        alert.unwrap_or(Self::Broken)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForeignToken => "its certificate is of another token",
            Self::NoCertificate => "it has no certificate",
            Self::OutOfDate => "its certificate is not valid now",
            Self::OtherProtocol => "it speaks another protocol",
            Self::Crowded => "too many handshakes at once",
            Self::TooSlow => "its handshake took too long",
            Self::Broken => "its handshake broke off",
        })
    }
}

/// Why a link is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Another process has the port.
    #[error("the address {addr} is in use\nhint: stop the other process, or choose another port")]
    Busy {
        /// The address.
        addr: SocketAddr,
    },
    /// The system does not let this process listen there.
    #[error("cannot listen on {addr}: {what}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        what: String,
    },
    /// A setting has no sense.
    #[error("the setting {what} is out of range: {value}")]
    Setting {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// This side does not trust the peer.
    #[error(
        "the peer at {addr} is not trusted: {why}\nhint: all hosts need the same token, and clocks that agree"
    )]
    Untrusted {
        /// The peer.
        addr: SocketAddr,
        /// Why.
        why: Refusal,
    },
    /// The peer does not trust this side, or has no room.
    #[error(
        "the peer at {addr} refused this process: {why}\nhint: all hosts need the same token, and clocks that agree"
    )]
    Refused {
        /// The peer.
        addr: SocketAddr,
        /// Why, as the peer says it of this process.
        why: Refusal,
    },
    /// Nobody answered.
    #[error("no answer from {addr} within {after:?}")]
    Silent {
        /// The peer.
        addr: SocketAddr,
        /// How long this side waited.
        after: Duration,
    },
    /// The link was there and is gone.
    #[error("the link to {addr} is gone: {what}")]
    Lost {
        /// The peer.
        addr: SocketAddr,
        /// What was seen.
        what: String,
    },
    /// A stream of no known kind.
    #[error("the peer at {addr} opened a stream of kind {kind}")]
    Kind {
        /// The peer.
        addr: SocketAddr,
        /// Its first byte.
        kind: u8,
    },
    /// This endpoint was closed.
    #[error("this endpoint is closed")]
    Closed,
}

impl LinkError {
    /// What a connection that came to nothing says to the side that dialled.
    pub(super) fn of_dial(addr: SocketAddr, after: Duration, error: &ConnectionError) -> Self {
        match error {
            ConnectionError::TransportError(_) => Self::Untrusted { addr, why: Refusal::of(error) },
            ConnectionError::ConnectionClosed(frame)
                if frame.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
            {
                Self::Refused { addr, why: Refusal::Crowded }
            }
            ConnectionError::ConnectionClosed(_) => Self::Refused { addr, why: Refusal::of(error) },
            ConnectionError::TimedOut => Self::Silent { addr, after },
            ConnectionError::LocallyClosed => Self::Closed,
            other => Self::Lost { addr, what: words(other) },
        }
    }
}

/// The end of a connection in words.
pub(super) fn words(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(frame) if frame.error_code == code::DONE => {
            "the peer closed it".into()
        }
        ConnectionError::TimedOut => "the peer has been silent for too long".into(),
        ConnectionError::Reset => "the peer has restarted".into(),
        other => other.to_string(),
    }
}

/// The end of a stream that is read, in words.
pub(super) fn read_words(error: &ReadError) -> String {
    match error {
        ReadError::ConnectionLost(error) => words(error),
        ReadError::Reset(code::ABANDONED) => "the peer gave the generation up".into(),
        ReadError::Reset(code::STALE) => "the peer is in a later generation".into(),
        other => other.to_string(),
    }
}

/// The end of a stream that is written, in words.
pub(super) fn write_words(error: &WriteError) -> String {
    match error {
        WriteError::ConnectionLost(error) => words(error),
        WriteError::Stopped(_) => "the peer has left the generation".into(),
        other => other.to_string(),
    }
}
