//! S1: a member's generation never falls; nor does the number of the newest view that anybody has taken in of another.

use crate::fact::{Fact, Invariant, Life, View};
use crate::job::Oracle;
use dtrain_protocol::Number;
use dtrain_types::Generation;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct GenerationNeverFalls {
    generations: BTreeMap<Life, Generation>,
    views: BTreeMap<View, Number>,
}

impl Invariant for GenerationNeverFalls {
    fn name(&self) -> &'static str {
        "S1"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Entered(life, generation) => match self.generations.insert(*life, *generation) {
                Some(before) if before > *generation => {
                    Err(format!("{life} fell from generation {before} to {generation}"))
                }
                _ => Ok(()),
            },
            Fact::Saw(view, number) => match self.views.insert(*view, *number) {
                Some(before) if before > *number => {
                    Err(format!("{view:?} takes in view {} after {}", number.0, before.0))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;

    #[test]
    fn a_member_that_goes_back_is_found_and_a_new_life_may_begin_anew() {
        let at = |l, g| Fact::Entered(l, Generation(g));
        let history = [at(life(1, 1), 2), at(life(1, 1), 3), at(life(1, 2), 1), at(life(1, 1), 2)];
        assert_eq!(first_bad(GenerationNeverFalls::default(), &oracle(), &history), Some(3));
    }

    #[test]
    fn an_older_view_that_takes_the_place_of_a_newer_one_is_found() {
        let saw = |l, n| Fact::Saw(View::Member(l, None), Number(n));
        let history = [saw(life(1, 1), 4), saw(life(1, 2), 1), saw(life(1, 1), 4), saw(life(1, 1), 3)];
        assert_eq!(first_bad(GenerationNeverFalls::default(), &oracle(), &history), Some(3));
    }
}
