//! No allocation on threads that compute or carry windows inside a training step after the third, seen by the allocator of the
//! whole program: two ranks as threads, with loader, actors, links, supervisor and journal around them.
//!
//! The rest of the program (actors, frames, logs) may allocate for a step, within a stated bound.

#[path = "harness/counting.rs"]
mod counting;

use counting::Counting;
use dtrain::config::Config;
use dtrain::data::{DataError, DigitsOptions, Opened, SampleSpec, Source};
use dtrain::engine::cpu::Cpu;
use dtrain::engine::models::{CnnOptions, cnn};
use dtrain::engine::stages::Chain;
use dtrain::plan::Plan;
use dtrain::run_folder::RunFolder;
use dtrain::session::{Predecessor, Session};
use dtrain::{Brought, Own};
use dtrain_protocol::Outcome;
use dtrain_runtime::{Observer, StepSeen};
use dtrain_types::Step;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Allocations of the whole program per step, both ranks and the supervisor together.
const WHOLE_PROGRAM_PER_STEP: u64 = 100;
const MOST_THREADS: usize = 256;

static THREADS: AtomicUsize = AtomicUsize::new(0);
static IDS: [AtomicI32; MOST_THREADS] = [const { AtomicI32::new(0) }; MOST_THREADS];
static COUNTS: [AtomicU64; MOST_THREADS] = [const { AtomicU64::new(0) }; MOST_THREADS];

thread_local! {
    /// This thread's place in the tables above, plus one.
    static PLACE: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no place any more; it makes no steps either.
    let _ = PLACE.try_with(|place| {
        if place.get() == 0 {
            place.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
            IDS[place.get() - 1].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        }
        COUNTS[place.get() - 1].fetch_add(1, Ordering::Relaxed);
    });
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

/// Allocations so far: of the threads that compute and reduce, of all threads, and how many of the former there are.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    step: u64,
    computing: u64,
    all: u64,
    threads: usize,
}

fn look(step: u64, kinds: &[&str]) -> Seen {
    let mut seen = Seen { step, ..Seen::default() };
    for place in 0..THREADS.load(Ordering::Relaxed).min(MOST_THREADS) {
        let allocations = COUNTS[place].load(Ordering::Relaxed);
        seen.all += allocations;
        let id = IDS[place].load(Ordering::Relaxed);
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
        if kinds.iter().any(|kind| name.starts_with(kind)) {
            seen.computing += allocations;
            seen.threads += 1;
        }
    }
    seen
}

struct Watcher(Arc<Mutex<Vec<Seen>>>, &'static [&'static str]);

impl Observer for Watcher {
    fn step(&mut self, seen: &StepSeen) {
        // The compute threads are at this step or a little further; both looks are well inside the run.
        let Step(step) = seen.step;
        if step == 20 || step == 1_000 {
            self.0.lock().expect("no holder panics").push(look(step, self.1));
        }
    }
}

/// A validation is not a step: it may allocate. So there is none.
fn data() -> Result<Opened, DataError> {
    dtrain::data::open(&Source::Digits(DigitsOptions::default())).map(|opened| Opened { val: None, ..opened })
}

fn model(_: &SampleSpec) -> Chain<Cpu> {
    let options = CnnOptions { channels: vec![8], ..CnnOptions::default() };
    cnn(&options, 10).expect("the options make sense")
}

#[test]
fn no_step_after_the_third_allocates_on_a_compute_thread() {
    // One after the other: what is counted is counted of all threads.
    allocates_nothing(&[], &["compute", "kernel-"]);
    // Where state is shared out the compute thread does for what it measures; what carries windows does not.
    allocates_nothing(&["state=sharded", "shard=parameters"], &["windows"]);
}

fn allocates_nothing(more: &[&str], kinds: &'static [&'static str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        "data.kind=own",
        "global_batch=48",
        "micro_batch=24",
        "steps=1200",
        "schedule.warmup=none",
        "isolation=thread",
        "ranks=2",
        "threads=1",
        "checkpoint.every=none",
    ];
    let settings = [&settings, more].concat();
    let config = Config::parse(None, &settings, dtrain::gpus::this_machine()).expect("the settings are good");
    let own = Own::new("digits without validation", data, model);
    let plan = Plan::open(&config, Some(Brought::Stages(own))).expect("the digits are inside");
    let replica = plan.replica().expect("the model fits");
    let looks = Arc::new(Mutex::new(Vec::new()));
    let session = Session {
        agreement: None,
        frozen: None,
        plan,
        backend: dtrain::nccl::ChosenBackend::Host,
        replica: Box::new(replica),
        run: RunFolder { path: folder.path().to_owned(), name: "allocation".into() },
        resume: None,
        lock: None,
        predecessor: Predecessor::None,
        lead: None,
        cuda: None,
        by_libraries: Default::default(),
        json: false,
        watchers: dtrain::watch::Watchers::default(),
        gpus: None,
    };
    let ended = session
        .run(Box::new(Watcher(Arc::clone(&looks), kinds)))
        .map_err(|error| error.render())
        .expect("the run begins");
    assert!(matches!(ended.conclusion.outcome, Outcome::Finished(_)), "{:?}", ended.conclusion.outcome);
    let looks = looks.lock().expect("no holder panics").clone();
    let [first, last] = looks[..] else { panic!("two looks were taken: {looks:?}") };
    assert!(first.threads >= 2 && first.threads == last.threads, "{looks:?}");
    assert!(first.computing > 0, "the counter sees the threads at all: {looks:?}");
    assert_eq!(last.computing - first.computing, 0, "allocations on compute threads: {looks:?}");
    let steps = last.step - first.step;
    assert!((last.all - first.all) / steps <= WHOLE_PROGRAM_PER_STEP, "allocations in all: {looks:?}");
}
