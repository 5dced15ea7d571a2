//! Convolutions by cuDNN on a GPU: each algorithm that is chosen gives what dtrain's own kernels give, within the rounding of halves, and
//! the same bits a hundred times, beside a stream that keeps the GPU busy. Algorithms that are not chosen are held too.
//!
//! Without a GPU it says so, and runs itself once more on the fakes, with small shapes.

#[path = "../on_gpu/machine.rs"]
mod machine;
mod parts;
#[path = "../on_gpu/repeated.rs"]
mod repeated;
#[path = "../../../../tests/harness/turn.rs"]
mod turn;

use dtrain_cuda::driver::{Buffer, Gpu};
use dtrain_cuda::libraries::choosing_convolutions::{candidates, choose};
use dtrain_cuda::libraries::convolution::{Behind, ConvolutionKey, Pass};
use dtrain_cuda::libraries::cudnn::{Cudnn, PinnedConvolution};
use dtrain_cuda::libraries::pins::{ConvolutionPins, Pin};
use dtrain_cuda::operations::{conv_lengths, conv_scratch};
use dtrain_cuda::{CudaDevice, Half, Precision, SliceMut, ValuesMut};
use dtrain_engine::device::{Activation, Conv3dShape, Device, Operands};
use machine::{cudnn, is_fake};
use repeated::{
    Busy, Numbers, PART, WORKS, near_and_the_same, on_a_gpu_or_the_fakes, one_by_one, only_on_the_fakes,
    read, rounded,
};
use std::ops::Range;
use std::sync::Arc;

/// Repeats of a convolution whose bits are compared.
const REPEATS: usize = 100;
/// Operations of the least convolution that is tried, on a GPU and on the fakes.
const LEAST: [u64; 2] = [1 << 16, 1 << 12];
/// Repeats of one by an algorithm that is not chosen.
const FEW: usize = 5;

/// What a layer computes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Forward(Activation),
    WithoutBias,
    /// With what a ReLU does that gave what was convolved.
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
        return vec![flat(4, 3, 10, 6), Conv3dShape { channels: 2, size: [3, 7, 8], outputs: 3, ..odd(2) }];
    }
    vec![flat(1024, 1, 28, 32), flat(2400, 32, 26, 64), deep(512, 1, 16, 1), deep(512, 16, 32, 2), odd(250)]
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
        let numbers = |len, seed| Numbers::new(device, half, len, seed);
        let parameters = |len, seed| Numbers::parameters(device, half, len, seed);
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
            x: numbers(x, 1),
            w: parameters(w, 2),
            dy: numbers(y, 3),
            bias: parameters(shape.outputs, 4),
            room: Buffer::new(context, room).expect("memory"),
            scratch: Buffer::new(context, scratch).expect("memory"),
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
        let (x, w, dy) = (self.x.halves(), self.w.with_copy(), self.dy.halves());
        let scratch = ValuesMut::from(floats(&self.scratch));
        match self.kind {
            Kind::Forward(activation) => {
                let operands = Operands { x, w, bias: Some(self.bias.with_copy()) };
                device.conv(&self.shape, operands, activation, halves(), scratch);
            }
            Kind::WithoutBias => {
                let operands = Operands { x, w, bias: None };
                device.conv(&self.shape, operands, Activation::None, halves(), scratch);
            }
            Kind::Inputs => device.conv_input_gradient_of_relu(&self.shape, w, dy, x, halves(), scratch),
            Kind::Weights => {
                let [_, at, _] = conv_lengths(&self.shape);
                let (dw, db) = ValuesMut::from(floats(&self.room)).split(at);
                device.conv_weight_gradient(&self.shape, x, dy, dw, Some(db), scratch);
            }
        }
    }

    /// A part of what the memory holds then.
    fn read(&self, device: &CudaDevice, part: Range<usize>) -> Vec<f32> {
        let half = (!matches!(self.kind, Kind::Weights)).then_some(self.x.half);
        read(device, &self.room, half, part)
    }

    /// That a broken pass is seen: one number that is none makes the outputs beside it none.
    fn passes_nan_on(&mut self, device: &CudaDevice) {
        let nan = rounded(self.x.half, f32::NAN);
        let first = self.shape.size.iter().product::<usize>();
        device.upload(&vec![nan; first], self.x.memory.write().part(0..first)).expect(WORKS);
        self.run(device);
        let found = self.read(device, 0..1);
        assert!(found[0].is_nan(), "{:?} of {:?}: {} of what is no number", self.kind, self.shape, found[0]);
    }
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
    pins.put(Pin { key: pin.key, algorithm: Some(pin.clone()), took: [0, 0] });
    one_by_one(gpu, precision).with_convolutions(&pins, library).expect("what was offered")
}

fn holds(gpu: &Arc<Gpu>, library: &Cudnn, precision: Precision) {
    let half = precision.half().expect("halves");
    let own = one_by_one(gpu, precision);
    let busy = Busy::new(gpu);
    let (mut chosen, mut by_library) = (0, 0);
    for (shape, kind) in layers().into_iter().flat_map(|shape| KINDS.map(|kind| (shape, kind))) {
        let mut case = Case::new(&own, half, kind, shape);
        let noting = one_by_one(gpu, precision).noting_convolutions(LEAST[usize::from(is_fake())]);
        case.run(&noting);
        let wanted = case.read(&noting, 0..case.len());
        let keys: Vec<ConvolutionKey> = noting.convolutions_asked_for();
        let [key] = keys[..] else {
            println!("{kind:?} of {shape:?}: no convolution for a library");
            continue;
        };
        chosen += 1;
        let pin = choose(gpu, library, &key).expect(WORKS);
        let [found, own_took] = pin.took;
        let parts = key.parts();
        let taken = pin.algorithm.as_ref().map_or("own is taken".to_owned(), ToString::to_string);
        println!("{kind:?} of {shape:?}, {parts} parts: {found} us, own {own_took} us: {taken}");
        for one in candidates(gpu, library, &key).expect(WORKS) {
            let is_chosen = pin.algorithm.as_ref() == Some(&one);
            by_library += usize::from(is_chosen);
            let with = device_by(gpu, library, precision, &one);
            println!("  {one}");
            let Look { all, repeats } = Look::at(case.len(), is_chosen);
            let (run, result) = (|| case.run(&with), |part| case.read(&with, part));
            near_and_the_same((kind, shape), (&wanted, all), (&busy, repeats), run, result);
        }
        if let (Some(one), Pass::Forward(_)) = (&pin.algorithm, key.pass) {
            case.passes_nan_on(&device_by(gpu, library, precision, one));
        }
    }
    println!("{chosen} convolutions in {}, {by_library} of them by the library", precision.name());
    assert!(chosen > 0, "no shape is one for a library");
}

fn checked(test: &str, precision: Precision) {
    on_a_gpu_or_the_fakes(test, "libfake_cudnn.so", "FAKE_CUDNN_DRIVER", |gpu| {
        if let Some(library) = cudnn() {
            holds(gpu, &library, precision);
        }
    });
}

#[test]
fn what_the_library_does_in_bf16_is_right_and_has_the_same_bits_each_time() {
    checked("what_the_library_does_in_bf16_is_right_and_has_the_same_bits_each_time", Precision::Bf16);
}

#[test]
fn what_the_library_does_in_f16_is_right_and_has_the_same_bits_each_time() {
    checked("what_the_library_does_in_f16_is_right_and_has_the_same_bits_each_time", Precision::F16);
}

/// Of engines: what the library lists is believed, as far as it calls that deterministic.
#[test]
fn engines_that_compute_something_else_are_no_candidates() {
    let test = "engines_that_compute_something_else_are_no_candidates";
    only_on_the_fakes(test, &[("FAKE_CUDNN_WRONG", "1"), ("FAKE_CUDNN_NONE", "listed")], |gpu| {
        let library = cudnn().expect("the fakes");
        // More numbers than the fake leaves alone, each of one term: a wrong one among them is seen.
        let of = |channels, side, outputs| Conv3dShape {
            images: 1,
            channels,
            size: [1, side, side],
            outputs,
            kernel: [1; 3],
            stride: [1; 3],
            padding: [0; 3],
        };
        for (pass, shape) in [
            (Pass::Forward(Behind::Nothing), of(1, 8, 16)),
            (Pass::Inputs, of(16, 8, 1)),
            (Pass::Weights, of(32, 1, 32)),
        ] {
            let key = ConvolutionKey::of(pass, dtrain_cuda::libraries::Numbers::Bf16, &shape)
                .expect("it can be told");
            assert_eq!(candidates(gpu, &library, &key).expect(WORKS), [], "{pass:?}");
            assert_eq!(choose(gpu, &library, &key).expect(WORKS).algorithm, None, "{pass:?}");
        }
    });
}
