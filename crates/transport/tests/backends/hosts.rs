//! Two hosts whose ranks are processes, and die.
//!
//! The leaders are threads of this process, because the queues between them are; all other ranks are children, as in
//! `survivors.rs`. This file plays the supervisor of both hosts.

use crate::hierarchical::world;
use crate::survivors::{COUNTS, Halt, LEN, Member, given_arena, live, report};
use dtrain_collective::{CollectiveError, Geometry, Reduce};
use dtrain_oracle::conformance::membership;
use dtrain_oracle::plain::reference;
use dtrain_transport::{
    ArenaFile, HierarchicalBackend, HierarchicalSetup, Mapping, MemoryTransport, Topology, memory_mesh,
};
use dtrain_types::{Generation, Key, MicroBatch, Seed, Site, Step, WorldSize, cut_evenly};
use std::sync::Arc;

const CHILD: &str = "hosts::be_a_rank_of_a_host";
const ROUNDS: u64 = 10;

type Backend = HierarchicalBackend<MemoryTransport>;

/// Takes one rank's place in a generation on these hosts and lives through it.
fn take_part(
    mapping: &Arc<Mapping>,
    transport: Option<MemoryTransport>,
    (generation, rank, steps): (u64, usize, u64),
    hosts: &[u32],
    want: &[Vec<u32>],
) -> (u64, Result<(), CollectiveError>) {
    let ranges = cut_evenly(COUNTS[0], world(hosts));
    let setup = HierarchicalSetup {
        membership: membership(generation, rank, &ranges),
        topology: Topology::new(hosts).expect("hosts"),
        mode: Reduce::Exact,
        counts: &COUNTS,
        segment: 1_000,
    };
    let mut backend = Backend::new(mapping.clone(), transport, setup).expect("a good place");
    live(&mut backend, ranges[rank], steps, Halt::Nowhere, want)
}

/// What a child does. As a test of its own, without the environment, it has nothing to do.
#[test]
fn be_a_rank_of_a_host() {
    let Some(mapping) = given_arena() else { return };
    let want = COUNTS.map(|count| reference(LEN, count));
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let hosts = [words[3] as u32, words[4] as u32];
        report(take_part(&mapping, None, (words[0], words[1] as usize, words[2]), &hosts, &want));
    }
}

/// After a failed assertion nobody may wait for ever: stops a generation on both hosts.
struct StopOnPanic<'a>(&'a [Arc<Mapping>; 2], Generation);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(arenas, generation) = self;
            arenas
                .iter()
                .for_each(|arena| Backend::watcher(arena.clone(), *generation).abort("a failed test"));
        }
    }
}

/// Runs a generation: children as told, leaders on threads; `meanwhile` plays the supervisor, and gets the members.
fn generation(
    arenas: &[Arc<Mapping>; 2],
    members: &mut [Vec<Member>; 2],
    (number, steps): (u64, u64),
    want: &[Vec<u32>],
    meanwhile: impl FnOnce(&mut [Vec<Member>; 2]),
) -> Vec<(u64, Result<(), CollectiveError>)> {
    let hosts = [members[0].len() as u32 + 1, members[1].len() as u32 + 1];
    let topology = Topology::new(&hosts).expect("hosts");
    for (host, members) in members.iter_mut().enumerate() {
        for (member, rank) in members.iter_mut().zip(topology.ranks(host).skip(1)) {
            member.tell(&format!("{number} {rank} {steps} {} {}", hosts[0], hosts[1]));
        }
    }
    std::thread::scope(|scope| {
        let lead = |(host, transport)| {
            let (mapping, rank) = (&arenas[host], topology.leader(host).index());
            scope.spawn(move || take_part(mapping, Some(transport), (number, rank, steps), &hosts, want))
        };
        let leaders: Vec<_> = memory_mesh(2).into_iter().enumerate().map(lead).collect();
        let _stop = StopOnPanic(arenas, Generation(number));
        meanwhile(members);
        leaders.into_iter().map(|leader| leader.join().expect("a leader panicked")).collect()
    })
}

#[test]
fn a_rank_killed_on_one_host_stops_both_and_the_survivors_go_on_in_the_same_arenas() {
    let want = COUNTS.map(|count| reference(LEN, count));
    let files = [3, 2].map(|ranks| {
        ArenaFile::create(WorldSize(ranks), Geometry::bound(LEN, COUNTS[0], Reduce::Exact)).expect("a memfd")
    });
    let arenas = [0, 1].map(|host: usize| files[host].map().expect("mapped"));
    let mut members = [2, 1].map(|_| Vec::new());
    for round in 0..ROUNDS {
        for (host, wanted) in [2, 1].into_iter().enumerate() {
            members[host].resize_with(wanted, || Member::spawn(&files[host], CHILD));
        }
        let key = Key::new(Seed(31), Step(round), MicroBatch(0), Site(0));
        let victim = if key.bits(0).is_multiple_of(3) { (1, 0) } else { (0, key.bits(1) as usize % 2) };
        let number = 2 * round + 1;
        let leaders = generation(&arenas, &mut members, (number, u64::MAX), &want, |members| {
            for member in members.iter_mut().flatten() {
                member.hear("under way");
            }
            (0..key.bits(2) % 500_000).for_each(|_| std::hint::spin_loop());
            members[victim.0][victim.1].kill();
            members[victim.0].remove(victim.1);
            for mapping in &arenas {
                Backend::watcher(mapping.clone(), Generation(number)).abort("a rank was killed");
            }
        });
        let applied = members.iter_mut().flatten().map(|member| member.hear("aborted").expect("a count"));
        let applied: Vec<u64> = applied.chain(leaders.iter().map(|(done, _)| *done)).collect();
        let (least, most) = (applied.iter().min(), applied.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "lockstep: {applied:?}");
        for (_, result) in &leaders {
            // A leader may find the other's end gone before it hears of the abort.
            let stopped =
                matches!(result, Err(CollectiveError::Aborted { .. } | CollectiveError::Lost { .. }));
            assert!(stopped, "{result:?}");
        }
        let leaders = generation(&arenas, &mut members, (number + 1, 10), &want, |members| {
            for member in members.iter_mut().flatten() {
                assert_eq!(member.hear("done"), Some(10), "round {round}");
            }
        });
        assert_eq!(leaders, [(10, Ok(())), (10, Ok(()))], "round {round}");
    }
}
