//! A supervisor that begins in the middle of a run: members of the life before it may still be there, with their state.
//!
//! What its predecessor knew follows from three things: what is written down, what the nodes have, and what the members report. So it
//! asks everyone, waits for those that may still come, and then names a generation like any other. This file does not know how one is
//! formed.

use super::Supervisor;
use super::slot::{After, Life, NodeView, Place, Slot};
use crate::effect::{Event, Reason, SupervisorEffect};
use crate::host::NodeReport;
use crate::message::Heartbeat;
use crate::number::Number;
use dtrain_types::{Generation, Incarnation, Instant, MemberId, NodeId, Step};

impl Supervisor {
    /// The number that this life leads by before it names a generation; 0 where nobody led before.
    fn leads_by(&self) -> Generation {
        self.config.taken_over.as_ref().map_or(Generation(0), |_| self.config.first_generation)
    }

    /// The number before the first life of a slot: no two lives of a member have one number, whoever began them.
    pub(super) fn before_first_life(&self) -> Incarnation {
        Incarnation(u32::try_from(self.leads_by().0).unwrap_or(u32::MAX / 2))
    }

    /// Whether no generation was named yet, and members of the life before count.
    pub(super) fn is_taking_over(&self) -> bool {
        self.config.taken_over.is_some() && self.generation == self.leads_by()
    }

    /// Whether a node's report may be heard: it obeys us, nobody, or a life before ours.
    pub(super) fn is_heard(&self, report: &NodeReport) -> bool {
        let ours = report.instance.is_none_or(|instance| instance == self.config.instance);
        ours || self.config.taken_over.is_some() && report.generation < self.leads_by()
    }

    /// Takes over the lives of a node that the life before us began. Those in a slot that another node has by now are not taken: the
    /// order does not name them, and so they end.
    ///
    /// 1. Members 0 and 1 live on host 0, 2 and 3 on host 1. The supervisor dies with host 0.
    /// 2. Host 0 comes back first. *Unsafe*: its two processes become members 2 and 3, and those of host 1 end with their state.
    /// 3. So it waits for host 1, or until that is too late; then it has members 0 and 1 again.
    pub(super) fn find_lives(&mut self, now: Instant, report: &NodeReport) {
        // A node tells of every slot that ever had a life: whoever lives goes first.
        let (living, ended): (Vec<_>, Vec<_>) = report.lives.iter().partition(|life| life.ended.is_none());
        for life in living.into_iter().chain(ended).take(report.ranks as usize) {
            let room = (self.slots.len() as u32) < self.config.most_ranks;
            if !room || self.slots.contains_key(&life.member) {
                continue;
            }
            let mut slot = Slot::new(report.node, now, life.incarnation);
            if life.ended.is_none() {
                (slot.place, slot.found) = (Place::Starting { since: now }, report.instance);
                // Where the run is over, whoever comes late is told to leave now, and not when the others were.
                if self.is_ending() {
                    self.since = now;
                }
            }
            self.slots.insert(life.member, slot);
        }
    }

    /// Asks a member of the life before us where it stands.
    pub(super) fn question(&self, member: MemberId) -> Option<SupervisorEffect> {
        let slot = self.slots.get(&member).filter(|slot| slot.awaited().is_some())?;
        Some(SupervisorEffect::Beat(Heartbeat {
            instance: self.config.instance,
            generation: self.generation,
            member,
            incarnation: slot.incarnation,
            number: Number(0),
        }))
    }

    /// Whether nodes of the life before may still call: they have twice `back` for it, since they first have to notice that their link is
    /// one of the past. That of the host that led has `late`: if it lives, it saw the end of its supervisor at once, and if its host is
    /// gone, all the others would wait for nobody. Every sign of life asks anew, so no time of its own is needed.
    pub(super) fn recalls(&self, now: Instant) -> bool {
        let late = self.config.timeouts.late;
        let vacant = self.config.taken_over.as_ref().and_then(|before| before.vacant);
        let gone = vacant.filter(|node| now >= self.since + late && !self.nodes.contains_key(node));
        self.misses_nodes(gone) && self.recalls_until().is_some_and(|until| now < until)
    }

    /// Whether a node of the life before has not called: there were as many as the run begins with, and those that were let in later.
    ///
    /// 1. A run begins with host 0 alone. Hosts 1 and 2 join it, and have its state.
    /// 2. Host 0 dies with the supervisor, and comes back at once. *Unsafe*: it goes on without them, from a checkpoint.
    fn misses_nodes(&self, gone: Option<NodeId>) -> bool {
        let is_missing = |node: &NodeId| Some(*node) != gone && !self.nodes.contains_key(node);
        let joined = self.config.taken_over.as_ref().map(|before| &before.nodes);
        joined.is_some_and(|joined| joined.iter().any(is_missing))
            || self.nodes.len() + usize::from(gone.is_some()) < self.config.wanted_nodes as usize
    }

    /// When nobody is expected any more to call, if nodes of the life before are missing.
    pub(super) fn recalls_until(&self) -> Option<Instant> {
        (self.is_taking_over() && self.misses_nodes(None)).then(|| self.since + self.config.timeouts.back * 2)
    }

    /// Gives new members to nodes that have room for more than was found there, once nobody is expected who may have the numbers.
    pub(super) fn seat_newcomers(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if !self.is_taking_over() || self.recalls(now) {
            return;
        }
        let room = |(node, view): (&NodeId, &NodeView)| {
            let there = self.slots.values().filter(|slot| slot.node == *node).count() as u32;
            (*node, view.ranks.saturating_sub(there))
        };
        let rooms: Vec<(NodeId, u32)> = self.nodes.iter().map(room).filter(|(_, room)| *room > 0).collect();
        rooms.iter().for_each(|(node, room)| self.add_slots(now, *node, *room));
        if !rooms.is_empty() {
            self.start_due(now, effects);
        }
    }

    /// Whether somebody of the life before may hold a state and has not said so: without it, it would be lost. Processes have `detect` to
    /// answer, and longer where we stood still ourselves and hosts have to call again.
    pub(super) fn awaits_the_found(&self, now: Instant) -> bool {
        let (detect, forgiven) = (self.config.timeouts.detect, self.forgiven);
        let awaited = |slot: &Slot| slot.awaited().is_some_and(|since| now < (since + detect).max(forgiven));
        self.recalls(now) || self.is_taking_over() && self.slots.values().any(awaited)
    }

    /// Ends whoever was found and has not answered, as the first generation is named; another life follows. A number cannot fence what it
    /// stores into memory that it shares with the others, and these are about to go on.
    ///
    /// 1. Member 0 stands still. A supervisor takes over, and the others go on without it, in the memory of their host.
    /// 2. That supervisor dies, another one asks, and member 0 wakes and answers.
    /// 3. *Unsafe*: it is one step behind, so it takes part; the state that it shares is not the one that it has told of.
    pub(super) fn leave_out_the_silent(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let silent: Vec<MemberId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.awaited().is_some())
            .map(|(member, _)| *member)
            .collect();
        for member in silent {
            effects.push(SupervisorEffect::Event(Event::LeftOut { member }));
            self.kill(now, member, After::Restart, effects);
        }
    }

    /// Ends those that were left out long ago and never learnt of it: they are in an older generation, and their steps are not those of
    /// the others. Who is in the newest generation differs from the others by one step at most (S4), whatever Reports say: steps
    /// are made between one Report and the next.
    ///
    /// 1. Host 1 is cut off at step 8. It is held to be lost; the others go on, and the order that ends its ranks is on its way.
    /// 2. The supervisor dies at step 30, the cut is mended, and all are found.
    ///
    /// Nor are they kept where nobody else is left, and a checkpoint has what the others made: whoever was in the generation that wrote it
    /// is one step behind it at most.
    pub(super) fn drop_the_forgotten(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        if !self.is_taking_over() {
            return;
        }
        let stands = |slot: &Slot| {
            let life = slot.found.and(slot.able())?;
            Some((life.generation, life.applied?))
        };
        let Some(newest) = self.slots.values().filter_map(stands).max() else { return };
        let are_all_behind = newest.1.next() < self.start_from().step();
        let is_behind = |(generation, applied): (Generation, Step)| {
            are_all_behind || generation < newest.0 && applied.next() < newest.1
        };
        let behind = |slot: &Slot| stands(slot).is_some_and(is_behind);
        let forgotten: Vec<MemberId> =
            self.slots.iter().filter(|(_, slot)| behind(slot)).map(|(member, _)| *member).collect();
        forgotten.into_iter().for_each(|member| self.kill(now, member, After::Restart, effects));
        let older = |life: &&mut Life| life.generation < newest.0;
        let lives = self.slots.values_mut().filter_map(Slot::life_mut);
        lives.filter(older).for_each(|life| life.was_older = true);
    }

    /// Ends those that were forgotten, too, as is known now that nobody makes steps any more; says whether there was any.
    ///
    /// 1. Host 1 was left out at step 6. The others are at step 7 when they answer, and make step 8 before they hear of the next generation.
    /// 2. *Unsafe*: whoever is two steps behind is held to be broken, and the run ends.
    pub(super) fn drop_who_turns_out_to_be_forgotten(
        &mut self,
        now: Instant,
        stands: &[(MemberId, Step)],
        newest: Step,
        effects: &mut Vec<SupervisorEffect>,
    ) -> bool {
        let was_older = |member: &MemberId| self.slots[member].life().is_some_and(|life| life.was_older);
        let behind = stands.iter().filter(|(member, own)| own.next() < newest && was_older(member));
        let forgotten: Vec<MemberId> = behind.map(|(member, _)| *member).collect();
        if forgotten.is_empty() {
            return false;
        }
        forgotten.iter().for_each(|member| self.kill(now, *member, After::Restart, effects));
        effects.push(SupervisorEffect::Event(Event::Reforming { reason: Reason::Behind(forgotten) }));
        true
    }

    /// Says how many were found, as the first generation is named.
    pub(super) fn tell_of_the_found(&self, effects: &mut Vec<SupervisorEffect>) {
        if self.is_taking_over() {
            let found = |slot: &&Slot| slot.found.is_some() && slot.able().is_some();
            let members = self.slots.values().filter(found).count() as u32;
            let step = self.progress.known();
            effects.push(SupervisorEffect::Event(Event::TookOver { members, step }));
        }
    }
}
