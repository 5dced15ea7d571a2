//! S9: the reduced gradient equals the reference in tree order, bit for bit, in all that a rank needs of it.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

#[derive(Default)]
pub(super) struct TreeOrder;

impl Invariant for TreeOrder {
    fn name(&self) -> &'static str {
        "S9"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        let Fact::Updated { life, step, gradient, needed, .. } = fact else { return Ok(()) };
        let Some(expected) = oracle.at(*step) else { return Ok(()) };
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if gradient.len() != expected.gradient.len() {
            return Err(format!("{life}: a gradient of {} elements at step {step}", gradient.len()));
        }
        let all = 0..gradient.len();
        for run in needed.unwrap_or(std::slice::from_ref(&all)) {
            let (ours, theirs) = (&gradient[run.clone()], &expected.gradient[run.clone()]);
            if let Some(at) = ours.iter().zip(theirs).position(differs) {
                let at = run.start + at;
                return Err(format!("{life}: element {at} of the gradient of step {step} differs"));
            }
        }
        Ok(())
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
        let updated = |gradient, needed| Fact::Updated {
            life: life(1, 1),
            generation: Generation(1),
            member_in: Generation(1),
            step: Step(2),
            gradient,
            needed,
            state_digest: Digest([0; 32]),
        };
        assert_eq!(first_bad(TreeOrder, &oracle, &[updated(&good, None), updated(&bad, None)]), Some(1));
        let (beside, with) = ([0..5, 6..good.len()], [3..6, 7..7]);
        let history = [updated(&bad, Some(&beside[..])), updated(&bad, Some(&with[..]))];
        assert_eq!(first_bad(TreeOrder, &oracle, &history), Some(1), "what is not needed is not looked at");
    }
}
