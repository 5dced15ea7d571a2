//! Peers that hold the token and still do what no peer should.

use crate::links::endpoint;
use crate::meshes::{Host, plan};
use dtrain_collective::{CollectiveError, Transport, Verdict};
use dtrain_transport::quic::{
    Connection, MeshError, MeshPlan, QuicMesh, RecvStream, SendStream, Token, Tuning,
};
use dtrain_types::{Generation, Rank};
use std::time::Duration;

/// A hello as its layout is written down, from index 0 to index 1 of two.
fn hello(generation: u64) -> Vec<u8> {
    let mut bytes = b"DTRNMESH".to_vec();
    // Version 2, and two bytes that nothing uses.
    bytes.extend([3, 0, 0, 0]);
    bytes.extend([0u32, 1, 2].into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(generation.to_le_bytes());
    bytes
}

/// The fixed part of a frame.
fn frame(generation: u64, op: u8, floats: u32) -> Vec<u8> {
    let mut bytes = generation.to_le_bytes().to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([op, 0, 0, 0]);
    bytes.extend([1u32, 0, 0, 0, floats].into_iter().flat_map(u32::to_le_bytes));
    bytes
}

/// Dials a port, says hello and is let into the generation.
async fn intrude(link: &Connection, generation: u64) -> (SendStream, RecvStream) {
    let (mut send, mut recv) = link.open_bulk().await.expect("a stream");
    send.write_all(&hello(generation)).await.expect("written");
    let mut answer = [0; 2];
    recv.read_exact(&mut answer).await.expect("it is let in");
    assert_eq!(&answer, b"sj");
    (send, recv)
}

#[test]
fn frames_that_no_peer_sends_end_the_generation_with_their_reason() {
    let token = Token::generate();
    let host = Host::new(&token, Tuning::default());
    let addr = host.port.local_addr();
    let cases = [
        (frame(1, 0, u32::MAX), "a frame of 4294967295 floats"),
        (frame(2, 0, 1 << 30), "a frame of 1073741824 floats"),
        (frame(3, 99, 0), "unknown collective 99"),
        (frame(77, 0, 0), "a frame of generation 77 on a stream of generation 4"),
        (frame(5, 0, 10)[..17].to_vec(), "inside a frame"),
    ];
    for (place, (bytes, reason)) in cases.into_iter().enumerate() {
        let generation = place as u64 + 1;
        let token = token.clone();
        let hostile = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let attacker = endpoint(&token);
                let link = attacker.connect(addr).await.expect("it holds the token");
                let (mut send, _recv) = intrude(&link, generation).await;
                send.write_all(&bytes).await.expect("written");
                send.finish().expect("open");
                // The mesh is dropped when it has failed, which ends the stream.
                let _stopped = send.stopped().await;
            });
        });
        // The address of peer 0 is never dialled: the lower index dials.
        let mut mesh = QuicMesh::connect(&host.port, plan(generation, 1, &[addr, addr])).expect("it comes");
        let lost = loop {
            match mesh.receive(&mut |_| Ok(Verdict::Taken)) {
                Ok(_) => mesh.wait().expect("a wait"),
                Err(error) => break error,
            }
        };
        let CollectiveError::Lost { to: Rank(0), what } = &lost else { panic!("{lost:?}") };
        assert!(what.contains(reason), "{what}");
        drop(mesh);
        hostile.join().expect("no panic");
    }
}

#[test]
fn hellos_of_another_plan_and_bytes_that_are_no_hello_are_refused_while_the_right_peer_is_let_in() {
    let token = Token::generate();
    let host = Host::new(&token, Tuning::default());
    let addr = host.port.local_addr();
    let hostile = std::thread::spawn({
        let token = token.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let attacker = endpoint(&token);
                let link = attacker.connect(addr).await.expect("it holds the token");
                let good = hello(1);
                for (at, byte) in [(0, b'X'), (8, 9), (12, 1), (12, 200), (16, 0), (20, 3)] {
                    let (mut send, mut recv) = link.open_bulk().await.expect("a stream");
                    let mut wrong = good.clone();
                    wrong[at] = byte;
                    send.write_all(&wrong).await.expect("written");
                    let refused = recv.read_to_end(10).await;
                    assert!(refused.is_err(), "byte {at}: {refused:?}");
                }
                // A control stream has no business here.
                let (_send, mut recv) = link.open_control().await.expect("a stream");
                assert!(recv.read_to_end(10).await.is_err());
                let _streams = intrude(&link, 1).await;
            });
        }
    });
    QuicMesh::connect(&host.port, plan(1, 1, &[addr, addr])).expect("the last hello is right");
    hostile.join().expect("no panic");
    assert_eq!(host.port.strange_streams(), 6);
}

#[test]
fn hellos_for_generations_that_never_come_are_kept_within_a_bound() {
    let token = Token::generate();
    let host = Host::new(&token, Tuning::default());
    let addr = host.port.local_addr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let attacker = endpoint(&token);
        // Sixteen streams a link, so that the bound of the port is the one that is met.
        let mut streams = Vec::new();
        for batch in 0..10u64 {
            let link = attacker.connect(addr).await.expect("it holds the token");
            for place in 0..10 {
                let (mut send, mut recv) = link.open_bulk().await.expect("a stream");
                send.write_all(&hello(1_000 + batch * 10 + place)).await.expect("written");
                let mut seen = [0];
                recv.read_exact(&mut seen).await.expect("it is read");
                streams.push((send, recv));
            }
            streams.push({
                let (send, recv) = link.open_control().await.expect("a stream");
                (send, recv)
            });
        }
        let mut crowded = 0;
        for (_, recv) in streams.iter_mut().take(40) {
            // The oldest ones were dropped; they say so.
            if matches!(recv.read_to_end(10).await, Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) if code == 5u32.into()) {
                crowded += 1;
            }
            if crowded == 36 {
                break;
            }
        }
        assert_eq!(crowded, 36, "a hundred came and 64 are kept");
    });
    let patience = Duration::from_millis(100);
    let plan = MeshPlan { patience, ..plan(1, 1, &[addr, addr]) };
    let alone = QuicMesh::connect(&host.port, plan).map(drop);
    assert!(matches!(alone, Err(MeshError::Unreachable { generation: Generation(1), .. })), "{alone:?}");
}
