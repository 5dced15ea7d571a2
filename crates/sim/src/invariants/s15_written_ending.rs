//! S15: a run has one ending. It is on the disk before anybody is told of it, nothing follows it, and the outcome is that one.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;
use dtrain_protocol::{Ending, Outcome};

#[derive(Default)]
pub(super) struct WrittenEnding {
    written: Option<Ending>,
}

impl Invariant for WrittenEnding {
    fn name(&self) -> &'static str {
        "S15"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match (fact, self.written) {
            (Fact::EndingWritten(ending), None) => self.written = Some(**ending),
            (Fact::EndingWritten(ending), Some(before)) => {
                return Err(format!("it ended at step {}, and at step {} before", ending.step, before.step));
            }
            (Fact::ToldOver(member), None) => {
                return Err(format!("m{member} is told that the run is over, and no ending is written"));
            }
            (Fact::Formed(generation, _), Some(_)) => {
                return Err(format!("generation {generation} is formed after the end"));
            }
            (Fact::Ended(Outcome::Finished(end) | Outcome::Interrupted(Some(end)), _), written)
                if written != Some(*end) =>
            {
                return Err(format!("the outcome is {end:?}, and written is {written:?}"));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use crate::fact::Excuses;
    use dtrain_protocol::Digest;
    use dtrain_types::{Generation, MemberId, Step};

    fn ending(step: u64) -> Ending {
        let digest = Digest([7; 32]);
        Ending { step: Step(step), digest, state_digest: digest, checkpoint: None, device_peak: None }
    }

    #[test]
    fn an_end_that_is_told_before_it_is_written_and_one_that_does_not_last_are_found() {
        let first = |history: &[Fact<'_>]| first_bad(WrittenEnding::default(), &oracle(), history);
        let (three, two) = (ending(3), ending(2));
        let (written, told) = (Fact::EndingWritten(&three), Fact::ToldOver(MemberId(1)));
        let (end, other) = (Outcome::Finished(three), Outcome::Finished(two));
        let ended = |outcome| Fact::Ended(outcome, Excuses::default());
        assert_eq!(first(&[written, told, ended(&end)]), None);
        assert_eq!(first(&[told, written]), Some(0));
        assert_eq!(first(&[written, Fact::EndingWritten(&two)]), Some(1));
        assert_eq!(first(&[written, Fact::Formed(Generation(2), true)]), Some(1), "it is over");
        assert_eq!(first(&[written, ended(&other)]), Some(1));
        assert_eq!(first(&[ended(&end)]), Some(0));
        assert_eq!(first(&[ended(&Outcome::Interrupted(None))]), None, "it had not begun");
    }
}
