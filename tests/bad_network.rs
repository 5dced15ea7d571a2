//! Hosts in network namespaces, with nothing between them but a relay that delays packets and drops some, or a network that is cut.
//! Needs root; where namespaces are not allowed the test says so and checks nothing.

use crate::harness::hosts::Hosts;
use crate::harness::network::{Network, Weather};
use crate::harness::turn::has_turn;
use crate::harness::{MLP, Running, Signal, audit_is_clean, folder, ranks_of, seed, signal, train};
use std::sync::atomic::Ordering;
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(20);

#[test]
fn nothing_is_lost_over_a_network_that_delays_and_drops_whatever_dies() {
    if !has_turn(3) {
        return;
    }
    let seed = seed();
    let network = match Network::build(3, Weather { delay: DELAY, one_in: 20, seed }) {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: network namespaces cannot be had here ({why})"),
    };
    println!("seed {seed}");
    let (shortest, back) = network.ping(1, 2, 400);
    println!("400 datagrams there and back: {back} came, the fastest after {shortest:.1?}");
    assert!(shortest >= 2 * DELAY, "{shortest:?}");
    // Each way drops a twentieth: 361 are expected, and these bounds are five deviations away.
    assert!((330..=390).contains(&back), "{back} of 400 came back");

    let steps = 400;
    let model = format!("{MLP} steps={steps} threads=1 checkpoint.every=50~steps");
    let hosts = Hosts::at(&format!("{}:29400", Network::address(0)), "3");
    let start = |rank: u32, arguments: &str| {
        Running::of(network.command(rank as usize, &hosts.node(rank, arguments)))
    };
    let (mut second, third) = (start(1, "ranks=2"), start(2, "ranks=2"));
    let mut first = start(0, &format!("{model} ranks=2 max_restarts=1000 name=hosts"));
    first.wait_for_world(6);

    // Cut off for five seconds: the others go on without it, and it comes back by itself.
    network.set_link(2, "down");
    let cut = std::time::Instant::now();
    first.wait_for_world(4);
    std::thread::sleep(Duration::from_secs(5).saturating_sub(cut.elapsed()));
    network.set_link(2, "up");
    first.wait_for_world(6);

    // A host killed, and started again.
    signal(Signal::KILL, second.pid());
    first.wait_for_world(4);
    second = start(1, "ranks=2");
    first.wait_for_world(6);

    // A rank killed on each host.
    for host in [first.pid(), second.pid(), third.pid()] {
        signal(Signal::KILL, ranks_of(host)[0]);
        assert!(first.wait_for(|line| line["event"] == "recovery").is_some(), "{}", first.story());
        first.wait_for_world(6);
    }

    let run = first.finish();
    let digest = train(folder().path(), &format!("{model} ranks=1 name=whole")).digest();
    assert_eq!(run.digest(), digest, "{}", run.stderr);
    assert_eq!(run.steps(), (1..=steps).collect::<Vec<u64>>(), "{}", run.stderr);
    assert_eq!(run.summary()["lost_steps"], 0, "{}", run.stderr);
    audit_is_clean(&hosts.folder(0), "hosts");
    second.finish().succeeded();
    third.finish().succeeded();
    let (seen, dropped) = (&network.counts.seen, &network.counts.dropped);
    let (seen, dropped) = (seen.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed));
    println!("{seen} packets, {dropped} of them dropped; recoveries {}", run.summary()["recoveries"]);
    assert!(seen > 1_000 && dropped * 30 > seen && dropped * 14 < seen, "{dropped} of {seen}");
}

/// It is told to leave over its old link, which the supervisor closes for the new one that the host has called over meanwhile.
#[test]
fn a_host_that_was_cut_off_while_the_run_was_interrupted_hears_of_it_over_another_link() {
    if !has_turn(8) {
        return;
    }
    let weather = Weather { delay: Duration::from_millis(1), one_in: u32::MAX.into(), seed: seed() };
    let network = match Network::build(2, weather) {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: network namespaces cannot be had here ({why})"),
    };
    for cut in [960, 1040, 1100, 1150] {
        let hosts = Hosts::at(&format!("{}:29400", Network::address(0)), "2");
        let start = |rank: u32, arguments: &str| {
            Running::of(network.command(rank as usize, &hosts.node(rank, arguments)))
        };
        let other = start(1, "ranks=1");
        let mut first = start(0, &format!("{MLP} steps=1000000 threads=1 ranks=1 name=hosts"));
        first.wait_for_world(2);
        first.wait_for_step(20);
        network.set_link(1, "down");
        signal(Signal::TERM, first.pid());
        std::thread::sleep(Duration::from_millis(cut));
        network.set_link(1, "up");
        first.finish().ended_with(130);
        other.finish().ended_with(130);
    }
}
