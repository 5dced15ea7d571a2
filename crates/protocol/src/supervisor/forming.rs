//! From the first word of a member to the first step of a generation: admission, *join*, *form*, *sync*, *run*.
//!
//! This file does not know what a data plane is; it knows who said that theirs stands.

use super::slot::{After, Life, Place, Slot};
use super::{RESERVE_AHEAD, Reduce, Remirror, Supervisor};
use crate::cause::{Outcome, What};
use crate::effect::{Event, Reason, SupervisorEffect};
use crate::message::{Membership, Participant, Pending, Report, ResumePoint, Stage, StateSource, StopFlag};
use crate::number::Number;
use crate::phase::{Activity, Phase};
use dtrain_types::{CheckpointId, Digest, Generation, Holding, Instant, MemberId, NodeId, Rank, Step};
use std::sync::Arc;

impl Supervisor {
    /// Takes a process that reports for the first time for the life that was ordered. Says whether the sender is known.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        report: &Report,
        effects: &mut Vec<SupervisorEffect>,
    ) -> bool {
        let member = report.member;
        let Some(slot) = self.slots.get(&member) else { return false };
        let asked = slot.awaited().is_some();
        let obeyed = |instance| instance == self.config.instance || Some(instance) == slot.found;
        if !(asked || report.instance.is_none_or(obeyed)) || report.incarnation != slot.incarnation {
            return false;
        }
        match slot.place {
            Place::Live(_) => return true,
            Place::Starting { .. } => {}
            // It is to end, or has: what it says counts no more.
            _ => return false,
        }
        let (incarnation, profile) = (slot.incarnation, report.profile.clone());
        let Some(slot) = self.slots.get_mut(&member) else { return false };
        if asked {
            // Perhaps another one than its node: a supervisor that took over may have died when it had been heard by some.
            slot.found = report.instance.or(slot.found);
        }
        slot.place = Place::Live(Box::new(Life {
            profile: profile.clone(),
            heard: now,
            cut: None,
            report: Number(0),
            number: Number(0),
            echoed: Number(0),
            generation: Generation(0),
            stage: Stage::Joining,
            activity: Activity::Idle,
            applied: None,
            tells: None,
            holding: Holding::default(),
            // Nobody knows what a life was told that another supervisor began.
            was_given: asked,
            was_older: false,
            bootstrap: None,
            refused: false,
        }));
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
        let of = |id: &MemberId| self.slots[id].life().map(|life| &life.profile.fingerprint);
        // The run's fingerprint is that of the first to come; all that were let in since have the same.
        let reference = self.able().find(|other| *other != member);
        let (Some(against), Some(own)) = (reference, of(&member)) else { return };
        let Some(other) = of(&against).filter(|other| !other.agrees_with(own)) else { return };
        let what = What::Fingerprint { own: own.clone(), other: other.clone(), against };
        let cause = self.cause(member, what);
        self.refuse(member);
        effects.push(SupervisorEffect::Event(Event::Refused(cause.clone())));
        self.refusals.push(cause);
    }

    /// Tells a member to go; its process ends in good order, or is ended with the others.
    pub(super) fn refuse(&mut self, member: MemberId) {
        if let Some(life) = self.slots.get_mut(&member).and_then(|slot| slot.life_mut()) {
            life.refused = true;
        }
    }

    /// Members that can take part in a generation and are not about to leave.
    fn able(&self) -> impl Iterator<Item = MemberId> {
        // Who asks to leave is refused once it may go.
        self.slots.iter().filter(|(_, slot)| slot.able().is_some()).map(|(member, _)| *member)
    }

    fn life(&self, member: MemberId) -> &Life {
        self.slots[&member].life().expect("an able member is alive")
    }

    /// Names a generation out of *join*: when all that may come are there, or enough of them when the time is over.
    pub(super) fn try_form(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.seat_newcomers(now, effects);
        let able: Vec<MemberId> = self.able().collect();
        let hopeful = self.slots.values().filter(|slot| slot.is_hopeful()).count();
        let missing_nodes = self.nodes.len() < self.config.wanted_nodes as usize || self.recalls(now);
        let least = self.config.min_ranks.max(1) as usize;
        let over = now >= self.since + self.config.join_timeout;
        let hopeless = hopeful < least && !missing_nodes;
        if hopeless || over && able.len() < least {
            return self.not_enough(now, &able, effects);
        }
        // Whoever holds the state waits for no one: the others are admitted when they come.
        let has_state = self.is_held(able.iter().map(|member| self.life(*member)));
        let all = able.len() == hopeful && !missing_nodes;
        if able.len() >= least && (all || over || has_state && !self.awaits_the_found(now)) {
            if !has_state && over {
                self.leave_out_the_rest(now, effects);
            }
            self.leave_out_the_silent(now, effects);
            self.drop_the_forgotten(now, effects);
            let able: Vec<MemberId> = self.able().collect();
            // Whoever was dropped comes again, without a state.
            if able.len() >= least {
                self.form(now, able, effects);
            }
        }
    }

    fn not_enough(&mut self, now: Instant, able: &[MemberId], effects: &mut Vec<SupervisorEffect>) {
        let missing = self.slots.keys().filter(|member| !able.contains(member)).copied().collect();
        self.ending = Some(match self.refusals.first() {
            // Who was refused did come: that is the cause, and a better word than a number.
            Some(first) if self.generation == Generation(0) => {
                Outcome::Failed { first: first.clone(), others: self.refusals[1..].to_vec() }
            }
            _ => Outcome::NotEnough {
                joined: able.len() as u32,
                min_ranks: self.config.min_ranks,
                missing,
                // Who dies meanwhile belongs to it.
                causes: Vec::new(),
            },
        });
        self.enter(now, Phase::Stop, effects);
    }

    /// The run begins without those that did not come in time. A process that was started and does not report is given
    /// up like one that died; it may be admitted later.
    fn leave_out_the_rest(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let (there, wanted) = (self.nodes.len() as u32, self.config.wanted_nodes);
        if there < wanted && self.generation == Generation(0) {
            effects.push(SupervisorEffect::Event(Event::HostsMissing { there, wanted }));
        }
        let late = |place: &Place| matches!(place, Place::Starting { .. });
        let absent: Vec<MemberId> =
            self.slots.iter().filter(|(_, slot)| late(&slot.place)).map(|(member, _)| *member).collect();
        for member in absent {
            effects.push(SupervisorEffect::Event(Event::LeftOut { member }));
            self.kill(now, member, After::Restart, effects);
        }
    }

    /// The world is to be formed anew out of all that are able, now if they are enough and one holds the state.
    pub(super) fn regroup(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.enter(now, Phase::Join, effects);
        self.try_form(now, effects);
    }

    fn next_generation(&self) -> Generation {
        self.config.first_generation.max(self.generation.next())
    }

    /// Whether the next generation must not be named yet.
    pub(super) fn awaits_reservation(&self) -> bool {
        self.next_generation() > self.reserved.0
    }

    /// Announces a generation.
    fn form(&mut self, now: Instant, mut able: Vec<MemberId>, effects: &mut Vec<SupervisorEffect>) {
        let generation = self.next_generation();
        if self.awaits_reservation() {
            return;
        }
        if generation.0 + RESERVE_AHEAD / 2 > self.reserved.1.0 {
            self.reserved.1 = Generation(generation.0 + RESERVE_AHEAD);
            effects.push(SupervisorEffect::Reserve(self.reserved.1));
        }
        self.tell_of_the_found(effects);
        able.sort_by_key(|member| (self.slots[member].node, *member));
        let ranges = self.cut(&able);
        let participants = able.iter().zip(ranges).map(|(member, range)| {
            let (slot, life) = (&self.slots[member], self.life(*member));
            Participant {
                member: *member,
                incarnation: slot.incarnation,
                node: slot.node,
                address: life.profile.address,
                sees_run_folder: life.profile.sees_run_folder,
                range,
            }
        });
        let participants: Vec<Participant> = participants.collect();
        let unmirrored = if self.mirrors_later() { self.awaited(&able) } else { 0 };
        self.slots
            .iter_mut()
            .filter(|(member, _)| able.contains(member))
            .for_each(|(_, slot)| slot.took_part = true);
        self.membership = Arc::new(Membership { participants, unmirrored });
        self.generation = generation;
        self.stop = if self.stop.has(StopFlag::DRAIN) { StopFlag::DRAIN } else { StopFlag::default() };
        self.checkpoints.restart(generation);
        let membership = (*self.membership).clone();
        let ranges = membership.participants.iter().map(|participant| participant.range).collect();
        effects.push(SupervisorEffect::Event(Event::Formed { generation, membership }));
        effects.push(SupervisorEffect::WriteRanges(generation, ranges));
        self.enter(now, Phase::Form, effects);
    }

    /// Whether those that were lost may come back before what they held has as many holders again. Not where somebody goes: perhaps it
    /// alone has the rest.
    fn mirrors_later(&self) -> bool {
        let goes = self.nodes.values().any(|view| view.leaving && !view.released);
        self.config.sharded == Some(Remirror::Lazy) && !goes
    }

    /// How many that were lost are to come back beside these, who hold the state.
    fn awaited(&self, able: &[MemberId]) -> u32 {
        if !self.is_held(able.iter().map(|member| self.life(*member))) {
            return 0;
        }
        let lost = |(member, slot): &(&MemberId, &Slot)| {
            slot.took_part && slot.is_hopeful() && self.stays(slot.node) && !able.contains(member)
        };
        self.slots.iter().filter(lost).count() as u32
    }

    /// Whether mirrors are missing that nobody who is to come back will have.
    fn lacks_mirrors(&self) -> bool {
        let able: Vec<MemberId> = self.able().collect();
        self.membership.unmirrored > 0 && self.membership.unmirrored > self.awaited(&able)
    }

    /// Whether all have left what was before, and told every step that they made.
    fn is_formed(&self) -> bool {
        self.all_in(|life| life.stage == Stage::Formed) && self.unended().is_none()
    }

    /// Whether all wait for a manifest that is being written: nobody holds the state, and it may be the newest.
    pub(super) fn awaits_manifest(&self) -> bool {
        let held = self.is_held(self.lives().map(|(_, life)| life));
        self.checkpoints.is_writing() && self.is_formed() && !held
    }

    /// Names the resume point.
    pub(super) fn try_sync(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if !self.is_formed() {
            return;
        }
        let stands: Vec<(MemberId, Step)> =
            self.lives().filter_map(|(member, life)| Some((member, life.applied?))).collect();
        let parts = self.have_parts();
        if !parts.is_empty() {
            // Nobody goes on with them: who has some begins anew, with the others.
            return self.together(now, effects, |this, effects| {
                parts.into_iter().for_each(|member| this.lost(now, member, What::HoldsPart, effects));
            });
        }
        let Some((_, step)) = stands.iter().copied().max_by_key(|(_, step)| *step) else {
            if !self.settle_checkpoints(now, effects) {
                return;
            }
            let from = self.start_from();
            let lost = self.progress.committed().0 - from.step().0;
            let is_later = self.generation > self.config.first_generation;
            if is_later && let Some((member, what)) = self.relapse(from.step()) {
                return self.lost(now, member, what, effects);
            }
            let again = is_later && self.config.taken_over.is_none();
            if again || lost > 0 {
                effects.push(SupervisorEffect::Event(Event::Resumed { from: from.step(), lost }));
            }
            self.progress.go_back(self.generation, from.step());
            return self.sync(
                now,
                ResumePoint { step: from.step(), source: StateSource::Start(from) },
                effects,
            );
        };
        if self.drop_who_turns_out_to_be_forgotten(now, &stands, step, effects) {
            return self.regroup(now, effects);
        }
        // The lockstep lemma: who was in one generation differs by one step at most (S4).
        if let Some((member, own)) = stands.iter().copied().find(|(_, own)| own.next() < step) {
            let against = stands.iter().find(|(_, other)| *other == step).map_or(member, |(m, _)| *m);
            return self.lost(now, member, What::StepDiffers { own, other: step, against }, effects);
        }
        if !self.is_told_for_good(step) {
            return self.go_on_untold(now, step, effects);
        }
        if self.config.sharded.is_some() {
            // Who stands at the step before it has measured this one: it makes the update when it hears of it.
            let holdings = self.lives().map(|(_, life)| life.holding.clone());
            let source = StateSource::Shards(holdings.collect());
            for participant in &self.membership.participants {
                let slot = self.slots.get_mut(&participant.member);
                slot.and_then(Slot::life_mut).into_iter().for_each(|life| life.was_given = true);
            }
            return self.sync(now, ResumePoint { step, source }, effects);
        }
        let holds = |life: &Life| life.applied == Some(step);
        let ranks = self.lives().zip(0..).filter(|((_, life), _)| holds(life)).map(|(_, rank)| Rank(rank));
        let source = StateSource::Ranks(ranks.collect());
        self.sync(now, ResumePoint { step, source }, effects);
    }

    /// Whether all steps up to this one are told, and written down. Only who made a step tells of it: a copy of the state holds none of
    /// its records.
    ///
    /// 1. Ranks 0 to 3 have made step 7. It is told, and ranks 4 to 7 copy the state.
    /// 2. The supervisor dies before the step is written down, and ranks 0 to 3 with it.
    /// 3. *Unsafe*: ranks 4 to 7 hold the state of step 7, and nobody can tell of that step any more.
    fn is_told_for_good(&self, step: Step) -> bool {
        match self.config.reduce {
            Reduce::Exact => self.recorded >= step,
            // Nobody takes over, and nothing is committed before all have it.
            Reduce::Ring => self.progress.known() >= step,
        }
    }

    /// Goes on where nobody can tell of a step any more: its makers heard that it was written down, and it was lost all the same.
    ///
    /// 1. The disk is full. The run goes on, and ranks hear that step 5 is written down: the books have it, the logs have not.
    /// 2. The host of the supervisor loses its power. The ranks of another host stand at step 5.
    /// 3. The next one knows step 4. *Unsafe*: it waits for step 5, holds who stands there to hang, and starts one after the other anew.
    ///
    /// What the books have need not be told: the logs have a gap. What not even they have is made again, and its makers begin anew.
    fn go_on_untold(&mut self, now: Instant, step: Step, effects: &mut Vec<SupervisorEffect>) {
        let known = self.progress.known();
        let tells = |life: &Life| life.tells.is_some_and(|first| first <= known.next());
        let is_told = self.recorded < known || self.lives().any(|(_, life)| tells(life));
        let Some(before) = self.config.taken_over.as_ref().filter(|_| !is_told) else { return };
        let to = before.booked.min(step);
        if to > known {
            effects.push(SupervisorEffect::Event(Event::PassedOver { from: known.next(), to }));
            self.progress.pass_over(to);
            self.recorded = to;
            self.acknowledge_now(now);
            return self.try_sync(now, effects);
        }
        let makers: Vec<MemberId> =
            self.lives().filter(|(_, life)| life.applied.is_some()).map(|(member, _)| member).collect();
        self.together(now, effects, |this, effects| {
            makers.into_iter().for_each(|member| this.lost(now, member, What::Untold(known.next()), effects));
        });
    }

    /// Says which state all go on with, and by what they meet: what rank 0 made in this generation, and no other rank.
    fn sync(&mut self, now: Instant, resume_point: ResumePoint, effects: &mut Vec<SupervisorEffect>) {
        self.resume_point = resume_point;
        let bootstrap = self.lives().next().and_then(|(_, first)| first.bootstrap);
        self.bootstrap = bootstrap;
        self.enter(now, Phase::Sync, effects);
    }

    /// A process that was killed and has not ended, on a host that takes part: a number cannot fence what it stores into
    /// the memory that the generation is about to use.
    pub(super) fn unended(&self) -> Option<MemberId> {
        let here =
            |node: NodeId| self.membership.participants.iter().any(|participant| participant.node == node);
        let ends = |place: &Place| matches!(place, Place::Ending { .. });
        let mut slots = self.slots.iter();
        slots.find(|(_, slot)| ends(&slot.place) && here(slot.node)).map(|(member, _)| *member)
    }

    /// Lets all run once all are ready and stand at the same state.
    pub(super) fn try_run(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        // Whether the run ends here decides what is pending.
        let judged = !self.validations.awaits_judgement();
        if !judged || self.awaits_ranges() || !self.all_in(|life| matches!(life.stage, Stage::Ready { .. })) {
            return;
        }
        let step = self.resume_point.step;
        let sources: &[Rank] =
            if let StateSource::Ranks(ranks) = &self.resume_point.source { ranks } else { &[] };
        let reference = sources.first().map_or(0, |rank| rank.index());
        let ready = self.lives().map(|(member, life)| {
            let digest =
                if let Stage::Ready { state_digest } = life.stage { state_digest } else { Digest([0; 32]) };
            (member, life.applied, digest)
        });
        let ready: Vec<_> = ready.collect();
        let (against, _, other) = ready[reference];
        for (rank, (member, applied, own)) in ready.iter().copied().enumerate() {
            let copied = !sources.is_empty() && !sources.contains(&Rank(rank as u32));
            let what = match applied == Some(step) {
                true if own == other => continue,
                _ if copied => What::Impossible("its copy of the state is not the state".to_owned()),
                false => What::StepDiffers { own: applied.unwrap_or_default(), other: step, against },
                true => What::DigestDiffers { step, own, other, against },
            };
            return self.lost(now, member, what, effects);
        }
        self.begin(now, effects);
    }

    /// Whether it is not written down yet who computes what.
    pub(super) fn awaits_ranges(&self) -> bool {
        self.ranges_of < self.generation
    }

    /// Steps may be made.
    fn begin(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let step = self.resume_point.step;
        self.checkpoints.leave_behind(self.generation);
        self.pending = self.pending_after(step);
        let share =
            self.membership.participants.iter().map(|participant| participant.range.len()).max().unwrap_or(1);
        self.progress.begin(now, step, share, self.pending);
        self.validations.restart(self.pending.validate.then_some(step));
        self.paces.begin(step);
        // From now on all of them are one step apart at most.
        self.slots.values_mut().filter_map(Slot::life_mut).for_each(|life| life.was_older = false);
        let generation = self.generation;
        for (rank, participant) in self.membership.participants.iter().enumerate() {
            let (member, incarnation, rank) =
                (participant.member, participant.incarnation, Rank(rank as u32));
            let profile = self.life(member).profile.clone();
            let event = Event::RankStarted { member, rank, incarnation, generation, profile };
            effects.push(SupervisorEffect::Event(event));
        }
        effects.push(SupervisorEffect::Event(Event::Running { generation, from_step: step.next() }));
        if self.pending.checkpoint {
            let id = CheckpointId { generation, step };
            self.checkpoints.expect(id, &self.membership);
        }
        self.enter(now, Phase::Run, effects);
    }

    /// What the generation before did not finish after the step that this one begins with.
    fn pending_after(&self, step: Step) -> Pending {
        if step == self.config.start.step() && self.progress.committed() == step || step == Step(0) {
            return Pending::default();
        }
        let due = self.config.schedule.after(step, self.progress.stop_of(step));
        Pending {
            validate: due.validate && step > self.validations.done(),
            checkpoint: due.checkpoint && !self.checkpoints.has(step),
            ends: due.ends,
        }
    }

    /// Asks for the end of the generation at the next boundary where somebody is to come or to go, and forms the next one
    /// there.
    pub(super) fn try_reform(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if self.phase != Phase::Run {
            return;
        }
        if self.is_at_boundary() {
            self.release_who_may_go();
            return self.regroup(now, effects);
        }
        if self.stop.has(StopFlag::REFORM) || self.progress.ended().is_some() {
            return;
        }
        let come: Vec<MemberId> = self.able().filter(|member| self.rank_of(*member).is_none()).collect();
        let go = self.are_to_go();
        let reason = if !go.is_empty() {
            Reason::Departure(go)
        } else if !come.is_empty() {
            Reason::Admission(come)
        } else if self.is_unbalanced() {
            self.paces.count_cut();
            Reason::Balance
        } else if self.lacks_mirrors() {
            Reason::Mirrors
        } else {
            return;
        };
        self.stop = self.stop.with(StopFlag::REFORM);
        effects.push(SupervisorEffect::Event(Event::Reforming { reason }));
        self.direct_all(effects);
    }
}
