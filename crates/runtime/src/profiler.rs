//! Writes down where the time of a rank's steps goes, on its compute thread, when somebody asked for it.
//!
//! A profiler that is off is one test of an option at each place, and no clock is read. One that is on reads the monotonic
//! clock at each place and writes into memory that was taken before the steps began; the newest steps are kept, and one
//! file is written at the end. It does not know the other ranks: what is put together lies in `dtrain_telemetry::profile`.

use crate::recipe::host_name;
use dtrain_collective::Assignment;
use dtrain_telemetry::TelemetryError;
use dtrain_telemetry::profile::{Doing, Part, Span, StepTimes, write_part};
use dtrain_types::{Incarnation, MemberId, MicroBatch, Step};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The most spans that a rank keeps, whatever number of steps was asked for. *Units*: 32 bytes each.
const MOST_SPANS: usize = 1 << 18;
/// Data, two passes, additions after it and, where it is a root of its own, at its end.
const SPANS_OF_A_MICRO_BATCH: usize = 5;
/// Held, all-reduce, optimizer, verify, validation, checkpoint; and, where steps are told behind, the wait for the step before and
/// that for this one.
const SPANS_OF_A_STEP: usize = 8;

/// The profiler of one rank, which may be off.
pub struct Profiler(Option<Box<Recording>>);

struct Recording {
    run_dir: PathBuf,
    member: MemberId,
    incarnation: Incarnation,
    /// How many steps were asked for.
    asked: usize,
    kept: VecDeque<StepTimes>,
    spare: Vec<StepTimes>,
    /// The step in hand.
    open: Option<StepTimes>,
    /// Until when all is written down.
    last: u64,
    /// When the backward pass of the micro-batch in hand began; 0 as long as it has not.
    turn: u64,
    /// Whether there are steps that no file has.
    unwritten: bool,
}

impl Profiler {
    /// A profiler of the newest `steps` of this life, or one that is off.
    #[must_use]
    pub fn new(steps: Option<NonZeroU32>, run_dir: PathBuf, life: (MemberId, Incarnation)) -> Self {
        let (member, incarnation) = life;
        let recording = |steps: NonZeroU32| Recording {
            run_dir,
            member,
            incarnation,
            asked: steps.get() as usize,
            kept: VecDeque::new(),
            spare: Vec::new(),
            open: None,
            last: 0,
            turn: 0,
            unwritten: false,
        };
        Self(steps.map(|steps| Box::new(recording(steps))))
    }

    /// The forward pass of the micro-batch in hand is over.
    pub fn backward_begins(&mut self) {
        if let Some(recording) = &mut self.0 {
            recording.turn = monotonic();
        }
    }

    /// Takes the memory for steps of so many micro-batches of this rank. Call it outside of steps.
    pub fn reserve(&mut self, micro_batches: usize) {
        if let Some(recording) = &mut self.0 {
            recording.reserve(micro_batches);
        }
    }

    /// A step begins; one that did not end is forgotten.
    pub fn begin(&mut self, step: Step, membership: &Assignment) {
        if let Some(recording) = &mut self.0 {
            recording.begin(step, membership);
        }
    }

    /// The time since the last call was spent on this.
    pub fn lap(&mut self, doing: Doing) {
        if let Some(recording) = &mut self.0 {
            recording.lap(doing, None);
        }
    }

    /// The time since the last call was spent on this micro-batch.
    pub fn lap_on(&mut self, doing: Doing, micro_batch: MicroBatch) {
        if let Some(recording) = &mut self.0 {
            recording.lap(doing, Some(micro_batch));
        }
    }

    /// The time since the last call was spent on the passes of this micro-batch.
    pub fn passes(&mut self, micro_batch: MicroBatch) {
        if let Some(recording) = &mut self.0 {
            recording.passes(micro_batch);
        }
    }

    /// Part of the gradient is on its way.
    pub fn offered(&mut self) {
        if let Some(open) = self.0.as_mut().and_then(|recording| recording.open.as_mut()) {
            open.offered.get_or_insert_with(monotonic);
        }
    }

    /// The time since the last call has no name.
    pub fn skip(&mut self) {
        if let Some(recording) = &mut self.0 {
            recording.last = monotonic();
        }
    }

    /// The step has ended.
    pub fn end(&mut self) {
        if let Some(recording) = &mut self.0 {
            recording.end();
        }
    }

    /// Writes what was kept, if there is something new. What goes wrong is told and costs nothing else.
    ///
    /// *Blocks* on the disk.
    pub fn write(&mut self) {
        let Some(recording) = self.0.as_mut().filter(|recording| recording.unwritten) else { return };
        recording.unwritten = false;
        if let Err(error) = recording.write() {
            tracing::warn!(%error, "the profile of this rank is lost");
        }
    }
}

impl Recording {
    fn reserve(&mut self, micro_batches: usize) {
        let spans = micro_batches * SPANS_OF_A_MICRO_BATCH + SPANS_OF_A_STEP;
        let steps = self.asked.min(MOST_SPANS / spans).max(1);
        self.open = None;
        self.spare.truncate(steps.saturating_sub(self.kept.len()));
        while self.kept.len() > steps {
            self.kept.pop_front();
        }
        self.kept.reserve_exact(steps - self.kept.len());
        let missing = steps - self.kept.len() - self.spare.len();
        self.spare.extend(std::iter::repeat_with(StepTimes::default).take(missing));
        for slot in self.kept.iter_mut().chain(&mut self.spare) {
            slot.spans.reserve_exact(spans.saturating_sub(slot.spans.len()));
        }
    }

    fn begin(&mut self, step: Step, membership: &Assignment) {
        let slot = self.open.take().or_else(|| self.spare.pop()).or_else(|| self.kept.pop_front());
        let Some(mut slot) = slot else { return };
        slot.spans.clear();
        slot.offered = None;
        (slot.step, slot.generation) = (step, membership.generation);
        (slot.rank, slot.world) = (membership.rank, membership.world());
        slot.begun = monotonic();
        self.last = slot.begun;
        self.open = Some(slot);
    }

    fn lap(&mut self, doing: Doing, micro_batch: Option<MicroBatch>) {
        let now = monotonic();
        self.span(Span { doing, begun: self.last, ended: now, micro_batch });
        self.last = now;
    }

    fn passes(&mut self, micro_batch: MicroBatch) {
        match std::mem::take(&mut self.turn) {
            turn if turn < self.last => self.lap(Doing::Compute, Some(micro_batch)),
            turn => {
                let (begun, micro_batch) = (self.last, Some(micro_batch));
                self.span(Span { doing: Doing::Forward, begun, ended: turn, micro_batch });
                self.last = turn;
                self.lap(Doing::Backward, micro_batch);
            }
        }
    }

    /// Outside of a step there is no place for it.
    fn span(&mut self, span: Span) {
        let Some(open) = &mut self.open else { return };
        let room = open.spans.len() < open.spans.capacity();
        debug_assert!(room, "the memory of a step was taken before it began");
        // A profile is no reason to end a run: what has no room is time without a name.
        if room {
            open.spans.push(span);
        }
    }

    fn end(&mut self) {
        let Some(mut slot) = self.open.take() else { return };
        slot.ended = monotonic();
        self.kept.push_back(slot);
        self.unwritten = true;
    }

    fn write(&mut self) -> Result<(), TelemetryError> {
        let mut part = Part {
            member: self.member,
            incarnation: self.incarnation,
            host: host_name(),
            pid: std::process::id(),
            clock: clock_name(),
            to_unix: to_unix(),
            steps: Vec::from(std::mem::take(&mut self.kept)),
        };
        let written = write_part(&self.run_dir, &part);
        // Another generation may follow: then all of it is written again.
        self.kept = VecDeque::from(std::mem::take(&mut part.steps));
        written
    }
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // A clock before its own beginning is none.
    let (seconds, rest) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds * 1_000_000_000 + rest
}

/// *Units*: nanoseconds. All processes of a host read the same clock: `std`'s `Instant` is of one process alone.
fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

fn to_unix() -> i64 {
    nanos(ClockId::Realtime) as i64 - monotonic() as i64
}

/// Which monotonic clock this process reads: that of one start of one kernel, and of its time namespace.
fn clock_name() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    match boot {
        Ok(boot) => format!("{} {}", boot.trim(), space.display()),
        // Nothing to compare by: a clock that is like no other one.
        Err(_) => format!("{} {}", host_name(), std::process::id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{Generation, MicroRange, Rank, WorldSize};

    fn membership() -> Assignment {
        let ranges = vec![MicroRange { lo: 0, hi: 2 }, MicroRange { lo: 2, hi: 4 }];
        Assignment { generation: Generation(3), rank: Rank(1), ranges }
    }

    fn profiler(run_dir: PathBuf, steps: u32) -> Profiler {
        let mut profiler = Profiler::new(NonZeroU32::new(steps), run_dir, (MemberId(1), Incarnation(4)));
        profiler.reserve(2);
        profiler
    }

    fn make_step(profiler: &mut Profiler, step: u64) {
        profiler.begin(Step(step), &membership());
        for m in 2..4 {
            profiler.lap_on(Doing::Data, MicroBatch(m));
            profiler.passes(MicroBatch(m));
        }
        profiler.lap(Doing::Communication);
        profiler.skip();
        profiler.lap(Doing::Optimizer);
        profiler.end();
    }

    fn part(run: &std::path::Path) -> Part {
        let text = std::fs::read(run.join("profile/part-1-4.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn the_newest_steps_are_kept_and_each_is_made_of_spans_in_order() {
        let run = tempfile::tempdir().unwrap();
        dtrain_telemetry::profile::prepare(run.path()).unwrap();
        let mut profiler = profiler(run.path().into(), 3);
        (1..=7).for_each(|step| make_step(&mut profiler, step));
        profiler.write();
        let part = part(run.path());
        assert_eq!(part.steps.iter().map(|step| step.step.0).collect::<Vec<_>>(), [5, 6, 7]);
        for step in &part.steps {
            assert_eq!((step.rank, step.world, step.generation), (Rank(1), WorldSize(2), Generation(3)));
            let ends = step.spans.iter().flat_map(|span| [span.begun, span.ended]);
            let times: Vec<u64> = [step.begun].into_iter().chain(ends).chain([step.ended]).collect();
            assert!(times.is_sorted(), "{step:?}");
            assert_eq!(step.spans.len(), 6);
        }
    }

    #[test]
    fn the_passes_are_two_where_the_replica_tells_and_one_where_it_does_not() {
        let mut profiler = profiler(PathBuf::new(), 1);
        profiler.begin(Step(1), &membership());
        profiler.backward_begins();
        profiler.passes(MicroBatch(2));
        profiler.passes(MicroBatch(3));
        let open = profiler.0.unwrap().open.unwrap();
        let seen: Vec<Doing> = open.spans.iter().map(|span| span.doing).collect();
        assert_eq!(seen, [Doing::Forward, Doing::Backward, Doing::Compute]);
        assert_eq!(open.spans[0].ended, open.spans[1].begun);
    }

    #[test]
    fn a_step_that_broke_off_leaves_nothing_and_a_later_generation_goes_on() {
        let run = tempfile::tempdir().unwrap();
        dtrain_telemetry::profile::prepare(run.path()).unwrap();
        let mut profiler = profiler(run.path().into(), 10);
        make_step(&mut profiler, 1);
        profiler.begin(Step(2), &membership());
        profiler.lap_on(Doing::Data, MicroBatch(2));
        profiler.write();
        profiler.reserve(4);
        make_step(&mut profiler, 2);
        profiler.write();
        assert_eq!(part(run.path()).steps.iter().map(|step| step.step.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn the_memory_of_a_profile_has_a_bound_however_many_steps_are_asked_for() {
        let mut profiler =
            Profiler::new(NonZeroU32::new(u32::MAX), PathBuf::new(), (MemberId(0), Incarnation(1)));
        profiler.reserve(1_000);
        let recording = profiler.0.unwrap();
        let spans: usize = recording.spare.iter().map(|slot| slot.spans.capacity()).sum();
        assert!(!recording.spare.is_empty() && spans <= MOST_SPANS, "{spans}");
    }

    #[test]
    fn a_profiler_that_is_off_keeps_nothing_and_wants_to_know_nothing() {
        let mut profiler = Profiler::new(None, PathBuf::new(), (MemberId(0), Incarnation(1)));
        profiler.reserve(2);
        make_step(&mut profiler, 1);
        profiler.backward_begins();
        profiler.write();
        assert!(profiler.0.is_none());
    }
}
