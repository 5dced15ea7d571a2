//! Memory in which the ranks of a host have one state in common, passed on by those who do not know how they come by it.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Areas of floats in such memory.
pub const SHARED_AREAS: usize = 7;

/// How much of it there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedShape {
    /// Elements of each area.
    pub floats: [usize; SHARED_AREAS],
    /// Words.
    pub words: usize,
}

/// Floats that several ranks see.
///
/// Whoever holds them keeps a rule with all others: no two write the same part at a time, and nobody reads what is being written.
pub trait SharedFloats: Debug + Send {
    /// Elements.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    fn read(&self) -> &[f32];

    /// A part, to write. *Panics* if there is no such part.
    fn part(&mut self, part: Range<usize>) -> &mut [f32];
}

/// Memory of a host as one of its ranks sees it: areas of floats, and words by which ranks tell one another what is in them. All
/// of it is zero at first. It lives as long as this, or anything that it lent, and as long as any rank of the host; what a rank wrote
/// stays when it dies.
pub trait SharedState: Debug + Send {
    /// How much there is.
    fn shape(&self) -> SharedShape;

    /// One of the areas. *Panics* if there is no such area.
    fn floats(&self, area: usize) -> Box<dyn SharedFloats>;

    /// The words.
    fn words(&self) -> &[AtomicU64];
}
