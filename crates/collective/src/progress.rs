//! Which collective a backend is in, and whether it still lives. It does not know what the collective does.

use crate::{CollectiveError, Op, OpKind, Sequence};

/// What all ranks must agree on before they touch one another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The number of the collective.
    pub sequence: Sequence,
    /// Which one it is.
    pub kind: OpKind,
    /// [`Op::operand`].
    pub operand: u32,
}

impl Intent {
    /// To do `op` as number `sequence`.
    #[must_use]
    #[inline]
    pub fn new(sequence: Sequence, op: &Op<'_>) -> Self {
        Self { sequence, kind: op.kind(), operand: op.operand() }
    }
}

/// The life of a backend: one collective after the other, until the first error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    last: Option<Sequence>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Running(Intent),
    Dead,
}

impl Progress {
    /// *Errors*: `Dead`. *Panics* if a collective is in progress or the number does not rise.
    #[inline]
    pub fn may_begin(&self, sequence: Sequence) -> Result<(), CollectiveError> {
        if self.state == State::Dead {
            return Err(CollectiveError::Dead);
        }
        assert_eq!(self.state, State::Idle, "collective {sequence} starts inside another one");
        assert!(
            self.last.is_none_or(|last| last < sequence),
            "collective {sequence} comes after {:?}",
            self.last
        );
        Ok(())
    }

    /// Notes that a collective has begun.
    #[inline]
    pub fn begin(&mut self, intent: Intent) {
        self.last = Some(intent.sequence);
        self.state = State::Running(intent);
    }

    /// The collective in progress. *Errors*: `Dead`. *Panics* if it is another one, or none.
    #[inline]
    pub fn running(&self, sequence: Sequence) -> Result<Intent, CollectiveError> {
        let State::Running(intent) = self.state else {
            assert_eq!(self.state, State::Dead, "collective {sequence} finishes but was not started");
            return Err(CollectiveError::Dead);
        };
        assert_eq!(intent.sequence, sequence, "the collective in progress is another one");
        Ok(intent)
    }

    /// Notes that the collective is done.
    #[inline]
    pub fn end(&mut self) {
        self.state = State::Idle;
    }

    /// Passes a result on; after an error the backend is dead.
    #[inline]
    pub fn or_die<T>(&mut self, result: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        if result.is_err() {
            self.state = State::Dead;
        }
        result
    }

    /// Whether there was an error.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// *Panics* unless slots may be lent: between collectives of a living backend.
    pub fn assert_idle(&self) {
        assert_eq!(self.state, State::Idle, "slots are lent between collectives of a living backend only");
    }
}
