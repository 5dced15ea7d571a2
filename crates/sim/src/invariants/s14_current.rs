//! S14: a pass is lent the parameters that a plain run has there: of the step before its own, none of another, and all that it asks for.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

#[derive(Default)]
pub(super) struct Current;

impl Invariant for Current {
    fn name(&self) -> &'static str {
        "S14"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        let Fact::Lent { life, step, lent } = fact else { return Ok(()) };
        let Some(expected) = oracle.at(*step) else {
            return Err(format!("{life} passes over a state of step {step}, beyond the last"));
        };
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        for (section, from, values) in *lent {
            let plain = &expected.state.section(*section)[*from..from + values.len()];
            if let Some(at) = values.iter().zip(plain).position(differs) {
                let (name, at) = (section.name(), from + at);
                return Err(format!(
                    "{life} was lent another element {at} of {name} than that of step {step}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_engine::Section;
    use dtrain_types::Step;

    #[test]
    fn parameters_of_the_step_before_are_found() {
        let oracle = oracle();
        let of = |step| oracle.at(Step(step)).expect("three steps").state.section(Section::Parameters);
        let (new, old) = (of(2)[8..20].to_vec(), of(1)[8..20].to_vec());
        let lent = |lent| Fact::Lent { life: life(1, 1), step: Step(2), lent };
        let (good, bad) = ([(Section::Parameters, 8, new)], [(Section::Parameters, 8, old)]);
        assert_eq!(first_bad(Current, &oracle, &[lent(&good), lent(&bad)]), Some(1));
    }
}
