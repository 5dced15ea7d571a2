//! The supervisor actor: the machine [`dtrain_protocol::Supervisor`] with its handles.
//!
//! It decides nothing: every input goes to the machine, every effect is carried out in order. Words go to the node;
//! whatever is written or shown goes to the journal, which may block where this actor must not.

use crate::clock::Clock;
use crate::journal::{Entry, JournalSender, Written};
use crate::node::{Deliver, Kill, Node};
use dtrain_protocol::{
    ExitCause, Message as Word, Outcome, Request, Supervisor as Machine, SupervisorEffect,
};
use dtrain_types::MemberId;
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::prelude::*;
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
    /// The ranks' host; known once the node has started.
    pub node: Option<ActorRef<Node>>,
    /// Files and people.
    pub journal: JournalSender,
    /// Told once, at the end.
    pub ended: Option<oneshot::Sender<Outcome>>,
}

impl Actor for Supervisor {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(mut state: Self, _: ActorRef<Self>) -> Result<Self, Infallible> {
        state.machine.start(state.clock.now());
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
                () = tokio::time::sleep_until(self.clock.at(deadline)) => {
                    self.machine.handle_timeout(self.clock.now(), &mut self.effects);
                    self.run_effects();
                }
            }
        }
    }
}

/// The node of this host has started.
pub struct NodeIs(pub ActorRef<Node>);

impl Message<NodeIs> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, NodeIs(node): NodeIs, _: &mut Context<Self, ()>) {
        self.node = Some(node);
    }
}

/// A word of a rank.
pub struct Heard(pub Word);

impl Message<Heard> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, Heard(word): Heard, _: &mut Context<Self, ()>) {
        let now = self.clock.now();
        match word {
            Word::Report(report) => self.machine.handle_report(now, &report, &mut self.effects),
            Word::Heartbeat(beat) => self.machine.handle_heartbeat(now, &beat),
            Word::Hello(hello) => tracing::debug!(member = %hello.member, "hello"),
            other => tracing::warn!(?other, "a word that no rank says"),
        }
        self.run_effects();
    }
}

/// A rank's process or thread has ended.
pub struct RankExit {
    /// Whose.
    pub member: MemberId,
    /// How.
    pub cause: ExitCause,
    /// What it printed last.
    pub last_lines: Vec<String>,
}

impl Message<RankExit> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, exit: RankExit, _: &mut Context<Self, ()>) {
        self.journal.enter(Entry::RankEnded { member: exit.member, last_lines: exit.last_lines });
        self.machine.handle_exit(self.clock.now(), exit.member, exit.cause, &mut self.effects);
        self.run_effects();
    }
}

/// A rank's control link has ended.
pub struct LinkLost(pub MemberId);

impl Message<LinkLost> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, LinkLost(member): LinkLost, _: &mut Context<Self, ()>) {
        self.machine.handle_link_lost(self.clock.now(), member);
        self.run_effects();
    }
}

impl Message<Request> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, request: Request, _: &mut Context<Self, ()>) {
        self.machine.handle_request(self.clock.now(), request, &mut self.effects);
        self.run_effects();
    }
}

impl Message<Written> for Supervisor {
    type Reply = ();

    async fn handle(&mut self, written: Written, _: &mut Context<Self, ()>) {
        let now = self.clock.now();
        match written {
            Written::Steps(step) => self.machine.handle_recorded(now, step),
            Written::Manifest(id, result) => self.machine.handle_manifest(now, id, result, &mut self.effects),
        }
        self.run_effects();
    }
}

impl Supervisor {
    fn run_effects(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        effects.drain(..).for_each(|effect| self.run_effect(effect));
        self.effects = effects;
    }

    fn run_effect(&mut self, effect: SupervisorEffect) {
        match effect {
            SupervisorEffect::Send(directive) => {
                self.tell_node(Deliver(directive.member, Word::Directive(directive)));
            }
            SupervisorEffect::Beat(beat) => self.tell_node(Deliver(beat.member, Word::Heartbeat(beat))),
            SupervisorEffect::Kill(member) => self.tell_node(Kill(member)),
            SupervisorEffect::Commit(record) => self.journal.enter(Entry::Commit(record)),
            SupervisorEffect::Validated(validation) => self.journal.enter(Entry::Validated(validation)),
            SupervisorEffect::WriteManifest(order) => self.journal.enter(Entry::Manifest(order)),
            SupervisorEffect::Event(event) => self.journal.enter(Entry::Event(event)),
            SupervisorEffect::Finish(outcome) => {
                if let Some(ended) = self.ended.take() {
                    // The run's caller waits for this; it is gone only when the process is.
                    let _ = ended.send(*outcome);
                }
            }
        }
    }

    /// Words are whole views: one that finds no room is made good by the next.
    fn tell_node<M: Send + 'static>(&self, message: M)
    where
        Node: Message<M>,
    {
        let Some(node) = &self.node else { return };
        if node.tell(message).try_send().is_err() {
            tracing::warn!("the node does not take its messages");
        }
    }
}
