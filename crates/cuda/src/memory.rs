//! A device's memory as the operations see it: an address, a length, and how long it may be used.
//!
//! This file does not know who owns the memory, nor how it is read from the host.

use std::marker::PhantomData;
use std::ops::Range;

/// What device memory may hold: plain numbers.
///
/// # Safety
/// Any bits are a value, and there is no padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($type:ty)*) => {
        $(
            // SAFETY: any bits are a value of this number.
            unsafe impl Element for $type {}
        )*
    };
}

elements! { f32 f64 u64 u32 u16 u8 }

/// Read-only memory of a device.
#[derive(Debug)]
pub struct Slice<'a, T> {
    address: u64,
    len: usize,
    life: PhantomData<&'a [T]>,
}

/// Writable memory of a device, of which this is the only part.
#[derive(Debug)]
pub struct SliceMut<'a, T> {
    address: u64,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<'_, T> {}

/// Where a part starts. *Panics* beyond the end.
fn part_of<T>(address: u64, len: usize, range: &Range<usize>) -> u64 {
    assert!(
        range.start <= range.end && range.end <= len,
        "elements {} to {} of {len}",
        range.start,
        range.end
    );
    address + (range.start * size_of::<T>()) as u64
}

impl<'a, T: Element> Slice<'a, T> {
    /// Memory at an address of the device.
    ///
    /// # Safety
    /// The elements have to lie there, aligned, and nothing may write to them for `'a` and until the work that is given
    /// in `'a` is done.
    #[must_use]
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, life: PhantomData }
    }

    /// Its address.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Elements.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        self.len
    }

    /// A part.
    ///
    /// *Panics* beyond the end.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        let address = part_of::<T>(self.address, self.len, &range);
        Self { address, len: range.len(), life: PhantomData }
    }
}

impl<'a> Slice<'a, f32> {
    /// The same memory as the bits of its floats.
    #[must_use]
    pub fn words(self) -> Slice<'a, u32> {
        Slice { address: self.address, len: self.len, life: PhantomData }
    }
}

impl<'a> SliceMut<'a, f32> {
    /// The same memory as the bits of its floats.
    #[must_use]
    pub fn words(self) -> SliceMut<'a, u32> {
        SliceMut { address: self.address, len: self.len, life: PhantomData }
    }
}

impl<'a> SliceMut<'a, f64> {
    /// The same memory as words, the lower half of each number first.
    #[must_use]
    pub fn words(self) -> SliceMut<'a, u32> {
        SliceMut { address: self.address, len: 2 * self.len, life: PhantomData }
    }
}

impl<'a, T: Element> SliceMut<'a, T> {
    /// Memory at an address of the device.
    ///
    /// # Safety
    /// The elements have to lie there, aligned, and nothing else may read or write them for `'a` and until the work that is
    /// given in `'a` is done.
    #[must_use]
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, life: PhantomData }
    }

    /// Its address.
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

    /// The same memory, read for a while.
    #[must_use]
    pub fn read(&self) -> Slice<'_, T> {
        Slice { address: self.address, len: self.len, life: PhantomData }
    }

    /// A part, for a while.
    ///
    /// *Panics* beyond the end.
    #[must_use]
    pub fn part(&mut self, range: Range<usize>) -> SliceMut<'_, T> {
        let address = part_of::<T>(self.address, self.len, &range);
        SliceMut { address, len: range.len(), life: PhantomData }
    }

    /// Two parts.
    ///
    /// *Panics* beyond the end.
    #[must_use]
    pub fn split(self, at: usize) -> (SliceMut<'a, T>, SliceMut<'a, T>) {
        let second = part_of::<T>(self.address, self.len, &(at..self.len));
        let first = SliceMut { address: self.address, len: at, life: PhantomData };
        (first, SliceMut { address: second, len: self.len - at, life: PhantomData })
    }

    /// Both as one, if the other one lies right behind this one; otherwise both are given back.
    ///
    /// *Errors*: they lie apart.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        if self.address + (self.len * size_of::<T>()) as u64 == next.address {
            return Ok(Self { address: self.address, len: self.len + next.len, life: PhantomData });
        }
        Err((self, next))
    }
}
