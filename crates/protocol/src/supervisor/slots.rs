//! Slots and nodes: which lives there are, which there are to be, and who is started again when.
//!
//! A slot is a member's place on its node. What happens in it is told by the node's whole report and asked for by a whole
//! order, so nothing here is retried. This file does not know generations or steps.

use super::slot::{After, NodeView, Place, Slot};
use super::{Losses, Supervisor};
use crate::cause::{ExitCause, What};
use crate::effect::{Event, SupervisorEffect};
use crate::host::{LifeOrder, NodeOrder, NodeReport};
use dtrain_types::{Incarnation, Instant, MemberId, NodeId};
use std::collections::VecDeque;
use std::time::Duration;

/// Restarts are counted over this long.
const WINDOW: Duration = Duration::from_secs(60);

impl Supervisor {
    /// Takes in a node's report: a new node brings slots, an old one tells what became of its lives.
    pub fn handle_node_report(
        &mut self,
        now: Instant,
        report: &NodeReport,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        self.notice_standstill(now, effects);
        if self.outcome.is_some() || !self.is_heard(report) || report.node.0 >= self.config.most_nodes {
            return;
        }
        let known = self.nodes.get(&report.node).map(|view| (view.boot, view.report));
        match known {
            Some((boot, number)) if boot == report.boot && report.number <= number => return,
            Some(_) if self.past_boots.contains(&report.boot) => return,
            Some((boot, _)) if boot != report.boot => self.node_began_anew(now, report, effects),
            Some(_) => {}
            None => self.node_came(now, report, effects),
        }
        let taking_over = self.is_taking_over();
        let Some(view) = self.nodes.get_mut(&report.node) else { return };
        (view.heard, view.report) = (now, report.number);
        view.echoed = view.echoed.max(report.seen.min(view.number));
        // While others may still come it is not known who would stay. It says so again.
        let leaving = report.leaving && !taking_over;
        let (back, leaves) = (view.away, leaving && !view.leaving);
        (view.away, view.leaving) = (false, leaving);
        if back {
            let (node, host, ranks) = (report.node, report.host.clone(), report.ranks);
            effects.push(SupervisorEffect::Event(Event::NodeJoined { node, host, ranks }));
        }
        self.together(now, effects, |supervisor, effects| {
            for life in &report.lives {
                if let Some(cause) = &life.ended {
                    supervisor.ended(now, life.member, life.incarnation, cause, effects);
                }
            }
        });
        if leaves {
            self.let_go(now, report.node, effects);
        }
        self.dismiss_if_left(report.node, effects);
        self.advance(now, effects);
    }

    /// The way to a node broke: its members are lost if they are not heard again within `detect`.
    pub fn handle_node_lost(&mut self, now: Instant, node: NodeId) {
        for slot in self.slots.values_mut().filter(|slot| slot.node == node) {
            if let Some(life) = slot.life_mut() {
                life.cut.get_or_insert(now);
            }
        }
    }

    fn node_came(&mut self, now: Instant, report: &NodeReport, effects: &mut Vec<SupervisorEffect>) {
        match self.is_taking_over() {
            true => self.find_lives(now, report),
            false => self.add_slots(now, report.node, report.ranks),
        }
        self.nodes.insert(report.node, self.first_view(now, report));
        let (node, host, ranks) = (report.node, report.host.clone(), report.ranks);
        effects.push(SupervisorEffect::Event(Event::NodeJoined { node, host, ranks }));
        self.start_due(now, effects);
        // Whoever was found is asked behind the order, which says on which node it is.
        self.order(report.node, effects);
        effects.extend(self.members_of(report.node).into_iter().filter_map(|member| self.question(member)));
    }

    /// What is known of a node that has just come. If the run is over, it is told so at once.
    fn first_view(&self, now: Instant, report: &NodeReport) -> NodeView {
        NodeView { dismissed: self.is_ending(), ..NodeView::new(now, report) }
    }

    pub(super) fn add_slots(&mut self, now: Instant, node: NodeId, count: u32) {
        let room = self.config.most_ranks.saturating_sub(self.slots.len() as u32);
        let free = (0..).map(MemberId).filter(|member| !self.slots.contains_key(member));
        let new: Vec<MemberId> = free.take(count.min(room) as usize).collect();
        let before = self.before_first_life();
        self.slots.extend(new.into_iter().map(|member| (member, Slot::new(node, now, before))));
    }

    /// A node that was asked to leave is needed no more once its last process is gone.
    fn dismiss_if_left(&mut self, node: NodeId, effects: &mut Vec<SupervisorEffect>) {
        let gone = !self.slots.values().any(|slot| slot.node == node && slot.has_process());
        let view = self.nodes.get_mut(&node).filter(|view| gone && view.leaving && !view.dismissed);
        if let Some(view) = view {
            view.dismissed = true;
            self.order(node, effects);
        }
    }

    /// Another life of a node: every process of the one before is gone with it.
    fn node_began_anew(&mut self, now: Instant, report: &NodeReport, effects: &mut Vec<SupervisorEffect>) {
        let (node, host, ranks) = (report.node, report.host.clone(), report.ranks);
        effects.push(SupervisorEffect::Event(Event::NodeJoined { node, host, ranks }));
        // Until all of them are known to have ended, orders are for the life before, and nobody takes them in: the new one
        // would start again what is not taken from the list yet, under the same incarnations.
        for member in self.members_of(report.node) {
            let slot = &self.slots[&member];
            if slot.has_process() {
                self.ended(now, member, slot.incarnation, &ExitCause::WithItsNode, effects);
            }
        }
        // A word of that life may still be on its way: it must not be taken for a third one.
        let before = self.nodes.insert(report.node, self.first_view(now, report));
        self.past_boots.extend(before.map(|view| view.boot));
        // Who left with the node, or was given up there, comes back with it: somebody started it on purpose, and may have
        // given it another number of ranks.
        let slots = self.slots.values_mut().filter(|slot| slot.node == report.node);
        let mut there = 0;
        for slot in slots {
            there += 1;
            if there > report.ranks {
                slot.place = Place::Out;
            } else if matches!(slot.place, Place::Out) {
                (slot.place, slot.restarts) = (Place::Empty { until: now }, VecDeque::new());
            }
        }
        // While we take over, newcomers are given their numbers later: another host may have these.
        if !self.is_taking_over() {
            self.add_slots(now, report.node, report.ranks.saturating_sub(there));
        }
        self.start_due(now, effects);
        self.order(report.node, effects);
    }

    pub(super) fn members_of(&self, node: NodeId) -> Vec<MemberId> {
        self.slots.iter().filter(|(_, slot)| slot.node == node).map(|(member, _)| *member).collect()
    }

    /// The process of a life has ended.
    fn ended(
        &mut self,
        now: Instant,
        member: MemberId,
        incarnation: Incarnation,
        cause: &ExitCause,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        let Some(slot) = self.slots.get(&member) else { return };
        if slot.incarnation != incarnation || !slot.has_process() {
            return;
        }
        // Who was told to leave and leaves in good order is no fault, whichever life of the supervisor told it.
        let left = self.is_ending() && *cause == ExitCause::Code(0);
        let ordered = match &slot.place {
            Place::Ending { .. } => true,
            Place::Live(life) => life.refused || left,
            _ => left,
        };
        if !ordered {
            self.lost(now, member, What::Exited(cause.clone()), effects);
        }
        // `lost` may have ended the run or asked for the end of the process: it is gone either way.
        let next = match self.slots[&member].place {
            Place::Ending { next, .. } => next,
            Place::Out => false,
            _ => self.slots[&member].is_hopeful(),
        };
        let after = if next && !self.is_done() { After::Restart } else { After::Nothing };
        self.vacate(now, member, after, effects);
    }

    /// A slot's process is gone: another follows after a while, or none.
    fn vacate(&mut self, now: Instant, member: MemberId, after: After, effects: &mut Vec<SupervisorEffect>) {
        let (limit, detect) = (self.max_restarts(), self.config.timeouts.detect);
        let Some(slot) = self.slots.get_mut(&member) else { return };
        while slot.restarts.front().is_some_and(|at| now.since(*at) >= WINDOW) {
            slot.restarts.pop_front();
        }
        let restarts = slot.restarts.len() as u32;
        if after == After::Restart && restarts >= limit {
            slot.place = Place::Out;
            return effects.push(SupervisorEffect::Event(Event::GivenUp { member, restarts }));
        }
        // The first restart is at once; a process that dies again and again is given ever more time.
        let pause = match restarts {
            0 => Duration::ZERO,
            n => (detect / 16 * 2u32.saturating_pow(n - 1)).min(detect * 4),
        };
        slot.place = match after {
            After::Restart => Place::Empty { until: now + pause },
            After::Nothing => Place::Out,
        };
        self.start_due(now, effects);
    }

    fn max_restarts(&self) -> u32 {
        match self.config.losses {
            Losses::EndTheRun => 0,
            Losses::AreReplaced { max_restarts } => max_restarts,
        }
    }

    /// Issues the lives that are due.
    pub(super) fn start_due(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if self.is_done() {
            return;
        }
        let (mut touched, before) = (Vec::new(), self.before_first_life());
        for (member, slot) in &mut self.slots {
            let leaving = self.nodes.get(&slot.node).is_none_or(|view| view.leaving);
            let Place::Empty { until } = slot.place else { continue };
            if now < until || leaving {
                continue;
            }
            let again = slot.found.take().is_some() || slot.incarnation > before;
            slot.incarnation = slot.incarnation.max(before).next();
            slot.place = Place::Starting { since: now };
            if again {
                slot.restarts.push_back(now);
                let (member, incarnation) = (*member, slot.incarnation);
                effects.push(SupervisorEffect::Event(Event::Restarting { member, incarnation }));
            }
            touched.push(slot.node);
        }
        touched.dedup();
        touched.into_iter().for_each(|node| self.order(node, effects));
    }

    /// When the next life is due.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let waits = |slot: &Slot| match slot.place {
            Place::Empty { until } if self.nodes.get(&slot.node).is_some_and(|view| !view.leaving) => {
                Some(until)
            }
            _ => None,
        };
        self.slots.values().filter_map(waits).min().filter(|_| !self.is_done())
    }

    /// Ends a life by force, if there is one.
    pub(super) fn kill(
        &mut self,
        now: Instant,
        member: MemberId,
        after: After,
        effects: &mut Vec<SupervisorEffect>,
    ) {
        let Some(slot) = self.slots.get_mut(&member) else { return };
        let next = after == After::Restart;
        match &mut slot.place {
            Place::Ending { next: already, .. } => *already &= next,
            Place::Starting { .. } | Place::Live(_) => {
                slot.place = Place::Ending { since: now, next };
                let node = slot.node;
                self.order(node, effects);
            }
            Place::Empty { .. } if !next => slot.place = Place::Out,
            Place::Empty { .. } | Place::Out => {}
        }
    }

    /// Something changed for a node: a new order.
    pub(super) fn order(&mut self, node: NodeId, effects: &mut Vec<SupervisorEffect>) {
        if let Some(view) = self.nodes.get_mut(&node) {
            view.number = view.number.next();
            effects.extend(self.order_of(node));
        }
    }

    /// The whole view for one node.
    pub(super) fn order_of(&self, node: NodeId) -> Option<SupervisorEffect> {
        let view = self.nodes.get(&node)?;
        let members =
            self.slots.iter().filter(|(_, slot)| slot.node == node).map(|(member, slot)| LifeOrder {
                member: *member,
                incarnation: slot.incarnation,
                // Who was only told to leave is not killed for it.
                alive: matches!(slot.place, Place::Starting { .. } | Place::Live(_)),
            });
        Some(SupervisorEffect::Order(Box::new(NodeOrder {
            instance: self.config.instance,
            generation: self.generation,
            node,
            boot: view.boot,
            number: view.number,
            members: members.collect(),
            leave: view.dismissed,
        })))
    }
}
