//! What a rank's own threads tell its actor: the compute thread what it has done, the saver what is on the disk.
//!
//! Waking the actor for every step would cost more than some steps do, so records of steps are gathered and sent at
//! most once per pace; everything else goes at once and takes the gathered records along.

use dtrain_protocol::{Digest, Failure, Finished, ShardReport, StepRecord, ValidationPart};
use dtrain_types::{Generation, Step};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One thing done by a thread of the rank.
#[derive(Debug)]
pub enum News {
    /// The data plane is built and all peers are reached.
    Built(Generation),
    /// The state is loaded.
    Loaded {
        /// The generation that starts with it.
        generation: Generation,
        /// The updates it holds.
        applied: Step,
        /// Digest of all of it.
        state_digest: Digest,
    },
    /// Steps were made.
    Steps(Vec<StepRecord>),
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
pub type Deliver = Arc<dyn Fn(News) + Send + Sync>;

/// Takes news from the threads of a rank. Clones share the gathered records, so the order of news is kept.
#[derive(Clone)]
pub struct NewsDesk {
    gathered: Arc<Mutex<Gathered>>,
    deliver: Deliver,
    deliver_later: Deliver,
    pace: Duration,
}

struct Gathered {
    steps: Vec<StepRecord>,
    last: Instant,
}

impl NewsDesk {
    /// A desk that sends step records at most once per `pace`. `deliver` may block, `deliver_later` may not.
    pub fn new(deliver: Deliver, deliver_later: Deliver, pace: Duration) -> Self {
        let gathered = Gathered { steps: Vec::with_capacity(256), last: Instant::now() };
        Self { gathered: Arc::new(Mutex::new(gathered)), deliver, deliver_later, pace }
    }

    /// A step is made. `urgent` where no further step follows at once, so that nothing lies here unseen.
    pub fn step(&self, record: StepRecord, urgent: bool) {
        let mut gathered = self.gathered.lock().expect("no news desk panics");
        gathered.steps.push(record);
        if urgent || gathered.last.elapsed() >= self.pace {
            self.send_steps(&mut gathered);
        }
    }

    /// Anything else; the gathered steps go first. *Blocks* while the actor's mailbox is full.
    pub fn tell(&self, news: News) {
        self.send_steps(&mut self.gathered.lock().expect("no news desk panics"));
        (self.deliver)(news);
    }

    /// As [`NewsDesk::tell`], from inside an actor: it does not block, and may overtake nothing that was told before.
    pub fn tell_later(&self, news: News) {
        (self.deliver_later)(news);
    }

    fn send_steps(&self, gathered: &mut Gathered) {
        if !gathered.steps.is_empty() {
            // A small copy of the records, so that the desk's own buffer stays and never grows.
            (self.deliver)(News::Steps(gathered.steps.clone()));
            gathered.steps.clear();
        }
        gathered.last = Instant::now();
    }
}
