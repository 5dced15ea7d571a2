//! What tests of libraries on a GPU share: numbers, a stream that keeps the GPU busy, and results that are near what is wanted and have the
//! same bits each time.

// Each program uses its part.
#![allow(dead_code)]

use crate::machine::{Machine, fake_library, is_fake};
use dtrain_cuda::driver::{Buffer, Gpu, Stream};
use dtrain_cuda::{CudaDevice, Half, Precision, Slice, Values};
use half::{bf16, f16};
use std::fmt::Debug;
use std::ops::Range;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Elements that are compared each time.
pub const PART: usize = 1 << 18;
/// Numbers that are drawn, a prime of them.
const DRAWN: usize = 1_048_573;
/// Of a device that does as it is asked.
pub const WORKS: &str = "a device that works";

/// Between -1 and 1, no two alike in a row; many are the same list again and again.
pub struct Numbers {
    pub half: Half,
    pub memory: Buffer<u16>,
    /// The same as f32, of parameters.
    copy: Option<Buffer<f32>>,
}

pub fn rounded(half: Half, x: f32) -> u16 {
    match half {
        Half::Bf16 => bf16::from_f32(x).to_bits(),
        Half::F16 => f16::from_f32(x).to_bits(),
    }
}

pub fn exact(half: Half, bits: u16) -> f32 {
    match half {
        Half::Bf16 => bf16::from_bits(bits).to_f32(),
        Half::F16 => f16::from_bits(bits).to_f32(),
    }
}

impl Numbers {
    pub fn new(device: &CudaDevice, half: Half, len: usize, seed: u32) -> Self {
        let number = |i: usize| {
            let mixed = (i as u32 ^ seed.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b1);
            (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let halves: Vec<u16> = (0..len.min(DRAWN)).map(|i| rounded(half, number(i))).collect();
        let mut memory = Buffer::new(device.gpu().context(), len).expect("memory");
        device.upload(&halves, memory.write().part(0..halves.len())).expect(WORKS);
        let mut there = halves.len();
        while there < len {
            let more = there.min(len - there);
            let to = memory.address() + 2 * there as u64;
            // SAFETY: both parts are of this memory, and they do not overlap.
            unsafe { device.stream().copy(memory.address(), to, 2 * more) }.expect(WORKS);
            there += more;
        }
        // Whoever reads them may do so on another stream.
        device.finish().expect(WORKS);
        Self { half, memory, copy: None }
    }

    /// With a copy in f32, as parameters are f32 with a copy in halves.
    pub fn parameters(device: &CudaDevice, half: Half, len: usize, seed: u32) -> Self {
        let numbers = Self::new(device, half, len, seed);
        let mut halves = vec![0u16; len];
        device.download(numbers.memory.read(), &mut halves).expect(WORKS);
        let floats: Vec<f32> = halves.iter().map(|bits| exact(half, *bits)).collect();
        let mut copy = Buffer::new(device.gpu().context(), len).expect("memory");
        device.upload(&floats, copy.write()).expect(WORKS);
        Self { copy: Some(copy), ..numbers }
    }

    pub fn halves(&self) -> Values<'_> {
        Values::halves_of(self.memory.read(), self.half)
    }

    /// f32 with a copy in halves. *Panics* unless they were made so.
    pub fn with_copy(&self) -> Values<'_> {
        Values::with_copy(self.copy.as_ref().expect("parameters").read(), self.memory.read())
    }
}

/// A part of what memory holds, halves as f32.
pub fn read(device: &CudaDevice, room: &Buffer<f32>, half: Option<Half>, part: Range<usize>) -> Vec<f32> {
    let Some(half) = half else {
        let mut found = vec![0f32; part.len()];
        device.download(room.read().part(part), &mut found).expect(WORKS);
        return found;
    };
    let mut found = vec![0u16; part.len()];
    // SAFETY: the memory is there, and holds twice as many halves.
    let all = unsafe { Slice::<u16>::new(room.address(), 2 * room.len()) };
    device.download(all.part(part), &mut found).expect(WORKS);
    found.into_iter().map(|bits| exact(half, bits)).collect()
}

/// A device that gives every kernel to the driver by itself.
pub fn one_by_one(gpu: &Arc<Gpu>, precision: Precision) -> CudaDevice {
    CudaDevice::one_by_one(gpu, precision).expect("a stream and its workspace")
}

/// Copies on a stream of their own.
pub struct Busy {
    stream: Stream,
    from: Buffer<u32>,
    to: Buffer<u32>,
}

impl Busy {
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        let len = if is_fake() { 1 << 10 } else { 1 << 26 };
        let memory = || Buffer::new(gpu.context(), len).expect("memory");
        Self { stream: Stream::new(gpu).expect("a stream"), from: memory(), to: memory() }
    }

    fn more(&self) {
        // SAFETY: both are this one's memory, and it is freed behind the stream.
        unsafe { self.stream.copy(self.from.address(), self.to.address(), 4 * self.from.len()) }
            .expect(WORKS);
    }
}

/// That what `run` makes and `read` reads, of a part of a result, is within a hundredth of what is wanted, and has the same bits in so many
/// repeats: of a part in each, of all of it in the end.
pub fn near_and_the_same(
    what: impl Debug,
    (wanted, all): (&[f32], Range<usize>),
    (busy, repeats): (&Busy, usize),
    mut run: impl FnMut(),
    read: impl Fn(Range<usize>) -> Vec<f32>,
) {
    run();
    let first = read(all.clone());
    let (mut worst, mut most) = (0f32, 0f32);
    for (a, b) in first.iter().zip(&wanted[all.clone()]) {
        assert!(a.is_finite() == b.is_finite(), "{what:?}: {a}, not {b}");
        worst = worst.max((a - b).abs());
        most = most.max(b.abs());
    }
    assert!(worst <= most * 0.01, "{what:?}: off by {worst} of {most}");
    for repeat in 1..=repeats {
        busy.more();
        run();
        let at = repeat * 7_919 * PART % all.len().saturating_sub(PART).max(1);
        let part = if repeat == repeats { 0..all.len() } else { at..(at + PART).min(all.len()) };
        let again = read(all.start + part.start..all.start + part.end);
        let same = again.iter().zip(&first[part]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{what:?}: repeat {repeat} has other bits");
    }
    busy.stream.finish().expect(WORKS);
}

/// What holds on a GPU, for one test at a time; without one the test is run once more on the fakes, as [`runs_on_the_fakes`] does.
pub fn on_a_gpu_or_the_fakes(test: &str, library: &str, variable: &str, holds: impl FnOnce(&Arc<Gpu>)) {
    static ONE: Mutex<()> = Mutex::new(());
    match Machine::open() {
        None => runs_on_the_fakes(test, library, variable),
        Some(machine) => {
            let _one = (!is_fake()).then(|| ONE.lock());
            holds(&machine.gpu(0));
        }
    }
}

/// Does something on the fakes with a cuDNN of these variables, in a process of its own. Nothing where they were not built.
pub fn only_on_the_fakes(test: &str, variables: &[(&str, &str)], holds: impl FnOnce(&Arc<Gpu>)) {
    if !is_fake() {
        runs_on_the_fakes_where(test, "libfake_cudnn.so", "FAKE_CUDNN_DRIVER", variables);
    } else if variables.iter().all(|(name, _)| std::env::var_os(name).is_some()) {
        // The children of other tests have no such library.
        holds(&Machine::open().expect("the fakes").gpu(0));
    }
}

fn runs_on_the_fakes(test: &str, library: &str, variable: &str) {
    runs_on_the_fakes_where(test, library, variable, &[]);
}

/// Runs a test of this binary once more on the fakes, if they were built: this library, whose variable names the driver.
fn runs_on_the_fakes_where(test: &str, library: &str, variable: &str, variables: &[(&str, &str)]) {
    let Some(driver) = fake_library().filter(|_| !is_fake()) else { return };
    if !driver.with_file_name(library).exists() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture"]).env("DTRAIN_FAKE_CUDA", "1").env(variable, driver);
    // Streams that work only when they are waited for: a wait that is missing between two of them is seen each time.
    command.env("FAKE_CUDA_LAZY", "1");
    command.envs(variables.iter().copied());
    let output = command.output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" 1 passed; 0 failed") && !said.contains("skipped: "), "{said}");
}
