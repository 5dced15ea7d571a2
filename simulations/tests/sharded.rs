//! Stories of ranks that hold shards: of the optimizer's state, of gradients, of parameters, too. Each is one seed and a few faults that are
//! written down.

use dtrain_protocol::Outcome;
use dtrain_sim::{
    DataPlane, FaultKind, Faults, Planned, Sabotage, Settings, SimReport, Situation, When, simulate,
};
use dtrain_types::{Holders, NodeId, Rank, Remirror, ShardLevel};

/// When: a rank comes to a place for the so-many-th time.
fn crash(place: Situation, nth: u32) -> Planned {
    let when = When::Enter { place, nth, later: 0 };
    Planned { kind: FaultKind::Crash, when, millis: 0, victim: None }
}

/// Given 8 ranks on 2 hosts and 30 steps, which share out so much.
fn given(level: ShardLevel, seed: u64, faults: &[Planned]) -> SimReport {
    let faults = Faults::Written(faults.to_vec());
    simulate(&Settings { faults, story: true, plane: DataPlane::Shards(level), ..Settings::of(seed) })
}

/// Then nothing is broken, and the run makes its last step; the invariants compare it with a plain run.
fn finishes(report: &SimReport) -> &SimReport {
    assert_eq!(report.violations, [], "{}", report.story.join("\n"));
    assert!(matches!(report.outcome, Some(Outcome::Finished(_))), "{:?}", report.outcome);
    report
}

fn falls_back(report: &SimReport) -> bool {
    finishes(report).story.iter().any(|line| line.contains("Resumed"))
}

const LEVELS: [ShardLevel; 3] = [ShardLevel::Optimizer, ShardLevel::Gradients, ShardLevel::Parameters];

/// Every story is told with these seeds.
const SEEDS: std::ops::Range<u64> = 0..4;

#[test]
fn without_faults_every_world_ends_with_the_same_digest_whatever_its_ranks_share_out() {
    let mut digests = Vec::new();
    for (ranks, nodes) in [(1, 1), (2, 1), (3, 2), (5, 3), (8, 2), (13, 4), (16, 2), (20, 2)] {
        for level in LEVELS {
            let (plane, faults, steps) = (DataPlane::Shards(level), Faults::none(), 12);
            let report = simulate(&Settings { ranks, nodes, plane, faults, steps, ..Settings::of(1) });
            assert_eq!(finishes(&report).generations, 1, "{ranks} ranks, {level:?}");
            digests.push(report.digest);
        }
    }
    digests.dedup();
    assert_eq!(digests.len(), 1);
}

#[test]
fn machines_that_stand_still_cost_no_shard_although_all_holders_are_silent() {
    let stop = |member| Planned {
        kind: FaultKind::Stop,
        when: When::At(150_000),
        millis: 3_000,
        victim: Some(member),
    };
    let all: Vec<Planned> = (0..8).map(stop).collect();
    for (seed, level) in SEEDS.flat_map(|seed| LEVELS.map(|level| (seed, level))) {
        let report = given(level, seed, &all);
        assert!(!falls_back(&report), "{level:?}\n{}", report.story.join("\n"));
    }
}

/// Where a rank of a step in rounds can be: between its windows, in one of a gradient, of parameters, behind the last one, and in the update.
const PLACES: [Situation; 6] = [
    Situation::Compute,
    Situation::Round1,
    Situation::Gather,
    Situation::Round2,
    Situation::Meet,
    Situation::UpdateShare,
];

#[test]
fn a_rank_that_is_killed_in_any_phase_of_a_step_costs_no_step_and_comes_back() {
    for level in [ShardLevel::Gradients, ShardLevel::Parameters] {
        for (place, seed) in PLACES.into_iter().flat_map(|place| SEEDS.map(move |seed| (place, seed))) {
            let report = given(level, seed, &[crash(place, 60 + seed as u32)]);
            assert!(!falls_back(&report), "{level:?}, {place:?}: {}", report.story.join("\n"));
            // One generation without it, and one with it again.
            assert_eq!(report.generations, 3, "{level:?}, {place:?}: {}", report.story.join("\n"));
        }
    }
}

#[test]
fn a_second_death_while_shards_are_shared_out_anew_is_survived() {
    for level in LEVELS {
        for (place, seed) in [Situation::ShareOut, Situation::Build, Situation::Ready]
            .into_iter()
            .flat_map(|place| SEEDS.map(move |seed| (place, seed)))
        {
            finishes(&given(level, seed, &[crash(Situation::Compute, 80), crash(place, 12)]));
        }
    }
}

/// The same where mirrors are copied when ranks are back.
fn given_lazily(level: ShardLevel, seed: u64, max_restarts: u32, faults: &[Planned]) -> SimReport {
    let (faults, plane) = (Faults::Written(faults.to_vec()), DataPlane::Shards(level));
    let settings = Settings { faults, plane, story: true, max_restarts, ..Settings::of(seed) };
    simulate(&Settings { remirror: Remirror::Lazy, ..settings })
}

fn says(report: &SimReport, words: &str) -> bool {
    report.story.iter().any(|line| line.contains(words))
}

#[test]
fn lazily_a_shard_has_a_holder_less_until_the_lost_rank_is_back() {
    for level in LEVELS {
        for (place, seed) in PLACES.into_iter().flat_map(|place| SEEDS.map(move |seed| (place, seed))) {
            let report = given_lazily(level, seed, 100, &[crash(place, 60 + seed as u32)]);
            assert!(!falls_back(&report), "{level:?}, {place:?}: {}", report.story.join("\n"));
            assert_eq!(report.generations, 3, "{level:?}, {place:?}: {}", report.story.join("\n"));
            assert!(says(&report, "1 holder less"), "{}", report.story.join("\n"));
        }
        // Whoever dies meanwhile may have been the only one to hold a shard: then the run goes back to its checkpoint.
        for seed in SEEDS {
            finishes(&given_lazily(
                level,
                seed,
                100,
                &[crash(Situation::Compute, 80), crash(Situation::Ready, 12)],
            ));
        }
    }
}

#[test]
fn what_is_mirrored_less_is_mirrored_anew_when_nobody_comes_back() {
    for level in LEVELS {
        // It is lost while it starts, and that was the last time.
        let fails = Planned { kind: FaultKind::StartFails, ..crash(Situation::Compute, 20) };
        let report = given_lazily(level, 1, 1, &[fails, crash(Situation::Compute, 80)]);
        let story = finishes(&report).story.join("\n");
        assert!(says(&report, "1 holder less") && says(&report, "Mirrors"), "{story}");
        assert!(!falls_back(&report), "{story}");
    }
}

#[test]
fn a_run_falls_back_if_both_holders_of_a_shard_die_at_once_and_only_then() {
    // The first eight members are the ranks, four on each host.
    let nodes: Vec<NodeId> = (0..8).map(|rank| NodeId(rank / 4)).collect();
    let holders = Holders::new(&nodes, 2);
    let holding = |rank| holders.holding(Rank(rank));
    let all_but =
        |a: u32, b: u32| (0..8).filter(|rank| ![a, b].contains(rank)).map(holding).collect::<Vec<_>>();
    for level in LEVELS {
        for (seed, other) in (1..8).enumerate() {
            let at = |victim| Planned { victim: Some(victim), ..crash(Situation::Round1, 75) };
            let report = given(level, seed as u64, &[at(0), at(other)]);
            let is_lost = !dtrain_types::Holding::cover(&all_but(0, other));
            assert_eq!(
                falls_back(&report),
                is_lost,
                "{level:?}, ranks 0 and {other}: {}",
                report.story.join("\n")
            );
        }
    }
}

#[test]
fn what_a_pass_is_lent_and_what_holders_add_up_is_looked_at_by_itself() {
    for (sabotage, found) in [(Sabotage::OldWindow, "S14"), (Sabotage::OtherMicroBatch, "S13")] {
        let (plane, faults) = (DataPlane::Shards(ShardLevel::Parameters), Faults::none());
        let report = simulate(&Settings { plane, faults, sabotage: Some(sabotage), ..Settings::of(1) });
        assert_eq!(report.violations.first().map(|violation| violation.invariant), Some(found));
    }
}

#[test]
fn a_host_that_was_left_out_one_step_ago_is_given_what_the_others_made_by_the_next_supervisor() {
    // Given that host 1 is cut off in a step, and host 0 makes that step without it; when a rank of host 0 and the supervisor die then, and
    // host 1 can be heard again, which has no sum of that step.
    let (mut without, mut further) = (0, 0);
    for (seed, nth) in SEEDS.flat_map(|seed| (40..60).map(move |nth| (seed, nth))) {
        let when = |place, nth| When::Enter { place, nth, later: 0 };
        let fault = |kind, when, millis, victim| Planned { kind, when, millis, victim };
        let cut = fault(FaultKind::Partition, when(Situation::Compute, 50), 1_500, Some(6));
        let dies = when(Situation::UpdateShare, nth);
        let one = fault(FaultKind::Crash, dies, 0, Some(1));
        let all = fault(FaultKind::SupervisorCrash, dies, 300, None);
        let report = given(ShardLevel::Optimizer, seed, &[cut, one, all]);
        let says = |words| finishes(&report).story.iter().filter(|line| line.contains(words)).count();
        without += says("was left behind");
        further += says("Behind(");
    }
    assert!(without > 0 && further > 0, "it was dropped each time: {without}, {further}");
}
