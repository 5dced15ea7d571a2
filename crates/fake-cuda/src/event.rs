//! An event: a place in a stream's queue, and the time at which the stream came there.

use crate::stream::Stream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(crate) struct Event {
    /// Whether it keeps the time.
    pub timed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    place: Option<(Arc<Stream>, u64)>,
    reached: Option<Instant>,
}

impl Event {
    pub fn timed() -> Self {
        Self { timed: true, state: Mutex::default() }
    }

    pub fn untimed() -> Self {
        Self { timed: false, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it was recorded last; nothing means that it counts as reached.
    pub fn place(&self) -> Option<(Arc<Stream>, u64)> {
        self.state().place.clone()
    }

    /// When the stream came to where it was recorded last, if it has.
    pub fn reached(&self) -> Option<Instant> {
        self.state().reached
    }

    pub fn record(self: Arc<Self>, stream: Arc<Stream>) {
        if self.timed {
            self.state().reached = None;
            let event = Arc::clone(&self);
            stream.give(Box::new(move || {
                event.state().reached = Some(Instant::now());
                crate::codes::SUCCESS
            }));
        }
        let given = stream.given();
        self.state().place = Some((stream, given));
    }
}
