//! Writes this rank's shard of a checkpoint in the background, so that training goes on: from a copy, or from where the state lies, if that is lent.
//!
//! One shard at a time: the agenda waits until the last one is written and its checkpoint settled; and with an update until nothing is lent. Does not know
//! manifests: a shard alone is not a checkpoint.

use crate::controls::Controls;
use crate::news::{News, NewsSender};
use dtrain_checkpoint::{FileStore, Store, StoreError, TensorData, TensorSpec, UnsyncedShard};
use dtrain_engine::{FloatsOnLoan, Section};
use dtrain_protocol::{CheckpointId, Digest, ShardFile, ShardOutcome, ShardReport};
use dtrain_types::Rank;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

struct Job {
    draft: ShardDraft,
    digest: Digest,
    state_digest: Digest,
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
        let idle = Idle(Arc::clone(&controls));
        let thread = std::thread::Builder::new().name("saver".into()).spawn(move || {
            let store = FileStore::new(&run_dir);
            while let Ok(Job { mut draft, digest, state_digest }) = queue.recv() {
                let written = write(&store, &draft);
                draft.parts.clear();
                idle.0.signal(|signals| signals.lent = false);
                let (id, rank) = (draft.id, draft.rank);
                let outcome = match written.and_then(UnsyncedShard::sync) {
                    Ok(shard) => ShardOutcome::Durable {
                        file: ShardFile { name: shard.file, bytes: shard.bytes, digest: shard.blake3 },
                        digest,
                        state_digest,
                    },
                    Err(error) => ShardOutcome::Failed { reason: error.to_string() },
                };
                news.tell(News::Shard(ShardReport { id, rank, outcome }));
                // Nobody takes it back when the rank is ending.
                let _ = give_back.send(draft.copy);
                idle.tell();
            }
        });
        let thread = thread.expect("a process that could start its compute thread can start one more");
        let buffer = Some(Vec::new());
        Self { specs, jobs: Some(jobs), free, buffer, controls, thread: Some(thread) }
    }

    /// The tensors of this rank's share of a state, of which nothing is there yet; the rank is for the name of the file.
    ///
    /// *Panics* if the writer has something to do, or has panicked.
    pub fn begin(
        &mut self,
        id: CheckpointId,
        rank: Rank,
        tensors: impl IntoIterator<Item = usize>,
    ) -> ShardDraft {
        let back = || self.free.try_recv().expect("the writer gives a buffer back before it is idle");
        let mut copy = self.buffer.take().unwrap_or_else(back);
        copy.clear();
        let tensors: Vec<usize> = tensors.into_iter().collect();
        let missing = tensors.iter().map(|tensor| self.specs[*tensor].len).sum();
        ShardDraft { specs: Arc::clone(&self.specs), id, rank, tensors, parts: Vec::new(), copy, missing }
    }

    /// Hands a share to which all elements were added to the writer, which has nothing else to do; `digests` are for people, and of all
    /// of the state.
    ///
    /// *Panics* if elements are missing, or the writer has panicked.
    pub fn save(&mut self, mut share: ShardDraft, digests: (Digest, Digest)) {
        assert_eq!(share.missing, 0, "all of a share is added before it is written");
        share.parts.sort_unstable_by_key(|part| (part.tensor, part.from));
        let lent = share.parts.iter().any(|part| matches!(part.lies, Lies::Lent(_)));
        self.controls.signal(|signals| (signals.writing, signals.lent) = (true, lent));
        let (digest, state_digest) = digests;
        let jobs = self.jobs.as_ref().expect("the queue is open until drop");
        jobs.send(Job { draft: share, digest, state_digest })
            .expect("the writer lives until the queue closes");
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
    /// Which tensors.
    tensors: Vec<usize>,
    /// What there is of them, in any order.
    parts: Vec<Part>,
    copy: Vec<f32>,
    /// Elements that are not there yet.
    missing: usize,
}

/// Neighbouring elements of a tensor.
struct Part {
    /// The place of the tensor among those of the share.
    tensor: usize,
    /// The first of them, as an element of its section.
    from: usize,
    lies: Lies,
}

/// Where elements lie.
enum Lies {
    /// Where the state has them.
    Lent(FloatsOnLoan),
    /// In the copy.
    Copied(Range<usize>),
}

impl ShardDraft {
    /// What is in the share of these elements of a section: runs, each of one tensor.
    pub fn wants(&self, section: Section, elements: &Range<usize>) -> Vec<Range<usize>> {
        self.meets(section, elements).map(|(_, run)| run).collect()
    }

    /// The same, with the place of the tensor.
    fn meets(
        &self,
        section: Section,
        elements: &Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> {
        let of = move |(place, tensor): (usize, &usize)| {
            let spec = &self.specs[*tensor];
            let run = spec.offset.max(elements.start)..spec.end().min(elements.end);
            (spec.section == section.name() && run.start < run.end).then_some((place, run))
        };
        self.tensors.iter().enumerate().filter_map(of)
    }

    /// Copies what is in the share of these elements of a section, of which this is the first. All elements of its tensors are added or lent, each once,
    /// at any time.
    pub fn add(&mut self, section: Section, from: usize, values: &[f32]) {
        let meets: Vec<_> = self.meets(section, &(from..from + values.len())).collect();
        for (tensor, run) in meets {
            // No more than it takes, which grows by doubling otherwise.
            self.copy.reserve_exact(self.missing);
            let at = self.copy.len();
            self.copy.extend_from_slice(&values[run.start - from..run.end - from]);
            self.push(tensor, run, Lies::Copied(at..self.copy.len()));
        }
    }

    /// Adds elements that [`wants`](Self::wants) has, without a copy: a run that begins here.
    ///
    /// *Panics* if they are not of one tensor of the share.
    pub fn lend(&mut self, section: Section, from: usize, values: FloatsOnLoan) {
        let all = from..from + values.len();
        let found = self.meets(section, &all).next();
        let (tensor, run) = found.filter(|(_, run)| *run == all).expect("what is lent is what is wanted");
        self.push(tensor, run, Lies::Lent(values));
    }

    fn push(&mut self, tensor: usize, run: Range<usize>, lies: Lies) {
        self.missing = self.missing.checked_sub(run.len()).expect("each element is added once");
        self.parts.push(Part { tensor, from: run.start, lies });
    }

    fn values<'a>(&'a self, part: &'a Part) -> &'a [f32] {
        match &part.lies {
            Lies::Lent(values) => values,
            Lies::Copied(at) => &self.copy[at.clone()],
        }
    }
}

/// Tells the compute thread that nothing is being written, also after a panic: nobody waits for a writer that is gone.
struct Idle(Arc<Controls>);

impl Idle {
    fn tell(&self) {
        self.0.signal(|signals| (signals.writing, signals.lent) = (false, false));
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

/// Writes a share whose parts are in order.
fn write(store: &FileStore, draft: &ShardDraft) -> Result<UnsyncedShard, StoreError> {
    let mut parts = vec![Vec::new(); draft.tensors.len()];
    draft.parts.iter().for_each(|part| parts[part.tensor].push(draft.values(part)));
    let specs = draft.tensors.iter().map(|tensor| &draft.specs[*tensor]);
    let tensors =
        specs.zip(&parts).map(|(spec, data)| TensorData { name: &spec.name, shape: &spec.shape, data });
    let tensors: Vec<TensorData<'_>> = tensors.collect();
    store.begin(draft.id)?;
    store.write_shard(draft.id, draft.rank, &tensors)
}
