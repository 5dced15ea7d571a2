//! The end of the supervisor's process, and the one that takes its place: it knows what is on the disk, and nothing else.

use super::event::{Entry, Event, is_of_supervisor};
use super::network::Block;
use super::settings::RESERVED;
use super::{Sleep, World};
use crate::clock::{MILLI, SECOND};
use crate::fact::Fact;
use crate::sabotage::Sabotage;
use crate::situation::Situation;
use dtrain_protocol::{Ending, Outcome, StartFrom, Supervisor, SupervisorConfig, TakenOver};
use dtrain_types::{Generation, Instance, NodeId, Step};
use std::collections::BTreeSet;

/// A host has called again within so long after somebody listens. *Units*: nanoseconds.
const CALLS_AGAIN: u64 = 2 * SECOND;

impl World {
    /// The supervisor's process dies. Another begins after a while; hosts call it as soon as they may.
    pub(super) fn crash_supervisor(&mut self, at: usize, length: u64) {
        if self.dead {
            return;
        }
        self.dead = true;
        self.fact(&Fact::SupervisorDied);
        self.queue.retain(|event| !is_of_supervisor(event));
        self.journal.clear();
        self.ranges_known.clone_from(&self.ranges_on_disk);
        self.answered.clear();
        (self.journal_at, self.busy_until, self.supervisor_armed) = (0, 0, None);
        (self.supervisor_sleep, self.renamed, self.asked) = (Sleep::default(), Situation::Nobody, None);
        let length = length.max(5 * MILLI);
        // Who stands beside it shares its end, or is a process of its own.
        let host_too = self.chance.per_mille(500);
        // Then another host leads, before that one is back.
        let elsewhere = host_too && self.settings.nodes > 1 && self.chance.per_mille(500);
        self.vacant = elsewhere.then_some(NodeId(0));
        // A process that stands still, with its host or without, looks no other.
        self.wakes_again = self.chance.per_mille(300);
        let mut back = length;
        if host_too {
            let away = if elsewhere { self.chance.below(2 * CALLS_AGAIN) } else { MILLI };
            self.end_node(NodeId(0), Some(length + away));
        }
        // Links to one that stood still before it died are of the past, too.
        self.network.blocks.retain(|(_, block)| !matches!(block, Block::Words(_)));
        for host in (1..self.settings.nodes).map(NodeId) {
            self.network.blocks.push((at, Block::Words(host)));
        }
        if self.settings.nodes > 1 {
            // Some call so soon that ranks still make steps.
            let most = if self.chance.per_mille(500) { 20 * MILLI } else { CALLS_AGAIN };
            back += self.chance.below(if self.breaks(Sabotage::LateRecall) { 6 * CALLS_AGAIN } else { most });
            self.push(back, Event::Heal(at));
        }
        self.last_fault = self.last_fault.max(self.now + back);
        if self.now + back + SECOND >= self.silent_since() + self.times.master.as_nanos() as u64 {
            self.touched_all = self.touched_all.max(self.now + back);
        }
        self.push(length, Event::SupervisorBegins);
    }

    /// Since when somebody has not heard the supervisor.
    fn silent_since(&self) -> u64 {
        let ranks = self.processes.iter().flatten().map(|process| process.heard);
        let hosts = self.hosts.iter().filter(|host| host.node.is_some()).map(|host| host.heard);
        ranks.chain(hosts).min().unwrap_or(self.now)
    }

    pub(super) fn begin_supervisor(&mut self) {
        let newest = self.disk.manifests().max_by_key(|id| (id.step, id.generation));
        let job = super::settings::job(&self.settings);
        let reused = self.breaks(Sabotage::ReusedNumber);
        let first = if reused { Generation(1) } else { self.reserved.next() };
        self.reserved = Generation(first.0 + RESERVED.0).max(self.reserved);
        let before = super::settings::config(&self.settings, &job, self.times);
        let last = self.on_disk.enough.unwrap_or(before.schedule.last);
        if let Some(id) = newest.filter(|id| id.step >= last && self.on_disk.ending.is_none()) {
            // Everything is done; whoever is still there is told so.
            let order = self.disk.manifest(id).expect("it is one of them");
            let (step, digest, state_digest) = (id.step, order.digest, order.state_digest);
            let ending = Ending { step, digest, state_digest, checkpoint: Some(id), device_peak: None };
            self.note_written(&Entry::Ending(ending));
        }
        let ended = self.on_disk.ending.is_some();
        if self.excuses.drained && !ended && self.hosts.iter().all(|host| host.node.is_none()) {
            // All had left before it could say so.
            return self.end(Outcome::Interrupted(None));
        }
        // A host that leaves may be the only one that it knows.
        self.excuses.drained |= self.hosts.iter().any(|host| host.leaves);
        let unread = self.breaks(Sabotage::UnreadValidation);
        let validated = if unread { Step(0) } else { self.on_disk.validated };
        let ending = self.on_disk.ending.filter(|_| !self.breaks(Sabotage::UnreadEnding));
        let unread = self.breaks(Sabotage::UnreadHosts);
        let nodes = if unread { BTreeSet::new() } else { self.let_in.clone() };
        let known = TakenOver { validated, ending, nodes, vacant: self.vacant, ..self.on_disk.clone() };
        self.tell(|| format!("a supervisor takes over by {first}, it knows {known:?}"));
        let config = SupervisorConfig {
            instance: Instance(77 + first.0),
            start: newest.map_or(StartFrom::Fresh, StartFrom::Checkpoint),
            taken_over: Some(known),
            first_generation: first,
            reserved: self.reserved,
            ..before
        };
        let before = std::mem::replace(&mut self.supervisor, Supervisor::new(config));
        if std::mem::take(&mut self.wakes_again) {
            self.leave_a_ghost(before);
        }
        (self.dead, self.caused, self.leads_by) = (false, true, first);
        self.supervisor.start(self.clock.show(self.now));
        self.arm_supervisor();
        // The node beside it waits for nothing.
        self.tell_node(NodeId(0), |node, now, effects| node.handle_link(now, effects));
    }
}
