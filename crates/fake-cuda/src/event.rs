//! An event: a place in a stream's queue.

use crate::stream::Stream;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct Event(Mutex<Option<(Arc<Stream>, u64)>>);

impl Event {
    /// Where it was recorded last; nothing means that it counts as reached.
    pub fn place(&self) -> Option<(Arc<Stream>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn record(&self, stream: Arc<Stream>) {
        let given = stream.given();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((stream, given));
    }
}
