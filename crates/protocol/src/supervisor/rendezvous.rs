//! From the first word of each member to the first step: admission, generation, *form*, *sync*, *run*.
//!
//! This file does not know what a data plane is; it knows who said that theirs stands.

use super::{Life, Reduce, Supervisor};
use crate::cause::{Outcome, What};
use crate::effect::{Event, SupervisorEffect};
use crate::message::{Activity, Digest, Membership, Number, Phase, Report, Seat, Stage};
use dtrain_types::{Incarnation, Instant, MemberId, Rank, Step, cut_evenly};

impl Supervisor {
    /// Gives a life to a process that reports for the first time. Says whether the sender is known.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        report: &Report,
        effects: &mut Vec<SupervisorEffect>,
    ) -> bool {
        let member = report.member;
        let Some(slot) = self.slots.get_mut(&member) else { return false };
        if slot.life.as_ref().is_some_and(|life| life.start_id == report.start_id) {
            return true;
        }
        // Once a generation is named a process that is not in it has no state that anybody waits for, and a slot whose
        // process lives has no room for a second one.
        if slot.life.is_some() || slot.gone || slot.refused || self.phase != Phase::Join {
            return false;
        }
        slot.issued = Incarnation(slot.issued.0 + 1);
        let incarnation = slot.issued;
        let profile = report.profile.clone();
        slot.life = Some(Life {
            incarnation,
            start_id: report.start_id,
            profile: profile.clone(),
            heard: now,
            cut: None,
            report: Number(0),
            number: Number(0),
            echoed: Number(0),
            stage: Stage::Joining,
            activity: Activity::Idle,
            applied: None,
        });
        effects.push(SupervisorEffect::Event(Event::Joined { member, incarnation, profile }));
        self.refuse_if_other_bits(member, effects);
        self.direct(member, effects);
        true
    }

    /// In exact mode all members compute the same bits, or they do not take part.
    fn refuse_if_other_bits(&mut self, member: MemberId, effects: &mut Vec<SupervisorEffect>) {
        if self.config.reduce != Reduce::Exact {
            return;
        }
        let of = |id: &MemberId| self.slots[id].life.as_ref().map(|life| &life.profile.fingerprint);
        // The run's fingerprint is that of the first to come; all that were let in since have the same.
        let reference = self.joined().find(|other| *other != member);
        let (Some(against), Some(own)) = (reference, of(&member)) else { return };
        let Some(other) = of(&against).filter(|other| !other.agrees_with(own)) else { return };
        let what = What::Fingerprint { own: own.clone(), other: other.clone(), against };
        let cause = self.cause(member, what);
        if let Some(slot) = self.slots.get_mut(&member) {
            slot.refused = true;
        }
        effects.push(SupervisorEffect::Event(Event::Refused(cause.clone())));
        self.refusals.push(cause);
    }

    /// Members that reported and were not refused.
    fn joined(&self) -> impl Iterator<Item = MemberId> {
        self.slots.iter().filter(|(_, slot)| slot.life.is_some() && !slot.refused).map(|(member, _)| *member)
    }

    /// Names the first generation when all that are wanted are there, or enough of them when the time is over.
    pub(super) fn try_form(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let wanted = self.slots.values().filter(|slot| !slot.refused).count();
        let joined: Vec<MemberId> = self.joined().collect();
        let enough = |count: usize| count >= self.config.min_ranks.max(1) as usize;
        if !enough(wanted) {
            return self.not_enough(now, &joined, effects);
        }
        let over = now >= self.since + self.config.join_timeout;
        if joined.len() < wanted && !over {
            return;
        }
        if !enough(joined.len()) {
            return self.not_enough(now, &joined, effects);
        }
        self.leave_out_the_rest(effects);
        self.generation = self.config.first_generation;
        let ranges = cut_evenly(self.config.micro_batches, joined.len() as u32);
        let seats = joined.iter().zip(ranges).map(|(member, range)| {
            let incarnation = self.slots[member].issued;
            Seat { member: *member, incarnation, range }
        });
        self.membership = Membership { seats: seats.collect() };
        let (generation, membership) = (self.generation, self.membership.clone());
        effects.push(SupervisorEffect::Event(Event::Formed { generation, membership }));
        self.enter(now, Phase::Form, effects);
    }

    fn not_enough(&mut self, now: Instant, joined: &[MemberId], effects: &mut Vec<SupervisorEffect>) {
        self.ending = Some(match self.refusals.first() {
            // Who was refused did come: that is the cause, and a better word than a number.
            Some(first) => Outcome::Failed { first: first.clone(), others: self.refusals[1..].to_vec() },
            None => Outcome::NotEnough {
                joined: joined.len() as u32,
                min_ranks: self.config.min_ranks,
                missing: self.slots.keys().filter(|member| !joined.contains(member)).copied().collect(),
            },
        });
        self.enter(now, Phase::Stop, effects);
    }

    /// The run begins without those that did not come: they must not come later.
    fn leave_out_the_rest(&mut self, effects: &mut Vec<SupervisorEffect>) {
        for (member, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.life.is_none()) {
            slot.refused = true;
            slot.killed = true;
            effects.push(SupervisorEffect::Event(Event::LeftOut { member: *member }));
            effects.push(SupervisorEffect::Kill(*member));
        }
    }

    pub(super) fn try_sync(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if self.lives().all(|life| life.stage == Stage::Formed) {
            self.enter(now, Phase::Sync, effects);
        }
    }

    /// Lets all run once all are ready and stand at the same state.
    pub(super) fn try_run(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let mut ready: Vec<(Option<Step>, Digest)> = Vec::new();
        for life in self.lives() {
            let Stage::Ready { state_digest } = life.stage else { return };
            ready.push((life.applied, state_digest));
        }
        let (step, against) = (self.config.start.step(), self.member_of(Rank(0)));
        let other = ready[0].1;
        for (rank, (applied, own)) in ready.into_iter().enumerate() {
            let what = if applied != Some(step) {
                What::StepDiffers { own: applied.unwrap_or_default(), other: step, against }
            } else if own != other {
                What::DigestDiffers { step, own, other, against }
            } else {
                continue;
            };
            return self.lost(now, self.member_of(Rank(rank as u32)), what, effects);
        }
        for (rank, seat) in self.membership.seats.iter().enumerate() {
            let rank = Rank(rank as u32);
            let profile = self.life_of(rank).profile.clone();
            let (member, incarnation, generation) = (seat.member, seat.incarnation, self.generation);
            let event = Event::RankStarted { member, rank, incarnation, generation, profile };
            effects.push(SupervisorEffect::Event(event));
        }
        let event = Event::Running { generation: self.generation, from_step: step.next() };
        effects.push(SupervisorEffect::Event(event));
        let share = self.membership.seats.iter().map(|seat| seat.range.len()).max().unwrap_or(1);
        self.progress.begin(now, share);
        self.enter(now, Phase::Run, effects);
    }
}
