//! One launch of a kernel: grid, threads and arguments, the same for a GPU and for the stand-in of the tests.
//!
//! This file does not know streams or drivers.

use crate::kernels::Kernel;
use crate::memory::{Element, Slice, SliceMut};

/// The most blocks of a kernel with a loop over elements: a few for each multiprocessor there is.
const MOST_BLOCKS: usize = 4096;
/// The most parameters of a kernel.
pub(crate) const MOST: usize = 16;

/// An argument of a kernel. The letters are those of [`crate::kernels`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// Memory.
    Pointer {
        /// Where it begins; 0 is none.
        address: u64,
        /// Its letter.
        letter: char,
        /// How much of it there is, which no kernel is told. *Units*: bytes.
        bytes: u64,
    },
    /// `u`
    U32(u32),
    /// `l`
    U64(u64),
    /// `r`
    F32(f32),
    /// `C`: the fields of `Conv2d` in `kernels/parts/conv.cuh`.
    Conv2d([u32; 13]),
    /// `V`: those of `Conv3d` there.
    Conv3d([u32; 18]),
    /// `P`: the fields of `Pool2d` in `kernels/pooling.cu`.
    Pool2d([u32; 11]),
}

impl Argument {
    fn letter(&self) -> char {
        match self {
            Self::Pointer { letter, .. } => *letter,
            Self::U32(_) => 'u',
            Self::U64(_) => 'l',
            Self::F32(_) => 'r',
            Self::Conv2d(_) => 'C',
            Self::Conv3d(_) => 'V',
            Self::Pool2d(_) => 'P',
        }
    }

    /// Where its value lies, as a launch wants it: for as long as the argument stays where it is.
    #[must_use]
    pub fn value(&self) -> *const std::ffi::c_void {
        match self {
            Self::Pointer { address: value, .. } | Self::U64(value) => std::ptr::from_ref(value).cast(),
            Self::U32(value) => std::ptr::from_ref(value).cast(),
            Self::F32(value) => std::ptr::from_ref(value).cast(),
            Self::Conv2d(value) => std::ptr::from_ref(value).cast(),
            Self::Conv3d(value) => std::ptr::from_ref(value).cast(),
            Self::Pool2d(value) => std::ptr::from_ref(value).cast(),
        }
    }

    /// Whether the bits are the same: `0.0` and `-0.0` are not.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        }
    }

    /// No memory, of the type that a letter stands for.
    pub(crate) fn none(letter: char) -> Self {
        Self::Pointer { address: 0, letter, bytes: 0 }
    }

    /// Elements of memory.
    fn memory<T>(address: u64, len: usize, letter: char) -> Self {
        Self::Pointer { address, letter, bytes: (len * size_of::<T>()) as u64 }
    }

    fn bytes(&self) -> u64 {
        if let Self::Pointer { bytes, .. } = self { *bytes } else { 0 }
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

/// The letter of memory that holds a type.
trait Letter: Element {
    const READ: char;
    const WRITE: char;
}

macro_rules! letters {
    ($($type:ty: $read:literal $write:literal),*) => {
        $(impl Letter for $type {
            const READ: char = $read;
            const WRITE: char = $write;
        })*
    };
}

letters! { f32: 'f' 'F', f64: 'd' 'D', u32: 'i' 'I', u16: 'h' 'H' }

#[allow(private_bounds)]
impl<T: Letter> From<Slice<'_, T>> for Argument {
    fn from(slice: Slice<'_, T>) -> Self {
        Self::memory::<T>(slice.address(), slice.len(), T::READ)
    }
}

#[allow(private_bounds)]
impl<T: Letter> From<Option<Slice<'_, T>>> for Argument {
    fn from(slice: Option<Slice<'_, T>>) -> Self {
        slice.map_or(Self::none(T::READ), Self::from)
    }
}

#[allow(private_bounds)]
impl<T: Letter> From<&mut SliceMut<'_, T>> for Argument {
    fn from(slice: &mut SliceMut<'_, T>) -> Self {
        Self::memory::<T>(slice.address(), slice.len(), T::WRITE)
    }
}

#[allow(private_bounds)]
impl<T: Letter> From<&mut Option<SliceMut<'_, T>>> for Argument {
    fn from(slice: &mut Option<SliceMut<'_, T>>) -> Self {
        slice.as_mut().map_or(Self::none(T::WRITE), Self::from)
    }
}

/// What a launch costs a GPU at least, for plans: no kernel is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Between its memory and its multiprocessors. *Units*: bytes.
    pub bytes: u64,
    /// Multiplications and additions on tensor cores.
    pub operations: u64,
    /// The same in f32, which they do not do.
    pub plain_operations: u64,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch {
    /// What runs.
    pub kernel: &'static Kernel,
    /// Blocks, in one dimension; at least one.
    pub blocks: u32,
    /// Whether any number of blocks does the same: each loops over elements that stand alone.
    pub any_grid: bool,
    /// What it costs.
    pub work: Work,
    arguments: [Argument; MOST],
    count: usize,
}

impl KernelLaunch {
    /// *Panics* if the arguments are not those of the kernel, or with more blocks than a grid can have.
    pub(crate) fn new<const N: usize>(
        kernel: &'static Kernel,
        blocks: usize,
        arguments: [Argument; N],
    ) -> Self {
        let letters = arguments.iter().map(Argument::letter);
        assert!(
            letters.eq(kernel.parameters.chars()),
            "{}({}) is given {arguments:?}",
            kernel.name,
            kernel.parameters
        );
        let most = i32::MAX as usize;
        assert!((1..=most).contains(&blocks), "{} with {blocks} blocks", kernel.name);
        let mut all = [Argument::U32(0); MOST];
        all[..N].copy_from_slice(&arguments);
        // Everything is read or written once, where nobody says more.
        let work = Work { bytes: arguments.iter().map(Argument::bytes).sum(), ..Work::default() };
        Self { kernel, blocks: blocks as u32, any_grid: false, work, arguments: all, count: N }
    }

    /// It moves so many bytes beside each of its operands once: what is written was read before, or is read again.
    pub(crate) fn and_moves(mut self, bytes: usize) -> Self {
        self.work.bytes += bytes as u64;
        self
    }

    /// It moves so many bytes: it does not touch all of its operands.
    pub(crate) fn moves(mut self, bytes: usize) -> Self {
        self.work.bytes = bytes as u64;
        self
    }

    /// It multiplies, and adds up, on tensor cores.
    pub(crate) fn multiplies(mut self, operations: usize) -> Self {
        self.work.operations = operations as u64;
        self
    }

    /// The same in f32.
    pub(crate) fn multiplies_in_f32(mut self, operations: usize) -> Self {
        self.work.plain_operations = operations as u64;
        self
    }

    /// Of a kernel with a loop over `len` elements.
    ///
    /// *Panics* as [`KernelLaunch::new`], and without an element.
    pub(crate) fn over<const N: usize>(
        kernel: &'static Kernel,
        len: usize,
        arguments: [Argument; N],
    ) -> Self {
        let blocks = len.div_ceil(kernel.threads as usize).min(MOST_BLOCKS);
        Self { any_grid: true, ..Self::new(kernel, blocks, arguments) }
    }

    /// The same, where a thread takes 16 bytes at a time, of elements of so many.
    pub(crate) fn over_wide<const N: usize>(
        kernel: &'static Kernel,
        len: usize,
        bytes: usize,
        arguments: [Argument; N],
    ) -> Self {
        Self::over(kernel, (len * bytes).div_ceil(16), arguments)
    }

    /// Whether the other one does the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernel, other.kernel)
            && self.blocks == other.blocks
            && self.arguments().len() == other.arguments().len()
            && self.arguments().iter().zip(other.arguments()).all(|(a, b)| a.is_same(b))
    }

    /// What the kernel is given.
    #[must_use]
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments[..self.count]
    }
}

/// What runs launches: a stream of a GPU, or the stand-in of the tests.
///
/// # Safety
/// Launches run one after another in the order in which they are given. They may run later: the memory in their arguments
/// has to be as it was promised to [`Slice::new`] and [`SliceMut::new`].
pub unsafe trait Queue {
    /// Runs a kernel.
    fn launch(&self, launch: &KernelLaunch);

    /// How many multiprocessors there are to run blocks at once. Bits never depend on it.
    fn multiprocessors(&self) -> usize;
}

// SAFETY: the queue that it shares keeps the promise.
unsafe impl<Q: Queue + ?Sized> Queue for std::sync::Arc<Q> {
    fn launch(&self, launch: &KernelLaunch) {
        (**self).launch(launch);
    }

    fn multiprocessors(&self) -> usize {
        (**self).multiprocessors()
    }
}
