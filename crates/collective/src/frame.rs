//! The seam for frames: what travels between ranks, and what a receiver may say about it.
//!
//! A tag names a frame's place in the schedules of all generations, so nothing depends on the moment it arrives.
//! This file does not know bytes on a wire; a transport turns a header and its floats into those.

use crate::{CollectiveError, Tag};
use dtrain_types::{Rank, Trailer, Wire};
use std::sync::Arc;

/// A tag, what its floats are, and the small record beside them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Its place.
    pub tag: Tag,
    /// What the floats are rounded to, so that a transport may leave out what is zero.
    pub wire: Wire,
    /// The trailer of one root, on the frames that carry one.
    pub trailer: Option<Trailer>,
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame<'a> {
    /// The sender, as the transport knows it.
    pub from: Rank,
    /// Tag and trailer.
    pub header: Header,
    /// The floats; none for a rank that has nothing to add.
    pub payload: &'a [f32],
}

/// A frame that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outgoing<'a> {
    /// The receiver.
    pub to: Rank,
    /// Tag and trailer.
    pub header: Header,
    /// The floats.
    pub payload: &'a [f32],
}

/// What the receiver says about a frame it was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was used.
    Taken,
    /// It is of an older generation: drop it.
    Stale,
    /// It is of a later collective or generation, or there is no room for it yet: offer it again, before anything else of that sender.
    Later,
}

/// Ends a wait from any thread: the present one, or else the next.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Moves frames between the ranks of one or several generations, reliably and, per sender, in order.
///
/// Nothing here blocks but `wait`. Queues are bounded; a full one is told to the sender, never hidden.
pub trait Transport: Send {
    /// Queues a copy of the frame; `Ok(false)` when the receiver's queue is full and nothing was queued.
    ///
    /// *Errors*: [`CollectiveError::Lost`] when the peer cannot be reached any more.
    fn try_send(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError>;

    /// As `try_send`, for a sender that comes back late: the queue may get longer than is best for one that waits.
    fn try_send_ahead(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        self.try_send(frame)
    }

    /// Offers what has arrived, per sender in order, and counts what was used or dropped.
    ///
    /// A sender whose foremost frame is `Later` is passed over. *Errors*: those of `sink`, and `Lost`.
    fn receive(
        &mut self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError>;

    /// *Blocks* until something has changed since the last `receive`: a frame came, a queue has room again, or the
    /// waker was called. It may return for no reason.
    fn wait(&mut self) -> Result<(), CollectiveError>;

    /// Notes that nobody will wait for a while. Whoever waits must call it before turning to something else: a transport may
    /// have the waiting thread do its work.
    fn rest(&mut self) {}

    /// Ends a wait from another thread.
    fn waker(&self) -> Waker;

    /// What it is, for the log.
    fn describe(&self) -> String;
}

/// So that who builds a backend need not know, at compile time, which transport a run has.
impl<T: Transport + ?Sized> Transport for Box<T> {
    fn try_send(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        (**self).try_send(frame)
    }

    fn try_send_ahead(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        (**self).try_send_ahead(frame)
    }

    fn receive(
        &mut self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError> {
        (**self).receive(sink)
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        (**self).wait()
    }

    fn rest(&mut self) {
        (**self).rest();
    }

    fn waker(&self) -> Waker {
        (**self).waker()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}
