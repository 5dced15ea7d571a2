//! Memory of a device, and pinned memory: blocks between guard words that are never handed out twice.

use crate::world::complain;
use std::alloc::{Layout, alloc};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Bytes before and behind a block, and what every block is aligned to.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;
/// What fresh memory holds: as floats, NaN.
const FRESH_BYTE: u8 = 0xff;
const FREED_BYTE: u8 = 0xdb;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Pinned,
}

struct Block {
    bytes: usize,
    kind: Kind,
    live: bool,
}

pub(crate) struct Memory {
    limit: usize,
    /// By address.
    blocks: Mutex<BTreeMap<usize, Block>>,
}

/// A byte of a block or of its guards.
fn byte(address: usize) -> *mut u8 {
    address as *mut u8
}

/// So much is compared at once.
const PIECE: usize = 4096;

unsafe extern "C" {
    fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> c_int;
}

/// The first byte in a range that is not as it should be. Tests look at megabytes after every launch, so it is the C library that
/// compares; and not Rust's slices, because kernels write behind the compiler's back.
///
/// # Safety
/// The range was allocated.
unsafe fn spoiled(range: std::ops::Range<usize>, wanted: u8) -> Option<usize> {
    let whole = [wanted; PIECE];
    let piece = |from: usize| from..range.end.min(from + PIECE);
    // SAFETY: the caller's promise; a piece is no longer than what it is compared with.
    let differs = |piece: &std::ops::Range<usize>| unsafe {
        memcmp(byte(piece.start), whole.as_ptr(), piece.len()) != 0
    };
    let mut piece = range.clone().step_by(PIECE).map(piece).find(differs)?;
    // SAFETY: the caller's promise.
    piece.find(|address| unsafe { byte(*address).read_volatile() } != wanted)
}

impl Memory {
    pub fn new(limit: usize) -> Self {
        Self { limit, blocks: Mutex::new(BTreeMap::new()) }
    }

    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<usize, Block>) -> R) -> R {
        work(&mut self.blocks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes that are left, and bytes in all.
    pub fn room(&self) -> [usize; 2] {
        let used = |blocks: &mut BTreeMap<usize, Block>| -> usize {
            let on_device = blocks.values().filter(|block| block.live && block.kind == Kind::Device);
            on_device.map(|block| block.bytes).sum()
        };
        [self.limit - self.with(used), self.limit]
    }

    /// A new block; nothing if there is not so much.
    pub fn allocate(&self, bytes: usize, kind: Kind) -> Option<usize> {
        if kind == Kind::Device && bytes > self.room()[0] {
            return None;
        }
        let layout = Layout::from_size_align(bytes.checked_add(2 * GUARD)?, GUARD).ok()?;
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return None;
        }
        // SAFETY: all of it was allocated just now.
        unsafe {
            base.write_bytes(GUARD_BYTE, layout.size());
            base.add(GUARD).write_bytes(FRESH_BYTE, bytes);
        }
        let address = base as usize + GUARD;
        self.with(|blocks| blocks.insert(address, Block { bytes, kind, live: true }));
        Some(address)
    }

    /// Takes a block back; whether there was one. It is never handed out again.
    pub fn free(&self, address: usize, kind: Kind) -> bool {
        self.with(|blocks| {
            let Some(block) = blocks.get_mut(&address).filter(|block| block.kind == kind && block.live)
            else {
                complain(format!("{address:#x} is freed, and is no {kind:?} memory that was handed out"));
                return false;
            };
            check(address, block);
            block.live = false;
            // SAFETY: the block is still allocated.
            unsafe { byte(address).write_bytes(FREED_BYTE, block.bytes) };
            true
        })
    }

    /// Whether a range lies in one block, of this kind or any.
    pub fn has(&self, address: usize, bytes: usize, kind: Option<Kind>) -> bool {
        self.with(|blocks| {
            let Some((start, block)) = blocks.range(..=address).next_back() else { return false };
            let fits = address - start <= block.bytes && bytes <= block.bytes - (address - start);
            fits && block.live && kind.is_none_or(|kind| kind == block.kind)
        })
    }

    /// Complains about guard words that were written to, and about what was freed and then written to. How many blocks are
    /// alive.
    pub fn look(&self) -> usize {
        self.with(|blocks| {
            blocks.iter().for_each(|(address, block)| check(*address, block));
            blocks.values().filter(|block| block.live).count()
        })
    }
}

fn check(address: usize, block: &Block) {
    let end = address + block.bytes;
    for (what, range) in [("before", address - GUARD..address), ("behind", end..end + GUARD)] {
        // SAFETY: guards belong to the block, and blocks are never given back.
        if let Some(at) = unsafe { spoiled(range, GUARD_BYTE) } {
            let place = at as isize - address as isize;
            complain(format!("{what} a block of {} bytes something was written, at {place}", block.bytes));
        }
    }
    // SAFETY: as above.
    if let Some(at) = (!block.live).then(|| unsafe { spoiled(address..end, FREED_BYTE) }).flatten() {
        let (bytes, place) = (block.bytes, at - address);
        complain(format!("a block of {bytes} bytes was written to after it was freed, at {place}"));
    }
}
