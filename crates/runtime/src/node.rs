//! The node actor: the machine [`dtrain_protocol::Node`] with the processes and control links of one host.
//!
//! It starts and kills what the machine says, and relays: words of the ranks up, words for them down. It decides nothing
//! and knows no phase. In the supervisor's process it hands words over directly; from a process of its own, there or on another host, they go
//! over a link, and are the same.

use crate::clock::Clock;
use crate::journal::{Entry, JournalSender};
use crate::link::{self, LinkReceiver, LinkSender};
use crate::mail::{Deliver, Heard, LinkLost};
use crate::out_of_memory::Kills;
use crate::rank_host::{
    Killer, LAST_LINES, Program, RankExit, RankNews, ServeRank, start_process, start_thread,
};
use crate::supervisor::Supervisor;
use dtrain_protocol::{
    ExitCause, LastLines, Message as Word, Node as Machine, NodeConfig as MachineConfig, NodeEffect,
    RankSetup,
};
use dtrain_types::{Incarnation, MemberId};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Mailbox of the node actor.
pub const NODE_MAILBOX: usize = 1_024;
/// News of all ranks that may wait for the node.
const NEWS_QUEUE: usize = 1_024;

/// How long the words of a dead rank are still read.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Where the ranks of this host live.
#[derive(Clone)]
pub enum Isolation {
    /// A process each.
    Process(Program),
    /// Threads of this process.
    Thread(ServeRank),
}

/// The way up to the supervisor.
#[derive(Clone)]
pub enum ToSupervisor {
    /// It is in this process.
    Here(ActorRef<Supervisor>),
    /// It is on another host; the sender changes with every connection, and is none while there is none.
    Link(std::sync::Arc<std::sync::Mutex<Option<LinkSender>>>),
}

/// What a node is made from.
pub struct NodeConfig {
    /// The machine's configuration.
    pub machine: MachineConfig,
    /// Where its members live.
    pub isolation: Isolation,
    /// The memory that they share.
    pub arena: Option<OwnedFd>,
    /// What they are made of, for their set-up.
    pub setup: RankSetup,
    /// Where their words go.
    pub up: ToSupervisor,
    /// Where their output goes.
    pub journal: JournalSender,
    /// Where it tells what its own host should know.
    pub told: Option<mpsc::Sender<NodeNews>>,
}

/// What a node tells the process that it lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeNews {
    /// The supervisor was not heard for too long; all ranks were told to end.
    Orphaned,
    /// The run needs this node no more, and its ranks have ended.
    Left,
}

/// The ranks of this host.
pub struct Node {
    machine: Machine,
    clock: Clock,
    effects: Vec<NodeEffect>,
    config: NodeConfig,
    ranks: BTreeMap<MemberId, LocalRank>,
    news: mpsc::Sender<RankNews>,
    kills: Kills,
}

struct LocalRank {
    incarnation: Incarnation,
    link: LinkSender,
    killer: Killer,
    /// It was ended by us.
    killed: bool,
    last_lines: VecDeque<String>,
    /// Reads its words until the link ends.
    listener: JoinHandle<()>,
}

impl Actor for Node {
    type Args = NodeConfig;
    type Error = Infallible;

    async fn on_start(config: NodeConfig, node: ActorRef<Self>) -> Result<Self, Infallible> {
        let (news, mut told) = mpsc::channel(NEWS_QUEUE);
        let forward = node.clone();
        tokio::spawn(async move {
            while let Some(item) = told.recv().await {
                if forward.tell(item).send().await.is_err() {
                    return;
                }
            }
        });
        let mut state = Self {
            machine: Machine::new(config.machine.clone()),
            clock: Clock::start(),
            effects: Vec::new(),
            config,
            ranks: BTreeMap::new(),
            news,
            kills: Kills::watch(),
        };
        state.machine.start(state.clock.now(), &mut state.effects);
        state.run_effects();
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

impl Node {
    fn run_effects(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        effects.drain(..).for_each(|effect| self.run_effect(effect));
        self.effects = effects;
    }

    fn run_effect(&mut self, effect: NodeEffect) {
        match effect {
            NodeEffect::Send(report) => self.config.up.send(Word::NodeReport(report)),
            NodeEffect::Start(member, incarnation) => self.start(member, incarnation),
            NodeEffect::Kill(member, incarnation) => {
                if let Some(rank) = self.ranks.get_mut(&member).filter(|r| r.incarnation == incarnation) {
                    rank.killed = true;
                    rank.killer.kill();
                }
            }
            NodeEffect::Orphaned => self.tell(NodeNews::Orphaned),
            NodeEffect::Leave => self.tell(NodeNews::Left),
        }
    }

    fn tell(&self, news: NodeNews) {
        // Whoever listens has room for all that a node can tell before it is heard; where nobody does, the supervisor
        // lives in this process.
        if let Some(told) = &self.config.told {
            let _ = told.try_send(news);
        }
    }

    fn start(&mut self, member: MemberId, incarnation: Incarnation) {
        let arena = self.config.arena.as_ref();
        let (life, news) = ((member, incarnation), self.news.clone());
        let started = match &self.config.isolation {
            Isolation::Process(program) => start_process(program, life, arena, news),
            Isolation::Thread(serve) => start_thread(serve.clone(), life, arena, news),
        };
        let opened = started.and_then(|rank| Ok((link::open(rank.link)?, rank.killer, rank.pid)));
        match opened {
            Ok(((link, words, _writer), killer, pid)) => {
                tracing::debug!(%member, %incarnation, pid, "started");
                link.send(&Word::RankSetup(self.config.setup.clone()));
                let listener = tokio::spawn(listen(member, words, self.config.up.clone()));
                let last_lines = VecDeque::new();
                let rank = LocalRank { incarnation, link, killer, killed: false, last_lines, listener };
                self.ranks.insert(member, rank);
            }
            Err(error) => {
                let cause = ExitCause::NotStarted(error.to_string());
                let now = self.clock.now();
                self.machine.handle_ended(now, member, incarnation, cause, &mut self.effects);
            }
        }
    }
}

impl ToSupervisor {
    /// Says a word. Words are whole views: one that finds no room is made good by the next.
    fn send(&self, word: Word) {
        match self {
            Self::Here(supervisor) => {
                if supervisor.tell(Heard(word)).try_send().is_err() {
                    tracing::warn!("the supervisor does not take its messages");
                }
            }
            Self::Link(link) => {
                if let Some(link) = &*link.lock().expect("no holder of the link panics") {
                    link.send(&word);
                }
            }
        }
    }

    /// Says a word of a rank, which may wait: its own link holds the rest.
    async fn relay(&self, word: Word) {
        match self {
            Self::Here(supervisor) => drop(supervisor.tell(Heard(word)).send().await),
            Self::Link(_) => self.send(word),
        }
    }
}

/// Hands every word of one rank to the supervisor.
async fn listen(member: MemberId, mut words: LinkReceiver, up: ToSupervisor) {
    loop {
        match words.next().await {
            Ok(Some(Word::Hello(hello))) => tracing::debug!(%member, ?hello, "hello"),
            Ok(Some(word)) => up.relay(word).await,
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(%member, %error, "cannot read a rank");
                break;
            }
        }
    }
    if let ToSupervisor::Here(supervisor) = up {
        let _ = supervisor.tell(LinkLost(member)).send().await;
    }
}

impl Message<Deliver> for Node {
    type Reply = ();

    async fn handle(&mut self, Deliver(word): Deliver, _: &mut Context<Self, ()>) {
        let (member, incarnation) = match &word {
            Word::NodeOrder(order) => {
                self.machine.handle_order(self.clock.now(), order, &mut self.effects);
                return self.run_effects();
            }
            Word::Directive(directive) => (directive.member, directive.incarnation),
            Word::Heartbeat(beat) => (beat.member, beat.incarnation),
            other => return tracing::warn!(?other, "a word that no supervisor says"),
        };
        if let Some(rank) = self.ranks.get(&member).filter(|rank| rank.incarnation == incarnation) {
            rank.link.send(&word);
        }
    }
}

/// The way to the supervisor stands again.
pub struct Linked;

impl Message<Linked> for Node {
    type Reply = ();

    async fn handle(&mut self, _: Linked, _: &mut Context<Self, ()>) {
        self.machine.handle_link(self.clock.now(), &mut self.effects);
        self.run_effects();
    }
}

/// This host is asked to leave the run.
pub struct AskLeave;

impl Message<AskLeave> for Node {
    type Reply = ();

    async fn handle(&mut self, _: AskLeave, _: &mut Context<Self, ()>) {
        self.machine.handle_leave(self.clock.now(), &mut self.effects);
        self.run_effects();
    }
}

/// The words of a rank whose process has ended are all relayed.
struct Silent(MemberId, Incarnation, ExitCause);

impl Message<Silent> for Node {
    type Reply = ();

    async fn handle(&mut self, Silent(member, life, cause): Silent, _: &mut Context<Self, ()>) {
        self.machine.handle_ended(self.clock.now(), member, life, cause, &mut self.effects);
        self.run_effects();
    }
}

impl Message<RankNews> for Node {
    type Reply = ();

    async fn handle(&mut self, news: RankNews, context: &mut Context<Self, ()>) {
        match news {
            RankNews::Line(member, line) => {
                if let Some(rank) = self.ranks.get_mut(&member) {
                    rank.last_lines.push_back(line.clone());
                    let surplus = rank.last_lines.len().saturating_sub(LAST_LINES);
                    rank.last_lines.drain(..surplus);
                }
                self.config.journal.enter(Entry::RankOutput { member, line });
            }
            RankNews::Ended(member, incarnation, ending) => {
                let Some(rank) = self.ranks.remove(&member) else { return };
                let cause = self.cause(ending, &rank);
                let last_lines: Vec<String> = rank.last_lines.into();
                if let up @ ToSupervisor::Link(_) = &self.config.up {
                    up.send(Word::LastLines(LastLines { member, lines: last_lines.clone() }));
                }
                self.config.journal.enter(Entry::RankEnded { member, last_lines });
                let node = context.actor_ref().clone();
                // What the link still holds comes before the end: a rank that reported its failure and left is
                // judged by its words. The dead cannot keep the link open; a grandchild of theirs could.
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(LAST_WORDS, rank.listener).await;
                    let _ = node.tell(Silent(member, incarnation, cause)).send().await;
                });
            }
        }
    }
}

impl Node {
    fn cause(&mut self, ending: RankExit, rank: &LocalRank) -> ExitCause {
        match ending {
            RankExit::Code(code) => ExitCause::Code(code),
            // The kernel kills with the same signal as everybody; it counts, though.
            RankExit::Signal(9) if self.kills.is_new() && !rank.killed => ExitCause::OutOfMemory,
            RankExit::Signal(signal) => ExitCause::Signal(signal),
            RankExit::Returned => ExitCause::Code(0),
            RankExit::Panicked => ExitCause::Code(101),
        }
    }
}
