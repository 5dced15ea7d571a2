//! Asks whether the supervisor's process is gone, beside the link: the system of its host answers, not the process.
//!
//! It does not know what follows from that.

use super::caller::unspecified;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// A socket that is tied to `master`: the system tells it which of our addresses leads there, and whether anybody
/// listens.
pub(super) fn ask_nobody(master: SocketAddr, from: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(unspecified(master)), 0))?;
    socket.connect(master)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// How often a port is asked for a process that comes in the place of one that is gone.
const ASKED_EVERY: Duration = Duration::from_millis(25);
/// After so many questions it is called in any case.
const MOST_ASKED: u32 = 40;

/// Waits until somebody listens at a port where nobody did, or for a second. A call that is made before lies there until it is made
/// again.
pub(super) async fn somebody_listens(master: SocketAddr, from: Option<IpAddr>) {
    let probe = Probe::of(master, from);
    for _ in 0..MOST_ASKED {
        let before = probe.is_refused();
        tokio::time::sleep(ASKED_EVERY).await;
        if !before && !probe.is_refused() {
            return;
        }
    }
}

/// Asks whether the process behind a port is gone.
pub(super) struct Probe {
    socket: Option<UdpSocket>,
}

impl Probe {
    pub(super) fn of(master: SocketAddr, from: Option<IpAddr>) -> Self {
        // Without a way there nothing is learned: silence then stays silence.
        Self { socket: ask_nobody(master, from).ok() }
    }

    /// Says something, and hears what became of what was said before. Only the host of a process that is gone answers.
    pub(super) fn is_refused(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        // A byte that is no packet of QUIC: whoever listens there drops it.
        let heard = socket.recv(&mut [0; 16]).is_err_and(refused);
        socket.send(&[0]).is_err_and(refused) || heard
    }
}
