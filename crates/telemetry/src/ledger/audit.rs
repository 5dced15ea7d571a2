//! The audit: every span of the ledger recomputed from the batch plan alone.
//!
//! It trusts neither the ledger nor the run that wrote it. Time is proportional to the samples that the ledger
//! claims. It does not know the data set's content: that the right bytes stood behind a sample's number is not seen.

use super::line::{LineHash, SpanLine};
use super::scan::{Scan, scan};
use crate::ledger::{AuditProblem, Wrong};
use dtrain_types::{BatchPlan, Epoch, Generation, MicroBatch, Step};

/// What the newest manifest of the run says about the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The updates it holds.
    pub step: Step,
    /// The hash of the ledger's last line when it was written.
    pub ledger: LineHash,
}

/// How much of an epoch was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochUse {
    /// The epoch.
    pub epoch: Epoch,
    /// Samples used, each exactly once.
    pub used: u64,
    /// Samples in the epoch.
    pub of: u64,
}

impl EpochUse {
    /// Whether every sample was used.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.used == self.of
    }
}

/// What a sound ledger says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// The run.
    pub run: String,
    /// The last step that counts.
    pub reached: Step,
    /// Samples fed by the steps that count.
    pub samples: u64,
    /// Span lines.
    pub spans: usize,
    /// Resume lines.
    pub resumes: usize,
    /// Steps that a resume cancelled: computed, then lost.
    pub cancelled: u64,
    /// The last generation.
    pub generation: Generation,
    /// Every epoch begun.
    pub epochs: Vec<EpochUse>,
    /// Bytes of a torn last line, which a crash explains.
    pub torn: usize,
    /// The hash of the last whole line.
    pub head: LineHash,
}

/// Recomputes a whole ledger from the plan and compares it with the newest manifest.
///
/// A last line without a newline is what a crash leaves: it is reported, not held against the run.
///
/// *Errors*: everything that is wrong, in the order of lines, what concerns the end last.
pub fn audit(
    bytes: &[u8],
    plan: &BatchPlan,
    newest: Option<Newest>,
) -> Result<AuditReport, Vec<AuditProblem>> {
    let mut scan = scan(bytes, plan);
    let in_order = scan.problems.is_empty();
    let mut usage = Usage { plan, epochs: Vec::new(), seen: Vec::new() };
    for span in &scan.spans {
        // A ledger with gaps or doubles would only repeat them as used samples.
        let counts_to = if in_order { span.counts_to } else { Step(0) };
        let wrong = recompute(plan, &span.span, |step, sample| {
            if step <= counts_to { usage.take(plan.step(step).epoch, sample) } else { Ok(()) }
        });
        scan.problems.extend(wrong.err().map(|wrong| AuditProblem { line: Some(span.line), wrong }));
    }
    scan.problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
    if let Some(problem) = newest.and_then(|newest| against_manifest(&scan, newest)) {
        scan.problems.push(problem);
    }
    if !scan.problems.is_empty() {
        return Err(scan.problems);
    }
    let cancelled =
        scan.spans.iter().map(|s| s.span.to.0 - s.counts_to.0.clamp(s.span.from.0 - 1, s.span.to.0));
    Ok(AuditReport {
        reached: scan.reached,
        samples: usage.epochs.iter().map(|epoch| epoch.used).sum(),
        spans: scan.spans.len(),
        resumes: scan.resumes,
        cancelled: cancelled.sum(),
        generation: scan.generation,
        epochs: usage.epochs,
        torn: bytes.len() - scan.whole,
        head: scan.head,
        run: scan.binding.expect("a ledger without problems has its binding").run,
    })
}

/// Compares one span with the plan and shows each of its samples to `each`.
fn recompute(
    plan: &BatchPlan,
    span: &SpanLine,
    mut each: impl FnMut(Step, u64) -> Result<(), Wrong>,
) -> Result<(), Wrong> {
    let SpanLine { from, to, samples: got, .. } = *span;
    // The count needs no loop. It is settled first, so that an absurd span costs no time.
    let expected = samples_through(plan, to) - samples_through(plan, Step(from.0 - 1));
    if u128::from(got) != expected {
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        return Err(Wrong::Samples { from, to, expected, got });
    }
    let mut check = 0u64;
    for step in (from.0..=to.0).map(Step) {
        let planned = plan.step(step);
        for micro_batch in (0..planned.micro_batches).map(MicroBatch) {
            for sample in plan.micro_batch_samples(&planned, micro_batch) {
                check = check.wrapping_add(plan.check(&planned, sample));
                each(step, sample)?;
            }
        }
    }
    let got = span.check.0;
    if got == check { Ok(()) } else { Err(Wrong::Check { from, to, expected: check, got }) }
}

/// Samples of the steps `1..=step`.
fn samples_through(plan: &BatchPlan, step: Step) -> u128 {
    let (epochs, steps) = (step.0 / plan.steps_per_epoch(), step.0 % plan.steps_per_epoch());
    u128::from(epochs) * u128::from(plan.samples()) + u128::from(steps) * u128::from(plan.global_batch())
}

fn against_manifest(scan: &Scan, Newest { step, ledger }: Newest) -> Option<AuditProblem> {
    let wrong = match scan.heads.iter().find(|(head, _)| *head == ledger) {
        // The line may reach further: a checkpoint is written in the background while later steps are committed.
        Some((_, reached)) if *reached < step => Wrong::HeadStep { step, reached: *reached },
        _ if scan.reached < step => Wrong::Short { step, reached: scan.reached },
        Some(_) => return None,
        None => {
            // No line after the last one tells that it was changed.
            let line = scan.problems.is_empty().then_some(scan.heads.len());
            return Some(AuditProblem { line, wrong: Wrong::NoSuchHead { step, ledger } });
        }
    };
    Some(AuditProblem { line: None, wrong })
}

/// Counts the samples of each epoch, one bit a sample of the epoch at hand.
struct Usage<'a> {
    plan: &'a BatchPlan,
    epochs: Vec<EpochUse>,
    seen: Vec<u64>,
}

impl Usage<'_> {
    fn take(&mut self, epoch: Epoch, sample: u64) -> Result<(), Wrong> {
        if self.epochs.last().is_none_or(|last| last.epoch != epoch) {
            self.epochs.push(EpochUse { epoch, used: 0, of: self.plan.samples() });
            self.seen.clear();
            self.seen.resize(self.plan.samples().div_ceil(64) as usize, 0);
        }
        let (word, bit) = (&mut self.seen[(sample / 64) as usize], 1 << (sample % 64));
        if *word & bit != 0 {
            return Err(Wrong::SampleTwice { sample, epoch });
        }
        *word |= bit;
        self.epochs.last_mut().expect("pushed above").used += 1;
        Ok(())
    }
}
