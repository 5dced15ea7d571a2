//! Products by cuBLASLt on a GPU: each algorithm that is chosen gives what dtrain's own kernels give, within the rounding of halves, and
//! the same bits a hundred times, beside a stream that keeps the GPU busy.
//!
//! Without a GPU it says so, and runs itself once more on the fakes, with small shapes.

#[path = "../on_gpu/machine.rs"]
mod machine;
use dtrain_cuda::driver::{Buffer, Gpu, Stream};
use dtrain_cuda::libraries::choosing::choose;
use dtrain_cuda::libraries::cublaslt::CublasLt;
use dtrain_cuda::libraries::pins::ProductPins;
use dtrain_cuda::{CudaDevice, Half, Precision, Slice, SliceMut, Values, ValuesMut};
use dtrain_engine::device::{Activation, Device, LinearShape, Operands, Product, Strides, Write};
use half::{bf16, f16};
use machine::{Machine, cublaslt_on, fake_library, is_fake};
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;

/// Repeats of a product whose bits are compared.
const REPEATS: usize = 100;
/// Operations of the least product that is tried.
const LEAST: u64 = 1 << 16;
/// Elements of it that are compared each time.
const PART: usize = 1 << 18;

/// What a layer multiplies.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Forward(Activation),
    /// With what it is added to before it is rounded.
    ForwardPlus,
    Inputs,
    /// Added to what is there.
    Weights,
}

/// Rows, inputs, outputs of the layers of GPT-2 small, its head, and one whose outputs are an odd number; on the fakes smaller ones.
fn layers() -> Vec<[usize; 3]> {
    if is_fake() {
        return vec![[64, 96, 72], [72, 64, 51]];
    }
    let rows = 16 * 1024;
    let blocks = [[rows, 768, 2304], [rows, 768, 768], [rows, 768, 3072], [rows, 3072, 768]];
    let others = [[4096, 768, 50_257], [1000, 4096, 1000]];
    blocks.into_iter().chain(others).collect()
}

struct Numbers {
    half: Half,
    memory: Buffer<u16>,
    copy: Buffer<f32>,
}

fn rounded(half: Half, x: f32) -> u16 {
    match half {
        Half::Bf16 => bf16::from_f32(x).to_bits(),
        Half::F16 => f16::from_f32(x).to_bits(),
    }
}

fn exact(half: Half, bits: u16) -> f32 {
    match half {
        Half::Bf16 => bf16::from_bits(bits).to_f32(),
        Half::F16 => f16::from_bits(bits).to_f32(),
    }
}

impl Numbers {
    /// Between -1 and 1, no two alike in a row.
    fn new(device: &CudaDevice, half: Half, len: usize, seed: u32) -> Self {
        let number = |i: usize| {
            let mixed = (i as u32 ^ seed.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b1);
            (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let floats: Vec<f32> = (0..len).map(number).collect();
        let halves: Vec<u16> = floats.iter().map(|x| rounded(half, *x)).collect();
        let floats: Vec<f32> = halves.iter().map(|bits| exact(half, *bits)).collect();
        let context = device.gpu().context();
        let (mut memory, mut copy) = (Buffer::new(context, len).unwrap(), Buffer::new(context, len).unwrap());
        device.upload(&halves, memory.write()).unwrap();
        device.upload(&floats, copy.write()).unwrap();
        Self { half, memory, copy }
    }

    fn halves(&self) -> Values<'_> {
        Values::halves_of(self.memory.read(), self.half)
    }

    /// f32 with a copy in halves, as parameters have it.
    fn parameters(&self) -> Values<'_> {
        Values::with_copy(self.copy.read(), self.memory.read())
    }
}

/// One product of a layer, and its result as f32.
struct Case {
    kind: Kind,
    shape: [usize; 3],
    x: Numbers,
    w: Numbers,
    dy: Numbers,
    bias: Numbers,
}

impl Case {
    fn outputs(&self) -> (usize, bool) {
        let [rows, inputs, outputs] = self.shape;
        match self.kind {
            Kind::Forward(_) | Kind::ForwardPlus => (rows * outputs.next_multiple_of(8), true),
            Kind::Inputs => (rows * inputs, true),
            Kind::Weights => (outputs * inputs, false),
        }
    }

    /// Puts the product on the device's stream, into memory that held quarters (in halves something else).
    fn run(&self, device: &CudaDevice, room: &mut Buffer<f32>) {
        let (len, _) = self.outputs();
        let [rows, inputs, outputs] = self.shape;
        device.fill(ValuesMut::from(room.write()), 0.25);
        let half = self.x.half;
        let linear = LinearShape { rows, inputs, outputs };
        let pitch = outputs.next_multiple_of(8);
        // SAFETY: the memory is there as long as `room`, nobody else has it meanwhile, and halves take a part of it.
        let y = || ValuesMut::halves_of(unsafe { SliceMut::new(room.address(), len) }, half);
        let operands =
            Operands { x: self.x.halves(), w: self.w.parameters(), bias: Some(self.bias.parameters()) };
        match self.kind {
            Kind::Forward(activation) => device.linear(linear, operands, activation, y()),
            Kind::ForwardPlus => device.linear_plus(linear, operands, self.dy.halves(), y()),
            Kind::Inputs => {
                let shape = Product {
                    m: rows,
                    n: inputs,
                    k: outputs,
                    a: Strides::rows(pitch),
                    b: Strides::rows(inputs),
                    c_row: inputs,
                    write: Write::Set,
                };
                device.product(&shape, self.dy.halves(), self.w.parameters(), y());
            }
            Kind::Weights => {
                let shape = Product {
                    m: outputs,
                    n: inputs,
                    k: rows,
                    a: Strides::transposed(pitch),
                    b: Strides::rows(inputs),
                    c_row: inputs,
                    write: Write::Add,
                };
                device.product(&shape, self.dy.halves(), self.x.halves(), ValuesMut::from(room.write()));
            }
        }
    }

    /// A part of what the memory holds then.
    fn read(&self, device: &CudaDevice, room: &Buffer<f32>, part: Range<usize>) -> Vec<f32> {
        let (len, are_halves) = self.outputs();
        if are_halves {
            let mut found = vec![0u16; part.len()];
            // SAFETY: as above.
            let all = unsafe { Slice::<u16>::new(room.address(), len) };
            device.download(all.part(part), &mut found).unwrap();
            return found.into_iter().map(|bits| exact(self.x.half, bits)).collect();
        }
        let mut found = vec![0f32; part.len()];
        device.download(room.read().part(part), &mut found).unwrap();
        found
    }
}

/// Copies on a stream of their own, until dropped.
struct Busy {
    stream: Stream,
    from: Buffer<u32>,
    to: Buffer<u32>,
}

impl Busy {
    fn new(gpu: &Arc<Gpu>) -> Self {
        let len = if is_fake() { 1 << 10 } else { 1 << 26 };
        let memory = || Buffer::new(gpu.context(), len).unwrap();
        Self { stream: Stream::new(gpu).unwrap(), from: memory(), to: memory() }
    }

    fn more(&self) {
        // SAFETY: both are this one's memory, and it is freed behind the stream.
        unsafe { self.stream.copy(self.from.address(), self.to.address(), 4 * self.from.len()) }.unwrap();
    }
}

fn holds(gpu: &Arc<Gpu>, library: &Arc<CublasLt>, precision: Precision) {
    let half = precision.half().expect("halves");
    let own = CudaDevice::one_by_one(gpu, precision).unwrap();
    let busy = Busy::new(gpu);
    let (mut chosen, mut by_library) = (0, 0);
    for shape in layers() {
        let [rows, inputs, outputs] = shape;
        let pitch = outputs.next_multiple_of(8);
        for kind in [
            Kind::Forward(Activation::None),
            Kind::Forward(Activation::Relu),
            Kind::ForwardPlus,
            Kind::Inputs,
            Kind::Weights,
        ] {
            if matches!(kind, Kind::ForwardPlus) && outputs > 4096 {
                continue;
            }
            let numbers = |len, seed| Numbers::new(&own, half, len, seed);
            let case = Case {
                kind,
                shape,
                x: numbers(rows * inputs, 1),
                w: numbers(outputs * inputs, 2),
                dy: numbers(rows * pitch, 3),
                bias: numbers(outputs, 4),
            };
            let noting = CudaDevice::one_by_one(gpu, precision).unwrap().noting_products(LEAST);
            let (len, _) = case.outputs();
            let mut room = Buffer::new(gpu.context(), len).unwrap();
            case.run(&noting, &mut room);
            let wanted = case.read(&noting, &room, 0..len);
            let keys = noting.products_asked_for();
            if keys.is_empty() {
                println!("{kind:?} of {shape:?}: no product for a library");
                continue;
            }
            let mut pins = ProductPins::new(&gpu.context().about().name, library.version());
            for key in &keys {
                pins.put(choose(gpu, library, key).unwrap());
            }
            let [found, own_took] = pins.chosen[0].took;
            chosen += 1;
            by_library += usize::from(!pins.is_empty());
            println!("{kind:?} of {shape:?}: {found} us, own {own_took} us");
            let with = CudaDevice::one_by_one(gpu, precision).unwrap().with_products(&pins, library).unwrap();
            case.run(&with, &mut room);
            let first = case.read(&with, &room, 0..len);
            let (mut worst, mut most) = (0f32, 0f32);
            for (a, b) in first.iter().zip(&wanted) {
                assert!(a.is_finite() == b.is_finite(), "{kind:?} of {shape:?}: {a}, not {b}");
                worst = worst.max((a - b).abs());
                most = most.max(b.abs());
            }
            assert!(worst <= most * 0.01, "{kind:?} of {shape:?}: off by {worst} of {most}");
            let repeats = if is_fake() { 3 } else { REPEATS };
            for repeat in 1..=repeats {
                busy.more();
                case.run(&with, &mut room);
                // All of it in the end, and a part each time before.
                let at = repeat * 7_919 * PART % len.saturating_sub(PART).max(1);
                let part = if repeat == repeats { 0..len } else { at..(at + PART).min(len) };
                let again = case.read(&with, &room, part.clone());
                let same = again.iter().zip(&first[part]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{kind:?} of {shape:?}: repeat {repeat} has other bits");
            }
            busy.stream.finish().unwrap();
        }
    }
    println!("{chosen} products in {}, {by_library} of them by the library", precision.name());
    assert!(chosen > 0, "no shape is one for a library");
}

/// Runs this whole binary on the fakes, if they were built.
fn runs_on_the_fakes() {
    let Some(driver) = fake_library().filter(|_| !is_fake()) else { return };
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.arg("--nocapture").env("DTRAIN_FAKE_CUDA", "1").env("FAKE_CUBLASLT_DRIVER", driver);
    let output = command.output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" passed; 0 failed") && !said.contains("skipped: "), "{said}");
}

#[test]
fn what_the_library_does_is_right_and_has_the_same_bits_each_time() {
    let Some(machine) = Machine::open() else { return runs_on_the_fakes() };
    let gpu = machine.gpu(0);
    let Some(library) = cublaslt_on(&gpu) else { return };
    holds(&gpu, &library, Precision::Bf16);
    holds(&gpu, &library, Precision::F16);
}
