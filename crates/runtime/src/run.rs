//! One run on this host, from the first process to the outcome.
//!
//! [`supervise`] starts the supervisor and the node, watches for signals and waits for the end. What it is to do is in
//! [`RunPlan`]; what it writes and shows is the journal's.

use crate::clock::Clock;
use crate::journal::{Conclusion, Journal};
use crate::node::{Isolation, NODE_MAILBOX, Node, NodeConfig};
use crate::supervisor::{NodeIs, SUPERVISOR_MAILBOX, Supervisor};
use dtrain_protocol::{Outcome, Request, Supervisor as Machine, SupervisorConfig};
use kameo::prelude::*;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// What a run on this host is made of.
pub struct RunPlan {
    /// The machine's configuration.
    pub supervisor: SupervisorConfig,
    /// Where the ranks live.
    pub isolation: Isolation,
    /// The memory that they share.
    pub arena: Option<OwnedFd>,
    /// The text of the run's configuration, for the ranks.
    pub config: String,
}

/// Supervises a run to its end. Call it on the main thread: ranks die with the thread that starts them.
///
/// *Blocks* for the whole run. *Errors*: the runtime or the signal handlers cannot be had.
pub fn supervise(plan: RunPlan, journal: Journal) -> io::Result<Conclusion> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, thread) = journal.start()?;
    let outcome = runtime.block_on(drive(plan, &sender))?;
    runtime.shutdown_timeout(Duration::from_millis(100));
    drop(sender);
    Ok(thread.finish(outcome))
}

async fn drive(plan: RunPlan, journal: &crate::journal::JournalSender) -> io::Result<Outcome> {
    let (ended, end) = oneshot::channel();
    let members = plan.supervisor.members.clone();
    let patience = plan.supervisor.timeouts.detect;
    let prepared = Supervisor::prepare_with_mailbox(kameo::mailbox::bounded(SUPERVISOR_MAILBOX));
    let supervisor = prepared.actor_ref().clone();
    let to = supervisor.clone();
    // The supervisor is gone only when the run is over.
    journal.answer(move |written| drop(to.tell(written).blocking_send()));
    let actor = Supervisor {
        machine: Machine::new(plan.supervisor),
        clock: Clock::start(),
        effects: Vec::new(),
        node: None,
        journal: journal.clone(),
        ended: Some(ended),
    };
    drop(prepared.spawn(actor));
    let node = NodeConfig {
        members,
        isolation: plan.isolation,
        arena: plan.arena,
        config: plan.config,
        supervisor: supervisor.clone(),
        journal: journal.clone(),
    };
    let node = Node::spawn_with_mailbox(node, kameo::mailbox::bounded(NODE_MAILBOX));
    let _ = supervisor.tell(NodeIs(node.clone())).send().await;
    let signals = tokio::spawn(watch_signals(supervisor.clone())?);
    let outcome = end.await.map_err(|_| io::Error::other("the supervisor ended without an outcome"))?;
    signals.abort();
    // Every rank is told to leave or killed by now; its end is awaited so that nothing outlives the run.
    let _ = supervisor.stop_gracefully().await;
    let _ = node.stop_gracefully().await;
    let _ = tokio::time::timeout(patience, node.wait_for_shutdown()).await;
    Ok(outcome)
}

/// The first signal drains the run at a step boundary, the second one ends it at once.
fn watch_signals(supervisor: ActorRef<Supervisor>) -> io::Result<impl Future<Output = ()>> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        for request in [Request::Drain, Request::Abort] {
            tokio::select! {
                biased;
                _ = int.recv() => {}
                _ = term.recv() => {}
            }
            let _ = supervisor.tell(request).send().await;
        }
    })
}
