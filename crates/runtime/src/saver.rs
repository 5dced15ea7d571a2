//! Writes this rank's shard of a checkpoint in the background, from a copy, so that training goes on.
//!
//! One shard at a time: the agenda waits until the last one is written and its checkpoint settled. Does not know manifests: a shard
//! alone is not a checkpoint.

use crate::controls::Controls;
use crate::news::{News, NewsSender};
use dtrain_checkpoint::{FileStore, Store, TensorData, TensorSpec};
use dtrain_engine::Section;
use dtrain_protocol::{CheckpointId, Digest, ShardFile, ShardOutcome, ShardReport};
use dtrain_types::Rank;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

struct Job {
    id: CheckpointId,
    rank: Rank,
    tensors: Vec<Place>,
    copy: Vec<f32>,
    digest: Digest,
    state_digest: Digest,
}

/// A tensor that a rank writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Which.
    tensor: usize,
    /// Where its copy begins.
    at: usize,
}

/// The background writer of one rank.
pub struct Saver {
    specs: Arc<[TensorSpec]>,
    jobs: Option<Sender<Job>>,
    /// The buffer comes back here when its shard is told.
    free: Receiver<Vec<f32>>,
    buffer: Option<Vec<f32>>,
    controls: Arc<Controls>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts the writer; it sleeps until the first checkpoint.
    pub fn start(
        run_dir: PathBuf,
        specs: Arc<[TensorSpec]>,
        news: NewsSender,
        controls: Arc<Controls>,
    ) -> Self {
        let (jobs, queue) = channel::<Job>();
        let (give_back, free) = channel();
        let (layout, idle) = (Arc::clone(&specs), Idle(Arc::clone(&controls)));
        let thread = std::thread::Builder::new().name("saver".into()).spawn(move || {
            let store = FileStore::new(&run_dir);
            while let Ok(job) = queue.recv() {
                let report = write(&store, &layout, &job);
                news.tell(News::Shard(report));
                // Nobody takes it back when the rank is ending.
                let _ = give_back.send(job.copy);
                idle.tell();
            }
        });
        let thread = thread.expect("a process that could start its compute thread can start one more");
        let buffer = Some(Vec::new());
        Self { specs, jobs: Some(jobs), free, buffer, controls, thread: Some(thread) }
    }

    /// The tensors of this rank's share of a state, with nothing in them yet; the rank is for the name of the file.
    ///
    /// *Panics* if the writer has something to do, or has panicked.
    pub fn begin(
        &mut self,
        id: CheckpointId,
        rank: Rank,
        tensors: impl IntoIterator<Item = usize>,
    ) -> ShardDraft {
        let mut len = 0;
        let place = |tensor: usize| {
            let at = len;
            len += self.specs[tensor].len;
            Place { tensor, at }
        };
        let tensors: Vec<Place> = tensors.into_iter().map(place).collect();
        let back = || self.free.try_recv().expect("the writer gives a buffer back before it is idle");
        let mut copy = self.buffer.take().unwrap_or_else(back);
        if copy.len() != len {
            copy.clear();
            // No more than it takes, which grows by doubling otherwise.
            copy.reserve_exact(len);
            copy.resize(len, 0.0);
        }
        ShardDraft { specs: Arc::clone(&self.specs), id, rank, tensors, copy }
    }

    /// Hands a share to which every section was added to the writer, which has nothing else to do; `digests` are for people, and of all
    /// of the state.
    ///
    /// *Panics* if the writer has panicked.
    pub fn save(&mut self, share: ShardDraft, digests: (Digest, Digest)) {
        let ShardDraft { id, rank, tensors, copy, .. } = share;
        let (digest, state_digest) = digests;
        let job = Job { id, rank, tensors, copy, digest, state_digest };
        self.controls.signal(|signals| signals.writing = true);
        let jobs = self.jobs.as_ref().expect("the queue is open until drop");
        jobs.send(job).expect("the writer lives until the queue closes");
    }

    /// Takes back a share of which nothing came.
    pub fn give_up(&mut self, share: ShardDraft) {
        self.buffer = Some(share.copy);
    }
}

/// A rank's share of a state that is to be written.
pub struct ShardDraft {
    specs: Arc<[TensorSpec]>,
    id: CheckpointId,
    rank: Rank,
    tensors: Vec<Place>,
    copy: Vec<f32>,
}

impl ShardDraft {
    /// Copies what is in the share of these elements of a section, of which this is the first. All elements of its tensors are added, each at
    /// any time.
    pub fn add(&mut self, section: Section, from: usize, values: &[f32]) {
        let end = from + values.len();
        for Place { tensor, at } in &self.tensors {
            let spec = &self.specs[*tensor];
            let both = spec.offset.max(from)..spec.end().min(end);
            if spec.section == section.name() && both.start < both.end {
                let to = at + both.start - spec.offset;
                self.copy[to..to + both.len()].copy_from_slice(&values[both.start - from..both.end - from]);
            }
        }
    }
}

/// Tells the compute thread that nothing is being written, also after a panic: nobody waits for a writer that is gone.
struct Idle(Arc<Controls>);

impl Idle {
    fn tell(&self) {
        self.0.signal(|signals| signals.writing = false);
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.tell();
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the writer was told by the panic hook; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

fn write(store: &FileStore, specs: &[TensorSpec], job: &Job) -> ShardReport {
    let data = |Place { tensor, at }: &Place| {
        let spec = &specs[*tensor];
        TensorData { name: &spec.name, shape: &spec.shape, data: &job.copy[*at..at + spec.len] }
    };
    let tensors: Vec<TensorData<'_>> = job.tensors.iter().map(data).collect();
    let id = job.id;
    let written = store.begin(id).and_then(|()| store.write_shard(id, job.rank, &tensors));
    let outcome = match written {
        Ok(shard) => ShardOutcome::Durable {
            file: ShardFile { name: shard.file, bytes: shard.bytes, digest: shard.blake3 },
            digest: job.digest,
            state_digest: job.state_digest,
        },
        Err(error) => ShardOutcome::Failed { reason: error.to_string() },
    };
    ShardReport { id: job.id, rank: job.rank, outcome }
}
