//! Brings rows to a tracker: from the file that is there anyway, on a thread of its own, as far as the tracker takes them.
//!
//! After each batch the cursor is saved. A tracker may be sent a batch a second time (this process died in between), and knows rows by
//! their numbers or times.

use super::cursor::{Cursor, CursorError, CursorFile};
use super::{CurveRow, EndStatus, TrackError, TrackedRun, Tracker, rows};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often new lines are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// The first pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// For one more attempt at the end, where those before came to nothing.
const LAST_ATTEMPT: Duration = Duration::from_secs(5);
/// So much that people should know is kept for them at most.
const MOST_NEWS: usize = 16;

/// What came of sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The tracker.
    pub tracker: &'static str,
    /// Rows sent now.
    pub rows: u64,
    /// Where a person finds the run, once the tracker knows it.
    pub place: Option<String>,
    /// Why something is left.
    pub problem: Option<TrackError>,
}

/// A thread that brings rows to a tracker while a run goes on.
pub struct Courier {
    name: &'static str,
    end: Sender<(EndStatus, Instant)>,
    ended: Receiver<Delivered>,
    news: News,
}

/// What people should know of a courier's work.
#[derive(Clone, Debug, Default)]
pub struct News {
    texts: Arc<Mutex<Vec<String>>>,
    fails: Arc<AtomicBool>,
}

impl News {
    /// Everything that was not taken before.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock())
    }

    fn tell(&self, text: String) {
        let mut news = self.lock();
        if news.len() < MOST_NEWS {
            news.push(text);
        }
    }

    /// Whether the newest attempt came to nothing.
    fn is_failing(&self) -> bool {
        self.fails.load(Ordering::Acquire)
    }

    fn failed(&self, text: String) {
        self.fails.store(true, Ordering::Release);
        self.tell(text);
    }

    fn answers_again(&self, text: String) {
        self.fails.store(false, Ordering::Release);
        self.tell(text);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Courier {
    /// Starts it.
    ///
    /// *Errors*: another process does the same; the cursor cannot be read; no thread.
    pub fn start(run: TrackedRun, tracker: Box<dyn Tracker>) -> Result<Self, CursorError> {
        let name = tracker.name();
        let (file, mut cursor) = CursorFile::open(&run.folder, name)?;
        // What a power cut took from the file the tracker has; it goes on behind what is there, and nothing was written since.
        let written = std::fs::metadata(run.folder.join(rows::FILE)).map_or(0, |file| file.len());
        cursor.offset = cursor.offset.min(written);
        let (end, told) = channel();
        let (tell, ended) = channel();
        let news = News::default();
        let folder = run.folder.clone();
        let delivery = Delivery { run, tracker, file, cursor, is_begun: false, sent: 0 };
        let own = news.clone();
        // Whoever waits for it may have given up.
        let work = move || drop(tell.send(while_running(delivery, &told, &own)));
        let thread = std::thread::Builder::new().name(format!("track-{name}")).spawn(work);
        thread.map_err(|source| CursorError::Io { path: folder, source })?;
        Ok(Self { name, end, ended, news })
    }

    /// What people should know.
    #[must_use]
    pub fn news(&self) -> News {
        self.news.clone()
    }

    /// Has it send what is left until then, and tell the tracker how the run ended; how long it may take, which is less for a tracker
    /// that did not answer at last.
    #[must_use]
    pub fn end(&self, status: EndStatus, until: Instant) -> Instant {
        // Whoever has not answered for a while will not do so now.
        let until = if self.news.is_failing() { until.min(Instant::now() + LAST_ATTEMPT) } else { until };
        // It is gone only after a panic, which it has told itself.
        let _ = self.end.send((status, until));
        until
    }

    /// What came of it, after [`Courier::end`]. *Blocks* for no longer than until then.
    #[must_use]
    pub fn came_to(self, until: Instant) -> Delivered {
        let ended = self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        ended.unwrap_or_else(|_| Delivered {
            tracker: self.name,
            rows: 0,
            place: None,
            problem: Some(TrackError::Passing("it takes longer than it was waited for".into())),
        })
    }
}

/// Sends everything that is there, now. The tracker is told how the run ended where that is known: by what was left to be told, or
/// `status`.
///
/// *Errors*: the cursor cannot be had. *Blocks* until everything is sent, or the tracker does not take it.
pub fn deliver(
    run: TrackedRun,
    tracker: Box<dyn Tracker>,
    status: EndStatus,
) -> Result<Delivered, CursorError> {
    let (file, cursor) = CursorFile::open(&run.folder, tracker.name())?;
    let mut delivery = Delivery { run, tracker, file, cursor, is_begun: false, sent: 0 };
    let status = delivery.cursor.ends_with.unwrap_or(status);
    let problem = delivery.all(None).and_then(|()| delivery.end(status)).err();
    Ok(delivery.came_to(problem))
}

struct Delivery {
    run: TrackedRun,
    tracker: Box<dyn Tracker>,
    file: CursorFile,
    cursor: Cursor,
    /// Whether the tracker knows the run in this process.
    is_begun: bool,
    sent: u64,
}

impl Delivery {
    /// Sends a batch; false if there is none.
    fn some(&mut self) -> Result<bool, TrackError> {
        if !self.is_begun {
            let begun = self.tracker.begin(&self.run, &mut self.cursor);
            // What it knows so far is kept in any case: a run that was made must not be made twice.
            self.save()?;
            begun?;
            self.is_begun = true;
        }
        let batch = rows::read(&self.run.folder, self.cursor.offset)
            .map_err(|error| TrackError::Final(format!("metrics.jsonl: {error}")))?;
        if batch.end == self.cursor.offset {
            return Ok(false);
        }
        let rows: &[CurveRow] = &batch.rows;
        if !rows.is_empty() {
            self.tracker.send(rows, &self.cursor)?;
        }
        self.cursor.offset = batch.end;
        self.cursor.rows += rows.len() as u64;
        self.sent += rows.len() as u64;
        self.save()?;
        Ok(true)
    }

    fn all(&mut self, until: Option<Instant>) -> Result<(), TrackError> {
        while self.some()? {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(TrackError::Passing("it takes longer than it was waited for".into()));
            }
        }
        Ok(())
    }

    fn end(&mut self, status: EndStatus) -> Result<(), TrackError> {
        self.tracker.end(status, &self.cursor)?;
        self.cursor.ends_with = None;
        self.save()
    }

    fn save(&self) -> Result<(), TrackError> {
        self.file.save(&self.cursor).map_err(|error| TrackError::Passing(format!("track/: {error}")))
    }

    fn came_to(&self, problem: Option<TrackError>) -> Delivered {
        let known = !self.cursor.run_id.is_empty();
        Delivered {
            tracker: self.tracker.name(),
            rows: self.sent,
            place: known.then(|| self.tracker.place(&self.cursor)),
            problem,
        }
    }
}

fn while_running(mut delivery: Delivery, told: &Receiver<(EndStatus, Instant)>, news: &News) -> Delivered {
    let (mut pause, mut told_of) = (FIRST_PAUSE, None);
    loop {
        let wait = match delivery.some() {
            Ok(more) => {
                if told_of.take().is_some() {
                    news.answers_again(format!("{}: it answers again", delivery.tracker.name()));
                }
                pause = FIRST_PAUSE;
                if more { Duration::ZERO } else { LOOK }
            }
            Err(error) => {
                let text = error.to_string();
                if told_of.as_ref() != Some(&text) {
                    let name = delivery.tracker.name();
                    news.failed(format!("{name}: {text}; training goes on, and nothing is lost"));
                    told_of = Some(text);
                }
                // Somebody has to mend it, and may do so while the run goes on.
                if matches!(error, TrackError::Final(_)) {
                    pause = LONGEST_PAUSE;
                }
                let wait = pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
                wait
            }
        };
        match told.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            // Nobody waits for an end: this process is ending.
            Err(RecvTimeoutError::Disconnected) => return delivery.came_to(None),
            Ok((status, until)) => {
                delivery.cursor.ends_with = Some(status);
                let saved = delivery.save();
                let ended = delivery.all(Some(until)).and_then(|()| delivery.end(status));
                return delivery.came_to(saved.and(ended).err());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// What a tracker was sent, and what it answers.
    #[derive(Default)]
    struct Told {
        begun: u32,
        rows: Vec<(u64, u64)>,
        ended: Option<EndStatus>,
        fails: Option<TrackError>,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Told>>);

    impl Fake {
        fn answer(&self) -> Result<(), TrackError> {
            self.0.lock().unwrap().fails.clone().map_or(Ok(()), Err)
        }
    }

    impl Tracker for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }
        fn begin(&mut self, _: &TrackedRun, cursor: &mut Cursor) -> Result<(), TrackError> {
            self.answer()?;
            cursor.run_id = "id".into();
            self.0.lock().unwrap().begun += 1;
            Ok(())
        }
        fn send(&mut self, rows: &[CurveRow], cursor: &Cursor) -> Result<(), TrackError> {
            self.answer()?;
            let numbered = rows.iter().zip(cursor.rows..).map(|(row, number)| (number, row.step));
            self.0.lock().unwrap().rows.extend(numbered);
            Ok(())
        }
        fn end(&mut self, status: EndStatus, _: &Cursor) -> Result<(), TrackError> {
            self.answer()?;
            self.0.lock().unwrap().ended = Some(status);
            Ok(())
        }
        fn place(&self, cursor: &Cursor) -> String {
            cursor.run_id.clone()
        }
    }

    fn write(run: &std::path::Path, steps: std::ops::Range<u64>) {
        let path = run.join("metrics.jsonl");
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        for step in steps {
            writeln!(file, "{{\"time\":1.0,\"kind\":\"step\",\"step\":{step},\"loss\":0.5}}").unwrap();
        }
    }

    fn finish(courier: Courier, status: EndStatus, patience: Duration) -> Delivered {
        let until = courier.end(status, Instant::now() + patience);
        courier.came_to(until)
    }

    fn run(folder: &std::path::Path) -> TrackedRun {
        TrackedRun { folder: folder.to_owned(), ..TrackedRun::default() }
    }

    #[test]
    fn rows_that_a_tracker_did_not_take_are_sent_later_and_none_twice() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1..4);
        let fake = Fake::default();
        let courier = Courier::start(run(folder.path()), Box::new(fake.clone())).unwrap();
        let done = finish(courier, EndStatus::Finished, Duration::from_secs(20));
        assert_eq!((done.rows, done.problem), (3, None));
        assert_eq!(done.place.as_deref(), Some("id"));
        // It is down while more is written, and ends so.
        fake.0.lock().unwrap().fails = Some(TrackError::Passing("down".into()));
        write(folder.path(), 4..6);
        let courier = Courier::start(run(folder.path()), Box::new(fake.clone())).unwrap();
        let done = finish(courier, EndStatus::Stopped, Duration::from_secs(20));
        assert_eq!((done.rows, done.problem), (0, Some(TrackError::Passing("down".into()))));
        // Later it is up: it hears how that life ended, whatever is thought of it now.
        fake.0.lock().unwrap().fails = None;
        let done = deliver(run(folder.path()), Box::new(fake.clone()), EndStatus::Failed).unwrap();
        assert_eq!((done.rows, done.problem), (2, None));
        let told = fake.0.lock().unwrap();
        assert_eq!(told.rows, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]);
        assert_eq!((told.begun, told.ended), (2, Some(EndStatus::Stopped)));
    }

    #[test]
    fn a_tracker_that_hangs_is_not_waited_for() {
        struct Hangs(Receiver<()>);
        impl Tracker for Hangs {
            fn name(&self) -> &'static str {
                "hangs"
            }
            fn begin(&mut self, _: &TrackedRun, _: &mut Cursor) -> Result<(), TrackError> {
                // Until the test is over.
                let _ = self.0.recv();
                Ok(())
            }
            fn send(&mut self, _: &[CurveRow], _: &Cursor) -> Result<(), TrackError> {
                Ok(())
            }
            fn end(&mut self, _: EndStatus, _: &Cursor) -> Result<(), TrackError> {
                Ok(())
            }
            fn place(&self, _: &Cursor) -> String {
                String::new()
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (_free, hangs) = channel();
        let courier = Courier::start(run(folder.path()), Box::new(Hangs(hangs))).unwrap();
        let done = finish(courier, EndStatus::Finished, Duration::from_millis(50));
        assert!(done.problem.is_some() && done.rows == 0);
    }
}
