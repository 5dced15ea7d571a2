//! Faults: what can go wrong, when, and for how long; drawn from the seed or written down by a scenario.
//!
//! This file does not know how a fault is done to the world.

use crate::random::Chance;
use crate::situation::Situation;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A rank's process is killed.
    Crash,
    /// Two or three are killed at once.
    CrashSome,
    /// All but one are killed at once.
    CrashAllButOne,
    /// All are killed at once.
    CrashAll,
    /// A host loses its power, unsynced writes included; it comes back after a while.
    HostCrash,
    /// A rank's process stands still and goes on later.
    Stop,
    /// Only its compute thread stands still.
    ComputeHang,
    /// A rank computes slowly.
    Slow,
    /// A host's node stands still.
    HostStop,
    /// The supervisor stands still, and hosts lose their links to it if that takes long.
    SupervisorStop,
    /// The supervisor's process dies and another takes its place; with it dies the node beside it, or does not.
    SupervisorCrash,
    /// A host and all others do not hear each other.
    Partition,
    /// What a host says is lost.
    CutFrom,
    /// What is said to a host is lost.
    CutTo,
    /// Two ranks' data does not get through, either way.
    PairCut,
    /// A data connection is reset.
    Reset,
    /// Control words are lost, doubled and overtaken.
    Noise,
    /// Nothing can be written.
    DiskFull,
    /// The next process of a rank cannot be started.
    StartFails,
    /// Processes need long to start.
    SlowStart,
    /// A rank panics and says so.
    Panic,
    /// A host is asked to leave the run.
    HostLeaves,
    /// The run is asked to end at the next step.
    Drain,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Crash,
        Self::CrashSome,
        Self::CrashAllButOne,
        Self::CrashAll,
        Self::HostCrash,
        Self::Stop,
        Self::ComputeHang,
        Self::Slow,
        Self::HostStop,
        Self::SupervisorStop,
        Self::SupervisorCrash,
        Self::Partition,
        Self::CutFrom,
        Self::CutTo,
        Self::PairCut,
        Self::Reset,
        Self::Noise,
        Self::DiskFull,
        Self::StartFails,
        Self::SlowStart,
        Self::Panic,
        Self::HostLeaves,
        Self::Drain,
    ];

    /// Its name, as in `--faults`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::CrashSome => "crash-some",
            Self::CrashAllButOne => "crash-all-but-one",
            Self::CrashAll => "crash-all",
            Self::HostCrash => "host-crash",
            Self::Stop => "stop",
            Self::ComputeHang => "compute-hang",
            Self::Slow => "slow",
            Self::HostStop => "host-stop",
            Self::SupervisorStop => "supervisor-stop",
            Self::SupervisorCrash => "supervisor-crash",
            Self::Partition => "partition",
            Self::CutFrom => "cut-from",
            Self::CutTo => "cut-to",
            Self::PairCut => "pair-cut",
            Self::Reset => "reset",
            Self::Noise => "noise",
            Self::DiskFull => "disk-full",
            Self::StartFails => "start-fails",
            Self::SlowStart => "slow-start",
            Self::Panic => "panic",
            Self::HostLeaves => "host-leaves",
            Self::Drain => "drain",
        }
    }

    /// The inverse of [`FaultKind::name`].
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == word)
    }
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So long after the beginning. *Units*: microseconds.
    At(u64),
    /// When a rank comes to this place for the so-many-th time (of all ranks together, from 1), and a little later.
    Enter {
        /// The place.
        place: Situation,
        /// Which time.
        nth: u32,
        /// How much later. *Units*: microseconds.
        later: u64,
    },
    /// So long after the supervisor has told of its so-many-th fault.
    AfterLoss {
        /// Which fault, from 1.
        nth: u32,
        /// How much later. *Units*: microseconds.
        later: u64,
    },
}

/// One fault that is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What.
    pub kind: FaultKind,
    /// When.
    pub when: When,
    /// For how long, or how strong. *Units*: milliseconds.
    pub millis: u64,
    /// Chooses the victim: a member, by its number; none is the rank that came to the place, or any.
    pub victim: Option<u32>,
}

/// The faults of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Drawn from the seed, out of these kinds.
    Drawn(Vec<FaultKind>),
    /// These and no others.
    Written(Vec<Planned>),
}

impl Faults {
    /// No fault at all.
    #[must_use]
    pub fn none() -> Self {
        Self::Written(Vec::new())
    }

    /// All kinds, drawn.
    #[must_use]
    pub fn all() -> Self {
        Self::Drawn(FaultKind::ALL.to_vec())
    }

    /// The faults of one seed.
    #[must_use]
    pub fn plan(&self, chance: &mut Chance, steps: Steps) -> Vec<Planned> {
        let kinds = match self {
            Self::Written(planned) => return planned.clone(),
            Self::Drawn(kinds) if kinds.is_empty() || chance.per_mille(6) => return Vec::new(),
            Self::Drawn(kinds) => kinds,
        };
        let count = 2 + chance.below(3) + chance.below(3);
        let mut planned: Vec<Planned> = (0..count).map(|_| draw(kinds, chance, steps)).collect();
        // What comes again only after a loss waits in vain without one; and one fault is sure to come.
        let needs = |when: &When| match when {
            When::Enter { place, .. } => match place {
                Situation::Broken => Some(FaultKind::Reset),
                Situation::CopySource
                | Situation::CopyTarget
                | Situation::Admission
                | Situation::Recovery => Some(FaultKind::Crash),
                _ => None,
            },
            When::AfterLoss { .. } => Some(FaultKind::Crash),
            When::At(_) => None,
        };
        let before = planned.iter().find_map(|planned| needs(&planned.when));
        let kind = before.filter(|kind| kinds.contains(kind)).unwrap_or(planned[0].kind);
        if before.is_some() || chance.per_mille(300) {
            let place = *chance.pick(&[Situation::Compute, Situation::Update]);
            let when = When::Enter { place, nth: 1 + chance.below(120) as u32, later: chance.below(400) };
            planned.insert(0, Planned { kind, when, millis: planned[0].millis, victim: None });
        }
        // Words that are lost, doubled, overtaken and far too late are harmless beside every other fault.
        if kinds.contains(&FaultKind::Noise) && chance.per_mille(250) {
            let (when, millis) = (When::At(chance.below(200_000)), 1_000 + chance.below(5_000));
            planned.push(Planned { kind: FaultKind::Noise, when, millis, victim: None });
        }
        planned
    }
}

/// How steps are made: so often ranks come to the places of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Each computes all that it has to, and then gradients are summed.
    Whole,
    /// In rounds, window by window.
    InRounds,
}

/// How many times a rank, or the world, comes to a place in a run, about; a fault waits for one of them.
fn visits(place: Situation, steps: Steps) -> u64 {
    match place {
        Situation::Compute if steps == Steps::InRounds => 4_000,
        Situation::Round1 | Situation::Gather if steps == Steps::InRounds => 2_000,
        Situation::UpdateShare | Situation::Meet if steps == Steps::InRounds => 200,
        Situation::Compute | Situation::Offer | Situation::Round1 | Situation::Round2 | Situation::Update => {
            150
        }
        Situation::Validate => 16,
        Situation::Form
        | Situation::Build
        | Situation::Load
        | Situation::Ready
        | Situation::Start
        | Situation::CopySource => 8,
        Situation::Finished | Situation::Save => 6,
        Situation::BeforeRename | Situation::AfterRename => 4,
        _ => 1,
    }
}

fn draw(kinds: &[FaultKind], chance: &mut Chance, steps: Steps) -> Planned {
    let kind = *chance.pick(kinds);
    let when = match chance.below(12) {
        0 => When::At(chance.below(600_000)),
        1 => {
            let later = if chance.per_mille(300) { chance.below(2_000) } else { chance.below(1_500_000) };
            When::AfterLoss { nth: 1 + chance.below(3) as u32, later }
        }
        _ => {
            // The places of a copy are visited least often, and not at all where nobody was lost.
            let place = match chance.below(10) {
                0 => *chance.pick(&[Situation::CopySource, Situation::CopyTarget]),
                _ => Situation::ALL[chance.below(Situation::ALL.len() as u64 - 1) as usize],
            };
            let nth = 1 + chance.below(visits(place, steps)) as u32;
            let later = if chance.per_mille(800) { 0 } else { chance.below(400) };
            When::Enter { place, nth, later }
        }
    };
    let millis = match chance.below(4) {
        0 => 1 + chance.below(100),
        1 => 100 + chance.below(900),
        2 => 1_000 + chance.below(2_000),
        _ => 3_000 + chance.below(3_000),
    };
    // Everyone waits for a supervisor longer than for anybody else.
    let millis = if kind == FaultKind::SupervisorStop && chance.per_mille(500) { millis * 8 } else { millis };
    Planned { kind, when, millis, victim: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::Seed;

    #[test]
    fn every_kind_is_drawn_and_has_a_name_of_its_own() {
        let mut chance = Chance::new(Seed(3), 0);
        let drawn: Vec<FaultKind> = (0..500)
            .flat_map(|_| Faults::all().plan(&mut chance, Steps::Whole))
            .map(|planned| planned.kind)
            .collect();
        for kind in FaultKind::ALL {
            assert!(drawn.contains(&kind), "{kind:?}");
            assert_eq!(FaultKind::parse(kind.name()), Some(kind));
        }
    }

    #[test]
    fn less_than_one_seed_in_a_hundred_has_no_fault() {
        let mut chance = Chance::new(Seed(4), 0);
        let without = (0..5_000).filter(|_| Faults::all().plan(&mut chance, Steps::Whole).is_empty()).count();
        assert!((1..50).contains(&without), "{without} of 5000");
    }
}
