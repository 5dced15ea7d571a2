//! L3: nobody gives its supervisor up before `master_timeout` has passed since it was last heard.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

#[derive(Default)]
pub(super) struct Patient;

impl Invariant for Patient {
    fn name(&self) -> &'static str {
        "L3"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        let Fact::GaveUp { who, waited, master } = fact else { return Ok(()) };
        // Clocks differ by less than a thousandth.
        match *waited + *waited / 1_000 < *master {
            true => Err(format!("{who} gave the supervisor up after {waited:?} instead of {master:?}")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use std::time::Duration;

    #[test]
    fn whoever_gives_up_too_soon_is_found() {
        let gave_up = |seconds| Fact::GaveUp {
            who: "m1.1",
            waited: Duration::from_secs_f64(seconds),
            master: Duration::from_secs(60),
        };
        let first = |fact| first_bad(Patient, &oracle(), &[fact]);
        assert_eq!(first(gave_up(60.0)), None);
        assert_eq!(first(gave_up(59.99)), None, "its clock is fast");
        assert_eq!(first(gave_up(2.5)), Some(0));
    }
}
