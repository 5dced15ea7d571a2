//! Hosts: their nodes, and the processes that begin and end on them.

use super::event::{Asleep, Event};
use super::settings::DataPlane;
use super::{Process, Sleep, World};
use crate::clock::{MICRO, MILLI};
use crate::compute::{Compute, Shards, geometry};
use crate::disk::Unsynced;
use crate::fact::{Fact, Life, View};
use crate::memory::HostMemory;
use crate::queue::Class;
use crate::sabotage::Sabotage;
use crate::situation::Situation;
use dtrain_engine::Sharer;
use dtrain_protocol::{
    Agenda, BootId, Digest, ExitCause, Fingerprint, Input, Member, MemberConfig, Node, NodeConfig,
    NodeEffect, Profile,
};
use dtrain_types::{Generation, NodeId};
use std::time::Duration;

/// More than a rank writes in its share of an update, and in an update that it completes.
const WRITES: [u64; 2] = [24, 160];

impl World {
    fn host_name(host: NodeId) -> String {
        format!("host{}", host.0)
    }

    /// How many ranks a host offers.
    pub(super) fn ranks_of(&self, host: NodeId) -> u32 {
        let (ranks, nodes) = (self.settings.ranks, self.settings.nodes);
        ranks / nodes + u32::from(host.0 < ranks % nodes)
    }

    /// A host's node starts.
    pub(super) fn boot(&mut self, id: NodeId) {
        let boot = BootId(self.chance.draw());
        let config = NodeConfig {
            node: id,
            boot,
            host: Self::host_name(id),
            ranks: self.ranks_of(id),
            timeouts: self.times,
        };
        self.mark(40, &[id.0.into()]);
        let memory = (self.settings.plane == DataPlane::Hosts).then(|| {
            let ranks = self.ranks_of(id) as usize;
            HostMemory::new(&self.engine, geometry(&self.engine), ranks)
        });
        let host = &mut self.hosts[id.0 as usize];
        let mut node = Node::new(config);
        let now = host.clock.show(self.now);
        let mut effects = std::mem::take(&mut self.node_effects);
        node.start(now, &mut effects);
        (host.node, host.boot, host.armed, host.sleep) = (Some(node), boot, None, Sleep::default());
        host.heard = self.now;
        host.memory = memory;
        self.tell(|| format!("host {id} starts"));
        self.obey_node(id, &mut effects);
        self.node_effects = effects;
        self.arm_host(id);
    }

    /// Something reaches a host's node.
    pub(super) fn at_host(&mut self, class: Class, event: Event) {
        let id = match &event {
            Event::Order(order) => order.node,
            Event::NodeTimer(node, _) | Event::Ended(node, ..) | Event::Started(node, ..) => *node,
            _ => unreachable!("it is for somebody else"),
        };
        let host = &mut self.hosts[id.0 as usize];
        if self.now < host.sleep.until {
            return host.sleep.waiting.push((class, event));
        }
        let (boot, now) = (host.boot, host.clock.show(self.now));
        let Some(node) = host.node.as_mut() else { return };
        let mut effects = std::mem::take(&mut self.node_effects);
        let mut saw = None;
        match event {
            Event::Order(order) => {
                node.handle_order(now, &order, &mut effects);
                if (order.boot, Some(order.instance)) == (boot, node.obeys()) {
                    host.heard = self.now;
                }
                saw = Some((node.seen(), node.obeys()));
            }
            Event::Ended(_, of, life, cause) if of == boot => {
                node.handle_ended(now, life.member, life.incarnation, cause, &mut effects);
            }
            Event::NodeTimer(_, of) if of == boot && host.armed.is_some_and(|at| at <= self.now) => {
                host.armed = None;
                if node.next_deadline().is_some_and(|due| now >= due) {
                    node.handle_timeout(now, &mut effects);
                }
            }
            Event::Started(_, of, life) if of == boot => self.started(id, life),
            _ => {}
        }
        if let Some((number, obeys)) = saw {
            self.fact(&Fact::Saw(View::Node(id, boot, obeys), number));
        }
        self.obey_node(id, &mut effects);
        self.node_effects = effects;
        self.arm_host(id);
    }

    /// Does something to a host's node.
    pub(super) fn tell_node(
        &mut self,
        id: NodeId,
        what: impl FnOnce(&mut Node, dtrain_types::Instant, &mut Vec<NodeEffect>),
    ) {
        let mut effects = std::mem::take(&mut self.node_effects);
        let host = &mut self.hosts[id.0 as usize];
        let now = host.clock.show(self.now);
        if let Some(node) = host.node.as_mut() {
            what(node, now, &mut effects);
        }
        self.obey_node(id, &mut effects);
        self.node_effects = effects;
        self.arm_host(id);
    }

    fn arm_host(&mut self, id: NodeId) {
        let host = &mut self.hosts[id.0 as usize];
        let Some(due) = host.node.as_ref().and_then(Node::next_deadline) else { return };
        let at = host.clock.when(due).max(self.now + 1);
        if host.armed.is_none_or(|armed| at < armed) {
            host.armed = Some(at);
            let boot = host.boot;
            self.queue.push(at, Class::Timer, Event::NodeTimer(id, boot));
        }
    }

    fn obey_node(&mut self, id: NodeId, effects: &mut Vec<NodeEffect>) {
        let boot = self.hosts[id.0 as usize].boot;
        for effect in effects.drain(..) {
            match effect {
                NodeEffect::Send(report) => self.send_up(id, Event::Told(Input::NodeReport(report))),
                NodeEffect::Start(member, incarnation) => {
                    let life = Life { member, incarnation };
                    self.mark(41, &[member.0.into(), incarnation.0.into()]);
                    let slow = self.now < self.slow_start_until;
                    let takes = self.chance.between(5 * MILLI, if slow { 3_000 } else { 60 } * MILLI);
                    let event = if std::mem::take(&mut self.start_fails) {
                        Event::Ended(id, boot, life, ExitCause::NotStarted("out of memory".to_owned()))
                    } else {
                        self.starting.insert(life, id);
                        Event::Started(id, boot, life)
                    };
                    self.push(takes, event);
                }
                NodeEffect::Kill(member, incarnation) => {
                    let life = Life { member, incarnation };
                    if self.breaks(Sabotage::EndedTooEarly) {
                        self.push(MICRO, Event::Ended(id, boot, life, ExitCause::Signal(9)));
                    }
                    // To give back much memory takes its time.
                    let most = if self.chance.per_mille(150) { 300 * MILLI } else { 2 * MILLI };
                    let after = self.chance.between(50 * MICRO, most);
                    self.push(after, Event::Killed(life));
                }
                NodeEffect::Orphaned => {
                    self.gave_up(&format!("host {id}"), self.hosts[id.0 as usize].heard);
                }
                NodeEffect::Leave => self.hosts[id.0 as usize].node = None,
            }
        }
    }

    /// A process is there: its member says its first word.
    fn started(&mut self, host: NodeId, life: Life) {
        let place = life.member.0 as usize;
        self.starting.remove(&life);
        assert!(self.begun.insert(life), "{life} began twice: its number fences nothing");
        if let Some(other) = self.processes[place].as_deref() {
            let (other, at) = (other.life, other.host);
            assert!(at != host, "a life began before the one before it had ended");
            // A late word of a supervisor that is gone began one of them, and the next one has given its number to another host. Here the one
            // that nobody hears ends now, and not when its host learns of it.
            if other.incarnation > life.incarnation {
                let boot = self.hosts[host.0 as usize].boot;
                return self.push(MICRO, Event::Ended(host, boot, life, ExitCause::Signal(9)));
            }
            self.end_process(other, ExitCause::Signal(9));
        }
        let profile = Profile {
            fingerprint: Fingerprint {
                isa: "scalar".to_owned(),
                self_test: Digest([3; 32]),
                kernel_revision: 1,
            },
            pid: 1_000 + life.member.0,
            host: Self::host_name(host),
            device: "cpu".to_owned(),
            sees_run_folder: true,
            address: None,
        };
        let (member, incarnation, timeouts) = (life.member, life.incarnation, self.times);
        let config = MemberConfig { member, incarnation, profile, timeouts, limits: self.limits };
        let memory = self.hosts[host.0 as usize].memory.as_ref().filter(|_| self.settings.nodes == 1);
        let sharer = memory.map(|memory| Sharer::new(&memory.state));
        let shards = match self.settings.plane {
            DataPlane::Shards(level) => Some(Shards::new(&self.engine, super::settings::REDUNDANCY, level)),
            _ => None,
        };
        let agenda = Agenda::new(super::settings::schedule(&self.settings, self.engine.job()));
        let process = Process {
            life,
            host,
            boot: self.hosts[host.0 as usize].boot,
            clock: super::draw_clock(&mut self.chance),
            member: Member::new(config),
            compute: Compute::new(agenda, (sharer, shards), self.settings.sabotage),
            armed: None,
            heard: self.now,
            sleep: Sleep::default(),
            hang: Sleep::default(),
            slow: 1_000,
            news_at: 0,
            generation: Generation(0),
            first_in: None,
            place: Situation::Nobody,
            exits: None,
        };
        self.processes[place] = Some(Box::new(process));
        self.tell(|| format!("{life} starts"));
        self.with_process(life, |_, process, now, effects| process.member.start(now, effects));
    }

    /// Somebody that last heard the supervisor then waits for it no longer.
    pub(super) fn gave_up(&mut self, who: &str, heard: u64) {
        let (waited, master) = (Duration::from_nanos(self.now - heard), self.times.master);
        self.fact(&Fact::GaveUp { who, waited, master });
        self.tell(|| format!("{who} gives the supervisor up"));
    }

    /// A process is killed by its node, if it is still there; before it was there, it never comes.
    pub(super) fn kill_now(&mut self, life: Life) {
        if self.process_mut(life).is_some() {
            self.end_process(life, ExitCause::Signal(9));
        } else if self.starting.contains_key(&life) {
            // It is still being started: it is killed when it is there.
            let after = self.chance.between(60 * MILLI, 100 * MILLI);
            self.push(after, Event::Killed(life));
        }
    }

    /// A process ends: its host's node learns it, its peers lose their connections, its words on the way get through.
    pub(super) fn end_process(&mut self, life: Life, cause: ExitCause) {
        let Some(mut process) =
            self.processes[life.member.0 as usize].take_if(|process| process.life == life)
        else {
            return;
        };
        self.leave_torn(&mut process);
        self.mark(42, &[life.member.0.into(), life.incarnation.0.into()]);
        self.touch(life.member);
        self.tell(|| format!("{life} ends: {cause}"));
        let (host, boot) = (process.host, process.boot);
        let after = self.chance.between(20 * MICRO, MILLI);
        self.push(after, Event::Ended(host, boot, life, cause));
        if self.chance.per_mille(500) {
            let after = self.chance.between(20 * MICRO, 2 * MILLI);
            self.push(after, Event::Told(Input::LinkLost(life.member)));
        }
        self.disconnect(life, process.generation);
    }

    /// What a process that is killed was writing into the memory of its host stays there as far as it got.
    fn leave_torn(&mut self, process: &mut Process) {
        let most = *self.chance.pick(&WRITES);
        let writes = self.chance.below(most);
        let now = process.clock.show(self.now);
        self.compute(process, now, |compute, tools| compute.killed(tools, writes));
        let sabotaged = self.breaks(Sabotage::LostJournal);
        let memory = self.hosts[process.host.0 as usize].memory.as_mut().filter(|_| sabotaged);
        if let Some(memory) = memory {
            memory.state.forget_journals();
        }
    }

    /// A host loses its power.
    pub(super) fn crash_host(&mut self, id: NodeId, down: Option<u64>) {
        let unsynced = if self.chance.per_mille(500) { Unsynced::Torn } else { Unsynced::Gone };
        if self.hosts[id.0 as usize].node.is_some() {
            self.disk.power_lost(id, unsynced);
        }
        self.end_node(id, down);
    }

    /// A node ends, and every process of its host with it.
    pub(super) fn end_node(&mut self, id: NodeId, down: Option<u64>) {
        if self.hosts[id.0 as usize].node.is_none() {
            return;
        }
        for place in 0..self.processes.len() {
            if self.processes[place].as_ref().is_some_and(|process| process.host == id)
                && let Some(process) = self.processes[place].take()
            {
                self.touch(process.life.member);
                self.disconnect(process.life, process.generation);
            }
        }
        self.hosts[id.0 as usize].node = None;
        self.hosts[id.0 as usize].memory = None;
        self.starting.retain(|_, host| *host != id);
        self.mark(43, &[id.0.into()]);
        if self.chance.per_mille(500) {
            let after = self.chance.between(MILLI, 900 * MILLI);
            self.push(after, Event::Told(Input::NodeLost(id)));
        }
        match down {
            Some(down) => {
                self.push(down, Event::Boots(id));
                self.last_fault = self.last_fault.max(self.now + down);
            }
            None => self.excuses.short = true,
        }
    }

    /// A host's node stands still for a while.
    pub(super) fn stop_host(&mut self, id: NodeId, length: u64) {
        self.hosts[id.0 as usize].sleep.until = self.now + length;
        self.push(length, Event::Wake(Asleep::Host(id)));
    }
}
