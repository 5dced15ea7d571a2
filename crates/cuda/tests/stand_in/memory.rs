//! Memory between guard words, or up against pages that may not be touched, or on a device behind the driver: outputs hold
//! NaN until they are written, inputs have to stay as they were.

use super::build::StandIn;
use super::halves::{self, Kind};
use dtrain_cuda::memory::Element;
use dtrain_cuda::{CudaDevice, Slice, SliceMut, driver};
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// Elements before and after a buffer that nothing may write, and that spoil what reads them.
const GUARD: usize = 64;

/// A number and its bits.
pub trait Number: Element + PartialEq + std::fmt::Debug {
    /// What uninitialised memory holds: NaN, or an id beyond every table.
    const POISON: Self;
    /// What stands before and after: NaN again, but another at each place, so that a copy of one guard over another shows.
    fn guard(place: u32) -> Self;
    fn bits(self) -> u64;
    /// Whether it is not a number. What is not of floating point is one.
    fn is_none(self) -> bool {
        false
    }
}

impl Number for f32 {
    const POISON: Self = f32::from_bits(0x7fc0_beef);
    fn guard(place: u32) -> Self {
        f32::from_bits(0x7fd0_0000 + place % 0x1_0000)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    fn is_none(self) -> bool {
        self.is_nan()
    }
}

impl Number for f64 {
    const POISON: Self = f64::from_bits(0x7ff8_dead_beef_0001);
    fn guard(place: u32) -> Self {
        f64::from_bits(0x7ff9_0000_0000_0000 + u64::from(place))
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn is_none(self) -> bool {
        self.is_nan()
    }
}

impl Number for u32 {
    const POISON: Self = 0xdead_beef;
    fn guard(place: u32) -> Self {
        0xdeaf_0000 + place % 0x1_0000
    }
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Number for u16 {
    const POISON: Self = 0x7fc1;
    fn guard(place: u32) -> Self {
        0x7fc2 + (place % 0x3d) as u16
    }
    fn bits(self) -> u64 {
        self.into()
    }
}

/// Which guard stands at a place of a buffer.
fn guard_of(name: &str, place: usize) -> u32 {
    name.bytes().fold(place as u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Where elements lie.
enum Memory<T: Number> {
    /// Between guard words.
    Guarded(Vec<T>),
    /// Between guard words, on a device.
    OnDevice(Arc<CudaDevice>, driver::Buffer<T>),
    /// Up against a page that may not even be read.
    AtTheEdge(Pages),
}

/// Pages of which the last may not be touched.
struct Pages {
    start: *mut c_void,
    len: usize,
}

/// Bytes of a page, or of several where pages are smaller.
const PAGE: usize = 1 << 16;

impl Pages {
    /// Room for `bytes` before the last page; the first page is out of bounds too.
    fn new(bytes: usize) -> Self {
        let len = bytes.next_multiple_of(PAGE) + 2 * PAGE;
        // SAFETY: new memory at an address of the system's choice; the first and last page are ours to close.
        unsafe {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let start = mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE).expect("memory");
            for page in [start, start.byte_add(len - PAGE)] {
                mm::mprotect(page, PAGE, MprotectFlags::empty()).expect("pages of our own");
            }
            Self { start, len }
        }
    }

    /// The last `bytes` before the last page.
    fn last(&self, bytes: usize) -> *mut u8 {
        self.start.cast::<u8>().wrapping_add(self.len - PAGE - bytes)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: these pages came from `mmap`, and nobody has them any more.
        unsafe { mm::munmap(self.start, self.len) }.expect("pages of our own");
    }
}

impl<T: Number> Memory<T> {
    fn new(queue: &StandIn<'_>, name: &str, x: &[T]) -> Self {
        if !queue.at_the_edge() {
            let mut all: Vec<T> = (0..x.len() + 2 * GUARD).map(|i| T::guard(guard_of(name, i))).collect();
            all[GUARD..GUARD + x.len()].copy_from_slice(x);
            let Some(device) = queue.device() else { return Self::Guarded(all) };
            let mut there = driver::Buffer::new(device.gpu().context(), all.len()).expect("memory");
            device.upload(&all, there.write()).expect("a device that works");
            return Self::OnDevice(device.clone(), there);
        }
        let pages = Pages::new(size_of_val(x));
        // SAFETY: there is room for the list, aligned, since a page is a multiple of every element.
        unsafe { ptr::copy_nonoverlapping(x.as_ptr(), pages.last(size_of_val(x)).cast(), x.len()) };
        Self::AtTheEdge(pages)
    }

    /// The first of `len` elements.
    fn start(&mut self, len: usize) -> *mut T {
        match self {
            Self::Guarded(all) => all[GUARD..].as_mut_ptr(),
            Self::OnDevice(_, all) => (all.address() as usize + GUARD * size_of::<T>()) as *mut T,
            Self::AtTheEdge(pages) => pages.last(len * size_of::<T>()).cast(),
        }
    }

    /// All there is between and with the guard words, if there are any.
    fn guarded(&self) -> Option<Vec<T>> {
        match self {
            Self::Guarded(all) => Some(all.clone()),
            Self::OnDevice(device, there) => {
                let mut all = vec![T::POISON; there.len()];
                device.download(there.read(), &mut all).expect("a device that works");
                Some(all)
            }
            Self::AtTheEdge(_) => None,
        }
    }

    fn read(&mut self, len: usize) -> Vec<T> {
        if let Some(all) = self.guarded() {
            return all[GUARD..GUARD + len].to_vec();
        }
        let start = self.start(len);
        // SAFETY: as many elements lie there, and launches are over.
        unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
    }
}

/// Memory of the stand-in. What is wrong with it when it goes away is told to the stand-in.
pub struct Buffer<'q, T: Number> {
    queue: &'q StandIn<'q>,
    name: &'static str,
    memory: RefCell<Memory<T>>,
    /// What it has to hold in the end, unless it was lent for writing.
    before: Vec<T>,
    written: Cell<bool>,
}

impl<'q, T: Number> Buffer<'q, T> {
    /// Memory that holds `x`.
    pub fn of(queue: &'q StandIn<'q>, name: &'static str, x: &[T]) -> Self {
        let memory = RefCell::new(Memory::new(queue, name, x));
        Self { queue, name, memory, before: x.to_vec(), written: Cell::new(false) }
    }

    /// Memory that nothing was written to.
    pub fn empty(queue: &'q StandIn<'q>, name: &'static str, len: usize) -> Self {
        Self::of(queue, name, &vec![T::POISON; len])
    }

    fn address(&self) -> u64 {
        self.memory.borrow_mut().start(self.before.len()) as u64
    }

    /// Lent for reading.
    pub fn read(&self) -> Slice<'_, T> {
        // SAFETY: the memory lives as long as the buffer and never moves; the stand-in runs launches at once.
        unsafe { Slice::new(self.address(), self.before.len()) }
    }

    /// Lent for writing.
    pub fn write(&self) -> SliceMut<'_, T> {
        self.written.set(true);
        // SAFETY: as above. Each check lends a buffer to one argument of an operation.
        unsafe { SliceMut::new(self.address(), self.before.len()) }
    }

    /// What it holds now.
    pub fn now(&self) -> Vec<T> {
        self.memory.borrow_mut().read(self.before.len())
    }

    /// Tells the stand-in unless it holds these very bits.
    pub fn has_bits(&self, what: &str, wanted: &[T]) {
        self.is(what, wanted, |now, wanted| now.bits() == wanted.bits());
    }

    /// Tells the stand-in unless it holds the bits of these numbers. Which NaN comes out of arithmetic is the hardware's.
    pub fn has_numbers(&self, what: &str, wanted: &[T]) {
        self.is(what, wanted, |now, wanted| now.bits() == wanted.bits() || now.is_none() && wanted.is_none());
    }

    fn is(&self, what: &str, wanted: &[T], same: impl Fn(T, T) -> bool) {
        let now = self.now();
        assert_eq!(now.len(), wanted.len(), "{what}: lengths");
        if let Some(i) = (0..now.len()).find(|&i| !same(now[i], wanted[i])) {
            let (now, wanted) = (now[i], wanted[i]);
            let bits = |v: T| format!("{v:?} ({:#x})", v.bits());
            self.queue.wrong(format!("{what}: {} [{i}] is {}, not {}", self.name, bits(now), bits(wanted)));
        }
    }
}

impl Buffer<'_, f32> {
    /// Tells the stand-in unless `||now - wanted|| <= 1e-5 ||wanted||`, all finite.
    pub fn is_near(&self, what: &str, wanted: &[f32]) {
        let now = self.now();
        assert_eq!(now.len(), wanted.len(), "{what}: lengths");
        let (mut error, mut norm) = (0.0f64, 0.0f64);
        for (i, (&now, &wanted)) in now.iter().zip(wanted).enumerate() {
            if !now.is_finite() {
                return self.queue.wrong(format!("{what}: {} [{i}] is {now}, not {wanted}", self.name));
            }
            error += (f64::from(now) - f64::from(wanted)).powi(2);
            norm += f64::from(wanted).powi(2);
        }
        if error.sqrt() > 1e-5 * norm.sqrt() + 1e-30 {
            self.queue.wrong(format!("{what}: {} is off by {:e}", self.name, (error / norm).sqrt()));
        }
    }
}

/// `||now - wanted|| / ||wanted||`; nothing where a number is not finite.
pub fn distance(now: impl Iterator<Item = f64>, wanted: &[f64]) -> Option<f64> {
    let (mut error, mut norm) = (0.0f64, 1e-30f64);
    for (now, wanted) in now.zip(wanted) {
        error += (now - wanted).powi(2);
        norm += wanted.powi(2);
    }
    let distance = (error / norm).sqrt();
    distance.is_finite().then_some(distance)
}

/// A number that f64 holds.
pub trait Wide: Number {
    fn wide(self) -> f64;
}

impl Wide for f32 {
    fn wide(self) -> f64 {
        self.into()
    }
}

impl Wide for f64 {
    fn wide(self) -> f64 {
        self
    }
}

impl<T: Wide> Buffer<'_, T> {
    /// Tells the stand-in unless these are within `tolerance` of `wanted` in the norm, all finite.
    pub fn is_within(&self, what: &str, wanted: &[f64], tolerance: f64) {
        self.judge(what, self.now().into_iter().map(T::wide).collect(), wanted, tolerance);
    }
}

impl Buffer<'_, u16> {
    /// The same of halves.
    pub fn is_within_half<K: Kind>(&self, what: &str, wanted: &[f64], tolerance: f64) {
        self.judge(what, halves::values::<K>(&self.now()), wanted, tolerance);
    }
}

impl<T: Number> Buffer<'_, T> {
    fn judge(&self, what: &str, now: Vec<f64>, wanted: &[f64], tolerance: f64) {
        assert_eq!(now.len(), wanted.len(), "{what}: lengths");
        match distance(now.into_iter(), wanted) {
            Some(off) if off <= tolerance => {}
            off => self.queue.wrong(format!("{what}: {} is off by {off:?}, not {tolerance:e}", self.name)),
        }
    }
}

impl<T: Number> Drop for Buffer<'_, T> {
    fn drop(&mut self) {
        if let Some(all) = self.memory.get_mut().guarded() {
            let len = all.len();
            for i in (0..GUARD).chain(len - GUARD..len) {
                if all[i].bits() != T::guard(guard_of(self.name, i)).bits() {
                    let place = i as isize - GUARD as isize;
                    let of = format!("{} of {} elements", self.name, len - 2 * GUARD);
                    self.queue.wrong(format!("{of}: something was written to [{place}]"));
                }
            }
        }
        let now = self.now();
        if self.written.get() {
            self.queue.note(now.iter().map(|v| v.bits()));
        } else if now.iter().zip(&self.before).any(|(now, before)| now.bits() != before.bits()) {
            self.queue.wrong(format!("{} was only to be read, and has changed", self.name));
        }
    }
}
