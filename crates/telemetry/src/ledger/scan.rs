//! Reading a ledger once: the chain, the order of steps, gaps and doubles. It recomputes no sample.
//!
//! The writer scans before it appends, and the audit scans before it adds up.

use super::line::{BindLine, Line, LineHash, ResumeLine, SpanLine, is_partition};
use super::problem::{AuditProblem, Wrong};
use crate::whole_lines::whole_lines;
use dtrain_types::{BatchPlan, Generation, Step};

/// One span as read, and how much of it still counts.
pub(super) struct LedgerSpan {
    pub line: usize,
    pub span: SpanLine,
    /// The last step that no later `resume` cancelled; below `from` if none is left.
    pub counts_to: Step,
}

/// What a scan found.
pub(super) struct Scan {
    pub binding: Option<BindLine>,
    pub spans: Vec<LedgerSpan>,
    pub resumes: usize,
    /// The last step that counts.
    pub reached: Step,
    /// The greatest generation seen.
    pub generation: Generation,
    /// The hash of the last whole line.
    pub head: LineHash,
    /// Each whole line's hash, and the step reached after it.
    pub heads: Vec<(LineHash, Step)>,
    /// Bytes of whole lines; what follows is torn; whether something of it was durable, the newest manifest tells.
    pub whole: usize,
    pub problems: Vec<AuditProblem>,
    micro_batches: u32,
}

/// Scans the bytes of a ledger that should follow `plan`.
pub(super) fn scan(bytes: &[u8], plan: &BatchPlan) -> Scan {
    let whole = whole_lines(bytes);
    let mut scan = Scan {
        binding: None,
        spans: Vec::new(),
        resumes: 0,
        reached: Step(0),
        generation: Generation(0),
        head: LineHash::NONE,
        heads: Vec::new(),
        whole,
        problems: Vec::new(),
        micro_batches: plan.micro_batches(),
    };
    for (i, text) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
        scan.line(i + 1, &text[..text.len() - 1], plan);
    }
    if scan.heads.is_empty() {
        scan.problems.push(AuditProblem { line: None, wrong: Wrong::Empty });
    }
    scan
}

impl Scan {
    fn line(&mut self, line: usize, text: &[u8], plan: &BatchPlan) {
        match serde_json::from_slice::<Line>(text) {
            Err(_) => self.wrong(line, Wrong::NotALine),
            Ok(parsed) => {
                if parsed.prev() != self.head {
                    self.wrong(line, Wrong::Chain { expected: self.head, got: parsed.prev() });
                }
                if (line == 1) != matches!(parsed, Line::Bind(_)) {
                    self.wrong(line, Wrong::BindingPlace);
                }
                match parsed {
                    Line::Bind(bind) => self.bind(line, bind, plan),
                    Line::Span(span) => self.span(line, span, plan),
                    Line::Resume(resume) => self.resume(line, &resume),
                }
            }
        }
        self.head = LineHash::of(text);
        self.heads.push((self.head, self.reached));
    }

    fn wrong(&mut self, line: usize, wrong: Wrong) {
        self.problems.push(AuditProblem { line: Some(line), wrong });
    }

    fn bind(&mut self, line: usize, bind: BindLine, plan: &BatchPlan) {
        if bind.plan.plan().as_ref() != Ok(plan) {
            self.wrong(line, Wrong::OtherPlan { found: bind.plan });
        }
        self.binding.get_or_insert(bind);
    }

    fn span(&mut self, line: usize, span: SpanLine, plan: &BatchPlan) {
        // Beyond this the epoch would not fit its type; no run gets there.
        let last = plan.steps_per_epoch().saturating_mul(u64::from(u32::MAX));
        if span.from.0 == 0 || span.from > span.to || span.to.0 > last {
            return self.wrong(line, Wrong::Backwards { from: span.from, to: span.to });
        }
        let next = self.reached.next();
        if span.from > next {
            self.wrong(line, Wrong::Gap { first: next, last: Step(span.from.0 - 1) });
        } else if span.from < next {
            self.wrong(line, Wrong::Twice { first: span.from, last: span.to.min(self.reached) });
        }
        if span.generation < self.generation {
            self.wrong(line, Wrong::GenerationFell { before: self.generation, got: span.generation });
        }
        if !is_partition(span.ranges.iter().copied(), self.micro_batches) {
            self.wrong(
                line,
                Wrong::Ranges { ranges: span.ranges.clone(), micro_batches: self.micro_batches },
            );
        }
        self.generation = self.generation.max(span.generation);
        self.reached = span.to;
        let counts_to = span.to;
        self.spans.push(LedgerSpan { line, span, counts_to });
    }

    fn resume(&mut self, line: usize, resume: &ResumeLine) {
        self.resumes += 1;
        if resume.resume > self.reached {
            return self.wrong(line, Wrong::ResumeAhead { resume: resume.resume, reached: self.reached });
        }
        self.reached = resume.resume;
        for span in &mut self.spans {
            span.counts_to = span.counts_to.min(self.reached);
        }
    }
}
