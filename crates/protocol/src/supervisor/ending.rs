//! The end of a run: what it ended with is written down before anybody is told to go, and then everybody is seen off.
//!
//! 1. All ranks have made the last step and are told that the run is over. Those of host 0 go, and its node with them.
//! 2. The supervisor dies before host 1 has answered. The checkpoint of the last step had been given up.
//! 3. *Unsafe*: whoever takes over knows every step and no end; it waits for the state, which nobody holds any more.
//!
//! So the ending is an entry of the books like a validation. A life that finds it there only sees the others off. This file does not
//! know how processes are ended.

use super::slot::Slot;
use super::{Supervisor, verdict};
use crate::cause::{Ending, Outcome, What};
use crate::effect::{Event, SupervisorEffect};
use crate::message::Stage;
use crate::phase::Phase;
use dtrain_types::Instant;

impl Supervisor {
    /// The ending is written down: all are told to go.
    pub fn handle_ending(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.notice_standstill(now, effects);
        let Some(ending) = self.unwritten_ending.take().filter(|_| !self.is_ending()) else { return };
        self.ending = Some(Outcome::of(ending, self.config.schedule.last));
        self.enter(now, Phase::Finish, effects);
        self.advance(now, effects);
    }

    /// Whether the run is over but for the leaving.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Finish | Phase::Stop)
    }

    /// Whether all is done, and told or about to be: whatever is lost from now on is not missed.
    pub(super) fn is_done(&self) -> bool {
        self.is_ending() || self.unwritten_ending.is_some()
    }

    /// Has the ending written down once all have made the last step and all that is due is recorded.
    pub(super) fn try_finish(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let running = self.phase == Phase::Run && !self.is_done();
        let Some(last) = self.progress.ended().filter(|_| running) else { return };
        let mut ends = Vec::with_capacity(self.membership.participants.len());
        for (member, life) in self.lives() {
            match &life.stage {
                Stage::Finished(finished) if life.generation == self.generation => {
                    ends.push((member, *finished))
                }
                _ => return,
            }
        }
        let (against, first) = ends[0];
        let device_peak = ends.iter().filter_map(|(_, end)| end.device_peak).max();
        for (member, end) in ends {
            let (own, other) = (end.state_digest, first.state_digest);
            let what = if end.step != last {
                What::StepDiffers { own: end.step, other: last, against }
            } else if own != other || end.digest != first.digest {
                What::DigestDiffers { step: last, own, other, against }
            } else {
                continue;
            };
            return self.lost(now, member, what, effects);
        }
        let settled = self.validations.is_settled(last) && !self.validations.awaits_judgement();
        let recorded = self.progress.committed() >= last && settled;
        if !recorded || !self.checkpoints.is_settled() {
            return;
        }
        let ending = Ending {
            step: last,
            digest: first.digest,
            state_digest: first.state_digest,
            checkpoint: self.checkpoints.newest(),
            device_peak,
        };
        self.unwritten_ending = Some(ending);
        effects.push(SupervisorEffect::WriteEnding(ending));
    }

    /// Ends it all once every process is gone, or was given enough time to go.
    pub(super) fn try_end(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        // What the last Reports say was done is done, whatever came after it.
        self.commit(effects);
        let all_gone = !self.slots.values().any(Slot::has_process) && !self.may_be_called(now);
        if self.outcome.is_some() || self.checkpoints.is_writing() || !(all_gone || now >= self.given_up()) {
            return;
        }
        let ended = self.ending.take().or_else(|| verdict::failed(&self.seen));
        let mut outcome = ended.expect("a run ends in good order, by request or by a fault");
        if let Outcome::NotEnough { causes, .. } = &mut outcome {
            *causes = match verdict::failed(&self.seen) {
                Some(Outcome::Failed { first, others }) => [vec![first], others].concat(),
                _ => self.faults.values().cloned().collect(),
            };
        }
        if let Some(ending) = self.config.taken_over.as_ref().and_then(|before| before.ending) {
            effects.push(SupervisorEffect::Event(Event::HadEnded { step: ending.step }));
        }
        self.outcome = Some(outcome.clone());
        effects.push(SupervisorEffect::Finish(Box::new(outcome)));
    }

    /// Whether a host of the life before may still call, to hear that the run is over. One that has heard it never does.
    fn may_be_called(&self, now: Instant) -> bool {
        self.phase == Phase::Finish && self.recalls(now)
    }
}
