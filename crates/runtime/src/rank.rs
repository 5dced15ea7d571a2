//! The rank actor: the machine [`Member`] with its handles.
//!
//! It decides nothing: every input goes to the machine, every effect of the machine is carried out, in order. The
//! compute thread and the sync actor do the work; the control link carries the words.

use crate::clock::Clock;
use crate::compute::{Compute, Order};
use crate::controls::Controls;
use crate::data_plane::{collective_membership, summed_counts};
use crate::link::{self, LinkReceiver, LinkSender};
use crate::news::{News, NewsSender, RecordBuffer};
use crate::rank_handles::RankHandles;
use crate::recipe::{Plane, RankParts, Recipe};
use crate::sync::{Abort, Connect, Leave, SYNC_MAILBOX, Sync};
use dtrain_protocol::{
    Digest, Exit, Failure, Fingerprint, Hello, Limits, Member, MemberConfig, MemberEffect, Message as Word,
    Profile, RankSetup, StepRecord, StopFlag, Timeouts,
};
use dtrain_types::{Generation, Incarnation, MemberId};
use kameo::mailbox::{MailboxReceiver, Signal};
use kameo::prelude::*;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Mailbox of the rank actor. Its senders wait or may be dropped: words are whole views.
const RANK_MAILBOX: usize = 256;

/// One rank: a machine, its clock, and what its effects act on.
struct Rank {
    member: Member,
    clock: Clock,
    effects: Vec<MemberEffect>,
    buffer: RecordBuffer,
    steps: Vec<StepRecord>,
    link: LinkSender,
    workers: Option<Workers>,
    ended: Option<oneshot::Sender<Exit>>,
}

/// What works for a rank. A rank whose parts could not be made has none, and only says so.
#[derive(Clone)]
struct Workers {
    controls: Arc<Controls>,
    orders: Sender<Order>,
    sync: ActorRef<Sync>,
}

impl Actor for Rank {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(mut state: Self, _: ActorRef<Self>) -> Result<Self, Infallible> {
        state.member.start(state.clock.now(), &mut state.effects);
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
            let Some(deadline) = self.member.next_deadline() else { return Ok(mailbox.recv().await) };
            tokio::select! {
                biased;
                signal = mailbox.recv() => return Ok(signal),
                () = self.buffer.notified() => self.take_steps(),
                () = tokio::time::sleep_until(self.clock.at(deadline)) => {
                    if let Some(workers) = &self.workers {
                        self.member.handle_activity(workers.controls.activity());
                    }
                    self.member.handle_timeout(self.clock.now(), &mut self.effects);
                    self.run_effects();
                }
            }
        }
    }
}

impl Message<Word> for Rank {
    type Reply = ();

    async fn handle(&mut self, word: Word, _: &mut Context<Self, ()>) {
        let now = self.clock.now();
        match word {
            Word::Directive(directive) => self.member.handle_directive(now, &directive, &mut self.effects),
            Word::Heartbeat(beat) => self.member.handle_heartbeat(now, &beat),
            other => tracing::warn!(?other, "a word that no supervisor says"),
        }
        self.run_effects();
    }
}

impl Message<News> for Rank {
    type Reply = ();

    async fn handle(&mut self, news: News, _: &mut Context<Self, ()>) {
        self.take_steps();
        let (member, now, effects) = (&mut self.member, self.clock.now(), &mut self.effects);
        match news {
            News::Left(left) => member.handle_left(now, left, effects),
            News::Broken { generation, why, unreachable } => {
                member.handle_broken(now, generation, &why, unreachable, effects);
            }
            News::Built(generation) => member.handle_built(generation, effects),
            News::CaughtUp(generation, applied) => member.handle_caught_up(generation, applied),
            News::Loaded(loaded) => member.handle_loaded(now, loaded, effects),
            News::Verified(generation, step, digest) => {
                member.handle_verified(now, generation, step, digest, effects);
            }
            News::Validated(generation, part) => member.handle_validation(now, generation, part, effects),
            News::Shard(shard) => member.handle_shard(now, shard, effects),
            News::Finished(generation, finished) => {
                member.handle_finished(now, generation, finished, effects)
            }
            News::Failed(generation, failure) => member.handle_failure(now, generation, failure, effects),
        }
        self.run_effects();
    }
}

/// The control link is gone: there is nobody to report to.
struct LinkEnded;

impl Message<LinkEnded> for Rank {
    type Reply = ();

    async fn handle(&mut self, _: LinkEnded, _: &mut Context<Self, ()>) {
        self.run_effect(MemberEffect::Abort);
        self.run_effect(MemberEffect::Exit(Exit::Failed));
    }
}

impl Rank {
    fn take_steps(&mut self) {
        self.buffer.empty_into(&mut self.steps);
        for record in self.steps.drain(..) {
            self.member.handle_step(self.clock.now(), record, &mut self.effects);
        }
        self.run_effects();
    }

    fn run_effects(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        effects.drain(..).for_each(|effect| self.run_effect(effect));
        self.effects = effects;
    }

    fn run_effect(&mut self, effect: MemberEffect) {
        match effect {
            MemberEffect::Send(report) => return self.link.send(&Word::Report(report)),
            MemberEffect::Beat(beat) => return self.link.send(&Word::Heartbeat(beat)),
            MemberEffect::Exit(exit) => {
                // Once: after it the machine does nothing more.
                return self.ended.take().map_or((), |ended| ended.send(exit).unwrap_or(()));
            }
            _ => {}
        }
        let Some(workers) = &self.workers else { return };
        match effect {
            MemberEffect::Quit { generation, rank } => {
                workers.controls.leave_below(generation);
                workers.sync(Leave { generation, rank });
            }
            MemberEffect::Build { generation, rank, membership, bootstrap } => {
                let members = membership;
                let membership = collective_membership(generation, rank, &members);
                workers.sync(Connect(Plane { membership, members, bootstrap }));
            }
            MemberEffect::Load { generation, resume_point } => {
                workers.order(Order::Load { generation, resume_point })
            }
            MemberEffect::Run { from_step, pending, .. } => {
                workers.controls.ask_stop(StopFlag::default());
                workers.order(Order::Run { from_step, pending });
            }
            MemberEffect::AskStop(bits) => workers.controls.ask_stop(bits),
            MemberEffect::Validated(step, enough) => workers.controls.signal(|signals| {
                signals.validated = step;
                signals.enough = enough;
            }),
            MemberEffect::Pause => workers.controls.signal(|signals| signals.paused = true),
            MemberEffect::Resume => workers.controls.signal(|signals| signals.paused = false),
            MemberEffect::Settled(id) => workers.controls.signal(|signals| signals.settled = id),
            MemberEffect::Abort => {
                workers.controls.leave_below(Generation(u64::MAX));
                workers.sync(Abort("the supervisor said stop"));
            }
            MemberEffect::Send(_) | MemberEffect::Beat(_) | MemberEffect::Exit(_) => {
                unreachable!("handled above")
            }
        }
    }
}

impl Workers {
    fn order(&self, order: Order) {
        // The compute thread is gone only when the rank is ending.
        let _ = self.orders.send(order);
    }

    fn sync<M: Send + 'static>(&self, message: M)
    where
        Sync: Message<M>,
    {
        if self.sync.tell(message).try_send().is_err() {
            tracing::error!("the sync actor does not take its messages");
        }
    }
}

/// Serves a rank by its handles until its run is over; the exit code of the process.
///
/// *Blocks* for the whole run. *Errors*: the control link cannot be opened, or its first word is not the set-up of a rank.
pub fn serve(handles: RankHandles, recipe: &dyn Recipe) -> std::io::Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(serve_link(handles, recipe))?;
    // Tasks that still wait for the link are of no use any more.
    runtime.shutdown_timeout(Duration::ZERO);
    Ok(code)
}

async fn serve_link(handles: RankHandles, recipe: &dyn Recipe) -> std::io::Result<i32> {
    ignore_signals()?;
    let (link, mut words, writer) = link::open(handles.link)?;
    let life @ (member, incarnation) = (handles.member, handles.incarnation);
    let revision = env!("CARGO_PKG_VERSION").to_owned();
    link.send(&Word::Hello(Hello { member, incarnation, revision }));
    let setup = rank_setup(&mut words).await?;
    let made = recipe.rank(&setup, member, handles.arena);
    let (profile, timeouts) = match &made {
        Ok(parts) => (parts.profile.clone(), parts.timeouts),
        Err(_) => (nobody(), Timeouts::derive(Duration::from_secs(1)).expect("a second is in range")),
    };
    let member =
        Member::new(MemberConfig { member, incarnation, profile, timeouts, limits: Limits::default() });
    let (ended, end) = oneshot::channel();
    let prepared = Rank::prepare_with_mailbox(kameo::mailbox::bounded(RANK_MAILBOX));
    let rank = prepared.actor_ref().clone();
    let buffer = RecordBuffer::new();
    let news = news_sender(&rank, buffer.clone(), timeouts);
    let (workers, compute, failure) = match made {
        Ok(parts) => {
            let (workers, compute) = start_workers(parts, &news, life)?;
            (Some(workers), Some(compute), None)
        }
        Err(what) => (None, None, Some(Failure::Setup(what))),
    };
    let state = Rank {
        member,
        clock: Clock::start(),
        effects: Vec::new(),
        buffer,
        steps: Vec::new(),
        link,
        workers,
        ended: Some(ended),
    };
    drop(prepared.spawn(state));
    if let Some(failure) = failure {
        news.tell_later(News::Failed(Generation(0), failure));
    }
    let reader = tokio::spawn(read_words(words, rank.clone()));
    let exit = end.await.unwrap_or(Exit::Failed);
    reader.abort();
    // Dropping the actor closes the link's queue, the orders and the sync actor, in this order of need.
    let _ = rank.stop_gracefully().await;
    rank.wait_for_shutdown().await;
    drop(rank);
    // Nobody may be there to read the rest: then it is of no use.
    let _ = tokio::time::timeout(timeouts.detect, writer).await;
    if let Some(compute) = compute {
        // It left its work when the collectives were aborted, or it has none left.
        let _ = compute.join();
    }
    Ok(exit.code())
}

/// Starts the compute thread and the sync actor.
fn start_workers(
    parts: RankParts,
    news: &NewsSender,
    life: (MemberId, Incarnation),
) -> std::io::Result<(Workers, std::thread::JoinHandle<()>)> {
    let controls = Arc::new(Controls::default());
    let (orders, queue) = channel();
    let RankParts { compute: parts, fabric, .. } = parts;
    let plan = parts.feed.plan();
    let about = parts.replica.about();
    let gradient = (about.slot_len(plan.micro_batches()), summed_counts(about, plan));
    let sync = Sync {
        fabric: Some(fabric),
        orders: orders.clone(),
        news: news.clone(),
        gradient,
        mode: parts.mode,
        wire: parts.wire,
        aborter: None,
    };
    let sync = Sync::spawn_with_mailbox(sync, kameo::mailbox::bounded(SYNC_MAILBOX));
    let (shared, own_news) = (Arc::clone(&controls), news.clone());
    let compute = std::thread::Builder::new()
        .name("compute".into())
        .spawn(move || Compute::new(parts, life, shared, own_news).obey(&queue))?;
    Ok((Workers { controls, orders, sync }, compute))
}

/// News from threads: they wait while the mailbox is full, and are dropped when the rank is gone.
fn news_sender(rank: &ActorRef<Rank>, buffer: RecordBuffer, timeouts: Timeouts) -> NewsSender {
    let weak = rank.downgrade();
    let deliver = move |news| {
        if let Some(rank) = weak.upgrade() {
            let _ = rank.tell(news).blocking_send();
        }
    };
    let weak = rank.downgrade();
    let deliver_later = move |news| {
        if let Some(rank) = weak.upgrade() {
            tokio::spawn(async move { rank.tell(news).send().await });
        }
    };
    NewsSender::new(buffer, Arc::new(deliver), Arc::new(deliver_later), timeouts)
}

async fn read_words(mut words: LinkReceiver, rank: ActorRef<Rank>) {
    loop {
        match words.next().await {
            Ok(Some(word)) => {
                if rank.tell(word).send().await.is_err() {
                    return;
                }
            }
            Ok(None) => break,
            Err(error) => {
                tracing::error!(%error, "cannot read the supervisor");
                break;
            }
        }
    }
    let _ = rank.tell(LinkEnded).send().await;
}

async fn rank_setup(words: &mut LinkReceiver) -> std::io::Result<RankSetup> {
    let bad = |what: String| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
    match words.next().await {
        Ok(Some(Word::RankSetup(setup))) => Ok(setup),
        Ok(Some(other)) => {
            Err(bad(format!("the first word of a supervisor is the set-up of a rank, not {other:?}")))
        }
        Ok(None) => Err(bad("the supervisor is gone before it said a word".into())),
        Err(error) => Err(bad(error.to_string())),
    }
}

/// Ranks leave when the supervisor says so: a signal to the whole process group is meant for it.
fn ignore_signals() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        // Once a handler was made, the default action is off for good.
        drop(signal(kind)?);
    }
    // A program may show its stacks then.
    if !is_caught(SignalKind::user_defined1()) {
        drop(signal(SignalKind::user_defined1())?);
    }
    Ok(())
}

/// Whether this process has a handler of its own for a signal.
fn is_caught(kind: tokio::signal::unix::SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught >> (kind.as_raw_value() - 1) & 1 == 1
}

/// Who a rank is before it knows: its parts could not be made.
fn nobody() -> Profile {
    Profile {
        fingerprint: Fingerprint { isa: "none".into(), self_test: Digest([0; 32]), kernel_revision: 0 },
        pid: std::process::id(),
        host: crate::recipe::host_name(),
        device: "none".into(),
        address: None,
        sees_run_folder: true,
    }
}
