//! A process's end of all its links: one UDP socket that listens and dials.
//!
//! It lives on the tokio runtime on which it was made. It does not know what its links are for.

use super::bursts::Bursts;
use super::error::{LinkError, Refusal, code};
use super::gate::{self, Refusals};
use super::identity::SERVER_NAME;
use super::{Connection, Identity, Tuning};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};
use rustix::net::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Kernel buffers of the socket. The kernel cuts this to what it allows. *Units*: bytes.
const SOCKET_BUFFER: usize = 8 << 20;
/// Links that wait to be taken; more of them keep their places at the gate.
const ADMITTED: usize = 8;

/// Listens at one address, and dials from it.
#[derive(Debug)]
pub struct Endpoint {
    dialler: Dialler,
    admitted: mpsc::Receiver<Connection>,
    refusals: Arc<Refusals>,
    gate: JoinHandle<()>,
}

/// The dialling half of an [`Endpoint`]; clones share it.
#[derive(Clone, Debug)]
pub struct Dialler {
    inner: quinn::Endpoint,
    client: quinn::ClientConfig,
    tuning: Tuning,
    local: SocketAddr,
    handle: Handle,
}

impl Endpoint {
    /// Listens at `addr`; port 0 takes any free one.
    ///
    /// *Errors*: [`LinkError::Busy`], [`LinkError::Bind`], [`LinkError::Setting`]. *Panics* outside a tokio runtime.
    pub fn bind(addr: SocketAddr, identity: &Identity, tuning: Tuning) -> Result<Self, LinkError> {
        tuning.check()?;
        let wrong = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => LinkError::Busy { addr },
            _ => LinkError::Bind { addr, what: error.to_string() },
        };
        let socket = UdpSocket::bind(addr).map_err(wrong)?;
        // Larger buffers only make bursts cheaper, and the kernel's limit is not ours to judge.
        let _cut = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
        let _cut = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
        let server = Some(tuning.server(server_crypto(identity)));
        let runtime = Arc::new(TokioRuntime);
        let socket = Bursts::over(runtime.wrap_udp_socket(socket).map_err(wrong)?);
        let inner = quinn::Endpoint::new_with_abstract_socket(tuning.endpoint(None), server, socket, runtime)
            .map_err(wrong)?;
        Self::over(inner, identity, tuning).map_err(wrong)
    }

    /// As `bind`, over a socket of the caller's; with a seed the numbers that QUIC draws are the same each time. Tests
    /// over a network in virtual time need it, and they stand outside this crate.
    pub fn with_socket(
        socket: Arc<dyn AsyncUdpSocket>,
        identity: &Identity,
        tuning: Tuning,
        seed: Option<[u8; 32]>,
    ) -> Result<Self, LinkError> {
        tuning.check()?;
        let wrong = |error: io::Error| LinkError::Bind {
            addr: SocketAddr::from(([0, 0, 0, 0], 0)),
            what: error.to_string(),
        };
        let server = Some(tuning.server(server_crypto(identity)));
        let runtime = Arc::new(TokioRuntime);
        let inner = quinn::Endpoint::new_with_abstract_socket(tuning.endpoint(seed), server, socket, runtime)
            .map_err(wrong)?;
        Self::over(inner, identity, tuning).map_err(wrong)
    }

    fn over(inner: quinn::Endpoint, identity: &Identity, tuning: Tuning) -> io::Result<Self> {
        let crypto =
            QuicClientConfig::try_from(identity.client()).expect("ring has the suite of the first packets");
        let mut client = quinn::ClientConfig::new(Arc::new(crypto));
        client.transport_config(tuning.dialled());
        client.token_store(Arc::new(quinn::NoneTokenStore));
        let refusals = Arc::new(Refusals::default());
        let (admit, admitted) = mpsc::channel(ADMITTED);
        let local = inner.local_addr()?;
        let gate = tokio::spawn(gate::keep(inner.clone(), tuning, Arc::clone(&refusals), admit));
        let dialler = Dialler { inner, client, tuning, local, handle: Handle::current() };
        Ok(Self { dialler, admitted, refusals, gate })
    }

    /// Where it listens. A wildcard stays one.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.dialler.local
    }

    /// Dials; see [`Dialler::connect`].
    pub async fn connect(&self, addr: SocketAddr) -> Result<Connection, LinkError> {
        self.dialler.connect(addr).await
    }

    /// The next peer that was let in. *Errors*: [`LinkError::Closed`].
    pub async fn accept(&mut self) -> Result<Connection, LinkError> {
        self.admitted.recv().await.ok_or(LinkError::Closed)
    }

    /// Its dialling half.
    #[must_use]
    pub fn dialler(&self) -> Dialler {
        self.dialler.clone()
    }

    /// How often each kind of stranger was turned away.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<Refusal, u64> {
        self.refusals.counts()
    }

    pub(super) fn refusals_handle(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// How often a stranger was asked to prove its address. A test of a flood asks: nothing else shows it.
    #[must_use]
    pub fn address_proofs_asked(&self) -> u64 {
        self.refusals.retries()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.gate.abort();
        self.dialler.close();
    }
}

impl Dialler {
    /// Dials, and waits until the peer has let this process in. The link lives on the runtime of the caller.
    ///
    /// *Errors*: [`LinkError::Untrusted`], [`LinkError::Refused`], [`LinkError::Silent`], [`LinkError::Lost`].
    pub async fn connect(&self, addr: SocketAddr) -> Result<Connection, LinkError> {
        let after = self.tuning.handshake_timeout;
        let dialled = self.inner.connect_with(self.client.clone(), addr, SERVER_NAME);
        let connecting = dialled.map_err(|error| match error {
            quinn::ConnectError::EndpointStopping => LinkError::Closed,
            other => LinkError::Lost { addr, what: other.to_string() },
        })?;
        let greeted = async {
            let connection = Connection::new(connecting.await?, self.tuning);
            connection.greeted().await.map(|()| connection)
        };
        match timeout(after, greeted).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(LinkError::of_dial(addr, after, &error)),
            Err(_) => Err(LinkError::Silent { addr, after }),
        }
    }

    /// Where it dials from, which is where its endpoint listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The runtime that carries the links.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The numbers of its links.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Closes all links of the endpoint at once. Peers see a link that ended well.
    pub fn close(&self) {
        self.inner.close(code::DONE, b"done");
    }

    /// Waits until the peers have heard of the closing, or were given time to.
    pub async fn closed(&self) {
        self.inner.wait_idle().await;
    }
}

fn server_crypto(identity: &Identity) -> Arc<dyn quinn::crypto::ServerConfig> {
    Arc::new(QuicServerConfig::try_from(identity.server()).expect("ring has the suite of the first packets"))
}
