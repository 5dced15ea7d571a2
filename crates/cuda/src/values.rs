//! Numbers between layers, as a device stores them: f32, or rounded to halves. And parameters, with their copy in halves.
//!
//! Everything else (gradients of parameters, statistics, what norms keep) is f32 alone: a [`Slice`]. An operation takes what it
//! reads as [`Values`] and launches the kernel of their [`Storage`]. This file does not know operations.

use crate::launch::Argument;
use crate::memory::{Slice, SliceMut};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use std::marker::PhantomData;
use std::ops::Range;

/// A kind of numbers of 16 bits that tensor cores multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Eight significant bits, and the exponent of f32.
    Bf16,
    /// IEEE's: eleven significant bits, of numbers below 65520. Below 2^-14 there are fewer.
    F16,
}

impl Half {
    /// The nearest halves, ties to even; what is not a number stays none.
    ///
    /// *Panics* unless there is a place for each.
    pub(crate) fn round(self, from: &[f32], to: &mut [u16]) {
        match self {
            Self::Bf16 => to.reinterpret_cast_mut::<half::bf16>().convert_from_f32_slice(from),
            Self::F16 => to.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(from),
        }
    }

    /// The same numbers as f32, exactly. *Panics* unless there is a place for each.
    pub(crate) fn widen(self, from: &[u16], to: &mut [f32]) {
        match self {
            Self::Bf16 => from.reinterpret_cast::<half::bf16>().convert_to_f32_slice(to),
            Self::F16 => from.reinterpret_cast::<half::f16>().convert_to_f32_slice(to),
        }
    }
}

/// How numbers lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In 32 bits.
    F32,
    /// In 16.
    Half(Half),
}

impl Storage {
    /// Of one number. *Units*: bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Half(_) => 2,
        }
    }

    /// Of three things the one for this.
    pub(crate) fn of<T: Copy>(self, [f32, bf16, f16]: [T; 3]) -> T {
        match self {
            Self::F32 => f32,
            Self::Half(Half::Bf16) => bf16,
            Self::Half(Half::F16) => f16,
        }
    }
}

/// Numbers to read. See the file's comment.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    address: u64,
    len: usize,
    storage: Storage,
    /// The same numbers in halves; none at 0.
    copy: u64,
    life: PhantomData<&'a [f32]>,
}

/// Numbers to write, of which this is the only part.
#[derive(Debug)]
pub struct ValuesMut<'a> {
    address: u64,
    len: usize,
    storage: Storage,
    copy: u64,
    life: PhantomData<&'a mut [f32]>,
}

/// Where a part of numbers and of their copy starts. *Panics* beyond the end.
fn part_of(address: u64, copy: u64, storage: Storage, len: usize, range: &Range<usize>) -> (u64, u64) {
    assert!(range.start <= range.end && range.end <= len, "values {} to {} of {len}", range.start, range.end);
    let copy = if copy == 0 { 0 } else { copy + 2 * range.start as u64 };
    (address + (range.start * storage.bytes()) as u64, copy)
}

impl<'a> Values<'a> {
    /// So many numbers that lie so, from there on.
    ///
    /// # Safety
    /// They are there for as long as this.
    pub(crate) unsafe fn at(address: u64, storage: Storage, len: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match storage {
                Storage::F32 => Slice::<f32>::new(address, len).into(),
                Storage::Half(half) => Self::halves_of(Slice::new(address, len), half),
            }
        }
    }

    /// Halves.
    #[must_use]
    pub fn halves_of(slice: Slice<'a, u16>, half: Half) -> Self {
        let (address, len) = (slice.address(), slice.len());
        Self { address, len, storage: Storage::Half(half), copy: 0, life: PhantomData }
    }

    /// f32, and their copy in halves.
    ///
    /// *Panics* if they are not as many.
    #[must_use]
    pub fn with_copy(slice: Slice<'a, f32>, copy: Slice<'a, u16>) -> Self {
        assert_eq!(slice.len(), copy.len(), "a copy of all");
        Self { copy: copy.address(), ..Self::from(slice) }
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        self.len
    }

    /// How they lie.
    #[must_use]
    pub fn storage(self) -> Storage {
        self.storage
    }

    /// A part. *Panics* beyond the end.
    #[must_use]
    pub fn part<'b>(self, range: Range<usize>) -> Values<'b>
    where
        'a: 'b,
    {
        let (address, copy) = part_of(self.address, self.copy, self.storage, self.len, &range);
        Values { address, len: range.len(), storage: self.storage, copy, life: PhantomData }
    }

    /// As f32. *Panics* on halves.
    #[must_use]
    #[track_caller]
    pub fn floats(self) -> Slice<'a, f32> {
        assert_eq!(self.storage, Storage::F32, "what is no activation is f32");
        // SAFETY: whoever made it has promised that they lie there.
        unsafe { Slice::new(self.address, self.len) }
    }

    /// As halves, if they are, or have a copy that is.
    #[must_use]
    pub fn halves(self) -> Option<Slice<'a, u16>> {
        let at = match self.storage {
            Storage::Half(_) => self.address,
            Storage::F32 => self.copy,
        };
        // SAFETY: as above.
        (at != 0).then(|| unsafe { Slice::new(at, self.len) })
    }

    /// f32 memory as so many numbers that lie in another way.
    ///
    /// *Panics* if there is no room for them.
    #[must_use]
    pub fn stored(self, storage: Storage, len: usize) -> Self {
        let room = self.floats().len() * Storage::F32.bytes();
        assert!(len * storage.bytes() <= room, "{len} numbers in {room} bytes");
        Self { len, storage, copy: 0, ..self }
    }
}

impl<'a> From<Slice<'a, f32>> for Values<'a> {
    fn from(slice: Slice<'a, f32>) -> Self {
        let (address, len) = (slice.address(), slice.len());
        Self { address, len, storage: Storage::F32, copy: 0, life: PhantomData }
    }
}

impl From<Values<'_>> for Argument {
    fn from(values: Values<'_>) -> Self {
        match values.storage {
            Storage::F32 => values.floats().into(),
            Storage::Half(_) => values.halves().into(),
        }
    }
}

impl<'a> ValuesMut<'a> {
    /// So many numbers that lie so, from there on.
    ///
    /// # Safety
    /// As [`Values::at`]; nobody else has them meanwhile, but for what is on the same stream.
    pub(crate) unsafe fn at(address: u64, storage: Storage, len: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match storage {
                Storage::F32 => SliceMut::<f32>::new(address, len).into(),
                Storage::Half(half) => Self::halves_of(SliceMut::new(address, len), half),
            }
        }
    }

    /// Halves.
    #[must_use]
    pub fn halves_of(slice: SliceMut<'a, u16>, half: Half) -> Self {
        let (address, len) = (slice.address(), slice.len());
        Self { address, len, storage: Storage::Half(half), copy: 0, life: PhantomData }
    }

    /// f32, and their copy in halves. *Panics* if they are not as many.
    #[must_use]
    pub fn with_copy(slice: SliceMut<'a, f32>, copy: SliceMut<'a, u16>) -> Self {
        assert_eq!(slice.len(), copy.len(), "a copy of all");
        Self { copy: copy.address(), ..Self::from(slice) }
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How they lie.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The same, read for a while.
    #[must_use]
    pub fn read(&self) -> Values<'_> {
        let Self { address, len, storage, copy, .. } = *self;
        Values { address, len, storage, copy, life: PhantomData }
    }

    /// A part, for a while. *Panics* beyond the end.
    #[must_use]
    pub fn part(&mut self, range: Range<usize>) -> ValuesMut<'_> {
        let (address, copy) = part_of(self.address, self.copy, self.storage, self.len, &range);
        ValuesMut { address, len: range.len(), storage: self.storage, copy, life: PhantomData }
    }

    /// Two parts. *Panics* beyond the end.
    #[must_use]
    pub fn split(self, at: usize) -> (ValuesMut<'a>, ValuesMut<'a>) {
        let (address, copy) = part_of(self.address, self.copy, self.storage, self.len, &(at..self.len));
        let len = self.len - at;
        (Self { len: at, ..self }, Self { address, len, storage: self.storage, copy, life: PhantomData })
    }

    /// As f32. *Panics* on halves.
    #[must_use]
    #[track_caller]
    pub fn floats(self) -> SliceMut<'a, f32> {
        assert_eq!(self.storage, Storage::F32, "what is no activation is f32");
        // SAFETY: whoever made it has promised that they lie there, for this one alone.
        unsafe { SliceMut::new(self.address, self.len) }
    }

    /// As halves, if they are.
    #[must_use]
    pub fn halves(self) -> Option<SliceMut<'a, u16>> {
        // SAFETY: as above.
        matches!(self.storage, Storage::Half(_)).then(|| unsafe { SliceMut::new(self.address, self.len) })
    }

    /// f32 memory as so many numbers that lie in another way. *Panics* if there is no room for them.
    #[must_use]
    pub fn stored(self, storage: Storage, len: usize) -> Self {
        let read = self.read().stored(storage, len);
        Self { address: read.address, len, storage, copy: 0, life: PhantomData }
    }

    /// f32 numbers, and their copy in halves where there is one. *Panics* on halves.
    #[must_use]
    pub fn with_their_copy(self) -> (SliceMut<'a, f32>, Option<SliceMut<'a, u16>>) {
        let (at, len) = (self.copy, self.len);
        // SAFETY: as above; they do not overlap.
        let copy = (at != 0).then(|| unsafe { SliceMut::new(at, len) });
        (self.floats(), copy)
    }
}

impl<'a> From<SliceMut<'a, f32>> for ValuesMut<'a> {
    fn from(slice: SliceMut<'a, f32>) -> Self {
        let (address, len) = (slice.address(), slice.len());
        Self { address, len, storage: Storage::F32, copy: 0, life: PhantomData }
    }
}

impl From<&mut ValuesMut<'_>> for Argument {
    fn from(values: &mut ValuesMut<'_>) -> Self {
        let len = values.len;
        let all = values.part(0..len);
        match all.storage {
            Storage::F32 => (&mut all.floats()).into(),
            Storage::Half(_) => (&mut all.halves()).into(),
        }
    }
}

/// No numbers to read, of the type that a kernel of this storage takes.
pub(crate) fn nothing(storage: Storage) -> Argument {
    Argument::none(storage.of(['f', 'h', 'h']))
}

/// The same to write.
pub(crate) fn nowhere(storage: Storage) -> Argument {
    Argument::none(storage.of(['F', 'H', 'H']))
}
