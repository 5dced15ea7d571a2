//! How a fault is done to the world, and how it ends.

use super::event::{Asleep, Event};
use super::network::Block;
use super::{Host, Process, World};
use crate::clock::{MICRO, MILLI, SECOND};
use crate::fact::Life;
use crate::fault::{FaultKind, When};
use crate::situation::Situation;
use dtrain_protocol::{ExitCause, Failure, Input, Request};
use dtrain_types::{MemberId, NodeId};

/// What was done to a member excuses its loss for so long after. *Units*: nanoseconds.
const EXCUSE: u64 = 20 * SECOND;
/// What costs a rank only time, it goes on from: such a stop is no longer than this. *Units*: milliseconds.
const MOST_NODE_STOP: u64 = 6_000;
/// A word among noise is late by no more than this. *Units*: nanoseconds.
const NOISE_LASTS: u64 = 2 * SECOND;
/// Whom nothing keeps from it any more answers a question within so long. *Units*: nanoseconds.
const ANSWERS: u64 = SECOND;

impl Host {
    fn muffle(&mut self, until: u64) {
        self.muffled = self.muffled.max(until);
    }
}

impl World {
    pub(super) fn plan_timed_faults(&mut self) {
        for at in 0..self.planned.len() {
            if let When::At(micros) = self.planned[at].when {
                self.push(micros * MICRO, Event::Fault(at));
            }
        }
    }

    /// A rank, or the world, came to a place: faults that wait for that begin.
    pub(super) fn entered(&mut self, place: Situation, life: Option<Life>) {
        let count = &mut self.entered[place as usize];
        *count += 1;
        let count = *count;
        for at in 0..self.planned.len() {
            let planned = &mut self.planned[at];
            let When::Enter { place: wanted, nth, later } = planned.when else { continue };
            if (wanted, nth) == (place, count) {
                planned.victim = planned.victim.or(life.map(|life| life.member.0));
                // Never inside the handling of an event.
                self.push(later * MICRO + 1, Event::Fault(at));
            }
        }
    }

    pub(super) fn trigger_after_loss(&mut self) {
        for at in 0..self.planned.len() {
            if let When::AfterLoss { nth, later } = self.planned[at].when
                && nth == self.losses
            {
                self.push(later * MICRO + 1, Event::Fault(at));
            }
        }
    }

    pub(super) fn touch(&mut self, member: MemberId) {
        if let Some(at) = self.touched.get_mut(member.0 as usize) {
            *at = (*at).max(self.now);
        }
    }

    /// Whether something was done to a member, or to the world, that excuses that it is held to be lost.
    pub(super) fn is_excused(&self, member: MemberId) -> bool {
        let touched = self.touched.get(member.0 as usize).copied().unwrap_or(0).max(self.touched_all);
        touched > 0 && self.now < touched + EXCUSE + self.stood
    }

    /// Whether a life is there and has been heard, or nothing has kept it from that for as long as it takes to answer. That no supervisor
    /// was there to hear it, or that one stood still, does not count.
    pub(super) fn is_heard(&self, life: Life) -> bool {
        let Some(process) = self.process(life.member).filter(|process| process.life == life) else {
            return false;
        };
        let host = &self.hosts[process.host.0 as usize];
        let quiet = process.sleep.until.max(host.sleep.until).max(host.muffled);
        quiet == 0 || self.now >= quiet + ANSWERS || self.answered.contains(&life)
    }

    /// Whether one of those whom the supervisor could not tell apart is the one that hangs, or somebody hung so lately that what all did since is
    /// still on its way: of members that all wait inside a collective the supervisor takes the first.
    pub(super) fn one_hangs_of(&self, suspects: &[MemberId]) -> bool {
        let hangs = |process: &Process| {
            let until = process.hang.until;
            let hung = until > 0 && (until..until + ANSWERS).contains(&self.now);
            hung || until > self.now && suspects.contains(&process.life.member)
        };
        self.processes.iter().flatten().any(|process| hangs(process))
    }

    /// The members whose processes are there.
    pub(super) fn living(&self) -> Vec<Life> {
        self.processes.iter().flatten().map(|process| process.life).collect()
    }

    /// Begins a fault.
    pub(super) fn begin_fault(&mut self, at: usize) {
        let planned = self.planned[at];
        let living = self.living();
        let wanted = planned.victim.map(MemberId);
        let victim = match wanted.and_then(|member| living.iter().find(|life| life.member == member)) {
            Some(life) => Some(*life),
            None if living.is_empty() => None,
            None => Some(*self.chance.pick(&living)),
        };
        self.note_places(planned.kind, victim);
        let length = planned.millis * MILLI;
        self.mark(70, &[planned.kind as u64, victim.map_or(u64::MAX, |life| life.member.0.into())]);
        self.last_fault = self.last_fault.max(self.now);
        self.tell(|| {
            let whom = victim.map_or_else(String::new, |life| format!(" of {life}"));
            format!("FAULT {}{whom} ({} ms)", planned.kind.name(), planned.millis)
        });
        // What is done to the supervisor is done to no rank.
        let spares = matches!(planned.kind, FaultKind::SupervisorStop | FaultKind::SupervisorCrash);
        if let Some(life) = victim.filter(|_| !spares) {
            self.touch(life.member);
        }
        match planned.kind {
            FaultKind::Crash | FaultKind::CrashSome | FaultKind::CrashAllButOne | FaultKind::CrashAll => {
                self.crash(planned.kind, &living, victim);
            }
            FaultKind::HostLeaves
            | FaultKind::Drain
            | FaultKind::StartFails
            | FaultKind::SlowStart
            | FaultKind::Panic => {
                self.ask(planned.kind, victim, length);
            }
            FaultKind::Stop | FaultKind::ComputeHang | FaultKind::Slow => {
                self.hold_up(at, planned.kind, victim, length)
            }
            _ => self.break_world(at, planned.kind, victim, length),
        }
    }

    fn note_places(&mut self, kind: FaultKind, victim: Option<Life>) {
        let mut places = self.world_places(&self.supervisor);
        places.push(victim.and_then(|life| self.process(life.member)).map_or(Situation::Nobody, |p| p.place));
        for place in places {
            self.coverage.note(kind, place);
        }
    }

    fn crash(&mut self, kind: FaultKind, living: &[Life], victim: Option<Life>) {
        let Some(first) = victim else { return };
        let others = living.iter().copied().filter(|life| *life != first);
        let victims: Vec<Life> = match kind {
            FaultKind::Crash => vec![first],
            FaultKind::CrashSome => {
                let others: Vec<Life> = others.collect();
                let more = 1 + self.chance.below(2) as usize;
                let from = self.chance.below(others.len().max(1) as u64) as usize;
                let more = others.iter().cycle().skip(from).take(more.min(others.len())).copied();
                std::iter::once(first).chain(more).collect()
            }
            FaultKind::CrashAllButOne => others.collect(),
            _ => living.to_vec(),
        };
        for life in victims {
            self.end_process(life, ExitCause::Signal(9));
        }
    }

    fn ask(&mut self, kind: FaultKind, victim: Option<Life>, length: u64) {
        match kind {
            FaultKind::Drain => {
                self.excuses.drained = true;
                self.push(0, Event::Told(Input::Request(Request::Drain)));
            }
            // A first process that cannot be started ends the run: that is its own story.
            FaultKind::StartFails if self.supervisor.generation().0 == 0 => {}
            FaultKind::StartFails => {
                self.start_fails = true;
                self.touched_all = self.now;
            }
            FaultKind::SlowStart => {
                self.slow_start_until = self.now + length;
                self.last_fault = self.last_fault.max(self.now + length);
            }
            FaultKind::Panic => {
                let Some(life) = victim else { return };
                self.with_process(life, |_, process, now, effects| {
                    let generation = process.member.generation();
                    process.member.handle_failure(
                        now,
                        generation,
                        Failure::Panic("made up".to_owned()),
                        effects,
                    );
                });
            }
            _ => {
                let Some(host) = self.host_of_victim(victim) else { return };
                // Somebody must stay, or the run ends in good order: of those that have joined it.
                let joins = self.let_in.len() < self.settings.nodes as usize;
                let stay = self.hosts.iter().filter(|host| !host.leaves).count();
                let gathers = self.supervisor.phase() == dtrain_protocol::Phase::Join;
                self.excuses.drained |= stay <= 1 || joins || gathers || self.dead || self.leads_by.0 > 0;
                self.hosts[host.0 as usize].leaves = true;
                self.excuses.short = true;
                self.touched_all = self.now;
                self.tell_node(host, |node, now, effects| node.handle_leave(now, effects));
            }
        }
    }

    fn host_of_victim(&self, victim: Option<Life>) -> Option<NodeId> {
        Some(self.process(victim?.member)?.host)
    }

    fn hold_up(&mut self, at: usize, kind: FaultKind, victim: Option<Life>, length: u64) {
        let Some(life) = victim else { return };
        let until = self.now + length;
        let Some(process) = self.process_mut(life) else { return };
        match kind {
            FaultKind::Stop => process.sleep.until = until,
            FaultKind::ComputeHang => process.hang.until = until,
            _ => process.slow = 3_000,
        }
        match kind {
            FaultKind::Stop => self.push(length, Event::Wake(Asleep::Rank(life))),
            FaultKind::ComputeHang => {
                self.patient = true;
                self.push(length, Event::Wake(Asleep::Compute(life)));
            }
            _ => self.push(length, Event::Heal(at)),
        }
        self.lasts(until);
        self.touched[life.member.0 as usize] = until;
    }

    /// A fault lasts so long: until then nothing need be finished.
    fn lasts(&mut self, until: u64) {
        self.last_fault = self.last_fault.max(until);
    }

    fn break_world(&mut self, at: usize, kind: FaultKind, victim: Option<Life>, length: u64) {
        let until = self.now + length;
        self.lasts(until);
        if kind == FaultKind::SupervisorStop {
            return self.stop_supervisor(at, length);
        }
        if kind == FaultKind::SupervisorCrash {
            return self.crash_supervisor(at, length);
        }
        self.touched_all = self.touched_all.max(until);
        // Host 0 is the supervisor's: its power and its node are out of scope.
        let far = NodeId(1 + self.chance.below(u64::from(self.settings.nodes.max(2) - 1)) as u32);
        let far = self.host_of_victim(victim).filter(|host| host.0 > 0).unwrap_or(far);
        if far.0 >= self.settings.nodes
            && !matches!(kind, FaultKind::PairCut | FaultKind::Reset | FaultKind::Noise | FaultKind::DiskFull)
        {
            return;
        }
        match kind {
            FaultKind::Noise => self.hosts.iter_mut().for_each(|host| host.muffle(until + NOISE_LASTS)),
            FaultKind::Partition | FaultKind::CutFrom | FaultKind::CutTo => {
                self.hosts[far.0 as usize].muffle(until);
            }
            _ => {}
        }
        match kind {
            FaultKind::HostCrash => return self.crash_host(far, Some(length.max(50 * MILLI))),
            FaultKind::HostStop => return self.stop_host(far, length.min(MOST_NODE_STOP * MILLI)),
            FaultKind::Partition => {
                self.network.blocks.push((at, Block::From(far)));
                self.network.blocks.push((at, Block::To(far)));
            }
            FaultKind::CutFrom => self.network.blocks.push((at, Block::From(far))),
            FaultKind::CutTo => self.network.blocks.push((at, Block::To(far))),
            FaultKind::PairCut | FaultKind::Reset => return self.cut_pair(at, kind, victim, length),
            FaultKind::Noise => self.network.noise = 200,
            _ => (self.disk.full, self.excuses.disk_full) = (true, true),
        }
        if matches!(kind, FaultKind::Partition | FaultKind::CutFrom) && self.chance.per_mille(500) {
            let after = self.chance.between(MILLI, 500 * MILLI);
            self.push(after, Event::Told(Input::NodeLost(far)));
        }
        self.push(length, Event::Heal(at));
    }

    fn cut_pair(&mut self, at: usize, kind: FaultKind, victim: Option<Life>, length: u64) {
        let Some(one) = victim else { return };
        let others: Vec<Life> = self.living().into_iter().filter(|life| *life != one).collect();
        if others.is_empty() {
            return;
        }
        let other = *self.chance.pick(&others);
        let generation = self.process(one.member).map_or(dtrain_types::Generation(0), |p| p.generation);
        if kind == FaultKind::Reset {
            return self.reset(one.member, other.member, generation);
        }
        self.network.blocks.push((at, Block::Pair(one.member, other.member)));
        self.push(length, Event::Heal(at));
    }

    /// Ends a fault.
    pub(super) fn end_fault(&mut self, at: usize) {
        let planned = self.planned[at];
        self.tell(|| format!("healed: {}", planned.kind.name()));
        match planned.kind {
            FaultKind::Noise => self.network.noise = 0,
            FaultKind::DiskFull => self.disk.full = false,
            FaultKind::Slow => self.processes.iter_mut().flatten().for_each(|process| process.slow = 1_000),
            _ => {
                self.network.blocks.retain(|(by, _)| *by != at);
                self.unstall();
                for host in (1..self.settings.nodes).map(NodeId) {
                    self.tell_node(host, |node, now, effects| node.handle_link(now, effects));
                }
            }
        }
    }
}
