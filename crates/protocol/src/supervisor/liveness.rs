//! Time: signs of life, silence, standstill, and the end of those that do not leave.
//!
//! This file does not know what the phases mean beyond how long each may take.

use super::Supervisor;
use crate::cause::What;
use crate::effect::SupervisorEffect;
use crate::message::{Activity, Heartbeat, Phase, Stage};
use dtrain_types::{Instant, MemberId, Rank};
use std::time::Duration;

impl Supervisor {
    /// Does what has come due. Call it after all input that has already arrived.
    pub fn handle_timeout(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let Some(due) = self.next_deadline() else { return };
        if now.since(due) > self.config.timeouts.late {
            self.forgive(now);
        }
        if now >= self.beat_at {
            self.beat(now, effects);
        }
        if self.acknowledge_at.is_some_and(|at| now >= at) {
            self.direct_all(effects);
        }
        match self.phase {
            Phase::Join | Phase::Form | Phase::Sync | Phase::Run => self.watch(now, effects),
            Phase::Finish | Phase::Stop => self.see_off(now, effects),
        }
        self.advance(now, effects);
    }

    /// When [`Supervisor::handle_timeout`] is to be called; none after the end.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.outcome.is_some() {
            return None;
        }
        let phase = match self.phase {
            Phase::Join => self.since + self.config.join_timeout,
            Phase::Form | Phase::Sync | Phase::Run => self.standstill().unwrap_or(self.beat_at),
            Phase::Finish | Phase::Stop if self.any_to_kill() => self.since + self.config.timeouts.detect,
            // A manifest that is still being written holds up the end: its answer is the next input, not a time.
            Phase::Finish | Phase::Stop if self.checkpoints.is_writing() => self.beat_at,
            Phase::Finish | Phase::Stop => self.given_up(),
        };
        let silence = self.watched().map(|(_, deadline, _)| deadline).min();
        let times = [Some(self.beat_at), self.acknowledge_at, self.stop_at, Some(phase), silence];
        times.into_iter().flatten().min()
    }

    /// When those that were told to leave, and then killed, are waited for no longer.
    pub(super) fn given_up(&self) -> Instant {
        self.since + self.config.timeouts.detect + self.config.timeouts.late
    }

    /// Our own process stood still: silence and standstill since then prove nothing about others.
    fn forgive(&mut self, now: Instant) {
        for life in self.slots.values_mut().filter_map(|slot| slot.life.as_mut()) {
            life.heard = now;
            life.cut = life.cut.map(|_| now);
        }
        self.progress.touch(now);
        self.since = now;
    }

    /// The number to everyone; the whole Directive to those who have not echoed it.
    fn beat(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.beat_at = now + self.config.timeouts.heartbeat;
        for (member, slot) in self.slots.iter().filter(|(_, slot)| !slot.gone) {
            let Some(life) = &slot.life else { continue };
            if life.echoed < life.number {
                effects.extend(self.directive(*member));
                continue;
            }
            effects.push(SupervisorEffect::Beat(Heartbeat {
                instance: self.config.instance,
                generation: self.generation,
                member: *member,
                incarnation: life.incarnation,
                number: life.number,
            }));
        }
    }

    /// Members whose silence counts, with the deadline of each and what it then is.
    fn watched(&self) -> impl Iterator<Item = (MemberId, Instant, fn(Duration) -> What)> {
        let detect = self.config.timeouts.detect;
        let leaving = matches!(self.phase, Phase::Finish | Phase::Stop);
        self.slots.iter().filter(move |(_, slot)| !leaving && !slot.gone && !slot.refused).filter_map(
            move |(member, slot)| {
                let life = slot.life.as_ref()?;
                let link_lost: fn(Duration) -> What = |_| What::LinkLost;
                Some(match life.cut {
                    Some(cut) => (*member, cut + detect, link_lost),
                    None => (*member, life.heard + detect, What::Silent as fn(Duration) -> What),
                })
            },
        )
    }

    fn watch(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if self.stop_at.is_some_and(|at| now >= at) {
            return self.enter(now, Phase::Stop, effects);
        }
        let detect = self.config.timeouts.detect;
        let overdue: Vec<_> = self.watched().filter(|(_, deadline, _)| now >= *deadline).collect();
        for (member, deadline, what) in overdue {
            self.lost(now, member, what(now.since(deadline) + detect), effects);
            // However a member was lost, its process ends before anybody goes on.
            self.kill(member, effects);
        }
        let running = matches!(self.phase, Phase::Form | Phase::Sync | Phase::Run);
        if running && self.standstill().is_some_and(|at| now >= at) {
            let (waited, suspects) = (self.still(now), self.suspects());
            self.lost(now, suspects[0], What::NoProgress { waited, suspects }, effects);
        }
    }

    /// Ends those that were told to leave and did not.
    fn see_off(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let times = self.config.timeouts;
        if now < self.since + times.detect {
            return;
        }
        let late: Vec<MemberId> =
            self.slots.iter().filter(|(_, s)| !s.gone && !s.killed).map(|(m, _)| *m).collect();
        for member in late {
            // A member that was not heard since the stop may be the cause of it: its last words were still on the way then.
            let unheard =
                |life: &&super::Life| life.echoed < life.number && life.heard < self.since + times.late;
            let silent = self.slots[&member].life.as_ref().filter(unheard).map(|life| now.since(life.heard));
            if let Some(silent) = silent.filter(|_| self.phase == Phase::Stop) {
                self.lost(now, member, What::Silent(silent), effects);
            }
            self.kill(member, effects);
        }
    }

    fn kill(&mut self, member: MemberId, effects: &mut Vec<SupervisorEffect>) {
        if let Some(slot) = self.slots.get_mut(&member).filter(|slot| !slot.gone && !slot.killed) {
            slot.killed = true;
            effects.push(SupervisorEffect::Kill(member));
        }
    }

    fn any_to_kill(&self) -> bool {
        self.slots.values().any(|slot| !slot.gone && !slot.killed)
    }

    /// When the phase has taken so long that somebody hangs. Never while steps wait to be written down: then it is us
    /// whom everybody waits for, and whoever reads what we write.
    fn standstill(&self) -> Option<Instant> {
        let times = &self.config.timeouts;
        Some(match self.phase {
            Phase::Form => self.since + times.form,
            Phase::Run if self.recorded < self.progress.committed() => return None,
            // Members wait while a checkpoint before theirs is on its way to a slow disk: that is no hang.
            Phase::Run if self.checkpoints.is_backed_up() => self.progress.patient_deadline(times),
            Phase::Run => self.progress.deadline(times),
            _ => self.since + times.patience,
        })
    }

    fn still(&self, now: Instant) -> Duration {
        if self.phase == Phase::Run { self.progress.still(now) } else { now.since(self.since) }
    }

    /// For whom the others wait; never empty.
    fn suspects(&self) -> Vec<MemberId> {
        let with = |test: &dyn Fn(&super::Life) -> bool| -> Vec<MemberId> {
            let is = |seat: &&crate::message::Seat| self.slots[&seat.member].life.as_ref().is_some_and(test);
            self.membership.seats.iter().filter(is).map(|seat| seat.member).collect()
        };
        let of_ranks = |ranks: Vec<Rank>| ranks.into_iter().map(|rank| self.member_of(rank)).collect();
        let world = self.membership.world().0;
        let ended = self.progress.ended().is_some();
        let narrowest = [
            match self.phase {
                Phase::Form => with(&|life| life.stage == Stage::Joining),
                Phase::Sync => with(&|life| life.stage == Stage::Formed),
                _ if ended => with(&|life| !matches!(life.stage, Stage::Finished(_))),
                _ => Vec::new(),
            },
            of_ranks(self.validations.missing(world)),
            if ended { of_ranks(self.checkpoints.missing(world)) } else { Vec::new() },
            // Who waits inside a collective waits for somebody that does not.
            with(&|life| life.activity != Activity::Reducing),
            with(&|_| true),
        ];
        narrowest.into_iter().find(|suspects| !suspects.is_empty()).unwrap_or_default()
    }
}
