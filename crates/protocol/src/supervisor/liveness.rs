//! Time: signs of life, silence, standstill, and the end of those that do not leave.
//!
//! This file does not know what the phases mean beyond how long each may take.

use super::Supervisor;
use super::slot::{After, Life, NodeView, Place};
use crate::cause::What;
use crate::effect::{Event, SupervisorEffect};
use crate::message::{Heartbeat, Stage};
use crate::phase::{Activity, Phase};
use dtrain_types::{Instant, MemberId, NodeId, Rank};
use std::time::Duration;

/// A silence that counts.
struct Watched {
    since: Instant,
    /// Until when it is allowed.
    deadline: Instant,
    /// What it then is, by how long nothing was heard.
    what: fn(Duration) -> What,
}

impl Supervisor {
    /// Does what has come due. Call it after all input that has already arrived.
    pub fn handle_timeout(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if self.outcome.is_some() {
            return;
        }
        self.notice_standstill(now, effects);
        if now >= self.beat_at {
            self.beat(now, effects);
        }
        if self.acknowledge_at.is_some_and(|at| now >= at) {
            self.direct_all(effects);
        }
        self.start_due(now, effects);
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
            // A number that is being reserved holds up the generation: its answer is the next input, not a time.
            Phase::Join if self.awaits_reservation() => self.beat_at,
            Phase::Join => self.since + self.config.join_timeout,
            Phase::Form | Phase::Sync | Phase::Run => self.standstill().unwrap_or(self.beat_at),
            Phase::Finish | Phase::Stop if self.any_to_kill() => self.leave_by(),
            // A manifest that is still being written holds up the end: its answer is the next input, not a time.
            Phase::Finish | Phase::Stop if self.checkpoints.is_writing() => self.beat_at,
            Phase::Finish | Phase::Stop => self.given_up(),
        };
        let silence = self.watched().map(|(_, watched)| watched.deadline).min();
        let times = [
            Some(self.beat_at),
            self.acknowledge_at,
            self.trouble.regroup_at().filter(|_| !self.is_done()),
            self.next_start(),
            Some(phase),
            silence,
        ];
        times.into_iter().flatten().min()
    }

    /// When those that were told to leave, and then killed, are waited for no longer, nor hosts that may have to be told.
    pub(super) fn given_up(&self) -> Instant {
        let given_up = self.leave_by() + self.config.timeouts.late;
        self.recalls_until()
            .filter(|_| self.phase == Phase::Finish)
            .map_or(given_up, |until| until.max(given_up))
    }

    /// When those that were told to leave, and are still there, are killed. Hosts that have to call again after we stood still ourselves
    /// could not hear it before.
    fn leave_by(&self) -> Instant {
        (self.since + self.config.timeouts.detect).max(self.forgiven)
    }

    /// Our own process stood still, if a beat is long overdue: silence and standstill since then prove nothing about others. What
    /// they said meanwhile still waits to be read, and hosts may have to call again. Asked before anything is decided by time.
    pub(super) fn notice_standstill(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let (times, overdue) = (self.config.timeouts, now.since(self.beat_at));
        if overdue <= times.late || self.outcome.is_some() {
            return;
        }
        if overdue >= times.detect {
            effects.push(SupervisorEffect::Event(Event::StoodStill { length: overdue }));
        }
        // Noticed once; and whoever waits for a word of ours gets it now.
        self.beat_at = now;
        // Hosts that are yet to call may have done so meanwhile, and lost their links again.
        let far = self.config.most_nodes > 1;
        self.forgiven = now + if far { times.back } else { times.detect };
        for slot in self.slots.values_mut() {
            match &mut slot.place {
                Place::Live(life) => {
                    life.heard = now;
                    life.cut = life.cut.map(|_| now);
                }
                Place::Starting { since } | Place::Ending { since, .. } => *since = now,
                Place::Empty { .. } | Place::Out => {}
            }
        }
        self.nodes.values_mut().for_each(|view| view.heard = now);
        self.trouble.wait_until(now + times.heartbeat);
        self.progress.forgive(now);
        self.since = now;
    }

    /// The number to every member, the whole Directive to those who have not echoed it; the whole order to every node.
    fn beat(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.beat_at = now + self.config.timeouts.heartbeat;
        if self.acknowledge_at.is_some_and(|at| now >= at) {
            self.direct_all(effects);
        } else {
            self.beat_members(effects);
        }
        if self.phase == Phase::Join && self.awaits_reservation() {
            // The disk may have refused it, and may be well again.
            effects.push(SupervisorEffect::Reserve(self.reserved.1));
        }
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in nodes {
            effects.extend(self.order_of(node));
            let (detect, forgiven) = (self.config.timeouts.detect, self.forgiven);
            let silent = |view: &NodeView| now >= (view.heard + detect).max(forgiven);
            if let Some(view) = self.nodes.get_mut(&node).filter(|v| !v.away && !v.dismissed && silent(v)) {
                view.away = true;
                effects.push(SupervisorEffect::Event(Event::NodeAway { node }));
            }
        }
    }

    fn beat_members(&self, effects: &mut Vec<SupervisorEffect>) {
        for (member, slot) in &self.slots {
            let Some(life) = slot.life() else {
                effects.extend(self.question(*member));
                continue;
            };
            if life.echoed < life.number {
                effects.extend(self.directive(*member));
                continue;
            }
            effects.push(SupervisorEffect::Beat(Heartbeat {
                instance: self.config.instance,
                generation: self.generation,
                member: *member,
                incarnation: slot.incarnation,
                number: life.number,
            }));
        }
    }

    /// Members whose silence counts.
    fn watched(&self) -> impl Iterator<Item = (MemberId, Watched)> {
        let (leaving, needed) = (self.is_done(), self.needed_for_the_state());
        self.slots.iter().filter(move |_| !leaving).filter_map(move |(member, slot)| {
            let (since, allowed, what): (_, _, fn(Duration) -> What) = match &slot.place {
                Place::Live(life) => {
                    let allowed = self.may_be_silent(*member, &needed);
                    let what = if life.cut.is_some() { |_| What::LinkLost } else { What::Silent };
                    (life.silent_since(), allowed, what)
                }
                // Out of *join* its own time counts; in it, everybody's.
                Place::Starting { since } if self.phase != Phase::Join => {
                    (*since, self.config.join_timeout, What::NeverReported)
                }
                _ => return None,
            };
            Some((*member, Watched { since, deadline: (since + allowed).max(self.forgiven), what }))
        })
    }

    fn watch(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let overdue: Vec<_> = self.watched().filter(|(_, watched)| now >= watched.deadline).collect();
        self.together(now, effects, |supervisor, effects| {
            for (member, Watched { since, what, .. }) in overdue {
                supervisor.lost(now, member, what(now.since(since)), effects);
            }
        });
        if self.trouble.regroup_at().is_some_and(|at| now >= at && !self.is_done()) {
            self.mend(now, effects);
        }
        let running = matches!(self.phase, Phase::Form | Phase::Sync | Phase::Run);
        if running && self.standstill().is_some_and(|at| now >= at) {
            self.stand_still(now, effects);
        }
    }

    /// Nothing has moved for too long: somebody hangs.
    fn stand_still(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let waited = self.still(now);
        match self.unended().filter(|_| self.phase == Phase::Form) {
            Some(member) => self.lost(now, member, What::StillThere(waited), effects),
            None => {
                let suspects = self.suspects();
                self.lost(now, suspects[0], What::NoProgress { waited, suspects }, effects);
            }
        }
    }

    /// Ends those that were told to leave and did not.
    fn see_off(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let times = self.config.timeouts;
        if now < self.leave_by() {
            return;
        }
        let late: Vec<MemberId> = self.late().collect();
        for member in late {
            // A member that was not heard since the stop may be the cause of it: its last words were still on the way then.
            let unheard = |life: &&Life| life.echoed < life.number && life.heard < self.since + times.late;
            let silent = self.slots[&member].life().filter(unheard).map(|life| now.since(life.heard));
            if let Some(silent) = silent.filter(|_| self.phase == Phase::Stop) {
                self.lost(now, member, What::Silent(silent), effects);
            }
            self.kill(now, member, After::Nothing, effects);
        }
    }

    /// Those that were told to leave, have not, and are not being ended by force.
    fn late(&self) -> impl Iterator<Item = MemberId> {
        let here = |place: &Place| matches!(place, Place::Starting { .. } | Place::Live(_));
        self.slots.iter().filter(move |(_, slot)| here(&slot.place)).map(|(member, _)| *member)
    }

    fn any_to_kill(&self) -> bool {
        self.late().next().is_some()
    }

    /// When the phase has taken so long that somebody hangs. Never while steps wait to be written down: then it is us
    /// whom everybody waits for, and whoever reads what we write.
    fn standstill(&self) -> Option<Instant> {
        let times = &self.config.timeouts;
        Some(match self.phase {
            // It is told as soon as it is written down.
            Phase::Sync | Phase::Run if self.validations.awaits_judgement() => return None,
            Phase::Sync if self.awaits_ranges() => return None,
            Phase::Run if self.is_done() => return None,
            // Steps that are made and not told yet are told as fast as they are written down.
            Phase::Form if self.recorded < self.progress.committed() => return None,
            Phase::Form if self.awaits_manifest() => return None,
            Phase::Form => self.since + times.form,
            Phase::Run if self.recorded < self.progress.committed() => return None,
            Phase::Run if self.may_wait_for_the_disk() => self.progress.patient_deadline(times),
            Phase::Run => self.progress.deadline(times),
            _ => self.since + times.patience,
        })
    }

    /// Whether members may be waiting for a slow disk, which is no hang: they begin a checkpoint only when the one before it is settled. Those that
    /// hold shards lend it what they have, and change that only when it is read.
    fn may_wait_for_the_disk(&self) -> bool {
        let beside = if self.config.sharded.is_some() { 0 } else { 1 };
        self.checkpoints.due() > beside
    }

    fn still(&self, now: Instant) -> Duration {
        if self.phase == Phase::Run { self.progress.still(now) } else { now.since(self.since) }
    }

    /// For whom the others wait; never empty.
    fn suspects(&self) -> Vec<MemberId> {
        let with = |test: &dyn Fn(&Life) -> bool| -> Vec<MemberId> {
            self.lives().filter(|(_, life)| test(life)).map(|(member, _)| member).collect()
        };
        let of_ranks = |ranks: Vec<Rank>| -> Vec<MemberId> {
            ranks.into_iter().map(|rank| self.membership.participants[rank.index()].member).collect()
        };
        let here = |member: &MemberId| self.rank_of(*member).is_some();
        let world = self.membership.world().0;
        let ended = self.progress.ended().is_some();
        let narrowest = [
            match self.phase {
                Phase::Form => {
                    with(&|life| life.stage != Stage::Formed || life.generation != self.generation)
                }
                Phase::Sync => with(&|life| !matches!(life.stage, Stage::Ready { .. })),
                _ if ended => with(&|life| !matches!(life.stage, Stage::Finished(_))),
                _ => Vec::new(),
            },
            of_ranks(self.validations.missing(world)),
            if ended { self.checkpoints.missing().into_iter().filter(here).collect() } else { Vec::new() },
            // Who waits inside a collective waits for somebody that does not.
            with(&|life| life.activity != Activity::Reducing),
            with(&|_| true),
        ];
        narrowest
            .into_iter()
            .find(|suspects| !suspects.is_empty())
            .unwrap_or_else(|| vec![self.first_member()])
    }
}
