//! Faults: what a loss means, which news of it counts, and what members' states say about each other.
//!
//! This file does not decide who is to blame in the end; that is in `verdict.rs`, once all is known.

use super::verdict::Seen;
use super::{MAX_VERIFIED, Supervisor};
use crate::cause::{Cause, ExitCause, Failure, What};
use crate::effect::{Event, SupervisorEffect};
use crate::message::{Digest, Phase, Stage};
use dtrain_types::{Instant, MemberId, Step};

/// What follows when a member is lost.
pub(super) enum Answer {
    /// The run stops.
    Stop,
    /// It is noted: the run is ending anyway.
    Note,
}

/// The one place that decides what a loss means.
pub(super) fn lost_in(phase: Phase) -> Answer {
    match phase {
        Phase::Join | Phase::Form | Phase::Sync | Phase::Run => Answer::Stop,
        Phase::Finish | Phase::Stop => Answer::Note,
    }
}

impl Supervisor {
    /// A member is lost to the run: notes the fault, and does what `lost_in` says.
    pub(super) fn lost(
        &mut self,
        now: Instant,
        member: MemberId,
        what: What,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        if !self.is_news(member, &what) {
            return;
        }
        let answer = lost_in(self.phase);
        let cause = self.cause(member, what);
        effects.push(SupervisorEffect::Event(Event::Fault(cause.clone())));
        let secondary = matches!(&cause.what, What::Reported(failure) if failure.is_secondary());
        let unnamed = matches!(&cause.what, What::Reported(Failure::NonFinite { micro_batch: None, .. }));
        self.seen.push(Seen { cause, stopping: matches!(answer, Answer::Note) });
        match answer {
            // A victim's word often overtakes the news of the death: told to stop, the one to blame might leave in good
            // order with the cause unsaid. So it is given a moment.
            Answer::Stop if secondary => {
                self.stop_at.get_or_insert(now + self.config.timeouts.heartbeat);
            }
            // Somebody is still computing its micro-batches again, to find the one that made the gradient so.
            Answer::Stop if unnamed && !self.all_have_failed() => {}
            Answer::Stop => self.enter(now, Phase::Stop, effects),
            Answer::Note => {}
        }
    }

    fn all_have_failed(&self) -> bool {
        self.lives().all(|life| matches!(life.stage, Stage::Failed(_)))
    }

    /// Whether a fault says more than what is known of its member: its own word counts more than its exit, and once.
    fn is_news(&self, member: MemberId, what: &What) -> bool {
        let life = self.slots.get(&member).and_then(|slot| slot.life.as_ref());
        let said_why = life.is_some_and(|life| matches!(life.stage, Stage::Failed(_)));
        let own = self.seen.iter().filter(|seen| seen.cause.member == member).map(|seen| &seen.cause.what);
        let mut own = own.peekable();
        match what {
            What::Exited(ExitCause::Signal(_)) => {
                own.all(|known| matches!(known, What::Reported(f) if f.is_secondary()))
            }
            // What it said may have been put down to another.
            What::Exited(ExitCause::Code(_)) if said_why => false,
            What::Reported(failure) => own.all(|known| *known != What::Reported(failure.clone())),
            _ => own.peek().is_none(),
        }
    }

    pub(super) fn cause(&self, member: MemberId, what: What) -> Cause {
        let life = self.slots.get(&member).and_then(|slot| slot.life.as_ref());
        Cause {
            member,
            rank: self.membership.rank_of(member),
            host: life.map_or_else(String::new, |life| life.profile.host.clone()),
            // A rank that names its step knows better than we: the steps before it are in the same Report.
            step: match &what {
                What::Reported(Failure::NonFinite { step, .. }) => *step,
                _ => self.progress.committed().next(),
            },
            phase: self.phase,
            what,
        }
    }

    /// Compares where members stand that have told all the steps they made and make no further one (S4). Of the others
    /// only an old view is known, which proves nothing: one that leaves because it was told to may have steps untold.
    pub(super) fn check_spread(
        &mut self,
        now: Instant,
        member: MemberId,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        let stand = |id: MemberId| {
            let life = self.slots[&id].life.as_ref()?;
            let still = matches!(life.stage, Stage::Failed(_) | Stage::Finished(_));
            life.applied.filter(|_| still)
        };
        let Some(own) = stand(member) else { return };
        let far = |other: &Step| own.0.abs_diff(other.0) > 1;
        let seats = self.membership.seats.iter();
        let other = seats.filter_map(|seat| Some((seat.member, stand(seat.member).filter(far)?))).next();
        if let Some((against, other)) = other {
            self.lost(now, member, What::StepDiffers { own, other, against }, effects);
        }
    }

    /// Compares a member's state digest at `step` with the first that was heard of it (S5).
    pub(super) fn compare(
        &mut self,
        now: Instant,
        member: MemberId,
        step: Step,
        own: Digest,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        let (against, other) = *self.verified.entry(step).or_insert((member, own));
        if self.verified.len() > MAX_VERIFIED {
            self.verified.pop_first();
        }
        if own != other {
            self.lost(now, member, What::DigestDiffers { step, own, other, against }, effects);
        }
    }
}
