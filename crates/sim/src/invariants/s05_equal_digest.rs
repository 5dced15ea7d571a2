//! S5: equal `applied`, equal digest; in exact mode over the whole run, and equal to that of a plain single process.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;
use dtrain_protocol::Outcome;

#[derive(Default)]
pub(super) struct EqualDigest;

impl Invariant for EqualDigest {
    fn name(&self) -> &'static str {
        "S5"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Updated { life, step, state_digest, .. }
            | Fact::Swapped { life, step, state_digest, .. } => match oracle.at(*step) {
                Some(expected) if expected.is(*state_digest) => Ok(()),
                Some(_) => Err(format!("{life} has another state than a plain run at step {step}")),
                None => Err(format!("{life} is at step {step}, beyond the last")),
            },
            Fact::Ended(Outcome::Finished(end) | Outcome::Interrupted(Some(end)), _) => {
                match oracle.at(end.step) {
                    Some(e) if (e.digest, e.state_digest) == (end.digest, end.state_digest) => Ok(()),
                    _ => Err(format!("the run ended at step {} with digest {}", end.step, end.digest)),
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_protocol::Digest;
    use dtrain_types::{Generation, Step};

    #[test]
    fn a_state_that_differs_from_a_plain_run_is_found() {
        let oracle = oracle();
        let updated = |step: u64, digest| Fact::Updated {
            life: life(1, 1),
            generation: Generation(1),
            member_in: Generation(1),
            step: Step(step),
            gradient: &[],
            needed: None,
            state_digest: digest,
        };
        let at = |step| oracle.at(Step(step)).expect("three steps").state_digest;
        let history = [updated(1, at(1)), updated(2, at(2)), updated(3, at(2))];
        assert_eq!(first_bad(EqualDigest, &oracle, &history), Some(2));
        assert_eq!(first_bad(EqualDigest, &oracle, &[updated(4, Digest([0; 32]))]), Some(0));
    }
}
