//! S11: no committed step is undone while a member of the new generation holds its state.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

#[derive(Default)]
pub(super) struct NothingUndone;

impl Invariant for NothingUndone {
    fn name(&self) -> &'static str {
        "S11"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        let Fact::ResumePoint { generation, step, committed, held, .. } = fact else { return Ok(()) };
        match held {
            Some(held) if *step < *held.min(committed) => Err(format!(
                "generation {generation} goes on with step {step}; committed are {committed}, and a member holds {held}"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use dtrain_types::{Generation, Step};

    #[test]
    fn a_generation_that_goes_back_behind_what_a_member_holds_is_found() {
        let resume_point = |step, committed, held: Option<u64>| Fact::ResumePoint {
            generation: Generation(2),
            step: Step(step),
            committed: Step(committed),
            written: Step(committed),
            held: held.map(Step),
        };
        let first = |fact| first_bad(NothingUndone, &oracle(), &[fact]);
        assert_eq!(first(resume_point(7, 12, None)), None);
        assert_eq!(first(resume_point(12, 12, Some(12))), None);
        assert_eq!(first(resume_point(11, 12, Some(12))), Some(0));
        assert_eq!(first(resume_point(11, 11, Some(12))), None, "what nobody told of may be made again");
    }
}
