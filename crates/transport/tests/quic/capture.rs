//! What a listener on the wire gets: every datagram, through a relay that keeps them all.

use crate::links::{endpoint, loopback};
use crate::meshes::{Host, addrs, plan};
use dtrain_collective::{Header, OpKind, Outgoing, Sequence, Tag, Transport, Verdict};
use dtrain_transport::quic::{IoThread, QuicMesh, Token, Tuning};
use dtrain_types::{Generation, Rank, Wire};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::UdpSocket;

/// Passes datagrams between one client and one server, and keeps a copy of each.
pub struct Relay {
    pub addr: SocketAddr,
    /// From the client and from the server.
    kept: Arc<Mutex<[Vec<Vec<u8>>; 2]>>,
    _io: IoThread,
}

impl Relay {
    pub fn to(server: SocketAddr) -> Self {
        let io = IoThread::start("relay").expect("a thread");
        let kept: Arc<Mutex<[Vec<Vec<u8>>; 2]>> = Arc::default();
        let bind = || {
            let socket = std::net::UdpSocket::bind(loopback()).expect("a port");
            socket.set_nonblocking(true).expect("it can be");
            socket
        };
        let (front, back) = (bind(), bind());
        let addr = front.local_addr().expect("it has one");
        let copies = kept.clone();
        io.handle().spawn(async move {
            let socket = |socket| UdpSocket::from_std(socket).expect("it can be");
            relay(socket(front), socket(back), server, copies).await;
        });
        Self { addr, kept, _io: io }
    }

    fn kept(&self) -> [Vec<Vec<u8>>; 2] {
        self.kept.lock().expect("no panic").clone()
    }

    /// Bytes so far from the client and from the server.
    pub fn carried(&self) -> [usize; 2] {
        self.kept.lock().expect("no panic").each_ref().map(|way| way.iter().map(Vec::len).sum())
    }

    fn shows(&self, pattern: &[u8]) -> bool {
        let kept = self.kept();
        kept.iter().flatten().any(|datagram| datagram.windows(pattern.len()).any(|part| part == pattern))
    }
}

async fn relay(front: UdpSocket, back: UdpSocket, server: SocketAddr, kept: Arc<Mutex<[Vec<Vec<u8>>; 2]>>) {
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut client = None;
    loop {
        tokio::select! {
            biased;
            Ok((length, addr)) = front.recv_from(&mut from_client) => {
                client = Some(addr);
                let datagram = &from_client[..length];
                kept.lock().expect("no panic")[0].push(datagram.to_vec());
                // What the kernel has no room for is lost, as on any path.
                let _lost = back.send_to(datagram, server).await;
            }
            Ok((length, _)) = back.recv_from(&mut from_server) => {
                let datagram = &from_server[..length];
                kept.lock().expect("no panic")[1].push(datagram.to_vec());
                if let Some(client) = client {
                    let _lost = front.send_to(datagram, client).await;
                }
            }
        }
    }
}

/// Sixteen parameters that a listener looks for.
fn pattern() -> Vec<f32> {
    (0..16).map(|i| f32::from_bits(0x3f5a_1e77 ^ (i * 0x0101_4321))).collect()
}

fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

#[test]
fn captured_traffic_does_not_show_a_parameter_and_the_same_capture_of_plain_traffic_does() {
    let token = Token::generate();
    let hosts: Vec<Host> = (0..2).map(|_| Host::new(&token, Tuning::default())).collect();
    let mut peers = addrs(&hosts);
    let relay = Relay::to(peers[1]);
    peers[1] = relay.addr;
    // Whole datagrams of nothing but the pattern, so that one cannot miss it at a cut.
    let payload = pattern().repeat(1_000);
    let mut ends: Vec<QuicMesh> = std::thread::scope(|scope| {
        let join = |index: usize| {
            let (host, peers) = (&hosts[index], &peers);
            scope.spawn(move || QuicMesh::connect(&host.port, plan(1, index, peers)).expect("it comes"))
        };
        [join(0), join(1)].map(|end| end.join().expect("no panic")).into()
    });
    let (generation, sequence) = (Generation(1), Sequence(1));
    let tag = Tag { generation, sequence, op: OpKind::Broadcast, operand: 0, round: 1, part: 0, segment: 0 };
    let header = Header { tag, wire: Wire::F32, trailer: None };
    let sent = ends[0].try_send(&Outgoing { to: Rank(1), header, payload: &payload });
    assert_eq!(sent, Ok(true));
    let mut came = false;
    while !came {
        let mut sink = |frame: dtrain_collective::Frame<'_>| {
            came = frame.payload == payload;
            Ok(Verdict::Taken)
        };
        if ends[1].receive(&mut sink).expect("the link lives") == 0 {
            ends[1].wait().expect("the link lives");
        }
    }
    let secret = bytes_of(&pattern());
    assert_eq!(secret.len(), 64);
    let [carried, _] = relay.carried();
    assert!(carried > 64_000, "only {carried} bytes went through the relay");
    assert!(!relay.shows(&secret), "the capture shows the parameters");
    // The positive control: the same bytes through the same relay without encryption.
    let server = std::net::UdpSocket::bind(loopback()).expect("a port");
    let control = Relay::to(server.local_addr().expect("it has one"));
    let client = std::net::UdpSocket::bind(loopback()).expect("a port");
    client.send_to(&bytes_of(&payload)[..1_280], control.addr).expect("sent");
    let mut buffer = [0; 2_000];
    assert_eq!(server.recv(&mut buffer).expect("it comes"), 1_280);
    assert!(control.shows(&secret), "the capture itself is broken");
}

#[tokio::test]
async fn a_recorded_join_that_is_played_again_gets_nobody_in() {
    let token = Token::generate();
    let (mut server, client) = (endpoint(&token), endpoint(&token));
    let relay = Relay::to(server.local_addr());
    let link = client.connect(relay.addr).await.expect("one token");
    let answered = server.accept().await.expect("it dials");
    let (mut send, _recv) = link.open_control().await.expect("a stream");
    send.write_all(b"let me in").await.expect("written");
    let (_, _, mut recv) = answered.accept_stream().await.expect("a stream");
    let mut got = [0; 9];
    recv.read_exact(&mut got).await.expect("nine bytes");
    answered.close();
    link.closed().await;
    let [recorded, _] = relay.kept();
    assert!(recorded.len() > 3, "a join has more than {} datagrams", recorded.len());
    let replay = std::net::UdpSocket::bind(loopback()).expect("a port");
    for _ in 0..20 {
        for datagram in &recorded {
            replay.send_to(datagram, server.local_addr()).expect("sent");
        }
    }
    // Whoever comes next is a new friend, and nobody came before.
    let friend = endpoint(&token);
    let _link = friend.connect(server.local_addr()).await.expect("one token");
    assert_eq!(server.accept().await.expect("it dials").remote_addr(), friend.local_addr());
}
