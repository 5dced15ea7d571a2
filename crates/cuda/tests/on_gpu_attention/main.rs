//! Attention by cuDNN on a GPU: each engine that is offered gives what dtrain's own kernels give, within the rounding of halves, and the same
//! bits a hundred times, beside a stream that keeps the GPU busy.
//!
//! Without a GPU it says so, and runs itself once more on the fakes, with small shapes.

#[path = "../on_gpu/machine.rs"]
mod machine;
#[path = "../on_gpu/repeated.rs"]
mod repeated;

use dtrain_cuda::driver::{Buffer, Gpu};
use dtrain_cuda::libraries::attention::{AttentionKey, AttentionPass};
use dtrain_cuda::libraries::choosing_attention::{candidates, choose};
use dtrain_cuda::libraries::cudnn::{Cudnn, PinnedAttention};
use dtrain_cuda::libraries::pins::{AttentionPins, Pin};
use dtrain_cuda::operations::{attention_saved, attention_scratch};
use dtrain_cuda::{CudaDevice, Half, Precision, SliceMut, Values, ValuesMut};
use dtrain_engine::device::{Attended, AttentionShape, Device, Mask};
use machine::{cudnn, is_fake};
use repeated::{
    Busy, Numbers, WORKS, near_and_the_same, on_a_gpu_or_the_fakes, one_by_one, only_on_the_fakes, read,
    rounded,
};
use std::ops::Range;
use std::sync::Arc;

/// Repeats whose bits are compared, on a GPU and on the fakes.
const REPEATS: [usize; 2] = [100, 3];
/// Operations of the least attention that is tried.
const LEAST: u64 = 1 << 10;

/// Those of `gpt2` and `gpt`, one whose last tile is not full, and wide heads; without a mask that of ViT-B/16, and a small one. On the
/// fakes a smaller one, for each kind of halves another, of which one has no mask.
fn shapes(half: Half) -> Vec<AttentionShape> {
    let shape = |batch, time, heads, head| AttentionShape { batch, time, heads, head, mask: Mask::Causal };
    let of_all = |shape| AttentionShape { mask: Mask::None, ..shape };
    if is_fake() {
        return vec![if half == Half::Bf16 { shape(1, 33, 2, 16) } else { of_all(shape(1, 70, 1, 40)) }];
    }
    vec![
        shape(16, 1024, 12, 64),
        shape(64, 256, 4, 32),
        shape(5, 331, 3, 64),
        shape(4, 512, 6, 128),
        of_all(shape(64, 197, 12, 64)),
        of_all(shape(9, 65, 2, 32)),
    ]
}

/// One attention, and its result in halves.
struct Case {
    pass: AttentionPass,
    shape: AttentionShape,
    qkv: Numbers,
    dy: Numbers,
    /// The output, of which a gradient is.
    y: Buffer<u16>,
    saved: Buffer<f32>,
    /// The result.
    room: Buffer<f32>,
    scratch: Buffer<f32>,
}

impl Case {
    fn new(device: &CudaDevice, half: Half, pass: AttentionPass, shape: AttentionShape) -> Self {
        let out = shape.batch * shape.time * shape.heads * shape.head;
        let context = device.gpu().context();
        let result = if pass == AttentionPass::Forward { out } else { 3 * out };
        let case = Self {
            pass,
            shape,
            qkv: Numbers::new(device, half, 3 * out, 1),
            dy: Numbers::new(device, half, out, 2),
            y: Buffer::new(context, out).expect("memory"),
            saved: Buffer::new(context, attention_saved(&shape)).expect("memory"),
            room: Buffer::new(context, result.div_ceil(2)).expect("memory"),
            scratch: Buffer::new(context, attention_scratch(&shape)).expect("memory"),
        };
        if pass == AttentionPass::Gradient {
            // SAFETY: the memory is there as long as the case, and nobody else has it.
            let y = unsafe { SliceMut::new(case.y.address(), out) };
            case.forward(device, ValuesMut::halves_of(y, half));
            // The gradient may be another device's, on a stream that knows nothing of this one.
            device.finish().expect(WORKS);
        }
        case
    }

    /// Elements of the result.
    fn len(&self) -> usize {
        let parts = if self.pass == AttentionPass::Forward { 1 } else { 3 };
        parts * self.y.len()
    }

    fn forward(&self, device: &CudaDevice, y: ValuesMut<'_>) {
        // SAFETY: the memory is there as long as the case, and only what is on one stream at a time has it.
        let floats = |of: &Buffer<f32>| unsafe { SliceMut::<f32>::new(of.address(), of.len()) };
        let (saved, scratch) = (ValuesMut::from(floats(&self.saved)), ValuesMut::from(floats(&self.scratch)));
        device.attention(&self.shape, self.qkv.halves(), y, saved, scratch);
    }

    /// Puts it on the device's stream, into memory that held quarters (in halves something else).
    fn run(&self, device: &CudaDevice) {
        // SAFETY: as above.
        let floats = |of: &Buffer<f32>| unsafe { SliceMut::<f32>::new(of.address(), of.len()) };
        device.fill(ValuesMut::from(floats(&self.room)), 0.25);
        // SAFETY: as above; halves take half of it.
        let memory = unsafe { SliceMut::new(self.room.address(), self.len()) };
        let result = ValuesMut::halves_of(memory, self.qkv.half);
        if self.pass == AttentionPass::Forward {
            return self.forward(device, result);
        }
        let inputs = Attended {
            qkv: self.qkv.halves(),
            y: Values::halves_of(self.y.read(), self.qkv.half),
            saved: self.saved.read().into(),
            dy: self.dy.halves(),
        };
        device.attention_gradient(&self.shape, inputs, result, ValuesMut::from(floats(&self.scratch)));
    }

    /// A part of the result.
    fn read(&self, device: &CudaDevice, part: Range<usize>) -> Vec<f32> {
        read(device, &self.room, Some(self.qkv.half), part)
    }

    /// What an output keeps for its gradient.
    fn kept(&self, device: &CudaDevice) -> Vec<f32> {
        read(device, &self.saved, None, 0..self.saved.len())
    }

    /// That a broken pass is seen: a number of a query that is none makes its output none.
    fn passes_nan_on(&mut self, device: &CudaDevice) {
        let nan = [rounded(self.qkv.half, f32::NAN)];
        device.upload(&nan, self.qkv.memory.write().part(0..1)).expect(WORKS);
        self.run(device);
        let found = self.read(device, 0..1);
        assert!(found[0].is_nan(), "{:?} of {:?}: {} of what is no number", self.pass, self.shape, found[0]);
    }
}

/// A device whose one attention is done so.
fn device_by(gpu: &Arc<Gpu>, library: &Cudnn, precision: Precision, pin: &PinnedAttention) -> CudaDevice {
    let mut pins = AttentionPins::new(&gpu.context().about().name, library.version());
    pins.put(Pin { key: pin.key, algorithm: Some(pin.clone()), took: [0, 0] });
    one_by_one(gpu, precision).with_attention(&pins, library).expect("what was offered")
}

fn words(pin: &PinnedAttention) -> String {
    format!("engine {} {:?} with {} MiB", pin.choice.engine, pin.choice.knobs, pin.workspace >> 20)
}

fn holds(gpu: &Arc<Gpu>, library: &Cudnn, precision: Precision) {
    let half = precision.half().expect("halves");
    let own = one_by_one(gpu, precision);
    let busy = Busy::new(gpu);
    let repeats = REPEATS[usize::from(is_fake())];
    let mut tried = 0;
    let passes = [AttentionPass::Forward, AttentionPass::Gradient];
    for (shape, pass) in shapes(half).into_iter().flat_map(|shape| passes.map(|pass| (shape, pass))) {
        let mut case = Case::new(&own, half, pass, shape);
        let noting = one_by_one(gpu, precision).noting_attention(LEAST);
        case.run(&noting);
        let (wanted, kept) = (case.read(&noting, 0..case.len()), case.kept(&noting));
        let keys: Vec<AttentionKey> = noting.attention_asked_for();
        let [key] = keys[..] else { panic!("{pass:?} of {shape:?}: {keys:?}") };
        let pin = choose(gpu, library, &key).expect(WORKS);
        let [found, own_took] = pin.took;
        let taken = pin.algorithm.as_ref().map_or("own is taken".to_owned(), words);
        println!("{pass:?} of {shape:?}: {found} us, own {own_took} us: {taken}");
        let offered = candidates(gpu, library, &key).expect(WORKS);
        if is_fake() {
            // Of five one is never done, one is noted as giving other bits each time, and one does so without a note.
            let engines: Vec<i64> = offered.iter().map(|pin| pin.choice.engine).collect();
            assert_eq!(engines, [2, 1], "{pass:?} of {shape:?}");
        }
        for one in offered {
            println!("  {}", words(&one));
            tried += 1;
            let with = device_by(gpu, library, precision, &one);
            let (run, result) = (|| case.run(&with), |part| case.read(&with, part));
            let what = (pass, shape, one.choice.engine);
            near_and_the_same(what, (&wanted, 0..case.len()), (&busy, repeats), run, result);
            let near =
                kept.iter().zip(case.kept(&with)).all(|(a, b)| (a - b).abs() <= 0.01 * a.abs().max(1.0));
            assert!(near, "{what:?}: what is kept for the gradient");
            if pass == AttentionPass::Forward {
                case.passes_nan_on(&with);
                case = Case::new(&own, half, pass, shape);
            }
        }
    }
    println!("{tried} engines in {}", precision.name());
    assert!(tried > 0, "the library offers nothing");
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

#[test]
fn engines_that_compute_something_else_are_no_candidates() {
    let test = "engines_that_compute_something_else_are_no_candidates";
    only_on_the_fakes(test, &[("FAKE_CUDNN_WRONG", "1")], |gpu| {
        let library = cudnn().expect("the fakes");
        for pass in [AttentionPass::Forward, AttentionPass::Gradient] {
            let [shape] = shapes(Half::Bf16)[..] else { panic!("one shape on the fakes") };
            let key = AttentionKey::of(pass, dtrain_cuda::libraries::Numbers::Bf16, &shape)
                .expect("it can be told");
            assert_eq!(candidates(gpu, &library, &key).expect(WORKS), [], "{pass:?}");
            assert_eq!(choose(gpu, &library, &key).expect(WORKS).algorithm, None, "{pass:?}");
        }
    });
}
