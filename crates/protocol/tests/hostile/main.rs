//! Whatever a peer says, under a good checksum, gives an error or a fault: no machine panics, and none grows beyond bounds.
//!
//! A small world is brought to *run*; then valid messages are changed at random places and told to its machines.
//! `PROPTEST_CASES=1000000` makes it run for longer.

#[path = "../support/mod.rs"]
mod support;
mod world;

use dtrain_protocol::{
    BootId, Decoder, Digest, Event, Every, ExitCause, Finished, HEADER_BYTES, Limits, Member, MemberConfig,
    MemberEffect, Message, Node, NodeConfig, NodeReport, Number, Outcome, Phase, Report, Schedule, ShardFile,
    ShardOutcome, ShardReport, Supervisor, SupervisorConfig, SupervisorEffect, ValidationPart, encode,
};
use dtrain_types::{
    Bytes, CheckpointId, Generation, Incarnation, Instant, MemberId, MicroRange, NodeId, Rank, Remirror,
    Step, Trailer,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use support::{profile, timeouts};
use world::{RANKS, World, config, made};

/// The frame of a message with some bytes changed, cut or doubled, sealed again.
fn changed(
    message: &Message,
    changes: &[(prop::sample::Index, u8)],
    cut: Option<prop::sample::Index>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("it fits");
    if let Some(cut) = cut {
        bytes.truncate(HEADER_BYTES + cut.index(bytes.len() - HEADER_BYTES) + 1);
    }
    for (place, value) in changes {
        let at = HEADER_BYTES + place.index(bytes.len() - HEADER_BYTES);
        bytes[at] = *value;
    }
    let length = (bytes.len() - HEADER_BYTES) as u32;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[HEADER_BYTES..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Small values are met more often than others: they are numbers, tags and lengths.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![3 => 0u8..6, 1 => any::<u8>(), 1 => Just(0xff)]
}

type Word = (prop::sample::Index, Vec<(prop::sample::Index, u8)>, Option<prop::sample::Index>, u64);

fn words() -> impl Strategy<Value = Vec<Word>> {
    let change = prop::collection::vec((any::<prop::sample::Index>(), byte()), 0..5);
    let cut = prop::option::weighted(0.1, any::<prop::sample::Index>());
    prop::collection::vec((any::<prop::sample::Index>(), change, cut, 0u64..400), 1..20)
}

proptest! {
    #[test]
    fn changed_words_under_a_good_checksum_never_panic_a_machine(words in words()) {
        let mut world = World::in_run();
        let said = world.said.clone();
        for (which, changes, cut, pause) in words {
            let bytes = changed(&said[which.index(said.len())], &changes, cut);
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            if let Ok(Some(message)) = decoder.pull() {
                world.hear(message);
            }
            if pause > 300 {
                world.wait(pause);
            }
            prop_assert!(world.said.len() < 100_000, "a word is answered by a flood");
        }
    }

    #[test]
    fn a_generation_meets_by_what_its_rank_zero_made_in_it_and_by_nothing_older(
        turns in prop::collection::vec((0..RANKS, any::<prop::sample::Index>(), 1u64..800), 1..12),
    ) {
        let mut world = World::in_run();
        for (victim, old, pause) in turns {
            world.kill(MemberId(victim));
            // A word of any time before comes once more, late.
            let word = world.said[old.index(world.said.len())].clone();
            world.hear(word);
            world.wait(pause);
        }
        for (generation, first, bootstrap) in &world.built {
            prop_assert_eq!(bootstrap, &Some(made(*generation, *first)), "generation {}", generation);
        }
        let newest = world.built.iter().map(|(generation, ..)| *generation).max();
        prop_assert!(newest > Some(Generation(1)), "a member was killed, and nobody built anew");
    }
}

#[test]
fn a_world_that_nobody_disturbs_commits_its_steps() {
    let world = World::in_run();
    assert_eq!(world.supervisor.committed(), Step(3));
    assert!(
        world.said.iter().any(|word| matches!(word, Message::Report(report) if !report.steps.is_empty()))
    );
    assert_eq!(world.members.len(), RANKS as usize);
}

/// A disk that refuses to reserve the number of a generation, and is well again later: the world waits and goes on.
#[test]
fn a_generation_whose_number_could_not_be_reserved_is_asked_for_again() {
    let mut world = World::with_reserved(Generation(1));
    let generation = world.supervisor.generation();
    world.wait(1);
    world.deaf_disk = true;
    let dead = MemberId(1);
    let (now, mut effects) = (world.now, Vec::new());
    world.node.handle_ended(now, dead, Incarnation(1), ExitCause::Signal(9), &mut effects);
    world.run_node(effects);
    assert_eq!(world.supervisor.phase(), Phase::Join, "no number is left for the survivors' generation");
    for _ in 0..5 {
        world.wait_for_the_deadline();
    }
    assert_eq!(world.supervisor.generation(), generation);
    world.deaf_disk = false;
    for _ in 0..5 {
        world.wait_for_the_deadline();
    }
    assert!(world.supervisor.generation() > generation);
    assert_eq!(world.supervisor.phase(), Phase::Run);
}

/// Whoever copies a state has no record of the steps that led to it: were the supervisor to die with all who have, nobody could tell of
/// them.
#[test]
fn a_state_is_copied_once_the_steps_that_led_to_it_are_written_down() {
    let mut world = World::in_run();
    world.slow_journal = true;
    world.step(4);
    world.wait(200);
    assert_eq!(world.supervisor.committed(), Step(4));
    world.kill(MemberId(1));
    assert_eq!(world.supervisor.phase(), Phase::Form);
    let (now, mut effects) = (world.now, Vec::new());
    world.supervisor.handle_recorded(now, Step(4), &mut effects);
    world.run_supervisor(effects);
    assert_eq!(world.supervisor.phase(), Phase::Run);
}

/// A disk that takes its time is nobody's hang, and nobody makes a step whose ranges a supervisor that took over would not know.
#[test]
fn a_generation_begins_once_it_is_written_down_who_computes_what_however_long_that_takes() {
    let mut world = World::in_run();
    world.slow_ranges = true;
    world.wait(1);
    world.kill(MemberId(1));
    let generation = world.supervisor.generation();
    let until = world.now + 2 * timeouts().patience;
    while world.now < until {
        world.wait_for_the_deadline();
    }
    assert_eq!((world.supervisor.phase(), world.supervisor.generation()), (Phase::Sync, generation));
    let (now, mut effects) = (world.now, Vec::new());
    world.supervisor.handle_ranges(now, Generation(generation.0 - 1), &mut effects);
    assert_eq!(world.supervisor.phase(), Phase::Sync, "that is another one");
    world.supervisor.handle_ranges(now, generation, &mut effects);
    world.run_supervisor(effects);
    assert_eq!((world.supervisor.phase(), world.supervisor.generation()), (Phase::Run, generation));
}

/// A second wall behind the order of a link, over which the last words of a life come before the news of its end.
#[test]
fn a_report_of_a_life_that_has_ended_says_nothing_of_the_next_one() {
    let mut world = World::in_run();
    let member = MemberId(1);
    let said = |message: &Message| match message {
        Message::Report(report) if report.member == member => Some(Report::clone(report)),
        _ => None,
    };
    let mut late = world.said.iter().rev().find_map(said).expect("it made steps");
    world.kill(member);
    let heard = world.supervisor.heard_of(member).expect("it has come back");
    assert_eq!((late.incarnation, heard.0), (Incarnation(1), Incarnation(2)));
    late.number.0 += 1_000;
    world.report(&late);
    assert_eq!(world.supervisor.heard_of(member), Some(heard));
}

/// A second wall behind the agenda, on which a checkpoint follows the validation of its step once that is recorded.
#[test]
fn no_manifest_is_written_before_the_validations_up_to_its_step_are_recorded() {
    let mut world = World::in_run();
    let (generation, now) = (world.supervisor.generation(), world.now);
    let id = CheckpointId { generation, step: Step(3) };
    let members: Vec<MemberId> = world.members.keys().copied().collect();
    let tell = |world: &mut World, tell: &dyn Fn(&mut Member, usize, &mut Vec<MemberEffect>)| {
        for (rank, member) in members.iter().enumerate() {
            let mut effects = Vec::new();
            tell(world.members.get_mut(member).expect("it lives"), rank, &mut effects);
            world.run_member(*member, effects);
        }
        world.wait(200);
        world.wake_members();
    };
    tell(&mut world, &|member, rank, effects| {
        let file =
            ShardFile { name: format!("shard-{rank}"), bytes: Bytes(1), digest: Digest([rank as u8; 32]) };
        let outcome = ShardOutcome::Durable { file, digest: Digest([1; 32]), state_digest: Digest([2; 32]) };
        member.handle_shard(now, ShardReport { id, rank: Rank(rank as u32), outcome }, effects);
    });
    let told = |message: &&Message| matches!(message, Message::Report(report) if !report.shards.is_empty());
    assert!(world.said.iter().filter(told).count() >= members.len(), "all have told of their shards");
    assert_eq!(world.manifests, [], "the validation after step 2 is not there");
    tell(&mut world, &|member, rank, effects| {
        let ranges = [(0, 2), (2, 3), (3, 4)].map(|(lo, hi)| MicroRange { lo, hi });
        let trailer = Trailer { weight: 1.0, samples: 1, ..Trailer::EMPTY };
        let parts = vec![(ranges[rank], trailer)];
        let part = ValidationPart { step: Step(2), parts, counts: Vec::new() };
        member.handle_validation(now, generation, part, effects);
    });
    assert_eq!(world.manifests, [id]);
}

/// 1. All have made the last step, and the ending is being written down.
/// 2. A rank dies. *Unsafe*: the others are put together again without it, to do nothing.
#[test]
fn nobody_is_told_that_the_run_is_over_before_it_is_written_down_and_who_dies_meanwhile_is_not_missed() {
    let usual = config(Generation(100));
    let never = Every::Never;
    let schedule = Schedule {
        last: Step(3),
        validation_micro_batches: 0,
        verify: 0,
        checkpoint: never,
        ..usual.schedule
    };
    let mut world = World::of(SupervisorConfig { schedule, ..usual });
    let (now, generation) = (world.now, world.supervisor.generation());
    for member in world.members.keys().copied().collect::<Vec<_>>() {
        let (digest, state_digest) = (Digest([1; 32]), Digest([7; 32]));
        let finished = Finished { step: Step(3), digest, state_digest, device_peak: None };
        assert_eq!(world.endings, []);
        let mut effects = Vec::new();
        world.members.get_mut(&member).expect("it lives").handle_finished(
            now,
            generation,
            finished,
            &mut effects,
        );
        world.run_member(member, effects);
    }
    assert_eq!(world.endings.len(), 1);
    world.wait(1);
    let until = world.now + 2 * timeouts().progress;
    while world.now < until {
        world.wait_for_the_deadline();
    }
    world.kill(MemberId(1));
    world.wait_for_the_deadline();
    assert_eq!((world.supervisor.phase(), world.supervisor.generation()), (Phase::Run, generation));
    let says = |world: &World, phase| {
        let of =
            |message: &&Message| matches!(message, Message::Directive(directive) if directive.phase == phase);
        world.said.iter().filter(of).count()
    };
    assert_eq!((says(&world, Phase::Finish), world.endings.len(), world.members.len()), (0, 1, 3));
    let (now, mut effects) = (world.now, Vec::new());
    world.supervisor.handle_ending(now, &mut effects);
    world.run_supervisor(effects);
    assert_eq!((world.supervisor.phase(), says(&world, Phase::Finish)), (Phase::Finish, 2));
    [0, 2].into_iter().for_each(|member| world.leave(MemberId(member)));
    assert!(matches!(world.supervisor.outcome(), Some(Outcome::Finished(end)) if *end == world.endings[0]));
}

/// Whoever holds shards lends the disk what it has, and updates it only when that is read; whoever copies its state goes on.
#[test]
fn a_slow_disk_under_a_checkpoint_is_no_hang_of_those_that_lend_it_what_they_hold() {
    for (sharded, hangs) in [(Some(Remirror::Now), false), (None, true)] {
        let usual = config(Generation(100));
        let schedule = Schedule { validation_micro_batches: 0, ..usual.schedule };
        let mut world = World::of(SupervisorConfig { sharded, schedule, ..usual });
        // The checkpoint behind step 3 is due, some steps come behind it, and then nothing moves.
        (4..=5).for_each(|step| world.step(step));
        let (members, until) = (world.members.len(), world.now + 2 * timeouts().progress);
        assert_eq!((world.supervisor.generation(), members), (Generation(1), 3));
        while world.now < until {
            world.wait(100);
            world.wake_members();
        }
        assert_eq!(world.supervisor.generation() > Generation(1), hangs, "{sharded:?}");
    }
}

/// *A drain while lost steps are made again*: whoever is told that a step is acknowledged forgets its record, and with it the flag that
/// the supervisor has not read yet.
#[test]
fn after_a_run_went_back_no_step_is_acknowledged_before_it_is_told_again() {
    let mut world = World::in_run();
    assert_eq!(world.supervisor.committed(), Step(3));
    // The host starts anew, and nobody holds a state any more.
    let (timeouts, mut effects) = (timeouts(), Vec::new());
    let config = NodeConfig { node: NodeId(0), boot: BootId(2), host: "a".into(), ranks: RANKS, timeouts };
    (world.node, world.members) = (Node::new(config), BTreeMap::new());
    world.said.clear();
    world.node.start(world.now, &mut effects);
    world.run_node(effects);
    let acknowledged = |world: &World| {
        let newest = world.said.iter().rev().find_map(|message| match message {
            Message::Directive(directive) if directive.phase == Phase::Run => Some(directive.acknowledged),
            _ => None,
        });
        newest.expect("the run goes on")
    };
    assert_eq!((world.supervisor.phase(), acknowledged(&world)), (Phase::Run, Step(0)));
    world.step(1);
    world.wait(200);
    assert_eq!((world.supervisor.committed(), acknowledged(&world)), (Step(3), Step(1)));
}

#[test]
fn a_supervisor_that_stood_still_says_so_once_and_whatever_comes_first_it_blames_nobody() {
    let mut world = World::in_run();
    let word = world.said.iter().rev().find(|word| matches!(word, Message::Report(_))).expect("one").clone();
    let Message::Report(report) = word else { unreachable!("it is one") };
    let stood = |effects: &[SupervisorEffect]| {
        let said = |effect: &&SupervisorEffect| matches!(effect, SupervisorEffect::Event(Event::StoodStill { length }) if length.as_secs() >= 29);
        effects.iter().filter(said).count()
    };
    for first in [true, false] {
        world.now = world.now + Duration::from_secs(30);
        let (now, mut effects) = (world.now, Vec::new());
        if first {
            world.supervisor.handle_report(now, &report, &mut effects);
        }
        world.supervisor.handle_timeout(now, &mut effects);
        world.supervisor.handle_report(now, &report, &mut effects);
        world.supervisor.handle_timeout(now, &mut effects);
        assert_eq!(stood(&effects), 1, "{effects:?}");
        let blames = |effect: &SupervisorEffect| matches!(effect, SupervisorEffect::Event(Event::Fault(_)));
        assert!(!effects.iter().any(blames), "{effects:?}");
        assert!(world.supervisor.next_deadline() > Some(now), "a driver would spin");
        world.run_supervisor(effects);
    }
}

/// A break is nearly always the noise of a death, and the news of that lies unread.
#[test]
fn a_death_that_was_slept_through_is_heard_before_what_it_broke_is_mended() {
    let mut world = World::in_run();
    let generation = world.supervisor.generation();
    let (now, mut effects) = (world.now, Vec::new());
    let member = world.members.get_mut(&MemberId(0)).expect("it is there");
    member.handle_broken(now, generation, "a peer hung up", Vec::new(), &mut effects);
    world.run_member(MemberId(0), effects);
    world.wait(30_000);
    assert_eq!(world.supervisor.generation(), generation);
    world.kill(MemberId(1));
    assert_eq!(world.supervisor.generation(), generation.next(), "one generation for one death");
    assert_eq!(world.supervisor.phase(), Phase::Run);
}

/// The words of the others lie unread behind the first one.
#[test]
fn a_supervisor_that_slept_through_the_beginning_waits_for_all_whose_words_are_on_the_way() {
    let mut supervisor = Supervisor::new(config(Generation(100)));
    let (mut now, mut effects) = (Instant::ZERO, Vec::new());
    supervisor.start(now);
    let report = NodeReport {
        instance: None,
        generation: Generation(0),
        node: NodeId(0),
        boot: BootId(1),
        number: Number(1),
        seen: Number(0),
        host: "a".into(),
        ranks: RANKS,
        lives: Vec::new(),
        leaving: false,
    };
    supervisor.handle_node_report(now, &report, &mut effects);
    for member in (0..RANKS).map(MemberId) {
        assert_eq!(supervisor.phase(), Phase::Join);
        let (profile, timeouts, limits) = (profile(), timeouts(), Limits::default());
        let config = MemberConfig { member, incarnation: Incarnation(1), profile, timeouts, limits };
        let mut said = Vec::new();
        Member::new(config).start(now, &mut said);
        let Some(MemberEffect::Send(report)) = said.first() else { panic!("{said:?}") };
        supervisor.handle_report(now, report, &mut effects);
        // Longer than anybody waits for the others, once.
        now = now + if member == MemberId(0) { Duration::from_secs(70) } else { Duration::ZERO };
    }
    assert_eq!(supervisor.phase(), Phase::Form);
    assert_eq!(supervisor.membership().world().0, RANKS);
}
