//! S7: the resume point is the newest manifest of the lineage, where members do not hold what it has, and no manifest is lost; one that is due
//! at the step that a generation begins with is written, or given up aloud.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;
use dtrain_protocol::{CheckpointId, Outcome, StartFrom};
use dtrain_types::{Generation, Step};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct NewestManifest {
    /// Due at the beginning of a generation, neither written nor given up yet.
    pending: BTreeSet<CheckpointId>,
    written: BTreeSet<Step>,
    /// The newest generation whose resume point was named.
    named: Generation,
    /// The last resume: which generation went back, and to which step.
    back: Option<(Generation, Step)>,
}

impl Invariant for NewestManifest {
    fn name(&self) -> &'static str {
        "S7"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        match fact {
            Fact::ResumePoint { generation, step, .. } => {
                self.named = *generation;
                // One that had not made the step of the manifest yet goes on with the one before, and makes it again.
                match self.written.last() {
                    Some(written) if step.next() < *written => Err(format!(
                        "{generation} goes on with step {step}, and step {written} is on the disk"
                    )),
                    _ => Ok(()),
                }
            }
            Fact::Resumed(from, on_disk) => {
                self.back = Some((self.named, from.step()));
                let from = if let StartFrom::Checkpoint(id) = from { Some(id) } else { None };
                let newest = on_disk.iter().max_by_key(|id| (id.step, id.generation));
                match (from, newest) {
                    (Some(from), _) if !on_disk.contains(from) => {
                        Err(format!("resumed from {from}, which is not there"))
                    }
                    // The one that is renamed at this moment is not told yet.
                    (from, Some(newest)) if from.map_or(0, |id| id.step.0) < newest.step.0 => {
                        Err(format!("resumed from {from:?}, the newest is {newest}"))
                    }
                    _ => Ok(()),
                }
            }
            Fact::Begins(generation, step, _) if oracle.saves(*step) && !self.written.contains(step) => {
                self.pending.insert(CheckpointId { generation: *generation, step: *step });
                Ok(())
            }
            Fact::Renamed(order, _)
                if self.back.is_some_and(|(by, to)| order.id.generation < by && order.id.step > to) =>
            {
                Err(format!("{} appears after the run went back behind it", order.id))
            }
            Fact::Renamed(order, _) => {
                self.written.insert(order.id.step);
                self.pending.retain(|pending| pending.step != order.id.step);
                Ok(())
            }
            Fact::SupervisorDied => {
                self.pending.clear();
                Ok(())
            }
            Fact::GivenUp(id) => {
                self.pending.remove(id);
                Ok(())
            }
            Fact::Ended(Outcome::Finished(_), excuses) if !self.pending.is_empty() && !excuses.disk_full => {
                Err(format!("the run ended, and of {:?} nothing was heard", self.pending))
            }
            Fact::Complete(Some(id), on_disk) if !on_disk.contains(id) => {
                Err(format!("checkpoint {id} was written and is lost"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use crate::fact::Excuses;
    use dtrain_protocol::{Digest, Ending, ManifestOrder, Membership};
    use dtrain_types::Fingerprint;

    #[test]
    fn a_resume_from_an_older_one_and_a_manifest_that_is_lost_are_found() {
        let id = |step| CheckpointId { generation: Generation(1), step: Step(step) };
        let disk = [id(7), id(14)];
        let first = |fact| first_bad(NewestManifest::default(), &oracle(), &[fact]);
        assert_eq!(first(Fact::Resumed(StartFrom::Checkpoint(id(14)), &disk)), None);
        assert_eq!(first(Fact::Resumed(StartFrom::Checkpoint(id(7)), &disk)), Some(0));
        assert_eq!(first(Fact::Resumed(StartFrom::Fresh, &disk)), Some(0));
        assert_eq!(first(Fact::Complete(Some(id(21)), &disk)), Some(0));
    }

    #[test]
    fn a_generation_that_goes_on_with_an_older_state_than_the_disk_has_is_found() {
        let digest = Digest([0; 32]);
        let order = ManifestOrder {
            id: CheckpointId { generation: Generation(1), step: Step(7) },
            shards: Vec::new(),
            digest,
            state_digest: digest,
            fingerprint: Fingerprint { isa: "scalar".to_owned(), self_test: digest, kernel_revision: 1 },
            membership: Membership::default(),
        };
        let goes_on = |step| Fact::ResumePoint {
            generation: Generation(2),
            step: Step(step),
            committed: Step(9),
            written: Step(9),
            held: Some(Step(step)),
        };
        let first = |step| {
            first_bad(NewestManifest::default(), &oracle(), &[Fact::Renamed(&order, Ok(())), goes_on(step)])
        };
        assert_eq!([first(5), first(6), first(9)], [Some(1), None, None]);
    }

    #[test]
    fn a_checkpoint_that_is_forgotten_with_its_generation_is_found() {
        let (digest, state_digest) = (Digest([0; 32]), Digest([0; 32]));
        let end = Outcome::Finished(Ending {
            step: Step(3),
            digest,
            state_digest,
            checkpoint: None,
            device_peak: None,
        });
        let (begins, ends) = (Fact::Begins(Generation(2), Step(3), 0), Fact::Ended(&end, Excuses::default()));
        let given_up = Fact::GivenUp(CheckpointId { generation: Generation(2), step: Step(3) });
        let first = |history: &[Fact<'_>]| first_bad(NewestManifest::default(), &oracle(), history);
        assert_eq!(first(&[begins, ends]), Some(1));
        assert_eq!(first(&[begins, given_up, ends]), None);
    }
}
