//! One story each, on a calm network, in virtual time.

mod harness;

use dtrain_protocol::{
    CheckpointEvery, CheckpointId, Event, Exit, ExitCause, Failure, MAX_PAYLOAD, MemberEffect, Outcome,
    Phase, Reduce, Request, StartFrom, SupervisorEffect, What,
};
use dtrain_types::{Epoch, Generation, Instant, MemberId, MicroBatch, Rank, Step};
use harness::check::Fact;
use harness::{Fault, Plan, World, timeouts};
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);

fn run(plan: Plan) -> (World, Outcome) {
    let mut world = World::new(plan);
    let outcome = world.run();
    (world, outcome)
}

fn first(outcome: &Outcome) -> (MemberId, &What) {
    let Outcome::Failed { first, .. } = outcome else { panic!("a failure, not {outcome:?}") };
    (first.member, &first.what)
}

fn events(world: &World) -> Vec<&Event> {
    let all = world.effects.iter();
    all.filter_map(|effect| if let SupervisorEffect::Event(event) = effect { Some(event) } else { None })
        .collect()
}

#[test]
fn the_first_generation_has_the_number_it_was_given_and_ranges_that_cover_all_micro_batches() {
    let (world, outcome) = run(Plan::calm(3, 6));
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert_eq!(world.supervisor.generation(), Generation(3));
    let seats = &world.supervisor.membership().seats;
    assert_eq!(seats.iter().map(|seat| seat.range.len()).sum::<u32>(), 8);
    let formed = events(&world).iter().filter(|e| matches!(e, Event::Formed { .. })).count();
    assert_eq!(formed, 1, "one membership per generation (S2), and no needless one (L2)");
    let started = events(&world).iter().filter(|e| matches!(e, Event::RankStarted { .. })).count();
    assert_eq!(started, 3);
}

#[test]
fn more_members_than_micro_batches_are_spares_that_take_part() {
    let (world, outcome) = run(Plan::calm(10, 3));
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert!(world.supervisor.membership().seats[9].range.is_empty());
}

#[test]
fn a_member_that_does_not_come_is_left_out_when_the_join_timeout_is_over() {
    let (world, outcome) = run(Plan { absent: vec![1], ..Plan::calm(3, 3) });
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert_eq!(world.supervisor.membership().rank_of(MemberId(1)), None);
    assert!(events(&world).contains(&&Event::LeftOut { member: MemberId(1) }));
    assert!(world.history.contains(&Fact::Killed(MemberId(1))), "it must not come later");
}

#[test]
fn too_few_members_are_no_run_and_the_missing_are_named() {
    let (_, outcome) = run(Plan { absent: vec![0, 2], min_ranks: 2, ..Plan::calm(3, 3) });
    let missing = vec![MemberId(0), MemberId(2)];
    assert_eq!(outcome, Outcome::NotEnough { joined: 1, min_ranks: 2, missing });
}

#[test]
fn a_member_with_another_fingerprint_is_refused_with_both_named_and_the_run_goes_on() {
    let (world, outcome) = run(Plan { other_bits: Some(1), ..Plan::calm(3, 3) });
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    let refused = events(&world)
        .into_iter()
        .find_map(|e| if let Event::Refused(cause) = e { Some(cause) } else { None });
    let cause = refused.expect("an event says so");
    let What::Fingerprint { own, other, against } = &cause.what else { panic!("{cause}") };
    assert_ne!(own, other);
    assert_ne!(cause.member, *against);
}

#[test]
fn a_refusal_that_leaves_too_few_is_the_first_cause() {
    let (_, outcome) = run(Plan { other_bits: Some(1), min_ranks: 2, ..Plan::calm(2, 3) });
    assert!(matches!(first(&outcome).1, What::Fingerprint { .. }));
}

#[test]
fn in_ring_mode_other_fingerprints_are_let_in_and_a_step_counts_once_all_have_reported_it() {
    let (world, outcome) = run(Plan { other_bits: Some(1), reduce: Reduce::Ring, ..Plan::calm(3, 8) });
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    for (i, fact) in world.history.iter().enumerate() {
        let Fact::Committed(step) = fact else { continue };
        let applied = |m| world.history[..i].contains(&Fact::Applied { member: MemberId(m), step: *step });
        assert!((0..3).all(applied), "step {step}");
    }
}

#[test]
fn a_resumed_run_loads_its_checkpoint_and_goes_on_with_the_step_after_it() {
    let id = CheckpointId { generation: Generation(2), step: Step(5) };
    let (world, outcome) = run(Plan { start: StartFrom::Checkpoint(id), ..Plan::calm(2, 9) });
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    let committed = world.history.iter().find(|f| matches!(f, Fact::Committed(_)));
    assert_eq!(committed, Some(&Fact::Committed(Step(6))));
}

#[test]
fn ranks_that_loaded_different_states_never_run() {
    let (world, outcome) = run(Plan { rotten: Some((1, 0)), ..Plan::calm(3, 9) });
    assert_eq!(first(&outcome).0, MemberId(1));
    let Outcome::Failed { first, .. } = &outcome else { return };
    assert_eq!(first.phase, Phase::Sync);
    assert!(matches!(first.what, What::DigestDiffers { step: Step(0), .. }), "{first}");
    assert!(!world.history.iter().any(|f| matches!(f, Fact::Applied { .. })));
}

#[test]
fn a_state_that_drifts_away_is_found_at_the_next_verification() {
    let (_, outcome) = run(Plan { rotten: Some((2, 6)), ..Plan::calm(3, 40) });
    let (_, what) = first(&outcome);
    assert!(matches!(what, What::DigestDiffers { step: Step(6..=8), .. }), "{what}");
}

#[test]
fn a_killed_rank_stops_the_run_at_once_and_is_named_before_its_victims() {
    let at = 700 * MILLI;
    let (world, outcome) = run(Plan { faults: vec![(at, 1, Fault::Kill)], ..Plan::calm(4, 400) });
    assert_eq!(first(&outcome), (MemberId(1), &What::Exited(ExitCause::Signal(9))));
    let Outcome::Failed { first, .. } = &outcome else { return };
    assert_eq!((first.rank, first.host.as_str(), first.phase), (Some(Rank(1)), "host-1", Phase::Run));
    let took = world.now().since(Instant::ZERO + at);
    assert!(took < 100 * MILLI, "{took:?} of virtual time");
}

#[test]
fn a_rank_that_hangs_is_named_as_silent_and_killed() {
    let (world, outcome) = run(Plan { faults: vec![(700 * MILLI, 2, Fault::Hang)], ..Plan::calm(4, 400) });
    assert_eq!(first(&outcome).0, MemberId(2));
    assert!(matches!(first(&outcome).1, What::Silent(_)), "{outcome:?}");
    assert!(world.history.contains(&Fact::Killed(MemberId(2))));
}

/// 1. Ranks 1 and 2 make steps 26 and 27; of rank 1, the compute thread tells its machine of several steps at a time.
/// 2. Rank 0 hangs, so that nobody makes step 28, and the supervisor says stop.
/// 3. Rank 1 leaves and stands at step 25 for all that its machine knows, rank 2 at 27. That is no broken lockstep.
#[test]
fn a_rank_that_leaves_with_steps_untold_is_not_blamed_for_the_hang_of_another() {
    for seed in 0..200 {
        let faults = vec![(700 * MILLI, 0, Fault::Hang)];
        let mut plan = Plan { seed, faults, step: MILLI, ..Plan::calm(4, 4_000) };
        (plan.schedule.verify, plan.schedule.steps_per_epoch) = (0, 1_000);
        let (_, outcome) = run(plan);
        assert!(matches!(first(&outcome), (MemberId(0), What::Silent(_))), "seed {seed}: {outcome:?}");
    }
}

#[test]
fn a_rank_that_says_why_it_failed_is_quoted() {
    let (_, outcome) = run(Plan { faults: vec![(700 * MILLI, 0, Fault::Fail)], ..Plan::calm(3, 400) });
    let why = What::Reported(Failure::Engine("out of memory".to_owned()));
    assert_eq!(first(&outcome), (MemberId(0), &why));
}

/// With an even seed all ranks read in the trailer that a loss was not finite, with an odd one only the owner finds out
/// which micro-batch made the gradient so, and later than the others.
#[test]
fn what_is_not_finite_is_committed_by_nobody_and_the_owner_of_the_micro_batch_is_named() {
    for seed in 0..100 {
        let (world, outcome) = run(Plan { seed, non_finite: Some((7, 5)), ..Plan::calm(4, 20) });
        let owner =
            world.supervisor.membership().seats.iter().find(|s| (s.range.lo..s.range.hi).contains(&5));
        let what = What::Reported(Failure::NonFinite { step: Step(7), micro_batch: Some(MicroBatch(5)) });
        assert_eq!(first(&outcome), (owner.unwrap().member, &what), "seed {seed}");
        let Outcome::Failed { first, .. } = &outcome else { return };
        assert_eq!(first.step, Step(7));
        assert!(world.history.contains(&Fact::Committed(Step(6))));
        assert!(!world.history.contains(&Fact::Committed(Step(7))));
    }
}

#[test]
fn a_drain_stops_all_ranks_after_the_same_step_with_a_checkpoint() {
    let (world, outcome) = run(Plan { requests: vec![(900 * MILLI, Request::Drain)], ..Plan::calm(3, 4000) });
    let Outcome::Interrupted(Some(end)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(end.checkpoint.map(|id| id.step), Some(end.step));
    assert!(end.step > Step(0) && end.step < Step(4000));
    for member in 0..3 {
        assert!(world.history.contains(&Fact::Applied { member: MemberId(member), step: end.step }));
        assert!(!world.history.contains(&Fact::Applied { member: MemberId(member), step: end.step.next() }));
    }
    assert_eq!(world.supervisor.committed(), end.step);
}

#[test]
fn a_drain_before_the_first_step_stops_after_it_and_one_before_a_generation_at_once() {
    for at in 0..30 {
        let requests = vec![(at * 12 * MILLI, Request::Drain)];
        let (world, outcome) = run(Plan { requests, ..Plan::calm(3, 4000) });
        assert!(matches!(outcome, Outcome::Interrupted(_)), "{outcome:?}");
        assert!([0, 3].contains(&world.builds), "a new Directive in a phase builds nothing again");
    }
}

#[test]
fn an_abort_ends_without_a_checkpoint() {
    let requests = vec![(500 * MILLI, Request::Drain), (501 * MILLI, Request::Abort)];
    let (world, outcome) = run(Plan { requests, step: 400 * MILLI, ..Plan::calm(2, 4000) });
    assert_eq!(outcome, Outcome::Interrupted(None));
    assert!(world.now() < Instant::ZERO + 800 * MILLI);
}

#[test]
fn a_full_disk_gives_up_that_checkpoint_and_training_goes_on_to_the_next() {
    let (world, outcome) = run(Plan { disk_full: Some((1, 4)), ..Plan::calm(2, 12) });
    let Outcome::Finished(end) = outcome else { panic!("{outcome:?}") };
    assert_eq!(end.checkpoint.map(|id| id.step), Some(Step(12)));
    let given_up = |e: &&&Event| matches!(e, Event::CheckpointGivenUp { id, member: Some(MemberId(1)), .. } if id.step == Step(4));
    assert_eq!(events(&world).iter().filter(given_up).count(), 1);
    let ordered =
        |step| world.history.iter().any(|f| matches!(f, Fact::Ordered { id, .. } if id.step == Step(step)));
    assert!(!ordered(4) && ordered(8) && ordered(12));
}

#[test]
fn validations_come_once_an_epoch_after_their_step_and_before_their_checkpoint() {
    let (world, _) = run(Plan::calm(3, 8));
    let place = |fact: Fact| world.history.iter().position(|f| *f == fact);
    let validated = place(Fact::Validated(Epoch(0)));
    assert!(place(Fact::Committed(Step(4))) < validated);
    let ordered =
        world.history.iter().position(|f| matches!(f, Fact::Ordered { id, .. } if id.step == Step(4)));
    assert!(validated < ordered);
    let sums: Vec<_> = world
        .effects
        .iter()
        .filter_map(|e| if let SupervisorEffect::Validated(v) = e { Some(v) } else { None })
        .collect();
    assert_eq!(
        sums.iter().map(|v| (v.epoch, v.trailer.samples, v.counts.clone())).collect::<Vec<_>>(),
        [(Epoch(0), 5, vec![5]), (Epoch(1), 5, vec![5]),]
    );
}

#[test]
fn a_very_fast_model_pauses_while_the_supervisor_is_far_away_and_still_finishes() {
    let mut plan = Plan { step: Duration::from_micros(20), delay: 300 * MILLI, ..Plan::calm(2, 12_000) };
    plan.schedule.steps_per_epoch = 6_000;
    plan.schedule.checkpoint = CheckpointEvery::Never;
    let (world, outcome) = run(plan);
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert!(world.pauses > 0, "nobody had to wait");
    assert!(world.largest_message < MAX_PAYLOAD / 16, "{} bytes", world.largest_message);
}

/// However short the intervals are: when a step is made, at most one checkpoint of the steps before it is not settled.
#[test]
fn a_fast_model_is_never_two_checkpoints_ahead_of_the_disk() {
    let mut plan = Plan { step: Duration::from_micros(50), ..Plan::calm(3, 600) };
    plan.schedule.checkpoint = CheckpointEvery::Steps(5);
    let (world, outcome) = run(plan);
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert!(world.holds > 100, "nobody had to wait");
    let (mut written, mut most) = (0, 0);
    for fact in &world.history {
        match fact {
            Fact::Manifest(id) => written = id.step.0,
            Fact::Applied { step, .. } => most = most.max(step.0 - written),
            _ => {}
        }
    }
    assert_eq!(most, 10, "the steps that a crash could cost");
}

/// A person reads the log page by page, or the disk hangs, for longer than any patience: the members wait, nobody is
/// given up, no queue grows.
#[test]
fn a_reader_that_pauses_holds_up_the_run_and_breaks_nothing() {
    let pause = timeouts().patience * 2;
    let mut plan = Plan { step: MILLI, reader_pauses: Some((400, pause)), ..Plan::calm(3, 8_000) };
    (plan.schedule.verify, plan.schedule.steps_per_epoch) = (0, 8_000);
    let (world, outcome) = run(plan);
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert!(world.now() > Instant::ZERO + pause, "it ended at {:?}", world.now());
    assert!(world.pauses > 0, "nobody had to wait");
    assert!(world.most_unwritten <= 400, "{} steps waited to be written", world.most_unwritten);
}

#[test]
fn the_messages_of_a_fast_model_are_few() {
    let mut plan = Plan { step: Duration::from_micros(100), ..Plan::calm(2, 10_000) };
    plan.schedule.steps_per_epoch = 10_000;
    let (world, _) = run(plan);
    let sent = world.effects.iter().filter(|e| matches!(e, SupervisorEffect::Send(_))).count();
    assert!(sent < 1_500, "{sent} directives for 10 000 steps");
}

#[test]
fn a_link_that_does_not_come_back_within_detect_is_a_loss_and_one_that_does_is_none() {
    let mut world = World::new(Plan::calm(3, 400));
    world.run_until(1000 * MILLI);
    world.lose_link(MemberId(1), false);
    let outcome = world.run();
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    let mut world = World::new(Plan::calm(3, 400));
    world.run_until(1000 * MILLI);
    world.lose_link(MemberId(1), true);
    assert_eq!(first(&world.run()), (MemberId(1), &What::LinkLost));
    assert!(world.now() < Instant::ZERO + 2200 * MILLI);
}

#[test]
fn a_host_that_was_asleep_is_no_silence() {
    let (world, outcome) =
        run(Plan { asleep: Some((1000 * MILLI, 3600 * 1000 * MILLI)), ..Plan::calm(3, 400) });
    assert!(world.now() > Instant::ZERO + 3600 * 1000 * MILLI);
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
}

#[test]
fn a_member_without_a_supervisor_gives_up() {
    let mut world = World::new(Plan::calm(1, 400));
    world.run_until(1000 * MILLI);
    let (effects, at) = world.orphan(MemberId(0));
    let times = timeouts();
    assert_eq!(&effects[effects.len() - 2..], [MemberEffect::Abort, MemberEffect::Exit(Exit::Failed)]);
    let waited = at.since(Instant::ZERO + 1000 * MILLI);
    assert!(waited > times.orphan / 2 && waited <= times.orphan, "{waited:?}");
}

#[test]
fn a_second_directive_of_a_phase_builds_nothing_twice() {
    let plan = Plan { repeat: 100, loss: 5, ..Plan::calm(3, 30) };
    let (world, outcome) = run(plan);
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    assert_eq!(world.builds, 3);
}
