//! The node: starts and ends the lives of one host's members, as its supervisor orders.
//!
//! It acts on whole orders, so a lost or repeated one is harmless, and it never starts a life before the one before it
//! in the same slot has ended: a dead process cannot store into memory that the next generation uses, and a number
//! could not fence such a store. It does not know processes or what the members say to each other.

use crate::cause::ExitCause;
use crate::host::{LifeReport, NodeOrder, NodeReport};
use crate::number::{BootId, Number};
use crate::timeouts::Timeouts;
use dtrain_types::{Generation, Incarnation, Instance, Instant, MemberId, NodeId};
use std::collections::BTreeMap;

/// What a node is made from.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its number.
    pub node: NodeId,
    /// Its life.
    pub boot: BootId,
    /// The name of its host.
    pub host: String,
    /// How many ranks it offers.
    pub ranks: u32,
    /// The run's timeouts.
    pub timeouts: Timeouts,
}

/// What a node asks of its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEffect {
    /// Send this to the supervisor.
    Send(Box<NodeReport>),
    /// Start the process of this life; its end, or that it could not be started, is told by `handle_ended`.
    Start(MemberId, Incarnation),
    /// End this life by force.
    Kill(MemberId, Incarnation),
    /// The supervisor was not heard for too long. Every life was told to end; the driver goes on trying to reach it.
    Orphaned,
    /// All lives have ended and the supervisor needs this node no more. The last effect of all.
    Leave,
}

/// One life of one node.
///
/// The driver calls [`Node::start`] once, feeds it every input, runs the effects in order, and calls
/// [`Node::handle_timeout`] when [`Node::next_deadline`] has come.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    bound: Option<Instance>,
    /// The newest generation that an order told of.
    generation: Generation,
    seen: Number,
    number: Number,
    slots: BTreeMap<MemberId, Slot>,
    leave: bool,
    leaving: bool,
    orphaned: bool,
    heard: Instant,
    last_word: Instant,
    over: bool,
}

#[derive(Debug)]
struct Slot {
    /// The newest life that was started.
    incarnation: Incarnation,
    ended: Option<ExitCause>,
    killed: bool,
    /// The life that is to be next, once this one has ended.
    wanted: Option<Incarnation>,
    /// A life that was ordered and called off before we heard of it: it is told of as ended, or it would be waited for.
    called_off: Option<Incarnation>,
}

impl Node {
    /// A node that has said nothing yet.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config,
            bound: None,
            generation: Generation(0),
            seen: Number(0),
            number: Number(0),
            slots: BTreeMap::new(),
            leave: false,
            leaving: false,
            orphaned: false,
            heard: Instant::ZERO,
            last_word: Instant::ZERO,
            over: false,
        }
    }

    /// Says the first word.
    pub fn start(&mut self, now: Instant, effects: &mut Vec<NodeEffect>) {
        self.heard = now;
        self.report(now, effects);
    }

    /// Takes in an order. Older ones, and those for another life, change nothing but that the supervisor was heard. Another life of the
    /// supervisor is obeyed if it names a newer generation: then the one before it is of the past.
    pub fn handle_order(&mut self, now: Instant, order: &NodeOrder, effects: &mut Vec<NodeEffect>) {
        let mine = (order.node, order.boot) == (self.config.node, self.config.boot);
        let other = self.bound.is_some_and(|bound| bound != order.instance);
        if self.over || !mine || other && order.generation <= self.generation {
            return;
        }
        if other {
            // Its orders are counted anew.
            self.seen = Number(0);
        }
        (self.heard, self.orphaned) = (now, false);
        if order.number <= self.seen {
            return;
        }
        (self.bound, self.seen, self.leave) = (Some(order.instance), order.number, order.leave);
        self.generation = order.generation;
        for (member, slot) in &mut self.slots {
            if !order.members.iter().any(|life| life.member == *member) {
                slot.wanted = None;
                kill(*member, slot, effects);
            }
        }
        for life in &order.members {
            let slot = self.slots.entry(life.member).or_insert(Slot {
                incarnation: Incarnation(0),
                ended: None,
                killed: false,
                wanted: None,
                called_off: None,
            });
            slot.wanted = (life.alive && life.incarnation > slot.incarnation).then_some(life.incarnation);
            slot.called_off =
                (!life.alive && life.incarnation > slot.incarnation).then_some(life.incarnation);
            let outlived = slot.incarnation < life.incarnation || !life.alive;
            if outlived {
                kill(life.member, slot, effects);
            }
        }
        self.settle(effects);
        self.report(now, effects);
    }

    /// A life has ended, or could not begin.
    pub fn handle_ended(
        &mut self,
        now: Instant,
        member: MemberId,
        incarnation: Incarnation,
        cause: ExitCause,
        effects: &mut Vec<NodeEffect>,
    ) {
        let Some(slot) = self.slots.get_mut(&member).filter(|slot| slot.incarnation == incarnation) else {
            return;
        };
        if slot.ended.is_none() {
            slot.ended = Some(cause);
            self.settle(effects);
            self.report(now, effects);
        }
    }

    /// The host is asked to leave the run: its members are let go at the next step boundary.
    pub fn handle_leave(&mut self, now: Instant, effects: &mut Vec<NodeEffect>) {
        if !self.leaving && !self.over {
            self.leaving = true;
            self.report(now, effects);
        }
    }

    /// The way to the supervisor stands again: it is told everything at once.
    pub fn handle_link(&mut self, now: Instant, effects: &mut Vec<NodeEffect>) {
        if !self.over {
            self.report(now, effects);
        }
    }

    /// Does what has come due.
    pub fn handle_timeout(&mut self, now: Instant, effects: &mut Vec<NodeEffect>) {
        let Some(due) = self.next_deadline() else { return };
        if now.since(due) > self.config.timeouts.late {
            // Our own process was stopped: what the supervisor sent meanwhile may still be unread.
            self.heard = now;
        }
        if !self.orphaned && now >= self.heard + self.config.timeouts.master {
            // Nobody comes back for our members any more, and they hold devices.
            self.orphaned = true;
            for (member, slot) in &mut self.slots {
                slot.wanted = None;
                kill(*member, slot, effects);
            }
            effects.push(NodeEffect::Orphaned);
        }
        if now >= self.last_word + self.config.timeouts.heartbeat {
            self.report(now, effects);
        }
    }

    /// When [`Node::handle_timeout`] is to be called; none after the end.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let word = self.last_word + self.config.timeouts.heartbeat;
        let given_up = self.heard + self.config.timeouts.master;
        (!self.over).then(|| if self.orphaned { word } else { word.min(given_up) })
    }

    /// The number of the newest order that was taken in; it never falls.
    #[must_use]
    pub fn seen(&self) -> Number {
        self.seen
    }

    /// Which life of the supervisor it obeys; none before the first order. Numbers of orders are counted by it.
    #[must_use]
    pub fn obeys(&self) -> Option<Instance> {
        self.bound
    }

    /// Since when the supervisor was not heard.
    #[must_use]
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Starts what may start, and ends when nothing is left to do.
    fn settle(&mut self, effects: &mut Vec<NodeEffect>) {
        for (member, slot) in &mut self.slots {
            let free = slot.incarnation == Incarnation(0) || slot.ended.is_some();
            if let Some(wanted) = slot.wanted.filter(|_| free) {
                *slot =
                    Slot { incarnation: wanted, ended: None, killed: false, wanted: None, called_off: None };
                effects.push(NodeEffect::Start(*member, wanted));
            } else if let Some(incarnation) = slot.called_off.filter(|_| free) {
                let ended = Some(ExitCause::NotStarted("it was called off before it began".to_owned()));
                *slot = Slot { incarnation, ended, killed: false, wanted: None, called_off: None };
            }
        }
    }

    fn report(&mut self, now: Instant, effects: &mut Vec<NodeEffect>) {
        self.last_word = now;
        self.number = self.number.next();
        let lives = self.slots.iter().filter(|(_, slot)| slot.incarnation > Incarnation(0));
        effects.push(NodeEffect::Send(Box::new(NodeReport {
            instance: self.bound,
            generation: self.generation,
            node: self.config.node,
            boot: self.config.boot,
            number: self.number,
            seen: self.seen,
            host: self.config.host.clone(),
            ranks: self.config.ranks,
            lives: lives
                .map(|(member, slot)| LifeReport {
                    member: *member,
                    incarnation: slot.incarnation,
                    ended: slot.ended.clone(),
                })
                .collect(),
            leaving: self.leaving,
        })));
        let idle = self.slots.values().all(|slot| slot.incarnation == Incarnation(0) || slot.ended.is_some());
        if self.leave && idle {
            self.over = true;
            effects.push(NodeEffect::Leave);
        }
    }
}

fn kill(member: MemberId, slot: &mut Slot, effects: &mut Vec<NodeEffect>) {
    if slot.incarnation > Incarnation(0) && slot.ended.is_none() && !slot.killed {
        slot.killed = true;
        effects.push(NodeEffect::Kill(member, slot.incarnation));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::LifeOrder;
    use std::time::Duration;

    const MEMBER: MemberId = MemberId(3);

    fn node() -> Node {
        let timeouts = Timeouts::derive(Duration::from_secs(1)).expect("in range");
        let config =
            NodeConfig { node: NodeId(1), boot: BootId(7), host: "b".to_owned(), ranks: 1, timeouts };
        Node::new(config)
    }

    fn order(number: u64, incarnation: u32, alive: bool) -> NodeOrder {
        NodeOrder {
            instance: Instance(1),
            generation: Generation(3),
            node: NodeId(1),
            boot: BootId(7),
            number: Number(number),
            members: vec![LifeOrder { member: MEMBER, incarnation: Incarnation(incarnation), alive }],
            leave: false,
        }
    }

    fn acts(effects: &mut Vec<NodeEffect>) -> Vec<NodeEffect> {
        effects.drain(..).filter(|effect| !matches!(effect, NodeEffect::Send(_))).collect()
    }

    #[test]
    fn a_life_begins_only_when_the_one_before_it_has_ended() {
        let (mut node, mut effects) = (node(), Vec::new());
        node.handle_order(Instant::ZERO, &order(1, 1, true), &mut effects);
        assert_eq!(acts(&mut effects), [NodeEffect::Start(MEMBER, Incarnation(1))]);
        node.handle_order(Instant::ZERO, &order(2, 2, true), &mut effects);
        assert_eq!(acts(&mut effects), [NodeEffect::Kill(MEMBER, Incarnation(1))]);
        node.handle_order(Instant::ZERO, &order(2, 2, true), &mut effects);
        node.handle_order(Instant::ZERO, &order(1, 1, true), &mut effects);
        assert_eq!(acts(&mut effects), [], "repeated and overtaken orders change nothing");
        node.handle_ended(Instant::ZERO, MEMBER, Incarnation(1), ExitCause::Signal(9), &mut effects);
        assert_eq!(acts(&mut effects), [NodeEffect::Start(MEMBER, Incarnation(2))]);
        node.handle_ended(Instant::ZERO, MEMBER, Incarnation(1), ExitCause::Signal(9), &mut effects);
        assert_eq!(acts(&mut effects), [], "the end of an older life says nothing of this one");
    }

    #[test]
    fn an_order_for_another_life_of_the_node_or_of_another_supervisor_changes_nothing() {
        let (mut node, mut effects) = (node(), Vec::new());
        node.handle_order(Instant::ZERO, &NodeOrder { boot: BootId(6), ..order(1, 1, true) }, &mut effects);
        assert_eq!(acts(&mut effects), []);
        node.handle_order(Instant::ZERO, &order(1, 1, true), &mut effects);
        acts(&mut effects);
        node.handle_order(
            Instant::ZERO,
            &NodeOrder { instance: Instance(2), ..order(9, 2, true) },
            &mut effects,
        );
        assert_eq!(acts(&mut effects), []);
    }

    #[test]
    fn a_supervisor_of_a_newer_generation_takes_a_node_over_and_the_older_one_is_heard_no_more() {
        let (mut node, mut effects) = (node(), Vec::new());
        node.handle_order(Instant::ZERO, &order(7, 1, true), &mut effects);
        acts(&mut effects);
        let newer = NodeOrder { instance: Instance(2), generation: Generation(4), ..order(1, 1, true) };
        node.handle_order(Instant::ZERO, &newer, &mut effects);
        assert_eq!(acts(&mut effects), [], "the life that it names goes on");
        node.handle_order(Instant::ZERO, &order(8, 1, false), &mut effects);
        assert_eq!(acts(&mut effects), [], "whoever led before says nothing that counts");
        let without = NodeOrder { members: Vec::new(), number: Number(2), ..newer };
        node.handle_order(Instant::ZERO, &without, &mut effects);
        assert_eq!(
            acts(&mut effects),
            [NodeEffect::Kill(MEMBER, Incarnation(1))],
            "it has no place for this life"
        );
    }

    #[test]
    fn a_node_that_hears_nothing_ends_its_lives_and_begins_none_until_it_is_told_again() {
        let (mut node, mut effects) = (node(), Vec::new());
        node.start(Instant::ZERO, &mut effects);
        node.handle_order(Instant::ZERO, &order(1, 1, true), &mut effects);
        acts(&mut effects);
        let mut now = Instant::ZERO;
        while acts(&mut effects).is_empty() {
            now = node.next_deadline().expect("it goes on");
            node.handle_timeout(now, &mut effects);
            if effects.contains(&NodeEffect::Orphaned) {
                break;
            }
        }
        assert_eq!(acts(&mut effects), [NodeEffect::Kill(MEMBER, Incarnation(1)), NodeEffect::Orphaned]);
        node.handle_ended(now, MEMBER, Incarnation(1), ExitCause::Signal(9), &mut effects);
        assert_eq!(acts(&mut effects), []);
        node.handle_order(now, &order(2, 2, true), &mut effects);
        assert_eq!(acts(&mut effects), [NodeEffect::Start(MEMBER, Incarnation(2))]);
    }

    #[test]
    fn a_life_that_is_called_off_before_it_is_heard_of_never_begins_and_is_told_of_as_ended() {
        let (mut node, mut effects) = (node(), Vec::new());
        node.handle_order(Instant::ZERO, &order(1, 1, true), &mut effects);
        node.handle_ended(Instant::ZERO, MEMBER, Incarnation(1), ExitCause::Signal(9), &mut effects);
        acts(&mut effects);
        // Order 2, to begin life 2, is overtaken by order 3, which ends it.
        node.handle_order(Instant::ZERO, &order(3, 2, false), &mut effects);
        let Some(NodeEffect::Send(report)) = effects.last() else { panic!("{effects:?}") };
        let told = &report.lives[0];
        assert_eq!(told.incarnation, Incarnation(2));
        assert!(matches!(told.ended, Some(ExitCause::NotStarted(_))), "{told:?}");
        assert_eq!(acts(&mut effects), []);
    }

    #[test]
    fn it_leaves_once_all_lives_have_ended() {
        let (mut node, mut effects) = (node(), Vec::new());
        node.handle_order(Instant::ZERO, &order(1, 1, true), &mut effects);
        node.handle_order(Instant::ZERO, &NodeOrder { leave: true, ..order(2, 1, false) }, &mut effects);
        assert!(!effects.contains(&NodeEffect::Leave));
        node.handle_ended(Instant::ZERO, MEMBER, Incarnation(1), ExitCause::Code(0), &mut effects);
        assert_eq!(effects.last(), Some(&NodeEffect::Leave));
        assert_eq!(node.next_deadline(), None);
    }
}
