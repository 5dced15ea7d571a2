//! Memory of a device, and memory of the host that its copies can reach.

use super::context::Context;
use super::error::DriverError;
use crate::memory::{Element, Slice, SliceMut};
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Memory of a device. What it holds at first is not known.
///
/// The driver frees it only when all work that was given before is done.
#[derive(Debug)]
pub struct Buffer<T> {
    context: Arc<Context>,
    address: u64,
    len: usize,
    holds: PhantomData<T>,
}

/// Bytes of a list, and at least one: the driver gives no address for nothing.
fn bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).max(1)
}

impl<T: Element> Buffer<T> {
    /// Room for `len` elements.
    ///
    /// *Errors*: [`DriverError::OutOfMemory`].
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, DriverError> {
        let (mut address, bytes) = (0, bytes::<T>(len));
        // SAFETY: the place outlives the call.
        let got = context.call("cuMemAlloc_v2", || unsafe { sys::cuMemAlloc_v2(&mut address, bytes) });
        got.map_err(|error| out_of_memory(context, bytes, error))?;
        if let Some(paper) = context.paper() {
            address = paper.take(bytes);
        }
        context.note_taken(bytes);
        Ok(Self { context: context.clone(), address, len, holds: PhantomData })
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Lent for reading.
    #[must_use]
    pub fn read(&self) -> Slice<'_, T> {
        // SAFETY: the elements lie there as long as this lives. It is freed behind all work that was given, and a device
        // that has failed keeps it.
        unsafe { Slice::new(self.address, self.len) }
    }

    /// Lent for writing.
    #[must_use]
    pub fn write(&mut self) -> SliceMut<'_, T> {
        // SAFETY: as above; the borrow keeps others away.
        unsafe { SliceMut::new(self.address, self.len) }
    }
}

/// Says how much there is, if that is what was lacking.
fn out_of_memory(context: &Context, wanted: usize, error: DriverError) -> DriverError {
    if !matches!(error, DriverError::Call { code: 2, .. }) {
        return error;
    }
    let (mut free, mut total) = (0, 0);
    // SAFETY: the places outlive the call.
    let asked = context.call("cuMemGetInfo_v2", || unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) });
    match asked {
        Ok(()) => DriverError::OutOfMemory { wanted: wanted as u64, free: free as u64, total: total as u64 },
        Err(_) => error,
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.context.submit_all();
        self.context.note_given_back(bytes::<T>(self.len));
        // SAFETY: it came from `cuMemAlloc_v2`, and is given back once.
        self.context.give_back("cuMemFree_v2", || unsafe { sys::cuMemFree_v2(self.address) });
    }
}

/// Elements of a buffer that others hold too.
#[derive(Debug)]
pub struct Part<T> {
    memory: Arc<Buffer<T>>,
    elements: Range<usize>,
}

impl<T: Element> From<Buffer<T>> for Part<T> {
    /// All of it, and nobody else has any.
    fn from(memory: Buffer<T>) -> Self {
        Self { elements: 0..memory.len, memory: Arc::new(memory) }
    }
}

impl<T: Element> Part<T> {
    /// Some elements of it.
    ///
    /// # Safety
    /// Whoever else works on these elements does so behind all work that was given with what this lent, and before what is
    /// given afterwards.
    ///
    /// *Panics* if there are no such elements.
    #[must_use]
    pub unsafe fn of(memory: &Arc<Buffer<T>>, elements: Range<usize>) -> Self {
        assert!(
            elements.start <= elements.end && elements.end <= memory.len,
            "{elements:?} of {}",
            memory.len
        );
        Self { memory: memory.clone(), elements }
    }

    fn address(&self) -> u64 {
        self.memory.address + (self.elements.start * size_of::<T>()) as u64
    }

    /// Elements.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Lent for reading.
    #[must_use]
    pub fn read(&self) -> Slice<'_, T> {
        // SAFETY: as for the buffer, which this keeps alive; whoever made this has promised the rest.
        unsafe { Slice::new(self.address(), self.len()) }
    }

    /// Lent for writing.
    #[must_use]
    pub fn write(&mut self) -> SliceMut<'_, T> {
        // SAFETY: as above; the borrow keeps others away.
        unsafe { SliceMut::new(self.address(), self.len()) }
    }
}

/// Memory of the host that stays where it is, so that a copy to or from it needs no help of the host. Zeroed at first.
#[derive(Debug)]
pub struct Pinned<T> {
    context: Arc<Context>,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its memory, which may be touched from any thread.
unsafe impl<T: Element> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Pinned<T> {}

impl<T: Element> Pinned<T> {
    /// Room for `len` elements.
    ///
    /// *Errors*: the driver's.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, DriverError> {
        let (mut start, bytes) = (ptr::null_mut(), bytes::<T>(len));
        if context.paper().is_some() {
            // Plain memory does: no device ever reaches for it.
            start = Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()).as_mut_ptr().cast();
        }
        // SAFETY: the place outlives the call.
        context.call("cuMemHostAlloc", || unsafe { sys::cuMemHostAlloc(&mut start, bytes, 0) })?;
        let start = NonNull::new(start.cast::<T>()).expect("the driver gives an address");
        // SAFETY: as many bytes were allocated; elements are plain numbers, for which zeros are a value.
        unsafe { start.as_ptr().cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), start, len })
    }

    /// Where it begins, for a copy.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Elements.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// What it holds. No copy that was given may still write there.
    #[must_use]
    pub fn read(&self) -> &[T] {
        // SAFETY: the elements are there, initialised. Copies to it are given by `unsafe` calls, whose callers wait.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The same, to write. No copy that was given may still touch it.
    #[must_use]
    pub fn write(&mut self) -> &mut [T] {
        // SAFETY: as above; the borrow keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        self.context.submit_all();
        if self.context.paper().is_some() {
            let words = std::ptr::slice_from_raw_parts_mut(
                self.start.as_ptr().cast::<u64>(),
                bytes::<T>(self.len).div_ceil(8),
            );
            // SAFETY: it was leaked as this box, once.
            drop(unsafe { Box::from_raw(words) });
            return;
        }
        let start = self.start.as_ptr().cast();
        // SAFETY: it came from `cuMemHostAlloc`, and is given back once.
        self.context.give_back("cuMemFreeHost", || unsafe { sys::cuMemFreeHost(start) });
    }
}
