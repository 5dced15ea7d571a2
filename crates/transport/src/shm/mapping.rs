//! An arena mapped into this process, and the only place that turns offsets into addresses.
//!
//! Control words and trailers are atomics, so references to them are sound whatever other processes do. Floats are
//! given out as addresses; who may read or write them when is the barrier's affair.

use super::ShmError;
use super::bell::Bell;
use super::layout::{ABORT_BELL, ABORT_WORD, CONTROL, Layout, WORK, WORK_BYTES};
use dtrain_collective::Geometry;
use dtrain_types::{Bytes, Generation, Rank, SharedShape, Trailer, WorldSize};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The words by which ranks wait for one another; one block per rank.
#[repr(C, align(128))]
pub(super) struct Control {
    /// How many barriers this rank has reached, stamped with its generation.
    pub arrived: AtomicU64,
    /// The greatest generation in which this rank was taken by a backend.
    pub claimed: AtomicU64,
    /// For those who wait for `arrived`.
    pub bell: Bell,
    pub ahead: Ahead,
}

/// What a rank has done for the next sum before its barrier; its own pair of cache lines, because those who wait poll the
/// other. See `ahead.rs`.
#[repr(C, align(128))]
pub(super) struct Ahead {
    /// How much of its own roots is final.
    pub given: AtomicU64,
    /// How much of its share it has added up.
    pub folded: AtomicU64,
}

/// The words by which ranks share the work of one collective; one block in an arena.
#[repr(C)]
pub(super) struct Work {
    pub claims: Claimed,
    pub done: Done,
}

/// How many pieces are claimed; its own pair of cache lines, because those who wait poll the other.
#[repr(C, align(128))]
pub(super) struct Claimed {
    pub pieces: AtomicU64,
}

/// How many pieces are done.
#[repr(C, align(128))]
pub(super) struct Done {
    pub pieces: AtomicU64,
    /// For those who wait for the last of them.
    pub bell: Bell,
}

/// Floats from which huge pages are asked for: below, a page fault more or less does not matter.
const HUGE_FROM: usize = 4 << 20;

/// A mapped arena, shared by the threads of this process.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    layout: Layout,
    /// Ranks that a backend of this process holds: two of them would lend the same memory.
    held: Mutex<BTreeSet<u32>>,
}

// SAFETY: the mapping is plain memory that lives until drop; all access to it is by atomics, or by raw pointers under
// the barrier's rule that at any time one rank alone writes a float and nobody else reads it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self, ShmError> {
        let size = Bytes(layout.bytes as u64);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours. The file cannot shrink:
        // it is sealed, and its size was compared with the layout.
        let address = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), layout.bytes, access, MapFlags::SHARED, fd, 0)
        };
        let address = address.map_err(|error| ShmError::System { what: "map", size, error })?;
        if layout.bytes >= HUGE_FROM {
            // A hint only: where the system forbids huge pages for shared memory, small ones serve as well.
            // SAFETY: the range is the mapping just made.
            let _hint = unsafe { madvise(address, layout.bytes, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(address.cast()).expect("the kernel maps nothing at address 0 by itself");
        Ok(Self { base, layout, held: Mutex::new(BTreeSet::new()) })
    }

    /// The buffers of each rank.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.layout.geometry
    }

    /// For how many ranks there is room.
    #[must_use]
    pub fn world(&self) -> WorldSize {
        WorldSize(self.layout.world as u32)
    }

    pub(super) fn control(&self, rank: usize) -> &Control {
        const { assert!(size_of::<Control>() == CONTROL) };
        // SAFETY: the layout keeps the block inside the mapping and on a multiple of 128 bytes from a page boundary;
        // the block is made of atomics, for which any bytes are valid and shared writers are allowed.
        unsafe { self.base.add(self.layout.control(rank)).cast::<Control>().as_ref() }
    }

    /// The greatest generation that somebody aborted in this arena.
    pub(super) fn aborted(&self) -> &AtomicU64 {
        // SAFETY: the header lies at the page-aligned start of the mapping; an atomic as above.
        unsafe { self.base.add(ABORT_WORD * 8).cast::<AtomicU64>().as_ref() }
    }

    /// Futex word that rises with every abort, for those who wait for nothing else.
    pub(super) fn abort_bell(&self) -> &AtomicU32 {
        // SAFETY: as `aborted`; the word stands in a cache line of its own, still in the first page.
        unsafe { self.base.add(ABORT_BELL).cast::<AtomicU32>().as_ref() }
    }

    /// The words of shared work.
    pub(super) fn work(&self) -> &Work {
        const { assert!(size_of::<Work>() == WORK_BYTES && WORK.is_multiple_of(align_of::<Work>())) };
        // SAFETY: as `aborted`; the words stand in cache lines of their own, still in the first page.
        unsafe { self.base.add(WORK).cast::<Work>().as_ref() }
    }

    /// The memory for a state that the ranks have in common; of nothing if there is none.
    #[must_use]
    pub fn state_shape(&self) -> SharedShape {
        self.layout.state
    }

    /// The words of the state.
    pub(super) fn state_words(&self) -> &[AtomicU64] {
        // SAFETY: the layout keeps them inside the mapping, from a page boundary on; atomics as above.
        unsafe {
            let first = self.base.add(self.layout.words()).cast::<AtomicU64>();
            std::slice::from_raw_parts(first.as_ptr(), self.layout.state.words)
        }
    }

    /// Where an area of the state starts. *Units*: `f32` elements from [`Mapping::base`].
    pub(super) fn state_area(&self, area: usize) -> usize {
        self.layout.area(area) / size_of::<f32>()
    }

    fn trailer(&self, turn: usize, rank: usize, root: usize) -> &[AtomicU64; 8] {
        // SAFETY: the layout keeps the trailer inside the mapping and on a multiple of 64 bytes; atomics as above.
        unsafe { self.base.add(self.layout.trailer(turn, rank, root)).cast::<[AtomicU64; 8]>().as_ref() }
    }

    /// Which collective a rank has come to, and what it is, so that a peer that does something else is found out. It shares the cache
    /// line of the first trailer, which is read next.
    pub(super) fn announcement(&self, turn: usize, rank: usize) -> &AtomicU64 {
        &self.trailer(turn, rank, 0)[7]
    }

    /// Lays out a trailer for the peers; a barrier makes it seen.
    pub(super) fn put_trailer(&self, turn: usize, rank: usize, root: usize, trailer: &Trailer) {
        for (cell, word) in self.trailer(turn, rank, root).iter().zip(trailer.words()) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// Reads a trailer that a barrier made seen.
    pub(super) fn get_trailer(&self, turn: usize, rank: usize, root: usize) -> Trailer {
        let cells = self.trailer(turn, rank, root);
        Trailer::of_words(std::array::from_fn(|i| cells[i].load(Ordering::Relaxed)))
    }

    /// The start of the arena, for offsets of [`Mapping::slot`].
    pub(super) fn base(&self) -> *mut f32 {
        self.base.as_ptr().cast()
    }

    /// Where a slot starts. *Units*: `f32` elements from [`Mapping::base`].
    pub(super) fn slot(&self, rank: usize, slot: usize) -> usize {
        self.layout.slot(rank, slot) / size_of::<f32>()
    }

    /// Takes a rank for one backend. *Errors*: [`ShmError::RankTaken`] if another one has it, here or elsewhere.
    pub(super) fn claim(&self, rank: Rank, generation: Generation) -> Result<(), ShmError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains(&rank.0) {
            return Err(ShmError::RankTaken { rank, generation });
        }
        let before = self.control(rank.index()).claimed.fetch_max(generation.0, Ordering::AcqRel);
        if before >= generation.0 {
            return Err(ShmError::RankTaken { rank, generation });
        }
        held.insert(rank.0);
        Ok(())
    }

    /// Gives a claimed rank back. Its generation stays used up.
    pub(super) fn release(&self, rank: Rank) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank.0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; every reference into it borrows from `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.layout.bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
