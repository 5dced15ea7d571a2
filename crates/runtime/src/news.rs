//! What a rank's own threads tell its actor: the compute thread what it has done, the saver what is on the disk.
//!
//! Waking the actor for every step would cost more than some steps do, and a message is an allocation. So records of
//! steps are laid into a buffer that the actor empties when it is notified, at most once per pace; everything else is a
//! message, and before it looks at one the actor empties the buffer, so the order of news is kept.

use dtrain_protocol::{
    Digest, Failure, Finished, Left, Loaded, ShardReport, StepRecord, Timeouts, ValidationPart,
};
use dtrain_types::{Generation, MemberId, Rank, Step};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Room in the buffer at the start: twice what a member holds before it pauses, so that it never grows.
const BUFFERED: usize = 2 * dtrain_protocol::MAX_UNACKNOWLEDGED;

/// One thing done by a thread of the rank.
#[derive(Debug)]
pub enum News {
    /// Everything below this generation is left; the state holds so many updates, if there is one.
    Left(Left),
    /// The data plane is built and all peers are reached.
    Built(Generation),
    /// The data plane could not be built, or broke off.
    Broken {
        /// Whose.
        generation: Generation,
        /// What was seen.
        why: String,
        /// The members that could not be reached.
        unreachable: Vec<MemberId>,
    },
    /// An update that was left is made: what this rank holds has so many updates.
    CaughtUp(Generation, Step),
    /// The state is loaded or copied.
    Loaded(Loaded),
    /// The state was digested for comparison.
    Verified(Generation, Step, Digest),
    /// This rank's share of a validation is done.
    Validated(Generation, ValidationPart),
    /// This rank's shard of a checkpoint is on the disk, or could not be.
    Shard(ShardReport),
    /// The last step is made and all shards are on the disk.
    Finished(Generation, Finished),
    /// This rank cannot go on.
    Failed(Generation, Failure),
}

/// Where the news goes: the rank actor's mailbox.
pub type DeliverNews = Arc<dyn Fn(News) + Send + Sync>;

/// Where the compute thread lays its records and the actor finds them.
#[derive(Clone)]
pub struct RecordBuffer {
    records: Arc<Mutex<Vec<StepRecord>>>,
    notify: Arc<Notify>,
}

impl RecordBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self { records: Arc::new(Mutex::new(Vec::with_capacity(BUFFERED))), notify: Arc::new(Notify::new()) }
    }

    /// Waits until it is rung for.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Moves all records to the end of `to`.
    pub fn empty_into(&self, to: &mut Vec<StepRecord>) {
        to.append(&mut self.records.lock().expect("no holder of the buffer panics"));
    }
}

/// What a rank does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterStep {
    /// The next step, at once.
    Step,
    /// Something else: what lies here has to be seen now.
    Pause,
}

/// Takes news from the threads of a rank.
#[derive(Clone)]
pub struct NewsSender {
    buffer: RecordBuffer,
    deliver: DeliverNews,
    deliver_later: DeliverNews,
    timeouts: Timeouts,
    pace: Duration,
    rung: Instant,
}

impl NewsSender {
    /// A sender that notifies for step records as seldom as they are told. `deliver` may block, `deliver_later` may not.
    pub fn new(
        buffer: RecordBuffer,
        deliver: DeliverNews,
        deliver_later: DeliverNews,
        timeouts: Timeouts,
    ) -> Self {
        let pace = timeouts.pace_of(None);
        Self { buffer, deliver, deliver_later, timeouts, pace, rung: Instant::now() }
    }

    /// A generation begins, with this rank in it.
    pub fn enter(&mut self, rank: Rank) {
        self.pace = self.timeouts.pace_of(Some(rank));
    }

    /// A step is made, and `then` follows. Allocates nothing.
    pub fn step(&mut self, record: StepRecord, then: AfterStep) {
        self.buffer.records.lock().expect("no holder of the buffer panics").push(record);
        if then == AfterStep::Pause || self.rung.elapsed() >= self.pace {
            self.rung = Instant::now();
            self.buffer.notify.notify_one();
        }
    }

    /// Anything else. *Blocks* while the actor's mailbox is full.
    pub fn tell(&self, news: News) {
        (self.deliver)(news);
    }

    /// As [`NewsSender::tell`], from inside an actor: it does not block.
    pub fn tell_later(&self, news: News) {
        (self.deliver_later)(news);
    }
}
