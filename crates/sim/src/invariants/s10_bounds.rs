//! S10: queues and memory stay under stated bounds.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;

/// A member that is full asks its compute thread to pause, which may have a step under way, and another in its queue.
const UNDER_WAY: usize = 2;
/// Frames that may wait for their collective: peers are ahead by a step, or by the windows of a copy, no more.
const MOST_PARKED: usize = 512;

#[derive(Default)]
pub(super) struct Bounds;

impl Invariant for Bounds {
    fn name(&self) -> &'static str {
        "S10"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Holds { life, records, limit, .. } if *records > limit + UNDER_WAY => {
                Err(format!("{life} holds {records} records, the limit is {limit}"))
            }
            Fact::Holds { life, parked, .. } if *parked > MOST_PARKED => {
                Err(format!("{life} holds {parked} frames for later, the limit is {MOST_PARKED}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;

    #[test]
    fn a_queue_above_its_bound_is_found() {
        let holds = |records, parked| Fact::Holds { life: life(1, 1), records, limit: 8, parked };
        let history = [holds(8 + UNDER_WAY, MOST_PARKED), holds(9 + UNDER_WAY, 0)];
        assert_eq!(first_bad(Bounds, &oracle(), &history), Some(1));
        assert_eq!(first_bad(Bounds, &oracle(), &[holds(0, MOST_PARKED + 1)]), Some(0));
    }
}
