//! Appending to the ledger: steps are gathered into spans, spans become lines, and lines become durable in `flush`.
//!
//! The caller flushes before the checkpoint of a step appears, and puts [`LedgerWriter::head_hash`] into its
//! manifest. A span that was never flushed is lost in a crash together with the steps that it speaks of.

use super::line::{BindLine, Binding, CheckSum, Line, LineHash, ResumeLine, SpanLine, is_partition, pairs};
use super::problem::AuditProblem;
use super::scan::{Scan, scan};
use crate::whole_lines::whole_lines;
use dtrain_types::{BatchPlan, Generation, MicroRange, PlanError, Step};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the ledger cannot be written.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The disk is full.
    #[error("the disk is full: {}", path.display())]
    Full {
        /// What was being written: the ledger, or its folder.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The ledger.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A sync failed, and the file does not hold what was written since the one before.
    #[error("{} can no longer be trusted: a sync failed, and what it holds is not what was written", path.display())]
    Broken {
        /// The ledger.
        path: PathBuf,
    },
    /// The ledger on disk was changed.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The ledger.
        path: PathBuf,
        /// The first problem.
        problem: AuditProblem,
    },
    /// The ledger on disk is that of another run.
    #[error("{} is the ledger of run `{found}`, not of `{expected}`", path.display())]
    OtherRun {
        /// The ledger.
        path: PathBuf,
        /// The run asked for.
        expected: String,
        /// The run found.
        found: String,
    },
    /// The plan is not one.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step was committed out of order.
    #[error("step {got} was committed after step {reached}")]
    OutOfOrder {
        /// The last step in the ledger.
        reached: Step,
        /// The step committed.
        got: Step,
    },
    /// A generation is lower than one before.
    #[error("step {step} was committed in generation {got} after generation {before}")]
    GenerationFell {
        /// The step committed.
        step: Step,
        /// The last generation in the ledger.
        before: Generation,
        /// The generation committed in.
        got: Generation,
    },
    /// The ranges are not a partition of the micro-batches.
    #[error(
        "step {step}: ranges {ranges:?} do not cover micro-batches 0 to {micro_batches} once and in order"
    )]
    Ranges {
        /// The step committed.
        step: Step,
        /// The ranges.
        ranges: Vec<(u32, u32)>,
        /// Micro-batches of a full step.
        micro_batches: u32,
    },
    /// The resume point is ahead of the ledger, which is made durable first: one of the two files is not ours.
    #[error("the run resumes from step {resume}, its ledger reaches {reached}")]
    ResumeAhead {
        /// The resume point.
        resume: Step,
        /// The last step in the ledger.
        reached: Step,
    },
}

impl LedgerError {
    /// Tells a full disk from any other failure, in the words that checkpoints have for it.
    fn io(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path: path.to_owned() },
            _ => Self::Io { path: path.to_owned(), source },
        }
    }
}

/// Writes `ledger.jsonl`. There is one writer: the owner of the run.
#[derive(Debug)]
pub struct LedgerWriter {
    file: File,
    /// How it is synced: tests put one here that fails.
    pub(super) sync: fn(&File) -> io::Result<()>,
    path: PathBuf,
    plan: BatchPlan,
    /// Bytes that the system has.
    written: u64,
    /// Bytes that the disk has, and the hash of the last line of them.
    durable: u64,
    durable_head: LineHash,
    /// The last sync failed: nobody knows which of the bytes behind those the disk has.
    unsure: bool,
    /// Lines closed since the last flush, as bytes.
    closed: Vec<u8>,
    head: LineHash,
    span: Option<SpanLine>,
    reached: Step,
    generation: Generation,
    broken: bool,
}

impl LedgerWriter {
    /// Opens the ledger at `path`, or begins it if there is none. What a crash has torn at its end is dropped.
    ///
    /// *Blocks* on the disk. *Errors*: it is another run's, or it was changed since it was written.
    pub fn open(path: &Path, binding: &Binding) -> Result<Self, LedgerError> {
        let plan = binding.plan.plan()?;
        let fail = |source| LedgerError::io(path, source);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(fail)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        let whole = whole_lines(&bytes);
        if whole < bytes.len() {
            tracing::warn!(
                bytes = bytes.len() - whole,
                "the ledger's end was torn by a crash and is dropped"
            );
            bytes.truncate(whole);
        }
        file.set_len(bytes.len() as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(fail)?;
        let mut writer = Self {
            file,
            sync: File::sync_data,
            path: path.to_owned(),
            plan,
            written: bytes.len() as u64,
            durable: 0,
            durable_head: LineHash::NONE,
            unsure: false,
            closed: Vec::new(),
            head: LineHash::NONE,
            span: None,
            reached: Step(0),
            generation: Generation(0),
            broken: false,
        };
        if bytes.is_empty() {
            let Binding { run, plan } = binding.clone();
            writer.close(&Line::Bind(BindLine { run, plan, prev: LineHash::NONE }));
            writer.sync_name()?;
        } else {
            writer.go_on(scan(&bytes, &plan), &binding.run)?;
        }
        // Also when nothing is to be written: what was read may not be durable yet, or was just cut.
        writer.flush()?;
        Ok(writer)
    }

    fn go_on(&mut self, scan: Scan, run: &str) -> Result<(), LedgerError> {
        if let Some(found) = scan.binding.filter(|bind| bind.run != run) {
            let (path, expected) = (self.path.clone(), run.to_owned());
            return Err(LedgerError::OtherRun { path, expected, found: found.run });
        }
        if let Some(problem) = scan.problems.into_iter().next() {
            return Err(LedgerError::Damaged { path: self.path.clone(), problem });
        }
        (self.head, self.durable_head) = (scan.head, scan.head);
        (self.reached, self.generation) = (scan.reached, scan.generation);
        Ok(())
    }

    /// Adds a committed step. `samples` and `check` are those of its trailer.
    ///
    /// *Errors*: it does not follow the last step, its generation is lower, or its ranges are no partition. Nothing
    /// is written before [`LedgerWriter::flush`].
    pub fn commit(
        &mut self,
        step: Step,
        generation: Generation,
        ranges: &[MicroRange],
        samples: u64,
        check: u64,
    ) -> Result<(), LedgerError> {
        if step != self.reached.next() {
            return Err(LedgerError::OutOfOrder { reached: self.reached, got: step });
        }
        if generation < self.generation {
            return Err(LedgerError::GenerationFell { step, before: self.generation, got: generation });
        }
        let (ranges, micro_batches) = (pairs(ranges), self.plan.micro_batches());
        if !is_partition(ranges.iter().copied(), micro_batches) {
            return Err(LedgerError::Ranges { step, ranges, micro_batches });
        }
        (self.reached, self.generation) = (step, generation);
        match &mut self.span {
            Some(span) if span.generation == generation && span.ranges == ranges => {
                span.to = step;
                span.samples += samples;
                span.check.0 = span.check.0.wrapping_add(check);
            }
            _ => {
                self.close_span();
                let (check, prev) = (CheckSum(check), LineHash::NONE);
                self.span = Some(SpanLine { from: step, to: step, generation, ranges, samples, check, prev });
            }
        }
        Ok(())
    }

    /// Makes everything committed so far durable; gives the hash of the last line.
    ///
    /// *Blocks* on the disk. *Errors*: after a failed write (a full disk) or a failed sync it may be tried again and loses nothing, unless
    /// the file does not hold any more what was written: then the writer refuses everything.
    pub fn flush(&mut self) -> Result<LineHash, LedgerError> {
        self.hand_over()?;
        if self.unsure {
            self.write_again()?;
        }
        if let Err(source) = (self.sync)(&self.file) {
            self.unsure = true;
            return Err(LedgerError::io(&self.path, source));
        }
        (self.durable, self.durable_head, self.unsure) = (self.written, self.head, false);
        Ok(self.head)
    }

    /// Writes again what was not synced. After a sync that failed the kernel may hold the pages to be clean, so that a second one would
    /// succeed and prove nothing; those that are written again are not. What they hold is proved by the chain of hashes.
    fn write_again(&mut self) -> Result<(), LedgerError> {
        let mut bytes = Vec::new();
        let read =
            self.file.seek(SeekFrom::Start(self.durable)).and_then(|_| self.file.read_to_end(&mut bytes));
        let is_ours =
            read.is_ok() && self.durable + bytes.len() as u64 == self.written && self.leads_to_head(&bytes);
        if !is_ours {
            self.broken = true;
            return Err(LedgerError::Broken { path: self.path.clone() });
        }
        let again = self.file.seek(SeekFrom::Start(self.durable)).and_then(|_| self.file.write_all(&bytes));
        // A write that stops half-way has put the bytes there that were there before.
        self.file.seek(SeekFrom::End(0)).and(again).map_err(|source| LedgerError::io(&self.path, source))
    }

    /// Whether these lines are those behind the durable ones, up to the last that was written.
    fn leads_to_head(&self, bytes: &[u8]) -> bool {
        let mut head = self.durable_head;
        for text in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = text.strip_suffix(b"\n").unwrap_or(text);
            let follows = serde_json::from_slice::<Line>(text).is_ok_and(|line| line.prev() == head);
            if !follows {
                return false;
            }
            head = LineHash::of(text);
        }
        head == self.head
    }

    /// Hands everything committed so far to the system: from now on the end of this process loses none of it.
    ///
    /// *Errors*: after a failed write (a full disk) it may be tried again and loses nothing.
    pub fn hand_over(&mut self) -> Result<(), LedgerError> {
        if self.broken {
            return Err(LedgerError::Broken { path: self.path.clone() });
        }
        self.close_span();
        if let Err(source) = self.file.write_all(&self.closed) {
            // Half a line in the middle of the file would be worse than no line.
            let cut = self.file.set_len(self.written).and_then(|()| self.file.seek(SeekFrom::End(0)));
            self.broken = cut.is_err();
            return Err(LedgerError::io(&self.path, source));
        }
        self.written += self.closed.len() as u64;
        self.closed.clear();
        Ok(())
    }

    /// Records that the run goes on from `step`: later steps no longer count. Durable when it returns.
    ///
    /// *Errors*: the ledger does not reach `step`, or the disk fails.
    pub fn resume(&mut self, step: Step) -> Result<(), LedgerError> {
        if step > self.reached {
            return Err(LedgerError::ResumeAhead { resume: step, reached: self.reached });
        }
        self.close_span();
        self.close(&Line::Resume(ResumeLine { resume: step, prev: self.head }));
        self.reached = step;
        self.flush().map(drop)
    }

    /// The hash of the last durable line.
    #[must_use]
    pub fn head_hash(&self) -> LineHash {
        self.durable_head
    }

    /// The last step that counts, durable or not.
    #[must_use]
    pub fn reached(&self) -> Step {
        self.reached
    }

    /// The generation of the last step, durable or not.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    fn close_span(&mut self) {
        if let Some(span) = self.span.take() {
            self.close(&Line::Span(SpanLine { prev: self.head, ..span }));
        }
    }

    fn close(&mut self, line: &Line) {
        let bytes = line.encode();
        self.head = LineHash::of(&bytes);
        self.closed.extend(bytes);
        self.closed.push(b'\n');
    }

    /// Makes the file's name durable, once.
    fn sync_name(&self) -> Result<(), LedgerError> {
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let sync = File::open(folder).and_then(|folder| folder.sync_all());
        sync.map_err(|source| LedgerError::io(folder, source))
    }
}
