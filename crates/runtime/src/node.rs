//! The node actor: starts the ranks of this host, owns their control links, and kills them when told.
//!
//! It relays: words up to the supervisor, words down to the ranks, exits up at once. It decides nothing and knows no
//! phase. In a world of one host it lives beside the supervisor; its words are the same as between hosts.

use crate::journal::{Entry, JournalSender};
use crate::link::{self, LinkReceiver, LinkSender};
use crate::rank_host::{
    Ending, Killer, LAST_LINES, Program, RankNews, ServeSeat, start_process, start_thread,
};
use crate::supervisor::{Heard, LinkLost, RankExit, Supervisor};
use dtrain_protocol::{ExitCause, Message as Word};
use dtrain_types::MemberId;
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
    Thread(ServeSeat),
}

/// What a node is made from.
pub struct NodeConfig {
    /// The members that it starts.
    pub members: Vec<MemberId>,
    /// Where they live.
    pub isolation: Isolation,
    /// The memory that they share.
    pub arena: Option<OwnedFd>,
    /// The text of the run's configuration, for their welcome.
    pub config: String,
    /// Where their words go.
    pub supervisor: ActorRef<Supervisor>,
    /// Where their output goes.
    pub journal: JournalSender,
}

/// The ranks of this host.
pub struct Node {
    config: NodeConfig,
    ranks: BTreeMap<MemberId, LocalRank>,
}

struct LocalRank {
    link: LinkSender,
    killer: Killer,
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
        let mut state = Self { config, ranks: BTreeMap::new() };
        for member in state.config.members.clone() {
            state.start(member, &news).await;
        }
        Ok(state)
    }
}

impl Node {
    async fn start(&mut self, member: MemberId, news: &mpsc::Sender<RankNews>) {
        let arena = self.config.arena.as_ref();
        let started = match &self.config.isolation {
            Isolation::Process(program) => start_process(program, member, arena, news.clone()),
            Isolation::Thread(serve) => start_thread(serve.clone(), member, arena, news.clone()),
        };
        let opened = started.and_then(|rank| Ok((link::open(rank.link)?, rank.killer, rank.pid)));
        match opened {
            Ok(((link, words, _writer), killer, pid)) => {
                tracing::debug!(%member, pid, "started");
                link.send(&Word::Welcome { config: self.config.config.clone() });
                let listener = tokio::spawn(listen(member, words, self.config.supervisor.clone()));
                self.ranks.insert(member, LocalRank { link, killer, last_lines: VecDeque::new(), listener });
            }
            Err(error) => {
                let exit =
                    RankExit { member, cause: ExitCause::NotStarted(error.to_string()), last_lines: vec![] };
                let _ = self.config.supervisor.tell(exit).send().await;
            }
        }
    }
}

/// Hands every word of one rank to the supervisor.
async fn listen(member: MemberId, mut words: LinkReceiver, supervisor: ActorRef<Supervisor>) {
    loop {
        match words.next().await {
            Ok(Some(word)) => {
                if supervisor.tell(Heard(word)).send().await.is_err() {
                    return;
                }
            }
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(%member, %error, "cannot read a rank");
                break;
            }
        }
    }
    let _ = supervisor.tell(LinkLost(member)).send().await;
}

/// Say this to a rank.
pub struct Deliver(pub MemberId, pub Word);

impl Message<Deliver> for Node {
    type Reply = ();

    async fn handle(&mut self, Deliver(member, word): Deliver, _: &mut Context<Self, ()>) {
        if let Some(rank) = self.ranks.get(&member) {
            rank.link.send(&word);
        }
    }
}

/// End this rank by force.
pub struct Kill(pub MemberId);

impl Message<Kill> for Node {
    type Reply = ();

    async fn handle(&mut self, Kill(member): Kill, _: &mut Context<Self, ()>) {
        if let Some(rank) = self.ranks.get_mut(&member) {
            rank.killer.kill();
        }
    }
}

impl Message<RankNews> for Node {
    type Reply = ();

    async fn handle(&mut self, news: RankNews, _: &mut Context<Self, ()>) {
        match news {
            RankNews::Line(member, line) => {
                if let Some(rank) = self.ranks.get_mut(&member) {
                    rank.last_lines.push_back(line.clone());
                    let surplus = rank.last_lines.len().saturating_sub(LAST_LINES);
                    rank.last_lines.drain(..surplus);
                }
                self.config.journal.enter(Entry::RankOutput { member, line });
            }
            RankNews::Ended(member, ending) => {
                let Some(rank) = self.ranks.remove(&member) else { return };
                let exit = RankExit { member, cause: exit_cause(ending), last_lines: rank.last_lines.into() };
                let supervisor = self.config.supervisor.clone();
                // What the link still holds comes before the exit: a rank that reported its failure and left is
                // judged by its words. The dead cannot keep the link open; a grandchild of theirs could.
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(LAST_WORDS, rank.listener).await;
                    let _ = supervisor.tell(exit).send().await;
                });
            }
        }
    }
}

fn exit_cause(ending: Ending) -> ExitCause {
    match ending {
        Ending::Code(code) => ExitCause::Code(code),
        Ending::Signal(signal) => ExitCause::Signal(signal),
        Ending::Returned => ExitCause::Code(0),
        Ending::Panicked => ExitCause::Code(101),
    }
}
