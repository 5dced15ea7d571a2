//! A host at work: it hands words between the supervisor and its node, calls again when the link breaks, and notices when
//! nobody is there to call.
//!
//! It does not know what a word of the supervisor means, but for the end.

use super::caller::{CallError, Caller, FIRST_PAUSE, HostLink, LONGEST_PAUSE, next_word};
use super::part::{HostConfig, HostEnd, HostNews, Tell, say};
use super::probe::{Probe, somebody_listens};
use super::successor::Successor;
use crate::journal::OutputSink;
use crate::link::LinkSender;
use crate::mail::Deliver;
use crate::node::{AskLeave, Linked, NODE_MAILBOX, Node, NodeConfig, NodeNews, ToSupervisor};
use crate::recipe::host_name;
use dtrain_protocol::{
    Directive, Goodbye, Message as Word, NodeConfig as NodeMachine, Phase, RankSetup, StopFlag, Timeouts,
};
use dtrain_types::Generation;
use kameo::prelude::*;
use rustix::process::Signal;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

/// News of a node that wait to be looked at: it says each thing once, and few things.
const NEWS: usize = 16;

/// A host at work.
struct Host {
    caller: Caller,
    setup: RankSetup,
    tell: Tell,
    node: ActorRef<Node>,
    up: Arc<Mutex<Option<LinkSender>>>,
    timeouts: Timeouts,
    join_timeout: Duration,
    master: SocketAddr,
    /// When the supervisor was last heard.
    heard: Instant,
    /// When silence was last looked at.
    looked: Instant,
    /// The newest generation that was told of.
    running: Generation,
    /// What the supervisor last said that all do.
    phase: Option<Phase>,
    /// Whether it said that the run is to end before its last step.
    drains: bool,
    leaving: bool,
    /// The supervisor's process is known to be gone.
    gone: bool,
    /// Whether somebody asked it to, who may ask once more.
    told: bool,
    /// Who leads from here, if it comes to that.
    successor: Successor,
    /// Another place is known since the supervisor is gone.
    has_moved: bool,
    listens_to_signals: fn(),
}

/// Serves the run to its end.
pub(super) async fn serve(
    caller: Caller,
    link: HostLink,
    setup: RankSetup,
    plan: HostConfig,
    tell: Tell,
) -> io::Result<HostEnd> {
    let lines = Arc::clone(&tell);
    let show = move |member, line: &str| say(&lines, HostNews::RankOutput { member, line });
    let (journal, output) = OutputSink::start(show)?;
    let (told, news) = mpsc::channel(NEWS);
    let machine = NodeMachine {
        node: caller.callee.node,
        boot: caller.boot,
        host: host_name(),
        ranks: plan.ranks,
        timeouts: plan.timeouts,
    };
    let up = Arc::new(Mutex::new(Some(link.sender.clone())));
    let config = NodeConfig {
        machine,
        isolation: plan.isolation,
        arena: plan.arena,
        setup: plan.setup,
        up: ToSupervisor::Link(Arc::clone(&up)),
        journal,
        told: Some(told),
    };
    let node = Node::spawn_with_mailbox(config, kameo::mailbox::bounded(NODE_MAILBOX));
    let master = link.connection.remote_addr();
    let (timeouts, join_timeout) = (plan.timeouts, plan.join_timeout);
    let (heard, looked, running) = (Instant::now(), Instant::now(), Generation(0));
    let host = Host {
        caller,
        setup,
        tell,
        node: node.clone(),
        up,
        timeouts,
        join_timeout,
        master,
        heard,
        looked,
        running,
        phase: None,
        drains: false,
        leaving: false,
        gone: false,
        told: false,
        successor: Successor::new(plan.succession),
        has_moved: false,
        listens_to_signals: plan.listens_to_signals,
    };
    let (end, successor) = host.run(link, news).await?;
    // Ranks that are still there are killed with the actor that holds them.
    let _ = node.stop_gracefully().await;
    let _ = timeout(timeouts.detect, node.wait_for_shutdown()).await;
    drop(node);
    output.finish();
    if matches!(end, HostEnd::Dismissed(_)) {
        successor.finish().await;
    }
    Ok(end)
}

impl Host {
    async fn run(
        mut self,
        link: HostLink,
        mut news: mpsc::Receiver<NodeNews>,
    ) -> io::Result<(HostEnd, Successor)> {
        let end = self.serve(link, &mut news).await?;
        Ok((end, self.successor))
    }

    async fn serve(&mut self, link: HostLink, news: &mut mpsc::Receiver<NodeNews>) -> io::Result<HostEnd> {
        let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut warning = signal(SignalKind::user_defined1())?;
        (self.listens_to_signals)();
        let mut link = Some(link);
        let mut probe: Option<Probe> = None;
        let (mut pause, mut dial_at) = (FIRST_PAUSE, Instant::now());
        let mut calling = tokio::task::JoinSet::new();
        let mut last_word_by: Option<Instant> = None;
        loop {
            // A process that died closes no link: whoever came in its place knows nothing of it, and has to be called.
            let silent = self.heard.elapsed() >= self.timeouts.detect;
            if (link.is_none() || silent) && calling.is_empty() {
                let (mut caller, gone) = (self.caller.clone(), self.gone.then_some(self.master));
                // Where the folder of the run says that one listens, it is called first.
                let listens = self.successor.listens();
                caller.callee.elsewhere = listens.or(caller.callee.elsewhere);
                calling.spawn(async move {
                    sleep_until(dial_at).await;
                    if let Some(master) = gone.filter(|master| listens.is_none_or(|at| at == *master)) {
                        somebody_listens(master, caller.callee.from).await;
                    }
                    caller.call().await
                });
            }
            // Silence is looked at as often as words are due.
            let look = Instant::now() + self.timeouts.heartbeat;
            tokio::select! {
                biased;
                _ = int.recv() => if self.is_told_to_leave().await { break self.end(link, HostEnd::Interrupted).await },
                _ = term.recv() => if self.is_told_to_leave().await { break self.end(link, HostEnd::Interrupted).await },
                // A warning, as of Slurm: it does not count.
                _ = warning.recv() => self.leaves().await,
                word = next_word(&mut link) => match word {
                    Some(Word::Goodbye(goodbye)) => break self.end(link, HostEnd::Dismissed(goodbye)).await,
                    Some(word) => {
                        probe = None;
                        self.hear(word).await;
                    }
                    None if self.leaving && last_word_by.is_some() => {
                        break self.end(link, HostEnd::Left).await;
                    }
                    None => {
                        self.drop_link(&mut link);
                        (pause, dial_at) = (FIRST_PAUSE, Instant::now());
                    }
                },
                Some(called) = calling.join_next() => match called.unwrap_or_else(|error| Err(CallError::Passing(error.to_string()))) {
                    Ok((_, setup)) if setup != self.setup => {
                        break self.end(link, HostEnd::SupervisorRestarted).await;
                    }
                    Ok((new, _)) => {
                        self.drop_link(&mut link);
                        self.take_link(&new).await;
                        (link, pause, dial_at) = (Some(new), FIRST_PAUSE, Instant::now());
                    }
                    Err(CallError::Final(error)) => {
                        let goodbye = Goodbye { code: 2, why: error.to_string() };
                        break self.end(link, HostEnd::Dismissed(goodbye)).await;
                    }
                    Err(CallError::Passing(what)) => {
                        tracing::info!(what, "the supervisor was not reached");
                        dial_at = Instant::now() + pause;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                },
                Some(told) = news.recv() => match told {
                    NodeNews::Orphaned => {
                        say(&self.tell, HostNews::Orphaned { silent: self.heard.elapsed() });
                        if self.leaving {
                            break self.end(link, HostEnd::Interrupted).await;
                        }
                    }
                    NodeNews::Left => {
                        let patience = self.patience_for_the_last_word();
                        last_word_by.get_or_insert_with(|| Instant::now() + patience);
                    }
                },
                () = sleep_until(last_word_by.map_or(look, |by| by.min(look))) => {}
            }
            if let Some(by) = last_word_by {
                if Instant::now() >= by {
                    break self.end(link, self.end_without_a_word()).await;
                }
                continue;
            }
            if let Some(end) = self.look_for_life(&mut probe) {
                break self.end(link, end).await;
            }
            // Whoever waits at the old place is called to the new one.
            let lost = self.gone || self.heard.elapsed() >= self.timeouts.detect;
            if lost && !self.has_moved && self.successor.listens().is_some_and(|at| at != self.master) {
                self.has_moved = true;
                calling.abort_all();
                dial_at = Instant::now();
            }
        }
    }

    /// Whether a supervisor that is not heard is gone, or was silent for too long.
    fn look_for_life(&mut self, probe: &mut Option<Probe>) -> Option<HostEnd> {
        let unseen = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        if unseen > self.timeouts.heartbeat + self.timeouts.late {
            // This process stood still itself: what the supervisor said meanwhile may still be unread.
            self.heard = Instant::now();
        }
        let silent = self.heard.elapsed();
        if silent < self.timeouts.late {
            self.successor.is_heard();
            return None;
        }
        let asked = probe.get_or_insert_with(|| Probe::of(self.master, self.caller.callee.from));
        let gone = asked.is_refused();
        if gone && !std::mem::replace(&mut self.gone, true) {
            say(&self.tell, HostNews::Gone { waits: self.timeouts.master });
        }
        if (self.gone || silent >= self.timeouts.detect) && !self.leaving && self.successor.try_to_lead() {
            say(&self.tell, HostNews::Leads);
        }
        if silent < self.timeouts.detect {
            return None;
        }
        if let Some(goodbye) = self.successor.ended() {
            return Some(HostEnd::Dismissed(goodbye));
        }
        if self.gone && silent >= self.timeouts.master {
            return Some(HostEnd::SupervisorGone { silent });
        }
        if self.leaving && silent >= self.timeouts.back {
            // Nobody is there to let this host go.
            return Some(HostEnd::Interrupted);
        }
        (silent >= self.join_timeout.max(self.timeouts.master))
            .then_some(HostEnd::SupervisorSilent { silent })
    }

    async fn hear(&mut self, word: Word) {
        self.heard = Instant::now();
        if let Word::Directive(directive) = &word {
            self.note(directive);
        }
        let _ = self.node.tell(Deliver(word)).send().await;
    }

    /// Notes what all do, and tells people of a generation once it works.
    fn note(&mut self, directive: &Directive) {
        let Directive { generation, phase, membership, stop, .. } = directive;
        (self.phase, self.drains) = (Some(*phase), stop.has(StopFlag::DRAIN));
        if *phase == Phase::Run && *generation > self.running {
            self.running = *generation;
            let own =
                |participant: &&dtrain_protocol::Participant| participant.node == self.caller.callee.node;
            let (ranks, here) =
                (membership.participants.len(), membership.participants.iter().filter(own).count());
            say(&self.tell, HostNews::Running { generation: *generation, ranks, here });
        }
    }

    /// The first signal asks the supervisor to let this host go; says whether there is nothing more to ask.
    async fn is_told_to_leave(&mut self) -> bool {
        let again = std::mem::replace(&mut self.told, true);
        if !again {
            self.leaves().await;
        } else {
            // Twice, by two signals, which are not taken for one: it waits for nobody then.
            let _ = self.successor.signal(Signal::TERM) && self.successor.signal(Signal::INT);
        }
        again
    }

    /// Asks to leave, once.
    async fn leaves(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            say(&self.tell, HostNews::Leaving);
            // As on the first host, the run ends with the host that leads it.
            if !self.successor.signal(Signal::USR1) {
                let _ = self.node.tell(AskLeave).send().await;
            }
        }
    }

    fn drop_link(&self, link: &mut Option<HostLink>) {
        if link.take().is_some() {
            *self.up.lock().expect("no holder of the link panics") = None;
            say(&self.tell, HostNews::LinkLost);
        }
    }

    async fn take_link(&mut self, link: &HostLink) {
        self.master = link.connection.remote_addr();
        (self.heard, self.gone, self.has_moved) = (Instant::now(), false, false);
        *self.up.lock().expect("no holder of the link panics") = Some(link.sender.clone());
        say(&self.tell, HostNews::LinkBack);
        let _ = self.node.tell(Linked).send().await;
    }

    /// How long what the run came to may be on its way once the node has left, over another link where one breaks.
    fn patience_for_the_last_word(&self) -> Duration {
        // Where this host alone leaves there is no such word.
        if self.leaving { self.timeouts.heartbeat } else { self.timeouts.detect * 2 }
    }

    /// The end of a host that has left, and was not told what the run came to.
    fn end_without_a_word(&self) -> HostEnd {
        match self.phase {
            _ if self.leaving => HostEnd::Left,
            Some(Phase::Stop) => HostEnd::Unexplained,
            _ if self.drains => HostEnd::Interrupted,
            _ => HostEnd::Dismissed(Goodbye { code: 0, why: "the run is over".to_owned() }),
        }
    }

    async fn end(&self, link: Option<HostLink>, end: HostEnd) -> io::Result<HostEnd> {
        *self.up.lock().expect("no holder of the link panics") = None;
        if let Some(link) = link {
            link.close(self.timeouts.heartbeat).await;
        }
        Ok(end)
    }
}
