//! Which of several faults is the first cause.
//!
//! A death makes noise: its peers' collectives break, some exit, some fall silent, and their words may arrive before the
//! news of the death. So faults are ranked by what they are, then by when they were seen. This file does not know time.

use crate::cause::{Cause, ExitCause, Failure, Outcome, What};

/// How near to the root a fault is. The order is the order of blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    /// Nobody else's fault can bring it about.
    Root,
    /// A process that ended by itself while the run was going on.
    Ended,
    /// A member that went away without a word.
    Away,
    /// A member that is thought to hold up the others, or that ended after all were told to.
    Perhaps,
    /// What a victim says.
    Victim,
}

/// A fault, and whether all were already told to stop when it was seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub cause: Cause,
    pub stopping: bool,
}

fn nearness(seen: &Seen) -> Nearness {
    match &seen.cause.what {
        What::Reported(Failure::SupervisorLost { .. }) | What::Broken(_) => Nearness::Victim,
        What::Exited(ExitCause::Code(_)) if seen.stopping => Nearness::Perhaps,
        What::Exited(ExitCause::Code(_)) => Nearness::Ended,
        What::LinkLost | What::Silent(_) | What::NeverReported(_) => Nearness::Away,
        What::NoProgress { .. } | What::Unreachable { .. } => Nearness::Perhaps,
        _ => Nearness::Root,
    }
}

/// The place of a fault within its nearness: the least micro-batch of the least step leads the non-finite ones.
fn detail(seen: &Seen) -> (u64, u32) {
    match &seen.cause.what {
        What::Reported(Failure::NonFinite { step, micro_batch }) => {
            (step.0, micro_batch.map_or(u32::MAX, |m| m.0))
        }
        _ => (0, 0),
    }
}

fn is_non_finite(seen: &Seen) -> bool {
    matches!(seen.cause.what, What::Reported(Failure::NonFinite { .. }))
}

/// Names the first cause. `seen` is in the order of arrival; none if nothing was seen.
pub(super) fn failed(seen: &[Seen]) -> Option<Outcome> {
    let least = seen.iter().map(nearness).min()?;
    let nearest = || seen.iter().enumerate().filter(|(_, s)| nearness(s) == least);
    let earliest = nearest().next()?;
    let first = if is_non_finite(earliest.1) {
        nearest().filter(|(_, s)| is_non_finite(s)).min_by_key(|(_, s)| detail(s))?
    } else {
        earliest
    };
    let (at, first) = (first.0, first.1.cause.clone());
    let others = seen.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, s)| s.cause.clone()).collect();
    Some(Outcome::Failed { first, others })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::Phase;
    use dtrain_types::{Incarnation, MemberId, MicroBatch, Rank, Step};
    use std::time::Duration;

    fn seen(member: u32, what: What) -> Seen {
        let cause = Cause {
            member: MemberId(member),
            incarnation: Incarnation(1),
            rank: Some(Rank(member)),
            host: "a".to_owned(),
            step: Step(7),
            phase: Phase::Run,
            doing: None,
            what,
        };
        Seen { cause, stopping: false }
    }

    fn aborted(member: u32) -> Seen {
        seen(member, What::Broken("peer is gone".to_owned()))
    }

    fn non_finite(member: u32, micro_batch: Option<u32>) -> Seen {
        let micro_batch = micro_batch.map(MicroBatch);
        seen(member, What::Reported(Failure::NonFinite { step: Step(7), micro_batch }))
    }

    fn first(seen: &[Seen]) -> u32 {
        let Some(Outcome::Failed { first, others }) = failed(seen) else { panic!("a failure") };
        assert_eq!(others.len() + 1, seen.len());
        first.member.0
    }

    #[test]
    fn nothing_seen_is_no_failure() {
        assert_eq!(failed(&[]), None);
    }

    #[test]
    fn a_death_beats_the_aborted_collectives_that_were_heard_of_before_it() {
        assert_eq!(first(&[aborted(0), aborted(2), seen(1, What::Exited(ExitCause::Signal(9)))]), 1);
        assert_eq!(first(&[aborted(0), seen(1, What::Silent(Duration::from_secs(1)))]), 1);
        assert_eq!(
            first(&[aborted(0), Seen { stopping: true, ..seen(1, What::Exited(ExitCause::Code(101))) }]),
            1
        );
        assert_eq!(first(&[aborted(0), seen(1, What::Reported(Failure::Panic("index".to_owned())))]), 1);
    }

    #[test]
    fn of_two_deaths_the_one_seen_first_is_named() {
        let dead = |m| seen(m, What::Exited(ExitCause::Signal(9)));
        assert_eq!(first(&[dead(2), dead(1)]), 2);
        let late = Seen { stopping: true, ..seen(0, What::Exited(ExitCause::Code(1))) };
        assert_eq!(first(&[late, seen(1, What::LinkLost)]), 1);
    }

    #[test]
    fn only_victims_leave_the_first_of_them() {
        assert_eq!(first(&[aborted(2), aborted(0)]), 2);
    }

    #[test]
    fn the_least_micro_batch_is_named_when_all_ranks_see_the_same_gradient() {
        assert_eq!(first(&[non_finite(0, None), non_finite(2, Some(5)), non_finite(1, Some(3))]), 1);
        assert_eq!(first(&[non_finite(2, None), non_finite(0, None)]), 2);
    }

    #[test]
    fn causes_read_like_a_sentence() {
        let text = seen(1, What::Exited(ExitCause::Signal(9))).cause.to_string();
        assert_eq!(text, "rank 1 (member 1) on a: killed by signal 9 (SIGKILL) [phase run, step 7]");
        let text = non_finite(0, Some(3)).cause.what.to_string();
        assert_eq!(text, "the loss or its gradient is not finite in step 7, micro-batch 3");
    }
}
