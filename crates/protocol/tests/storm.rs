//! Whole runs under a network that loses, repeats, delays and reorders, with and without deaths, in virtual time.
//!
//! Fixed seeds and a few fresh ones; a failure prints its seed, and `DTRAIN_SIM_SEEDS=1,2,3` runs just those.

mod harness;

use dtrain_protocol::{CheckpointEvery, ExitCause, Failure, Outcome, Reduce, Stage, What};
use dtrain_types::{MemberId, Step};
use harness::check::{
    Fact, applied_differs_by_at_most_one, manifests_have_all_shards, steps_are_committed_once_and_in_order,
    validations_are_recorded_once,
};
use harness::{Fault, Plan, Rng, World};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Seeds that found something: shards said again while their manifest was written; more shards than fit into a report,
/// finished in any order; a later checkpoint settled before an earlier one; a hang that only its victims spoke of; a failure
/// before the data plane was built.
const STORIES: [u64; 5] = [7, 241519953300172578, 717086681911867026, 147474542848621853, 727747932033449796];
const FIXED: u64 = 60;
const FRESH: u64 = 12;

/// The seeds of this run: those of the environment, or the fixed and some fresh ones.
fn seeds() -> Vec<u64> {
    if let Ok(list) = std::env::var("DTRAIN_SIM_SEEDS") {
        return list
            .split(',')
            .map(|s| s.trim().parse().expect("DTRAIN_SIM_SEEDS is a list of numbers"))
            .collect();
    }
    let fresh = RandomState::new();
    STORIES.into_iter().chain(0..FIXED).chain((0..FRESH).map(|i| fresh.hash_one(i))).collect()
}

fn storm(seed: u64) -> Plan {
    let mut rng = Rng(seed ^ 0xD1CE);
    let members = 1 + rng.below(5) as u32;
    let mut plan = Plan::calm(members, 5 + rng.below(40));
    plan.seed = seed;
    plan.reduce = if rng.percent(30) { Reduce::Ring } else { Reduce::Exact };
    plan.schedule.checkpoint =
        [CheckpointEvery::Steps(3), CheckpointEvery::Epochs(2), CheckpointEvery::End][rng.below(3) as usize];
    plan.loss = rng.below(10);
    plan.repeat = rng.below(20);
    plan.delay = Duration::from_millis(1 + rng.below(40));
    plan.step = Duration::from_micros(100 + rng.below(60_000));
    plan
}

/// Checks what holds of every history; gives the last committed step.
fn judge(world: &World) -> Result<Step, String> {
    let start = world.plan.start.step();
    let members: Vec<MemberId> = world.supervisor.membership().seats.iter().map(|seat| seat.member).collect();
    applied_differs_by_at_most_one(&world.history, &members, start)?;
    manifests_have_all_shards(&world.history, start)?;
    validations_are_recorded_once(&world.history)?;
    steps_are_committed_once_and_in_order(&world.history, start)
}

#[test]
fn without_deaths_every_run_finishes_with_every_step_validation_and_checkpoint() {
    for seed in seeds() {
        let mut world = World::new(storm(seed));
        let outcome = world.run();
        let Outcome::Finished(end) = outcome else { panic!("DTRAIN_SIM_SEEDS={seed}: {outcome:?}") };
        let last = world.plan.schedule.last;
        assert_eq!(judge(&world), Ok(last), "DTRAIN_SIM_SEEDS={seed}");
        assert_eq!(
            (end.step, end.checkpoint.map(|id| id.step)),
            (last, Some(last)),
            "DTRAIN_SIM_SEEDS={seed}"
        );
        let epochs = last.0.div_ceil(4) as u32;
        assert_eq!(validations_are_recorded_once(&world.history), Ok(epochs), "DTRAIN_SIM_SEEDS={seed}");
        assert!(!world.history.iter().any(|f| matches!(f, Fact::Killed(_))), "DTRAIN_SIM_SEEDS={seed}: L2");
    }
}

#[test]
fn a_death_a_hang_or_a_failure_stops_the_run_and_is_named_as_the_first_cause() {
    let mut named = 0;
    for seed in seeds() {
        let mut plan = storm(seed);
        let mut rng = Rng(seed ^ 0xDEAD);
        let victim = rng.below(u64::from(plan.members)) as u32;
        let fault = [Fault::Kill, Fault::Hang, Fault::Fail][rng.below(3) as usize];
        let length = Duration::from_millis(500) + plan.step * plan.schedule.last.0 as u32;
        let at = rng.up_to(length);
        plan.faults = vec![(at, victim, fault)];
        let mut world = World::new(plan);
        let outcome = world.run();
        let told = format!("DTRAIN_SIM_SEEDS={seed}: {fault:?} of {victim} at {at:?}: {outcome:?}");
        judge(&world).unwrap_or_else(|error| panic!("{told}: {error}"));
        match (&outcome, world.struck_in(MemberId(victim))) {
            (Outcome::Failed { first, .. }, Some(_)) => {
                assert_eq!(first.member, MemberId(victim), "{told}");
                let right = match (&first.what, fault) {
                    (What::Exited(ExitCause::Signal(9)), Fault::Kill) | (What::Silent(_), Fault::Hang) => {
                        true
                    }
                    // Its word may be lost for good on this network; its exit code says as much.
                    (What::Exited(ExitCause::Code(1)), Fault::Fail) => true,
                    (What::Reported(failure), Fault::Fail) => matches!(failure, Failure::Engine(_)),
                    _ => false,
                };
                assert!(right, "{told}");
                named += 1;
            }
            // It struck before the supervisor had ever heard of the member: the run began without it, or not at all.
            (Outcome::Finished(_), Some(_))
                if world.supervisor.membership().rank_of(MemberId(victim)).is_none() => {}
            (Outcome::NotEnough { missing, .. }, Some(Stage::Joining)) if *missing == [MemberId(victim)] => {}
            // It struck when the member's work was done, or before or after its process lived.
            (Outcome::Finished(_), None | Some(Stage::Finished(_))) => {}
            _ => panic!("{told}, struck in {:?}", world.struck_in(MemberId(victim))),
        }
        let limit = Duration::from_secs(3);
        let since = world.now().since(dtrain_types::Instant::ZERO + at);
        let failed = matches!(outcome, Outcome::Failed { .. });
        assert!(!failed || since < limit, "{told}: took {since:?} of virtual time");
    }
    assert!(
        named > 0 || std::env::var("DTRAIN_SIM_SEEDS").is_ok(),
        "no seed struck while the run was going on"
    );
}

#[test]
fn one_seed_gives_one_history() {
    let history = |seed| {
        let mut world = World::new(storm(seed));
        let outcome = world.run();
        (world.history, format!("{outcome:?}"), world.effects.len())
    };
    for seed in 0..4 {
        assert_eq!(history(seed), history(seed));
    }
    assert_ne!(history(0), history(1));
}

mod checkers {
    use super::*;
    use dtrain_protocol::CheckpointId;
    use dtrain_types::{Epoch, Generation};

    fn applied(member: u32, step: u64) -> Fact {
        Fact::Applied { member: MemberId(member), step: Step(step) }
    }

    fn id(step: u64) -> CheckpointId {
        CheckpointId { generation: Generation(1), step: Step(step) }
    }

    #[test]
    fn a_step_committed_twice_out_of_order_or_before_it_was_applied_is_found() {
        let commit = |s| Fact::Committed(Step(s));
        let judge = |history: &[Fact]| steps_are_committed_once_and_in_order(history, Step(0));
        assert_eq!(judge(&[applied(0, 1), commit(1), applied(0, 2), commit(2)]), Ok(Step(2)));
        assert!(judge(&[applied(0, 1), commit(1), commit(1)]).is_err());
        assert!(judge(&[applied(0, 2), commit(2)]).is_err());
        assert!(judge(&[commit(1)]).is_err());
    }

    #[test]
    fn ranks_two_steps_apart_are_found() {
        let judge =
            |history: &[Fact]| applied_differs_by_at_most_one(history, &[MemberId(0), MemberId(1)], Step(0));
        assert_eq!(judge(&[applied(0, 1), applied(1, 1), applied(1, 2)]), Ok(()));
        assert!(judge(&[applied(0, 1), applied(0, 2)]).is_err());
    }

    #[test]
    fn a_manifest_without_a_shard_too_early_or_twice_is_found() {
        let durable = |m| Fact::Durable { id: id(2), member: MemberId(m) };
        let order = |shards| Fact::Ordered { id: id(2), shards, world: 2 };
        let committed = [Fact::Committed(Step(1)), Fact::Committed(Step(2))];
        let judge = |rest: &[Fact]| manifests_have_all_shards(&[&committed[..], rest].concat(), Step(0));
        assert_eq!(judge(&[durable(0), durable(1), order(2), Fact::Manifest(id(2))]), Ok(1));
        assert!(judge(&[durable(0), order(2)]).is_err());
        assert!(judge(&[durable(0), durable(1), order(1)]).is_err());
        assert!(judge(&[durable(0), durable(1), order(2), order(2)]).is_err());
        assert!(judge(&[Fact::Manifest(id(2))]).is_err());
        assert!(manifests_have_all_shards(&[durable(0), durable(1), order(2)], Step(0)).is_err());
    }

    #[test]
    fn an_epoch_recorded_twice_or_skipped_is_found() {
        let judge = |epochs: &[u32]| {
            let history: Vec<Fact> = epochs.iter().map(|e| Fact::Validated(Epoch(*e))).collect();
            validations_are_recorded_once(&history)
        };
        assert_eq!(judge(&[0, 1, 2]), Ok(3));
        assert!(judge(&[0, 0]).is_err());
        assert!(judge(&[0, 2]).is_err());
    }
}
