//! S9: the reduced gradient equals the reference in tree order, bit for bit.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

#[derive(Default)]
pub(super) struct TreeOrder;

impl Invariant for TreeOrder {
    fn name(&self) -> &'static str {
        "S9"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        let Fact::Updated { life, step, gradient, .. } = fact else { return Ok(()) };
        let Some(expected) = oracle.at(*step) else { return Ok(()) };
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if gradient.len() != expected.gradient.len() {
            return Err(format!("{life}: a gradient of {} elements at step {step}", gradient.len()));
        }
        match gradient.iter().zip(&expected.gradient).position(differs) {
            Some(at) => Err(format!("{life}: element {at} of the gradient of step {step} differs")),
            None => Ok(()),
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
    fn one_bit_of_a_gradient_is_found() {
        let oracle = oracle();
        let good = oracle.at(Step(2)).expect("three steps").gradient.clone();
        let mut bad = good.clone();
        bad[5] = f32::from_bits(bad[5].to_bits() ^ 1);
        let updated = |gradient| Fact::Updated {
            life: life(1, 1),
            generation: Generation(1),
            member_in: Generation(1),
            step: Step(2),
            gradient,
            state_digest: Digest([0; 32]),
        };
        assert_eq!(first_bad(TreeOrder, &oracle, &[updated(&good), updated(&bad)]), Some(1));
    }
}
