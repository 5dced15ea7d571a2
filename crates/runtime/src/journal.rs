//! The journal: the one thread that writes the files of a run and tells its observer.
//!
//! The supervisor actor enters what happened and goes on; disks and terminals may be slow, heartbeats may not. What
//! was entered first is written first, so the event log is ordered by cause. A failing disk never stops training:
//! people are told once, and the next checkpoint shows whether it is well again.

use crate::found::Found;
use crate::observer::{Observer, StepSeen};
use crate::patience::Standing;
use crate::recipe::host_name;
use crate::run_files::RunFiles;
use dtrain_protocol::{
    CheckpointId, Ending, Event, Judgement, ManifestOrder, Outcome, StepRecord, Validation,
};
use dtrain_telemetry::profile::Life;
use dtrain_telemetry::{EpochMetrics, RunEvent};
use dtrain_types::{Generation, Incarnation, MemberId, MicroRange, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many entries may wait for the disk before the supervisor waits too. Members pause long before: a step is
/// acknowledged when it is written down.
const QUEUE: usize = 16_384;
/// The exit code of a process that ends by a bug of its own, as that of a panic.
const BUG: i32 = 101;
/// How many validations are kept for the manifests that come after them.
const MOST_KEPT: usize = 1_024;

/// One thing to be written down.
pub enum Entry {
    /// Who computes which micro-batches in a generation.
    Ranges(Generation, Vec<MicroRange>),
    /// A step was committed.
    Commit(StepRecord),
    /// All have validated.
    Validated(Validation),
    /// All is done, with this.
    Ending(Ending),
    /// Something worth a line.
    Event(Event),
    /// All shards of a checkpoint are durable: make it one.
    Manifest(Box<ManifestOrder>),
    /// Reserve the generations up to this one.
    Reserve(Generation),
    /// A rank printed a line.
    RankOutput {
        /// Which.
        member: MemberId,
        /// What.
        line: String,
    },
    /// A rank's life is over.
    RankEnded {
        /// Which.
        member: MemberId,
        /// What it printed last.
        last_lines: Vec<String>,
    },
}

/// What the journal tells the supervisor.
pub enum Written {
    /// Who computes what in this generation.
    Ranges(Generation),
    /// All steps up to this one are written down.
    Steps(Step),
    /// The generations up to this one are reserved.
    Reserved(Generation),
    /// A manifest is, or could not be.
    Manifest(CheckpointId, Result<(), String>),
    /// The validation after this step is judged.
    Judged(Step, Judgement),
    /// What the run ended with is.
    Ending,
}

type Answer = Box<dyn Fn(Written) + Send>;

/// Where entries are made. Clones share the queue.
#[derive(Clone)]
pub struct JournalSender {
    queue: SyncSender<Entry>,
    answer: Arc<Mutex<Option<Answer>>>,
}

impl JournalSender {
    /// Makes an entry. *Blocks* while the queue is full.
    pub fn enter(&self, entry: Entry) {
        // The thread ends after the last sender; it cannot be gone before.
        let _ = self.queue.send(entry);
    }

    /// Where it is told what is written down.
    pub fn answer(&self, answer: impl Fn(Written) + Send + 'static) {
        *self.answer.lock().expect("no holder panics") = Some(Box::new(answer));
    }
}

/// What the journal knows at the end of a run.
pub struct Conclusion {
    /// How it ended.
    pub outcome: Outcome,
    /// The numbers of the run.
    pub figures: RunFigures,
    /// The last output of every rank that has ended, for the report of a failure.
    pub last_lines: BTreeMap<MemberId, Vec<String>>,
    /// Every life of a member that began to make steps.
    pub lives: Vec<Life>,
    /// Files of this run.
    pub files: RunFiles,
}

/// The numbers of a run so far.
#[derive(Clone, Debug, Default)]
pub struct RunFigures {
    /// Steps committed by this process.
    pub steps: u64,
    /// The last committed step.
    pub last_step: u64,
    /// Epochs finished, over the whole run.
    pub epochs: u64,
    /// Samples fed by this process.
    pub samples: u64,
    /// From the first to the last committed step. *Units*: seconds.
    pub training_seconds: f64,
    /// Mean training loss of the newest whole epoch, or of what there is.
    pub train_loss: Option<f64>,
    /// The newest validation.
    pub validation: Option<EpochMetrics>,
    /// Why the run ended before its length, if it did.
    pub stopped: Option<Standing>,
    /// How many generations there were.
    pub generations: u64,
    /// Ranks of the newest one.
    pub ranks: u32,
    /// Steps that were made, lost with all who held them, and made again.
    pub lost_steps: u64,
    /// How long each recovery took. *Units*: seconds.
    pub recoveries: Vec<f64>,
    /// The most memory that a rank has used. *Units*: bytes.
    pub peak_rss: u64,
}

impl RunFigures {
    /// What a supervisor that died had come to, as far as it is written down.
    fn of(found: &Found, standings: &BTreeMap<Step, Standing>, files: &RunFiles) -> Self {
        let newest = found.epochs.last_key_value().map(|(_, seen)| seen);
        let validation = found.newest_validation(&files.facts().schedule, Step(u64::MAX));
        let (patience, _) = files.patience();
        let is_over = |standing: &&Standing| patience.is_some_and(|patience| patience.is_over(standing));
        let last = standings.last_key_value().filter(|(step, _)| !files.is_last(**step));
        Self {
            epochs: newest.map_or(0, |seen| u64::from(seen.epoch.0) + u64::from(files.ends_epoch(seen.step))),
            train_loss: newest.map(|seen| seen.train_loss).filter(|loss| loss.is_finite()),
            validation: validation.map(|(_, seen)| seen.clone()),
            stopped: last.map(|(_, standing)| standing).filter(is_over).cloned(),
            ranks: found.ranges.last_key_value().map_or(0, |(_, ranges)| ranges.len() as u32),
            ..Self::default()
        }
    }
}

/// A journal that has not begun.
pub struct Journal {
    files: RunFiles,
    observer: Box<dyn Observer>,
}

/// A journal at work.
pub struct JournalThread {
    thread: JoinHandle<Writer>,
}

impl Journal {
    /// A journal over the files of a run.
    #[must_use]
    pub fn new(files: RunFiles, observer: Box<dyn Observer>) -> Self {
        Self { files, observer }
    }

    /// Starts the thread. *Errors*: it cannot be started.
    pub fn start(self) -> io::Result<(JournalSender, JournalThread)> {
        let (queue, entries) = sync_channel(QUEUE);
        let answer = Arc::new(Mutex::new(None));
        let sender = JournalSender { queue, answer: Arc::clone(&answer) };
        let (found, (patience, standing)) = (self.files.found(), self.files.patience());
        let from = self.files.resumed_from();
        let standings = found
            .zip(patience)
            .map(|(found, patience)| found.standings(patience, standing, from, &self.files.facts().schedule));
        let standings = standings.unwrap_or_default();
        let figures = found.map(|found| RunFigures::of(found, &standings, &self.files)).unwrap_or_default();
        let writer = Writer {
            seen: found.map(|found| found.epochs.clone()).unwrap_or_default(),
            standings,
            whole_epoch: found.is_some_and(|found| !found.epochs.is_empty()),
            figures,
            files: self.files,
            observer: self.observer,
            answer,
            last_lines: BTreeMap::new(),
            pids: BTreeMap::new(),
            host: host_name(),
            lives: BTreeMap::new(),
            epoch: EpochSums::default(),
            train_losses: BTreeMap::new(),
            begun: None,
            next_reading: Instant::now(),
            told: BTreeSet::new(),
            told_steps: 0,
            told_at: Instant::now(),
            took: Duration::ZERO,
            is_waited_for: false,
        };
        let written = move || {
            let written = catch_unwind(AssertUnwindSafe(|| writer.write(&entries)));
            // Whatever it is, nothing would be recorded from here on, and everybody would wait for that. Ranks end with this process.
            written.unwrap_or_else(|_| std::process::exit(BUG))
        };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(written)?;
        Ok((sender, JournalThread { thread }))
    }
}

impl JournalThread {
    /// Waits until everything is written. All senders must be dropped. *Panics* if the journal did.
    #[must_use]
    pub fn finish(self, outcome: Outcome) -> Conclusion {
        let writer = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let Writer { figures, last_lines, lives, files, .. } = writer;
        Conclusion { outcome, figures, last_lines, lives: lives.into_values().collect(), files }
    }
}

/// Where the output of ranks goes on a host without a journal: it is shown, and nothing is written.
pub struct OutputSink {
    thread: JoinHandle<()>,
}

impl OutputSink {
    /// Starts the thread. *Errors*: it cannot be started.
    pub fn start(mut show: impl FnMut(MemberId, &str) + Send + 'static) -> io::Result<(JournalSender, Self)> {
        let (queue, entries) = sync_channel(QUEUE);
        let sender = JournalSender { queue, answer: Arc::default() };
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            while let Ok(entry) = entries.recv() {
                if let Entry::RankOutput { member, line } = entry {
                    show(member, &line);
                }
            }
        })?;
        Ok((sender, Self { thread }))
    }

    /// Waits until everything is shown. All senders must be dropped.
    pub fn finish(self) {
        // A panic there has been reported by the thread itself.
        let _panicked = self.thread.join();
    }
}

struct Writer {
    files: RunFiles,
    observer: Box<dyn Observer>,
    answer: Arc<Mutex<Option<Answer>>>,
    figures: RunFigures,
    last_lines: BTreeMap<MemberId, Vec<String>>,
    /// The ranks of this host.
    pids: BTreeMap<MemberId, u32>,
    host: String,
    lives: BTreeMap<(MemberId, Incarnation), Life>,
    epoch: EpochSums,
    /// Of epochs up to a step that is not validated yet: a fast model is steps ahead of its validation.
    train_losses: BTreeMap<Step, Option<f64>>,
    /// Validations by step, for the manifests of the same steps: shards take their time.
    seen: BTreeMap<Step, EpochMetrics>,
    /// How long the metric of the patience has not improved, by the step of each validation.
    standings: BTreeMap<Step, Standing>,
    /// Whether an epoch has ended: until then the loss of the run is that of the steps there are.
    whole_epoch: bool,
    /// When the first step was committed, and how long it took.
    begun: Option<(Instant, f64)>,
    next_reading: Instant,
    told: BTreeSet<String>,
    /// How far the supervisor was told that steps are written down.
    told_steps: u64,
    told_at: Instant,
    /// How long that took.
    took: Duration,
    /// A generation forms: it goes on once the steps that led to its state are written down.
    is_waited_for: bool,
}

/// Sums over the steps of the epoch in hand, in step order.
#[derive(Clone, Copy, Debug, Default)]
struct EpochSums {
    loss: f64,
    weight: f64,
}

impl EpochSums {
    fn mean(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.loss / self.weight)
    }
}

/// More problems than this at a time are one problem, and told of already.
const MOST_TOLD: usize = 16;
/// The supervisor is told once in so many steps how far we are, and no later than this after the last time. Where the disk takes long, so many
/// more are gathered meanwhile.
const TOLD_EVERY: u64 = 64;
const TOLD_WITHIN: Duration = Duration::from_millis(250);
const READINGS_EVERY: Duration = Duration::from_millis(500);

impl Writer {
    fn write(mut self, entries: &Receiver<Entry>) -> Self {
        while let Ok(entry) = self.next(entries) {
            match entry {
                Entry::Ranges(generation, ranges) => {
                    let written = self.files.ranges(generation, ranges);
                    self.tell(written);
                    // Whatever the disk says: training does not stop for it.
                    self.tell_supervisor(Written::Ranges(generation));
                }
                Entry::Commit(record) => self.step(&record),
                Entry::Validated(validation) => self.validated(&validation),
                Entry::Ending(ending) => {
                    let written = self.files.end(&ending);
                    self.tell(written);
                    // Whatever the disk says: nothing is left to be done.
                    self.tell_supervisor(Written::Ending);
                }
                Entry::Event(event) => self.event(&event),
                Entry::Manifest(order) => {
                    self.next_reading = Instant::now();
                    self.manifest(&order);
                }
                Entry::Reserve(upto) => self.reserve(upto),
                Entry::RankOutput { member, line } => self.observer.rank_output(member, &line),
                Entry::RankEnded { member, last_lines } => {
                    self.last_lines.insert(member, last_lines);
                    self.pids.remove(&member);
                }
            }
            self.read_memory();
        }
        self
    }

    /// The next entry. Now and then what was written goes to the system, and the supervisor hears how far we are: what is acknowledged
    /// outlives this process.
    fn next(&mut self, entries: &Receiver<Entry>) -> Result<Entry, RecvError> {
        loop {
            let untold = self.figures.last_step - self.told_steps;
            if untold == 0 {
                return entries.recv();
            }
            let due = if untold >= TOLD_EVERY { self.took.min(TOLD_WITHIN) } else { TOLD_WITHIN };
            let patience = due.saturating_sub(self.told_at.elapsed());
            if patience.is_zero() {
                self.tell_steps();
                continue;
            }
            let patience = if self.is_waited_for { Duration::ZERO } else { patience };
            match entries.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) if self.is_waited_for => self.tell_steps(),
                Err(RecvTimeoutError::Timeout) => {}
                next => return next.map_err(|_| RecvError),
            }
        }
    }

    fn tell_steps(&mut self) {
        let begun = Instant::now();
        self.told_steps = self.figures.last_step;
        let written = self.files.flush();
        (self.told_at, self.took) = (Instant::now(), begun.elapsed());
        self.tell(written);
        self.tell_supervisor(Written::Steps(Step(self.told_steps)));
    }

    fn tell_supervisor(&self, written: Written) {
        if let Some(answer) = &*self.answer.lock().expect("no holder panics") {
            answer(written);
        }
    }

    fn step(&mut self, record: &StepRecord) {
        let trailer = &record.trailer;
        let mean = |sum: f64| if trailer.weight > 0.0 { sum / trailer.weight } else { 0.0 };
        let seen = StepSeen {
            step: record.step,
            epoch: record.epoch,
            loss: mean(trailer.loss),
            accuracy: self.files.facts().accuracy(trailer.correct, trailer.predictions),
            samples: trailer.samples,
            seconds: record.seconds,
            busy: record.busy,
        };
        let (begun, first) = *self.begun.get_or_insert_with(|| (Instant::now(), record.seconds));
        self.figures.training_seconds = begun.elapsed().as_secs_f64() + first;
        self.figures.steps += 1;
        self.figures.last_step = record.step.0;
        self.figures.samples += trailer.samples;
        self.epoch.loss += trailer.loss;
        self.epoch.weight += trailer.weight;
        let written = self.files.step(record, &seen);
        self.tell(written);
        self.observer.step(&seen);
        let (ends_epoch, validates) = (self.files.ends_epoch(record.step), self.files.validates(record.step));
        let mean = self.epoch.mean();
        if ends_epoch || validates {
            self.train_losses.insert(record.step, mean);
        }
        if ends_epoch || self.files.is_last(record.step) {
            self.figures.train_loss = mean;
            self.epoch = EpochSums::default();
            self.whole_epoch = true;
        } else if !self.whole_epoch {
            self.figures.train_loss = mean;
        }
        if ends_epoch && !validates {
            self.epoch_seen(record.step, None);
        }
    }

    fn validated(&mut self, validation: &Validation) {
        self.epoch_seen(validation.step, Some(validation));
        self.judge(validation);
    }

    /// Says whether the run goes on; everybody waits for that. Its last step ends it anyway.
    fn judge(&mut self, validation: &Validation) {
        let goes_on = Written::Judged(validation.step, Judgement::GoOn);
        let (Some(patience), before) = self.files.patience() else { return self.tell_supervisor(goes_on) };
        let before = self.standings.last_key_value().map(|(_, standing)| standing).or(before);
        let seen = self.seen.get(&validation.step);
        let standing = seen.and_then(|seen| patience.after(before, seen));
        let over = standing.as_ref().is_some_and(|standing| patience.is_over(standing));
        self.standings.extend(standing.map(|standing| (validation.step, standing)));
        if self.standings.len() > MOST_KEPT {
            self.standings.pop_first();
        }
        if !over || self.files.is_last(validation.step) {
            return self.tell_supervisor(goes_on);
        }
        self.figures.stopped = self.standings.get(&validation.step).cloned();
        let why = self.figures.stopped.as_ref().map(ToString::to_string).unwrap_or_default();
        let event =
            RunEvent::Stop { epoch: self.files.epoch_of(validation.step), step: validation.step, why };
        let written = self.files.log(&event);
        self.tell(written);
        self.tell_supervisor(Written::Judged(validation.step, Judgement::Enough));
    }

    /// `step` ends an epoch, or was validated inside one.
    fn epoch_seen(&mut self, step: Step, validation: Option<&Validation>) {
        let (epoch, ends_epoch) = (self.files.epoch_of(step), self.files.ends_epoch(step));
        let train_loss = self.train_losses.remove(&step).flatten().unwrap_or(f64::NAN);
        let scores = validation.map(|validation| self.files.facts().scores(validation)).unwrap_or_default();
        let seen = EpochMetrics { epoch, step, train_loss, ..scores };
        if ends_epoch {
            self.figures.epochs = u64::from(epoch.0) + 1;
        }
        if validation.is_some() {
            self.figures.validation = Some(seen.clone());
        }
        if ends_epoch || self.files.is_last(step) {
            let written = self.files.epoch(&seen);
            self.tell(written);
            self.observer.epoch(&seen);
        } else {
            let written = self.files.validation(&seen);
            self.tell(written);
            self.observer.validation(&seen);
        }
        self.seen.insert(step, seen);
        if self.seen.len() > MOST_KEPT {
            self.seen.pop_first();
        }
    }

    fn event(&mut self, event: &Event) {
        self.observer.event(event);
        match event {
            Event::RankStarted { member, rank, incarnation, profile, .. } => {
                // A process of another host has a number that means nothing here, or somebody else.
                if profile.host == self.host {
                    self.pids.insert(*member, profile.pid);
                }
                self.lives.entry((*member, *incarnation)).or_insert_with(|| Life {
                    member: *member,
                    incarnation: *incarnation,
                    rank: *rank,
                    host: profile.host.clone(),
                    sees_run_folder: profile.sees_run_folder,
                });
            }
            Event::Running { .. } => {
                // A run may end, or lose a rank, before the next reading is due.
                self.next_reading = Instant::now();
                self.figures.generations += 1;
                self.is_waited_for = false;
            }
            Event::Formed { membership, .. } => {
                self.is_waited_for = true;
                self.figures.ranks = membership.world().0;
            }
            Event::CheckpointGivenUp { id, .. } => self.files.give_up(*id),
            Event::Recovered { seconds, .. } => self.figures.recoveries.push(*seconds),
            Event::Resumed { lost, .. } => self.figures.lost_steps += lost,
            _ => {}
        }
        let written = self.files.event(event);
        self.tell(written);
    }

    fn reserve(&mut self, upto: Generation) {
        match self.files.reserve(upto) {
            Ok(()) => self.tell_supervisor(Written::Reserved(upto)),
            // Without new numbers nobody can be replaced once the reserved ones are used up: say so now.
            Err(problem) => self.tell(Err(problem)),
        }
    }

    fn manifest(&mut self, order: &ManifestOrder) {
        let standing = self.standings.range(..=order.id.step).next_back().map(|(_, standing)| standing);
        let standing = standing.or(self.files.patience().1).cloned();
        let seen = self.seen.get(&order.id.step);
        let written = self.files.commit_checkpoint(order, seen, standing.as_ref());
        self.seen = self.seen.split_off(&order.id.step);
        let result = match written {
            Ok(beside) => {
                if beside.is_ok() {
                    self.told.clear();
                }
                self.tell(beside);
                Ok(())
            }
            Err(problem) => Err(problem),
        };
        self.tell_supervisor(Written::Manifest(order.id, result));
    }

    /// Tells what the files could not take: each problem once, until a checkpoint shows that the disk is well again. A
    /// full disk would have one for every step.
    fn tell(&mut self, written: Result<(), String>) {
        let Err(problem) = written else { return };
        if self.told.len() < MOST_TOLD && self.told.insert(problem.clone()) {
            self.observer.warning(&problem);
        }
    }

    /// Reads how much memory the ranks have used: after their end it cannot be known.
    fn read_memory(&mut self) {
        let now = Instant::now();
        if now < self.next_reading {
            return;
        }
        self.next_reading = now + READINGS_EVERY;
        let peaks = self.pids.values().filter_map(|pid| dtrain_telemetry::peak_rss(*pid).ok());
        self.figures.peak_rss = peaks.map(|bytes| bytes.0).max().unwrap_or(0).max(self.figures.peak_rss);
    }
}
