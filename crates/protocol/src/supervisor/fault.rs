//! Faults: what a loss means, and which news of it counts.
//!
//! This file does not decide who is to blame in the end; that is in `verdict.rs`, once all is known.

use super::slot::{After, Life};
use super::verdict::Seen;
use super::{Losses, Supervisor, has_failed};
use crate::cause::{Cause, Doing, ExitCause, Failure, What};
use crate::effect::{Event, SupervisorEffect};
use crate::message::Stage;
use crate::phase::{Activity, Phase};
use dtrain_types::{Generation, Instant, MemberId};

/// What follows when a member is lost.
enum Answer {
    /// The others go on without it; its process is ended and started again.
    Replace,
    /// The run stops.
    Stop,
    /// It is noted: the run is ending anyway.
    Note,
}

impl Supervisor {
    /// The one place that decides what a loss means.
    fn answer(&self, what: &What) -> Answer {
        match what {
            _ if self.is_done() => Answer::Note,
            // Another life would come to the same.
            What::Reported(failure) if !failure.is_accident() => Answer::Stop,
            What::Exited(ExitCause::NotStarted(_)) if self.generation == Generation(0) => Answer::Stop,
            What::DigestDiffers { .. } | What::StepDiffers { .. } => Answer::Stop,
            What::Poisonous { .. } | What::Relapsed { .. } => Answer::Stop,
            What::StillThere(_) | What::Broken(_) => Answer::Stop,
            _ if self.config.losses == Losses::EndTheRun => Answer::Stop,
            _ => Answer::Replace,
        }
    }

    /// A member is lost: notes the fault, and does what follows.
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
        let answer = self.answer(&what);
        let cause = self.cause(member, what);
        effects.push(SupervisorEffect::Event(Event::Fault(cause.clone())));
        let unnamed = matches!(&cause.what, What::Reported(Failure::NonFinite { micro_batch: None, .. }));
        self.faults.insert(member, cause.clone());
        self.seen.push(Seen { cause, stopping: matches!(answer, Answer::Note) });
        match answer {
            Answer::Replace => self.replace(now, member, effects),
            // Somebody is still computing its micro-batches again, to find the one that made the gradient so.
            Answer::Stop if unnamed && !self.lives().all(|(_, life)| has_failed(life)) => {}
            Answer::Stop => self.enter(now, Phase::Stop, effects),
            Answer::Note => {}
        }
    }

    /// Lets the others go on. However a member was lost, its process ends before memory that it mapped is used again.
    fn replace(&mut self, now: Instant, member: MemberId, effects: &mut Vec<SupervisorEffect>) {
        let participates = self.rank_of(member).is_some();
        let poison = participates.then(|| self.poison(member)).flatten();
        if participates && self.phase != Phase::Join {
            self.trouble.lost(member, now);
        }
        let node = self.slots.get(&member).and_then(|slot| self.nodes.get(&slot.node));
        let leaves = node.is_some_and(|view| view.leaving);
        self.kill(now, member, if leaves { After::Nothing } else { After::Restart }, effects);
        if let Some(what) = poison {
            return self.lost(now, member, what, effects);
        }
        if participates && matches!(self.phase, Phase::Form | Phase::Sync | Phase::Run) {
            match &mut self.regroup_later {
                Some(wanted) => *wanted = true,
                None => self.regroup(now, effects),
            }
        }
    }

    /// Takes in several losses as one: the world is put together again once, after the last of them (L2).
    pub(super) fn together(
        &mut self,
        now: Instant,
        effects: &mut Vec<SupervisorEffect>,
        losses: impl FnOnce(&mut Self, &mut Vec<SupervisorEffect>),
    ) {
        self.regroup_later = Some(false);
        losses(self, effects);
        let wanted = self.regroup_later.take() == Some(true);
        if wanted && matches!(self.phase, Phase::Form | Phase::Sync | Phase::Run) {
            self.regroup(now, effects);
        }
    }

    /// Whether a fault says more than what is known of its member: its own word counts more than its exit, and once.
    fn is_news(&self, member: MemberId, what: &What) -> bool {
        let life = self.slots.get(&member).and_then(|slot| slot.life());
        let said_why = life.is_some_and(|life| matches!(life.stage, Stage::Failed(_)));
        let incarnation = self.slots.get(&member).map(|slot| slot.incarnation);
        let same = |seen: &&Seen| seen.cause.member == member && Some(seen.cause.incarnation) == incarnation;
        let mut own = self.seen.iter().filter(same).map(|seen| &seen.cause.what).peekable();
        match what {
            // What it said may have been put down to another.
            What::Exited(ExitCause::Code(_)) if said_why => false,
            What::Reported(failure) => own.all(|known| *known != What::Reported(failure.clone())),
            What::Poisonous { .. } | What::Relapsed { .. } => true,
            _ => own.peek().is_none(),
        }
    }

    pub(super) fn cause(&self, member: MemberId, what: What) -> Cause {
        let slot = self.slots.get(&member);
        let host = slot.and_then(|slot| self.nodes.get(&slot.node)).map_or("", |view| &view.host);
        Cause {
            member,
            incarnation: slot.map(|slot| slot.incarnation).unwrap_or_default(),
            rank: self.membership.rank_of(member),
            host: host.to_owned(),
            // A rank that names its step knows better than we: the steps before it are in the same Report.
            step: match &what {
                What::Reported(Failure::NonFinite { step, .. }) => *step,
                _ => self.progress.at().max(self.resume_point.step).next(),
            },
            phase: self.phase,
            doing: self.doing(member, &what),
            what,
        }
    }

    fn doing(&self, member: MemberId, what: &What) -> Option<Doing> {
        let hangs = matches!(what, What::Silent(_) | What::LinkLost | What::NoProgress { .. });
        let life = self.slots.get(&member)?.life().filter(|_| hangs && self.phase == Phase::Run)?;
        let waits =
            |(other, life): &(MemberId, &Life)| *other != member && life.activity == Activity::Reducing;
        Some(Doing { activity: life.activity, waiting: self.lives().filter(waits).count() as u32 })
    }
}
