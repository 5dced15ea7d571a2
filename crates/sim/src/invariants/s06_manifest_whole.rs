//! S6: a manifest names only durable shards of one checkpoint, and all of them; what is due at its step is recorded before.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;
use dtrain_types::Step;

#[derive(Default)]
pub(super) struct ManifestWhole {
    validated: Step,
}

impl Invariant for ManifestWhole {
    fn name(&self) -> &'static str {
        "S6"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        let (order, sound) = match fact {
            Fact::Validated(validation) => {
                self.validated = validation.step;
                return Ok(());
            }
            Fact::Ordered(order) if self.validated < oracle.validated_by(order.id.step) => {
                let (id, last) = (order.id, self.validated);
                return Err(format!(
                    "manifest {id} is to be written, the newest validation is that of step {last}"
                ));
            }
            Fact::Renamed(order, sound) => (order, sound),
            _ => return Ok(()),
        };
        sound.map_err(|text| format!("manifest {}: {text}", order.id))?;
        match oracle.at(order.id.step) {
            Some(e) if (e.digest, e.state_digest) == (order.digest, order.state_digest) => Ok(()),
            _ => Err(format!("manifest {} has another digest than a plain run", order.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use dtrain_protocol::{CheckpointId, Digest, Fingerprint, ManifestOrder, Membership};
    use dtrain_types::Generation;

    #[test]
    fn a_manifest_with_a_torn_shard_or_another_state_is_found() {
        let oracle = oracle();
        let good = oracle.at(Step(1)).expect("three steps");
        let fingerprint = Fingerprint { isa: String::new(), self_test: Digest([0; 32]), kernel_revision: 1 };
        let order = ManifestOrder {
            id: CheckpointId { generation: Generation(1), step: Step(1) },
            shards: Vec::new(),
            digest: good.digest,
            state_digest: good.state_digest,
            fingerprint,
            membership: Membership::default(),
        };
        let bad = ManifestOrder { state_digest: Digest([9; 32]), ..order.clone() };
        let first = |fact| first_bad(ManifestWhole::default(), &oracle, &[fact]);
        assert_eq!(first(Fact::Renamed(&order, Ok(()))), None);
        assert_eq!(first(Fact::Renamed(&order, Err("torn"))), Some(0));
        assert_eq!(first(Fact::Renamed(&bad, Ok(()))), Some(0));
        // The last step validates.
        let last = ManifestOrder { id: CheckpointId { step: Step(3), ..order.id }, ..order.clone() };
        assert_eq!(first(Fact::Ordered(&last)), Some(0));
    }
}
