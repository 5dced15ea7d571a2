//! The memory in which the ranks of one communicator meet: control words, and a queue for each ordered pair of ranks.
//!
//! All of it is atomics, or bytes that a queue gives to one side at a time. It does not know what the bytes mean.

use crate::channel::{CAPACITY, Channel};
use crate::last_error::Failure;
use nccl_sys::ncclUniqueId;
use rustix::fs::{MemfdFlags, OFlags, ftruncate, memfd_create, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// More ranks than a test has.
pub(crate) const MOST_RANKS: usize = 64;
/// The first bytes of a unique id of this library.
const MARK: &[u8; 8] = b"FAKENCCL";
/// Bytes of one rank's block of control words.
const CONTROL: usize = 64;
/// Where the control words begin, and the queues behind them.
const CONTROLS: usize = 64;
const CHANNELS: usize = CONTROLS + MOST_RANKS * CONTROL;

/// Looks at a condition before a rank sleeps.
const YIELDS: u32 = 100;
/// The longest sleep before a rank looks again, in case a bell was not heard.
const NAP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The memfds of unique ids that this process made, by nonce, until all have joined.
static MADE: Mutex<BTreeMap<u64, OwnedFd>> = Mutex::new(BTreeMap::new());

#[repr(C)]
struct Head {
    nonce: AtomicU64,
    /// Ranks, 0 until the first has joined.
    world: AtomicU32,
    joined: AtomicU32,
}

/// The words of one rank.
#[repr(C)]
pub(crate) struct Control {
    pub joined: AtomicU32,
    pub finalized: AtomicU32,
    /// Futex word: rises when this rank should look again.
    bell: AtomicU32,
    asleep: AtomicU32,
}

/// Makes a unique id and the memory that it names.
pub(crate) fn make_id() -> Result<ncclUniqueId, Failure> {
    let failed = |error| Failure::system("no memory to meet in", error);
    let fd = memfd_create("fake-nccl", MemfdFlags::CLOEXEC).map_err(failed)?;
    ftruncate(&fd, CHANNELS as u64).map_err(failed)?;
    let mut nonce = [0u8; 8];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty()).map_err(failed)?;
    rustix::io::pwrite(&fd, &nonce, 0).map_err(failed)?;
    let number = u64::from_ne_bytes(nonce);
    let mut bytes = [0u8; 128];
    bytes[..8].copy_from_slice(MARK);
    bytes[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
    bytes[12..16].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
    bytes[16..24].copy_from_slice(&nonce);
    MADE.lock().unwrap_or_else(PoisonError::into_inner).insert(number, fd);
    Ok(ncclUniqueId { internal: bytes.map(|byte| byte as _) })
}

/// The memory of one communicator, mapped into this process.
pub(crate) struct Segment {
    base: NonNull<u8>,
    bytes: usize,
    world: usize,
}

// SAFETY: the mapping lives until drop; what is in it is atomics, and bytes that a queue gives to one side at a time.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps the memory that an id names, for a communicator of `world` ranks.
    pub fn open(id: &ncclUniqueId, world: usize) -> Result<Self, Failure> {
        let bytes = id.internal.map(|byte| byte as u8);
        if &bytes[..8] != MARK {
            return Err(Failure::argument("this is no unique id of this library"));
        }
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let nonce = u64::from_ne_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let path = format!("/proc/{}/fd/{}", word(8), word(12));
        let gone = |error| Failure::system("the process that made the unique id cannot be reached", error);
        let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty()).map_err(gone)?;
        let mut found = [0u8; 8];
        rustix::io::pread(&fd, &mut found, 0).map_err(gone)?;
        if u64::from_ne_bytes(found) != nonce {
            return Err(gone(rustix::io::Errno::STALE));
        }
        let bytes = CHANNELS + world * world * Channel::BYTES;
        // Every rank asks for the same size, so it does not matter who is first.
        ftruncate(&fd, bytes as u64).map_err(gone)?;
        let segment = Self::map(&fd, bytes, world).map_err(gone)?;
        let head = segment.head();
        match head.world.compare_exchange(0, world as u32, Ordering::SeqCst, Ordering::SeqCst) {
            Err(other) if other as usize != world => {
                Err(Failure::argument(format!("a peer says that there are {other} ranks, not {world}")))
            }
            _ => Ok(segment),
        }
    }

    fn map(fd: &impl AsFd, bytes: usize, world: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address 0 by itself");
        Ok(Self { base, bytes, world })
    }

    pub fn world(&self) -> usize {
        self.world
    }

    fn head(&self) -> &Head {
        // SAFETY: the head lies at the page-aligned start and is made of atomics, for which any bytes are valid.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    pub fn control(&self, rank: usize) -> &Control {
        assert!(rank < self.world, "rank {rank} of {}", self.world);
        // SAFETY: inside the mapping by the assertion, aligned to 64 bytes; atomics as above.
        unsafe { self.base.add(CONTROLS + rank * CONTROL).cast::<Control>().as_ref() }
    }

    /// The queue from one rank to another.
    pub fn channel(&self, from: usize, to: usize) -> Channel<'_> {
        assert!(from < self.world && to < self.world, "{from} to {to} of {}", self.world);
        let at = CHANNELS + (from * self.world + to) * Channel::BYTES;
        // SAFETY: the queue lies inside the mapping, which was made for this many ranks, and is aligned to 64 bytes.
        unsafe { Channel::at(self.base.add(at)) }
    }

    /// Takes a place; an error if it is taken.
    pub fn join(&self, rank: usize) -> Result<(), Failure> {
        if self.control(rank).joined.swap(1, Ordering::SeqCst) != 0 {
            return Err(Failure::usage(format!("rank {rank} has joined before")));
        }
        self.head().joined.fetch_add(1, Ordering::SeqCst);
        (0..self.world).for_each(|peer| self.ring(peer));
        Ok(())
    }

    /// Whether all ranks are there. Then the memory needs its name no more.
    pub fn all_joined(&self) -> bool {
        let all = self.head().joined.load(Ordering::SeqCst) as usize == self.world;
        if all {
            let nonce = self.head().nonce.load(Ordering::SeqCst);
            MADE.lock().unwrap_or_else(PoisonError::into_inner).remove(&nonce);
        }
        all
    }

    /// Tells a rank to look again.
    pub fn ring(&self, rank: usize) {
        let control = self.control(rank);
        control.bell.fetch_add(1, Ordering::SeqCst);
        if control.asleep.load(Ordering::SeqCst) != 0 {
            let _woken = futex::wake(&control.bell, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// *Blocks* until `look` says that there is no more to wait for.
    pub fn wait(&self, rank: usize, mut look: impl FnMut() -> bool) {
        let control = self.control(rank);
        loop {
            for _ in 0..YIELDS {
                if look() {
                    return;
                }
                rustix::thread::sched_yield();
            }
            control.asleep.store(1, Ordering::SeqCst);
            let bell = control.bell.load(Ordering::SeqCst);
            if look() {
                return;
            }
            let _woken = futex::wait(&control.bell, futex::Flags::empty(), bell, Some(&NAP));
            control.asleep.store(0, Ordering::SeqCst);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made above, and nothing borrowed from it outlives the segment.
        let _result = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

const _: () = assert!(size_of::<Control>() <= CONTROL && CHANNELS.is_multiple_of(64));
const _: () = assert!(CAPACITY.is_multiple_of(64));
