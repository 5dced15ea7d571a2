//! Whole clusters: shared memory inside each host, encrypted links between their leaders.

use crate::meshes::{hosts, meshes, on_threads};
use dtrain_collective::{Assignment, Backend, Geometry, Op, Reduce, SEGMENT, Sequence, Transport};
use dtrain_oracle::offered::offered_steps;
use dtrain_oracle::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_transport::{ArenaFile, HierarchicalBackend, HierarchicalSetup, Mapping, Topology, memory_mesh};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, WorldSize, cut_evenly};
use std::sync::Arc;

/// A step of each of these counts.
const COUNTS: [u32; 3] = [16, 9, 1];

struct Cluster<'a> {
    topology: &'a Topology,
    arenas: Vec<Arc<Mapping>>,
    ranges: Vec<MicroRange>,
    mode: Reduce,
    segment: usize,
}

impl<'a> Cluster<'a> {
    fn new(topology: &'a Topology, len: usize, mode: Reduce, segment: usize) -> Self {
        let geometry = Geometry::bound(len, COUNTS[0], mode);
        let arena = |host: usize| {
            let ranks = WorldSize(topology.ranks(host).len() as u32);
            ArenaFile::create(ranks, geometry).and_then(|file| file.map()).expect("an arena")
        };
        let arenas = (0..topology.hosts()).map(arena).collect();
        Self { topology, arenas, ranges: cut_evenly(COUNTS[0], topology.world().0), mode, segment }
    }

    /// One backend for each rank; the first of each host has the host's end of the mesh.
    fn join<T: Transport>(&self, generation: u64, ends: Vec<T>) -> Vec<HierarchicalBackend<T>> {
        let mut ends: Vec<Option<T>> = ends.into_iter().map(Some).collect();
        let join = |rank: u32| {
            let (generation, rank) = (Generation(generation), Rank(rank));
            let host = self.topology.host_of(rank);
            let end = if self.topology.leader(host) == rank { ends[host].take() } else { None };
            let setup = HierarchicalSetup {
                membership: Assignment { generation, rank, ranges: self.ranges.clone() },
                topology: self.topology.clone(),
                mode: self.mode,
                counts: &COUNTS,
                segment: self.segment,
            };
            HierarchicalBackend::new(self.arenas[host].clone(), end, setup).expect("a good place")
        };
        (0..self.topology.world().0).map(join).collect()
    }

    fn offered<T: Transport>(&self, generation: u64, ends: Vec<T>) -> Vec<Vec<(Vec<u32>, Trailer)>> {
        on_threads(self.join(generation, ends), |rank, mut backend| {
            offered_steps(&mut backend, rank, self.ranges[rank], &COUNTS)
        })
    }

    fn steps<T: Transport>(&self, generation: u64, ends: Vec<T>) -> Vec<Vec<(Vec<u32>, Trailer)>> {
        on_threads(self.join(generation, ends), |rank, mut backend| {
            let step = |(seq, count): (usize, &u32)| {
                let trailers = compute(backend.arena(), self.ranges[rank], *count, self.mode);
                let op = Op::AllReduce { micro_batches: *count, trailers: &trailers };
                backend.start(Sequence(seq as u64), &op).expect("a sound start");
                let trailer = backend.finish(Sequence(seq as u64)).expect("a sound finish");
                (bits(backend.arena().lease(0)), trailer)
            };
            COUNTS.iter().enumerate().map(step).collect()
        })
    }
}

#[test]
fn clusters_have_the_bits_of_the_plain_tree_and_of_the_queues_generation_after_generation() {
    for ranks in [&[2, 2][..], &[2, 3, 1], &[1, 1, 2, 1]] {
        let topology = Topology::new(ranks).expect("hosts");
        let hosts = hosts(topology.hosts());
        let mut generation = 0;
        for (len, segment) in [(0, 64), (1, 64), (1_003, 64), (2 * SEGMENT + 9, SEGMENT)] {
            for mode in [Reduce::Exact, Reduce::Ring] {
                let cluster = Cluster::new(&topology, len, mode, segment);
                generation += 3;
                let got = cluster.steps(generation, meshes(&hosts, generation));
                let want = match mode {
                    Reduce::Exact => {
                        let step = |count: &u32| (reference(len, *count), reference_trailer(*count));
                        vec![COUNTS.iter().map(step).collect(); topology.world().0 as usize]
                    }
                    Reduce::Ring => cluster.steps(generation + 1, memory_mesh(topology.hosts())),
                };
                assert!(got == want, "{ranks:?}, {len} floats, {mode:?}");
                if mode == Reduce::Exact {
                    let got = cluster.offered(generation + 2, meshes(&hosts, generation + 2));
                    assert!(got == want, "{ranks:?}, {len} floats, offered");
                }
            }
        }
    }
}

#[test]
fn state_is_copied_across_clusters() {
    let topology = Topology::new(&[2, 1, 2]).expect("hosts");
    let hosts = hosts(3);
    let cluster = Cluster::new(&topology, 5_003, Reduce::Exact, 64);
    let lists = copies(topology.world().0);
    on_threads(cluster.join(1, meshes(&hosts, 1)), |rank, mut backend| {
        let mut seq = 0;
        let mut run = |backend: &mut dyn Backend, op: Op<'_>| {
            seq += 1;
            backend.start(Sequence(seq), &op).expect("a sound start");
            assert_eq!(backend.finish(Sequence(seq)), Ok(Trailer::EMPTY));
        };
        for [sources, targets] in &lists {
            before_copy(backend.arena().lease(0), rank, sources);
            run(&mut backend, Op::Copy { sources, targets, len: usize::MAX });
            let right = is_copied(backend.arena().lease(0), rank, sources, targets);
            assert!(right, "rank {rank}, {sources:?} to {targets:?}");
            run(&mut backend, Op::Barrier);
        }
    });
}
