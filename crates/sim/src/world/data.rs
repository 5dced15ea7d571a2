//! The network: control words that may be lost, and data streams that are whole until they are cut.

use super::event::Event;
use super::event::copy_of;
use super::{Process, World};
use crate::clock::{MICRO, MILLI, SECOND};
use crate::compute::Parcel;
use crate::fact::Life;
use crate::queue::Class;
use crate::world::network::{IDLE, Stalled};
use dtrain_collective::Header;
use dtrain_types::{Generation, MemberId, NodeId, Rank};

impl World {
    pub(super) fn is_lost(&mut self) -> bool {
        let noise = self.network.noise;
        self.chance.per_mille(noise)
    }

    pub(super) fn is_doubled(&mut self) -> bool {
        let noise = self.network.noise;
        self.chance.per_mille(noise)
    }

    pub(super) fn control_delay(&mut self, host: NodeId) -> u64 {
        let base = match host.0 {
            0 => self.chance.between(20 * MICRO, 150 * MICRO),
            _ => self.chance.between(150 * MICRO, 900 * MICRO),
        };
        let noise = self.network.noise;
        match noise {
            0 => base,
            // A few are so late that they speak of another life.
            _ if self.chance.per_mille(15) => base + self.chance.below(2 * SECOND),
            _ if self.chance.per_mille(300) => base + self.chance.below(40 * MILLI),
            _ => base,
        }
    }

    /// Sends a word to the supervisor.
    pub(super) fn send_up(&mut self, host: NodeId, event: Event) {
        if !self.network.is_open_up(host) || self.is_lost() {
            return;
        }
        if self.is_doubled()
            && let Some(copy) = copy_of(&event)
        {
            let after = self.control_delay(host);
            self.push(after, copy);
        }
        let after = self.control_delay(host);
        self.push(after, event);
    }

    /// Sends a frame to a rank of the sender's generation.
    pub(super) fn transmit(
        &mut self,
        sender: &Process,
        to: MemberId,
        rank: Rank,
        header: Header,
        payload: Vec<f32>,
    ) {
        let generation = header.tag.generation;
        let Some(receiver) = self.process(to) else { return };
        let (to, host) = (receiver.life, receiver.host);
        let from = sender.life;
        if self.network.dead.contains(&(from.member, to.member, generation)) {
            return;
        }
        let parcel = Box::new(Parcel { from: rank, header, payload });
        if self.network.is_open((from.member, sender.host), (to.member, host)) {
            return self.deliver((from, sender.host), (to, host), parcel);
        }
        let expires =
            !self.network.stalled.iter().any(|s| (s.from, s.to, s.generation) == (from, to, generation));
        self.network.stalled.push(Stalled { from, to, generation, parcel });
        if expires {
            self.push(IDLE, Event::Expires { from: from.member, to: to.member, generation });
        }
    }

    fn deliver(&mut self, (from, sender): (Life, NodeId), (to, host): (Life, NodeId), parcel: Box<Parcel>) {
        let delay = match sender == host {
            true => self.chance.between(10 * MICRO, 60 * MICRO),
            false => self.chance.between(80 * MICRO, 400 * MICRO),
        };
        let slot = from.member.0 as usize * self.network.ranks + to.member.0 as usize;
        let at = (self.now + delay).max(self.network.arrives[slot] + 1);
        self.network.arrives[slot] = at;
        self.queue.push(at, Class::Input, Event::Frame { to, parcel });
    }

    /// Something was healed: what waited gets through if its path is open.
    pub(super) fn unstall(&mut self) {
        for stalled in std::mem::take(&mut self.network.stalled) {
            let hosts = |life: Life| self.process(life.member).filter(|p| p.life == life).map(|p| p.host);
            let (Some(from), Some(to)) = (hosts(stalled.from), hosts(stalled.to)) else { continue };
            if self.network.is_open((stalled.from.member, from), (stalled.to.member, to)) {
                self.deliver((stalled.from, from), (stalled.to, to), stalled.parcel);
            } else {
                self.network.stalled.push(stalled);
            }
        }
    }

    /// A connection over which nothing got through is dead, if that is still so.
    pub(super) fn expire(&mut self, from: MemberId, to: MemberId, generation: Generation) {
        let same = |s: &Stalled| (s.from.member, s.to.member, s.generation) == (from, to, generation);
        if !self.network.stalled.iter().any(same) {
            return;
        }
        self.network.stalled.retain(|stalled| !same(stalled));
        self.reset(from, to, generation);
    }

    /// A connection is cut, and both ends learn it.
    pub(super) fn reset(&mut self, one: MemberId, other: MemberId, generation: Generation) {
        self.tell(|| format!("the data connection of members {one} and {other} breaks"));
        for (from, to) in [(one, other), (other, one)] {
            self.network.dead.insert((from, to, generation));
            if let Some(life) = self.process(from).map(|process| process.life) {
                let after = self.chance.between(10 * MICRO, MILLI);
                self.push(after, Event::PeerLost(life, generation, to));
            }
        }
    }

    /// A process is gone: its peers learn it by their connections, or by nothing at all.
    pub(super) fn disconnect(&mut self, life: Life, generation: Generation) {
        let told = self.chance.per_mille(500);
        for place in 0..self.processes.len() {
            let Some(peer) = self.processes[place].as_ref().map(|process| process.life) else { continue };
            if told && peer.member != life.member {
                let after = self.chance.between(20 * MICRO, 2 * MILLI);
                self.push(after, Event::PeerLost(peer, generation, life.member));
            }
        }
    }
}
