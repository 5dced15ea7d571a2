//! A backend that its owner lends to somebody else for a while, and has back before it uses it again. It does not know who that is.

use dtrain_collective::Backend;
use std::ops::{Deref, DerefMut};

/// A backend, unless it is lent.
pub struct Lendable(Option<Box<dyn Backend>>);

/// Why it is there: whoever has lent it waits until it is back.
const HOME: &str = "a backend that is lent is not used";

impl Lendable {
    /// One that is there.
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self(Some(backend))
    }

    /// Lends it. *Panics* if it is lent.
    pub fn lend(&mut self) -> Box<dyn Backend> {
        self.0.take().expect(HOME)
    }

    /// Takes it back.
    pub fn take_back(&mut self, backend: Box<dyn Backend>) {
        self.0 = Some(backend);
    }

    /// It, to use. *Panics* if it is lent.
    pub fn as_mut(&mut self) -> &mut dyn Backend {
        &mut **self
    }
}

impl Deref for Lendable {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().expect(HOME)
    }
}

impl DerefMut for Lendable {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_deref_mut().expect(HOME)
    }
}
