//! Parameters that stay as they are and lie apart from those that are trained: nobody writes them, so replicas of one host may read the same memory.
//!
//! It does not know where they come from.

use crate::flat::Flat;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// What the parameters in [`Section::Frozen`](crate::Section::Frozen) are, in order of offset. Clones read the same memory.
#[derive(Clone)]
pub struct Frozen(Arc<dyn AsRef<[f32]> + Send + Sync>);

impl Frozen {
    /// Of memory that stays as it is, whoever has it.
    #[must_use]
    pub fn new(memory: impl AsRef<[f32]> + Send + Sync + 'static) -> Self {
        Self(Arc::new(memory))
    }
}

impl From<Flat> for Frozen {
    /// *Panics* if the memory is shared with others.
    fn from(mut memory: Flat) -> Self {
        let all = 0..memory.len();
        Self::new(memory.lend(all).expect("memory that nobody else writes"))
    }
}

impl Default for Frozen {
    /// Of no parameter.
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Deref for Frozen {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} floats", self.len())
    }
}
