//! The supervisor actor: the machine [`dtrain_protocol::Supervisor`] with its handles.
//!
//! It decides nothing: every input goes to the machine, every effect is carried out in order. Words go to the node;
//! whatever is written or shown goes to the journal, which may block where this actor must not.

use crate::clock::Clock;
use crate::journal::{Entry, JournalSender, Written};
use crate::link::LinkSender;
use crate::mail::{Deliver, Heard, LinkLost};
use crate::rank_host::LAST_LINES;
use crate::recorder::Recorder;
use dtrain_protocol::{
    Input, LastLines, Message as Word, Outcome, Request, Supervisor as Machine, SupervisorEffect,
};
use dtrain_types::{MemberId, NodeId};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::prelude::*;
use std::collections::BTreeMap;
use std::convert::Infallible;
use tokio::sync::oneshot;

/// Mailbox of the supervisor actor; links wait when it is full.
pub const SUPERVISOR_MAILBOX: usize = 4_096;

/// A machine, its clock, and what its effects act on.
pub struct Supervisor {
    /// The machine.
    pub machine: Machine,
    /// Its time.
    pub clock: Clock,
    /// Effects not carried out yet.
    pub effects: Vec<SupervisorEffect>,
    /// The nodes that are connected.
    pub nodes: BTreeMap<NodeId, ToNode>,
    /// Which node a member is on, as the orders say.
    pub homes: BTreeMap<MemberId, NodeId>,
    /// Messages heard and said.
    pub messages: (u64, u64),
    /// Writes all of it down, where somebody wants to know.
    pub recorder: Recorder,
    /// Files and people.
    pub journal: JournalSender,
    /// Told once, at the end.
    pub ended: Option<oneshot::Sender<Outcome>>,
}

impl Actor for Supervisor {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(mut state: Self, _: ActorRef<Self>) -> Result<Self, Infallible> {
        state.feed(Input::Start);
        Ok(state)
    }

    /// Waits for the next message or the machine's deadline; what has arrived is handled before the timer.
    async fn next(
        &mut self,
        _: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Infallible> {
        loop {
            let Some(deadline) = self.machine.next_deadline() else { return Ok(mailbox.recv().await) };
            tokio::select! {
                biased;
                signal = mailbox.recv() => return Ok(signal),
                () = tokio::time::sleep_until(self.clock.at(deadline)) => self.feed(Input::Timeout),
            }
        }
    }
}

/// The way to a node.
pub enum ToNode {
    /// It is in this process.
    Here(Recipient<Deliver>),
    /// It is a process of its own, here or on another host.
    Link(LinkSender),
}

/// A node can be reached.
pub struct NodeIs(pub NodeId, pub ToNode);

impl Message<NodeIs> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, NodeIs(node, way): NodeIs, _: &mut Context<Self, ()>) {
        self.nodes.insert(node, way);
    }
}

/// This link to a node broke. If another one has taken its place, nothing is lost.
pub struct NodeLost(pub NodeId, pub LinkSender);

impl Message<NodeLost> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, NodeLost(node, broken): NodeLost, _: &mut Context<Self, ()>) {
        if !matches!(self.nodes.get(&node), Some(ToNode::Link(link)) if link.is_same(&broken)) {
            return;
        }
        self.nodes.remove(&node);
        self.feed(Input::NodeLost(node));
    }
}

impl Message<Heard> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, Heard(word): Heard, _: &mut Context<Self, ()>) {
        self.messages.0 += 1;
        self.feed(match word {
            Word::Report(report) => Input::Report(report),
            Word::Heartbeat(beat) => Input::Heartbeat(beat),
            Word::NodeReport(report) => Input::NodeReport(report),
            // Those of a rank beside the supervisor its node enters itself.
            Word::LastLines(LastLines { member, lines: mut last_lines }) => {
                last_lines.truncate(LAST_LINES);
                if self.homes.contains_key(&member) {
                    self.journal.enter(Entry::RankEnded { member, last_lines });
                }
                return;
            }
            other => return tracing::warn!(?other, "a word that no rank and no node says"),
        });
    }
}

impl Message<LinkLost> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, LinkLost(member): LinkLost, _: &mut Context<Self, ()>) {
        self.feed(Input::LinkLost(member));
    }
}

impl Message<Request> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, request: Request, _: &mut Context<Self, ()>) {
        self.feed(Input::Request(request));
    }
}

impl Message<Written> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, written: Written, _: &mut Context<Self, ()>) {
        self.feed(match written {
            Written::Ranges(generation) => Input::Ranges(generation),
            Written::Steps(step) => Input::Recorded(step),
            Written::Reserved(upto) => Input::Reserved(upto),
            Written::Ending => Input::Ending,
            Written::Judged(epoch, judgement) => Input::Judged(epoch, judgement),
            Written::Manifest(id, result) => Input::Manifest(id, result),
        });
    }
}

impl Supervisor {
    /// Tells the machine, and carries out what it wants.
    fn feed(&mut self, input: Input) {
        let now = self.clock.now();
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.feed(now, &input, &mut effects);
        if self.recorder.is_on() {
            self.recorder.record(now, input, &effects);
        }
        effects.drain(..).for_each(|effect| self.run_effect(effect));
        self.effects = effects;
    }

    fn run_effect(&mut self, effect: SupervisorEffect) {
        match effect {
            SupervisorEffect::Send(directive) => {
                self.deliver(self.homes.get(&directive.member).copied(), Word::Directive(directive));
            }
            SupervisorEffect::Beat(beat) => {
                self.deliver(self.homes.get(&beat.member).copied(), Word::Heartbeat(beat));
            }
            SupervisorEffect::Order(order) => {
                let node = order.node;
                self.homes.extend(order.members.iter().map(|life| (life.member, node)));
                self.deliver(Some(node), Word::NodeOrder(order));
            }
            SupervisorEffect::Reserve(upto) => self.journal.enter(Entry::Reserve(upto)),
            SupervisorEffect::WriteRanges(generation, ranges) => {
                self.journal.enter(Entry::Ranges(generation, ranges));
            }
            SupervisorEffect::Commit(record) => self.journal.enter(Entry::Commit(record)),
            SupervisorEffect::Validated(validation) => self.journal.enter(Entry::Validated(validation)),
            SupervisorEffect::WriteEnding(ending) => self.journal.enter(Entry::Ending(ending)),
            SupervisorEffect::WriteManifest(order) => self.journal.enter(Entry::Manifest(order)),
            SupervisorEffect::Event(event) => self.journal.enter(Entry::Event(event)),
            SupervisorEffect::Finish(outcome) => {
                let ((heard, said), step) = (self.messages, self.machine.committed());
                tracing::info!(heard, said, %step, "messages of the control plane");
                if let Some(ended) = self.ended.take() {
                    // The run's caller waits for this; it is gone only when the process is.
                    let _ = ended.send(*outcome);
                }
            }
        }
    }

    /// Words are whole views: one that finds no way is made good by the next.
    fn deliver(&mut self, node: Option<NodeId>, word: Word) {
        self.messages.1 += 1;
        match node.and_then(|node| self.nodes.get(&node)) {
            Some(ToNode::Here(node)) => {
                let taken = node.tell(Deliver(word)).try_send();
                if taken.is_err() {
                    tracing::warn!("the node does not take its messages");
                }
            }
            Some(ToNode::Link(link)) => link.send(&word),
            None => {}
        }
    }
}
