//! A supervisor that takes over in the middle of a run: what it asks, whom it waits for, whom it keeps and whom it starts anew; and what
//! a member makes of the words of two supervisors.
//!
//! Words are made by hand here, one machine at a time: what all of them do together is the simulator's.

#[path = "../support/mod.rs"]
mod support;
mod world;

use dtrain_protocol::{
    Digest, Directive, Heartbeat, Left, Limits, Loaded, Member, MemberConfig, MemberEffect, Membership,
    NodeReport, Number, Outcome, Participant, Pending, Phase, ResumePoint, StartFrom, StateSource,
    StepRecord, StopFlag, Supervisor, SupervisorConfig, TakenOver,
};
use dtrain_types::{
    CheckpointId, Epoch, Generation, Holding, Incarnation, Instance, Instant, MemberId, MicroRange, NodeId,
    Step, Trailer,
};
use std::time::Duration;
use support::{profile, timeouts};
use world::{
    Answer, BEFORE, LAST, LEADS, OURS, RECORDED, World, at, config, ended, ending, found, known, left, lives,
};

#[test]
fn all_that_are_found_are_asked_until_they_answer_and_then_form_the_next_generation() {
    let mut world = found();
    assert_eq!(world.asked, [0, 1, 2, 3].map(MemberId));
    world.answers(0, at(8));
    world.asked.clear();
    world.directed.clear();
    world.wait(150);
    assert_eq!(
        world.directed,
        [MemberId(0)],
        "what it has seen is of the one before: the first word to it may be lost"
    );
    assert_eq!(world.asked, [1, 2, 3].map(MemberId), "a question may be lost");
    for member in 1..4 {
        assert_eq!(world.supervisor.generation(), LEADS, "it is not above those before, so it is not named");
        world.answers(member, at(8));
    }
    assert_eq!((world.supervisor.generation(), world.members()), (LEADS.next(), vec![0, 1, 2, 3]));
}

/// 1. Member 1 stands still while the others are asked, and they are about to go on without it.
/// 2. It wakes. *Unsafe*: it stores into memory that they share, or is let in later, with a state that they have left behind.
/// 3. So it is ended first, and what it says then does not count.
#[test]
fn whoever_has_not_answered_in_time_is_ended_before_the_others_go_on_and_started_anew() {
    let mut world = found();
    [0, 2, 3].into_iter().for_each(|member| world.answers(member, at(8)));
    world.wait(950);
    assert!(world.is_kept(0, 1), "it may still answer");
    world.wait(200);
    assert_eq!((world.supervisor.generation(), world.members()), (LEADS.next(), vec![0, 2, 3]));
    assert!(!world.is_kept(0, 1));
    world.answers(1, at(8));
    assert_eq!(world.supervisor.heard_of(MemberId(1)), None, "its state does not count");
    let report = world.host(0, &[lives(0), ended(1)]);
    world.node_says(&NodeReport { instance: Some(OURS), generation: LEADS.next(), ..report });
    let next = world.ordered(0, 1).expect("it has a slot");
    assert!(next.alive && next.incarnation.0 > LEADS.0 as u32, "no life before has this number: {next:?}");
}

/// Steps are made between one Report and the next: by their Reports members of one generation may be any number of steps apart.
#[test]
fn whoever_is_in_the_newest_generation_is_kept_however_old_its_report_is() {
    let mut world = found();
    world.answers(0, at(8));
    world.answers(1, at(4));
    world.answers(2, Answer { generation: Generation(4), ..at(7) });
    world.answers(3, Answer { generation: Generation(4), ..at(6) });
    assert_eq!(
        world.members(),
        [0, 1, 2],
        "a rank that has not entered the newest yet is a step behind at most"
    );
    assert!(world.is_kept(0, 1) && world.is_kept(1, 2) && !world.is_kept(1, 3));
}

/// 1. Host 1 was left out at step 6. The others are at step 7 when they answer, and make step 8 before they hear of the next generation.
/// 2. *Unsafe*: whoever is two steps behind is held to be broken, and the run ends.
#[test]
fn whoever_turns_out_to_be_forgotten_once_all_stand_begins_anew_and_is_no_fault() {
    let mut world = found();
    [0, 1].into_iter().for_each(|member| world.answers(member, at(7)));
    [2, 3]
        .into_iter()
        .for_each(|member| world.answers(member, Answer { generation: Generation(4), ..at(6) }));
    assert_eq!(world.members(), [0, 1, 2, 3], "one step behind is not forgotten, by what they say");
    [(0, 8), (1, 8), (2, 6), (3, 6)].into_iter().for_each(|(member, applied)| world.enters(member, applied));
    assert_eq!((world.members(), world.faults.len()), (vec![0, 1], 0));
    assert!(world.is_kept(0, 1) && !world.is_kept(1, 2) && !world.is_kept(1, 3));
    assert_eq!(world.supervisor.phase(), Phase::Form);
    // Whoever was in the newest generation is not: that would be a fault of ours.
    let mut world = found();
    [0, 1, 2, 3].into_iter().for_each(|member| world.answers(member, at(7)));
    [(0, 8), (1, 8), (2, 6), (3, 8)].into_iter().for_each(|(member, applied)| world.enters(member, applied));
    assert_eq!((world.faults, world.supervisor.phase()), (vec![MemberId(2)], Phase::Stop));
}

/// A record of the last generation.
fn record(step: u64) -> StepRecord {
    StepRecord {
        generation: LAST,
        step: Step(step),
        epoch: Epoch(0),
        trailer: Trailer::EMPTY,
        seconds: 0.1,
        busy: 0.1,
        lr: 1e-3,
        gradient_norm: 1.0,
    }
}

/// The world after all have entered a generation at step 12, with records of these steps, where the books go on to a step.
fn untold(booked: u64, records: [&[StepRecord]; 4]) -> World {
    let mut world = World::of(config(Some(TakenOver { booked: Step(booked), ..known() })));
    world.calls(0, &[lives(0), lives(1)]);
    world.calls(1, &[lives(2), lives(3)]);
    (0..4).for_each(|member| world.answers(member, at(12)));
    world.answered.clear();
    for (member, records) in (0..4).zip(records) {
        world.enters_and_tells(member, 12, records);
    }
    world
}

/// 1. The disk is full: ranks hear that steps 9 to 11 are written down, and the ledger alone has them.
/// 2. The supervisor dies, and what the logs had of them in memory dies with it.
/// 3. *Unsafe*: the next one waits for steps of which nobody has a record, and holds one member after the other to hang.
#[test]
fn steps_that_the_books_have_and_nobody_can_tell_of_are_passed_over() {
    // All of them, and those that a member still has a record of are told as ever.
    let world = untold(12, [&[]; 4]);
    assert_eq!((&world.passed_over[..], world.supervisor.phase()), (&[(9, 12)][..], Phase::Sync));
    let mut world = untold(11, [&[], &[record(12)], &[], &[]]);
    assert_eq!((&world.passed_over[..], world.supervisor.phase()), (&[(9, 11)][..], Phase::Form));
    world.enters_and_tells(1, 12, &[record(12)]);
    assert_eq!((world.supervisor.phase(), world.faults.len()), (Phase::Sync, 0));
    // The books may be ahead of those that are left.
    let world = untold(40, [&[]; 4]);
    assert_eq!((&world.passed_over[..], world.supervisor.phase()), (&[(9, 12)][..], Phase::Sync));
}

#[test]
fn nothing_is_passed_over_that_somebody_can_tell_of() {
    let all: Vec<StepRecord> = (7..=12).map(record).collect();
    let world = untold(12, [&[], &[], &[], &all]);
    assert_eq!((world.passed_over.len(), world.supervisor.phase()), (0, Phase::Sync));
    // One part by one, the rest by another, and in the wrong order.
    let mut world = untold(12, [&all[4..], &all[..4], &[], &[]]);
    assert_eq!((world.passed_over.len(), world.supervisor.phase()), (0, Phase::Form));
    world.enters_and_tells(0, 12, &all[4..]);
    assert_eq!((world.passed_over.len(), world.supervisor.phase()), (0, Phase::Sync));
}

/// What is in no book cannot be told, and the books would end there: its makers begin anew, and it is made again.
#[test]
fn steps_that_are_in_no_book_and_of_which_nobody_can_tell_are_made_again() {
    for booked in [0, 8] {
        let world = untold(booked, [&[], &[record(12)], &[], &[]]);
        assert_eq!((world.passed_over.len(), &world.faults[..]), (0, &[0, 1, 2, 3].map(MemberId)[..]));
        assert!((0..4).all(|member| !world.is_kept(member / 2, member)));
    }
}

#[test]
fn newcomers_get_no_number_while_a_host_may_come_that_has_it() {
    let mut world = World::new();
    world.calls(0, &[]);
    world.wait(2_000);
    assert_eq!(world.ordered(0, 0), None, "whose numbers are free is not known");
    // It starts once more.
    world.boots(0, 8);
    assert_eq!(world.ordered(0, 0), None);
    world.calls(1, &[lives(0), lives(1)]);
    [0, 1].into_iter().for_each(|member| world.answers(member, at(8)));
    assert_eq!(world.members(), [0, 1]);
    let seated = |member| world.ordered(0, member).filter(|life| life.alive);
    assert!(seated(2).is_some() && seated(3).is_some(), "then there is room for two more");
}

#[test]
fn a_host_that_does_not_come_is_waited_for_and_then_no_more() {
    let mut world = World::new();
    world.calls(0, &[lives(0), lives(1)]);
    [0, 1].into_iter().for_each(|member| world.answers(member, at(8)));
    world.wait(4_900);
    assert_eq!(world.supervisor.generation(), LEADS, "those of host 1 may be ahead");
    world.wait(200);
    assert_eq!(world.members(), [0, 1]);
}

/// 1. A run begins with one host of three. Host 1 joins it, and host 2 does not; host 0 dies with the supervisor, and comes back at once.
/// 2. *Unsafe*: it goes on without host 1, which alone has the state, or gives the numbers of its ranks to those of host 2.
#[test]
fn a_host_that_joined_the_run_is_waited_for_and_one_that_did_not_does_not_stand_for_it() {
    let joined = TakenOver { nodes: [NodeId(0), NodeId(1)].into(), ..known() };
    let config = SupervisorConfig { wanted_nodes: 1, most_nodes: 3, ..config(Some(joined)) };
    let mut world = World::of(config);
    world.calls(0, &[]);
    world.calls(2, &[]);
    world.wait(4_900);
    assert_eq!((world.supervisor.generation(), world.ordered(2, 0)), (LEADS, None));
    world.calls(1, &[lives(0), lives(1)]);
    [0, 1].into_iter().for_each(|member| world.answers(member, at(8)));
    assert_eq!((world.members(), world.is_kept(1, 0)), (vec![0, 1], true));
    // One that does not come is waited for no longer than others.
    let joined = TakenOver { nodes: [NodeId(0), NodeId(1)].into(), ..known() };
    let mut world = World::of(SupervisorConfig { wanted_nodes: 1, ..world::config(Some(joined)) });
    world.calls(0, &[lives(0)]);
    world.answers(0, at(8));
    world.wait(4_900);
    assert_eq!(world.supervisor.generation(), LEADS);
    world.wait(200);
    assert_eq!(world.members(), [0]);
}

/// 1. The supervisor dies with host 0. Host 1 leads from now on.
/// 2. *Unsafe*: it waits for host 0 as long as for one that only has to call again, and everybody stands still meanwhile.
#[test]
fn the_host_that_led_before_is_not_waited_for_as_long_as_others() {
    let mut world = World::elsewhere(Some(NodeId(0)));
    world.calls(1, &[lives(2), lives(3)]);
    [2, 3].into_iter().for_each(|member| world.answers(member, at(8)));
    world.wait(400);
    assert_eq!(world.supervisor.generation(), LEADS, "those of host 0 may live, and call");
    world.wait(200);
    assert_eq!(world.members(), [2, 3]);
    // Any other host is.
    let mut world = World::elsewhere(Some(NodeId(0)));
    world.calls(0, &[lives(0), lives(1)]);
    [0, 1].into_iter().for_each(|member| world.answers(member, at(8)));
    world.wait(4_900);
    assert_eq!(world.supervisor.generation(), LEADS, "those of host 1 may be ahead");
}

/// 1. Host 1 is cut off at step 3. The others go on without it; all that they made up to step 8 is in a checkpoint.
/// 2. They die with the supervisor, and host 1 is found. *Unsafe*: it goes on with step 3.
#[test]
fn who_is_behind_the_newest_checkpoint_begins_anew_from_it_and_one_step_is_not_behind() {
    let id = CheckpointId { generation: LAST, step: RECORDED };
    for (applied, kept) in [(7, true), (6, false)] {
        let config = config(Some(known()));
        let mut world = World::of(SupervisorConfig { start: StartFrom::Checkpoint(id), ..config });
        world.calls(0, &[]);
        world.calls(1, &[lives(2), lives(3)]);
        [2, 3].into_iter().for_each(|member| world.answers(member, at(applied)));
        assert_eq!((world.is_kept(1, 2), world.is_kept(1, 3)), (kept, kept), "at {applied}");
        assert_eq!(world.members(), if kept { vec![2, 3] } else { vec![] }, "at {applied}");
    }
}

/// 1. All are told that the run is over. Host 0 has gone, and host 1 stands still with its ranks when the supervisor dies.
/// 2. *Unsafe*: whoever takes over waits for the state, starts anew who has left, and calls the run lost.
#[test]
fn where_the_run_had_ended_whoever_has_not_heard_it_is_told_and_nobody_is_started() {
    let mut world = World::over(RECORDED);
    world.wait(4_000);
    assert_eq!(world.supervisor.outcome(), None, "hosts may call that have not heard it");
    world.calls(1, &[lives(2), left(3)]);
    assert!(world.orders[&NodeId(1)].leave);
    assert_eq!(world.asked, [MemberId(2)]);
    world.answers(2, at(8));
    assert_eq!(world.dismissed, [MemberId(2)]);
    world.wait(900);
    assert_eq!(world.supervisor.outcome(), None, "whoever was told late has as long as the others");
    assert!(world.is_kept(1, 2) && !world.is_kept(1, 3));
    world.answered.clear();
    let report = world.host(1, &[left(2), left(3)]);
    world.node_says(&NodeReport { instance: Some(OURS), generation: LEADS, ..report });
    world.wait(4_000);
    assert_eq!(world.supervisor.outcome(), None, "host 0 may have restarted with the supervisor");
    world.wait(200);
    assert_eq!(world.supervisor.outcome(), Some(&Outcome::Finished(ending(RECORDED))));
    assert_eq!((world.faults, world.supervisor.generation()), (Vec::new(), LEADS));
}

#[test]
fn where_the_run_had_ended_one_that_does_not_go_is_ended_and_one_that_left_before_it_answered_is_no_fault() {
    let mut world = World::over(RECORDED);
    world.calls(0, &[lives(0), lives(1)]);
    world.calls(1, &[left(2), left(3)]);
    world.answers(0, at(8));
    let report = world.host(0, &[lives(0), left(1)]);
    world.node_says(&NodeReport { instance: Some(OURS), generation: LEADS, ..report });
    world.wait(900);
    assert!(world.is_kept(0, 0));
    world.wait(200);
    assert!(!world.is_kept(0, 0), "it stands still");
    assert_eq!(world.supervisor.outcome(), None);
    world.answered.clear();
    let report = world.host(0, &[ended(0), left(1)]);
    world.node_says(&NodeReport { instance: Some(OURS), generation: LEADS, ..report });
    assert_eq!(world.supervisor.outcome(), Some(&Outcome::Finished(ending(RECORDED))), "all hosts are there");
    assert_eq!(world.faults, []);
}

#[test]
fn a_run_that_was_drained_is_no_finished_one_for_whoever_takes_over() {
    let mut world = World::over(Step(7));
    world.calls(0, &[left(0), left(1)]);
    world.calls(1, &[left(2), left(3)]);
    assert_eq!(world.supervisor.outcome(), Some(&Outcome::Interrupted(Some(ending(Step(7))))));
}

/// 1. A supervisor takes over. Host 0 has its order, and member 1 has only been asked when it dies, too.
/// 2. We take over from that one. *Unsafe*: member 1 obeys another life than its node, and is not heard.
#[test]
fn a_member_that_obeys_an_older_supervisor_than_its_node_is_found_too() {
    let mut world = found();
    [0, 2, 3].into_iter().for_each(|member| world.answers(member, at(8)));
    world.answers(1, Answer { obeys: Instance(0), ..at(8) });
    assert_eq!(world.members(), [0, 1, 2, 3]);
    world.wait(1_500);
    assert!(world.is_kept(0, 1), "it is heard until it obeys us");
    let heard = world.supervisor.heard_of(MemberId(1));
    world.answers(1, Answer { obeys: Instance(3), ..at(8) });
    assert_eq!(world.supervisor.heard_of(MemberId(1)), heard, "it obeys somebody else");
}

/// Hosts that lost their link call again within `back`, and the answers of their members come behind that.
#[test]
fn whoever_takes_over_and_stood_still_meanwhile_waits_for_the_found_as_long_as_hosts_need_to_call() {
    let mut world = found();
    [0, 1].into_iter().for_each(|member| world.answers(member, at(8)));
    world.now = world.now + Duration::from_secs(20);
    world.wait(2_000);
    assert_eq!(world.supervisor.generation(), LEADS, "host 1 may be about to call again");
    [2, 3].into_iter().for_each(|member| world.answers(member, at(8)));
    assert_eq!(world.members(), [0, 1, 2, 3]);
    // Also where it knows of one host alone, which is not its own.
    let joined = TakenOver { nodes: [NodeId(1)].into(), vacant: Some(NodeId(0)), ..known() };
    let mut world = World::of(SupervisorConfig { wanted_nodes: 1, ..config(Some(joined)) });
    world.calls(1, &[lives(2), lives(3)]);
    world.answers(2, at(8));
    world.now = world.now + Duration::from_secs(20);
    world.wait(2_000);
    assert_eq!(world.supervisor.generation(), LEADS);
    world.answers(3, at(8));
    assert_eq!(world.members(), [2, 3]);
}

#[test]
fn of_a_host_that_had_other_slots_before_those_that_live_are_found() {
    let mut world = World::new();
    world.calls(0, &[ended(0), ended(1), lives(2), lives(3)]);
    world.calls(1, &[]);
    [2, 3].into_iter().for_each(|member| world.answers(member, at(8)));
    assert_eq!(world.members(), [2, 3]);
    assert!(world.is_kept(0, 2) && world.is_kept(0, 3));
    assert!(world.ordered(1, 0).is_some() && world.ordered(1, 1).is_some(), "the others are for newcomers");
}

/// While others may still come nobody knows who would stay, and the last host that leaves ends the run.
#[test]
fn a_host_that_wants_to_leave_waits_until_it_is_known_who_stays() {
    let mut world = World::new();
    let leaves = NodeReport { leaving: true, ..world.host(0, &[lives(0), lives(1)]) };
    world.node_says(&leaves);
    assert_eq!(world.supervisor.phase(), Phase::Join);
    world.calls(1, &[lives(2), lives(3)]);
    (0..4).for_each(|member| world.answers(member, at(8)));
    assert_eq!(world.members(), [0, 1, 2, 3], "it goes at the next boundary");
}

#[test]
fn whoever_had_ended_before_is_started_anew_and_not_lost_again() {
    let mut world = World::new();
    world.calls(0, &[lives(0), ended(1)]);
    world.calls(1, &[lives(2), lives(3)]);
    let next = world.ordered(0, 1).expect("it has a slot");
    assert!(next.alive && next.incarnation.0 > LEADS.0 as u32, "{next:?}");
    assert_eq!(world.faults, []);
}

/// A life that a host was told to end, and has not yet.
#[test]
fn a_slot_that_another_host_has_is_not_taken_from_it() {
    let mut world = World::new();
    world.calls(0, &[lives(0), lives(1)]);
    world.calls(1, &[lives(1), lives(3)]);
    assert!(world.is_kept(0, 1) && world.is_kept(1, 3));
    assert_eq!(world.ordered(1, 1), None, "whoever is not named ends");
}

#[test]
fn a_node_that_obeys_a_newer_supervisor_is_not_heard() {
    let mut world = World::new();
    let said = world.host(0, &[lives(0)]);
    world.node_says(&NodeReport { instance: Some(Instance(3)), generation: LEADS, ..said.clone() });
    assert_eq!(world.supervisor.heard_of_node(NodeId(0)), None);
    world.node_says(&said);
    assert!(world.supervisor.heard_of_node(NodeId(0)).is_some(), "it obeys one of the past");
    // Whoever begins a run has no life before it.
    let mut first = Supervisor::new(config(None));
    first.handle_node_report(Instant::ZERO, &said, &mut Vec::new());
    assert_eq!(first.heard_of_node(NodeId(0)), None);
}

const MEMBER: MemberId = MemberId(0);

fn directive(instance: Instance, number: u64, generation: Generation, phase: Phase) -> Directive {
    let participant = Participant {
        member: MEMBER,
        incarnation: Incarnation(1),
        node: NodeId(0),
        address: None,
        sees_run_folder: true,
        range: MicroRange { lo: 0, hi: 1 },
    };
    Directive {
        instance,
        generation,
        member: MEMBER,
        incarnation: Incarnation(1),
        number: Number(number),
        phase,
        membership: Membership { participants: vec![participant], unmirrored: 0 },
        resume_point: ResumePoint { step: Step(0), source: StateSource::Start(StartFrom::Fresh) },
        bootstrap: None,
        pending: Pending::default(),
        acknowledged: Step(0),
        validated: Step(0),
        enough: None,
        settled: CheckpointId::default(),
        stop: StopFlag::default(),
    }
}

/// A member that has made two steps in the last generation, and told of them.
fn running() -> (Instant, Member) {
    let mut member = Member::new(MemberConfig {
        member: MEMBER,
        incarnation: Incarnation(1),
        profile: profile(),
        timeouts: timeouts(),
        limits: Limits::default(),
    });
    let (mut now, mut effects) = (Instant::ZERO, Vec::new());
    member.start(now, &mut effects);
    member.handle_directive(now, &directive(BEFORE, 11, LAST, Phase::Form), &mut effects);
    member.handle_left(now, Left { generation: LAST, applied: None, bootstrap: None }, &mut effects);
    member.handle_directive(now, &directive(BEFORE, 12, LAST, Phase::Sync), &mut effects);
    member.handle_built(LAST, &mut effects);
    let (holding, state_digest) = (Holding::whole(), Digest([7; 32]));
    member.handle_loaded(
        now,
        Loaded { generation: LAST, applied: Step(0), holding, state_digest },
        &mut effects,
    );
    member.handle_directive(now, &directive(BEFORE, 13, LAST, Phase::Run), &mut effects);
    for step in 1..=2 {
        now = now + Duration::from_millis(100);
        let record = StepRecord {
            generation: LAST,
            step: Step(step),
            epoch: Epoch(0),
            trailer: Trailer { weight: 1.0, samples: 1, ..Trailer::EMPTY },
            seconds: 0.1,
            busy: 0.05,
            lr: 1e-3,
            gradient_norm: 1.0,
        };
        member.handle_step(now, record, &mut effects);
    }
    (now, member)
}

/// What it says within a heartbeat.
fn words(now: &mut Instant, member: &mut Member) -> Vec<MemberEffect> {
    let mut effects = Vec::new();
    let until = *now + timeouts().heartbeat;
    while let Some(due) = member.next_deadline().filter(|due| *due <= until) {
        *now = due;
        member.handle_timeout(due, &mut effects);
    }
    *now = until;
    effects
}

fn question(instance: Instance, generation: Generation) -> Heartbeat {
    Heartbeat { instance, generation, member: MEMBER, incarnation: Incarnation(1), number: Number(0) }
}

#[test]
fn a_member_answers_a_supervisor_of_a_newer_generation_by_a_whole_report_and_no_other() {
    let (mut now, mut member) = running();
    // All that it told is written down: it says no more than that it lives.
    let all = Directive { acknowledged: Step(2), ..directive(BEFORE, 14, LAST, Phase::Run) };
    member.handle_directive(now, &all, &mut Vec::new());
    words(&mut now, &mut member);
    let whole = |effects: &[MemberEffect]| effects.iter().any(|e| matches!(e, MemberEffect::Send(_)));
    for of_the_past in [Generation(4), LAST] {
        member.handle_heartbeat(now, &question(Instance(0), of_the_past));
        assert!(
            !whole(&words(&mut now, &mut member)),
            "a supervisor of generation {of_the_past} is of the past"
        );
    }
    member.handle_heartbeat(now, &question(OURS, LEADS));
    assert!(whole(&words(&mut now, &mut member)));
    assert_eq!(member.obeys(), Some(BEFORE), "a question binds nobody");
}

#[test]
fn a_member_obeys_another_supervisor_once_it_names_a_newer_generation_and_counts_its_words_anew() {
    let (now, mut member) = running();
    let mut effects = Vec::new();
    member.handle_directive(now, &directive(OURS, 50, LAST, Phase::Join), &mut effects);
    assert_eq!((member.obeys(), member.seen()), (Some(BEFORE), Number(13)));
    member.handle_directive(now, &directive(OURS, 1, LEADS.next(), Phase::Form), &mut effects);
    assert_eq!((member.obeys(), member.seen()), (Some(OURS), Number(1)));
    effects.clear();
    // It has not left the last generation yet, and is not in the next one: whoever led the last is of the past nevertheless.
    member.handle_directive(now, &directive(BEFORE, 99, LEADS, Phase::Form), &mut effects);
    assert_eq!((member.obeys(), member.seen(), effects), (Some(OURS), Number(1), Vec::new()));
}
