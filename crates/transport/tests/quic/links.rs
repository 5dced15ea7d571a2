//! Two processes that hold one token: links, typed streams, ports.

use dtrain_transport::quic::{Endpoint, Identity, Kind, LinkError, Token, Tuning, ValidityWindow};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

pub fn identity(token: &Token) -> Identity {
    Identity::from_token(token, ValidityWindow::around(SystemTime::now())).expect("an identity")
}

pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn endpoint(token: &Token) -> Endpoint {
    Endpoint::bind(loopback(), &identity(token), Tuning::default()).expect("a free port")
}

#[tokio::test]
async fn two_holders_of_one_token_exchange_bytes_over_typed_streams() {
    let token = Token::generate();
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let bind = || {
            let any = any.parse().expect("an address");
            Endpoint::bind(any, &identity(&token), Tuning::default()).expect("a free port")
        };
        let (mut server, client) = (bind(), bind());
        let dialled = client.connect(server.local_addr()).await.expect("one token");
        let answered = server.accept().await.expect("it dials");
        assert_eq!(answered.remote_addr(), client.local_addr());
        let (mut send, mut recv) = dialled.open_control().await.expect("a stream");
        send.write_all(b"ping").await.expect("written");
        let (kind, mut back, mut from) = answered.accept_stream().await.expect("a stream");
        assert_eq!(kind, Kind::Control);
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes).await.expect("four bytes");
        back.write_all(&bytes).await.expect("written");
        back.finish().expect("open");
        assert_eq!(recv.read_to_end(16).await.expect("four bytes"), b"ping");
        // Either side may open streams.
        let (mut send, _recv) = answered.open_control().await.expect("a stream");
        send.write_all(b"!").await.expect("written");
        assert_eq!(dialled.accept_stream().await.expect("a stream").0, Kind::Control);
    }
}

#[tokio::test]
async fn an_ipv6_socket_serves_ipv4_peers_under_their_own_address() {
    let token = Token::generate();
    let any = "[::]:0".parse().expect("an address");
    let mut server = Endpoint::bind(any, &identity(&token), Tuning::default()).expect("a free port");
    let client = endpoint(&token);
    let addr = SocketAddr::from(([127, 0, 0, 1], server.local_addr().port()));
    let _dialled = client.connect(addr).await.expect("one token");
    assert_eq!(server.accept().await.expect("it dials").remote_addr(), client.local_addr());
}

#[tokio::test]
async fn a_busy_port_is_named() {
    let token = Token::generate();
    let first = endpoint(&token);
    let taken = first.local_addr();
    let busy = Endpoint::bind(taken, &identity(&token), Tuning::default()).expect_err("it is taken");
    assert_eq!(busy, LinkError::Busy { addr: taken });
    assert!(busy.to_string().contains(&taken.to_string()), "{busy}");
}

#[tokio::test]
async fn a_link_that_is_closed_says_so_and_one_that_nobody_answers_times_out() {
    let token = Token::generate();
    let (mut server, client) = (endpoint(&token), endpoint(&token));
    let dialled = client.connect(server.local_addr()).await.expect("one token");
    let answered = server.accept().await.expect("it dials");
    answered.close();
    assert!(matches!(dialled.closed().await, LinkError::Lost { .. }));
    assert!(matches!(dialled.open_control().await.map(drop), Err(LinkError::Lost { .. })));
    assert!(answered.is_closed());
    // A socket that never answers.
    let deaf = std::net::UdpSocket::bind(loopback()).expect("a free port");
    let addr = deaf.local_addr().expect("it has one");
    let tuning = Tuning { handshake_timeout: Duration::from_millis(200), ..Tuning::default() };
    let client = Endpoint::bind(loopback(), &identity(&token), tuning).expect("a free port");
    let silent = client.connect(addr).await.map(drop);
    assert_eq!(silent, Err(LinkError::Silent { addr, after: tuning.handshake_timeout }));
}

#[tokio::test]
async fn a_silent_link_is_lost_after_its_idle_timeout_and_a_quiet_living_one_is_not() {
    let token = Token::generate();
    // Long enough for twenty keep-alives, so that a busy machine is not taken for a silent peer.
    let tuning = Tuning {
        idle_timeout: Duration::from_secs(2),
        keep_alive: Duration::from_millis(100),
        ..Tuning::default()
    };
    let (mut server, client) = (endpoint(&token), endpoint(&token));
    let quick = Endpoint::bind(loopback(), &identity(&token), tuning).expect("a free port");
    let living = quick.connect(server.local_addr()).await.expect("one token");
    let other = server.accept().await.expect("it dials");
    // A second link from another runtime that stops without a word, as a killed process does.
    let (addr, token) = (server.local_addr(), token.clone());
    let killed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let endpoint = Endpoint::bind(loopback(), &identity(&token), tuning).expect("a free port");
            let link = endpoint.connect(addr).await.expect("one token");
            // Neither is dropped, so neither says goodbye.
            std::mem::forget((endpoint, link));
        });
        std::mem::forget(runtime);
    });
    let dead = server.accept().await.expect("it dials");
    let reason = dead.closed().await;
    assert!(matches!(&reason, LinkError::Lost { what, .. } if what.contains("silent")), "{reason:?}");
    assert!(!living.is_closed() && !other.is_closed(), "it had keep-alives for all that time");
    killed.join().expect("no panic");
    drop(client);
}

#[tokio::test]
async fn datagrams_grow_to_what_the_path_carries_and_a_large_transfer_does_not_hang_there() {
    let token = Token::generate();
    let (mut server, client) = (endpoint(&token), endpoint(&token));
    let dialled = client.connect(server.local_addr()).await.expect("one token");
    let answered = server.accept().await.expect("it dials");
    let (mut send, _recv) = dialled.open_bulk().await.expect("a stream");
    let (_, _send, mut recv) = answered.accept_stream().await.expect("a stream");
    let write = async {
        let piece = vec![7; 1 << 20];
        let mut pieces = 0;
        // The search for the size takes a few round trips; a loss on the way makes it longer.
        while pieces < 32 || dialled.datagram_size() < 6_000 {
            send.write_all(&piece).await.expect("the link lives");
            pieces += 1;
        }
        send.finish().expect("open");
        pieces << 20
    };
    let read = async {
        let mut bytes = 0;
        while let Some(piece) = recv.read_chunk(1 << 20, true).await.expect("the link lives") {
            bytes += piece.bytes.len();
        }
        bytes
    };
    let (written, read) = tokio::join!(write, read);
    assert_eq!(written, read);
}
