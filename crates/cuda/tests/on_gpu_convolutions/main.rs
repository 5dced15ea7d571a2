//! Convolutions by cuDNN on a GPU: each algorithm that is chosen gives what dtrain's own kernels give, within the rounding of halves, and
//! the same bits a hundred times, beside a stream that keeps the GPU busy. Algorithms that are not chosen are held too.
//!
//! Without a GPU it says so, and runs itself once more on the fakes, with small shapes.

#[path = "../on_gpu/machine.rs"]
mod machine;
use dtrain_cuda::driver::{Buffer, Gpu, Stream};
use dtrain_cuda::libraries::choosing_convolutions::{candidates, choose};
use dtrain_cuda::libraries::convolution::{ConvolutionKey, Pass};
use dtrain_cuda::libraries::cudnn::{Cudnn, PinnedConvolution};
use dtrain_cuda::libraries::pins::{ConvolutionPins, Pin};
use dtrain_cuda::operations::{conv_lengths, conv_scratch};
use dtrain_cuda::{CudaDevice, Half, Precision, Slice, SliceMut, Values, ValuesMut};
use dtrain_engine::device::{Activation, Conv3dShape, Device, Operands};
use half::{bf16, f16};
use machine::{Machine, cudnn, fake_library, is_fake};
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;

/// Repeats of a convolution whose bits are compared.
const REPEATS: usize = 100;
/// Operations of the least convolution that is tried, on a GPU and on the fakes.
const LEAST: [u64; 2] = [1 << 16, 1 << 12];
/// Repeats of one by an algorithm that is not chosen.
const FEW: usize = 5;
/// Elements of it that are compared each time.
const PART: usize = 1 << 18;
/// Numbers that are drawn, a prime of them.
const DRAWN: usize = 1_048_573;

/// What a layer computes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Forward(Activation),
    WithoutBias,
    Inputs,
    /// With the gradient of the bias, which stays dtrain's own.
    Weights,
}

const KINDS: [Kind; 5] = [
    Kind::Forward(Activation::None),
    Kind::Forward(Activation::Relu),
    Kind::WithoutBias,
    Kind::Inputs,
    Kind::Weights,
];

/// The layers of `cnn` and `cnn3d`, the second in parts, and one with stride and odd sizes; on the fakes smaller ones.
fn layers() -> Vec<Conv3dShape> {
    let flat = |images, channels, side, outputs| Conv3dShape {
        images,
        channels,
        size: [1, side, side],
        outputs,
        kernel: [1, 3, 3],
        stride: [1; 3],
        padding: [0; 3],
    };
    let deep = |images, channels, outputs, step| Conv3dShape {
        images,
        channels,
        size: [8, 32, 32],
        outputs,
        kernel: [3; 3],
        stride: [step; 3],
        padding: [1; 3],
    };
    let odd = |images| Conv3dShape {
        images,
        channels: 24,
        size: [5, 19, 23],
        outputs: 40,
        kernel: [3, 5, 2],
        stride: [1, 3, 2],
        padding: [1, 0, 1],
    };
    if is_fake() {
        return vec![flat(2, 3, 6, 4), Conv3dShape { channels: 2, size: [3, 7, 8], outputs: 3, ..odd(2) }];
    }
    vec![flat(1024, 1, 28, 32), flat(2400, 32, 26, 64), deep(512, 1, 16, 1), deep(512, 16, 32, 2), odd(250)]
}

struct Numbers {
    half: Half,
    memory: Buffer<u16>,
    /// The same as f32, of parameters.
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
    /// Between -1 and 1, no two alike in a row; many are the same list again and again.
    fn new(device: &CudaDevice, half: Half, len: usize, seed: u32, are_parameters: bool) -> Self {
        let number = |i: usize| {
            let mixed = (i as u32 ^ seed.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b1);
            (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let halves: Vec<u16> = (0..len.min(DRAWN)).map(|i| rounded(half, number(i))).collect();
        let context = device.gpu().context();
        let mut memory = Buffer::new(context, len).unwrap();
        device.upload(&halves, memory.write().part(0..halves.len())).unwrap();
        let mut there = halves.len();
        while there < len {
            let more = there.min(len - there);
            let to = memory.address() + 2 * there as u64;
            // SAFETY: both parts are of this memory, and they do not overlap.
            unsafe { device.stream().copy(memory.address(), to, 2 * more) }.unwrap();
            there += more;
        }
        let floats = if are_parameters { len } else { 0 };
        let floats: Vec<f32> = halves[..floats].iter().map(|bits| exact(half, *bits)).collect();
        let mut copy = Buffer::new(context, floats.len()).unwrap();
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

/// One operation of a layer, and its result as f32.
struct Case {
    kind: Kind,
    shape: Conv3dShape,
    x: Numbers,
    w: Numbers,
    dy: Numbers,
    bias: Numbers,
    /// The result, halves or f32, and behind it the gradient of the bias.
    room: Buffer<f32>,
    scratch: Buffer<f32>,
}

impl Case {
    fn new(device: &CudaDevice, half: Half, kind: Kind, shape: Conv3dShape) -> Self {
        let numbers = |len, seed, are| Numbers::new(device, half, len, seed, are);
        let [x, w, y] = conv_lengths(&shape);
        let context = device.gpu().context();
        let room = match kind {
            Kind::Forward(_) | Kind::WithoutBias => y.div_ceil(2),
            Kind::Inputs => x.div_ceil(2),
            Kind::Weights => w + shape.outputs,
        };
        let scratch = if matches!(kind, Kind::Weights) { conv_scratch(&shape) } else { 0 };
        Self {
            kind,
            shape,
            x: numbers(x, 1, false),
            w: numbers(w, 2, true),
            dy: numbers(y, 3, false),
            bias: numbers(shape.outputs, 4, true),
            room: Buffer::new(context, room).unwrap(),
            scratch: Buffer::new(context, scratch).unwrap(),
        }
    }

    /// Elements of the result.
    fn len(&self) -> usize {
        let [x, w, y] = conv_lengths(&self.shape);
        match self.kind {
            Kind::Forward(_) | Kind::WithoutBias => y,
            Kind::Inputs => x,
            Kind::Weights => w + self.shape.outputs,
        }
    }

    /// Puts the operation on the device's stream, into memory that held quarters (in halves something else).
    fn run(&self, device: &CudaDevice) {
        // SAFETY: the memory is there as long as the case, and only what is on one stream at a time has it.
        let floats = |of: &Buffer<f32>| unsafe { SliceMut::<f32>::new(of.address(), of.len()) };
        device.fill(ValuesMut::from(floats(&self.room)), 0.25);
        let halves = || {
            // SAFETY: as above; halves take half of it.
            let memory = unsafe { SliceMut::new(self.room.address(), self.len()) };
            ValuesMut::halves_of(memory, self.x.half)
        };
        let (x, w, dy) = (self.x.halves(), self.w.parameters(), self.dy.halves());
        let scratch = ValuesMut::from(floats(&self.scratch));
        match self.kind {
            Kind::Forward(activation) => {
                let operands = Operands { x, w, bias: Some(self.bias.parameters()) };
                device.conv(&self.shape, operands, activation, halves(), scratch);
            }
            Kind::WithoutBias => {
                let operands = Operands { x, w, bias: None };
                device.conv(&self.shape, operands, Activation::None, halves(), scratch);
            }
            Kind::Inputs => device.conv_input_gradient(&self.shape, w, dy, halves(), scratch),
            Kind::Weights => {
                let [_, at, _] = conv_lengths(&self.shape);
                let (dw, db) = ValuesMut::from(floats(&self.room)).split(at);
                device.conv_weight_gradient(&self.shape, x, dy, dw, Some(db), scratch);
            }
        }
    }

    /// A part of what the memory holds then.
    fn read(&self, device: &CudaDevice, part: Range<usize>) -> Vec<f32> {
        if let Kind::Weights = self.kind {
            let mut found = vec![0f32; part.len()];
            device.download(self.room.read().part(part), &mut found).unwrap();
            return found;
        }
        let mut found = vec![0u16; part.len()];
        // SAFETY: as above.
        let all = unsafe { Slice::<u16>::new(self.room.address(), self.len()) };
        device.download(all.part(part), &mut found).unwrap();
        found.into_iter().map(|bits| exact(self.x.half, bits)).collect()
    }

    /// That a broken pass is seen: one number that is none makes the outputs beside it none.
    fn passes_nan_on(&mut self, device: &CudaDevice) {
        let nan = rounded(self.x.half, f32::NAN);
        let first = self.shape.size.iter().product::<usize>();
        device.upload(&vec![nan; first], self.x.memory.write().part(0..first)).unwrap();
        self.run(device);
        let found = self.read(device, 0..1);
        assert!(found[0].is_nan(), "{:?} of {:?}: {} of what is no number", self.kind, self.shape, found[0]);
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

/// A convolution by one algorithm is near what is wanted and has the same bits each time, in a part of it that is looked at.
fn one_holds(case: &Case, with: &CudaDevice, busy: &Busy, wanted: &[f32], look: &Look) {
    let (kind, shape) = (case.kind, case.shape);
    let Look { all, repeats } = look;
    case.run(with);
    let first = case.read(with, all.clone());
    let (mut worst, mut most) = (0f32, 0f32);
    for (a, b) in first.iter().zip(&wanted[all.clone()]) {
        assert!(a.is_finite() == b.is_finite(), "{kind:?} of {shape:?}: {a}, not {b}");
        worst = worst.max((a - b).abs());
        most = most.max(b.abs());
    }
    assert!(worst <= most * 0.01, "{kind:?} of {shape:?}: off by {worst} of {most}");
    for repeat in 1..=*repeats {
        busy.more();
        case.run(with);
        // All of it in the end, and a part each time before.
        let at = repeat * 7_919 * PART % all.len().saturating_sub(PART).max(1);
        let part = if repeat == *repeats { 0..all.len() } else { at..(at + PART).min(all.len()) };
        let again = case.read(with, all.start + part.start..all.start + part.end);
        let same = again.iter().zip(&first[part]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{kind:?} of {shape:?}: repeat {repeat} has other bits");
    }
    busy.stream.finish().unwrap();
}

/// How closely an algorithm is looked at.
struct Look {
    /// Elements of the result.
    all: Range<usize>,
    repeats: usize,
}

impl Look {
    fn at(len: usize, is_chosen: bool) -> Self {
        let all = if is_chosen { 0..len } else { len.saturating_sub(16 * PART)..len };
        let repeats = match (is_fake(), is_chosen) {
            (true, _) => 2,
            (false, true) => REPEATS,
            (false, false) => FEW,
        };
        Self { all, repeats }
    }
}

/// A device whose one convolution is done so.
fn device_by(gpu: &Arc<Gpu>, library: &Cudnn, precision: Precision, pin: &PinnedConvolution) -> CudaDevice {
    let mut pins = ConvolutionPins::new(&gpu.context().about().name, library.version());
    pins.put(Pin { key: pin.key, algorithm: Some(*pin), took: [0, 0] });
    CudaDevice::one_by_one(gpu, precision).unwrap().with_convolutions(&pins, library).unwrap()
}

fn words(pin: &PinnedConvolution) -> String {
    let mib = pin.workspace >> 20;
    format!("algorithm {} {:?} {:?} with {mib} MiB", pin.algorithm, pin.math, pin.manner)
}

fn holds(gpu: &Arc<Gpu>, library: &Cudnn, precision: Precision) {
    let half = precision.half().expect("halves");
    let own = CudaDevice::one_by_one(gpu, precision).unwrap();
    let busy = Busy::new(gpu);
    let (mut chosen, mut by_library) = (0, 0);
    for (shape, kind) in layers().into_iter().flat_map(|shape| KINDS.map(|kind| (shape, kind))) {
        let mut case = Case::new(&own, half, kind, shape);
        let noting = CudaDevice::one_by_one(gpu, precision)
            .unwrap()
            .noting_convolutions(LEAST[usize::from(is_fake())]);
        case.run(&noting);
        let wanted = case.read(&noting, 0..case.len());
        let keys: Vec<ConvolutionKey> = noting.convolutions_asked_for();
        let [key] = keys[..] else {
            println!("{kind:?} of {shape:?}: no convolution for a library");
            continue;
        };
        chosen += 1;
        let pin = choose(gpu, library, &key).unwrap();
        let [found, own_took] = pin.took;
        let parts = key.parts();
        let taken = pin.algorithm.map_or("own is taken".to_owned(), |pin| words(&pin));
        println!("{kind:?} of {shape:?}, {parts} parts: {found} us, own {own_took} us: {taken}");
        for one in candidates(gpu, library, &key).unwrap() {
            let is_chosen = pin.algorithm == Some(one);
            by_library += usize::from(is_chosen);
            let with = device_by(gpu, library, precision, &one);
            println!("  {}", words(&one));
            one_holds(&case, &with, &busy, &wanted, &Look::at(case.len(), is_chosen));
        }
        if let (Some(one), Pass::Forward(_)) = (pin.algorithm, key.pass) {
            case.passes_nan_on(&device_by(gpu, library, precision, &one));
        }
    }
    println!("{chosen} convolutions in {}, {by_library} of them by the library", precision.name());
    assert!(chosen > 0, "no shape is one for a library");
}

/// Runs this whole binary on the fakes, if they were built.
fn runs_on_the_fakes() {
    let Some(driver) = fake_library().filter(|_| !is_fake()) else { return };
    if !driver.with_file_name("libfake_cudnn.so").exists() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.arg("--nocapture").env("DTRAIN_FAKE_CUDA", "1").env("FAKE_CUDNN_DRIVER", driver);
    let output = command.output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" passed; 0 failed") && !said.contains("skipped: "), "{said}");
}

#[test]
fn what_the_library_does_is_right_and_has_the_same_bits_each_time() {
    let Some(machine) = Machine::open() else { return runs_on_the_fakes() };
    let gpu = machine.gpu(0);
    let Some(library) = cudnn() else { return };
    holds(&gpu, &library, Precision::Bf16);
    holds(&gpu, &library, Precision::F16);
}
