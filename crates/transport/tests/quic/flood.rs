//! Thousands of strangers that begin a handshake and never end it, beside a pair that works.
//!
//! `DTRAIN_TEST_HALF_OPEN=10000` makes it as many as you like.

use crate::links::{endpoint, identity, loopback};
use crate::strangers::raw_client_over;
use dtrain_transport::quic::{Endpoint, RecvStream, Refusal, SendStream, Token, Tuning};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// A socket that keeps what would be sent and never hears anything.
#[derive(Debug, Default)]
struct Recorder(Mutex<VecDeque<Vec<u8>>>);

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Recorder {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.lock().expect("no panic").push_back(transmit.contents.to_vec());
        Ok(())
    }

    fn poll_recv(
        &self,
        _context: &mut Context<'_>,
        _buffers: &mut [IoSliceMut<'_>],
        _meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(loopback())
    }
}

/// First datagrams of as many handshakes, each a sound one. Nothing of the clients is left.
async fn first_datagrams(count: usize, server: SocketAddr) -> Vec<Vec<u8>> {
    let recorder = Arc::new(Recorder::default());
    let client = raw_client_over(recorder.clone());
    // By the number that a client calls the server by: a client that is dropped says goodbye under the same one.
    let mut first = BTreeMap::new();
    while first.len() < count {
        let connecting = client.connect(server, "dtrain.internal").expect("a name");
        let before = first.len();
        while first.len() == before {
            while let Some(datagram) = recorder.0.lock().expect("no panic").pop_front() {
                // RFC 9000, section 17.2: the length of that number stands after the version.
                let name = datagram[6..6 + usize::from(datagram[5])].to_vec();
                first.entry(name).or_insert(datagram);
            }
            tokio::task::yield_now().await;
        }
        drop(connecting);
    }
    first.into_values().collect()
}

/// A pair of streams over which both ends of a link answer one another.
struct Pair {
    ours: (SendStream, RecvStream),
    theirs: (SendStream, RecvStream),
}

impl Pair {
    async fn exchange(&mut self, mark: u64) {
        let mut got = [0; 8];
        for (send, recv) in [(&mut self.ours.0, &mut self.theirs.1), (&mut self.theirs.0, &mut self.ours.1)] {
            send.write_all(&mark.to_le_bytes()).await.expect("the link lives");
            recv.read_exact(&mut got).await.expect("the link lives");
            assert_eq!(u64::from_le_bytes(got), mark);
        }
    }
}

async fn pair(server: &mut Endpoint, friend: &Endpoint) -> Pair {
    let link = friend.connect(server.local_addr()).await.expect("one token");
    let answered = server.accept().await.expect("it dials");
    let mut ours = link.open_control().await.expect("a stream");
    ours.0.write_all(b"!").await.expect("written");
    let (_, send, mut recv) = answered.accept_stream().await.expect("a stream");
    recv.read_exact(&mut [0]).await.expect("a byte");
    Pair { ours, theirs: (send, recv) }
}

/// The memory that this process has in use. *Units*: bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is told");
    line.split_whitespace().nth(1).expect("a number").parse::<usize>().expect("a number") * 1024
}

/// Set in the process that runs one test alone.
const ALONE: &str = "DTRAIN_TEST_ALONE";

/// Runs the named test in a process of its own, for what a process has one of: memory that is counted, and the memory of
/// `tracing` of who listens. True in that process.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("this binary");
    let run =
        std::process::Command::new(own).args(["--exact", test]).env(ALONE, "1").output().expect("it runs");
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
    false
}

#[tokio::test]
async fn thousands_of_half_open_handshakes_neither_disturb_a_pair_nor_take_memory() {
    if !is_alone("flood::thousands_of_half_open_handshakes_neither_disturb_a_pair_nor_take_memory") {
        return;
    }
    let count = std::env::var("DTRAIN_TEST_HALF_OPEN").map_or(2_000, |text| text.parse().expect("a number"));
    let token = Token::generate();
    let tuning = Tuning { handshake_timeout: Duration::from_secs(60), ..Tuning::default() };
    let mut server = Endpoint::bind(loopback(), &identity(&token), tuning).expect("a free port");
    let friend = endpoint(&token);
    let mut working = pair(&mut server, &friend).await;
    let datagrams = first_datagrams(count, server.local_addr()).await;
    let sockets: Vec<UdpSocket> = (0..20).map(|_| UdpSocket::bind(loopback()).expect("a port")).collect();
    // What the first strangers cost once, such as tables, is not what is bounded here.
    let mut before = 0;
    for (place, datagram) in datagrams.iter().enumerate() {
        let socket = &sockets[place % sockets.len()];
        socket.send_to(datagram, server.local_addr()).expect("sent");
        // An exchange after every few strangers: the pair works, and the socket's queue is empty again.
        if place % 20 == 19 {
            working.exchange(place as u64).await;
        }
        if place == count / 10 {
            before = resident_bytes();
        }
    }
    working.exchange(u64::MAX).await;
    let grown = resident_bytes().saturating_sub(before);
    let asked = server.address_proofs_asked() as usize;
    assert!(asked + tuning.retry_from >= count, "{asked} of {count} were asked to prove their address");
    println!("{count} strangers: {grown} bytes, {asked} asked to prove their address");
    assert!(grown < 4 << 20, "{count} strangers took {grown} bytes");
    // Who has the token gets in all the same, by way of a proof.
    let newcomer = endpoint(&token);
    pair(&mut server, &newcomer).await.exchange(7).await;
}

/// A client's socket at an address of its own that hears nothing but the demand to prove that address.
#[derive(Debug)]
struct OnlyRetries {
    socket: UdpSocket,
    inner: tokio::net::UdpSocket,
}

impl OnlyRetries {
    fn new() -> Arc<Self> {
        let socket = UdpSocket::bind("127.0.0.2:0").expect("a free port");
        socket.set_nonblocking(true).expect("it can be");
        let inner = tokio::net::UdpSocket::from_std(socket.try_clone().expect("a copy")).expect("it can be");
        Arc::new(Self { socket, inner })
    }
}

impl AsyncUdpSocket for OnlyRetries {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.send_to(transmit.contents, transmit.destination).map(drop)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut buffer = tokio::io::ReadBuf::new(&mut buffers[0]);
            let Poll::Ready(received) = self.inner.poll_recv_from(context, &mut buffer) else {
                return Poll::Pending;
            };
            let (addr, length) = (received?, buffer.filled().len());
            // RFC 9000, section 17.2.5: long header, fixed bit, type 3.
            if length > 0 && buffers[0][0] & 0xf0 == 0xf0 {
                meta[0] = RecvMeta { addr, len: length, stride: length, ..RecvMeta::default() };
                return Poll::Ready(Ok(1));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

#[tokio::test]
async fn strangers_who_prove_their_address_and_then_stall_fill_their_own_share_only() {
    let token = Token::generate();
    let tuning = Tuning { handshake_timeout: Duration::from_secs(60), ..Tuning::default() };
    let mut server = Endpoint::bind(loopback(), &identity(&token), tuning).expect("a free port");
    let friend = endpoint(&token);
    let mut working = pair(&mut server, &friend).await;
    let stranger = raw_client_over(OnlyRetries::new());
    let stalled: Vec<_> =
        (0..100).map(|_| stranger.connect(server.local_addr(), "dtrain.internal").expect("a name")).collect();
    // Each exchange gives the strangers a turn; they stall when their share is full.
    let mut mark = 0;
    while server.refusals().get(&Refusal::Crowded).is_none_or(|count| *count < 50) {
        mark += 1;
        working.exchange(mark).await;
    }
    let newcomer = endpoint(&token);
    pair(&mut server, &newcomer).await.exchange(7).await;
    working.exchange(mark + 1).await;
    drop(stalled);
}

#[tokio::test]
async fn a_handshake_that_stalls_loses_its_place_in_time() {
    let token = Token::generate();
    let tuning = Tuning {
        handshake_timeout: Duration::from_secs(1),
        most_half_open: 2,
        most_half_open_per_source: 2,
        ..Tuning::default()
    };
    let mut server = Endpoint::bind(loopback(), &identity(&token), tuning).expect("a free port");
    let socket = UdpSocket::bind(loopback()).expect("a free port");
    for datagram in first_datagrams(2, server.local_addr()).await {
        socket.send_to(&datagram, server.local_addr()).expect("sent");
    }
    // Refused while the two stall, and let in when they have lost their places.
    let friend = endpoint(&token);
    let mut refused = 0;
    let link = loop {
        match friend.connect(server.local_addr()).await {
            Ok(link) => break link,
            Err(error) => {
                assert!(error.to_string().contains("too many handshakes"), "{error}");
                refused += 1;
            }
        }
    };
    assert_eq!(server.accept().await.expect("it dials").remote_addr(), friend.local_addr());
    assert!(refused > 0, "there was room for a third");
    // One place that is free is enough.
    assert!(server.refusals().contains_key(&Refusal::TooSlow), "{:?}", server.refusals());
    drop(link);
}
