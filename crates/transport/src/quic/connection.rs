//! A link between two processes that both have the token, and its typed streams.
//!
//! A stream's first byte says what it is for. What follows is bytes: the control plane puts its own codec on top, the
//! mesh its frames. This file knows neither.

use super::Tuning;
use super::error::{LinkError, code, words};
use quinn::{ReadExactError, RecvStream, SendStream};
use std::net::SocketAddr;
use tokio::time::timeout;

/// What a dialling process waits for.
pub(super) const GREETING: u8 = b'w';

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Messages of the control plane.
    Control = 0,
    /// Frames of a mesh.
    Bulk = 1,
    /// How the run is, for whoever asks.
    Status = 2,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Control),
            1 => Some(Self::Bulk),
            2 => Some(Self::Status),
            _ => None,
        }
    }
}

/// A link to a process that has the token. Clones are the same link; it closes with the last of them.
#[derive(Clone, Debug)]
pub struct Connection {
    link: quinn::Connection,
    tuning: Tuning,
}

impl Connection {
    pub(super) fn new(link: quinn::Connection, tuning: Tuning) -> Self {
        Self { link, tuning }
    }

    /// Where the peer is; an IPv4 address in its own form, on an IPv6 socket too.
    #[must_use]
    pub fn remote_addr(&self) -> SocketAddr {
        let addr = self.link.remote_address();
        SocketAddr::new(addr.ip().to_canonical(), addr.port())
    }

    /// Opens a stream for messages of the control plane. *Blocks* (asynchronously) while the peer's bound on open streams
    /// is reached. *Errors*: [`LinkError::Lost`].
    pub async fn open_control(&self) -> Result<(SendStream, RecvStream), LinkError> {
        self.open(Kind::Control).await
    }

    /// Opens a stream for frames. As `open_control`.
    pub async fn open_bulk(&self) -> Result<(SendStream, RecvStream), LinkError> {
        self.open(Kind::Bulk).await
    }

    /// Opens a stream on which the peer says how the run is. As `open_control`.
    pub async fn open_status(&self) -> Result<(SendStream, RecvStream), LinkError> {
        self.open(Kind::Status).await
    }

    async fn open(&self, kind: Kind) -> Result<(SendStream, RecvStream), LinkError> {
        let (mut send, recv) = self.link.open_bi().await.map_err(|error| self.lost(&error))?;
        send.write_all(&[kind as u8]).await.map_err(|error| LinkError::Lost {
            addr: self.remote_addr(),
            what: super::error::write_words(&error),
        })?;
        Ok((send, recv))
    }

    /// Waits for the peer's next stream.
    ///
    /// *Errors*: [`LinkError::Lost`] when the link is gone; [`LinkError::Kind`] and [`LinkError::Silent`] for a stream that
    /// is of no use, after which the next one can be waited for.
    pub async fn accept_stream(&self) -> Result<(Kind, SendStream, RecvStream), LinkError> {
        let (mut send, mut recv) = self.link.accept_bi().await.map_err(|error| self.lost(&error))?;
        let mut first = [0];
        let after = self.tuning.handshake_timeout;
        let addr = self.remote_addr();
        match timeout(after, recv.read_exact(&mut first)).await {
            Err(_) => return Err(LinkError::Silent { addr, after }),
            Ok(Err(ReadExactError::ReadError(error))) => {
                if let Some(reason) = self.link.close_reason() {
                    return Err(self.lost(&reason));
                }
                return Err(LinkError::Lost { addr, what: super::error::read_words(&error) });
            }
            Ok(Err(ReadExactError::FinishedEarly(_))) => return Err(LinkError::Silent { addr, after }),
            Ok(Ok(())) => {}
        }
        match Kind::of(first[0]) {
            Some(kind) => Ok((kind, send, recv)),
            None => {
                // Both fail only if the peer was quicker to end the stream.
                let _ended = (send.reset(code::UNKNOWN), recv.stop(code::UNKNOWN));
                Err(LinkError::Kind { addr, kind: first[0] })
            }
        }
    }

    /// Reads the greeting of the side that was dialled.
    pub(super) async fn greeted(&self) -> Result<(), quinn::ConnectionError> {
        let mut stream = self.link.accept_uni().await?;
        let mut byte = [0];
        match stream.read_exact(&mut byte).await {
            Ok(()) if byte == [GREETING] => Ok(()),
            _ => Err(self.link.close_reason().unwrap_or(quinn::ConnectionError::Reset)),
        }
    }

    /// Waits until the link is gone; says why.
    pub async fn closed(&self) -> LinkError {
        let reason = self.link.closed().await;
        self.lost(&reason)
    }

    /// Whether the link is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.link.close_reason().is_some()
    }

    /// Whether both are the same link.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.link.stable_id() == other.link.stable_id()
    }

    /// Ends the link at once: what was written and has not arrived is lost.
    pub fn close(&self) {
        self.link.close(code::DONE, b"done");
    }

    /// This end: the address at which the peer reaches it, as far as the link knows it, else that of `bound`.
    pub(super) fn local_addr(&self, bound: SocketAddr) -> SocketAddr {
        let ip = self.link.local_ip().unwrap_or(bound.ip());
        SocketAddr::new(ip.to_canonical(), bound.port())
    }

    /// Datagrams of any kind that have come so far.
    pub(super) fn datagrams_received(&self) -> u64 {
        self.link.stats().udp_rx.datagrams
    }

    pub(super) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The shortest round trip that the path had so far.
    pub(super) fn least_round_trip(&self) -> std::time::Duration {
        self.link.stats().path.min_rtt
    }

    /// The round-trip time, as measured. For logs.
    #[must_use]
    pub fn round_trip(&self) -> std::time::Duration {
        self.link.rtt()
    }

    /// The size of datagrams that the path was found to carry. *Units*: bytes of UDP payload.
    #[must_use]
    pub fn datagram_size(&self) -> u16 {
        self.link.stats().path.current_mtu
    }

    fn lost(&self, error: &quinn::ConnectionError) -> LinkError {
        match error {
            quinn::ConnectionError::LocallyClosed => LinkError::Closed,
            other => LinkError::Lost { addr: self.remote_addr(), what: words(other) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::{Endpoint, Identity, Token, ValidityWindow};
    use std::time::SystemTime;

    #[tokio::test]
    async fn a_stream_of_an_unknown_kind_is_refused_and_the_next_one_still_works() {
        let window = ValidityWindow::around(SystemTime::now());
        let identity = Identity::from_token(&Token::generate(), window).expect("an identity");
        let bind = || Endpoint::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &identity, Tuning::default());
        let (mut server, client) = (bind().expect("a port"), bind().expect("a port"));
        let dialled = client.connect(server.local_addr()).await.expect("one token");
        let answered = server.accept().await.expect("it dials");
        for wrong in [3, 77, 255] {
            let (mut send, mut recv) = dialled.link.open_bi().await.expect("a stream");
            send.write_all(&[wrong]).await.expect("written");
            let refused = answered.accept_stream().await.map(drop);
            assert_eq!(refused, Err(LinkError::Kind { addr: client.local_addr(), kind: wrong }));
            assert_eq!(
                recv.read_to_end(1).await,
                Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code::UNKNOWN)))
            );
        }
        let (mut send, _recv) = dialled.link.open_bi().await.expect("a stream");
        send.finish().expect("open");
        assert!(
            matches!(answered.accept_stream().await, Err(LinkError::Silent { .. })),
            "it ended without a kind"
        );
        let _streams = dialled.open_bulk().await.expect("a stream");
        assert_eq!(answered.accept_stream().await.expect("a good one").0, Kind::Bulk);
    }
}
