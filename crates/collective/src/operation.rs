//! The collectives there are: what all ranks of a generation start in the same order.

use crate::Chunks;
use dtrain_types::{Rank, Trailer, WorldSize};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// The number of a collective in its generation; it rises by any amount and is the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One collective. All ranks of a generation start the same ones in the same order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op<'a> {
    /// Sums the roots of all ranks; the sum appears in slot 0 of every rank, or in one place for all ([`Backend::reduced`](crate::Backend::reduced)).
    AllReduce {
        /// Micro-batches in this step, at most those of a full step.
        micro_batches: u32,
        /// One trailer per own root, left to right; in ring mode one, or none without a micro-batch.
        trailers: &'a [Trailer],
    },
    /// As `AllReduce`, but each rank gets only its own chunk of the sum, in slot 0; the rest of slot 0 is undefined.
    ReduceScatter {
        /// Micro-batches in this step.
        micro_batches: u32,
        /// As in `AllReduce`.
        trailers: &'a [Trailer],
    },
    /// Each rank's own part of slot 0 appears in slot 0 of every rank.
    AllGather {
        /// Where the parts begin, and where the last one ends: rising, one more than there are ranks, the same on all of them. The even
        /// chunks of [`Chunks`] where it is none.
        cuts: Option<&'a [usize]>,
        /// The same on all ranks.
        take: Take,
    },
    /// Slot 0 of one rank appears in slot 0 of every rank.
    Broadcast {
        /// The rank that has it.
        from: Rank,
    },
    /// Nobody goes on before all are here.
    Barrier,
    /// Copies one window of state from ranks that have it to ranks that need it, bit for bit.
    ///
    /// The window is the start of slot 0, cut into one chunk per source as [`Chunks::even`] does: source `k` has filled chunk `k` of
    /// its own slot 0, and every target ends with the whole window in its own. What the others' slot 0 holds afterwards
    /// is undefined, except that a source's own chunk stays. Over frames a rank that is no target waits for nobody, so
    /// this is no barrier.
    Copy {
        /// Who has the state; rising, at least one.
        sources: &'a [Rank],
        /// Who needs it; rising, none of the sources.
        targets: &'a [Rank],
        /// How much of slot 0 the window is, from its start: all, where it has no more.
        len: usize,
    },
}

/// What ranks take in an all-gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All that the others give.
    All,
    /// What they lack: what each has already, its own part among it, lies in its slot 0, as [`Backend::narrow`](crate::Backend::narrow) said.
    /// All of it, where nothing was said.
    Rest,
    /// What each needs of what the others give, as [`Backend::narrow`](crate::Backend::narrow) said; what it does not need is undefined in its
    /// slot 0, but for its own part. All of it, where nothing was said.
    Needed,
}

dtrain_types::words!(
    /// Which collective, without its operands.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    OpKind {
        /// [`Op::AllReduce`].
        AllReduce = "all_reduce",
        /// [`Op::ReduceScatter`].
        ReduceScatter = "reduce_scatter",
        /// [`Op::AllGather`].
        AllGather = "all_gather",
        /// [`Op::Broadcast`].
        Broadcast = "broadcast",
        /// [`Op::Barrier`].
        Barrier = "barrier",
        /// [`Op::Copy`].
        Copy = "copy",
    }
);

impl OpKind {
    /// All of them, each at its number on the wire and in records.
    pub const ALL: [Self; 6] =
        [Self::AllReduce, Self::ReduceScatter, Self::AllGather, Self::Broadcast, Self::Barrier, Self::Copy];
}

impl Op<'_> {
    /// Which collective this is.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> OpKind {
        match self {
            Op::AllReduce { .. } => OpKind::AllReduce,
            Op::ReduceScatter { .. } => OpKind::ReduceScatter,
            Op::AllGather { .. } => OpKind::AllGather,
            Op::Broadcast { .. } => OpKind::Broadcast,
            Op::Barrier => OpKind::Barrier,
            Op::Copy { .. } => OpKind::Copy,
        }
    }

    /// The number that all ranks must agree on beside the kind: the micro-batches, the broadcasting rank, or a hash of
    /// who copies to whom, or of where parts begin.
    #[must_use]
    #[inline]
    pub fn operand(&self) -> u32 {
        match self {
            Op::AllReduce { micro_batches, .. } | Op::ReduceScatter { micro_batches, .. } => *micro_batches,
            Op::Broadcast { from } => from.0,
            Op::Copy { sources, targets, len } => {
                let sources = sources.iter().map(|rank| rank.0);
                hash(sources.chain([u32::MAX]).chain(targets.iter().map(|rank| rank.0)).chain([*len as u32]))
            }
            Op::AllGather { cuts: Some(cuts), take } => {
                hash(cuts.iter().map(|cut| *cut as u32).chain([*take as u32]))
            }
            Op::AllGather { cuts: None, .. } | Op::Barrier => 0,
        }
    }

    /// What ranks take; all in any collective but an all-gather.
    #[must_use]
    pub fn take(&self) -> Take {
        match self {
            Op::AllGather { take, .. } => *take,
            _ => Take::All,
        }
    }

    /// Micro-batches and trailers of a reduction; `None` for a collective that adds nothing.
    #[must_use]
    #[inline]
    pub fn reduction(&self) -> Option<(u32, &[Trailer])> {
        match self {
            Op::AllReduce { micro_batches, trailers } | Op::ReduceScatter { micro_batches, trailers } => {
                Some((*micro_batches, trailers))
            }
            Op::AllGather { .. } | Op::Broadcast { .. } | Op::Barrier | Op::Copy { .. } => None,
        }
    }

    /// *Panics* if the ranks that are named make no sense in a world of this size: only a bug can bring that about.
    #[inline]
    pub fn assert_fits(&self, world: WorldSize) {
        match *self {
            Op::Broadcast { from } => {
                assert!(from.0 < world.0, "rank {from} broadcasts in a world of {world}");
            }
            Op::Copy { sources, targets, .. } => {
                let rises = |ranks: &[Rank]| ranks.windows(2).all(|pair| pair[0] < pair[1]);
                let inside = |ranks: &[Rank]| ranks.last().is_none_or(|last| last.0 < world.0);
                assert!(
                    !sources.is_empty()
                        && [sources, targets].into_iter().all(|list| rises(list) && inside(list)),
                    "a copy from {sources:?} to {targets:?} in a world of {world}"
                );
                let both = targets.iter().find(|target| sources.binary_search(target).is_ok());
                assert!(both.is_none(), "rank {both:?} is both source and target of a copy");
            }
            Op::AllGather { cuts: Some(cuts), .. } => assert!(
                cuts.len() == world.0 as usize + 1 && cuts.is_sorted(),
                "{} cuts for a world of {world}",
                cuts.len()
            ),
            Op::AllReduce { .. }
            | Op::ReduceScatter { .. }
            | Op::AllGather { cuts: None, .. }
            | Op::Barrier => {}
        }
    }

    /// The part of slot 0 of `len` floats that `rank` gives in a collective that moves floats, and whether it takes the
    /// parts of the others. A rank that gives `Some` of an empty range still says so to those who take; one that gives
    /// `None` is not waited for. `None` altogether for a reduction.
    #[must_use]
    pub fn moves(&self, rank: usize, world: usize, len: usize) -> Option<Moves> {
        let at = Rank(rank as u32);
        let (gives, takes) = match self {
            Op::AllReduce { .. } | Op::ReduceScatter { .. } => return None,
            Op::AllGather { cuts: Some(cuts), .. } => (Some(cuts[rank]..cuts[rank + 1]), true),
            Op::AllGather { cuts: None, .. } => (Some(Chunks::even(len, world).chunk(rank)), true),
            Op::Broadcast { from } => (Some(Chunks::whole(len, from.index()).chunk(rank)), true),
            Op::Barrier => (Some(0..0), true),
            Op::Copy { sources, targets, len: window } => {
                let len = len.min(*window);
                let source = sources.binary_search(&at).ok();
                let chunk = source.map(|source| Chunks::even(len, sources.len()).chunk(source));
                (chunk, targets.binary_search(&at).is_ok())
            }
        };
        Some(Moves { gives, takes })
    }
}

/// FNV-1a.
fn hash(words: impl Iterator<Item = u32>) -> u32 {
    words
        .flat_map(u32::to_le_bytes)
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// What one rank does in a collective that moves floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The elements of slot 0 that it gives; `None` if it gives nothing, not even word.
    pub gives: Option<Range<usize>>,
    /// Whether it ends with the parts of all others.
    pub takes: bool,
}

impl Moves {
    /// What neighbours do together: their parts are one part.
    #[must_use]
    pub fn together(of_ranks: impl IntoIterator<Item = Self>) -> Self {
        let none = Self { gives: None, takes: false };
        of_ranks
            .into_iter()
            .fold(none, |all, one| Self { gives: join(all.gives, one.gives), takes: all.takes || one.takes })
    }
}

/// Parts of neighbours are neighbours, so together they are one part.
fn join(a: Option<Range<usize>>, b: Option<Range<usize>>) -> Option<Range<usize>> {
    match (a, b) {
        (Some(a), Some(b)) if a.is_empty() => Some(b),
        (Some(a), Some(b)) if b.is_empty() => Some(a),
        (Some(a), Some(b)) => Some(a.start.min(b.start)..a.end.max(b.end)),
        (a, b) => a.or(b),
    }
}
