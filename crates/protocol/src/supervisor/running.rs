//! While steps are made: what Reports say of them, what is recorded, and when the generation ends in good order.
//!
//! This file does not know why a generation was formed, nor what a loss means.

use super::checkpoint::Verdict;
use super::{MAX_VERIFIED, Reduce, Supervisor, has_failed};
use crate::cause::What;
use crate::effect::{Event, ManifestOrder, SupervisorEffect};
use crate::message::{MAX_STEPS_IN_REPORT, Report, Stage, StopFlag};
use crate::phase::Phase;
use dtrain_types::{CheckpointId, Digest, Instant, MemberId, Step};
use std::sync::Arc;

impl Supervisor {
    /// Takes in what a Report says of the world. Steps count whatever generation made them: the state has them. What else
    /// belongs to another generation says nothing of this one (S3).
    pub(super) fn read(&mut self, now: Instant, report: &Report, effects: &mut Vec<SupervisorEffect>) {
        let member = report.member;
        if let Stage::Failed(failure) = &report.stage {
            self.lost(now, self.to_blame(member, failure), What::Reported(failure.clone()), effects);
        }
        if report.generation > self.generation
            || report.steps.iter().any(|r| r.generation > report.generation)
        {
            let text = format!("a step or a word of a generation after {}", self.generation);
            return self.lost(now, member, What::Impossible(text), effects);
        }
        if let Err(text) = self.progress.take(&report.steps, report.applied) {
            return self.lost(now, member, What::Impossible(text), effects);
        }
        if report.steps.len() >= MAX_STEPS_IN_REPORT / 2 {
            self.acknowledge_now(now);
        } else if report.steps.first().is_some_and(|record| record.step <= self.recorded) {
            // Steps that are made again after a resume were recorded before: nothing else would have them acknowledged.
            self.acknowledge_soon();
        }
        if report.generation == self.generation && self.rank_of(member).is_some() {
            self.read_participant(now, report, effects);
        }
        self.commit(effects);
        match self.checkpoints.take(member, report.incarnation, &report.shards) {
            Ok(true) => self.progress.touch(now),
            Ok(false) => {}
            Err(text) => self.lost(now, member, What::Impossible(text), effects),
        }
    }

    fn read_participant(&mut self, now: Instant, report: &Report, effects: &mut Vec<SupervisorEffect>) {
        let Some(rank) = self.membership.rank_of(report.member) else { return };
        if self.phase == Phase::Run {
            let newest = report.steps.last();
            let made = self.progress.made(
                now,
                report.applied.unwrap_or_default(),
                newest.map_or(0.0, |record| record.seconds),
                &self.config.schedule,
            );
            for (step, due) in made {
                if due.validate {
                    self.validations.owe(step);
                }
                if due.checkpoint {
                    let id = CheckpointId { generation: self.generation, step };
                    self.checkpoints.expect(id, &self.membership);
                }
            }
            if let Some(record) = newest {
                self.pace(rank, record, effects);
            }
            if self.validations.take(rank, &report.validations) {
                self.progress.touch(now);
            }
        }
        if let Some((step, digest)) = report.verified {
            self.compare(now, report.member, step, digest, effects);
        }
        // Out of *join* there is a generation that broke. In it nobody is to be waited for again: who is broken stays so
        // until the next one, and says it with every sign of life.
        if self.phase != Phase::Join && matches!(report.stage, Stage::Broken { .. }) {
            self.trouble.broke(now + self.config.timeouts.heartbeat);
        }
    }

    /// Commits what is reported.
    pub(super) fn commit(&mut self, effects: &mut Vec<SupervisorEffect>) {
        let limit = match self.config.reduce {
            Reduce::Exact => Step(u64::MAX),
            // While a generation forms, some are behind: they get the state that the others have.
            Reduce::Ring if matches!(self.phase, Phase::Join | Phase::Form | Phase::Sync) => return,
            Reduce::Ring => {
                let applied = self.lives().map(|(_, life)| life.applied.unwrap_or_default());
                applied.min().unwrap_or_default()
            }
        };
        self.progress.commit(limit, effects);
    }

    pub(super) fn run(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.commit(effects);
        self.note_recovery(now, effects);
        if self.record_validations(now, effects) {
            // The ranks wait for this before they make another step.
            self.direct_all(effects);
        }
        if self.record_checkpoints(now, effects) {
            // The ranks wait for this before they begin another checkpoint.
            self.acknowledge_now(now);
        }
        self.try_reform(now, effects);
        self.try_finish(now, effects);
    }

    /// Records what all ranks have validated; says whether there was anything.
    fn record_validations(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) -> bool {
        let world = self.membership.world().0;
        let mut moved = false;
        while self.phase == Phase::Run {
            match self.validations.next(world, self.config.schedule.validation_micro_batches) {
                Ok(None) => return moved,
                Ok(Some(validation)) => {
                    self.validations.judge();
                    effects.push(SupervisorEffect::Validated(validation));
                }
                Err((rank, text)) => {
                    let member = self.membership.participants[rank.index()].member;
                    self.lost(now, member, What::Impossible(text), effects);
                    return true;
                }
            }
            moved = true;
        }
        moved
    }

    /// The run ends after `step`, which is validated. If the generation stands there, what is due at an end is due now; one that
    /// comes there later finds it in the schedule.
    pub(super) fn end_after(&mut self, step: Step) {
        let planned = self.config.schedule.after(step, self.progress.stop_of(step));
        self.config.schedule.last = step;
        self.enough = Some(step);
        if self.phase != Phase::Run || self.progress.at() != step {
            return;
        }
        self.progress.end();
        let due = self.config.schedule.after(step, self.progress.stop_of(step));
        if due.checkpoint && !planned.checkpoint {
            let id = CheckpointId { generation: self.generation, step };
            self.checkpoints.expect(id, &self.membership);
        }
    }

    /// Nobody holds the state: settles all that was begun, so that the newest checkpoint is the newest for good. Says whether
    /// that is done; if not, a manifest is being written.
    ///
    /// 1. All shards of step 21 are told when all ranks die. Its manifest is being written, or is the next to be.
    /// 2. *Unsafe*: the next generation goes back to step 0, and the checkpoint of step 21 appears after that.
    /// 3. All die again after step 7: the newest is now that of step 7, though step 21 is there.
    pub(super) fn settle_checkpoints(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) -> bool {
        self.checkpoints.leave_behind(self.generation);
        self.record_checkpoints(now, effects);
        if self.checkpoints.is_writing() || self.phase != Phase::Form {
            return false;
        }
        // Whole, but for a validation that nobody is left to make.
        while let Some((id, member)) = self.checkpoints.give_up(self.generation) {
            let (member, reason) = (Some(member), "its validation was lost".to_owned());
            effects.push(SupervisorEffect::Event(Event::CheckpointGivenUp { id, member, reason }));
        }
        true
    }

    /// Settles checkpoints whose shards are all there; says whether there was any.
    fn record_checkpoints(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) -> bool {
        let mut moved = false;
        while matches!(self.phase, Phase::Form | Phase::Run) {
            let (validations, committed) = (&self.validations, self.progress.committed());
            let ready = |step: Step| step <= committed && validations.is_settled(step);
            let Some(verdict) = self.checkpoints.next(self.generation, ready) else { return moved };
            moved = true;
            match verdict {
                Verdict::Complete { id, shards, digest, state_digest, writers } => {
                    let fingerprint = self.lives().next().map(|(_, life)| life.profile.fingerprint.clone());
                    let fingerprint = fingerprint.expect("a generation that runs has a rank");
                    let membership = Arc::unwrap_or_clone(writers);
                    let order = ManifestOrder { id, shards, digest, state_digest, fingerprint, membership };
                    effects.push(SupervisorEffect::WriteManifest(Box::new(order)));
                }
                Verdict::GivenUp { id, member, reason } => {
                    let member = Some(member);
                    effects.push(SupervisorEffect::Event(Event::CheckpointGivenUp { id, member, reason }));
                }
                Verdict::Disagree { id, member, own, other } => {
                    let what =
                        What::DigestDiffers { step: id.step, own, other, against: self.first_member() };
                    self.lost(now, member, what, effects);
                }
            }
        }
        moved
    }

    /// Whether every rank stands at the boundary after which the generation was asked to end, with all that was due there
    /// recorded.
    pub(super) fn is_at_boundary(&self) -> bool {
        let at = self.progress.at();
        // The step that the generation began with may be the boundary of the one before it.
        at > self.resume_point.step
            && self.progress.ended().is_none()
            && self.progress.stop_of(at).has(StopFlag::REFORM)
            && self.all_in(|life| life.applied == Some(at) && !has_failed(life))
            && self.validations.is_settled(at)
            && self.progress.known() >= at
    }

    /// Compares a member's state digest at `step` with the first that was heard of it (S5).
    fn compare(
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

    /// The member of rank 0.
    pub(super) fn first_member(&self) -> MemberId {
        self.membership.participants.first().map_or(MemberId(0), |participant| participant.member)
    }
}
