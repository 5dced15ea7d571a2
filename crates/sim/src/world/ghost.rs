//! A supervisor that was held to be dead and is not: another one leads by now, and this one wakes and goes on as if nothing had happened.
//!
//! It has lost the run's folder: nothing that it enters is written, no number is reserved for it, and nobody answers it. But what it says still
//! reaches hosts and ranks, for a while, and must change nothing there once they have heard the other one.

use super::event::Event;
use super::{Ghost, World};
use crate::clock::{MICRO, MILLI, SECOND};
use crate::sabotage::Sabotage;
use dtrain_protocol::{Input, Supervisor, SupervisorEffect};
use std::collections::VecDeque;

/// So long it is before it notices that it leads no more. *Units*: nanoseconds.
const HAUNTS: u64 = 8 * SECOND;

impl World {
    /// The supervisor that another one has replaced was not dead: it wakes in a while.
    pub(super) fn leave_a_ghost(&mut self, supervisor: Supervisor) {
        let wakes = self.chance.between(MICRO, 2 * SECOND);
        let until = self.now + wakes + HAUNTS;
        self.tell(|| "the supervisor that was lost is not dead".to_owned());
        self.ghost = Some(Ghost { supervisor, clock: self.clock, until });
        // What it does to those who have not heard the other one yet was done to them.
        self.last_fault = self.last_fault.max(until);
        self.push(wakes, Event::Ghost);
    }

    /// It goes on, by its own clock.
    pub(super) fn haunt(&mut self) {
        let Some(mut ghost) = self.ghost.take().filter(|ghost| self.now < ghost.until) else { return };
        let now = ghost.clock.show(self.now);
        let mut effects = Vec::new();
        if ghost.supervisor.next_deadline().is_some_and(|due| now >= due) {
            ghost.supervisor.feed(now, &Input::Timeout, &mut effects);
        }
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                SupervisorEffect::Send(directive) => {
                    self.mark(70, &[directive.member.0.into(), directive.number.0]);
                    self.send_down(directive.member, Event::Directive(directive));
                }
                SupervisorEffect::Beat(beat) => self.send_down(beat.member, Event::BeatDown(beat)),
                SupervisorEffect::Order(order) => {
                    self.mark(71, &[order.node.0.into(), order.number.0]);
                    // Whoever has not heard of the other one obeys.
                    self.touched_all = self.touched_all.max(self.now + SECOND);
                    self.send_to_host(order.node, Event::Order(order));
                }
                SupervisorEffect::Reserve(upto) if self.breaks(Sabotage::HauntedNumbers) => {
                    let mut more = Vec::new();
                    ghost.supervisor.feed(now, &Input::Reserved(upto), &mut more);
                    effects.extend(more);
                }
                _ => {}
            }
        }
        let due = ghost.supervisor.next_deadline().map(|due| ghost.clock.when(due));
        let next = due.map_or(SECOND, |at| at.saturating_sub(self.now)).clamp(10 * MICRO, 100 * MILLI);
        self.ghost = Some(ghost);
        self.push(next, Event::Ghost);
    }
}
