//! L2: no needless generation, and nobody is held to be lost to whom nothing was done.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

#[derive(Default)]
pub(super) struct NoNeedlessGeneration {
    formed: bool,
}

impl Invariant for NoNeedlessGeneration {
    fn name(&self) -> &'static str {
        "L2"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Formed(generation, caused) => {
                let first = !std::mem::replace(&mut self.formed, true);
                if first || *caused { Ok(()) } else { Err(format!("generation {generation} has no cause")) }
            }
            Fact::Lost(member, false, text) => {
                Err(format!("member {member} is held to be lost ({text}), nothing was done to it"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use dtrain_types::{Generation, MemberId};

    #[test]
    fn a_generation_without_a_cause_and_a_loss_without_a_fault_are_found() {
        let formed = |g, caused| Fact::Formed(Generation(g), caused);
        let first = |history: &[Fact<'_>]| first_bad(NoNeedlessGeneration::default(), &oracle(), history);
        assert_eq!(first(&[formed(1, false), formed(2, true), formed(3, false)]), Some(2));
        assert_eq!(first(&[Fact::Lost(MemberId(1), true, "killed")]), None);
        assert_eq!(first(&[Fact::Lost(MemberId(1), false, "silent")]), Some(0));
    }
}
