//! One run on the host of its supervisor, from the first process to the outcome.
//!
//! [`supervise`] starts the supervisor and the node, watches for signals and waits for the end. What it is to do is in
//! [`RunPlan`]; what it writes and shows is the journal's.

use crate::clock::Clock;
use crate::gateway::Gateway;
use crate::journal::{Conclusion, Journal, JournalSender};
use crate::keeper::{Hold, KeeperPlan};
use crate::node::{Isolation, NODE_MAILBOX, Node, NodeConfig, ToSupervisor};
use crate::rank_host::ServeRank;
use crate::recipe::host_name;
use crate::recorder::Recorder;
use crate::supervisor::{NodeIs, SUPERVISOR_MAILBOX, Supervisor, ToNode};
use dtrain_protocol::{
    BootId, NodeConfig as NodeMachine, Outcome, RankSetup, Request, Supervisor as Machine, SupervisorConfig,
    Timeouts,
};
use dtrain_types::NodeId;
use kameo::prelude::*;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// What a run on this host is made of.
pub struct RunPlan {
    /// The machine's configuration.
    pub supervisor: SupervisorConfig,
    /// The ranks of this host.
    pub ranks: Ranks,
    /// Where other hosts join; none in a run of one host.
    pub gateway: Option<Gateway>,
    /// Called when signals are listened to.
    pub listens_to_signals: fn(),
}

/// Where the ranks of the supervisor's host live.
pub enum Ranks {
    /// As threads of this process.
    Threads {
        /// How many.
        count: u32,
        /// What each does.
        serve: ServeRank,
        /// What they are made of.
        setup: RankSetup,
    },
    /// As processes that a keeper holds: they outlive this one.
    Kept(Box<KeeperPlan>),
    /// With a node that calls like those of other hosts: another host led before.
    Elsewhere,
}

/// The node beside the supervisor.
const HERE: NodeId = NodeId(0);

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

async fn drive(plan: RunPlan, journal: &JournalSender) -> io::Result<Outcome> {
    let (ended, end) = oneshot::channel();
    let timeouts = plan.supervisor.timeouts;
    let prepared = Supervisor::prepare_with_mailbox(kameo::mailbox::bounded(SUPERVISOR_MAILBOX));
    let supervisor = prepared.actor_ref().clone();
    let to = supervisor.clone();
    // The supervisor is gone only when the run is over.
    journal.answer(move |written| drop(to.tell(written).blocking_send()));
    let recorder = Recorder::from_environment(&plan.supervisor);
    let actor = Supervisor {
        machine: Machine::new(plan.supervisor),
        clock: Clock::start(),
        effects: Vec::new(),
        nodes: BTreeMap::new(),
        homes: BTreeMap::new(),
        messages: (0, 0),
        recorder,
        journal: journal.clone(),
        ended: Some(ended),
    };
    drop(prepared.spawn(actor));
    let signals = tokio::spawn(watch_signals(supervisor.clone())?);
    (plan.listens_to_signals)();
    let node = Beside::begin(plan.ranks, &supervisor, journal, timeouts).await?;
    let gateway = plan.gateway.map(|gateway| gateway.start(supervisor.clone()));
    let outcome = end.await.map_err(|_| io::Error::other("the supervisor ended without an outcome"))?;
    signals.abort();
    if let Some(gateway) = gateway {
        gateway.close(&outcome).await;
    }
    // Every rank is told to leave or killed by now; its end is awaited so that nothing outlives the run.
    node.end(timeouts.detect).await;
    let _ = supervisor.stop_gracefully().await;
    Ok(outcome)
}

/// The node of this host.
enum Beside {
    /// In this process.
    Node(ActorRef<Node>),
    /// In one of its own.
    Keeper(Hold),
    /// It calls like the others.
    Nobody,
}

impl Beside {
    async fn begin(
        ranks: Ranks,
        supervisor: &ActorRef<Supervisor>,
        journal: &JournalSender,
        timeouts: Timeouts,
    ) -> io::Result<Self> {
        let (count, serve, setup) = match ranks {
            Ranks::Kept(plan) => {
                let held = Hold::begin(*plan, supervisor.clone(), journal.clone()).await;
                return held.map(Self::Keeper);
            }
            Ranks::Elsewhere => return Ok(Self::Nobody),
            Ranks::Threads { count, serve, setup } => (count, serve, setup),
        };
        // It ends with this process: no two lives of it ever meet the same supervisor.
        let boot = BootId(u64::from(std::process::id()));
        let config = NodeConfig {
            machine: NodeMachine { node: HERE, boot, host: host_name(), ranks: count, timeouts },
            isolation: Isolation::Thread(serve),
            arena: None,
            setup,
            up: ToSupervisor::Here(supervisor.clone()),
            journal: journal.clone(),
            told: None,
        };
        let prepared = Node::prepare_with_mailbox(kameo::mailbox::bounded(NODE_MAILBOX));
        let node = prepared.actor_ref().clone();
        // Before its first word, so that the answer finds it.
        let _ = supervisor.tell(NodeIs(HERE, ToNode::Here(node.clone().recipient()))).send().await;
        drop(prepared.spawn(config));
        Ok(Self::Node(node))
    }

    /// Waits until the node and its ranks are gone, for at most `patience`.
    async fn end(self, patience: Duration) {
        match self {
            Self::Node(node) => {
                let _ = node.stop_gracefully().await;
                let _ = tokio::time::timeout(patience, node.wait_for_shutdown()).await;
            }
            Self::Keeper(held) => held.close(patience).await,
            Self::Nobody => {}
        }
    }
}

/// The first signal drains the run at a step boundary, the second one ends it at once. SIGUSR1 is a warning, as of Slurm before the end of
/// a job's time: it drains, and does not count, so that the signal that comes behind it lets the checkpoint be written.
fn watch_signals(supervisor: ActorRef<Supervisor>) -> io::Result<impl Future<Output = ()>> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut warning = signal(SignalKind::user_defined1())?;
    Ok(async move {
        for request in [Request::Drain, Request::Abort] {
            loop {
                tokio::select! {
                    biased;
                    _ = int.recv() => break,
                    _ = term.recv() => break,
                    _ = warning.recv() => {
                        let _ = supervisor.tell(Request::Drain).send().await;
                    }
                }
            }
            let _ = supervisor.tell(request).send().await;
        }
    })
}
