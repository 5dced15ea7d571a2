//! L1: when faults stop and enough members live, training finishes in bounded virtual time.

use crate::fact::{Excuses, Fact, Invariant};
use crate::job::Oracle;
use dtrain_protocol::{Outcome, What};

/// A step may cost members so often before it is called poisonous.
const POISON: u32 = 3;
/// The state may be lost so often before the run ends.
const RELAPSES: u32 = 11;

#[derive(Default)]
pub(super) struct Finishes;

impl Invariant for Finishes {
    fn name(&self) -> &'static str {
        "L1"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::NeverEnded(text) => Err((*text).to_owned()),
            Fact::Ended(outcome, excuses) if !is_excused(outcome, excuses) => {
                Err(format!("the run ended otherwise than at its last step: {outcome:?}"))
            }
            _ => Ok(()),
        }
    }
}

fn is_excused(outcome: &Outcome, excuses: &Excuses) -> bool {
    match outcome {
        Outcome::Finished(_) => true,
        Outcome::Interrupted(_) => excuses.drained,
        Outcome::NotEnough { .. } => excuses.short,
        Outcome::Failed { first, others } => {
            let said = |of: fn(&What) -> bool| of(&first.what) || others.iter().any(|other| of(&other.what));
            let poisonous = said(|what| matches!(what, What::Poisonous { .. }));
            let relapsed = said(|what| matches!(what, What::Relapsed { .. }));
            poisonous && excuses.losses >= POISON || relapsed && excuses.losses >= RELAPSES
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;

    #[test]
    fn a_run_that_hangs_or_ends_early_without_being_asked_is_found() {
        let (asked, unasked) = (Excuses { drained: true, ..Excuses::default() }, Excuses::default());
        let early = Outcome::Interrupted(None);
        let first = |fact| first_bad(Finishes, &oracle(), &[fact]);
        assert_eq!(first(Fact::Ended(&early, asked)), None);
        assert_eq!(first(Fact::Ended(&early, unasked)), Some(0));
        assert_eq!(first(Fact::NeverEnded("still forming")), Some(0));
    }
}
