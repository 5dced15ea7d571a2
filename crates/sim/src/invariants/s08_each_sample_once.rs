//! S8: each sample of an epoch is used exactly once; steps and validations are recorded once, in order, with the numbers
//! of a plain run. A generation begins with no step whose record its members may still lose.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;
use dtrain_protocol::Outcome;
use dtrain_types::{Step, Trailer};

#[derive(Default)]
pub(super) struct EachSampleOnce {
    committed: Step,
    validated: Step,
    /// A state was loaded: committed steps may be made again.
    resumed: bool,
}

fn same(a: &Trailer, b: &Trailer) -> bool {
    let ints = |t: &Trailer| (t.samples, t.predictions, t.correct, t.check);
    let bits = |t: &Trailer| (t.loss.to_bits(), t.weight.to_bits());
    ints(a) == ints(b) && bits(a) == bits(b)
}

impl Invariant for EachSampleOnce {
    fn name(&self) -> &'static str {
        "S8"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Committed(record) => {
                if record.step != self.committed.next() {
                    return Err(format!("step {} was committed after step {}", record.step, self.committed));
                }
                self.committed = record.step;
                match oracle.at(record.step) {
                    Some(expected) if same(&expected.trailer, &record.trailer) => Ok(()),
                    _ => Err(format!(
                        "step {} fed other samples than a plain run, or has another loss",
                        record.step
                    )),
                }
            }
            Fact::Unwritable(record) => Err(format!(
                "nobody knows who computed what in step {} of generation {}",
                record.step, record.generation
            )),
            Fact::Validated(validation) => {
                let (step, last) = (validation.step, self.validated);
                // In order, and none is left out.
                if last >= step || oracle.validated_by(Step(step.0 - 1)) != last {
                    return Err(format!("the validation after step {step} is recorded after that of {last}"));
                }
                self.validated = step;
                match oracle.validation(step) {
                    Some((trailer, counts))
                        if same(trailer, &validation.trailer) && *counts == validation.counts =>
                    {
                        Ok(())
                    }
                    _ => Err(format!("the validation after step {step} is not that of a plain run")),
                }
            }
            Fact::Ended(Outcome::Finished(_), _) if self.validated != oracle.last_validated() => {
                Err(format!("the run ended with that of step {} as its newest validation", self.validated))
            }
            Fact::ResumePoint { generation, step, written, .. } if written < step => {
                Err(format!("generation {generation} begins with step {step}, written down are {written}"))
            }
            Fact::Resumed(..) => {
                self.resumed = true;
                Ok(())
            }
            // A run that lost steps may be asked to end before they are all made again.
            Fact::Ended(Outcome::Interrupted(Some(end)), _) if self.resumed && end.step < self.committed => {
                Ok(())
            }
            Fact::Ended(Outcome::Finished(end) | Outcome::Interrupted(Some(end)), _)
                if end.step != self.committed =>
            {
                Err(format!("the run ended at step {}, committed are {}", end.step, self.committed))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use dtrain_protocol::StepRecord;
    use dtrain_types::{Epoch, Generation};

    #[test]
    fn a_step_that_is_doubled_skipped_or_fed_with_other_samples_is_found() {
        let oracle = oracle();
        let record = |step: u64, of: u64| StepRecord {
            generation: Generation(1),
            step: Step(step),
            epoch: Epoch(0),
            trailer: oracle.at(Step(of)).expect("three steps").trailer,
            seconds: 0.0,
            busy: 0.0,
            lr: 0.0,
            gradient_norm: 0.0,
        };
        let first = |records: &[StepRecord]| {
            let history: Vec<Fact<'_>> = records.iter().map(Fact::Committed).collect();
            first_bad(EachSampleOnce::default(), &oracle, &history)
        };
        assert_eq!(first(&[record(1, 1), record(2, 2), record(3, 3)]), None);
        assert_eq!(first(&[record(1, 1), record(1, 1)]), Some(1));
        assert_eq!(first(&[record(1, 1), record(3, 3)]), Some(1));
        assert_eq!(first(&[record(1, 1), record(2, 3)]), Some(1));
        let unwritable = record(1, 1);
        assert_eq!(first_bad(EachSampleOnce::default(), &oracle, &[Fact::Unwritable(&unwritable)]), Some(0));
    }

    #[test]
    fn a_generation_that_begins_with_a_step_that_is_not_recorded_is_found() {
        let resume_point = |step, written| Fact::ResumePoint {
            generation: Generation(2),
            step: Step(step),
            committed: Step(2),
            written: Step(written),
            held: Some(Step(step)),
        };
        let first = |fact| first_bad(EachSampleOnce::default(), &oracle(), &[fact]);
        assert_eq!((first(resume_point(2, 2)), first(resume_point(2, 1))), (None, Some(0)));
    }
}
