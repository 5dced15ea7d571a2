//! A peer that is a real process, killed with SIGKILL.

use crate::links::loopback;
use crate::meshes::{Case, Host, meshes, plan, run};
use dtrain_collective::{CollectiveError, Reduce, Transport, Verdict};
use dtrain_oracle::plain::{reference, reference_trailer};
use dtrain_transport::free_port;
use dtrain_transport::quic::{QuicMesh, Token, Tuning};
use dtrain_types::{Rank, cut_evenly};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The token of the cluster, in the process that is going to be killed.
const VICTIM: &str = "DTRAIN_TEST_VICTIM";

fn tuning() -> Tuning {
    Tuning {
        idle_timeout: Duration::from_millis(900),
        keep_alive: Duration::from_millis(100),
        ..Tuning::default()
    }
}

/// Joins generation 1 as index 1 and then only keeps its links alive.
fn victim(token: &str) -> ! {
    // Not one that is given to whoever asks for any: another takes its place there.
    let own = SocketAddr::from(([127, 0, 0, 1], free_port(None).expect("a port")));
    let host = Host::at(own, &token.parse().expect("a token"), tuning());
    println!("\nADDRESS {own}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the other's address");
    let other: SocketAddr = line.trim().parse().expect("an address");
    let _mesh = QuicMesh::connect(&host.port, plan(1, 1, &[other, own])).expect("it dials");
    // Held until it is killed, or until whoever started it is gone.
    let _ended = std::io::stdin().read_line(&mut line);
    std::process::exit(1)
}

/// A process that joins generation 1 as index 1, its address, and this side's end of the mesh.
fn with_victim(test: &str, token: &Token, host: &Host) -> (Child, SocketAddr, QuicMesh) {
    let own = std::env::current_exe().expect("this binary");
    let mut child = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM, token.reveal())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let told = lines.find_map(|line| line.strip_prefix("ADDRESS ")?.parse().ok());
    let addr: SocketAddr = told.expect("it says where it listens");
    let mut stdin = child.stdin.take().expect("piped");
    writeln!(stdin, "{}", host.port.local_addr()).expect("it listens");
    let peers = [host.port.local_addr(), addr];
    let mesh = QuicMesh::connect(&host.port, plan(1, 0, &peers)).expect("it joins");
    child.stdin = Some(stdin);
    (child, addr, mesh)
}

fn kill(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it was there");
}

/// Another process takes its place, its address and its index, and a step comes out right.
fn replace(host: Host, addr: SocketAddr, token: &Token) {
    let hosts = [host, Host::at(addr, token, tuning())];
    let case = Case { ranges: &cut_evenly(2, 2), counts: &[2], len: 100, segment: 64, mode: Reduce::Exact };
    let got = run(meshes(&hosts, 2), 2, &case);
    assert!(got.iter().all(|steps| *steps == [(reference(100, 2), reference_trailer(2))]));
}

#[test]
fn a_killed_process_is_lost_by_name_and_its_successor_is_reached() {
    if let Ok(token) = std::env::var(VICTIM) {
        victim(&token);
    }
    let token = Token::generate();
    let host = Host::at(loopback(), &token, tuning());
    let test = "killed::a_killed_process_is_lost_by_name_and_its_successor_is_reached";
    let (child, addr, mut mesh) = with_victim(test, &token, &host);
    kill(child);
    let lost = loop {
        match mesh.receive(&mut |_| Ok(Verdict::Taken)) {
            Ok(_) => mesh.wait().expect("a wait"),
            Err(error) => break error,
        }
    };
    let CollectiveError::Lost { to: Rank(1), what } = &lost else { panic!("{lost:?}") };
    assert!(what.starts_with(&format!("nothing came from {addr} to ")), "{what}");
    drop(mesh);
    replace(host, addr, &token);
}

#[test]
fn a_link_that_only_looks_alive_does_not_keep_a_successor_from_being_reached() {
    if let Ok(token) = std::env::var(VICTIM) {
        victim(&token);
    }
    let token = Token::generate();
    let host = Host::at(loopback(), &token, tuning());
    let test = "killed::a_link_that_only_looks_alive_does_not_keep_a_successor_from_being_reached";
    let (child, addr, mesh) = with_victim(test, &token, &host);
    kill(child);
    // Nobody has noticed yet: the supervisor heard of the exit first.
    drop(mesh);
    replace(host, addr, &token);
}
