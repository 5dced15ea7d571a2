//! The invariants, one file each, checked after every event. Each has a test on a history that breaks it.

mod l1_finishes;
mod l2_no_needless_generation;
mod l3_patient;
mod l4_keeps_the_found;
mod s01_generation_never_falls;
mod s02_one_membership;
mod s03_fenced;
mod s04_lockstep;
mod s05_equal_digest;
mod s06_manifest_whole;
mod s07_newest_manifest;
mod s08_each_sample_once;
mod s09_tree_order;
mod s10_bounds;
mod s11_nothing_undone;
mod s12_no_torn_state;
mod s13_holders;
mod s14_current;
mod s15_written_ending;

use crate::fact::Invariant;

/// All of them, fresh.
#[must_use]
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<s01_generation_never_falls::GenerationNeverFalls>::default(),
        Box::<s02_one_membership::OneMembership>::default(),
        Box::<s03_fenced::Fenced>::default(),
        Box::<s04_lockstep::Lockstep>::default(),
        Box::<s05_equal_digest::EqualDigest>::default(),
        Box::<s06_manifest_whole::ManifestWhole>::default(),
        Box::<s07_newest_manifest::NewestManifest>::default(),
        Box::<s08_each_sample_once::EachSampleOnce>::default(),
        Box::<s09_tree_order::TreeOrder>::default(),
        Box::<s10_bounds::Bounds>::default(),
        Box::<s11_nothing_undone::NothingUndone>::default(),
        Box::<s12_no_torn_state::NoTornState>::default(),
        Box::<s13_holders::HoldersAgree>::default(),
        Box::<s14_current::Current>::default(),
        Box::<s15_written_ending::WrittenEnding>::default(),
        Box::<l1_finishes::Finishes>::default(),
        Box::<l2_no_needless_generation::NoNeedlessGeneration>::default(),
        Box::<l3_patient::Patient>::default(),
        Box::<l4_keeps_the_found::KeepsTheFound>::default(),
    ]
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::fact::{Fact, Invariant, Life};
    use crate::job::{Engine, Job, Oracle};
    use dtrain_types::{Incarnation, MemberId};

    /// A life for a history.
    pub fn life(member: u32, incarnation: u32) -> Life {
        Life { member: MemberId(member), incarnation: Incarnation(incarnation) }
    }

    /// The truth about a job of three steps.
    pub fn oracle() -> Oracle {
        Oracle::new(&mut Engine::new(&Job::new(3)))
    }

    /// The index of the first fact that breaks the invariant, if one does.
    pub fn first_bad(mut invariant: impl Invariant, oracle: &Oracle, history: &[Fact<'_>]) -> Option<usize> {
        history.iter().position(|fact| invariant.see(fact, oracle).is_err())
    }
}
