//! Frames out of their time or out of any schedule.

use crate::network::{Flying, Network};
use dtrain_collective::{Arena, CollectiveError, Frame, Op, RankMachine, Reduce, Sequence, Verdict};
use dtrain_oracle::plain::{bits, compute};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, Wire, cut_evenly};

/// Three ranks in an all-reduce, and a frame from rank 1 to rank 2 that has not arrived yet.
fn mid_step(mode: Reduce) -> (Network, Flying) {
    let mut network = Network::new(&cut_evenly(6, 3), &[6, 5], 1_000, mode, 64);
    (0..3).for_each(|rank| network.start_step(rank, Sequence(4), 6));
    let at = network.flying.iter().position(|flying| flying.from == Rank(1) && flying.to == 2);
    let flying = network.flying.remove(at.expect("rank 1 sends to rank 2"));
    (network, flying)
}

fn offer(machine: &mut RankMachine, flying: &Flying) -> Result<Verdict, CollectiveError> {
    machine.handle_frame(&Frame { from: flying.from, header: flying.header, payload: &flying.payload })
}

#[test]
fn a_frame_of_an_older_generation_is_dropped_and_one_of_a_newer_is_left() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let (mut network, flying) = mid_step(mode);
        for (generation, want) in [(4, Verdict::Stale), (6, Verdict::Later), (5, Verdict::Taken)] {
            let mut frame = flying.clone();
            frame.header.tag.generation = Generation(generation);
            assert_eq!(offer(&mut network.machines[2], &frame), Ok(want));
        }
    }
}

#[test]
fn a_frame_of_a_later_collective_waits_and_is_used_in_its_time() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let (mut network, flying) = mid_step(mode);
        let mut early = flying.clone();
        early.header.tag.sequence = Sequence(5);
        assert_eq!(offer(&mut network.machines[2], &early), Ok(Verdict::Later));
        network.flying.push(flying);
        network.settle().expect("a sound run");
        for machine in &mut network.machines {
            machine.finish(Sequence(4));
        }
        // Between two collectives it is still a frame of a later one.
        assert_eq!(offer(&mut network.machines[2], &early), Ok(Verdict::Later));
        (0..3).for_each(|rank| network.start_step(rank, Sequence(5), 6));
        assert_eq!(offer(&mut network.machines[2], &early), Ok(Verdict::Taken));
    }
}

#[test]
fn what_a_peer_sends_ahead_waits_with_it_but_for_what_there_is_room_for() {
    let (len, seq) = (1_000, Sequence(4));
    let mut network = Network::new(&cut_evenly(2, 2), &[2], len, Reduce::Exact, 64);
    let own = compute(network.machines[0].arena(), MicroRange { lo: 0, hi: 1 }, 2, Reduce::Exact);
    // Rank 0 has room for a segment of each root, and has put in nothing yet.
    network.machines[0].offer(seq, 2, len);
    network.start_step(1, seq, 2);
    let frames = std::mem::take(&mut network.flying);
    assert!(frames.len() > 4, "{} frames", frames.len());
    let verdicts = |machine: &mut RankMachine, frames: &[Flying]| {
        let all: Result<Vec<Verdict>, _> = frames.iter().map(|frame| offer(machine, frame)).collect();
        all.expect("sound frames")
    };
    let early = verdicts(&mut network.machines[0], &frames);
    assert!(early[0] == Verdict::Taken && early[1..].iter().all(|verdict| *verdict == Verdict::Later));
    network.machines[0].start(seq, &Op::AllReduce { micro_batches: 2, trailers: &own });
    let rest = verdicts(&mut network.machines[0], &frames[1..]);
    assert!(rest.iter().all(|verdict| *verdict == Verdict::Taken));
    network.send(0);
    network.settle().expect("a sound run");
    let sums: Vec<_> = network
        .machines
        .iter_mut()
        .map(|machine| {
            machine.finish(seq);
            bits(machine.arena().lease(0))
        })
        .collect();
    assert_eq!(sums[0], sums[1]);
    assert!(offer(&mut network.machines[0], &frames[0]).is_err(), "its collective is over");
}

#[test]
fn a_rank_one_collective_ahead_does_not_disturb_the_others() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let mut network = Network::new(&cut_evenly(6, 3), &[6], 500, mode, 64);
        (0..3).for_each(|rank| network.start_step(rank, Sequence(1), 6));
        // Whoever is done goes on at once, while frames of the step before are still flying to the others.
        let (mut finished, mut ahead) = ([0u64; 3], false);
        while finished.iter().any(|done| *done < 5) {
            network.deliver_one().expect("a sound run");
            for (rank, done) in finished.iter_mut().enumerate() {
                if *done < 5 && network.machines[rank].is_done() {
                    *done += 1;
                    network.machines[rank].finish(Sequence(*done));
                    assert_eq!(bits(network.machines[rank].arena().slot(0)), expected(mode));
                    if *done < 5 {
                        network.start_step(rank, Sequence(*done + 1), 6);
                    }
                }
            }
            ahead |= finished.iter().max() > finished.iter().min();
            assert!(
                finished.iter().max().unwrap_or(&0) - finished.iter().min().unwrap_or(&0) <= 1,
                "lockstep"
            );
        }
        assert!(ahead, "the story of this test did not happen");
    }
}

/// The bits of the step above, from a run of its own.
fn expected(mode: Reduce) -> Vec<u32> {
    let mut network = Network::new(&cut_evenly(6, 3), &[6], 500, mode, 500);
    (0..3).for_each(|rank| network.start_step(rank, Sequence(1), 6));
    network.settle().expect("a sound run");
    network.machines[0].finish(Sequence(1));
    bits(network.machines[0].arena().slot(0))
}

#[test]
fn a_frame_that_no_schedule_contains_is_an_error() {
    type Spoil = fn(&mut Flying);
    let spoilers: [(&str, Spoil); 10] = [
        ("round", |f| f.header.tag.round = 77),
        ("part", |f| f.header.tag.part = 9),
        ("segment", |f| f.header.tag.segment = 999),
        ("old collective", |f| f.header.tag.sequence = Sequence(3)),
        ("too long", |f| f.payload.push(1.0)),
        ("too short", |f| f.payload.truncate(f.payload.len() - 1)),
        ("no such rank", |f| f.from = Rank(3)),
        ("own rank", |f| f.from = Rank(2)),
        ("rounded", |f| f.header.wire = Wire::Bf16),
        ("trailer", |f| f.header.trailer = f.header.trailer.xor(Some(Trailer::EMPTY))),
    ];
    for mode in [Reduce::Exact, Reduce::Ring] {
        for (name, spoil) in spoilers {
            let (mut network, mut flying) = mid_step(mode);
            spoil(&mut flying);
            let answer = offer(&mut network.machines[2], &flying);
            assert!(matches!(answer, Err(CollectiveError::Foreign { .. })), "{mode:?} {name}: {answer:?}");
        }
        let (mut network, flying) = mid_step(mode);
        assert_eq!(offer(&mut network.machines[2], &flying), Ok(Verdict::Taken));
        let twice = offer(&mut network.machines[2], &flying);
        assert!(matches!(twice, Err(CollectiveError::Foreign { why: "it came before", .. })), "{twice:?}");
    }
}

#[test]
fn a_sum_that_arrives_before_this_rank_put_in_its_part_is_an_error() {
    let mut network = Network::new(&cut_evenly(6, 3), &[6], 1_000, Reduce::Exact, 64);
    let trailers = compute(network.machines[2].arena(), cut_evenly(6, 3)[2], 6, Reduce::Exact);
    network.machines[2].start(Sequence(1), &Op::AllReduce { micro_batches: 6, trailers: &trailers });
    // Rank 2 has sent nothing yet: a sum from rank 0 would overwrite what rank 2 still has to send.
    let mut header = network.machines[2].poll_send().expect("it has something to send").header;
    (header.tag.round, header.trailer) = (1, None);
    let payload = vec![0.0; 64];
    let frame = Frame { from: Rank(0), header, payload: &payload };
    assert!(matches!(network.machines[2].handle_frame(&frame), Err(CollectiveError::Foreign { .. })));
}

#[test]
fn a_peer_in_another_collective_under_the_same_number_is_found_out() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let (mut network, flying) = mid_step(mode);
        let mut other_count = flying.clone();
        other_count.header.tag.operand = 5;
        let answer = offer(&mut network.machines[2], &other_count);
        assert!(matches!(answer, Err(CollectiveError::Mismatch { from: Rank(1), .. })), "{answer:?}");
    }
}

#[test]
fn in_a_copy_a_frame_from_no_source_or_to_no_target_is_an_error() {
    let mut network = Network::new(&cut_evenly(4, 4), &[4], 1_000, Reduce::Exact, 64);
    let op = Op::Copy { sources: &[Rank(0)], targets: &[Rank(2)], len: usize::MAX };
    (0..4).for_each(|rank| network.machines[rank].start(Sequence(1), &op));
    network.send(0);
    let flying = network.flying.remove(0);
    let mut foreign = flying.clone();
    foreign.from = Rank(1);
    assert!(matches!(offer(&mut network.machines[2], &foreign), Err(CollectiveError::Foreign { .. })));
    assert!(matches!(offer(&mut network.machines[3], &flying), Err(CollectiveError::Foreign { .. })));
    assert_eq!(offer(&mut network.machines[2], &flying), Ok(Verdict::Taken));
    let mut other_lists = flying;
    other_lists.header.tag.operand += 1;
    let answer = offer(&mut network.machines[2], &other_lists);
    assert!(matches!(answer, Err(CollectiveError::Mismatch { from: Rank(0), .. })), "{answer:?}");
}
