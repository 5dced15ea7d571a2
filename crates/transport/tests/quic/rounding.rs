//! Sums in bf16 between hosts: the bits of the rounded tree, and half the bytes, as a listener on the wire counts them.

use crate::capture::Relay;
use crate::meshes::{Host, addrs, hosts, meshes, on_threads, plan};
use dtrain_collective::{
    Assignment, Backend, Geometry, HostBackend, Op, RankMachine, Reduce, SEGMENT, Sequence, Take, Transport,
};
use dtrain_oracle::halves::{reference, rounded};
use dtrain_oracle::plain::{bits, compute_rounded, reference_trailer};
use dtrain_transport::memory_mesh;
use dtrain_transport::quic::{QuicMesh, Token, Tuning};
use dtrain_types::{Generation, Rank, Wire, cut_evenly};

const COUNTS: [u32; 3] = [16, 9, 1];

/// A step of each count on one rank for each end, and the copy of what they have then; gives the bits of each sum.
fn steps<T: Transport>(
    ends: Vec<T>,
    generation: u64,
    (len, segment): (usize, usize),
    mode: Reduce,
    wire: Wire,
) -> Vec<Vec<Vec<u32>>> {
    let ranges = cut_evenly(COUNTS[0], ends.len() as u32);
    let geometry = Geometry::plan(len, &ranges, &COUNTS, mode);
    let ends: Vec<_> = ends.into_iter().collect();
    on_threads(ends, |rank, end| {
        let (generation, at) = (Generation(generation), Rank(rank as u32));
        let membership = Assignment { generation, rank: at, ranges: ranges.clone() };
        let machine = RankMachine::with_segment(membership, mode, geometry, segment).expect("good");
        let mut backend = HostBackend::from_machine(end, machine).with_wire(wire);
        backend.prepare(&COUNTS);
        let round = if wire == Wire::Bf16 { rounded } else { |x| x };
        let step = |(seq, count): (usize, &u32)| {
            let seq = Sequence(seq as u64);
            let trailers = compute_rounded(backend.arena(), ranges[rank], *count, mode, round);
            let op = Op::AllReduce { micro_batches: *count, trailers: &trailers };
            backend.start(seq, &op).expect("a sound start");
            let trailer = backend.finish(seq).expect("a sound finish");
            assert!(mode == Reduce::Ring || trailer == reference_trailer(*count));
            bits(backend.arena().lease(0))
        };
        let sums = COUNTS.iter().enumerate().map(step).collect();
        // State that is copied has all of its bits.
        backend.arena().lease(0).fill(0.1);
        backend.start(Sequence(9), &Op::AllGather { cuts: None, take: Take::All }).expect("a sound start");
        backend.finish(Sequence(9)).expect("a sound finish");
        assert!(backend.arena().lease(0).iter().all(|x| *x == 0.1));
        sums
    })
}

#[test]
fn rounded_sums_between_hosts_have_the_bits_of_the_rounded_tree_and_of_the_queues() {
    for world in [1, 2, 3, 5] {
        let hosts = hosts(world);
        let mut generation = 0;
        for size in [(1, 64), (1_237, 64), (SEGMENT + 77, SEGMENT)] {
            for mode in [Reduce::Exact, Reduce::Ring] {
                generation += 1;
                let got = steps(meshes(&hosts, generation), generation, size, mode, Wire::Bf16);
                let want = match mode {
                    Reduce::Exact => vec![COUNTS.map(|count| reference(size.0, count)).to_vec(); world],
                    Reduce::Ring => steps(memory_mesh(world), generation, size, mode, Wire::Bf16),
                };
                assert!(got == want, "world {world}, {size:?}, {mode:?}");
            }
        }
    }
}

/// Bytes a float and step that go from one host of two to the other, and back, as a listener between them counts.
fn bytes_a_float(wire: Wire) -> [f64; 2] {
    const LEN: usize = 40_000;
    let token = Token::generate();
    let hosts: Vec<Host> = (0..2).map(|_| Host::new(&token, Tuning::default())).collect();
    let mut peers = addrs(&hosts);
    let relay = Relay::to(peers[1]);
    peers[1] = relay.addr;
    let ends = on_threads(hosts.iter().collect(), |index, host: &Host| {
        QuicMesh::connect(&host.port, plan(1, index, &peers)).expect("all are there")
    });
    let before = relay.carried();
    // The state that is copied once at the end has all its bytes: half the buffer each way.
    let of_copy = LEN * 4 / 2;
    steps(ends, 1, (LEN, SEGMENT), Reduce::Ring, wire);
    let after = relay.carried();
    [0, 1].map(|way| ((after[way] - before[way]) - of_copy) as f64 / (LEN * COUNTS.len()) as f64)
}

#[test]
fn a_rounded_float_takes_half_the_bytes_between_hosts() {
    // Around a ring of two each float crosses once each way: as a part, or as a sum. The last step has one micro-batch, so
    // that one of the two has no part: two thirds and a half of all steps, at least.
    // A machine that is busy can only add to them: what it takes for lost is sent again.
    let least = |wire| {
        let counted = [(); 3].map(|()| bytes_a_float(wire));
        [0, 1].map(|way| counted.iter().map(|bytes| bytes[way]).fold(f64::INFINITY, f64::min))
    };
    let (plain, halves) = (least(Wire::F32), least(Wire::Bf16));
    println!("bytes a float each way: {plain:?} in f32, {halves:?} in bf16");
    for way in [0, 1] {
        assert!(plain[way] > 3.0, "{plain:?}");
        let ratio = halves[way] / plain[way];
        assert!((0.4..0.65).contains(&ratio), "{halves:?} of {plain:?}");
    }
}
